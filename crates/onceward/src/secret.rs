//! The secret that keys the hashes of a ledger.

use std::fmt;

use data_encoding::BASE32_NOPAD;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::invalid::InvalidInput;

/// The secret that keys the hashes of a ledger. It is not exported, so the hashes in an export cannot be guessed.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Secret {
    bytes: [u8; Self::BYTES],
    /// The HMAC state after the secret was absorbed. Keeping it saves half the work, and every call hashes twice.
    begun: Hmac<Sha256>,
}

impl Secret {
    pub(crate) const BYTES: usize = 32;

    pub(crate) fn new(bytes: [u8; Self::BYTES]) -> Self {
        match Hmac::<Sha256>::new_from_slice(&bytes) {
            Ok(begun) => Self { bytes, begun },
            Err(_) => unreachable!("HMAC takes a key of any length"),
        }
    }

    /// A keyed hash of the parts, each prefixed with its length.
    #[must_use]
    pub fn hash(&self, purpose: &str, parts: &[&[u8]]) -> [u8; 32] {
        let mut hash = self.begun.clone();
        for part in std::iter::once(&purpose.as_bytes()).chain(parts) {
            hash.update(&(part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.finalize().into_bytes().into()
    }

    /// Another secret, for one use of this one.
    pub(crate) fn derive(&self, purpose: &str, name: &str) -> Self {
        Self::new(self.hash(purpose, &[name.as_bytes()]))
    }

    /// Identifies the secret without revealing it: two ledgers with the same secret can exchange records.
    #[must_use]
    pub fn id(&self) -> String {
        BASE32_NOPAD.encode(&self.hash("id", &[])[..10]).to_ascii_lowercase()
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.id())
    }
}

impl TryFrom<String> for Secret {
    type Error = InvalidInput;
    fn try_from(text: String) -> Result<Self, InvalidInput> {
        let bytes = BASE32_NOPAD.decode(text.to_ascii_uppercase().as_bytes()).ok();
        let key = bytes.and_then(|bytes| <[u8; Self::BYTES]>::try_from(bytes).ok());
        key.map(Self::new).ok_or_else(|| InvalidInput::new("this is not a ledger's secret"))
    }
}

impl From<Secret> for String {
    fn from(secret: Secret) -> Self {
        BASE32_NOPAD.encode(&secret.bytes).to_ascii_lowercase()
    }
}
