//! By HTTP: who fails, and what is known afterwards.

use std::io::{Read, Write};
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::common::{Bench, eventually};
use crate::mcp::http::seen;
use crate::mcp::session::{about, effects, request, words};
use crate::mcp::web::{Web, free_port, server, server_with};

#[test]
fn a_server_that_dies_leaves_the_call_in_doubt_and_nobody_repeats_it() {
    for events in [false, true] {
        let bench = Bench::new();
        let mut web = Web::scoped(&bench);
        let args = json!({"hold": "go", "events": events});
        let stream = web.ask(1, &args);
        eventually("it runs", || effects(&bench) == 1);
        drop(web.server.take());
        let result = stream.end().message()["result"].clone();
        assert_eq!(
            (&result["isError"], &about(&result)["error"]["code"]),
            (&json!(true), &json!("IN_DOUBT"))
        );
        let again = web.call(2, &args);
        assert_eq!(about(&again)["error"]["happened"], "unknown");
        assert!(words(&again).contains("A person or a probe must record the finding"), "{again}");
        assert_eq!(bench.json(&["ls", "--state", "in_doubt"])["data"].as_array().unwrap().len(), 1);
        assert_eq!(effects(&bench), 1);
    }
}

#[test]
fn an_answer_that_breaks_off_is_in_doubt() {
    for args in [json!({"reset": true}), json!({"cut": true, "events": true}), json!({"die": 3})] {
        let bench = Bench::new();
        let web = Web::scoped(&bench);
        assert_eq!(about(&web.call(1, &args))["error"]["code"], "IN_DOUBT", "{args}");
        assert_eq!(about(&web.call(2, &args))["error"]["code"], "IN_DOUBT", "{args}");
        assert_eq!(effects(&bench), 1);
    }
}

#[test]
fn a_status_that_tells_nothing_is_passed_on_and_the_repeat_is_told() {
    for status in [503, 404, 401, 500] {
        let bench = Bench::new();
        let web = Web::scoped(&bench);
        let call = request(1, "count", &json!({"status": status}));
        let answer = web.post(&[], &call);
        assert_eq!((answer.status, answer.body.as_str()), (status, "so sorry"));
        assert!(answer.head.contains("x-why: tired"));
        let again = web.post(&[], &call);
        assert_eq!(
            (again.status, &about(&again.message()["result"])["error"]["code"]),
            (200, &json!("IN_DOUBT"))
        );
        assert_eq!(effects(&bench), 1);
    }
}

#[test]
fn an_answer_that_is_no_result_of_the_call_is_passed_on_and_is_in_doubt() {
    for instead in [
        json!({"id": 77}),
        json!({"result": null}),
        json!({"result": "sent"}),
        json!({"result": {"content": [], "isError": "true"}}),
    ] {
        let bench = Bench::new();
        let web = Web::scoped(&bench);
        let call = request(1, "count", &json!({"instead": instead}));
        let answer = web.post(&[], &call);
        assert_eq!(answer.status, 200, "{instead}");
        for (name, value) in instead.as_object().unwrap() {
            assert_eq!(answer.message()[name], *value, "it is passed on");
        }
        let again = web.post(&[], &call).message();
        assert_eq!(about(&again["result"])["error"]["code"], "IN_DOUBT", "{instead}: {again}");
        assert_eq!(effects(&bench), 1);
    }
}

#[test]
fn a_client_that_loses_its_session_and_asks_again_in_another_is_still_the_same() {
    let bench = Bench::new();
    let web = Web::start(&bench, &[]);
    let ask = |session: &str, args: &serde_json::Value| {
        web.open("POST /mcp", &[("Mcp-Session-Id", session)], &request(1, "count", args).to_string())
    };
    // It got no definite answer.
    let args = json!({"status": 404});
    assert_eq!(ask("one", &args).end().status, 404);
    assert_eq!(about(&ask("two", &args).end().message()["result"])["error"]["code"], "IN_DOUBT");
    // It left while the call ran.
    let args = json!({"hold": "go"});
    let stream = ask("three", &args);
    eventually("it runs", || effects(&bench) == 2);
    drop(stream);
    bench.write("go", "");
    eventually("it is done", || {
        bench.json(&["ls", "--state", "done"])["data"].as_array().unwrap().len() == 1
    });
    assert_eq!(about(&ask("four", &args).end().message()["result"])["status"], "replayed");
    assert_eq!(effects(&bench), 2);
    // The first caller has its answer, so a call in another session comes from another caller.
    assert!(about(&ask("five", &args).end().message()["result"]).is_null());
    assert_eq!(effects(&bench), 3);
}

