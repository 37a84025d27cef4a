//! How `once` ends: an answer or an error, and one exit code for each.

use std::process::ExitCode;

use onceward::{Code, Error, InvalidInput, StoreError};

/// What stops a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// The ledger's own word.
    #[error(transparent)]
    Ledger(#[from] Error),
    /// Something outside the ledger is in the way.
    #[error("{0}")]
    Outside(String),
}

impl CommandError {
    /// Input that was refused.
    pub(crate) fn invalid(problem: impl Into<String>) -> Self {
        Self::Ledger(InvalidInput::new(problem).into())
    }

    /// The exit code.
    pub(crate) fn exit(&self) -> u8 {
        match self {
            Self::Ledger(error) => error.code().exit(),
            Self::Outside(_) => Code::Failed.exit(),
        }
    }
}

impl From<InvalidInput> for CommandError {
    fn from(invalid: InvalidInput) -> Self {
        Self::Ledger(invalid.into())
    }
}

impl From<StoreError> for CommandError {
    fn from(error: StoreError) -> Self {
        Self::Ledger(error.into())
    }
}

/// The result of a command: its exit code if it answered, or the error that stopped it.
pub(crate) type Ended = Result<ExitCode, CommandError>;
