//! A dry run says what would happen, and writes nothing.

use insta::assert_snapshot;
use serde_json::json;

use crate::common::{Bench, COUNTED};

/// A dry run that leaves every file as it was, and makes none; what it says to people.
fn preview(bench: &Bench, flags: &[&str], script: &str) -> String {
    let before = bench.listing();
    let args = [&["run", "--dry-run"], flags, &["--", "sh", "-c", script]].concat();
    let said = bench.once(&args);
    let answer = bench.json(&args);
    // What the real call would exit with, and whether it would be let through.
    assert_eq!(answer["ok"] == true, said.exit == 0, "{answer}");
    assert!(answer["effect"].as_str().unwrap().starts_with("would_"), "{answer}");
    assert_eq!((&answer["ran"], answer["changes"].is_array()), (&json!(false), true), "{answer}");
    assert!(before == bench.listing(), "a dry run writes nothing");
    assert_eq!(said.err().is_empty(), said.exit == 0, "{}", said.err());
    format!("{} exit {} | {}", answer["decision"].as_str().unwrap(), said.exit, said.out())
}

#[test]
fn where_there_is_no_ledger_it_would_run_and_none_is_made() {
    let bench = Bench::new();
    assert_snapshot!(preview(&bench, &["--effect", "created"], COUNTED), @r"
    run exit 0 | would_create: would run attempt 1 [op_…]
      would run sh -c 'echo ran >> runs; echo out; echo err >&2'
    ");
    assert!(bench.listing().is_empty());
}

#[test]
fn what_is_done_would_be_replayed() {
    let bench = Bench::new();
    bench.with_done();
    assert_snapshot!(preview(&bench, &["--key", "done"], COUNTED), @"replay exit 0 | would_noop: already done by attempt 1: would replay its result and run nothing [op_…]");
}

#[test]
fn other_inputs_would_be_a_conflict() {
    let bench = Bench::new();
    bench.with_done();
    assert_snapshot!(preview(&bench, &["--key", "done"], "other"), @"refuse exit 6 | would_noop: would refuse: this key was already used for a different action (/argv/2 differs); nothing was run [op_…]");
}

#[test]
fn a_doubt_would_block_or_be_asked_about() {
    let bench = Bench::new();
    bench.with_doubt();
    let script = "kill -9 $$";
    assert_snapshot!(preview(&bench, &["--key", "doubt"], script), @"refuse exit 79 | would_noop: would refuse: attempt 1 is in doubt: the command was killed by SIGKILL. It may have taken effect; nothing was run [op_…]");
    assert_snapshot!(preview(&bench, &["--key", "doubt", "--probe", "touch asked"], script), @r"
    probe exit 0 | would_update: would ask the probe whether attempt 1 happened, and run only if it did not [op_…]
      would run sh -c 'kill -9 $$'
    ");
    assert_snapshot!(preview(&bench, &["--key", "doubt", "--class", "idempotent"], script), @r"
    run exit 0 | would_update: would run attempt 2 [op_…]
      would run sh -c 'kill -9 $$'
    ");
}

#[test]
fn what_failed_would_be_tried_within_its_budget() {
    let bench = Bench::new();
    bench.with_failed();
    assert_snapshot!(preview(&bench, &["--key", "failed"], "exit 3"), @r"
    run exit 0 | would_update: would run attempt 2 [op_…]
      would run sh -c 'exit 3'
    ");
    assert_snapshot!(preview(&bench, &["--key", "failed", "--attempts", "1"], "exit 3"), @"refuse exit 4 | would_noop: would refuse: gave up after 1 failed attempts (the limit is 1); nothing was run [op_…]");
}

#[test]
fn what_was_cancelled_would_be_refused() {
    let bench = Bench::new();
    let id = bench.with_failed();
    bench.once(&["cancel", &id]).exits(0);
    let seen = preview(&bench, &["--key", "failed"], "exit 3");
    let refusal = "refuse exit 4 | would_noop: would refuse: this operation was cancelled by a person (once cancel, user ";
    assert!(seen.starts_with(refusal) && seen.ends_with("; nothing was run [op_…]"), "{seen}");
}

#[test]
fn what_is_running_would_be_waited_for() {
    let bench = Bench::new();
    let _running = bench.start_held("held");
    assert_snapshot!(preview(&bench, &["--key", "held"], crate::common::HELD), @"wait exit 0 | would_noop: would wait: attempt 1 is running [op_…]");
    bench.release();
}

#[test]
fn the_commands_own_plan_is_shown() {
    let bench = Bench::new();
    let plan =
        bench.once(&["run", "--dry-run", "--dry-run-args=--dry-run -v", "--", "echo", "deploy"]).exits(0);
    assert_snapshot!(plan.out(), @r"
    would_update: would run attempt 1 [op_…]
      would run echo deploy
    deploy --dry-run -v
    ");
    let args = ["run", "--dry-run", "--dry-run-args=--dry-run -v", "--", "echo", "deploy"];
    assert_eq!(bench.json(&args)["data"]["plan"], "deploy --dry-run -v\n");
    assert!(bench.listing().is_empty());
}
