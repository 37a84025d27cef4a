//! What the program around the inbox supplies: environment variables, and how commands are run.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use onceward::{Class, Code, InvalidInput};

use super::scheme::certificate::FetchCertificate;

type Variable = dyn Fn(&str) -> Option<String> + Send + Sync;

/// What only the program may do: read the environment and start processes. The default has no variables and runs no
/// commands.
#[derive(Clone)]
pub struct HostEnvironment {
    variable: Arc<Variable>,
    commands: Option<Arc<dyn RunCommand>>,
    certificates: Option<Arc<dyn FetchCertificate>>,
}

impl fmt::Debug for HostEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostEnvironment")
            .field("runs_commands", &self.commands.is_some())
            .finish_non_exhaustive()
    }
}

impl Default for HostEnvironment {
    fn default() -> Self {
        Self { variable: Arc::new(|_| None), commands: None, certificates: None }
    }
}

impl HostEnvironment {
    /// Reads environment variables with this function.
    #[must_use]
    pub fn variables(variable: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { variable: Arc::new(variable), ..Self::default() }
    }

    /// Runs the commands of handlers with this.
    #[must_use]
    pub fn commands(self, commands: Arc<dyn RunCommand>) -> Self {
        Self { commands: Some(commands), ..self }
    }

    /// Fetches signing certificates with this, instead of over HTTPS.
    #[must_use]
    pub fn certificates(self, certificates: Arc<dyn FetchCertificate>) -> Self {
        Self { certificates: Some(certificates), ..self }
    }

    pub(crate) fn fetcher(&self) -> Option<&Arc<dyn FetchCertificate>> {
        self.certificates.as_ref()
    }

    /// The value of a variable.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        (self.variable)(name)
    }

    pub(crate) fn runner(&self) -> Option<&Arc<dyn RunCommand>> {
        self.commands.as_ref()
    }

    /// A value that is written as `@FILE`, as `$VARIABLE`, or as it is.
    pub(crate) fn value(&self, text: &str) -> Result<String, InvalidInput> {
        if let Some(file) = text.strip_prefix('@') {
            let read = std::fs::read_to_string(Path::new(file));
            let value = read.map_err(|error| InvalidInput::new(format!("the file {file}: {error}")))?;
            return Ok(value.trim_end_matches(['\r', '\n']).to_owned());
        }
        if let Some(name) = text.strip_prefix('$') {
            let missing = || InvalidInput::new(format!("the environment variable {name} is not set"));
            return self.variable(name).filter(|value| !value.is_empty()).ok_or_else(missing);
        }
        Ok(text.to_owned())
    }
}

/// One attempt to deliver an event to a command, as an operation that the command's runner records.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CommandDelivery {
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The body of the event, for standard input.
    pub body: Bytes,
    /// What describes the event, for the environment.
    pub environment: Vec<(String, String)>,
    /// The scope of the operation.
    pub scope: String,
    /// Its name.
    pub name: String,
    /// Its key, which includes the occurrence.
    pub key: String,
    /// What may be done about a doubt.
    pub class: Class,
    /// The most attempts.
    pub attempts: u32,
    /// How long the command may run; 0 for no limit.
    pub timeout_ms: u64,
    /// How long the result is kept.
    pub retention_ms: u64,
    /// The command that tells whether a delivery in doubt happened, for `sh -c`.
    pub probe: Option<String>,
}

/// Runs the commands of handlers.
#[async_trait]
pub trait RunCommand: Send + Sync {
    /// Runs the command as the operation that `delivery` names, and records how it ended. A command that cannot be
    /// started is an attempt that failed.
    ///
    /// # Errors
    /// It did not succeed. If it was begun, its record says how it ended.
    async fn run(&self, delivery: CommandDelivery) -> Result<(), Unsuccessful>;
}

/// Why a command did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Unsuccessful {
    /// The code of its answer. `None` if it gave none.
    pub code: Option<Code>,
    /// The reason in words.
    pub message: String,
}
