//! Decides whether a call without a key is a retry or an intended repeat: it is a retry unless the first answer was
//! delivered.

use std::sync::Arc;

use super::Ledger;
use crate::decide;
use crate::error::Error;
use crate::facts::RepeatRule;
use crate::operation::{Intent, Operation};
use crate::policy::KeyPolicy;
use crate::record::{Record, State};

/// The occurrences of an action that an equal call may refer to.
#[derive(Debug, Clone, Default)]
pub struct Occurrences {
    /// Each with its effective state: those that are open, the oldest first, and the newest that the ledger counted. An
    /// operation with a given key or a label has no number.
    pub all: Vec<(Arc<Record>, State)>,
}

impl Occurrences {
    /// The newest of those that the ledger counted.
    #[must_use]
    pub fn newest(&self) -> Option<&(Arc<Record>, State)> {
        self.numbered().last().map(|(_, found)| found)
    }

    /// The number of the next occurrence.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        self.numbered().last().map_or(1, |(number, _)| number + 1)
    }

    /// Those that the ledger counted, in order.
    pub fn numbered(&self) -> impl Iterator<Item = (u64, &(Arc<Record>, State))> {
        self.all.iter().filter_map(|found| Some((found.0.number?, found)))
    }
}

/// Which operation a call refers to, and the rule that decided it.
#[derive(Debug)]
pub struct Wanted {
    /// The operation that the call refers to.
    pub intent: Intent,
    /// The rule that decided.
    pub rule: RepeatRule,
}

impl Ledger {
    /// Determines which operation a call refers to, under the operation's own key policy.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::KeyMissing`], or the ledger cannot be read.
    pub async fn wanted(&self, operation: Operation) -> Result<Wanted, Error> {
        if operation.is_identified() {
            return Ok(Wanted { intent: self.intent(operation)?, rule: RepeatRule::Given });
        }
        match operation.key_policy() {
            KeyPolicy::Strict | KeyPolicy::Keyed => {
                Ok(Wanted { intent: self.intent(operation)?, rule: RepeatRule::Strict })
            }
            KeyPolicy::Auto => self.wanted_by_delivery(self.intent(operation)?).await,
        }
    }

    /// The same under the policy `auto`, for an intent that is already computed.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn wanted_by_delivery(&self, action: Intent) -> Result<Wanted, Error> {
        let action = self.keyed(action);
        let found = self.occurrences(&action).await?;
        let now_ms = self.now_ms();
        // The newest first; a doubt, which never expires, even if later occurrences are over.
        let mut counted: Vec<_> = found.numbered().collect();
        counted.reverse();
        let unanswered = counted.iter().find(|(_, (record, state))| !is_over(record, *state, now_ms));
        if let Some((_, (record, state))) = unanswered {
            return Ok(Wanted { intent: action.at_record(record), rule: RepeatRule::Retry(*state) });
        }
        let rule = if counted.is_empty() { RepeatRule::First } else { RepeatRule::Repeat };
        Ok(Wanted { intent: action.at_occurrence(found.next_number())?, rule })
    }

    /// The occurrences of an action that an equal call may refer to: one indexed read.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn occurrences(&self, action: &Intent) -> Result<Occurrences, Error> {
        let action = self.keyed_form(action);
        let mut all = Vec::new();
        for record in self.store().occurrences(&action.action(), self.now_ms()).await? {
            let record = Arc::new(self.through_fence(record));
            let liveness = self.liveness(Some(&record)).await?;
            let state = decide::effective_state(&record, liveness, self.now_ms());
            all.push((record, state));
        }
        all.sort_by_key(|(record, _)| (record.number, record.created_ms));
        Ok(Occurrences { all })
    }
}

/// Whether the caller has received the answer of this occurrence, so that an equal call is a new one.
fn is_over(record: &Record, state: State, now_ms: i64) -> bool {
    match state {
        State::Staged | State::Running | State::InDoubt => false,
        State::Cancelled | State::Expired => true,
        State::Done | State::Failed => record.delivered_ms().is_some_and(|at_ms| at_ms <= now_ms),
    }
}
