//! By HTTP: what passes, what is guarded, and who shares what.

use serde_json::{Value, json};

use crate::common::{Bench, eventually};
use crate::mcp::session::{about, effects, request, with_meta, words};
use crate::mcp::web::Web;

/// The requests that the server has seen.
pub(crate) fn seen(bench: &Bench) -> Vec<Value> {
    bench.read("seen").lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn what_is_not_a_call_passes_as_it_is_in_both_directions() {
    let bench = Bench::new();
    let web = Web::scoped(&bench);
    let exact = "{ \"jsonrpc\": \"2.0\",\"id\":12345678901234567890123, \"method\":\"x/y\", \"n\":1.0e2}";
    let headers =
        [("X-Mine", "1"), ("Mcp-Session-Id", "s-9"), ("Keep-Alive", "timeout=9"), ("Mcp-Param-N", "4")];
    let answer = web.send("POST /else/where?a=%20b&c", &headers, exact);
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("x-answer: yes") && answer.body.contains("12345678901234567890123"));
    let seen_first = seen(&bench).remove(0);
    assert_eq!((&seen_first["path"], &seen_first["body"]), (&json!("/else/where?a=%20b&c"), &json!(exact)));
    let headers = &seen_first["headers"];
    assert_eq!((&headers["x-mine"], &headers["mcp-param-n"]), (&json!("1"), &json!("4")));
    assert!(headers["keep-alive"].is_null() && headers["host"].as_str().unwrap().starts_with("127.0.0.1:"));
    let answer = web.send("GET /plain", &[("Last-Event-ID", "3")], "");
    assert_eq!((answer.status, answer.body.as_str()), (203, "as it is"));
    assert_eq!(web.send("DELETE /mcp", &[("Mcp-Session-Id", "s-9")], "").status, 200);
    assert_eq!(web.send("POST /mcp", &[], "not json").status, 400);
    let told: Vec<String> = seen(&bench)
        .iter()
        .map(|one| format!("{} {}", one["method"], one["headers"]["last-event-id"]))
        .collect();
    assert_eq!(told, ["\"POST\" null", "\"GET\" \"3\"", "\"DELETE\" null", "\"POST\" null"]);
}

#[test]
fn a_stream_is_passed_on_while_it_goes_on() {
    let bench = Bench::new();
    let web = Web::scoped(&bench);
    let mut stream = web.open("GET /mcp", &[("Mcp-Session-Id", "s-1")], "");
    assert!(stream.until("hello").contains("text/event-stream"));
    bench.write("bye", "");
    assert_eq!(stream.end().messages().len(), 1);
}

#[test]
fn the_first_answer_is_the_servers_own_and_the_same_call_again_is_wanted_again() {
    let bench = Bench::new();
    let web = Web::scoped(&bench);
    for events in [false, true] {
        for run in 1..=2 {
            let message = with_meta(5, "count", &json!({"events": events}), &json!({"progressToken": "p"}));
            let answer = web.post(&[], &message);
            assert_eq!(answer.head.contains("text/event-stream"), events, "{}", answer.head);
            let result = answer.message()["result"].clone();
            assert_eq!(result["structuredContent"]["run"], json!(run));
            assert!(about(&result).is_null() && answer.body.contains("12345678901234567890123"));
            assert_eq!(answer.messages().len(), 1 + usize::from(events));
        }
    }
    assert_eq!(effects(&bench), 4);
    assert_eq!(words(&web.post(&[], &request(6, "look", &json!({}))).message()["result"]).lines().count(), 4);
    assert_eq!(bench.json(&["ls"])["data"].as_array().unwrap().len(), 4);
}

#[test]
fn a_client_that_leaves_does_not_take_its_call_with_it_and_its_retry_gets_the_answer() {
    for events in [false, true] {
        let bench = Bench::new();
        let web = Web::scoped(&bench);
        let args = json!({"hold": "go", "events": events});
        let stream = web.ask(1, &args);
        eventually("it runs", || effects(&bench) == 1);
        drop(stream);
        // A caller that arrives meanwhile waits with it, and leaves too.
        drop(web.ask(2, &args));
        bench.write("go", "");
        eventually("it is done", || bench.json(&["ls"])["data"][0]["state"] == "done");
        let result = web.call(3, &args);
        assert_eq!(about(&result)["status"], "replayed", "{result}");
        assert_eq!(result["structuredContent"]["run"], json!(1));
        assert_eq!(effects(&bench), 1);
        // The replay was delivered, so the same call is now a new action.
        assert!(about(&web.call(4, &args)).is_null());
        assert_eq!(effects(&bench), 2);
    }
}

