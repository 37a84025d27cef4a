//! Scopes: which callers share keys.

use onceward::{InvalidInput, PRINCIPAL};

use crate::call::waiters::Caller;
use crate::wire::raw::{self, Object};

/// The `_meta` members in which hosts name the conversation of a call.
const CONVERSATIONS: [&str; 6] = [
    "dev.onceward/scope",
    "threadId",
    "vscode.conversationId",
    "ai.opencode/sessionID",
    "antigravity.google/conversation_id",
    "hermes_session_key",
];

/// The `_meta` members in which hosts name their call. The same id is the same call.
const CALL_IDS: [&str; 2] = ["claudecode/toolUseId", "callId"];

/// Where the scope of a connection comes from, before the `_meta` of a call is considered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostScope {
    /// The user chose it. Nothing overrides it.
    Chosen(String),
    /// The host's environment named a session. The `_meta` of a call takes precedence.
    Session(String),
    /// No scope was named. It is this connection, so nothing is remembered across restarts.
    Connection(String),
}

impl HostScope {
    /// A scope for a connection without a name.
    #[must_use]
    pub fn connection() -> Self {
        Self::Connection(format!("connection-{}", random_name()))
    }

    /// The scope of a call with this `_meta`. A caller with credentials has its own: a result never crosses
    /// principals.
    ///
    /// # Errors
    /// If a client names a scope that could belong to another caller's credentials.
    pub(crate) fn of(&self, meta: Option<&Object<'_>>, caller: &Caller) -> Result<Scope, InvalidInput> {
        let own = match self {
            Self::Chosen(scope) => return Ok(Scope::new(scope.clone(), ScopeKind::Chosen, caller)),
            Self::Session(scope) | Self::Connection(scope) => scope,
        };
        // Hosts may put anything into their own members. Ours is an order, and is followed or refused.
        let ordered = meta.and_then(|meta| meta.get(CONVERSATIONS[0])).filter(|value| *value != "null");
        if let Some(value) = ordered
            && !raw::string(value).is_some_and(|scope| is_scope(&scope))
        {
            return Err(InvalidInput::new(format!("{} is {value}, which is not a scope", CONVERSATIONS[0])));
        }
        let named = meta.and_then(|meta| CONVERSATIONS.iter().find_map(|name| meta.string(name)));
        if let Some(named) = named.filter(|scope| is_scope(scope)) {
            if named.contains(PRINCIPAL) {
                let why = format!("a scope that a client names must not contain `{PRINCIPAL}`");
                return Err(InvalidInput::new(why));
            }
            return Ok(Scope::new(named, ScopeKind::Named, caller));
        }
        Ok(self.without_meta(own, caller))
    }

    /// The scope of a caller whose call names none.
    pub(crate) fn of_caller(&self, caller: &Caller) -> Scope {
        match self {
            Self::Chosen(scope) => Scope::new(scope.clone(), ScopeKind::Chosen, caller),
            Self::Session(scope) | Self::Connection(scope) => self.without_meta(scope, caller),
        }
    }

    fn without_meta(&self, own: &str, caller: &Caller) -> Scope {
        match caller.session.as_deref().filter(|session| is_scope(session)) {
            // Servers and clients choose session ids freely.
            Some(session) => Scope::new(session.replace(PRINCIPAL, "%7E"), ScopeKind::Session, caller),
            None => Scope::new(own.to_owned(), ScopeKind::Named, caller),
        }
    }
}

/// The scope of a call.
pub(crate) struct Scope {
    /// Its name.
    pub(crate) name: String,
    /// Whether it is only a session, which a client may lose and start again.
    pub(crate) is_session: bool,
    /// Whether the user chose it.
    pub(crate) is_chosen: bool,
}

/// Where a scope comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScopeKind {
    Chosen,
    Named,
    Session,
}

impl Scope {
    fn new(name: String, kind: ScopeKind, caller: &Caller) -> Self {
        let name = match &caller.principal {
            Some(principal) => format!("{name}{PRINCIPAL}{principal}"),
            None => name,
        };
        Self { name, is_session: kind == ScopeKind::Session, is_chosen: kind == ScopeKind::Chosen }
    }
}

/// A random, unique name.
pub(crate) fn random_name() -> String {
    let mut bytes = [0_u8; 10];
    match getrandom::fill(&mut bytes) {
        // Without randomness all such names are equal: safe, but less specific.
        Ok(()) | Err(_) => {}
    }
    data_encoding::BASE32_NOPAD.encode(&bytes).to_ascii_lowercase()
}

/// The host's own id for this call.
pub(crate) fn call_id(meta: Option<&Object<'_>>) -> Option<String> {
    let meta = meta?;
    CALL_IDS.iter().find_map(|name| meta.string(name))
}

fn is_scope(text: &str) -> bool {
    onceward::name_like("scope", text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_cannot_name_the_scope_of_other_credentials() {
        let host = HostScope::Connection("connection-x".to_owned());
        let caller = |session: Option<&str>, principal: Option<&str>| Caller {
            session: session.map(str::to_owned),
            principal: principal.map(str::to_owned),
        };
        let alice = host.of(None, &caller(None, Some("hash"))).unwrap_or_else(|_| panic!("it is hers")).name;
        assert_eq!(alice, "connection-x~hash");
        for name in CONVERSATIONS {
            let text = format!("{{\"{name}\":\"{alice}\"}}");
            let meta = Object::parse(&text);
            assert!(host.of(meta.as_ref(), &Caller::default()).is_err(), "{name}");
            // A scope that the user chose is not overridden, so the name is not refused.
            let chosen = HostScope::Chosen("s".to_owned());
            let named = chosen.of(meta.as_ref(), &Caller::default());
            assert_eq!(named.map_or_else(|_| "refused".to_owned(), |scope| scope.name), "s");
        }
        assert_eq!(host.of_caller(&caller(Some(&alice), None)).name, "connection-x%7Ehash");
    }
}
