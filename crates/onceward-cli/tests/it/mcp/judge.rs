//! Whether a call happened, and whether the same call is a new action.

use serde_json::{Value, json};

use crate::common::{Bench, eventually};
use crate::mcp::session::{SERVER, Session, about, code, effects, with_meta, words};

#[test]
fn an_error_of_a_tool_after_its_effect_is_in_doubt() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    let args = json!({"tool_error": "Error executing tool count: read timed out"});
    // The first answer is passed on as it came.
    let first = session.call(1, "count", &args);
    assert!(first["isError"] == json!(true) && about(&first).is_null(), "{first}");
    for id in [2, 3] {
        let told = session.call(id, "count", &args);
        assert_eq!(code(&told), "IN_DOUBT");
        assert!(words(&told).contains("read timed out"), "{told}");
    }
    assert_eq!(effects(&bench), 1);
    session.leave();
    let report = bench.json(&["report", "--scope", "s"]).to_string();
    assert!(!report.contains("did not happen"), "{report}");
}

#[test]
fn an_error_is_believed_only_where_the_policy_or_the_flag_says_so() {
    let bench = Bench::new();
    let args = json!({"tool_error": "no funds"});
    let mut session = Session::start(&bench, &["--scope", "s", "--on-tool-error", "no_effect"]);
    session.call(1, "count", &args);
    session.call(2, "count", &args);
    assert_eq!(effects(&bench), 2);
    session.leave();
    let shown = bench.json(&["show", &bench.newest()])["data"].to_string();
    assert!(shown.contains("the tool's word"), "a report says whose word it is: {shown}");
    bench.write("onceward.toml", "[operation.count]\non_tool_error = 'failed'\n");
    let mut session = Session::start(&bench, &["--scope", "t"]);
    session.call(1, "count", &args);
    session.call(2, "count", &args);
    assert_eq!(effects(&bench), 4);
}

#[test]
fn an_sdks_own_rejection_of_the_input_is_certain_and_one_of_the_output_proves_the_effect() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    // These words are an SDK's own; the server of this test writes its line before it says them.
    let rejected = json!({"tool_error": "Input validation error: 'n' is a required property"});
    for id in [1, 2] {
        session.call(id, "exact", &rejected);
    }
    assert_eq!(effects(&bench), 2);
    for (at, words_of_sdk) in [
        "Output validation error: 'id' is a required property",
        "MCP error -32602: Output validation error: Invalid structured content for tool say: [ ]",
    ]
    .iter()
    .enumerate()
    {
        let args = json!({"tool_error": words_of_sdk});
        let id = 10 * (at as u64 + 1);
        assert_eq!(session.call(id, "say", &args)["isError"], json!(true));
        for id in id + 1..id + 3 {
            let told = session.call(id, "say", &args);
            assert_eq!(
                (&told["isError"], &about(&told)["happened"]),
                (&json!(false), &json!("yes")),
                "{told}"
            );
            assert!(words(&told).contains("Its result is not available"), "{told}");
        }
        assert_eq!(effects(&bench), 3 + at);
    }
}

#[test]
fn the_words_of_an_sdk_that_do_not_fit_the_call_are_the_tools_own() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    for (at, (tool, args)) in [
        // The arguments satisfy the schema, so an SDK cannot have rejected them.
        ("exact", json!({"n": 1, "tool_error": "Input validation error: 'order' is a required property"})),
        // A tool without an output schema has no output that could be rejected.
        ("exact", json!({"n": 1, "tool_error": "Output validation error: the template is wrong"})),
        // A tool that asks a client for something that it does not support gets this answer, after its effect.
        ("count", json!({"rpc_error": [-32601, "Method not found"]})),
        ("count", json!({"tool_error": "Method not found"})),
    ]
    .into_iter()
    .enumerate()
    {
        let id = 10 * (at as u64 + 1);
        session.ask(id, tool, &args);
        session.answer(id);
        assert_eq!(code(&session.call(id + 1, tool, &args)), "IN_DOUBT", "{args}");
        assert_eq!(effects(&bench), at + 1);
    }
}

