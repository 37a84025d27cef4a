//! The content of a request: what its fingerprint is computed from, and where keys are read and written.

use std::sync::Arc;

use bytes::Bytes;
use data_encoding::HEXLOWER;
use hyper::{HeaderMap, header};
use onceward::{Action, Json, Pointer, Redaction, RequestAction, text};
use sha2::{Digest, Sha256};

use super::payload::{Content, Payload};
use super::rules::{Format, Part, Placement};
use super::{actions, graphql};
use crate::{headers, raw};

/// How a body is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Json,
    Form,
    /// Anything else, and everything that is compressed or too large to parse.
    Opaque,
}

/// A request, with its body parsed.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) method: hyper::Method,
    /// The path at the upstream, without the query.
    pub(crate) path: String,
    pub(crate) query: Option<String>,
    pub(crate) headers: HeaderMap,
    pub(crate) payload: Payload,
    pub(crate) kind: Kind,
    /// The parsed body; for an opaque one, its hash.
    pub(crate) body: Arc<Json>,
    /// Further headers that say what the request does.
    action_headers: Arc<[String]>,
}

impl Request {
    pub(crate) fn new(
        method: hyper::Method,
        path: String,
        query: Option<String>,
        headers: HeaderMap,
        payload: Payload,
    ) -> Self {
        let (kind, body) = parse(&headers, &payload);
        let (body, action_headers) = (Arc::new(body), Arc::default());
        Self { method, path, query, headers, payload, kind, body, action_headers }
    }

    /// The same request, to an upstream for which these headers say what is done, too.
    pub(crate) fn with_action_headers(mut self, names: &Arc<[String]>) -> Self {
        self.action_headers = Arc::clone(names);
        self
    }

