//! Decides whether a call without a key is a retry or an intended repeat: it is a retry unless the first answer was
//! delivered.

use std::sync::Arc;

use super::Ledger;
use crate::error::Error;
use crate::facts::RepeatRule;
use crate::operation::{Intent, Operation};
use crate::policy::KeyPolicy;
use crate::record::{Record, State};
use crate::store::Filter;

/// Limits: how many open operations of one name are searched, and how many occurrences are compared with their
/// labels.
const MOST_OPEN: usize = 500;
const MOST_OCCURRENCES: u64 = 10_000;

/// A known occurrence of an action, and its effective state.
pub type Found = Option<(Arc<Record>, State)>;

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
            let intent = self.with_legacy_id(self.intent(operation)?).await?;
            return Ok(Wanted { intent, rule: RepeatRule::Given });
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
        let (newest, found) = self.newest_of(&action, None).await?;
        let (number, rule) = match found {
            None => (newest, RepeatRule::First),
            Some((record, state)) if is_over(&record, state, self.now_ms()) => {
                (newest + 1, RepeatRule::Repeat)
            }
            Some((_, state)) => (newest, RepeatRule::Retry(state)),
        };
        let (number, rule) = match rule {
            RepeatRule::First | RepeatRule::Repeat => match self.open_occurrences(&action).await?.pop() {
                Some((number, _, state)) => (number, RepeatRule::Retry(state)),
                None => (number, rule),
            },
            RepeatRule::Given | RepeatRule::Strict | RepeatRule::Retry(_) => (number, rule),
        };
        Ok(Wanted { intent: action.at_occurrence(number)?, rule })
    }

    /// Older versions included a name that the caller did not choose in the id, even with a given key. Their records
    /// keep that id, so that an upgrade does not repeat anything.
    async fn with_legacy_id(&self, mut intent: Intent) -> Result<Intent, Error> {
        let Some(older) = intent.legacy_id() else { return Ok(intent) };
        if self.store().load(&intent.id).await?.is_some() || self.store().load(&older).await?.is_none() {
            return Ok(intent);
        }
        intent.id = older;
        Ok(intent)
    }

    /// The occurrences of an action that are running or in doubt, although earlier ones were forgotten or have expired.
    /// A doubt never expires, so it must be found across such a gap.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn open_occurrences(&self, action: &Intent) -> Result<Vec<(u64, Record, State)>, Error> {
        let action = &self.keyed_form(action);
        let filter = Filter {
            scope: Some(action.scope.clone()),
            name: Some(action.name.clone()),
            fingerprint: Some(action.fingerprint.clone()),
            states: vec![State::Running, State::InDoubt],
            limit: MOST_OPEN,
            ..Filter::default()
        };
        let mut open = Vec::new();
        for (listed, state) in self.list(&filter).await? {
            // Occurrences with a label are separate operations: only numbered ones count.
            for number in 1..=MOST_OCCURRENCES {
                if action.id_and_key_at(number)?.0 == listed.record.id {
                    open.push((number, listed.record, state));
                    break;
                }
            }
        }
        open.reverse();
        Ok(open)
    }

    /// The newest known occurrence of an action, or the first if none is known. Occurrences are numbered without
    /// gaps, so without a hint the search doubles its distance and then bisects.
    ///
    /// # Errors
    /// [`Error::Invalid`], or the ledger cannot be read.
    pub async fn newest_occurrence(
        &self,
        operation: &Operation,
        hint: Option<u64>,
    ) -> Result<(u64, Found), Error> {
        self.newest_of(&self.intent(operation.clone())?, hint).await
    }

    /// The same for an intent that is already computed.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn newest_of(&self, action: &Intent, hint: Option<u64>) -> Result<(u64, Found), Error> {
        let action = &self.keyed_form(action);
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
        let (id, _) = action.id_and_key_at(number)?;
        match self.find(&id).await {
            Ok(found) => Ok(Some(found)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether the caller has received the answer of this occurrence, so that an equal call is a new one.
fn is_over(record: &Record, state: State, now_ms: i64) -> bool {
    match state {
        State::Staged | State::Running | State::InDoubt => false,
        State::Cancelled | State::Expired => true,
        State::Done | State::Failed => record.detail.delivered_ms.is_some_and(|at_ms| at_ms <= now_ms),
    }
}
