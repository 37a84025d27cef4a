//! Probes and checks of an upstream: did a request in doubt happen, and is a reported success true?

use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode};
use onceward::rfc3339;
use onceward::{Clock, Json, Ledger, Outcome, ProbeAnswer, Record, Template, Verification};
use serde_json::Value;

use super::completeness::{self, Read, Said};
use super::content::Request;
use super::exchange::forwarded;
use super::query::{Condition, field, fields_of, in_path, literal, select};
use super::reply::Reply;
use super::rules::{Probe, Verify};
use super::upstream::{Ruling, Upstream};
use crate::client::{Connection, SendError, full, in_words};
use crate::template::{encoded, fill};
use crate::time;

/// The largest answer to a question.
const MAX_ANSWER: usize = 8 * 1024 * 1024;
/// Times have whole seconds, and clocks are set a little.
const CLOCK_STEP_MS: i64 = 2_000;
/// How much the time of a resource may differ from what the upstream's clock says now. A resource that fits in all but
/// this time may be the one that is looked for.
const MAX_SKEW_MS: i64 = 2 * 60 * 60 * 1_000;
/// The most pages of one answer.
const MAX_PAGES: usize = 10;
/// Parameters that say how long a page is.
const PAGE_SIZES: [&str; 12] = [
    "per_page",
    "perPage",
    "per-page",
    "page_size",
    "pageSize",
    "page[size]",
    "limit",
    "count",
    "first",
    "max_results",
    "maxResults",
    "$top",
];

/// A probe of a request in doubt.
pub(crate) struct ProbeContext<'a> {
    pub(crate) upstream: &'a Upstream,
    pub(crate) ruling: &'a Ruling,
    pub(crate) request: &'a Request,
    pub(crate) record: &'a Record,
    /// The clock of the record.
    pub(crate) ledger: &'a Ledger,
}

/// What the pages of an answer have shown so far.
#[derive(Default)]
struct Search {
    /// The oldest resource that fits.
    oldest: Option<Value>,
    /// Whether a resource fits in all but its time.
    is_near: bool,
    /// How much was read.
    read: Read,
    /// Why what is not in the pages may exist nevertheless.
    unsound: Option<String>,
}

/// Asks whether the request that the record is about happened.
pub(crate) async fn probe(context: ProbeContext<'_>) -> ProbeAnswer {
    context.ask().await.unwrap_or_else(ProbeAnswer::CannotTell)
}

