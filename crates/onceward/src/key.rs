//! Identity: which operation is this, and are its inputs the ones it was first asked for with?

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::InvalidInput;
use crate::json::{self, Json, Pointer};

/// The longest key, scope or name, in characters.
pub const MAX_NAME: usize = 255;

/// How many fields of an input are told apart when a key is reused.
pub const MAX_FIELDS: usize = 64;

/// `op_…`: names an operation. Derived from its scope, name and key, so every process finds the same one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OperationId(Box<str>);

impl OperationId {
    /// The id of the operation (scope, name, key).
    #[must_use]
    pub fn of(scope: &str, name: &str, key: &str) -> Self {
        Self::of_parts([Some(scope), Some(name), Some(key)])
    }

    /// The id of an operation that is identified by its scope and key alone, because no one chose its name.
    #[must_use]
    pub fn unnamed(scope: &str, key: &str) -> Self {
        Self::of_parts([Some(scope), None, Some(key)])
    }

    fn of_parts(parts: [Option<&str>; 3]) -> Self {
        let mut identity = String::with_capacity(parts.iter().flatten().map(|part| part.len() + 8).sum());
        let mut lead = '[';
        for part in parts {
            identity.push(lead);
            match part {
                Some(part) => json::write_string(part, &mut identity),
                None => identity.push_str("null"),
            }
            lead = ',';
        }
        identity.push(']');
        Self(tagged("op_", &Sha256::digest(identity)[..20]).into())
    }

    /// Reads an id.
    ///
    /// # Errors
    /// When it is not `op_` and 32 base32 digits.
    pub fn parse(text: &str) -> Result<Self, InvalidInput> {
        let digits = text.strip_prefix("op_").unwrap_or_default();
        if digits.len() == 32 && digits.bytes().all(|b| matches!(b, b'a'..=b'z' | b'2'..=b'7')) {
            Ok(Self(text.into()))
        } else {
            Err(InvalidInput::new(format!(
                "{text:?} is not an operation id (`op_` and 32 characters); `once ls` shows them"
            )))
        }
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for OperationId {
    type Error = InvalidInput;
    fn try_from(text: String) -> Result<Self, InvalidInput> {
        Self::parse(&text)
    }
}

impl From<OperationId> for String {
    fn from(id: OperationId) -> Self {
        id.0.into()
    }
}

/// Who chose a key. It decides what an expired key means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyOrigin {
    /// The caller.
    Given,
    /// The ledger, from the intent.
    Derived,
}

/// What tells one operation of a name and scope from the next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The key itself.
    pub text: String,
    /// Who chose it.
    pub origin: KeyOrigin,
}

impl Key {
    /// A key that the caller gave.
    ///
    /// # Errors
    /// When it is not 1 to 255 visible ASCII characters.
    pub fn given(text: &str) -> Result<Self, InvalidInput> {
        if let Some(stray) = text.chars().find(|c| !c.is_ascii_graphic()) {
            return Err(InvalidInput::new(format!(
                "the key holds {stray:?}; a key is 1 to {MAX_NAME} visible ASCII characters"
            )));
        }
        if text.is_empty() || text.len() > MAX_NAME {
            return Err(InvalidInput::new(format!(
                "the key has {} characters; a key is 1 to {MAX_NAME} visible ASCII characters",
                text.len()
            )));
        }
        Ok(Self { text: text.to_owned(), origin: KeyOrigin::Given })
    }

    /// A key derived from intent: `k1_` and base32 of SHA-256 over canonical `[1, name, selected, occurrence]`, of
    /// which the selected inputs come as canonical text.
    #[must_use]
    pub fn derived(name: &str, selected: &str, occurrence: &Occurrence) -> Self {
        let mut text = String::with_capacity(name.len() + selected.len() + 32);
        text.push_str("[1,");
        json::write_string(name, &mut text);
        text.push(',');
        text.push_str(selected);
        text.push(',');
        occurrence.to_json().write_canonical(&mut text);
        text.push(']');
        Self { text: tagged("k1_", &Sha256::digest(&text)), origin: KeyOrigin::Derived }
    }
}

