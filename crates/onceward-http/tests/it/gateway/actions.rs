//! What a request does: headers that say so are part of its content, and no request that changes something is a read.

use hyper::{Method, StatusCode};
use onceward::State;

use crate::gateway::plain;
use crate::gateway::rig::Rig;
use crate::gateway::vendor::{Act, Vendor};

const JSON: (&str, &str) = ("content-type", "application/x-amz-json-1.0");

#[tokio::test]
async fn requests_that_differ_in_their_action_are_two_operations() {
    for (name, one, other) in [
        ("x-amz-target", "AmazonSQS.PurgeQueue", "AmazonSQS.DeleteQueue"),
        ("soapaction", "\"Authorize\"", "\"Capture\""),
        (
            "content-type",
            "application/soap+xml; action=\"Authorize\"",
            "application/soap+xml; action=\"Capture\"",
        ),
        ("content-range", "bytes 0-9/20", "bytes 10-19/20"),
        ("if-match", "\"1\"", "\"2\""),
        ("x-stage", "test", "live"),
    ] {
        let vendor = Vendor::start(None).await;
        let rig = Rig::start(&plain(&vendor, "action_headers = [\"X-Stage\"]")).await;
        let send = async |more: &[(&str, &str)]| {
            let mut headers = vec![("authorization", "Bearer a")];
            headers.extend(more);
            rig.send(Method::POST, "/gw/api/q", &headers, "{}").await
        };
        let scope = ("once-scope", "run");
        for value in [one, other] {
            assert_eq!(send(&[(name, value), scope]).await.header("idempotent-replayed"), None, "{name}");
        }
        let retry = [(name, one), scope, ("x-amz-date", "2"), ("user-agent", "b")];
        assert_eq!(send(&retry).await.header("idempotent-replayed"), Some("true"), "{name}");
        assert_eq!(vendor.effects(), 2, "{name}");
        let key = ("idempotency-key", "k");
        assert_eq!(send(&[(name, one), key]).await.status, StatusCode::OK);
        let reused = send(&[(name, other), key]).await;
        assert_eq!(reused.json()["code"], "KEY_REUSED", "{name}");
    }
}

#[tokio::test]
async fn the_name_of_an_operation_has_its_action_and_rules_can_be_about_it() {
    let vendor = Vendor::start(None).await;
    let rules = "[operation.\"api POST /\"]\nattempts = 2\nclass = \"once\"\n\
                 [operation.\"api POST / *.DeleteQueue\"]\nclass = \"idempotent\"\n";
    let rig = Rig::start(&plain(&vendor, rules)).await;
    for target in ["AmazonSQS.PurgeQueue", "AmazonSQS.DeleteQueue"] {
        vendor.script([Act::Status(500)]);
        let got = rig.send(Method::POST, "/gw/api/", &[JSON, ("x-amz-target", target)], "{}").await;
        let expected =
            if target.ends_with("DeleteQueue") { StatusCode::OK } else { StatusCode::FAILED_DEPENDENCY };
        assert_eq!(got.status, expected, "{target}");
    }
    let mut operations = rig.operations().await;
    operations.sort_by(|a, b| a.name.cmp(&b.name));
    let seen: Vec<_> = operations.iter().map(|one| (one.name.as_str(), one.detail.max_attempts)).collect();
    let expected = [("api POST / AmazonSQS.DeleteQueue", 2), ("api POST / AmazonSQS.PurgeQueue", 2)];
    assert_eq!(seen, expected, "the rule without an action applies as well");
}