impl ProbeContext<'_> {
    /// The answer, or why there is none.
    async fn ask(&self) -> Result<ProbeAnswer, String> {
        let probe = self.ruling.probe.as_ref().ok_or("there is no probe")?;
        let mut path = fill(&probe.get, |name| match name {
            "path" => Some(self.request.path.clone()),
            name => encoded(&self.word(name, self.record.created_ms - MAX_SKEW_MS)?),
        })?;
        let mut search = Search::default();
        for page in 0..MAX_PAGES {
            let answer =
                get((self.upstream, self.ledger.clock()), &self.request.headers, &path, self.ruling.timeout)
                    .await?;
            let status = answer.status.as_u16();
            if probe.absent.contains(&status) && page == 0 {
                return completeness::stale(&answer.headers).map_or(Ok(ProbeAnswer::No), Err);
            }
            let json = answer.json.as_ref().filter(|_| answer.status.is_success());
            let json = json.ok_or_else(|| format!("the probe was answered with status {status}"))?;
            self.search(&mut search, &probe.found, answer.date_ms, json)?;
            let list = searched(&probe.found, json).map_or(&[][..], Vec::as_slice);
            search.read.items += list.len();
            search.read.pages += 1;
            if search.unsound.is_none() {
                search.unsound = completeness::unsound(answer.status, &answer.headers).or_else(|| {
                    completeness::is_troubled(json, list)
                        .then(|| "the probe's answer is not complete".to_owned())
                });
            }
            match answer.next {
                Next::Path(next) => path = next,
                Next::Elsewhere => {
                    return Err("the next page of the answer is at another server".to_owned());
                }
                Next::None => {
                    let said = completeness::said(&answer.headers, json, list, search.read);
                    if search.unsound.is_none() && !is_whole(said, probe, &path, list.len()) {
                        search.unsound = Some("the probe's answer may have further pages".to_owned());
                    }
                    return self.conclusion(search, probe.status);
                }
            }
        }
        search.unsound = Some(format!("the answer has more than {MAX_PAGES} pages"));
        self.conclusion(search, probe.status)
    }

    /// Looks for the resource in one page.
    fn search(
        &self,
        search: &mut Search,
        found: &str,
        date_ms: Option<i64>,
        page: &Value,
    ) -> Result<(), String> {
        // The upstream's clock says when a resource was created. Dates have whole seconds.
        let skew_ms = date_ms.map_or(0, |date_ms| date_ms - whole_second(self.ledger.clock_ms()));
        let since_ms = self.record.created_ms + skew_ms - CLOCK_STEP_MS;
        let select = |since_ms: i64| {
            let query = fill(found, |name| self.word(name, since_ms).map(|value| literal(&value)))?;
            select(&query, page).map_err(|invalid| invalid.to_string())
        };
        search.is_near |= !select(since_ms - MAX_SKEW_MS)?.is_empty();
        // The oldest that fits is the one that this request made.
        search.oldest = select(since_ms)?.pop().or(search.oldest.take());
        if search.oldest.is_none() && !is_searchable(found, page) {
            return Err("the probe was answered with something other than resources".to_owned());
        }
        Ok(())
    }

    fn conclusion(&self, search: Search, status: u16) -> Result<ProbeAnswer, String> {
        match search.oldest {
            Some(resource) => Ok(ProbeAnswer::Yes(outcome(self.ruling, status, &resource))),
            None if search.is_near => {
                Err("the upstream has one that was made a short time before the request".to_owned())
            }
            None => search.unsound.map_or(Ok(ProbeAnswer::No), Err),
        }
    }

    fn word(&self, name: &str, since_ms: i64) -> Option<Json> {
        match name {
            // Times in answers have whole seconds.
            "since" => Some(Json::from(rfc3339(whole_second(since_ms)).replace(".000Z", "Z"))),
            "key" => Some(Json::from(self.record.key.text.as_str())),
            name => field(&self.request.body, name.strip_prefix("body.")?),
        }
    }
}

fn whole_second(ms: i64) -> i64 {
    ms.div_euclid(1_000) * 1_000
}

/// The list that a query with a filter searches, if the answer has one.
fn searched<'a>(found: &str, answer: &'a Value) -> Option<&'a Vec<Value>> {
    let (list, _) = found.split_once("[?")?;
    let steps = list.strip_prefix('$')?.split('.').filter(|step| !step.is_empty());
    steps.into_iter().try_fold(answer, |value, step| value.get(step))?.as_array()
}

/// Whether an answer in which nothing was found is a list of resources, so that this means something.
fn is_searchable(found: &str, answer: &Value) -> bool {
    searched(found, answer).is_some_and(|list| list.iter().all(Value::is_object))
}

/// Whether nothing follows the last page, of which a list of this length is known. A list that the answer says nothing
/// about is whole if it is empty, or shorter than a page.
fn is_whole(said: Said, probe: &Probe, path: &str, length: usize) -> bool {
    match said {
        Said::More => false,
        Said::Last => true,
        Said::Nothing if probe.complete || length == 0 => true,
        Said::Nothing => probe.page.or_else(|| page_size(path)).is_some_and(|size| length < size),
    }
}

/// The size of the page that was asked for.
fn page_size(path: &str) -> Option<usize> {
    let query = path.split_once('?').map_or("", |(_, query)| query);
    let sizes = form_urlencoded::parse(query.as_bytes())
        .filter(|(name, _)| PAGE_SIZES.contains(&name.as_ref()))
        .filter_map(|(_, value)| value.parse::<usize>().ok());
    sizes.min()
}

fn outcome(ruling: &Ruling, status: u16, resource: &Value) -> Outcome {
    let headers =
        HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    let reply = Reply { status, headers, body: resource.to_string().into(), trailers: None };
    Outcome {
        reason: Some("the upstream has it".to_owned()),
        body: Some(reply.encode()),
        ..Outcome::with_effect(ruling.effect)
    }
}

