//! HTTP headers: names, forwarding, and parsing.

use hyper::HeaderMap;
use hyper::header::{self, HeaderName, HeaderValue};
pub(crate) use onceward_http::headers::{KEY, only, passed_on};
use sha2::{Digest, Sha256};

/// The session id, in revisions with sessions.
pub(crate) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
/// The protocol version.
pub(crate) const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// The method, which repeats the body.
pub(crate) const METHOD: HeaderName = HeaderName::from_static("mcp-method");
/// The tool, which repeats the body.
pub(crate) const NAME: HeaderName = HeaderName::from_static("mcp-name");
/// The prefix of headers that repeat arguments of the body.
pub(crate) const PARAM: &str = "mcp-param-";
/// A proof of possession of the token's key (DPoP), made for one request.
pub(crate) const DPOP: HeaderName = HeaderName::from_static("dpop");
/// The token of this listener.
const TOKEN: HeaderName = HeaderName::from_static("x-once-token");
/// The event after which a stream is resumed.
pub(crate) const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");

/// Whether the headers carry that token. Removes it, because it is not meant for the server.
pub(crate) fn take_token(headers: &mut HeaderMap, token: &str) -> bool {
    let shows = |value: &HeaderValue, scheme: &str| {
        let shown = value.as_bytes().strip_prefix(scheme.as_bytes());
        // Comparing hashes keeps the timing independent of the token.
        shown.is_some_and(|shown| Sha256::digest(shown) == Sha256::digest(token.as_bytes()))
    };
    if headers.get(&TOKEN).is_some_and(|value| shows(value, "")) {
        headers.remove(&TOKEN);
        return true;
    }
    if headers.get(header::AUTHORIZATION).is_some_and(|value| shows(value, "Bearer ")) {
        headers.remove(header::AUTHORIZATION);
        return true;
    }
    false
}

/// The caller's key, quoted or not.
pub(crate) fn key(headers: &HeaderMap) -> Option<String> {
    onceward_http::headers::key(headers, &KEY)
}
