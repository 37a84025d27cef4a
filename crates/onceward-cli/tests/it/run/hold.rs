//! A command that is held back: it says so, runs once when its time comes or a person releases it, and never after a
//! cancel.

use serde_json::{Value, json};

use crate::common::{Bench, COUNTED};

const HOLD: [&str; 8] = ["run", "--key", "a", "--hold", "approve", "--", "sh", "-c"];

fn held(bench: &Bench) -> crate::common::Said {
    let args: Vec<&str> = HOLD.into_iter().chain([COUNTED]).collect();
    bench.once(&args)
}

fn state(bench: &Bench) -> String {
    bench.json(&["show", "a"])["data"]["state"].as_str().unwrap().to_owned()
}

#[test]
fn a_held_command_says_so_as_often_as_it_is_called_and_runs_when_it_is_released() {
    let bench = Bench::new();
    for _ in 0..2 {
        let said = held(&bench).exits(0);
        assert_eq!(said.out(), "");
        let words = said.err();
        assert!(words.contains("held until a person releases it; nothing was sent"), "{words}");
        assert!(words.contains("A person can release or cancel it (op_"), "{words}");
        assert!(!words.contains("once release op_"), "its caller does not approve it: {words}");
    }
    assert_eq!((bench.runs(), state(&bench).as_str()), (0, "staged"));
    let released = bench.once(&["release", "a"]).exits(0);
    assert_eq!(released.out(), "out");
    assert!(released.err().contains("once: running sh -c "), "{}", released.err());
    assert_eq!(bench.runs(), 1);
    let again = held(&bench).exits(0);
    assert_eq!((again.out(), bench.runs()), ("out".to_owned(), 1), "its caller gets the result");
    bench.once(&["release", "a"]).exits(6);
}

#[test]
fn the_reason_of_a_cancel_reaches_the_caller() {
    let bench = Bench::new();
    held(&bench).exits(0);
    bench.once(&["cancel", "a", "--note", "the invoice is wrong"]).exits(0);
    let told = held(&bench).exits(4).err();
    assert!(told.contains("cancelled by a person (once cancel, user "), "{told}");
    assert!(told.contains("): the invoice is wrong; nothing was run"), "{told}");
    assert_eq!(bench.runs(), 0);
}

#[test]
fn the_reason_of_a_release_stays_in_the_record() {
    let bench = Bench::new();
    held(&bench).exits(0);
    bench.once(&["release", "a", "--note", "checked with Bob"]).exits(0);
    let shown = bench.json(&["show", "a"]);
    let word = &shown["data"]["detail"]["held"]["released"];
    assert_eq!((&word["by"], &word["note"]), (&json!("person"), &json!("checked with Bob")), "{shown}");
    let text = bench.once(&["show", "a"]).exits(0).out();
    assert!(text.contains("checked with Bob"), "{text}");
}

#[test]
fn the_json_answer_is_ok_and_no_success() {
    let bench = Bench::new();
    let args: Vec<&str> = std::iter::once("--json").chain(HOLD).chain([COUNTED]).collect();
    let said = bench.once(&args).exits(0).json();
    let facts: Vec<Value> = ["ok", "effect", "happened", "ran"].map(|name| said[name].clone()).into();
    assert_eq!(json!(facts), json!([true, "held", "no", false]), "{said}");
    let operation = &said["operation"];
    assert_eq!(json!([operation["state"], operation["held"]["by"]]), json!(["staged", "caller"]));
    assert!(said["error"].is_null() && said["data"].is_null(), "{said}");
}

#[test]
fn a_caller_that_did_not_ask_for_a_hold_does_not_get_exit_0() {
    let bench = Bench::new();
    bench.policy("[operation.sh]\nhold = \"10m\"");
    let args = ["run", "--key", "a", "--quiet", "--", "sh", "-c", COUNTED];
    for _ in 0..2 {
        let said = bench.once(&args).exits(4);
        assert!(said.err().contains("held until 20"), "--quiet does not hide it: {}", said.err());
    }
    let shown = bench.json(&["held"]);
    assert_eq!(shown["data"][0]["held"]["by"], "policy", "{shown}");
    assert_eq!(bench.runs(), 0);
}