#[test]
fn a_call_that_needs_a_visit_to_an_address_first_may_be_made_again() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    let data =
        json!({"elicitations": [{"mode": "url", "url": "https://example.com/", "elicitationId": "1"}]});
    for id in [1, 2] {
        session.ask(id, "count", &json!({"rpc_error": [-32042, "sign in first", data]}));
        assert_eq!(session.answer(id)["error"]["code"], json!(-32042), "it is passed on");
    }
    // Without an address it is an error like any other.
    let args = json!({"rpc_error": [-32042, "sign in first"]});
    session.ask(3, "count", &args);
    session.answer(3);
    assert_eq!(code(&session.call(4, "count", &args)), "IN_DOUBT");
}

#[test]
fn an_invalid_parameter_after_the_effect_is_in_doubt() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    for (at, code_of_server) in [-32602, -32600].into_iter().enumerate() {
        let args = json!({"rpc_error": [code_of_server, "the card has expired"]});
        let id = 10 * (at as u64 + 1);
        session.ask(id, "count", &args);
        assert_eq!(session.answer(id)["error"]["code"], json!(code_of_server));
        assert_eq!(code(&session.call(id + 1, "count", &args)), "IN_DOUBT");
    }
    assert_eq!(effects(&bench), 2);
}

#[test]
fn clients_that_clean_up_after_the_answer_get_every_repeat_that_they_want() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    let cancel = |id: u64| {
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
               "params": {"requestId": id, "reason": "AbortError: This operation was aborted"}})
    };
    for id in 1..=5 {
        assert!(about(&session.call(id, "count", &json!({}))).is_null());
        session.send(&cancel(id));
    }
    assert_eq!(effects(&bench), 5);
    // After another request a cancellation cannot have crossed the answer, whatever it says.
    session.call(6, "count", &json!({"n": 2}));
    session.call(7, "look", &json!({}));
    session.cancel(6);
    assert!(about(&session.call(8, "count", &json!({"n": 2}))).is_null());
    assert!(!bench.read("seen").contains("notifications/cancelled"), "the server would not know these ids");
}

#[test]
fn what_a_replay_says_about_the_next_call_is_true_whatever_is_cancelled() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.call(1, "count", &json!({}));
    session.cancel(1);
    let replayed = session.call(2, "count", &json!({}));
    assert!(words(&replayed).starts_with("[once] Replayed"), "{replayed}");
    assert!(words(&replayed).contains("make the same call once more"), "{replayed}");
    session.cancel(2);
    let third = session.call(3, "count", &json!({}));
    assert!(about(&third).is_null(), "{third}");
    session.cancel(3);
    // By now it is known that this client cancels what is answered.
    let fourth = session.call(4, "count", &json!({}));
    assert!(about(&fourth).is_null(), "{fourth}");
    assert_eq!(effects(&bench), 3);
}

#[test]
fn an_edit_and_test_loop_sees_every_new_result() {
    let bench = Bench::new();
    // The first answer is slow. That is four seconds, and only real time passes in a server.
    let mut session = Session::start(&bench, &["--scope", "s"]);
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "agent", "version": "1"}});
    session.send(&json!({"jsonrpc": "2.0", "id": 90, "method": "initialize", "params": hello}));
    session.answer(90);
    for id in 1..=3 {
        let result = session.call(id, "count", &json!({"slow": 4.1, "plain": true}));
        assert_eq!(words(&result), format!("run {id}"));
    }
}

#[test]
fn a_client_that_is_known_to_give_up_in_silence_gets_the_first_result() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "mcp", "version": "0.1.0"}});
    session.send(&json!({"jsonrpc": "2.0", "id": 90, "method": "initialize", "params": hello}));
    session.answer(90);
    let args = json!({"slow": 4.1, "plain": true});
    session.call(1, "count", &args);
    assert_eq!(about(&session.call(2, "count", &args))["status"], "replayed");
    // Where it has made another request meanwhile, the answer was read.
    let other = json!({"slow": 4.1, "plain": true, "n": 2});
    session.call(3, "count", &other);
    session.call(4, "look", &json!({}));
    assert!(about(&session.call(5, "count", &other)).is_null());
    assert_eq!(effects(&bench), 3);
}

