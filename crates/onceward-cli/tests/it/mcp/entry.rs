//! Ways out of a doubt, and a server that is started again.

use serde_json::json;

use crate::common::{Bench, eventually};
use crate::mcp::session::{SERVER, Session, about, effects, words};

const CHANGED: &str = "notifications/tools/list_changed";

#[test]
fn an_agent_sees_what_is_in_doubt_and_settles_it_where_the_policy_lets_it() {
    let bench = Bench::new();
    bench.write("onceward.toml", "[operation.count]\nagents_settle = true\n");
    let mut session = Session::scoped(&bench);
    assert!(!session.tools(1).iter().any(|tool| tool.starts_with("once_")));
    session.ask(2, "count", &json!({"n": 5, "error": true}));
    session.answer(2);
    // A client that lists the tools before the notification is sent has the new list and gets none.
    session.wait_for(CHANGED);
    let tools = session.tools(3);
    assert!(tools.ends_with(&["once_status".to_owned(), "once_settle".to_owned()]), "{tools:?}");
    let status = session.call(4, "once_status", &json!({}));
    let said = words(&status);
    for part in ["In doubt (1)", "count", "\"n\":5", "broke after the effect", "look", "once_settle"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let told = words(&session.call(5, "count", &json!({"n": 5, "error": true})));
    assert!(told.contains("once_settle {\"operation\":\"op_"), "{told}");
    let id = about(&status)["operations"][0].as_str().unwrap().to_owned();
    let settle =
        |verdict: &str, evidence: &str| json!({"operation": id, "verdict": verdict, "evidence": evidence});
    for bad in
        [settle("done", ""), settle("maybe", "I looked and saw it"), json!({"operation": "op_x"}), json!({})]
    {
        let told = session.call(6, "once_settle", &bad);
        assert_eq!(
            (&told["isError"], &about(&told)["error"]["code"]),
            (&json!(true), &json!("INVALID_INPUT")),
            "{bad}"
        );
    }
    assert_eq!(
        session.call(7, "once_settle", &settle("done", "look shows the line"))["isError"],
        json!(false)
    );
    assert_eq!(
        session.call(8, "once_settle", &settle("done", "look shows the line"))["isError"],
        json!(false)
    );
    let told = session.call(9, "count", &json!({"n": 5, "error": true}));
    assert!(
        told["isError"] == json!(false)
            && words(&told).contains("by an agent (through once_settle) (look shows the line)"),
        "{told}"
    );
    session.wait_for(CHANGED);
    assert!(!session.tools(10).iter().any(|tool| tool.starts_with("once_")));
    assert_eq!(effects(&bench), 1);
}

#[test]
fn a_settlement_that_is_repeated_blindly_does_not_settle_the_next_attempt() {
    let bench = Bench::new();
    bench.write("onceward.toml", "[operation.count]\nagents_settle = true\n");
    let mut session = Session::scoped(&bench);
    let args = json!({"error": true});
    session.ask(1, "count", &args);
    session.answer(1);
    let settle =
        |evidence: &str| json!({"operation": bench.newest(), "verdict": "failed", "evidence": evidence});
    let blind = settle("the list is empty");
    assert_eq!(session.call(2, "once_settle", &blind)["isError"], json!(false));
    assert_eq!(session.call(3, "once_settle", &blind)["isError"], json!(false), "nothing ran since");
    session.ask(4, "count", &args);
    session.answer(4);
    let told = session.call(5, "once_settle", &blind);
    assert_eq!(about(&told)["error"]["code"], "INVALID_INPUT", "{told}");
    assert!(words(&told).contains("check again"), "{told}");
    assert_eq!(about(&session.call(6, "count", &args))["error"]["code"], "IN_DOUBT");
    assert_eq!(effects(&bench), 2);
    let seen = settle("I looked again: the list is empty");
    assert_eq!(session.call(7, "once_settle", &seen)["isError"], json!(false));
    session.ask(8, "count", &args);
    session.answer(8);
    assert_eq!(effects(&bench), 3);
}

#[test]
fn an_agent_that_may_not_settle_is_told_whom_to_ask() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.ask(1, "count", &json!({"error": true}));
    session.answer(1);
    let tools = session.tools(2);
    assert!(
        tools.contains(&"once_status".to_owned()) && !tools.contains(&"once_settle".to_owned()),
        "{tools:?}"
    );
    let told = session.call(3, "count", &json!({"error": true}));
    let command = words(&told).split('`').find(|part| part.ends_with("--as failed")).unwrap().to_owned();
    assert!(command.starts_with("once --ledger sqlite:/"), "{command}");
    let id = command.split(' ').find(|word| word.starts_with("op_")).unwrap();
    let settle = json!({"operation": id, "verdict": "failed", "evidence": "I am quite sure"});
    assert_eq!(session.call(4, "once_settle", &settle)["isError"], json!(true));
    // What it says can be pasted.
    let pasted: Vec<&str> = command.split(' ').skip(1).collect();
    bench.once(&pasted).exits(0);
    session.ask(5, "count", &json!({"error": true}));
    assert!(session.answer(5)["error"].is_object(), "it runs again");
    assert_eq!(effects(&bench), 2);
}

