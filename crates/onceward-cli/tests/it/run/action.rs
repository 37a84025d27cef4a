//! A command that starts later or again is the one that was asked for: with its input, its declared environment and
//! files, and its program; and a person sees all of it.

use serde_json::{Value, json};

use crate::common::{Bench, Said};

/// Leaves a line with its input and its target each time it runs.
const MAIL: &str = "echo \"$1 $TARGET [$(cat)]\" >> mails";

fn bench() -> Bench {
    let bench = Bench::new();
    bench.script("mail.sh", MAIL);
    bench
}

/// What runs with `TARGET` set, with this on its standard input.
fn with_target(bench: &Bench, target: &str, args: &[&str]) -> Said {
    bench.command(args).env("TARGET", target).output().unwrap().into()
}

#[test]
fn a_held_command_gets_the_input_of_its_caller_whether_or_not_it_identifies_the_call() {
    let ways: [&[&str]; 4] = [
        &["--key", "m"],
        &["--ignore", "stdin"],
        &["--key-fields", "to", "--input", r#"{"to":"alice"}"#],
        &["--key", "m", "--stdin"],
    ];
    for way in ways {
        let bench = bench();
        let args = [&["run"], way, &["--hold", "approve", "--", "./mail.sh", "alice"]].concat();
        let said = bench.once_with_stdin(&args, b"Dear Alice\n").exits(0);
        assert!(said.err().contains("11 bytes were read from standard input for it"), "{}", said.err());
        let id = bench.json(&["held"])["data"][0]["id"].as_str().unwrap().to_owned();
        bench.once(&["release", &id]).exits(0);
        assert_eq!(bench.read("mails"), "alice  [Dear Alice]\n", "{way:?}");
    }
}

#[test]
fn a_command_that_only_the_policy_holds_gets_its_input_too() {
    let bench = bench();
    bench.policy("[operation.\"mail*\"]\nhold = \"approve\"");
    let args = ["run", "--key", "m", "--", "./mail.sh", "alice"];
    bench.once_with_stdin(&args, b"Dear Alice\n").exits(4);
    bench.once(&["release", "m"]).exits(0);
    assert_eq!(bench.read("mails"), "alice  [Dear Alice]\n");
}

#[test]
fn a_second_attempt_gets_the_input_of_the_first() {
    let ways: [&[&str]; 3] =
        [&["--key", "m"], &["--ignore", "stdin"], &["--key", "m", "--class", "idempotent"]];
    for way in ways {
        let bench = Bench::new();
        bench.script("mail.sh", &format!("{MAIL}; [ $(wc -l < mails) -gt 1 ] || exit 3"));
        let tries = ["--fail-exit", "3", "--retries", "2"];
        let args = [&["run"], way, &tries, &["--", "./mail.sh", "alice"]].concat();
        bench.once_with_stdin(&args, b"Dear Alice\n").exits(0);
        assert_eq!(bench.read("mails"), "alice  [Dear Alice]\n".repeat(2), "{way:?}");
    }
}

#[test]
fn a_call_that_can_be_neither_leaves_its_input_alone() {
    let line = "printf 'one\\ntwo\\n' | { once run --key k -- true; cat; }";
    let bench = Bench::new();
    assert_eq!(bench.shell(line).exits(0).out(), "one\ntwo");
}

#[test]
fn what_was_declared_is_what_runs() {
    let bench = bench();
    bench.write("conf", "v1");
    let declared = ["--env", "TARGET", "--input-file", "conf"];
    let call =
        [&["run", "--key", "d", "--hold", "approve"], &declared[..], &["--", "./mail.sh", "x"]].concat();
    with_target(&bench, "staging", &call).exits(0);
    bench.write("conf", "v2");
    for args in [&["release", "d"][..], &["release", "d", "--dry-run"]] {
        let refused = with_target(&bench, "production", args).exits(2);
        for says in ["the declared file conf has changed", "nothing was run, and it is still held"] {
            assert!(refused.err().contains(says), "{says}: {}", refused.err());
        }
    }
    let shown = bench.json(&["show", "d"]);
    assert!(shown["data"]["held"]["released_by"].is_null(), "{shown}");
    assert_eq!((bench.read("mails"), &shown["data"]["state"]), (String::new(), &json!("staged")));
    bench.write("conf", "v1");
    with_target(&bench, "production", &["release", "d"]).exits(0);
    assert_eq!(bench.read("mails"), "x staging []\n", "the values of the caller, not of the releaser");
}

#[test]
fn a_script_that_was_edited_after_the_hold_does_not_run() {
    let argv: [&[&str]; 2] = [&["./mail.sh", "alice"], &["sh", "./mail.sh", "alice"]];
    for (argv, due) in argv.into_iter().zip([false, true]) {
        let bench = bench();
        let time = if due { "1ms" } else { "approve" };
        bench.once(&[&["run", "--key", "s", "--hold", time, "--"], argv].concat()).exits(0);
        bench.script("mail.sh", "echo mallory >> mails");
        let release: &[&str] =
            if due { &["release", "--due", "--trust-commands"] } else { &["release", "s"] };
        let refused = bench.once(release).exits(2);
        let told = format!("{}{}", refused.out(), refused.err());
        assert!(told.contains("the program ") && told.contains("mail.sh has changed"), "{told}");
        assert_eq!(bench.read("mails"), "");
        assert_eq!(bench.json(&["show", "s"])["data"]["state"], "staged");
        bench.script("mail.sh", MAIL);
        bench.once(release).exits(0);
        assert_eq!(bench.read("mails"), "alice  []\n");
    }
}

#[test]
fn a_person_sees_every_character_of_what_would_run() {
    let bench = Bench::new();
    let script = "echo harmless # note:\ntouch GONE\t'a  b'";
    let args = ["run", "--key", "a", "--hold", "approve", "--", "sh", "-c", script];
    bench.once_with_stdin(&args, b"22 bytes of \x1b[2J input").exits(0);
    let exact = r"sh -c $'echo harmless # note:\ntouch GONE\t\'a  b\''";
    let input = r#"with 22 bytes of input: "22 bytes of \x1b[2J input" sha256:"#;
    for args in [&["held"][..], &["show", "a"], &["release", "a", "--dry-run"]] {
        let told = bench.once(args).exits(0).out();
        assert!(told.contains(exact) && told.contains(input), "{args:?}: {told}");
        let said = bench.json(args);
        let line = if said["data"].is_array() { &said["data"][0] } else { &said["data"] };
        let would_run = line["would_run"].as_str().unwrap();
        assert!(would_run.starts_with(exact) && would_run.contains(input), "{would_run}");
    }
    let released = bench.once(&["release", "a"]).exits(0).err();
    assert!(released.contains(exact), "{released}");
}

/// The action of the operation with this key, as it is recorded.
fn action_of(bench: &Bench, key: &str) -> Value {
    let exported = String::from_utf8(bench.once(&["export"]).exits(0).out).unwrap();
    let mut lines = exported.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let record = lines.find(|record| record["key"]["text"] == key);
    record.expect("it is exported")["action"].clone()
}

#[test]
fn the_action_of_a_keyed_call_is_that_of_the_equal_call_without_a_key() {
    const COMMAND: [&str; 3] = ["--", "true", "x"];
    let bench = Bench::new();
    let keyed = |args: &[&str], input: Option<&[u8]>| {
        let args = [&["run", "--key"], args, &COMMAND].concat();
        match input {
            Some(input) => bench.once_with_stdin(&args, input),
            None => bench.once(&args),
        }
        .exits(0);
        action_of(&bench, args[2])
    };
    let keyless = |args: &[&str], input: &[u8]| {
        let said = bench.once_with_stdin(&[&["--json", "key"], args, &COMMAND].concat(), input);
        said.exits(0).json()["data"]["operation"].clone()
    };
    let plain = keyed(&["k1"], None);
    assert_eq!(plain, keyless(&[], b""));
    assert_eq!(keyed(&["k2"], None), plain, "an equal call with another key");
    assert_eq!(keyed(&["k3", "--ignore", "folder"], None), keyless(&["--ignore", "folder"], b""));
    // An input that was not read is not known, so the key alone identifies the call. An empty one counts as none.
    assert_eq!(keyed(&["k4"], Some(b"unread")), Value::Null);
    bench.write("empty", "");
    bench.shell("once run --key k5 -- true x < empty").exits(0);
    assert_eq!(action_of(&bench, "k5"), plain);
    // The input of a held call is read, and known.
    let held = keyed(&["k6", "--hold", "approve"], Some(b"kept"));
    assert_eq!(held, keyless(&[], b"kept"));
    assert_eq!(keyed(&["k7", "--hold", "approve", "--ignore", "stdin"], Some(b"kept")), plain);
}

#[test]
fn what_was_held_runs_although_its_caller_brings_another_input_when_it_starts_it() {
    let bench = bench();
    let args = ["run", "--key", "m", "--hold", "1ms", "--", "./mail.sh", "alice"];
    bench.once_with_stdin(&args, b"Dear Alice\n").exits(0);
    // Its time is over, so the repeated call starts it.
    let said = bench.once_with_stdin(&args, b"Pay Eve\n").exits(0);
    assert_eq!(bench.read("mails"), "alice  [Dear Alice]\n", "{}", said.err());
    let again = bench.once_with_stdin(&args, b"Pay Eve\n").exits(0);
    assert!(again.err().contains("already done"), "{}", again.err());
    assert_eq!(bench.read("mails"), "alice  [Dear Alice]\n");
}
