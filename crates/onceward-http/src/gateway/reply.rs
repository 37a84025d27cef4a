//! Answers to clients: an upstream's answer with a receipt, a stored answer, and problem documents.

use std::cell::RefCell;
use std::convert::Infallible;
use std::io::Write;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use data_encoding::BASE64;
use futures_util::{StreamExt, stream};
use http_body_util::{BodyStream, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::response::Parts;
use hyper::{HeaderMap, StatusCode};
use onceward::{Answer, Code, Effect, Error, Happened, Preview, Ran, Record, Redaction, RepeatRule, Surface};
use onceward::{ErrorView, OperationView, Problem, UndoReport};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::headers::passed_on;

/// The first bytes of a stored answer, which name its format.
const MARK: &[u8; 4] = b"OGW1";
/// The same for one that is compressed as a whole.
const COMPRESSED: &[u8; 4] = b"OGZ1";
/// The level of compression: repetitive streams become 20 times smaller, at hundreds of megabytes a second.
const LEVEL: i32 = 3;
/// The largest answer that is decompressed.
const MAX_DECOMPRESSED: usize = 256 * 1024 * 1024;
/// A larger body is compressed without a copy of it. For a smaller one, the compressor of the thread is faster.
const LARGE: usize = 256 * 1024;
/// Stops the retries of SDKs.
const SHOULD_RETRY: [HeaderName; 2] =
    [HeaderName::from_static("x-should-retry"), HeaderName::from_static("stripe-should-retry")];
/// Headers of an answer that belong to the first caller, and are not stored.
const PRIVATE: [&str; 6] = [
    "set-cookie",
    "set-cookie2",
    "www-authenticate",
    "proxy-authenticate",
    "authentication-info",
    "proxy-authentication-info",
];

/// A complete answer of an upstream.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

#[derive(Serialize, Deserialize)]
struct Head {
    status: u16,
    headers: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    trailers: Vec<(String, String)>,
}

impl Reply {
    /// The answer as a response, with the receipt of this operation.
    pub(crate) fn response(&self, record: &Record, ran: Ran) -> Response {
        let body = match &self.trailers {
            None => Body::from(self.body.clone()),
            Some(trailers) => {
                let frames = [Frame::data(self.body.clone()), Frame::trailers(trailers.clone())];
                Body::new(StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>))))
            }
        };
        let mut response = receipted(self.status, &self.headers, body, record, ran);
        let headers = response.headers_mut();
        match &self.trailers {
            None => drop(headers.insert(header::CONTENT_LENGTH, self.body.len().into())),
            Some(trailers) => {
                headers.extend(trailers.keys().map(|name| (header::TRAILER, name.clone().into())));
            }
        }
        response
    }

    /// The answer as it is stored: without headers of the connection, cookies and challenges.
    pub(crate) fn encode(&self) -> Arc<[u8]> {
        [&self.encode_head()[..], &self.body].concat().into()
    }

    /// All that is stored before the body.
    fn encode_head(&self) -> Vec<u8> {
        let head = Head {
            status: self.status.as_u16(),
            headers: packed(&passed_on(&self.headers)),
            trailers: self.trailers.as_ref().map(packed).unwrap_or_default(),
        };
        let head = serde_json::to_vec(&head).unwrap_or_default();
        let length = u32::try_from(head.len()).unwrap_or(0).to_be_bytes();
        [&MARK[..], &length, &head].concat()
    }

    /// The same, compressed.
    pub(crate) fn encode_compressed(&self) -> Arc<[u8]> {
        let head = self.encode_head();
        let length = head.len() + self.body.len();
        let packed = if self.body.len() > LARGE {
            compressed_in_parts(&[&head, &self.body])
        } else {
            compressed(&[&head[..], &self.body].concat())
        };
        match packed {
            Ok(packed) if packed.len() < length => [&COMPRESSED[..], &packed].concat().into(),
            Ok(_) | Err(_) => self.encode(),
        }
    }

    /// The answer without what the policy removes from stored results. Headers are text.
    pub(crate) fn redacted(&self, redaction: &Redaction) -> Self {
        if redaction.is_empty() {
            return self.clone();
        }
        let body = match std::str::from_utf8(&self.body) {
            Ok(text) if serde_json::from_str::<&RawValue>(text).is_ok() => {
                redaction.json(text).into_owned().into()
            }
            Ok(text) => redaction.text(text).into_owned().into(),
            // No pattern is looked for in it, so nothing of it is kept.
            Err(_) => Bytes::new(),
        };
        let text = |headers: &HeaderMap| {
            let values = headers.iter().filter_map(|(name, value)| {
                let redacted = redaction.text(value.to_str().ok()?).into_owned();
                Some((name.clone(), HeaderValue::from_str(&redacted).ok()?))
            });
            values.collect::<HeaderMap>()
        };
        let trailers = self.trailers.as_ref().map(text);
        Self { status: self.status, headers: text(&self.headers), body, trailers }
    }

    /// A stored answer.
    pub(crate) fn decode(stored: &[u8]) -> Option<Self> {
        if let Some(packed) = stored.strip_prefix(COMPRESSED) {
            return Self::decode(&decompressed(packed)?);
        }
        let rest = stored.strip_prefix(MARK)?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (head, body) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
        let head: Head = serde_json::from_slice(head).ok()?;
        let trailers = unpacked(&head.trailers);
        Some(Self {
            status: StatusCode::from_u16(head.status).ok()?,
            headers: unpacked(&head.headers),
            body: Bytes::copy_from_slice(body),
            trailers: (!trailers.is_empty()).then_some(trailers),
        })
    }
}

