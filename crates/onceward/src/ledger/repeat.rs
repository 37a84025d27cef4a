//! A retry or a wanted repeat, when no key was given? What differs is whether the first answer was delivered.

use std::sync::Arc;

use super::Ledger;
use crate::error::Error;
use crate::operation::{Intent, Operation};
use crate::policy::KeyPolicy;
use crate::record::{Record, State};
use crate::store::Filter;

/// How many open operations of one name are looked at, and how many occurrences of an action are told from labels.
const MOST_OPEN: usize = 500;
const MOST_OCCURRENCES: u64 = 10_000;

/// An occurrence of an action that the ledger knows, and its real state.
pub type Found = Option<(Arc<Record>, State)>;

/// Which operation a call is, and by which rule.
#[derive(Debug)]
pub struct Wanted {
    /// The operation.
    pub intent: Intent,
    /// The rule that decided.
    pub rule: RepeatRule,
}

/// How a call was told from a repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepeatRule {
    /// The caller gave a key or an occurrence.
    Given,
    /// The policy, or a scope that the caller chose: the same call is always the same operation.
    Strict,
    /// The call was never made before.
    First,
    /// The earlier call is in this state and its answer was not delivered: this one is its retry.
    Retry(State),
    /// The answer to the earlier call was delivered: this one is wanted again.
    Repeat,
}

impl Ledger {
    /// Works out which operation a call is, under the operation's own policy for keys.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::KeyMissing`], or the ledger cannot be read.
    pub async fn wanted(&self, operation: Operation) -> Result<Wanted, Error> {
        if operation.is_identified() {
            let intent = self.as_older_versions_named_it(operation.intent()?).await?;
            return Ok(Wanted { intent, rule: RepeatRule::Given });
        }
        match operation.key_policy() {
            KeyPolicy::Strict | KeyPolicy::Keyed => {
                Ok(Wanted { intent: operation.intent()?, rule: RepeatRule::Strict })
            }
            KeyPolicy::Auto => self.wanted_by_delivery(operation.intent()?).await,
        }
    }

    /// The same under the policy `auto`, for an action whose identity is worked out already.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn wanted_by_delivery(&self, action: Intent) -> Result<Wanted, Error> {
        let (newest, found) = self.newest_of(&action, None).await?;
        let (number, rule) = match found {
            None => (newest, RepeatRule::First),
            Some((record, state)) if is_over(&record, state, self.now_ms()) => {
                (newest + 1, RepeatRule::Repeat)
            }
            Some((_, state)) => (newest, RepeatRule::Retry(state)),
        };
        let (number, rule) = match rule {
            RepeatRule::First | RepeatRule::Repeat => {
                self.left_open(&action).await?.unwrap_or((number, rule))
            }
            RepeatRule::Given | RepeatRule::Strict | RepeatRule::Retry(_) => (number, rule),
        };
        Ok(Wanted { intent: action.at_occurrence(number)?, rule })
    }

    /// Older versions counted a name that no one chose beside a given key. What they recorded keeps its id, so that an
    /// upgrade repeats nothing.
    async fn as_older_versions_named_it(&self, mut intent: Intent) -> Result<Intent, Error> {
        let Some(older) = intent.id_with_its_name() else { return Ok(intent) };
        if self.store().load(&intent.id).await?.is_some() || self.store().load(&older).await?.is_none() {
            return Ok(intent);
        }
        intent.id = older;
        Ok(intent)
    }

    /// An occurrence of the action that is still running or in doubt, although the ones before it were forgotten or
    /// have expired. A doubt never expires, so it must be found across the gap.
    async fn left_open(&self, action: &Intent) -> Result<Option<(u64, RepeatRule)>, Error> {
        let filter = Filter {
            scope: Some(action.scope.clone()),
            name: Some(action.name.clone()),
            states: vec![State::Running, State::InDoubt],
            limit: MOST_OPEN,
            ..Filter::default()
        };
        for (listed, state) in self.list(&filter).await? {
            if listed.record.detail.fingerprint != action.fingerprint {
                continue;
            }
            // Occurrences that the caller labelled are other operations: only numbered ones count.
            for number in 1..=MOST_OCCURRENCES {
                if action.named_at(number)?.0 == listed.record.id {
                    return Ok(Some((number, RepeatRule::Retry(state))));
                }
            }
        }
        Ok(None)
    }

    /// The newest occurrence of an action that the ledger knows, or the first where it knows none. Occurrences follow
    /// each other without gaps, so without a hint the search looks ever further ahead and then halves the distance.
    ///
    /// # Errors
    /// [`Error::Invalid`], or the ledger cannot be read.
    pub async fn newest_occurrence(
        &self,
        operation: &Operation,
        hint: Option<u64>,
    ) -> Result<(u64, Found), Error> {
        self.newest_of(&operation.clone().intent()?, hint).await
    }

    /// The same for an action whose identity is worked out already.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn newest_of(&self, action: &Intent, hint: Option<u64>) -> Result<(u64, Found), Error> {
        let mut known = hint.unwrap_or(1);
        let mut found = self.occurrence(action, known).await?;
        if found.is_none() {
            return Ok((known, None));
        }
        let mut step = 1;
        let mut absent = loop {
            match self.occurrence(action, known + step).await? {
                None => break known + step,
                further => {
                    (known, found) = (known + step, further);
                    step *= 2;
                }
            }
        };
        while absent - known > 1 {
            let middle = known + (absent - known) / 2;
            match self.occurrence(action, middle).await? {
                None => absent = middle,
                between => (known, found) = (middle, between),
            }
        }
        Ok((known, found))
    }

    async fn occurrence(&self, action: &Intent, number: u64) -> Result<Found, Error> {
        let (id, _) = action.named_at(number)?;
        match self.find(&id).await {
            Ok(found) => Ok(Some(found)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether the caller has the answer of an occurrence, so that the same call is wanted again.
fn is_over(record: &Record, state: State, now_ms: i64) -> bool {
    match state {
        State::Staged | State::Running | State::InDoubt => false,
        State::Cancelled | State::Expired => true,
        State::Done | State::Failed => record.detail.delivered_ms.is_some_and(|at_ms| at_ms <= now_ms),
    }
}
