//! `once` inside `once`, and a tool of the framework behind it: an inner doubt stays a doubt.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::common::{Bench, eventually};

/// What a tool prints to say that nothing happened.
const ENVELOPE: &str =
    r#"{"ok":false,"effect":"noop","error":{"code":"FAILED","message":"no","happened":"no"}}"#;

/// The same, with the witness of the program that was started.
const SPEAKS: &str = r#"set -- $ONCE_WITNESS; [ "$1" = "$PPID" ] && [ "$3" = "$(realpath "$0")" ] &&
    echo "{\"ok\":false,\"effect\":\"noop\",\"witness\":\"$2\",\"error\":{\"code\":\"FAILED\",\"message\":\"no\",\"happened\":\"no\"}}""#;

#[test]
fn an_inner_doubt_is_a_doubt_at_every_level() {
    let bench = Bench::new();
    for (form, level) in [("", "text"), ("--json ", "json")] {
        let inner = "sh -c 'echo ran >> runs; kill -9 $$'";
        let inner = format!("once {form}run --key inner-{level} -- {inner}");
        let middle = format!("once {form}run --key middle-{level} -- {inner}");
        let before = bench.runs();
        for _ in 0..2 {
            let answer =
                bench.shell(&format!("once --json run --key outer-{level} -- {middle}")).exits(79).json();
            assert_eq!(
                (&answer["error"]["code"], &answer["happened"]),
                (&json!("IN_DOUBT"), &json!("unknown"))
            );
        }
        assert_eq!(bench.runs() - before, 1, "{middle}");
    }
    let states = bench.json(&["ls"])["data"].clone();
    assert!(states.as_array().unwrap().iter().all(|line| line["state"] == "in_doubt"), "{states}");
    assert_eq!(states.as_array().unwrap().len(), 6);
}

/// A server that the command calls knows the idempotency key and can count the attempts.
#[test]
fn what_others_can_know_is_no_witness() {
    let bench = Bench::new();
    for (key, guess) in
        ["$IDEMPOTENCY_KEY/$ONCE_ATTEMPT", "$ONCE_OPERATION/1", "$ONCE_KEY", "${ONCE_WITNESS%% *}"]
            .into_iter()
            .enumerate()
    {
        let envelope = format!(
            r#"echo "{{\"ok\":false,\"effect\":\"noop\",\"happened\":\"no\",\"ran\":false,\"witness\":\"{guess}\"}}"; exit 1"#
        );
        let answer = bench.once(&["--json", "run", "--key", &key.to_string(), "--", "sh", "-c", &envelope]);
        let answer = answer.exits(79).json();
        assert_eq!((&answer["error"]["code"], &answer["happened"]), (&json!("IN_DOUBT"), &json!("unknown")));
    }
}

/// `once release --due` ends with the exit code of one of the commands that it has run.
#[test]
fn a_release_that_ran_something_is_not_taken_for_wrong_usage() {
    let bench = Bench::new();
    let hold = |key: &str, exit: &str| {
        let run = ["run", "--key", key, "--hold", "1ms", "--fail-exit", "2", "--", "sh", "-c"];
        bench.once(&[&run[..], &[&format!("echo ran >> runs; exit {exit}")]].concat()).exits(0);
    };
    hold("a", "0");
    hold("b", "2");
    let outer = "once --json run --key outer -- once release --due --trust-commands";
    let mut answer = json!(null);
    eventually("both are due", || {
        answer = bench.shell(outer).json();
        bench.runs() >= 2
    });
    assert_eq!(answer["happened"], "unknown", "{answer}");
}