/// Compresses with the compressor of this thread: a new one would cost more than a short answer does.
fn compressed(plain: &[u8]) -> std::io::Result<Vec<u8>> {
    thread_local! {
        static COMPRESSOR: RefCell<Option<zstd::bulk::Compressor<'static>>> = const { RefCell::new(None) };
    }
    COMPRESSOR.with_borrow_mut(|compressor| match compressor {
        Some(compressor) => compressor.compress(plain),
        None => compressor.insert(zstd::bulk::Compressor::new(LEVEL)?).compress(plain),
    })
}

/// Compresses parts as one, without a copy of them.
fn compressed_in_parts(parts: &[&[u8]]) -> std::io::Result<Vec<u8>> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), LEVEL)?;
    // The frame says how long it is, like one that was compressed as a whole.
    encoder.set_pledged_src_size(u64::try_from(length).ok())?;
    for part in parts {
        encoder.write_all(part)?;
    }
    encoder.finish()
}

/// Decompresses with the decompressor of this thread. A frame that was compressed as a whole says how long it is.
fn decompressed(packed: &[u8]) -> Option<Vec<u8>> {
    thread_local! {
        static DECOMPRESSOR: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
    }
    let length = zstd::zstd_safe::get_frame_content_size(packed).ok()??;
    let length = usize::try_from(length).ok().filter(|length| *length <= MAX_DECOMPRESSED)?;
    DECOMPRESSOR.with_borrow_mut(|decompressor| {
        let decompressor = match decompressor {
            Some(decompressor) => decompressor,
            None => decompressor.insert(zstd::bulk::Decompressor::new().ok()?),
        };
        decompressor.decompress(packed, length).ok()
    })
}

/// The headers of an answer that are kept: none of the connection, and no cookies or challenges.
pub(crate) fn kept(headers: &HeaderMap) -> HeaderMap {
    let mut kept = passed_on(headers);
    let is_private = |name: &HeaderName| PRIVATE.contains(&name.as_str()) || is_secret(name.as_str());
    let private: Vec<HeaderName> = kept.keys().filter(|name| is_private(name)).cloned().collect();
    for name in private {
        kept.remove(name);
    }
    kept
}

