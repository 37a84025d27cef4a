//! `Once-Undo`: a request is taken back once, with the credentials of its caller and of no other.

use hyper::{Method, StatusCode};
use onceward::{Ledger, Operation, OperationId, State};
use serde_json::{Value, json};

use crate::common::until;
use crate::gateway::rig::{Got, Rig};
use crate::gateway::vendor::{Act, Seen, Vendor};
use crate::gateway::{CHARGE, plain, stripe};

const REFUND: &str =
    r#"undo = { post = "/v1/refunds", form = { charge = "{id}", reason = "for {status}" } }"#;

/// Makes a charge and gives its operation.
async fn charged(rig: &Rig) -> String {
    let got = rig.post(CHARGE, &[("idempotency-key", "k")], "amount=1").await;
    assert_eq!(got.status, StatusCode::OK);
    rig.delivered().await;
    got.header("once-operation").unwrap().to_owned()
}

async fn undo(rig: &Rig, id: &str, more: &[(&str, &str)]) -> Got {
    rig.post("/gw/stripe", &[&[("once-undo", id)], more].concat(), "").await
}

fn step(got: &Got) -> (String, String) {
    let step = got.json()["data"]["steps"][0].clone();
    let word = |name: &str| step[name].as_str().unwrap_or_default().to_owned();
    (word("result"), word("reason"))
}

fn refunds(vendor: &Vendor) -> Vec<Seen> {
    vendor.posts().into_iter().filter(|seen| seen.path == "/v1/refunds").collect()
}

#[tokio::test]
async fn a_charge_is_refunded_once_with_a_key_of_its_own() {
    let vendor = Vendor::start(Some("idempotency-key")).await;
    let rig = Rig::start(&stripe(&vendor, REFUND)).await;
    let id = charged(&rig).await;
    let plan = undo(&rig, &id, &[("once-dry-run", "true")]).await;
    assert_eq!((plan.status, plan.json()["effect"].as_str()), (StatusCode::OK, Some("would_update")));
    assert_eq!(plan.json()["data"]["steps"][0]["command"], "POST /v1/refunds");
    assert!(refunds(&vendor).is_empty());
    let done = undo(&rig, &id, &[("idempotency-key", "mine")]).await;
    assert_eq!((done.status, done.json()["effect"].as_str()), (StatusCode::OK, Some("updated")), "{done:?}");
    assert_eq!(step(&done).0, "undone");
    let sent = refunds(&vendor);
    assert_eq!((sent.len(), sent[0].body.as_str()), (1, "charge=obj_1&reason=for+succeeded"));
    assert_eq!(sent[0].header("authorization"), Some("Bearer sk_test"));
    assert_eq!(sent[0].header("once-undo"), None);
    // The downstream key is the compensation's, and not the caller's.
    let by = done.header("once-operation").unwrap();
    assert_eq!(sent[0].header("idempotency-key"), Some(by));
    let again = undo(&rig, &id, &[]).await;
    assert_eq!((again.status, step(&again).0.as_str()), (StatusCode::OK, "nothing_to_undo"));
    let retry = rig.post(CHARGE, &[("idempotency-key", "k")], "amount=1").await;
    assert_eq!((retry.status, retry.json()["code"].as_str()), (StatusCode::GONE, Some("UNDONE")));
    assert_eq!((vendor.effects(), refunds(&vendor).len()), (2, 1));
}

#[tokio::test]
async fn an_undo_is_a_bare_post_and_nothing_else_is_sent() {
    let vendor = Vendor::start(Some("idempotency-key")).await;
    let rig = Rig::start(&stripe(&vendor, REFUND)).await;
    let id = charged(&rig).await;
    let sent = vendor.seen().len();
    let with = [("once-undo", id.as_str()), ("authorization", "Bearer sk_test")];
    for (method, path, body) in [
        (Method::GET, "/gw/stripe", ""),
        (Method::DELETE, "/gw/stripe", ""),
        (Method::POST, "/gw/stripe/v1/refunds", ""),
        (Method::POST, "/gw/stripe?a=b", ""),
        (Method::POST, "/gw/stripe", "{}"),
    ] {
        let got = rig.send(method.clone(), path, &with, body).await;
        assert_eq!(got.status, StatusCode::BAD_REQUEST, "{method} {path} {body}");
    }
    assert_eq!(vendor.seen().len(), sent);
}

