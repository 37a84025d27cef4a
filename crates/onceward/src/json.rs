//! JSON as the ledger uses it: a strict parser and one canonical form.
//!
//! The canonical text follows RFC 8785, with one stricter rule: an integer keeps all its digits, because two
//! neighbouring 20-digit ids are different ids. Everything that would make a key ambiguous is rejected, not repaired:
//! a duplicate name in an object, an unpaired surrogate, a number that no parser can represent.

mod number;
mod parse;

use std::cmp::Ordering;
use std::fmt;

use crate::invalid::InvalidInput;

/// The maximum nesting depth of arrays and objects.
pub const MAX_DEPTH: usize = 128;

/// A JSON value with exact numbers and with objects in canonical order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Json {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number, as its canonical text.
    Number(String),
    /// A string.
    String(String),
    /// An array.
    Array(Vec<Json>),
    /// Members in canonical order (by UTF-16 code units), with unique names.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Parses JSON text strictly.
    ///
    /// # Errors
    /// Says what is wrong and at which byte.
    pub fn parse(text: &str) -> Result<Self, InvalidInput> {
        parse::document(text)
    }

    /// An empty object, the input of an operation without inputs.
    #[must_use]
    pub fn empty() -> Self {
        Self::Object(Vec::new())
    }

    /// A number from its JSON text. An integer keeps all its digits.
    ///
    /// # Errors
    /// When the text is not a number, or not one that a parser can represent.
    pub fn number(token: &str) -> Result<Self, InvalidInput> {
        let refused =
            || InvalidInput::new(format!("{token:?} is not a number that JSON parsers can represent"));
        match Self::parse(token)? {
            number @ Self::Number(_) => Ok(number),
            Self::Null | Self::Bool(_) | Self::String(_) | Self::Array(_) | Self::Object(_) => Err(refused()),
        }
    }

    /// An object from its members; a later member replaces an earlier one with the same name.
    pub fn object<N: Into<String>>(members: impl IntoIterator<Item = (N, Json)>) -> Self {
        let mut sorted: Vec<(String, Json)> = Vec::new();
        for (name, value) in members {
            let name = name.into();
            match sorted.binary_search_by(|(other, _)| canonical_order(other, &name)) {
                Ok(at) => sorted[at].1 = value,
                Err(at) => sorted.insert(at, (name, value)),
            }
        }
        Self::Object(sorted)
    }

    /// The canonical text.
    #[must_use]
    pub fn canonical(&self) -> String {
        let mut out = String::with_capacity(128);
        self.write_canonical(&mut out);
        out
    }

    /// Appends the canonical text to `out`.
    pub fn write_canonical(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(true) => out.push_str("true"),
            Self::Bool(false) => out.push_str("false"),
            Self::Number(text) => out.push_str(text),
            Self::String(text) => write_string(text, out),
            Self::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    item.write_canonical(out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                for (index, (name, value)) in members.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    write_string(name, out);
                    out.push(':');
                    value.write_canonical(out);
                }
                out.push('}');
            }
        }
    }

    /// The member with this name, if this is an object that has it.
    #[must_use]
    pub fn member(&self, name: &str) -> Option<&Json> {
        match self {
            Self::Object(members) => members
                .binary_search_by(|(other, _)| canonical_order(other, name))
                .ok()
                .map(|at| &members[at].1),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::String(_) | Self::Array(_) => None,
        }
    }

    /// The value that `pointer` refers to.
    #[must_use]
    pub fn at(&self, pointer: &Pointer) -> Option<&Json> {
        pointer.steps.iter().try_fold(self, |value, step| match value {
            Self::Array(items) => items.get(array_index(step)?),
            Self::Object(_) => value.member(step),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::String(_) => None,
        })
    }

    /// This value without the values that the pointers refer to. All pointers refer to the original value.
    #[must_use]
    pub fn without(mut self, pointers: &[Pointer]) -> Self {
        // Remove the last item of an array first, so that the indices of the others stay valid.
        let place = |pointer: &Pointer| -> Vec<(usize, String)> {
            pointer.steps.iter().map(|step| (step.len(), step.clone())).collect()
        };
        let mut pointers: Vec<&Pointer> = pointers.iter().collect();
        pointers.sort_by_key(|pointer| place(pointer));
        pointers.dedup();
        pointers.into_iter().rev().for_each(|pointer| self.remove(pointer));
        self
    }

    /// Removes the value that `pointer` refers to, if it exists.
    pub fn remove(&mut self, pointer: &Pointer) {
        let Some((last, parents)) = pointer.steps.split_last() else {
            return;
        };
        let mut value = self;
        for step in parents {
            let next = match value {
                Self::Array(items) => array_index(step).and_then(|at| items.get_mut(at)),
                Self::Object(members) => {
                    members.iter_mut().find(|(name, _)| name == step).map(|(_, inner)| inner)
                }
                Self::Null | Self::Bool(_) | Self::Number(_) | Self::String(_) => None,
            };
            let Some(next) = next else { return };
            value = next;
        }
        match value {
            Self::Array(items) => {
                if let Some(at) = array_index(last).filter(|at| *at < items.len()) {
                    items.remove(at);
                }
            }
            Self::Object(members) => members.retain(|(name, _)| name != last),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::String(_) => {}
        }
    }

    /// Calls `visit` with every leaf (a scalar or an empty container) and its pointer, in canonical order.
    pub fn leaves(&self, visit: &mut dyn FnMut(&str, &Json)) {
        fn walk(value: &Json, path: &mut String, visit: &mut dyn FnMut(&str, &Json)) {
            let mut child = |step: &str, inner: &Json, path: &mut String| {
                let length = path.len();
                path.push('/');
                path.push_str(&step.replace('~', "~0").replace('/', "~1"));
                walk(inner, path, visit);
                path.truncate(length);
            };
            match value {
                Json::Array(items) if !items.is_empty() => {
                    for (index, item) in items.iter().enumerate() {
                        child(&index.to_string(), item, path);
                    }
                }
                Json::Object(members) if !members.is_empty() => {
                    for (name, inner) in members {
                        child(name, inner, path);
                    }
                }
                Json::Null
                | Json::Bool(_)
                | Json::Number(_)
                | Json::String(_)
                | Json::Array(_)
                | Json::Object(_) => visit(path, value),
            }
        }
        walk(self, &mut String::new(), visit);
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.canonical())
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl From<String> for Json {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<u64> for Json {
    fn from(number: u64) -> Self {
        Self::Number(number.to_string())
    }
}

impl From<serde_json::Value> for Json {
    fn from(value: serde_json::Value) -> Self {
        use serde_json::Value;
        match value {
            Value::Null => Self::Null,
            Value::Bool(flag) => Self::Bool(flag),
            // A `Value` holds 64-bit integers and finite doubles, which all have a canonical text.
            Value::Number(number) => {
                let text = number.to_string();
                let canonical = number.is_f64().then(|| number::canonical(&text)).flatten();
                Self::Number(canonical.unwrap_or(text))
            }
            Value::String(text) => Self::String(text),
            Value::Array(items) => Self::Array(items.into_iter().map(Self::from).collect()),
            Value::Object(members) => {
                let mut members: Vec<_> =
                    members.into_iter().map(|(name, value)| (name, Self::from(value))).collect();
                members.sort_by(|(a, _), (b, _)| canonical_order(a, b));
                Self::Object(members)
            }
        }
    }
}

/// A location in a JSON value: an RFC 6901 pointer (`/order/items/0`) or a dotted path (`order.items.0`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pointer {
    steps: Vec<String>,
}

