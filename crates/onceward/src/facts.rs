//! Facts that decisions, transitions and answers share: whether an operation happened, how an attempt ended, whether
//! its owner is alive, and why a call counted as a retry.

use serde::{Deserialize, Serialize};

use crate::evidence::Evidence;
use crate::record::{Outcome, State};

/// Whether the operation's effect happened, no matter which call ran it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Happened {
    /// It happened.
    Yes,
    /// It did not happen.
    No,
    /// It is unknown.
    Unknown,
}

impl Happened {
    /// The name of the value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Unknown => "unknown",
        }
    }
}

/// Whether this call ran the operation, as opposed to an earlier or concurrent call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ran {
    /// This call started an attempt.
    Yes,
    /// This call ran nothing.
    No,
}

impl Ran {
    /// The same as a flag, for answers.
    #[must_use]
    pub const fn as_bool(self) -> bool {
        matches!(self, Self::Yes)
    }
}

/// What can be observed about an attempt's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Liveness {
    /// It holds its lock: it is running, or suspended and may resume.
    Alive,
    /// Its lock is free: it is gone and cannot act any more.
    Gone,
    /// It is gone, and had noted that it had not dispatched anything yet.
    NeverDispatched,
    /// It cannot be observed from here: only its lease tells.
    Unknown,
}

/// How an attempt ended, as reported by the attempt itself.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// It happened.
    Done(Outcome),
    /// It definitely did not happen, by this evidence.
    Failed(Evidence, Outcome),
    /// It is unknown whether it happened.
    InDoubt(Outcome),
}

impl Ending {
    /// The attempt certainly had no effect, by this evidence and for this reason.
    pub fn failed(evidence: Evidence, reason: impl Into<String>) -> Self {
        Self::Failed(evidence, Outcome::because(Some(reason.into())))
    }

    /// It is unknown whether the attempt had an effect, for this reason. No answer came.
    pub fn in_doubt(reason: impl Into<String>) -> Self {
        Self::InDoubt(Outcome::because(Some(reason.into())))
    }
}

/// What someone found out about an operation in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It happened.
    Done,
    /// It did not happen.
    Failed,
}

/// How a retry was distinguished from a repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepeatRule {
    /// The caller gave a key or an occurrence.
    Given,
    /// The policy, or a scope that the caller chose, makes equal calls the same operation.
    Strict,
    /// There was no earlier call.
    First,
    /// The earlier call is in this state and its answer was not delivered, so this call is a retry.
    Retry(State),
    /// The answer to the earlier call was delivered, so this call is an intended repeat.
    Repeat,
}

/// Whose refusal a call got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalOf {
    /// That of its own operation, or of the one that its content refers to.
    Own,
    /// That of an equal operation, which binds a call with another key. The caller of the refused one has not heard of
    /// it by this.
    Equal,
}
