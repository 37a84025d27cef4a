//! How an operation ended: its effect and result, and the evidence for it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Effect, Usage, Verification, is_false};
use crate::evidence::{Doubt, Evidence};
use crate::word::Word;

/// How an operation ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// What the operation changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
    /// Why, in words, for a failure, a doubt or a `noop`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The result of the check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified: Option<Verification>,
    /// Why it is certain that the attempt had no effect, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    /// Who settled or cancelled it, if not its own attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_by: Option<Box<Word>>,
    /// What the doubt rests on, if the attempt has reported one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<Doubt>,
    /// The result, as the JSON text that was reported.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub data: Option<Arc<RawValue>>,
    /// What a surface needs to repeat its answer byte for byte (output, headers). Stored beside the JSON, not
    /// in it.
    #[serde(skip)]
    pub body: Option<Arc<[u8]>>,
    /// Whether the result was too large to store.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unavailable: bool,
    /// What the attempt used, if it called a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Whether the store says that there was a body, and has none. Only [`Outcome::set_body`] sets it.
    #[serde(skip)]
    pub lost: bool,
}

impl PartialEq for Outcome {
    fn eq(&self, other: &Self) -> bool {
        fn text(outcome: &Outcome) -> Option<&str> {
            outcome.data.as_ref().map(|data| data.get())
        }
        (self.effect, &self.reason, self.verified, &self.settled_by, &self.body, self.unavailable)
            == (
                other.effect,
                &other.reason,
                other.verified,
                &other.settled_by,
                &other.body,
                other.unavailable,
            )
            && (&self.usage, &self.evidence, self.doubt) == (&other.usage, &other.evidence, other.doubt)
            && text(self) == text(other)
    }
}

impl Outcome {
    /// An outcome with this effect and nothing else.
    #[must_use]
    pub fn with_effect(effect: Effect) -> Self {
        Self { effect: Some(effect), ..Self::because(None) }
    }

    /// An outcome with only a reason.
    #[must_use]
    pub fn because(reason: Option<String>) -> Self {
        Self {
            effect: None,
            reason,
            verified: None,
            evidence: None,
            settled_by: None,
            doubt: None,
            usage: None,
            data: None,
            body: None,
            unavailable: false,
            lost: false,
        }
    }

    /// The same with the evidence that nothing happened.
    pub(crate) fn proven_by(self, evidence: Evidence) -> Self {
        Self { evidence: Some(evidence), ..self }
    }

    /// Sets the body that a store found for an outcome that was written with one. A body that has gone since is a
    /// result that is unavailable, and not an empty one.
    pub fn set_body(&mut self, found: Option<Arc<[u8]>>) {
        self.lost = found.is_none();
        self.unavailable |= self.lost;
        self.body = found;
    }

    /// The size of the result, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.data.as_ref().map_or(0, |data| data.get().len())
            + self.body.as_ref().map_or(0, |body| body.len())
    }
}

/// A result of `null` counts as a result.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(|data| Some(data.into()))
}
