//! Removes secrets that a command or a tool prints from results before they are stored.
//!
//! A rule is `re:PATTERN` (a regular expression) or `json:/token` (a location in JSON; a step `*` matches any
//! member). Matches are stored as `[redacted]`. A replay returns what was stored.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use regex::bytes::Regex;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::facts::Ending;
use crate::invalid::InvalidInput;
use crate::record::Outcome;
use crate::word::Word;

/// What a match is stored as.
pub const REPLACEMENT: &str = "[redacted]";

/// The redaction rules of an operation. Clones share them.
#[derive(Clone, Default)]
pub struct Redaction {
    rules: Arc<[Rule]>,
}

#[derive(Debug)]
struct Rule {
    written: String,
    finds: Finds,
}

#[derive(Debug)]
enum Finds {
    Pattern(Regex),
    Place(Vec<String>),
}

/// A range of a text, and its replacement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    /// The bytes to replace.
    pub range: Range<usize>,
    /// The replacement.
    pub by: String,
}

impl Redaction {
    /// Parses rules.
    ///
    /// # Errors
    /// Says which rule is invalid, and why.
    pub fn parse<T: AsRef<str>>(rules: &[T]) -> Result<Self, InvalidInput> {
        let rules = rules.iter().map(|rule| Rule::parse(rule.as_ref())).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { rules: rules.into() })
    }

    /// Whether nothing is redacted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// An attempt's ending with its result and reason redacted, as it is stored. A surface redacts the body itself,
    /// with [`Redaction::edits`].
    #[must_use]
    pub fn ending(&self, ending: Ending) -> Ending {
        if self.is_empty() {
            return ending;
        }
        match ending {
            Ending::Done(outcome) => Ending::Done(self.outcome(outcome)),
            Ending::Failed(evidence, outcome) => Ending::Failed(evidence, self.outcome(outcome)),
            Ending::InDoubt(outcome) => Ending::InDoubt(self.outcome(outcome)),
        }
    }

    /// An outcome as it is stored: its result and its reason.
    #[must_use]
    pub fn outcome(&self, mut outcome: Outcome) -> Outcome {
        outcome.reason = outcome.reason.map(|reason| self.text(&reason).into_owned());
        outcome.settled_by = outcome.settled_by.map(|word| Box::new(self.word(*word)));
        if let Some(data) = &outcome.data
            && let Cow::Owned(redacted) = self.json(data.get())
        {
            // If the redacted text is no longer JSON, store no result.
            outcome.data = RawValue::from_string(redacted).ok().map(Arc::from);
            outcome.unavailable |= outcome.data.is_none();
        }
        outcome
    }

    /// What someone said, as it is stored.
    #[must_use]
    pub fn word(&self, word: Word) -> Word {
        let note = word.note.as_deref().map(|note| self.text(note).into_owned());
        Word { note, ..word }
    }

    /// The text without matches of the patterns.
    #[must_use]
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let edits = self.patterns(text.as_bytes());
        if edits.is_empty() {
            return Cow::Borrowed(text);
        }
        Cow::Owned(String::from_utf8_lossy(&apply(text.as_bytes(), &edits)).into_owned())
    }

    /// A JSON document without matches of the rules. It stays valid JSON: patterns apply to its strings and numbers.
    #[must_use]
    pub fn json<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut edits = Vec::new();
        self.in_json(text, 0, &mut edits);
        if edits.is_empty() {
            return Cow::Borrowed(text);
        }
        Cow::Owned(String::from_utf8_lossy(&apply(text.as_bytes(), &merged(edits))).into_owned())
    }

    /// The edits for the output of a command: pattern matches, and JSON locations if the output, or a line of it, is
    /// JSON.
    #[must_use]
    pub fn edits(&self, output: &[u8]) -> Vec<Edit> {
        let mut edits = self.patterns(output);
        if self.rules.iter().any(|rule| matches!(rule.finds, Finds::Place(_)))
            && let Ok(text) = std::str::from_utf8(output)
        {
            if serde_json::from_str::<&RawValue>(text).is_ok() {
                self.places(text, 0, &mut edits);
            } else {
                let mut at = 0;
                for line in text.split_inclusive('\n') {
                    self.places(line, at, &mut edits);
                    at += line.len();
                }
            }
        }
        merged(edits)
    }

    fn patterns(&self, bytes: &[u8]) -> Vec<Edit> {
        let mut edits = Vec::new();
        for rule in &*self.rules {
            if let Finds::Pattern(pattern) = &rule.finds {
                let found = pattern.find_iter(bytes).filter(|found| !found.is_empty());
                edits.extend(found.map(|found| Edit { range: found.range(), by: REPLACEMENT.to_owned() }));
            }
        }
        merged(edits)
    }

    /// Locations, and patterns in every string and number.
    fn in_json(&self, text: &str, at: usize, edits: &mut Vec<Edit>) {
        self.places(text, at, edits);
        let mut leaves = |leaf: &str, at: usize| {
            let content = serde_json::from_str::<String>(leaf);
            let by = match content.as_deref().map(|content| self.text(content)) {
                Ok(Cow::Owned(redacted)) => Some(redacted),
                Ok(Cow::Borrowed(_)) => None,
                Err(_) => (!self.patterns(leaf.as_bytes()).is_empty()).then(|| REPLACEMENT.to_owned()),
            };
            if let Some(by) = by {
                let by = serde_json::Value::String(by).to_string();
                edits.push(Edit { range: at..at + leaf.len(), by });
            }
        };
        walk(text, at, &mut leaves);
    }

    fn places(&self, text: &str, at: usize, edits: &mut Vec<Edit>) {
        for rule in &*self.rules {
            if let Finds::Place(steps) = &rule.finds {
                find(text, at, steps, edits);
            }
        }
    }
}