#[test]
fn a_cancelled_call_goes_on_and_its_retry_gets_its_result() {
    let bench = Bench::new();
    let web = Web::scoped(&bench);
    let first = web.ask(1, &json!({"hold": "go"}));
    eventually("it runs", || effects(&bench) == 1);
    assert_eq!(web.cancel(1).status, 202);
    // An unguarded call is left to the server.
    assert_eq!(web.cancel(99).status, 202);
    bench.write("go", "");
    first.end();
    assert_eq!(about(&web.call(2, &json!({"hold": "go"})))["status"], "replayed");
    assert_eq!(effects(&bench), 1);
    let bodies: Vec<String> = seen(&bench).iter().map(|one| one["body"].to_string()).collect();
    assert_eq!(bodies.iter().filter(|body| body.contains("cancelled")).count(), 1, "{bodies:?}");
}

#[test]
fn a_client_that_cleans_up_after_the_answer_gets_every_repeat_that_it_wants() {
    let bench = Bench::new();
    let web = Web::scoped(&bench);
    for id in 1..=4 {
        assert!(about(&web.call(id, &json!({"n": 1}))).is_null());
        let params = json!({"requestId": id, "reason": "AbortError: This operation was aborted"});
        let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        assert_eq!(web.post(&[], &cancel).status, 202);
    }
    assert_eq!(effects(&bench), 4);
}

#[test]
fn news_of_a_call_come_while_it_runs_and_who_joins_it_hears_them_under_his_own_token() {
    let bench = Bench::new();
    let web = Web::scoped(&bench);
    let args = json!({"events": true, "ticks": true, "hold": "go"});
    let ask = |id, token: &str, retry: bool| {
        let meta = json!({"progressToken": token, "dev.onceward/retry": retry});
        let message = with_meta(id, "count", &args, &meta);
        web.open("POST /mcp", &[], &message.to_string())
    };
    let mut first = ask(1, "one", false);
    first.until("notifications/progress");
    let mut second = ask(2, "two", true);
    second.until("notifications/progress");
    bench.write("go", "");
    let tokens = |messages: Vec<Value>| {
        let tokens = messages.iter().map(|message| message["params"]["progressToken"].clone());
        tokens.filter(Value::is_string).collect::<std::collections::HashSet<_>>()
    };
    assert_eq!(tokens(first.end().messages()), [json!("one")].into());
    let second = second.end();
    assert_eq!(tokens(second.messages()), [json!("two")].into());
    assert_eq!(about(&second.message()["result"])["status"], "joined");
    assert_eq!(effects(&bench), 1);
}

#[test]
fn a_key_by_header_is_the_same_quoted_and_bare() {
    let bench = Bench::new();
    let web = Web::scoped(&bench);
    assert!(about(&web.call_with(&[("Idempotency-Key", "\"k-1\"")], 1, &json!({}))).is_null());
    let again = web.call_with(&[("Idempotency-Key", "k-1")], 2, &json!({}));
    assert_eq!(
        (&about(&again)["status"], &about(&again)["operation"]["key"]),
        (&json!("replayed"), &json!("k-1"))
    );
    let reused = web.call_with(&[("Idempotency-Key", "k-1")], 3, &json!({"n": 1}));
    assert_eq!(about(&reused)["error"]["code"], "KEY_REUSED");
    assert!(about(&web.call_with(&[("Idempotency-Key", "k-2")], 4, &json!({}))).is_null());
    assert_eq!(effects(&bench), 2);
}

#[test]
fn a_session_is_a_scope_and_a_principal_shares_nothing() {
    let bench = Bench::new();
    let web = Web::start(&bench, &["--keys", "strict"]);
    let status = |headers: &[(&str, &str)]| about(&web.call_with(headers, 1, &json!({})))["status"].clone();
    for headers in [
        &[("Mcp-Session-Id", "a")][..],
        &[("Mcp-Session-Id", "b")],
        &[],
        &[("Authorization", "Bearer x")],
        &[("Authorization", "Bearer y")],
        &[("Authorization", "Bearer y"), ("Idempotency-Key", "k")],
        &[("Authorization", "Bearer x"), ("Idempotency-Key", "k")],
        &[("X-Api-Key", "z")],
    ] {
        assert!(status(headers).is_null(), "{headers:?}");
        assert_eq!(status(headers), "replayed", "{headers:?}");
    }
    assert_eq!(effects(&bench), 8);
    // Another place of the server may be another tenant's.
    let elsewhere = web.send("POST /other", &[], &request(1, "count", &json!({})).to_string());
    assert!(about(&elsewhere.message()["result"]).is_null());
    assert_eq!(effects(&bench), 9);
    drop(web);
    let web = Web::start(&bench, &["--keys", "strict", "--scope", "s"]);
    for (headers, replayed) in
        [("a", false), ("b", true)].map(|(session, is)| ([("Mcp-Session-Id", session)], is))
    {
        assert_eq!(about(&web.call_with(&headers, 1, &json!({})))["status"].is_string(), replayed);
    }
    assert!(!bench.json(&["ls"]).to_string().contains("Bearer"));
}

