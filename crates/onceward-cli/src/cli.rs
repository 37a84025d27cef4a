//! The command line. The doc comments are the help.

mod args;
mod values;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum, ValueHint};
use onceward::KeyPolicy;

use crate::answer;
use crate::commands;
pub(crate) use args::{
    BackupArgs, ChangeArgs, ConfigCommand, DemoArgs, DryRunArgs, ExportArgs, ForgetArgs, GcArgs, ImportArgs,
    KeyArgs, ListArgs, OperationArg, ReportArgs, SettleArgs, SettleAs, ShowArgs, VerifyArgs, WaitArgs,
};
pub(crate) use values::{bytes, class, count, effect, exit_code, span};

/// The exit codes and what each means, for the help and the manual.
pub(crate) const EXIT_CODES: [(&str, &str); 9] = [
    ("0", "Done, now or earlier. A retry gets the stored result."),
    ("2", "Invalid input. Nothing was run."),
    ("4", "Refused: in progress, expired, cancelled, or the limit of attempts is reached."),
    ("5", "No such operation."),
    ("6", "The key was used for a different action, or not possible in the operation's state."),
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

Exit codes: 0 done or replayed, 2 invalid input, 4 refused (in progress, expired, cancelled, limit of attempts), 5 not \
found, 6 key reused or wrong state, 10 timeout, 12 ledger unavailable, 79 in doubt; a failed command's own code is \
passed on.")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// The ledger: sqlite:PATH, postgres://…, redis://…, rediss://… or redis+cluster://… [default: a file in the
    /// user's data folder]
    #[arg(long, global = true, env = "ONCE_LEDGER", value_name = "URL", help_heading = "Global options")]
    pub(crate) ledger: Option<String>,
    /// The policy file [default: onceward.toml in this folder or the nearest one above it, then the user's]
    #[arg(long, global = true, env = "ONCE_CONFIG", value_name = "FILE", value_hint = ValueHint::FilePath,
          help_heading = "Global options")]
    pub(crate) config: Option<std::path::PathBuf>,
    /// Answer with one JSON object on stdout
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,
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
    /// Put an MCP server behind the ledger: each tool is called once
    #[command(after_help = "Examples:
  once mcp -- npx some-mcp-server
  once mcp --explain -- npx some-mcp-server
  once mcp init -- npx some-mcp-server")]
    Mcp(Box<commands::mcp::McpArgs>),
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
    /// Record what became of an operation in doubt
    #[command(
        override_usage = "once settle <OPERATION> --as <done|failed> [--note <TEXT>] [--data <JSON>]
       once settle <OPERATION> --probe",
        after_help = "Check first whether it happened.

Examples:
  once settle order-42 --as done --note 'seen on the statement'
  once settle order-42 --as failed
  once settle order-42 --probe"
    )]
    Settle(SettleArgs),
    /// Check a reported success again
    #[command(after_help = "Examples:
  once verify order-42
  once verify order-42 --check './is-it-paid.sh 42'")]
    Verify(VerifyArgs),
    /// Ask an operation to stop, and say what had already happened
    #[command(after_help = "Examples:
  once cancel order-42
  once cancel order-42 --dry-run")]
    Cancel(ChangeArgs),
    /// Delete the record of an operation, so that its key can run again
    #[command(after_help = "Examples:
  once forget order-42 --dry-run
  once forget order-42 --force")]
    Forget(ForgetArgs),
    /// Report what a scope really did, with everything in doubt first
    #[command(after_help = "Examples:
  once report
  once report --scope nightly --since 24h
  once report --scope nightly --json")]
    Report(ReportArgs),
    /// Expire old results and mark abandoned attempts as in doubt
    #[command(after_help = "Examples:
  once gc --dry-run
  once gc --vacuum")]
    Gc(GcArgs),
    /// Count operations by state
    #[command(after_help = "Examples:
  once stats")]
    Stats,
    /// Copy the ledger to a file, while others may go on using it
    #[command(after_help = "Examples:
  once backup once-copy.db
  once backup once-copy.db --force")]
    Backup(BackupArgs),
    /// Write all operations as JSON lines, oldest first
    #[command(after_help = "Examples:
  once export > ledger.jsonl
  once export --scope nightly --no-bodies")]
    Export(ExportArgs),
    /// Import the output of `once export` (safe to repeat; resumes where it stopped)
    #[command(after_help = "Examples:
  once import ledger.jsonl
  once export | once import --ledger postgres://localhost/once")]
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
  once config init"
    )]
    Config(ConfigCommand),
    /// See it work: duplicates without the ledger, then none with it
    #[command(after_help = "Examples:
  once demo")]
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

