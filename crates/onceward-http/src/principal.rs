//! Identifies callers by a hash of everything that may identify them.
//!
//! Servers accept credentials in headers of any name. So every header counts, except those that are known not to
//! identify the caller. A surface whose upstream authenticates every first request itself may count only the headers
//! whose names say that they identify a caller, if a request has one: proxies and SDKs add headers that change with
//! every attempt, and a retry must not be another caller.

use data_encoding::BASE32_NOPAD;
use hyper::HeaderMap;
use hyper::header::{self, HeaderName, HeaderValue};
use onceward::Secret;
use sha2::{Digest, Sha256};

/// Headers that do not identify the caller: those of the protocol, the connection and the client library, and those
/// that trace or count requests. A proof of possession is made for one request; the token that it proves counts.
const NEUTRAL: [&str; 57] = [
    // Content negotiation and protocol.
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "idempotency-key",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
    "pragma",
    "prefer",
    "priority",
    // Connection and intermediaries.
    "connection",
    "date",
    "dpop",
    "forwarded",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-real-ip",
    // The client program.
    "dnt",
    "origin",
    "referer",
    "user-agent",
    // Traces and retry counts.
    "b3",
    "baggage",
    "elastic-apm-traceparent",
    "newrelic",
    "request-id",
    "retry-count",
    "sentry-trace",
    "traceparent",
    "tracestate",
    "uber-trace-id",
    "x-amzn-trace-id",
    "x-client-request-id",
    "x-cloud-trace-context",
    "x-correlation-id",
    "x-ms-client-request-id",
    "x-request-id",
    "x-retry-count",
    "x-trace-id",
];

/// Name prefixes of more such headers.
const NEUTRAL_FAMILIES: [&str; 7] =
    ["mcp-param-", "once-", "sec-fetch-", "sec-ch-", "x-b3-", "x-datadog-", "x-stainless-"];

/// Headers of proxies and SDKs that change with every attempt. They count where every header may be a credential.
const PER_ATTEMPT: [&str; 22] = [
    "amz-sdk-invocation-id",
    "amz-sdk-request",
    "cdn-loop",
    "cf-connecting-ip",
    "cf-ray",
    "content-digest",
    "content-md5",
    "deadline",
    "fly-request-id",
    "grpc-timeout",
    "rndr-id",
    "x-amz-date",
    "x-attempt",
    "x-envoy-attempt-count",
    "x-envoy-expected-rq-timeout-ms",
    "x-goog-api-client",
    "x-request-start",
    "x-retry-attempt",
    "x-stripe-client-telemetry",
    "x-stripe-client-user-agent",
    "x-timestamp",
    "x-vercel-id",
];

/// Name prefixes of cookies for load balancing and analytics. They change without notice.
const NEUTRAL_COOKIES: [&str; 10] = [
    "AWSALB",
    "ARRAffinity",
    "BIGipServer",
    "GCLB",
    "INGRESSCOOKIE",
    "SERVERID",
    "_ga",
    "_gid",
    "__cf_bm",
    "__cflb",
];

/// Words in the names of headers that identify a caller: credentials, and what a credential acts for.
const IDENTIFYING: [&str; 53] = [
    "account",
    "accountid",
    "acct",
    "actor",
    "apikey",
    "assertion",
    "auth",
    "authentication",
    "authorization",
    "bearer",
    "company",
    "consumer",
    "cookie",
    "credential",
    "credentials",
    "customer",
    "email",
    "identity",
    "impersonate",
    "impersonation",
    "jwt",
    "key",
    "license",
    "login",
    "member",
    "merchant",
    "namespace",
    "org",
    "organisation",
    "organization",
    "owner",
    "partner",
    "passwd",
    "password",
    "principal",
    "profile",
    "project",
    "role",
    "secret",
    "seller",
    "shop",
    "store",
    "subaccount",
    "subject",
    "team",
    "tenant",
    "token",
    "behalf",
    "context",
    "user",
    "userid",
    "username",
    "workspace",
];

