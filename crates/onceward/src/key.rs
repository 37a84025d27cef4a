//! Identity: which operation a call refers to, and whether its inputs match those of the first call.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::invalid::InvalidInput;
use crate::json::{self, Json, Pointer};
use crate::kind::Kind;
use crate::secret::Secret;

/// The maximum length of a key, scope or name, in characters.
pub const MAX_NAME: usize = 255;

/// How many input fields are compared by name when a key is reused.
pub const MAX_FIELDS: usize = 64;

/// `op_…`: the id of an operation. Derived from its scope, name and key, so every process computes the same one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OperationId(Box<str>);

impl OperationId {
    /// How many bytes of a hash an id holds.
    pub const BYTES: usize = 20;

    /// The id of the operation (scope, name, key).
    #[must_use]
    pub fn of(scope: &str, name: &str, key: &str) -> Self {
        Self::of_parts(&[Some(scope), Some(name), Some(key)])
    }

    /// The id of a record of this kind. Records of different kinds never share an id.
    #[must_use]
    pub fn of_kind(kind: Kind, scope: &str, name: &str, key: &str) -> Self {
        match kind {
            Kind::Operation => Self::of(scope, name, key),
            Kind::Alias | Kind::Event | Kind::Guard | Kind::Marker => {
                Self::of_parts(&[Some(kind.as_str()), Some(scope), Some(name), Some(key)])
            }
        }
    }

    /// The id of an operation that is identified by its scope and key alone, because the caller did not choose its
    /// name.
    #[must_use]
    pub fn unnamed(scope: &str, key: &str) -> Self {
        Self::of_parts(&[Some(scope), None, Some(key)])
    }

    fn of_parts(parts: &[Option<&str>]) -> Self {
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
        Self(tagged("op_", &Sha256::digest(identity)[..Self::BYTES]).into())
    }

    /// Parses an id.
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

    /// The id combined with a mask. Masking twice gives the same id again. Each digit depends on one digit only, so
    /// a prefix can be masked as well: see [`mask_prefix`].
    #[must_use]
    pub fn masked(&self, mask: &[u8; Self::BYTES]) -> Self {
        Self(mask_prefix(&self.0, mask).into())
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The first digits of an id, combined with a mask. A text that no id begins with is returned unchanged.
#[must_use]
pub fn mask_prefix(prefix: &str, mask: &[u8; OperationId::BYTES]) -> String {
    const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let value = |digit: u8| match digit {
        b'a'..=b'z' => Some(digit - b'a'),
        b'2'..=b'7' => Some(digit - b'2' + 26),
        _ => None,
    };
    // Each digit is five bits of the hash.
    let bits = |index: usize| {
        let pair = [mask[index * 5 / 8], mask.get(index * 5 / 8 + 1).copied().unwrap_or(0)];
        (u16::from_be_bytes(pair) >> (11 - index * 5 % 8)) as u8 & 31
    };
    let Some(digits) = prefix.strip_prefix("op_").filter(|digits| digits.len() <= 32) else {
        return prefix.to_owned();
    };
    let masked =
        |(index, digit)| value(digit).map(|value| char::from(DIGITS[usize::from(value ^ bits(index))]));
    let digits: Option<String> = digits.bytes().enumerate().map(masked).collect();
    digits.map_or_else(|| prefix.to_owned(), |digits| format!("op_{digits}"))
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

/// Who chose a key. This decides what happens when the key expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyOrigin {
    /// The caller.
    Given,
    /// The ledger, from the intent.
    Derived,
}

/// The key that identifies an operation among those with the same scope and name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The key's text.
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
                "the key contains {stray:?}; a key is 1 to {MAX_NAME} visible ASCII characters"
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

    /// A key derived from the intent: `k1_` and base32 of SHA-256 over canonical `[1, name, selected, occurrence]`.
    /// The selected inputs are given as canonical text.
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

    /// The key as a ledger with this secret stores it: a derived key is hashed again, a given key stays as it is.
    #[must_use]
    pub fn keyed(self, secret: &Secret) -> Self {
        match self.origin {
            KeyOrigin::Given => self,
            KeyOrigin::Derived => {
                Self { text: tagged("k2_", &secret.hash("key", &[self.text.as_bytes()])), ..self }
            }
        }
    }
}

/// Which repetition of the same action is requested; the first by default. The ledger's numbers and the callers' labels
/// are separate: no label is the number of an automatic repetition, even if it consists of digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Occurrence {
    /// Counted by the ledger: 1, 2, 3, …
    Number(u64),
    /// Named by the caller.
    Label(String),
}

