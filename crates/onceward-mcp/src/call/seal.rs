//! Signed `requestState` values: proof that a question came from this proxy.

use data_encoding::BASE64URL_NOPAD;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::Sha256;

/// The prefix of our values. Those of servers are never touched.
const PREFIX: &str = "once1.";

/// The doubt that a human was asked about.
#[derive(Serialize, Deserialize)]
pub(crate) struct SealedQuestion {
    /// The operation. Its id covers the scope, the tool and the arguments.
    pub(crate) operation: String,
    /// The attempt that is in doubt.
    pub(crate) attempt: u32,
    /// When the question expires.
    pub(crate) until_ms: i64,
    /// The `inputResponses` of the call itself, if it continued an exchange with the server. The client's answer
    /// replaces them.
    #[serde(rename = "inputResponses", skip_serializing_if = "Option::is_none")]
    pub(crate) input_responses: Option<Box<RawValue>>,
    /// The `requestState` of the call itself.
    #[serde(rename = "requestState", skip_serializing_if = "Option::is_none")]
    pub(crate) request_state: Option<Box<RawValue>>,
}

/// Signs and verifies questions.
pub(crate) struct Seal {
    secret: [u8; 32],
}

/// Why a value was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SealError {
    /// This process did not make it, or it was changed.
    Foreign,
    /// It has expired.
    Expired,
}

impl Seal {
    /// A new secret for this process. `None` if there is no source of randomness.
    pub(crate) fn new() -> Option<Self> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).ok()?;
        Some(Self { secret })
    }

    /// Whether a value claims to be one of ours.
    pub(crate) fn is_ours(state: &str) -> bool {
        state.starts_with(PREFIX)
    }

    pub(crate) fn close(&self, question: &SealedQuestion) -> Option<String> {
        let text = serde_json::to_string(question).ok()?;
        let mark = self.mark(text.as_bytes())?.finalize().into_bytes();
        Some(format!("{PREFIX}{}.{}", BASE64URL_NOPAD.encode(text.as_bytes()), BASE64URL_NOPAD.encode(&mark)))
    }

    pub(crate) fn open(&self, state: &str, now_ms: i64) -> Result<SealedQuestion, SealError> {
        let (text, mark) =
            state.strip_prefix(PREFIX).and_then(|rest| rest.split_once('.')).ok_or(SealError::Foreign)?;
        let bytes = |text: &str| BASE64URL_NOPAD.decode(text.as_bytes()).map_err(|_| SealError::Foreign);
        let (text, mark) = (bytes(text)?, bytes(mark)?);
        let expected = self.mark(&text).ok_or(SealError::Foreign)?;
        expected.verify_slice(&mark).map_err(|_| SealError::Foreign)?;
        let question: SealedQuestion = serde_json::from_slice(&text).map_err(|_| SealError::Foreign)?;
        if question.until_ms < now_ms { Err(SealError::Expired) } else { Ok(question) }
    }

    fn mark(&self, text: &[u8]) -> Option<Hmac<Sha256>> {
        let mut mark = Hmac::<Sha256>::new_from_slice(&self.secret).ok()?;
        mark.update(text);
        Some(mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question() -> SealedQuestion {
        let theirs = RawValue::from_string("\"their own\"".to_owned()).unwrap();
        SealedQuestion {
            operation: "op_1".to_owned(),
            attempt: 2,
            until_ms: 100,
            input_responses: None,
            request_state: Some(theirs),
        }
    }

    #[test]
    fn only_unmodified_own_values_are_accepted() {
        let seal = Seal::new().unwrap();
        let state = seal.close(&question()).unwrap();
        assert!(Seal::is_ours(&state) && !Seal::is_ours("their own"));
        let back = seal.open(&state, 100).unwrap_or_else(|_| panic!("it is ours"));
        assert_eq!((back.operation.as_str(), back.attempt), ("op_1", 2));
        assert_eq!(back.request_state.unwrap().get(), "\"their own\"");
        assert_eq!(seal.open(&state, 101).err(), Some(SealError::Expired));
        let other = Seal::new().unwrap();
        assert_eq!(other.open(&state, 0).err(), Some(SealError::Foreign), "another proxy's");
        let changed = state.replacen("once1.e", "once1.f", 1);
        assert_ne!(changed, state);
        for forged in [changed.as_str(), "once1.", "once1.e30.", "once1.e30.AAAA", &state[..state.len() - 2]]
        {
            assert_eq!(seal.open(forged, 0).err(), Some(SealError::Foreign), "{forged}");
        }
    }
}
