//! The human is asked about a doubt, through a client that can be asked.

use serde_json::{Value, json};

use crate::common::{Bench, eventually};
use crate::mcp::session::{Session, about, effects, request, words};

/// The call that is in doubt: the server answers with an error after its effect.
fn doubtful() -> Value {
    json!({"n": 1, "error": true})
}

/// A session of the older era whose client can do this, with one operation in doubt.
fn in_doubt(bench: &Bench, capabilities: &Value, flags: &[&str]) -> Session {
    let mut session = Session::start(bench, &[&["--scope", "s"], flags].concat());
    let hello =
        json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": {"name": "t"}});
    session.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}));
    session.answer(1);
    session.ask(2, "count", &doubtful());
    assert!(session.answer(2)["error"].is_object());
    session
}

/// Answers the question that comes next; gives the question.
fn say(session: &mut Session, result: &Value) -> Value {
    let question: Value = serde_json::from_str(&session.line()).unwrap();
    assert_eq!(question["method"], "elicitation/create", "{question}");
    session.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": result}));
    question
}

fn accept(outcome: &str) -> Value {
    json!({"action": "accept", "content": {"outcome": outcome}})
}

fn settled_by(bench: &Bench) -> Value {
    bench.json(&["show", &bench.newest()])["data"]["outcome"]["settled_by"]["name"].clone()
}

