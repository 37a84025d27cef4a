//! The ledger API, without a network.

use crate::common::{Server, tenant, until};
use axum::body::Body;
use axum::http::{Method, Request};
use serde_json::{Value, json};

fn path(begun: &Value, verb: &str) -> String {
    let id = begun["operation"]["id"].as_str().unwrap();
    format!("/v1/operations/{id}/{verb}")
}

/// The attempt of a begun operation, with more fields.
fn report(begun: &Value, more: Value) -> Value {
    let mut report = json!({"attempt": begun["attempt"], "token": begun["token"]});
    report.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    report
}

#[tokio::test]
async fn an_operation_is_begun_finished_and_replayed_byte_for_byte() {
    let server = Server::new("");
    let pay = json!({"name": "pay", "input": {"amount": 100, "trace": "1"}, "volatile": ["trace"]});
    let first = server.post("/v1/operations", pay.clone()).await;
    assert_eq!(first.headers["location"], path(&first.json(), "").trim_end_matches('/'));
    let begun = first.is(201);
    assert_eq!((&begun["attempt"], &begun["operation"]["state"]), (&json!(1), &json!("running")));
    assert_eq!(begun["downstream_key"], begun["operation"]["id"]);
    let noted = server.post(&path(&begun, "dispatch"), report(&begun, json!({}))).await.is(200);
    assert_eq!(noted["state"], "running");
    let body = report(&begun, json!({"effect": "created", "data": 0})).to_string();
    // The result is kept as it was written.
    let body = body.replace("\"data\":0", "\"data\":{ \"id\" : 1.50, \"big\":12345678901234567890123 }");
    let request = Request::post(path(&begun, "finish")).body(Body::from(body)).unwrap();
    let done = server.send(request).await.is(200);
    assert_eq!((&done["state"], &done["happened"]), (&json!("done"), &json!("yes")));
    let retry = json!({"name": "pay", "input": {"amount": 100, "trace": "2"}, "volatile": ["trace"]});
    let replay = server.post("/v1/operations", retry).await;
    assert!(
        replay.text.contains("\"data\":{ \"id\" : 1.50, \"big\":12345678901234567890123 }"),
        "{}",
        replay.text
    );
    let replay = replay.is(200);
    assert_eq!((&replay["effect"], &replay["ran"]), (&json!("noop"), &json!(false)));
    assert_eq!(replay["operation"]["replayed"], true);
    let again = server
        .post("/v1/operations", json!({"name": "pay", "input": {"amount": 100}, "occurrence": 2}))
        .await;
    assert_ne!(again.is(201)["operation"]["id"], begun["operation"]["id"]);
}

#[tokio::test]
async fn the_first_result_of_an_attempt_is_final() {
    let server = Server::new("");
    let pay = json!({"name": "pay", "key": "1"});
    let begun = server.post("/v1/operations", pay.clone()).await.is(201);
    let finish = |data: &str| report(&begun, json!({"effect": "created", "data": {"r": data}}));
    server.post(&path(&begun, "finish"), finish("first")).await.is(200);
    // The same report again changes nothing: its first answer may have been lost.
    let again = server.post(&path(&begun, "finish"), finish("first")).await.is(200);
    assert_eq!((&again["state"], &again["data"]), (&json!("done"), &json!({"r": "first"})));
    let refused = server.post(&path(&begun, "finish"), finish("second")).await.problem(422, "WRONG_STATE");
    assert!(refused["message"].as_str().unwrap().contains("already reported"), "{refused}");
    assert_eq!(refused["happened"], "yes");
    let noop = report(&begun, json!({"effect": "noop", "data": {"r": "first"}}));
    server.post(&path(&begun, "finish"), noop).await.problem(422, "WRONG_STATE");
    for (verb, said) in
        [("fail", json!({"reason": "no", "evidence": "refused"})), ("doubt", json!({"reason": "no"}))]
    {
        let report = report(&begun, said);
        let refused = server.post(&path(&begun, verb), report).await.problem(422, "WRONG_STATE");
        assert!(refused["message"].as_str().unwrap().contains("reported its success"), "{refused}");
    }
    let shown = server.get(path(&begun, "").trim_end_matches('/')).await.is(200);
    assert_eq!((&shown["state"], &shown["history"]), (&json!("done"), &json!([])));
    assert_eq!(server.post("/v1/operations", pay).await.is(200)["data"], json!({"r": "first"}));
}

