//! What the caller reads: what happened, whether this call ran it, and a next step that works when it is pasted.

use serde_json::{Value, json};

use crate::common::{Bench, COUNTED, HELD, Said};

/// The error of an answer, with what it says about the operation and the call.
fn told(answer: &Value) -> [Value; 4] {
    [&answer["error"]["code"], &answer["happened"], &answer["ran"], &answer["error"]["retryable"]]
        .map(Value::clone)
}

/// Pastes a command from a folder that has nothing to do with the call, and without its environment.
fn paste(bench: &Bench, command: &Value) -> Said {
    let line = format!("cd /; unset ONCE_LEDGER; {}", command.as_str().unwrap());
    bench.shell(&line)
}

#[test]
fn a_doubt_comes_with_one_command_for_each_finding() {
    let bench = Bench::new();
    for (key, choice, exit, runs) in [("a", 0, 0, 1), ("b", 1, 79, 3)] {
        let args = ["run", "--key", key, "--", "sh", "-c", "echo ran >> runs; exit 1"];
        let answer = bench.json(&args);
        assert_eq!(told(&answer), [json!("IN_DOUBT"), json!("unknown"), json!(true), json!(false)]);
        let error = &answer["error"];
        assert!(error["next"].as_str().unwrap().starts_with("check first whether it happened"), "{error}");
        assert_eq!(
            (&error["options"][0]["if"], &error["options"][1]["if"]),
            (&json!("it happened"), &json!("it did not"))
        );
        assert!(error.to_string().len() < 600, "about 120 tokens: {error}");
        paste(&bench, &error["options"][choice]["command"]).exits(0);
        bench.once(&args).exits(exit);
        assert_eq!(bench.runs(), runs);
    }
}

#[test]
fn every_other_next_step_works_too() {
    let bench = Bench::new();
    // In progress: waits, then the same call replays.
    let running = bench.start_held("held");
    let answer = bench.json(&["run", "--key", "held", "--wait", "0s", "--", "sh", "-c", HELD]);
    assert_eq!(told(&answer), [json!("IN_PROGRESS"), json!("unknown"), json!(false), json!(false)]);
    bench.release();
    paste(&bench, &answer["error"]["fix_command"]).exits(0);
    running.end().exits(0);
    // A probe.
    let args =
        ["run", "--key", "probed", "--probe", "test -s runs", "--", "sh", "-c", "echo ran >> runs; exit 1"];
    let answer = bench.json(&args);
    paste(&bench, &answer["error"]["fix_command"]).exits(0);
    bench.once(&args).exits(0);
    // Not confirmed yet.
    let args = [
        "run",
        "--key",
        "check",
        "--verify",
        "test -e seen || exit 1",
        "--verify-deadline",
        "0s",
        "--",
        "true",
    ];
    let answer = bench.json(&args);
    bench.write("seen", "");
    let (_, command) = answer["warnings"][0].as_str().unwrap().split_once('`').unwrap();
    paste(&bench, &json!(command.trim_end_matches('`'))).exits(0);
    assert_eq!(bench.json(&args)["operation"]["verified"], "confirmed");
}

#[test]
fn an_operation_that_was_done_is_never_said_not_to_have_happened() {
    let bench = Bench::new();
    let args = ["run", "--key", "a", "--ttl", "1ms", "--", "sh", "-c", COUNTED];
    bench.once(&args).exits(0);
    let id = bench.newest();
    crate::common::eventually("it expires", || bench.state(&id) == "expired");
    for _ in 0..2 {
        let answer = bench.json(&args);
        assert_eq!(told(&answer), [json!("KEY_EXPIRED"), json!("yes"), json!(false), json!(false)]);
        assert!(answer.get("data").is_none(), "{answer}");
        bench.once(&["gc"]).exits(0);
    }
    // A ledger that cannot be reached knows nothing about it.
    let mut command = bench.command(&["--json", "run", "--key", "a", "--", "sh", "-c", COUNTED]);
    let answer =
        Said::from(command.env("ONCE_LEDGER", "postgres://127.0.0.1:1/x").output().unwrap()).exits(12).json();
    assert_eq!(told(&answer), [json!("LEDGER_UNAVAILABLE"), json!("unknown"), json!(false), json!(false)]);
    assert_eq!(bench.runs(), 1);
}