#[test]
fn tools_are_exposed_in_messages_and_in_events() {
    let bench = Bench::new();
    let web = Web::start(&bench, &["--scope", "s", "--expose-key"]);
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    for headers in [&[][..], &[("X-Events", "1")]] {
        let answer = web.post(headers, &list);
        let tools = answer.message()["result"]["tools"].clone();
        assert!(tools[0]["inputSchema"]["properties"]["idempotency_key"].is_object(), "{}", answer.body);
        assert!(
            tools[1]["inputSchema"]["properties"].is_null()
                && answer.body.contains("12345678901234567890123")
        );
    }
    for id in [2, 3] {
        web.call(id, &json!({"idempotency_key": "k"}));
    }
    assert_eq!(bench.read("effects"), "{}\n");
}

#[test]
fn who_is_answered_without_the_server_is_refused_as_the_server_would() {
    let bench = Bench::new();
    let web = Web::start(&bench, &["--scope", "s", "--keys", "strict"]);
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
                      "io.modelcontextprotocol/clientCapabilities": {}});
    let message = with_meta(1, "count", &json!({"n": 4}), &meta);
    let good = |name: &'static str| {
        [
            ("MCP-Protocol-Version", "2026-07-28"),
            ("Mcp-Method", "tools/call"),
            ("Mcp-Name", name),
            ("Mcp-Param-N", "4"),
        ]
    };
    assert_eq!(web.post(&good("count"), &message).status, 200);
    assert_eq!(about(&web.post(&good("count"), &message).message()["result"])["status"], "replayed");
    let refused = web.post(&good("other"), &message);
    assert_eq!((refused.status, &refused.message()["error"]["code"]), (400, &json!(-32020)));
    let refused = web.post(&good("count")[..3], &message);
    assert_eq!((refused.status, &refused.message()["error"]["code"]), (400, &json!(-32020)));
    assert_eq!(effects(&bench), 1);
}

#[test]
fn an_answer_by_another_stream_is_written_down_before_it_is_heard() {
    let bench = Bench::new();
    let web = Web::scoped(&bench);
    let session = [("Mcp-Session-Id", "s-1")];
    let call = request(1, "count", &json!({"late": true}));
    let answer = web.post(&session, &call);
    assert!(answer.body.contains("id: 7") && answer.messages_of_events().is_empty(), "{}", answer.body);
    assert_eq!(bench.json(&["ls"])["data"][0]["state"], "running");
    let resumed = web.send("GET /mcp", &[("Mcp-Session-Id", "s-1"), ("Last-Event-ID", "7")], "");
    assert_eq!(words(&resumed.message()["result"]), "late");
    assert_eq!(bench.json(&["ls"])["data"][0]["state"], "done");
    assert_eq!(effects(&bench), 1);
}

#[test]
fn a_stream_that_ended_early_is_taken_up_for_a_client_that_left() {
    let bench = Bench::new();
    let web = Web::scoped(&bench);
    let args = json!({"late": true, "events": true, "hold": "go"});
    let session = [("Mcp-Session-Id", "s-1")];
    let mut stream = web.open("POST /mcp", &session, &request(1, "count", &args).to_string());
    stream.until("notifications/progress");
    drop(stream);
    bench.write("go", "");
    eventually("it is done", || bench.json(&["ls"])["data"][0]["state"] == "done");
    let result = web.call_with(&session, 2, &args);
    assert_eq!(
        (&about(&result)["status"], &result["content"][1]["text"]),
        (&json!("replayed"), &json!("late"))
    );
    let last = seen(&bench).pop().unwrap();
    assert_eq!((&last["method"], &last["headers"]["last-event-id"]), (&json!("GET"), &json!("7")));
    assert_eq!(effects(&bench), 1);
}

#[test]
fn a_batch_with_calls_is_guarded() {
    let bench = Bench::new();
    let web = Web::start(&bench, &["--scope", "s", "--keys", "strict"]);
    let batch = json!([request(1, "count", &json!({})), request(2, "count", &json!({})),
                       {"jsonrpc": "2.0", "id": 3, "method": "ping"}, {"jsonrpc": "2.0", "method": "note"}]);
    let mut ids: Vec<u64> =
        web.post(&[], &batch).messages().iter().map(|message| message["id"].as_u64().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2, 3]);
    assert_eq!(effects(&bench), 1);
}

