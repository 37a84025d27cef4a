//! What no client or server should do, and what some do.

use serde_json::json;

use crate::common::Bench;
use crate::mcp::session::{Session, about, effects, request, words};

#[test]
fn what_is_not_understood_passes_as_it_is() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    let lines: [&[u8]; 6] = [
        b"not json",
        b"{\"jsonrpc\":\"2.0\",\"id\":",
        b"[1,2,{\"method\":\"x\"}]",
        b"{\"id\":1,\"method\":\"tools/call\",\"params\":[]}",
        b"{\"id\":{},\"method\":\"a\"}",
        b"{}",
    ];
    for line in lines {
        session.send_line(line);
    }
    let exact = "{ \"jsonrpc\": \"2.0\",\"id\":12345678901234567890123, \"method\":\"x/y\", \"n\":1.0e2}";
    session.send_line(exact.as_bytes());
    session.send(&json!({"jsonrpc": "2.0", "id": 7, "method": "ping"}));
    assert_eq!(session.answer(7)["result"]["echo"]["method"], "ping");
    let seen = std::fs::read(bench.path("seen")).unwrap();
    let mut expected: Vec<u8> = lines.join(&b"\n"[..]);
    expected.extend_from_slice(format!("\n{exact}\n").as_bytes());
    assert!(seen.starts_with(&expected), "{}", String::from_utf8_lossy(&seen));
}

#[test]
fn a_call_that_cannot_be_read_is_not_passed_on() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    let calls: [&[u8]; 3] = [
        br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count","arguments":{"n":NaN}}}"#,
        br#"[{"jsonrpc":"2.0","id":2,"method":"tools\/call","params":{"name":"count","arguments":{"n":NaN}}}]"#,
        b"{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"tools/call\",\"params\":{\"name\":\"count\",\"arguments\":{\"n\":\"\xff\"}}}",
    ];
    for (id, line) in (1..).zip(calls) {
        session.send_line(line);
        assert_eq!(session.answer(id)["error"]["code"], json!(-32700));
    }
    session.send_line(br#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"count"}}"#);
    session.call(4, "look", &json!({}));
    assert_eq!(effects(&bench), 0);
}

#[test]
fn a_server_that_answers_twice_or_not_in_json_does_not_stop_anybody() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    assert_eq!(words(&session.call(1, "count", &json!({"twice": true}))), "run 1");
    assert!(session.is_silent(100), "the second answer came through");
    let result = session.call(2, "count", &json!({"garbage": true}));
    assert_eq!(about(&result)["error"]["code"], "IN_DOUBT");
    assert_eq!(words(&session.call(3, "count", &json!({}))), "run 1");
}

#[test]
fn an_id_that_is_used_again_gets_both_answers() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.ask(5, "count", &json!({"n": 1}));
    session.ask(5, "count", &json!({"n": 2}));
    session.send(&json!({"jsonrpc": "2.0", "id": 5, "method": "ping"}));
    for _ in 0..3 {
        session.answer(5);
    }
    assert_eq!(effects(&bench), 2);
    // A client may use an id that looks like one of ours.
    for id in [1_000_000_001_u64, 1_000_000_002, 1_000_000_003] {
        session.send(&json!({"jsonrpc": "2.0", "id": id, "method": "ping"}));
        assert_eq!(session.answer(id)["id"], json!(id));
    }
}

#[test]
fn a_batch_with_calls_is_guarded() {
    let bench = Bench::new();
    let mut session = Session::start(&bench, &["--scope", "s", "--keys", "strict"]);
    let batch = json!([request(1, "count", &json!({})), request(2, "count", &json!({})),
                       {"jsonrpc": "2.0", "id": 3, "method": "ping"}]);
    session.send(&batch);
    for id in 1..=3 {
        session.answer(id);
    }
    assert_eq!(effects(&bench), 1);
}

#[test]
fn long_lines_pass_both_ways_and_a_result_that_is_too_large_is_done_without_it() {
    const SIZE: usize = 20 * 1024 * 1024;
    let bench = Bench::new();
    let mut session = Session::start(&bench, &["--scope", "s", "--keys", "strict"]);
    let result = session.call(1, "count", &json!({"size": SIZE}));
    assert_eq!(words(&result).len(), SIZE);
    let again = session.call(2, "count", &json!({"size": SIZE}));
    assert_eq!((&again["isError"], &about(&again)["status"]), (&json!(false), &json!("replayed")));
    let long = "y".repeat(SIZE);
    session.send(&json!({"jsonrpc": "2.0", "id": 3, "method": "echo", "params": {"long": long}}));
    assert_eq!(session.answer(3)["result"]["echo"]["params"]["long"].as_str().map(str::len), Some(SIZE));
    assert_eq!(effects(&bench), 1);
}

#[test]
fn a_thousand_calls_are_under_way_at_once() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    for id in 0..1000 {
        session.ask(id, "count", &json!({"n": id}));
    }
    for id in 0..1000 {
        assert_eq!(words(&session.answer(id)["result"]), "run 1");
    }
    assert_eq!(effects(&bench), 1000);
    // They take turns at the streams, and not a thread each.
    let status = std::fs::read_to_string(format!("/proc/{}/status", session.process.id())).unwrap();
    let threads = status.lines().find_map(|line| line.strip_prefix("Threads:")).unwrap();
    assert!(threads.trim().parse::<u32>().unwrap() < 100, "{threads}");
}
