//! The command line. The doc comments are the help.

mod args;
mod identity;
mod values;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand, ValueHint};

use crate::answer;
use crate::commands;
pub(crate) use args::{
    BackupArgs, CancelArgs, ConfigCommand, CostArgs, DemoArgs, DryRunArgs, ExportArgs, ForgetArgs, GcArgs,
    Global, HeaderArgs, HeldArgs, ImportArgs, KeyArgs, ListArgs, OperationArg, ReleaseArgs, ReportArgs,
    RestoredArgs, ResumeArgs, SettleArgs, ShowArgs, StopArgs, UndoArgs, VerifyArgs, VerifyReportArgs,
    WaitArgs,
};
pub(crate) use identity::{IdentityArgs, Ignored};
pub(crate) use values::{IfKilled, SettleAs, bytes, class, count, effect, exit_code, hold, span};

/// The exit codes and what each means, for the help and the manual.
pub(crate) const EXIT_CODES: [(&str, &str); 9] = [
    ("0", "Done, now or earlier. A retry gets the stored result."),
    ("2", "Invalid input. Nothing was run."),
    ("4", "Refused: in progress, held back, expired, cancelled, stopped, taken back, or too many attempts."),
    ("5", "No such operation."),
    ("6", "The key was used for a different action, or the operation's state does not allow it."),
    ("10", "Timed out. The command may have taken effect."),
    ("12", "The ledger cannot be used. Nothing was run."),
    ("79", "In doubt: the command may or may not have taken effect. Check, then `once settle`."),
    ("other", "The command failed without effect; its own exit code is passed on, or 1."),
];

/// Run commands so that a retry never repeats their effect.
///
/// The intent is written to a ledger before the command runs, and its result after. A retry gets the stored result,
/// byte for byte, and runs nothing. If there is no way to know whether an effect happened, `once` says so instead of
/// guessing.
#[derive(Debug, Parser)]
#[command(
    name = "once",
    version,
    propagate_version = true,
    max_term_width = 110,
    disable_help_subcommand = true
)]
#[command(after_help = "Examples:
  once run --key order-42 -- ./charge.sh 42 100
  once ls --state in_doubt
  once settle order-42 --as done

Exit codes: 0 done or replayed, 2 invalid input, 4 refused (in progress, held, expired, cancelled, stopped, taken \
back, too many attempts), 5 not found, 6 key reused or wrong state, 10 timeout, 12 ledger unavailable, 79 in doubt; \
a failed command's own code is passed on.")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command once
    #[command(
        override_usage = "once run [OPTIONS] [--] <COMMAND> [ARGS]...",
        after_help = "Examples:
  once run --key order-42 -- ./charge.sh 42 100
  once run --key mail-7 --probe './was-it-sent.sh 7' -- ./send.sh 7
  once run --scope nightly --occurrence \"$(date +%F)\" -- ./backup.sh
  once run --dry-run --key order-42 -- ./charge.sh 42 100"
    )]
    Run(Box<commands::run::RunArgs>),
    /// Guard an MCP server: retried tool calls do not run again
    #[command(after_help = "Examples:
  once mcp -- npx some-mcp-server
  once mcp --explain -- npx some-mcp-server
  once mcp init -- npx some-mcp-server")]
    Mcp(Box<commands::mcp::McpArgs>),
    /// Serve the ledger over HTTP, with a gateway for REST APIs
    #[command(after_help = "Examples:
  once serve
  once serve --socket /run/user/1000/once.sock
  once serve token acme
  once --ledger postgres://localhost/once serve --config onceward.toml")]
    Serve(Box<commands::serve::ServeArgs>),
    /// The webhook inbox: look at events, retry or replay them, and try a source
    #[command(after_help = "Examples:
  once inbox try stripe
  once inbox ls stripe --progress dead,in_doubt
  once inbox retry evt_1NG8Du2eZvKYlo2C")]
    Inbox(Box<commands::inbox::InboxArgs>),
    /// List operations, newest first
    #[command(after_help = "Examples:
  once ls --state in_doubt,failed
  once ls --key order-42
  once ls --since 2h --jsonl | jq -r .id")]
    Ls(ListArgs),
    /// Show everything recorded about one operation
    #[command(after_help = "Examples:
  once show order-42
  once show op_l5f
  once show order-42 --output")]
    Show(ShowArgs),
    /// Wait until an operation is no longer running
    #[command(after_help = "Examples:
  once wait order-42
  once wait order-42 --timeout 5m --output")]
    Wait(WaitArgs),
    /// Follow the operations of a scope, one line for each change
    #[command(after_help = "Examples:
  once watch nightly
  once watch nightly --until-idle 30s
  once watch nightly --jsonl | jq -r .state")]
    Watch(commands::watch::WatchArgs),
    /// Watch the ledger in a terminal, and settle what is in doubt
    #[cfg(feature = "top")]
    #[command(after_help = "Examples:
  once top
  once top --scope nightly
  once top --json")]
    Top(commands::top::TopArgs),
    /// Record what became of an operation in doubt
    #[command(
        override_usage = "once settle <OPERATION> --as <done|failed> [--note <TEXT>] [--data <JSON>]
       once settle <OPERATION> --probe [<COMMAND>]",
        after_help = "Check first whether it happened.