    /// The path with its query.
    pub(crate) fn path_and_query(&self) -> String {
        match &self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        }
    }

    /// The action that a header names, where all actions have one path: of AWS, and of SOAP 1.1 and 1.2.
    pub(crate) fn action(&self) -> Option<String> {
        let named =
            |name: &str| headers::only(&self.headers, name).map(|action| action.trim().trim_matches('"'));
        let action = named("x-amz-target").or_else(|| named("soapaction")).map(str::to_owned);
        let in_type = || {
            let kind = headers::only(&self.headers, header::CONTENT_TYPE.as_str())?;
            let (_, parameters) = media_type(kind);
            let is_soap = kind.trim_start().to_ascii_lowercase().starts_with("application/soap+xml");
            parameters
                .into_iter()
                .filter(|_| is_soap)
                .find(|(name, _)| name == "action")
                .map(|(_, action)| action)
        };
        action.or_else(in_type).filter(|action| !action.is_empty())
    }

    /// The action of a request, by a header or by the form of an AWS request.
    pub(crate) fn target(&self) -> Option<String> {
        if let Some(target) = self.action() {
            return Some(target);
        }
        match (self.kind, self.body.member("Action")) {
            (Kind::Form, Some(Json::String(action))) => Some(action.clone()),
            (Kind::Form | Kind::Json | Kind::Opaque, _) => None,
        }
    }

    /// Whether the caller signed the request, so that nothing that the signature covers can be changed.
    pub(crate) fn is_signed(&self) -> bool {
        let scheme = headers::only(&self.headers, header::AUTHORIZATION.as_str()).unwrap_or_default();
        scheme.to_ascii_uppercase().starts_with("AWS4-")
            || self.headers.contains_key("tl-signature")
            || self.query.as_deref().is_some_and(|query| query.contains("X-Amz-Signature="))
    }

    /// What identifies the request's content, without the key. Equal for a request and its retry.
    pub(crate) fn input(&self, key: Option<&Placement>) -> Json {
        let mut body = Json::clone(&self.body);
        let mut query = self.query.clone();
        match key.map(|key| (key, key.part)) {
            Some((key, Part::Body)) => {
                for name in key.all_names() {
                    if let Ok(pointer) = self.pointer(name) {
                        body.remove(&pointer);
                    }
                }
            }
            Some((key, Part::Query)) => {
                for name in key.all_names() {
                    query = query.map(|query| without(&query, name)).filter(|query| !query.is_empty());
                }
            }
            Some((key, Part::Graphql)) => body = graphql::with_key(&body, &key.name, "").unwrap_or(body),
            Some((_, Part::Header)) | None => {}
        }
        let kind =
            self.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let (media, parameters) = media_type(kind);
        let parameters = parameters.iter().map(|(name, value)| format!(";{name}={value}"));
        let kind: String = std::iter::once(media).chain(parameters).collect();
        let headers = actions::values(&self.headers, &self.action_headers, key);
        RequestAction::new(self.method.as_str(), &self.path, query.as_deref(), &kind).identity(body, headers)
    }

    /// The request as a person sees it who decides about it. Headers and secrets of the query are not part of it, and
    /// what the policy redacts is not either.
    pub(crate) fn shown(&self, redact: &Redaction) -> Action {
        let kind = self.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let shown = text::masked(&self.path_and_query()).into_owned();
        let (path, query) =
            shown.split_once('?').map_or((&*shown, None), |(path, query)| (path, Some(query)));
        let action = RequestAction::new(self.method.as_str(), path, query, kind.unwrap_or_default());
        Action::Request(match &self.payload.content {
            Content::Memory(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => action.body(redact.json(text).as_bytes()),
                Err(_) => action.body(bytes),
            },
            Content::Spooled { sha256, bytes, .. } => {
                let body = onceward::Content::hashed(*bytes, HEXLOWER.encode(sha256));
                RequestAction { body: Some(body), ..action }
            }
        })
    }

    /// The request with this key in the header of the caller's, quoted as it was.
    pub(crate) fn with_callers_key(&self, key: &str) -> Self {
        let mut request = self.clone();
        let is_quoted =
            self.headers.get(headers::KEY).is_some_and(|value| value.as_bytes().starts_with(b"\""));
        let key = if is_quoted { format!("\"{key}\"") } else { key.to_owned() };
        match key.parse() {
            Ok(value) => drop(request.headers.insert(headers::KEY, value)),
            // Our keys are visible ASCII. One that could not be sent must not be the caller's.
            Err(_) => drop(request.headers.remove(headers::KEY)),
        }
        request
    }

    /// The key that the request has in the vendor's own place.
    pub(crate) fn key_at(&self, key: &Placement) -> Option<String> {
        key.all_names().find_map(|name| match key.part {
            Part::Header => headers::key(&self.headers, &name.parse().ok()?),
            Part::Body => match self.body.at(&self.pointer(name).ok()?)? {
                Json::String(text) if self.kind != Kind::Opaque => Some(text.clone()),
                Json::Null
                | Json::Bool(_)
                | Json::Number(_)
                | Json::String(_)
                | Json::Array(_)
                | Json::Object(_) => None,
            },
            Part::Query => form_urlencoded::parse(self.query.as_deref()?.as_bytes())
                .find(|(own, _)| own == name)
                .map(|(_, value)| value.into_owned()),
            Part::Graphql => graphql::key(&self.body, name),
        })
    }

    /// The request with this key in the vendor's place.
    ///
    /// # Errors
    /// If the body cannot hold a key.
    pub(crate) fn with_key(&self, place: &Placement, key: &str) -> Result<Self, String> {
        let mut request = self.clone();
        let name = place.all_names().find(|name| self.has(place, name)).unwrap_or(&place.name);
        match place.part {
            Part::Header => {
                let name: hyper::header::HeaderName =
                    name.parse().map_err(|_| format!("{name:?} is not the name of a header"))?;
                let value = key.parse().map_err(|_| "the key is not the value of a header".to_owned())?;
                request.headers.insert(name, value);
            }
            Part::Query => {
                request.query = Some(with_pair(self.query.as_deref().unwrap_or_default(), name, key));
            }
            Part::Body => request.replace_body(self.body_with(name, key)?),
            Part::Graphql => {
                let text = self.payload.bytes().and_then(|bytes| std::str::from_utf8(bytes).ok());
                let body = text.and_then(|text| graphql::text_with_key(text, &self.body, name, key));
                let body = body.ok_or_else(|| format!("the document has no directive @{name}"))?;
                request.replace_body(body.into());
            }
        }
        Ok(request)
    }

    fn has(&self, place: &Placement, name: &str) -> bool {
        let only = Placement { name: name.to_owned(), names: Vec::new(), ..place.clone() };
        self.key_at(&only).is_some()
    }

    fn replace_body(&mut self, bytes: Bytes) {
        self.headers.insert(header::CONTENT_LENGTH, bytes.len().into());
        self.payload = self.payload.with(bytes);
    }

    fn body_with(&self, name: &str, key: &str) -> Result<Bytes, String> {
        // Only the key changes; numbers, escapes and the order of members stay as the caller wrote them.
        let text = self.payload.bytes().and_then(|bytes| std::str::from_utf8(bytes).ok());
        match (self.kind, text) {
            (Kind::Form, Some(text)) => Ok(with_pair(text, name, key).into()),
            (Kind::Json, Some(text)) if !text.is_empty() => {
                raw::with_text_at(text, &name.split('.').collect::<Vec<_>>(), key)
                    .map(Bytes::from)
                    .ok_or_else(|| format!("the body has no place for the field {name}"))
            }
            (Kind::Json | Kind::Form | Kind::Opaque, _) => Err(format!(
                "the vendor expects the key in the field {name} of a JSON or form body of at most 1 MiB, and this \
                 body is not one"
            )),
        }
    }

    /// The field with this name. In a form, dots are part of the name.
    fn pointer(&self, name: &str) -> Result<Pointer, onceward::InvalidInput> {
        match self.kind {
            Kind::Form => Pointer::parse(&format!("/{}", name.replace('~', "~0").replace('/', "~1"))),
            Kind::Json | Kind::Opaque => Pointer::parse(name),
        }
    }
}