/// Which repetition of the same action is wanted: 1 unless the caller says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occurrence(String);

impl Occurrence {
    /// A number or any label of visible characters.
    ///
    /// # Errors
    /// When it is empty, too long, or holds a control character.
    pub fn parse(label: &str) -> Result<Self, InvalidInput> {
        name_like("occurrence", label).map(|()| Self(label.to_owned()))
    }

    fn to_json(&self) -> Json {
        let number = !self.0.starts_with('0') && self.0.bytes().all(|b| b.is_ascii_digit());
        if number { Json::Number(self.0.clone()) } else { Json::String(self.0.clone()) }
    }
}

impl Default for Occurrence {
    fn default() -> Self {
        Self("1".to_owned())
    }
}

impl fmt::Display for Occurrence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The chosen fields of `input`, or `None` where none were chosen and all of it counts.
///
/// # Errors
/// A field that is chosen and missing is an error, never an empty value.
pub fn select(input: &Json, fields: &[Pointer]) -> Result<Option<Json>, InvalidInput> {
    let mut missing = Vec::new();
    let mut selected = Vec::new();
    for field in fields {
        match input.at(field) {
            Some(value) => selected.push((field.to_string(), value.clone())),
            None => missing.push(format!("the key field {field} is missing from the input")),
        }
    }
    match InvalidInput::all(missing) {
        Some(invalid) => Err(invalid),
        None => Ok((!fields.is_empty()).then(|| Json::object(selected))),
    }
}

/// `f1_…`: the hash of all inputs that are not volatile. Tells a retry from a reused key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// The fingerprint of an input in its canonical text.
    #[must_use]
    pub fn of(canonical: &str) -> Self {
        Self(tagged("f1_", &Sha256::digest(canonical)))
    }

    /// The fingerprint as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A short digest of each field of an input, so that a conflict can name what differs without keeping any value.
///
/// Salted with the operation's id: the same value in two operations has two digests.
#[must_use]
pub fn field_digests(id: &OperationId, input: &Json) -> BTreeMap<String, String> {
    let mut digests = BTreeMap::new();
    input.leaves(&mut |path, value| {
        if digests.len() < MAX_FIELDS {
            let mut hash = Sha256::new();
            hash.update(id.as_str());
            hash.update(path);
            hash.update([0]);
            hash.update(value.canonical());
            digests.insert(path.to_owned(), tagged("", &hash.finalize()[..5]));
        }
    });
    digests
}

/// The fields in which two inputs differ, by their digests.
#[must_use]
pub fn fields_that_differ(a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) -> Vec<String> {
    let mut fields: Vec<String> =
        a.keys().chain(b.keys()).filter(|field| a.get(*field) != b.get(*field)).cloned().collect();
    fields.sort();
    fields.dedup();
    fields
}

/// Checks a scope, a name or a label: 1 to 255 characters, none of them a control character.
///
/// # Errors
/// Says which rule is broken.
pub fn name_like(what: &str, text: &str) -> Result<(), InvalidInput> {
    let length = text.chars().count();
    if length == 0 || length > MAX_NAME {
        return Err(InvalidInput::new(format!(
            "the {what} has {length} characters; it needs 1 to {MAX_NAME}"
        )));
    }
    match text.chars().find(|c| c.is_control()) {
        Some(stray) => Err(InvalidInput::new(format!("the {what} holds the control character {stray:?}"))),
        None => Ok(()),
    }
}

/// A tag, which says what it is and in which version, and lowercase base32.
fn tagged(tag: &str, bytes: &[u8]) -> String {
    let mut text = String::with_capacity(tag.len() + bytes.len() * 8 / 5 + 1);
    text.push_str(tag);
    data_encoding::BASE32_NOPAD.encode_append(bytes, &mut text);
    text.make_ascii_lowercase();
    text
}