/// What identifies an operation.
#[derive(Debug, Clone, Args)]
pub(crate) struct IdentityArgs {
    /// The operation's name [default: the command's]
    #[arg(long, help_heading = "Identity")]
    pub(crate) name: Option<String>,
    /// The key; without one it is derived from the name and the inputs
    #[arg(long, value_name = "KEY", help_heading = "Identity")]
    pub(crate) key: Option<String>,
    /// Who shares keys: a session, a run, a tenant
    #[arg(
        long,
        visible_alias = "session",
        env = "ONCE_SCOPE",
        default_value = "default",
        help_heading = "Identity"
    )]
    pub(crate) scope: String,
    /// The same action is wanted again: 2, 3, … or any label
    #[arg(long, value_name = "N|LABEL", help_heading = "Identity")]
    pub(crate) occurrence: Option<String>,
    /// Fields of the JSON input that identify the action (comma-separated; `order.id` or `/order/id`)
    #[arg(long, value_name = "FIELDS", value_delimiter = ',', help_heading = "Identity")]
    pub(crate) key_fields: Vec<String>,
    /// Input fields that may differ between a call and its retry
    #[arg(long, value_name = "FIELDS", value_delimiter = ',', help_heading = "Identity")]
    pub(crate) volatile: Vec<String>,
    /// A JSON input that belongs to the operation
    #[arg(long, value_name = "JSON", help_heading = "Identity")]
    pub(crate) input: Option<String>,
    /// A file that belongs to the operation: its content, not its name
    #[arg(long, value_name = "FILE", help_heading = "Identity")]
    pub(crate) input_file: Vec<std::path::PathBuf>,
    /// An environment variable that belongs to the operation
    #[arg(long, value_name = "NAME", help_heading = "Identity")]
    pub(crate) env: Vec<String>,
    /// Standard input belongs to the operation, also under a key: it is read whole, then passed on
    #[arg(long, help_heading = "Identity")]
    pub(crate) stdin: bool,
    /// Leave these out of a derived key: the working folder, piped standard input (comma-separated)
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_enum, help_heading = "Identity")]
    pub(crate) ignore: Vec<Ignored>,
    /// How a call without a key is told from a wanted repeat [default: auto; strict with --scope]
    #[arg(long, value_name = "RULE", value_enum, help_heading = "Identity")]
    pub(crate) keys: Option<Keys>,
}

/// What a derived key can do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Ignored {
    /// The working folder
    Folder,
    /// Standard input, where it is a pipe or a file
    Stdin,
}

/// How a call without a key is told from a wanted repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Keys {
    /// A retry until its answer was delivered; after that, a wanted repeat
    Auto,
    /// Always the same operation
    Strict,
    /// A key must be given
    Keyed,
}

impl From<Keys> for KeyPolicy {
    fn from(keys: Keys) -> Self {
        match keys {
            Keys::Auto => Self::Auto,
            Keys::Strict => Self::Strict,
            Keys::Keyed => Self::Keyed,
        }
    }
}

/// Reads the command line. Every mistake is exit 2 and changes nothing.
pub(crate) fn parse() -> Result<Cli, ExitCode> {
    Cli::try_parse().map_err(|error| {
        let json =
            std::env::args_os().take_while(|argument| argument != "--").any(|argument| argument == "--json");
        told(error, json)
    })
}

/// Prints what the parser says. Help goes to stdout because it was asked for.
pub(crate) fn told(error: clap::Error, json: bool) -> ExitCode {
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
