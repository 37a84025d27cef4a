//! Tests wait for events, never for the clock.

use super::{Source, none, sources};

/// The sleeps of Rust tests that are left: where, how many, and why only real time will do. At most ten.
const LEFT: &[(&str, usize, &str)] = &[];

/// The lines of a test that sleep, with their numbers.
fn sleeping(source: &Source) -> Vec<(usize, &str)> {
    let (test, offset) = match source.built() {
        None => (source.text.as_str(), 0),
        Some(built) => (&source.text[built.len()..], built.lines().count()),
    };
    let lines = test.lines().enumerate().map(|(index, line)| (offset + index + 1, line.trim()));
    lines.filter(|(_, line)| sleeps(line.split("//").next().unwrap_or_default())).collect()
}

/// Whether a line of code sleeps: a call, or a command in a script. A command that sleeps for half a minute and more
/// stands for one that does not end, and a short one in a loop looks for something; neither decides anything.
fn sleeps(code: &str) -> bool {
    let calls = code.contains(concat!("sl", "eep(")) && !code.contains("fn ");
    let mut rest = code;
    let mut in_script = false;
    while let Some((before, after)) = rest.split_once(concat!("sl", "eep ")) {
        let seconds: String = after.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        let seconds: f64 = seconds.parse().unwrap_or(f64::MAX);
        let looks = before.trim_end().ends_with("do");
        in_script |= seconds < 30.0 && !looks;
        rest = after;
    }
    calls || in_script
}

#[test]
fn no_test_waits_for_the_clock() {
    assert!(LEFT.iter().map(|(_, count, _)| count).sum::<usize>() <= 10, "at most ten sleeps may be left");
    let mut broken = Vec::new();
    // The kit's own poll is how tests wait for events, and the crate of the torture is not a test.
    for source in sources().iter().filter(|source| source.package != "onceward-sim") {
        let (found, path) = (sleeping(source), source.path.as_str());
        let allowed = LEFT.iter().find(|(left, ..)| path == *left).map_or(0, |(_, count, _)| *count);
        if found.len() != allowed {
            let lines = found.iter().map(|(line, code)| format!("{path}:{line}: {code}"));
            broken.extend(lines.chain([format!("{path}: {allowed} are in the list")]));
        }
    }
    none(
        broken,
        "a test waits for an event (`eventually`, a gate, a clock that it steps), not for the clock",
    );
}

#[test]
fn what_counts_as_a_sleep() {
    assert!(sleeps(concat!("std::thread::sl", "eep(PAUSE);")));
    assert!(sleeps(concat!("let script = \"echo a; sl", "eep 0.3; exit 3\";")));
    assert!(!sleeps(concat!("let script = \"while [ -e a ]; do sl", "eep 0.02; done\";")));
    assert!(!sleeps(concat!("let script = \"exec sl", "eep 60\";")));
}
