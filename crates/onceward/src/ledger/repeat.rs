//! Finds the earlier occurrences of an action, has [`repeat`] choose among them, and records what reached the caller.

use std::sync::Arc;

use super::{Ledger, Receipt};
use crate::decide;
use crate::error::Error;
use crate::facts::RepeatRule;
use crate::operation::{Intent, Operation};
use crate::policy::KeyPolicy;
use crate::record::{Record, State};
use crate::repeat::{self, Choice, Earlier, Identified};

/// The earlier occurrences of an action that an equal call may refer to.
#[derive(Debug, Clone, Default)]
pub struct Occurrences {
    /// Each with its effective state, the oldest first: those that are open, and the newest that the ledger counted. An
    /// operation with a given key or a label has no number.
    pub all: Vec<(Arc<Record>, State)>,
}

impl Occurrences {
    /// The number of the next occurrence.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        let newest = self.all.iter().filter_map(|(record, _)| record.number).max();
        newest.map_or(1, |number| number + 1)
    }

    /// What [`repeat::choose`] needs to know about them, as it is known without their callers.
    #[must_use]
    pub fn earlier(&self, now_ms: i64) -> Vec<Earlier> {
        self.all.iter().map(|(record, state)| Earlier::of(record, *state, now_ms)).collect()
    }

    /// The operation of a call that is the same as the one at this place.
    #[must_use]
    pub fn same(&self, action: Intent, place: usize) -> Wanted {
        let (record, state) = &self.all[place];
        Wanted { intent: action.at_record(record), rule: RepeatRule::Retry(*state) }
    }

    /// The operation of a call that is a new occurrence.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a given key becomes too long.
    pub fn next(&self, action: Intent) -> Result<Wanted, Error> {
        let rule = if self.next_number() == 1 { RepeatRule::First } else { RepeatRule::Repeat };
        Ok(Wanted { intent: action.at_occurrence(self.next_number())?, rule })
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
    /// Determines which operation a call refers to, under the operation's own key policy, for a surface that sees no
    /// other callers.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::KeyMissing`], or the ledger cannot be read.
    pub async fn wanted(&self, operation: Operation) -> Result<Wanted, Error> {
        let rule = match operation.key_policy() {
            _ if operation.is_identified() => Some(RepeatRule::Given),
            KeyPolicy::Strict | KeyPolicy::Keyed => Some(RepeatRule::Strict),
            KeyPolicy::Auto => None,
        };
        let intent = self.intent(operation)?;
        match rule {
            Some(rule) => self.identified(intent, rule).await,
            None => self.wanted_by_content(intent).await,
        }
    }

    /// The same for a call that nothing but its content identifies.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn wanted_by_content(&self, action: Intent) -> Result<Wanted, Error> {
        let action = self.keyed(action);
        let found = self.occurrences(&action).await?;
        match repeat::choose(&found.earlier(self.now_ms()), Identified::ByContent) {
            Choice::Same(place) | Choice::Undecided(place) | Choice::Spent(place) => {
                Ok(found.same(action, place))
            }
            Choice::New { .. } => found.next(action),
        }
    }

    /// The same for a call with a key, a label or a scope that its caller chose. It decides, except against someone's
    /// word about an equal call.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn identified(&self, intent: Intent, rule: RepeatRule) -> Result<Wanted, Error> {
        let intent = self.keyed(intent);
        let found = self.occurrences(&intent).await?;
        let own = |record: &Record| record.id == intent.id;
        if found.all.iter().any(|(record, _)| own(record)) {
            return Ok(Wanted { intent, rule });
        }
        match repeat::choose(&found.earlier(self.now_ms()), Identified::ByOwnKey) {
            // What was begun under this key is its own, whatever is said about others.
            Choice::Same(place) if self.store().load(&intent.id).await?.is_none() => {
                let (record, state) = &found.all[place];
                if *state != State::Done {
                    return Ok(found.same(intent, place));
                }
                let mut intent = intent;
                intent.answered_by = Some(Arc::clone(record));
                Ok(Wanted { intent, rule: RepeatRule::Retry(*state) })
            }
            Choice::Same(_) | Choice::New { .. } | Choice::Undecided(_) | Choice::Spent(_) => {
                Ok(Wanted { intent, rule })
            }
        }
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
        all.sort_by_key(|(record, _)| (record.created_ms, record.number));
        Ok(Occurrences { all })
    }

    /// A label for a repetition of this action that no call has used yet.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn free_label(&self, action: &Intent) -> Result<String, Error> {
        let action = self.keyed_form(action);
        let mut label = 2_u32;
        loop {
            let repetition = Intent::clone(&action).at_label(&label.to_string())?;
            if self.store().load(&repetition.id).await?.is_none() {
                return Ok(label.to_string());
            }
            label += 1;
        }
    }
}

/// The record whose answer a caller has with this result: a success, a failure without effect, or a refusal. An error
/// of ours, such as a doubt or a result that is not available, delivers nothing.
#[must_use]
pub fn delivered_by(result: &Result<Receipt, Error>) -> Option<&Arc<Record>> {
    match result {
        Ok(receipt) => Some(receipt.record()),
        Err(Error::Failed { record, .. } | Error::Cancelled { record, .. }) => Some(record),
        Err(_) => None,
    }
}