impl Rule {
    fn parse(written: &str) -> Result<Self, InvalidInput> {
        let wrong = |why: &str| InvalidInput::new(format!("the rule {written:?} is not understood: {why}"));
        let finds = if let Some(pattern) = written.strip_prefix("re:") {
            let pattern = Regex::new(pattern).map_err(|error| {
                let why = error.to_string();
                wrong(why.lines().last().unwrap_or_default().trim())
            })?;
            Finds::Pattern(pattern)
        } else if let Some(place) = written.strip_prefix("json:/") {
            let step = |step: &str| step.replace("~1", "/").replace("~0", "~");
            Finds::Place(place.split('/').map(step).collect())
        } else {
            return Err(wrong("write re:PATTERN or json:/PLACE"));
        };
        Ok(Self { written: written.to_owned(), finds })
    }
}

/// The offset of a piece of JSON text in the text that it is borrowed from.
fn offset(part: &RawValue, whole: &str) -> usize {
    part.get().as_ptr() as usize - whole.as_ptr() as usize
}

/// The members of an object in the order of the text, or the items of an array with their indices.
fn members(text: &str) -> Vec<(String, &RawValue)> {
    if let Ok(Members(members)) = serde_json::from_str(text) {
        return members;
    }
    let items: Vec<&RawValue> = serde_json::from_str(text).unwrap_or_default();
    items.into_iter().enumerate().map(|(index, item)| (index.to_string(), item)).collect()
}

/// Records the edits for the values at a location.
fn find(text: &str, at: usize, steps: &[String], edits: &mut Vec<Edit>) {
    let Some((step, rest)) = steps.split_first() else {
        let whole = text.trim();
        let begin = at + (whole.as_ptr() as usize - text.as_ptr() as usize);
        return edits.push(Edit { range: begin..begin + whole.len(), by: format!("\"{REPLACEMENT}\"") });
    };
    for (name, member) in members(text) {
        if step == "*" || *step == name {
            find(member.get(), at + offset(member, text), rest, edits);
        }
    }
}

/// Calls `leaf` for every string, number and literal.
fn walk(text: &str, at: usize, leaf: &mut impl FnMut(&str, usize)) {
    if text.trim_start().starts_with(['{', '[']) {
        for (_, member) in members(text) {
            walk(member.get(), at + offset(member, text), leaf);
        }
    } else {
        leaf(text, at);
    }
}

