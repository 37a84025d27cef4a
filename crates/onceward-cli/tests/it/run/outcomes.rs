//! Outcomes of a run: effect, doubt, probe and check.

use insta::assert_snapshot;
use serde_json::json;

use crate::common::{Bench, eventually, in_enough_time};

#[test]
fn the_effect_is_the_flags_or_the_commands_own() {
    let bench = Bench::new();
    let effect = |flags: &[&str], words: &str| {
        bench.json(&[&["run"], flags, &["--", "echo", words]].concat())["effect"].as_str().unwrap().to_owned()
    };
    assert_eq!(effect(&[], "plain text"), "updated");
    assert_eq!(effect(&["--effect", "deleted"], "other text"), "deleted");
    assert_eq!(effect(&[], r#"{"ok": true, "effect": "created"}"#), "created");
    assert_eq!(effect(&[], r#"{"ok": true, "data": {"effect": "noop"}}"#), "noop");
    assert_eq!(
        effect(&["--effect", "created"], r#"{"effect": "deleted"}"#),
        "deleted",
        "the answer comes first"
    );
    assert_eq!(effect(&["--effect", "created"], r#"{"effect": "would_delete"}"#), "created");
}

#[test]
fn a_command_killed_by_a_signal_is_in_doubt() {
    let bench = Bench::new();
    let args = ["run", "--", "sh", "-c", "echo ran >> runs; kill -9 $$"];
    let first = bench.once(&args).exits(79);
    assert_snapshot!(first.err(), @r"
    once: IN_DOUBT the command was killed by SIGKILL. It may have taken effect
    once: happened: unknown, ran: yes, retryable: no
    once: next: check first whether it happened; do not repeat it. A person or a probe must record the finding:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
    let second = bench.once(&args).exits(79);
    assert_snapshot!(second.err(), @r"
    once: IN_DOUBT attempt 1 is in doubt: the command was killed by SIGKILL. It may have taken effect; nothing was run
    once: happened: unknown, ran: no, retryable: no
    once: next: check first whether it happened; do not repeat it. A person or a probe must record the finding:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
    assert_eq!(bench.runs(), 1, "nobody can say whether it happened, so nobody runs it again");
    let answer = bench.json(&args);
    assert_eq!((&answer["effect"], &answer["error"]["happened"]), (&json!("noop"), &json!("unknown")));
    assert_eq!(answer["ran"], false);
}

#[test]
fn an_exit_code_can_mean_doubt() {
    let bench = Bench::new();
    let args = [
        "run",
        "--fail-exit",
        "7,28",
        "--doubt-exit",
        "28,56",
        "--",
        "sh",
        "-c",
        "echo ran >> runs; exit 28",
    ];
    let said = bench.once(&args).exits(79);
    assert_snapshot!(said.err(), @r"
    once: IN_DOUBT the command ended with exit code 28, declared to be in doubt. It may have taken effect
    once: happened: unknown, ran: yes, retryable: no
    once: next: check first whether it happened; do not repeat it. A person or a probe must record the finding:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
    bench.once(&args).exits(79);
    assert_eq!(bench.runs(), 1);
    bench.once(&["run", "--fail-exit", "7,28", "--doubt-exit", "28,56", "--", "sh", "-c", "exit 7"]).exits(7);
}

#[test]
fn what_converges_is_run_again() {
    let bench = Bench::new();
    let args = [
        "run",
        "--key",
        "a",
        "--class",
        "idempotent",
        "--",
        "sh",
        "-c",
        "echo ran >> runs; [ $ONCE_ATTEMPT = 2 ] || kill -9 $$",
    ];
    bench.once(&args).exits(79);
    bench.once(&args).exits(0);
    bench.once(&args).exits(0);
    assert_eq!(bench.runs(), 2);
}

#[test]
fn a_read_passes_through_and_is_not_recorded() {
    let bench = Bench::new();
    for _ in 0..2 {
        bench.once(&["run", "--class", "read", "--", "sh", "-c", "echo ran >> runs"]).exits(0);
    }
    assert_eq!((bench.runs(), &bench.json(&["ls"])["data"]), (2, &json!([])));
}

#[test]
fn a_probe_that_says_yes_makes_it_done() {
    let bench = Bench::new();
    let args = ["run", "--probe", "test -e runs", "--", "sh", "-c", "echo ran >> runs; kill -9 $$"];
    let first = bench.once(&args).exits(79);
    assert_snapshot!(first.err(), @r"
    once: IN_DOUBT the command was killed by SIGKILL. It may have taken effect
    once: happened: unknown, ran: yes, retryable: no
    once: next: ask the probe whether it happened:
    once:   once --ledger sqlite:…/once.db settle op_… --probe 'test -e runs'
    ");
    bench.once(&args).exits(0);
    assert_eq!((bench.runs(), bench.state(&bench.newest())), (1, "done".to_owned()));
}

#[test]
fn a_probe_that_says_no_runs_it_again() {
    let bench = Bench::new();
    let script = "echo ran >> runs; [ $ONCE_ATTEMPT = 2 ] || kill -9 $$";
    let probe = "test -e effect || exit 10";
    let args = ["run", "--quarantine", "0s", "--probe", probe, "--", "sh", "-c", script];
    bench.once(&args).exits(79);
    bench.once(&args).exits(0);
    assert_eq!(bench.runs(), 2);
}

#[test]
fn a_probe_that_cannot_tell_changes_nothing() {
    let bench = Bench::new();
    for (key, probe) in [("a", "exit 2"), ("b", "kill -9 $$"), ("c", "no-such-program")] {
        let args = ["run", "--key", key, "--probe", probe, "--", "sh", "-c", "echo ran >> runs; kill -9 $$"];
        bench.once(&args).exits(79);
        bench.once(&args).exits(79);
    }
    assert_eq!(bench.runs(), 3);
}

#[test]
fn a_probe_is_told_what_it_is_asked_about() {
    let bench = Bench::new();
    let probe =
        "{ echo $ONCE_KEY $ONCE_SCOPE $ONCE_ATTEMPT; echo $ONCE_OPERATION $IDEMPOTENCY_KEY; } > asked";
    let args = ["run", "--key", "a", "--scope", "s", "--probe", probe, "--", "sh", "-c", "kill -9 $$"];
    bench.once(&args).exits(79);
    bench.once(&args).exits(0);
    let id = bench.newest();
    assert_eq!(bench.read("asked"), format!("a s 1\n{id} {id}\n"));
}

#[test]
fn a_check_confirms() {
    let bench = Bench::new();
    let check = r#"test -e effect && [ -n "$ONCE_RESULT" ]"#;
    let answer = bench.json(&["run", "--verify", check, "--", "touch", "effect"]);
    assert_eq!((&answer["ok"], &answer["operation"]["verified"]), (&json!(true), &json!("confirmed")));
}

#[test]
fn a_check_that_refutes_leaves_a_doubt() {
    let bench = Bench::new();
    let args = ["run", "--verify", "test -e effect || exit 10", "--", "sh", "-c", "echo ran >> runs"];
    let said = bench.once(&args).exits(79);
    assert_snapshot!(said.err(), @r"
    once: UNVERIFIED success was reported, but the check refuted it: `test -e effect || exit 10` reported that it did not take effect
    once: happened: unknown, ran: yes, retryable: no
    once: next: check first whether it happened; do not repeat it. A person or a probe must record the finding:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
    let again = bench.once(&args).exits(79);
    assert_snapshot!(again.err(), @r"
    once: UNVERIFIED success was reported, but the check refuted it: `test -e effect || exit 10` reported that it did not take effect
    once: happened: unknown, ran: no, retryable: no
    once: next: check first whether it happened; do not repeat it. A person or a probe must record the finding:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
    assert_eq!((bench.runs(), bench.state(&bench.newest())), (1, "in_doubt".to_owned()));
}

#[test]
fn a_check_is_asked_until_its_deadline() {
    let bench = Bench::new();
    bench.policy("[defaults]\nverify_interval = \"10ms\"\n");
    let check = "echo asked >> asked; exit 2";
    let args = ["run", "--key", "a", "--verify", check, "--verify-deadline", "600ms", "--", "true"];
    let said = bench.once(&args).exits(0);
    assert_snapshot!(said.err(), @"once: warning: success was reported but is not confirmed yet; ask again with `once --ledger sqlite:…/once.db verify op_… --check 'echo asked >> asked; exit 2'`");
    let asked = bench.read("asked").lines().count();
    assert!(asked > 1, "asked {asked} times");
    assert_eq!(bench.json(&args)["operation"]["verified"], "pending");
    assert_eq!(bench.read("asked").lines().count(), asked, "a replay does not ask again");
    let late = "echo asked >> asked; [ $(wc -l < asked) -gt 5 ] && exit 0; exit 2";
    std::fs::remove_file(bench.path("asked")).unwrap();
    let answer = bench.json(&["run", "--key", "late", "--verify", late, "--", "true"]);
    assert_eq!(answer["operation"]["verified"], "confirmed");
}

#[test]
fn a_command_gets_its_time_and_no_more() {
    let args = |limit| ["run", "--timeout", limit, "--", "sh", "-c", "echo ran >> runs; exec sleep 600"];
    let (bench, said, limit) = in_enough_time(|limit| {
        let bench = Bench::new();
        let said = bench.once(&args(limit)).exits(10);
        (bench.runs() == 1).then_some((bench, said, limit))
    });
    let text = said.err().replace(&format!("{} ", limit.trim_end_matches(char::is_alphabetic)), "N ");
    assert_snapshot!(text.replace("N ms", "TIME").replace("N s", "TIME"), @r"
    once: TIMEOUT the command was stopped after its time limit of TIME. It may have taken effect
    once: happened: unknown, ran: yes, retryable: no
    once: next: check first whether it happened; do not repeat it. A person or a probe must record the finding:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
    bench.once(&args(limit)).exits(79);
    assert_eq!((bench.runs(), bench.state(&bench.newest())), (1, "in_doubt".to_owned()));
}

#[test]
fn a_command_that_ignores_the_end_of_its_time_is_killed() {
    let script = "trap '' TERM; echo $$ > pid; while [ -e pid ]; do sleep 0.05; done";
    let (_bench, pid) = in_enough_time(|limit| {
        let bench = Bench::new();
        bench.once(&["run", "--timeout", limit, "--", "sh", "-c", script]).exits(10);
        let pid = bench.read("pid").trim().parse::<i32>().ok()?;
        Some((bench, pid))
    });
    eventually("the command is gone", || {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None).is_err()
    });
}

#[test]
fn a_certain_failure_is_tried_again_with_pauses() {
    let bench = Bench::new();
    bench.policy("[defaults]\nbackoff = \"10ms\"\n");
    let script = "echo ran >> runs; [ $ONCE_ATTEMPT -ge 3 ]";
    let answer = bench.json(&["run", "--retries", "5", "--fail-exit", "1", "--", "sh", "-c", script]);
    assert_eq!((&answer["ok"], &answer["operation"]["attempt"]), (&json!(true), &json!(3)));
    assert_eq!(bench.runs(), 3);
}

#[test]
fn a_doubt_is_not_tried_again() {
    let bench = Bench::new();
    bench.once(&["run", "--retries", "5", "--", "sh", "-c", "echo ran >> runs; kill -9 $$"]).exits(79);
    assert_eq!(bench.runs(), 1);
}

#[test]
fn a_budget_is_spent_once() {
    let bench = Bench::new();
    bench.policy("[defaults]\nbackoff = \"1ms\"\nno_effect_exits = [5]\n");
    let script = "echo ran >> runs; exit 5";
    let args = ["run", "--key", "a", "--attempts", "3", "--retries", "9", "--", "sh", "-c", script];
    let first = bench.once(&args).exits(5);
    assert_snapshot!(first.err(), @r"
    once: FAILED the command failed with exit code 5, declared to have no effect
    once: happened: no, ran: yes, retryable: no
    once: next: see what is recorded:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
    let second = bench.once(&args).exits(4);
    assert_snapshot!(second.err(), @r"
    once: BUDGET_EXHAUSTED gave up after 3 failed attempts (the limit is 3); nothing was run
    once: happened: no, ran: no, retryable: no
    once: next: to allow more, raise --attempts above 3
    ");
    assert_eq!(bench.runs(), 3);
    assert_eq!(bench.json(&args)["error"]["code"], "BUDGET_EXHAUSTED");
}
