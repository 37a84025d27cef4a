//! Identifies callers by their session and by a hash of everything that may identify them.
//!
//! Servers accept credentials in headers of any name. So every header counts, except those that are known not to
//! identify the caller.

use hyper::http::request::Parts;
use onceward::Ledger;
use onceward_http::principal::Principals;

use super::headers::{DPOP, SESSION};
use crate::call::waiters::Caller;

/// Identifies callers.
pub(crate) struct Callers {
    principals: Principals,
    /// The path that the server's URL names.
    place: String,
}

impl Callers {
    pub(crate) fn new(ledger: &Ledger, place: &str, ignored: &[String]) -> Self {
        let principals = Principals::new(ledger.identity().secret.clone(), ignored);
        Self { principals, place: place.to_owned() }
    }

    /// The caller of this request. A request to another path than the server's own is a different caller: the path
    /// may select a tenant.
    pub(crate) fn of(&self, head: &Parts) -> Caller {
        let session = head.headers.get(&SESSION).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let place = head.uri.path_and_query().map_or("/", |place| place.as_str());
        let elsewhere = [(":path", place.as_bytes())];
        let more: &[(&str, &[u8])] = if place == self.place { &[] } else { &elsewhere };
        Caller { session, principal: self.principals.of(&head.headers, more) }
    }
}

/// Whether a request carries a single-use proof. Then the proxy cannot send another request with its credentials.
pub(crate) fn shows_proof(head: &Parts) -> bool {
    head.headers.contains_key(&DPOP)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use onceward::Identity;
    use onceward::RANDOM_BYTES;

    use super::*;

    fn callers(byte: Option<u8>) -> Callers {
        let secret = byte.and_then(|byte| Identity::fresh(&[byte; RANDOM_BYTES]).secret);
        Callers { principals: Principals::new(secret, &["x-mine".to_owned()]), place: "/mcp?a=1".to_owned() }
    }

    fn caller(path: &str, headers: &[(&'static str, &str)]) -> Caller {
        caller_of(&callers(Some(1)), path, headers)
    }

    fn caller_of(callers: &Callers, path: &str, headers: &[(&'static str, &str)]) -> Caller {
        let mut request = hyper::Request::post(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        callers.of(&request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn callers_differ_by_their_headers_and_their_path() {
        let here = "/mcp?a=1";
        let others = [
            caller(here, &[("authorization", "x")]),
            caller(here, &[("authorization", "y")]),
            caller(here, &[("authorization", "x"), ("x-tenant", "t")]),
            caller(here, &[("x-api-key", "x")]),
            caller(here, &[("x-goog-api-key", "x")]),
            caller(here, &[("private-token", "x")]),
            caller(here, &[("ocp-apim-subscription-key", "x")]),
            caller(here, &[("x-amz-security-token", "x")]),
            caller(here, &[("x-forwarded-user", "x")]),
            caller(here, &[("a-header-of-tomorrow", "x")]),
            caller(here, &[("cookie", "sid=1")]),
            caller(here, &[("cookie", "sid=2")]),
            caller("/mcp?a=2", &[]),
            caller("/mcp?a=2", &[("authorization", "x")]),
        ];
        let different: HashSet<_> = others.iter().map(|one| one.principal.clone()).collect();
        assert_eq!(different.len(), others.len());
        assert!(others.iter().all(|one| one.principal.is_some()));
    }

    #[test]
    fn neutral_headers_do_not_identify_a_caller() {
        let here = "/mcp?a=1";
        let anonymous = caller(
            here,
            &[
                ("mcp-session-id", "s"),
                ("user-agent", "a"),
                ("traceparent", "1"),
                ("x-mine", "1"),
                ("x-stainless-retry-count", "2"),
                ("mcp-param-n", "3"),
                ("cookie", "AWSALB=xyz; _ga=1"),
            ],
        );
        assert_eq!((anonymous.session.as_deref(), anonymous.principal), (Some("s"), None));
        let one = caller(here, &[("cookie", "b=2; a=1; AWSALB=1"), ("x-request-id", "1"), ("x-a", "1")]);
        let same = caller(here, &[("x-a", "1"), ("cookie", "a=1; b=2; AWSALB=2"), ("x-request-id", "2")]);
        assert_eq!(one.principal, same.principal);
    }

    #[test]
    fn a_hash_is_of_no_use_without_the_key() {
        let headers = [("authorization", "Bearer hunter2")];
        let hashes = [Some(1), Some(2), None].map(|byte| caller_of(&callers(byte), "/", &headers).principal);
        assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), 3);
    }
}
