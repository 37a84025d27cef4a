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
    Run commands so that a retry never repeats their effect.

    The intent is written to a ledger before the command runs, and its result after. A retry gets the
    stored result, byte for byte, and runs nothing. If there is no way to know whether an effect
    happened, `once` says so instead of guessing.

    Usage: once [OPTIONS] <COMMAND>

    Commands:
      run            Run a command once
      mcp            Guard an MCP server: retried tool calls do not run again
      serve          Serve the ledger over HTTP, with a gateway for REST APIs
      inbox          The webhook inbox: look at events, retry or replay them, and try a source
      ls             List operations, newest first
      show           Show everything recorded about one operation
      wait           Wait until an operation is no longer running
      watch          Follow the operations of a scope, one line for each change
      top            Watch the ledger in a terminal, and settle what is in doubt
      settle         Record what became of an operation in doubt
      verify         Check a reported success again
      cancel         Ask an operation to stop, and report what had already happened
      held           List the operations that are held back, oldest first
      release        Start an operation that is held back, or all whose time has come
      undo           Take back what an operation or a whole scope did
      stop           Stop a scope: nothing in it begins any more, and every intent is accounted for
      resume         Let operations of a stopped scope begin again
      forget         Delete the record of an operation, so that its key can run again
      report         Report what happened in a scope, with everything in doubt first
      verify-report  Check a signed report, without a ledger
      cost           Report what model calls used and what of it was wasted, in tokens and money
      gc             Expire old results and mark abandoned attempts as in doubt
      stats          Count operations by state
      backup         Copy the ledger to a file, even while it is in use
      restored       After a restore from a backup: put in doubt what may have happened since
      export         Write all operations as JSON lines, oldest first
      import         Import the output of `once export` (safe to repeat; resumes where it stopped)
      key            Derive a key and explain it
      doctor         Check the installation and the ledger
      config         Show, check, trust or write the policy
      demo           Demonstrate duplicates without the ledger, and none with it
      completions    Print a completion script
      man            Print the manual, or write one page per command to a folder
      help           Print the help of a command

    Options:
      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    Global options:
          --ledger <URL>
              The ledger: sqlite:PATH, postgres://…, redis://…, redis+sentinel://…, redis+cluster://…
              (with TLS: rediss…), or a running `once serve`: https://…, http://…, unix:PATH [default: a
              file in the user's data folder]

              [env: ONCE_LEDGER]

          --config <FILE>
              The policy file [default: onceward.toml in this folder or the nearest one above it, then
              the user's]

              [env: ONCE_CONFIG=]

          --json
              Print the answer as one JSON object on stdout

    Examples:
      once run --key order-42 -- ./charge.sh 42 100
      once ls --state in_doubt
      once settle order-42 --as done

    Exit codes: 0 done or replayed, 2 invalid input, 4 refused (in progress, held, expired, cancelled,
    stopped, taken back, too many attempts), 5 not found, 6 key reused or wrong state, 10 timeout, 12
    ledger unavailable, 79 in doubt; a failed command's own code is passed on.
    ");
}

