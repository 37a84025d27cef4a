//! Headers: what is passed on, who is calling, and whether they say what the body says.

use data_encoding::BASE32_NOPAD;
use hyper::HeaderMap;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use sha2::{Digest, Sha256};

use crate::waiters::Caller;

/// The session of the eras that have one.
pub(crate) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
/// The era.
pub(crate) const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// The method, as the body says it too.
pub(crate) const METHOD: HeaderName = HeaderName::from_static("mcp-method");
/// The tool, as the body says it too.
pub(crate) const NAME: HeaderName = HeaderName::from_static("mcp-name");
/// Arguments, as the body says them too.
pub(crate) const PARAM: &str = "mcp-param-";
/// A key of the caller's.
pub(crate) const KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// What lets a client in.
const TOKEN: HeaderName = HeaderName::from_static("x-once-token");
/// Where a stream is taken up again.
pub(crate) const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");

/// Headers that are between two neighbours and go no further.
const NEIGHBOURS: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// The headers that are passed on, in either direction.
pub(crate) fn passed_on(headers: &HeaderMap) -> HeaderMap {
    let named: Vec<String> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    let stays =
        |name: &HeaderName| NEIGHBOURS.contains(name) || named.iter().any(|other| other == name.as_str());
    let kept = headers.iter().filter(|(name, _)| !stays(name));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Headers by which callers say who they are. Cookies are not among them: those that balance load come and go.
const CREDENTIALS: [&str; 4] = ["authorization", "x-api-key", "api-key", "x-auth-token"];

/// Who is calling: his session, and a hash of how he has authorised himself. Whoever calls another place of the server
/// than `path` is somebody else too: it may be another tenant's.
pub(crate) fn caller(head: &Parts, path: &str) -> Caller {
    let session = head.headers.get(&SESSION).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let mut hash = Sha256::new();
    let mut is_known = false;
    let mut add = |name: &str, value: &[u8]| {
        is_known = true;
        for part in [name.as_bytes(), value] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
    };
    for name in CREDENTIALS {
        head.headers.get_all(name).iter().for_each(|value| add(name, value.as_bytes()));
    }
    let place = head.uri.path_and_query().map_or("/", |place| place.as_str());
    if place != path {
        add("path", place.as_bytes());
    }
    let principal = is_known.then(|| BASE32_NOPAD.encode(&hash.finalize()[..10]).to_ascii_lowercase());
    Caller { session, principal }
}

/// Whether the headers show that token. What showed it is taken out: it is not the server's.
pub(crate) fn take_token(headers: &mut HeaderMap, token: &str) -> bool {
    let shows = |value: &HeaderValue, scheme: &str| {
        let shown = value.as_bytes().strip_prefix(scheme.as_bytes());
        // Hashes are compared, so that the time it takes tells nothing about the token.
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

/// The key that the caller gives, quoted or bare.
pub(crate) fn key(headers: &HeaderMap) -> Option<String> {
    // What no key may hold is refused as one, not left out.
    let text = String::from_utf8_lossy(headers.get(&KEY)?.as_bytes());
    let text = text.trim();
    let quoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    Some(match quoted {
        Some(inner) => inner.replace("\\\"", "\"").replace("\\\\", "\\"),
        None => text.to_owned(),
    })
}

/// The text of a header, if it stands there once.
pub(crate) fn only<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut all = headers.get_all(name).iter();
    let first = all.next()?.to_str().ok()?;
    all.next().is_none().then_some(first)
}

/// Whether the client listens on this machine only, as far as the header tells. Whoever leaves it out is no browser.
pub(crate) fn is_loopback_origin(value: &HeaderValue) -> bool {
    let Ok(text) = value.to_str() else { return false };
    let host = text.split_once("://").map_or(text, |(_, host)| host);
    is_loopback_host(host)
}

/// Whether a host, with its port or without, is this machine.
pub(crate) fn is_loopback_host(host: &str) -> bool {
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(host, _)| host),
    };
    let address = host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    let host = host.to_ascii_lowercase();
    address || host == "localhost" || host.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_headers_stay_and_all_others_pass() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Mine"),
            ("x-mine", "1"),
            ("te", "trailers"),
            ("mcp-param-a", "1"),
            ("x-twice", "1"),
            ("x-twice", "2"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        let passed = passed_on(&headers);
        let names: Vec<(&str, &str)> =
            passed.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(names, [("mcp-param-a", "1"), ("x-twice", "1"), ("x-twice", "2")]);
    }

    #[test]
    fn a_key_is_the_same_quoted_and_bare() {
        for (given, expected) in [("k 1", "k 1"), ("\"k 1\"", "k 1"), (r#""a\"b""#, "a\"b"), ("\"", "\"")] {
            let mut headers = HeaderMap::new();
            headers.insert(KEY, HeaderValue::from_str(given).unwrap());
            assert_eq!(key(&headers).as_deref(), Some(expected));
        }
    }

    #[test]
    fn callers_differ_by_what_they_show_and_where_they_call() {
        let caller = |path: &str, headers: &[(&'static str, &str)]| {
            let mut request = hyper::Request::post(path);
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            caller(&request.body(()).unwrap().into_parts().0, "/mcp?a=1")
        };
        let nobody = caller("/mcp?a=1", &[("cookie", "x"), ("mcp-session-id", "s")]);
        assert_eq!((nobody.session.as_deref(), nobody.principal), (Some("s"), None));
        let others = [
            caller("/mcp?a=1", &[("authorization", "x")]),
            caller("/mcp?a=1", &[("authorization", "y")]),
            caller("/mcp?a=1", &[("x-api-key", "x")]),
            caller("/mcp?a=2", &[]),
            caller("/mcp?a=2", &[("authorization", "x")]),
        ];
        let different: std::collections::HashSet<_> =
            others.iter().map(|one| one.principal.clone()).collect();
        assert_eq!(different.len(), others.len());
        assert!(others.iter().all(|one| one.principal.is_some()));
    }

    #[test]
    fn who_is_on_this_machine() {
        for host in ["localhost", "localhost:80", "127.0.0.1:9", "[::1]:8", "a.localhost", "127.9.9.9"] {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in ["example.com", "localhost.example.com:80", "10.0.0.1", "[fe80::1]:8", ""] {
            assert!(!is_loopback_host(host), "{host}");
        }
        assert!(is_loopback_origin(&HeaderValue::from_static("http://localhost:5173")));
        assert!(!is_loopback_origin(&HeaderValue::from_static("null")));
        assert!(!is_loopback_origin(&HeaderValue::from_static("https://evil.example")));
    }
}