#[test]
fn an_inner_answer_in_json_is_taken_at_its_word() {
    let bench = Bench::new();
    let line = "once --json run --key outer -- once --json run --key inner --fail-exit 3 -- sh -c 'exit 3'";
    let answer = bench.shell(line).exits(3).json();
    assert_eq!((&answer["error"]["code"], &answer["happened"]), (&json!("FAILED"), &json!("no")));
    // The text output has only the exit code, which proves nothing.
    let line = "once --json run --key outer-2 -- once run --key inner-2 --fail-exit 3 -- sh -c 'exit 3'";
    assert_eq!(bench.shell(line).exits(79).json()["happened"], "unknown");
    // Wrong usage ran nothing.
    bench.shell("once run --key outer-3 -- once run --no-such-flag").exits(2);
    assert_eq!(bench.state(&bench.newest()), "failed");
}

#[test]
fn an_answer_that_nothing_happened_counts_also_with_exit_code_zero() {
    let bench = Bench::new();
    // What is held may still start.
    let held =
        "once run --key outer -- once --json run --key inner --hold approve -- sh -c 'echo ran >> runs'";
    for _ in 0..2 {
        bench.shell(held).exits(79);
    }
    bench.script("tool", &format!("{SPEAKS}; exit 0"));
    bench.shell("once --json run --key tool -- ./tool").exits(1);
    assert_eq!(bench.state(&bench.newest()), "failed");
    // A command that only prints such an answer may have run something else as well.
    bench.write("answer", ENVELOPE);
    bench.shell("once --json run --key cat -- cat answer").exits(79);
    bench.shell("once --json run --key shell -- sh -c 'cat answer'").exits(79);
    assert_eq!(bench.runs(), 0);
}

#[test]
fn a_hold_inside_is_not_a_success_outside() {
    let bench = Bench::new();
    for (key, form) in [("text", ""), ("json", "--json "), ("quiet", "--quiet ")] {
        let flags = if form.starts_with("--json") { (form, "") } else { ("", form) };
        let inner = format!(
            "once {}run {}--key in-{key} --hold approve -- sh -c 'echo ran >> runs'",
            flags.0, flags.1
        );
        bench.shell(&format!("once run --key out-{key} -- {inner}")).exits(79);
        // Where a script is asked for the hold, it is as before.
        bench.shell(&inner).exits(0);
    }
    bench
        .script("flow.sh", "set -e; once run --key in --hold approve -- sh -c 'echo ran >> runs'; echo done");
    bench.shell("once run --key flow -- ./flow.sh").exits(79);
    assert_eq!(bench.runs(), 0);
}

#[test]
fn a_script_is_not_believed_for_a_tool_that_it_runs() {
    let bench = Bench::new();
    let inner = "once --json run --key inner --fail-exit 3 -- sh -c 'exit 3'";
    bench.script("flow.sh", &format!("echo ran >> runs; {inner}"));
    bench.script("exec.sh", &format!("echo ran >> runs; exec {inner}"));
    bench.script(
        "orphan.sh",
        &format!(
            "echo ran >> runs; (({inner}; touch over) &); until [ -e over ]; do sleep 0.02; done; exit 3"
        ),
    );
    for (number, outer) in
        ["./flow.sh", "./exec.sh", "./orphan.sh", "env A=b ./exec.sh", "env -u once ./exec.sh"]
            .iter()
            .enumerate()
    {
        for _ in 0..2 {
            let answer = bench.shell(&format!("once --json run --key k{number} -- {outer}")).exits(79).json();
            assert_eq!(answer["happened"], "unknown", "{outer}: {answer}");
        }
        assert_eq!(bench.runs(), number + 1, "{outer}");
    }
    // Programs that put the tool in their own place leave its word as it is; those that stay in between do not.
    for (outer, exit) in [("env A=b", 3), ("nice -n 1", 3), ("nohup", 3), ("timeout 20", 79)] {
        let key = outer.split(' ').next().unwrap();
        bench.shell(&format!("once --json run --key {key} -- {outer} {inner} 2> /dev/null")).exits(exit);
    }
}

#[test]
fn a_tool_that_sees_no_sense_in_a_retry_is_not_contradicted() {
    let bench = Bench::new();
    let shop = shop();
    let line = format!("once --json run --key a --retries 2 -- {} cancel-order --json 77", shop.display());
    let answer = bench.shell(&line).json();
    let told = (&answer["happened"], &answer["error"]["retryable"], &answer["operation"]["attempt"]);
    assert_eq!(told, (&json!("no"), &json!(false), &json!(1)), "{answer}");
}

