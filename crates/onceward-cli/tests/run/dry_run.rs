//! A dry run says what would happen, and writes nothing.

use insta::assert_snapshot;

use crate::common::{Bench, COUNTED};

/// A dry run that leaves every file as it was, and makes none; what it says to people.
fn preview(bench: &Bench, flags: &[&str], script: &str) -> String {
    let before = bench.listing();
    let args = [&["run", "--dry-run"], flags, &["--", "sh", "-c", script]].concat();
    let said = bench.once(&args).exits(0);
    let answer = bench.json(&args);
    assert_eq!(answer["ok"], true);
    assert!(answer["effect"].as_str().unwrap().starts_with("would_"), "{answer}");
    assert!(before == bench.listing(), "a dry run writes nothing");
    assert_eq!(said.err(), "");
    format!("{} | {}", answer["data"]["would"].as_str().unwrap(), said.out())
}

#[test]
fn where_there_is_no_ledger_it_would_run_and_none_is_made() {
    let bench = Bench::new();
    assert_snapshot!(preview(&bench, &["--effect", "created"], COUNTED), @"run | would_create: would run attempt 1 [op_…]");
    assert!(bench.listing().is_empty());
}

#[test]
fn what_is_done_would_be_replayed() {
    let bench = Bench::new();
    bench.with_done();
    assert_snapshot!(preview(&bench, &["--key", "done"], COUNTED), @"replay | would_noop: would replay the result of attempt 1 [op_…]");
}

#[test]
fn other_inputs_would_be_a_conflict() {
    let bench = Bench::new();
    bench.with_done();
    assert_snapshot!(preview(&bench, &["--key", "done"], "other"), @"conflict | would_noop: would refuse: the key was used with other inputs (/argv/2) [op_…]");
}

#[test]
fn a_doubt_would_block_or_be_asked_about() {
    let bench = Bench::new();
    bench.with_doubt();
    let script = "kill -9 $$";
    assert_snapshot!(preview(&bench, &["--key", "doubt"], script), @"blocked | would_noop: would refuse: nobody can say whether attempt 1 happened [op_…]");
    assert_snapshot!(preview(&bench, &["--key", "doubt", "--probe", "touch asked"], script), @"probe | would_noop: would ask the probe whether attempt 1 happened [op_…]");
    assert_snapshot!(preview(&bench, &["--key", "doubt", "--class", "idempotent"], script), @"run | would_update: would run attempt 2 [op_…]");
}

#[test]
fn what_failed_would_be_tried_within_its_budget() {
    let bench = Bench::new();
    bench.with_failed();
    assert_snapshot!(preview(&bench, &["--key", "failed"], "exit 3"), @"run | would_update: would run attempt 2 [op_…]");
    assert_snapshot!(preview(&bench, &["--key", "failed", "--attempts", "1"], "exit 3"), @"blocked | would_noop: would refuse: 1 attempts were made and the budget allows no more [op_…]");
}

#[test]
fn what_was_cancelled_would_be_refused() {
    let bench = Bench::new();
    let id = bench.with_failed();
    bench.once(&["cancel", &id]).exits(0);
    assert_snapshot!(preview(&bench, &["--key", "failed"], "exit 3"), @"blocked | would_noop: would refuse: it was cancelled [op_…]");
}

#[test]
fn what_is_running_would_be_waited_for() {
    let bench = Bench::new();
    let _running = bench.start_held("held");
    assert_snapshot!(preview(&bench, &["--key", "held"], crate::common::HELD), @"wait | would_noop: would wait: attempt 1 is running [op_…]");
    bench.release();
}

#[test]
fn the_commands_own_plan_is_shown() {
    let bench = Bench::new();
    let plan =
        bench.once(&["run", "--dry-run", "--dry-run-args=--dry-run -v", "--", "echo", "deploy"]).exits(0);
    assert_snapshot!(plan.out(), @r"
    would_update: would run attempt 1 [op_…]
    deploy --dry-run -v
    ");
    let args = ["run", "--dry-run", "--dry-run-args=--dry-run -v", "--", "echo", "deploy"];
    assert_eq!(bench.json(&args)["data"]["plan"], "deploy --dry-run -v\n");
    assert!(bench.listing().is_empty());
}
