//! A retry gets the first result, byte for byte, and nothing is run.

use data_encoding::BASE64;
use insta::assert_snapshot;
use serde_json::json;

use crate::common::{Bench, COUNTED};

#[test]
fn both_streams_come_again_and_the_command_does_not() {
    let bench = Bench::new();
    let args = ["run", "--key", "a", "--", "sh", "-c", COUNTED];
    let first = bench.once(&args).exits(0);
    assert_eq!((first.out(), first.err()), ("out".to_owned(), "err".to_owned()));
    let second = bench.once(&args).exits(0);
    assert_eq!(second.out, first.out);
    assert_snapshot!(second.err(), @r"
    err
    once: already done AGE ago by attempt 1; nothing was run. To run it again on purpose, add --occurrence 2. Recognised by its key [op_…]
    ");
    assert_eq!(bench.runs(), 1);
}

#[test]
fn every_byte_survives() {
    let bench = Bench::new();
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    bench.write("blob", &bytes);
    let args = [
        "run",
        "--key",
        "a",
        "--",
        "sh",
        "-c",
        "echo ran >> runs; cat blob; cat blob >&2; printf 'no newline'",
    ];
    let first = bench.once(&args).exits(0);
    let second = bench.once(&args).exits(0);
    assert_eq!(first.out, [bytes.as_slice(), b"no newline"].concat());
    assert_eq!(first.err, bytes);
    assert_eq!(second.out, first.out);
    assert!(second.err.starts_with(&bytes), "stderr comes again, and then what once says");
    assert_eq!(bench.runs(), 1);
}

/// Runs `once` with both streams into one file, as a terminal would show them; returns its content.
fn seen_together(bench: &Bench, args: &[&str]) -> String {
    bench.write("seen", "");
    let file = std::fs::OpenOptions::new().append(true).open(bench.path("seen")).unwrap();
    let mut command = bench.command(args);
    command.stdout(file.try_clone().unwrap()).stderr(file);
    assert!(command.status().unwrap().success());
    bench.read("seen")
}

#[test]
fn the_order_of_both_streams_is_kept() {
    let bench = Bench::new();
    // Each line waits until the one before it is through, so their order is certain.
    let script = "say() { echo $1; until grep -q $1 seen; do sleep 0.01; done; }
        echo ran >> runs; for n in 1 2 3; do say out$n; say err$n >&2; done";
    let args = ["run", "--key", "a", "--", "sh", "-c", script];
    let lines = "out1\nerr1\nout2\nerr2\nout3\nerr3\n";
    assert_eq!(seen_together(&bench, &args), lines);
    let again = seen_together(&bench, &args);
    assert!(again.starts_with(&format!("{lines}once: already done")), "{again}");
    assert_eq!(bench.runs(), 1);
}

#[test]
fn a_failed_commands_exit_code_is_passed_on_and_a_retry_runs_it() {
    let bench = Bench::new();
    for exit in [1, 2, 42, 255] {
        let script = format!("echo ran >> runs; exit {exit}");
        bench
            .once(&[
                "run",
                "--key",
                &format!("exit-{exit}"),
                "--fail-exit",
                "1,2,42,255",
                "--",
                "sh",
                "-c",
                &script,
            ])
            .exits(exit);
    }
    assert_eq!(bench.runs(), 4);
    let script = "echo ran >> runs; exit 42";
    let said =
        bench.once(&["run", "--key", "exit-42", "--fail-exit", "42", "--", "sh", "-c", script]).exits(42);
    assert_eq!(bench.runs(), 5, "what failed for certain may be tried again");
    assert_snapshot!(said.err(), @r"
    once: FAILED the command failed with exit code 42, declared to have no effect
    once: happened: no, ran: yes, retryable: yes
    once: next: make the same call again; it is safe
    ");
}

#[test]
fn a_command_that_cannot_be_started_has_failed_for_certain() {
    let bench = Bench::new();
    bench.write("not-executable", "");
    let missing = bench.once(&["run", "--", "no-such-program"]).exits(127);
    assert_snapshot!(missing.err(), @r"
    once: FAILED cannot start no-such-program: No such file or directory (os error 2); nothing was run
    once: happened: no, ran: no, retryable: no
    once: next: correct the command, then make the same call again
    ");
    bench.once(&["run", "--", "./not-executable"]).exits(126);
    bench.once(&["run", "--", "."]).exits(126);
    assert_eq!(bench.json(&["ls"])["data"], json!([]), "no attempt was paid for");
}

#[test]
fn a_failure_is_replayed_where_the_policy_says_so() {
    let bench = Bench::new();
    bench.policy("[operation.sh]\non_failure = \"replay\"\nno_effect_exits = [9]\n");
    let args = ["run", "--key", "a", "--", "sh", "-c", "echo ran >> runs; echo out; echo why >&2; exit 9"];
    bench.once(&args).exits(9);
    let again = bench.once(&args).exits(9);
    assert_eq!((again.out(), bench.runs()), ("out".to_owned(), 1));
    assert_snapshot!(again.err(), @r"
    why
    once: FAILED the command failed with exit code 9, declared to have no effect
    once: happened: no, ran: no, retryable: no
    once: next: see what is recorded:
    once:   once --ledger sqlite:…/once.db show op_…
    ");
    let error = bench.json(&args)["error"].clone();
    assert_eq!((&error["code"], &error["retryable"]), (&json!("FAILED"), &json!(false)));
    // A dry run exits with what the real call would.
    bench.once(&[&["run", "--dry-run"], &args[1..]].concat()).exits(9);
}

#[test]
fn the_answer_as_json() {
    let bench = Bench::new();
    let args = ["run", "--key", "a", "--effect", "created", "--", "sh", "-c", COUNTED];
    let first = bench.json(&args);
    assert_snapshot!(crate::common::tidy(first.to_string().as_bytes()), @r#"{"data":{"cut":false,"exit_code":0,"stderr":"err\n","stdout":"out\n"},"effect":"created","happened":"yes","ok":true,"operation":{"attempt":1,"expires_at":"TIME","id":"op_…","key":"a","name":"sh","original_effect":"created","replayed":false,"scope":"default","state":"done"},"ran":true,"warnings":[]}"#);
    let second = bench.json(&args);
    assert_eq!(second["data"], first["data"], "the original data");
    assert_eq!((&second["ok"], &second["effect"]), (&json!(true), &json!("noop")));
    assert_eq!(second["operation"]["replayed"], true);
    assert_eq!(second["operation"]["original_effect"], "created");
    assert_eq!(bench.runs(), 1);
}

#[test]
fn json_of_a_failure_and_of_bytes_that_are_no_text() {
    let bench = Bench::new();
    let failed =
        bench.json(&["run", "--fail-exit", "5", "--", "sh", "-c", r"printf 'a\377'; echo why >&2; exit 5"]);
    assert_eq!(failed["ok"], false);
    assert_eq!(failed["effect"], "noop");
    assert_eq!(failed["error"]["code"], "FAILED");
    assert_eq!(failed["error"]["happened"], "no");
    assert_eq!(failed["data"]["exit_code"], 5);
    assert_eq!(failed["data"]["stderr"], "why\n");
    assert_eq!(failed["data"]["stdout"]["base64"], BASE64.encode(b"a\xff"));
}

#[test]
fn with_json_the_commands_own_answer_is_data() {
    let bench = Bench::new();
    let answer = bench.json(&["run", "--", "echo", r#"{"id": 42}"#]);
    assert_eq!(answer["data"]["answer"], json!({"id": 42}));
}

#[test]
fn large_output_is_spooled_whole() {
    let bench = Bench::new();
    let script = "echo ran >> runs; head -c 5000000 /dev/zero; head -c 300000 /dev/zero >&2";
    let args = ["run", "--key", "a", "--", "sh", "-c", script];
    let first = bench.once(&args).exits(0);
    let second = bench.once(&args).exits(0);
    assert_eq!((first.out.len(), first.err.len()), (5_000_000, 300_000));
    assert!(first.out == second.out && second.err.starts_with(&first.err));
    assert_eq!(bench.runs(), 1);
}

#[test]
fn output_over_the_limit_is_cut_with_a_word() {
    let bench = Bench::new();
    let script = "echo ran >> runs; printf 0123456789abcdef";
    let args = ["run", "--key", "a", "--max-output", "10", "--", "sh", "-c", script];
    let first = bench.once(&args).exits(0);
    assert_eq!(first.out(), "0123456789abcdef", "the caller of the first run gets all of it");
    assert_snapshot!(first.err(), @"once: the output was longer than --max-output allows; a replay contains only its beginning");
    let second = bench.once(&args).exits(0);
    assert_eq!(second.out(), "0123456789");
    assert_snapshot!(second.err(), @r"
    once: already done AGE ago by attempt 1; nothing was run. To run it again on purpose, add --occurrence 2. Recognised by its key [op_…]
    once: the output was longer than --max-output allows; a replay contains only its beginning
    ");
    assert_eq!(bench.json(&args)["data"]["cut"], true);
    assert_eq!(bench.runs(), 1);
}

#[test]
fn output_over_the_ledgers_own_limit_is_cut_and_keeps_the_exit_code() {
    let bench = Bench::new();
    let script = "echo ran >> runs; head -c 18000000 /dev/zero";
    let args = ["run", "--key", "a", "--max-output", "100000000", "--", "sh", "-c", script];
    assert_eq!(bench.once(&args).exits(0).out.len(), 18_000_000);
    let second = bench.once(&args).exits(0);
    assert!((16_000_000..16_777_216).contains(&second.out.len()), "{} bytes", second.out.len());
    assert!(second.err().contains("a replay contains only its beginning"), "{}", second.err());
    assert_eq!(bench.runs(), 1);
    bench.once(&["run", "--fail-exit", "7", "--", "sh", "-c", "head -c 17000000 /dev/zero; exit 7"]).exits(7);
}

#[test]
fn a_reader_that_goes_away_stops_neither_the_command_nor_its_record() {
    let bench = Bench::new();
    let script = "head -c 1000000 /dev/zero; echo ran >> runs";
    let mut process = bench.command(&["run", "--key", "a", "--", "sh", "-c", script]).spawn().unwrap();
    drop(process.stdout.take());
    assert!(process.wait().unwrap().success());
    assert_eq!((bench.runs(), bench.state(&bench.newest())), (1, "done".to_owned()));
}