/// A key in the form and length that a vendor accepts. The same key has the same form every time.
pub(crate) fn formatted(key: &str, place: &Placement) -> String {
    let hash: [u8; 32] = Sha256::digest(key.as_bytes()).into();
    match place.format {
        Format::Plain if key.len() <= place.max => key.to_owned(),
        Format::Plain => {
            let text = data_encoding::BASE32_NOPAD.encode(&hash).to_ascii_lowercase();
            text.chars().take(place.max).collect()
        }
        Format::Uuid => {
            let mut bytes = hash;
            bytes[6] = (bytes[6] & 0x0f) | 0x40;
            bytes[8] = (bytes[8] & 0x3f) | 0x80;
            let hex = HEXLOWER.encode(&bytes[..16]);
            format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..32])
        }
    }
}

/// A query without a parameter; the rest stays as it is.
fn without(query: &str, name: &str) -> String {
    let is_other = |pair: &&str| form_urlencoded::parse(pair.as_bytes()).all(|(own, _)| own != name);
    query.split('&').filter(is_other).collect::<Vec<_>>().join("&")
}

/// A query or form with that parameter at its end; the rest stays as it is.
fn with_pair(query: &str, name: &str, value: &str) -> String {
    let rest = without(query, name);
    let pair = form_urlencoded::Serializer::new(String::new()).append_pair(name, value).finish();
    if rest.is_empty() { pair } else { format!("{rest}&{pair}") }
}

/// A media type in lower case, and its parameters in order: all but those that say how the body is encoded.
fn media_type(kind: &str) -> (String, Vec<(String, String)>) {
    let (media, rest) = kind.split_at(kind.find(';').unwrap_or(kind.len()));
    let (mut parameters, _) = headers::parameters(rest).unwrap_or_default();
    parameters.retain(|(name, _)| name != "charset" && name != "boundary");
    parameters.sort();
    (media.trim().to_ascii_lowercase(), parameters)
}

