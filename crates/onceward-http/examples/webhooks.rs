//! Judges and signs webhooks, one JSON object per line, for tests with other programs: see `tests/inbox`.
//!
//! `{"sign": "stripe", "secret": "…", "url": "…", "id": "…", "headers": {…}, "body": "…", "now_ms": 1}` is answered with
//! the URL, headers and body of a signed request, and `{"judge": …}` with what the request is.
#![allow(clippy::print_stdout, reason = "that is its purpose")]

use std::io::BufRead;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use onceward::InvalidInput;
use onceward_http::inbox::{
    CertificateError, FetchCertificate, Judgement, Received, Sample, Source, SourceConfig, Trial,
};
use serde::Deserialize;
use serde_json::{Value, json};

/// A question.
#[derive(Deserialize)]
struct Question {
    sign: Option<String>,
    judge: Option<String>,
    /// The secret. Without one, a request is signed with new keys.
    secret: Option<String>,
    /// Other settings, as TOML.
    #[serde(default)]
    settings: String,
    #[serde(default)]
    url: String,
    #[serde(default)]
    id: String,
    #[serde(default)]
    headers: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    body: String,
    now_ms: i64,
    /// The certificate of the vendor, as PEM.
    certificate: Option<String>,
}

struct Given(Option<String>);

#[async_trait]
impl FetchCertificate for Given {
    async fn fetch(&self, _url: &str) -> Result<Bytes, CertificateError> {
        let given = self.0.clone().map(Bytes::from);
        given.ok_or_else(|| CertificateError("there is no certificate".to_owned()))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for line in std::io::stdin().lock().lines() {
        let question: Question = serde_json::from_str(&line?)?;
        let answer = answer(&question).unwrap_or_else(|error| json!({"error": error.to_string()}));
        println!("{answer}");
    }
    Ok(())
}

fn answer(question: &Question) -> Result<Value, InvalidInput> {
    if let Some(preset) = &question.sign {
        return sign(preset, question);
    }
    let preset = question.judge.as_deref().unwrap_or_default();
    let source = Source::new(preset, &config(preset, question)?, &|_| question.secret.clone())?;
    let (headers, body) = (headers(question)?, Bytes::from(question.body.clone()));
    let received = Received { method: &Method::POST, url: &question.url, headers: &headers, body: &body };
    let fetch = Given(question.certificate.clone());
    let judgement = pollster::block_on(source.judge(&received, question.now_ms, &fetch));
    Ok(match judgement {
        Judgement::Events(events) => {
            let ids: Vec<&Option<String>> = events.iter().map(|event| &event.id).collect();
            json!({"events": ids, "kinds": events.iter().map(|event| &event.kind).collect::<Vec<_>>()})
        }
        Judgement::Challenge(reply) => json!({"challenge": reply.status.as_u16()}),
        Judgement::Confirm(confirmation) => json!({"confirm": confirmation.url}),
        Judgement::Rejected(rejection) => {
            json!({"rejected": rejection.reason.as_str(), "words": rejection.words})
        }
    })
}

fn sign(preset: &str, question: &Question) -> Result<Value, InvalidInput> {
    let sample = Sample {
        url: question.url.clone(),
        id: question.id.clone(),
        headers: headers(question)?,
        body: question.body.clone().into(),
        now_ms: question.now_ms,
    };
    let (signed, key) = if question.secret.is_some() {
        let source = Source::new(preset, &config(preset, question)?, &|_| question.secret.clone())?;
        (source.sign(&sample, &source.signer()?)?, None)
    } else {
        let trial = Trial::with(preset, settings(question)?)?;
        let key = trial.variable().map(|(_, secret)| secret.to_owned());
        let certificate = pollster::block_on(trial.fetch("")).ok();
        let certificate = certificate.map(|text| String::from_utf8_lossy(&text).into_owned());
        let key =
            json!({"key": key.or_else(|| trial.config.secrets.first().cloned()), "certificate": certificate});
        (trial.sign(&sample)?, Some(key))
    };
    let headers: Value = signed
        .headers
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), Value::from(value.to_str().unwrap_or_default())))
        .collect::<serde_json::Map<_, _>>()
        .into();
    Ok(
        json!({"url": signed.url, "headers": headers, "body": String::from_utf8_lossy(&signed.body), "made": key}),
    )
}

fn settings(question: &Question) -> Result<SourceConfig, InvalidInput> {
    toml::from_str(&question.settings).map_err(|error| InvalidInput::new(error.to_string()))
}

fn config(preset: &str, question: &Question) -> Result<SourceConfig, InvalidInput> {
    let mut config = settings(question)?;
    config.preset = Some(preset.to_owned());
    if config.secrets.is_empty() && question.secret.is_some() {
        config.secrets = vec!["$SECRET".to_owned()];
    }
    Ok(config)
}

fn headers(question: &Question) -> Result<HeaderMap, InvalidInput> {
    let mut headers = HeaderMap::new();
    for (name, value) in &question.headers {
        let invalid = |_| InvalidInput::new(format!("{name} is not a header"));
        let parsed: HeaderName =
            name.parse().map_err(|_| InvalidInput::new(format!("{name} is not a header")))?;
        headers.insert(parsed, HeaderValue::from_bytes(value.as_bytes()).map_err(invalid)?);
    }
    Ok(headers)
}