#[tokio::test]
async fn an_attempt_may_correct_a_doubt_a_failure_and_a_settlement() {
    let server = Server::new("");
    for (key, verb, body) in [
        ("1", "doubt", json!({"reason": "timeout"})),
        ("2", "fail", json!({"reason": "refused", "evidence": "refused"})),
        ("3", "settle", json!({"verdict": "done", "evidence": "seen"})),
    ] {
        let pay = json!({"name": "pay", "key": key});
        let begun = server.post("/v1/operations", pay.clone()).await.is(201);
        if verb == "settle" {
            let doubt = report(&begun, json!({"reason": "timeout"}));
            server.post(&path(&begun, "doubt"), doubt).await.is(200);
            server.post(&path(&begun, verb), body).await.is(200);
        } else {
            let mut first = report(&begun, json!({}));
            first.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
            server.post(&path(&begun, verb), first).await.is(200);
        }
        let late = report(&begun, json!({"data": 7}));
        let done = server.post(&path(&begun, "finish"), late).await.is(200);
        assert_eq!((&done["state"], &done["data"]), (&json!("done"), &json!(7)), "{verb}");
        let other = report(&begun, json!({"data": 8}));
        server.post(&path(&begun, "finish"), other).await.problem(422, "WRONG_STATE");
        assert_eq!(server.post("/v1/operations", pay).await.is(200)["data"], 7);
    }
}

#[tokio::test]
async fn an_action_needs_a_key_or_an_input() {
    let server = Server::new("");
    for begin in [
        json!({"name": "mail"}),
        json!({"name": "mail", "input": null, "occurrence": 2}),
        json!({"name": "mail", "dry_run": true}),
    ] {
        let problem = server.post("/v1/operations", begin).await.problem(400, "KEY_MISSING");
        assert!(problem["message"].as_str().unwrap().contains("key"), "{problem}");
    }
    assert_eq!(server.get("/v1/report").await.is(200)["total"], 0);
    server.post("/v1/operations", json!({"name": "mail", "input": {}})).await.is(201);
    for zero in [json!(0), json!("0"), json!(-1)] {
        let zero = json!({"name": "mail", "key": "1", "occurrence": zero});
        server.post("/v1/operations", zero).await.problem(400, "INVALID_INPUT");
    }
}

#[tokio::test]
async fn a_body_may_be_as_long_as_the_limit_says() {
    let server = Server::new("[serve]\nmax_body = 6000000\n");
    let long = "x".repeat(5_000_000);
    let begun = server.post("/v1/operations", json!({"name": "a", "input": long})).await.is(201);
    let finish = report(&begun, json!({"data": long}));
    server.post(&path(&begun, "finish"), finish).await.is(200);
    let replay = server.post("/v1/operations", json!({"name": "a", "input": long})).await.is(200);
    assert_eq!(replay["data"].as_str().map(str::len), Some(5_000_000));
    let longer = json!({"name": "a", "input": "x".repeat(6_000_001)});
    server.post("/v1/operations", longer).await.problem(413, "INVALID_INPUT");
}

#[tokio::test]
async fn a_dry_run_writes_nothing() {
    let server = Server::new("");
    let pay = json!({"name": "pay", "key": "1", "dry_run": true, "effect": "created"});
    let preview = server.post("/v1/operations", pay.clone()).await.is(200);
    assert_eq!((&preview["decision"], &preview["effect"]), (&json!("run"), &json!("would_create")));
    assert_eq!(server.get("/v1/report").await.is(200)["total"], 0);
    server.post("/v1/operations", json!({"name": "pay", "key": "1"})).await.is(201);
    assert_eq!(server.post("/v1/operations", pay).await.is(200)["decision"], "wait");
}