fn parse(headers: &HeaderMap, payload: &Payload) -> (Kind, Json) {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (media, _) = media_type(kind);
    let bytes = match (&payload.content, headers.contains_key(header::CONTENT_ENCODING)) {
        (Content::Memory(bytes), false) => bytes,
        (Content::Memory(bytes), true) => {
            return (Kind::Opaque, digest(Sha256::digest(bytes).into(), payload.len()));
        }
        (Content::Spooled { sha256, .. }, _) => return (Kind::Opaque, digest(*sha256, payload.len())),
    };
    let is_json = media == "application/json"
        || media.ends_with("+json")
        || media.starts_with("application/x-amz-json");
    if is_json && bytes.is_empty() {
        return (Kind::Json, Json::Null);
    }
    let json = || std::str::from_utf8(bytes).ok().and_then(|text| Json::parse(text).ok());
    // A body that says `null` is not one that is empty.
    if is_json && let Some(json) = json().filter(|json| *json != Json::Null) {
        return (Kind::Json, json);
    }
    if media == "application/x-www-form-urlencoded" {
        return (Kind::Form, form(bytes));
    }
    if media == "multipart/form-data"
        && let Some(boundary) = boundary(kind)
    {
        // Clients choose a boundary for every request; the parts are what counts.
        return (Kind::Opaque, digest(hash_without(bytes, boundary.as_bytes()), 0));
    }
    (Kind::Opaque, digest(Sha256::digest(bytes).into(), payload.len()))
}

/// The fields of a form, in an order that does not depend on the order in which they were sent.
fn form(bytes: &[u8]) -> Json {
    let mut fields: std::collections::BTreeMap<String, Vec<Json>> = std::collections::BTreeMap::new();
    for (name, value) in form_urlencoded::parse(bytes) {
        fields.entry(name.into_owned()).or_default().push(Json::String(value.into_owned()));
    }
    let one_or_all = |mut values: Vec<Json>| match values.len() {
        1 => values.remove(0),
        _ => Json::Array(values),
    };
    let mut members: Vec<(String, Json)> =
        fields.into_iter().map(|(name, values)| (name, one_or_all(values))).collect();
    members.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
    Json::Object(members)
}

fn digest(sha256: [u8; 32], bytes: u64) -> Json {
    Json::Object(vec![
        ("bytes".to_owned(), Json::from(bytes)),
        ("sha256".to_owned(), Json::from(HEXLOWER.encode(&sha256))),
    ])
}

fn boundary(kind: &str) -> Option<&str> {
    let value = kind.split(';').find_map(|part| part.trim().strip_prefix("boundary="))?;
    Some(value.trim_matches('"')).filter(|value| !value.is_empty())
}

