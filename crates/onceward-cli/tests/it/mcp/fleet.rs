//! Proxies that share a ledger on a server: PostgreSQL and Redis.

use onceward_testkit::{Postgres, Redis};
use serde_json::json;

use crate::common::{Bench, eventually};
use crate::mcp::session::{Session, about, effects, words};

/// A ledger on each kind of server, with nothing in it.
fn servers() -> [String; 2] {
    [Postgres::shared().fresh(), Redis::shared().fresh()]
}

fn on(bench: &Bench, url: &str) -> Session {
    // The server's name is what all of them share, whatever their commands are.
    Session::start(bench, &["--ledger", url, "--scope", "s", "--server", "counting"])
}

#[test]
fn two_proxies_run_the_same_call_once_and_both_are_answered() {
    for url in servers() {
        let bench = Bench::new();
        let mut sessions = [on(&bench, &url), on(&bench, &url)];
        for session in &mut sessions {
            session.call(9, "look", &json!({}));
        }
        for session in &mut sessions {
            session.ask(1, "count", &json!({"hold": "go"}));
        }
        eventually("one runs", || effects(&bench) > 0);
        assert!(sessions.iter_mut().all(|session| session.is_silent(300)), "{url}");
        bench.write("go", "");
        for session in &mut sessions {
            assert_eq!(session.answer(1)["result"]["structuredContent"]["run"], json!(1), "{url}");
        }
        assert_eq!(effects(&bench), 1, "{url}");
        // Both have their answer, so the same call is a new action.
        let [mut first, second] = sessions;
        second.leave();
        eventually("the delivery is noted", || {
            bench.json(&["show", &newest(&bench, &url), "--ledger", &url]).to_string().contains("delivered")
        });
        assert_eq!(
            first.call(2, "count", &json!({"hold": "go"}))["structuredContent"]["run"],
            json!(2),
            "{url}"
        );
    }
}

fn newest(bench: &Bench, url: &str) -> String {
    bench.json(&["ls", "-n", "1", "--ledger", url])["data"][0]["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_proxy_that_is_killed_leaves_its_call_in_doubt_for_all_of_them() {
    for url in servers() {
        let bench = Bench::new();
        bench.write("onceward.toml", "[operation.count]\nlease = '1s'\n");
        let mut session = on(&bench, &url);
        session.ask(1, "count", &json!({"hold": "go"}));
        eventually("it runs", || effects(&bench) == 1);
        session.kill();
        bench.write("go", "");
        let mut other = on(&bench, &url);
        let told = other.call(1, "count", &json!({"hold": "go"}));
        assert_eq!(
            (&about(&told)["error"]["code"], &about(&told)["operation"]["state"]),
            (&json!("IN_DOUBT"), &json!("in_doubt"))
        );
        assert!(words(&told).contains("A person or a probe must record the finding"), "{told}");
        let listed = bench.json(&["ls", "--state", "in_doubt", "--ledger", &url]);
        assert_eq!(listed["data"].as_array().unwrap().len(), 1, "{url}");
        assert_eq!(effects(&bench), 1, "{url}");
    }
}

#[test]
fn a_lock_holds_across_proxies() {
    for url in servers() {
        let bench = Bench::new();
        bench.write("onceward.toml", "[operation.count]\nlock = 'plan:{user}'\nlease = '5s'\n");
        let (mut one, mut other) = (on(&bench, &url), on(&bench, &url));
        one.ask(1, "count", &json!({"user": 1, "n": 1, "hold": "go"}));
        eventually("it runs", || effects(&bench) == 1);
        other.ask(1, "count", &json!({"user": 1, "n": 2}));
        // Another user's does not wait.
        other.call(2, "count", &json!({"user": 2}));
        assert_eq!(effects(&bench), 2, "{url}");
        assert!(other.is_silent(300), "two calls interleave: {url}");
        bench.write("go", "");
        one.answer(1);
        other.answer(1);
        assert_eq!(effects(&bench), 3, "{url}");
    }
}

#[test]
fn without_the_ledgers_server_nothing_is_forwarded() {
    let mut postgres = Postgres::start();
    let mut redis = Redis::start();
    let urls = [postgres.fresh(), redis.fresh()].map(|url| format!("{url}&timeout=10s"));
    let benches = [Bench::new(), Bench::new()];
    let mut sessions: Vec<Session> = benches.iter().zip(&urls).map(|(bench, url)| on(bench, url)).collect();
    for (session, bench) in sessions.iter_mut().zip(&benches) {
        let mut id = 1_000;
        // A server that has just started may miss the proxy's time limit on a busy machine: then nothing has run.
        eventually("the ledger answers", || {
            id += 1;
            session.call(id, "count", &json!({"n": 1}))["isError"].is_null()
        });
        assert_eq!(effects(bench), 1);
    }
    postgres.kill();
    redis.kill();
    for (session, bench) in sessions.iter_mut().zip(&benches) {
        let told = session.call(2, "count", &json!({"n": 2}));
        let error = &about(&told)["error"];
        assert_eq!(
            (&told["isError"], &error["code"]),
            (&json!(true), &json!("LEDGER_UNAVAILABLE")),
            "{told}"
        );
        assert_eq!((&error["happened"], &error["retryable"]), (&json!("unknown"), &json!(false)));
        assert_eq!(about(&told)["ran"], false);
        // Reads need no ledger.
        assert!(words(&session.call(3, "look", &json!({}))).contains("count"));
        assert_eq!(effects(bench), 1);
        assert!(!bench.read("seen").contains("\"n\":2"), "it was forwarded");
    }
    postgres.start_again();
    redis.start_again();
    for (session, bench) in sessions.iter_mut().zip(&benches) {
        eventually("all goes on", || {
            let id = u64::try_from(bench.read("seen").len()).unwrap() + 100;
            session.call(id, "count", &json!({"n": 2}))["isError"].is_null()
        });
        assert_eq!(effects(bench), 2);
    }
}