/// Names and values as text; values that are not ASCII are encoded.
fn packed(headers: &HeaderMap) -> Vec<(String, String)> {
    let kept =
        headers.iter().filter(|(name, _)| !PRIVATE.contains(&name.as_str()) && !is_secret(name.as_str()));
    kept.map(|(name, value)| {
        let text = match value.to_str() {
            Ok(text) => format!("={text}"),
            Err(_) => format!("*{}", BASE64.encode(value.as_bytes())),
        };
        (name.as_str().to_owned(), text)
    })
    .collect()
}

fn unpacked(packed: &[(String, String)]) -> HeaderMap {
    let value = |text: &str| match text.split_at_checked(1)? {
        ("*", coded) => HeaderValue::from_bytes(&BASE64.decode(coded.as_bytes()).ok()?).ok(),
        (_, text) => HeaderValue::from_str(text).ok(),
    };
    packed.iter().filter_map(|(name, text)| Some((name.parse::<HeaderName>().ok()?, value(text)?))).collect()
}

/// Whether a header of an answer holds a credential by its name.
fn is_secret(name: &str) -> bool {
    ["authorization", "-token", "secret", "api-key", "apikey"].iter().any(|word| name.contains(word))
}

/// An answer that is too large to store: its beginning, and the rest as fast as the client takes it.
pub(crate) fn streamed(head: &Parts, begun: Bytes, rest: Incoming, record: &Record, ran: Ran) -> Response {
    let begun = stream::iter([Ok(Frame::data(begun))]);
    let body = Body::new(StreamBody::new(begun.chain(BodyStream::new(rest))));
    receipted(head.status, &head.headers, body, record, ran)
}

fn receipted(status: StatusCode, headers: &HeaderMap, body: Body, record: &Record, ran: Ran) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = vendors_own(headers);
    sign(response.headers_mut(), status, record, ran);
    response
}

/// Adds the receipt's headers.
fn sign(headers: &mut HeaderMap, status: StatusCode, record: &Record, ran: Ran) {
    let outcome = record.outcome.as_ref();
    let original = outcome.and_then(|outcome| outcome.effect);
    let effect = if ran == Ran::Yes { original.unwrap_or(Effect::Noop) } else { Effect::Noop };
    // The vendor's final refusal is done with, but it changed nothing.
    let happened = match (record.happened(), original) {
        (Happened::Yes, Some(Effect::Noop)) if status.is_client_error() => Happened::No,
        (happened, _) => happened,
    };
    put(headers, "once-operation", record.id.as_str());
    put(headers, "once-effect", effect.as_str());
    put(headers, "once-happened", happened.as_str());
    if let Some(verified) = outcome.and_then(|outcome| outcome.verified) {
        put(headers, "once-verified", verified.as_str());
    }
    if ran == Ran::No {
        put(headers, "idempotent-replayed", "true");
    }
}

/// Adds the rule that decided between retry and repeat.
pub(crate) fn put_rule(headers: &mut HeaderMap, rule: RepeatRule) {
    let rule = match rule {
        RepeatRule::Given => "given",
        RepeatRule::Strict => "strict",
        RepeatRule::First => "first",
        RepeatRule::Retry(_) => "retry",
        RepeatRule::Repeat => "repeat",
    };
    put(headers, "once-rule", rule);
}

