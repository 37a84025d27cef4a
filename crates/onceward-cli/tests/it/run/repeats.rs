//! Retry or intended repeat without a key: delivery of the answer decides. Also the identity of the action.

use std::os::unix::fs::symlink;

use serde_json::json;

use crate::common::{Bench, COUNTED, HELD, eventually};

fn run<'a>(flags: &[&'a str], script: &'a str) -> Vec<&'a str> {
    [&["run"], flags, &["--", "sh", "-c", script]].concat()
}

#[test]
fn an_answer_that_was_delivered_makes_the_same_call_wanted_again() {
    let bench = Bench::new();
    for times in 1..=3 {
        bench.once(&run(&[], COUNTED)).exits(0);
        assert_eq!(bench.runs(), times);
    }
    for flags in [&["--keys", "strict"][..], &["--scope", "run-7"], &["--key", "a"], &["--occurrence", "9"]] {
        let before = bench.runs();
        // `strict` is about the first occurrence, which has run already.
        for _ in 0..3 {
            bench.once(&run(flags, COUNTED)).exits(0);
        }
        assert_eq!(bench.runs() - before, usize::from(flags[0] != "--keys"), "{flags:?}");
    }
    let before = bench.runs();
    for _ in 0..2 {
        bench.once(&run(&["--scope", "run-8", "--keys", "auto"], COUNTED)).exits(0);
    }
    assert_eq!(bench.runs() - before, 2, "what the caller says comes before the scope");
    assert!(bench.once(&run(&["--keys", "keyed"], COUNTED)).exits(2).err().contains("KEY_MISSING"));
}

#[test]
fn an_answer_that_was_not_delivered_is_given_again() {
    let bench = Bench::new();
    // Its reader goes away before it says more.
    let line = "echo ran >> runs; echo out; until [ -e release ]; do sleep 0.02; done; echo more";
    let mut process = bench.command(&run(&[], line)).spawn().unwrap();
    drop(process.stdout.take());
    bench.release();
    assert!(process.wait().unwrap().success());
    let again = bench.once(&run(&[], line)).exits(0);
    assert_eq!((again.out().as_str(), bench.runs()), ("out\nmore", 1));
    assert!(again.err().contains("the earlier answer was not delivered"), "{}", again.err());
    // Now it has been delivered.
    bench.once(&run(&[], line)).exits(0);
    assert_eq!(bench.runs(), 2);
}