/// Words in the names of headers that change with every request, although another word in them is identifying.
const CHANGING: [&str; 16] = [
    "agent",
    "attempt",
    "csrf",
    "date",
    "digest",
    "expires",
    "idempotence",
    "idempotency",
    "nonce",
    "retry",
    "sign",
    "signature",
    "time",
    "timestamp",
    "trace",
    "xsrf",
];

/// Identifies callers.
pub struct Principals {
    /// The key of the hashes. Without it, tokens cannot be guessed offline from a hash.
    secret: Option<Secret>,
    ignored: Vec<String>,
    only: Option<Vec<String>>,
    signatures: Signatures,
    counting: Counting,
}

/// Which headers count, if the configuration does not name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counting {
    /// All that are not known to be neutral.
    All,
    /// Those that identify a caller by their names, if there is one. Otherwise all.
    Named,
}

/// Whether it is known who calls before the headers are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// The caller has shown a token of its own, and what is hashed here only separates its accounts.
    Known,
    /// The headers are all that there is.
    Unknown,
}

/// What identifies the caller of a signed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signatures {
    /// The signature, which no other request has.
    Whole,
    /// The name of the key. Its owner is not proven: a server has to check the signature.
    KeyName,
}

impl Principals {
    /// Hashes are made with the ledger's secret; these headers do not count either.
    #[must_use]
    pub fn new(secret: Option<Secret>, ignored: &[String]) -> Self {
        let ignored = ignored.iter().map(|name| name.to_ascii_lowercase()).collect();
        Self { secret, ignored, only: None, signatures: Signatures::Whole, counting: Counting::All }
    }

    /// Only these headers count, instead of all that are not known to be neutral.
    #[must_use]
    pub fn only(mut self, names: Option<&[String]>) -> Self {
        self.only = names.map(|names| names.iter().map(|name| name.to_ascii_lowercase()).collect());
        self
    }

    /// A signed request is identified by the name of its key, so that a retry with a new signature is the same caller.
    /// Whether the signature is valid is not known here.
    #[must_use]
    pub fn by_key_name(mut self) -> Self {
        self.signatures = Signatures::KeyName;
        self
    }

    /// If a request has headers that identify a caller by their names, only these count. This is for a surface whose
    /// server checks the credentials of every first request.
    #[must_use]
    pub fn by_header_name(mut self) -> Self {
        self.counting = Counting::Named;
        self
    }

    /// The hash of the headers that identify the caller, and of `more`. `None` if there are none.
    #[must_use]
    pub fn of(&self, headers: &HeaderMap, more: &[(&str, &[u8])]) -> Option<String> {
        self.of_caller(Caller::Unknown, headers, more)
    }

    /// The same, for a caller that may be known already.
    #[must_use]
    pub fn of_caller(&self, caller: Caller, headers: &HeaderMap, more: &[(&str, &[u8])]) -> Option<String> {
        let by_name = |name: &HeaderName| self.counts(name) && is_identifying(name.as_str());
        let only_named = self.counting == Counting::Named
            && self.only.is_none()
            && (caller == Caller::Known || headers.keys().any(by_name));
        let mut shown: Vec<(&str, Vec<u8>)> = headers
            .iter()
            .filter(|(name, _)| if only_named { by_name(name) } else { self.counts(name) })
            .filter_map(|(name, value)| Some((name.as_str(), self.identifying_part(name, value)?)))
            .collect();
        shown.extend(more.iter().map(|(name, value)| (*name, value.to_vec())));
        shown.sort();
        (!shown.is_empty()).then(|| self.hash(&shown))
    }

    fn counts(&self, name: &HeaderName) -> bool {
        let text = name.as_str();
        if let Some(only) = &self.only {
            return only.iter().any(|own| own == text);
        }
        let is_neutral =
            NEUTRAL.contains(&text) || NEUTRAL_FAMILIES.iter().any(|family| text.starts_with(family));
        let is_per_attempt = self.counting == Counting::Named && PER_ATTEMPT.contains(&text);
        let is_ignored = self.ignored.iter().any(|ignored| ignored == text);
        !is_neutral && !is_per_attempt && !is_ignored
    }