#[tokio::test]
async fn a_read_that_a_header_makes_a_change_is_an_operation() {
    let vendor = Vendor::start(None).await;
    let rig = Rig::start(&plain(&vendor, "")).await;
    for (number, (method, name)) in [
        (Method::GET, "x-http-method-override"),
        (Method::GET, "x-method-override"),
        (Method::OPTIONS, "x-http-method"),
    ]
    .into_iter()
    .enumerate()
    {
        let headers = [(name, "DELETE"), ("idempotency-key", name)];
        for _ in 0..2 {
            let got = rig.send(method.clone(), "/gw/api/account/7", &headers, "").await;
            assert!(got.header("once-operation").is_some(), "{name}: {got:?}");
        }
        let sent = vendor.seen().iter().filter(|seen| seen.header(name).is_some()).count();
        assert_eq!((sent, rig.operations().await.len()), (1, number + 1), "{name}");
    }
    let read = rig.send(Method::GET, "/gw/api/account/7", &[("x-http-method-override", "GET")], "").await;
    assert_eq!(read.header("once-operation"), None);
    // What is idempotent under its own method may not be under another.
    vendor.script([Act::Status(500)]);
    let headers = [("x-http-method-override", "POST")];
    let got = rig.send(Method::PUT, "/gw/api/account/8", &headers, "").await;
    assert_eq!(got.status, StatusCode::FAILED_DEPENDENCY);
    let seen = vendor.seen().len();
    for method in [Method::TRACE, Method::CONNECT] {
        let refused = rig.send(method.clone(), "/gw/api/account/7", &[], "").await;
        assert_eq!(refused.status, StatusCode::METHOD_NOT_ALLOWED, "{method}");
    }
    assert_eq!(vendor.seen().len(), seen, "nothing was sent");
}

/// The vendor honours a key that no rule is about: a wanted repetition must not have the same one.
#[tokio::test]
async fn the_callers_key_is_replaced_wherever_it_is_sent() {
    let vendor = Vendor::start(Some("idempotency-key")).await;
    let rig = Rig::start(&plain(&vendor, "")).await;
    let key = ("idempotency-key", "order-7");
    let quoted = ("idempotency-key", "\"order-7\"");
    for (more, effects) in [
        (vec![key], 1),
        (vec![key, ("once-occurrence", "2")], 2),
        (vec![key, ("once-scope", "run-2")], 3),
        (vec![quoted, ("once-scope", "run-3")], 4),
    ] {
        let got = rig.send(Method::POST, "/gw/api/charges", &more, "1").await;
        assert_eq!((got.status, vendor.effects()), (StatusCode::OK, effects), "{more:?}");
    }
    let keys: Vec<_> =
        vendor.posts().iter().map(|seen| seen.header("idempotency-key").unwrap().to_owned()).collect();
    assert!(keys.iter().all(|key| !key.contains("order-7")), "{keys:?}");
    assert!(keys[3].starts_with('"') && keys[3].ends_with('"'), "{keys:?}");
    // A signed request is sent as it is.
    let signature = ("authorization", "AWS4-HMAC-SHA256 Credential=A/b, SignedHeaders=host, Signature=c");
    rig.send(Method::POST, "/gw/api/charges", &[key, signature], "1").await;
    assert_eq!(vendor.posts().last().unwrap().header("idempotency-key"), Some("order-7"));
}

/// A part of an upload was stored, although its status is that of a redirect.
#[tokio::test]
async fn a_redirect_without_a_place_to_go_to_is_none() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Say(308, ""), Act::Say(308, "")]);
    let rig = Rig::start(&plain(&vendor, "class = \"once\"")).await;
    let got = rig.send(Method::POST, "/gw/api/upload", &[], "1").await;
    assert_eq!((got.status, got.header("once-happened")), (StatusCode::FAILED_DEPENDENCY, Some("unknown")));
    assert_eq!(rig.states().await, [State::InDoubt]);
    let google = plain(&vendor, "preset = \"google\"");
    let rig = Rig::start(&google).await;
    let part = [("content-range", "bytes 0-9/20")];
    let got = rig.send(Method::PUT, "/gw/api/upload", &part, "1").await;
    assert_eq!((got.status.as_u16(), got.header("once-happened")), (308, Some("yes")));
    assert_eq!(got.header("once-verified"), Some("pending"));
}
