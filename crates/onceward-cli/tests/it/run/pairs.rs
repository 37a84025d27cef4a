//! Where two features meet in one call: the cells of `pairs.toml` that only the real program shows.

use serde_json::{Value, json};

use crate::common::{Bench, COUNTED, HELD, Said, eventually};

/// `once run` with these flags and this line of shell.
fn run<'a>(flags: &[&'a str], script: &'a str) -> Vec<&'a str> {
    [&["run"], flags, &["--", "sh", "-c", script]].concat()
}

fn with(bench: &Bench, variable: (&str, &str), args: &[&str]) -> Said {
    bench.command(args).env(variable.0, variable.1).output().unwrap().into()
}

#[test]
fn a_key_with_another_declared_variable_or_file_is_reused() {
    let bench = Bench::new();
    bench.write("conf", "v1");
    let call = |account: &str| {
        let flags = ["--key", "k", "--env", "ACCOUNT", "--input-file", "conf"];
        with(&bench, ("ACCOUNT", account), &run(&flags, COUNTED))
    };
    call("a").exits(0);
    call("a").exits(0);
    assert!(call("b").exits(6).err().contains("KEY_REUSED"));
    bench.write("conf", "v2");
    assert!(call("a").exits(6).err().contains("KEY_REUSED"));
    assert_eq!(bench.runs(), 1);
}

#[test]
fn a_refusal_is_about_the_declared_values() {
    let bench = Bench::new();
    bench.policy("[operation.sh]\nhold = \"approve\"");
    let call = |account: &str| with(&bench, ("ACCOUNT", account), &run(&["--env", "ACCOUNT"], COUNTED));
    call("a").exits(4);
    bench.once(&["cancel", &bench.newest()]).exits(0);
    assert!(call("a").exits(4).err().contains("CANCELLED"));
    assert!(call("b").exits(4).err().contains("held until a person releases it"));
    assert_eq!(bench.runs(), 0);
}

#[test]
fn a_probe_has_the_environment_of_the_process_that_asks() {
    let bench = Bench::new();
    let call = run(&["--key", "k", "--env", "ACCOUNT"], "exit 1");
    with(&bench, ("ACCOUNT", "a"), &call).exits(79);
    let ask = |args: &[&str]| with(&bench, ("ACCOUNT", "b"), args);
    ask(&["settle", "k", "--probe", "echo $ACCOUNT > seen; exit 0"]).exits(0);
    assert_eq!(bench.read("seen"), "b\n");
    ask(&["verify", "k", "--check", "echo check $ACCOUNT > seen; exit 0"]).exits(0);
    assert_eq!(bench.read("seen"), "check b\n");
}

#[test]
fn what_a_cancel_left_is_the_answer_to_the_equal_call() {
    let bench = Bench::new();
    let running = bench.start(&run(&[], HELD));
    eventually("the command runs", || bench.runs() == 1);
    bench.once(&["cancel", &bench.newest()]).exits(0);
    running.end().exits(79);
    for _ in 0..2 {
        bench.once(&run(&[], HELD)).exits(79);
    }
    assert_eq!(bench.runs(), 1);
}

#[test]
fn a_flag_does_not_loosen_the_hold_of_the_policy() {
    for (policy, flag) in [("approve", "no"), ("approve", "1ms"), ("1h", "no"), ("1h", "1ms")] {
        let bench = Bench::new();
        bench.policy(&format!("[operation.sh]\nhold = \"{policy}\""));
        for _ in 0..2 {
            bench.once(&run(&["--key", "k", "--hold", flag], COUNTED));
        }
        assert_eq!((bench.runs(), bench.state("k").as_str()), (0, "staged"), "{policy}, --hold {flag}");
        let until = bench.json(&["held"])["data"][0]["held"]["until"].clone();
        assert_eq!(until.is_null(), policy == "approve", "{policy}, --hold {flag}: {until}");
    }
    // A stricter flag counts.
    let bench = Bench::new();
    bench.policy("[operation.sh]\nhold = \"1ms\"");
    for _ in 0..2 {
        bench.once(&run(&["--key", "k", "--hold", "approve"], COUNTED)).exits(0);
    }
    assert_eq!(bench.runs(), 0);
}

