//! Results that have been kept for their time.

use insta::assert_snapshot;

use crate::common::{Bench, COUNTED, eventually};

/// Runs it with a time to live that is soon over, and waits until it is.
fn run_and_expire(bench: &Bench, flags: &[&str]) {
    let args = [&["run", "--ttl", "50ms"], flags, &["--", "sh", "-c", COUNTED]].concat();
    bench.once(&args).exits(0);
    let id = bench.newest();
    eventually("the result expires", || bench.state(&id) == "expired");
}

#[test]
fn an_expired_given_key_is_refused() {
    let bench = Bench::new();
    run_and_expire(&bench, &["--key", "a"]);
    let said = bench.once(&["run", "--key", "a", "--", "sh", "-c", COUNTED]).exits(4);
    assert_snapshot!(said.err(), @r"
    once: KEY_EXPIRED the stored result for this key has expired (the operation was done); nothing was run
    once: happened: yes, ran: no, retryable: no
    once: next: to do it again on purpose, add --occurrence 2 or use another key
    ");
    bench.once(&["gc"]).exits(0);
    bench.once(&["run", "--key", "a", "--", "sh", "-c", COUNTED]).exits(4);
    assert_eq!(bench.runs(), 1);
    bench.once(&["run", "--key", "a", "--occurrence", "2", "--", "sh", "-c", COUNTED]).exits(0);
    assert_eq!(bench.runs(), 2, "an occurrence is the way to do it again");
}

#[test]
fn an_expired_derived_key_means_the_next_occurrence() {
    let bench = Bench::new();
    run_and_expire(&bench, &["--keys", "strict"]);
    bench.once(&["run", "--keys", "strict", "--", "sh", "-c", COUNTED]).exits(0);
    bench.once(&["run", "--keys", "strict", "--", "sh", "-c", COUNTED]).exits(0);
    assert_eq!(bench.runs(), 2);
    // In a scope that the caller chose, a run that is resumed after its results have expired repeats nothing.
    run_and_expire(&bench, &["--scope", "run-7"]);
    bench.once(&["run", "--scope", "run-7", "--", "sh", "-c", COUNTED]).exits(4);
    assert_eq!(bench.runs(), 3);
}

#[test]
fn a_policy_can_turn_both_around() {
    let bench = Bench::new();
    bench.policy("[operation.rerun]\non_expired = \"rerun\"\n[operation.refuse]\non_expired = \"refuse\"\n");
    run_and_expire(&bench, &["--key", "a", "--name", "rerun"]);
    bench.once(&["run", "--key", "a", "--name", "rerun", "--", "sh", "-c", COUNTED]).exits(0);
    run_and_expire(&bench, &["--keys", "strict", "--name", "refuse"]);
    bench.once(&["run", "--keys", "strict", "--name", "refuse", "--", "sh", "-c", COUNTED]).exits(4);
    assert_eq!(bench.runs(), 3);
}

#[test]
fn a_doubt_never_expires() {
    let bench = Bench::new();
    let args = ["run", "--key", "a", "--ttl", "1ms", "--", "sh", "-c", "echo ran >> runs; kill -9 $$"];
    bench.once(&args).exits(79);
    bench.once(&["gc"]).exits(0);
    bench.once(&args).exits(79);
    assert_eq!(bench.runs(), 1);
}
