//! A request that the policy holds back is not sent, its caller learns that, and it is sent once when it may be.

use hyper::StatusCode;
use onceward::{Ledger, State, Word};

use crate::gateway::rig::Rig;
use crate::gateway::vendor::{Act, Vendor};
use crate::gateway::{CHARGE, plain, stripe};

const HOLD: &str = "[operation.\"stripe POST /v1/charges\"]\nhold = \"approve\"";

#[tokio::test]
async fn a_held_request_is_sent_once_after_its_release_with_or_without_a_key() {
    for headers in [&[("idempotency-key", "k")][..], &[]] {
        let vendor = Vendor::start(Some("idempotency-key")).await;
        let rig = Rig::start(&stripe(&vendor, HOLD)).await;
        for _ in 0..2 {
            let got = rig.post(CHARGE, headers, "amount=1").await;
            assert_eq!((got.status, got.json()["effect"].as_str()), (StatusCode::ACCEPTED, Some("held")));
            assert_eq!(got.json()["happened"], "no");
        }
        assert_eq!((rig.states().await, vendor.effects()), (vec![State::Staged], 0), "{headers:?}");
        let rig = rig.restarted().await;
        let ledger = Ledger::new(rig.store.clone());
        let held = ledger.admin().held(None).await.unwrap();
        let (hold, stored) = (held[0].held().unwrap(), held[0].held_request());
        let shown = hold.shown().unwrap().to_string();
        assert!(shown.starts_with("POST /v1/charges \"amount=1\"  (8 bytes of "), "{shown}");
        assert_eq!((hold.surface.as_str(), stored), ("gateway", None), "only its caller can send it");
        ledger.admin().release(&held[0].id, &Word::person("maria")).await.unwrap();
        let sent = rig.post(CHARGE, headers, "amount=1").await;
        assert_eq!((sent.status, vendor.effects()), (StatusCode::OK, 1), "{headers:?}");
        if !headers.is_empty() {
            let again = rig.post(CHARGE, headers, "amount=1").await;
            assert_eq!((again.body, again.headers.get("idempotent-replayed").is_some()), (sent.body, true));
        }
        assert_eq!(vendor.effects(), 1, "{headers:?}");
    }
}

#[tokio::test]
async fn a_stop_cancels_what_is_held_and_it_is_never_sent() {
    let vendor = Vendor::start(Some("idempotency-key")).await;
    let rig = Rig::start(&stripe(&vendor, HOLD)).await;
    let headers = [("idempotency-key", "k"), ("once-scope", "run-7")];
    assert_eq!(rig.post(CHARGE, &headers, "amount=1").await.status, StatusCode::ACCEPTED);
    let ledger = Ledger::new(rig.store.clone());
    assert_eq!(
        ledger.admin().held(Some("run-7")).await.unwrap().len(),
        1,
        "its caller is kept apart in the scope"
    );
    ledger.scopes().stop("run-7", &Word::person("ada")).await.unwrap();
    assert_eq!(rig.states().await, [State::Cancelled]);
    for _ in 0..2 {
        assert_ne!(rig.post(CHARGE, &headers, "amount=1").await.status, StatusCode::OK);
    }
    ledger.scopes().resume("run-7", &Word::person("ada")).await.unwrap();
    assert_ne!(rig.post(CHARGE, &headers, "amount=1").await.status, StatusCode::OK);
    assert_eq!(vendor.effects(), 0);
}

/// A gateway that calls another one does not take "held" for a success.
#[tokio::test]
async fn what_another_gateway_holds_back_is_in_doubt() {
    let vendor = Vendor::start(Some("idempotency-key")).await;
    let inner = Rig::start(&stripe(&vendor, HOLD)).await;
    let outer = format!(
        "[upstream.api]\nurl = \"{}/gw/stripe\"\nallow_private = true\nbackoff = \"20ms\"\ntimeout = \"600s\"\n",
        inner.url
    );
    let outer = Rig::start(&outer).await;
    let headers = [("idempotency-key", "k"), ("authorization", "Bearer x")];
    let got = outer.post("/gw/api/v1/charges", &headers, "amount=1").await;
    assert_eq!(got.header("once-happened"), Some("unknown"), "{got:?}");
    assert!(String::from_utf8_lossy(&got.body).contains("held back"), "{got:?}");
    assert_eq!((inner.states().await, outer.states().await), (vec![State::Staged], vec![State::InDoubt]));
    let done = outer.post("/gw/api/v1/other", &[("idempotency-key", "k2")], "amount=1").await;
    assert_eq!((done.status, done.header("once-happened")), (StatusCode::OK, Some("yes")), "{done:?}");
}

