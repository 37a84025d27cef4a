//! Every command that changes something says what it would change, and changes nothing.

use insta::assert_snapshot;

use crate::common::{Bench, eventually};

/// What a dry run says; every file must be as it was.
#[track_caller]
fn would(bench: &Bench, args: &[&str]) -> String {
    let before = bench.listing();
    let args = [args, &["--dry-run"]].concat();
    let said = bench.once(&args).exits(0).out();
    let effect = bench.json(&args)["effect"].as_str().unwrap().to_owned();
    assert!(said.starts_with(&effect), "the same to people and programs: {said}, {effect}");
    assert!(before == bench.listing(), "a dry run writes nothing");
    said
}

#[test]
fn settle() {
    let bench = Bench::new();
    let id = bench.with_doubt();
    assert_snapshot!(would(&bench, &["settle", &id, "--as", "done"]), @"would_update: would settle op_… as done");
    assert_snapshot!(would(&bench, &["settle", &id, "--as", "failed"]), @"would_update: would settle op_… as failed");
    bench.once(&["settle", &id, "--as", "done"]).exits(0);
    let again = would(&bench, &["settle", &id, "--as", "done"]);
    assert!(again.starts_with("would_noop: op_… is done already"), "{again}");
}

#[test]
fn settle_by_probe() {
    let bench = Bench::new();
    bench.once(&["run", "--key", "a", "--probe", "exit 0", "--", "sh", "-c", "kill -9 $$"]).exits(79);
    let here = bench.path("").display().to_string().trim_end_matches('/').to_owned();
    assert_snapshot!(would(&bench, &["settle", &bench.newest(), "--probe", "touch ran"]).replace(&here, "HERE"), @"would_update: would run the probe `touch ran` in HERE and settle op_… by its answer");
    assert!(!bench.path("ran").exists(), "a dry run runs nothing");
}

#[test]
fn verify() {
    let bench = Bench::new();
    let id = bench.with_done();
    assert_snapshot!(would(&bench, &["verify", &id, "--check", "touch ran"]), @"would_update: would run the check `touch ran` and record its answer");
    assert!(!bench.path("ran").exists(), "a dry run runs nothing");
}

#[test]
fn stop_and_resume() {
    let bench = Bench::new();
    bench.with_failed();
    let stop = would(&bench, &["stop", "default"]);
    assert!(stop.starts_with("would_update: would stop the scope default, cancel 0 held"), "{stop}");
    assert_snapshot!(would(&bench, &["resume", "default"]), @"would_noop: the scope default is not stopped");
    bench.once(&["stop", "default"]).exits(0);
    assert!(would(&bench, &["stop", "default"]).starts_with("would_noop"));
    assert_snapshot!(would(&bench, &["resume", "default"]), @"would_update: would let operations of the scope default begin again");
}

#[test]
fn cancel() {
    let bench = Bench::new();
    let id = bench.with_failed();
    assert_snapshot!(would(&bench, &["cancel", &id]), @"would_update: would cancel it; it has had no effect");
    bench.once(&["cancel", &id]).exits(0);
    assert_snapshot!(would(&bench, &["cancel", &id]), @"would_noop: it is already cancelled");
    let running = bench.start_held("held");
    assert_snapshot!(would(&bench, &["cancel", &bench.newest()]), @"would_update: would ask the running attempt to stop");
    bench.release();
    running.end().exits(0);
}

#[test]
fn forget() {
    let bench = Bench::new();
    let id = bench.with_done();
    assert_snapshot!(would(&bench, &["forget", &id, "--force"]), @"would_delete: the record of op_…");
    assert_snapshot!(would(&bench, &["forget", "nothing"]), @r#"would_noop: there is no operation with the id or key "nothing" in this ledger; nothing was forgotten"#);
}

#[test]
fn gc() {
    let bench = Bench::new();
    assert_eq!(bench.once(&["run", "--ttl", "1ms", "--", "true"]).exit, 0);
    let id = bench.newest();
    eventually("it is due", || bench.state(&id) == "expired");
    assert_snapshot!(would(&bench, &["gc"]), @"would_delete: 1 results would expire, 0 tombstones would be deleted, 0 attempts would be recorded as in doubt");
    bench.once(&["gc"]).exits(0);
    assert_snapshot!(would(&bench, &["gc"]), @"would_noop: 0 results would expire, 0 tombstones would be deleted, 0 attempts would be recorded as in doubt");
}

#[test]
fn config_init() {
    let bench = Bench::new();
    assert_snapshot!(would(&bench, &["config", "init"]), @"would_create: onceward.toml");
    assert!(bench.listing().is_empty());
}
