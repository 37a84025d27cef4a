//! Keys: aliases, principals, scopes and restarts.

use hyper::{Method, StatusCode};
use onceward::{State, Word};

use crate::gateway::rig::Rig;
use crate::gateway::vendor::{Act, Vendor};
use crate::gateway::{CHARGE, plain, stripe};

#[tokio::test]
async fn new_keys_of_a_retry_decorator_are_one_operation() {
    // Each of the first attempts fails, and the decorator around the SDK tries again with a new key each time.
    let vendor = Vendor::start(Some("idempotency-key")).await;
    vendor.script([Act::Status(500), Act::Status(500), Act::Status(500)]);
    let rig = Rig::start(
        &stripe(&vendor, "attempts = 5\nretention = \"1h\"")
            .replace("backoff = \"20ms\"", "backoff = \"1ms\""),
    )
    .await;
    let first = rig.post(CHARGE, &[("idempotency-key", "a")], "amount=1").await;
    assert_eq!(first.status, StatusCode::OK);
    rig.delivered().await;
    let keys: Vec<String> =
        vendor.posts().iter().map(|seen| seen.header("idempotency-key").unwrap().to_owned()).collect();
    assert!(keys.iter().all(|key| *key == keys[0]) && vendor.effects() == 1, "{keys:?}");

    // Delivered: a new key is a new operation, and a known key is not.
    rig.post(CHARGE, &[("idempotency-key", "b")], "amount=1").await;
    assert_eq!(vendor.effects(), 2);
    rig.delivered().await;
    for key in ["a", "b", "a"] {
        let got = rig.post(CHARGE, &[("idempotency-key", key)], "amount=1").await;
        assert_eq!(got.header("idempotent-replayed"), Some("true"), "{key}");
    }
    assert_eq!(vendor.effects(), 2);
}

#[tokio::test]
async fn keys_of_a_call_in_doubt_stay_with_it_after_a_restart() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Reset]);
    let rig = Rig::start(&plain(&vendor, "")).await;
    let send = async |rig: &Rig, key: &str| {
        rig.send(Method::POST, "/gw/api/pay", &[("idempotency-key", key)], "100").await
    };
    assert_eq!(send(&rig, "a").await.status, StatusCode::FAILED_DEPENDENCY);
    let rig = rig.restarted().await;
    for key in ["a", "b", "c", "b"] {
        assert_eq!(send(&rig, key).await.status, StatusCode::FAILED_DEPENDENCY, "{key}");
    }
    assert_eq!((vendor.effects(), vendor.posts().len()), (1, 1));
    let found = rig.operations().await;
    let outcome = onceward::Outcome::because(Some("checked".to_owned()));
    let ledger = onceward::Ledger::new(rig.store.clone());
    ledger.admin().settle(&found[0].id, onceward::Verdict::Done, Word::person("ada"), outcome).await.unwrap();
    for key in ["a", "b", "c"] {
        let got = send(&rig, key).await;
        assert_eq!(
            (got.status, got.json()["code"].as_str()),
            (StatusCode::GONE, Some("RESULT_UNAVAILABLE")),
            "{key}"
        );
    }
    assert_eq!(vendor.effects(), 1);
}

#[tokio::test]
async fn exact_keys_are_never_aliases() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Status(500)]);
    let rig = Rig::start(&plain(&vendor, "keys = \"keyed\"")).await;
    let send = async |headers: &[(&str, &str)]| rig.send(Method::POST, "/gw/api/pay", headers, "100").await;
    let missing = send(&[]).await;
    assert_eq!(
        (missing.status, missing.json()["code"].as_str()),
        (StatusCode::BAD_REQUEST, Some("KEY_MISSING"))
    );
    assert_eq!(send(&[("idempotency-key", "a")]).await.status, StatusCode::FAILED_DEPENDENCY);
    assert_eq!(send(&[("idempotency-key", "b")]).await.status, StatusCode::OK);
    assert_eq!(send(&[("idempotency-key", "a")]).await.status, StatusCode::FAILED_DEPENDENCY);
    assert_eq!(vendor.effects(), 2);
}