/// Clients that take only the structured part of a result would not see that it is a replay.
#[test]
fn a_client_that_is_known_to_give_up_in_silence_gets_a_structured_result_anew() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "mcp", "version": "0.1.0"}});
    session.send(&json!({"jsonrpc": "2.0", "id": 90, "method": "initialize", "params": hello}));
    session.answer(90);
    let structured = json!({"slow": 4.1});
    for (id, run) in [(6, 1), (7, 2)] {
        assert_eq!(session.call(id, "count", &structured)["structuredContent"]["run"], json!(run));
    }
}

#[test]
fn what_is_settled_as_done_is_a_success_and_stays_closed() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    for (id, tool, is_error) in [(1, "count", false), (10, "own", true), (20, "say", false)] {
        session.tools(id + 9);
        session.ask(id, tool, &json!({"error": true}));
        session.answer(id);
        bench.once(&["settle", &bench.newest(), "--as", "done", "--note", "seen in the ledger"]).exits(0);
        for again in id + 1..id + 4 {
            let told = session.call(again, tool, &json!({"error": true}));
            assert_eq!(told["isError"], json!(is_error), "{told}");
            assert_eq!((&about(&told)["happened"], &about(&told)["ok"]), (&json!("yes"), &json!(true)));
            let said = words(&told);
            assert!(said.contains("already done") && said.contains("make the same call after 2"), "{said}");
        }
    }
    let told = session.call(30, "say", &json!({"error": true}));
    assert!(told["structuredContent"]["result"].as_str().unwrap().starts_with("[once] Done"), "{told}");
    assert_eq!(effects(&bench), 3);
}

#[test]
fn a_refuted_success_is_told_to_the_call_that_it_is_about() {
    let bench = Bench::new();
    bench.write("onceward.toml", "[operation.count]\nverify = {tool = 'look', expect = 'never there'}\n");
    let mut session = Session::scoped(&bench);
    let told = session.call(1, "count", &json!({"n": 8}));
    assert_eq!(
        (code(&told), &told["isError"], &about(&told)["ran"]),
        ("UNVERIFIED", &json!(true), &json!(true))
    );
    assert!(words(&told).contains("The server had answered: run 1"), "{told}");
    assert_eq!(code(&session.call(2, "count", &json!({"n": 8}))), "UNVERIFIED");
    assert_eq!(effects(&bench), 1);
}

#[test]
fn parallel_calls_of_one_client_are_as_many_as_it_wants() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.call(9, "look", &json!({}));
    for id in 1..=3 {
        session.ask(id, "count", &json!({"hold": "go"}));
    }
    eventually("all run", || effects(&bench) == 3);
    bench.write("go", "");
    for id in 1..=3 {
        assert!(about(&session.answer(id)["result"]).is_null());
    }
    // Under one request id, and where the policy is strict, they are one.
    let mut strict = Session::start(&bench, &["--scope", "t", "--keys", "strict"]);
    for id in 1..=3 {
        strict.ask(id, "count", &json!({"n": 2}));
    }
    (1..=3).for_each(|id| drop(strict.answer(id)));
    assert_eq!(effects(&bench), 4);
}

#[test]
fn a_retry_of_one_of_several_parallel_calls_gets_the_answer_of_that_one() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.call(9, "look", &json!({}));
    let args = json!({"hold": "go", "plain": true});
    for id in [1, 2] {
        session.ask(id, "count", &args);
    }
    eventually("both run", || effects(&bench) == 2);
    session.cancel(1);
    // At once, although the other one still runs.
    session.ask(3, "count", &args);
    assert!(session.is_silent(200));
    bench.write("go", "");
    session.answer(2);
    assert_eq!(about(&session.answer(3)["result"])["status"], "joined");
    assert_eq!(effects(&bench), 2);
    // Either is cancelled, and retried when both have ended.
    for (round, (given_up, other)) in [(11, 12), (22, 21)].into_iter().enumerate() {
        let file = format!("go-{round}");
        let args = json!({"hold": file, "plain": true});
        let before = effects(&bench);
        for id in [given_up.min(other), given_up.max(other)] {
            session.ask(id, "count", &args);
        }
        eventually("both run", || effects(&bench) == before + 2);
        session.cancel(given_up);
        bench.write(&file, "");
        session.answer(other);
        let done = || bench.json(&["ls", "--state", "done"])["data"].as_array().unwrap().len();
        eventually("both have ended", || done() == before + 2);
        let again = session.call(30 + given_up, "count", &args);
        let status = about(&again)["status"].as_str().unwrap_or_default();
        // The task of a call that has ended may still be there to be joined.
        assert!(["joined", "replayed"].contains(&status), "{again}");
        assert!(words(&again).contains("make the same call once more"), "{again}");
        assert_eq!(effects(&bench), before + 2);
        assert!(about(&session.call(40 + given_up, "count", &args)).is_null(), "and it is true");
        assert_eq!(effects(&bench), before + 3);
    }
}