#[test]
fn a_class_that_may_run_again_says_so_and_does() {
    let bench = Bench::new();
    let script = "echo ran >> runs; [ $ONCE_ATTEMPT = 2 ] || exec sleep 60";
    let args = ["run", "--key", "a", "--class", "idempotent", "--timeout", "700ms", "--", "sh", "-c", script];
    let answer = bench.json(&args);
    assert_eq!(told(&answer), [json!("TIMEOUT"), json!("unknown"), json!(true), json!(false)]);
    assert_eq!(answer["error"]["next"], "make the same call again; it is safe");
    bench.once(&args).exits(0);
    assert_eq!(bench.runs(), 2);
    // A read changes nothing, and says so.
    let answer = bench.json(&["run", "--class", "read", "--", "echo", "x"]);
    assert_eq!((&answer["effect"], answer.get("operation")), (&json!("noop"), None));
}

#[test]
fn a_spent_budget_names_the_way_out() {
    let bench = Bench::new();
    let args = ["run", "--key", "a", "--attempts", "1", "--fail-exit", "1", "--", "sh", "-c", "exit 1"];
    bench.once(&args).exits(1);
    let answer = bench.json(&args);
    assert_eq!(told(&answer), [json!("BUDGET_EXHAUSTED"), json!("no"), json!(false), json!(false)]);
    assert_eq!(answer["error"]["next"], "to allow more, raise --attempts above 1");
    bench
        .once(&["run", "--key", "a", "--attempts", "2", "--fail-exit", "1", "--", "sh", "-c", "exit 1"])
        .exits(1);
}

#[test]
fn a_command_that_is_not_there_uses_up_nothing() {
    let bench = Bench::new();
    let args = ["run", "--key", "a", "--attempts", "2", "--retries", "5", "--", "./pay.sh"];
    for _ in 0..5 {
        let answer = bench.json(&args);
        assert_eq!(told(&answer), [json!("FAILED"), json!("no"), json!(false), json!(false)]);
        assert_eq!(answer["error"]["next"], "correct the command, then make the same call again");
    }
    bench.once(&args).exits(127);
    bench.script("pay.sh", "echo ran >> runs; echo paid");
    bench.once(&args).exits(0);
    // What is done is replayed even when the command has gone again.
    std::fs::remove_file(bench.path("pay.sh")).unwrap();
    assert_eq!((bench.once(&args).exits(0).out().as_str(), bench.runs()), ("paid", 1));
    // A command that exists but cannot be started is reported in the same way.
    bench.write("broken", "#!/no/such/interpreter\n");
    bench.shell("chmod +x broken");
    let answer = bench.json(&["run", "--key", "b", "--", "./broken"]);
    assert_eq!(told(&answer), [json!("FAILED"), json!("no"), json!(true), json!(false)]);
    let preview = bench.once(&["--json", "run", "--dry-run", "--", "no-such-program"]).exits(127).json();
    assert_eq!((&preview["ok"], &preview["effect"]), (&json!(false), &json!("would_noop")));
}

