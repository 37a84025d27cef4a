//! Calls that are held back: the answer says so, and the proxy sends each once when it may start.

use serde_json::{Value, json};

use crate::common::{Bench, eventually};
use crate::mcp::session::{Session, about, code, effects, words};
use crate::mcp::web::Web;

fn held_session(bench: &Bench, hold: &str, capabilities: &Value) -> Session {
    bench.policy(&format!("[operation.count]\nhold = \"{hold}\"\n"));
    session(bench, capabilities)
}

fn session(bench: &Bench, capabilities: &Value) -> Session {
    let mut session = Session::start(bench, &["--scope", "s"]);
    let hello =
        json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": {"name": "t"}});
    session.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}));
    session.answer(1);
    session.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    session
}

fn state(bench: &Bench) -> Value {
    bench.json(&["ls"])["data"][0]["state"].clone()
}

#[test]
fn a_held_call_is_no_success_and_is_sent_once_when_its_time_comes() {
    let bench = Bench::new();
    let mut session = held_session(&bench, "2s", &json!({}));
    for id in [2, 3] {
        let result = session.call(id, "count", &json!({"n": 1}));
        assert_eq!(result["isError"], false, "{result}");
        let facts = ["ok", "effect", "happened", "ran", "status"].map(|name| about(&result)[name].clone());
        assert_eq!(json!(facts.to_vec()), json!([true, "held", "no", false, "held"]), "{result}");
        let said = words(&result);
        assert!(
            said.starts_with("[once] Held: count: held until 2") && said.contains("nothing was sent"),
            "{said}"
        );
        assert!(said.contains("make the same call again") && said.contains(&bench.newest()), "{said}");
    }
    assert_eq!((effects(&bench), state(&bench)), (0, json!("staged")));
    eventually("the proxy sends it", || state(&bench) == "done");
    let result = session.call(4, "count", &json!({"n": 1}));
    assert_eq!((&about(&result)["status"], effects(&bench)), (&json!("replayed"), 1), "{result}");
}

#[test]
fn an_agent_is_not_told_the_command_that_releases_its_call() {
    for more in ["", "agents_settle = true\n"] {
        let bench = Bench::new();
        bench.policy(&format!("[operation.count]\nhold = \"approve\"\n{more}"));
        let result = session(&bench, &json!({})).call(2, "count", &json!({"n": 1}));
        let all = result.to_string();
        assert!(all.contains(&bench.newest()) && all.contains("`once held`"), "{all}");
        for command in [" release op_", " cancel op_", "once release"] {
            assert!(!all.contains(command), "{command}: {all}");
        }
    }
}

#[test]
fn over_http_the_same_call_again_sends_what_a_person_released() {
    let bench = Bench::new();
    bench.policy("[operation.count]\nhold = \"approve\"\n");
    let web = Web::scoped(&bench);
    let held = web.call(1, &json!({"n": 1}));
    assert!(words(&held).contains("After that, make the same call again"), "{held}");
    let released = bench.once(&["release", &bench.newest()]).exits(0);
    assert!(released.out().contains("over HTTP, the same call again"), "{}", released.out());
    assert_eq!(effects(&bench), 0);
    let sent = web.call(2, &json!({"n": 1}));
    assert_eq!((&sent["structuredContent"]["run"], effects(&bench)), (&json!(1), 1), "{sent}");
}

#[test]
fn a_call_that_a_person_released_is_sent_by_the_next_proxy_too() {
    let bench = Bench::new();
    let mut first = held_session(&bench, "approve", &json!({}));
    let result = first.call(2, "count", &json!({"n": 1}));
    assert_eq!(about(&result)["effect"], "held", "{result}");
    first.leave();
    let released = bench.once(&["release", &bench.newest()]).exits(0);
    assert!(released.out().contains("once mcp"), "{}", released.out());
    assert_eq!(effects(&bench), 0);
    let _second = session(&bench, &json!({}));
    eventually("the next proxy sends it", || state(&bench) == "done");
    assert_eq!(effects(&bench), 1);
}

#[test]
fn a_cancelled_call_is_never_sent() {
    let bench = Bench::new();
    let mut session = held_session(&bench, "1s", &json!({}));
    session.call(2, "count", &json!({"n": 1}));
    bench.once(&["cancel", &bench.newest()]).exits(0);
    // Another call that is held for as long is sent; by then the cancelled one would have been.
    session.call(3, "count", &json!({"n": 2}));
    eventually("the other one is sent", || effects(&bench) == 1);
    assert_eq!(bench.json(&["ls", "--state", "cancelled"])["data"].as_array().unwrap().len(), 1);
    // The agent does what the first answer told it.
    for id in [4, 5] {
        assert_eq!(code(&session.call(id, "count", &json!({"n": 1}))), "CANCELLED");
    }
    session.leave();
    let mut session = crate::mcp::session::Session::start(&bench, &["--scope", "s"]);
    assert_eq!(
        code(&session.call(1, "count", &json!({"n": 1}))),
        "CANCELLED",
        "another process knows it too"
    );
    assert_eq!(effects(&bench), 1);
}

#[test]
fn when_the_window_after_a_refusal_is_over_the_same_call_is_held_again() {
    let bench = Bench::new();
    bench.policy("[operation.count]\nhold = \"approve\"\nrepeat_window = \"0s\"\n");
    let mut session = session(&bench, &json!({}));
    session.call(2, "count", &json!({"n": 1}));
    bench.once(&["cancel", &bench.newest()]).exits(0);
    assert_eq!(code(&session.call(3, "count", &json!({"n": 1}))), "CANCELLED");
    let held = session.call(4, "count", &json!({"n": 1}));
    assert_eq!(about(&held)["status"], "held", "{held}");
    assert_eq!(effects(&bench), 0);
}

/// Answers the question that comes next.
fn say(session: &mut Session, outcome: &str) -> Value {
    let question: Value = serde_json::from_str(&session.line()).unwrap();
    assert_eq!(question["method"], "elicitation/create", "{question}");
    let result = json!({"action": "accept", "content": {"outcome": outcome}});
    session.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": result}));
    question
}

#[test]
fn the_human_is_asked_whether_to_send_it() {
    let bench = Bench::new();
    let mut session = held_session(&bench, "approve", &json!({"elicitation": {}}));
    session.ask(2, "count", &json!({"n": 1}));
    let question = say(&mut session, "send");
    let choices = &question["params"]["requestedSchema"]["properties"]["outcome"]["enum"];
    assert_eq!(*choices, json!(["send", "cancel", "leave"]));
    let message = question["params"]["message"].as_str().unwrap();
    assert!(message.contains("nothing was sent") && message.contains("\"n\":1"), "{message}");
    let result = session.answer(2)["result"].clone();
    assert_eq!((result["structuredContent"]["run"].clone(), effects(&bench)), (json!(1), 1), "{result}");

    session.ask(3, "count", &json!({"n": 2}));
    say(&mut session, "cancel");
    let result = session.answer(3)["result"].clone();
    assert!(result["isError"] == true && words(&result).contains("CANCELLED"), "{result}");
    session.ask(4, "count", &json!({"n": 3}));
    say(&mut session, "leave");
    assert_eq!(about(&session.answer(4)["result"])["effect"], "held");
    assert_eq!(effects(&bench), 1);
}
