//! Probes: a "no" must be meant, and must not come while the effect may still be under way.

use serde_json::json;

use crate::common::server::Server;
use crate::common::{Bench, eventually};

/// The command of these tests: its first attempt has an effect and is killed.
const KILLED: &str = "echo ran >> runs; [ $ONCE_ATTEMPT != 1 ] || kill -9 $$";

/// What a probe leads to: how often the command ran in two calls, and what the second one ended with.
fn probed(flags: &[&str], probe: &str) -> (usize, i32) {
    let bench = Bench::new();
    let begin = ["run", "--key", "a", "--quarantine", "0s", "--probe", probe];
    let args = [&begin[..], flags, &["--", "sh", "-c", KILLED]].concat();
    bench.once(&args).exits(79);
    let said = bench.once(&args);
    (bench.runs(), said.exit)
}

const YES: (usize, i32) = (1, 0);
const NO: (usize, i32) = (2, 0);
const CANNOT_TELL: (usize, i32) = (1, 79);

#[test]
fn only_a_no_that_is_meant_is_one() {
    for (probe, meaning) in [
        ("exit 0", YES),
        ("exit 10", NO),
        // Crashes, missing programs, unhappy scripts.
        ("exit 1", CANNOT_TELL),
        ("exit 2", CANNOT_TELL),
        ("false", CANNOT_TELL),
        ("python3 -c 'raise OSError'", CANNOT_TELL),
        ("no-such-program", CANNOT_TELL),
        ("./no-such-script", CANNOT_TELL),
        ("kill -9 $$", CANNOT_TELL),
        ("sh -c 'kill -SEGV $$'", CANNOT_TELL),
        ("if", CANNOT_TELL),
        ("grep -q charged no-such-file", CANNOT_TELL),
        // In words.
        (r#"echo '{"happened":"yes"}'"#, YES),
        (r#"echo '{"happened": "no", "id": 7}'"#, NO),
        (r#"echo '{"happened":true}'"#, YES),
        (r#"echo '{"happened":false}'"#, CANNOT_TELL),
        (r#"echo '{"happened":"unknown"}'"#, CANNOT_TELL),
        (r#"echo '{"happened":null}'"#, CANNOT_TELL),
        (r#"echo '{"happened":"no"}'; exit 1"#, CANNOT_TELL),
        (r#"echo '{"id":7}'"#, YES),
        ("echo some text", YES),
        // Exit 10 is a tool's timeout as well, which its answer tells.
        (r#"echo '{"ok":false,"error":{"code":"TIMEOUT"}}'; exit 10"#, CANNOT_TELL),
        (r#"echo '{"happened":"yes"}'; exit 10"#, CANNOT_TELL),
        ("echo not charged; exit 10", NO),
        // An answer among other text can contradict the exit code, not replace it.
        (r#"echo asking; echo '{"happened":"no"}'"#, CANNOT_TELL),
        (r#"echo '{"happened":"no"}'; echo asked"#, CANNOT_TELL),
        (r#"echo '{"happened":"no"} (cached)'"#, CANNOT_TELL),
        (r#"echo '{"happened":"no"}{"happened":"no"}'"#, CANNOT_TELL),
        (r#"printf 'asking\n{\n  "happened": "no"\n}\n'"#, CANNOT_TELL),
        (r#"echo asking; echo '{"happened":"yes"}'; exit 10"#, CANNOT_TELL),
        (r#"echo asking; echo '{"happened":"yes"}'"#, YES),
        (r#"echo asking; echo '{"happened":"no"}'; exit 10"#, NO),
        (r#"echo '{"id":7}'; echo '{"id":8}'"#, YES),
        // A process that it leaves behind holds its output.
        (r#"sleep 30 & echo '{"happened":"no"}'"#, NO),
    ] {
        assert_eq!(probed(&[], probe), meaning, "{probe}");
    }
}

#[test]
fn a_probe_like_grep_can_be_told_how_it_says_no() {
    assert_eq!(probed(&["--probe-no", "1"], "grep -q charged /etc/hostname"), NO);
    assert_eq!(probed(&["--probe-no", "1"], "grep -q charged no-such-file"), CANNOT_TELL);
    assert_eq!(probed(&["--probe-no", "1,3"], "exit 3"), NO);
    assert_eq!(probed(&["--probe-no", "1"], "exit 0"), YES);
}

#[test]
fn a_no_does_not_count_while_a_request_may_be_under_way() {
    let bench = Bench::new();
    let server = Server::start(&bench);
    let url = server.url("late");
    let probe = "test -s runs || exit 10";
    let args = ["run", "--key", "a", "--probe", probe, "--", "curl", "-s", "-m", "1", "-X", "POST", &url];
    for _ in 0..3 {
        bench.once(&args).exits(79);
    }
    assert_eq!(bench.runs(), 0, "the server is still at it");
    bench.release();
    eventually("the server finishes", || bench.runs() == 1);
    bench.once(&args).exits(0);
    assert_eq!(bench.runs(), 1, "three retries, one charge");
}

#[test]
fn a_quarantine_ends() {
    let bench = Bench::new();
    let probe = "echo asked >> asked; exit 10";
    let args = ["run", "--key", "a", "--quarantine", "1500ms", "--probe", probe, "--", "sh", "-c", KILLED];
    bench.once(&args).exits(79);
    bench.once(&args).exits(79);
    assert_eq!(bench.runs(), 1);
    eventually("a no counts", || bench.once(&args).exit == 0);
    assert_eq!(bench.runs(), 2);
    // The policy has the same setting, and the default is a minute, also for the command that the answer gives.
    let bench = Bench::new();
    let args = ["run", "--key", "a", "--probe", "exit 10", "--", "sh", "-c", KILLED];
    bench.once(&args).exits(79);
    bench.once(&["settle", &bench.newest(), "--probe", "exit 10"]).exits(79);
    bench.once(&args).exits(79);
    bench.policy("[defaults]\nquarantine = \"0s\"\n");
    bench.once(&args).exits(79);
    assert_eq!(bench.runs(), 1, "the attempt keeps the quarantine that it began with");
}

#[test]
fn a_probe_runs_in_the_folder_of_its_call() {
    let bench = Bench::new();
    for folder in ["calls", "asks"] {
        std::fs::create_dir(bench.path(folder)).unwrap();
    }
    let probe = "test -e runs || exit 10";
    let args = ["run", "--key", "a", "--quarantine", "0s", "--probe", probe, "--", "sh", "-c", KILLED];
    bench.once_in("calls", &args).exits(79);
    // Asked from another folder, and by the command that the answer gives to paste.
    let answer = bench.once_in("asks", &[&["--json"], &args[..]].concat()).exits(0).json();
    assert_eq!((&answer["operation"]["settled_by"]["by"], &answer["ran"]), (&json!("probe"), &json!(false)));
    assert_eq!(bench.read("calls/runs").lines().count(), 1);
    assert!(!bench.path("asks/runs").exists());
}

#[test]
fn a_probe_whose_folder_is_gone_cannot_tell() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("calls")).unwrap();
    let args =
        ["run", "--key", "a", "--quarantine", "0s", "--probe", "exit 10", "--", "sh", "-c", "kill -9 $$"];
    bench.once_in("calls", &args).exits(79);
    std::fs::remove_dir(bench.path("calls")).unwrap();
    bench.once(&args).exits(79);
}

#[test]
fn what_a_probe_settled_is_said_to_be_settled_by_it() {
    let bench = Bench::new();
    let args =
        ["run", "--key", "a", "--probe", "exit 0", "--", "sh", "-c", "echo out; echo err >&2; kill -9 $$"];
    bench.once(&args).exits(79);
    let said = bench.once(&args).exits(0);
    assert_eq!(said.out(), "", "the output of an attempt that was killed is not its result");
    assert!(!said.err().contains("err\n"), "{}", said.err());
    assert!(
        said.err().contains("settled AGE ago by the probe (the probe says that it happened"),
        "{}",
        said.err()
    );
}

#[test]
fn a_check_that_crashes_refutes_nothing() {
    let bench = Bench::new();
    for (check, exit) in
        [("exit 0", 0), ("exit 1", 0), ("no-such-program", 0), ("kill -9 $$", 0), ("exit 10", 79)]
    {
        let args = [
            "run",
            "--key",
            &check.replace(' ', "-"),
            "--verify",
            check,
            "--verify-deadline",
            "0s",
            "--",
            "true",
        ];
        let answer = bench.once(&[&["--json"], &args[..]].concat()).exits(exit).json();
        let verified = if check == "exit 0" {
            "confirmed"
        } else if exit == 0 {
            "pending"
        } else {
            "refuted"
        };
        assert_eq!(answer["operation"]["verified"], verified, "{check}");
    }
}