impl Pointer {
    /// Parses either form. A name that contains a dot needs the pointer form.
    ///
    /// # Errors
    /// When it is empty, has an empty step, or a `~` that is neither `~0` nor `~1`.
    pub fn parse(text: &str) -> Result<Self, InvalidInput> {
        let invalid = |problem: &str| {
            InvalidInput::new(format!(
                "the field {text:?} {problem}; write `order.id` or the JSON Pointer `/order/id`"
            ))
        };
        let steps: Vec<String> = match text.strip_prefix('/') {
            Some(rest) => rest
                .split('/')
                .map(|step| {
                    let stray = step.replace("~0", "").replace("~1", "").contains('~');
                    (!stray).then(|| step.replace("~1", "/").replace("~0", "~"))
                })
                .collect::<Option<_>>()
                .ok_or_else(|| invalid("has a `~` that is neither `~0` nor `~1`"))?,
            None => text.split('.').map(str::to_owned).collect(),
        };
        if steps.iter().any(String::is_empty) {
            return Err(invalid("is empty or has an empty step"));
        }
        Ok(Self { steps })
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| write!(f, "/{}", step.replace('~', "~0").replace('/', "~1")))
    }
}

/// RFC 8785 sorts names by UTF-16 code units, which differs from byte order beyond the basic multilingual plane.
fn canonical_order(a: &str, b: &str) -> Ordering {
    if a.is_ascii() && b.is_ascii() { a.cmp(b) } else { a.encode_utf16().cmp(b.encode_utf16()) }
}