#[tokio::test]
async fn another_caller_waits_and_gets_the_result() {
    let server = Server::new("");
    let pay = json!({"name": "pay", "key": "1"});
    let begun = server.post("/v1/operations", pay.clone()).await.is(201);
    let busy = json!({"name": "pay", "key": "1", "wait_ms": 0});
    let problem = server.post("/v1/operations", busy).await.problem(409, "IN_PROGRESS");
    assert_eq!(problem["fix_command"], format!("GET {}", path(&begun, "wait")));
    let waited = path(&begun, "wait?timeout=30");
    let finish = async {
        until("both look again and again", async || server.clock.sleepers(20) == 2).await;
        server.post(&path(&begun, "finish"), report(&begun, json!({"data": "ok"}))).await.is(200)
    };
    let (other, polled, _) = tokio::join!(server.post("/v1/operations", pay), server.get(&waited), finish);
    assert_eq!(other.is(200)["data"], "ok");
    let polled = polled.is(200);
    assert_eq!((&polled["state"], &polled["data"]), (&json!("done"), &json!("ok")));
    let short = server.get(&path(&begun, "wait?timeout=0")).await.is(200);
    assert_eq!(short["state"], "done");
    server.get(&path(&begun, "wait?timeout=301")).await.problem(400, "INVALID_INPUT");
}

#[tokio::test]
async fn a_stream_of_events_shows_a_doubt_at_once() {
    let server = Server::new("");
    for round in 0..20 {
        let begun =
            server.post("/v1/operations", json!({"name": "pay", "key": round.to_string()})).await.is(201);
        let request = Request::get(path(&begun, "wait")).header("accept", "text/event-stream");
        let request = request.body(Body::empty()).unwrap();
        let doubt = async {
            until("it waits for a change", async || server.clock.sleepers(1_000) == 1).await;
            server.post(&path(&begun, "doubt"), report(&begun, json!({"reason": "timeout"}))).await.is(200)
        };
        let (stream, _) = tokio::join!(server.send(request), doubt);
        assert_eq!(states(&stream.text), ["running", "in_doubt"], "round {round}");
    }
}

/// The states of all events of a stream.
fn states(stream: &str) -> Vec<Value> {
    let events = stream.lines().filter_map(|line| line.strip_prefix("data: "));
    events.map(|data| serde_json::from_str::<Value>(data).unwrap()["state"].clone()).collect()
}

#[tokio::test]
async fn a_stream_of_events_ends_with_the_operation() {
    let server = Server::new("");
    let begun = server.post("/v1/operations", json!({"name": "pay", "key": "1"})).await.is(201);
    let request = Request::get(path(&begun, "wait")).header("accept", "text/event-stream");
    let request = request.body(Body::empty()).unwrap();
    let finish = async {
        until("it waits for a change", async || server.clock.sleepers(1_000) == 1).await;
        server.post(&path(&begun, "finish"), report(&begun, json!({}))).await.is(200)
    };
    let (stream, _) = tokio::join!(server.send(request), finish);
    assert_eq!(stream.headers["content-type"], "text/event-stream");
    let states = states(&stream.text);
    assert_eq!(states, ["running", "done"], "{}", stream.text);
    let missing = Request::get(format!("/v1/operations/op_{}/wait", "a".repeat(32)));
    let missing = missing.header("accept", "text/event-stream").body(Body::empty()).unwrap();
    server.send(missing).await.problem(404, "NOT_FOUND");
}

