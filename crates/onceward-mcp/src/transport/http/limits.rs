//! The options of a listener.

/// Limits of a listener, and how it identifies clients.
///
/// ```
/// let mut limits = onceward_mcp::http::Limits::default();
/// limits.token = Some("a long random text".to_owned());
/// assert_eq!(limits.transport.connections, 1_024);
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Limits {
    /// Limits of its connections and of request bodies.
    pub transport: onceward_http::Limits,
    /// The token that clients must present. Required if the listener can be reached from other machines.
    pub token: Option<String>,
    /// How a caller is recognized after its token was renewed.
    pub renewal: Renewal,
    /// Additional headers that do not identify the caller.
    pub ignored_headers: Vec<String>,
}

/// How a caller with a new token is recognized, if the server accepts that token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Renewal {
    /// By its session.
    #[default]
    Session,
    /// Also by the issuer and the subject of its token. Only for servers that verify tokens: others accept a token
    /// that claims to be someone else's.
    SessionOrSubject,
}