pub(crate) fn put(headers: &mut HeaderMap, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

/// The headers of an upstream's answer, without those that only this gateway may set.
fn vendors_own(headers: &HeaderMap) -> HeaderMap {
    let mut kept = passed_on(headers);
    let is_ours = |name: &HeaderName| name.as_str().starts_with("once-") || name == "idempotent-replayed";
    let ours: Vec<HeaderName> = kept.keys().filter(|name| is_ours(name)).cloned().collect();
    for name in ours {
        kept.remove(name);
    }
    kept
}

/// The error as a problem document, with the contract's status and, where a retry must not come, what SDKs obey.
pub(crate) fn problem(error: &Error) -> Response {
    // The budget is a setting here, and not a flag of a command. A stopped scope is a scope of this server's caller, so
    // the caller resumes it here: `once` would have to name the server's own ledger and the tenant.
    let by_http = matches!(error.code(), Code::BudgetExhausted | Code::Stopped | Code::Held);
    let surface = if by_http { Surface::Http } else { surface() };
    problem_of(error, &Answer::failed(error, &surface))
}

/// The problem that an operation has failed with the last attempt of its budget.
pub(crate) fn spent(record: &Arc<Record>, ran: Ran) -> Response {
    let limit = record.detail.max_attempts;
    let error = Error::BudgetExhausted { record: Arc::clone(record), limit, ran };
    let mut answer = Answer::failed(&error, &Surface::Http);
    if let Some(view) = &mut answer.error {
        let reason = record.reason().unwrap_or("no reason is known");
        let attempts = record.spent_attempts();
        view.message = format!("gave up after {attempts} failed attempts (the limit is {limit}): {reason}");
    }
    problem_of(&error, &answer)
}

fn problem_of(error: &Error, answer: &Answer) -> Response {
    let status = StatusCode::from_u16(error.code().http()).unwrap_or(StatusCode::BAD_GATEWAY);
    let mut response = problem_document(status, answer);
    if let Some(record) = error.record() {
        put(response.headers_mut(), "once-operation", record.id.as_str());
    }
    if let Some(happened) = error.happened() {
        put(response.headers_mut(), "once-happened", happened.as_str());
    }
    stop_retries(&mut response);
    response
}

/// A problem that is not an error of the ledger.
pub(crate) fn refusal(
    status: StatusCode,
    code: &'static str,
    happened: Option<Happened>,
    detail: &str,
) -> Response {
    let error = ErrorView { happened, ..ErrorView::new(code, detail) };
    let answer = Answer { ok: false, error: Some(error), ran: Some(false), ..Answer::plain("noop") };
    let mut response = problem_document(status, &answer);
    if let Some(happened) = happened {
        put(response.headers_mut(), "once-happened", happened.as_str());
    }
    stop_retries(&mut response);
    response
}

/// The answer for an operation that is done, and whose answer was too large to store or is not known.
pub(crate) fn unavailable(record: &Record) -> Response {
    let detail = "the operation was done, but its answer was not stored; nothing was sent again. Read the resource \
                  from the upstream";
    let error = ErrorView {
        happened: Some(Happened::Yes),
        ..ErrorView::new(Code::ResultUnavailable.as_str(), detail)
    };
    let operation = OperationView::of(record, record.state, Ran::No);
    let answer = Answer {
        ok: false,
        error: Some(error),
        ran: Some(false),
        operation: Some(operation),
        ..Answer::plain("noop")
    };
    let status = StatusCode::GONE;
    let mut response = problem_document(status, &answer);
    // The status is ours and not the vendor's, which would say that a refused request changed nothing.
    sign(response.headers_mut(), StatusCode::OK, record, Ran::No);
    response.headers_mut().remove("idempotent-replayed");
    stop_retries(&mut response);
    response
}

/// The answer to a dry run.
pub(crate) fn preview(preview: &Preview) -> Response {
    json(StatusCode::OK, &Answer::preview(preview, Vec::new(), &surface()))
}

/// The answer to a request to take an operation back.
pub(crate) fn undone(report: &UndoReport, dry_run: bool) -> Response {
    let effect = if dry_run { report.would_effect() } else { report.effect() };
    let data = serde_json::value::to_raw_value(report).ok().map(Arc::from);
    let answer = Answer { data, ..Answer::plain(effect) };
    let (status, answer) = match report.problem().filter(|_| !dry_run) {
        None => (StatusCode::OK, answer),
        Some((code, problem)) => {
            // Neither status is retried: another undo is the caller's decision.
            let in_doubt = code == Code::InDoubt;
            let status =
                if in_doubt { StatusCode::FAILED_DEPENDENCY } else { StatusCode::UNPROCESSABLE_ENTITY };
            let error = Some(ErrorView::new(code.as_str(), problem));
            (status, Answer { ok: false, error, ..answer })
        }
    };
    let mut response = json(status, &answer);
    if let Some(by) = report.steps.first().and_then(|step| step.by.as_deref()) {
        put(response.headers_mut(), "once-operation", by);
    }
    stop_retries(&mut response);
    response
}

fn surface() -> Surface {
    Surface::shell("once")
}

/// A problem document with what SDKs of vendors look for: several of them take an answer without an `error` object, or
/// without a status in it, for a success, whatever its status is. For the same reason its type is plain JSON.
#[derive(Serialize)]
struct ProblemDocument<'a> {
    #[serde(flatten)]
    problem: &'a Problem,
    error: SdkError<'a>,
    name: &'a str,
    #[serde(rename = "statusCode")]
    status_code: u16,
}