#[test]
fn what_the_human_says_happened_is_done_and_not_run_again() {
    let bench = Bench::new();
    let mut session = in_doubt(&bench, &json!({"elicitation": {}}), &[]);
    session.ask(3, "count", &doubtful());
    let question = say(&mut session, &accept("happened"));
    let message = question["params"]["message"].as_str().unwrap();
    for part in ["count was called at 2", "broke after the effect", "op_", "\"n\":1"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let choices = &question["params"]["requestedSchema"]["properties"]["outcome"]["enum"];
    assert_eq!(*choices, json!(["happened", "did_not_happen", "leave"]));
    let told = session.answer(3)["result"].clone();
    assert_eq!(
        (&about(&told)["status"], &about(&told)["operation"]["state"]),
        (&json!("replayed"), &json!("done")),
        "{told}"
    );
    assert_eq!(effects(&bench), 1);
    assert_eq!(settled_by(&bench), "the human, asked through the client");
    assert!(!bench.read("seen").contains("outcome"), "the server saw the answer to our question");
}

#[test]
fn what_the_human_says_did_not_happen_runs_within_the_call() {
    let bench = Bench::new();
    let mut session = in_doubt(&bench, &json!({"elicitation": {"form": {}}}), &[]);
    session.ask(3, "count", &doubtful());
    say(&mut session, &accept("did_not_happen"));
    assert!(session.answer(3)["error"].is_object(), "the server's own answer to the second attempt");
    assert_eq!(effects(&bench), 2);
    // It is in doubt again, and that is another question.
    session.ask(4, "count", &doubtful());
    let question = say(&mut session, &accept("happened"));
    assert!(question["params"]["message"].as_str().unwrap().contains("attempt 2"));
    session.answer(4);
    assert_eq!(effects(&bench), 2);
}

#[test]
fn who_does_not_know_changes_nothing() {
    let bench = Bench::new();
    let mut session = in_doubt(&bench, &json!({"elicitation": {}}), &[]);
    for (id, reply) in
        [(3, json!({"action": "decline"})), (4, json!({"action": "cancel"})), (5, accept("leave"))]
    {
        session.ask(id, "count", &doubtful());
        say(&mut session, &reply);
        assert_eq!(about(&session.answer(id)["result"])["error"]["code"], "IN_DOUBT", "{reply}");
    }
    session.ask(6, "count", &doubtful());
    let question: Value = serde_json::from_str(&session.line()).unwrap();
    // The same call again is answered at once, and the human is not asked twice.
    assert_eq!(about(&session.call(7, "count", &doubtful()))["error"]["code"], "IN_DOUBT");
    // A cancelled call no longer has an open question.
    session.cancel(6);
    let gone: Value = serde_json::from_str(&session.line()).unwrap();
    assert_eq!(gone["method"], "notifications/cancelled");
    assert_eq!(gone["params"]["requestId"], question["id"]);
    session.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": accept("did_not_happen")}));
    assert!(session.is_silent(200));
    assert_eq!(bench.state(&bench.newest()), "in_doubt");
    assert_eq!(effects(&bench), 1);
    assert_eq!(session.leave(), Some(0));
}

#[test]
fn a_client_that_never_answers_is_not_waited_for_longer_than_for_a_call() {
    let bench = Bench::new();
    let mut session = in_doubt(&bench, &json!({"elicitation": {}}), &["--wait", "300ms"]);
    session.ask(3, "count", &doubtful());
    let question: Value = serde_json::from_str(&session.line()).unwrap();
    assert_eq!(question["method"], "elicitation/create");
    assert_eq!(about(&session.answer(3)["result"])["error"]["code"], "IN_DOUBT");
    assert_eq!(effects(&bench), 1);
}

#[test]
fn a_client_that_cannot_be_asked_is_not() {
    for (capabilities, flags) in [
        (json!({}), &[][..]),
        (json!({"elicitation": {"url": {}}}), &[]),
        (json!({"elicitation": {}}), &["--no-ask"]),
    ] {
        let bench = Bench::new();
        let mut session = in_doubt(&bench, &capabilities, flags);
        session.ask(3, "count", &doubtful());
        let first: Value = serde_json::from_str(&session.line()).unwrap();
        assert_eq!(about(&first["result"])["error"]["code"], "IN_DOUBT", "{first}");
        assert_eq!(effects(&bench), 1);
    }
}

/// A call of the stateless era, from a client that can be asked.
fn modern(id: u64, args: &Value, more: &Value) -> Value {
    let mut request = request(id, "count", args);
    request["params"]["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    });
    for (name, value) in more.as_object().unwrap() {
        request["params"][name] = value.clone();
    }
    request
}

/// The state that a call in doubt is answered with.
fn asked(session: &mut Session, id: u64, args: &Value) -> Value {
    session.send(&modern(id, args, &json!({})));
    let result = session.answer(id)["result"].clone();
    assert_eq!(result["resultType"], "input_required", "{result}");
    let question = &result["inputRequests"]["once_unknown"];
    assert_eq!(
        (&question["method"], &question["params"]["mode"]),
        (&json!("elicitation/create"), &json!("form"))
    );
    result["requestState"].clone()
}

fn brought(outcome: &str, state: &Value) -> Value {
    json!({"inputResponses": {"once_unknown": accept(outcome)}, "requestState": state})
}

#[test]
fn in_the_stateless_era_the_question_is_the_answer_and_the_next_call_brings_the_humans() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.send(&modern(1, &doubtful(), &json!({})));
    assert!(session.answer(1)["error"].is_object());
    let state = asked(&mut session, 2, &doubtful());
    session.send(&modern(3, &doubtful(), &brought("did_not_happen", &state)));
    assert!(session.answer(3)["error"].is_object(), "the server's own answer");
    assert_eq!(effects(&bench), 2);
    let seen = bench.read("seen");
    assert!(
        !seen.contains("requestState") && !seen.contains("once_unknown"),
        "the server saw our question: {seen}"
    );
    // An answer counts once: the second attempt is another question.
    session.send(&modern(4, &doubtful(), &brought("did_not_happen", &state)));
    let result = session.answer(4)["result"].clone();
    assert_eq!(result["resultType"], "input_required", "{result}");
    assert_eq!(effects(&bench), 2);
    session.send(&modern(5, &doubtful(), &brought("happened", &result["requestState"])));
    let told = session.answer(5)["result"].clone();
    assert_eq!(
        (&about(&told)["status"], &about(&told)["operation"]["attempt"]),
        (&json!("replayed"), &json!(2))
    );
    // And after it was settled, it still means that operation and runs nothing.
    session.send(&modern(6, &doubtful(), &brought("did_not_happen", &result["requestState"])));
    assert_eq!(about(&session.answer(6)["result"])["status"], "replayed");
    assert_eq!(effects(&bench), 2);
}

#[test]
fn what_nobody_has_asked_settles_nothing() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.send(&modern(1, &doubtful(), &json!({})));
    session.answer(1);
    let state = asked(&mut session, 2, &doubtful());
    let text = state.as_str().unwrap();
    let forged =
        [json!("once1.e30.AAAA"), json!(format!("{text}A")), json!(text.replacen("once1.e", "once1.f", 1))];
    for (id, state) in (3..).zip(&forged) {
        session.send(&modern(id, &doubtful(), &brought("did_not_happen", state)));
        let told = session.answer(id)["result"].clone();
        assert_eq!(about(&told)["error"]["code"], "INVALID_INPUT", "{told}");
    }
    // An answer about one call is none about another.
    session.send(&modern(6, &json!({"n": 2}), &brought("did_not_happen", &state)));
    assert_eq!(about(&session.answer(6)["result"])["error"]["code"], "INVALID_INPUT");
    // If the human does not know, the answer is the usual one.
    session.send(&modern(7, &doubtful(), &brought("leave", &state)));
    assert_eq!(about(&session.answer(7)["result"])["error"]["code"], "IN_DOUBT");
    // Another proxy has another secret.
    session.leave();
    let mut session = Session::scoped(&bench);
    session.send(&modern(8, &doubtful(), &brought("did_not_happen", &state)));
    assert_eq!(about(&session.answer(8)["result"])["error"]["code"], "INVALID_INPUT");
    // A client that did not say that it can be asked is not.
    let mut silent = modern(9, &doubtful(), &json!({}));
    silent["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    session.send(&silent);
    assert_eq!(about(&session.answer(9)["result"])["error"]["code"], "IN_DOUBT");
    assert_eq!(effects(&bench), 1);
    assert_eq!(bench.state(&bench.newest()), "in_doubt");
}

#[test]
fn a_servers_own_exchange_is_left_alone_and_put_back() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    let leg = json!({"inputResponses": {"name": {"action": "accept"}}, "requestState": "the server's own"});
    session.send(&modern(1, &doubtful(), &leg));
    assert!(session.answer(1)["error"].is_object());
    session.send(&modern(2, &doubtful(), &leg));
    let result = session.answer(2)["result"].clone();
    assert_eq!(result["resultType"], "input_required", "{result}");
    session.send(&modern(3, &doubtful(), &brought("did_not_happen", &result["requestState"])));
    assert!(session.answer(3)["error"].is_object());
    eventually("it ran", || effects(&bench) == 2);
    let seen = bench.read("seen");
    let calls = seen.lines().filter(|line| line.contains("tools/call")).map(|line| {
        let params = serde_json::from_str::<Value>(line).unwrap()["params"].clone();
        (params["inputResponses"].clone(), params["requestState"].clone())
    });
    let own = (leg["inputResponses"].clone(), leg["requestState"].clone());
    assert_eq!(calls.collect::<Vec<_>>(), [own.clone(), own]);
    assert!(words(&session.call(9, "look", &json!({}))).contains("error"));
}