#[test]
fn parallel_calls_that_are_all_given_up_are_answered_one_by_one() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.call(9, "look", &json!({}));
    let args = json!({"hold": "go", "plain": true});
    for id in [1, 2] {
        session.ask(id, "count", &args);
    }
    eventually("both run", || effects(&bench) == 2);
    session.cancel(1);
    session.cancel(2);
    bench.write("go", "");
    let done = || bench.json(&["ls", "--state", "done"])["data"].as_array().unwrap().len();
    eventually("both have ended", || done() == 2);
    let first = session.call(3, "count", &args);
    assert!(words(&first).contains("make the same call twice more"), "{first}");
    let second = session.call(4, "count", &args);
    assert!(words(&second).contains("make the same call once more"), "{second}");
    for told in [&first, &second] {
        // The task of a call that has ended may still be there to be joined.
        assert!(["joined", "replayed"].contains(&about(told)["status"].as_str().unwrap()), "{told}");
    }
    assert_eq!(effects(&bench), 2);
    assert!(about(&session.call(5, "count", &args)).is_null());
    assert_eq!(effects(&bench), 3);
}

#[test]
fn a_parallel_call_in_doubt_is_not_hidden_by_one_that_was_done() {
    let bench = Bench::new();
    let args = json!({"hold": "go", "first_fails": "failed", "plain": true});
    let mut session = Session::scoped(&bench);
    session.call(9, "look", &json!({}));
    for id in [1, 2] {
        session.ask(id, "count", &args);
    }
    eventually("both run", || effects(&bench) == 2);
    bench.write("go", "");
    let answers = [session.answer(1), session.answer(2)];
    assert_eq!(answers.iter().filter(|answer| answer["error"].is_object()).count(), 1);
    assert_eq!(code(&session.call(3, "count", &args)), "IN_DOUBT");
    session.leave();
    // The ledger knows it, not only this process.
    let mut session = Session::scoped(&bench);
    assert_eq!(code(&session.call(1, "count", &args)), "IN_DOUBT");
    assert_eq!(effects(&bench), 2);
}

#[test]
fn parallel_calls_that_are_settled_as_done_are_closed_for_one_window() {
    let bench = Bench::new();
    bench.write("onceward.toml", "[defaults]\nrepeat_window = \"1s\"\n");
    let mut session = Session::scoped(&bench);
    session.call(9, "look", &json!({}));
    let args = json!({"hold": "go", "error": true});
    for id in [1, 2, 3] {
        session.ask(id, "count", &args);
    }
    eventually("all run", || effects(&bench) == 3);
    bench.write("go", "");
    (1..=3).for_each(|id| drop(session.answer(id)));
    for doubt in bench.json(&["ls", "--state", "in_doubt"])["data"].as_array().unwrap() {
        let id = doubt["id"].as_str().unwrap();
        bench.once(&["settle", id, "--as", "done"]).exits(0);
    }
    let until = |told: &Value| {
        let said = words(told);
        said.split("make the same call after ").nth(1).map(str::to_owned).unwrap_or(said)
    };
    let first = until(&session.call(10, "count", &args));
    let mut id = 10;
    eventually("the window is over", || {
        id += 1;
        session.ask(id, "count", &args);
        let answer = session.answer(id);
        // What the first answer said is true: until then, and not longer.
        assert!(answer["error"].is_object() || until(&answer["result"]) == first, "{answer}");
        answer["error"].is_object()
    });
    assert_eq!(effects(&bench), 4);
}

