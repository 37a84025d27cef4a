//! What an upstream's answer proves about the effect.

use hyper::{HeaderMap, StatusCode};
use serde_json::Value;

use super::rules::{Replay, Sign};
use super::upstream::Ruling;
use crate::evidence::rejects;
use crate::headers::only;

/// The header in which a gateway says whether the operation happened.
const HAPPENED: &str = "once-happened";

/// What an answer proves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It happened.
    Done,
    /// The request was accepted; whether it happens is not known yet.
    Accepted,
    /// The vendor's final answer, which it repeats for this key: nothing was changed.
    Final,
    /// Nothing was executed.
    Rejected,
    /// A request with this key is still being executed.
    InFlight,
    /// It is unknown whether it happened; a further request with the same key may tell.
    Doubt(String),
    /// It is unknown whether it happened, and a further request would not tell.
    Unknowable(String),
}

/// Classifies a complete answer.
pub(crate) fn verdict(ruling: &Ruling, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Verdict {
    match of_vendor(ruling, status, headers, body) {
        verdict @ (Verdict::Done | Verdict::Accepted) => {
            denial_of_success(headers).map_or(verdict, Verdict::Unknowable)
        }
        verdict @ (Verdict::Final | Verdict::Rejected) => {
            denial_of_refusal(headers).map_or(verdict, Verdict::Unknowable)
        }
        verdict @ (Verdict::InFlight | Verdict::Doubt(_) | Verdict::Unknowable(_)) => verdict,
    }
}

/// What an upstream that is a gateway itself says against its own success. Every server can send such a header, so it
/// only raises a doubt about what the status says.
pub(crate) fn denial_of_success(headers: &HeaderMap) -> Option<String> {
    let is_denied = headers.contains_key(HAPPENED) && only(headers, HAPPENED) != Some("yes");
    is_denied.then(|| {
        "the upstream is a gateway and does not say that it happened: it may be held back there, and happen later"
            .to_owned()
    })
}

/// The same against its own refusal.
fn denial_of_refusal(headers: &HeaderMap) -> Option<String> {
    let is_denied = headers.contains_key(HAPPENED) && only(headers, HAPPENED) != Some("no");
    is_denied.then(|| "the upstream is a gateway and does not say that nothing happened".to_owned())
}

fn of_vendor(ruling: &Ruling, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Verdict {
    let answer = Answer { status, headers, body, json: serde_json::from_slice(body).ok() };
    let signs = &ruling.signs;
    let said = format!("the upstream answered with status {}", status.as_u16());
    if answer.is_any(&signs.in_flight) {
        return Verdict::InFlight;
    }
    if answer.is_any(&signs.mismatch) {
        return Verdict::Unknowable(format!("{said}: it knows the key from a request with other parameters"));
    }
    // A preset's list replaces the general one.
    let rejected = match &signs.rejected {
        Some(rejected) => answer.is_any(rejected),
        None => rejects(status) && !status.is_redirection(),
    };
    if rejected && !answer.is_any(&signs.replayed) {
        return Verdict::Rejected;
    }
    // Some upload protocols use 308, without a place to go to, for a part that was stored.
    let is_moved = status == StatusCode::PERMANENT_REDIRECT && headers.contains_key(hyper::header::LOCATION);
    if is_moved || status == StatusCode::TEMPORARY_REDIRECT {
        return Verdict::Rejected;
    }
    if answer.is_any(&signs.accepted) || status == StatusCode::ACCEPTED {
        return Verdict::Accepted;
    }
    if status.is_success() {
        return Verdict::Done;
    }
    // A vendor that replays every answer would give this one again.
    if status.is_server_error() && ruling.replay == Replay::Bytes && answer.is_any(&signs.replayed) {
        return Verdict::Unknowable(format!("{said}, and repeats that answer"));
    }
    let is_doubtful = matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT);
    if status.is_client_error() && !is_doubtful && ruling.replay == Replay::Bytes {
        return Verdict::Final;
    }
    Verdict::Doubt(said)
}

struct Answer<'a> {
    status: StatusCode,
    headers: &'a HeaderMap,
    body: &'a [u8],
    json: Option<Value>,
}

impl Answer<'_> {
    fn is_any(&self, signs: &[Sign]) -> bool {
        signs.iter().any(|sign| self.is(sign))
    }

    fn is(&self, sign: &Sign) -> bool {
        let by_status = sign.status.is_empty() || sign.status.contains(&self.status.as_u16());
        let by_header = sign.header.as_ref().is_none_or(|name| {
            let value = self.headers.get(name.as_str()).and_then(|value| value.to_str().ok());
            value.is_some_and(|value| sign.is.iter().any(|one| one.eq_ignore_ascii_case(value)))
        });
        let by_field = sign.at.as_ref().is_none_or(|at| {
            let steps: Vec<&str> = at.split('/').skip(1).collect();
            self.json.as_ref().is_some_and(|json| has(json, &steps, &sign.is))
        });
        let by_text = sign.contains.is_empty() || {
            let text = String::from_utf8_lossy(self.body);
            sign.contains.iter().any(|one| text.contains(one.as_str()))
        };
        by_status && by_header && by_field && by_text
    }
}

/// Whether the steps lead to one of these values.
fn has(value: &Value, steps: &[&str], values: &[String]) -> bool {
    let Some((step, rest)) = steps.split_first() else {
        return match value {
            Value::String(text) => values.contains(text),
            Value::Number(number) => values.contains(&number.to_string()),
            Value::Bool(flag) => values.contains(&flag.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => false,
        };
    };
    match (value, *step) {
        (Value::Array(items), "*") => items.iter().any(|item| has(item, rest, values)),
        (Value::Object(members), "*") => members.values().any(|member| has(member, rest, values)),
        (Value::Array(items), step) => step
            .parse::<usize>()
            .ok()
            .and_then(|at| items.get(at))
            .is_some_and(|item| has(item, rest, values)),
        (Value::Object(members), step) => members.get(step).is_some_and(|member| has(member, rest, values)),
        (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_), _) => false,
    }
}
