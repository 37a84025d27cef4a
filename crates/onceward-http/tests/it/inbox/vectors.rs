//! Signatures that the vendors publish, or test their own libraries with: `vectors.json`.

use bytes::Bytes;
use http::HeaderMap;
use onceward_http::inbox::{Judgement, Reason, Source, Trial};
use serde_json::{Value, json};

use super::{NOW_MS, NoCertificates, config, event, headers, judge_with, rejected, source};

const VECTORS: &str = include_str!("vectors.json");
const STRIPE_BODY: &str = include_str!("stripe-body.json");

/// A request with a known signature.
struct Known {
    source: Source,
    url: String,
    headers: HeaderMap,
    body: Bytes,
    now_ms: i64,
    id: Option<String>,
}

impl Known {
    fn judge(&self, body: &Bytes) -> Judgement {
        judge_with(&self.source, &NoCertificates, &self.url, &self.headers, body, self.now_ms)
    }

    fn read(vector: &Value) -> Self {
        let text = |name: &str| vector[name].as_str().unwrap_or_default().to_owned();
        let scheme = text("scheme");
        let preset = match scheme.as_str() {
            "twilio-json" => "twilio",
            "standard-webhooks-v1a" => "standard-webhooks",
            other => other,
        };
        let secret = if vector["secret"].is_string() { text("secret") } else { text("public_key") };
        let seconds = vector["timestamp"].as_i64().or_else(|| text("timestamp").parse().ok());
        let time = seconds.map(|seconds| seconds.to_string()).unwrap_or_default();
        let (id, signature) = (text("id"), text("signature"));
        let mut body = text("body");
        let mut url = if text("url").is_empty() { "https://example.com/".to_owned() } else { text("url") };
        let mut content_type = "application/json";
        if vector["body_file"].is_string() {
            body = STRIPE_BODY.to_owned();
        }
        if let Some(fields) = vector["form"].as_object() {
            content_type = "application/x-www-form-urlencoded";
            let fields = fields.iter().map(|(name, value)| (name, value.as_str().unwrap()));
            body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        }
        if vector["body_sha256"].is_string() {
            url = format!("{url}&bodySHA256={}", text("body_sha256"));
        }
        let stripe = format!(
            "t={time},{signature},v0=6ffbb59b2300aae63f272406069a9788598b792a944a07aba816edb039989a39"
        );
        let paddle = format!("ts={time};{signature}");
        let pairs: Vec<(&str, &str)> = match preset {
            "github" => vec![("X-Hub-Signature-256", &signature), ("X-GitHub-Delivery", "d1")],
            "standard-webhooks" | "openai" => {
                vec![("webhook-id", &id), ("webhook-timestamp", &time), ("webhook-signature", &signature)]
            }
            "svix" => vec![("svix-id", &id), ("svix-timestamp", &time), ("svix-signature", &signature)],
            "stripe" => vec![("Stripe-Signature", &stripe)],
            "slack" => vec![("X-Slack-Signature", &signature), ("X-Slack-Request-Timestamp", &time)],
            "twilio" => vec![("X-Twilio-Signature", &signature)],
            "square" => vec![("x-square-hmacsha256-signature", &signature)],
            "paddle" => vec![("Paddle-Signature", &paddle)],
            "sendgrid" => vec![
                ("X-Twilio-Email-Event-Webhook-Signature", &signature),
                ("X-Twilio-Email-Event-Webhook-Timestamp", &time),
            ],
            other => panic!("{other}"),
        };
        let mut headers = headers(&pairs);
        headers.insert("content-type", content_type.parse().unwrap());
        let now_ms = seconds.map_or(NOW_MS, |seconds| seconds * 1_000);
        let expected = match preset {
            "github" => Some("d1".to_owned()),
            "stripe" => Some("evt_123".to_owned()),
            "sendgrid" => Some("ZHJvcC0xMDk5NDkxOS1MUnpYbF9OSFN0T0doUTRrb2ZTbV9BLTA".to_owned()),
            "standard-webhooks" | "openai" | "svix" => Some(id),
            _ => None,
        };
        Self { source: source(preset, &secret), url, headers, body: body.into(), now_ms, id: expected }
    }
}

#[test]
fn published_signatures_are_authentic_and_belong_to_their_content_only() {
    let vectors: Value = serde_json::from_str(VECTORS).unwrap();
    let all: Vec<&Value> =
        ["hmac", "ed25519", "ecdsa_p256"].iter().flat_map(|kind| vectors[kind].as_array().unwrap()).collect();
    assert_eq!(all.len(), 12);
    for vector in all {
        let known = Known::read(vector);
        let scheme = &vector["scheme"];
        let found = event(known.judge(&known.body));
        if known.id.is_some() {
            assert_eq!(found.id, known.id, "{scheme}");
        }
        for at in [0, known.body.len() / 2, known.body.len() - 1] {
            let mut changed = known.body.to_vec();
            changed[at] ^= 1;
            let reason = rejected(known.judge(&changed.into()));
            assert_eq!(reason, Reason::Signature, "{scheme} with a changed byte {at}");
        }
        let other = Bytes::from([&known.body[..], b" "].concat());
        rejected(known.judge(&other));
    }
}

