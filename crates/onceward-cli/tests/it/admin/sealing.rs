//! Encryption at rest: the key by file, environment and policy, and what a process without it can do.

use std::path::Path;

use serde_json::json;

use crate::common::{Bench, Said};

const SECRET: &str = "canary-7f3d9e21";

/// A folder with a key file.
fn with_key() -> Bench {
    let bench = Bench::new();
    let made = bench.once(&["config", "new-key", "once.key"]).exits(0);
    assert!(made.out().contains("its key is k_"), "{}", made.out());
    bench
}

/// Runs `once` with the key file.
fn sealed(bench: &Bench, args: &[&str]) -> Said {
    bench.command(args).env("ONCE_ENCRYPTION_KEY_FILE", bench.path("once.key")).output().unwrap().into()
}

/// Everything that can leave a secret: output, the command line, a reason and a probe.
fn fill(bench: &Bench) {
    let printed = format!("echo ran >> runs; echo {SECRET}");
    let probe = format!("echo {SECRET}; exit 3");
    sealed(bench, &["run", "--key", "k1", "--store-command", "--probe", &probe, "--", "sh", "-c", &printed])
        .exits(0);
    let fails = format!("echo {SECRET} >&2; exit 1");
    sealed(bench, &["run", "--key", "k2", "--store-command", "--", "sh", "-c", &fails]).exits(79);
    sealed(bench, &["settle", "k2", "--as", "done", "--note", SECRET]).exits(0);
}

fn files_with_the_secret(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with_the_secret(&path));
        } else if std::fs::read(&path).unwrap().windows(SECRET.len()).any(|part| part == SECRET.as_bytes()) {
            found.push(path.display().to_string());
        }
    }
    found
}

#[test]
fn nothing_that_a_command_was_given_or_printed_is_on_disk() {
    let bench = with_key();
    fill(&bench);
    assert_eq!(files_with_the_secret(&bench.path("")), Vec::<String>::new());
    let again = sealed(&bench, &["run", "--key", "k1", "--", "sh", "-c", "echo ran >> runs"]);
    // Another command under the same key is refused; the same one gets the stored output.
    assert_eq!(again.exit, 6, "{}", again.err());
    let shown = sealed(&bench, &["show", "k1", "--output"]).exits(0);
    assert_eq!((shown.out(), bench.runs()), (SECRET.to_owned(), 1));
    let copy = sealed(&bench, &["backup", "copy.db"]).exits(0);
    assert!(copy.out().contains("copied"), "{}", copy.out());
    assert_eq!(files_with_the_secret(&bench.path("")), Vec::<String>::new());
    let doctor = sealed(&bench, &["doctor"]).exits(0);
    assert!(doctor.out().contains("results are sealed with the key k_"), "{}", doctor.out());
}

#[test]
fn without_the_key_one_can_look_and_nothing_runs_again() {
    let bench = with_key();
    let command =
        ["run", "--key", "k1", "--store-command", "--", "sh", "-c", "echo ran >> runs; echo secret"];
    sealed(&bench, &command).exits(0);
    for args in [&["ls"][..], &["report"], &["show", "k1"], &["ls", "--jsonl"], &["show", "k1", "--json"]] {
        let said = bench.once(args).exits(0);
        assert!(said.out().contains("sealed with the key k_"), "{args:?}: {}", said.out());
        assert!(!said.out().contains("sealed:1:"), "{args:?}: {}", said.out());
    }
    let replay = bench.once(&[&["--json"], &command[..]].concat()).exits(4).json();
    assert_eq!(replay["error"]["code"], "RESULT_UNAVAILABLE");
    assert_eq!((&replay["happened"], &replay["ran"]), (&json!("yes"), &json!(false)));
    assert!(replay["error"]["message"].as_str().unwrap().contains("k_"), "{replay}");
    bench.once(&["show", "k1", "--output"]).exits(4);
    bench.once(&["wait", "k1", "--output"]).exits(4);
    assert_eq!(sealed(&bench, &command).exits(0).out(), "secret");
    assert_eq!(bench.runs(), 1);
}

#[test]
fn a_key_that_cannot_be_used_runs_nothing() {
    let bench = with_key();
    let run = ["run", "--key", "k1", "--", "sh", "-c", "echo ran >> runs"];
    let with = |variables: &[(&str, &str)]| -> Said {
        bench.command(&run).envs(variables.iter().copied()).output().unwrap().into()
    };
    let missing = with(&[("ONCE_ENCRYPTION_KEY_FILE", "no.key")]).exits(12);
    assert!(missing.err().contains("no.key cannot be read"), "{}", missing.err());
    let wrong = with(&[("ONCE_ENCRYPTION_KEY", "hunter2")]).exits(12);
    assert!(wrong.err().contains("32 bytes") && !wrong.err().contains("hunter2"), "{}", wrong.err());
    let both = with(&[("ONCE_ENCRYPTION_KEY", "hunter2"), ("ONCE_ENCRYPTION_KEY_FILE", "once.key")]);
    assert!(both.exits(12).err().contains("set one of them"));
    for name in ["ONCE_ENCRYPTION_KEY_FILE", "ONCE_ENCRYPTION_KEY"] {
        let empty = with(&[(name, "")]).exits(12);
        assert!(empty.err().contains(&format!("{name} is set and empty")), "{}", empty.err());
    }
    bench.shell("chmod 644 once.key").exits(0);
    let open = with(&[("ONCE_ENCRYPTION_KEY_FILE", "once.key")]).exits(12);
    assert!(open.err().contains("chmod 600"), "{}", open.err());
    assert_eq!(bench.runs(), 0);
    bench.once(&["config", "new-key", "once.key"]).exits(2);
}

