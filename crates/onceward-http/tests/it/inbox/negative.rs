//! One table of changes to a signed request, applied to every preset. Each one must be refused for its reason.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use onceward_http::inbox::{Judgement, Reason, Signed, Source, Trial};
use serde_json::Value;

use super::{NOW_MS, PRESETS, URL, config, judge, judge_with, rejected};

/// Where the signature of a preset is.
#[derive(Clone, Copy, PartialEq)]
enum Where {
    Header(&'static str),
    /// A field of the JSON body: Amazon SNS.
    Field(&'static str),
}

fn place(preset: &str) -> Where {
    Where::Header(match preset {
        "stripe" => "stripe-signature",
        "github" => "x-hub-signature-256",
        "slack" => "x-slack-signature",
        "shopify" => "x-shopify-hmac-sha256",
        "standard-webhooks" | "openai" => "webhook-signature",
        "svix" => "svix-signature",
        "twilio" => "x-twilio-signature",
        "paypal" => "paypal-transmission-sig",
        "sendgrid" => "x-twilio-email-event-webhook-signature",
        "square" => "x-square-hmacsha256-signature",
        "paddle" => "paddle-signature",
        "linear" => "linear-signature",
        "discord" => "x-signature-ed25519",
        "cloudevents" => "authorization",
        "hmac" => "x-signature",
        "sns" => return Where::Field("Signature"),
        other => panic!("{other}"),
    })
}

/// The other headers that a preset signs or needs.
fn signed_headers(preset: &str) -> &'static [&'static str] {
    match preset {
        "slack" => &["x-slack-request-timestamp"],
        "standard-webhooks" | "openai" => &["webhook-id", "webhook-timestamp"],
        "svix" => &["svix-id", "svix-timestamp"],
        "paypal" => {
            &["paypal-transmission-id", "paypal-transmission-time", "paypal-cert-url", "paypal-auth-algo"]
        }
        "sendgrid" => &["x-twilio-email-event-webhook-timestamp"],
        "discord" => &["x-signature-timestamp"],
        _ => &[],
    }
}

/// How far the signed time may be in the past, in milliseconds.
fn tolerance(preset: &str) -> Option<i64> {
    let minutes = match preset {
        "stripe" | "slack" | "standard-webhooks" | "svix" | "openai" => 5,
        "linear" => 1,
        "paddle" => return Some(5_000),
        "paypal" | "square" => 4 * 24 * 60,
        "sendgrid" => 25 * 60,
        "sns" => 65,
        "discord" => 15,
        "github" | "shopify" | "twilio" | "cloudevents" | "hmac" => return None,
        other => panic!("{other}"),
    };
    Some(minutes * 60_000)
}

fn signature(signed: &Signed, place: Where) -> String {
    match place {
        Where::Header(name) => signed.headers[name].to_str().unwrap().to_owned(),
        Where::Field(field) => {
            serde_json::from_slice::<Value>(&signed.body).unwrap()[field].as_str().unwrap().to_owned()
        }
    }
}

/// The request with another signature, or none.
fn with(signed: &Signed, place: Where, value: Option<&[u8]>) -> Signed {
    let mut changed = signed.clone();
    match place {
        Where::Header(name) => {
            changed.headers.remove(name);
            if let Some(value) = value {
                changed.headers.insert(name, HeaderValue::from_bytes(value).unwrap());
            }
        }
        Where::Field(field) => {
            let mut body: Value = serde_json::from_slice(&signed.body).unwrap();
            body.as_object_mut().unwrap().remove(field);
            if let Some(value) = value {
                body[field] = String::from_utf8_lossy(value).into();
            }
            changed.body = serde_json::to_vec(&body).unwrap().into();
        }
    }
    changed
}

/// The signature with its version replaced by one that does not exist.
fn other_version(signature: &str) -> Option<String> {
    let known = ["v1a,", "v1,", "v1=", "v0=", "sha256=", "h1=", "Bearer "];
    // Any of these may also stand in a signature of base64 by chance.
    let begins = |at: usize| at == 0 || signature[..at].ends_with([',', ';', ' ']);
    known
        .iter()
        .find(|version| signature.match_indices(**version).any(|(at, _)| begins(at)))
        .map(|version| signature.replace(version, "v9="))
}

fn each(check: impl Fn(&str, &Trial, &Signed)) {
    for preset in PRESETS {
        let trial = Trial::new(preset).unwrap();
        let signed = trial.sign_sample(URL, 1, NOW_MS).unwrap();
        let judged = judge(&trial, &signed, NOW_MS);
        assert!(matches!(&judged, Judgement::Events(events) if events.len() == 1), "{preset}: {judged:?}");
        check(preset, &trial, &signed);
    }
}

#[track_caller]
fn refused(preset: &str, what: &str, trial: &Trial, signed: &Signed, reasons: &[Reason]) {
    match judge(trial, signed, NOW_MS) {
        Judgement::Rejected(rejection) => {
            let known = reasons.contains(&rejection.reason);
            assert!(known, "{preset}, {what}: {rejection:?} is none of {reasons:?}");
            // Discord removes endpoints that answer a bad signature with anything else.
            assert!(preset != "discord" || rejection.status == 401, "{rejection:?}");
        }
        other => panic!("{preset}, {what}: {other:?}"),
    }
}

#[test]
fn missing_empty_truncated_and_foreign_signatures_are_refused() {
    each(|preset, trial, signed| {
        let place = place(preset);
        let good = signature(signed, place);
        let check = |what: &str, value: Option<&str>, reasons: &[Reason]| {
            refused(preset, what, trial, &with(signed, place, value.map(str::as_bytes)), reasons);
        };
        check("missing", None, &[Reason::Missing]);
        check("empty", Some(""), &[Reason::Missing]);
        check("blank", Some("  "), &[Reason::Missing, Reason::Malformed]);
        let some = [Reason::Signature, Reason::Malformed, Reason::Version];
        check("garbage", Some("hello"), &some);
        for cut in [1, 2, 4, good.len() / 2] {
            check("truncated", Some(&good[..good.len() - cut]), &some);
        }
        check("longer", Some(&format!("{good}00")), &some);
        // In a list, the second one is whole.
        if !["stripe", "paddle"].contains(&preset) {
            check("twice in one", Some(&format!("{good}{good}")), &some);
        }
        if let Some(other) = other_version(&good) {
            check("wrong version", Some(&other), &[Reason::Version]);
            check("only the version", good.split_inclusive([',', '=', ' ']).next(), &some);
        }
        let foreign = Trial::new(preset).unwrap().sign_sample(URL, 2, NOW_MS).unwrap();
        let reasons = if preset == "cloudevents" { &some[..1] } else { &some[..] };
        check("of another key or content", Some(&signature(&foreign, place)), reasons);
    });
}

#[test]
fn headers_that_are_not_ascii_or_occur_twice_are_refused() {
    each(|preset, trial, signed| {
        let Where::Header(name) = place(preset) else { return };
        for name in [&[name], signed_headers(preset)].concat() {
            let mut changed = signed.clone();
            changed.headers.insert(name, HeaderValue::from_bytes("é\u{1F600}".as_bytes()).unwrap());
            refused(preset, name, trial, &changed, &[Reason::Malformed]);
            changed.headers.insert(name, HeaderValue::from_bytes(b"\xff\xfe").unwrap());
            refused(preset, name, trial, &changed, &[Reason::Malformed]);
            let mut twice = signed.clone();
            twice.headers.append(name, signed.headers[name].clone());
            refused(preset, &format!("{name} twice"), trial, &twice, &[Reason::Duplicate]);
            let mut without = signed.clone();
            without.headers.remove(name);
            refused(preset, &format!("no {name}"), trial, &without, &[Reason::Missing]);
            let mut empty = signed.clone();
            empty.headers.insert(name, HeaderValue::from_static(""));
            refused(preset, &format!("empty {name}"), trial, &empty, &[Reason::Missing]);
        }
        for name in signed_headers(preset) {
            let mut other = signed.clone();
            let value = format!("{}1", signed.headers[*name].to_str().unwrap());
            other.headers.insert(*name, value.parse().unwrap());
            let reasons = [Reason::Signature, Reason::Version, Reason::Malformed];
            // Certificates of other names are fetched, and the sample has only one.
            if *name != "paypal-cert-url" {
                refused(preset, &format!("other {name}"), trial, &other, &reasons);
            }
        }
    });
}

#[test]
fn changed_empty_and_unicode_bodies_are_refused() {
    each(|preset, trial, signed| {
        // A token vouches for whatever its owner sends.
        if preset == "cloudevents" {
            return;
        }
        let text = String::from_utf8(signed.body.to_vec()).unwrap();
        let middle = text.len() / 2;
        let changes: [(&str, Vec<u8>); 7] = [
            ("empty", Vec::new()),
            ("shorter", text.as_bytes()[..text.len() - 1].to_vec()),
            ("longer", format!("{text}x").into_bytes()),
            ("unicode", text.replacen('a', "\u{430}", 1).into_bytes()),
            ("a lone surrogate", text.replacen('a', "\\ud800", 1).into_bytes()),
            ("not UTF-8", [&text.as_bytes()[..middle], b"\xff\xfe", &text.as_bytes()[middle..]].concat()),
            ("a byte order mark", format!("\u{feff}{text}").into_bytes()),
        ];
        for (what, body) in changes {
            let changed = Signed { body: body.into(), ..signed.clone() };
            refused(preset, what, trial, &changed, &[Reason::Signature, Reason::Malformed, Reason::Missing]);
        }
    });
}

#[test]
fn old_and_future_requests_are_refused_at_the_tolerance() {
    each(|preset, trial, signed| {
        let Some(past) = tolerance(preset) else {
            let years = 40 * 365 * 86_400_000;
            for now in [NOW_MS - years, NOW_MS + years] {
                assert!(
                    matches!(judge(trial, signed, now), Judgement::Events(_)),
                    "{preset}: there is no time"
                );
            }
            return;
        };
        let ahead = past.min(300_000);
        for (now_ms, reason) in [
            (NOW_MS + past, None),
            (NOW_MS + past + 1, Some(Reason::Old)),
            (NOW_MS + 100 * 86_400_000, Some(Reason::Old)),
            (NOW_MS - ahead, None),
            (NOW_MS - ahead - 1, Some(Reason::Future)),
        ] {
            match (judge(trial, signed, now_ms), reason) {
                (Judgement::Events(_), None) => {}
                (Judgement::Rejected(found), Some(reason)) if found.reason == reason => {}
                (other, reason) => panic!("{preset} at {}: {other:?}, not {reason:?}", now_ms - NOW_MS),
            }
        }
    });
}

#[test]
fn a_time_that_is_not_a_number_is_refused() {
    for (preset, header) in [
        ("slack", "x-slack-request-timestamp"),
        ("standard-webhooks", "webhook-timestamp"),
        ("discord", "x-signature-timestamp"),
        ("sendgrid", "x-twilio-email-event-webhook-timestamp"),
        ("paypal", "paypal-transmission-time"),
    ] {
        let trial = Trial::new(preset).unwrap();
        let signed = trial.sign_sample(URL, 1, NOW_MS).unwrap();
        for value in ["hello", "-1", "+1", "1e9", "99999999999999999999", "1 769860800", "0x10", "\u{661}"] {
            let mut changed = signed.clone();
            changed.headers.insert(header, HeaderValue::from_bytes(value.as_bytes()).unwrap());
            refused(preset, value, &trial, &changed, &[Reason::Malformed, Reason::Signature]);
        }
    }
    // Even if it is signed.
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let source = super::source("standard-webhooks", secret);
    let key = ring::hmac::Key::new(
        ring::hmac::HMAC_SHA256,
        &data_encoding::BASE64.decode(&secret.as_bytes()[6..]).unwrap(),
    );
    for time in ["hello", "-5", "17698608000000000"] {
        let tag = ring::hmac::sign(&key, format!("msg_1.{time}.{{}}").as_bytes());
        let value = format!("v1,{}", data_encoding::BASE64.encode(tag.as_ref()));
        let pairs = [("webhook-id", "msg_1"), ("webhook-timestamp", time), ("webhook-signature", &value)];
        let body = Bytes::from_static(b"{}");
        let judged = judge_with(&source, &super::NoCertificates, URL, &super::headers(&pairs), &body, NOW_MS);
        assert_eq!(rejected(judged), Reason::Malformed, "{time}");
    }
}

#[test]
fn one_of_several_signatures_is_enough_and_the_others_are_ignored() {
    for (preset, join, wrong) in [
        ("stripe", ",", "v1=00"),
        ("stripe", ",", "v0=5257a869e7ecebeda32affa62cdca3fa51cad7e77a0e56ff536d0ce8e108d8bd"),
        ("standard-webhooks", " ", "v1,AAAA"),
        ("standard-webhooks", " ", "v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
        ("svix", " ", "v1,not base64"),
        ("openai", " ", "v1a,AAAA"),
        ("paddle", ";", "h1=00"),
    ] {
        let trial = Trial::new(preset).unwrap();
        let signed = trial.sign_sample(URL, 1, NOW_MS).unwrap();
        let place = place(preset);
        let good = signature(&signed, place);
        for value in [format!("{good}{join}{wrong}"), format!("{wrong}{join}{good}")] {
            let judged = judge(&trial, &with(&signed, place, Some(value.as_bytes())), NOW_MS);
            assert!(matches!(judged, Judgement::Events(_)), "{preset} {value}: {judged:?}");
        }
        let many = vec![wrong; 40].join(join);
        let many = with(&signed, place, Some(format!("{many}{join}{good}").as_bytes()));
        refused(preset, "too many", &trial, &many, &[Reason::Malformed]);
    }
    let trial = Trial::new("stripe").unwrap();
    let signed = trial.sign_sample(URL, 1, NOW_MS).unwrap();
    let twice = format!("t=1,{}", signature(&signed, place("stripe")));
    let twice = with(&signed, place("stripe"), Some(twice.as_bytes()));
    refused("stripe", "two times", &trial, &twice, &[Reason::Duplicate]);
}

#[test]
fn one_of_several_secrets_is_enough() {
    for preset in PRESETS {
        let trial = Trial::new(preset).unwrap();
        let Some((_, secret)) = trial.variable() else { continue };
        let signed = trial.sign_sample(URL, 1, NOW_MS).unwrap();
        let other = Trial::new(preset).unwrap();
        let (_, other) = other.variable().unwrap();
        let mut config = trial.config.clone();
        let judged = |names: &[&str], config: &mut onceward_http::inbox::SourceConfig| {
            config.secrets = names.iter().map(|name| format!("${name}")).collect();
            let read = |name: &str| Some(if name == "NEW" { secret } else { other }.to_owned());
            let source = Source::new(preset, config, &read).unwrap();
            judge_with(&source, &trial, &signed.url, &signed.headers, &signed.body, NOW_MS)
        };
        for names in [&["OLD", "NEW"][..], &["NEW", "OLD"], &["NEW"]] {
            assert!(matches!(judged(names, &mut config), Judgement::Events(_)), "{preset} {names:?}");
        }
        assert_eq!(rejected(judged(&["OLD"], &mut config)), Reason::Signature, "{preset}");
    }
}

#[test]
fn other_methods_are_refused() {
    let trial = Trial::new("github").unwrap();
    let signed = trial.sign_sample(URL, 1, NOW_MS).unwrap();
    for method in ["GET", "PUT", "OPTIONS", "HEAD"] {
        let received = onceward_http::inbox::Received {
            method: &method.parse().unwrap(),
            url: URL,
            headers: &signed.headers,
            body: &signed.body,
        };
        let judged = pollster::block_on(trial.source.judge(&received, NOW_MS, &trial));
        assert_eq!(rejected(judged), Reason::Method);
    }
}

#[test]
fn certificates_from_other_hosts_are_not_fetched() {
    struct Panics;
    #[async_trait::async_trait]
    impl onceward_http::inbox::FetchCertificate for Panics {
        async fn fetch(&self, url: &str) -> Result<Bytes, onceward_http::inbox::CertificateError> {
            panic!("{url} was fetched")
        }
    }
    let hosts = [
        "https://evil.example/v1/notifications/certs/C",
        "https://api.paypal.com.evil.example/v1/notifications/certs/C",
        "https://api.paypal.com@evil.example/v1/notifications/certs/C",
        "https://api.paypal.com:8443/v1/notifications/certs/C",
        "http://api.paypal.com/v1/notifications/certs/C",
        "https://api.paypal.com/other",
        "https://api.sandbox.paypal.com/v1/notifications/certs/C",
        "https://169.254.169.254/v1/notifications/certs/C",
        "file:///etc/passwd",
    ];
    let trial = Trial::new("paypal").unwrap();
    let signed = trial.sign_sample(URL, 1, NOW_MS).unwrap();
    for url in hosts {
        let mut headers: HeaderMap = signed.headers.clone();
        headers.insert("paypal-cert-url", url.parse().unwrap());
        let judged = judge_with(&trial.source, &Panics, URL, &headers, &signed.body, NOW_MS);
        assert_eq!(rejected(judged), Reason::Certificate, "{url}");
    }
    let trial = Trial::new("sns").unwrap();
    let signed = trial.sign_sample(URL, 1, NOW_MS).unwrap();
    for url in [
        "https://sns.s3-us-west-2.amazonaws.com/SimpleNotificationService-5a3b.pem",
        "https://sns.us-east-1.amazonaws.com.evil.example/SimpleNotificationService-5a3b.pem",
        "http://sns.us-east-1.amazonaws.com/SimpleNotificationService-5a3b.pem",
        "https://sns.us-east-1.amazonaws.com/other.pem",
        "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-5a3b.pem?x=.pem",
        "https://evil.example/SimpleNotificationService-5a3b.pem",
    ] {
        let changed = with(&signed, Where::Field("SigningCertURL"), Some(url.as_bytes()));
        let judged = judge_with(&trial.source, &Panics, URL, &changed.headers, &changed.body, NOW_MS);
        assert_eq!(rejected(judged), Reason::Certificate, "{url}");
    }
    for version in ["3", "", "0", "two"] {
        let changed = with(&signed, Where::Field("SignatureVersion"), Some(version.as_bytes()));
        let judged = judge_with(&trial.source, &Panics, URL, &changed.headers, &changed.body, NOW_MS);
        assert!([Reason::Version, Reason::Missing].contains(&rejected(judged)), "{version}");
    }
    // Signed with SHA-256, and said to be SHA-1.
    let changed = with(&signed, Where::Field("SignatureVersion"), Some(b"1"));
    assert_eq!(rejected(judge(&trial, &changed, NOW_MS)), Reason::Signature);
    // It cannot be fetched: the vendor will try again.
    let judged =
        judge_with(&trial.source, &super::NoCertificates, URL, &signed.headers, &signed.body, NOW_MS);
    assert!(
        matches!(&judged, Judgement::Rejected(no) if no.status == 503 && no.reason == Reason::Unavailable)
    );
    // The certificate of the samples has expired.
    let source = Trial::with("sns", config("tolerance = \"400000d\"")).unwrap();
    let judged = judge_with(&source.source, &source, URL, &signed.headers, &signed.body, NOW_MS * 3);
    assert_eq!(rejected(judged), Reason::Certificate);
}
