//! What a policy says about tools.

use serde_json::json;

use crate::common::{Bench, eventually};
use crate::mcp::session::{SERVER, Session, about, effects, words};

#[test]
fn explain_says_what_each_tool_is_and_why() {
    let bench = Bench::new();
    let said = bench.once(&["mcp", "--explain", "--server", "shop", "--", "python3", SERVER]).exits(0);
    insta::assert_snapshot!(said.out(), @r"
    TOOL       CLASS       KEYS  WHY
    count      once        auto  it has no annotations
    exact      once        auto  it has no annotations
    get_thing  idempotent  auto  a guess: it says `get`
    inner      once        auto  it has no annotations
    look       read        auto  readOnlyHint
    own        once        auto  it has no annotations
    put        idempotent  auto  idempotentHint
    say        once        auto  it has no annotations
    ");
    let said = bench.once(&["mcp", "--explain", "--guess", "no", "--", "python3", SERVER]).exits(0);
    assert!(said.out().contains("get_thing  once"), "{}", said.out());
    bench.once(&["mcp", "init", "--server", "shop", "--", "python3", SERVER]).exits(0);
    let policy = bench.read("onceward.toml");
    assert!(policy.contains("[operation.\"shop/count\"]\nclass = \"once\""), "{policy}");
    assert!(policy.contains("# [operation.\"shop/get_thing\"]\n# class"), "{policy}");
    bench
        .once(&["mcp", "init", "--guess", "believed.toml", "--server", "shop", "--", "python3", SERVER])
        .exits(0);
    assert!(bench.read("believed.toml").contains("\n[operation.\"shop/get_thing\"]\nclass = \"idempotent\""));
    let said = ["--config", "believed.toml", "mcp", "--explain", "--server", "shop", "--", "python3", SERVER];
    assert_eq!(bench.once(&said).exits(0).out().matches("the policy says so").count(), 8);
    bench.once(&["mcp", "init", "--server", "shop", "--", "python3", SERVER]).exits(2);
}

#[test]
fn the_policy_comes_before_the_annotations() {
    let bench = Bench::new();
    bench.write(
        "onceward.toml",
        "[operation.look]\nclass = 'once'\nkeys = 'strict'\n[operation.count]\nclass = 'read'",
    );
    let mut session = Session::scoped(&bench);
    session.call(1, "look", &json!({}));
    assert_eq!(about(&session.call(2, "look", &json!({})))["status"], "replayed");
    session.call(3, "count", &json!({}));
    session.call(4, "count", &json!({}));
    session.leave();
    assert_eq!(bench.json(&["ls"])["data"].as_array().unwrap().len(), 1);
}

#[test]
fn another_tool_tells_whether_it_happened() {
    let bench = Bench::new();
    bench.write(
        "onceward.toml",
        "[operation.count]\nprobe = {tool = 'look', expect = '\"n\": {n}'}\nquarantine = '0s'\n",
    );
    // It happened, and the server died of it.
    let mut session = Session::scoped(&bench);
    session.call(1, "count", &json!({"n": 1, "die": 3}));
    assert_eq!(session.leave(), Some(3));
    let mut session = Session::scoped(&bench);
    for id in [1, 2] {
        let result = session.call(id, "count", &json!({"n": 1, "die": 3}));
        assert_eq!((&about(&result)["status"], &result["isError"]), (&json!("replayed"), &json!(false)));
        assert!(words(&result).contains("look says that it happened"), "{result}");
    }
    assert_eq!(effects(&bench), 1);
    // It is in doubt and did not happen: it runs again automatically.
    session.call(2, "count", &json!({"n": 2, "error": true}));
    std::fs::remove_file(bench.path("effects")).unwrap();
    session.ask(3, "count", &json!({"n": 2, "error": true}));
    assert!(session.answer(3)["error"].is_object());
    assert_eq!(effects(&bench), 1);
}

#[test]
fn another_tool_checks_a_success() {
    let bench = Bench::new();
    bench.write("onceward.toml", "[operation.count]\nverify = {tool = 'look', expect = '\"n\": 7'}\n");
    let mut session = Session::scoped(&bench);
    assert_eq!(words(&session.call(1, "count", &json!({"n": 7}))), "run 1");
    assert_eq!(bench.json(&["show", &bench.newest()])["data"]["verified"], "confirmed");
    session.call(2, "put", &json!({"value": "x"}));
    std::fs::remove_file(bench.path("effects")).unwrap();
    session.call(3, "count", &json!({"n": 8}));
    assert_eq!(about(&session.call(4, "count", &json!({"n": 8})))["error"]["code"], "UNVERIFIED");
}

#[test]
fn calls_with_the_same_lock_do_not_overlap_in_any_process() {
    let bench = Bench::new();
    bench.write("onceward.toml", "[operation.count]\nlock = 'user:{user}'\n");
    let mut one = Session::scoped(&bench);
    let mut two = Session::scoped(&bench);
    one.ask(1, "count", &json!({"user": 7, "hold": "go"}));
    eventually("one runs", || effects(&bench) == 1);
    two.ask(1, "count", &json!({"user": 7, "n": 2}));
    assert!(two.is_silent(200) && effects(&bench) == 1);
    two.call(2, "count", &json!({"user": 8}));
    // A call that waits too long gets an answer that names the lock.
    let mut hasty = Session::start(&bench, &["--scope", "s", "--wait", "100ms"]);
    let told = hasty.call(3, "count", &json!({"user": 7, "n": 3}));
    assert_eq!(about(&told)["error"]["code"], "IN_PROGRESS");
    assert!(words(&told).contains("held the lock that count needs"), "{told}");
    bench.write("go", "");
    one.answer(1);
    two.answer(1);
    assert_eq!(effects(&bench), 3);
}

#[test]
fn no_more_calls_of_a_tool_run_than_the_policy_allows() {
    let bench = Bench::new();
    bench.write("onceward.toml", "[operation.count]\nconcurrency = 2\n");
    let mut session = Session::scoped(&bench);
    for id in 0..5 {
        session.ask(id, "count", &json!({"n": id, "hold": "go"}));
    }
    eventually("two run", || effects(&bench) == 2);
    assert!(session.is_silent(200) && effects(&bench) == 2);
    bench.write("go", "");
    for id in 0..5 {
        session.answer(id);
    }
    assert_eq!(effects(&bench), 5);
}

#[test]
fn a_tool_that_takes_a_key_gets_ours_and_may_run_again() {
    let bench = Bench::new();
    bench.write("onceward.toml", "[operation.count]\nclass = 'keyed'\nkey_argument = 'request_id'\n");
    let mut session = Session::scoped(&bench);
    for id in [1, 2] {
        session.ask(id, "count", &json!({"error": true}));
        session.answer(id);
    }
    let effects = bench.read("effects");
    let lines: Vec<&str> = effects.lines().collect();
    assert_eq!((lines.len(), lines[0]), (2, lines[1]), "the second attempt has the first one's key");
    assert!(effects.contains("\"request_id\": \"op_"), "{effects}");
}

#[test]
fn a_caller_that_the_policy_lets_wait_no_longer_is_told_that_it_goes_on() {
    let bench = Bench::new();
    bench.write("onceward.toml", "[operation.count]\ntimeout = '100ms'\n");
    let mut session = Session::scoped(&bench);
    let result = session.call(1, "count", &json!({"hold": "go"}));
    assert_eq!(about(&result)["error"]["code"], "IN_PROGRESS");
    bench.write("go", "");
    eventually("it is done", || bench.json(&["ls"])["data"][0]["state"] == "done");
    assert_eq!(about(&session.call(2, "count", &json!({"hold": "go"})))["status"], "replayed");
    assert_eq!(effects(&bench), 1);
}