Examples:
  once settle order-42 --as done --note 'seen on the statement'
  once settle order-42 --as failed
  once settle order-42 --probe './was-it-charged.sh 42'"
    )]
    Settle(SettleArgs),
    /// Check a reported success again
    #[command(after_help = "Examples:
  once verify order-42
  once verify order-42 --check './is-it-paid.sh 42'")]
    Verify(VerifyArgs),
    /// Ask an operation to stop, and report what had already happened
    #[command(after_help = "Examples:
  once cancel order-42 --note 'the invoice is wrong'
  once cancel order-42 --dry-run")]
    Cancel(CancelArgs),
    /// List the operations that are held back, oldest first
    #[command(after_help = "Examples:
  once held
  once held --scope nightly --json")]
    Held(HeldArgs),
    /// Start an operation that is held back, or all whose time has come
    #[command(
        override_usage = "once release <OPERATION> [--note <TEXT>] [--here] [--dry-run]
       once release --due [--scope <SCOPE>] [--trust-commands] [--dry-run]",
        after_help = "A command that `once run` held runs now, in its folder, as `once run` would run it; `once held`
shows it first. --due runs only the commands for which your policy says release = \"auto\", unless you add
--trust-commands.

Examples:
  once release order-42
  once release order-42 --dry-run
  once release --due"
    )]
    Release(ReleaseArgs),
    /// Take back what an operation or a whole scope did
    #[command(
        override_usage = "once undo <OPERATION> [--undo <COMMAND>] [--stored] [--dry-run]
       once undo --scope <SCOPE> [--since <OPERATION>] [--stored] [--dry-run]",
        after_help = "Compensations run in the reverse order of completion, each at most once. What is in doubt is left
alone unless a probe can settle it, and what has no compensation is named as standing.

Examples:
  once undo order-42 --dry-run
  once undo order-42 --undo 'refund {data.id}'
  once undo --scope trip-7 --stored"
    )]
    Undo(UndoArgs),
    /// Stop a scope: nothing in it begins any more, and every intent is accounted for
    #[command(
        after_help = "Held operations are cancelled. Calls in the scope get STOPPED (exit 4); results are replayed.

