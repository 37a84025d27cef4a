//! One ledger is one ledger, one file is all of it, and no file or clock makes anything run twice.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use insta::assert_snapshot;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use serde_json::json;

use crate::common::{Bench, COUNTED, HELD, Said, eventually};

fn counted<'a>(key: &'a str, flags: &[&'a str]) -> Vec<&'a str> {
    [flags, &["run", "--key", key, "--wait", "0s", "--", "sh", "-c", COUNTED]].concat()
}

/// Runs `once` in namespaces of its own.
fn unshared(bench: &Bench, flags: &[&str], script: &str) -> Said {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user"]).args(flags).args(["sh", "-ec", script]);
    command.current_dir(bench.path("")).env("ONCE", env!("CARGO_BIN_EXE_once"));
    command.env("HOME", bench.path("home")).env("ONCE_LEDGER", "sqlite:once.db");
    command.output().unwrap().into()
}

#[test]
fn a_copy_of_the_file_replays_everything() {
    let bench = Bench::new();
    for key in ["a", "b", "c"] {
        bench.once(&counted(key, &[])).exits(0);
    }
    std::fs::copy(bench.path("once.db"), bench.path("copy.db")).unwrap();
    for key in ["a", "b", "c"] {
        bench.once(&counted(key, &["--ledger", "sqlite:copy.db"])).exits(0);
    }
    assert_eq!(bench.runs(), 3, "nothing runs again on the copy");
}

#[test]
fn the_last_of_many_processes_leaves_one_file() {
    let bench = Bench::new();
    let all: Vec<_> = (0..8)
        .map(|n| bench.start(&["run", "--key", ["a", "b"][n % 2], "--", "sh", "-c", COUNTED]))
        .collect();
    for one in all {
        one.end().exits(0);
    }
    let log = std::fs::metadata(bench.path("once.db-wal")).map_or(0, |meta| meta.len());
    assert!(log == 0 || bench.runs() == 2, "a log that is left holds nothing but tallies");
    std::fs::copy(bench.path("once.db"), bench.path("copy.db")).unwrap();
    for key in ["a", "b"] {
        bench.once(&counted(key, &["--ledger", "sqlite:copy.db"])).exits(0);
    }
    assert_eq!(bench.runs(), 2);
}

#[test]
fn a_link_to_the_file_is_the_same_ledger() {
    let bench = Bench::new();
    std::os::unix::fs::symlink("once.db", bench.path("link.db")).unwrap();
    let running = bench.start_held("a");
    let flags = ["--ledger", "sqlite:link.db"];
    let again = ["run", "--key", "a", "--wait", "0s", "--", "sh", "-c", HELD];
    bench.once(&[&flags[..], &again].concat()).exits(4);
    bench.release();
    running.end().exits(0);
    assert!(!bench.path("link.db-live").exists());
    let said = bench.once(&[&["doctor"][..], &flags].concat()).exits(0).out();
    assert!(said.contains("link.db: the same ledger"), "{said}");
}

#[test]
fn a_second_name_of_the_file_is_refused() {
    let bench = Bench::new();
    let running = bench.start_held("a");
    std::fs::hard_link(bench.path("once.db"), bench.path("second.db")).unwrap();
    let probed =
        ["--ledger", "sqlite:second.db", "run", "--key", "a", "--probe", "exit 1", "--", "sh", "-c", HELD];
    let said = bench.once(&probed).exits(12).err();
    assert!(said.contains("has 2 names (hard links)"), "{said}");
    bench.release();
    running.end().exits(0);
    assert_eq!(bench.runs(), 1);
    assert_eq!(bench.once(&["doctor"]).exits(1).out().matches("hard links").count(), 1);
}

#[test]
fn a_file_that_is_mounted_alone_is_refused() {
    let bench = Bench::new();
    bench.once(&counted("a", &[])).exits(0);
    std::fs::create_dir(bench.path("inside")).unwrap();
    bench.write("inside/once.db", "");
    let script = "mount --bind once.db inside/once.db; cd inside; exec $ONCE run --key a -- sh -c 'echo ran >> ../runs'";
    let said = unshared(&bench, &["--mount"], script).exits(12);
    assert!(said.err().contains("Mount its folder instead"), "{}", said.err());
    // Its folder may be mounted.
    let script = "mkdir whole; mount --bind . whole; cd whole; exec $ONCE run --key a -- sh -c 'echo ran >> runs; echo out; echo err >&2'";
    unshared(&bench, &["--mount"], script).exits(0);
    assert_eq!(bench.runs(), 1);
}

#[test]
fn a_live_file_that_is_removed_makes_nobody_take_the_owner_for_dead() {
    for replaced in [false, true] {
        let bench = Bench::new();
        let running = bench.start_held("a");
        std::fs::remove_file(bench.path("once.db-live")).unwrap();
        if replaced {
            bench.write("once.db-live", vec![0; 100]);
        }
        let said =
            bench.once(&["run", "--key", "a", "--probe", "exit 1", "--", "sh", "-c", HELD]).exits(12).err();
        assert!(said.contains("in use with another"), "{said}");
        bench.release();
        running.end();
        assert_eq!(bench.runs(), 1);
    }
}

#[test]
fn a_command_whose_wrapper_was_killed_keeps_the_ledger_marked() {
    let bench = Bench::new();
    bench.start_held("a").kill();
    std::fs::remove_file(bench.path("once.db-live")).unwrap();
    let said =
        bench.once(&["run", "--key", "a", "--probe", "exit 1", "--", "sh", "-c", HELD]).exits(12).err();
    assert!(said.contains("in use with another"), "{said}");
    bench.release();
    eventually("the command has ended", || bench.once(&["ls"]).exit == 0);
    assert_eq!(bench.runs(), 1);
}

#[test]
fn a_process_that_was_stopped_while_it_set_the_ledger_up_is_not_waited_for_for_ever() {
    let bench = Bench::new();
    // As a process has it that was stopped there: the byte is locked, and the file is empty.
    let live = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(bench.path("once.db-live"))
        .unwrap();
    let byte = libc::flock {
        l_type: i16::try_from(libc::F_WRLCK).unwrap(),
        l_whence: i16::try_from(libc::SEEK_SET).unwrap(),
        l_start: 64,
        l_len: 1,
        l_pid: 0,
    };
    fcntl(&live, FcntlArg::F_OFD_SETLK(&byte)).unwrap();
    let begun = Instant::now();
    let said = bench.once(&counted("a", &[])).exits(12).err();
    assert!(said.contains("another process has been setting"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert_eq!(bench.runs(), 0);
    drop(live);
    bench.once(&counted("a", &[])).exits(0);
}

#[test]
fn a_clock_that_runs_ahead_repeats_nothing() {
    let bench = Bench::new();
    let run = ["run", "--keys", "strict", "--", "sh", "-c", COUNTED];
    bench.once(&run).exits(0);
    let script = format!("exec $ONCE run --keys strict -- sh -c '{COUNTED}'");
    // A restored container: its boot clock is days ahead of the one that wrote the ledger.
    unshared(&bench, &["--time", "--boottime", "259200"], &script).exits(0);
    assert_eq!(bench.runs(), 1);
    // And the other way round: the ledger was first opened there.
    let other = Bench::new();
    unshared(&other, &["--time", "--boottime", "259200"], &script).exits(0);
    other.once(&run).exits(0);
    assert_eq!(other.runs(), 1);
}

#[test]
fn a_backup_is_a_ledger() {
    let bench = Bench::new();
    bench.once(&counted("a", &[])).exits(0);
    let running = bench.start_held("b");
    eventually("the second command runs", || bench.runs() == 2);
    assert_snapshot!(bench.once(&["backup", "copy.db", "--dry-run"]).exits(0).out(), @"would_create: the ledger would be copied to copy.db");
    assert!(!bench.path("copy.db").exists());
    let answer = bench.json(&["backup", "copy.db"]);
    assert_eq!(
        (&answer["effect"], &answer["data"]["file"]),
        (&json!("created"), &json!("copy.db")),
        "{answer}"
    );
    assert_eq!(std::fs::metadata(bench.path("copy.db")).unwrap().permissions().mode() & 0o777, 0o600);
    bench.release();
    running.end().exits(0);
    let copy = ["--ledger", "sqlite:copy.db"];
    bench.once(&counted("a", &copy)).exits(0);
    assert_eq!(bench.runs(), 2, "what was done is replayed by the copy");
    let states = bench.json(&[&["ls"][..], &copy].concat())["data"].clone();
    assert_eq!(states[0]["state"], "in_doubt", "whether it ended is not known to the copy: {states}");
}

#[test]
fn a_backup_replaces_only_what_it_may() {
    let bench = Bench::new();
    bench.once(&counted("a", &[])).exits(0);
    bench.write("there", "precious");
    for flags in [&[][..], &["--dry-run"]] {
        let said = bench.once(&[&["backup", "there"][..], flags].concat()).exits(2).err();
        assert!(said.contains("exists (--force replaces it); the backup was not written"), "{said}");
        let said = bench.once(&[&["backup", "once.db", "--force"][..], flags].concat()).exits(2).err();
        assert!(said.contains("is the ledger itself"), "{said}");
    }
    assert_eq!(bench.read("there"), "precious");
    assert_eq!(bench.json(&["backup", "there", "--force"])["effect"], "updated");
    bench.once(&counted("a", &["--ledger", "sqlite:there"])).exits(0);
    assert_eq!(bench.runs(), 1);
    bench.once(&["backup", "nowhere/copy.db"]).exits(1);
    Bench::new().once(&["backup", "copy.db"]).exits(2);
}

#[test]
fn a_ledger_on_a_server_is_backed_up_by_the_server() {
    let bench = Bench::new();
    let url = onceward_testkit::Redis::shared().fresh();
    bench.once(&counted("a", &["--ledger", &url])).exits(0);
    let said = bench.once(&["backup", "copy", "--ledger", &url]).exits(2).err();
    assert!(said.contains("backed up by the server's own tools"), "{said}");
    let said = bench.once(&["gc", "--vacuum", "--ledger", &url]).exits(0).out();
    assert!(said.ends_with("the server manages its own space"), "{said}");
}

#[test]
fn gc_gives_space_back_when_asked() {
    let bench = Bench::new();
    bench.once(&counted("a", &[])).exits(0);
    let answer = bench.json(&["gc", "--vacuum"]);
    assert!(answer["data"]["freed_bytes"].is_u64(), "{answer}");
    assert!(bench.json(&["gc"])["data"]["freed_bytes"].is_null());
}
