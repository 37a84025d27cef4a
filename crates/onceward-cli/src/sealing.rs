//! Encryption at rest, as the command line configures it.

use std::path::Path;
use std::process::Command;

use onceward_store::seal::Keys;
use onceward_store::seal::{KEY_VARIABLE, WITHHELD, from_environment};

use crate::context::Context;
use crate::exit::CommandError;

impl Context {
    /// The keys that results are sealed with: from the environment, or from the file that the policy names.
    pub(crate) fn keys(&self) -> Result<Option<Keys>, CommandError> {
        if let Some(keys) = from_environment()? {
            return Ok(Some(keys));
        }
        let Some(file) = self.policy.encryption_key_file() else { return Ok(None) };
        let folder = self.policy_file.as_deref().and_then(Path::parent);
        let file = folder.unwrap_or(Path::new("")).join(file);
        Ok(Some(Keys::read(&file)?))
    }
}

/// Hides the key from a command that is started. If that command opens a ledger, the error says why it cannot.
pub(crate) fn withhold_key(command: &mut Command) {
    if std::env::var_os(KEY_VARIABLE).is_some() {
        command.env(KEY_VARIABLE, WITHHELD);
    }
}
