//! The gateway between real clients and a vendor that counts effects and fails in every way.

mod actions;
mod answers;
mod budget;
mod fleet;
mod hold;
mod keys;
mod models;
mod presets;
mod provider;
mod questions;
mod readers;
mod rig;
mod samples;
mod stop;
mod stream;
mod undo;
mod vendor;

use hyper::{Method, StatusCode};
use onceward::State;

use crate::common::until;
use rig::Rig;
use vendor::{Act, Vendor};

/// A Stripe that this machine serves.
pub(crate) fn stripe(vendor: &Vendor, more: &str) -> String {
    format!(
        "[upstream.stripe]\nurl = \"{}\"\nallow_private = true\nbackoff = \"20ms\"\ntimeout = \"600s\"\n{more}\n",
        vendor.url
    )
}

/// An API without keys.
pub(crate) fn plain(vendor: &Vendor, more: &str) -> String {
    format!(
        "[upstream.api]\nurl = \"{}\"\nallow_private = true\nbackoff = \"20ms\"\ntimeout = \"600s\"\n{more}\n",
        vendor.url
    )
}

/// The time limit of these upstreams.
pub(crate) const TIMEOUT_MS: i64 = 600_000;
const CHARGE: &str = "/gw/stripe/v1/charges";

#[tokio::test]
async fn a_charge_is_made_once_whatever_happens_after_it() {
    for act in [
        Act::Hang,
        Act::Reset,
        Act::Close,
        Act::Cut,
        Act::Status(500),
        Act::Status(502),
        Act::Status(503),
        Act::Answer,
    ] {
        let vendor = Vendor::start(Some("idempotency-key")).await;
        vendor.script([act.clone()]);
        let rig = Rig::start(&stripe(&vendor, "")).await;
        let (got, ()) = tokio::join!(rig.post(CHARGE, &[], "amount=100"), async {
            if matches!(act, Act::Hang) {
                vendor.has(1).await;
                rig.clock.step(TIMEOUT_MS);
            }
        });
        assert_eq!((got.status, vendor.effects()), (StatusCode::OK, 1), "{act:?}: {got:?}");
        assert_eq!(got.json()["id"], "obj_1");
        let keys: Vec<_> =
            vendor.posts().iter().map(|seen| seen.header("idempotency-key").map(str::to_owned)).collect();
        assert!(keys.iter().all(|key| key.is_some() && *key == keys[0]), "{keys:?}");
        assert!(keys[0].as_ref().is_some_and(|key| key.starts_with("op_")));
        assert_eq!(rig.states().await, [State::Done]);
    }
}

#[tokio::test]
async fn a_retry_with_the_same_key_gets_the_same_bytes() {
    let vendor = Vendor::start(Some("idempotency-key")).await;
    let rig = Rig::start(&stripe(&vendor, "")).await;
    let first = rig.post(CHARGE, &[("idempotency-key", "k-1")], "amount=100&currency=usd").await;
    assert_eq!((first.header("idempotent-replayed"), first.header("once-effect")), (None, Some("created")));
    assert_eq!(first.header("set-cookie"), Some("sid=S3CRET"), "the first caller gets everything");
    rig.delivered().await;
    // Quoted, and with the fields in another order.
    let retry = rig.post(CHARGE, &[("idempotency-key", "\"k-1\"")], "currency=usd&amount=100").await;
    assert_eq!((retry.status, &retry.body), (first.status, &first.body));
    assert_eq!(
        (retry.header("idempotent-replayed"), retry.header("once-effect")),
        (Some("true"), Some("noop"))
    );
    assert_eq!((retry.header("once-happened"), retry.header("set-cookie")), (Some("yes"), None));
    assert_eq!(retry.header("x-request-id"), Some("r-1"));
    assert_eq!((vendor.effects(), vendor.posts().len()), (1, 1));
    let other = rig.post(CHARGE, &[("idempotency-key", "k-1")], "amount=999").await;
    assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(other.json()["code"], "KEY_REUSED");
    assert_eq!(
        (other.header("x-should-retry"), other.header("stripe-should-retry")),
        (Some("false"), Some("false"))
    );
    assert_eq!(vendor.effects(), 1);
}

