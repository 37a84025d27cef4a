//! Events that programs fetch.

use serde_json::{Value, json};

use super::rig::{Rig, Vendor};

const POLICY: &str = "[hook.standard]\npreset = \"standard-webhooks\"\nsecrets = [\"$SECRET\"]\n\
                      [hook.standard.handler.app]\npull = true\nbackoff = \"20ms\"\n";

async fn receive(rig: &Rig, more: Value) -> Vec<Value> {
    let mut request = json!({"wait_ms": 5_000});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = rig.clock.run(20, rig.post("/v1/inbox/standard/receive", request)).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()["events"].as_array().unwrap().clone()
}

async fn report(rig: &Rig, event: &Value, how: &str, reason: Option<&str>) {
    let path = format!("/v1/operations/{}/{how}", event["operation"].as_str().unwrap());
    let mut report = json!({"attempt": event["attempt"], "token": event["token"]});
    if let Some(reason) = reason {
        report["reason"] = json!(reason);
    }
    if how == "fail" {
        report["evidence"] = json!("declared");
    }
    let answer = rig.post(&path, report).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_fetches_an_event_and_reports_how_it_went() {
    let rig = Rig::new(POLICY).await;
    let vendor = Vendor::new("standard");
    rig.deliver("standard", &vendor.event("msg_1", &json!({"type": "a", "n": 1}))).await;
    let events = receive(&rig, json!({"max": 10})).await;
    assert_eq!(events.len(), 1);
    assert_eq!((events[0]["id"].as_str(), events[0]["type"].as_str()), (Some("msg_1"), Some("a")));
    assert_eq!(serde_json::from_str::<Value>(events[0]["body"].as_str().unwrap()).unwrap()["n"], 1);
    assert!(receive(&rig, json!({"wait_ms": 0})).await.is_empty(), "it is reserved");
    report(&rig, &events[0], "fail", Some("the database was locked, nothing was written")).await;
    let again = receive(&rig, json!({})).await;
    assert_eq!((again.len(), again[0]["attempt"].as_i64()), (1, Some(2)));
    assert_eq!(again[0]["idempotency_key"], events[0]["idempotency_key"]);
    report(&rig, &again[0], "finish", None).await;
    rig.event_when("standard", "msg_1", "done").await;
    assert!(receive(&rig, json!({"wait_ms": 0})).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_whose_program_is_gone_is_fetched_again_after_its_lease() {
    let rig = Rig::new(POLICY).await;
    rig.deliver("standard", &Vendor::new("standard").event("msg_1", &json!({"n": 1}))).await;
    let first = receive(&rig, json!({"lease_ms": 10_000})).await;
    let again = rig.until(async || receive(&rig, json!({"wait_ms": 1_000})).await.pop()).await;
    assert_eq!((first[0]["attempt"].as_i64(), again["attempt"].as_i64()), (Some(1), Some(2)));
    report(&rig, &again, "finish", None).await;
    rig.event_when("standard", "msg_1", "done").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_fetched_is_refused() {
    let rig = Rig::new(POLICY).await;
    for (path, body, status) in [
        ("/v1/inbox/none/receive", json!({}), 404),
        ("/v1/inbox/standard/receive", json!({"handler": "none"}), 400),
        ("/v1/inbox/standard/receive", json!({"max": 0}), 400),
        ("/v1/inbox/standard/receive", json!({"lease_ms": 1}), 400),
        ("/v1/inbox/standard/receive", json!({"wait_ms": 600_000}), 400),
    ] {
        let answer = rig.post(path, body).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.text);
    }
}
