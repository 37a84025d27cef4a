//! Responses of the proxy.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{self, HeaderValue};
use hyper::http::response::Parts;
use hyper::{HeaderMap, Response, StatusCode};
use onceward::{Code, Happened};
use serde_json::json;

use super::Body;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");

/// The head of a response.
fn head(status: StatusCode, kind: Option<HeaderValue>) -> Parts {
    let (mut head, ()) = Response::new(()).into_parts();
    head.status = status;
    head.headers.extend(kind.map(|kind| (header::CONTENT_TYPE, kind)));
    head
}

/// The head of a JSON response.
pub(crate) fn message(status: StatusCode) -> Parts {
    head(status, Some(JSON))
}

/// The head of an event stream that must not be cached or buffered.
pub(crate) fn event_stream() -> Parts {
    let mut head = head(StatusCode::OK, Some(EVENT_STREAM));
    head.headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    head.headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    head
}

/// A response with that body.
pub(crate) fn with_body(head: Parts, body: impl Into<Bytes>) -> Response<Body> {
    let body = Full::new(body.into()).map_err(|never| match never {});
    Response::from_parts(head, Body::new(body))
}

/// A response without a body.
pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    with_body(head(status, None), Bytes::new())
}

/// A problem document (RFC 9457).
pub(crate) fn problem(status: StatusCode, code: Code, happened: Happened, detail: &str) -> Response<Body> {
    let said = json!({
        "type": "about:blank",
        "title": status.canonical_reason().unwrap_or("error"),
        "status": status.as_u16(),
        "code": code,
        "detail": format!("once: {detail}"),
        "happened": happened,
        "retryable": false,
    });
    with_body(head(status, Some(PROBLEM)), said.to_string())
}

/// Whether the headers announce an event stream.
pub(crate) fn is_event_stream(headers: &HeaderMap) -> bool {
    is_kind(headers, "text/event-stream")
}

/// Whether the headers announce JSON.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    is_kind(headers, "application/json")
}

fn is_kind(headers: &HeaderMap, kind: &str) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next());
    essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case(kind))
}
