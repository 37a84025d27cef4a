//! `once watch`: one line for each change in a scope.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;

use crate::common::{Bench, HELD, eventually};

/// Runs a command in a scope.
fn run(bench: &Bench, scope: &str, key: &str, command: &str) {
    bench.once(&["run", "--scope", scope, "--key", key, "--", "sh", "-c", command]);
}

/// A `once watch` whose changes are read as they come. It is ended with the test.
struct Watch {
    process: Child,
    lines: mpsc::Receiver<Value>,
}

impl Watch {
    fn start(bench: &Bench, args: &[&str]) -> Self {
        let mut process = bench.command(&[&["watch", "--jsonl"], args].concat()).spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let printed = BufReader::new(process.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            for line in printed.map_while(Result::ok) {
                // The test may have seen enough.
                drop(sender.send(serde_json::from_str(&line).unwrap()));
            }
        });
        Self { process, lines }
    }

    /// The next change of an operation: what changed, and its state.
    fn next(&self, key: &str) -> (String, String) {
        loop {
            let change = self.lines.recv_timeout(Duration::from_secs(60)).unwrap();
            if change["key"] == key {
                let word = |name: &str| change[name].as_str().unwrap_or_default().to_owned();
                return (word("event"), word("state"));
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn change(event: &str, state: &str) -> (String, String) {
    (event.to_owned(), state.to_owned())
}

#[test]
fn it_follows_one_scope() {
    let bench = Bench::new();
    run(&bench, "nightly", "before", "true");
    let watch = Watch::start(&bench, &["nightly"]);
    assert_eq!(watch.next("before").1, "done");
    run(&bench, "elsewhere", "charge", "true");
    let mail = bench.start(&["run", "--scope", "nightly", "--key", "mail", "--", "sh", "-c", HELD]);
    assert_eq!(watch.next("mail").1, "running");
    bench.release();
    mail.end().exits(0);
    assert_eq!(watch.next("mail").1, "done");
    run(&bench, "nightly", "charge", "exit 3");
    // A short run may be over before the first look at it.
    let first = watch.next("charge").1;
    let last = if first == "running" { watch.next("charge").1 } else { first };
    assert_eq!(last, "in_doubt", "the one of the other scope is done");
}

#[test]
fn it_ends_when_its_scope_is_idle() {
    let bench = Bench::new();
    run(&bench, "nightly", "before", "true");
    let said = bench.once(&["watch", "nightly", "--until-idle", "10ms", "--jsonl"]).exits(0);
    assert_eq!(said.json()["key"], "before");
}

#[test]
fn a_replay_and_a_settlement_are_changes() {
    let bench = Bench::new();
    run(&bench, "s", "a", "exit 3");
    let watch = Watch::start(&bench, &["s", "--new"]);
    // It has looked once when it tells of something newer.
    let mut number = 0;
    eventually("it has looked", || {
        number += 1;
        run(&bench, "s", &number.to_string(), "true");
        watch.lines.try_recv().is_ok()
    });
    bench.once(&["settle", "a", "--as", "done", "--note", "seen"]).exits(0);
    assert_eq!(watch.next("a"), change("state", "done"));
    bench.once(&["run", "--scope", "s", "--key", "a", "--", "sh", "-c", "exit 3"]);
    assert_eq!(watch.next("a"), change("replayed", "done"));
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
