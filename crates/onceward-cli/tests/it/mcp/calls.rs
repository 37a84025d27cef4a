//! Retries, intended repeats, keys and scopes.

use serde_json::{Value, json};

use crate::common::{Bench, eventually};
use crate::mcp::session::{Session, about, effects, with_meta, words};

#[test]
fn the_first_answer_is_the_servers_own_and_the_same_call_again_is_wanted_again() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    for (id, value, run) in [(1, "v1", 1), (2, "v2", 1), (3, "v1", 2)] {
        let result = session.call(id, "count", &json!({"n": value}));
        assert_eq!(result["structuredContent"]["run"], json!(run));
        assert!(about(&result).is_null(), "{result}");
    }
    assert_eq!(effects(&bench), 3);
    assert_eq!(session.leave(), Some(0));
    let report = bench.json(&["report", "--scope", "s"]);
    assert_eq!(report["data"]["by_state"]["done"].as_array().unwrap().len(), 3);
    // Delivery is remembered across restarts.
    let mut session = Session::scoped(&bench);
    assert_eq!(session.call(1, "count", &json!({"n": "v1"}))["structuredContent"]["run"], json!(3));
}

#[test]
fn a_file_written_with_v1_v2_v1_ends_as_v1() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    for (id, value) in [(1, "v1"), (2, "v2"), (3, "v1")] {
        session.call(id, "put", &json!({"value": value}));
    }
    assert_eq!(bench.read("value"), "v1");
}

#[test]
fn reads_are_never_stale_and_are_not_recorded() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    assert_eq!(words(&session.call(1, "look", &json!({}))), "");
    session.call(2, "count", &json!({}));
    assert!(words(&session.call(3, "look", &json!({}))).contains("count"));
    session.leave();
    assert_eq!(bench.json(&["ls"])["data"].as_array().unwrap().len(), 1);
}

#[test]
fn a_cancelled_call_goes_on_and_its_retry_gets_its_result() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.ask(1, "count", &json!({"hold": "go"}));
    eventually("it runs", || effects(&bench) == 1);
    session.cancel(1);
    session.ask(2, "count", &json!({"hold": "go"}));
    assert!(session.is_silent(100));
    bench.write("go", "");
    let result = session.answer(2)["result"].clone();
    assert_eq!(result["structuredContent"]["run"], json!(1));
    assert_eq!((&about(&result)["status"], &about(&result)["ran"]), (&json!("joined"), &json!(false)));
    assert_eq!(about(&result)["operation"]["attempt"], 1);
    assert!(words(&result).starts_with("[once] Joined: the same call was already running"), "{result}");
    assert!(!bench.read("seen").contains("cancelled"), "the cancellation was forwarded");
    assert_eq!(effects(&bench), 1);
    assert!(session.is_silent(50), "the cancelled request was answered");
    // What the answer to the joined call says is true.
    assert!(words(&result).contains("make the same call once more"), "{result}");
    assert!(about(&session.call(3, "count", &json!({"hold": "go"}))).is_null());
    assert_eq!(effects(&bench), 2);
}

#[test]
fn an_answer_that_nobody_waited_for_is_replayed_once() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.ask(1, "count", &json!({"hold": "go"}));
    eventually("it runs", || effects(&bench) == 1);
    session.cancel(1);
    bench.write("go", "");
    eventually("it is done", || bench.json(&["ls"])["data"][0]["state"] == "done");
    assert_eq!(about(&session.call(2, "count", &json!({"hold": "go"})))["status"], "replayed");
    // The replay was delivered, so the same call is now a new action.
    assert!(about(&session.call(3, "count", &json!({"hold": "go"}))).is_null());
    assert_eq!(effects(&bench), 2);
}

#[test]
fn a_cancellation_after_the_answer_says_that_it_was_not_taken() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.call(1, "count", &json!({}));
    // The cancellation comes before the next request, and the proxy reads one after the other.
    session.cancel(1);
    assert_eq!(about(&session.call(2, "count", &json!({})))["status"], "replayed");
    assert_eq!(effects(&bench), 1);
}