fn array_index(step: &str) -> Option<usize> {
    let plain = step == "0" || (!step.starts_with('0') && step.bytes().all(|b| b.is_ascii_digit()));
    plain.then(|| step.parse().ok()).flatten()
}

/// Appends a string in its canonical form.
pub(crate) fn write_string(text: &str, out: &mut String) {
    out.push('"');
    // Most strings need no escapes, and one scan of the whole string is cheaper than a check per byte.
    if text.bytes().all(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\') {
        out.push_str(text);
        out.push('"');
        return;
    }
    let mut plain_from = 0;
    for (at, byte) in text.bytes().enumerate() {
        let escape = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            0x08 => "\\b",
            0x09 => "\\t",
            0x0a => "\\n",
            0x0c => "\\f",
            0x0d => "\\r",
            0x00..0x20 => "",
            _ => continue,
        };
        out.push_str(&text[plain_from..at]);
        if escape.is_empty() {
            out.push_str(&format!("\\u{byte:04x}"));
        } else {
            out.push_str(escape);
        }
        plain_from = at + 1;
    }
    out.push_str(&text[plain_from..]);
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_sorted_by_utf16_units() {
        // U+10000 is two surrogates (d800 dc00) and so sorts before U+FFFF, although its bytes sort after.
        let value = Json::parse("{\"\u{ffff}\":1,\"\u{10000}\":2}").unwrap();
        assert_eq!(value.canonical(), "{\"\u{10000}\":2,\"\u{ffff}\":1}");
    }

    #[test]
    fn pointers_and_paths_name_the_same_place() {
        let value = Json::parse(r#"{"a":{"b.c":[10,{"d/e":11}]}}"#).unwrap();
        let at = |text: &str| value.at(&Pointer::parse(text).unwrap()).map(Json::canonical);
        assert_eq!(at("/a/b.c/0"), Some("10".into()));
        assert_eq!(at("/a/b.c/1/d~1e"), Some("11".into()));
        assert_eq!(at("a.b"), None);
        assert_eq!((at("/a/b.c/00"), at("/a/b.c/+1")), (None, None));
        assert!(Pointer::parse("").is_err());
        assert!(Pointer::parse("a..b").is_err());
        assert!(Pointer::parse("/a~2").is_err());
    }

    #[test]
    fn removing_what_is_volatile() {
        let mut value = Json::parse(r#"{"a":1,"meta":{"trace":"x","user":"u"},"list":[1,2,3]}"#).unwrap();
        for pointer in ["meta.trace", "list.1", "absent.field"] {
            value.remove(&Pointer::parse(pointer).unwrap());
        }
        assert_eq!(value.canonical(), r#"{"a":1,"list":[1,3],"meta":{"user":"u"}}"#);
    }

    #[test]
    fn all_pointers_are_of_the_value_as_it_was() {
        let value = Json::parse(r#"{"list":[0,1,2,{"x":3,"y":3},4,5,6,7,8,9,10]}"#).unwrap();
        let pointers: Vec<Pointer> =
            ["list.0", "/list/0", "list.3.x", "list.1", "list.9", "list.10", "list.2.x"]
                .map(|text| Pointer::parse(text).unwrap())
                .into();
        assert_eq!(value.without(&pointers).canonical(), r#"{"list":[2,{"y":3},4,5,6,7,8]}"#);
    }
}
