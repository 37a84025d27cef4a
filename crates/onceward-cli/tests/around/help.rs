//! Help, versions, completions and manual pages: all made from one definition.

use std::process::Stdio;

use insta::assert_snapshot;

use crate::common::Bench;

/// Help for a terminal of one width, with nothing of the environment in it.
fn help(args: &[&str]) -> String {
    let bench = Bench::new();
    let mut command = bench.command(args);
    let output = command.env_remove("ONCE_LEDGER").env("COLUMNS", "100").output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

#[test]
fn once_help() {
    assert_snapshot!(help(&["--help"]), @r"
    Agents retry; the world must change once.

    Runs commands so that a retry never repeats their effect: the intent is written down first, the
    result is replayed to every retry, and what nobody can know is said to be in doubt, never guessed.

    Usage: once [OPTIONS] <COMMAND>

    Commands:
      run          Run a command once
      mcp          Put an MCP server behind the ledger: each tool is called once
      ls           List operations, newest first
      show         Show one operation with all that is known of it
      wait         Wait until an operation is no longer running
      settle       Say what became of an operation in doubt
      verify       Check a reported success again
      cancel       Ask an operation to stop; says what had already happened
      forget       Delete the record of an operation: its key can run again
      report       What a scope really did: done, in doubt, cancelled, replayed
      gc           Expire what is due and write down what is in doubt
      stats        Count operations by state
      backup       Copy the ledger to a file, while others may go on using it
      export       Write all operations as JSON lines, oldest first
      import       Import an export. Safe to repeat; resumes where it stopped
      key          Derive a key and explain it
      doctor       Look the installation and the ledger over
      config       Show or write the policy
      demo         See it work: duplicates without the ledger, then none with it
      completions  Print a completion script
      man          Print or write the manual pages

    Options:
      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    Everywhere:
          --ledger <URL>
              The ledger: sqlite:PATH, postgres://…, redis://…, rediss://… or redis+cluster://…
              [default: a file in the user's data folder]

              [env: ONCE_LEDGER=]

          --config <FILE>
              The policy file [default: ./onceward.toml, then the user's configuration folder]

              [env: ONCE_CONFIG=]

          --json
              Answer with one JSON object on stdout

    Exit codes: 0 done or replayed, 2 wrong input, 4 refused (in progress, expired, cancelled, budget),
    5 not found, 6 key reused, 10 timeout, 12 ledger unavailable, 79 in doubt; a failed command's own
    code is passed on.
    ");
}

#[test]
fn once_run_help() {
    assert_snapshot!(help(&["run", "--help"]), @r#"
    Run a command once

    Usage: once run [OPTIONS] -- <COMMAND>...

    Arguments:
      <COMMAND>...  The command and its arguments, after `--`

    Options:
          --dry-run              Say what would happen and change nothing
          --dry-run-args <ARGS>  With --dry-run: also run the command with these arguments added, for
                                 its own plan
      -h, --help                 Print help
      -V, --version              Print version

    Identity:
          --name <NAME>           The operation's name [default: the command's]
          --key <KEY>             The key; without one it is derived from the name and the inputs
          --scope <SCOPE>         Who shares keys: a session, a run, a tenant [env: ONCE_SCOPE=]
                                  [default: default] [alias: --session]
          --occurrence <N|LABEL>  The same action is wanted again: 2, 3, … or any label
          --key-fields <FIELDS>   Fields of the JSON input that identify the action (comma-separated;
                                  `order.id` or `/order/id`)
          --volatile <FIELDS>     Input fields that may differ between a call and its retry
          --input <JSON>          A JSON input that belongs to the operation
          --input-file <FILE>     A file that belongs to the operation: its content, not its name
          --env <NAME>            An environment variable that belongs to the operation
          --stdin                 Standard input belongs to the operation: it is read whole, then passed
                                  on

    Safety:
          --class <CLASS>           What may be done when it is in doubt: read, idempotent, keyed,
                                    probed, once
          --probe <COMMAND>         Tells whether an operation in doubt happened, for `sh -c`: exit 0
                                    yes, 1 no, else cannot tell
          --verify <COMMAND>        Checks a reported success, for `sh -c`: exit 0 confirmed, 1 refuted,
                                    else not yet
          --verify-deadline <TIME>  How long the check is asked again before the answer is "pending"
          --doubt-exit <CODES>      Exit codes after which nobody can say what the command did
                                    (comma-separated)
          --effect <EFFECT>         What a success changes: created, updated, deleted, noop [default:
                                    the command's own JSON answer, else updated]

    Time and tries:
          --timeout <TIME>  How long the command may take
          --wait <TIME>     How long to wait for another caller that runs the same operation
          --ttl <TIME>      How long the result is replayed
          --retries <N>     How often to try again after a certain failure, with growing pauses
          --attempts <N>    The retry budget: how many attempts the operation may have in its life

    Output:
          --max-output <BYTES>  How much output is kept for replay, in bytes

    Everywhere:
          --ledger <URL>   The ledger: sqlite:PATH, postgres://…, redis://…, rediss://… or
                           redis+cluster://… [default: a file in the user's data folder] [env:
                           ONCE_LEDGER=]
          --config <FILE>  The policy file [default: ./onceward.toml, then the user's configuration
                           folder] [env: ONCE_CONFIG=]
          --json           Answer with one JSON object on stdout
    "#);
}

#[test]
fn every_command_has_help() {
    let text = help(&["-h"]);
    let commands: Vec<&str> = text
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(commands.len() >= 18, "{commands:?}");
    for command in commands {
        let text = help(&[command, "--help"]);
        assert!(text.contains("Usage: once"), "{command}: {text}");
    }
}

#[test]
fn the_version_is_the_packages() {
    assert_eq!(help(&["--version"]), format!("once {}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_for_every_shell() {
    let bench = Bench::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let said = bench.once(&["completions", shell]).exits(0);
        let script = said.out();
        assert!(
            script.contains("once") && script.contains("settle") && script.contains("key-fields"),
            "{shell}"
        );
    }
    assert!(bench.listing().is_empty());
}

#[test]
fn a_reader_that_has_enough_is_no_error() {
    let bench = Bench::new();
    bench.with_done();
    for args in [&["completions", "bash"][..], &["man"], &["ls"], &["--help"], &["config", "show"]] {
        let mut process = bench.command(args).stdout(Stdio::piped()).spawn().unwrap();
        drop(process.stdout.take());
        let output = process.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!said.contains("panicked"), "{args:?}: {said}");
        assert!(output.status.success(), "{args:?}: {said}");
    }
}

#[test]
fn manual_pages() {
    let bench = Bench::new();
    let page = bench.once(&["man"]).exits(0).out();
    assert!(page.contains(".TH once 1"), "{page}");
    bench.once(&["man", "pages/man1"]).exits(0);
    let names: Vec<String> = bench.listing().into_keys().map(|path| path.display().to_string()).collect();
    for page in ["pages/man1/once.1", "pages/man1/once-run.1", "pages/man1/once-settle.1"] {
        assert!(names.contains(&page.to_owned()), "{names:?}");
        assert!(bench.read(page).contains("SYNOPSIS"));
    }
    bench.write("file", "");
    bench.once(&["man", "file/man1"]).exits(1);
}