#[test]
fn a_command_whose_time_has_come_runs_when_it_is_called_or_released() {
    let bench = Bench::new();
    let args = |key| ["run", "--key", key, "--hold", "1ms", "--", "sh", "-c", COUNTED];
    bench.once(&args("a")).exits(0);
    bench.once(&args("b")).exits(0);
    assert_eq!(bench.runs(), 0);
    assert_eq!(bench.once(&args("a")).exits(0).out(), "out", "the same call starts it");
    let left = bench.once(&["release", "--due"]).exits(0);
    assert!(left.out().contains("release = \"auto\""), "a stored command is data: {}", left.out());
    assert_eq!(bench.runs(), 1);
    let plan = bench.once(&["release", "--due", "--trust-commands", "--dry-run"]).exits(0);
    assert!(plan.out().starts_with("would_run run sh -c "), "{}", plan.out());
    assert_eq!(bench.runs(), 1);
    let ran = bench.once(&["release", "--due", "--trust-commands"]).exits(0);
    assert!(ran.out().starts_with("ran sh -c ") && ran.out().contains(": done"), "{}", ran.out());
    assert_eq!(bench.runs(), 2);
    assert_eq!(bench.once(&["release", "--due", "--trust-commands"]).exits(0).out(), "nothing is due");
}

#[test]
fn a_trusted_policy_lets_release_due_run_a_command_and_another_one_does_not() {
    let bench = Bench::new();
    bench.write("onceward.toml", "[operation.sh]\nrelease = \"auto\"");
    bench.once(&["run", "--key", "a", "--hold", "1ms", "--", "sh", "-c", COUNTED]).exits(0);
    bench.once(&["release", "--due"]).exits(0);
    assert_eq!(bench.runs(), 0, "a policy from a working folder that is not allowed does not count");
    bench.once(&["config", "allow"]).exits(0);
    bench.once(&["release", "--due"]).exits(0);
    assert_eq!(bench.runs(), 1);
}

#[test]
fn a_released_command_runs_in_its_folder_with_its_input_and_its_limits() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("inner")).unwrap();
    bench.script("inner/charge.sh", "echo ran >> runs; cat; exit $(cat outcome)");
    bench.write("inner/outcome", "3");
    let mut call = bench.command(&[
        "run",
        "--key",
        "a",
        "--hold",
        "approve",
        "--stdin",
        "--fail-exit",
        "3",
        "--",
        "./charge.sh",
    ]);
    call.current_dir(bench.path("inner"))
        .env("ONCE_LEDGER", bench.ledger())
        .stdin(std::process::Stdio::piped());
    let mut process = call.spawn().unwrap();
    std::io::Write::write_all(&mut process.stdin.take().unwrap(), b"from before").unwrap();
    assert!(process.wait().unwrap().success());
    let said = bench.once(&["release", "a"]).exits(3);
    assert_eq!((said.out(), bench.read("inner/runs").lines().count()), ("from before".to_owned(), 1));
    assert_eq!(state(&bench), "failed", "the exit code means no effect");
    bench.write("inner/outcome", "0");
    assert_eq!(
        bench.once(&["release", "a"]).exits(0).out(),
        "from before",
        "it was not sent, so it can be released"
    );
    assert_eq!(state(&bench), "done");
}

#[test]
fn a_command_whose_folder_is_gone_is_not_released() {
    let bench = Bench::new();
    let folder = bench.path("inner");
    std::fs::create_dir(&folder).unwrap();
    let mut call = bench.command(&["run", "--key", "a", "--hold", "approve", "--", "sh", "-c", "echo out"]);
    assert!(call.current_dir(&folder).env("ONCE_LEDGER", bench.ledger()).status().unwrap().success());
    std::fs::remove_dir(&folder).unwrap();
    let said = bench.once(&["release", "a"]).exits(2);
    assert!(said.err().contains("inner is gone; create it"), "{}", said.err());
    let shown = bench.json(&["held"]);
    assert!(shown["data"][0]["held"]["released_by"].is_null(), "{shown}");
    std::fs::create_dir(&folder).unwrap();
    assert_eq!(bench.once(&["release", "a"]).exits(0).out(), "out");
}