#[tokio::test]
async fn a_report_with_a_wrong_token_or_attempt_is_refused() {
    let server = Server::new("");
    let begun = server.post("/v1/operations", json!({"name": "pay", "key": "1"})).await.is(201);
    let other = server.post("/v1/operations", json!({"name": "pay", "key": "2"})).await.is(201);
    for verb in ["renew", "dispatch", "finish", "fail", "doubt"] {
        let more = match verb {
            "fail" => json!({"reason": "declined", "evidence": "refused"}),
            "doubt" => json!({"reason": "declined"}),
            _ => json!({}),
        };
        for wrong in [
            json!({"attempt": 1, "token": other["token"]}),
            json!({"attempt": 2, "token": begun["token"]}),
            json!({"attempt": 1, "token": "at_aaaa"}),
            json!({"attempt": 1, "token": ""}),
        ] {
            let mut body = wrong.clone();
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let problem = server.post(&path(&begun, verb), body).await.problem(400, "INVALID_INPUT");
            assert!(problem["message"].as_str().unwrap().contains("token"), "{verb} {problem}");
        }
    }
    assert_eq!(server.get(&path(&begun, "")[..]).await.status, 404, "the path ends with the id");
    let state = server.get(path(&begun, "").trim_end_matches('/')).await.is(200);
    assert_eq!(state["state"], "running");
}

#[tokio::test]
async fn a_failure_is_retried_within_its_budget() {
    let server = Server::new("[operation.pay]\nattempts = 2\n");
    let pay = json!({"name": "pay", "key": "1"});
    for attempt in 1..=2 {
        let begun = server.post("/v1/operations", pay.clone()).await.is(201);
        assert_eq!(begun["attempt"], attempt);
        let failed = server
            .post(
                &path(&begun, "fail"),
                report(&begun, json!({"reason": "card declined", "evidence": "refused"})),
            )
            .await;
        assert_eq!(failed.is(200)["happened"], "no");
    }
    let problem = server.post("/v1/operations", pay).await.problem(424, "BUDGET_EXHAUSTED");
    assert_eq!((&problem["happened"], &problem["retryable"]), (&json!("no"), &json!(false)));
}

#[tokio::test]
async fn a_doubt_is_settled_with_evidence() {
    let server = Server::new("");
    let pay = json!({"name": "pay", "key": "1"});
    let begun = server.post("/v1/operations", pay.clone()).await.is(201);
    let doubted =
        server.post(&path(&begun, "doubt"), report(&begun, json!({"reason": "the reply was lost"}))).await;
    assert_eq!(doubted.is(200)["state"], "in_doubt");
    let problem = server.post("/v1/operations", pay.clone()).await.problem(424, "IN_DOUBT");
    assert!(problem["options"].is_null(), "a lost answer is for a person or a probe: {problem}");
    let report = server.get("/v1/report?scope=default").await.is(200);
    assert_eq!((&report["settled"], &report["counts"]["in_doubt"]), (&json!(false), &json!(1)));
    assert_eq!(report["open"][0]["id"], begun["operation"]["id"]);
    let settle = path(&begun, "settle");
    server.post(&settle, json!({"verdict": "done", "evidence": " "})).await.problem(400, "INVALID_INPUT");
    server.post(&settle, json!({"verdict": "maybe", "evidence": "x"})).await.problem(400, "INVALID_INPUT");
    let other = json!({"verdict": "done", "evidence": "seen", "attempt": 2});
    server.post(&settle, other).await.problem(422, "WRONG_STATE");
    let found = json!({"verdict": "done", "evidence": "it is on the statement", "by": "maria",
        "speaker": "person", "data": {"id": 7}});
    let settled = server.post(&settle, found.clone()).await.is(200);
    let said = &settled["settled_by"];
    assert_eq!(
        (&settled["state"], &said["by"], &said["name"]),
        (&json!("done"), &json!("person"), &json!("maria"))
    );
    assert_eq!(said["doubt"], "the reply was lost");
    let before = server.get(settle.trim_end_matches("/settle")).await.is(200);
    let again = json!({"verdict": "done", "evidence": "seen", "by": "ben", "data": {"id": 8}});
    for same in [found, again] {
        let same = server.post(&settle, same).await.is(200);
        assert_eq!((&same["settled_by"]["name"], &same["data"]), (&json!("maria"), &json!({"id": 7})));
        assert_eq!(same["updated_at"], before["updated_at"]);
        assert!(same["warnings"][0].as_str().unwrap().contains("settled before"), "{same}");
    }
    let other = json!({"verdict": "failed", "evidence": "not seen"});
    server.post(&settle, other).await.problem(422, "WRONG_STATE");
    assert_eq!(server.post("/v1/operations", pay).await.is(200)["data"], json!({"id": 7}));
    assert_eq!(server.get("/v1/report").await.is(200)["settled"], true);
}

