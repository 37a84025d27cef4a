//! What a server says while a call runs, and after it was accepted.

use serde_json::{Value, json};

use crate::common::{Bench, eventually};
use crate::mcp::session::{Session, about, effects, with_meta};

#[test]
fn whoever_joins_a_call_hears_of_its_progress_under_his_own_token() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.call(9, "look", &json!({}));
    let args = json!({"progress": 2, "hold": "go"});
    session.send(&with_meta(1, "count", &args, &json!({"progressToken": "first"})));
    eventually("it runs", || effects(&bench) == 1);
    bench.write("step-1", "");
    let told = |line: String| serde_json::from_str::<Value>(&line).unwrap()["params"].clone();
    assert_eq!(told(session.line()), json!({"progressToken": "first", "progress": 1}));
    session.send(&with_meta(2, "count", &args, &json!({"progressToken": 77, "dev.onceward/retry": true})));
    assert!(
        session.is_silent(200),
        "the second call was answered, or told what was before it: {}",
        session.line()
    );
    bench.write("step-2", "");
    assert_eq!(told(session.line()), json!({"progressToken": 77, "progress": 2}));
    assert_eq!(told(session.line()), json!({"progressToken": "first", "progress": 2}));
    bench.write("go", "");
    assert_eq!(session.answer(1)["result"]["structuredContent"]["run"], json!(1));
    assert_eq!(session.answer(2)["result"]["structuredContent"]["run"], json!(1));
    assert_eq!(effects(&bench), 1);
}

#[test]
fn a_task_is_accepted_and_its_end_tells_what_became_of_it() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    for (id, task, verified, state) in [(1, "good", "confirmed", "done"), (3, "bad", "refuted", "in_doubt")] {
        session.call(id, "count", &json!({"task": task}));
        let operation = bench.newest();
        let shown = || bench.json(&["show", &operation])["data"].clone();
        eventually("it is accepted", || shown()["outcome"]["verified"] == "pending");
        assert_eq!(shown()["state"], "done");
        session.send(
            &json!({"jsonrpc": "2.0", "id": id + 1, "method": "tasks/get", "params": {"taskId": task}}),
        );
        assert_eq!(session.answer(id + 1)["result"]["taskId"], json!(task));
        eventually("it is verified", || shown()["outcome"]["verified"] == verified);
        assert_eq!(shown()["state"], state);
    }
    // What its task refuted is in doubt, and not repeated.
    let again = session.call(5, "count", &json!({"task": "bad"}));
    assert_eq!(about(&again)["error"]["code"], "UNVERIFIED");
    assert_eq!(effects(&bench), 2);
}
