//! What can be typed. The doc comments are the help.

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use onceward::{Class, Effect, KeyPolicy, State};

use crate::answer;
use crate::commands;

/// Agents retry; the world must change once.
///
/// Runs commands so that a retry never repeats their effect: the intent is written down first, the result is replayed
/// to every retry, and what nobody can know is said to be in doubt, never guessed.
#[derive(Debug, Parser)]
#[command(
    name = "once",
    version,
    propagate_version = true,
    max_term_width = 110,
    disable_help_subcommand = true
)]
#[command(
    after_help = "Exit codes: 0 done or replayed, 2 wrong input, 4 refused (in progress, expired, cancelled, budget), \
5 not found, 6 key reused, 10 timeout, 12 ledger unavailable, 79 in doubt; a failed command's own code is passed on."
)]
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
    #[arg(long, global = true, env = "ONCE_LEDGER", value_name = "URL", help_heading = "Everywhere")]
    pub(crate) ledger: Option<String>,
    /// The policy file [default: ./onceward.toml, then the user's configuration folder]
    #[arg(long, global = true, env = "ONCE_CONFIG", value_name = "FILE", help_heading = "Everywhere")]
    pub(crate) config: Option<std::path::PathBuf>,
    /// Answer with one JSON object on stdout
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command once
    Run(Box<commands::run::RunArgs>),
    /// Put an MCP server behind the ledger: each tool is called once
    Mcp(Box<commands::mcp::McpArgs>),
    /// List operations, newest first
    Ls(ListArgs),
    /// Show one operation with all that is known of it
    Show(OperationArg),
    /// Wait until an operation is no longer running
    Wait(WaitArgs),
    /// Say what became of an operation in doubt
    Settle(SettleArgs),
    /// Check a reported success again
    Verify(VerifyArgs),
    /// Ask an operation to stop; says what had already happened
    Cancel(ChangeArgs),
    /// Delete the record of an operation: its key can run again
    Forget(ForgetArgs),
    /// What a scope really did: done, in doubt, cancelled, replayed
    Report(ReportArgs),
    /// Expire what is due and write down what is in doubt
    Gc(GcArgs),
    /// Count operations by state
    Stats,
    /// Copy the ledger to a file, while others may go on using it
    Backup(BackupArgs),
    /// Write all operations as JSON lines, oldest first
    Export(ExportArgs),
    /// Import an export. Safe to repeat; resumes where it stopped
    Import(ImportArgs),
    /// Derive a key and explain it
    Key(KeyArgs),
    /// Look the installation and the ledger over
    Doctor,
    /// Show or write the policy
    #[command(subcommand)]
    Config(ConfigCommand),
    /// See it work: duplicates without the ledger, then none with it
    Demo(DemoArgs),
    /// Print a completion script
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
    /// Print or write the manual pages
    Man {
        /// Write one page a command into this folder instead
        #[arg(value_name = "FOLDER")]
        folder: Option<std::path::PathBuf>,
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

#[derive(Debug, Args)]
pub(crate) struct OperationArg {
    /// The operation (op_…)
    #[arg(value_name = "OPERATION")]
    pub(crate) operation: String,
}

#[derive(Debug, Args)]
pub(crate) struct ChangeArgs {
    #[command(flatten)]
    pub(crate) operation: OperationArg,
    #[command(flatten)]
    pub(crate) dry: DryRunArgs,
}

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct DryRunArgs {
    /// Say what would happen and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only of this scope
    #[arg(long, visible_alias = "session")]
    pub(crate) scope: Option<String>,
    /// Only of this name
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Only in these states (comma-separated)
    #[arg(long, value_delimiter = ',', value_name = "STATES")]
    pub(crate) state: Vec<State>,
    /// At most so many
    #[arg(long, short = 'n', default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) limit: u32,
}

#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    pub(crate) operation: OperationArg,
    /// How long at most
    #[arg(long, default_value = "30s", value_parser = span, value_name = "TIME")]
    pub(crate) timeout: u64,
}

