//! The arguments of every command, and of the commands around `once run`.

use std::ffi::OsString;

use clap::{Args, Subcommand, ValueHint};
use onceward::{Filter, State};

use super::identity::IdentityArgs;
use super::values::{Finding, Moment, SettleAs, exit_code, moment, span, words};

/// The options of every command.
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// The ledger: sqlite:PATH, postgres://…, redis://…, redis+sentinel://…, redis+cluster://… (with TLS: rediss…), or
    /// a running `once serve`: https://…, http://…, unix:PATH [default: a file in the user's data folder]
    #[arg(
        long,
        global = true,
        env = "ONCE_LEDGER",
        hide_env_values = true,
        value_name = "URL",
        help_heading = "Global options"
    )]
    pub(crate) ledger: Option<String>,
    /// The policy file [default: onceward.toml in this folder or the nearest one above it, then the user's]
    #[arg(long, global = true, env = "ONCE_CONFIG", value_name = "FILE", value_hint = ValueHint::FilePath,
          help_heading = "Global options")]
    pub(crate) config: Option<std::path::PathBuf>,
    /// Print the answer as one JSON object on stdout
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct OperationArg {
    /// The operation: its id, the first characters of its id, or its key
    #[arg(value_name = "OPERATION")]
    pub(crate) operation: String,
    /// Search only in this scope
    #[arg(long, visible_alias = "session", value_name = "SCOPE")]
    pub(crate) scope: Option<String>,
    /// Search only operations with this name
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) operation: OperationArg,
    /// Print the stored output, byte for byte, and nothing else
    #[arg(long)]
    pub(crate) output: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CancelArgs {
    #[command(flatten)]
    pub(crate) operation: OperationArg,
    /// Why; the caller of the operation gets it
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    #[command(flatten)]
    pub(crate) dry: DryRunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct HeldArgs {
    /// Only operations in this scope
    #[arg(long, visible_alias = "session")]
    pub(crate) scope: Option<String>,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["operation", "due"]))]
pub(crate) struct ReleaseArgs {
    /// The operation: its id, the first characters of its id, or its key
    #[arg(value_name = "OPERATION")]
    pub(crate) operation: Option<String>,
    /// Release every operation whose time has come, and start again what was released but did not start
    #[arg(long)]
    pub(crate) due: bool,
    /// With --due: run every stored command, whatever the policy says
    #[arg(long, requires = "due")]
    pub(crate) trust_commands: bool,
    /// Why; it is kept with your name
    #[arg(long, value_name = "TEXT", conflicts_with = "due")]
    pub(crate) note: Option<String>,
    /// Run the command on this machine, although it was held on another one
    #[arg(long, conflicts_with = "due")]
    pub(crate) here: bool,
    /// Only operations in this scope
    #[arg(long, visible_alias = "session", value_name = "SCOPE")]
    pub(crate) scope: Option<String>,
    /// Search only operations with this name
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) dry: DryRunArgs,
}

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct DryRunArgs {
    /// Show what would happen and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// When operations were created.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct WhenArgs {
    /// Only operations created since this time: a duration such as 2h, or a time such as 2030-01-31T08:00:00Z
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<Moment>,
    /// Only operations created before this time
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<Moment>,
}

impl WhenArgs {
    /// The filter for these times, by the ledger's clock.
    pub(crate) fn filter(self, now_ms: i64) -> Filter {
        let at = |moment: Moment| moment.at_ms(now_ms);
        Filter { since_ms: self.since.map(at), until_ms: self.until.map(at), ..Filter::default() }
    }
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only operations in this scope
    #[arg(long, visible_alias = "session")]
    pub(crate) scope: Option<String>,
    /// Only operations with this name
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Only operations with this key
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// Only operations in these states (comma-separated)
    #[arg(long, value_delimiter = ',', value_name = "STATES",
          value_parser = words::<State>(State::ALL.map(State::as_str)))]
    pub(crate) state: Vec<State>,
    #[command(flatten)]
    pub(crate) when: WhenArgs,
    /// Maximum number to list
    #[arg(long, short = 'n', default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) limit: u32,
    /// Print one JSON object per line for each operation
    #[arg(long, conflicts_with = "json")]
    pub(crate) jsonl: bool,
}