#[test]
fn a_cancel_ends_what_was_held_and_has_begun() {
    for hold in ["approve", "1ms"] {
        let bench = Bench::new();
        let call = run(&["--key", "k", "--hold", hold], HELD);
        bench.once(&call).exits(0);
        let begun = if hold == "approve" { bench.start(&["release", "k"]) } else { bench.start(&call) };
        eventually("the command runs", || bench.runs() == 1);
        let answer = bench.json(&["cancel", "k"]);
        assert_eq!(answer["data"]["state"], "running", "{answer}");
        begun.end().exits(79);
        bench.once(&call).exits(79);
        bench.once(&["release", "k"]).exits(6);
        assert_eq!(bench.runs(), 1, "{hold}");
    }
}

#[test]
fn a_held_command_keeps_its_probe_and_its_check() {
    for hold in ["approve", "1ms"] {
        let bench = Bench::new();
        let start = |call: &[&str]| match hold {
            "approve" => bench.once(&["release", call[2]]),
            _ => bench.once(call),
        };
        let probed = run(&["--key", "p", "--hold", hold, "--probe", "exit 0"], "echo ran >> runs; exit 1");
        bench.once(&probed).exits(0);
        start(&probed).exits(79);
        bench.once(&probed).exits(0);
        assert_eq!((bench.runs(), bench.state("p").as_str()), (1, "done"), "{hold}");
        let checked = run(&["--key", "v", "--hold", hold, "--verify", "exit 10"], COUNTED);
        bench.once(&checked).exits(0);
        start(&checked).exits(79);
        assert!(bench.once(&checked).exits(79).err().contains("UNVERIFIED"), "{hold}");
        assert_eq!(bench.runs(), 2);
    }
}

/// The first attempt of what a person approved had no effect, or left a doubt that a person settled so. What runs then
/// is still what was approved, not what the repeated call brings.
#[test]
fn the_next_attempt_of_an_approved_command_is_the_approved_one() {
    let pay = "echo \"$ACCOUNT $(cat)\" >> paid; exit $(cat outcome)";
    for (outcome, class) in [("3", "once"), ("1", "once"), ("1", "idempotent")] {
        let bench = Bench::new();
        bench.script("pay.sh", pay).write("outcome", outcome);
        let flags = ["--key", "k", "--hold", "approve", "--env", "ACCOUNT", "--fail-exit", "3"];
        let call = [&["run"], &flags[..], &["--class", class, "--", "./pay.sh"]].concat();
        let call = |input: &[u8]| -> Said {
            let mut process = bench.command(&call);
            process.env("ACCOUNT", "a").stdin(std::process::Stdio::piped());
            let mut process = process.spawn().unwrap();
            // A call that is refused does not read it.
            drop(std::io::Write::write_all(&mut process.stdin.take().unwrap(), input));
            process.wait_with_output().unwrap().into()
        };
        call(b"to alice").exits(0);
        bench.once(&["release", "k"]);
        assert_eq!(bench.read("paid"), "a to alice\n", "{outcome}");
        bench.write("outcome", "0");
        if (outcome, class) == ("1", "once") {
            bench.once(&["settle", "k", "--as", "failed"]).exits(0);
        }
        call(b"to mallory").exits(0);
        assert_eq!(bench.read("paid"), "a to alice\n".repeat(2), "{outcome} {class}");
        let shown = bench.json(&["show", "k"]);
        assert_eq!(shown["data"]["detail"]["held"]["request"], Value::Null, "it is done: {shown}");
    }
}

#[test]
fn the_result_of_a_release_is_the_answer_to_the_equal_call() {
    let bench = Bench::new();
    let call = run(&["--hold", "approve"], COUNTED);
    bench.once(&call).exits(0);
    bench.once(&["release", &bench.newest()]).exits(0);
    let answer = bench.once(&call).exits(0);
    assert_eq!(
        (answer.out().as_str(), bench.runs()),
        ("out", 1),
        "its caller has not had it: {}",
        answer.err()
    );
    assert!(bench.once(&call).exits(0).err().contains("held until"), "now it has: this is a new action");
    assert_eq!(bench.runs(), 1);
}