#[tokio::test]
async fn credentials_are_the_callers_and_only_its_own_operations_are_there() {
    let vendor = Vendor::start(Some("idempotency-key")).await;
    let rig = Rig::start(&stripe(&vendor, REFUND)).await;
    let id = charged(&rig).await;
    for headers in [&[("authorization", "Bearer sk_other"), ("once-undo", &id)][..], &[("once-undo", &id)]] {
        let got = rig.send(Method::POST, "/gw/stripe", headers, "").await;
        assert_eq!((got.status, got.json()["code"].as_str()), (StatusCode::NOT_FOUND, Some("NOT_FOUND")));
    }
    let unknown = undo(&rig, OperationId::of("a", "b", "c").as_str(), &[]).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    assert_eq!(undo(&rig, "nonsense", &[]).await.status, StatusCode::BAD_REQUEST);
    let elsewhere = rig.post(CHARGE, &[("once-undo", &id)], "amount=1").await;
    assert_eq!(elsewhere.status, StatusCode::BAD_REQUEST);
    assert_eq!(vendor.posts().len(), 1);
    // Nothing of a credential is stored.
    for name in ["ledger.db", "ledger.db-wal"] {
        let stored = std::fs::read(rig.folder.path().join(name)).unwrap_or_default();
        assert!(!stored.windows(7).any(|part| part == b"sk_test"), "{name}");
    }
}

#[tokio::test]
async fn a_reset_is_sent_again_with_the_same_key_and_a_vendor_without_keys_stays_in_doubt() {
    let vendor = Vendor::start(Some("idempotency-key")).await;
    let rig = Rig::start(&stripe(&vendor, REFUND)).await;
    let id = charged(&rig).await;
    vendor.script([Act::Reset]);
    assert_eq!(step(&undo(&rig, &id, &[]).await).0, "undone");
    let keys: Vec<Option<String>> =
        refunds(&vendor).iter().map(|seen| seen.header("idempotency-key").map(str::to_owned)).collect();
    assert!(keys.len() == 2 && keys[0] == keys[1] && vendor.effects() == 2, "{keys:?}");

    let vendor = Vendor::start(None).await;
    let cancel = "[[upstream.api.rule]]\npaths = [\"/pay\"]\nundo = { delete = \"/pay/{id}\" }\n\
                  [[upstream.api.rule]]\nmethods = [\"DELETE\"]\nclass = \"once\"";
    let rig = Rig::start(&plain(&vendor, cancel)).await;
    let paid = rig.post("/gw/api/pay", &[("idempotency-key", "k")], "a=1").await;
    let id = paid.header("once-operation").unwrap().to_owned();
    vendor.script([Act::Reset]);
    for _ in 0..2 {
        let got = rig.post("/gw/api", &[("once-undo", &id)], "").await;
        assert_eq!(
            (got.status, got.json()["error"]["code"].as_str()),
            (StatusCode::FAILED_DEPENDENCY, Some("IN_DOUBT"))
        );
        assert_eq!(got.header("x-should-retry"), Some("false"));
        assert_eq!(step(&got).0, "in_doubt");
    }
    let sent = vendor.posts();
    assert_eq!((sent.len(), sent[1].method.as_str(), sent[1].path.as_str()), (2, "DELETE", "/pay/obj_1"));
}

#[tokio::test]
async fn a_refusal_is_not_an_undo_and_can_be_tried_again() {
    let vendor = Vendor::start(Some("idempotency-key")).await;
    let rig = Rig::start(&stripe(&vendor, REFUND)).await;
    let id = charged(&rig).await;
    // The vendor stores this answer for the key, so for a charge it would be final.
    vendor.script([Act::Refuse(402, "{\"error\":{\"code\":\"charge_disputed\"}}")]);
    let refused = undo(&rig, &id, &[]).await;
    assert_eq!((refused.status, step(&refused).0.as_str()), (StatusCode::UNPROCESSABLE_ENTITY, "stands"));
    let replayed = rig.post(CHARGE, &[("idempotency-key", "k")], "amount=1").await;
    assert_eq!(replayed.header("idempotent-replayed"), Some("true"), "the charge stands");
    assert_eq!(step(&undo(&rig, &id, &[]).await).0, "undone");
    assert_eq!(refunds(&vendor).len(), 2);
}

