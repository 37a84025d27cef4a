//! JSON kept as text: members are looked up and inserted, and nothing else changes.

use std::fmt;
use std::ops::Range;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The members of an object, with their values as text. If a name occurs twice, the last one counts, as in most
/// parsers.
pub struct Object<'a> {
    members: Vec<(String, &'a RawValue)>,
}

impl<'a> Object<'a> {
    /// Parses an object. `None` if the text is anything else.
    #[must_use]
    pub fn parse(text: &'a str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// The value of that member, as JSON text.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.members.iter().rev().find(|(other, _)| other == name).map(|(_, value)| value.get())
    }

    /// The value of that member, if it is a string.
    #[must_use]
    pub fn string(&self, name: &str) -> Option<String> {
        self.get(name).and_then(string)
    }

    /// The value of that member, if it is an object.
    #[must_use]
    pub fn object(&self, name: &str) -> Option<Object<'a>> {
        self.get(name).and_then(Object::parse)
    }

    /// All members, in order.
    pub fn members(&self) -> impl Iterator<Item = (&str, &'a str)> {
        self.members.iter().map(|(name, value)| (name.as_str(), value.get()))
    }
}

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Object<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    members.push((name, map.next_value()?));
                }
                Ok(Object { members })
            }
        }
        deserializer.deserialize_map(Members)
    }
}

/// The items of an array, as JSON texts.
#[must_use]
pub fn items(text: &str) -> Option<Vec<&str>> {
    let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
    Some(items.into_iter().map(RawValue::get).collect())
}

/// The string in a JSON text, if it is one.
#[must_use]
pub fn string(text: &str) -> Option<String> {
    serde_json::from_str(text).ok()
}

/// The range of a part in the text from which it was parsed.
#[must_use]
pub fn range(whole: &str, part: &str) -> Range<usize> {
    let start = (part.as_ptr() as usize).saturating_sub(whole.as_ptr() as usize).min(whole.len());
    start..(start + part.len()).min(whole.len())
}

/// A string as JSON text.
#[must_use]
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The object with `members` inserted at the start, given as text without braces.
#[must_use]
pub fn with_members(object: &str, members: &str) -> String {
    let Some(open) = object.find('{') else {
        return object.to_owned();
    };
    let (head, rest) = object.split_at(open + 1);
    let comma = if rest.trim_start().starts_with('}') || members.is_empty() { "" } else { "," };
    format!("{head}{members}{comma}{rest}")
}

/// The object without the members that `drop` selects.
#[must_use]
pub fn without(object: &Object<'_>, drop: impl Fn(&str) -> bool) -> String {
    let kept: Vec<String> = object
        .members()
        .filter(|(name, _)| !drop(name))
        .map(|(name, value)| format!("{}:{value}", quoted(name)))
        .collect();
    format!("{{{}}}", kept.join(","))
}

/// `whole` with that range replaced.
#[must_use]
pub fn spliced(whole: &str, place: Range<usize>, by: &str) -> String {
    format!("{}{by}{}", &whole[..place.start], &whole[place.end..])
}

/// The object with that text at the place that `steps` name, one member inside the other. Members that are missing are
/// inserted at the start of their object. `None` if one of them is not an object.
#[must_use]
pub fn with_text_at(object: &str, steps: &[&str], text: &str) -> Option<String> {
    let (step, rest) = steps.split_first()?;
    let parsed = Object::parse(object)?;
    Some(match (parsed.get(step), rest.is_empty()) {
        (Some(value), true) => spliced(object, range(object, value), &quoted(text)),
        (Some(value), false) => spliced(object, range(object, value), &with_text_at(value, rest, text)?),
        (None, _) => {
            let inner =
                rest.iter().rev().fold(quoted(text), |inner, name| format!("{{{}:{inner}}}", quoted(name)));
            with_members(object, &format!("{}:{inner}", quoted(step)))
        }
    })
}

/// All character boundaries of a text, including its end.
pub fn boundaries(text: &str) -> impl Iterator<Item = usize> + '_ {
    (0..=text.len()).filter(|at| text.is_char_boundary(*at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_put_into_an_object_and_nothing_else_changes() {
        for (object, steps, expected) in [
            (r#"{ "b": 1.10, "a":-0.0 }"#, &["k"][..], r#"{"k":"v", "b": 1.10, "a":-0.0 }"#),
            (r#" {"n":1E400,"k":"old","a":[1e2]}"#, &["k"], r#" {"n":1E400,"k":"v","a":[1e2]}"#),
            ("{}", &["a", "b"], r#"{"a":{"b":"v"}}"#),
            (r#"{"a":{"c":123456789012345.678}}"#, &["a", "b"], r#"{"a":{"b":"v","c":123456789012345.678}}"#),
            (r#"{"a": {"b" : null}, "x":1}"#, &["a", "b"], r#"{"a": {"b" : "v"}, "x":1}"#),
        ] {
            assert_eq!(with_text_at(object, steps, "v").as_deref(), Some(expected));
        }
        assert_eq!(with_text_at(r#"{"a":1}"#, &["a", "b"], "v"), None);
        assert_eq!(with_text_at("[]", &["a"], "v"), None);
    }
}