#[test]
fn explain_and_init_ask_a_server_by_http() {
    let bench = Bench::new();
    let (_server, port) = crate::mcp::web::server(&bench, 0);
    let url = format!("http://127.0.0.1:{port}/mcp");
    let said = bench.once(&["mcp", "--explain", "--server", "shop", "--http", &url]).exits(0);
    insta::assert_snapshot!(said.out(), @r"
    TOOL     CLASS  KEYS  WHY
    count    once   auto  it has no annotations
    look     read   auto  readOnlyHint
    uncount  once   auto  it has no annotations
    ");
    let args = ["mcp", "init", "--server", "shop", "--http", &url, "--header", "Authorization: Bearer x"];
    bench.once(&args).exits(0);
    assert!(bench.read("onceward.toml").contains("[operation.\"shop/count\"]\nclass = \"once\""));
    let seen = seen(&bench);
    let last = seen.last().unwrap();
    assert_eq!((&last["method"], &last["headers"]["authorization"]), (&json!("DELETE"), &json!("Bearer x")));
}

#[test]
fn a_renewed_token_is_the_same_principal_where_the_server_takes_it() {
    let bench = Bench::new();
    let web = Web::scoped(&bench);
    let with = |token: &'static str| [("Mcp-Session-Id", "s-1"), ("Authorization", token)];
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    assert_eq!(web.post(&with("Bearer old"), &list).status, 200);
    let args = json!({"hold": "go"});
    let stream = web.open("POST /mcp", &with("Bearer old"), &request(2, "count", &args).to_string());
    eventually("it runs", || effects(&bench) == 1);
    drop(stream);
    bench.write("go", "");
    eventually("it is done", || bench.json(&["ls"])["data"][0]["state"] == "done");
    let again = web.call_with(&with("Bearer new"), 3, &args);
    assert_eq!((&about(&again)["status"], effects(&bench)), (&json!("replayed"), 1));
    // A token that the server does not take gets nothing of it.
    let other = web.open("POST /mcp", &with("Bearer bad"), &request(4, "count", &args).to_string());
    assert_eq!(other.end().status, 401);
    assert_eq!(effects(&bench), 1);
}

#[test]
fn a_listener_that_others_can_reach_needs_a_token() {
    let bench = Bench::new();
    let said = bench.once(&["mcp", "--http", "http://127.0.0.1:1/", "--listen", "0.0.0.0:0"]).exits(2);
    assert!(said.err().contains("--token"), "{}", said.err());
    let web = Web::start(&bench, &["--scope", "s", "--token", "t0"]);
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    assert_eq!(web.post(&[], &list).status, 401);
    assert_eq!(web.post(&[("X-Once-Token", "t1")], &list).status, 401);
    assert_eq!(web.post(&[("X-Once-Token", "t0")], &list).status, 200);
    assert_eq!(web.post(&[("Authorization", "Bearer t0")], &list).status, 200);
    assert!(!bench.read("seen").contains("t0"), "the server need not know it");
}

#[test]
fn a_client_that_listens_hears_when_a_doubt_changes_its_tools() {
    let bench = Bench::new();
    let web = Web::start(&bench, &[]);
    let session = [("Mcp-Session-Id", "s-1")];
    let names = || {
        let list = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/list"});
        let listed = web.post(&session, &list).message()["result"]["tools"].clone();
        listed.as_array().unwrap().iter().map(|tool| tool["name"].clone()).collect::<Vec<_>>()
    };
    assert!(!names().contains(&json!("once_status")));
    let mut stream = web.open("GET /mcp", &session, "");
    stream.until("hello");
    let mut other = web.open("GET /mcp", &[("Mcp-Session-Id", "s-2")], "");
    other.until("hello");
    web.post(&session, &request(1, "count", &json!({"status": 500})));
    stream.until("notifications/tools/list_changed");
    assert!(names().contains(&json!("once_status")));
    let doubtful = bench.json(&["ls", "--state", "in_doubt"])["data"][0]["id"].as_str().unwrap().to_owned();
    bench.once(&["settle", &doubtful, "--as", "failed"]).exits(0);
    stream.heard.clear();
    web.call_with(&session, 2, &json!({}));
    stream.until("notifications/tools/list_changed");
    assert!(!names().contains(&json!("once_status")));
    bench.write("bye", "");
    assert!(!other.end().body.contains("list_changed"), "another's tools have not changed");
}
