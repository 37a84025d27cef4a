//! Where values are in a request: headers, JSON bodies and forms.

use std::sync::OnceLock;

use http::{HeaderMap, HeaderName};
use onceward::InvalidInput;
use serde_json::Value;
use serde_json::value::RawValue;
use serde_json_path::{JsonPath, NormalizedPath, PathElement};

use crate::raw;

/// Where a value is in a request.
#[derive(Debug)]
pub(crate) enum Selector {
    /// `$.path` in the JSON body.
    Path(JsonPath),
    /// `header:NAME`.
    Header(HeaderName),
    /// `form:FIELD`.
    Field(String),
    /// `signed`: the id that the signature covers.
    Signed,
    /// Several selectors together: all of them must have a value.
    Joined(Vec<Self>),
}

/// Whether a value is as authentic as the content of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// The signature covers it.
    Signed,
    /// Anyone who has seen a request can send it with another value.
    Unsigned,
}

/// What selectors are looked up in.
pub(crate) struct View<'a> {
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a [u8],
    pub(crate) signed_id: Option<&'a str>,
    json: OnceLock<Option<Value>>,
}

impl<'a> View<'a> {
    pub(crate) fn new(headers: &'a HeaderMap, body: &'a [u8], signed_id: Option<&'a str>) -> Self {
        Self { headers, body, signed_id, json: OnceLock::new() }
    }

    /// The body as JSON, if it is that.
    pub(crate) fn json(&self) -> Option<&Value> {
        self.json.get_or_init(|| serde_json::from_slice(self.body).ok()).as_ref()
    }

    /// The first selector that has a value, and whether that is signed, given whether the content is.
    pub(crate) fn first(&self, selectors: &[Selector], content: Trust) -> Option<(String, Trust)> {
        selectors.iter().find_map(|selector| Some((selector.value(self)?, selector.trust(content))))
    }
}

impl Selector {
    /// Reads the notation of the configuration.
    pub(crate) fn parse(text: &str) -> Result<Self, InvalidInput> {
        if text.contains(" + ") {
            return text.split(" + ").map(Self::parse).collect::<Result<_, _>>().map(Self::Joined);
        }
        let wrong = |why: String| {
            InvalidInput::new(format!(
                "{text:?} is not a place: {why}; write $.path, header:NAME or form:FIELD"
            ))
        };
        let text = text.trim();
        if text == "signed" {
            Ok(Self::Signed)
        } else if let Some(name) = text.strip_prefix("header:") {
            name.parse().map(Self::Header).map_err(|_| wrong("that is not the name of a header".to_owned()))
        } else if let Some(field) = text.strip_prefix("form:") {
            Ok(Self::Field(field.to_owned()))
        } else if text.starts_with('$') {
            JsonPath::parse(text).map(Self::Path).map_err(|error| wrong(error.to_string()))
        } else {
            Err(wrong("it begins with none of these".to_owned()))
        }
    }

    pub(crate) fn parse_all(texts: &[String]) -> Result<Vec<Self>, InvalidInput> {
        texts.iter().map(|text| Self::parse(text)).collect()
    }

    fn trust(&self, content: Trust) -> Trust {
        match self {
            Self::Path(_) | Self::Field(_) => content,
            Self::Signed => Trust::Signed,
            Self::Header(_) => Trust::Unsigned,
            Self::Joined(selectors)
                if selectors.iter().all(|selector| selector.trust(content) == Trust::Signed) =>
            {
                Trust::Signed
            }
            Self::Joined(_) => Trust::Unsigned,
        }
    }

    fn value(&self, view: &View<'_>) -> Option<String> {
        let text = match self {
            Self::Path(path) => {
                let found = path.query_located(view.json()?).exactly_one().ok()?;
                let raw = raw_at(view.body, found.location())?;
                match found.node() {
                    Value::String(text) => text.clone(),
                    // The digits as they are: a long number is not the nearest double.
                    Value::Number(_) => raw.trim().to_owned(),
                    Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
                }
            }
            Self::Header(name) => one_header(view.headers, name)?,
            Self::Field(field) => one_field(view.body, field)?,
            Self::Signed => view.signed_id?.to_owned(),
            // A space separates the parts, so they cannot contain one.
            Self::Joined(selectors) => {
                let parts: Option<Vec<String>> =
                    selectors.iter().map(|selector| selector.value(view)).collect();
                let parts = parts?;
                let escaped = parts.iter().map(|part| part.replace('%', "%25").replace(' ', "%20"));
                escaped.collect::<Vec<_>>().join(" ")
            }
        };
        (!text.is_empty()).then_some(text)
    }
}

