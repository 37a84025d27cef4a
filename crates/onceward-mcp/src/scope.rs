//! Who shares keys: the scope of a call.

use crate::raw::Object;
use crate::waiters::Caller;

/// Hosts that say in `_meta` which conversation a call belongs to, as they spell it.
const CONVERSATIONS: [&str; 6] = [
    "dev.onceward/scope",
    "threadId",
    "vscode.conversationId",
    "ai.opencode/sessionID",
    "antigravity.google/conversation_id",
    "hermes_session_key",
];

/// Hosts that say in `_meta` which of their own calls this is: the same id again is the same call again.
const CALL_IDS: [&str; 2] = ["claudecode/toolUseId", "callId"];

/// Where the scope of a connection comes from, before a call's own `_meta` is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostScope {
    /// The caller chose it: nothing overrides it.
    Chosen(String),
    /// The host's environment named a session: a call's own `_meta` comes first.
    Session(String),
    /// Nobody named one: it is this connection, and nothing is remembered across restarts.
    Connection(String),
}

impl HostScope {
    /// The scope of a connection that names none.
    #[must_use]
    pub fn connection() -> Self {
        Self::Connection(format!("connection-{}", random_name()))
    }

    /// The scope of a call with this `_meta` of that caller's. Whoever has authorised himself has one of his own: a
    /// result never crosses principals.
    pub(crate) fn of(&self, meta: Option<&Object<'_>>, caller: &Caller) -> Scope {
        let named = || {
            let meta = meta?;
            CONVERSATIONS.iter().find_map(|name| meta.string(name)).filter(|scope| is_scope(scope))
        };
        let session = || caller.session.clone().filter(|scope| is_scope(scope));
        let (scope, is_session) = match self {
            Self::Chosen(scope) => (scope.clone(), false),
            Self::Session(scope) | Self::Connection(scope) => match (named(), session()) {
                (Some(named), _) => (named, false),
                (None, Some(session)) => (session, true),
                (None, None) => (scope.clone(), false),
            },
        };
        let name = match &caller.principal {
            Some(principal) => format!("{scope}~{principal}"),
            None => scope,
        };
        Scope { name, is_session, is_chosen: matches!(self, Self::Chosen(_)) }
    }
}

/// Who shares keys with a call.
pub(crate) struct Scope {
    /// Its name.
    pub(crate) name: String,
    /// Whether it is only a session, which a client may lose and begin anew.
    pub(crate) is_session: bool,
    /// Whether the user chose it.
    pub(crate) is_chosen: bool,
}

/// A name that nobody else has.
pub(crate) fn random_name() -> String {
    let mut bytes = [0_u8; 10];
    match getrandom::fill(&mut bytes) {
        // Without randomness the name is shared with whoever has none either: safe, and only less narrow.
        Ok(()) | Err(_) => {}
    }
    data_encoding::BASE32_NOPAD.encode(&bytes).to_ascii_lowercase()
}

/// The host's own id of this call.
pub(crate) fn call_id(meta: Option<&Object<'_>>) -> Option<String> {
    let meta = meta?;
    CALL_IDS.iter().find_map(|name| meta.string(name))
}

fn is_scope(text: &str) -> bool {
    onceward::key::name_like("scope", text).is_ok()
}
