//! The budget of attempts: equal calls share it, and nothing spends it for ever.

use http_body_util::BodyExt;
use hyper::{Method, StatusCode};
use onceward::{Record, State, WriteMode};
use onceward_http::client::{Connection, Remote, full};

use crate::gateway::models::{ASK, CHAT, JSON, STREAM, ask, whole};
use crate::gateway::provider::{Play, Provider};
use crate::gateway::rig::Rig;

/// Changes the only operation.
async fn change(rig: &Rig, change: impl FnOnce(&mut Record)) {
    let mut record = rig.operations().await.remove(0);
    let version = record.version;
    change(&mut record);
    record.version = version + 1;
    rig.store.swap(Some(version), record, WriteMode::Async).await.unwrap();
}

#[tokio::test]
async fn equal_calls_share_one_budget_whatever_keys_they_have() {
    let provider = Provider::start(&[Play::Status(500); 20]).await;
    let rig = Rig::start(&provider.config("")).await;
    let ways: [&[(&str, &str)]; 5] = [
        &[],
        &[("idempotency-key", "a")],
        &[("idempotency-key", "b")],
        &[("once-sample", "new")],
        &[("once-occurrence", "again")],
    ];
    for way in ways {
        let got = ask(&rig, way, ASK).await;
        assert_eq!(got.status, StatusCode::FAILED_DEPENDENCY, "{way:?}");
        assert_eq!(got.json()["code"], "BUDGET_EXHAUSTED", "{way:?}");
    }
    assert_eq!(provider.generations(), 3);
    // Another call has a budget of its own, and so has the same call in a scope.
    for (way, body) in [(&[][..], STREAM), (&[("once-scope", "s")], ASK)] {
        ask(&rig, way, body).await;
    }
    assert_eq!(provider.generations(), 9);
}

#[tokio::test]
async fn a_refusal_for_good_spends_nothing_of_other_calls() {
    let provider = Provider::start(&[Play::Status(400); 5]).await;
    let rig = Rig::start(&provider.config("")).await;
    for key in ["a", "b", "c", "d", "e"] {
        assert_eq!(
            ask(&rig, &[("idempotency-key", key)], ASK).await.status,
            StatusCode::BAD_REQUEST,
            "{key}"
        );
    }
    assert_eq!(ask(&rig, &[], ASK).await.status, StatusCode::OK);
}

#[tokio::test]
async fn attempts_of_gateways_that_were_killed_do_not_lock_the_call() {
    for key in [&[][..], &[("idempotency-key", "k")]] {
        let provider = Provider::start(&[Play::Status(500); 3]).await;
        let rig = Rig::start(&provider.config("")).await;
        ask(&rig, key, ASK).await;
        // What is left of a call whose gateway was killed in its third attempt.
        change(&rig, |record| {
            (record.state, record.due_ms, record.outcome) = (State::InDoubt, None, None);
            record.detail.delivered = None;
        })
        .await;
        let got = ask(&rig, key, ASK).await;
        assert_eq!(
            (got.status, &got.json()["code"]),
            (StatusCode::FAILED_DEPENDENCY, &"BUDGET_EXHAUSTED".into())
        );
        assert_eq!(got.header("x-should-retry"), Some("false"));
        change(&rig, |record| record.updated_ms -= 61_000).await;
        let got = ask(&rig, key, ASK).await;
        assert_eq!((got.status, provider.generations()), (StatusCode::OK, 4), "{key:?}: a minute later");
    }
}

#[tokio::test]
async fn a_retry_right_after_a_broken_stream_is_the_next_attempt() {
    for round in 0..10 {
        let provider = Provider::start(&[Play::Cut]).await;
        let rig = Rig::start(&provider.config("")).await;
        let remote = Remote::new(&rig.url).unwrap();
        let headers = [("authorization", "Bearer sk"), JSON];
        let headers =
            headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        let request = remote.request(Method::POST, CHAT, headers, full(STREAM));
        let response = remote.send(request, Connection::Fresh).await.unwrap();
        assert!(response.into_body().collect().await.is_err());
        // The failure is recorded before its client can see it.
        assert_eq!(rig.states().await, [State::Failed], "round {round}");
        let got = ask(&rig, &[], STREAM).await;
        assert_eq!((got.header("once-rule"), got.body.as_ref()), (Some("retry"), whole(2).as_bytes()));
        assert_eq!(rig.operations().await.len(), 1, "round {round}");
    }
}
