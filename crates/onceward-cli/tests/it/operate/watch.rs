//! `once watch`: one line for each change in a scope.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;

use crate::common::{Bench, eventually};

/// Runs a command in a scope.
fn run(bench: &Bench, scope: &str, key: &str, command: &str) {
    bench.once(&["run", "--scope", scope, "--key", key, "--", "sh", "-c", command]);
}

#[test]
fn it_follows_one_scope_until_that_is_idle() {
    let bench = Bench::new();
    run(&bench, "nightly", "before", "true");
    let mut command = bench.command(&["watch", "nightly", "--until-idle", "1500ms", "--jsonl"]);
    let mut watch = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["key"], "before");
    run(&bench, "elsewhere", "other", "true");
    run(&bench, "nightly", "mail", "sleep 0.5");
    run(&bench, "nightly", "charge", "exit 3");
    let mut seen = Vec::new();
    for _ in 0..2 {
        let change = next();
        seen.push((change["key"].to_string(), change["state"].to_string()));
    }
    // A short run may be over before the first look at it; one of half a second is not.
    assert_eq!(seen[0], ("\"mail\"".to_owned(), "\"running\"".to_owned()));
    assert_eq!(seen[1], ("\"mail\"".to_owned(), "\"done\"".to_owned()));
    let last = loop {
        let change = next();
        if change["state"] != "running" {
            break change;
        }
    };
    assert_eq!((&last["key"], &last["state"]), (&"charge".into(), &"in_doubt".into()));
    assert!(watch.wait().unwrap().success());
}

#[test]
fn a_replay_and_a_settlement_are_changes() {
    let bench = Bench::new();
    run(&bench, "s", "a", "exit 3");
    let mut command = bench.command(&["watch", "s", "--jsonl", "--new", "--until-idle", "3s"]);
    let mut watch = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    // It has looked once when it holds the ledger open; another look comes within a second.
    std::thread::sleep(std::time::Duration::from_millis(700));
    bench.once(&["settle", "a", "--as", "done", "--note", "seen"]).exits(0);
    let change: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!((&change["event"], &change["state"]), (&"state".into(), &"done".into()));
    bench.once(&["run", "--scope", "s", "--key", "a", "--", "sh", "-c", "exit 3"]);
    let change: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!((&change["event"], &change["replays"]), (&"replayed".into(), &1.into()));
    assert!(watch.wait().unwrap().success());
}

#[test]
fn lines_are_text_for_people_and_hide_control_characters() {
    let bench = Bench::new();
    run(&bench, "s", "k", "printf '\\033[31mred' >&2; exit 3");
    let said = bench.once(&["watch", "s", "--until-idle", "10ms"]).exits(0);
    let out = said.out();
    assert_eq!(out.lines().count(), 1, "{out}");
    assert!(out.contains("in_doubt") && out.contains("  k  ") && out.contains("op_"), "{out}");
    assert!(!out.contains('\x1b'), "{out}");
}

#[test]
fn a_reader_that_has_seen_enough_ends_it() {
    let bench = Bench::new();
    run(&bench, "s", "k", "true");
    let mut watch = bench.shell_command("once watch s | head -1").stdout(Stdio::piped()).spawn().unwrap();
    // The pipe breaks at the second line.
    run(&bench, "s", "another", "true");
    eventually("the pipeline ends", || {
        run(&bench, "s", "more", "true");
        watch.try_wait().unwrap().is_some()
    });
}

#[test]
fn a_ledger_that_is_missing_is_not_created() {
    let bench = Bench::new();
    bench.once(&["watch", "s", "--until-idle", "1ms"]).exits(2);
    assert!(!bench.path("once.db").exists());
}
