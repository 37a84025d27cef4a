//! Why it is certain that an attempt had no effect. The list is closed: what is not in it is in doubt.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::witness::Witnessed;

/// Why it is certain that an attempt had no effect, and the only way to say so. A guess by a name, a text or a timer is
/// not in this list, so an attempt that fails by a guess is in doubt.
///
/// ```
/// use onceward::{Evidence, Failure};
///
/// let refused = Failure::no_effect(Evidence::NotSent, "connection refused");
/// assert_eq!(refused.evidence(), Some(&Evidence::NotSent));
/// assert_eq!(Failure::in_doubt("connection reset").evidence(), None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// The attempt ended before its dispatch: no program was started, no request was made.
    NotStarted,
    /// The request never left: its name was not resolved, its connection was refused, its TLS handshake failed.
    NotSent,
    /// The other side refused it before executing it, by a documented rule: this one. It is not sealed, so it names the
    /// rule and quotes nothing.
    Refused(Cow<'static, str>),
    /// Declared by who knows the action: this policy setting, flag, class or author. It quotes nothing either.
    Declared(Cow<'static, str>),
    /// A probe looked, when nothing of the attempt could still act, and did not find the effect.
    ProbeSaysNo,
    /// The tool itself says so, in an envelope with the witness of this attempt.
    OwnWord(Witnessed),
    /// A person, an agent or a program looked and settled it: see [`crate::Outcome::settled_by`].
    Said(Settled),
}

/// What a doubt rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Doubt {
    /// The attempt has answered, and its answer proves nothing: an exit code, the error text of a tool.
    Answered,
    /// Its answer was lost: it was killed, timed out, or its owner is gone.
    Lost,
}

/// The proof that someone settled the attempt. Only the ledger makes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled(());

impl Evidence {
    /// Refused by this documented rule.
    pub fn refused(rule: impl Into<Cow<'static, str>>) -> Self {
        Self::Refused(rule.into())
    }

    /// Declared by this setting, flag, class or author.
    pub fn declared(by: impl Into<Cow<'static, str>>) -> Self {
        Self::Declared(by.into())
    }

    /// Whether someone's word is all there is: then [`crate::Outcome::settled_by`] says more.
    #[must_use]
    pub const fn is_someones_word(&self) -> bool {
        matches!(self, Self::Said(_))
    }

    pub(crate) fn said() -> Self {
        Self::Said(Settled(()))
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted => f.write_str("nothing was started"),
            Self::NotSent => f.write_str("nothing was sent"),
            Self::Refused(rule) => write!(f, "refused before execution ({rule})"),
            Self::Declared(by) => write!(f, "declared to have no effect ({by})"),
            Self::ProbeSaysNo => f.write_str("the probe did not find the effect"),
            Self::OwnWord(_) => f.write_str("the tool's own word, with the witness of this attempt"),
            Self::Said(_) => f.write_str("someone looked and said so"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::witness::Witness;

    #[test]
    fn evidence_is_stored_as_a_word_or_with_its_rule() {
        for (evidence, json) in [
            (Evidence::NotSent, "\"not_sent\""),
            (Evidence::refused("RFC 6750: 401"), "{\"refused\":\"RFC 6750: 401\"}"),
            (Evidence::declared("--fail-exit"), "{\"declared\":\"--fail-exit\"}"),
        ] {
            assert_eq!(serde_json::to_string(&evidence).unwrap(), json);
            assert_eq!(serde_json::from_str::<Evidence>(json).unwrap(), evidence);
        }
        let witness = Witness::new([1; 16]);
        let own = Evidence::OwnWord(witness.confirms(Some(witness.as_str())).unwrap());
        for proven in [Evidence::said(), own] {
            let json = serde_json::to_string(&proven).unwrap();
            assert_eq!(serde_json::from_str::<Evidence>(&json).unwrap(), proven, "{json}");
        }
    }
}