/// Checks a reported success once.
pub(crate) async fn check(
    (upstream, clock): (&Upstream, &dyn Clock),
    ruling: &Ruling,
    headers: &HeaderMap,
    verify: &Verify,
    reply: &Reply,
) -> (Verification, String) {
    let first = fields_of(&reply.body);
    let value = |name: &str| {
        let dotted = name.strip_prefix('/').map_or(name.to_owned(), |pointer| pointer.replace('/', "."));
        in_path(name, onceward::field(first, &dotted)?.text())
    };
    let path = match Template::parse(&verify.get).and_then(|template| template.fill(value)) {
        Ok(path) => upstream.path(&path),
        Err(invalid) => return (Verification::Pending, invalid.to_string()),
    };
    let Answered { status, json, .. } = match get((upstream, clock), headers, &path, ruling.timeout).await {
        Ok(answer) => answer,
        Err(why) => return (Verification::Pending, why),
    };
    let Some(answer) = json.filter(|_| status.is_success()) else {
        return (Verification::Pending, format!("the check was answered with status {}", status.as_u16()));
    };
    let holds = |text: &str| Condition::parse(text).is_ok_and(|condition| condition.holds(&answer));
    if holds(&verify.expect) {
        return (Verification::Confirmed, verify.expect.clone());
    }
    match &verify.refute {
        Some(refute) if holds(refute) => (Verification::Refuted, format!("the check found {refute}")),
        Some(_) | None => (Verification::Pending, format!("not yet: {}", verify.expect)),
    }
}

/// The answer to a question.
struct Answered {
    status: StatusCode,
    /// The body, if it is JSON.
    json: Option<Value>,
    headers: HeaderMap,
    /// The upstream's clock.
    date_ms: Option<i64>,
    next: Next,
}

/// The next page of an answer.
enum Next {
    None,
    /// At the same server.
    Path(String),
    /// At another server, which does not get the caller's credentials.
    Elsewhere,
}

/// The time in a header.
fn date_ms(date: &str) -> Option<i64> {
    let since = httpdate::parse_http_date(date).ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    i64::try_from(since.as_millis()).ok()
}

/// The path of the next page (RFC 8288).
fn next_page(upstream: &Upstream, headers: &HeaderMap) -> Next {
    let lines = headers.get_all(header::LINK).iter().filter_map(|value| value.to_str().ok());
    let links = lines.filter_map(completeness::links).flatten();
    let target = links.into_iter().find(|link| link.is("next")).map(|link| link.target);
    let Some(target) = target else { return Next::None };
    if target.starts_with('/') && !target.starts_with("//") {
        return Next::Path(target);
    }
    match target.parse::<hyper::Uri>() {
        Ok(uri) if upstream.remote.is_at(&uri) => {
            Next::Path(uri.path_and_query().map_or("/", |path| path.as_str()).to_owned())
        }
        Ok(_) | Err(_) => Next::Elsewhere,
    }
}

/// Gets a path with the caller's credentials.
async fn get(
    (upstream, clock): (&Upstream, &dyn Clock),
    headers: &HeaderMap,
    path: &str,
    patience: Duration,
) -> Result<Answered, String> {
    let mut headers = forwarded(headers);
    for name in [header::CONTENT_LENGTH, header::CONTENT_TYPE, header::CONTENT_ENCODING, header::EXPECT] {
        headers.remove(name);
    }
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    // What a cache has is older than the request.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    let request = upstream.remote.request(Method::GET, path, headers, full(""));
    let answer = async {
        let response = match upstream.remote.send(request, Connection::Kept).await {
            Ok(response) => response,
            Err(SendError::NotSent(why) | SendError::MaybeSent(why)) => return Err(why),
        };
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(|error| in_words(&*error))?;
        let date = head.headers.get(header::DATE).and_then(|value| value.to_str().ok());
        Ok(Answered {
            status: head.status,
            json: serde_json::from_slice(&body.to_bytes()).ok(),
            date_ms: date.and_then(date_ms),
            next: next_page(upstream, &head.headers),
            headers: head.headers,
        })
    };
    match time::within(clock, patience, answer).await {
        Some(answer) => answer,
        None => Err("the question was not answered in time".to_owned()),
    }
}
