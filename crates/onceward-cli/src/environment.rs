//! The environment of commands that `once` starts, without the ledger's password.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::Command;

use onceward::{OperationId, text};
use sha2::{Digest, Sha256};

/// The variable that names the ledger.
const LEDGER: &str = "ONCE_LEDGER";
/// Secrets that only `once` itself needs.
const OWN_SECRETS: [&str; 2] = ["ONCE_MCP_TOKEN", "ONCE_TOKEN"];
/// The options of a URL that name the variable of its password or token.
const BY_VARIABLE: [&str; 2] = ["password_env=", "token_env="];

/// Whether a command gets the ledger's password.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PassLedger {
    /// `--pass-ledger` asks for it.
    Yes,
    /// The default: a command, and even more a third-party server, has no need for it.
    No,
}

/// Changes to the environment of a command.
#[derive(Debug, Clone, Default)]
pub(crate) struct Environment {
    ledger: Option<String>,
    removed: Vec<String>,
    /// What the caller of a held command declared.
    declared: BTreeMap<String, String>,
    /// Stands for the ledger where its URL must not be seen.
    mark: String,
}

impl Environment {
    /// The environment of commands for a ledger with this URL. The URL is kept without its password, so that a
    /// nested `once` uses the same ledger. It needs the password from another source, and fails with an error
    /// without it instead of silently using another ledger.
    pub(crate) fn of(url: Option<&str>, pass: PassLedger) -> Self {
        if pass == PassLedger::Yes {
            return Self { ledger: url.map(str::to_owned), mark: mark(url), ..Self::default() };
        }
        let inherited = std::env::var(LEDGER).ok();
        let named = [url, inherited.as_deref()].into_iter().flatten().flat_map(secret_variables);
        let mut removed: Vec<String> = named.collect();
        removed.extend(OWN_SECRETS.map(str::to_owned));
        if [url, inherited.as_deref()].into_iter().flatten().any(|url| url.starts_with("postgres")) {
            removed.push("PGPASSWORD".to_owned());
        }
        let ledger = inherited.filter(|url| text::has_password(url));
        let ledger = ledger.map(|url| text::without_password(&url).into_owned());
        Self { ledger, removed, mark: mark(url), declared: BTreeMap::new() }
    }

    /// The same with the values that the caller of a held command declared, whatever this process has.
    pub(crate) fn with_declared(self, declared: &BTreeMap<String, String>) -> Self {
        Self { declared: declared.clone(), ..self }
    }

    /// An operation among those of all ledgers: two ledgers may have the same id.
    pub(crate) fn name_of(&self, operation: &OperationId) -> String {
        format!("{operation}@{}", self.mark)
    }

    /// The variables that a command does not get.
    pub(crate) fn removed(&self) -> impl Iterator<Item = &str> {
        self.removed.iter().map(String::as_str)
    }

    /// Gives a command this environment.
    pub(crate) fn give_to(&self, command: &mut Command) {
        // What `once` itself says about the attempt replaces what its caller has, in a call that is not held as well.
        let own: Vec<OsString> = command.get_envs().map(|(name, _)| name.to_owned()).collect();
        command.envs(self.declared.iter().filter(|(name, _)| !own.iter().any(|own| own == name.as_str())));
        for name in &self.removed {
            command.env_remove(name);
        }
        if let Some(url) = &self.ledger {
            command.env(LEDGER, url);
        }
    }
}

/// The same for every URL of a ledger that differs only in its options or its password.
fn mark(url: Option<&str>) -> String {
    let url = text::without_password(url.unwrap_or_default());
    let place = url.split_once('?').map_or(&*url, |(place, _)| place);
    data_encoding::HEXLOWER.encode(&Sha256::digest(place)[..8])
}

/// The variables that hold the password or the token of a URL. Their names may be percent-encoded there.
fn secret_variables(url: &str) -> impl Iterator<Item = String> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let name =
        |pair: &str| BY_VARIABLE.iter().find_map(|option| pair.strip_prefix(option)).map(str::to_owned);
    let names: Vec<String> = query.split('&').filter_map(name).collect();
    names.into_iter().map(|name| text::percent_decoded(&name).into_owned())
}
