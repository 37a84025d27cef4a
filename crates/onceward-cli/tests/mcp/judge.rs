//! Did it happen, and is it wanted again?

use serde_json::{Value, json};

use crate::common::{Bench, eventually};
use crate::session::{SERVER, Session, about, effects, with_meta, words};

fn code(result: &Value) -> &str {
    about(result)["error"]["code"].as_str().unwrap_or_default()
}

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
        session.call(id, "count", &rejected);
    }
    assert_eq!(effects(&bench), 2);
    for (at, words_of_sdk) in [
        "Output validation error: 'id' is a required property",
        "MCP error -32602: Output validation error: Invalid structured content for tool count: [ ]",
    ]
    .iter()
    .enumerate()
    {
        let args = json!({"tool_error": words_of_sdk});
        let id = 10 * (at as u64 + 1);
        assert_eq!(session.call(id, "count", &args)["isError"], json!(true));
        for id in id + 1..id + 3 {
            let told = session.call(id, "count", &args);
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
    assert!(about(&session.call(3, "count", &json!({}))).is_null());
    session.cancel(3);
    // By now it is known that this client cancels what is answered.
    assert!(about(&session.call(4, "count", &json!({}))).is_null());
    assert_eq!(effects(&bench), 3);
}

#[test]
fn an_edit_and_test_loop_sees_every_new_result() {
    let bench = Bench::new();
    // Every answer is slow here.
    let mut session = Session::start(&bench, &["--scope", "s"]);
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "agent", "version": "1"}});
    session.send(&json!({"jsonrpc": "2.0", "id": 90, "method": "initialize", "params": hello}));
    session.answer(90);
    for id in 1..=3 {
        let result = session.call(id, "count", &json!({"sleep": 4.1, "plain": true}));
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
    let args = json!({"sleep": 4.1, "plain": true});
    session.call(1, "count", &args);
    assert_eq!(about(&session.call(2, "count", &args))["status"], "replayed");
    // Where it has made another request meanwhile, the answer was read.
    let other = json!({"sleep": 4.1, "plain": true, "n": 2});
    session.call(3, "count", &other);
    session.call(4, "look", &json!({}));
    assert!(about(&session.call(5, "count", &other)).is_null());
    assert_eq!(effects(&bench), 3);
}

#[test]
fn what_is_settled_as_done_is_a_success_and_stays_closed() {
    let bench = Bench::new();
    let mut session = Session::start(&bench, &["--scope", "s", "--window", "60s"]);
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

#[test]
fn every_text_is_short() {
    let bench = Bench::new();
    let mut session = Session::scoped(&bench);
    let mut said = vec![words(&session.call(1, "count", &json!({"die": 3})))];
    said.push(words(&session.call(2, "count", &json!({"die": 3}))));
    session.call(3, "count", &json!({"plain": true}));
    session.cancel(3);
    said.push(words(&session.call(4, "count", &json!({"plain": true}))));
    for text in said {
        // An id and the path of this test's ledger are random text, of which a token holds two letters; of words, four.
        // The ledger that is not the default is named besides.
        let (head, tail) = (text.find("--ledger "), text.find("settle "));
        let ledger = head.zip(tail).map_or(String::new(), |(head, tail)| text[head..tail].to_owned());
        let text = if ledger.is_empty() { text } else { text.replace(&ledger, "") };
        let random: usize = text
            .split([' ', '`'])
            .filter(|word| word.contains("op_") || word.contains('/'))
            .map(str::len)
            .sum();
        let tokens = (text.len() - random) / 4 + random / 2;
        assert!(tokens <= 120, "{tokens}: {text}");
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
