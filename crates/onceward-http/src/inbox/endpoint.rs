//! A request to a handler's URL.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use data_encoding::BASE64;
use http_body_util::{BodyExt, Limited};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::uri::PathAndQuery;
use hyper::{HeaderMap, Method, StatusCode};
use onceward::{
    Attempt, Done, Effect, Evidence, Failure, Happened, InvalidInput, Json, Outcome, ProbeAnswer, Record,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::config::{HandlerConfig, HandlerProbe};
use super::handler_queue::{HandlerQueue, Item};
use super::host_environment::HostEnvironment;
use crate::client::{Connection, Remote, SendError, Watch, full};
use crate::evidence;
use crate::template::{encoded, fill};
use crate::time;

/// The part of an answer that is read.
const MAX_ANSWER: usize = 64 * 1024;

/// The longest answer to a probe.
const MAX_PROBED: usize = 1024 * 1024;

/// What is stored about an answer that is not a success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refusal {
    status: u16,
    /// The pause that the handler asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after_ms: Option<u64>,
}

impl Refusal {
    fn new(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Self {
        let asked = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::trim);
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let retry_after_ms = asked.and_then(|text| match text.parse::<u64>() {
            Ok(seconds) => Some(seconds.saturating_mul(1_000)),
            // More digits than fit are a long time too.
            Err(_) if is_number(text) => Some(u64::MAX),
            Err(_) => {
                let until = httpdate::parse_http_date(text).ok()?.duration_since(now).ok()?;
                u64::try_from(until.as_millis()).ok()
            }
        });
        Self { status: status.as_u16(), retry_after_ms }
    }

    /// What is stored about the last attempt, if the handler answered.
    pub(crate) fn of(record: &Record) -> Option<Self> {
        serde_json::from_str(record.outcome.as_ref()?.data.as_ref()?.get()).ok()
    }

    fn raw(self) -> Option<Arc<RawValue>> {
        serde_json::value::to_raw_value(&self).ok().map(Arc::from)
    }
}

/// A handler's URL, with what every request to it has.
pub(crate) struct Endpoint {
    remote: Remote,
    headers: HeaderMap,
    secret: Option<Vec<u8>>,
    no_effect: Vec<u16>,
    /// How long a request may take.
    timeout: Duration,
}

impl Endpoint {
    pub(crate) fn new(
        url: &str,
        config: &HandlerConfig,
        environment: &HostEnvironment,
    ) -> Result<Self, InvalidInput> {
        let headers = read_headers(&config.headers, environment)?;
        let secret = config.secret.as_deref().map(|place| {
            let secret = environment.value(place)?;
            let key = secret.strip_prefix("whsec_").unwrap_or(&secret);
            let wrong =
                || InvalidInput::new("secret: it must be `whsec_` and base64, as Standard Webhooks says");
            BASE64.decode(key.as_bytes()).ok().filter(|key| !key.is_empty()).ok_or_else(wrong)
        });
        Ok(Self {
            remote: Remote::new(url)?,
            headers,
            secret: secret.transpose()?,
            no_effect: config.no_effect_statuses.clone(),
            timeout: config.timeout(),
        })
    }

