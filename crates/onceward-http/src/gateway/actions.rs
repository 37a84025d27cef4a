//! Headers that say what a request does.

use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, Method};
use onceward::Json;

use super::rules::{Part, Placement};

/// Headers that say what a request does, as its method, path and body do. A retry has the same ones; what a client
/// library changes with every attempt (dates, traces, counts, signatures) is not among them.
pub(crate) const HEADERS: [&str; 41] = [
    // The action, where all of them have one path.
    "soapaction",
    "x-amz-target",
    // The method.
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    // Which part of a resource the body is.
    "content-range",
    "upload-complete",
    "upload-concat",
    "upload-defer-length",
    "upload-length",
    "upload-metadata",
    "upload-offset",
    "x-goog-upload-command",
    "x-goog-upload-offset",
    "x-ms-range",
    "x-upload-content-length",
    "x-upload-content-type",
    // Under which condition something is done.
    "if",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-unmodified-since",
    "x-goog-if-generation-match",
    "x-goog-if-metageneration-match",
    // What the body means.
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-location",
    "slug",
    // From where and to where something is copied or moved.
    "depth",
    "destination",
    "overwrite",
    "x-amz-copy-source",
    "x-amz-copy-source-range",
    "x-goog-copy-source",
    "x-ms-copy-source",
    // Who may read what is stored, and how it is kept.
    "x-amz-acl",
    "x-amz-storage-class",
    "x-amz-tagging",
    "x-goog-acl",
    // How it is done (RFC 7240): a vendor may roll it back, or merge it.
    "prefer",
];
/// Name prefixes of more such headers: what is stored with an object.
const FAMILIES: [&str; 6] =
    ["x-amz-grant-", "x-amz-meta-", "x-amz-object-lock-", "x-goog-meta-", "x-ms-blob-", "x-ms-meta-"];
/// Headers with which some servers replace the method of a request.
const METHOD_HEADERS: [&str; 3] = ["x-http-method", "x-http-method-override", "x-method-override"];

/// Whether a server may take the request for one with another method than this.
pub(crate) fn overrides(method: &Method, headers: &HeaderMap) -> bool {
    let values = METHOD_HEADERS.iter().flat_map(|name| headers.get_all(*name));
    let is_other =
        |value: &HeaderValue| !value.as_bytes().trim_ascii().eq_ignore_ascii_case(method.as_str().as_bytes());
    values.into_iter().any(is_other)
}

/// The headers that say what a request does, those that its upstream has besides included, and without its key. `None`
/// if it has none of them.
pub(crate) fn values(headers: &HeaderMap, more: &[String], key: Option<&Placement>) -> Option<Json> {
    let is_key = |name: &str| {
        key.is_some_and(|key| {
            key.part == Part::Header && key.all_names().any(|own| own.eq_ignore_ascii_case(name))
        })
    };
    let is_action = |name: &str| {
        HEADERS.contains(&name)
            || FAMILIES.iter().any(|family| name.starts_with(family))
            || more.iter().any(|own| own.eq_ignore_ascii_case(name))
    };
    let mut found: Vec<&HeaderName> = headers.keys().collect();
    found.retain(|name| is_action(name.as_str()) && !is_key(name.as_str()));
    found.sort_by_key(|name| name.as_str());
    let value = |name: &HeaderName| {
        let all = headers.get_all(name).iter();
        let texts = all.map(|value| String::from_utf8_lossy(value.as_bytes()).trim().to_owned());
        Json::from(texts.collect::<Vec<_>>().join(", "))
    };
    let members: Vec<_> = found.into_iter().map(|name| (name.to_string(), value(name))).collect();
    (!members.is_empty()).then_some(Json::Object(members))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_can_replace_the_method() {
        for (method, name, value, is_other) in [
            ("GET", "x-http-method-override", "DELETE", true),
            ("GET", "x-http-method-override", "get", false),
            ("HEAD", "x-method-override", "PATCH", true),
            ("PUT", "x-http-method", "POST", true),
            ("GET", "x-method", "POST", false),
        ] {
            let headers =
                HeaderMap::from_iter([(name.parse::<HeaderName>().unwrap(), value.parse().unwrap())]);
            assert_eq!(overrides(&method.parse().unwrap(), &headers), is_other, "{method} {name} {value}");
        }
    }
}