#[test]
fn what_is_cancelled_never_runs() {
    let bench = Bench::new();
    held(&bench).exits(0);
    bench.once(&["cancel", "a", "--dry-run"]).exits(0);
    bench.once(&["cancel", "a"]).exits(0);
    bench.once(&["release", "a"]).exits(6);
    bench.once(&["release", "--due", "--trust-commands"]).exits(0);
    assert!(held(&bench).exits(4).err().contains("CANCELLED"));
    assert_eq!(bench.runs(), 0);
}

#[test]
fn what_is_held_is_listed_with_what_would_run() {
    let bench = Bench::new();
    assert_eq!(bench.once(&["held"]).exit, 2, "there is no ledger yet");
    held(&bench).exits(0);
    bench.once(&["run", "--scope", "s", "--key", "b", "--hold", "1h", "--", "true"]).exits(0);
    let list = bench.once(&["held"]).exits(0).out();
    assert!(list.contains("approval") && list.contains("echo ran"), "{list}");
    let listed = bench.json(&["held", "--scope", "s"]);
    let rows: &Vec<Value> = listed["data"].as_array().unwrap();
    assert_eq!(json!([rows.len(), rows[0]["key"]]), json!([1, "b"]));
    let shown = bench.once(&["show", "a"]).exits(0).out();
    assert!(
        shown.contains("held by the caller until it is released") && shown.contains("would run"),
        "{shown}"
    );
    let all = bench.once(&["ls"]).exits(0).out();
    assert!(all.contains("staged") && all.contains("held"), "{all}");
    bench.once(&["wait", "a", "--timeout", "1ms"]).exits(4);
}

#[test]
fn a_dry_run_says_that_it_would_be_held() {
    let bench = Bench::new();
    let plan = bench.json(&["run", "--dry-run", "--key", "a", "--hold", "10m", "--", "sh", "-c", COUNTED]);
    assert_eq!(json!([plan["decision"], plan["effect"]]), json!(["hold", "would_noop"]), "{plan}");
    assert!(!bench.path("once.db").exists());
    let missing = bench.once(&["run", "--key", "a", "--hold", "10m", "--", "./no-such-command"]);
    assert_eq!(missing.exit, 127, "a command that cannot be started is not held: {}", missing.err());
}

#[test]
fn a_caller_that_does_not_want_a_hold_does_not_get_exit_0() {
    let bench = Bench::new();
    held(&bench).exits(0);
    bench.once(&["run", "--key", "a", "--hold", "no", "--", "sh", "-c", COUNTED]).exits(4);
    assert_eq!(bench.runs(), 0);
}

#[test]
fn a_command_of_another_machine_is_not_run_here_without_a_word() {
    let bench = Bench::new();
    held(&bench).exits(0);
    let exported = String::from_utf8(bench.once(&["export"]).exits(0).out).unwrap();
    let host = bench.json(&["show", "a"])["data"]["detail"]["held"]["request"].as_str().unwrap().to_owned();
    let host = serde_json::from_str::<Value>(&host).unwrap();
    let host = host["action"]["command"]["host"].as_str().unwrap().to_owned();
    let other = Bench::like(&bench);
    let moved = exported.replace(&format!("\\\"host\\\":\\\"{host}\\\""), "\\\"host\\\":\\\"elsewhere\\\"");
    assert_ne!(moved, exported);
    other.once_with_stdin(&["import"], moved.as_bytes()).exits(0);
    let refused = other.once(&["release", "a"]).exits(2);
    assert!(refused.err().contains("elsewhere") && refused.err().contains("--here"), "{}", refused.err());
    other.once(&["release", "a", "--here"]);
    assert_eq!(other.runs() + bench.runs(), 1, "it ran in its folder, which is the first one's");
}

