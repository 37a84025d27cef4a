//! Tokens that are renewed: the same principal under another token, where the server says so.
//!
//! A caller is known by a hash of its credentials, and a result never crosses principals. A client whose token was
//! renewed between a call and its retry would be another principal, and the retry would run. It is the same one
//! where its session, or the issuer and subject of its token, are the same and the server takes the new token: the
//! server is asked before the ledger answers.

use bytes::Bytes;
use data_encoding::BASE64URL_NOPAD;
use hyper::http::request::Parts;
use hyper::{HeaderMap, header};
use quick_cache::sync::Cache;

use super::call::answer_to;
use super::gate::Gate;
use super::headers::{KEY, METHOD, NAME, PARAM, passed_on};
use super::remote::Connection;
use crate::call::ToolCall;
use crate::ends::Reply;
use crate::message::{Head, Id};
use crate::raw::{self, Object};
use crate::waiters::Caller;

/// How many callers are remembered. One that is forgotten is another principal with its next token.
const CALLERS: usize = 10_000;

/// Which principal is behind a session or a subject, and behind a renewed token.
pub(crate) struct Principals {
    behind: Cache<String, String>,
    renewed: Cache<String, String>,
}

impl Default for Principals {
    fn default() -> Self {
        Self { behind: Cache::new(CALLERS), renewed: Cache::new(CALLERS) }
    }
}

impl Principals {
    /// The caller as it was known before its token was renewed.
    pub(crate) fn known(&self, caller: Caller) -> Caller {
        let known = caller.principal.as_ref().and_then(|principal| self.renewed.get(principal));
        Caller { principal: known.or(caller.principal), ..caller }
    }

    /// The server has taken a call of that caller's: it is who it says it is.
    pub(crate) fn accepted(&self, headers: &HeaderMap, caller: &Caller) {
        let Some(principal) = &caller.principal else { return };
        for name in names(headers, caller) {
            if self.behind.get(&name).is_none() {
                self.behind.insert(name, principal.clone());
            }
        }
    }

    /// The principal that this caller may be, under a token that is not known.
    fn candidate(&self, headers: &HeaderMap, caller: &Caller) -> Option<String> {
        let principal = caller.principal.as_ref()?;
        let known = names(headers, caller).into_iter().find_map(|name| self.behind.get(&name))?;
        (known != *principal).then_some(known)
    }
}

/// What a caller is called beside its token.
fn names(headers: &HeaderMap, caller: &Caller) -> Vec<String> {
    let session = caller.session.as_ref().map(|session| format!("session {session}"));
    session.into_iter().chain(subject(headers)).collect()
}

/// The issuer and the subject of a token that says them.
fn subject(headers: &HeaderMap) -> Option<String> {
    let token = headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")?;
    let claims = BASE64URL_NOPAD.decode(token.split('.').nth(1)?.as_bytes()).ok()?;
    let claims = std::str::from_utf8(&claims).ok().and_then(Object::parse)?;
    Some(format!("subject {} {}", claims.string("iss")?, claims.string("sub")?))
}

impl Gate {
    /// The caller of a guarded call. One that shows a new token is the same principal as before if the server takes
    /// it.
    pub(crate) async fn principal(&self, head: &Parts, call: &ToolCall, caller: Caller) -> Caller {
        let caller = self.principals.known(caller);
        let Some(known) = self.principals.candidate(&head.headers, &caller) else { return caller };
        if !self.is_taken(head, call, caller.session.is_some()).await {
            return caller;
        }
        if let Some(renewed) = &caller.principal {
            self.principals.renewed.insert(renewed.clone(), known.clone());
        }
        Caller { principal: Some(known), ..caller }
    }

    /// Whether the server takes a request that changes nothing, under the credentials of that one.
    async fn is_taken(&self, head: &Parts, call: &ToolCall, has_session: bool) -> bool {
        let id = self.own_id();
        let method = if has_session { "ping" } else { "tools/list" };
        let meta =
            call.meta().map(|meta| raw::without(&meta, |name| !name.starts_with("io.modelcontextprotocol/")));
        let params = meta.map_or_else(String::new, |meta| format!(",\"params\":{{\"_meta\":{meta}}}"));
        let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\"{params}}}");
        let mut headers = passed_on(&head.headers);
        let doubled: Vec<_> = headers
            .keys()
            .filter(|name| **name == NAME || **name == KEY || name.as_str().starts_with(PARAM))
            .cloned()
            .collect();
        doubled.iter().for_each(|name| drop(headers.remove(name)));
        headers.remove(header::ACCEPT_ENCODING);
        if headers.contains_key(&METHOD) {
            headers.extend(method.parse().ok().map(|method| (METHOD, method)));
        }
        let request = self.remote.posted(head, headers, line);
        let Ok(response) = self.remote.send(request, Connection::Kept).await else { return false };
        match answer_to(&Id::of(&id), response).await {
            Ok(Reply::Answer(line)) => {
                let line = Bytes::from(line);
                std::str::from_utf8(&line)
                    .ok()
                    .and_then(Head::parse)
                    .is_some_and(|head| head.result.is_some())
            }
            Ok(Reply::Rejected(_) | Reply::Unclear(_) | Reply::Over(_)) | Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(sub: &str, issued: u64) -> HeaderMap {
        let claims = format!(r#"{{"iss":"i","sub":"{sub}","iat":{issued}}}"#);
        let token = format!("h.{}.s", BASE64URL_NOPAD.encode(claims.as_bytes()));
        HeaderMap::from_iter([(header::AUTHORIZATION, format!("Bearer {token}").parse().unwrap())])
    }

    #[test]
    fn only_a_session_or_a_subject_that_the_server_has_taken_makes_tokens_one_principal() {
        let principals = Principals::default();
        let caller = |session: Option<&str>, principal: &str| Caller {
            session: session.map(str::to_owned),
            principal: Some(principal.to_owned()),
        };
        let first = caller(None, "p1");
        assert_eq!(principals.candidate(&headers("a", 2), &caller(None, "p2")), None, "nothing is known yet");
        principals.accepted(&headers("a", 1), &first);
        assert_eq!(principals.candidate(&headers("a", 2), &caller(None, "p2")).as_deref(), Some("p1"));
        assert_eq!(principals.candidate(&headers("b", 2), &caller(None, "p2")), None);
        assert_eq!(principals.candidate(&HeaderMap::new(), &caller(Some("s"), "p2")), None);
        principals.accepted(&HeaderMap::new(), &caller(Some("s"), "p3"));
        assert_eq!(principals.candidate(&HeaderMap::new(), &caller(Some("s"), "p4")).as_deref(), Some("p3"));
        assert_eq!(principals.candidate(&HeaderMap::new(), &caller(Some("s"), "p3")), None);
    }
}