#[tokio::test]
async fn two_accounts_with_one_key_never_share_an_answer() {
    let vendor = Vendor::start(None).await;
    let rig = Rig::start(&plain(&vendor, "")).await;
    let send = async |account: &str| {
        let headers = [("authorization", account), ("idempotency-key", "k")];
        rig.send(Method::POST, "/gw/api/pay", &headers, "100").await
    };
    let (a, b) = (send("Bearer a").await, send("Bearer b").await);
    assert_eq!((a.json()["id"].as_str(), b.json()["id"].as_str()), (Some("obj_1"), Some("obj_2")));
    assert_eq!((send("Bearer a").await.body, send("Bearer b").await.body), (a.body, b.body));
    let accounts = [("authorization", "Bearer a"), ("x-account", "other"), ("idempotency-key", "k")];
    assert_eq!(rig.send(Method::POST, "/gw/api/pay", &accounts, "100").await.json()["id"], "obj_3");
}

#[tokio::test]
async fn a_key_belongs_to_one_method_and_path() {
    for keys in ["auto", "strict", "keyed"] {
        let vendor = Vendor::start(None).await;
        let rig = Rig::start(&plain(&vendor, &format!("keys = \"{keys}\""))).await;
        let key = [("idempotency-key", "k")];
        assert_eq!(rig.send(Method::POST, "/gw/api/pay", &key, "1").await.status, StatusCode::OK);
        for (method, path) in [(Method::POST, "/gw/api/refunds"), (Method::PUT, "/gw/api/pay")] {
            let other = rig.send(method, path, &key, "1").await;
            assert_eq!(other.json()["code"], "KEY_REUSED", "{keys} {path}");
        }
        let retry = rig.send(Method::POST, "/gw/api/pay", &key, "1").await;
        assert_eq!((retry.header("idempotent-replayed"), vendor.effects()), (Some("true"), 1), "{keys}");
    }
}

#[tokio::test]
async fn a_key_is_found_as_its_operation_and_not_counted() {
    for (act, state) in [(Act::Reset, State::InDoubt), (Act::Refuse(400, "{}"), State::Failed)] {
        let vendor = Vendor::start(None).await;
        vendor.script([act]);
        let rig = Rig::start(&plain(&vendor, "")).await;
        rig.send(Method::POST, "/gw/api/pay", &[("idempotency-key", "order-1")], "1").await;
        let ledger = onceward::Ledger::new(std::sync::Arc::clone(&rig.store));
        let by_key = onceward::Filter { key: Some("order-1".to_owned()), limit: 10, ..Default::default() };
        let found = ledger.list(&by_key).await.unwrap();
        assert_eq!(found.iter().map(|(_, state)| *state).collect::<Vec<_>>(), [state]);
        assert_eq!(found[0].0.record.name, "api POST /pay");
        let looked_up = ledger.admin().lookup("order-1", None, 10).await.unwrap();
        assert_eq!(looked_up.iter().map(|one| one.record.state).collect::<Vec<_>>(), [state]);
        let all = onceward::Filter { limit: 10, ..Default::default() };
        assert_eq!(ledger.list(&all).await.unwrap().len(), 1);
        let totals = ledger.admin().totals(&all).await.unwrap();
        assert_eq!(totals.into_iter().collect::<Vec<_>>(), [(state, 1)]);
    }
}