fn hash_without(bytes: &[u8], boundary: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut rest = bytes;
    while let Some(at) = rest.windows(boundary.len()).position(|window| window == boundary) {
        hash.update((at as u64).to_be_bytes());
        hash.update(&rest[..at]);
        rest = &rest[at + boundary.len()..];
    }
    hash.update((rest.len() as u64).to_be_bytes());
    hash.update(rest);
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::rules::Format;

    async fn request(kind: &str, query: Option<&str>, body: &str) -> Request {
        let payload = Payload::read(axum::body::Body::from(body.to_owned()), 1_000_000).await.unwrap();
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, kind.parse().unwrap())]);
        Request::new(hyper::Method::POST, "/x".to_owned(), query.map(str::to_owned), headers, payload)
    }

    fn place(part: Part, name: &str) -> Placement {
        let names = Vec::new();
        Placement { part, name: name.to_owned(), names, max: 255, format: Format::Plain, if_present: false }
    }

    #[tokio::test]
    async fn equal_content_in_other_words_is_equal() {
        let form = "application/x-www-form-urlencoded";
        let multipart = |boundary: &str| {
            let body = format!("--{boundary}\r\n\r\nvalue\r\n--{boundary}--\r\n");
            (format!("multipart/form-data; boundary={boundary}"), body)
        };
        let ((first, one), (second, two)) = (multipart("abc"), multipart("xyz-1"));
        for (a, b, is_equal) in [
            ((form, "a=1&b=2"), (form, "b=2&a=1"), true),
            ((form, "a=1&a=2"), (form, "a=2&a=1"), false),
            ((form, "a=1"), (form, "a=2"), false),
            (
                ("application/json", "{\"a\":1,\"b\":2.0}"),
                ("application/json; charset=utf-8", "{ \"b\": 2, \"a\": 1 }"),
                true,
            ),
            (("application/json", "{\"a\":1}"), ("text/plain", "{\"a\":1}"), false),
            (
                ("application/json", "{\"a\":12345678901234567890123}"),
                ("application/json", "{\"a\":12345678901234567890124}"),
                false,
            ),
            (
                ("application/json", "{\"a\":1.000000000000000001}"),
                ("application/json", "{\"a\":1.000000000000000002}"),
                false,
            ),
            ((first.as_str(), one.as_str()), (second.as_str(), two.as_str()), true),
            (
                (first.as_str(), one.as_str()),
                (second.as_str(), "--xyz-1\r\n\r\nother\r\n--xyz-1--\r\n"),
                false,
            ),
            (("", "a"), ("", "a "), false),
            (("application/json", ""), ("application/json", "null"), false),
            (("application/json", "null"), ("application/json", " null"), false),
            (
                ("application/soap+xml; charset=utf-8; action=\"a;b\"", "x"),
                ("Application/SOAP+XML;action=\"a;b\"", "x"),
                true,
            ),
            (
                ("application/soap+xml; action=\"Authorize\"", "x"),
                ("application/soap+xml; action=\"Capture\"", "x"),
                false,
            ),
            (("text/calendar; method=REQUEST", "x"), ("text/calendar; method=CANCEL", "x"), false),
        ] {
            let (x, y) = (request(a.0, None, a.1).await, request(b.0, None, b.1).await);
            assert_eq!(x.input(None).canonical() == y.input(None).canonical(), is_equal, "{a:?} {b:?}");
        }
    }

    #[tokio::test]
    async fn headers_that_say_what_is_done_are_part_of_the_content() {
        let with = async |pairs: &[(&str, &str)]| {
            let mut request = request("application/json", None, "{}").await;
            for (name, value) in pairs {
                let name: header::HeaderName = name.parse().unwrap();
                request.headers.append(name, value.parse().unwrap());
            }
            request.with_action_headers(&Arc::from(["X-Ledger".to_owned()]))
        };
        let content = |request: &Request| request.input(None).canonical();
        let plain = content(&with(&[]).await);
        assert_eq!(
            plain,
            r#"{"body":{},"method":"POST","path":"/x","query":null,"type":"application/json"}"#
        );
        let own = ["x-ledger", "x-ms-meta-name"];
        for name in actions::HEADERS.iter().chain(&own) {
            let (one, other) = (with(&[(*name, "one")]).await, with(&[(*name, "other")]).await);
            assert_ne!(content(&one), content(&other), "{name}");
            assert_ne!(content(&one), plain, "{name}");
            assert_eq!(content(&one), content(&with(&[(*name, " one ")]).await), "{name}");
        }
        for name in [
            "authorization",
            "user-agent",
            "date",
            "x-amz-date",
            "amz-sdk-request",
            "amz-sdk-invocation-id",
            "x-amz-content-sha256",
            "traceparent",
            "x-stainless-retry-count",
            "idempotency-key",
            "accept",
            "content-length",
        ] {
            assert_eq!(content(&with(&[(name, "1")]).await), plain, "{name}");
        }
        let key = place(Part::Header, "X-Ledger");
        assert_eq!(with(&[("x-ledger", "k")]).await.input(Some(&key)).canonical(), plain, "it is the key");
        for (name, value, action) in [
            ("x-amz-target", "AmazonSQS.DeleteQueue", Some("AmazonSQS.DeleteQueue")),
            ("soapaction", "\"urn:Capture\"", Some("urn:Capture")),
            ("soapaction", "\"\"", None),
        ] {
            assert_eq!(with(&[(name, value)]).await.action().as_deref(), action);
        }
        let soap = request("application/soap+xml; action=\"urn:Refund\"", None, "x").await;
        assert_eq!(soap.action().as_deref(), Some("urn:Refund"));
    }

    #[tokio::test]
    async fn a_key_is_not_part_of_the_content_and_can_be_replaced() {
        let json = "application/json";
        for (part, name, kind, query, body, other_query, other_body) in [
            (
                Part::Body,
                "a.key",
                json,
                None,
                r#"{"a":{"key":"k"},"n":1}"#,
                None,
                r#"{"n":1,"a":{"key":"l"}}"#,
            ),
            (Part::Body, "key", "application/x-www-form-urlencoded", None, "n=1&key=k", None, "key=l&n=1"),
            (Part::Query, "key", json, Some("a=1&key=k"), "{}", Some("key=l&a=1"), "{}"),
        ] {
            let place = place(part, name);
            let (x, y) = (request(kind, query, body).await, request(kind, other_query, other_body).await);
            assert_eq!((x.key_at(&place).as_deref(), y.key_at(&place).as_deref()), (Some("k"), Some("l")));
            assert_eq!(x.input(Some(&place)).canonical(), y.input(Some(&place)).canonical());
            let ours = x.with_key(&place, "ours").unwrap();
            let sent = Request::new(ours.method, ours.path, ours.query, ours.headers, ours.payload);
            assert_eq!(sent.key_at(&place).as_deref(), Some("ours"));
            assert_eq!(sent.input(Some(&place)).canonical(), x.input(Some(&place)).canonical());
        }
        // Nothing but the key changes.
        let form = "application/x-www-form-urlencoded";
        for (part, name, kind, body, sent) in [
            (
                Part::Body,
                "key",
                json,
                r#"{"z":1.10, "a":123456789012345.678}"#,
                r#"{"key":"K","z":1.10, "a":123456789012345.678}"#,
            ),
            (
                Part::Body,
                "h.key",
                json,
                r#"{"n":-0.0,"h":{"key":"k","x":1e2}}"#,
                r#"{"n":-0.0,"h":{"key":"K","x":1e2}}"#,
            ),
            (Part::Body, "key", form, "b=%20x&key=k&a=+", "b=%20x&a=+&key=K"),
            (
                Part::Graphql,
                "idempotent",
                json,
                r#"{"variables":{"n":1.10,"k":"a"},"query":"mutation{x @idempotent(key: $k)}"}"#,
                r#"{"variables":{"n":1.10,"k":"K"},"query":"mutation{x @idempotent(key: $k)}"}"#,
            ),
        ] {
            let ours = request(kind, None, body).await.with_key(&place(part, name), "K").unwrap();
            assert_eq!(ours.payload.bytes().map(|bytes| &bytes[..]), Some(sent.as_bytes()));
        }
        let opaque = request("text/plain", None, "x").await;
        assert!(opaque.with_key(&place(Part::Body, "key"), "k").is_err());
    }

    #[test]
    fn keys_have_the_vendors_form_and_stay_the_same() {
        let long = "op_abcdefghijklmnopqrstuvwxyz234567";
        let plain = |max: usize| formatted(long, &Placement { max, ..place(Part::Header, "k") });
        assert_eq!((plain(255), plain(20).len(), plain(20)), (long.to_owned(), 20, plain(20)));
        let uuid = formatted(long, &Placement { format: Format::Uuid, ..place(Part::Header, "k") });
        assert_eq!((uuid.len(), &uuid[14..15], uuid.matches('-').count()), (36, "4", 4));
        assert_ne!(
            uuid,
            formatted("op_other", &Placement { format: Format::Uuid, ..place(Part::Header, "k") })
        );
    }
}