#[test]
fn commands_do_not_get_the_key() {
    let bench = with_key();
    let key = bench.read("once.key");
    let key = key.split_whitespace().next().unwrap();
    let run = |args: &[&str]| -> Said {
        bench.command(args).env("ONCE_ENCRYPTION_KEY", key).output().unwrap().into()
    };
    let seen = run(&["run", "--key", "k1", "--", "sh", "-c", "echo key=$ONCE_ENCRYPTION_KEY"]).exits(0);
    assert_eq!(seen.out(), "key=withheld");
    let probe = "echo probe=$ONCE_ENCRYPTION_KEY > seen; exit 10";
    run(&["run", "--key", "k2", "--probe", probe, "--quarantine", "0s", "--", "false"]).exits(79);
    run(&["run", "--key", "k2", "--probe", probe, "--quarantine", "0s", "--", "false"]).exits(79);
    assert_eq!(bench.read("seen").trim(), "probe=withheld");
    // A nested command that would not encrypt although its caller does is refused.
    let once = env!("CARGO_BIN_EXE_once");
    let inner = format!("{once} --ledger sqlite:inner.db run --key i -- true");
    let nested = run(&["run", "--key", "k3", "--", "sh", "-c", &inner]);
    assert!(nested.err().contains("ONCE_ENCRYPTION_KEY_FILE"), "{}", nested.err());
    assert!(sealed(&bench, &["show", "k1", "--output"]).exits(0).out().contains("withheld"), "the same key");
}

#[test]
fn the_policy_names_a_key_file_once_it_is_trusted() {
    let bench = with_key();
    bench.write("onceward.toml", "[ledger]\nencryption_key_file = \"once.key\"\n");
    let run = ["run", "--key", "k1", "--", "echo", SECRET];
    let untrusted = bench.once(&["ls"]);
    assert!(untrusted.err().contains("[ledger]"), "{}", untrusted.err());
    bench.once(&["config", "allow"]).exits(0);
    assert_eq!(bench.once(&run).exits(0).out(), SECRET);
    assert_eq!(files_with_the_secret(&bench.path("")), Vec::<String>::new());
    assert_eq!(sealed(&bench, &run).exits(0).out(), SECRET, "the same key");
}

#[test]
fn an_export_is_open_or_sealed_and_an_import_seals_again() {
    let bench = with_key();
    fill(&bench);
    let open = sealed(&bench, &["export", "--secret-file", "secret"]).exits(0);
    assert!(open.out().contains(SECRET));
    let closed = sealed(&bench, &["export", "--sealed"]).exits(0);
    assert!(!closed.out().contains(SECRET) && closed.out().contains("sealed:1:k_"), "{}", closed.out());
    bench.once(&["export", "--sealed"]).exits(2);
    for (name, export) in [("open", &open.out), ("closed", &closed.out)] {
        bench.write("export", export);
        let ledger = format!("sqlite:{name}.db");
        let there = ["--ledger", &ledger];
        let import = |args: &[&str]| sealed(&bench, &[args, &there].concat()).exits(0).out();
        let args = ["import", "export", "--secret-file", "secret"];
        assert_eq!(import(&args), "2 operations imported, 0 existed already, 0 differ");
        assert_eq!(import(&args), "0 operations imported, 2 existed already, 0 differ");
        assert_eq!(sealed(&bench, &[&["export"], &there[..]].concat()).exits(0).out, open.out);
    }
    std::fs::remove_file(bench.path("export")).unwrap();
    assert_eq!(files_with_the_secret(&bench.path("")), Vec::<String>::new());
    // Without the key, what is sealed moves as it is.
    bench.write("export", &closed.out);
    let import = ["import", "export", "--secret-file", "secret", "--ledger", "sqlite:moved.db"];
    bench.once(&import).exits(0);
    let again = bench.once(&import).exits(0);
    assert!(again.out().starts_with("0 operations imported, 2 existed already"), "{}", again.out());
    let there = ["export", "--ledger", "sqlite:moved.db"];
    assert_eq!(sealed(&bench, &there).exits(0).out, open.out);
}