#[tokio::test]
async fn what_can_never_be_sent_is_refused_before_it_is_an_operation() {
    let vendor = Vendor::start(None).await;
    let keyed = "class = \"keyed\"\nkey = { in = \"body\", name = \"request_id\" }\nwindow = \"1h\"";
    let rig = Rig::start(&(plain(&vendor, keyed) + "[serve]\nmax_body = 100\n")).await;
    let json = ("content-type", "application/json");
    let (one, other) = (("idempotency-key", "a"), ("idempotency-key", "b"));
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(200));
    for (headers, body, status) in [
        (&[json][..], "[]", 400),
        (&[("content-type", "text/plain")], "x", 400),
        (&[json, one, other], "{}", 400),
        (&[json], long.as_str(), 413),
    ] {
        let got = rig.send(Method::POST, "/gw/api/pay", headers, body).await;
        assert_eq!(
            (got.status.as_u16(), got.json()["code"].as_str()),
            (status, Some("INVALID_INPUT")),
            "{body}"
        );
    }
    assert!(rig.operations().await.is_empty() && vendor.seen().is_empty());
}

#[tokio::test]
async fn headers_that_are_ours_are_not_taken_from_the_vendor() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Replayed(200)]);
    let rig = Rig::start(&plain(&vendor, "")).await;
    let first = rig.send(Method::POST, "/gw/api/pay", &[], "1").await;
    assert_eq!((first.status, first.header("idempotent-replayed")), (StatusCode::OK, None));
}

#[tokio::test]
async fn a_header_that_changes_with_every_attempt_does_not_make_another_caller() {
    let vendor = Vendor::start(None).await;
    let rig = Rig::start(&plain(&vendor, "")).await;
    let changing =
        ["x-envoy-attempt-count", "cf-ray", "x-timestamp", "x-nonce", "x-session-id", "amz-sdk-request"];
    for (number, name) in changing.into_iter().enumerate() {
        let key = format!("k{number}");
        for value in ["1", "2"] {
            let headers = [("authorization", "Bearer a"), ("idempotency-key", &key), (name, value)];
            rig.send(Method::POST, "/gw/api/pay", &headers, &key).await;
        }
        assert_eq!(vendor.effects() as usize, number + 1, "{name}");
    }
    // Also without credentials, where a proxy is known to add the header.
    for attempt in ["1", "2"] {
        let headers = [("idempotency-key", "none"), ("x-envoy-attempt-count", attempt)];
        rig.send(Method::POST, "/gw/api/pay", &headers, "none").await;
    }
    assert_eq!(vendor.effects() as usize, changing.len() + 1);
}

