//! JSON objects as the text they came as: members are looked up and texts are put in, and nothing else changes.

use std::fmt;
use std::ops::Range;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The members of an object, each value as its text. Where a name stands twice, the last one counts, as for most
/// readers.
pub(crate) struct Object<'a> {
    members: Vec<(String, &'a RawValue)>,
}

impl<'a> Object<'a> {
    /// Reads an object, or nothing where the text is something else.
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// The text of that member.
    pub(crate) fn get(&self, name: &str) -> Option<&'a str> {
        self.members.iter().rev().find(|(other, _)| other == name).map(|(_, value)| value.get())
    }

    /// The member of that name, if it is a string.
    pub(crate) fn string(&self, name: &str) -> Option<String> {
        self.get(name).and_then(string)
    }

    /// The member of that name, if it is an object.
    pub(crate) fn object(&self, name: &str) -> Option<Object<'a>> {
        self.get(name).and_then(Object::parse)
    }

    /// All members as they came.
    pub(crate) fn members(&self) -> impl Iterator<Item = (&str, &'a str)> {
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

/// The items of an array, each as its text.
pub(crate) fn items(text: &str) -> Option<Vec<&str>> {
    let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
    Some(items.into_iter().map(RawValue::get).collect())
}

/// The string that a text is.
pub(crate) fn string(text: &str) -> Option<String> {
    serde_json::from_str(text).ok()
}

/// Where a part stands in the text that it was read from.
pub(crate) fn range(whole: &str, part: &str) -> Range<usize> {
    let start = (part.as_ptr() as usize).saturating_sub(whole.as_ptr() as usize).min(whole.len());
    start..(start + part.len()).min(whole.len())
}

/// A string as JSON text.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The object with members put in at its beginning; `members` is their text, without braces.
pub(crate) fn with_members(object: &str, members: &str) -> String {
    let Some(open) = object.find('{') else {
        return object.to_owned();
    };
    let (head, rest) = object.split_at(open + 1);
    let comma = if rest.trim_start().starts_with('}') || members.is_empty() { "" } else { "," };
    format!("{head}{members}{comma}{rest}")
}

/// The object without the members that `drop` names.
pub(crate) fn without(object: &Object<'_>, drop: impl Fn(&str) -> bool) -> String {
    let kept: Vec<String> = object
        .members()
        .filter(|(name, _)| !drop(name))
        .map(|(name, value)| format!("{}:{value}", quoted(name)))
        .collect();
    format!("{{{}}}", kept.join(","))
}

/// `whole` with the part in that place replaced.
pub(crate) fn spliced(whole: &str, place: Range<usize>, by: &str) -> String {
    format!("{}{by}{}", &whole[..place.start], &whole[place.end..])
}

/// Every place in a text where a part of it may begin, the end included.
pub(crate) fn boundaries(text: &str) -> impl Iterator<Item = usize> + '_ {
    (0..=text.len()).filter(|at| text.is_char_boundary(*at))
}
