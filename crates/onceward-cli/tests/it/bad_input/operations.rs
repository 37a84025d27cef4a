//! Operations that are not there, or not in a state in which that can be done to them.

use insta::assert_snapshot;

use super::refused_in;
use crate::common::{Bench, HELD};

/// Commands that need an operation.
const COMMANDS: [&[&str]; 5] = [&["show"], &["wait"], &["settle", "--as", "done"], &["verify"], &["cancel"]];

#[test]
fn words_that_name_nothing() {
    let bench = Bench::new();
    bench.with_done();
    assert_snapshot!(refused_in(&bench, 5, &["show", "charge-7"]), @r#"once: NOT_FOUND there is no operation with the id or key "charge-7" in this ledger"#);
    assert_snapshot!(refused_in(&bench, 2, &["show", ""]), @"once: INVALID_INPUT the operation is empty; give its id, the first characters of its id, or its key");
    assert_snapshot!(refused_in(&bench, 5, &["show", "done", "--scope", "other", "--name", "x"]), @r#"once: NOT_FOUND there is no operation with the id or key "done", scope "other", name "x" in this ledger"#);
    let id = format!("op_{}", "a".repeat(32));
    assert_snapshot!(refused_in(&bench, 5, &["show", &id]), @"once: NOT_FOUND there is no operation op_… in this ledger");
    for command in COMMANDS {
        for word in ["op_aaa", "aaaaa", "op_", id.as_str()] {
            refused_in(&bench, 5, &[command, &[word]].concat());
        }
    }
}

#[test]
fn a_key_of_several_operations_names_none() {
    let bench = Bench::new();
    for (scope, name) in [("a", "mail"), ("a", "pay"), ("b", "pay")] {
        bench.once(&["run", "--scope", scope, "--name", name, "--key", "k", "--", "true"]).exits(0);
    }
    assert_snapshot!(refused_in(&bench, 2, &["cancel", "k"]), @r#"
    once: INVALID_INPUT "k" matches 3 operations; give the whole id, or narrow it with --scope or --name:
      op_…  done  scope b, name pay, key k
      op_…  done  scope a, name pay, key k
      op_…  done  scope a, name mail, key k
    "#);
    assert_snapshot!(refused_in(&bench, 2, &["show", "k", "--scope", "a"]), @r#"
    once: INVALID_INPUT "k" matches 2 operations; give the whole id, or narrow it with --scope or --name:
      op_…  done  scope a, name pay, key k
      op_…  done  scope a, name mail, key k
    "#);
    let shown = |flags: &[&str]| bench.json(&[&["show", "k"], flags].concat())["data"].clone();
    assert_eq!(shown(&["--scope", "b"])["scope"], "b");
    assert_eq!(shown(&["--name", "mail"])["name"], "mail");
    assert_eq!(shown(&["--scope", "a", "--name", "pay"])["scope"], "a");
}

#[test]
fn what_is_done_cannot_be_settled_or_cancelled() {
    let bench = Bench::new();
    let id = bench.with_done();
    assert_snapshot!(refused_in(&bench, 6, &["settle", &id, "--as", "failed"]), @r"
    once: WRONG_STATE settling is not possible: the operation is done
    once: next: see what is recorded:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
    assert_snapshot!(refused_in(&bench, 6, &["settle", &id, "--as", "failed", "--dry-run"]), @r"
    once: WRONG_STATE settling is not possible: the operation is done
    once: next: see what is recorded:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
    assert_snapshot!(refused_in(&bench, 6, &["cancel", &id]), @r"
    once: WRONG_STATE cancelling is not possible: the operation is done
    once: next: see what is recorded:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
    assert_snapshot!(refused_in(&bench, 6, &["cancel", &id, "--dry-run"]), @r"
    once: WRONG_STATE cancelling is not possible: the operation is done
    once: next: see what is recorded:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
    assert_snapshot!(refused_in(&bench, 2, &["forget", &id]), @"once: INVALID_INPUT the operation is done: without its record the next call runs it, a second time if it happened; add --force if you want that");
    assert_snapshot!(refused_in(&bench, 2, &["forget", &id, "--dry-run"]), @"once: INVALID_INPUT the operation is done: without its record the next call runs it, a second time if it happened; add --force if you want that");
    assert_snapshot!(refused_in(&bench, 2, &["verify", &id]), @"once: INVALID_INPUT this operation has no check; give --check COMMAND");
}

#[test]
fn what_is_in_doubt_is_neither_cancelled_nor_forgotten_nor_verified() {
    let bench = Bench::new();
    let id = bench.with_doubt();
    assert_snapshot!(refused_in(&bench, 6, &["cancel", &id]), @r"
    once: WRONG_STATE cancelling is not possible: the operation is in doubt
    once: next: see what is recorded:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
    assert_snapshot!(refused_in(&bench, 2, &["forget", &id]), @"once: INVALID_INPUT the operation is in doubt: without its record the next call runs it, a second time if it happened; add --force if you want that");
    assert_snapshot!(refused_in(&bench, 6, &["verify", &id, "--check", "touch ran"]), @r"
    once: WRONG_STATE verifying is not possible: the operation is in doubt
    once: next: see what is recorded:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
    assert_snapshot!(refused_in(&bench, 79, &["wait", &id]), @r"
    once: IN_DOUBT the command was killed by SIGKILL
    once: next: check first whether it happened; do not repeat it. A person or a probe must record the finding:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
    assert_snapshot!(refused_in(&bench, 79, &["run", "--key", "doubt", "--", "sh", "-c", "kill -9 $$"]), @r"
    once: IN_DOUBT attempt 1 is in doubt: the command was killed by SIGKILL. It may have taken effect; nothing was run
    once: happened: unknown, ran: no, retryable: no
    once: next: check first whether it happened; do not repeat it. A person or a probe must record the finding:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
}

#[test]
fn settling_needs_a_verdict() {
    let bench = Bench::new();
    let id = bench.with_doubt();
    assert_snapshot!(refused_in(&bench, 2, &["settle", &id]), @r"
    error: the following required arguments were not provided:
      <--as <FINDING>|--probe [<COMMAND>]>

    Usage: once settle <OPERATION> --as <done|failed> [--note <TEXT>] [--data <JSON>]
           once settle <OPERATION> --probe [<COMMAND>]

    For more information, try '--help'.
    ");
    assert_snapshot!(refused_in(&bench, 2, &["settle", &id, "--as", "done|failed"]), @r"
    error: --as takes done or failed; check first whether it happened.

      --as done    it happened: retries get its result
      --as failed  it did not happen: the next call runs it
    ");
    assert_snapshot!(refused_in(&bench, 2, &["settle", &id, "--as", "maybe"]), @r"
    error: --as takes done or failed; check first whether it happened.

      --as done    it happened: retries get its result
      --as failed  it did not happen: the next call runs it
    ");
    assert_snapshot!(refused_in(&bench, 2, &["settle", &id, "--as", "done", "--probe"]), @r"
    error: the argument '--as <FINDING>' cannot be used with '--probe [<COMMAND>]'

    Usage: once settle <OPERATION> --as <done|failed> [--note <TEXT>] [--data <JSON>]
           once settle <OPERATION> --probe [<COMMAND>]

    For more information, try '--help'.
    ");
    assert_snapshot!(refused_in(&bench, 2, &["settle", &id, "--probe"]), @"once: INVALID_INPUT this operation has no probe; check whether it happened, then give --as done or --as failed, or your own probe with --probe COMMAND");
    assert_snapshot!(refused_in(&bench, 2, &["settle", &id, "--as", "done", "--data", "id=42"]), @"once: INVALID_INPUT --data: the input is not valid JSON: expected a value (at byte 0)");
    assert_snapshot!(refused_in(&bench, 2, &["wait", &id, "--timeout", "long"]), @r#"
    error: invalid value 'long' for '--timeout <TIME>': "long" is not a duration (expected number at 0); write 500ms, 15s, 24h or 30d

    For more information, try '--help'.
    "#);
}

#[test]
fn what_failed_is_not_verified_or_settled_as_done() {
    let bench = Bench::new();
    let id = bench.with_failed();
    assert_snapshot!(refused_in(&bench, 6, &["verify", &id]), @r"
    once: WRONG_STATE verifying is not possible: the operation is failed
    once: next: see what is recorded:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
    assert_snapshot!(refused_in(&bench, 6, &["settle", &id, "--as", "done"]), @r"
    once: WRONG_STATE settling is not possible: the operation is failed
    once: next: see what is recorded:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
}

#[test]
fn what_is_running_is_left_alone() {
    let bench = Bench::new();
    let _running = bench.start_held("held");
    let id = bench.newest();
    assert_snapshot!(refused_in(&bench, 6, &["settle", &id, "--as", "done"]), @r"
    once: WRONG_STATE settling is not possible: the operation is running
    once: next: see what is recorded:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
    assert_snapshot!(refused_in(&bench, 6, &["forget", &id, "--force"]), @r"
    once: WRONG_STATE forgetting is not possible: the operation is running
    once: next: see what is recorded:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
    assert_snapshot!(refused_in(&bench, 6, &["verify", &id, "--check", "true"]), @r"
    once: WRONG_STATE verifying is not possible: the operation is running
    once: next: see what is recorded:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
    assert_snapshot!(refused_in(&bench, 4, &["wait", &id, "--timeout", "0s"]), @r"
    once: IN_PROGRESS attempt 1 of this operation is still running for another caller
    once: next: wait for it, then make the same call:
    once:   once --ledger sqlite:…/once.db wait op_…
    ");
    assert_snapshot!(refused_in(&bench, 4, &["run", "--key", "held", "--wait", "0s", "--", "sh", "-c", HELD]), @r"
    once: IN_PROGRESS attempt 1 of this operation is still running for another caller
    once: happened: unknown, ran: no, retryable: no
    once: next: wait for it, then make the same call:
    once:   once --ledger sqlite:…/once.db wait op_…
    ");
    bench.release();
}

#[test]
fn a_key_that_was_used_with_other_inputs() {
    let bench = Bench::new();
    bench.with_done();
    assert_snapshot!(refused_in(&bench, 6, &["run", "--key", "done", "--", "sh", "-c", "touch ran; echo secret"]), @r"
    once: KEY_REUSED this key was already used for a different action (/argv/2 differs); nothing was run
    once: happened: yes, ran: no, retryable: no
    once: next: if this is the same action, it is done; only for a different action use another key:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
}
