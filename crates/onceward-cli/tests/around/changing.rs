//! Commands that change a record: settle, verify, cancel, forget, gc.

use insta::assert_snapshot;
use serde_json::json;

use crate::common::{Bench, COUNTED, eventually};

const DOUBTFUL: [&str; 6] = ["run", "--key", "doubt", "--", "sh", "-c"];

/// The call that left the doubt, again.
fn again(bench: &Bench) -> crate::common::Said {
    bench.once(&[&DOUBTFUL[..], &["kill -9 $$"]].concat())
}

#[test]
fn settled_as_done_its_result_is_replayed() {
    let bench = Bench::new();
    let id = bench.with_doubt();
    let args = ["settle", &id, "--as", "done", "--note", "seen on the statement", "--data", r#"{"id": 42}"#];
    assert_snapshot!(bench.once(&args).exits(0).out(), @"op_… is done: retries get its result");
    let said = again(&bench).exits(0);
    assert_eq!(said.out(), r#"{"id": 42}"#);
    assert_snapshot!(said.err(), @"once: already done AGE ago by attempt 1; nothing was run (a wanted repeat needs another occurrence) [op_…]");
    let shown = bench.json(&["show", &id])["data"]["outcome"].clone();
    assert_eq!((&shown["settled_by"], &shown["reason"]), (&json!("hand"), &json!("seen on the statement")));
    let answer = bench.json(&[&DOUBTFUL[..], &["kill -9 $$"]].concat());
    assert_eq!(answer["data"], json!({"id": 42}));
}

#[test]
fn settled_as_failed_it_runs_again() {
    let bench = Bench::new();
    let id = bench.with_doubt();
    assert_snapshot!(bench.once(&["settle", &id, "--as", "failed"]).exits(0).out(), @"op_… is failed: the next call runs it");
    assert_eq!(bench.state(&id), "failed");
    again(&bench).exits(79);
    assert_eq!(bench.json(&["show", &id])["data"]["attempt"], 2);
}

#[test]
fn settled_by_its_probe() {
    let bench = Bench::new();
    let doubt = |key: &str, probe: &str| {
        bench.once(&["run", "--key", key, "--probe", probe, "--", "sh", "-c", "kill -9 $$"]).exits(79);
        bench.newest()
    };
    let (yes, no, unclear) = (doubt("yes", "exit 0"), doubt("no", "exit 1"), doubt("unclear", "exit 2"));
    bench.once(&["settle", &yes, "--probe"]).exits(0);
    bench.once(&["settle", &no, "--probe"]).exits(0);
    let said = bench.once(&["settle", &unclear, "--probe"]).exits(79);
    assert_snapshot!(said.err(), @r"
    once: IN_DOUBT the probe ended with exit code 2
    once: happened: unknown, retryable: no
    once: next: once settle op_… --probe
    ");
    assert_eq!([bench.state(&yes), bench.state(&no), bench.state(&unclear)], ["done", "failed", "in_doubt"]);
    assert_eq!(bench.json(&["show", &yes])["data"]["outcome"]["settled_by"], "probe");
}

#[test]
fn verify_checks_again() {
    let bench = Bench::new();
    let id = bench.with_done();
    assert_snapshot!(bench.once(&["verify", &id, "--check", "true"]).exits(0).out(), @"op_… is confirmed");
    assert_eq!(bench.json(&["show", &id])["data"]["verified"], "confirmed");
    bench.once(&["verify", &id, "--check", "exit 2"]).exits(0);
    assert_eq!(bench.json(&["show", &id])["data"]["verified"], "pending");
    let said = bench.once(&["verify", &id, "--check", "false"]).exits(79);
    assert_snapshot!(said.err(), @r"
    once: UNVERIFIED success was reported, but the check refuted it: `false` says that it is not so
    once: happened: unknown, retryable: no
    once: next: once settle op_… --as 'done|failed'
    ");
    assert_eq!(bench.state(&id), "in_doubt");
    bench.once(&["run", "--key", "done", "--", "sh", "-c", COUNTED]).exits(79);
    assert_eq!(bench.runs(), 1);
}

#[test]
fn verify_uses_the_operations_own_check() {
    let bench = Bench::new();
    let args = ["run", "--verify", "echo asked >> asked; exit 0", "--", "true"];
    bench.once(&args).exits(0);
    bench.once(&["verify", &bench.newest()]).exits(0);
    assert_eq!(bench.read("asked").lines().count(), 2);
}

#[test]
fn cancel_stops_a_running_command() {
    let bench = Bench::new();
    let running = bench.start_held("a");
    let id = bench.newest();
    assert_snapshot!(bench.once(&["cancel", &id]).exits(0).out(), @"op_… is running; it was asked to stop, and `once wait op_…` tells what happened");
    let said = running.end().exits(79);
    assert_snapshot!(said.err(), @r"
    once: somebody asked this operation to stop; stopping the command
    once: IN_DOUBT the command was killed by SIGTERM
    once: happened: unknown, retryable: no
    once: next: once settle op_… --as 'done|failed'
    ");
    assert_eq!(bench.state(&id), "in_doubt", "a command killed by a signal may have had its effect");
}

#[test]
fn a_command_that_ends_well_when_it_is_asked_to_stop_says_what_happened() {
    let bench = Bench::new();
    let script = "trap 'exit 4' TERM; echo ran >> runs; while [ -e runs ]; do sleep 0.02; done";
    let running = bench.start(&["run", "--key", "a", "--", "sh", "-c", script]);
    eventually("the command runs", || bench.runs() == 1);
    let id = bench.newest();
    bench.once(&["cancel", &id]).exits(0);
    running.end().exits(4);
    assert_eq!(bench.state(&id), "failed");
}

#[test]
fn cancel_makes_certain_that_a_failed_operation_is_not_tried_again() {
    let bench = Bench::new();
    let id = bench.with_failed();
    let first = bench.json(&["cancel", &id]);
    assert_eq!((&first["effect"], &first["data"]["state"]), (&json!("updated"), &json!("cancelled")));
    assert_eq!(bench.json(&["cancel", &id])["effect"], "noop", "it is cancelled already");
    let said = bench.once(&["run", "--key", "failed", "--", "sh", "-c", "exit 3"]).exits(4);
    assert_snapshot!(said.err(), @r"
    once: CANCELLED this operation was cancelled before it had any effect; nothing was run
    once: happened: no, retryable: no
    once: next: once show op_…
    ");
}

#[test]
fn cancel_of_what_is_done_says_that_it_happened() {
    let bench = Bench::new();
    let id = bench.with_done();
    let error = bench.json(&["cancel", &id])["error"].clone();
    assert_eq!((&error["code"], &error["happened"]), (&json!("WRONG_STATE"), &json!("yes")));
    assert_eq!(bench.state(&id), "done");
}

#[test]
fn forget_lets_it_run_again() {
    let bench = Bench::new();
    let id = bench.with_done();
    assert_snapshot!(bench.once(&["forget", &id, "--force"]).exits(0).out(), @"op_… is forgotten: its key can run again");
    bench.once(&["show", &id]).exits(5);
    bench.with_done();
    assert_eq!(bench.runs(), 2);
    let failed = bench.with_failed();
    bench.once(&["forget", &failed]).exits(0);
    bench.once(&["show", &failed]).exits(5);
}

#[test]
fn gc_expires_what_is_due_and_then_its_tombstone() {
    let bench = Bench::new();
    bench.write("onceward.toml", "[defaults]\nretention = \"1ms\"\ntombstones = \"1ms\"\n");
    let id = bench.with_done();
    eventually("it is due", || bench.state(&id) == "expired");
    let first = bench.json(&["gc"]);
    assert_eq!(
        (&first["effect"], &first["data"]),
        (&json!("deleted"), &json!({"expired": 1, "deleted": 0, "doubted": 0}))
    );
    eventually("its tombstone is due", || bench.json(&["gc"])["data"]["deleted"] == 1);
    bench.once(&["show", &id]).exits(5);
    assert_snapshot!(bench.once(&["gc"]).exits(0).out(), @"0 results expired, 0 tombstones gone, 0 attempts written down as in doubt");
}