    /// The part of a header that identifies its caller.
    fn identifying_part(&self, name: &HeaderName, value: &HeaderValue) -> Option<Vec<u8>> {
        if *name == header::COOKIE {
            return own_cookies(value);
        }
        if *name == header::AUTHORIZATION
            && self.signatures == Signatures::KeyName
            && let Some(signer) = value.to_str().ok().and_then(signer)
        {
            return Some(signer.into_bytes());
        }
        Some(value.as_bytes().to_vec())
    }

    fn hash(&self, shown: &[(&str, Vec<u8>)]) -> String {
        let parts: Vec<&[u8]> = shown.iter().flat_map(|(name, value)| [name.as_bytes(), value]).collect();
        let hash = match &self.secret {
            Some(secret) => secret.hash("principal", &parts),
            // A ledger of the first schema has no secret; its hashes stay the same.
            None => {
                let mut hash = Sha256::new();
                for part in parts {
                    hash.update((part.len() as u64).to_be_bytes());
                    hash.update(part);
                }
                hash.finalize().into()
            }
        };
        BASE32_NOPAD.encode(&hash[..10]).to_ascii_lowercase()
    }
}

/// Whether a header identifies a caller by its name.
fn is_identifying(name: &str) -> bool {
    let has = |words: &[&str]| name.split(['-', '_']).any(|word| words.contains(&word));
    has(&IDENTIFYING) && !has(&CHANGING)
}

/// The name of the key with which a request was signed. A signature is different for every request.
fn signer(authorization: &str) -> Option<String> {
    let (scheme, rest) = authorization.split_once(' ')?;
    let wanted = match scheme.to_ascii_lowercase().as_str() {
        "aws4-hmac-sha256" | "aws4-ecdsa-p256-sha256" => "credential",
        "signature" => "keyid",
        "oauth" => "oauth_token",
        "digest" => "username",
        _ => return None,
    };
    let value = rest.split(',').find_map(|part| {
        let (name, value) = part.trim().split_once('=')?;
        name.eq_ignore_ascii_case(wanted).then(|| value.trim_matches('"'))
    })?;
    // The scope of a signature has its date.
    let value = if wanted == "credential" { value.split('/').next().unwrap_or(value) } else { value };
    Some(format!("{scheme} {value}"))
}