/// The operation when the lease of its caller, ten seconds, is over.
async fn lapsed(server: &Server, begun: &Value) -> Value {
    let wait = path(begun, "wait?timeout=300");
    let (waited, ()) = tokio::join!(server.get(&wait), async {
        until("it waits", async || server.clock.sleepers(20) == 1).await;
        server.clock.step(10_000);
    });
    waited.is(200)
}

#[tokio::test]
async fn a_caller_that_stops_renewing_leaves_a_doubt_and_its_late_answer_settles_it() {
    let server = Server::new("");
    let pay = json!({"name": "pay", "key": "1", "lease_ms": 10_000});
    let begun = server.post("/v1/operations", pay.clone()).await.is(201);
    for _ in 0..4 {
        server.clock.step(6_000);
        let renewed =
            server.post(&path(&begun, "renew"), report(&begun, json!({"lease_ms": 10_000}))).await.is(200);
        assert_eq!((&renewed["lease_ms"], &renewed["cancel_requested"]), (&json!(10_000), &json!(false)));
    }
    let silent = lapsed(&server, &begun).await;
    assert_eq!((&silent["state"], &silent["happened"]), (&json!("in_doubt"), &json!("unknown")));
    server.post("/v1/operations", pay.clone()).await.problem(424, "IN_DOUBT");
    for verb in ["renew", "dispatch"] {
        let refused = server.post(&path(&begun, verb), report(&begun, json!({}))).await;
        let refused = refused.problem(422, "WRONG_STATE");
        assert!(refused["message"].as_str().unwrap().ends_with("the operation is in doubt"), "{refused}");
    }
    let late = server.post(&path(&begun, "finish"), report(&begun, json!({"data": 7}))).await.is(200);
    assert_eq!(late["state"], "done");
    assert_eq!(server.post("/v1/operations", pay).await.is(200)["data"], 7);
}

#[tokio::test]
async fn a_caller_that_reports_its_dispatch_had_no_effect_before_it() {
    let server = Server::new("");
    let pay = json!({"name": "pay", "key": "1", "lease_ms": 10_000, "reports_dispatch": true});
    let begun = server.post("/v1/operations", pay.clone()).await.is(201);
    let first = lapsed(&server, &begun).await;
    assert_eq!((&first["state"], &first["happened"]), (&json!("failed"), &json!("no")));
    let refused = server.post(&path(&begun, "dispatch"), report(&begun, json!({}))).await;
    let refused = refused.problem(422, "WRONG_STATE");
    assert!(refused["message"].as_str().unwrap().ends_with("the operation is failed"), "{refused}");
    let second = server.post("/v1/operations", pay).await.is(201);
    assert_eq!(second["attempt"], 2);
    let refused = server.post(&path(&begun, "renew"), report(&begun, json!({}))).await;
    let refused = refused.problem(422, "WRONG_STATE");
    assert!(refused["message"].as_str().unwrap().contains("another one has overtaken"), "{refused}");
    server.post(&path(&second, "dispatch"), report(&second, json!({}))).await.is(200);
    let never = report(&second, json!({"reason": "no time", "evidence": "not_started"}));
    let refused = server.post(&path(&second, "fail"), never).await.problem(400, "INVALID_INPUT");
    assert!(
        refused["message"].as_str().unwrap().contains("the dispatch that this attempt reported"),
        "{refused}"
    );
    assert_eq!(lapsed(&server, &second).await["state"], "in_doubt");
}

