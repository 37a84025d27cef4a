//! The settings of a proxy.

use onceward::{KeyPolicy, OnToolError, Policy};

use crate::call::scope::HostScope;
use crate::tools::rules::{Exposure, Guess, Trust};

/// The settings of a proxy. [`Options::new`] has the defaults of `once mcp`.
///
/// ```
/// use onceward_mcp::{Exposure, HostScope, Options};
///
/// let options = Options {
///     exposure: Exposure::Arguments,
///     wait_ms: 60_000,
///     ..Options::new("shop", "npx shop-mcp", HostScope::connection())
/// };
/// assert_eq!(options.server, "shop");
/// ```
pub struct Options {
    /// A short name for the server. Operations are named `server/tool`.
    pub server: String,
    /// Distinguishes this server from another one with the same name: its command or its address.
    pub identity: String,
    /// The policy.
    pub policy: Policy,
    /// Which callers share keys.
    pub scope: HostScope,
    /// Where keys come from, unless the policy says so for a tool.
    pub keys: Option<KeyPolicy>,
    /// Whether the server's annotations are trusted.
    pub trust: Trust,
    /// Whether a tool without annotations is classified by its name.
    pub guess: Guess,
    /// What a tool's own error means, unless the policy says so for the tool.
    pub on_tool_error: Option<OnToolError>,
    /// The command that people run to use the same ledger.
    pub program: String,
    /// Whether the model sees arguments for a key and a dry run.
    pub exposure: Exposure,
    /// Whether calls that may change something are only previewed.
    pub dry_run: bool,
    /// When a client may have given up silently.
    pub slow: Slow,
    /// How long a call waits for the same call of another caller, and for a named lock.
    pub wait_ms: u64,
    /// How long calls may continue after the client is gone.
    pub drain_ms: u64,
    /// Whether the human may be asked about an operation in doubt.
    pub asking: Asking,
    /// Receives notices for people.
    pub notice: Box<dyn Fn(&str) + Send + Sync>,
}

impl Options {
    /// The defaults of `once mcp`, for a server with that name and identity. Notices are dropped.
    #[must_use]
    pub fn new(server: impl Into<String>, identity: impl Into<String>, scope: HostScope) -> Self {
        Self {
            server: server.into(),
            identity: identity.into(),
            policy: Policy::default(),
            scope,
            keys: None,
            trust: Trust::Annotations,
            guess: Guess::Reads,
            on_tool_error: None,
            program: "once".to_owned(),
            exposure: Exposure::Hidden,
            dry_run: false,
            slow: Slow { ms: 4_000, every_client: false },
            wait_ms: 600_000,
            drain_ms: 30_000,
            asking: Asking::Human,
            notice: Box::new(|_| {}),
        }
    }
}

/// When a client may have given up silently: if an answer took at least this long, the same call as the next request
/// is a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slow {
    /// How long such an answer takes, in milliseconds.
    pub ms: u64,
    /// Whether this applies to every client, or only to those that are known to give up silently.
    pub every_client: bool,
}

/// Whether the proxy may ask the human through the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Asking {
    /// Yes, if the client supports it.
    Human,
    /// No. Only the agent is informed.
    Nobody,
}