/// The cookies that are not known to be neutral.
fn own_cookies(value: &HeaderValue) -> Option<Vec<u8>> {
    let is_neutral =
        |cookie: &[u8]| NEUTRAL_COOKIES.iter().any(|neutral| cookie.starts_with(neutral.as_bytes()));
    let cookies = value.as_bytes().split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let mut cookies: Vec<&[u8]> =
        cookies.filter(|cookie| !cookie.is_empty() && !is_neutral(cookie)).collect();
    cookies.sort_unstable();
    (!cookies.is_empty()).then(|| cookies.join(&b';'))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use onceward::Identity;
    use onceward::RANDOM_BYTES;

    use super::*;

    fn principal(byte: u8, headers: &[(&'static str, &str)]) -> Option<String> {
        let secret = Identity::fresh(&[byte; RANDOM_BYTES]).secret;
        let map: HeaderMap = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        Principals::new(secret, &["X-Mine".to_owned()]).by_key_name().of(&map, &[])
    }

    #[test]
    fn every_header_that_may_identify_the_caller_counts() {
        let others = [
            principal(1, &[("authorization", "x")]),
            principal(1, &[("authorization", "y")]),
            principal(2, &[("authorization", "y")]),
            principal(1, &[("authorization", "x"), ("stripe-account", "acct_1")]),
            principal(1, &[("x-api-key", "x")]),
            principal(1, &[("a-header-of-tomorrow", "x")]),
            principal(1, &[("cookie", "sid=1")]),
        ];
        let different: HashSet<_> = others.iter().collect();
        assert_eq!(different.len(), others.len());
        let anonymous = [("user-agent", "a"), ("x-mine", "1"), ("once-scope", "s"), ("idempotency-key", "k")];
        assert_eq!(principal(1, &anonymous), None);
    }

    #[test]
    fn a_signature_identifies_its_key_and_nothing_else() {
        let aws = |key: &str, day: &str, signature: &str| {
            let text = format!(
                "AWS4-HMAC-SHA256 Credential={key}/{day}/us-east-1/ec2/aws4_request, \
                 SignedHeaders=host, Signature={signature}"
            );
            principal(1, &[("authorization", &text)])
        };
        assert_eq!(aws("AKIA1", "20261101", "aa"), aws("AKIA1", "20261102", "bb"));
        assert_ne!(aws("AKIA1", "20261101", "aa"), aws("AKIA2", "20261101", "aa"));
        let oci = |key: &str, signature: &str| {
            let text = format!(r#"Signature version="1",keyId="{key}",signature="{signature}""#);
            principal(1, &[("authorization", &text)])
        };
        assert_eq!(oci("t/u/f", "aa"), oci("t/u/f", "bb"));
        assert_ne!(oci("t/u/f", "aa"), oci("t/u/g", "aa"));
        let whole = |signature: &str| {
            let text = format!("Signature keyId=\"k\",signature=\"{signature}\"");
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, text.parse().unwrap())]);
            Principals::new(None, &[]).of(&headers, &[])
        };
        assert_ne!(whole("aa"), whole("bb"), "unless that is asked for");
    }

    #[test]
    fn beside_credentials_other_headers_do_not_identify_the_caller() {
        let caller = |caller: Caller, headers: &[(&'static str, &str)]| {
            let map: HeaderMap = headers
                .iter()
                .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
                .collect();
            Principals::new(None, &["X-Own-Key".to_owned()]).by_header_name().of_caller(caller, &map, &[])
        };
        let of = |headers: &[(&'static str, &str)]| caller(Caller::Unknown, headers);
        let plain = of(&[("authorization", "a")]);
        for changing in [
            "x-envoy-attempt-count",
            "cf-ray",
            "x-timestamp",
            "x-nonce",
            "x-session-id",
            "x-auth-timestamp",
            "x-stripe-client-user-agent",
            "x-csrf-token",
            "a-header-of-tomorrow",
            "x-own-key",
        ] {
            assert_eq!(of(&[("authorization", "a"), (changing, "1")]), plain, "{changing}");
        }
        for identifying in [
            "x-api-key",
            "cookie",
            "stripe-account",
            "stripe-context",
            "openai-organization",
            "x-tenant_id",
            "x-goog-user-project",
            "fastly-key",
            "private-token",
            "x-acting-on-behalf-of",
        ] {
            assert_ne!(of(&[("authorization", "a"), (identifying, "1")]), plain, "{identifying}");
            assert_ne!(of(&[(identifying, "1")]), of(&[(identifying, "2")]), "{identifying}");
        }
        // Without a credential that is recognized, every header may be one.
        assert_ne!(of(&[("a-header-of-tomorrow", "1")]), of(&[("a-header-of-tomorrow", "2")]));
        assert_eq!(of(&[("x-envoy-attempt-count", "1")]), None);
        // A tenant has shown its token.
        assert_eq!(caller(Caller::Known, &[("a-header-of-tomorrow", "1")]), None);
        assert_ne!(caller(Caller::Known, &[("x-api-key", "1")]), None);
    }

    #[test]
    fn the_names_are_as_headers_are_compared() {
        for name in NEUTRAL.iter().chain(&PER_ATTEMPT) {
            assert_eq!(HeaderName::from_bytes(name.as_bytes()).unwrap().as_str(), *name);
        }
        let different: HashSet<_> = NEUTRAL.iter().collect();
        assert_eq!(different.len(), NEUTRAL.len());
    }
}
