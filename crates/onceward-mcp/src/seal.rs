//! What a client is given to bring back, so that nobody but this proxy can have made it: a `requestState` of ours.

use data_encoding::BASE64URL_NOPAD;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::Sha256;

/// How ours begin. A server's own are never touched.
const PREFIX: &str = "once1.";

/// Which doubt a human was asked about.
#[derive(Serialize, Deserialize)]
pub(crate) struct Matter {
    /// The operation. Its id covers the scope, the tool and the arguments.
    pub(crate) operation: String,
    /// The attempt that is in doubt.
    pub(crate) attempt: u32,
    /// Until when an answer counts.
    pub(crate) until_ms: i64,
    /// What the call itself had in the places that the client puts its answer into: it was a leg of an exchange with
    /// the server.
    #[serde(rename = "inputResponses", skip_serializing_if = "Option::is_none")]
    pub(crate) input_responses: Option<Box<RawValue>>,
    /// The same of its state.
    #[serde(rename = "requestState", skip_serializing_if = "Option::is_none")]
    pub(crate) request_state: Option<Box<RawValue>>,
}

/// Makes them, and tells them from others.
pub(crate) struct Seal {
    secret: [u8; 32],
}

/// What is wrong with one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unsealed {
    /// We have not made it, or somebody has changed it, or a proxy that is gone has made it.
    Foreign,
    /// It is too old.
    Late,
}

impl Seal {
    /// One that ends with this process; none where there is no randomness.
    pub(crate) fn new() -> Option<Self> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).ok()?;
        Some(Self { secret })
    }

    /// Whether a text is meant to be one of ours.
    pub(crate) fn is_ours(state: &str) -> bool {
        state.starts_with(PREFIX)
    }

    pub(crate) fn close(&self, matter: &Matter) -> Option<String> {
        let text = serde_json::to_string(matter).ok()?;
        let mark = self.mark(text.as_bytes())?.finalize().into_bytes();
        Some(format!("{PREFIX}{}.{}", BASE64URL_NOPAD.encode(text.as_bytes()), BASE64URL_NOPAD.encode(&mark)))
    }

    pub(crate) fn open(&self, state: &str, now_ms: i64) -> Result<Matter, Unsealed> {
        let (text, mark) =
            state.strip_prefix(PREFIX).and_then(|rest| rest.split_once('.')).ok_or(Unsealed::Foreign)?;
        let bytes = |text: &str| BASE64URL_NOPAD.decode(text.as_bytes()).map_err(|_| Unsealed::Foreign);
        let (text, mark) = (bytes(text)?, bytes(mark)?);
        let expected = self.mark(&text).ok_or(Unsealed::Foreign)?;
        expected.verify_slice(&mark).map_err(|_| Unsealed::Foreign)?;
        let matter: Matter = serde_json::from_slice(&text).map_err(|_| Unsealed::Foreign)?;
        if matter.until_ms < now_ms { Err(Unsealed::Late) } else { Ok(matter) }
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

    fn matter() -> Matter {
        let theirs = RawValue::from_string("\"their own\"".to_owned()).unwrap();
        Matter {
            operation: "op_1".to_owned(),
            attempt: 2,
            until_ms: 100,
            input_responses: None,
            request_state: Some(theirs),
        }
    }

    #[test]
    fn what_was_given_is_known_again_and_nothing_else_is() {
        let seal = Seal::new().unwrap();
        let state = seal.close(&matter()).unwrap();
        assert!(Seal::is_ours(&state) && !Seal::is_ours("their own"));
        let back = seal.open(&state, 100).unwrap_or_else(|_| panic!("it is ours"));
        assert_eq!((back.operation.as_str(), back.attempt), ("op_1", 2));
        assert_eq!(back.request_state.unwrap().get(), "\"their own\"");
        assert_eq!(seal.open(&state, 101).err(), Some(Unsealed::Late));
        let other = Seal::new().unwrap();
        assert_eq!(other.open(&state, 0).err(), Some(Unsealed::Foreign), "another proxy's");
        let changed = state.replacen("once1.e", "once1.f", 1);
        assert_ne!(changed, state);
        for forged in [changed.as_str(), "once1.", "once1.e30.", "once1.e30.AAAA", &state[..state.len() - 2]]
        {
            assert_eq!(seal.open(forged, 0).err(), Some(Unsealed::Foreign), "{forged}");
        }
    }
}