#[test]
fn stripes_version_0_is_not_accepted() {
    let vectors: Value = serde_json::from_str(VECTORS).unwrap();
    let stripe = vectors["hmac"].as_array().unwrap().iter().find(|one| one["scheme"] == "stripe").unwrap();
    let mut known = Known::read(stripe);
    let only = known.headers["stripe-signature"].to_str().unwrap().replace("v1=", "v0=");
    known.headers.insert("stripe-signature", only.parse().unwrap());
    assert_eq!(rejected(known.judge(&known.body)), Reason::Version);
}

#[test]
fn a_secret_in_the_configuration_is_refused_and_not_repeated() {
    for preset in ["stripe", "github", "standard-webhooks", "cloudevents", "twilio"] {
        let config = config(&format!("preset = {preset:?}\nsecrets = [\"S3CRET\"]"));
        let error = Source::new("in", &config, &|_| None).unwrap_err().to_string();
        assert!(error.contains("@FILE") && !error.contains("S3CRET"), "{error}");
    }
    let none = config("preset = \"stripe\"");
    assert!(Source::new("in", &none, &|_| None).unwrap_err().to_string().contains("no secret"));
    let missing = config("preset = \"stripe\"\nsecrets = [\"$NAME\"]");
    assert!(Source::new("in", &missing, &|_| None).unwrap_err().to_string().contains("NAME cannot be read"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    let vectors: Value = serde_json::from_str(VECTORS).unwrap();
    let github = &vectors["hmac"][0];
    let text = |name: &str| github[name].as_str().unwrap();
    std::fs::write(&file, format!("{}\n", text("secret"))).unwrap();
    let from_file = config(&format!("preset = \"github\"\nsecrets = [\"@{}\"]", file.display()));
    let source = Source::new("in", &from_file, &|_| None).unwrap();
    let headers = headers(&[("x-hub-signature-256", text("signature"))]);
    let body = Bytes::from(text("body").to_owned());
    let judged = judge_with(&source, &NoCertificates, "", &headers, &body, NOW_MS);
    assert_eq!(event(judged).id, None);
}

/// Made with `openssl dgst -sha1 -sign` and the key of the samples: Amazon SNS still signs with SHA-1 by default.
#[test]
fn version_1_of_sns_is_accepted() {
    let trial = Trial::new("sns").unwrap();
    let mut message = json!({
        "Type": "Notification",
        "MessageId": "m-1",
        "TopicArn": "arn:aws:sns:us-east-1:123456789012:sample",
        "Subject": "Greetings",
        "Message": "Hello\nline",
        "Timestamp": "2026-01-31T12:00:00.000Z",
        "SignatureVersion": "1",
        "SigningCertURL": "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-5a3b.pem",
        "Signature": "d7Er5a2DMJTX9Q1IWWfW8nzCSfNDnmRTWgOo3tGyfOWyApJqKp9de1vpSoLm7EUu00dYZ1545ciusqJPitaXVqfBxnrfXqLv3c0\
            PzsBdoS75Rx/uKTw25rKTrDLk1DMpBQrMY2VXmToBmW1qgR1D9p40pvwQhs6wIImhgviWGjR3FjcyoTSCYx1wnKq7Y4nkn7R+RK4BGXBqon+FX\
            RuPRbJHMyOOiUSKtYpujZRiUZLx9M+dbTPQUds+JvZFtcwCmDREmbDyazIdiTbIb0LJbRn7dcs0rUsvte0IgbLViQV/3ixK4CQ9gmC9v9g+F2P\
            0D9kD1P4poprBwzahPmDtAQ==",
    });
    let judged = |message: &Value| {
        let body = Bytes::from(message.to_string());
        judge_with(&trial.source, &trial, "", &HeaderMap::new(), &body, NOW_MS)
    };
    let found = event(judged(&message));
    assert_eq!((found.id.as_deref(), found.is_id_signed), (Some("m-1"), true));
    message["MessageAttributes"] = json!({"not": "signed"});
    assert_eq!(event(judged(&message)).digest, found.digest);
    for (field, value) in [
        ("Message", "Hello"),
        ("MessageId", "m-2"),
        ("Subject", "Other"),
        ("Timestamp", "2026-01-31T12:00:01.000Z"),
        ("Type", "UnsubscribeConfirmation"),
        ("SignatureVersion", "2"),
    ] {
        let mut changed = message.clone();
        changed[field] = value.into();
        assert_eq!(rejected(judged(&changed)), Reason::Signature, "{field}");
    }
    // Line breaks separate the signed fields, so these have the same signed text.
    message["Message"] = "Hello".into();
    message["MessageId"] = "line\nMessageId\nm-1".into();
    assert_eq!(rejected(judged(&message)), Reason::Malformed);
}
