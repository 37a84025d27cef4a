//! What Twilio signs: the URL and the decoded fields of a form, joined without separators.
//!
//! Because nothing separates a field's name from its value, `a=bc` and `ab=c` have one signature. The digest of an
//! event is that of the joined text, so a request that was changed in this way is the same event.

use std::collections::{BTreeMap, BTreeSet};

use data_encoding::HEXLOWER;
use percent_encoding::percent_decode;
use ring::digest::{SHA256, digest};

use crate::inbox::judgement::{Reason, Rejection};

/// The parameter of the URL with the hash of a body that is not a form.
const BODY_HASH: &str = "bodySHA256";
const FORM: &str = "application/x-www-form-urlencoded";

/// What may be signed: Twilio's own libraries try the URL with its port and without. The first is the same for each
/// way to write the URL.
pub(crate) fn contents(
    url: &str,
    content_type: Option<&str>,
    body: &[u8],
) -> Result<Vec<Vec<u8>>, Rejection> {
    let fields = fields(url, content_type, body)?;
    Ok(urls(url).into_iter().map(|url| [url.as_bytes(), &fields].concat()).collect())
}

/// The decoded fields of a form in order. Empty if the URL has the hash of the body.
fn fields(url: &str, content_type: Option<&str>, body: &[u8]) -> Result<Vec<u8>, Rejection> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let hashes: Vec<&str> = query
        .split('&')
        .filter_map(|pair| pair.split_once('=').filter(|(name, _)| *name == BODY_HASH))
        .map(|(_, hash)| hash)
        .collect();
    match hashes[..] {
        [] if body.is_empty() => Ok(Vec::new()),
        [] if content_type.is_some_and(is_form) => joined(body),
        [] => Err(Rejection::new(
            Reason::Unsigned,
            format!("the body is not a form, and the URL has no {BODY_HASH}, so nothing signs the body"),
        )),
        [hash] if HEXLOWER.encode(digest(&SHA256, body).as_ref()) == hash.to_ascii_lowercase() => {
            Ok(Vec::new())
        }
        [_] => Err(Rejection::new(Reason::Signature, format!("{BODY_HASH} does not belong to this body"))),
        [..] => Err(Rejection::new(Reason::Duplicate, format!("the URL has several {BODY_HASH}"))),
    }
}

fn is_form(content_type: &str) -> bool {
    content_type.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(FORM))
}

/// The fields in the order of their names; the different values of one name in order.
fn joined(body: &[u8]) -> Result<Vec<u8>, Rejection> {
    let mut fields: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for pair in body.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()) {
        let at = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
        let value = pair.get(at + 1..).unwrap_or_default();
        fields.entry(decoded(&pair[..at])?).or_default().insert(decoded(value)?);
    }
    let mut text = Vec::with_capacity(body.len());
    for (name, values) in &fields {
        for value in values {
            text.extend_from_slice(name.as_bytes());
            text.extend_from_slice(value.as_bytes());
        }
    }
    Ok(text)
}

/// A decoded name or value. What is not UTF-8 is refused: decoders differ in what they put in its place.
fn decoded(text: &[u8]) -> Result<String, Rejection> {
    let spaced: Vec<u8> = text.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    let decoded = percent_decode(&spaced).decode_utf8().map(|text| text.into_owned());
    decoded.map_err(|_| Rejection::new(Reason::Malformed, "a field of the form is not UTF-8"))
}

/// The URL without its port, with it, and as it is. The first is the same for each of them.
fn urls(url: &str) -> Vec<String> {
    let Some((scheme, rest)) = url.split_once("://") else { return vec![url.to_owned()] };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    let default = if scheme.eq_ignore_ascii_case("https") { "443" } else { "80" };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => {
            (host, port)
        }
        _ => (authority, default),
    };
    let mut urls = vec![format!("{scheme}://{host}{tail}"), format!("{scheme}://{host}:{port}{tail}")];
    if !urls.iter().any(|known| known == url) {
        urls.push(url.to_owned());
    }
    urls
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(url: &str, content_type: &str, body: &str) -> Result<Vec<String>, Reason> {
        let contents = contents(url, Some(content_type), body.as_bytes()).map_err(|no| no.reason)?;
        Ok(contents.into_iter().map(|text| String::from_utf8(text).unwrap()).collect())
    }

    #[test]
    fn fields_are_decoded_sorted_and_joined() {
        let found = text("https://h/p?q=1", FORM, "b=2+3&a=%2B1&b=1&b=1&c").unwrap();
        assert_eq!(found, ["https://h/p?q=1a+1b1b2 3c", "https://h:443/p?q=1a+1b1b2 3c"]);
        let ported = text("http://h:8080/", "Application/X-WWW-Form-Urlencoded; charset=utf-8", "").unwrap();
        assert_eq!(ported, ["http://h/", "http://h:8080/"]);
    }

    #[test]
    fn a_body_that_nothing_signs_is_refused() {
        assert_eq!(text("https://h/", "application/json", "{}"), Err(Reason::Unsigned));
        assert_eq!(text("https://h/?bodySHA256=00", "application/json", "{}"), Err(Reason::Signature));
        assert_eq!(text("https://h/?bodySHA256=0&bodySHA256=1", FORM, "a=1"), Err(Reason::Duplicate));
        assert_eq!(text("https://h/", FORM, "a=%FF"), Err(Reason::Malformed));
    }
}
