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
    once: KEY_EXPIRED the result of this key was kept for its time and that is over; nothing was run
    once: happened: no, retryable: no
    once: next: once show op_…
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
    run_and_expire(&bench, &[]);
    bench.once(&["run", "--", "sh", "-c", COUNTED]).exits(0);
    bench.once(&["run", "--", "sh", "-c", COUNTED]).exits(0);
    assert_eq!(bench.runs(), 2);
}

#[test]
fn a_policy_can_turn_both_around() {
    let bench = Bench::new();
    bench.write(
        "onceward.toml",
        "[operation.rerun]\non_expired = \"rerun\"\n[operation.refuse]\non_expired = \"refuse\"\n",
    );
    run_and_expire(&bench, &["--key", "a", "--name", "rerun"]);
    bench.once(&["run", "--key", "a", "--name", "rerun", "--", "sh", "-c", COUNTED]).exits(0);
    run_and_expire(&bench, &["--name", "refuse"]);
    bench.once(&["run", "--name", "refuse", "--", "sh", "-c", COUNTED]).exits(4);
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