#[tokio::test]
async fn the_key_is_put_into_the_body_as_the_caller_wrote_it() {
    let vendor = Vendor::start(None).await;
    let keyed = "class = \"keyed\"\nkey = { in = \"body\", name = \"request_id\" }\nwindow = \"1h\"";
    let rig = Rig::start(&plain(&vendor, keyed)).await;
    let json = [("content-type", "application/json")];
    let body = r#"{ "z":123456789012345.678, "a":1.10, "m":-0.0 }"#;
    assert_eq!(rig.send(Method::POST, "/gw/api/pay", &json, body).await.status, StatusCode::OK);
    let sent = vendor.posts()[0].body.clone();
    let key: serde_json::Value = serde_json::from_str(&sent).unwrap();
    let key = format!("\"request_id\":{},", key["request_id"]);
    assert_eq!(sent.replacen(&key, "", 1), body);
    // Numbers are compared by all of their digits.
    for (body, replayed) in [
        (r#"{"n":1.000000000000000001,"request_id":"r"}"#, None),
        (r#"{"n":1.0000000000000000010,"request_id":"r"}"#, Some("true")),
    ] {
        let got = rig.send(Method::POST, "/gw/api/pay", &json, body).await;
        assert_eq!((got.status, got.header("idempotent-replayed")), (StatusCode::OK, replayed), "{body}");
    }
    let other = r#"{"n":1.000000000000000002,"request_id":"r"}"#;
    assert_eq!(rig.send(Method::POST, "/gw/api/pay", &json, other).await.json()["code"], "KEY_REUSED");
}

#[tokio::test]
async fn chosen_fields_identify_a_request_without_a_key() {
    let vendor = Vendor::start(None).await;
    let rig = Rig::start(&plain(
        &vendor,
        "keys = \"strict\"\nkey_fields = [\"order.id\"]\nvolatile = [\"sent_at\"]",
    ))
    .await;
    let send = async |body: &str| {
        rig.send(Method::POST, "/gw/api/ship", &[("content-type", "application/json")], body).await
    };
    assert_eq!(send(r#"{"order":{"id":7},"sent_at":1}"#).await.status, StatusCode::OK);
    assert_eq!(send(r#"{"order":{"id":7},"sent_at":2}"#).await.header("idempotent-replayed"), Some("true"));
    let other = send(r#"{"order":{"id":7},"to":"x"}"#).await;
    assert_eq!(other.json()["code"], "KEY_REUSED");
    assert_eq!(send(r#"{"order":{"id":8}}"#).await.status, StatusCode::OK);
    assert_eq!(send(r#"{"to":"x"}"#).await.status, StatusCode::BAD_REQUEST, "a chosen field is missing");
    assert_eq!(vendor.effects(), 2);
}

#[tokio::test]
async fn one_key_with_two_contents_at_once_is_refused() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Gate]);
    let rig = Rig::start(&plain(&vendor, "")).await;
    let send = |body: &'static str| rig.send(Method::POST, "/gw/api/pay", &[("idempotency-key", "k")], body);
    let (a, b, ()) = tokio::join!(send("1"), send("2"), async {
        vendor.has(1).await;
        vendor.open_gate(1);
    });
    let mut statuses = [a.status.as_u16(), b.status.as_u16()];
    statuses.sort_unstable();
    assert_eq!((statuses, vendor.effects()), ([200, 422], 1));
}

#[tokio::test]
async fn credentials_are_not_in_the_ledger() {
    let vendor = Vendor::start(Some("idempotency-key")).await;
    vendor.script([Act::Status(500), Act::Answer]);
    let rig = Rig::start(&stripe(&vendor, "")).await;
    rig.post(CHARGE, &[("x-api-key", "PLANTED-1"), ("cookie", "sid=PLANTED-2")], "card=PLANTED-3").await;
    rig.delivered().await;
    for entry in std::fs::read_dir(rig.folder.path()).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        for planted in ["PLANTED", "sk_test", "S3CRET"] {
            let found = bytes.windows(planted.len()).any(|window| window == planted.as_bytes());
            assert!(!found, "{planted} is in {}", path.display());
        }
    }
}

#[tokio::test]
async fn a_key_of_an_expired_operation_is_refused() {
    let vendor = Vendor::start(None).await;
    let rig = Rig::start(&plain(&vendor, "retention = \"1h\"")).await;
    let send =
        async |key: &str| rig.send(Method::POST, "/gw/api/pay", &[("idempotency-key", key)], "1").await;
    assert_eq!(send("a").await.status, StatusCode::OK);
    rig.clock.step(3_600_001);
    let expired = send("a").await;
    assert_eq!((expired.status, expired.json()["code"].as_str()), (StatusCode::GONE, Some("KEY_EXPIRED")));
    assert_eq!(send("b").await.status, StatusCode::OK);
    assert_eq!(vendor.effects(), 2);
}

#[tokio::test]
async fn rules_of_the_policy_apply_to_requests_by_their_name() {
    let vendor = Vendor::start(Some("idempotency-key")).await;
    vendor.script([Act::Status(500)]);
    let rules = "[operation.\"stripe POST /v1/charges\"]\nclass = \"once\"\nvolatile = [\"sent_at\"]\n\
                 redact = [\"json:/id\"]\n[operation.\"stripe POST /v1/ship*\"]\nkeys = \"strict\"\n\
                 key = [\"order\"]\n[operation.\"api *\"]\nclass = \"keyed\"\n";
    let rig = Rig::start(&(stripe(&vendor, "attempts = 4") + rules)).await;
    // The preset says `keyed`, with four attempts.
    let doubt = rig.post(CHARGE, &[], "amount=1").await;
    assert_eq!((doubt.status, vendor.posts().len()), (StatusCode::FAILED_DEPENDENCY, 1));
    assert_eq!(vendor.posts()[0].header("idempotency-key"), None);
    // Which fields identify the action.
    let json = [("content-type", "application/json")];
    for (body, replayed) in
        [(r#"{"order":7,"n":1}"#, None), (r#"{"order":7,"n":1}"#, Some("true")), (r#"{"order":8}"#, None)]
    {
        let got = rig.send(Method::POST, "/gw/stripe/v1/ship", &json, body).await;
        assert_eq!((got.status, got.header("idempotent-replayed")), (StatusCode::OK, replayed), "{body}");
    }
    let other = rig.send(Method::POST, "/gw/stripe/v1/ship", &json, r#"{"order":7,"n":2}"#).await;
    assert_eq!(other.json()["code"], "KEY_REUSED");
    // What is stored.
    let key = [("idempotency-key", "k")];
    let first = rig.post(CHARGE, &key, "amount=2&sent_at=1").await;
    let retry = rig.post(CHARGE, &key, "amount=2&sent_at=2").await;
    assert_eq!(retry.header("idempotent-replayed"), Some("true"));
    assert!(first.json()["id"].as_str().unwrap().starts_with("obj_"));
    assert!(!retry.json()["id"].as_str().unwrap().starts_with("obj_"), "{retry:?}");
}

#[tokio::test]
async fn an_equal_request_is_replayed_only_while_the_ledger_says_so() {
    let vendor = Vendor::start(None).await;
    let rig = Rig::start(&plain(&vendor, "")).await;
    let ledger = onceward::Ledger::new(rig.store.clone());
    let send = async |caller: &str, trace: &str, body: &str| {
        let headers = [("idempotency-key", "k"), ("authorization", caller), ("traceparent", trace)];
        rig.send(Method::POST, "/gw/api/pay", &headers, body).await
    };
    let first = send("Bearer a", "1", "100").await;
    rig.delivered().await;
    let replays = async |trace: &str| {
        let got = send("Bearer a", trace, "100").await;
        assert_eq!((got.status, got.header("idempotent-replayed")), (first.status, Some("true")));
        assert_eq!((&got.body, got.header("once-operation")), (&first.body, first.header("once-operation")));
        got
    };
    let plain_replay = replays("2").await;
    for trace in ["2", "3"] {
        let mut equal = replays(trace).await.headers;
        equal.insert("date", plain_replay.headers["date"].clone());
        assert_eq!(equal, plain_replay.headers);
    }
    assert_eq!(send("Bearer a", "2", "200").await.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(vendor.effects(), 1);
    let other = send("Bearer b", "2", "100").await;
    assert_eq!((other.header("idempotent-replayed"), vendor.effects()), (None, 2), "it is another caller");

    let id = onceward::OperationId::parse(first.header("once-operation").unwrap()).unwrap();
    let refuted = onceward::Verification::Refuted;
    ledger.attempts().verified(&id, refuted, Some("it is not there".to_owned())).await.unwrap();
    assert_eq!(send("Bearer a", "2", "100").await.status, StatusCode::FAILED_DEPENDENCY);
    let outcome = onceward::Outcome::because(Some("checked".to_owned()));
    ledger.admin().settle(&id, onceward::Verdict::Done, Word::person("ada"), outcome).await.unwrap();
    assert_eq!(send("Bearer a", "2", "100").await.status, StatusCode::GONE, "its answer is not known");
    ledger.admin().forget(&id).await.unwrap();
    let again = send("Bearer a", "2", "100").await;
    assert_eq!((again.header("idempotent-replayed"), vendor.effects()), (None, 3));
}
