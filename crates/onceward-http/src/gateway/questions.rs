//! Questions to an upstream: did a request in doubt happen, and is a reported success true?

use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode};
use onceward::rfc3339;
use onceward::{Json, Ledger, Outcome, ProbeAnswer, Record, Verification};
use serde_json::Value;

use super::content::Request;
use super::exchange::forwarded;
use super::query::{Condition, encoded, field, fill, literal, select};
use super::reply::Reply;
use super::rules::Verify;
use super::upstream::{Ruling, Upstream};
use crate::client::{Connection, SendError, full, in_words};

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
const PAGE_SIZES: [&str; 7] = ["per_page", "page_size", "pageSize", "limit", "count", "first", "max_results"];

/// A probe of a request in doubt.
pub(crate) struct Question<'a> {
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
}

/// Asks whether the request that the record is about happened.
pub(crate) async fn probe(question: Question<'_>) -> ProbeAnswer {
    question.ask().await.unwrap_or_else(ProbeAnswer::CannotTell)
}

impl Question<'_> {
    /// The answer, or why there is none.
    async fn ask(&self) -> Result<ProbeAnswer, String> {
        let probe = self.ruling.probe.as_ref().ok_or("there is no probe")?;
        let mut path = fill(&probe.get, |name| match name {
            "path" => Some(self.request.path.clone()),
            name => self.word(name, self.record.created_ms - MAX_SKEW_MS).map(|value| encoded(&value)),
        })?;
        let mut search = Search::default();
        for _ in 0..MAX_PAGES {
            let answer = get(self.upstream, &self.request.headers, &path, self.ruling.timeout).await?;
            let status = answer.status.as_u16();
            if probe.absent.contains(&status) {
                return Ok(ProbeAnswer::No);
            }
            let json = answer.json.as_ref().filter(|_| answer.status.is_success());
            let json = json.ok_or_else(|| format!("the probe was answered with status {status}"))?;
            self.search(&mut search, &probe.found, answer.date_ms, json)?;
            match answer.next {
                Next::Path(next) => path = next,
                Next::Elsewhere => {
                    return Err("the next page of the answer is at another server".to_owned());
                }
                Next::None if search.oldest.is_none() && is_full(&path, &probe.found, json) => {
                    return Err("the probe's answer may have further pages".to_owned());
                }
                Next::None => return self.conclusion(search, probe.status),
            }
        }
        match &search.oldest {
            Some(_) => self.conclusion(search, probe.status),
            None => Err(format!("the answer has more than {MAX_PAGES} pages")),
        }
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
            None => Ok(ProbeAnswer::No),
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

/// Whether a list is as long as the page that was asked for.
fn is_full(path: &str, found: &str, answer: &Value) -> bool {
    let query = path.split_once('?').map_or("", |(_, query)| query);
    let sizes = form_urlencoded::parse(query.as_bytes())
        .filter(|(name, _)| PAGE_SIZES.contains(&name.as_ref()))
        .filter_map(|(_, value)| value.parse::<usize>().ok());
    let size = sizes.min();
    let length = searched(found, answer).map_or(0, Vec::len);
    size.is_some_and(|size| length >= size)
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
    upstream: &Upstream,
    ruling: &Ruling,
    headers: &HeaderMap,
    verify: &Verify,
    reply: &Reply,
) -> (Verification, String) {
    let body =
        std::str::from_utf8(&reply.body).ok().and_then(|text| Json::parse(text).ok()).unwrap_or(Json::Null);
    let path = fill(&verify.get, |name| field(&body, name).map(|value| encoded(&value)));
    let path = match path {
        Ok(path) => upstream.path(&path),
        Err(why) => return (Verification::Pending, why),
    };
    let Answered { status, json, .. } = match get(upstream, headers, &path, ruling.timeout).await {
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
    let links = headers.get_all(header::LINK).iter().filter_map(|value| value.to_str().ok());
    let target = links.flat_map(|value| value.split(',')).find_map(|link| {
        let (target, parameters) = link.trim().strip_prefix('<')?.split_once('>')?;
        let is_next = |one: &str| matches!(one.trim(), "rel=\"next\"" | "rel=next");
        parameters.split(';').any(is_next).then_some(target)
    });
    let Some(target) = target else { return Next::None };
    if target.starts_with('/') && !target.starts_with("//") {
        return Next::Path(target.to_owned());
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
    upstream: &Upstream,
    headers: &HeaderMap,
    path: &str,
    patience: Duration,
) -> Result<Answered, String> {
    let mut headers = forwarded(headers);
    for name in [header::CONTENT_LENGTH, header::CONTENT_TYPE, header::CONTENT_ENCODING, header::EXPECT] {
        headers.remove(name);
    }
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
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
        })
    };
    match tokio::time::timeout(patience, answer).await {
        Ok(answer) => answer,
        Err(_) => Err("the question was not answered in time".to_owned()),
    }
}