#[test]
fn a_call_that_the_server_rejects_may_be_made_again() {
    let bench = Bench::new();
    let web = Web::scoped(&bench);
    for id in 1..=3 {
        let answer = web.post(&[], &request(id, "count", &json!({"reject": true})));
        assert_eq!((answer.status, &answer.message()["error"]["code"]), (400, &json!(-32602)));
    }
    assert_eq!(bench.json(&["ls", "--state", "in_doubt"])["data"].as_array().unwrap().len(), 0);
    let answer = web.post(&[], &request(4, "count", &json!({"status": 429})));
    assert_eq!(answer.status, 429);
    assert_eq!(web.post(&[], &request(5, "count", &json!({"status": 429}))).status, 429);
}

#[test]
fn an_error_of_a_tool_with_a_status_of_its_own_is_in_doubt() {
    for (status, code, words_of_tool) in [
        (400, -32602, "Invalid params: the card has expired"),
        (400, -32600, "Bad Request: said the bank"),
        (404, -32601, "Method not found"),
        (400, -32021, "the client does not support elicitation"),
    ] {
        let bench = Bench::new();
        let web = Web::scoped(&bench);
        let args = json!({"coded": [status, code, words_of_tool]});
        let first = web.post(&[], &request(1, "count", &args));
        assert_eq!((first.status, &first.message()["error"]["code"]), (status, &json!(code)), "as it came");
        let again = web.post(&[], &request(2, "count", &args));
        assert_eq!(about(&again.message()["result"])["error"]["code"], "IN_DOUBT", "{words_of_tool}");
        assert_eq!(effects(&bench), 1);
    }
}

#[test]
fn a_server_that_cannot_be_reached_was_sent_nothing_and_the_call_may_be_made_again() {
    let bench = Bench::new();
    let port = free_port();
    let web = Web::before(&bench, port, &["--scope", "s"]);
    let result = web.call(1, &json!({}));
    let error = &about(&result)["error"];
    assert_eq!((&error["happened"], &error["retryable"]), (&json!("no"), &json!(true)), "{result}");
    assert!(words(&result).contains("ake the same call again"), "{result}");
    let list = web.post(&[], &json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}));
    assert_eq!((list.status, &list.message()["happened"]), (502, &json!("no")));
    let (_server, _) = server(&bench, port);
    assert_eq!(words(&web.call(3, &json!({}))), "run 1");
    assert_eq!(effects(&bench), 1);
    // Its tools were asked for again when it was there: a read is one.
    web.post(&[], &request(4, "look", &json!({})));
    assert!(!bench.json(&["ls"]).to_string().contains("look"));
}

#[test]
fn a_proxy_that_is_killed_leaves_the_call_in_doubt() {
    let bench = Bench::new();
    let (_server, port) = server(&bench, 0);
    let web = Web::before(&bench, port, &["--scope", "s"]);
    let stream = web.ask(1, &json!({"hold": "go"}));
    eventually("it runs", || effects(&bench) == 1);
    drop((web, stream));
    bench.write("go", "");
    let web = Web::before(&bench, port, &["--scope", "s"]);
    assert_eq!(about(&web.call(2, &json!({"hold": "go"})))["operation"]["state"], "in_doubt");
    assert_eq!(effects(&bench), 1);
}

#[test]
fn a_signal_lets_the_calls_under_way_end() {
    let bench = Bench::new();
    let mut web = Web::scoped(&bench);
    let news = web.open("GET /mcp", &[("Mcp-Session-Id", "s-1")], "");
    let stream = web.ask(1, &json!({"hold": "go"}));
    eventually("it runs", || effects(&bench) == 1);
    web.signal(Signal::SIGTERM);
    eventually("nobody is taken any more", web.connect_fails());
    bench.write("go", "");
    assert_eq!(words(&stream.end().message()["result"]), "run 1");
    assert_eq!(web.proxy.0.wait().unwrap().code(), Some(0));
    drop(news);
    assert_eq!(bench.state(&bench.newest()), "done");
}

#[test]
fn what_is_too_long_or_cannot_be_read_is_refused_and_nothing_is_run() {
    let bench = Bench::new();
    let web = Web::scoped(&bench);
    let mut connection = web.connect();
    let head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 104857600\r\n\r\n";
    connection.write_all(head.as_bytes()).unwrap();
    let mut bytes = [0; 12];
    connection.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"HTTP/1.1 413");
    let nan =
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count","arguments":{"n":NaN}}}"#;
    let answer = web.send("POST /mcp", &[], nan);
    assert_eq!((answer.status, &answer.message()["error"]["code"]), (400, &json!(-32700)));
    let zipped = web.send("POST /mcp", &[("Content-Encoding", "gzip")], "x");
    assert_eq!((zipped.status, &zipped.message()["happened"]), (415, &json!("no")));
    let no_id = json!({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "count"}});
    assert_eq!(web.post(&[], &no_id).status, 400);
    assert!(seen(&bench).is_empty());
}

