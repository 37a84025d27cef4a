//! Proxy, server and client are killed at random. Whatever dies: never two effects for one operation.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::common::Bench;
use crate::mcp::session::{Session, about};

/// How many calls are in flight at each kill.
const CALLS: u64 = 10;

/// Number of kills; `ONCE_KILL_ROUNDS` makes it more.
fn rounds() -> u64 {
    std::env::var("ONCE_KILL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(9)
}

/// The process that the proxy has started.
fn server_of(proxy: u32) -> Option<Pid> {
    let children = std::fs::read_to_string(format!("/proc/{proxy}/task/{proxy}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok().map(Pid::from_raw)
}

/// Kills one of the three.
fn strike(session: Session, round: u64) {
    match round % 3 {
        0 => session.kill(),
        1 => {
            if let Some(server) = server_of(session.process.id()) {
                kill(server, Signal::SIGKILL).unwrap();
            }
            let _code = session.leave();
        }
        _ => drop(session.leave()),
    }
}

#[test]
fn whoever_is_killed_nothing_happens_twice_and_what_is_open_is_listed() {
    let bench = Bench::new();
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let (mut done, mut doubtful) = (0, 0);
    for round in 0..rounds() {
        let mut session = Session::start(&bench, &["--scope", "s", "--drain", "20ms"]);
        let calls = || (0..CALLS).map(|n| (n, json!({"n": round * CALLS + n, "sleep": 0.002})));
        session.call(99, "look", &json!({}));
        for (id, args) in calls() {
            session.ask(id, "count", &args);
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_millis((random >> 33) % 30));
        strike(session, round);
        let mut session = Session::scoped(&bench);
        for (id, args) in calls() {
            let args =
                crate::mcp::session::with_meta(id, "count", &args, &json!({"dev.onceward/retry": true}));
            session.send(&args);
            let result = session.answer(id)["result"].clone();
            match about(&result)["error"]["code"].as_str() {
                None => done += 1,
                Some("IN_DOUBT") => doubtful += 1,
                Some(other) => panic!("{other}: {result}"),
            }
        }
        session.leave();
    }
    let effects = bench.read("effects");
    let mut lines: Vec<&str> = effects.lines().collect();
    let all = lines.len();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), all, "an operation had two effects");
    let listed = bench.json(&["ls", "-n", "100000", "--state", "in_doubt"]);
    assert_eq!(listed["data"].as_array().unwrap().len(), doubtful, "each open one is listed");
    assert!(all >= done, "{all} effects of {done} that are done");
    assert_eq!(done + doubtful, usize::try_from(rounds() * CALLS).unwrap());
}