/// The text of a value in the body. `None` if a member on the way to it occurs more than once: programs differ in which
/// one they take.
fn raw_at<'a>(body: &'a [u8], path: &NormalizedPath<'_>) -> Option<&'a str> {
    let mut text = std::str::from_utf8(body).ok()?;
    for step in path.iter() {
        text = match step {
            PathElement::Name(name) => {
                let object = raw::Object::parse(text)?;
                let mut named = object.members().filter(|(member, _)| member == name);
                let (_, value) = named.next()?;
                named.next().is_none().then_some(value)?
            }
            PathElement::Index(at) => {
                let items: Vec<&'a RawValue> = serde_json::from_str(text).ok()?;
                items.get(*at)?.get()
            }
        };
    }
    Some(text)
}

/// A header that occurs once, as text.
fn one_header(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    if values.next().is_some() {
        return None;
    }
    String::from_utf8(value.as_bytes().to_vec()).ok()
}

/// A field of a form that occurs once.
fn one_field(body: &[u8], field: &str) -> Option<String> {
    let mut values = form_urlencoded::parse(body).filter(|(name, _)| name == field);
    let (_, value) = values.next()?;
    values.next().is_none().then(|| value.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_and_found() {
        let mut headers = HeaderMap::new();
        headers.insert("x-id", "h1".parse().unwrap());
        headers.append("x-two", "a".parse().unwrap());
        headers.append("x-two", "b".parse().unwrap());
        let body = br#"{"id": "b1", "n": 7, "s": "a b%", "e": "", "deep": {"x": ["y"]},
            "long": 340282366920938463463374607431768211455, "tiny": 1.000000000000000000001,
            "two": 1, "two": 1, "twice": {"x": 1}, "tw\u0069ce": {"x": 2}}"#;
        let view = View::new(&headers, body, Some("s1"));
        let found = |text: &str| view.first(&[Selector::parse(text).unwrap()], Trust::Signed);
        let some = |text: &str, trust| Some((text.to_owned(), trust));
        let (signed, unsigned) = (Trust::Signed, Trust::Unsigned);
        assert_eq!(found("$.id"), some("b1", signed));
        assert_eq!(found("$.n"), some("7", signed));
        assert_eq!(found("$.long"), some("340282366920938463463374607431768211455", signed));
        assert_eq!(found("$.tiny"), some("1.000000000000000000001", signed));
        assert_eq!((found("$.two"), found("$.twice.x")), (None, None), "which one is it?");
        assert_eq!(found("$.deep.x[0]"), some("y", signed));
        assert_eq!(found("header:X-Id"), some("h1", unsigned));
        assert_eq!(found("signed"), some("s1", signed));
        assert_eq!(found("$.s + $.id"), some("a%20b%25 b1", signed));
        assert_eq!(found("$.id + header:x-id"), some("b1 h1", unsigned));
        for none in ["header:x-two", "header:x-none", "$.deep", "$.e", "$.none", "$.id + $.none", "$..*"] {
            assert_eq!(found(none), None, "{none}");
        }
        for wrong in ["id", "", "$.", "header:a b", "$[", "form"] {
            assert!(Selector::parse(wrong).is_err(), "{wrong}");
        }
        let view = View::new(&headers, b"a=1&b=2&b=3&c=%41", None);
        let found =
            |text: &str| view.first(&[Selector::parse(text).unwrap()], Trust::Unsigned).map(|(text, _)| text);
        assert_eq!(
            (found("form:a"), found("form:b"), found("form:c")),
            (Some("1".into()), None, Some("A".into()))
        );
    }
}
