//! `once top` in a real pseudo-terminal. Its views have tests of their own beside the code.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::Bench;

const TERMINAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/operate/terminal.py");

/// Runs `once top` in a terminal of this size, and types.
fn top(bench: &Bench, size: (u16, u16), steps: &Value, environment: &[(&str, &str)], args: &[&str]) -> Value {
    let once = bench.command(&[&["top"], args].concat());
    let mut command = Command::new("python3");
    command.arg(TERMINAL).arg(size.0.to_string()).arg(size.1.to_string()).arg(steps.to_string());
    command.arg(once.get_program()).args(once.get_args());
    command.current_dir(once.get_current_dir().unwrap_or(Path::new(".")));
    command.env_clear();
    for (name, value) in once.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    command.env("PATH", std::env::var_os("PATH").unwrap()).envs(environment.iter().copied());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A ledger with an operation in doubt and one that is done.
fn with_a_doubt() -> Bench {
    let bench = Bench::new();
    bench.once(&["run", "--key", "fine", "--", "true"]).exits(0);
    bench.once(&["run", "--key", "fine", "--", "true"]).exits(0);
    bench.once(&["run", "--key", "lost", "--", "sh", "-c", "exit 3"]).exits(79);
    bench
}

#[test]
fn a_doubt_is_settled_with_evidence_from_the_keyboard() {
    let bench = with_a_doubt();
    let steps = json!([
        ["1 in doubt", "s"],
        ["Did it happen?", "d"],
        ["recorded as your word", "\r"],
        ["say what the finding is based on", "seen on the statement\r"],
        ["0 in doubt", "q"],
    ]);
    let said = top(&bench, (24, 120), &steps, &[], &[]);
    assert_eq!(
        (&said["exit"], &said["restored"], &said["left"]),
        (&json!(0), &json!(true), &json!(true)),
        "{said}"
    );
    assert!(said["text"].as_str().unwrap().contains("1 duplicates prevented"), "{said}");
    let record = bench.json(&["show", "lost", "--json"]);
    let outcome = &record["data"]["outcome"];
    assert_eq!(outcome["settled_by"]["note"], "seen on the statement");
    assert!(outcome["settled_by"]["name"].as_str().unwrap().starts_with("once top"), "{outcome}");
}

#[test]
fn leaving_a_question_changes_nothing() {
    let bench = with_a_doubt();
    let steps = json!([
        ["1 in doubt", "s"],
        ["Did it happen?", "f"],
        ["recorded as your word", "typed\u{1b}"],
        ["!recorded as your word", "q"]
    ]);
    assert_eq!(top(&bench, (24, 120), &steps, &[], &[])["exit"], 0);
    assert_eq!(bench.state("lost"), "in_doubt");
}

#[test]
fn only_a_probe_of_the_policy_is_run() {
    let bench = Bench::new();
    let args = [
        "run",
        "--name",
        "pay",
        "--key",
        "lost",
        "--probe",
        "touch probed; exit 0",
        "--",
        "sh",
        "-c",
        "exit 3",
    ];
    bench.once(&args).exits(79);
    let steps = json!([["1 in doubt", "p"], ["Run the probe", "y"], ["was not run", "q"]]);
    assert_eq!(top(&bench, (24, 140), &steps, &[], &[])["exit"], 0);
    assert!(!bench.path("probed").exists());
    assert_eq!(bench.state("lost"), "in_doubt");

    bench.policy("[operation.pay]\nprobe = \"touch probed; exit 0\"\n");
    let steps = json!([["1 in doubt", "p"], ["Run the probe", "y"], ["0 in doubt", "q"]]);
    let said = top(&bench, (24, 140), &steps, &[], &[]);
    assert_eq!(
        (&said["exit"], &said["restored"], &said["left"]),
        (&json!(0), &json!(true), &json!(true)),
        "{said}"
    );
    assert!(bench.path("probed").exists());
    assert_eq!(bench.state("lost"), "done");
}

#[test]
fn a_signal_restores_the_terminal() {
    let bench = with_a_doubt();
    for signal in [15, 2] {
        let steps = json!([["1 in doubt", format!("signal:{signal}")]]);
        let said = top(&bench, (24, 100), &steps, &[], &[]);
        assert_eq!((&said["restored"], &said["left"]), (&json!(true), &json!(true)), "{said}");
        assert_eq!(said["exit"], -signal, "it ends by the signal");
    }
}

#[test]
fn colours_are_left_out_where_they_are_not_wanted_and_small_terminals_work() {
    let bench = with_a_doubt();
    let steps = json!([["1 in doubt", "q"]]);
    assert_eq!(top(&bench, (24, 100), &steps, &[], &[])["colours"], true);
    assert_eq!(top(&bench, (24, 100), &steps, &[("NO_COLOR", "1")], &[])["colours"], false);
    assert_eq!(top(&bench, (3, 20), &steps, &[], &[])["exit"], 0);
}

#[test]
fn it_needs_a_terminal_except_for_json() {
    let bench = with_a_doubt();
    let said = bench.once(&["top"]).exits(2);
    assert!(said.err().contains("needs a terminal"), "{}", said.err());
    let data = &bench.json(&["top", "--json"])["data"];
    assert_eq!(
        (&data["in_doubt"], &data["running"], &data["duplicates_prevented"]),
        (&json!(1), &json!(0), &json!(1))
    );
}
