//! How vendors test an endpoint before they send events.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode, header};
use serde_json::Value;

use crate::inbox::judgement::{Judgement, Reason, Received, Rejection, Reply};
use crate::inbox::scheme::{needed, one};
use crate::inbox::selectors::View;
use crate::inbox::settings::Handshake;

const ORIGIN: HeaderName = HeaderName::from_static("webhook-request-origin");
const RATE: HeaderName = HeaderName::from_static("webhook-request-rate");
const ALLOWED_ORIGIN: HeaderName = HeaderName::from_static("webhook-allowed-origin");
const ALLOWED_RATE: HeaderName = HeaderName::from_static("webhook-allowed-rate");

/// The answer to an authentic request that is a handshake.
pub(super) fn after(kind: Handshake, view: &View<'_>) -> Option<Reply> {
    match kind {
        Handshake::Slack => slack(view.json()?),
        Handshake::Discord => discord(view.json()?),
        Handshake::Cloudevents => None,
    }
}

fn slack(body: &Value) -> Option<Reply> {
    let is_handshake = body.get("type")?.as_str()? == "url_verification";
    let challenge = body.get("challenge")?.as_str()?;
    is_handshake.then(|| reply(StatusCode::OK, "text/plain; charset=utf-8", challenge.to_owned()))
}

/// A PING of webhook events has type 0, and one of interactions type 1. Webhook events have type 1 too, and an `event`.
fn discord(body: &Value) -> Option<Reply> {
    match body.get("type")?.as_u64()? {
        0 => Some(Reply { status: StatusCode::NO_CONTENT, headers: Vec::new(), body: Bytes::new() }),
        1 if body.get("event").is_none() => {
            Some(reply(StatusCode::OK, "application/json", r#"{"type":1}"#.to_owned()))
        }
        _ => None,
    }
}

/// CloudEvents asks whether it may send. Permission is not authentication: every event needs the secret.
pub(super) fn cloudevents(received: &Received<'_>, origins: &[String]) -> Result<Judgement, Rejection> {
    let origin = needed(received.headers, &ORIGIN)?;
    if !origins.is_empty() && !origins.iter().any(|known| known.eq_ignore_ascii_case(origin)) {
        return Err(Rejection::new(Reason::NotConfigured, "the origin is not one of the configured ones"));
    }
    let value = HeaderValue::from_str(origin);
    let value = value.map_err(|_| Rejection::new(Reason::Malformed, "the origin is not a header"))?;
    let mut headers =
        vec![(header::ALLOW, HeaderValue::from_static("POST, OPTIONS")), (ALLOWED_ORIGIN, value)];
    if one(received.headers, &RATE)?.is_some() {
        headers.push((ALLOWED_RATE, HeaderValue::from_static("*")));
    }
    Ok(Judgement::Challenge(Reply { status: StatusCode::OK, headers, body: Bytes::new() }))
}

fn reply(status: StatusCode, kind: &'static str, body: String) -> Reply {
    let headers = vec![(header::CONTENT_TYPE, HeaderValue::from_static(kind))];
    Reply { status, headers, body: Bytes::from(body) }
}