    /// Makes one attempt.
    pub(crate) async fn send(
        &self,
        source: &str,
        queue: &HandlerQueue,
        item: &Item,
        key: &str,
        body: Bytes,
        attempt: Attempt,
    ) -> Result<Done, Failure> {
        let headers = self.all_headers(source, item, key, attempt.number(), &body);
        let mut request = self.remote.request(Method::POST, self.remote.path(), headers, full(body));
        let watch = OnceLock::new();
        watch.get_or_init(|| Watch::of(&mut request));
        let sent = attempt.dispatch()?;
        // The head of the answer, for the case that the rest does not arrive in time.
        let head = OnceLock::new();
        let exchange = async {
            let response = self.remote.send(request, Connection::Fresh).await?;
            let status = response.status();
            head.get_or_init(|| (status, Refusal::new(status, response.headers(), SystemTime::now())));
            // A success is read only if it can be the answer of a tool, which may say something else.
            if status.is_success() && !is_json(response.headers()) {
                return Ok(Bytes::new());
            }
            let read = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
            Ok::<_, SendError>(read.map(http_body_util::Collected::to_bytes).unwrap_or_default())
        };
        let exchanged = time::within(queue.clock(), self.timeout, exchange).await;
        let (text, (status, refusal)) = match (exchanged, head.get()) {
            (Some(Ok(text)), Some(head)) => (text, *head),
            (None, Some(head)) => (Bytes::new(), *head),
            (Some(Ok(_)), None) => return Err(Failure::in_doubt("the answer has no status")),
            (Some(Err(SendError::NotSent(why))), _) => {
                queue.failed();
                return Err(Failure::no_effect(Evidence::NotSent, why));
            }
            (Some(Err(SendError::MaybeSent(why))), _) => {
                queue.failed();
                return Err(Failure::in_doubt(why));
            }
            (None, None) => {
                queue.failed();
                let patience = self.timeout;
                if watch.get().is_some_and(|watch| !watch.is_connected()) {
                    let why = format!("the connection to the handler was not ready within {patience:?}");
                    return Err(Failure::no_effect(Evidence::NotSent, why));
                }
                return Err(Failure::timed_out(format!("the handler did not answer within {patience:?}")));
            }
        };
        let number = status.as_u16();
        let failure = match self.happened(status, &text) {
            Happened::Yes => {
                queue.answered();
                return Ok(sent.done(Effect::Updated, &serde_json::json!({ "status": number })));
            }
            Happened::No => {
                queue.answered();
                let rule = format!("status {number} of a handler");
                let reason = format!("the handler refused the event with status {number}");
                Failure::no_effect(Evidence::refused(rule), reason)
            }
            Happened::Unknown => {
                queue.failed();
                Failure::in_doubt(format!("the handler answered with status {number}"))
            }
        };
        Err(failure.with(refusal.raw(), None))
    }

    /// Asks whether the handler has the event.
    pub(crate) async fn ask(
        &self,
        probe: &HandlerProbe,
        queue: &HandlerQueue,
        item: &Item,
        key: &str,
    ) -> ProbeAnswer {
        let timeout = self.timeout;
        let asked = time::within(queue.clock(), timeout, self.answer(probe, item, key)).await;
        let answer = asked.unwrap_or_else(|| Err(format!("no answer within {timeout:?}")));
        answer.unwrap_or_else(|why| ProbeAnswer::CannotTell(format!("the probe: {why}")))
    }

    async fn answer(&self, probe: &HandlerProbe, item: &Item, key: &str) -> Result<ProbeAnswer, String> {
        let word = |name: &str| match name {
            "key" => Some(key.to_owned()),
            "id" => item.data.id.clone(),
            _ => None,
        };
        let get = probe.get.as_deref().ok_or("it has no path")?;
        let path = fill(get, |name| word(name).and_then(|value| encoded(&Json::from(value.as_str()))))?;
        path.parse::<PathAndQuery>().map_err(|error| format!("{path:?} is not a path: {error}"))?;
        let mut headers = self.headers.clone();
        if let Ok(value) = HeaderValue::from_str(key) {
            headers.insert(HeaderName::from_static("idempotency-key"), value);
        }
        let request = self.remote.request(Method::GET, &path, headers, full(""));
        let response = self.remote.send(request, Connection::Fresh).await.map_err(|error| match error {
            SendError::NotSent(why) | SendError::MaybeSent(why) => why,
        })?;
        let status = response.status();
        if probe.absent.as_deref().unwrap_or(&[404]).contains(&status.as_u16()) {
            return Ok(ProbeAnswer::No);
        }
        if !status.is_success() {
            return Err(format!("it was answered with status {}", status.as_u16()));
        }
        if let Some(expect) = &probe.expect {
            let expect = fill(expect, word)?;
            let read = Limited::new(response.into_body(), MAX_PROBED).collect().await;
            let text = read.map_err(|error| error.to_string())?.to_bytes();
            if !String::from_utf8_lossy(&text).contains(&expect) {
                return Err("the answer does not contain the expected text".to_owned());
            }
        }
        let data = serde_json::value::to_raw_value(&serde_json::json!({ "status": status.as_u16() }));
        let outcome = Outcome::with_effect(Effect::Updated);
        Ok(ProbeAnswer::Yes(Outcome { data: data.ok().map(Arc::from), ..outcome }))
    }