#[test]
#[expect(clippy::too_many_lines, reason = "the help is as long as it is")]
fn once_run_help() {
    assert_snapshot!(help(&["run", "--help"]), @r#"
    Run a command once

    Usage: once run [OPTIONS] [--] <COMMAND> [ARGS]...

    Arguments:
      <COMMAND>...
              The command and its arguments; options of `once` come before it

    Options:
          --dry-run
              Show what would happen and change nothing

          --dry-run-args <ARGS>
              With --dry-run: also run the command with these arguments added, to show its own plan

      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    Identity:
          --name <NAME>
              Name of the operation [default: the command's file name]

          --key <KEY>
              Key that identifies the action [default: derived from the name and the inputs]

          --scope <SCOPE>
              Namespace for keys, such as a session, a run or a tenant

              [env: ONCE_SCOPE=]
              [default: default]
              [alias: --session]

          --occurrence <N|LABEL>
              Deliberately repeat the same action: 2, 3, … or any label

          --key-fields <FIELDS>
              Fields of the JSON input that identify the action (comma-separated; `order.id` or
              `/order/id`)

          --volatile <FIELDS>
              Input fields that may differ between a call and its retry

          --input <JSON>
              Include this JSON value in the operation's identity

          --input-file <FILE>
              Include this file's content in the operation's identity

          --env <NAME>
              Include this environment variable in the operation's identity

          --stdin
              Include standard input in the operation's identity, even with --key; it is read
              completely, then passed on

          --ignore <WHAT>
              Exclude from a derived key: the working folder, piped standard input (comma-separated)

              Possible values:
              - folder: The working folder
              - stdin:  Standard input, if it is a pipe or a file

          --keys <RULE>
              Whether the same call without a key is a retry or a new action [default: auto; strict with
              --scope]

              Possible values:
              - auto:   A retry until its answer has been delivered; after that, a new action
              - strict: Always a retry
              - keyed:  A key is required

    Safety:
          --class <CLASS>
              What a call may do about a doubt

              [possible values: read, idempotent, keyed, probed, once]

          --probe <COMMAND>
              Command that checks whether an operation in doubt happened (run with `sh -c`): exit 0 yes,
              exit 10 no, anything else cannot tell

          --probe-no <CODES>
              More exit codes of the probe that mean "no", for probes like grep (comma-separated)

          --quarantine <TIME>
              How long a request may still be in flight after a doubt: a probe's "no" counts only after
              that

          --verify <COMMAND>
              Command that checks a reported success (run with `sh -c`): exit 0 confirmed, exit 10
              refuted, anything else not yet

          --undo <COMMAND>
              Command that takes the effect back (`once undo` runs it with `sh -c`). {data.id} is
              replaced by that field of the command's JSON output, {stdout} by its only line

          --verify-deadline <TIME>
              How long to repeat the check before the answer is "pending"

          --fail-exit <CODES>
              Exit codes with which the command says that it did nothing (comma-separated)

          --doubt-exit <CODES>
              Exit codes that leave the effect in doubt, even if the table of known programs says
              otherwise (comma-separated)

          --effect <EFFECT>
              Effect of a success [default: from the command's JSON answer, otherwise updated]

              [possible values: created, updated, deleted, noop]

          --if-killed <WHAT>
              If `once run` itself is killed and the ledger is on a server: let the command continue, or
              end it

              Possible values:
              - keep: The command continues, and its operation counts as running until it has ended
              - end:  The command is asked to end, and killed 3 s later

              [default: keep]

          --pass-ledger
              Pass the ledger's URL with its password to the command, in ONCE_LEDGER

          --hold <TIME|approve>
              Hold the command back: nothing runs until this time has passed, or until you `once
              release` it (`approve`)

          --again
              Settle a doubt as "did not happen" on your word, which is recorded, and run the command
              again

    Time and tries:
          --timeout <TIME>
              Time limit for the command

          --ttl <TIME>
              How long to replay the result

          --retries <N>
              Retry up to N times when the command definitely had no effect, with exponential back-off

          --attempts <N>
              Maximum number of attempts over the operation's lifetime

          --wait <TIME>
              How long to wait for another caller that runs the same operation

    Output:
          --max-output <BYTES>
              Maximum size of the output stored for replay, in bytes

          --store-command
              Store the command line with the operation and show it in lists (it may contain secrets)

      -q, --quiet
              Print nothing on stderr about a call that succeeded

          --noop-exit <CODE>
              Exit with this code instead of 0 when the result is replayed and nothing was run

          --status-file <FILE>
              Also write the JSON answer to this file

    Global options:
          --ledger <URL>
              The ledger: sqlite:PATH, postgres://…, redis://…, redis+sentinel://…, redis+cluster://…
              (with TLS: rediss…), or a running `once serve`: https://…, http://…, unix:PATH [default: a
              file in the user's data folder]

              [env: ONCE_LEDGER]

          --config <FILE>
              The policy file [default: onceward.toml in this folder or the nearest one above it, then
              the user's]

              [env: ONCE_CONFIG=]

          --json
              Print the answer as one JSON object on stdout

    Examples:
      once run --key order-42 -- ./charge.sh 42 100
      once run --key mail-7 --probe './was-it-sent.sh 7' -- ./send.sh 7
      once run --scope nightly --occurrence "$(date +%F)" -- ./backup.sh
      once run --dry-run --key order-42 -- ./charge.sh 42 100
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
        assert!(text.contains("Examples:\n  once "), "{command} shows no example: {text}");
        assert_eq!(text, help(&["help", command]), "once help {command}");
    }
    for command in ["show", "check", "init", "allow", "deny"] {
        assert!(help(&["config", command, "--help"]).contains("Examples:\n  once config"), "{command}");
    }
    assert_eq!(help(&["help"]), help(&["--help"]));
    assert_eq!(help(&["help", "config", "show"]), help(&["config", "show", "--help"]));
}

#[test]
fn examples_are_commands_that_exist() {
    let bench = Bench::new();
    let text = help(&["help"]);
    let commands =
        text.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    for command in commands.filter_map(|line| line.split_whitespace().next()) {
        let text = help(&["help", command]);
        for example in text.lines().filter(|line| line.starts_with("  once ")) {
            // Its words as a shell splits them, without what is piped or redirected.
            let words = shlex::split(example).unwrap();
            let words: Vec<&str> = words.iter().map(String::as_str).skip(1).collect();
            let end = words.iter().position(|word| ["|", ">"].contains(word)).unwrap_or(words.len());
            // With the help flag nothing runs, and options that do not exist are still refused.
            let before = words.iter().position(|word| *word == "--").unwrap_or(end).min(end);
            let args = [&words[..before], &["--help"]].concat();
            bench.once(&args).exits(0);
        }
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
fn completions_know_values_and_commands() {
    let bench = Bench::new();
    let bash = bench.once(&["completions", "bash"]).exits(0).out();
    for values in [
        "read idempotent keyed probed once",
        "staged running done failed in_doubt cancelled expired",
        "created updated deleted noop",
        "done failed",
    ] {
        assert!(bash.contains(&format!("\"{values}\"")), "{values}");
    }
    let zsh = bench.once(&["completions", "zsh"]).exits(0).out();
    assert!(zsh.contains("_cmdambivalent"), "commands are completed");
    // What is typed behind `--` is a command; before it, an option of `once`.
    let completed = |line: &str| {
        let script = format!(
            "source <(once completions bash); COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _once_with_commands once \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let said = bench.shell(&script).exits(0);
        said.out().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(completed("once run --key a -- printen").contains(&"printenv".to_owned()));
    assert_eq!(completed("once settle x --as d"), ["done"]);
    assert!(completed("once run --stor").contains(&"--store-command".to_owned()));
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
        for section in ["SYNOPSIS", "EXAMPLES", "EXIT STATUS", "ENVIRONMENT", "FILES"] {
            assert!(
                bench.read(page).contains(&format!(".SH \"{section}\""))
                    || bench.read(page).contains(&format!(".SH {section}")),
                "{page} {section}"
            );
        }
    }
    bench.write("file", "");
    bench.once(&["man", "file/man1"]).exits(1);
}
