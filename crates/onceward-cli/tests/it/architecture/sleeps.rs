//! Tests wait for events, never for the clock.

use std::collections::BTreeMap;

use super::{Source, counted, none, sources};

/// The sleeps of Rust tests that are left: where, how many, and why only real time will do. At most ten.
const LEFT: &[(&str, usize, &str)] = &[
    ("crates/onceward/tests/it/common.rs", 1, "a clock of the machine, for waiters on several threads"),
    ("crates/onceward-store/src/timer.rs", 1, "the timer itself is tested"),
    ("crates/onceward-http/src/intake.rs", 1, "a slow body: the pace of a connection is real time"),
    ("crates/onceward-http/src/intake/paced.rs", 2, "the same"),
    (
        "crates/onceward-http/tests/it/gateway/provider.rs",
        1,
        "the pace of a stream; no verdict depends on it",
    ),
    (
        "crates/onceward-cli/tests/it/run/stopping.rs",
        1,
        "the kernel counts the start of a process in hundredths",
    ),
    ("crates/onceward-cli/tests/it/mcp/kills.rs", 1, "a kill comes at a random moment"),
];

/// The lines of a test that sleep, with their numbers.
fn sleeping(source: &Source) -> Vec<(usize, &str)> {
    let (test, offset) = match source.built() {
        None if source.path.contains("/tests/") => (source.text.as_str(), 0),
        None => ("", 0),
        Some(built) => (&source.text[built.len()..], built.lines().count()),
    };
    let lines = test.lines().enumerate().map(|(index, line)| (offset + index + 1, line.trim()));
    lines.filter(|(_, line)| sleeps(line.split("//").next().unwrap_or_default())).collect()
}

/// Whether a line of code sleeps: a call, or a command in a script. Half a minute and more stands for what does not end,
/// and a pause in a loop belongs to a look for something; neither decides anything. A test chooses the clock of a store,
/// so a sleep on that one does not count.
fn sleeps(code: &str) -> bool {
    let mut rest = code;
    while let Some((before, after)) = rest.split_once(concat!("sl", "eep")) {
        let amount = after.trim_start_matches(|c: char| !c.is_ascii_digit() && c != '"' && c != ';');
        let amount: String = amount
            .chars()
            .take_while(|c| c.is_ascii_digit() || "._".contains(*c))
            .filter(|c| *c != '_')
            .collect();
        let endless = amount.parse().unwrap_or(0.0) >= 30.0 && !after.contains("millis");
        let looks = before.trim_end().ends_with("do") || before.contains("while not");
        let other = before.ends_with("clock().") || before.ends_with("clock.") || before.ends_with("pg_");
        let is_call = after.starts_with('(') && !before.ends_with("fn ");
        let is_command =
            after.strip_prefix(' ').is_some_and(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        if (is_call || is_command) && !endless && !looks && !other {
            return true;
        }
        rest = after;
    }
    false
}

#[test]
fn no_test_waits_for_the_clock() {
    assert!(LEFT.iter().map(|(_, count, _)| count).sum::<usize>() <= 10, "at most ten sleeps may be left");
    // The kit's own poll is how tests wait for events, and the crate of the torture is not a test.
    let tests = sources().into_iter().filter(|source| source.package != "onceward-sim");
    let in_test = |source: Source| {
        let found = sleeping(&source).into_iter().map(|(line, code)| format!("{line}: {code}")).collect();
        (source.path, found)
    };
    let found: BTreeMap<String, Vec<String>> = tests.map(in_test).collect();
    none(
        counted(&found, LEFT),
        "a test waits for an event (`eventually`, a gate, a clock that it steps), not for the clock",
    );
}

#[test]
fn what_counts_is_what_waits() {
    assert!(sleeps(concat!("std::thread::sl", "eep(PAUSE);")));
    assert!(sleeps(concat!("let script = \"echo a; sl", "eep 0.3; exit 3\";")));
    assert!(!sleeps(concat!("let script = \"while [ -e a ]; do sl", "eep 0.02; done\";")));
    assert!(!sleeps(concat!("let script = \"exec sl", "eep 60\";")));
}