#[test]
fn of_several_releases_at_once_one_runs() {
    let bench = Bench::new();
    bench.once(&run(&["--key", "k", "--hold", "approve"], HELD)).exits(0);
    let releases: Vec<_> = (0..4).map(|_| bench.start(&["release", "k"])).collect();
    eventually("one of them runs it", || bench.runs() == 1);
    bench.release();
    let exits: Vec<i32> = releases.into_iter().map(|release| release.end().exit).collect();
    assert!(exits.contains(&0) && exits.iter().all(|exit| [0, 4, 6].contains(exit)), "{exits:?}");
    assert_eq!((bench.runs(), bench.state("k").as_str()), (1, "done"));
}

const SECRET: &str = "canary-41d7c02e";

/// A bench, and `once` with an encryption key in it.
fn sealing() -> (Bench, impl Fn(&Bench, &[&str]) -> Said) {
    let bench = Bench::new();
    bench.once(&["config", "new-key", "once.key"]).exits(0);
    let sealed = |bench: &Bench, args: &[&str]| -> Said {
        let key = bench.path("once.key");
        bench.command(args).env("ONCE_ENCRYPTION_KEY_FILE", key).output().unwrap().into()
    };
    (bench, sealed)
}

#[test]
fn without_the_key_every_answer_keeps_its_code() {
    let (bench, sealed) = sealing();
    let code = |args: &[&str]| {
        let answer = bench.json(args);
        assert!(!answer.to_string().contains(SECRET), "{answer}");
        answer["error"]["code"].as_str().unwrap_or("none").to_owned()
    };
    // A refusal.
    let held = run(&["--key", "refused", "--hold", "approve"], COUNTED);
    sealed(&bench, &held).exits(0);
    sealed(&bench, &["cancel", "refused", "--note", SECRET]).exits(0);
    assert_eq!(code(&held), "CANCELLED");
    // What has expired.
    let over = run(&["--key", "over", "--ttl", "1ms"], "echo ran >> runs; echo canary");
    sealed(&bench, &over).exits(0);
    eventually("it expires", || bench.state("over") == "expired");
    bench.once(&["gc"]).exits(0);
    assert_eq!(code(&over), "KEY_EXPIRED");
    // A compensation: its command and the result that it needs cannot be read, so nothing is run or marked.
    let paid = run(&["--key", "paid", "--undo", "echo {id} >> undone"], "echo '{\"id\":\"c1\"}'");
    sealed(&bench, &paid).exits(0);
    for undo in [&["undo", "paid", "--stored"][..], &["undo", "paid", "--undo", "echo {id} >> undone"]] {
        assert_ne!(bench.once(undo).exit, 0, "{undo:?}");
    }
    assert!(!bench.path("undone").exists());
    assert_eq!(bench.json(&["show", "paid"])["data"]["undone"], Value::Null);
    sealed(&bench, &["undo", "paid", "--stored"]).exits(0);
    assert_eq!(bench.read("undone"), "c1\n");
    // A stop, whose note is not sealed.
    sealed(&bench, &["stop", "s", "--note", "wrong list"]).exits(0);
    let stopped = bench.once(&run(&["--scope", "s", "--key", "new"], COUNTED)).exits(4);
    assert!(stopped.err().contains("STOPPED") && stopped.err().contains("wrong list"), "{}", stopped.err());
    // What a restore puts in doubt.
    let failed = run(&["--key", "failed", "--fail-exit", "3"], "echo ran >> runs; exit 3");
    sealed(&bench, &failed).exits(3);
    bench.once(&["restored", "--at", "1h"]).exits(0);
    assert_eq!(
        [code(&failed), code(&run(&["--key", "lost"], "echo lost >> runs"))],
        ["IN_DOUBT", "IN_DOUBT"]
    );
    assert_eq!(bench.runs(), 2);
}

