//! What makes a request the same one: its key, its caller, and what it says.

use data_encoding::HEXLOWER;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};
use onceward::{InvalidInput, Json};
use sha2::{Digest, Sha256};

/// The key; `None` if there is none.
pub(super) fn of(headers: &HeaderMap, name: &HeaderName) -> Result<Option<String>, InvalidInput> {
    let values: Vec<&[u8]> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    onceward::idempotency_key(&shown(name), &values)
}

/// The header's name as documentation spells it: HTTP does not tell the cases apart.
pub(super) fn shown(name: &HeaderName) -> String {
    let parts = name.as_str().split('-').map(|part| {
        let (first, rest) = part.split_at(part.len().min(1));
        format!("{}{rest}", first.to_ascii_uppercase())
    });
    parts.collect::<Vec<_>>().join("-")
}

/// Whose key it is: callers with the same credentials are one. The credentials themselves are not stored.
pub(super) fn principal(parts: &Parts, names: &[HeaderName]) -> String {
    let said: Vec<(&HeaderName, &[u8])> = names
        .iter()
        .filter_map(|name| parts.headers.get(name).map(|value| (name, value.as_bytes())))
        .collect();
    let mut hash = Sha256::new();
    match (names, said.as_slice()) {
        (_, []) => return "http-anonymous".to_owned(),
        ([_], [(_, value)]) => hash.update(value),
        (_, several) => {
            for (name, value) in several {
                hash.update(format!("{name}:{}:", value.len()));
                hash.update(value);
            }
        }
    }
    let hex = HEXLOWER.encode(&hash.finalize());
    format!("http-{}", &hex[..32])
}

/// The name of the operation: a key belongs to one method and path.
pub(super) fn name(parts: &Parts) -> String {
    let path = percent_encoding::percent_decode_str(parts.uri.path()).decode_utf8_lossy();
    format!("{} {path}", parts.method)
}

/// The inputs as JSON text: the query and the body. JSON bodies are compared by their meaning, others byte by byte.
pub(super) fn inputs(parts: &Parts, body: &[u8]) -> String {
    let kind = parts.headers.get(http::header::CONTENT_TYPE).map(|kind| latin1(kind.as_bytes()));
    let kind = kind.unwrap_or_default().to_ascii_lowercase();
    let is_json = kind.split(';').next().unwrap_or_default().trim().ends_with("json");
    let query = serde_json::Value::from(parts.uri.query().unwrap_or_default());
    let inputs = |said: &str| format!("{{\"query\":{query},\"body\":{said}}}");
    let meaning = std::str::from_utf8(body).ok().filter(|_| is_json).map(inputs);
    meaning
        .filter(|text| Json::parse(text).is_ok())
        .unwrap_or_else(|| inputs(&format!("\"{}\"", HEXLOWER.encode(&Sha256::digest(body)))))
}

/// Bytes of a header as text: each byte is one character.
pub(super) fn latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may give up")]
mod tests {
    use super::*;
    use http::Request;

    #[test]
    fn a_caller_is_its_credentials_without_them() {
        let parts = |headers: &[(&str, &str)]| {
            let mut request = Request::builder();
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            request.body(()).unwrap().into_parts().0
        };
        let authorization = [http::header::AUTHORIZATION];
        let alice = principal(&parts(&[("authorization", "Bearer alice")]), &authorization);
        // As the Python middleware computes it.
        assert_eq!(alice, "http-9d7cce461e4b2f090a3d686b4ae72d25");
        assert_ne!(alice, principal(&parts(&[("authorization", "Bearer bob")]), &authorization));
        assert_eq!(principal(&parts(&[]), &authorization), "http-anonymous");
        let both = [http::header::AUTHORIZATION, HeaderName::from_static("x-account")];
        let first = principal(&parts(&[("authorization", "a"), ("x-account", "1")]), &both);
        assert_ne!(first, principal(&parts(&[("authorization", "a"), ("x-account", "2")]), &both));
    }
}
