//! `once stop` while a call is under way: the server gets a cancellation, and the evidence decides.

use serde_json::{Value, json};

use crate::common::{Bench, Running, eventually};
use crate::mcp::http::seen;
use crate::mcp::session::{Session, about, effects, words};
use crate::mcp::web::Web;

/// Stops the scope in another process, which waits for the call.
fn stop(bench: &Bench) -> Running {
    bench.start(&["stop", "s", "--note", "wrong list", "--wait", "120s", "--json"])
}

/// The sums of the settlement.
fn sums(stopping: Running) -> Value {
    let settled = stopping.end().exits(0).json();
    assert_eq!(settled["data"]["still_running"], 0, "{settled}");
    settled["data"]["sums"].clone()
}

fn is_told(bench: &Bench) -> bool {
    bench.read("seen").contains("notifications/cancelled")
}

#[test]
fn the_server_is_told_of_a_stop_and_an_answer_that_still_arrives_decides() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.ask(1, "count", &json!({"hold": "go"}));
    eventually("it runs", || effects(&bench) == 1);
    let stopping = stop(&bench);
    eventually("the server is told", || is_told(&bench));
    let told: Vec<Value> =
        bench.read("seen").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let call = told.iter().find(|message| message["method"] == "tools/call").unwrap();
    let cancel = told.iter().find(|message| message["method"] == "notifications/cancelled").unwrap();
    assert_eq!(cancel["params"], json!({"requestId": call["id"], "reason": "the run was stopped"}));
    bench.write("go", "");
    let result = session.answer(1)["result"].clone();
    assert_eq!((&result["structuredContent"]["run"], about(&result)), (&json!(1), &Value::Null));
    let sums = sums(stopping);
    assert_eq!((&sums["intended"], &sums["standing"]), (&json!(1), &json!(1)), "{sums}");
    let refused = session.call(2, "count", &json!({"n": 2}));
    assert_eq!(about(&refused)["error"]["code"], "STOPPED", "{refused}");
    assert_eq!(effects(&bench), 1);
}

#[test]
fn a_call_that_is_not_answered_after_the_stop_is_in_doubt() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.ask(1, "count", &json!({"hold": "never"}));
    eventually("it runs", || effects(&bench) == 1);
    let stopping = stop(&bench);
    let sums = sums(stopping);
    assert_eq!((&sums["intended"], &sums["in_doubt"]), (&json!(1), &json!(1)), "{sums}");
    let told = session.answer(1)["result"].clone();
    assert_eq!(
        (&about(&told)["error"]["code"], &about(&told)["happened"]),
        (&json!("IN_DOUBT"), &json!("unknown"))
    );
    assert!(words(&told).contains("asked to stop, and the server gave no answer"), "{told}");
}

#[test]
fn an_error_that_answers_the_cancellation_is_not_passed_on_as_if_nothing_had_happened() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.ask(1, "count", &json!({"hold": "never", "cancellable": true}));
    eventually("it runs", || effects(&bench) == 1);
    let sums = sums(stop(&bench));
    assert_eq!(sums["in_doubt"], 1, "{sums}");
    let told = session.answer(1)["result"].clone();
    assert_eq!(about(&told)["error"]["code"], "IN_DOUBT", "{told}");
    assert!(words(&told).contains("Request cancelled"), "{told}");
}

#[test]
fn over_http_the_server_is_told_too() {
    for (hold, fate) in [("go", "standing"), ("never", "in_doubt")] {
        let bench = Bench::new();
        let web = Web::scoped(&bench);
        let asked = web.ask(7, &json!({"hold": hold, "events": hold == "go"}));
        eventually("it runs", || effects(&bench) == 1);
        let stopping = stop(&bench);
        eventually("the server is told", || is_told(&bench));
        let bodies: Vec<String> =
            seen(&bench).iter().map(|one| one["body"].as_str().unwrap().to_owned()).collect();
        let cancel = bodies.iter().find(|body| body.contains("cancelled")).unwrap();
        let cancel: Value = serde_json::from_str(cancel).unwrap();
        assert_eq!(cancel["params"], json!({"requestId": 7, "reason": "the run was stopped"}));
        bench.write("go", "");
        let sums = sums(stopping);
        assert_eq!((&sums["intended"], &sums[fate]), (&json!(1), &json!(1)), "{sums}");
        let answer = asked.end().message()["result"].clone();
        match fate {
            "standing" => assert_eq!(answer["structuredContent"]["run"], json!(1)),
            _ => assert_eq!(about(&answer)["error"]["code"], "IN_DOUBT", "{answer}"),
        }
    }
}
