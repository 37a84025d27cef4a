//! Errors of commands, and their exit codes.

use std::process::ExitCode;

use onceward::{Code, Error, InvalidInput, StoreError};

/// An error that stops a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// An error of the ledger.
    #[error(transparent)]
    Ledger(#[from] Error),
    /// A problem outside the ledger.
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