#[test]
fn an_answer_that_could_not_be_opened_was_not_delivered() {
    let (bench, sealed) = sealing();
    // Its reader goes away before it says more, so the answer is not delivered.
    let script = "echo ran >> runs; echo out; until [ -e release ]; do sleep 0.02; done; echo more";
    let call = run(&[], script);
    let mut first = bench.command(&call);
    first.env("ONCE_ENCRYPTION_KEY_FILE", bench.path("once.key"));
    let mut first = first.spawn().unwrap();
    drop(first.stdout.take());
    bench.release();
    assert!(first.wait().unwrap().success());
    for _ in 0..3 {
        let refused = bench.once(&call).exits(4);
        assert!(refused.err().contains("RESULT_UNAVAILABLE"), "{}", refused.err());
    }
    assert_eq!((sealed(&bench, &call).exits(0).out().as_str(), bench.runs()), ("out\nmore", 1));
}

/// Replaces the ledger by a backup, as the documentation says.
fn restore(bench: &Bench, copy: &str) {
    for file in ["once.db", "once.db-wal", "once.db-shm", "once.db-live"] {
        drop(std::fs::remove_file(bench.path(file)));
    }
    std::fs::copy(bench.path(copy), bench.path("once.db")).unwrap();
    bench.once(&["restored", "--at", "1m"]).exits(0);
}

#[test]
fn the_barrier_of_a_backup_holds_until_a_person_lifts_it() {
    let bench = Bench::new();
    let call = run(&["--scope", "s", "--key", "k", "--class", "idempotent"], COUNTED);
    bench.once(&["stop", "s"]).exits(0);
    bench.once(&["backup", "stopped.db"]).exits(0);
    bench.once(&["resume", "s"]).exits(0);
    bench.once(&["backup", "resumed.db"]).exits(0);
    restore(&bench, "stopped.db");
    assert_ne!(bench.once(&call).exit, 0);
    assert_eq!(bench.runs(), 0, "the resume is lost, and the barrier is there");
    bench.once(&["resume", "s"]).exits(0);
    bench.once(&call).exits(0);
    assert_eq!(bench.runs(), 1);
    // A stop that the backup lacks is lost, so it is repeated before the agents start.
    bench.once(&["stop", "s"]).exits(0);
    restore(&bench, "resumed.db");
    bench.once(&["stop", "s"]).exits(0);
    assert_ne!(bench.once(&call).exit, 0);
    assert_eq!(bench.runs(), 1);
}

#[test]
fn a_hold_of_a_policy_that_is_not_allowed_applies() {
    for hold in ["approve", "1h"] {
        let bench = Bench::new();
        bench.write("onceward.toml", format!("[operation.sh]\nhold = \"{hold}\"\nrelease = \"auto\"\n"));
        for _ in 0..2 {
            bench.once(&run(&["--key", "k"], COUNTED)).exits(4);
        }
        bench.once(&["release", "--due"]).exits(0);
        assert_eq!((bench.runs(), bench.state("k").as_str()), (0, "staged"), "{hold}");
        bench.once(&["release", "k"]).exits(0);
        assert_eq!(bench.runs(), 1);
    }
}

#[test]
fn a_compensation_that_is_cancelled_leaves_the_mark() {
    let bench = Bench::new();
    let paid = run(&["--key", "paid"], COUNTED);
    bench.once(&paid).exits(0);
    let undo = bench.start(&["undo", "paid", "--undo", HELD]);
    eventually("the compensation runs", || bench.runs() == 2);
    let by = bench.json(&["show", "paid"])["data"]["undone"]["by"].as_str().unwrap().to_owned();
    bench.once(&["cancel", &by]).exits(0);
    undo.end().exits(79);
    assert_eq!(bench.state(&by), "in_doubt");
    let shown = bench.json(&["show", "paid"])["data"].clone();
    assert_eq!(
        (&shown["state"], &shown["undone"]["evidence"]),
        (&json!("done"), &json!("pending")),
        "{shown}"
    );
    assert!(bench.once(&paid).exits(4).err().contains("UNDONE"), "its effect may be gone");
    assert_eq!(bench.once(&["undo", "paid", "--undo", HELD]).exit, 79, "it does not run again");
    assert_eq!(bench.runs(), 2);
}