#[derive(Debug, Args)]
pub(crate) struct SettleArgs {
    #[command(flatten)]
    pub(crate) operation: OperationArg,
    /// What became of it
    #[arg(long = "as", value_name = "VERDICT", required_unless_present = "probe")]
    pub(crate) verdict: Option<SettleAs>,
    /// Ask the operation's own probe instead
    #[arg(long, conflicts_with = "verdict")]
    pub(crate) probe: bool,
    /// Why, for those who look later
    #[arg(long)]
    pub(crate) note: Option<String>,
    /// The result to replay, as JSON
    #[arg(long, value_name = "JSON")]
    pub(crate) data: Option<String>,
    #[command(flatten)]
    pub(crate) dry: DryRunArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SettleAs {
    /// It happened: retries get its result
    Done,
    /// It did not happen: the next call runs it
    Failed,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) operation: OperationArg,
    /// The check, for `sh -c` (exit 0 confirmed, 1 refuted, else pending) [default: the operation's own]
    #[arg(long, value_name = "COMMAND")]
    pub(crate) check: Option<String>,
    #[command(flatten)]
    pub(crate) dry: DryRunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ForgetArgs {
    #[command(flatten)]
    pub(crate) operation: OperationArg,
    /// Also when it is done or in doubt, so that its effect can happen again
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) dry: DryRunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Of which scope
    #[arg(long, visible_alias = "session", env = "ONCE_SCOPE", default_value = "default")]
    pub(crate) scope: String,
}

#[derive(Debug, Args)]
pub(crate) struct GcArgs {
    /// Also give the space of what was deleted back to the file system; writers wait meanwhile
    #[arg(long)]
    pub(crate) vacuum: bool,
    #[command(flatten)]
    pub(crate) dry: DryRunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// Where to
    pub(crate) file: std::path::PathBuf,
    /// Replace the file where it exists
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) dry: DryRunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Only of this scope
    #[arg(long, visible_alias = "session")]
    pub(crate) scope: Option<String>,
    /// Leave the stored output out. Such an export can be read, and not imported
    #[arg(long)]
    pub(crate) no_bodies: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The export [default: standard input]
    pub(crate) file: Option<std::path::PathBuf>,
    #[command(flatten)]
    pub(crate) dry: DryRunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    #[command(flatten)]
    pub(crate) identity: IdentityArgs,
    /// The command, as for `once run`
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<std::ffi::OsString>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// The policy in force, for an operation of some name
    Show {
        /// The operation's name
        #[arg(default_value = "*")]
        name: String,
    },
    /// Trust the policy file of this project as it is now: its ledger, probes and classes count
    Allow {
        /// The file [default: the one found upward from here]
        file: Option<std::path::PathBuf>,
        #[command(flatten)]
        dry: DryRunArgs,
    },
    /// Take that back
    Deny {
        /// The file [default: the one found upward from here]
        file: Option<std::path::PathBuf>,
        #[command(flatten)]
        dry: DryRunArgs,
    },
    /// Write the commented default to edit
    Init {
        /// Where to
        #[arg(default_value = "onceward.toml")]
        file: std::path::PathBuf,
        #[command(flatten)]
        dry: DryRunArgs,
    },
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Keep the folder with the demo's ledger
    #[arg(long)]
    pub(crate) keep: bool,
}

/// A span of time, in milliseconds.
pub(crate) fn span(text: &str) -> Result<u64, String> {
    onceward::policy::span_ms(text).map_err(|invalid| invalid.to_string())
}

/// How often.
pub(crate) fn count(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number; write 3"))
}

/// How much.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number of bytes; write 1048576 for a MiB"))
}

/// An exit code of a command that did not succeed.
pub(crate) fn exit_code(text: &str) -> Result<i32, String> {
    let code = text.parse().ok().filter(|code| (1..=255).contains(code));
    code.ok_or_else(|| format!("{text:?} is not an exit code from 1 to 255"))
}

/// A class, by its word.
pub(crate) fn class(text: &str) -> Result<Class, String> {
    text.parse().map_err(|invalid: onceward::InvalidInput| invalid.to_string())
}

/// An effect, by its word.
pub(crate) fn effect(text: &str) -> Result<Effect, String> {
    text.parse().map_err(|invalid: onceward::InvalidInput| invalid.to_string())
}

/// Reads the command line. Help goes to stdout because it was asked for; every mistake is exit 2 and changes nothing.
pub(crate) fn parse() -> Result<Cli, ExitCode> {
    Cli::try_parse().map_err(|error| {
        if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
            answer::talk_to_stdout(&error.render().ansi().to_string());
            return ExitCode::SUCCESS;
        }
        let json =
            std::env::args_os().take_while(|argument| argument != "--").any(|argument| argument == "--json");
        answer::usage(&error, json);
        ExitCode::from(2)
    })
}

/// The definition that parser, help, completions and manual share.
pub(crate) fn definition() -> clap::Command {
    Cli::command()
}