#[test]
fn a_doubt_of_another_scope_is_not_shown_and_not_settled() {
    let bench = Bench::new();
    bench.write("onceward.toml", "[defaults]\nagents_settle = true\n");
    let mut one = Session::scoped(&bench);
    one.ask(1, "count", &json!({"error": true}));
    one.answer(1);
    let id = bench.newest();
    let mut other = Session::start(&bench, &["--scope", "t"]);
    assert!(!other.tools(1).iter().any(|tool| tool.starts_with("once_")));
    let settle = json!({"operation": id, "verdict": "failed", "evidence": "I am quite sure"});
    assert_eq!(about(&other.call(2, "once_settle", &settle))["error"]["code"], "NOT_FOUND");
    assert_eq!(bench.state(&id), "in_doubt");
}

#[test]
fn a_tool_whose_name_says_that_it_reads_is_never_refused_for_ever_and_never_stale() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    for id in 1..=25 {
        session.ask(id, "get_thing", &json!({"rpc_error": [-32603, "fetch failed"]}));
        assert!(session.answer(id)["error"].is_object());
    }
    for id in 30..33 {
        let told = session.call(id, "get_thing", &json!({"tool_error": "not found"}));
        assert!(about(&told).is_null(), "{told}");
    }
    session.call(40, "get_thing", &json!({"die": 3}));
    session.call(41, "get_thing", &json!({"die": 3}));
    assert_eq!(effects(&bench), 30, "each was passed on");
    let mut strict = Session::start(&bench, &["--scope", "t", "--guess", "no"]);
    strict.ask(1, "get_thing", &json!({"error": true}));
    strict.answer(1);
    assert_eq!(about(&strict.call(2, "get_thing", &json!({"error": true})))["error"]["code"], "IN_DOUBT");
}

#[test]
fn a_server_that_died_is_started_again_and_nothing_in_doubt_is_sent_again() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
    session.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}));
    // Clients may ignore news that were not announced, so the proxy announces its own for a server that has none.
    assert_eq!(session.answer(1)["result"]["capabilities"], json!({"tools": {"listChanged": true}}));
    session.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    // A read that waits when the server dies is answered.
    session.ask(2, "look", &json!({"hold": "never"}));
    session.ask(3, "count", &json!({"die": 3}));
    let lost = session.answer(2);
    assert!(lost["error"]["message"].as_str().unwrap().contains("the server ended"), "{lost}");
    assert_eq!(about(&session.answer(3)["result"])["error"]["code"], "IN_DOUBT");
    assert!(words(&session.call(4, "look", &json!({}))).contains("count"));
    assert_eq!(about(&session.call(5, "count", &json!({"die": 3})))["error"]["code"], "IN_DOUBT");
    assert!(about(&session.call(6, "count", &json!({"n": 6}))).is_null());
    assert_eq!(effects(&bench), 2);
    let seen = bench.read("seen");
    assert_eq!(
        (seen.matches("\"initialize\"").count(), seen.matches("notifications/initialized").count()),
        (2, 2)
    );
    assert_eq!(session.leave(), Some(0));
}

#[test]
fn a_server_that_never_said_a_word_is_not_started_again() {
    let bench = Bench::new();
    bench.once(&["mcp", "--scope", "s", "--", "sh", "-c", "exit 7"]).exits(7);
}