#[tokio::test]
async fn after_a_crash_of_the_server_a_late_answer_counts() {
    let server = Server::new("");
    let pay = json!({"name": "pay", "key": "1"});
    let begun = server.post("/v1/operations", pay.clone()).await.is(201);
    let server = server.restarted("");
    for verb in ["renew", "dispatch"] {
        let refused = server.post(&path(&begun, verb), report(&begun, json!({}))).await;
        let refused = refused.problem(422, "WRONG_STATE");
        assert!(refused["message"].as_str().unwrap().ends_with("the operation is in doubt"), "{refused}");
    }
    let problem = server.post("/v1/operations", pay.clone()).await.problem(424, "IN_DOUBT");
    assert_eq!(problem["happened"], "unknown");
    let late = server.post(&path(&begun, "finish"), report(&begun, json!({"data": 7}))).await.is(200);
    assert_eq!((&late["state"], &late["happened"]), (&json!("done"), &json!("yes")));
    assert_eq!(server.post("/v1/operations", pay).await.is(200)["data"], 7);
}

#[tokio::test]
async fn a_running_operation_is_asked_to_stop() {
    let server = Server::new("");
    let begun = server.post("/v1/operations", json!({"name": "pay", "key": "1"})).await.is(201);
    let asked = server.post(&path(&begun, "cancel"), json!({})).await.is(202);
    assert!(asked["cancel_requested_at"].is_string(), "{asked}");
    let renewed = server.post(&path(&begun, "renew"), report(&begun, json!({}))).await.is(200);
    assert_eq!(renewed["cancel_requested"], true);
    let refused = server.post(&path(&begun, "dispatch"), report(&begun, json!({}))).await;
    let refused = refused.problem(422, "WRONG_STATE");
    assert!(refused["detail"].as_str().unwrap().contains("asked to stop"), "{refused}");
    server
        .post(
            &path(&begun, "fail"),
            report(&begun, json!({"reason": "stopped before sending", "evidence": "not_started"})),
        )
        .await
        .is(200);
    let cancelled = server.post(&path(&begun, "cancel"), json!({})).await.is(200);
    assert_eq!(cancelled["state"], "cancelled");
    server.post("/v1/operations", json!({"name": "pay", "key": "1"})).await.problem(410, "CANCELLED");
}

