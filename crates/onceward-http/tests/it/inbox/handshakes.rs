//! How vendors test an endpoint before they send events.

use bytes::Bytes;
use http::Method;
use onceward_http::inbox::{Judgement, Reason, Received, Reply, Sample, Signed, Trial};

use super::{NOW_MS, URL, config, event, headers, judge, rejected};

fn signed(trial: &Trial, body: &str) -> Signed {
    let mut sample = trial.source.sample(URL, 1, NOW_MS).unwrap();
    sample.body = Bytes::from(body.to_owned());
    trial.sign(&sample).unwrap()
}

#[track_caller]
fn challenge(judgement: Judgement) -> Reply {
    match judgement {
        Judgement::Challenge(reply) => reply,
        other => panic!("{other:?}"),
    }
}

#[test]
fn slacks_challenge_is_returned_if_it_is_signed() {
    let trial = Trial::new("slack").unwrap();
    let request = signed(&trial, r#"{"type":"url_verification","token":"t","challenge":"3eZbrw1a"}"#);
    let reply = challenge(judge(&trial, &request, NOW_MS));
    assert_eq!((reply.status.as_u16(), &reply.body[..]), (200, &b"3eZbrw1a"[..]));
    let mut forged = request;
    forged.headers.insert("x-slack-signature", "v0=00".parse().unwrap());
    assert_eq!(rejected(judge(&trial, &forged, NOW_MS)), Reason::Signature);
}

#[test]
fn discords_pings_are_answered_and_bad_signatures_get_401() {
    let trial = Trial::new("discord").unwrap();
    let ping =
        challenge(judge(&trial, &signed(&trial, r#"{"version":1,"application_id":"1","type":0}"#), NOW_MS));
    assert_eq!((ping.status.as_u16(), ping.body.len()), (204, 0));
    let ping = challenge(judge(&trial, &signed(&trial, r#"{"id":"1","type":1,"token":"t"}"#), NOW_MS));
    assert_eq!((ping.status.as_u16(), &ping.body[..]), (200, &br#"{"type":1}"#[..]));
    let command = event(judge(&trial, &signed(&trial, r#"{"id":"77","type":2,"token":"t"}"#), NOW_MS));
    assert_eq!((command.id.as_deref(), command.is_id_signed), (Some("77"), true));
    assert_eq!(trial.source.accepted().status.as_u16(), 204);
    let mut forged = signed(&trial, r#"{"version":1,"application_id":"1","type":0}"#);
    forged.headers.insert("x-signature-ed25519", "00".repeat(64).parse().unwrap());
    match judge(&trial, &forged, NOW_MS) {
        Judgement::Rejected(rejection) => assert_eq!(rejection.status.as_u16(), 401),
        other => panic!("{other:?}"),
    }
}

#[test]
fn cloudevents_may_ask_whether_it_may_send() {
    let ask = |settings: &str, pairs: &[(&str, &str)]| {
        let trial = Trial::with("cloudevents", config(settings)).unwrap();
        let (headers, body) = (headers(pairs), Bytes::new());
        let received = Received { method: &Method::OPTIONS, url: URL, headers: &headers, body: &body };
        pollster::block_on(trial.source.judge(&received, NOW_MS, &trial))
    };
    let reply = challenge(ask(
        "",
        &[("WebHook-Request-Origin", "eventemitter.example.com"), ("WebHook-Request-Rate", "120")],
    ));
    let value =
        |name: &str| reply.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    assert_eq!(value("webhook-allowed-origin").unwrap(), "eventemitter.example.com");
    assert_eq!(value("webhook-allowed-rate").unwrap(), "*");
    assert_eq!(rejected(ask("", &[])), Reason::Missing);
    let other = ask("origins = [\"a.example\"]", &[("WebHook-Request-Origin", "b.example")]);
    assert_eq!(rejected(other), Reason::NotConfigured);
}

#[test]
fn subscriptions_of_sns_are_confirmed_only_at_amazon_and_for_known_topics() {
    let trial = Trial::new("sns").unwrap();
    let topic = trial.config.topics[0].clone();
    let at = |url: &str, topic: &str| {
        let sample = Sample { id: "m1".to_owned(), ..trial.source.sample(URL, 1, NOW_MS).unwrap() };
        judge(&trial, &trial.sign_subscription(&sample, topic, url).unwrap(), NOW_MS)
    };
    let escaped = topic.replace(':', "%3A");
    let good = format!(
        "https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&TopicArn={escaped}&Token=abc"
    );
    match at(&good, &topic) {
        Judgement::Confirm(confirmation) => {
            assert_eq!((confirmation.url, confirmation.topic), (good.clone(), topic.clone()));
        }
        other => panic!("{other:?}"),
    }
    for url in [
        good.replace("https", "http"),
        good.replace("sns.us-east-1.amazonaws.com", "evil.example"),
        good.replace("amazonaws.com", "amazonaws.com.evil.example"),
        good.replace("sns.us-east-1.amazonaws.com", "sns.us-east-1.amazonaws.com:444"),
        good.replace("sns.us-east-1.amazonaws.com", "169.254.169.254"),
        good.replace("ConfirmSubscription", "Publish"),
        good.replace("sample", "other"),
        good.replace("/?", "/x?"),
    ] {
        assert_eq!(rejected(at(&url, &topic)), Reason::Body, "{url}");
    }
    let other = at(&good, "arn:aws:sns:us-east-1:999999999999:theirs");
    assert_eq!(rejected(other), Reason::NotConfigured);
    let without = onceward_http::inbox::Source::new("sns", &config(""), &|_| None).unwrap_err();
    assert!(without.to_string().contains("topics"), "{without}");
}