#[tokio::test]
async fn nothing_is_sent_if_a_field_is_missing_or_the_configuration_has_another_request() {
    let vendor = Vendor::start(Some("idempotency-key")).await;
    let missing = r#"undo = { post = "/v1/refunds", json = { charge = "{charge.id}" } }"#;
    let rig = Rig::start(&stripe(&vendor, missing)).await;
    let id = charged(&rig).await;
    let got = undo(&rig, &id, &[]).await;
    assert_eq!((got.status, step(&got).0.as_str()), (StatusCode::UNPROCESSABLE_ENTITY, "stands"));
    assert!(step(&got).1.contains("no field `charge.id`"), "{:?}", step(&got));
    let other = rig.beside_with(&stripe(&vendor, REFUND)).await;
    let got = undo(&other, &id, &[]).await;
    assert!(step(&got).1.contains("configuration of this server does not have it"), "{:?}", step(&got));
    assert!(refunds(&vendor).is_empty());
    let states: Vec<State> = rig.states().await;
    assert_eq!(states, [State::Done], "nothing was marked or begun");
}

#[tokio::test]
async fn a_kill_between_the_mark_and_the_dispatch_loses_nothing() {
    let vendor = Vendor::start(Some("idempotency-key")).await;
    let rig = Rig::start(&stripe(&vendor, REFUND)).await;
    let id = charged(&rig).await;
    // The mark is on disk, and nothing more.
    let ledger = Ledger::new(rig.store.clone());
    let (record, _) = ledger.find(&OperationId::parse(&id).unwrap()).await.unwrap();
    ledger.undo().begin(&record.id, Operation::undo_of(&record)).await.unwrap();
    let rig = rig.restarted().await;
    let retry = rig.post(CHARGE, &[("idempotency-key", "k")], "amount=1").await;
    assert_eq!(retry.json()["code"], "UNDONE");
    for expected in ["undone", "nothing_to_undo"] {
        assert_eq!(step(&undo(&rig, &id, &[]).await).0, expected);
    }
    assert_eq!(refunds(&vendor).len(), 1);
}

#[tokio::test]
async fn undos_at_the_same_time_are_one() {
    let vendor = Vendor::start(None).await;
    let rig = Rig::start(&plain(
        &vendor,
        "[[upstream.api.rule]]\npaths = [\"/pay\"]\nundo = { post = \"/unpay/{id}\" }",
    ))
    .await;
    let paid = rig.post("/gw/api/pay", &[("idempotency-key", "k")], "a=1").await;
    let id = paid.header("once-operation").unwrap().to_owned();
    let one = || async { rig.post("/gw/api", &[("once-undo", &id)], "").await };
    let (a, b, c, d) = tokio::join!(one(), one(), one(), one());
    for got in [a, b, c, d] {
        assert!(["undone", "nothing_to_undo"].contains(&step(&got).0.as_str()), "{got:?}");
    }
    assert_eq!((vendor.posts().len(), vendor.effects()), (2, 2));
}

#[tokio::test]
async fn what_is_in_doubt_or_has_no_undo_is_left_alone_and_named() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Reset]);
    let rig = Rig::start(&plain(
        &vendor,
        "[[upstream.api.rule]]\npaths = [\"/pay\"]\nundo = { post = \"/unpay/{id}\" }",
    ))
    .await;
    let doubt = rig.post("/gw/api/pay", &[("idempotency-key", "k")], "a=1").await;
    assert_eq!(doubt.status, StatusCode::FAILED_DEPENDENCY);
    let got = rig.post("/gw/api", &[("once-undo", doubt.header("once-operation").unwrap())], "").await;
    assert_eq!((got.status, step(&got).0.as_str()), (StatusCode::FAILED_DEPENDENCY, "in_doubt"));
    let other = rig.post("/gw/api/mail", &[("idempotency-key", "m")], "a=1").await;
    let got = rig.post("/gw/api", &[("once-undo", other.header("once-operation").unwrap())], "").await;
    assert_eq!((got.status, step(&got).0.as_str()), (StatusCode::UNPROCESSABLE_ENTITY, "stands"));
    assert_eq!(vendor.posts().len(), 2);
}

#[tokio::test]
async fn a_refund_that_was_only_accepted_is_not_an_undo_yet() {
    let vendor = Vendor::start(None).await;
    let rig = Rig::start(&plain(
        &vendor,
        "[[upstream.api.rule]]\npaths = [\"/pay\"]\nundo = { post = \"/unpay/{id}\" }",
    ))
    .await;
    let paid = rig.post("/gw/api/pay", &[("idempotency-key", "k")], "a=1").await;
    let id = paid.header("once-operation").unwrap().to_owned();
    vendor.script([Act::Say(202, "{}")]);
    for _ in 0..2 {
        let got = rig.post("/gw/api", &[("once-undo", &id)], "").await;
        assert_eq!((got.status, step(&got).0.as_str()), (StatusCode::FAILED_DEPENDENCY, "in_doubt"));
    }
    assert_eq!(vendor.posts().len(), 2);
    let ledger = Ledger::new(rig.store.clone());
    let (record, _) = ledger.find(&OperationId::parse(&id).unwrap()).await.unwrap();
    let by = record.detail.undone.as_ref().unwrap().by.clone();
    ledger.attempts().verified(&by, onceward::Verification::Confirmed, None).await.unwrap();
    let got = rig.post("/gw/api", &[("once-undo", &id)], "").await;
    assert_eq!((got.status, step(&got).0.as_str()), (StatusCode::OK, "undone"));
}