#[test]
fn probes_and_checks_call_only_tools_that_are_known_to_read() {
    let bench = Bench::new();
    bench.write(
        "onceward.toml",
        "[operation.count]\nverify = {tool = 'put', args = {value = 'x'}, expect = 'x'}\n\
         verify_deadline = '0s'\nprobe = {tool = 'get_thing', expect = 'x'}\nquarantine = '0s'\n",
    );
    let mut session = Session::scoped(&bench);
    session.call(1, "count", &json!({}));
    session.ask(2, "count", &json!({"error": true}));
    session.answer(2);
    assert_eq!(about(&session.call(3, "count", &json!({"error": true})))["error"]["code"], "IN_DOUBT");
    assert_eq!(effects(&bench), 2, "{}", bench.read("effects"));
}

#[test]
fn a_policy_of_the_working_folder_calls_no_tools_and_turns_nothing_off() {
    let bench = Bench::new();
    bench.write(
        "onceward.toml",
        "[operation.'*']\nclass = 'read'\nagents_settle = true\non_tool_error = 'no_effect'\n\
         verify = {tool = 'put', args = {value = 'x'}, expect = 'x'}\n",
    );
    let said = bench.once(&["mcp", "--explain", "--", "python3", SERVER]).exits(0);
    assert!(said.out().contains("count      once"), "{}", said.out());
    assert!(said.err().contains("onceward.toml"), "{}", said.err());
}

#[test]
fn a_policy_of_the_working_folder_cannot_let_calls_without_a_key_run() {
    let bench = Bench::new();
    bench.write(
        "onceward.toml",
        "[defaults]\nkeys = 'keyed'\nkey_argument = 'note'\n[operation.count]\nkeys = 'keyed'\ntimeout = '1ms'\n",
    );
    // Unlike `Session::start`, which names the file and so trusts it.
    let mut session = Session::under(&bench, &["--scope", "s"]);
    session.ask(1, "count", &json!({"hold": "go"}));
    eventually("it runs", || effects(&bench) == 1);
    session.cancel(1);
    bench.write("go", "");
    let again = session.call(2, "count", &json!({"hold": "go"}));
    assert!(
        ["replayed", "joined"].contains(&about(&again)["status"].as_str().unwrap_or_default()),
        "{again}"
    );
    assert_eq!(bench.read("effects").lines().collect::<Vec<_>>(), [r#"{"hold": "go", "tool": "count"}"#]);
}

#[test]
fn arguments_that_a_tool_has_by_itself_are_the_servers() {
    let bench = Bench::new();
    let mut session = Session::start(&bench, &["--scope", "s", "--expose-key"]);
    session.tools(1);
    session.call(2, "own", &json!({"x": 1, "dry_run": false, "idempotency_key": "k"}));
    session.call(3, "own", &json!({"x": 1, "dry_run": true}));
    let lines = bench.read("effects");
    assert!(lines.contains("\"dry_run\": false, \"idempotency_key\": \"k\""), "{lines}");
    assert!(lines.contains("\"dry_run\": true"), "{lines}");
    for (id, dry) in [(4, json!("true")), (5, json!(1)), (6, json!(true)), (7, json!("maybe"))] {
        let told = session.call(id, "count", &json!({"n": 1, "dry_run": dry}));
        assert_eq!(told["isError"], json!(true), "{told}");
    }
    assert_eq!(
        about(&session.call(8, "count", &json!({"idempotency_key": 7})))["error"]["code"],
        "INVALID_INPUT"
    );
    assert_eq!(effects(&bench), 2);
}

#[test]
fn a_dry_run_is_one_before_the_tools_are_listed_too() {
    let bench = Bench::new();
    bench.write("onceward.toml", "[operation.count]\nclass = 'once'\n");
    for flags in [&["--expose-key", "--distrust-annotations"][..], &["--expose-key"]] {
        let mut session = Session::start(&bench, &[&["--scope", "s"], flags].concat());
        for (id, name) in [(1, "dry_run"), (2, "dryRun"), (3, "is_dry_run"), (4, "dry-run-only")] {
            let told = session.call(id, "count", &json!({"n": 1, name: true}));
            assert_eq!(about(&told)["status"], "dry_run", "{name}: {told}");
        }
        // The server does not list it, so it is not known whether the argument is the tool's own.
        let told = session.call(5, "unlisted", &json!({"n": 1, "dry_run": true}));
        assert_eq!(about(&told)["status"], "dry_run", "{told}");
    }
    assert_eq!(effects(&bench), 0);
}

#[test]
fn a_request_whose_id_is_null_is_answered() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.send(&json!({"jsonrpc": "2.0", "id": null, "method": "tools/call", "params": {"name": "count"}}));
    assert!(session.line().contains("-32600"));
    assert_eq!(effects(&bench), 0);
}
