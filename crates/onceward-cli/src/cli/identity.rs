//! The arguments that identify an operation.

use clap::{Args, ValueEnum};
use onceward::KeyPolicy;

/// What identifies an operation.
#[derive(Debug, Clone, Args)]
pub(crate) struct IdentityArgs {
    /// Name of the operation [default: the command's file name]
    #[arg(long, help_heading = "Identity")]
    pub(crate) name: Option<String>,
    /// Key that identifies the action [default: derived from the name and the inputs]
    #[arg(long, value_name = "KEY", help_heading = "Identity")]
    pub(crate) key: Option<String>,
    /// Namespace for keys, such as a session, a run or a tenant
    #[arg(
        long,
        visible_alias = "session",
        env = "ONCE_SCOPE",
        default_value = "default",
        help_heading = "Identity"
    )]
    pub(crate) scope: String,
    /// Deliberately repeat the same action: 2, 3, … or any label
    #[arg(long, value_name = "N|LABEL", help_heading = "Identity")]
    pub(crate) occurrence: Option<String>,
    /// Fields of the JSON input that identify the action (comma-separated; `order.id` or `/order/id`)
    #[arg(long, value_name = "FIELDS", value_delimiter = ',', help_heading = "Identity")]
    pub(crate) key_fields: Vec<String>,
    /// Input fields that may differ between a call and its retry
    #[arg(long, value_name = "FIELDS", value_delimiter = ',', help_heading = "Identity")]
    pub(crate) volatile: Vec<String>,
    /// Include this JSON value in the operation's identity
    #[arg(long, value_name = "JSON", help_heading = "Identity")]
    pub(crate) input: Option<String>,
    /// Include this file's content in the operation's identity
    #[arg(long, value_name = "FILE", help_heading = "Identity")]
    pub(crate) input_file: Vec<std::path::PathBuf>,
    /// Include this environment variable in the operation's identity
    #[arg(long, value_name = "NAME", help_heading = "Identity")]
    pub(crate) env: Vec<String>,
    /// Include standard input in the operation's identity, even with --key; it is read completely, then passed on
    #[arg(long, help_heading = "Identity")]
    pub(crate) stdin: bool,
    /// Exclude from a derived key: the working folder, piped standard input (comma-separated)
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_enum, help_heading = "Identity")]
    pub(crate) ignore: Vec<Ignored>,
    /// Whether the same call without a key is a retry or a new action [default: auto; strict with --scope]
    #[arg(long, value_name = "RULE", value_enum, help_heading = "Identity")]
    pub(crate) keys: Option<Keys>,
}

/// What can be excluded from a derived key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Ignored {
    /// The working folder
    Folder,
    /// Standard input, if it is a pipe or a file
    Stdin,
}

/// Whether the same call without a key is a retry or a new action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Keys {
    /// A retry until its answer has been delivered; after that, a new action
    Auto,
    /// Always a retry
    Strict,
    /// A key is required
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
