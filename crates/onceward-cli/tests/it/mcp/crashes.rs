//! Who dies, and what is known afterwards.

use std::io::Write;
use std::process::Stdio;

use serde_json::json;

use crate::common::{Bench, eventually};
use crate::mcp::session::{SERVER, Session, about, effects, request, words};

#[test]
fn a_server_that_dies_leaves_the_call_in_doubt_and_nobody_repeats_it() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.call(9, "look", &json!({}));
    let result = session.call(1, "count", &json!({"die": 3}));
    assert_eq!((&result["isError"], &about(&result)["error"]["code"]), (&json!(true), &json!("IN_DOUBT")));
    assert!(words(&result).contains("this call of count was sent "), "{result}");
    assert_eq!((&about(&result)["ran"], &about(&result)["happened"]), (&json!(true), &json!("unknown")));
    assert_eq!(session.leave(), Some(3));
    let mut session = Session::scoped(&bench);
    let result = session.call(1, "count", &json!({"die": 3}));
    let told = words(&result);
    for part in [
        "IN_DOUBT",
        "the same call of count was sent ",
        "exit status: 3",
        "look",
        "A person or a probe must record",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!(effects(&bench), 1);
    // Settled as failed, the same call runs.
    let id = bench.newest();
    bench.once(&["settle", &id, "--as", "failed"]).exits(0);
    session.call(2, "count", &json!({"die": 3}));
    assert_eq!(effects(&bench), 2);
}

#[test]
fn a_doubt_that_is_settled_as_done_answers_the_retry() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.call(1, "count", &json!({"die": 3}));
    drop(session);
    let result = r#"{"content":[{"type":"text","text":"by hand"}]}"#;
    bench.once(&["settle", &bench.newest(), "--as", "done", "--data", result]).exits(0);
    let mut session = Session::scoped(&bench);
    let told = words(&session.call(1, "count", &json!({"die": 3})));
    assert!(told.starts_with("[once] Replayed: already done") && told.ends_with("\nby hand"), "{told}");
    assert_eq!(effects(&bench), 1);
}

#[test]
fn a_proxy_that_is_killed_leaves_the_call_in_doubt() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.ask(1, "count", &json!({"hold": "go"}));
    eventually("it runs", || effects(&bench) == 1);
    session.kill();
    bench.write("go", "");
    let mut session = Session::scoped(&bench);
    let result = session.call(1, "count", &json!({"hold": "go"}));
    assert_eq!(about(&result)["operation"]["state"], "in_doubt");
    assert_eq!(effects(&bench), 1);
}

#[test]
fn an_error_of_the_protocol_is_passed_on_once_and_not_repeated() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.ask(1, "count", &json!({"error": true}));
    assert_eq!(session.answer(1)["error"]["code"], json!(-32603));
    for id in [2, 3] {
        assert_eq!(about(&session.call(id, "count", &json!({"error": true})))["error"]["code"], "IN_DOUBT");
    }
    assert_eq!(effects(&bench), 1);
}

#[test]
fn a_call_that_the_servers_sdk_rejects_may_be_made_again() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    for id in 5..30 {
        session.ask(id, "count", &json!({"reject": true}));
        assert_eq!(session.answer(id)["error"]["code"], json!(-32602));
    }
    assert_eq!(effects(&bench), 0);
}

#[test]
fn a_client_that_leaves_does_not_take_its_call_with_it() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.ask(1, "count", &json!({"hold": "go"}));
    eventually("it runs", || effects(&bench) == 1);
    session.close_input();
    bench.write("go", "");
    session.leave();
    assert_eq!(bench.state(&bench.newest()), "done");
}

#[test]
fn a_client_that_is_gone_has_not_got_its_answer() {
    let bench = Bench::new();
    let mut command = bench.command(&["mcp", "--scope", "s", "--", "python3", SERVER]);
    let mut process = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let asked = format!("{}\n", request(1, "count", &json!({"hold": "go"})));
    process.stdin.as_mut().unwrap().write_all(asked.as_bytes()).unwrap();
    eventually("it runs", || effects(&bench) == 1);
    // The proxy no longer has a reader.
    drop(process.stdout.take());
    bench.write("go", "");
    eventually("it is done", || bench.json(&["ls"])["data"][0]["state"] == "done");
    drop(process.stdin.take());
    process.wait().unwrap();
    let mut session = Session::scoped(&bench);
    assert_eq!(about(&session.call(1, "count", &json!({"hold": "go"})))["status"], "replayed");
    assert_eq!(effects(&bench), 1);
}

#[test]
fn a_ledger_that_cannot_be_written_lets_nothing_run() {
    let bench = Bench::new();
    bench.write("once.db", "this is no ledger");
    bench.once(&["mcp", "--scope", "s", "--", "true"]).exits(12);
}

#[test]
fn no_server_no_effect() {
    let bench = Bench::new();
    assert!(bench.once(&["mcp", "--", "/no/such/server"]).exits(1).err().contains("cannot start"));
    bench.once(&["mcp"]).exits(2);
}

#[test]
fn a_client_that_is_about_to_kill_gets_an_orderly_end_before() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.ask(1, "count", &json!({"hold": "never"}));
    eventually("it runs", || effects(&bench) == 1);
    // As SDKs do it: the input is closed, SIGTERM comes, and SIGKILL would come two seconds later.
    session.close_input();
    let pid = nix::unistd::Pid::from_raw(i32::try_from(session.process.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    eventually("it ends by itself", || session.process.try_wait().unwrap().is_some());
    let listed = bench.json(&["ls"]);
    assert_eq!(listed["data"][0]["state"], "in_doubt", "{listed}");
    assert!(
        listed.to_string().contains("the server ended"),
        "written down, and not only seen later: {listed}"
    );
}

#[test]
fn replays_are_counted_also_when_the_proxy_ends_at_once() {
    let bench = Bench::new();
    let mut session = Session::start(&bench, &["--scope", "s", "--keys", "strict"]);
    for id in 1..=12 {
        session.call(id, "count", &json!({}));
    }
    session.leave();
    assert_eq!(
        (effects(&bench), &bench.json(&["report", "--scope", "s"])["data"]["replays"]),
        (1, &json!(11))
    );
}