#[test]
fn an_inner_code_for_what_was_done_is_not_taken_for_a_failure() {
    let bench = Bench::new();
    let inner = "once run --key inner --noop-exit 2 -- sh -c 'echo ran >> runs'";
    bench.shell(inner).exits(0);
    let answer = bench.shell(&format!("once --json run --key outer -- {inner}")).exits(79).json();
    assert_eq!((&answer["happened"], bench.runs()), (&json!("unknown"), 1));
}

#[test]
fn a_call_inside_itself_is_refused_at_once() {
    let bench = Bench::new();
    // One that waited for itself would not end.
    let nested = |line: &str| bench.shell(line);
    let said =
        nested("once run --key a -- sh -c 'once --json run --key a -- sh -c x > inner; echo $? >> inner'");
    said.exits(0);
    let inner = bench.read("inner");
    assert!(inner.contains("KEY_REUSED"), "another command under the key: {inner}");
    // The same call from inside itself: with a key, without one, and through another operation.
    bench.script("again.sh", "once --json run --key b ./again.sh > inner; echo $? > code");
    nested("once run --key b ./again.sh").exits(0);
    assert_eq!(bench.read("code"), "4\n");
    assert!(bench.read("inner").contains("made from inside attempt 1"), "{}", bench.read("inner"));
    assert!(bench.read("inner").contains("its own key"), "{}", bench.read("inner"));
    bench.script("derived.sh", "once run ./derived.sh 2> inner; echo $? > code");
    nested("once run ./derived.sh").exits(0);
    assert_eq!(bench.read("code"), "4\n");
    bench.script(
        "corner.sh",
        "once run --key corner-2 -- once run --key corner ./corner.sh 2> inner; echo $? > code",
    );
    nested("once run --key corner ./corner.sh").exits(0);
    assert!(bench.read("inner").contains("made from inside attempt 1"), "{}", bench.read("inner"));
}

#[test]
fn a_process_that_outlives_its_operation_gets_its_result() {
    let bench = Bench::new();
    bench.script("daemon.sh", "while ! [ -e release ]; do sleep 0.02; done; once run --key a ./start.sh > late 2>&1; echo $? > code");
    bench.script("start.sh", "echo ran >> runs; ./daemon.sh > /dev/null 2>&1 & echo started");
    bench.shell("once run --key a ./start.sh").exits(0);
    bench.release();
    eventually("the process asks", || !bench.read("code").is_empty());
    assert_eq!((bench.read("code").as_str(), bench.runs()), ("0\n", 1), "{}", bench.read("late"));
}

/// The example tool, which a build of the workspace puts beside `once`.
fn shop() -> PathBuf {
    let shop = Path::new(env!("CARGO_BIN_EXE_once")).with_file_name("shop");
    assert!(shop.exists(), "{} is missing: cargo build --workspace", shop.display());
    shop
}

#[test]
fn a_tool_of_the_framework_in_doubt_is_in_doubt() {
    let bench = Bench::new();
    let shop = shop();
    let shop = shop.display();
    for (form, address) in [("", "a@example.org"), ("--json", "b@example.org")] {
        let mail = format!("{shop} send-email {form} --to {address} --subject hello");
        for call in 1..=2 {
            let line = format!("SHOP_TROUBLE=lost-reply once --json run --key {address} -- {mail}");
            let answer = bench.shell(&line).exits(79).json();
            let told = (&answer["happened"], &answer["ran"]);
            assert_eq!(told, (&json!("unknown"), &json!(call == 1)), "{answer}");
        }
    }
    let sent = rusqlite::Connection::open(bench.path("shop.db")).unwrap();
    let sent: i64 = sent.query_row("SELECT count(*) FROM emails", [], |row| row.get(0)).unwrap();
    assert_eq!(sent, 2, "each mail was sent once");
}