#[tokio::test]
async fn the_policy_decides_and_a_caller_may_only_be_stricter() {
    let policy = "[operation.\"mail_*\"]\nclass = \"idempotent\"\nkey = [\"to\"]\nattempts = 3\n\
                  [operation.keyed]\nkeys = \"keyed\"\n[operation.secret]\nredact = [\"re:sk_[a-z]+\"]\n";
    let server = Server::new(policy);
    let mail = |text: &str| json!({"name": "mail_new", "input": {"to": "a@b", "text": text}});
    let begun = server.post("/v1/operations", mail("hello")).await.is(201);
    let reused = server.post("/v1/operations", mail("other")).await.problem(422, "KEY_REUSED");
    assert!(reused["message"].as_str().unwrap().contains("text"), "{reused}");
    server.post(&path(&begun, "doubt"), report(&begun, json!({"reason": "timeout"}))).await.is(200);
    let second = server.post("/v1/operations", mail("hello")).await.is(201);
    assert_eq!(second["attempt"], 2, "the class lets it run again");
    for refused in [
        json!({"name": "mail_x", "class": "read"}),
        json!({"name": "mail_x", "max_attempts": 4}),
        json!({"name": "mail_x", "lease_ms": 99}),
        json!({"name": "mail_x", "lease_ms": 3_600_001}),
        json!({"name": "mail_x", "wait_ms": 60_001}),
        json!({"name": "mail_x", "effect": "would_create"}),
    ] {
        server.post("/v1/operations", refused).await.problem(400, "INVALID_INPUT");
    }
    let stricter = json!({"name": "mail_y", "input": {"to": "x"}, "class": "once"});
    server.post("/v1/operations", stricter).await.is(201);
    let looser = Server::new("[operation.pay]\nclass = \"once\"\n");
    let pay = json!({"name": "pay", "key": "1", "class": "idempotent"});
    looser.post("/v1/operations", pay).await.problem(400, "INVALID_INPUT");
    looser.post("/v1/operations", json!({"name": "other", "key": "1", "class": "idempotent"})).await.is(201);
    // What one caller must not repeat, another one must not either.
    let begun =
        looser.post("/v1/operations", json!({"name": "another", "key": "1", "class": "once"})).await.is(201);
    looser.post(&path(&begun, "doubt"), report(&begun, json!({"reason": "timeout"}))).await.is(200);
    for class in ["idempotent", "once"] {
        let again = json!({"name": "another", "key": "1", "class": class});
        looser.post("/v1/operations", again).await.problem(424, "IN_DOUBT");
    }
    server.post("/v1/operations", json!({"name": "keyed"})).await.problem(400, "KEY_MISSING");
    let begun = server.post("/v1/operations", json!({"name": "secret", "key": "1"})).await.is(201);
    let finished = server.post(&path(&begun, "finish"), report(&begun, json!({"data": "key sk_abc"}))).await;
    assert!(!finished.is(200)["data"].as_str().unwrap().contains("sk_abc"));
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_with_every_problem() {
    let server = Server::new("");
    for body in [
        "",
        "{",
        "[]",
        "null",
        "{}",
        r#"{"name":1}"#,
        r#"{"name":"a","nme":"b"}"#,
        r#"{"name":"a","name":"b"}"#,
    ] {
        let request = Request::post("/v1/operations").body(Body::from(body)).unwrap();
        server.send(request).await.problem(400, "INVALID_INPUT");
    }
    // An array of the values of all fields is not an object with them.
    let values = "[\"a\",null,\"k\",null,null,null,null,null,null,null,null,false,false,null]";
    for body in [values, "[1]", "\"a\"", " [", "7"] {
        let request = Request::post("/v1/operations").body(Body::from(body)).unwrap();
        let problem = server.send(request).await.problem(400, "INVALID_INPUT");
        assert!(problem["message"].as_str().unwrap().ends_with("expected a JSON object"), "{problem}");
    }
    let bad = json!({"name": "", "key": "a b", "scope": "\u{1}"});
    let problem = server.post("/v1/operations", bad).await.problem(400, "INVALID_INPUT");
    assert_eq!(problem["problems"].as_array().unwrap().len(), 3, "{problem}");
    let form = Request::post("/v1/operations").header("content-type", "application/x-www-form-urlencoded");
    let form = form.body(Body::from("{\"name\":\"a\"}")).unwrap();
    server.send(form).await.problem(415, "INVALID_INPUT");
    for path in ["/v1/operations/nope", "/v1/operations/op_1", "/v1/operations/%00", "/v1/nope"] {
        server.get(path).await.problem(404, "NOT_FOUND");
    }
    for query in [
        "state=x",
        "limit=0",
        "limit=501",
        "limit=x",
        "since=now",
        "cursor=x",
        "nope=1",
        "state=done&state=x",
    ] {
        server.get(&format!("/v1/operations?{query}")).await.problem(400, "INVALID_INPUT");
    }
    let put = Request::put("/v1/operations").body(Body::empty()).unwrap();
    let refused = server.send(put).await;
    assert!(refused.headers.contains_key("allow"));
    refused.problem(405, "INVALID_INPUT");
}

#[tokio::test]
async fn a_listing_has_filters_and_pages() {
    let server = Server::new("");
    for number in 0..5 {
        let scope = if number % 2 == 0 { "even" } else { "odd" };
        let begin = json!({"name": format!("n{number}"), "scope": scope, "key": "k"});
        let begun = server.post("/v1/operations", begin).await.is(201);
        if number < 3 {
            server.post(&path(&begun, "finish"), report(&begun, json!({"data": number}))).await.is(200);
        }
    }
    let names = async |query: &str| -> Vec<String> {
        let listed = server.get(&format!("/v1/operations?{query}")).await.is(200);
        let all = listed["operations"].as_array().unwrap().clone();
        all.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("").await, ["n4", "n3", "n2", "n1", "n0"]);
    assert_eq!(names("scope=even").await, ["n4", "n2", "n0"]);
    assert_eq!(names("state=running").await, ["n4", "n3"]);
    assert_eq!(names("state=done,running&scope=odd").await, ["n3", "n1"]);
    assert_eq!(names("name=n2&key=k").await, ["n2"]);
    assert_eq!(names("since=2999-01-01T00:00:00Z").await, [""; 0]);
    assert_eq!(names("until=2999-01-01T00:00:00Z&limit=1").await, ["n4"]);
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/v1/operations?limit=2{cursor}")).await.is(200);
        seen.extend(page["operations"].as_array().unwrap().iter().map(|one| one["name"].clone()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, ["n4", "n3", "n2", "n1", "n0"]);
    let report = server.get("/v1/report?scope=even").await.is(200);
    assert_eq!((&report["total"], &report["counts"]), (&json!(3), &json!({"done": 2, "running": 1})));
}

#[tokio::test]
async fn tenants_need_their_token_and_do_not_meet() {
    let (acme, acme_token) = tenant("acme", "");
    let (globex, globex_token) = tenant("globex", "max_body = 200");
    let server = Server::new(&format!("{acme}{globex}"));
    assert!(server.app.requires_tokens() && server.app.ledger().is_none());
    let pay = json!({"name": "pay", "key": "order-7"});
    let refused = server.post("/v1/operations", pay.clone()).await;
    assert_eq!(refused.headers["www-authenticate"], "Bearer");
    refused.problem(401, "AUTH_REQUIRED");
    for wrong in ["", "once_x", &acme_token[1..], &acme_token.to_uppercase()] {
        server.as_tenant(wrong, Method::GET, "/v1/report", None).await.problem(401, "AUTH_REQUIRED");
    }
    let begun =
        server.as_tenant(&acme_token, Method::POST, "/v1/operations", Some(pay.clone())).await.is(201);
    let id = begun["operation"]["id"].as_str().unwrap();
    assert_eq!(begun["operation"]["scope"], "default");
    let shown = format!("/v1/operations/{id}");
    server.as_tenant(&acme_token, Method::GET, &shown, None).await.is(200);
    server.as_tenant(&globex_token, Method::GET, &shown, None).await.problem(404, "NOT_FOUND");
    let report =
        |begun: &Value| json!({"attempt": begun["attempt"], "token": begun["token"], "data": "acme's"});
    let finish = format!("{shown}/finish");
    let stolen = server.as_tenant(&globex_token, Method::POST, &finish, Some(report(&begun))).await;
    stolen.problem(400, "INVALID_INPUT");
    server.as_tenant(&acme_token, Method::POST, &finish, Some(report(&begun))).await.is(200);
    let other =
        server.as_tenant(&globex_token, Method::POST, "/v1/operations", Some(pay.clone())).await.is(201);
    assert_ne!(other["downstream_key"], begun["downstream_key"], "both may use one account downstream");
    let listed = server.as_tenant(&globex_token, Method::GET, "/v1/operations", None).await;
    assert!(!listed.text.contains("acme"), "{}", listed.text);
    assert_eq!(listed.json()["operations"].as_array().unwrap().len(), 1);
    // The longest body is the tenant's own.
    let long = json!({"name": "pay", "key": "1", "input": "x".repeat(300)});
    let refused = server.as_tenant(&globex_token, Method::POST, "/v1/operations", Some(long.clone())).await;
    refused.problem(413, "INVALID_INPUT");
    server.as_tenant(&acme_token, Method::POST, "/v1/operations", Some(long)).await.is(201);
    // The document of the API needs no token.
    server.get("/v1/openapi.json").await.is(200);
}

#[tokio::test]
async fn a_tenant_keeps_its_rate() {
    let (slow, slow_token) = tenant("slow", "rate = 0.5\nburst = 2");
    let (fast, fast_token) = tenant("fast", "");
    let server = Server::new(&format!("{slow}{fast}"));
    for _ in 0..2 {
        server.as_tenant(&slow_token, Method::GET, "/v1/report", None).await.is(200);
    }
    let refused = server.as_tenant(&slow_token, Method::GET, "/v1/report", None).await;
    assert_eq!(refused.headers["retry-after"], "2");
    let problem = refused.problem(429, "RATE_LIMITED");
    assert_eq!((&problem["happened"], &problem["retryable"]), (&json!("no"), &json!(true)));
    for _ in 0..50 {
        server.as_tenant(&fast_token, Method::GET, "/v1/report", None).await.is(200);
    }
}