#[tokio::test]
async fn the_policy_of_an_operation_can_have_the_request_too() {
    let vendor = Vendor::start(None).await;
    let policy = "[operation.\"api POST /pay\"]\n\
                  undo = { put = \"/pay/{id}\", json = { state = \"void\", id = \"{id}\" } }\n";
    let rig = Rig::start(&format!("{policy}{}", plain(&vendor, ""))).await;
    let paid = rig.post("/gw/api/pay", &[("idempotency-key", "k")], "a=1").await;
    let got = rig.post("/gw/api", &[("once-undo", paid.header("once-operation").unwrap())], "").await;
    assert_eq!(step(&got).0, "undone", "{got:?}");
    let sent = vendor.posts().pop().unwrap();
    assert_eq!((sent.method.as_str(), sent.path.as_str()), ("PUT", "/pay/obj_1"));
    let body: Value = serde_json::from_str(&sent.body).unwrap();
    assert_eq!(body, json!({"state": "void", "id": "obj_1"}));
}

#[tokio::test]
async fn the_sample_on_the_page_takes_back_what_it_says() {
    let page = include_str!("../../../../../docs/gateway.md").split("### Undo\n").nth(1).unwrap();
    let block = |kind: &str| page.split(&format!("```{kind}\n")).nth(1).unwrap().split("```").next().unwrap();
    let vendor = Vendor::start(Some("idempotency-key")).await;
    let rig = Rig::start(&stripe(&vendor, block("toml"))).await;
    let charge = charged(&rig).await;
    let customer = rig.post("/gw/stripe/v1/customers", &[("idempotency-key", "c")], "name=ada").await;
    // The request of the page: its method, path and headers.
    let curl = block("sh");
    assert!(curl.starts_with("curl -X POST ") && curl.contains("6270/gw/stripe\n"), "{curl}");
    assert!(curl.contains("-H 'Once-Undo: op_…'") && curl.contains("-H \"Authorization: Bearer "), "{curl}");
    for id in [&charge, customer.header("once-operation").unwrap()] {
        assert_eq!(step(&undo(&rig, id, &[]).await).0, "undone");
    }
    let sent: Vec<String> = vendor.posts()[2..]
        .iter()
        .map(|seen| format!("{} {} {}", seen.method, seen.path, seen.body))
        .collect();
    assert_eq!(sent, ["POST /v1/refunds charge=obj_1", "DELETE /v1/customers/obj_2 "]);
}

#[tokio::test]
async fn a_compensation_that_is_checked_counts_when_it_is_confirmed_also_after_a_restart() {
    let vendor = Vendor::start(None).await;
    let rules = "[[upstream.api.rule]]\npaths = [\"/pay\"]\nundo = { post = \"/unpay/{id}\" }\n\
                 [[upstream.api.rule]]\npaths = [\"/unpay/*\"]\n\
                 verify = { get = \"/unpaid/{id}\", expect = \"$.status == 'succeeded'\", every = \"20ms\" }";
    let rig = Rig::start(&plain(&vendor, rules)).await;
    let paid = rig.post("/gw/api/pay", &[("idempotency-key", "k")], "a=1").await;
    let id = paid.header("once-operation").unwrap().to_owned();
    vendor.on_get("/unpaid/obj_2", 200, "{\"status\":\"pending\"}");
    let got = rig.post("/gw/api", &[("once-undo", &id)], "").await;
    assert_eq!((got.status, step(&got).0.as_str()), (StatusCode::FAILED_DEPENDENCY, "in_doubt"));
    let rig = rig.restarted().await;
    vendor.on_get("/unpaid/obj_2", 200, "{\"status\":\"succeeded\"}");
    until("it is confirmed", async || {
        let got = rig.post("/gw/api", &[("once-undo", &id)], "").await;
        let step = step(&got).0;
        assert!(step == "undone" || step == "in_doubt", "{got:?}");
        step == "undone"
    })
    .await;
    assert_eq!(vendor.posts().len(), 2);
}