#[tokio::test]
async fn without_a_key_a_vendor_is_asked_once_and_the_doubt_is_told() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Status(502)]);
    let rig = Rig::start(&plain(&vendor, "")).await;
    let body = r#"{"title":"x"}"#;
    let json = [("content-type", "application/json")];
    let first = rig.send(Method::POST, "/gw/api/issues", &json, body).await;
    assert_eq!(first.status, StatusCode::FAILED_DEPENDENCY);
    assert_eq!(first.json()["code"], "IN_DOUBT");
    assert_eq!(
        (first.header("x-should-retry"), first.header("once-happened")),
        (Some("false"), Some("unknown"))
    );
    assert_eq!(first.header("retry-after"), None);
    // SDKs take an answer without these for a success, or do not read it.
    assert_eq!(first.header("content-type"), Some("application/json"));
    let problem = first.json();
    assert_eq!(problem["error"]["type"], "onceward");
    assert_eq!(problem["error"]["code"], "IN_DOUBT");
    assert_eq!(problem["error"]["message"], problem["detail"]);
    assert_eq!((problem["statusCode"].as_u64(), problem["name"].as_str()), (Some(424), Some("IN_DOUBT")));
    // Equal content in other words is the same request.
    let retry = rig.send(Method::POST, "/gw/api/issues", &json, r#"{ "title" : "x" }"#).await;
    assert_eq!((retry.status, vendor.effects(), vendor.posts().len()), (StatusCode::FAILED_DEPENDENCY, 1, 1));
    let other = rig.send(Method::POST, "/gw/api/issues", &json, r#"{"title":"y"}"#).await;
    assert_eq!((other.status, vendor.effects()), (StatusCode::OK, 2));
}

#[tokio::test]
async fn after_a_delivered_answer_an_equal_request_is_a_new_one() {
    let vendor = Vendor::start(None).await;
    let rig = Rig::start(&plain(&vendor, "")).await;
    for effects in 1..=3 {
        let got = rig.send(Method::POST, "/gw/api/jobs", &[], "go").await;
        assert_eq!((got.status, vendor.effects()), (StatusCode::OK, effects));
        rig.delivered().await;
    }
    // A scope that the caller chose makes equal requests one operation.
    for _ in 0..2 {
        rig.send(Method::POST, "/gw/api/jobs", &[("once-scope", "run-7")], "go").await;
        rig.delivered().await;
    }
    assert_eq!(vendor.effects(), 4);
    rig.send(Method::POST, "/gw/api/jobs", &[("once-scope", "run-7"), ("once-occurrence", "2")], "go").await;
    assert_eq!(vendor.effects(), 5);
    assert!(
        vendor.posts().iter().all(|seen| seen.headers.iter().all(|(name, _)| !name.starts_with("once-")))
    );
}

#[tokio::test]
async fn a_client_that_leaves_gets_the_answer_later() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Gate]);
    let rig = Rig::start(&plain(&vendor, "")).await;
    let client = rig.waiting("/gw/api/pay", "", "100").await;
    vendor.has(1).await;
    drop(client);
    let retry = rig.send(Method::POST, "/gw/api/pay", &[], "100");
    let (retry, ()) = tokio::join!(retry, async { vendor.open_gate(1) });
    assert_eq!((retry.status, vendor.effects(), vendor.posts().len()), (StatusCode::OK, 1, 1));
    assert_eq!(retry.header("idempotent-replayed"), Some("true"));
}

#[tokio::test]
async fn concurrent_equal_requests_are_one() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Gate]);
    let rig = Rig::start(&plain(&vendor, "")).await;
    let send = || rig.send(Method::POST, "/gw/api/pay", &[], "100");
    let (a, b, c, ()) = tokio::join!(send(), send(), send(), async {
        // The others look at the record of the first one.
        until("two wait", async || rig.clock.sleepers(20) == 2).await;
        vendor.open_gate(1);
    });
    assert_eq!((vendor.effects(), vendor.posts().len()), (1, 1));
    assert!([&a, &b, &c].iter().all(|got| got.status == StatusCode::OK && got.body == a.body));
}

#[tokio::test]
async fn certain_failures_are_retried_and_their_answers_passed_on() {
    let vendor = Vendor::start(Some("idempotency-key")).await;
    let rejected = r#"{"error":{"type":"invalid_request_error"}}"#;
    vendor.script([Act::Refuse(400, rejected), Act::Refuse(429, "{}"), Act::Answer]);
    let rig = Rig::start(&stripe(&vendor, "")).await;
    let key = [("idempotency-key", "k")];
    let first = rig.post(CHARGE, &key, "amount=1").await;
    assert_eq!((first.status, &first.body[..]), (StatusCode::BAD_REQUEST, rejected.as_bytes()));
    assert_eq!(first.header("once-happened"), Some("no"));
    assert_eq!(rig.post(CHARGE, &key, "amount=1").await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rig.post(CHARGE, &key, "amount=1").await.status, StatusCode::OK);
    assert_eq!(vendor.effects(), 1);
}

#[tokio::test]
async fn a_connection_that_breaks_between_two_charges_costs_no_attempt() {
    for breaks in [Act::Close, Act::Reset] {
        let vendor = Vendor::start(Some("idempotency-key")).await;
        vendor.script([Act::Answer, breaks]);
        let rig = Rig::start(&stripe(&vendor, "attempts = 1")).await;
        let charge = async |key, body| rig.post(CHARGE, &[("idempotency-key", key)], body).await;
        assert_eq!(charge("one", "amount=1").await.status, StatusCode::OK);
        // It arrives on the connection of the first, takes effect, and its answer is lost.
        assert_eq!(charge("two", "amount=2").await.status, StatusCode::OK);
        let keys: Vec<String> =
            vendor.posts().iter().map(|seen| seen.header("idempotency-key").unwrap().into()).collect();
        assert_eq!(
            (vendor.effects(), keys.len()),
            (2, 3),
            "the vendor recognizes the request that comes again"
        );
        assert_eq!(keys[1], keys[2]);

        // If that one is rejected, nothing is known about the first.
        vendor.script([Act::Answer, Act::Close, Act::Refuse(429, "{}")]);
        assert_eq!(charge("three", "amount=3").await.status, StatusCode::OK);
        let doubt = charge("four", "amount=4").await;
        assert_eq!(
            (doubt.status, doubt.header("once-happened")),
            (StatusCode::FAILED_DEPENDENCY, Some("unknown"))
        );
    }
}

