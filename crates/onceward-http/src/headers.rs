//! HTTP headers: names, forwarding, and parsing.

use hyper::HeaderMap;
use hyper::header::{self, HeaderName};

/// The caller's idempotency key.
pub const KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Headers that concern one connection only.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// The headers that are forwarded, in either direction.
#[must_use]
pub fn passed_on(headers: &HeaderMap) -> HeaderMap {
    let named: Vec<String> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    let stays =
        |name: &HeaderName| HOP_BY_HOP.contains(name) || named.iter().any(|other| other == name.as_str());
    let kept = headers.iter().filter(|(name, _)| !stays(name));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The key in this header, quoted or not.
#[must_use]
pub fn key(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    // Invalid bytes stay in the key, so that the key is refused and not ignored.
    let text = String::from_utf8_lossy(headers.get(name)?.as_bytes());
    let text = text.trim();
    let quoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    Some(match quoted {
        Some(inner) => inner.replace("\\\"", "\"").replace("\\\\", "\\"),
        None => text.to_owned(),
    })
}

/// The value of a header that occurs exactly once.
#[must_use]
pub fn only<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut all = headers.get_all(name).iter();
    let first = all.next()?.to_str().ok()?;
    all.next().is_none().then_some(first)
}

/// The parameters `; name=value` at the beginning of a text, quoted or not, and what follows them. Names are in lower
/// case. `None` if a quoted value has no end.
#[must_use]
pub fn parameters(text: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut all = Vec::new();
    let mut rest = text.trim_start();
    while let Some(parameter) = rest.strip_prefix(';') {
        let parameter = parameter.trim_start();
        let (name, after) = parameter.split_at(parameter.find(['=', ';', ',']).unwrap_or(parameter.len()));
        let (value, after) = match after.strip_prefix('=') {
            Some(after) => parameter_value(after.trim_start())?,
            None => (String::new(), after),
        };
        if !name.trim().is_empty() {
            all.push((name.trim().to_ascii_lowercase(), value));
        }
        rest = after.trim_start();
    }
    Some((all, rest))
}

fn parameter_value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let (value, rest) = text.split_at(text.find([';', ',', ' ', '\t']).unwrap_or(text.len()));
        return Some((value.to_owned(), rest));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &quoted[at + 1..])),
            '\\' => value.push(chars.next()?.1),
            char => value.push(char),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn hop_by_hop_headers_are_not_forwarded() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Mine"),
            ("x-mine", "1"),
            ("te", "trailers"),
            ("proxy-connection", "keep-alive"),
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
            assert_eq!(key(&headers, &KEY).as_deref(), Some(expected));
        }
    }
}