#[test]
fn a_tool_is_believed_with_the_witness_of_the_attempt_and_only_then() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    let own = session.call(1, "inner", &json!({}));
    assert_eq!(own["structuredContent"]["happened"], "no", "{own}");
    assert_eq!(bench.state(&bench.newest()), "failed");
    let shown = bench.json(&["show", &bench.newest()])["data"]["outcome"]["evidence"].clone();
    assert!(shown["own_word"].is_null() && shown.is_object(), "{shown}");
    // What an earlier attempt was given does not count for this one.
    let old = own["structuredContent"]["witness"].clone();
    session.call(2, "inner", &json!({"shows": old, "n": 2}));
    assert_eq!(bench.state(&bench.newest()), "in_doubt");
    let seen = bench.read("seen");
    assert_eq!(seen.matches("dev.onceward/witness").count(), 2, "each attempt has one: {seen}");
}

#[test]
fn a_read_that_was_given_up_is_not_replayed() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.call(9, "look", &json!({}));
    let args = json!({"hold": "go", "plain": true});
    session.ask(1, "get_thing", &args);
    eventually("it runs", || effects(&bench) == 1);
    session.cancel(1);
    bench.write("go", "");
    eventually("it has ended", || bench.state(&bench.newest()) == "done");
    assert_eq!(words(&session.call(2, "get_thing", &args)), "run 2");
}

#[test]
fn calls_that_the_host_names_apart_are_apart_and_under_one_name_they_are_one() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    session.call(9, "look", &json!({}));
    for (id, name) in [(1, "toolu_1"), (2, "toolu_2"), (3, "toolu_2")] {
        let meta = json!({"claudecode/toolUseId": name});
        session.send(&with_meta(id, "count", &json!({"hold": "go"}), &meta));
    }
    eventually("two run", || effects(&bench) == 2);
    assert!(session.is_silent(200));
    bench.write("go", "");
    (1..=3).for_each(|id| drop(session.answer(id)));
    assert_eq!(effects(&bench), 2);
    for id in [4, 5] {
        session.send(&with_meta(id, "count", &json!({"n": 1}), &json!({"callId": "call_7"})));
        session.answer(id);
    }
    assert_eq!(effects(&bench), 3);
}

#[test]
fn a_doubt_is_not_hidden_by_a_reused_key() {
    let bench = Bench::new();
    bench.write("onceward.toml", "[operation.count]\nkey = ['order']\n");
    let mut session = Session::scoped(&bench);
    session.ask(1, "count", &json!({"order": 7, "note": "a", "error": true}));
    session.answer(1);
    let told = session.call(2, "count", &json!({"order": 7, "note": "b", "error": true}));
    assert_eq!((code(&told), &about(&told)["happened"]), ("KEY_REUSED", &json!("unknown")));
    let said = words(&told);
    assert!(said.contains("in doubt") && said.contains("settle op_"), "{said}");
    assert_eq!(effects(&bench), 1);
}

#[test]
fn an_idempotent_tool_in_doubt_may_be_called_again() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    let told = session.call(1, "put", &json!({"value": "x", "die": 3}));
    assert!(words(&told).contains("ake the same call again; it is safe"), "{told}");
    assert!(!words(&told).contains("settle"), "{told}");
    for id in 2..=25 {
        session.ask(id, "put", &json!({"value": "x", "error": true}));
        assert!(session.answer(id)["error"].is_object(), "refused for ever");
    }
}

#[test]
fn a_call_that_its_policy_lets_wait_no_longer_is_told_that_it_itself_goes_on() {
    let bench = Bench::new();
    bench.write("onceward.toml", "[operation.count]\ntimeout = '200ms'\n");
    let mut session = Session::scoped(&bench);
    let told = session.call(1, "count", &json!({"hold": "go"}));
    assert_eq!((code(&told), &about(&told)["ran"]), ("IN_PROGRESS", &json!(true)));
    assert!(words(&told).contains("this call of count was sent at"), "{told}");
    assert!(!words(&told).contains("othing was run"), "{told}");
    bench.write("go", "");
}