#[test]
fn output_in_json_has_a_limit_and_says_where_the_rest_is() {
    let bench = Bench::new();
    // A character of two bytes lies across the limit.
    let script =
        "printf x; i=0; while [ $i -lt 40000 ]; do printf 'é'; i=$((i+1)); done; head -c 70000 /dev/zero >&2";
    let args = ["run", "--key", "a", "--", "bash", "-c", script];
    for _ in 0..2 {
        let data = bench.json(&args)["data"].clone();
        let (out, err) = (data["stdout"].as_str().unwrap(), data["stderr"].as_str().unwrap());
        assert_eq!((out.len(), err.len(), &data["cut"]), (65_535, 65_536, &json!(true)));
        assert!(out.ends_with('é'));
        let more = data["more"].as_str().unwrap();
        assert!(more.contains(&format!("show {} --output", bench.newest())), "{more}");
        let whole = paste(&bench, &data["more"]).exits(0);
        assert_eq!((whole.out.len(), whole.err.len()), (80_001, 70_000));
    }
    let whole = bench.once(&args).exits(0);
    assert_eq!((whole.out.len(), whole.err.starts_with(&[0; 70_000])), (80_001, true));
    let small = bench.json(&["run", "--", "echo", "x"])["data"].clone();
    assert_eq!((&small["cut"], small.get("more")), (&json!(false), None));
}

#[test]
fn again_is_the_callers_word_and_is_recorded() {
    let bench = Bench::new();
    let script = "echo ran >> runs; [ $ONCE_ATTEMPT = 2 ] || exit 1";
    let again =
        |key: &str, script: &str| bench.once(&["run", "--again", "--key", key, "--", "sh", "-c", script]);
    bench.once(&["run", "--key", "a", "--", "sh", "-c", script]).exits(79);
    // A call that is refused for another reason settles nothing.
    again("a", "echo other").exits(6);
    assert_eq!(bench.state(&bench.newest()), "in_doubt");
    again("a", script).exits(0);
    assert_eq!(bench.runs(), 2);
    let detail = bench.json(&["show", &bench.newest()])["data"].to_string();
    assert!(detail.contains("the caller said to run it again"), "{detail}");
    // What is done stays done, and what was never there just runs.
    again("a", script).exits(0);
    again("b", "echo ran >> runs").exits(0);
    assert_eq!(bench.runs(), 3);
}

#[test]
fn scripts_can_tell_a_replay_from_a_run() {
    let bench = Bench::new();
    let args = [
        "run",
        "--key",
        "a",
        "--noop-exit",
        "44",
        "--status-file",
        "status",
        "--quiet",
        "--",
        "sh",
        "-c",
        COUNTED,
    ];
    let status = || serde_json::from_str::<Value>(&bench.read("status")).unwrap();
    bench.once(&args).exits(0);
    assert_eq!((&status()["effect"], &status()["ran"]), (&json!("updated"), &json!(true)));
    let said = bench.once(&args).exits(44);
    assert_eq!(
        (said.out().as_str(), said.err().as_str()),
        ("out", "err"),
        "--quiet says nothing about a success"
    );
    assert_eq!((&status()["effect"], &status()["ran"]), (&json!("noop"), &json!(false)));
    // A refusal is written too, and is not quiet.
    let said = bench
        .once(&["run", "--key", "a", "--status-file", "status", "--quiet", "--", "sh", "-c", "x"])
        .exits(6);
    assert!(said.err().contains("KEY_REUSED"));
    assert_eq!(status()["error"]["code"], "KEY_REUSED");
}

#[test]
fn a_command_needs_no_dashes_before_it() {
    let bench = Bench::new();
    assert_eq!(bench.once(&["run", "--key", "a", "echo", "--key", "-x"]).exits(0).out(), "--key -x");
    assert_eq!(bench.once(&["run", "--key", "a", "--", "echo", "--key", "-x"]).exits(0).out(), "--key -x");
    let said = bench.once(&["run", "--kee", "a", "echo"]).exits(2);
    assert!(said.err().contains("--kee"), "{}", said.err());
}

#[test]
fn what_a_person_settled_is_said_to_be_settled_by_hand() {
    let bench = Bench::new();
    let id = bench.with_doubt();
    bench.once(&["settle", &id, "--as", "done", "--note", "seen on the statement"]).exits(0);
    let said = bench.once(&["run", "--key", "doubt", "--", "sh", "-c", "kill -9 $$"]).exits(0);
    assert!(
        said.err().contains("by a person (once settle") && said.err().contains("(seen on the statement)"),
        "{}",
        said.err()
    );
}