#[tokio::test]
async fn the_budget_counts_every_layer() {
    let vendor = Vendor::start(Some("idempotency-key")).await;
    vendor.script(std::iter::repeat_n(Act::Refuse(429, "{}"), 20));
    let rig = Rig::start(&stripe(&vendor, "attempts = 3")).await;
    let mut statuses = Vec::new();
    for key in ["a", "a", "b", "a", "c"] {
        statuses.push(rig.post(CHARGE, &[("idempotency-key", key)], "amount=1").await.status.as_u16());
    }
    assert_eq!(statuses, [429, 429, 429, 424, 424], "also with new keys");
    assert_eq!(vendor.posts().len(), 3);
    let doubts = Vendor::start(None).await;
    doubts.script(std::iter::repeat_n(Act::Status(500), 20));
    let rig = Rig::start(&stripe(&doubts, "attempts = 3")).await;
    let got = rig.post(CHARGE, &[], "amount=1").await;
    assert_eq!((got.status, doubts.posts().len()), (StatusCode::FAILED_DEPENDENCY, 3));
    assert_eq!(got.header("stripe-should-retry"), Some("false"));
    assert_eq!(rig.post(CHARGE, &[], "amount=1").await.status, StatusCode::FAILED_DEPENDENCY);
    assert_eq!(doubts.posts().len(), 3);
}

#[tokio::test]
async fn an_upstream_that_cannot_be_reached_was_sent_nothing() {
    // A socket that does not listen: its connections are refused, and its port cannot be taken.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let config = format!(
        "[upstream.api]\nurl = \"http://{address}\"\nallow_private = true\nattempts = 2\nbackoff = \"10ms\"\n"
    );
    let rig = Rig::start(&config).await;
    let got = rig.send(Method::POST, "/gw/api/x", &[], "1").await;
    assert_eq!((got.status, got.json()["code"].as_str()), (StatusCode::BAD_GATEWAY, Some("FAILED")));
    assert_eq!(got.header("once-happened"), Some("no"));
    assert_eq!(rig.states().await, [State::Failed]);
}

#[tokio::test]
async fn a_handshake_that_hangs_has_sent_nothing() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let config = format!(
        "[upstream.api]\nurl = \"https://{address}\"\nallow_private = true\nattempts = 2\nbackoff = \"10ms\"\n\
         timeout = \"60s\"\n"
    );
    let rig = Rig::start(&config).await;
    let got = rig.clock.run(20_000, rig.send(Method::POST, "/gw/api/x", &[], "1")).await;
    assert_eq!((got.status, got.json()["code"].as_str()), (StatusCode::BAD_GATEWAY, Some("FAILED")));
    assert_eq!((got.header("once-happened"), rig.states().await), (Some("no"), vec![State::Failed]));
}

#[tokio::test]
async fn a_dry_run_sends_and_writes_nothing() {
    let vendor = Vendor::start(None).await;
    let rig = Rig::start(&plain(&vendor, "")).await;
    let dry = rig.send(Method::POST, "/gw/api/x", &[("once-dry-run", "true")], "1").await;
    assert_eq!((dry.status, dry.json()["effect"].as_str()), (StatusCode::OK, Some("would_create")));
    assert!(rig.operations().await.is_empty() && vendor.seen().is_empty());
    rig.send(Method::POST, "/gw/api/x", &[("idempotency-key", "k")], "1").await;
    let dry =
        rig.send(Method::POST, "/gw/api/x", &[("once-dry-run", "true"), ("idempotency-key", "k")], "1").await;
    assert_eq!((dry.json()["effect"].as_str(), vendor.effects()), (Some("would_noop"), 1));
}

#[tokio::test]
async fn a_call_outlives_its_client_and_its_retry_waits() {
    let vendor = Vendor::start(Some("idempotency-key")).await;
    vendor.script([Act::Hang]);
    let rig = Rig::start(&stripe(&vendor, "")).await;
    tokio::select! {
        got = rig.post(CHARGE, &[("idempotency-key", "k")], "amount=5") => panic!("the vendor hangs: {got:?}"),
        () = vendor.has(1) => {}
    }
    assert_eq!((rig.states().await, vendor.effects()), (vec![State::Running], 1));
    // The first call lives on, so the retry waits for it.
    tokio::select! {
        got = rig.post(CHARGE, &[("idempotency-key", "k2")], "amount=5") => panic!("it does not wait: {got:?}"),
        () = until("it looks again and again", async || rig.clock.sleeps_begun(20) > 10) => {}
    }
    assert_eq!(vendor.posts().len(), 1);
}
