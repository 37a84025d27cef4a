//! More names of a record: another key of an operation, and what binds the content of an event to one event.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::Ledger;
use crate::error::Error;
use crate::facts::Ending;
use crate::key::OperationId;
use crate::operation::Intent;
use crate::record::{Class, Effect, Outcome, Owner, Record};
use crate::store::{Swap, WriteMode};
use crate::transition;

/// Records that one more key stands for a record: an [`Alias`](crate::Kind::Alias) or a
/// [`Guard`](crate::Kind::Guard). See [`Ledger::names`].
#[derive(Clone, Copy)]
pub struct Names<'a> {
    ledger: &'a Ledger,
    mode: WriteMode,
}

impl Ledger {
    /// More names of records. Each is durable when its call returns.
    #[must_use]
    pub fn names(&self) -> Names<'_> {
        Names { ledger: self, mode: self.mode }
    }
}

impl Names<'_> {
    /// The same, but a name may share the sync of a later write, and a power cut may lose it until then.
    #[must_use]
    pub fn deferred(self) -> Self {
        Self { mode: WriteMode::Deferred, ..self }
    }

    /// Gives the name to a record, unless it is taken. A conflict holds the name that is recorded.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub async fn give(self, name: &Intent, of: &OperationId) -> Result<Swap, Error> {
        Ok(self.ledger.store().swap(None, self.record(name, of, 1), self.mode).await?)
    }

    /// Gives a name that is taken to another record. A conflict holds what the name has become meanwhile.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub async fn give_again(self, taken: &Record, name: &Intent, of: &OperationId) -> Result<Swap, Error> {
        let next = self.record(name, of, taken.version + 1);
        Ok(self.ledger.store().swap(Some(taken.version), next, self.mode).await?)
    }

    /// Takes the name back, unless it was given to another record meanwhile.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub async fn take_back(self, name: &Arc<Record>) -> Result<(), Error> {
        self.ledger.store().delete(&name.id, name.version, self.mode).await?;
        Ok(())
    }

    /// A name has no life cycle: it is there until its retention ends.
    fn record(self, name: &Intent, of: &OperationId, version: u64) -> Record {
        // What is compared is compared with the record that it stands for.
        let mut name = name.clone().without_input();
        name.terms.class = Class::Once;
        let now_ms = self.ledger.now_ms();
        let begun = transition::start(None, &name, Owner { token: 0, lease_until_ms: now_ms }, now_ms);
        let outcome = Outcome {
            reason: Some(format!("another key of {of}")),
            data: RawValue::from_string(format!("{{\"alias_of\":\"{of}\"}}")).ok().map(Arc::from),
            ..Outcome::with_effect(Effect::Noop)
        };
        Record { version, ..transition::finish(&begun, begun.attempt, Ending::Done(outcome), now_ms) }
    }
}
