//! By HTTP: who is who, and that no result crosses from one caller to another.

use data_encoding::BASE64URL_NOPAD;
use serde_json::json;

use crate::common::{Bench, eventually};
use crate::mcp::session::{about, effects, request, with_meta, words};
use crate::mcp::web::Web;

#[test]
fn callers_with_different_credentials_share_nothing_whatever_the_header_is_called() {
    let bench = Bench::new();
    let web = Web::start(&bench, &["--keys", "strict", "--ignore-header", "X-Shard"]);
    let status = |headers: &[(&str, &str)]| about(&web.call_with(headers, 1, &json!({})))["status"].clone();
    let names = [
        "Authorization",
        "X-Goog-Api-Key",
        "Private-Token",
        "Ocp-Apim-Subscription-Key",
        "X-Amz-Security-Token",
        "X-Forwarded-User",
        "Cookie",
        "Anything-Else",
    ];
    assert!(status(&[]).is_null());
    for name in names {
        for value in ["id=alice-liddell", "id=robert-tables"] {
            assert!(status(&[(name, value)]).is_null(), "{name}: {value}");
            // What says nothing about the caller may differ in its retry.
            let noise = [(name, value), ("Traceparent", "00-1-1-01"), ("User-Agent", "b"), ("X-Shard", "7")];
            assert_eq!(status(&noise), "replayed", "{name}: {value}");
        }
    }
    assert_eq!(effects(&bench), 1 + 2 * names.len());
    let listed = bench.json(&["ls"]).to_string();
    assert!(!listed.contains("alice-liddell") && !listed.contains("robert-tables"), "{listed}");
}

#[test]
fn a_call_that_runs_is_not_joined_by_another_caller() {
    let bench = Bench::new();
    let web = Web::start(&bench, &[]);
    let args = json!({"hold": "go"});
    let ask = |who: &'static str| {
        web.open("POST /mcp", &[("X-Goog-Api-Key", who)], &request(1, "count", &args).to_string())
    };
    let alice = ask("alice");
    eventually("hers runs", || effects(&bench) == 1);
    let bob = ask("bob");
    eventually("his runs as well", || effects(&bench) == 2);
    bench.write("go", "");
    for stream in [alice, bob] {
        assert!(about(&stream.end().message()["result"]).is_null());
    }
}

#[test]
fn a_scope_that_was_seen_is_not_the_key_to_its_results() {
    let bench = Bench::new();
    let web = Web::start(&bench, &["--keys", "strict"]);
    let alice = [("Authorization", "Bearer alice")];
    web.call_with(&alice, 1, &json!({}));
    let again = web.call_with(&alice, 2, &json!({}));
    let scope = about(&again)["operation"]["scope"].as_str().unwrap().to_owned();
    assert!(scope.contains('~'), "{scope}");
    for name in ["dev.onceward/scope", "threadId", "vscode.conversationId"] {
        let message = with_meta(3, "count", &json!({}), &json!({name: scope}));
        let told = web.post(&[], &message).message()["result"].clone();
        assert_eq!(about(&told)["error"]["code"], "INVALID_INPUT", "{told}");
        assert!(words(&told).contains('~'), "{told}");
    }
    assert_eq!(effects(&bench), 1);
    let session = [("Mcp-Session-Id", scope.as_str())];
    assert!(about(&web.call_with(&session, 4, &json!({}))).is_null(), "a session of its own");
    assert_eq!(effects(&bench), 2);
}

#[test]
fn a_token_that_was_revoked_gets_no_stored_result() {
    let bench = Bench::new();
    let web = Web::start(&bench, &["--keys", "strict", "--scope", "s"]);
    let alice = [("Authorization", "Bearer alice")];
    let list = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/list"});
    web.call_with(&alice, 1, &json!({}));
    assert_eq!(about(&web.call_with(&alice, 2, &json!({})))["status"], "replayed");
    bench.write("revoked", "Bearer alice\n");
    // The server has accepted it just now; when it denies it, that is over at once.
    assert_eq!(web.post(&alice, &list).status, 401);
    let denied = web.post(&alice, &request(3, "count", &json!({})));
    assert_eq!(
        (denied.status, denied.head.contains("www-authenticate: bearer")),
        (401, true),
        "{}",
        denied.head
    );
    assert!(denied.message()["result"].is_null() && !denied.body.contains("run 1"), "{}", denied.body);
    bench.write("revoked", "");
    assert_eq!(about(&web.call_with(&alice, 4, &json!({})))["status"], "replayed");
    drop(web);
    // A proxy that has not seen it accepted asks first.
    let web = Web::start(&bench, &["--keys", "strict", "--scope", "s", "--server", "x"]);
    web.call_with(&alice, 1, &json!({"n": 1}));
    bench.write("revoked", "Bearer alice\n");
    drop(web);
    let web = Web::start(&bench, &["--keys", "strict", "--scope", "s", "--server", "x"]);
    assert_eq!(web.post(&alice, &request(2, "count", &json!({"n": 1}))).status, 401);
    bench.write("revoked", "");
    assert_eq!(about(&web.call_with(&alice, 3, &json!({"n": 1})))["status"], "replayed");
    assert_eq!(effects(&bench), 2);
}

#[test]
fn the_subject_of_a_token_counts_only_where_the_user_trusts_the_server_with_it() {
    let token = |issued: u64| {
        let claims = json!({"iss": "https://id.example", "sub": "alice", "iat": issued}).to_string();
        format!("Bearer h.{}.s", BASE64URL_NOPAD.encode(claims.as_bytes()))
    };
    for (flags, runs) in [(&["--scope", "s"][..], 2), (&["--scope", "s", "--trust-subject"], 1)] {
        let bench = Bench::new();
        let web = Web::start(&bench, &[flags, &["--keys", "strict"]].concat());
        for issued in [1, 2] {
            web.call_with(&[("Authorization", &token(issued))], issued, &json!({}));
        }
        assert_eq!(effects(&bench), runs, "{flags:?}");
    }
}
