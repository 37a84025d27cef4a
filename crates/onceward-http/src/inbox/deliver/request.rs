//! A request to a handler's URL.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use data_encoding::BASE64;
use http_body_util::{BodyExt, Limited};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode};
use onceward::{Attempt, Done, Effect, Failure, InvalidInput};
use serde::Deserialize;

use super::super::config::HandlerConfig;
use super::super::hook::Handler;
use super::super::lane::Item;
use super::super::outside::Outside;
use crate::client::{Connection, Remote, SendError, Watch, full};
use crate::evidence;

/// The part of an answer that is read.
const MAX_ANSWER: usize = 64 * 1024;

/// A handler's URL, with what every request to it has.
pub(crate) struct Endpoint {
    remote: Remote,
    headers: HeaderMap,
    secret: Option<Vec<u8>>,
    no_effect: Vec<u16>,
}

impl Endpoint {
    pub(crate) fn new(url: &str, config: &HandlerConfig, outside: &Outside) -> Result<Self, InvalidInput> {
        let headers = read_headers(&config.headers, outside)?;
        let secret = config.secret.as_deref().map(|place| {
            let secret = outside.value(place)?;
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
        })
    }

    /// Makes one attempt.
    pub(crate) async fn send(
        &self,
        source: &str,
        handler: &Handler,
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
        let exchange = async {
            let response = self.remote.send(request, Connection::Fresh).await?;
            let status = response.status();
            // The status of a success is the answer; the rest is not needed.
            let text = if status.is_success() {
                Bytes::new()
            } else {
                let read = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
                read.map(http_body_util::Collected::to_bytes).unwrap_or_default()
            };
            Ok::<_, SendError>((status, text))
        };
        let (status, text) = match tokio::time::timeout(handler.timeout, exchange).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(SendError::NotSent(why))) => {
                handler.lane.failed();
                return Err(Failure::no_effect(why));
            }
            Ok(Err(SendError::MaybeSent(why))) => {
                handler.lane.failed();
                return Err(Failure::in_doubt(why));
            }
            Err(_) => {
                handler.lane.failed();
                let patience = handler.timeout;
                if watch.get().is_some_and(|watch| !watch.is_connected()) {
                    let why = format!("the connection to the handler was not ready within {patience:?}");
                    return Err(Failure::no_effect(why));
                }
                return Err(Failure::timed_out(format!("the handler did not answer within {patience:?}")));
            }
        };
        if status.is_success() {
            handler.lane.answered();
            return Ok(sent.done(Effect::Updated, &serde_json::json!({ "status": status.as_u16() })));
        }
        match self.proves_nothing_happened(status, &text) {
            true => {
                handler.lane.answered();
                Err(Failure::no_effect(format!(
                    "the handler refused the event with status {}",
                    status.as_u16()
                )))
            }
            false => {
                handler.lane.failed();
                Err(Failure::in_doubt(format!("the handler answered with status {}", status.as_u16())))
            }
        }
    }

    /// Whether an answer says that the handler did nothing: its status, or its own word in JSON.
    fn proves_nothing_happened(&self, status: StatusCode, text: &[u8]) -> bool {
        #[derive(Deserialize)]
        struct Told {
            happened: String,
        }
        evidence::rejects(status)
            || self.no_effect.contains(&status.as_u16())
            || serde_json::from_slice::<Told>(text).is_ok_and(|told| told.happened == "no")
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

/// The signature of Standard Webhooks, version 1.
fn sign(secret: &[u8], id: &str, timestamp: &str, body: &[u8]) -> String {
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
    let mut signing = ring::hmac::Context::with_key(&key);
    for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
        signing.update(part);
    }
    format!("v1,{}", BASE64.encode(signing.sign().as_ref()))
}

fn read_headers(headers: &BTreeMap<String, String>, outside: &Outside) -> Result<HeaderMap, InvalidInput> {
    let mut all = HeaderMap::new();
    for (name, value) in headers {
        let wrong = |what: &str| InvalidInput::new(format!("headers: {name} {what}"));
        let parsed = name.parse::<HeaderName>().map_err(|_| wrong("is not the name of a header"))?;
        let value = outside.value(value)?;
        let value = HeaderValue::try_from(value).map_err(|_| wrong("has a value that cannot be sent"))?;
        all.insert(parsed, value);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vector of the Standard Webhooks libraries.
    #[test]
    fn requests_are_signed_as_standard_webhooks_says() {
        let secret = BASE64.decode(b"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signature =
            sign(&secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }
}