#[test]
fn a_page_from_elsewhere_is_not_let_in() {
    let bench = Bench::new();
    let web = Web::scoped(&bench);
    for headers in [[("Origin", "https://evil.example")], [("Host", "evil.example")], [("Origin", "null")]] {
        let answer = web.post(&headers, &request(1, "count", &json!({})));
        assert_eq!((answer.status, &answer.message()["code"]), (403, &json!("INVALID_INPUT")));
    }
    for host in ["127.0.0.1:6280@evil.example", "127.0.0.1:x", "", "localhost/evil.example"] {
        let answer = web.post(&[("Host", host)], &request(1, "count", &json!({})));
        assert!([400, 403].contains(&answer.status), "{host:?}: {}", answer.status);
    }
    let body = request(1, "count", &json!({})).to_string();
    assert_eq!(
        web.send("POST http://evil.example/mcp", &[], &body).status,
        403,
        "the target names a host too"
    );
    let head = format!("POST /mcp HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    let mut connection = web.connect();
    connection.write_all(format!("{head}{body}").as_bytes()).unwrap();
    let mut said = String::new();
    connection.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("HTTP/1.1 403"), "without a host: {said}");
    assert_eq!(effects(&bench), 0);
    let target = format!("POST http://127.0.0.1:{}/mcp", web.port);
    assert_eq!(web.send(&target, &[], &request(7, "count", &json!({"n": 7})).to_string()).status, 200);
    let here = [("Origin", "http://localhost:5173")];
    assert_eq!(words(&web.call_with(&here, 1, &json!({}))), "run 1");
    assert_eq!(seen(&bench).last().unwrap()["headers"]["origin"], "http://localhost:5173");
}

#[test]
fn a_long_answer_passes_in_messages_and_in_events() {
    const SIZE: usize = 20 * 1024 * 1024;
    let bench = Bench::new();
    let web = Web::start(&bench, &["--scope", "s", "--keys", "strict"]);
    for events in [false, true] {
        let result = web.call(1, &json!({"size": SIZE, "events": events}));
        assert_eq!(words(&result).len(), SIZE);
        let again = web.call(2, &json!({"size": SIZE, "events": events}));
        assert_eq!((&again["isError"], &about(&again)["status"]), (&json!(false), &json!("replayed")));
    }
    assert_eq!(effects(&bench), 2);
}

#[test]
fn a_server_by_https_is_trusted_by_its_certificate_and_its_name() {
    let bench = Bench::new();
    for words in [
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem",
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext basicConstraints=critical,CA:FALSE \
         -addext subjectAltName=DNS:localhost -CA ca.pem -CAkey ca.key -keyout key.pem -out certificate.pem",
    ] {
        let mut openssl = Command::new("openssl");
        let made = openssl.args(words.split_whitespace()).current_dir(bench.path("")).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    bench.write("both.pem", bench.read("key.pem") + &bench.read("certificate.pem"));
    let (_server, port) = server_with(&bench, &["0", "both.pem"]);
    let trusted = bench.path("ca.pem");
    let trust = [("SSL_CERT_FILE", trusted.to_str().unwrap())];
    let before = |host: &str| {
        Web::before_url(&bench, &format!("https://{host}:{port}/mcp"), &["--scope", "s"], &trust)
    };
    assert_eq!(words(&before("localhost").call(1, &json!({"events": true}))), "run 1");
    // Another name than the certificate's: nothing was sent, so nothing happened.
    let result = before("127.0.0.1").call(1, &json!({}));
    assert_eq!(about(&result)["error"]["happened"], "no", "{result}");
    assert_eq!(effects(&bench), 1);
}

#[test]
fn a_wrong_address_is_refused() {
    let bench = Bench::new();
    for url in ["ftp://x", "nothing", "http://user:secret@x/mcp"] {
        bench.once(&["mcp", "--http", url]).exits(2);
    }
    bench.once(&["mcp", "--http", "http://127.0.0.1:1/", "--", "true"]).exits(2);
    bench.once(&["mcp", "--listen", "127.0.0.1:0", "--", "true"]).exits(2);
    bench.once(&["mcp", "--http", "http://127.0.0.1:1/", "--listen", "192.0.2.1:1"]).exits(2);
    let foreign = ["mcp", "--http", "http://127.0.0.1:1/", "--listen", "192.0.2.1:1", "--token", "t"];
    bench.once(&foreign).exits(1);
}
