//! Operations that are not there, or not in a state in which that can be done to them.

use insta::assert_snapshot;

use super::refused_in;
use crate::common::{Bench, HELD};

const COMMANDS: [&[&str]; 6] =
    [&["show"], &["wait"], &["settle", "--as", "done"], &["verify"], &["cancel"], &["forget"]];

#[test]
fn ids_that_are_none() {
    let bench = Bench::new();
    bench.with_done();
    assert_snapshot!(refused_in(&bench, 2, &["show", "charge-7"]), @r#"
    once: INVALID_INPUT "charge-7" is not an operation id (`op_` and 32 characters); `once ls` shows them
    once: happened: no, retryable: no
    "#);
    assert_snapshot!(refused_in(&bench, 2, &["show", ""]), @r#"
    once: INVALID_INPUT "" is not an operation id (`op_` and 32 characters); `once ls` shows them
    once: happened: no, retryable: no
    "#);
    for command in COMMANDS {
        refused_in(&bench, 2, &[command, &["op_123"]].concat());
    }
}

#[test]
fn ids_of_nothing() {
    let bench = Bench::new();
    bench.with_done();
    let id = format!("op_{}", "a".repeat(32));
    assert_snapshot!(refused_in(&bench, 5, &["show", &id]), @r"
    once: NOT_FOUND no operation op_… in this ledger
    once: happened: no, retryable: no
    ");
    for command in COMMANDS {
        refused_in(&bench, 5, &[command, &[id.as_str()]].concat());
    }
}

#[test]
fn what_is_done_cannot_be_settled_or_cancelled() {
    let bench = Bench::new();
    let id = bench.with_done();
    assert_snapshot!(refused_in(&bench, 6, &["settle", &id, "--as", "failed"]), @r"
    once: WRONG_STATE settling is not possible: the operation is done
    once: happened: yes, retryable: no
    once: next: once show op_…
    ");
    assert_snapshot!(refused_in(&bench, 6, &["settle", &id, "--as", "failed", "--dry-run"]), @r"
    once: WRONG_STATE settling is not possible: the operation is done
    once: happened: yes, retryable: no
    once: next: once show op_…
    ");
    assert_snapshot!(refused_in(&bench, 6, &["cancel", &id]), @r"
    once: WRONG_STATE cancelling is not possible: the operation is done
    once: happened: yes, retryable: no
    once: next: once show op_…
    ");
    assert_snapshot!(refused_in(&bench, 6, &["cancel", &id, "--dry-run"]), @r"
    once: WRONG_STATE cancelling is not possible: the operation is done
    once: happened: yes, retryable: no
    once: next: once show op_…
    ");
    assert_snapshot!(refused_in(&bench, 2, &["forget", &id]), @r"
    once: INVALID_INPUT the operation is done: without its record the next call runs it, a second time if it happened; --force if that is wanted
    once: happened: no, retryable: no
    ");
    assert_snapshot!(refused_in(&bench, 2, &["forget", &id, "--dry-run"]), @r"
    once: INVALID_INPUT the operation is done: without its record the next call runs it, a second time if it happened; --force if that is wanted
    once: happened: no, retryable: no
    ");
    assert_snapshot!(refused_in(&bench, 2, &["verify", &id]), @r"
    once: INVALID_INPUT this operation has no check of its own; give --check COMMAND
    once: happened: no, retryable: no
    ");
}

#[test]
fn what_is_in_doubt_is_neither_cancelled_nor_forgotten_nor_verified() {
    let bench = Bench::new();
    let id = bench.with_doubt();
    assert_snapshot!(refused_in(&bench, 6, &["cancel", &id]), @r"
    once: WRONG_STATE cancelling is not possible: the operation is in_doubt
    once: happened: unknown, retryable: no
    once: next: once show op_…
    ");
    assert_snapshot!(refused_in(&bench, 2, &["forget", &id]), @r"
    once: INVALID_INPUT the operation is in_doubt: without its record the next call runs it, a second time if it happened; --force if that is wanted
    once: happened: no, retryable: no
    ");
    assert_snapshot!(refused_in(&bench, 6, &["verify", &id, "--check", "touch ran"]), @r"
    once: WRONG_STATE verifying is not possible: the operation is in_doubt
    once: happened: unknown, retryable: no
    once: next: once show op_…
    ");
    assert_snapshot!(refused_in(&bench, 79, &["wait", &id]), @r"
    once: IN_DOUBT the command was killed by SIGKILL
    once: happened: unknown, retryable: no
    once: next: once settle op_… --as 'done|failed'
    ");
    assert_snapshot!(refused_in(&bench, 79, &["run", "--key", "doubt", "--", "sh", "-c", "kill -9 $$"]), @r"
    once: IN_DOUBT nobody can say whether attempt 1 happened: the command was killed by SIGKILL; nothing was run
    once: happened: unknown, retryable: no
    once: next: once settle op_… --as 'done|failed'
    ");
}

#[test]
fn settling_needs_a_verdict() {
    let bench = Bench::new();
    let id = bench.with_doubt();
    assert_snapshot!(refused_in(&bench, 2, &["settle", &id]), @r"
    error: the following required arguments were not provided:
      --as <VERDICT>

    Usage: once settle --ledger <URL> --as <VERDICT> <OPERATION>

    For more information, try '--help'.
    ");
    assert_snapshot!(refused_in(&bench, 2, &["settle", &id, "--as", "maybe"]), @r"
    error: invalid value 'maybe' for '--as <VERDICT>'
      [possible values: done, failed]

    For more information, try '--help'.
    ");
    assert_snapshot!(refused_in(&bench, 2, &["settle", &id, "--as", "done", "--probe"]), @r"
    error: the argument '--as <VERDICT>' cannot be used with '--probe'

    Usage: once settle --as <VERDICT> --ledger <URL> <OPERATION>

    For more information, try '--help'.
    ");
    assert_snapshot!(refused_in(&bench, 2, &["settle", &id, "--probe"]), @r"
    once: INVALID_INPUT this operation has no probe; say --as done or --as failed
    once: happened: no, retryable: no
    ");
    assert_snapshot!(refused_in(&bench, 2, &["settle", &id, "--as", "done", "--data", "id=42"]), @r"
    once: INVALID_INPUT --data: the input is not valid JSON: expected a value (at byte 0)
    once: happened: no, retryable: no
    ");
    assert_snapshot!(refused_in(&bench, 2, &["wait", &id, "--timeout", "long"]), @r#"
    error: invalid value 'long' for '--timeout <TIME>': "long" is not a span of time (expected number at 0); write 500ms, 15s, 24h or 30d

    For more information, try '--help'.
    "#);
}

#[test]
fn what_failed_is_not_verified_or_settled() {
    let bench = Bench::new();
    let id = bench.with_failed();
    assert_snapshot!(refused_in(&bench, 6, &["verify", &id]), @r"
    once: WRONG_STATE verifying is not possible: the operation is failed
    once: happened: no, retryable: no
    once: next: once show op_…
    ");
    assert_snapshot!(refused_in(&bench, 6, &["settle", &id, "--as", "done"]), @r"
    once: WRONG_STATE settling is not possible: the operation is failed
    once: happened: no, retryable: no
    once: next: once show op_…
    ");
}

#[test]
fn what_is_running_is_left_alone() {
    let bench = Bench::new();
    let _running = bench.start_held("held");
    let id = bench.newest();
    assert_snapshot!(refused_in(&bench, 6, &["settle", &id, "--as", "done"]), @r"
    once: WRONG_STATE settling is not possible: the operation is running
    once: happened: unknown, retryable: no
    once: next: once show op_…
    ");
    assert_snapshot!(refused_in(&bench, 6, &["forget", &id, "--force"]), @r"
    once: WRONG_STATE forgetting is not possible: the operation is running
    once: happened: unknown, retryable: no
    once: next: once show op_…
    ");
    assert_snapshot!(refused_in(&bench, 6, &["verify", &id, "--check", "true"]), @r"
    once: WRONG_STATE verifying is not possible: the operation is running
    once: happened: unknown, retryable: no
    once: next: once show op_…
    ");
    assert_snapshot!(refused_in(&bench, 4, &["wait", &id, "--timeout", "0s"]), @r"
    once: IN_PROGRESS another caller is executing attempt 1 of this operation
    once: happened: unknown, retryable: no
    once: next: once wait op_…
    ");
    assert_snapshot!(refused_in(&bench, 4, &["run", "--key", "held", "--wait", "0s", "--", "sh", "-c", HELD]), @r"
    once: IN_PROGRESS another caller is executing attempt 1 of this operation
    once: happened: unknown, retryable: no
    once: next: once wait op_…
    ");
    bench.release();
}

#[test]
fn a_key_that_was_used_with_other_inputs() {
    let bench = Bench::new();
    bench.with_done();
    assert_snapshot!(refused_in(&bench, 6, &["run", "--key", "done", "--", "sh", "-c", "touch ran; echo secret"]), @r"
    once: KEY_REUSED this key was used with other inputs (/argv/2 differs); nothing was run
    once: happened: no, retryable: no
    once: next: once show op_…
    ");
}