#[test]
fn a_slow_answer_may_have_come_too_late() {
    let bench = Bench::new();
    bench.write("onceward.toml", "[defaults]\nrepeat_window = \"60m\"\n");
    let mut session = Session::start(&bench, &["--scope", "s", "--slow", "1ms"]);
    session.call(1, "count", &json!({"sleep": 0.01}));
    assert_eq!(about(&session.call(2, "count", &json!({"sleep": 0.01})))["status"], "replayed");
    assert!(about(&session.call(3, "count", &json!({"sleep": 0.01}))).is_null());
    assert_eq!(effects(&bench), 2);
}

#[test]
fn a_client_that_repeats_itself_while_the_call_runs_joins_it() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.ask(1, "count", &json!({"hold": "go"}));
    eventually("it runs", || effects(&bench) == 1);
    // Later than a model's parallel calls come.
    assert!(session.is_silent(700));
    session.ask(2, "count", &json!({"hold": "go"}));
    assert!(session.is_silent(200));
    bench.write("go", "");
    session.answer(1);
    let joined = session.answer(2)["result"].clone();
    assert!(words(&joined).contains("make the same call once more"), "{joined}");
    // The answer was true.
    assert!(about(&session.call(3, "count", &json!({"hold": "go"}))).is_null());
    assert_eq!(effects(&bench), 2);
}

#[test]
fn a_key_makes_calls_one_operation_wherever_it_stands() {
    let bench = Bench::new();
    let mut session = Session::start(&bench, &["--scope", "s", "--expose-key"]);
    session.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}));
    let tools = session.answer(1)["result"]["tools"].clone();
    assert!(tools[0]["inputSchema"]["properties"]["idempotency_key"].is_object());
    assert!(tools[2]["inputSchema"]["properties"].is_null());
    assert_eq!(tools[4]["inputSchema"]["properties"]["dry_run"], json!({}));
    let keyed = json!({"dev.onceward/key": "k"});
    session.send(&with_meta(2, "count", &json!({"n": 1}), &keyed));
    assert!(about(&session.answer(2)["result"]).is_null());
    session.send(&with_meta(3, "count", &json!({"n": 1}), &keyed));
    assert_eq!(about(&session.answer(3)["result"])["operation"]["key"], "k");
    let by_argument = session.call(4, "count", &json!({"n": 1, "idempotency_key": "k"}));
    assert_eq!(about(&by_argument)["status"], "replayed");
    let other = session.call(5, "count", &json!({"n": 1, "idempotency_key": "k2"}));
    assert_eq!(other["structuredContent"]["run"], json!(2));
    assert!(!bench.read("effects").contains("idempotency_key"));
    let reused = session.call(6, "count", &json!({"n": 9, "idempotency_key": "k"}));
    assert_eq!((&reused["isError"], &about(&reused)["error"]["code"]), (&json!(true), &json!("KEY_REUSED")));
    assert_eq!(effects(&bench), 2);
}

#[test]
fn a_dry_run_in_any_spelling_runs_nothing_and_a_tools_own_is_left_to_it() {
    let bench = Bench::new();
    let mut session = Session::start(&bench, &["--scope", "s", "--expose-key"]);
    // `own` has an argument `dry_run` of its own, `count` has none.
    for (id, name) in (1..).zip(["dryRun", "dry-run", "DRY_RUN", "Dry Run"]) {
        for (tool, id) in [("own", id), ("count", id + 10)] {
            let told = session.call(id, tool, &json!({"n": 1, name: true}));
            assert_eq!(about(&told)["status"], "dry_run", "{tool} {name}: {told}");
            assert!(words(&told).contains("Nothing was run"), "{tool} {name}: {told}");
        }
    }
    let told = session.call(30, "own", &json!({"n": 1, "dry_run": false, "dryRun": "yes"}));
    assert_eq!(about(&told)["status"], "dry_run");
    let told = session.call(31, "own", &json!({"n": 1, "dryRun": "perhaps"}));
    assert_eq!(about(&told)["error"]["code"], "INVALID_INPUT");
    assert_eq!(about(&session.call(32, "count", &json!({"n": 1, "dry_run": true})))["status"], "dry_run");
    assert_eq!(effects(&bench), 0);
    // The tool's own argument reaches it as it is, whatever it says.
    for (id, dry_run) in [(40, json!(true)), (41, json!(false)), (42, json!("perhaps"))] {
        session.call(id, "own", &json!({"n": id, "dry_run": dry_run, "dryRun": false}));
        let effect: Value = serde_json::from_str(bench.read("effects").lines().last().unwrap()).unwrap();
        assert_eq!(effect, json!({"tool": "own", "n": id, "dry_run": dry_run}));
    }
    assert_eq!(effects(&bench), 3);
}

