//! Places where no ledger can be, and files that are none.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use insta::assert_snapshot;

use super::{refused, refused_in, unchanged, without_folder};
use crate::common::{Bench, Said};

const RUN: [&str; 6] = ["run", "--key", "new", "--", "touch", "ran"];

#[test]
fn urls() {
    assert_snapshot!(refused(2, &["run", "--ledger", "mysql://me:secret@db", "--", "touch", "ran"]), @r#"once: INVALID_INPUT the ledger "mysql:…" is not understood; write sqlite:PATH, postgres://…, redis://…, redis+sentinel://…, redis+cluster://… (with TLS: rediss…), https://…, http://… or unix:PATH"#);
    assert_snapshot!(refused(2, &["run", "--ledger", "once.db", "--", "touch", "ran"]), @r#"once: INVALID_INPUT the ledger "once.db" is not understood; write sqlite:PATH, postgres://…, redis://…, redis+sentinel://…, redis+cluster://… (with TLS: rediss…), https://…, http://… or unix:PATH"#);
    assert_snapshot!(refused(2, &["run", "--ledger", "", "--", "touch", "ran"]), @r#"once: INVALID_INPUT the ledger "" is not understood; write sqlite:PATH, postgres://…, redis://…, redis+sentinel://…, redis+cluster://… (with TLS: rediss…), https://…, http://… or unix:PATH"#);
    assert_snapshot!(refused(2, &["run", "--ledger", "sqlite:", "--", "touch", "ran"]), @"once: INVALID_INPUT the ledger URL is not valid: it names no file; write sqlite:PATH");
    assert_snapshot!(refused(2, &["run", "--ledger", "sqlite:once.db?sync=maybe", "--", "touch", "ran"]), @r#"once: INVALID_INPUT the ledger URL is not valid: "sync=maybe" is not understood; sync=full|normal|off, checkpoint=PAGES, create=yes|no and owner=any are"#);
    assert_snapshot!(refused(2, &["run", "--ledger", "sqlite:once.db?checkpoint=often", "--", "touch", "ran"]), @r#"once: INVALID_INPUT the ledger URL is not valid: checkpoint="often" is not a number of pages"#);
}

#[test]
fn places() {
    let bench = Bench::new();
    bench.write("file", "text\n");
    std::fs::create_dir(bench.path("folder")).unwrap();
    let run_at = |ledger: &str| refused_in(&bench, 12, &["run", "--ledger", ledger, "--", "touch", "ran"]);
    assert_snapshot!(run_at("sqlite:no/such/folder/once.db"), @r"
    once: LEDGER_UNAVAILABLE the ledger cannot be used: there is no folder no/such/folder; create it, or give another path; nothing was run
    once: happened: unknown, ran: no, retryable: no
    once: next: make the ledger reachable, then make the same call again:
    once:   once --ledger sqlite:…/once.db doctor
    ");
    assert_snapshot!(run_at("sqlite:file/once.db"), @r"
    once: LEDGER_UNAVAILABLE the ledger cannot be used: there is no folder file; create it, or give another path; nothing was run
    once: happened: unknown, ran: no, retryable: no
    once: next: make the ledger reachable, then make the same call again:
    once:   once --ledger sqlite:…/once.db doctor
    ");
    assert_snapshot!(run_at("sqlite:folder"), @r"
    once: LEDGER_UNAVAILABLE the ledger cannot be used: folder is a folder; write sqlite:…/once.db for a file in it; nothing was run
    once: happened: unknown, ran: no, retryable: no
    once: next: make the ledger reachable, then make the same call again:
    once:   once --ledger sqlite:folder doctor
    ");
    assert_snapshot!(run_at("sqlite:/proc/once.db"), @r"
    once: LEDGER_UNAVAILABLE the ledger cannot be used: cannot create /proc/once.db: No such file or directory (os error 2); nothing was run
    once: happened: unknown, ran: no, retryable: no
    once: next: make the ledger reachable, then make the same call again:
    once:   once --ledger sqlite:…/once.db doctor
    ");
}

#[test]
fn a_text_is_no_ledger() {
    let bench = Bench::new();
    bench.write("once.db", "Dear diary, today nothing happened, and nobody noticed. ".repeat(10));
    assert_snapshot!(refused_in(&bench, 12, &RUN), @r"
    once: LEDGER_UNAVAILABLE the ledger cannot be used: once.db is not a ledger; give another path, or move it away; nothing was run
    once: happened: unknown, ran: no, retryable: no
    once: next: make the ledger reachable, then make the same call again:
    once:   once --ledger sqlite:…/once.db doctor
    ");
    assert_snapshot!(refused_in(&bench, 12, &["ls"]), @r"
    once: LEDGER_UNAVAILABLE the ledger cannot be used: once.db is not a ledger; give another path, or move it away; nothing was run
    once: next: make the ledger reachable, then make the same call again:
    once:   once --ledger sqlite:…/once.db doctor
    ");
}

#[test]
fn another_programs_database_is_no_ledger() {
    let bench = Bench::new();
    bench.with_foreign_database();
    assert_snapshot!(refused_in(&bench, 12, &RUN), @r"
    once: LEDGER_UNAVAILABLE the ledger cannot be used: once.db is a SQLite database of another program; give the ledger a file of its own; nothing was run
    once: happened: unknown, ran: no, retryable: no
    once: next: make the ledger reachable, then make the same call again:
    once:   once --ledger sqlite:…/once.db doctor
    ");
}

#[test]
fn a_newer_ledger_is_not_understood() {
    let bench = Bench::new();
    bench.with_newer_ledger();
    assert_snapshot!(refused_in(&bench, 12, &RUN), @r"
    once: LEDGER_UNAVAILABLE the ledger cannot be used: once.db was written by another version of Onceward (schema 99, this version has 4). Use that version; or take its records over: `once export` there, `once import` here into a new ledger; nothing was run
    once: happened: unknown, ran: no, retryable: no
    once: next: make the ledger reachable, then make the same call again:
    once:   once --ledger sqlite:…/once.db doctor
    ");
    assert_snapshot!(refused_in(&bench, 12, &["gc"]), @r"
    once: LEDGER_UNAVAILABLE the ledger cannot be used: once.db was written by another version of Onceward (schema 99, this version has 4). Use that version; or take its records over: `once export` there, `once import` here into a new ledger; nothing was run
    once: next: make the ledger reachable, then make the same call again:
    once:   once --ledger sqlite:…/once.db doctor
    ");
}

/// The `-live` file says which ledger was there, and a damaged file is not that ledger.
#[track_caller]
fn is_not_the_ledger(bench: &Bench) {
    for args in [&RUN[..], &["ls"], &["export"]] {
        let said = refused_in(bench, 12, args);
        assert!(said.contains("LEDGER_REPLACED") && said.contains("malformed"), "{args:?}: {said}");
        assert!(said.contains("once restored"), "{args:?}: {said}");
    }
}

#[test]
fn a_damaged_ledger_runs_nothing() {
    let bench = Bench::new();
    is_not_the_ledger(bench.with_long_ledger().damage(2..10_000));
}

#[test]
fn half_a_ledger_runs_nothing() {
    let bench = Bench::new();
    bench.with_long_ledger();
    let file = std::fs::OpenOptions::new().write(true).open(bench.path("once.db")).unwrap();
    file.set_len(3 * 4096 + 100).unwrap();
    is_not_the_ledger(&bench);
}

#[test]
fn only_a_run_makes_a_ledger() {
    let id = format!("op_{}", "a".repeat(32));
    assert_snapshot!(refused(2, &["ls"]), @"once: INVALID_INPUT there is no ledger at once.db yet; `once run` makes one");
    for command in ["ls", "report", "cost", "gc", "stats", "export"] {
        refused(2, &[command]);
    }
    for command in ["show", "wait", "verify", "cancel", "forget"] {
        refused(2, &[command, &id]);
    }
    refused(2, &["settle", &id, "--as", "done"]);
}

/// Runs `once` as a user whom permissions bind: a test may run as one whom they do not.
fn as_nobody(bench: &Bench, args: &[&str]) -> Said {
    let once = bench.command(args);
    if std::fs::metadata(bench.path("")).unwrap().uid() != 0 {
        return bench.once(args);
    }
    // Where the build is may be closed to others, so they get a copy.
    let copy = tempfile::tempdir().unwrap();
    std::fs::set_permissions(copy.path(), PermissionsExt::from_mode(0o755)).unwrap();
    // Not copied by this process: what another test starts meanwhile would hold it open for writing.
    let copied =
        std::process::Command::new("cp").arg(once.get_program()).arg(copy.path().join("once")).status();
    assert!(copied.unwrap().success());
    let mut command = std::process::Command::new("setpriv");
    command
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"])
        .arg(copy.path().join("once"));
    command.args(args).current_dir(once.get_current_dir().unwrap()).env_clear();
    command.envs(once.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.output().unwrap().into()
}

#[test]
fn a_folder_that_cannot_be_written() {
    let bench = Bench::new();
    std::fs::set_permissions(bench.path(""), PermissionsExt::from_mode(0o555)).unwrap();
    let before = bench.listing();
    let said = as_nobody(&bench, &RUN).exits(12);
    assert_snapshot!(without_folder(&bench, &said.err()), @r"
    once: LEDGER_UNAVAILABLE the ledger cannot be used: cannot create once.db: Permission denied (os error 13); nothing was run
    once: happened: unknown, ran: no, retryable: no
    once: next: make the ledger reachable, then make the same call again:
    once:   once --ledger sqlite:…/once.db doctor
    ");
    unchanged(&bench, &before);
}

#[test]
fn a_ledger_that_cannot_be_written() {
    let bench = Bench::new();
    bench.with_done();
    for name in ["once.db", "once.db-live"] {
        std::fs::set_permissions(bench.path(name), PermissionsExt::from_mode(0o444)).unwrap();
    }
    std::fs::set_permissions(bench.path(""), PermissionsExt::from_mode(0o555)).unwrap();
    let before = bench.listing();
    let said = as_nobody(&bench, &RUN).exits(12);
    assert_snapshot!(without_folder(&bench, &said.err()), @r"
    once: LEDGER_UNAVAILABLE the ledger cannot be used: cannot open once.db-live: Permission denied (os error 13); nothing was run
    once: happened: unknown, ran: no, retryable: no
    once: next: make the ledger reachable, then make the same call again:
    once:   once --ledger sqlite:…/once.db doctor
    ");
    unchanged(&bench, &before);
}

#[test]
fn an_epoch_that_leaves_no_room_for_the_next_is_refused() {
    let bench = Bench::new();
    bench.once(&["run", "--key", "a", "--", "true"]).exits(0);
    let identity = || {
        let said = bench.once(&["doctor"]).exits(0).out();
        said.lines().find(|line| line.contains("epoch ")).unwrap().to_owned()
    };
    let before = identity();
    for epoch in [u64::MAX, u64::MAX - 1, 1 << 53] {
        for flags in [&[][..], &["--dry-run"], &["--json"]] {
            let epoch = epoch.to_string();
            let said = bench.once(&[&["restored", "--at", "1h", "--epoch", &epoch], flags].concat()).exits(2);
            let all = format!("{}{}", said.out(), said.err());
            assert!(all.contains(&format!("the epoch {epoch} is too large")), "{all}");
        }
    }
    assert_eq!(identity(), before, "nothing has changed");
    let largest = ((1_u64 << 53) - 1).to_string();
    bench.once(&["restored", "--at", "1h", "--epoch", &largest]).exits(0);
    let said = bench.once(&["restored", "--at", "1h"]).exits(2).err();
    assert!(said.contains("is too large"), "{said}");
}
