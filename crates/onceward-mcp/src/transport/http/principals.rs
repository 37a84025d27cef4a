//! Recognizes callers whose token was renewed, and remembers which tokens the server has accepted.
//!
//! A caller is identified by a hash of its credentials, and a result never crosses principals. A client whose token
//! was renewed between a call and its retry would be another principal, and the retry would run again. It counts as
//! the same principal if its session is the same and the server accepts the new token. If the user says that the
//! server verifies its tokens, the same issuer and subject are enough, too. The server is asked before the ledger
//! answers. It is also asked before a stored result is given to credentials that it has not accepted for a while.

use data_encoding::BASE64URL_NOPAD;
use hyper::{HeaderMap, StatusCode, header};
use quick_cache::sync::Cache;

use super::limits::Renewal;
use crate::call::waiters::Caller;
use crate::wire::raw::Object;

/// The most callers that are remembered. A forgotten caller is another principal with its next token.
const CALLERS: usize = 10_000;
/// How long credentials that the server accepted are trusted without asking again.
const VOUCHED_MS: i64 = 60_000;

/// Maps sessions, subjects and renewed tokens to principals.
pub(crate) struct Principals {
    renewal: Renewal,
    behind: Cache<String, String>,
    renewed: Cache<String, String>,
    /// When the server last accepted these credentials.
    vouched: Cache<String, i64>,
}

impl Principals {
    pub(crate) fn new(renewal: Renewal) -> Self {
        Self {
            renewal,
            behind: Cache::new(CALLERS),
            renewed: Cache::new(CALLERS),
            vouched: Cache::new(CALLERS),
        }
    }

    /// The caller as it was known before its token was renewed.
    pub(crate) fn known(&self, caller: Caller) -> Caller {
        let known = caller.principal.as_ref().and_then(|principal| self.renewed.get(principal));
        Caller { principal: known.or(caller.principal), ..caller }
    }

    /// Notes the status with which the server answered a request of that caller.
    pub(crate) fn answered(&self, headers: &HeaderMap, shown: &Caller, status: StatusCode, now_ms: i64) {
        let Some(principal) = &shown.principal else { return };
        if is_denial(status) {
            self.vouched.remove(principal);
        } else if status.is_success() {
            self.vouched.insert(principal.clone(), now_ms);
            let known = self.known(shown.clone()).principal.unwrap_or_default();
            for name in self.names(headers, shown) {
                if self.behind.get(&name).is_none() {
                    self.behind.insert(name, known.clone());
                }
            }
        }
    }

    pub(super) fn is_vouched(&self, principal: &String, now_ms: i64) -> bool {
        self.vouched.get(principal).is_some_and(|since_ms| now_ms - since_ms < VOUCHED_MS)
    }

    /// The principal that a caller with an unknown token may be.
    pub(super) fn candidate(&self, headers: &HeaderMap, caller: &Caller) -> Option<String> {
        let principal = caller.principal.as_ref()?;
        let known = self.names(headers, caller).into_iter().find_map(|name| self.behind.get(&name))?;
        (known != *principal).then_some(known)
    }

    /// Notes that the server accepts a new token of a known principal.
    pub(super) fn note_renewal(&self, renewed: String, known: String) {
        self.renewed.insert(renewed, known);
    }

    /// How a caller is recognized apart from its token.
    fn names(&self, headers: &HeaderMap, caller: &Caller) -> Vec<String> {
        let session = caller.session.as_ref().map(|session| format!("session {session}"));
        let subject = match self.renewal {
            Renewal::Session => None,
            Renewal::SessionOrSubject => subject(headers),
        };
        session.into_iter().chain(subject).collect()
    }
}

/// Whether the status rejects the credentials.
pub(super) fn is_denial(status: StatusCode) -> bool {
    status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN
}

/// The issuer and the subject in a token, if it has them.
fn subject(headers: &HeaderMap) -> Option<String> {
    let token = headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")?;
    let claims = BASE64URL_NOPAD.decode(token.split('.').nth(1)?.as_bytes()).ok()?;
    let claims = std::str::from_utf8(&claims).ok().and_then(Object::parse)?;
    Some(format!("subject {} {}", claims.string("iss")?, claims.string("sub")?))
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
    fn only_a_session_that_the_server_has_accepted_makes_tokens_one_principal() {
        let caller = |session: Option<&str>, principal: &str| Caller {
            session: session.map(str::to_owned),
            principal: Some(principal.to_owned()),
        };
        let none = HeaderMap::new();
        for renewal in [Renewal::Session, Renewal::SessionOrSubject] {
            let principals = Principals::new(renewal);
            let renewed = headers("a", 2);
            assert_eq!(principals.candidate(&renewed, &caller(None, "p2")), None, "nothing is known yet");
            principals.answered(&headers("a", 1), &caller(None, "p1"), StatusCode::OK, 0);
            let by_subject = (renewal == Renewal::SessionOrSubject).then_some("p1");
            assert_eq!(principals.candidate(&renewed, &caller(None, "p2")).as_deref(), by_subject);
            assert_eq!(principals.candidate(&headers("b", 2), &caller(None, "p2")), None);
            assert_eq!(principals.candidate(&none, &caller(Some("s"), "p2")), None);
            principals.answered(&none, &caller(Some("s"), "p5"), StatusCode::UNAUTHORIZED, 0);
            principals.answered(&none, &caller(Some("s"), "p3"), StatusCode::ACCEPTED, 0);
            assert_eq!(principals.candidate(&none, &caller(Some("s"), "p4")).as_deref(), Some("p3"));
            assert_eq!(principals.candidate(&none, &caller(Some("s"), "p3")), None);
        }
    }

    #[test]
    fn credentials_are_trusted_until_the_server_denies_them() {
        let principals = Principals::new(Renewal::Session);
        let caller = Caller { session: None, principal: Some("p".to_owned()) };
        let is_vouched = |now_ms| principals.is_vouched(&"p".to_owned(), now_ms);
        let answered = |status| principals.answered(&HeaderMap::new(), &caller, status, 1_000);
        assert!(!is_vouched(1_000));
        answered(StatusCode::OK);
        assert!(is_vouched(60_999) && !is_vouched(61_000), "for a minute");
        answered(StatusCode::BAD_GATEWAY);
        assert!(is_vouched(1_000));
        answered(StatusCode::FORBIDDEN);
        assert!(!is_vouched(1_000));
    }
}
