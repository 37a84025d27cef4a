//! The arguments of the commands around `once run`.

use clap::{Args, Subcommand, ValueHint};
use onceward::{Filter, State};

use super::IdentityArgs;
use super::values::{Finding, Moment, moment, span, words};

#[derive(Debug, Args)]
pub(crate) struct OperationArg {
    /// The operation: its id, the first characters of its id, or its key
    #[arg(value_name = "OPERATION")]
    pub(crate) operation: String,
    /// Look for it in this scope only
    #[arg(long, visible_alias = "session", value_name = "SCOPE")]
    pub(crate) scope: Option<String>,
    /// Look for it among operations of this name only
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

/// When operations were created.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct WhenArgs {
    /// Only those created since then: a span of time such as 2h, or a time such as 2030-01-31T08:00:00Z
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<Moment>,
    /// Only those created before then
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<Moment>,
}

impl WhenArgs {
    /// The filter for these times, by the ledger's clock.
    pub(crate) fn filter(self, now_ms: i64) -> Filter {
        let at = |moment: Moment| match moment {
            Moment::Ago(ms) => now_ms.saturating_sub_unsigned(ms),
            Moment::At(ms) => ms,
        };
        Filter { since_ms: self.since.map(at), until_ms: self.until.map(at), ..Filter::default() }
    }
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only of this scope
    #[arg(long, visible_alias = "session")]
    pub(crate) scope: Option<String>,
    /// Only of this name
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Only with this key
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// Only in these states (comma-separated)
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
    /// Print the stored output, byte for byte, when it is over
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
    /// Ask the operation's own probe instead
    #[arg(long)]
    pub(crate) probe: bool,
    /// What the finding is based on; recorded with the operation
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    /// The result that retries get, as JSON
    #[arg(long, value_name = "JSON")]
    pub(crate) data: Option<String>,
    #[command(flatten)]
    pub(crate) dry: DryRunArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// The check, for `sh -c`: exit 0 confirmed, exit 10 refuted, anything else not yet [default: the operation's own]
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString)]
    pub(crate) check: Option<String>,
    #[command(flatten)]
    pub(crate) dry: DryRunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ForgetArgs {
    #[command(flatten)]
    pub(crate) operation: OperationArg,
    /// Also if it is done or in doubt, so that its effect can happen again
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) dry: DryRunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// The scope
    #[arg(long, visible_alias = "session", env = "ONCE_SCOPE", default_value = "default")]
    pub(crate) scope: String,
    #[command(flatten)]
    pub(crate) when: WhenArgs,
    /// Maximum number to list of each state; totals count all
    #[arg(long, short = 'n', default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub(crate) limit: u32,
    /// Print one JSON object per line for each listed operation, and the totals in the last line
    #[arg(long, conflicts_with = "json")]
    pub(crate) jsonl: bool,
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
    /// Destination file
    #[arg(value_hint = ValueHint::FilePath)]
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
    #[arg(trailing_var_arg = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<std::ffi::OsString>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Show the settings of an operation, and which rule decided each
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
        /// The file [default: the policy that holds here]
        #[arg(value_hint = ValueHint::FilePath)]
        file: Option<std::path::PathBuf>,
    },
    /// Trust the policy file of this project as it is now: its ledger, probes and classes count
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
    /// Write the default policy with its comments, to edit
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
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Keep the folder with the demo's ledger
    #[arg(long)]
    pub(crate) keep: bool,
}
