//! Flags and words that do not exist, do not fit, or stand alone.

use insta::assert_snapshot;

use super::refused;
use crate::common::Bench;

#[test]
fn commands_and_flags() {
    assert_snapshot!(refused(2, &[]), @r"
    error: 'once' requires a subcommand but one was not provided
      [subcommands: run, mcp, serve, inbox, ls, show, wait, watch, top, settle, verify, cancel, held, release, undo, stop, resume, forget, report, verify-report, cost, gc, stats, backup, restored, export, import, key, doctor, config, demo, completions, man, help]

    Usage: once [OPTIONS] <COMMAND>

    For more information, try '--help'.
    ");
    assert_snapshot!(refused(2, &["rum", "--", "true"]), @r"
    error: unrecognized subcommand 'rum'

      tip: some similar subcommands exist: 'run', 'resume'

    Usage: once [OPTIONS] <COMMAND>

    For more information, try '--help'.
    ");
    assert_snapshot!(refused(2, &["run", "--kee", "a", "--", "true"]), @r"
    error: unexpected argument '--kee' found

      tip: a similar argument exists: '--key'
      tip: to pass '--kee' as a value, use '-- --kee'

    Usage: once run [OPTIONS] [--] <COMMAND> [ARGS]...

    For more information, try '--help'.
    ");
    assert_snapshot!(refused(2, &["run"]), @r"
    error: the following required arguments were not provided:
      <COMMAND>...

    Usage: once run [OPTIONS] [--] <COMMAND> [ARGS]...

    For more information, try '--help'.
    ");
    assert_snapshot!(refused(2, &["run", "--key", "a", "--"]), @r"
    error: the following required arguments were not provided:
      <COMMAND>...

    Usage: once run [OPTIONS] [--] <COMMAND> [ARGS]...

    For more information, try '--help'.
    ");
    assert_snapshot!(refused(2, &["run", "--key", "a", "--key", "b", "--", "touch", "ran"]), @r"
    error: the argument '--key <KEY>' cannot be used multiple times

    Usage: once run [OPTIONS] [--] <COMMAND> [ARGS]...

    For more information, try '--help'.
    ");
    assert_snapshot!(refused(2, &["run", "--dry-run-args=-n", "--", "touch", "ran"]), @r"
    error: the following required arguments were not provided:
      --dry-run

    Usage: once run [OPTIONS] [--] <COMMAND> [ARGS]...

    For more information, try '--help'.
    ");
    assert_snapshot!(refused(2, &["ls", "--state", "finished"]), @r"
    error: invalid value 'finished' for '--state <STATES>'
      [possible values: staged, running, done, failed, in_doubt, cancelled, expired]

      tip: a similar value exists: 'failed'

    For more information, try '--help'.
    ");
    assert_snapshot!(refused(2, &["ls", "-n", "0"]), @r"
    error: invalid value '0' for '--limit <LIMIT>': 0 is not in 1..=100000

    For more information, try '--help'.
    ");
    assert_snapshot!(refused(2, &["completions", "tcsh"]), @r"
    error: invalid value 'tcsh' for '<SHELL>'
      [possible values: bash, elvish, fish, powershell, zsh]

      tip: a similar value exists: 'zsh'

    For more information, try '--help'.
    ");
    assert_snapshot!(refused(2, &["config"]), @r"
    error: 'once config' requires a subcommand but one was not provided
      [subcommands: show, check, allow, deny, init, new-key]

    Usage: once config [OPTIONS] <COMMAND>

    For more information, try '--help'.
    ");
}

#[test]
fn times_of_a_listing() {
    assert_snapshot!(refused(2, &["ls", "--since", "yesterday"]), @r#"
    error: invalid value 'yesterday' for '--since <TIME>': "yesterday" is not a time; write a duration such as 2h, or a time such as 2030-01-31T08:00:00Z

    For more information, try '--help'.
    "#);
    assert_snapshot!(refused(2, &["report", "--until", "2030-13-01"]), @r#"
    error: invalid value '2030-13-01' for '--until <TIME>': "2030-13-01" is not a time; write a duration such as 2h, or a time such as 2030-01-31T08:00:00Z

    For more information, try '--help'.
    "#);
    assert_snapshot!(refused(2, &["help", "settel"]), @r"
    error: unrecognized subcommand 'settel'

      tip: some similar subcommands exist: 'serve', 'stats', 'settle'

    Usage: once [OPTIONS] <COMMAND>

    For more information, try '--help'.
    ");
}

#[test]
fn words_of_a_list() {
    assert_snapshot!(refused(2, &["run", "--class", "twice", "--", "touch", "ran"]), @r"
    error: invalid value 'twice' for '--class <CLASS>'
      [possible values: read, idempotent, keyed, probed, once]

    For more information, try '--help'.
    ");
    assert_snapshot!(refused(2, &["run", "--class", "probed", "--", "touch", "ran"]), @"once: INVALID_INPUT the class is probed, but there is no probe; give --probe COMMAND");
    assert_snapshot!(refused(2, &["run", "--effect", "made", "--", "touch", "ran"]), @r"
    error: invalid value 'made' for '--effect <EFFECT>'
      [possible values: created, updated, deleted, noop]

    For more information, try '--help'.
    ");
    assert_snapshot!(refused(2, &["run", "--effect", "would_create", "--", "touch", "ran"]), @r"
    error: invalid value 'would_create' for '--effect <EFFECT>'
      [possible values: created, updated, deleted, noop]

    For more information, try '--help'.
    ");
}

#[test]
fn times() {
    assert_snapshot!(refused(2, &["run", "--timeout", "soon", "--", "touch", "ran"]), @r#"
    error: invalid value 'soon' for '--timeout <TIME>': "soon" is not a duration (expected number at 0); write 500ms, 15s, 24h or 30d

    For more information, try '--help'.
    "#);
    assert_snapshot!(refused(2, &["run", "--timeout", "5", "--", "touch", "ran"]), @r#"
    error: invalid value '5' for '--timeout <TIME>': "5" is not a duration (time unit needed, for example 5sec or 5ms); write 500ms, 15s, 24h or 30d

    For more information, try '--help'.
    "#);
    assert_snapshot!(refused(2, &["run", "--timeout=-5s", "--", "touch", "ran"]), @r#"
    error: invalid value '-5s' for '--timeout <TIME>': "-5s" is not a duration (expected number at 0); write 500ms, 15s, 24h or 30d

    For more information, try '--help'.
    "#);
    assert_snapshot!(refused(2, &["run", "--ttl", "1 fortnight", "--", "touch", "ran"]), @r#"
    error: invalid value '1 fortnight' for '--ttl <TIME>': "1 fortnight" is not a duration (unknown time unit "fortnight", supported units: ns, us/µs, ms, sec, min, hours, days, weeks, months, years (and few variations)); write 500ms, 15s, 24h or 30d

    For more information, try '--help'.
    "#);
    assert_snapshot!(refused(2, &["run", "--ttl", "0s", "--", "touch", "ran"]), @"once: INVALID_INPUT retention is 0, so no retry could be recognised");
    assert_snapshot!(refused(2, &["run", "--ttl", "101years", "--", "touch", "ran"]), @r#"
    error: invalid value '101years' for '--ttl <TIME>': "101years" is not a duration (it is longer than a hundred years); write 500ms, 15s, 24h or 30d

    For more information, try '--help'.
    "#);
    assert_snapshot!(refused(2, &["run", "--wait", "", "--", "touch", "ran"]), @r#"
    error: invalid value '' for '--wait <TIME>': "" is not a duration (value was empty); write 500ms, 15s, 24h or 30d

    For more information, try '--help'.
    "#);
    assert_snapshot!(refused(2, &["run", "--verify-deadline", "1x", "--", "touch", "ran"]), @r#"
    error: invalid value '1x' for '--verify-deadline <TIME>': "1x" is not a duration (unknown time unit "x", supported units: ns, us/µs, ms, sec, min, hours, days, weeks, months, years (and few variations)); write 500ms, 15s, 24h or 30d

    For more information, try '--help'.
    "#);
}

#[test]
fn numbers() {
    assert_snapshot!(refused(2, &["run", "--doubt-exit", "300", "--", "touch", "ran"]), @r#"
    error: invalid value '300' for '--doubt-exit <CODES>': "300" is not an exit code from 1 to 255

    For more information, try '--help'.
    "#);
    assert_snapshot!(refused(2, &["run", "--doubt-exit", "0", "--", "touch", "ran"]), @r#"
    error: invalid value '0' for '--doubt-exit <CODES>': "0" is not an exit code from 1 to 255

    For more information, try '--help'.
    "#);
    assert_snapshot!(refused(2, &["run", "--doubt-exit", "5,maybe", "--", "touch", "ran"]), @r#"
    error: invalid value 'maybe' for '--doubt-exit <CODES>': "maybe" is not an exit code from 1 to 255

    For more information, try '--help'.
    "#);
    assert_snapshot!(refused(2, &["run", "--attempts", "0", "--", "touch", "ran"]), @"once: INVALID_INPUT attempts is 0, so nothing could ever run");
    assert_snapshot!(refused(2, &["run", "--retries", "many", "--", "touch", "ran"]), @r#"
    error: invalid value 'many' for '--retries <N>': "many" is not a number; write 3

    For more information, try '--help'.
    "#);
    assert_snapshot!(refused(2, &["run", "--max-output", "1MB", "--", "touch", "ran"]), @r#"
    error: invalid value '1MB' for '--max-output <BYTES>': "1MB" is not a number of bytes; write 1048576 for a MiB

    For more information, try '--help'.
    "#);
}

#[test]
fn a_status_file_that_cannot_be_written_runs_nothing() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("folder")).unwrap();
    for file in ["no/such/status", "folder", ""] {
        let run = ["run", "--key", "a", "--status-file", file, "--", "touch", "ran"];
        let said = bench.once(&run).exits(2).err();
        assert!(said.contains("INVALID_INPUT") || file.is_empty(), "{file}: {said}");
        assert!(!said.contains("warning") && !bench.path("ran").exists(), "{file}: {said}");
    }
    assert!(!bench.path("once.db").exists(), "no ledger is left behind");
    // The file appears with the answer in it, and anything but a regular file is written to once.
    let absent = ["run", "--key", "b", "--status-file", "status", "--", "test", "!", "-e", "status"];
    bench.once(&absent).exits(0);
    assert!(bench.read("status").contains("\"updated\""), "{}", bench.read("status"));
    let piped = "mkfifo pipe; cat pipe > copy & once run --key c --status-file pipe -- true; wait";
    bench.shell(piped).exits(0);
    assert!(bench.read("copy").contains("\"updated\""), "{}", bench.read("copy"));
}