#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    pub(crate) operation: OperationArg,
    /// Maximum time to wait
    #[arg(long, default_value = "30s", value_parser = span, value_name = "TIME")]
    pub(crate) timeout: u64,
    /// Print the stored output, byte for byte, when the operation has ended
    #[arg(long)]
    pub(crate) output: bool,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("finding").required(true).args(["verdict", "probe"]))]
pub(crate) struct SettleArgs {
    #[command(flatten)]
    pub(crate) operation: OperationArg,
    /// What you found: it happened (done), or it did not (failed)
    #[arg(long = "as", value_name = "FINDING", value_parser = Finding)]
    pub(crate) verdict: Option<SettleAs>,
    /// Run a probe instead (with `sh -c`): exit 0 yes, exit 10 no [default: the stored probe, if your policy has
    /// it]
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString)]
    pub(crate) probe: Option<Option<String>>,
    /// More exit codes of the probe that mean "no" (comma-separated)
    #[arg(long, value_name = "CODES", value_delimiter = ',', value_parser = exit_code, requires = "probe")]
    pub(crate) probe_no: Vec<i32>,
    /// Accept the probe's "no" even while a request of the attempt may be in flight; this is recorded
    #[arg(long, requires = "probe")]
    pub(crate) force: bool,
    /// What the finding is based on; recorded with the operation
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    /// The result that retries get, as JSON
    #[arg(long, value_name = "JSON")]
    pub(crate) data: Option<String>,
    #[command(flatten)]
    pub(crate) dry: DryRunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) operation: OperationArg,
    /// The check (run with `sh -c`): exit 0 confirmed, exit 10 refuted, anything else not yet [default: the stored
    /// check, if your policy has it]
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString)]
    pub(crate) check: Option<String>,
    #[command(flatten)]
    pub(crate) dry: DryRunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct HeaderArgs {
    /// Header to send to an HTTP server when `once` itself asks it for its tools or takes a call back; may be repeated
    #[arg(long = "header", value_name = "NAME: VALUE")]
    pub(crate) headers: Vec<String>,
    /// The same, with the value from an environment variable, so that the process list does not show it
    #[arg(long = "header-env", value_name = "NAME=VARIABLE")]
    pub(crate) header_variables: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct UndoArgs {
    /// The operation: its id, the first characters of its id, or its key
    #[arg(value_name = "OPERATION", required_unless_present = "scope")]
    pub(crate) operation: Option<String>,
    /// Take back everything that was done in this scope; with an operation, search only there
    #[arg(long, visible_alias = "session", value_name = "SCOPE")]
    pub(crate) scope: Option<String>,
    /// Search only operations with this name
    #[arg(long, value_name = "NAME", requires = "operation")]
    pub(crate) name: Option<String>,
    /// Take back only what was begun after this operation, which stands
    #[arg(long, value_name = "OPERATION", conflicts_with = "operation")]
    pub(crate) since: Option<String>,
    /// Command that takes the operation back (run with `sh -c`) [default: the stored one, if your policy has it]
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString, requires = "operation")]
    pub(crate) undo: Option<String>,
    /// Probe of the operation (run with `sh -c`): exit 0, it has happened; exit 10, the effect is not there
    /// [default: the stored one, if your policy has it]
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString, requires = "operation")]
    pub(crate) probe: Option<String>,
    /// More exit codes of the probe that mean "no" (comma-separated)
    #[arg(long, value_name = "CODES", value_delimiter = ',', value_parser = exit_code, requires = "probe")]
    pub(crate) probe_no: Vec<i32>,
    /// Run the commands that are stored with the operations. Read them first with --dry-run: anyone who can write to
    /// the ledger can have stored them
    #[arg(long)]
    pub(crate) stored: bool,
    /// Short name of the MCP server, if `once mcp` got it with --server
    #[arg(long = "server", value_name = "NAME")]
    pub(crate) server_name: Option<String>,
    /// URL of the MCP server over streamable HTTP, instead of a command
    #[arg(long, value_name = "URL")]
    pub(crate) http: Option<String>,
    #[command(flatten)]
    pub(crate) headers: HeaderArgs,
    #[command(flatten)]
    pub(crate) dry: DryRunArgs,
    /// Command of the MCP server, after `--`: starts it, and calls the tool that takes an operation back
    #[arg(last = true, value_name = "SERVER")]
    pub(crate) server: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct ForgetArgs {
    #[command(flatten)]
    pub(crate) operation: OperationArg,
    /// Forget it even if it is done or in doubt; its effect can then happen again
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) dry: DryRunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Scope to report on
    #[arg(long, visible_alias = "session", env = "ONCE_SCOPE", default_value = "default")]
    pub(crate) scope: String,
    #[command(flatten)]
    pub(crate) when: WhenArgs,
    /// Maximum number to list per state; totals include all
    #[arg(long, short = 'n', default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub(crate) limit: u32,
    /// Print one JSON object per line for each listed operation, and the totals on the last line
    #[arg(long, conflicts_with = "json")]
    pub(crate) jsonl: bool,
    /// Print the settlement of all operations as Markdown, for a ticket
    #[arg(long, conflicts_with_all = ["json", "jsonl", "html"])]
    pub(crate) markdown: bool,
    /// Print the settlement of all operations as one HTML file with a timeline
    #[arg(long, conflicts_with_all = ["json", "jsonl"])]
    pub(crate) html: bool,
    /// Print the settlement of all operations as JSON, signed with this Ed25519 key (PEM): see `once verify-report`
    #[arg(long, value_name = "KEYFILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["jsonl", "html", "markdown"])]
    pub(crate) sign: Option<std::path::PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyReportArgs {
    /// The signed report
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: std::path::PathBuf,
    /// The public key that must have signed it: a PEM file, or 64 hexadecimal digits
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// The scope, of all callers
    #[arg(value_name = "SCOPE")]
    pub(crate) scope: String,
    /// Maximum time to wait for running operations to end
    #[arg(long, default_value = "30s", value_parser = span, value_name = "TIME")]
    pub(crate) wait: u64,
    /// Why it is stopped; refused calls say it
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    #[command(flatten)]
    pub(crate) dry: DryRunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ResumeArgs {
    /// The scope
    #[arg(value_name = "SCOPE")]
    pub(crate) scope: String,
    /// Why; it is answered with your name, and not kept
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    #[command(flatten)]
    pub(crate) dry: DryRunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CostArgs {
    /// Only calls in this scope, of all callers [default: all scopes]
    #[arg(long, visible_alias = "session")]
    pub(crate) scope: Option<String>,
    #[command(flatten)]
    pub(crate) when: WhenArgs,
    /// Prices of models, as TOML: MODEL = { input = 2.5, cached = 1.25, output = 10 }, in dollars for a million tokens
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) prices: Option<std::path::PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct GcArgs {
    /// Also return free space to the file system; writers wait meanwhile
    #[arg(long)]
    pub(crate) vacuum: bool,
    #[command(flatten)]
    pub(crate) dry: DryRunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RestoredArgs {
    /// When the backup was made: a duration such as 3h, or a time such as 2030-01-31T08:00:00Z. Everything written
    /// later is lost
    #[arg(long, value_name = "TIME", value_parser = moment, required_unless_present = "lift")]
    at: Option<Moment>,
    /// How long unknown calls are in doubt, because they may be retries of lost operations
    #[arg(long = "for", value_name = "TIME", value_parser = span, default_value = "24h")]
    pub(crate) window_ms: u64,
    /// Epoch of the lost ledger, if it was higher than the backup's (`once doctor` shows it)
    #[arg(long, value_name = "N")]
    pub(crate) epoch: Option<u64>,
    /// Declare that everything since the backup is accounted for: unknown calls run again
    #[arg(long, conflicts_with_all = ["at", "window_ms", "epoch"])]
    pub(crate) lift: bool,
    #[command(flatten)]
    pub(crate) dry: DryRunArgs,
}

impl RestoredArgs {
    /// When the backup was made, by the ledger's clock.
    pub(crate) fn at_ms(&self, now_ms: i64) -> i64 {
        self.at.map_or(now_ms, |at| at.at_ms(now_ms))
    }
}

#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// Destination file
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: std::path::PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) dry: DryRunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Only operations in this scope
    #[arg(long, visible_alias = "session")]
    pub(crate) scope: Option<String>,
    /// Leave out the stored output. Such an export cannot be imported
    #[arg(long)]
    pub(crate) no_bodies: bool,
    /// Also write the ledger's secret to this new file. An import into another ledger needs it. Keep it safe: with
    /// it, inputs can be guessed from the export
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) secret_file: Option<std::path::PathBuf>,
    /// Encrypt results, reasons and commands in the export. Reading them needs the same key
    #[arg(long)]
    pub(crate) sealed: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Export to import [default: standard input]
    pub(crate) file: Option<std::path::PathBuf>,
    /// Secret of the exported ledger (`once export --secret-file`), for an empty ledger
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) secret_file: Option<std::path::PathBuf>,
    #[command(flatten)]
    pub(crate) dry: DryRunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    #[command(flatten)]
    pub(crate) identity: IdentityArgs,
    /// The command, as for `once run`
    #[arg(trailing_var_arg = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<std::ffi::OsString>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Show the settings of an operation, and the rule that set each
    #[command(after_help = "Examples:
  once config show
  once config show charge")]
    Show {
        /// The operation's name
        #[arg(default_value = "*")]
        name: String,
    },
    /// Check a policy file and list every problem (exit 2)
    #[command(after_help = "Examples:
  once config check
  once config check policies/onceward.toml")]
    Check {
        /// The file [default: the policy in use]
        #[arg(value_hint = ValueHint::FilePath)]
        file: Option<std::path::PathBuf>,
    },
    /// Trust the policy file of this project in its current form, including its ledger, probes and classes
    #[command(after_help = "Examples:
  once config allow")]
    Allow {
        /// The file [default: the one found upward from here]
        #[arg(value_hint = ValueHint::FilePath)]
        file: Option<std::path::PathBuf>,
        #[command(flatten)]
        dry: DryRunArgs,
    },
    /// Stop trusting the policy file of this project
    #[command(after_help = "Examples:
  once config deny")]
    Deny {
        /// The file [default: the one found upward from here]
        #[arg(value_hint = ValueHint::FilePath)]
        file: Option<std::path::PathBuf>,
        #[command(flatten)]
        dry: DryRunArgs,
    },
    /// Write the default policy with its comments to a file
    #[command(after_help = "Examples:
  once config init
  once config init policies/onceward.toml")]
    Init {
        /// Destination file
        #[arg(default_value = "onceward.toml", value_hint = ValueHint::FilePath)]
        file: std::path::PathBuf,
        #[command(flatten)]
        dry: DryRunArgs,
    },
    /// Write a new encryption key to a file that only you can read
    #[command(after_help = "Examples:
  once config new-key ~/.config/onceward/once.key")]
    NewKey {
        /// Destination file
        #[arg(value_hint = ValueHint::FilePath)]
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
    /// Show only the call of a model that times out
    #[arg(long)]
    pub(crate) llm: bool,
}