#[tokio::test]
async fn a_persons_no_is_the_answer_to_equal_requests_with_and_without_keys() {
    let keys: [&[(&str, &str)]; 3] = [&[], &[("idempotency-key", "k")], &[("idempotency-key", "another")]];
    for (first, rule) in keys.into_iter().flat_map(|first| [(first, "auto"), (first, "strict")]) {
        let vendor = Vendor::start(Some("idempotency-key")).await;
        let rig = Rig::start(&stripe(&vendor, &format!("{HOLD}\nkeys = \"{rule}\""))).await;
        assert_eq!(rig.post(CHARGE, first, "amount=1").await.status, StatusCode::ACCEPTED);
        let ledger = Ledger::new(rig.store.clone());
        let held = ledger.admin().held(None).await.unwrap();
        ledger.admin().cancel(&held[0].id, &Word::person("maria")).await.unwrap();
        let rig = rig.restarted().await;
        for again in [first, keys[0], keys[1], keys[2], keys[0]] {
            let got = rig.post(CHARGE, again, "amount=1").await;
            let facts = (got.status, got.header("once-happened"));
            assert_eq!(facts, (StatusCode::GONE, Some("no")), "{rule}, {first:?}, {again:?}: {got:?}");
        }
        assert_eq!((rig.states().await, vendor.effects()), (vec![State::Cancelled], 0), "{rule}, {first:?}");
        let other = rig.post(CHARGE, &[], "amount=2").await;
        assert_eq!(other.status, StatusCode::ACCEPTED, "another amount is another action");
    }
}

#[tokio::test]
async fn a_held_request_keeps_its_key() {
    let vendor = Vendor::start(Some("idempotency-key")).await;
    let rig = Rig::start(&stripe(&vendor, HOLD)).await;
    let headers = [("idempotency-key", "k")];
    assert_eq!(rig.post(CHARGE, &headers, "amount=1").await.status, StatusCode::ACCEPTED);
    let reused = rig.post(CHARGE, &headers, "amount=2").await;
    assert_eq!(reused.status, StatusCode::UNPROCESSABLE_ENTITY, "{reused:?}");
    let ledger = Ledger::new(rig.store.clone());
    assert_eq!(ledger.admin().lookup("k", None, 2).await.unwrap().len(), 1, "it is found by its key");
}

#[tokio::test]
async fn a_doubt_that_was_settled_as_done_is_not_sent_again_however_often_it_is_repeated() {
    for rule in ["auto", "strict"] {
        settled_as_done_and_repeated(rule).await;
    }
}

async fn settled_as_done_and_repeated(rule: &str) {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Reset]);
    let policy = format!("[operation.\"api POST /pay\"]\nkeys = \"{rule}\"");
    let rig = Rig::start(&plain(&vendor, &policy)).await;
    assert_eq!(rig.post("/gw/api/pay", &[], "amount=1").await.status, StatusCode::FAILED_DEPENDENCY);
    let ledger = Ledger::new(rig.store.clone());
    let id = &rig.operations().await[0].id;
    let outcome = onceward::Outcome::with_effect(onceward::Effect::Created);
    ledger.admin().settle(id, onceward::Verdict::Done, Word::person("ada"), outcome).await.unwrap();
    // The vendor's answer is lost, so no answer of the gateway delivers it.
    let key: &[(&str, &str)] = &[("idempotency-key", "k")];
    for headers in [&[][..], &[], key, &[], key] {
        let got = rig.post("/gw/api/pay", headers, "amount=1").await;
        let facts = (got.status, got.header("once-happened"));
        assert_eq!(facts, (StatusCode::GONE, Some("yes")), "{rule}, {headers:?}: {got:?}");
    }
    assert_eq!(vendor.effects(), 1);
}
