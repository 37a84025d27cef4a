//! Who cancels, releases, stops and resumes, and why.

use serde_json::{Value, json};

use crate::common::Server;

#[tokio::test]
async fn who_cancels_releases_stops_and_resumes_is_told_with_the_reason() {
    let server = Server::new("[operation.pay]\nhold = \"approve\"\nredact = [\"re:sk_[a-z]+\"]\n");
    let pay = |key: &str| json!({"name": "pay", "key": key, "scope": "run-7"});
    let who = |reason: &str| json!({"reason": reason, "by": "maria", "speaker": "person"});
    let held = |key: &'static str| async { server.post("/v1/operations", pay(key)).await.is(202) };
    let path_of = |held: &Value, verb: &str| {
        format!("/v1/operations/{}/{verb}", held["operation"]["id"].as_str().unwrap())
    };
    let cancelled = held("a").await;
    server.post(&path_of(&cancelled, "cancel"), who("wrong invoice, sk_live")).await.is(200);
    let refused = server.post("/v1/operations", pay("a")).await.problem(410, "CANCELLED");
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("cancelled by a person (maria): wrong invoice, "), "{refused}");
    assert!(!message.contains("sk_live"), "the policy redacts it: {refused}");
    let released = held("b").await;
    let detail = server.post(&path_of(&released, "release"), who("checked")).await.is(200);
    assert_eq!(detail["held"]["released_by"]["name"], "maria", "{detail}");
    assert_eq!(detail["held"]["released_by"]["note"], "checked", "{detail}");
    server
        .post(&path_of(&held("c").await, "release"), json!({"by": "a\nb"}))
        .await
        .problem(400, "INVALID_INPUT");

    let mut stop = who("wrong list");
    stop["scope"] = json!("run-7");
    let settlement = server.post("/v1/stop", stop).await.is(200);
    assert_eq!(settlement["stopped"]["word"]["name"], "maria", "{settlement}");
    let refused = server.post("/v1/operations", pay("d")).await.problem(410, "STOPPED");
    assert!(refused["message"].as_str().unwrap().contains("by a person (maria) (wrong list)"), "{refused}");
    let mut resume = who("corrected");
    resume["scope"] = json!("run-7");
    let resumed = server.post("/v1/resume", resume).await.is(200);
    assert_eq!(
        (&resumed["lifted"]["word"]["note"], &resumed["word"]["note"]),
        (&json!("wrong list"), &json!("corrected"))
    );
}

#[tokio::test]
async fn a_persons_no_binds_equal_operations_whatever_their_keys_are() {
    let server = Server::new("[operation.pay]\nhold = \"approve\"\n");
    let pay = |key: Option<&str>, to: &str| json!({"name": "pay", "key": key, "input": {"to": to}});
    let held = server.post("/v1/operations", pay(Some("a"), "eve")).await.is(202);
    let cancel = format!("/v1/operations/{}/cancel", held["operation"]["id"].as_str().unwrap());
    let word = json!({"reason": "not to her", "by": "maria", "speaker": "person"});
    server.post(&cancel, word).await.is(200);
    for key in [Some("a"), Some("b"), None, Some("b"), Some("a")] {
        let refused = server.post("/v1/operations", pay(key, "eve")).await.problem(410, "CANCELLED");
        assert!(refused["message"].as_str().unwrap().contains("not to her"), "{key:?}: {refused}");
    }
    server.post("/v1/operations", pay(Some("b"), "bob")).await.is(202);
}