#[test]
fn a_reader_that_left_before_a_silent_end_did_not_get_the_answer() {
    for which in ["stdout", "stderr"] {
        for kind in ["pipe", "socket"] {
            let bench = Bench::new();
            let line = &format!("echo out; {HELD}");
            let mut command = bench.command(&run(&[], line));
            let reader: std::os::fd::OwnedFd = if kind == "pipe" {
                let (reader, writer) = std::io::pipe().unwrap();
                if which == "stdout" {
                    command.stdout(writer)
                } else {
                    command.stderr(writer)
                };
                reader.into()
            } else {
                let (reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
                let writer = std::os::fd::OwnedFd::from(writer);
                if which == "stdout" {
                    command.stdout(writer)
                } else {
                    command.stderr(writer)
                };
                reader.into()
            };
            let mut process = command.spawn().unwrap();
            drop(command);
            eventually("it runs", || bench.runs() == 1);
            drop(reader);
            bench.release();
            assert!(process.wait().unwrap().success());
            bench.once(&run(&[], line)).exits(0);
            assert_eq!(bench.runs(), 1, "{which} {kind}: the same call is a retry");
            bench.once(&run(&[], line)).exits(0);
            assert_eq!(bench.runs(), 2, "{which} {kind}: now it was delivered");
        }
    }
}

#[test]
fn an_answer_to_a_parent_that_is_gone_is_given_again() {
    let bench = Bench::new();
    let line = format!(
        "once run -- sh -c '{HELD}' > /dev/null 2>&1 & until [ -e runs ]; do sleep 0.02; done; kill -9 $$"
    );
    assert_eq!(bench.shell(&line).exit, -1);
    bench.release();
    eventually("the call ends", || bench.json(&["ls"])["data"][0]["state"] == "done");
    bench.once(&run(&[], HELD)).exits(0);
    assert_eq!(bench.runs(), 1);
}

#[test]
fn what_is_in_doubt_or_running_is_not_wanted_again() {
    let bench = Bench::new();
    for _ in 0..3 {
        bench.once(&run(&[], "echo ran >> runs; exit 1")).exits(79);
    }
    assert_eq!(bench.runs(), 1);
    let id = bench.newest();
    bench.once(&["settle", &id, "--as", "done"]).exits(0);
    let said = bench.once(&run(&[], "echo ran >> runs; exit 1")).exits(0);
    assert!(said.err().contains("settled AGE ago by a person"), "{}", said.err());
    assert_eq!(bench.runs(), 1, "the first answer after the settlement");
    bench.once(&run(&[], "echo ran >> runs; exit 1")).exits(79);
    assert_eq!(bench.runs(), 2, "and from then on an intended repeat");
}

#[test]
fn the_same_command_in_another_folder_is_another_action() {
    let bench = Bench::new();
    for folder in ["a", "b"] {
        std::fs::create_dir(bench.path(folder)).unwrap();
        bench.script(&format!("{folder}/deploy.sh"), "echo ran >> ../runs; echo deployed ${PWD##*/}");
    }
    symlink(bench.path("a"), bench.path("link")).unwrap();
    let deploy = |folder: &str| {
        bench.once_in(folder, &["run", "--keys", "strict", "--", "./deploy.sh", "prod"]).exits(0).out()
    };
    assert_eq!([deploy("a"), deploy("b")], ["deployed a", "deployed b"]);
    assert_eq!(
        (deploy("a"), deploy("link"), bench.runs()),
        ("deployed a".to_owned(), "deployed a".to_owned(), 2)
    );
    // Left out by name, and under a key, it does not count.
    for folder in ["a", "b"] {
        bench
            .once_in(folder, &["run", "--keys", "strict", "--ignore", "folder", "--", "./deploy.sh", "x"])
            .exits(0);
        bench.once_in(folder, &["run", "--key", "deploy-7", "--", "./deploy.sh", "y"]).exits(0);
    }
    assert_eq!(bench.runs(), 4);
}

#[test]
fn a_folder_that_is_gone_is_said_to_be() {
    let bench = Bench::new();
    let line = "mkdir gone; cd gone; rmdir ../gone; once run -- touch ../ran; echo $?; once run --ignore folder -- touch ../ran";
    let said = bench.shell(line).exits(0);
    assert_eq!(said.out(), "2");
    assert!(said.err().contains("the working folder: No such file"), "{}", said.err());
    assert!(said.err().contains("--ignore folder leaves it out"), "{}", said.err());
}

#[test]
fn the_environment_does_not_count_unless_it_is_named() {
    let bench = Bench::new();
    let run = |variable: &str, flags: &str| {
        bench
            .shell(&format!("A={variable} once run --keys strict {flags} -- sh -c 'echo ran >> runs'"))
            .exits(0)
    };
    run("1", "");
    run("2", "");
    assert_eq!(bench.runs(), 1);
    run("1", "--env A");
    run("2", "--env A");
    assert_eq!(bench.runs(), 3);
}

#[test]
fn one_key_is_one_effect_whatever_the_command_is_called() {
    let bench = Bench::new();
    bench.script("pay.sh", "echo ran >> runs");
    for (call, line) in ["./pay.sh", "sh ./pay.sh", "bash -c ./pay.sh", "env A=b ./pay.sh"].iter().enumerate()
    {
        let said = bench.shell(&format!("once --json run --key order-42 -- {line}"));
        let answer = said.json();
        if call > 0 {
            assert_eq!((said.exit, &answer["error"]["code"]), (6, &json!("KEY_REUSED")), "{line}");
            assert_eq!(
                (&answer["happened"], &answer["ran"]),
                (&json!("yes"), &json!(false)),
                "the operation's, and this call's"
            );
            assert!(answer.get("data").is_none(), "another call's output is no answer: {answer}");
        }
    }
    assert_eq!(bench.runs(), 1);
    // A name that was chosen counts.
    bench.shell("once run --key order-42 --name refund -- ./pay.sh").exits(0);
    assert_eq!(bench.runs(), 2);
}

#[test]
fn one_project_is_one_ledger_in_all_its_folders() {
    let bench = Bench::new();
    std::fs::create_dir_all(bench.path("project/deep/down")).unwrap();
    bench.write("project/onceward.toml", "[ledger]\nurl = \"sqlite:state.db\"\n");
    let script = format!("echo ran >> {}", bench.path("runs").display());
    let line = format!(
        "unset ONCE_LEDGER; cd project; once config allow; for d in . deep deep/down; do \
        (cd $d; once run --key order-42 -- sh -c '{script}'); done"
    );
    bench.shell(&line).exits(0);
    assert_eq!(bench.runs(), 1);
    assert!(bench.path("project/state.db").exists());
}

#[test]
fn a_policy_that_comes_with_a_repository_replaces_none_that_is_trusted() {
    let bench = Bench::new();
    std::fs::create_dir_all(bench.path("home/.config/onceward")).unwrap();
    std::fs::create_dir_all(bench.path("work/cloned")).unwrap();
    let script = format!("echo ran >> {}", bench.path("runs").display());
    let call = format!("unset ONCE_LEDGER; cd work/cloned; once run -- sh -c '{script}'");
    let trusted =
        |name: &str| format!("[ledger]\nurl = \"sqlite:{name}.db\"\n[defaults]\nkeys = \"strict\"\n");
    // The user's own policy, and one in a folder above that the user has allowed.
    bench.write("home/.config/onceward/onceward.toml", trusted("mine"));
    for (trust, runs) in [("true", 1), ("cd work && once config allow", 2)] {
        bench.shell(trust).exits(0);
        bench.shell(&call).exits(0);
        for brought in ["", "[defaults]\nkeys = \"auto\"\n", "[ledger]\nurl = \"sqlite:evil.db\"\n"] {
            bench.write("work/cloned/onceward.toml", brought);
            let said = bench.shell(&call).exits(0);
            assert_eq!(bench.runs(), runs, "{brought:?}: {}", said.err());
            assert!(said.err().contains("is not allowed yet, so "), "{}", said.err());
        }
        std::fs::remove_file(bench.path("work/cloned/onceward.toml")).unwrap();
        bench.write("work/onceward.toml", trusted("work"));
    }
    assert!(bench.path("work/work.db").exists() && !bench.path("work/cloned/evil.db").exists());
}

#[test]
fn fields_that_a_policy_chooses_identify_the_action_in_every_folder() {
    let bench = Bench::new();
    for folder in ["a", "b"] {
        std::fs::create_dir(bench.path(folder)).unwrap();
    }
    bench.policy("[operation.pay]\nkey = [\"order\"]\nkeys = \"strict\"\n");
    let script = format!("echo ran >> {}", bench.path("runs").display());
    for folder in ["a", "b", "a"] {
        let args = ["run", "--name", "pay", "--input", r#"{"order": 7}"#, "--", "sh", "-c", &script];
        bench.once_in(folder, &args).exits(0);
    }
    assert_eq!(bench.runs(), 1);
}

#[test]
fn a_wanted_repeat_runs_whatever_was_asked_for_before() {
    let plain: &[&str] = &[];
    let cases: [(&[&[&str]], usize); 4] = [
        (&[plain, &["--occurrence", "2"], plain], 3),
        (&[&["--keys", "strict"], plain], 2),
        (&[&["--occurrence", "1"], plain], 2),
        (&[plain, plain, plain, &["--occurrence", "2"]], 4),
    ];
    for (calls, wanted) in cases {
        let bench = Bench::new();
        for flags in calls {
            bench.once(&run(flags, COUNTED)).exits(0);
        }
        assert_eq!(bench.runs(), wanted, "{calls:?}");
    }
}

#[test]
fn a_replay_names_a_label_that_is_free() {
    let bench = Bench::new();
    bench.once(&run(&["--key", "k"], COUNTED)).exits(0);
    for times in 2..=4 {
        let said = bench.once(&run(&["--key", "k"], COUNTED)).exits(0).err();
        let hint = said.split("add ").nth(1).unwrap_or_else(|| panic!("{said}"));
        let words: Vec<&str> = hint.split(|c: char| c.is_whitespace() || c == '.').take(2).collect();
        assert_eq!(words[0], "--occurrence", "{said}");
        bench.once(&run(&["--key", "k", "--occurrence", words[1]], COUNTED)).exits(0);
        assert_eq!(bench.runs(), times, "pasted, it runs: {said}");
    }
}