/// An error as SDKs read it.
#[derive(Serialize)]
struct SdkError<'a> {
    r#type: &'static str,
    code: &'a str,
    message: &'a str,
}

impl<'a> ProblemDocument<'a> {
    fn of(problem: &'a Problem) -> Self {
        let code = &problem.error.code;
        let error = SdkError { r#type: "onceward", code, message: &problem.detail };
        Self { problem, error, name: code, status_code: problem.status }
    }
}

fn problem_document(status: StatusCode, answer: &Answer) -> Response {
    match answer.problem(status.as_u16()) {
        Some(problem) => json(status, &ProblemDocument::of(&problem)),
        None => json(status, answer),
    }
}

/// A problem document of the server, with what SDKs look for.
pub(crate) fn for_sdks(response: Response, problem: &Problem) -> Response {
    let (mut head, _) = response.into_parts();
    head.headers.remove(header::CONTENT_LENGTH);
    let (kind, body) = json(head.status, &ProblemDocument::of(problem)).into_parts();
    head.headers.extend(kind.headers);
    Response::from_parts(head, body)
}

fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let mut response = Response::new(serde_json::to_vec(body).unwrap_or_default().into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A status that says "stop" also says so in the headers that SDKs obey.
fn stop_retries(response: &mut Response) {
    if matches!(response.status().as_u16(), 410 | 422 | 424) {
        for name in SHOULD_RETRY {
            response.headers_mut().insert(name, HeaderValue::from_static("false"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_any_length_is_compressed_and_read_again() {
        for length in [0, 10, LARGE, LARGE + 1, 3_000_000] {
            let body: Bytes = b"data: steady\n\n".iter().copied().cycle().take(length).collect();
            let headers = HeaderMap::from_iter([(header::ETAG, HeaderValue::from_static("e"))]);
            let reply = Reply { status: StatusCode::OK, headers, body, trailers: None };
            let stored = reply.encode_compressed();
            assert!(length < 100 || stored.len() < length / 20, "{length}: {}", stored.len());
            let again = Reply::decode(&stored).unwrap();
            assert_eq!((again.body, again.headers), (reply.body, reply.headers), "{length}");
        }
        assert!(Reply::decode(&[&COMPRESSED[..], b"not a frame"].concat()).is_none());
    }

    #[test]
    fn an_answer_is_stored_whole_but_without_credentials() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("content-type", &b"text/plain"[..]),
            ("x-twice", b"1"),
            ("x-twice", b"2"),
            ("x-latin", b"caf\xe9"),
            ("set-cookie", b"sid=S3CRET"),
            ("x-session-token", b"S3CRET"),
            ("connection", b"close"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap());
        }
        let reply = Reply {
            status: StatusCode::CREATED,
            headers,
            body: Bytes::from_static(b"\0\xff"),
            trailers: None,
        };
        let stored = reply.encode();
        assert!(!String::from_utf8_lossy(&stored).contains("S3CRET"));
        let again = Reply::decode(&stored).unwrap();
        assert_eq!((again.status, &again.body[..]), (StatusCode::CREATED, &b"\0\xff"[..]));
        let names: Vec<&str> = again.headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["content-type", "x-twice", "x-latin"]);
        assert_eq!(again.headers["x-latin"].as_bytes(), b"caf\xe9");
        assert_eq!(again.headers.get_all("x-twice").iter().count(), 2);
        assert!(Reply::decode(b"OGW1\0\0").is_none() && Reply::decode(b"").is_none());
    }
}