/// An object's members, including duplicates.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

/// The edits in order, merged so that none overlap.
fn merged(edits: Vec<Edit>) -> Vec<Edit> {
    let mut by_place: BTreeMap<(usize, std::cmp::Reverse<usize>), Edit> = BTreeMap::new();
    for edit in edits {
        by_place.entry((edit.range.start, std::cmp::Reverse(edit.range.end))).or_insert(edit);
    }
    let mut merged: Vec<Edit> = Vec::new();
    for edit in by_place.into_values() {
        match merged.last_mut() {
            Some(last) if edit.range.start < last.range.end => {
                last.range.end = last.range.end.max(edit.range.end);
            }
            Some(_) | None => merged.push(edit),
        }
    }
    merged
}

fn apply(bytes: &[u8], edits: &[Edit]) -> Vec<u8> {
    let mut edited = Vec::with_capacity(bytes.len());
    let mut at = 0;
    for Edit { range, by } in edits {
        edited.extend_from_slice(&bytes[at..range.start]);
        edited.extend_from_slice(by.as_bytes());
        at = range.end;
    }
    edited.extend_from_slice(&bytes[at..]);
    edited
}

impl PartialEq for Redaction {
    fn eq(&self, other: &Self) -> bool {
        self.rules.iter().map(|rule| &rule.written).eq(other.rules.iter().map(|rule| &rule.written))
    }
}

impl Eq for Redaction {}

impl fmt::Debug for Redaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.rules.iter().map(|rule| &rule.written)).finish()
    }
}

impl Serialize for Redaction {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.rules.iter().map(|rule| &rule.written))
    }
}

impl<'de> Deserialize<'de> for Redaction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&Vec::<String>::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redaction(rules: &[&str]) -> Redaction {
        Redaction::parse(rules).unwrap()
    }

    #[test]
    fn a_document_stays_one_and_keeps_every_other_byte() {
        let rules = redaction(&["re:sk_[a-z0-9]+", "json:/token", "json:/users/*/pin", "re:^4[0-9]{15}$"]);
        let document = r#"{ "token": {"a": 1}, "n": 1.50e3, "s": "key sk_a1 \u00e9",
            "users": [{"pin": 1}, {"pin": "2", "token": "kept"}], "card": 4111111111111111,
            "token" : null }"#;
        let expected = r#"{ "token": "[redacted]", "n": 1.50e3, "s": "key [redacted] é",
            "users": [{"pin": "[redacted]"}, {"pin": "[redacted]", "token": "kept"}], "card": "[redacted]",
            "token" : "[redacted]" }"#;
        assert_eq!(rules.json(document), expected);
        assert_eq!(rules.json(r#"{"plain": "text"}"#), r#"{"plain": "text"}"#);
    }

    #[test]
    fn output_is_text_json_or_lines_of_json() {
        let rules = redaction(&["re:(?i)bearer [^ ]+", "json:/token"]);
        let redacted = |output: &str| {
            String::from_utf8(apply(output.as_bytes(), &rules.edits(output.as_bytes()))).unwrap()
        };
        assert_eq!(redacted("Authorization: Bearer abc def"), "Authorization: [redacted] def");
        assert_eq!(redacted("{\"token\":\"x\",\"a\":1}\n"), "{\"token\":\"[redacted]\",\"a\":1}\n");
        assert_eq!(
            redacted("log\n{\"token\":1}\n{\"b\":2}\n"),
            "log\n{\"token\":\"[redacted]\"}\n{\"b\":2}\n"
        );
        assert_eq!(rules.edits(b"\xffbearer x\xff").len(), 1, "bytes that are not text, too");
    }

    #[test]
    fn a_rule_that_is_not_understood_is_named() {
        for (rule, why) in [("token", "write re:"), ("re:(", "unclosed group"), ("json:token", "write re:")] {
            let refused = Redaction::parse(&[rule]).unwrap_err().to_string();
            assert!(refused.contains(why), "{rule}: {refused}");
        }
    }
}
