//! The flags that the framework adds to commands. Their ids begin with `once_`, so an author's fields may have any
//! name; only the long names are reserved.

use std::path::PathBuf;

use clap::Args;

use crate::output::{EnvelopeFormat, variable};

/// Flags of every command, before or after its name.
#[derive(Debug, Clone, Args)]
pub(crate) struct Globals {
    /// The ledger, as a URL [default: a file in the user's data folder]
    #[arg(
        id = "once_ledger",
        long = "ledger",
        global = true,
        value_name = "URL",
        help_heading = "Everywhere"
    )]
    pub(crate) ledger: Option<String>,
    /// A policy file: classes, times and limits for single commands
    #[arg(
        id = "once_policy",
        long = "policy",
        global = true,
        value_name = "FILE",
        help_heading = "Everywhere"
    )]
    pub(crate) policy: Option<PathBuf>,
    /// Print the answer as one JSON object on stdout; the default if stdout is not a terminal
    #[arg(id = "once_json", long = "json", global = true, help_heading = "Everywhere")]
    pub(crate) json: bool,
    /// Envelope of the JSON answer
    #[arg(
        id = "once_envelope",
        long = "envelope",
        global = true,
        value_name = "KIND",
        value_enum,
        default_value_t,
        help_heading = "Everywhere"
    )]
    pub(crate) envelope: EnvelopeFormat,
    /// The MCP connection that a call came by. It is the call's scope where the caller names none
    #[arg(id = "once_connection", long = "once-connection", global = true, value_name = "NAME", hide = true)]
    pub(crate) connection: Option<String>,
}

/// Flags of every command that does work.
#[derive(Debug, Clone, Args)]
pub(crate) struct Limits {
    /// Time limit: 500ms, 30s, 5m; 0s for no limit
    #[arg(
        id = "once_timeout",
        long = "timeout",
        value_name = "TIME",
        value_parser = span,
        help_heading = "Retry safety"
    )]
    pub(crate) timeout_ms: Option<u64>,
}

/// Flags of every command that changes something.
#[derive(Debug, Clone, Args)]
pub(crate) struct MutatingFlags {
    /// Identifies this action: the same key again is a retry and changes nothing. Without one it is derived from the
    /// command and its arguments
    #[arg(id = "once_key", long = "idempotency-key", value_name = "KEY", help_heading = "Retry safety")]
    pub(crate) key: Option<String>,
    /// Show what would change and change nothing
    #[arg(id = "once_dry_run", long = "dry-run", help_heading = "Retry safety")]
    pub(crate) dry_run: bool,
    /// Namespace for keys, such as a session, a run or a tenant. In one, the same command is always a retry
    #[arg(id = "once_scope", long = "scope", value_name = "SCOPE", help_heading = "Retry safety")]
    pub(crate) scope: Option<String>,
    /// Deliberately repeat the same action: 2, 3, … or any label
    #[arg(
        id = "once_occurrence",
        long = "occurrence",
        value_name = "N|LABEL",
        help_heading = "Retry safety"
    )]
    pub(crate) occurrence: Option<String>,
    /// How long to wait for another caller that runs the same action
    #[arg(
        id = "once_wait",
        long = "wait",
        value_name = "TIME",
        value_parser = span,
        help_heading = "Retry safety"
    )]
    pub(crate) wait_ms: Option<u64>,
    #[command(flatten)]
    pub(crate) limits: Limits,
}

/// Flags of a command that destroys something.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct ConfirmFlag {
    /// Confirm a destructive command. Without this flag it is refused, and the answer shows what it would destroy
    #[arg(id = "once_confirm", long = "confirm", help_heading = "Retry safety")]
    pub(crate) confirm: bool,
}

/// Flags of a command for many items.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct StreamFlag {
    /// Print one answer with all items instead of one line per item
    #[arg(id = "once_no_stream", long = "no-stream", help_heading = "Retry safety")]
    pub(crate) no_stream: bool,
}

/// The long names that an author cannot use for a command with these flags.
pub(crate) fn taken() -> Vec<String> {
    let all = clap::Command::new("all");
    let all = MutatingFlags::augment_args(Globals::augment_args(all));
    let all = StreamFlag::augment_args(ConfirmFlag::augment_args(all));
    let own = all.get_arguments().filter_map(|argument| argument.get_long().map(str::to_owned));
    own.chain(["help".to_owned()]).collect()
}

/// Adds environment variables for the flags that are the same for a whole session.
pub(crate) fn with_environment(command: clap::Command, tool: &str) -> clap::Command {
    let settings = [
        ("once_ledger", "LEDGER"),
        ("once_policy", "POLICY"),
        ("once_envelope", "ENVELOPE"),
        ("once_scope", "SCOPE"),
    ];
    settings.into_iter().fold(command, |command, (id, setting)| {
        let known = command.get_arguments().any(|argument| argument.get_id() == id);
        // The ledger's URL may hold a password, which help must not show.
        let with_variable = |argument: clap::Arg| argument.env(variable(tool, setting)).hide_env_values(true);
        if known { command.mut_arg(id, with_variable) } else { command }
    })
}

fn span(text: &str) -> Result<u64, String> {
    onceward::span_ms(text).map_err(|invalid| invalid.to_string())
}
