//! Which calls may refer to a record: those of the same action, until its answer was delivered.

use serde::{Deserialize, Serialize};

use super::{Record, State};
use crate::key::OperationId;
use crate::kind::Kind;

/// How long after its delivery an answer may turn out not to have been read.
const SETTLING_MS: i64 = 2_000;

/// What is known about the delivery of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivered {
    /// When the answer was delivered.
    pub at_ms: i64,
    /// Until then an equal call is still the same one: the caller may have left just before the answer, or has been
    /// given an error that it may repeat its call for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_until_ms: Option<i64>,
}

impl Delivered {
    /// From when on an equal call is a new one.
    #[must_use]
    pub fn counts_from_ms(&self) -> i64 {
        self.same_until_ms.unwrap_or(self.at_ms)
    }

    /// The surer of two deliveries: if several callers waited, the first that certainly received the answer decides.
    #[must_use]
    pub fn surer(self, other: Self) -> Self {
        if self.counts_from_ms() <= other.counts_from_ms() { self } else { other }
    }
}

impl Record {
    /// The id of the action: all its occurrences have it in common, also those with given keys.
    #[must_use]
    pub fn action(&self) -> &OperationId {
        self.action.as_ref().unwrap_or(&self.id)
    }

    /// Until when an equal call may refer to this record. `None` if it no longer can. A delivery can be taken back for
    /// a moment, so the record of one is open for that long.
    #[must_use]
    pub fn open_until_ms(&self) -> Option<i64> {
        match (self.kind, self.state) {
            (Kind::Event | Kind::Guard | Kind::Marker, _) | (_, State::Expired) => None,
            (_, State::Staged | State::Running | State::InDoubt) => Some(i64::MAX),
            (_, State::Done | State::Failed) if self.is_answered_by_key_only() => None,
            (_, State::Done | State::Failed | State::Cancelled) => match self.detail.delivered {
                None => Some(i64::MAX),
                Some(delivered) => {
                    let settled_ms = delivered.at_ms.saturating_add(SETTLING_MS);
                    Some(delivered.same_until_ms.map_or(settled_ms, |until_ms| until_ms.max(settled_ms)))
                }
            },
        }
    }

    /// Whether only its own key or label asks for its answer again. What someone said about it binds equal calls too.
    pub(crate) fn is_answered_by_key_only(&self) -> bool {
        let has_ended = matches!(self.state, State::Done | State::Failed);
        has_ended && self.number.is_none() && !self.is_settled_by_word()
    }

    /// Whether it still has the answer that this earlier version of it has.
    pub(crate) fn has_answer_of(&self, known: &Self) -> bool {
        let answer = |record: &Self| (record.state, record.attempt, record.is_settled_by_word());
        answer(self) == answer(known)
    }

    /// Whether someone said how it ended.
    pub(crate) fn is_settled_by_word(&self) -> bool {
        self.outcome.as_ref().is_some_and(|outcome| outcome.settled_by.is_some())
    }

    /// From when on an answer that is delivered now counts as delivered. A refusal is the answer to equal calls for
    /// this window more: a caller that repeats its call at once has not made a new decision.
    #[must_use]
    pub fn answer_counts_from_ms(&self, now_ms: i64, window_ms: u64) -> i64 {
        match self.state {
            State::Cancelled => now_ms.saturating_add_unsigned(window_ms),
            State::Staged
            | State::Running
            | State::Done
            | State::Failed
            | State::InDoubt
            | State::Expired => now_ms,
        }
    }

    /// From when on its answer counts as delivered.
    #[must_use]
    pub fn delivered_ms(&self) -> Option<i64> {
        self.detail.delivered.map(|delivered| delivered.counts_from_ms())
    }
}