#[test]
fn a_host_that_repeats_its_own_call_id_retries() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    let meta = json!({"claudecode/toolUseId": "toolu_1"});
    for id in [1, 2] {
        session.send(&with_meta(id, "count", &json!({}), &meta));
        session.answer(id);
    }
    assert_eq!(effects(&bench), 1);
    session.send(&with_meta(3, "count", &json!({}), &json!({"dev.onceward/retry": true})));
    assert_eq!(about(&session.answer(3)["result"])["status"], "replayed");
}

#[test]
fn scopes_do_not_see_each_other_and_hosts_name_theirs() {
    let bench = Bench::new();
    let mut session = Session::start(&bench, &["--keys", "strict"]);
    for (id, thread) in [(1, "a"), (2, "b"), (3, "a")] {
        session.send(&with_meta(id, "count", &json!({}), &json!({"threadId": thread})));
        session.answer(id);
    }
    assert_eq!(effects(&bench), 2);
    session.leave();
    // A connection that names nothing remembers nothing.
    for _ in 0..2 {
        let mut session = Session::start(&bench, &["--keys", "strict"]);
        session.call(1, "count", &json!({}));
        session.call(2, "count", &json!({}));
    }
    assert_eq!(effects(&bench), 4);
}

#[test]
fn strict_is_once_in_the_scope_and_keyed_is_once_a_key() {
    let bench = Bench::new();
    let mut session = Session::start(&bench, &["--scope", "s", "--keys", "strict"]);
    session.call(1, "count", &json!({}));
    assert_eq!(about(&session.call(2, "count", &json!({})))["status"], "replayed");
    session.leave();
    let mut session = Session::start(&bench, &["--scope", "t", "--keys", "keyed"]);
    session.call(1, "count", &json!({}));
    session.call(2, "count", &json!({}));
    assert_eq!(effects(&bench), 3);
}

#[test]
fn two_proxies_run_the_same_call_once() {
    let bench = Bench::new();
    let mut sessions: Vec<Session> = (0..3).map(|_| Session::scoped(&bench)).collect();
    for session in &mut sessions {
        session.call(9, "look", &json!({}));
    }
    for session in &mut sessions {
        session.ask(1, "count", &json!({"hold": "go"}));
    }
    eventually("one runs", || effects(&bench) > 0);
    assert!(sessions.iter_mut().all(|session| session.is_silent(300)));
    bench.write("go", "");
    for session in &mut sessions {
        assert_eq!(session.answer(1)["result"]["structuredContent"]["run"], json!(1));
    }
    assert_eq!(effects(&bench), 1);
}

#[test]
fn a_dry_run_runs_nothing() {
    let bench = Bench::new();
    let mut session = Session::start(&bench, &["--scope", "s", "--dry-run"]);
    let result = session.call(1, "count", &json!({}));
    assert_eq!((&result["isError"], &about(&result)["effect"]), (&json!(true), &json!("would_update")));
    assert_eq!(words(&session.call(2, "look", &json!({}))), "");
    assert_eq!(effects(&bench), 0);
}
