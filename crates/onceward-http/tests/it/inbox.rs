//! Webhooks: signatures with known answers, requests that must be refused, identity and handshakes.

mod docs;
mod handshakes;
mod identity;
mod negative;
mod vectors;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Method};
use onceward_http::inbox::{
    CertificateError, Event, FetchCertificate, Judgement, Reason, Received, Signed, Source, SourceConfig,
    Trial,
};

/// The time of the samples: 2026-01-31, in milliseconds.
const NOW_MS: i64 = 1_769_860_800_000;
const URL: &str = "https://example.com/hooks/in?a=1";
const PRESETS: [&str; 17] = [
    "stripe",
    "github",
    "slack",
    "shopify",
    "standard-webhooks",
    "svix",
    "openai",
    "twilio",
    "paypal",
    "sendgrid",
    "square",
    "paddle",
    "linear",
    "sns",
    "discord",
    "cloudevents",
    "hmac",
];

/// There is no network in these tests.
struct NoCertificates;

#[async_trait]
impl FetchCertificate for NoCertificates {
    async fn fetch(&self, _url: &str) -> Result<Bytes, CertificateError> {
        Err(CertificateError("there is no network".to_owned()))
    }
}

fn config(text: &str) -> SourceConfig {
    toml::from_str(text).unwrap()
}

/// A source of a preset with one secret.
fn source(preset: &str, secret: &str) -> Source {
    let config = config(&format!("preset = {preset:?}\nsecrets = [\"$SECRET\"]"));
    Source::new(preset, &config, &|_| Some(secret.to_owned())).unwrap()
}

fn judge_with(
    source: &Source,
    fetch: &dyn FetchCertificate,
    url: &str,
    headers: &HeaderMap,
    body: &Bytes,
    now_ms: i64,
) -> Judgement {
    let received = Received { method: &Method::POST, url, headers, body };
    pollster::block_on(source.judge(&received, now_ms, fetch))
}

fn judge(trial: &Trial, signed: &Signed, now_ms: i64) -> Judgement {
    judge_with(&trial.source, trial, &signed.url, &signed.headers, &signed.body, now_ms)
}

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let parse = |(name, value): &(&str, &str)| {
        (name.parse::<http::HeaderName>().unwrap(), value.parse::<http::HeaderValue>().unwrap())
    };
    pairs.iter().map(parse).collect()
}

#[track_caller]
fn event(judgement: Judgement) -> Event {
    match judgement {
        Judgement::Events(events) => {
            let [event] = <[Event; 1]>::try_from(events).expect("one event");
            event
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn rejected(judgement: Judgement) -> Reason {
    match judgement {
        Judgement::Rejected(rejection) => {
            assert!(!rejection.words.is_empty());
            rejection.reason
        }
        other => panic!("{other:?}"),
    }
}