#[test]
fn the_request_is_sealed_at_rest_and_deleted_when_it_was_sent() {
    let bench = Bench::new();
    bench.once(&["config", "new-key", "once.key"]).exits(0);
    let sealed = |args: &[&str]| {
        let mut command = bench.command(args);
        command.env("ONCE_ENCRYPTION_KEY_FILE", bench.path("once.key"));
        crate::common::Said::from(command.output().unwrap())
    };
    sealed(&["run", "--key", "a", "--hold", "approve", "--", "sh", "-c", "echo TOPSECRET > seen"]).exits(0);
    let bytes = || {
        let files =
            ["once.db", "once.db-wal"].map(|name| std::fs::read(bench.path(name)).unwrap_or_default());
        String::from_utf8_lossy(&files.concat()).into_owned()
    };
    assert!(!bytes().contains("TOPSECRET"), "the request is sealed");
    let unopened = bench.once(&["release", "a"]);
    assert!(unopened.exit == 2 && unopened.err().contains("sealed"), "{}", unopened.err());
    sealed(&["release", "a"]).exits(0);
    assert_eq!(bench.read("seen"), "TOPSECRET\n");
    let shown = sealed(&["--json", "show", "a"]).json();
    assert!(shown["data"]["detail"]["held"]["request"].is_null(), "{shown}");
}

/// The flags of calls that are equal but for a key.
const EQUAL: [&[&str]; 2] = [&[], &["--key", "k"]];

fn call(bench: &Bench, flags: &[&str]) -> crate::common::Said {
    bench.once(&[&["run"], flags, &["--", "sh", "-c", COUNTED]].concat())
}

#[test]
fn a_persons_no_is_the_answer_to_equal_calls_with_and_without_a_key() {
    for first in EQUAL {
        let bench = Bench::new();
        bench.policy("[operation.sh]\nhold = \"approve\"");
        call(&bench, first).exits(4);
        bench.once(&["cancel", &bench.newest()]).exits(0);
        for again in [first, first, EQUAL[0], EQUAL[1]] {
            let said = call(&bench, again).exits(4);
            assert!(said.err().contains("CANCELLED"), "{first:?}, {again:?}: {}", said.err());
        }
        assert_eq!(bench.json(&["held"])["data"].as_array().unwrap().len(), 0, "nothing is held anew");
        assert_eq!(bench.runs(), 0);
    }
}

#[test]
fn when_the_window_after_a_refusal_is_over_the_same_call_asks_again() {
    let bench = Bench::new();
    bench.policy("[operation.sh]\nhold = \"approve\"\nrepeat_window = \"0s\"");
    call(&bench, &[]).exits(4);
    let first = bench.newest();
    bench.once(&["cancel", &first]).exits(0);
    assert!(call(&bench, &[]).exits(4).err().contains("CANCELLED"), "its caller has not had that answer yet");
    assert!(call(&bench, &[]).exits(4).err().contains("held until a person releases it"));
    assert_ne!(bench.newest(), first);
}

#[test]
fn what_a_stop_cancelled_is_not_held_anew_after_the_scope_continues() {
    let bench = Bench::new();
    bench.policy("[operation.sh]\nhold = \"approve\"");
    let flags = ["--scope", "run-7", "--keys", "auto"];
    call(&bench, &flags).exits(4);
    bench.once(&["stop", "run-7"]).exits(0);
    bench.once(&["resume", "run-7"]).exits(0);
    assert!(call(&bench, &flags).exits(4).err().contains("CANCELLED"));
    assert_eq!(bench.json(&["held"])["data"].as_array().unwrap().len(), 0);
}

#[test]
fn what_a_person_settled_as_done_answers_the_equal_call_with_and_without_a_key() {
    for first in EQUAL {
        for again in EQUAL {
            let bench = Bench::new();
            let script = "echo ran >> runs; exit 1";
            let call = |flags: &[&str]| bench.once(&[&["run"], flags, &["--", "sh", "-c", script]].concat());
            call(first).exits(79);
            bench.once(&["settle", &bench.newest(), "--as", "done"]).exits(0);
            let said = call(again).exits(0);
            assert!(said.err().contains("already done: settled"), "{first:?}, {again:?}: {}", said.err());
            assert_eq!(bench.runs(), 1);
        }
    }
}