    /// What an answer says about the event: its own word in JSON, whatever the status is, otherwise the status.
    fn happened(&self, status: StatusCode, text: &[u8]) -> Happened {
        #[derive(Deserialize)]
        struct Told {
            happened: String,
        }
        let told = serde_json::from_slice::<Told>(text).ok();
        match told.as_ref().map(|told| told.happened.as_str()) {
            Some("yes") => Happened::Yes,
            Some("no") => Happened::No,
            Some("unknown") => Happened::Unknown,
            Some(_) | None if status.is_success() => Happened::Yes,
            Some(_) | None if evidence::rejects(status) || self.no_effect.contains(&status.as_u16()) => {
                Happened::No
            }
            Some(_) | None => Happened::Unknown,
        }
    }

    fn all_headers(&self, source: &str, item: &Item, key: &str, attempt: u32, body: &[u8]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in &item.data.headers {
            if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::try_from(value)) {
                headers.append(name, value);
            }
        }
        headers.extend(self.headers.clone());
        let kind = item.data.content_type.as_deref().unwrap_or("application/octet-stream");
        let (attempt, received) = (attempt.to_string(), onceward::rfc3339(item.created_ms));
        let mut own = vec![
            ("content-type", kind),
            ("idempotency-key", key),
            ("once-attempt", &attempt),
            ("once-source", source),
            ("once-received", &received),
            ("webhook-id", key),
        ];
        own.extend(item.data.id.as_deref().map(|id| ("once-event-id", id)));
        own.extend(item.data.kind.as_deref().map(|kind| ("once-event-type", kind)));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()).to_string();
        own.push(("webhook-timestamp", &now));
        let signature = self.secret.as_deref().map(|secret| sign(secret, key, &now, body));
        own.extend(signature.as_deref().map(|signature| ("webhook-signature", signature)));
        for (name, value) in own {
            // A value that cannot be a header is left out; the handler finds it in the body.
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
        headers.insert(header::CONTENT_LENGTH, body.len().into());
        headers
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind.ends_with("/json") || kind.ends_with("+json")
}

/// The signature of Standard Webhooks, version 1.
fn sign(secret: &[u8], id: &str, timestamp: &str, body: &[u8]) -> String {
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
    let mut signing = ring::hmac::Context::with_key(&key);
    for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
        signing.update(part);
    }
    format!("v1,{}", BASE64.encode(signing.sign().as_ref()))
}

fn read_headers(
    headers: &BTreeMap<String, String>,
    environment: &HostEnvironment,
) -> Result<HeaderMap, InvalidInput> {
    let mut all = HeaderMap::new();
    for (name, value) in headers {
        let wrong = |what: &str| InvalidInput::new(format!("headers: {name} {what}"));
        let parsed = name.parse::<HeaderName>().map_err(|_| wrong("is not the name of a header"))?;
        let value = environment.value(value)?;
        let value = HeaderValue::try_from(value).map_err(|_| wrong("has a value that cannot be sent"))?;
        all.insert(parsed, value);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_that_a_handler_asks_for_is_read() {
        let now = httpdate::parse_http_date("Sat, 31 Jan 2026 12:00:00 GMT").unwrap();
        for (text, expected) in [
            ("120", Some(120_000)),
            (" 3 ", Some(3_000)),
            ("Sat, 31 Jan 2026 12:01:00 GMT", Some(60_000)),
            ("Sat, 31 Jan 2026 11:00:00 GMT", None),
            ("-1", None),
            ("1.5", None),
            ("99999999999999999999", Some(u64::MAX)),
            ("18446744073709551615", Some(u64::MAX)),
            ("", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::RETRY_AFTER, HeaderValue::from_str(text).unwrap());
            let refusal = Refusal::new(StatusCode::TOO_MANY_REQUESTS, &headers, now);
            assert_eq!(refusal.retry_after_ms, expected, "{text:?}");
        }
    }

    /// The vector of the Standard Webhooks libraries.
    #[test]
    fn requests_are_signed_as_standard_webhooks_says() {
        let secret = BASE64.decode(b"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signature =
            sign(&secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }
}