/// What the model reads in each situation in which we speak.
fn every_text(bench: &Bench, flags: &[&str]) -> Vec<String> {
    let mut session = Session::start(bench, flags);
    session.call(90, "look", &json!({}));
    let mut said = Vec::new();
    let mut call = |session: &mut Session, id, tool: &str, args: &Value| {
        session.ask(id, tool, args);
        let answer = session.answer(id);
        said.push(words(&answer["result"]));
        answer["result"].clone()
    };
    // Sent and lost; its retry; the same key with other inputs; what is in doubt.
    call(&mut session, 1, "count", &json!({"order": 1, "die": 3}));
    call(&mut session, 2, "count", &json!({"order": 1, "die": 3}));
    call(&mut session, 3, "count", &json!({"order": 1, "note": "x"}));
    call(&mut session, 4, "once_status", &json!({}));
    call(&mut session, 5, "once_settle", &json!({"operation": "op_", "verdict": "x"}));
    // Known to be done, without a result.
    let doubtful = bench.newest();
    bench.once(&["settle", &doubtful, "--as", "done"]).exits(0);
    call(&mut session, 6, "count", &json!({"order": 1, "die": 3}));
    // An error of the tool's, which may have come after the effect.
    session.call(7, "count", &json!({"order": 2, "tool_error": "could not say"}));
    call(&mut session, 8, "count", &json!({"order": 2, "tool_error": "could not say"}));
    // Replayed, joined, still running, refuted, rejected, unreadable.
    session.call(9, "count", &json!({"order": 3, "plain": true}));
    session.cancel(9);
    call(&mut session, 10, "count", &json!({"order": 3, "plain": true}));
    session.ask(11, "own", &json!({"hold": "go"}));
    session.cancel(11);
    session.ask(12, "own", &json!({"hold": "go"}));
    bench.write("go", "");
    said.push(words(&session.answer(12)["result"]));
    let mut call = |session: &mut Session, id, tool: &str, args: &Value| {
        session.ask(id, tool, args);
        said.push(words(&session.answer(id)["result"]));
    };
    call(&mut session, 13, "say", &json!({"hold": "never"}));
    call(&mut session, 14, "say", &json!({"hold": "never"}));
    call(&mut session, 15, "put", &json!({"value": "x", "die": 3}));
    call(&mut session, 16, "own", &json!({"n": 1}));
    let dry = json!({"dev.onceward/key": "k"});
    session.send(&with_meta(17, "count", &json!({"order": 4, "reject": true}), &dry));
    session.answer(17);
    session.send(&with_meta(18, "count", &json!({"order": 4, "reject": true}), &dry));
    said.push(words(&session.answer(18)["result"]));
    said.push(words(&Session::start(bench, &["--dry-run", "--scope", "d"]).call(
        1,
        "count",
        &json!({"order": 5}),
    )));
    said
}

#[test]
fn every_text_is_short() {
    for settles in [false, true] {
        let bench = Bench::new();
        bench.write(
            "onceward.toml",
            format!(
                "[operation.count]\nkey = ['order']\nagents_settle = {settles}\n[operation.say]\ntimeout = '200ms'\n\
                 [operation.own]\nverify = {{tool = 'look', expect = 'never there'}}\nverify_deadline = '1ms'\n"
            ),
        );
        let said = every_text(&bench, &["--scope", "s", "--wait", "100ms"]);
        assert!(said.iter().filter(|text| text.starts_with("[once]")).count() > 10, "{said:#?}");
        for text in said.iter().filter(|text| text.starts_with("[once]") && !text.contains("In doubt (")) {
            // A policy and a ledger that are not the defaults are named besides: their paths are this test's.
            let (head, tail) = (text.find("`once "), text.find("settle "));
            let places = head.zip(tail).and_then(|(head, tail)| text.get(head + "`once ".len()..tail));
            let text = text.replace(places.filter(|places| !places.is_empty()).unwrap_or("\0"), "");
            // A token of English text is four letters or more; ids and times are shorter ones.
            let tokens = text.chars().count() * 2 / 7;
            assert!(tokens <= 120, "{tokens}: {text}");
        }
    }
}

#[test]
fn a_server_needs_no_dashes_before_it() {
    let bench = Bench::new();
    let said = bench.once(&["mcp", "--explain", "python3", SERVER]).exits(0);
    assert!(said.out().contains("readOnlyHint"), "{}", said.out());
    let said = bench.once(&["mcp", "--explain", "--server", "x", "python3", "-u", SERVER]).exits(0);
    assert!(said.out().contains("readOnlyHint"), "{}", said.out());
}