Examples:
  once stop nightly
  once stop nightly --wait 1m --note 'wrong customer list'
  once stop nightly --dry-run"
    )]
    Stop(StopArgs),
    /// Let operations of a stopped scope begin again
    #[command(after_help = "Examples:
  once resume nightly --note 'the list is corrected'
  once resume nightly --dry-run")]
    Resume(ResumeArgs),
    /// Delete the record of an operation, so that its key can run again
    #[command(after_help = "Examples:
  once forget order-42 --dry-run
  once forget order-42 --force")]
    Forget(ForgetArgs),
    /// Report what happened in a scope, with everything in doubt first
    #[command(after_help = "Examples:
  once report
  once report --scope nightly --since 24h
  once report --scope nightly --html > nightly.html
  once report --scope nightly --json")]
    Report(ReportArgs),
    /// Check a signed report, without a ledger
    #[command(after_help = "Examples:
  once verify-report run-7.json
  once verify-report run-7.json --key public.pem")]
    VerifyReport(VerifyReportArgs),
    /// Report what model calls used and what of it was wasted, in tokens and money
    #[command(after_help = "Examples:
  once cost
  once cost --scope nightly --since 24h
  once cost --prices prices.toml --json")]
    Cost(CostArgs),
    /// Expire old results and mark abandoned attempts as in doubt
    #[command(after_help = "Examples:
  once gc --dry-run
  once gc --vacuum")]
    Gc(GcArgs),
    /// Count operations by state
    #[command(after_help = "Examples:
  once stats")]
    Stats,
    /// Copy the ledger to a file, even while it is in use
    #[command(after_help = "Examples:
  once backup once-copy.db
  once backup once-copy.db --force")]
    Backup(BackupArgs),
    /// After a restore from a backup: put in doubt what may have happened since
    #[command(
        override_usage = "once restored --at <TIME> [--for <TIME>] [--epoch <N>] [--dry-run]
       once restored --lift [--dry-run]",
        after_help = "Programs that have the ledger open stop with LEDGER_REPLACED and must be started again.

Examples:
  once restored --at 2030-01-31T08:00:00Z
  once restored --at 3h --for 7d
  once restored --lift"
    )]
    Restored(RestoredArgs),
    /// Write all operations as JSON lines, oldest first
    #[command(after_help = "Examples:
  once export > ledger.jsonl
  once export --scope nightly --no-bodies
  once export --sealed > ledger.jsonl")]
    Export(ExportArgs),
    /// Import the output of `once export` (safe to repeat; resumes where it stopped)
    #[command(after_help = "Examples:
  once import ledger.jsonl
  once import --ledger postgres://localhost/once --secret-file secret ledger.jsonl")]
    Import(ImportArgs),
    /// Derive a key and explain it
    #[command(
        override_usage = "once key [OPTIONS] [--] [COMMAND] [ARGS]...",
        after_help = "Examples:
  once key -- ./charge.sh 42 100
  once key --name charge --input '{\"order\": 42}' --key-fields order"
    )]
    Key(KeyArgs),
    /// Check the installation and the ledger
    #[command(after_help = "Examples:
  once doctor")]
    Doctor,
    /// Show, check, trust or write the policy
    #[command(
        subcommand,
        after_help = "Examples:
  once config show charge
  once config check
  once config allow
  once config init
  once config new-key once.key"
    )]
    Config(ConfigCommand),
    /// Demonstrate duplicates without the ledger, and none with it
    #[command(after_help = "Examples:
  once demo
  once demo --llm")]
    Demo(DemoArgs),
    /// Print a completion script
    #[command(after_help = "Examples:
  once completions bash > ~/.local/share/bash-completion/completions/once
  once completions zsh > ~/.zfunc/_once")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual, or write one page per command to a folder
    #[command(after_help = "Examples:
  once man | man -l -
  once man ~/.local/share/man/man1")]
    Man {
        /// Write one page per command to this folder instead
        #[arg(value_name = "FOLDER", value_hint = ValueHint::DirPath)]
        folder: Option<std::path::PathBuf>,
    },
    /// Print the help of a command
    #[command(after_help = "Examples:
  once help
  once help settle")]
    Help {
        /// The command
        #[arg(value_name = "COMMAND")]
        command: Vec<String>,
    },
}

/// Reads the command line. Every mistake is exit 2 and changes nothing.
pub(crate) fn parse() -> Result<Cli, ExitCode> {
    Cli::try_parse().map_err(|error| {
        let json =
            std::env::args_os().take_while(|argument| argument != "--").any(|argument| argument == "--json");
        print_parser_message(error, json)
    })
}

/// Prints the parser's message. Requested help goes to stdout, errors to stderr.
pub(crate) fn print_parser_message(error: clap::Error, json: bool) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        answer::talk_to_stdout(&error.render().ansi().to_string());
        return ExitCode::SUCCESS;
    }
    answer::usage(&error, json);
    ExitCode::from(2)
}

/// The definition that parser, help, completions and manual share.
pub(crate) fn definition() -> clap::Command {
    Cli::command()
}
