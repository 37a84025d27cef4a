//! A request that the policy holds back is not sent, its caller learns that, and it is sent once when it may be.

use hyper::StatusCode;
use onceward::{Ledger, State, Word};

use crate::gateway::rig::Rig;
use crate::gateway::vendor::Vendor;
use crate::gateway::{CHARGE, stripe};

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
        let held = ledger.held(None).await.unwrap();
        ledger.release(&held[0].id, &Word::person("maria")).await.unwrap();
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
    assert_eq!(ledger.held(Some("run-7")).await.unwrap().len(), 1, "its caller is kept apart in the scope");
    ledger.stop("run-7", None).await.unwrap();
    assert_eq!(rig.states().await, [State::Cancelled]);
    for _ in 0..2 {
        assert_ne!(rig.post(CHARGE, &headers, "amount=1").await.status, StatusCode::OK);
    }
    ledger.resume("run-7").await.unwrap();
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
