//! Bytes that belong to an action, and files as they were when it was asked for.

use std::sync::Arc;

use data_encoding::{BASE64, HEXLOWER};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::json::Json;

/// How many digits of a hash are shown.
const DIGITS: usize = 16;

/// Bytes that are usually text: an argument, a path, an input. Text is stored as text, other bytes in base64.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ByteString(Arc<[u8]>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Form<T> {
    Text(T),
    Bytes { base64: String },
}

impl ByteString {
    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, shared.
    #[must_use]
    pub fn shared(&self) -> Arc<[u8]> {
        Arc::clone(&self.0)
    }

    /// As a part of an identity: bytes that are not text differ from every text.
    pub(super) fn identity(&self) -> Json {
        match std::str::from_utf8(&self.0) {
            Ok(text) => Json::from(text),
            Err(_) => Json::object([("hex", Json::from(HEXLOWER.encode(&self.0)))]),
        }
    }
}

impl From<&[u8]> for ByteString {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl From<Arc<[u8]>> for ByteString {
    fn from(bytes: Arc<[u8]>) -> Self {
        Self(bytes)
    }
}

impl From<&str> for ByteString {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().into())
    }
}

impl Serialize for ByteString {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => Form::Text(text).serialize(serializer),
            Err(_) => Form::<&str>::Bytes { base64: BASE64.encode(&self.0) }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ByteString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Form::<String>::deserialize(deserializer)? {
            Form::Text(text) => Ok(Self::from(text.as_str())),
            Form::Bytes { base64 } => match BASE64.decode(base64.as_bytes()) {
                Ok(bytes) => Ok(Self(bytes.into())),
                Err(error) => Err(serde::de::Error::custom(error)),
            },
        }
    }
}

/// An input or a body: its bytes, or their beginning, with the size and the hash of all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// The bytes.
    pub bytes: ByteString,
    /// How many there are, which is more than are kept if they are only the beginning.
    pub size: u64,
    /// The SHA-256 hash of all of them, in hex.
    pub sha256: String,
    /// What they say, if that is a JSON object or array. It counts for the identity and is not stored.
    #[serde(skip)]
    pub(super) document: Option<Json>,
}

impl Content {
    /// All of these bytes.
    #[must_use]
    pub fn new(bytes: impl Into<ByteString>) -> Self {
        let bytes = bytes.into();
        Self { size: bytes.0.len() as u64, sha256: sha256(&bytes.0), document: document(&bytes.0), bytes }
    }

    /// Bytes of which only the size and the hash are known.
    #[must_use]
    pub fn hashed(size: u64, sha256: String) -> Self {
        Self { bytes: "".into(), size, sha256, document: None }
    }

    /// The first of these bytes, up to a limit.
    #[must_use]
    pub fn beginning(bytes: &[u8], most: usize) -> Self {
        let kept = &bytes[..bytes.len().min(most)];
        Self { size: bytes.len() as u64, sha256: sha256(bytes), bytes: kept.into(), document: None }
    }
}

/// A file as it was when the action was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileState {
    /// Its path, from the folder of the action.
    pub path: ByteString,
    /// Its size in bytes.
    pub size: u64,
    /// The SHA-256 hash of its content, in hex.
    pub sha256: String,
    /// Whether it was a stream, such as a pipe, which cannot be read again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_stream: bool,
    /// Its content, if that is a JSON object or array. It counts for the identity and is not stored.
    #[serde(skip)]
    pub(super) document: Option<Json>,
}

impl FileState {
    /// A file with this content.
    #[must_use]
    pub fn of(path: impl Into<ByteString>, content: &[u8]) -> Self {
        let state = Self::hashed(path, content.len() as u64, sha256(content));
        Self { document: document(content), ..state }
    }

    /// The same for a stream.
    #[must_use]
    pub fn stream(self) -> Self {
        Self { is_stream: true, ..self }
    }

    /// A file whose size and hash are known.
    #[must_use]
    pub fn hashed(path: impl Into<ByteString>, size: u64, sha256: String) -> Self {
        Self { path: path.into(), size, sha256, is_stream: false, document: None }
    }
}

/// A JSON object or array, which is compared by meaning. A single number is not: the version 1.10 is not 1.1.
fn document(bytes: &[u8]) -> Option<Json> {
    match std::str::from_utf8(bytes).ok().and_then(|text| Json::parse(text).ok())? {
        document @ (Json::Object(_) | Json::Array(_)) => Some(document),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => None,
    }
}

fn sha256(bytes: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(bytes))
}

/// A hash, as it is shown.
pub(super) fn short_hash(sha256: &str) -> String {
    format!("sha256:{}…", sha256.get(..DIGITS).unwrap_or(sha256))
}