impl Occurrence {
    /// The first (`1`), or any label of visible characters.
    ///
    /// # Errors
    /// When it is empty, too long, or contains a control character.
    pub fn parse(label: &str) -> Result<Self, InvalidInput> {
        name_like("occurrence", label)?;
        Ok(if label == "1" { Self::default() } else { Self::Label(label.to_owned()) })
    }

    fn to_json(&self) -> Json {
        let number = |number: &str| Json::Number(number.to_owned());
        let is_number = |text: &str| !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit());
        match self {
            Self::Number(1) => number("1"),
            Self::Number(more) => Json::object([("repeat".to_owned(), number(&more.to_string()))]),
            Self::Label(label) if is_number(label) => number(label),
            Self::Label(label) => Json::String(label.clone()),
        }
    }
}

impl Default for Occurrence {
    fn default() -> Self {
        Self::Number(1)
    }
}

impl fmt::Display for Occurrence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Label(label) => f.write_str(label),
        }
    }
}

/// The chosen fields of `input`, or `None` if none were chosen and all fields count.
///
/// # Errors
/// A chosen field that is missing is an error, never an empty value.
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

/// `f1_…`: the hash of all inputs that are not volatile. Distinguishes a retry from a reused key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// The fingerprint of an input in its canonical text.
    #[must_use]
    pub fn of(canonical: &str) -> Self {
        Self(tagged("f1_", &Sha256::digest(canonical)))
    }

    /// The fingerprint as a ledger with this secret stores it.
    #[must_use]
    pub fn keyed(&self, secret: &Secret) -> Self {
        Self(tagged("f2_", &secret.hash("fingerprint", &[self.0.as_bytes()])))
    }

    /// The fingerprint as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A short digest of each input field, so that a conflict can name the fields that differ without storing their
/// values.
///
/// Salted with the operation's id, so the same value has a different digest in another operation. With a secret, the
/// names are digests too, because they can be data, such as the addresses in a map of recipients.
#[must_use]
pub fn field_digests(id: &OperationId, input: &Json, secret: Option<&Secret>) -> BTreeMap<String, String> {
    let mut digests = BTreeMap::new();
    input.leaves(&mut |path, value| {
        if digests.len() < MAX_FIELDS {
            let value = value.canonical();
            let digest = match secret {
                Some(secret) => {
                    secret.hash("value", &[id.as_str().as_bytes(), path.as_bytes(), value.as_bytes()])
                }
                None => {
                    let mut hash = Sha256::new();
                    hash.update(id.as_str());
                    hash.update(path);
                    hash.update([0]);
                    hash.update(value);
                    hash.finalize().into()
                }
            };
            digests.insert(field_name(id, path, secret), tagged("", &digest[..5]));
        }
    });
    digests
}

/// The names of an input's fields, indexed by the names that [`field_digests`] uses.
pub(crate) fn field_names(
    id: &OperationId,
    input: &Json,
    secret: Option<&Secret>,
) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    input.leaves(&mut |path, _| {
        if names.len() < MAX_FIELDS {
            names.insert(field_name(id, path, secret), path.to_owned());
        }
    });
    names
}

fn field_name(id: &OperationId, path: &str, secret: Option<&Secret>) -> String {
    match secret {
        None => path.to_owned(),
        Some(secret) => tagged("", &secret.hash("field", &[id.as_str().as_bytes(), path.as_bytes()])[..10]),
    }
}

/// The fields whose digests differ.
#[must_use]
pub fn fields_that_differ(a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) -> Vec<String> {
    let mut fields: Vec<String> =
        a.keys().chain(b.keys()).filter(|field| a.get(*field) != b.get(*field)).cloned().collect();
    fields.sort();
    fields.dedup();
    fields
}

/// Checks a scope, a name or a label: 1 to 255 characters, none of them hidden.
///
/// # Errors
/// Says which rule is violated.
pub fn name_like(what: &str, text: &str) -> Result<(), InvalidInput> {
    let length = text.chars().count();
    if length == 0 || length > MAX_NAME {
        return Err(InvalidInput::new(format!(
            "the {what} has {length} characters; it must have 1 to {MAX_NAME}"
        )));
    }
    match text.chars().find(|c| crate::text::is_hidden(*c)) {
        Some(stray) => Err(InvalidInput::new(format!(
            "the {what} contains the control character '{}'",
            stray.escape_default()
        ))),
        None => Ok(()),
    }
}

/// A tag, which gives the type and version, followed by lowercase base32.
fn tagged(tag: &str, bytes: &[u8]) -> String {
    let mut text = String::with_capacity(tag.len() + bytes.len() * 8 / 5 + 1);
    text.push_str(tag);
    data_encoding::BASE32_NOPAD.encode_append(bytes, &mut text);
    text.make_ascii_lowercase();
    text
}
