//! Tokens of callers. A server knows only their hashes.

use std::fmt;

use data_encoding::{BASE32_NOPAD, HEXLOWER, HEXLOWER_PERMISSIVE};
use onceward::InvalidInput;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// How the text of a hash begins in the configuration.
const MARK: &str = "sha256:";
/// How many random bytes a token holds.
const RANDOM: usize = 25;

/// The hash of a token, as the configuration holds it.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// The hash of a token.
    #[must_use]
    pub fn of(token: &[u8]) -> Self {
        Self(Sha256::digest(token).into())
    }

    /// Parses `sha256:` and 64 hexadecimal digits.
    ///
    /// # Errors
    /// If it is anything else. The error does not repeat it: it may be the token, written by mistake.
    pub fn parse(text: &str) -> Result<Self, InvalidInput> {
        let digits = text.strip_prefix(MARK).unwrap_or_default();
        let bytes = HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).ok();
        let hash = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        hash.map(Self).ok_or_else(|| {
            InvalidInput::new(
                "a token is configured as `sha256:` and 64 hexadecimal digits; `once serve token` makes one",
            )
        })
    }

    /// Whether both are the same, in a time that does not depend on where they differ.
    pub(crate) fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MARK}{}", HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A new random token and its hash. Only the hash is stored.
///
/// ```
/// let (token, hash) = onceward_http::tenants::new_token()?;
/// assert_eq!(onceward_http::tenants::TokenHash::of(token.as_bytes()), hash);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// If the system has no randomness.
pub fn new_token() -> std::io::Result<(String, TokenHash)> {
    let mut random = [0; RANDOM];
    getrandom::fill(&mut random).map_err(std::io::Error::other)?;
    let token = format!("once_{}", BASE32_NOPAD.encode(&random).to_ascii_lowercase());
    let hash = TokenHash::of(token.as_bytes());
    Ok((token, hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_read_back_and_anything_else_is_refused() {
        let (token, hash) = new_token().unwrap();
        assert_eq!(TokenHash::parse(&hash.to_string()).unwrap(), hash);
        assert!(hash.matches(&TokenHash::of(token.as_bytes())));
        assert!(!hash.matches(&TokenHash::of(b"other")));
        assert_ne!(new_token().unwrap().0, token);
        for wrong in ["", "sha256:", "sha256:00", token.as_str(), &hash.to_string()[7..]] {
            let error = TokenHash::parse(wrong).unwrap_err().to_string();
            assert!(wrong.is_empty() || !error.contains(&format!("{wrong} ")), "{error}");
        }
    }
}
