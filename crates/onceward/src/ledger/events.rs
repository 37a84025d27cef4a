//! The events of an inbox: see [`event`].

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Ledger;
use crate::error::Error;
use crate::event::{self, Again, Deliveries, Fate, Round};
use crate::key::OperationId;
use crate::operation::Intent;
use crate::record::{Outcome, Record};
use crate::store::{Applied, Change, Swap, WriteMode};

/// Records the events of an inbox, and what becomes of them. See [`Ledger::events`].
#[derive(Clone, Copy)]
pub struct Events<'a>(&'a Ledger);

impl Ledger {
    /// The events of an inbox. Their deliveries are operations.
    #[must_use]
    pub fn events(&self) -> Events<'_> {
        Events(self)
    }
}

impl Events<'_> {
    /// The record of an event, to be accepted. Its content is the outcome.
    #[must_use]
    pub fn new_record(self, intent: &Intent, deliveries: Deliveries, content: Outcome) -> Record {
        event::accepted(intent, deliveries, content, self.0.now_ms())
    }

    /// Records a new event: durably, when this returns. A conflict holds what is recorded under its id.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub async fn accept(self, event: Record) -> Result<Swap, Error> {
        Ok(self.0.store().swap(None, event, self.0.mode).await?)
    }

    /// The same for several new events with different ids. Returns for each whether it was recorded.
    ///
    /// # Errors
    /// When the ledger cannot be written. Some may have been recorded.
    pub async fn accept_all(self, events: Vec<Record>) -> Result<Vec<bool>, Error> {
        let changes = events.into_iter().map(|record| Change::Swap { expected: None, record }).collect();
        let applied = self.0.store().apply(changes, self.0.mode).await?;
        Ok(applied.into_iter().map(|applied| applied == Applied::Written).collect())
    }

    /// Records how deliveries of a round have ended. The write may share the sync of a later one: until then the
    /// deliveries' own records say so. Returns the event as it is then; `None` if it was forgotten.
    ///
    /// # Errors
    /// When the ledger cannot be read or written.
    pub async fn ended(
        self,
        id: &OperationId,
        round: Round,
        fates: &BTreeMap<String, Fate>,
    ) -> Result<Option<Arc<Record>>, Error> {
        let change = |event: &Record| event::ended(event, round, fates, self.0.now_ms());
        self.change(id, WriteMode::Deferred, change).await
    }

    /// Records that an event is delivered once more. Returns the event as it is then, and whether a delivery is due;
    /// `None` if it was forgotten.
    ///
    /// # Errors
    /// When the ledger cannot be read or written.
    pub async fn again(self, id: &OperationId, again: Again) -> Result<Option<Arc<Record>>, Error> {
        let change = |event: &Record| event::again(event, again, self.0.now_ms());
        self.change(id, self.0.mode, change).await
    }

    /// Writes the next version, as long as there is one. Returns the event as it is then.
    async fn change(
        self,
        id: &OperationId,
        mode: WriteMode,
        change: impl Fn(&Record) -> Option<Record>,
    ) -> Result<Option<Arc<Record>>, Error> {
        let mut found = self.0.store().load(id).await?;
        loop {
            let Some(event) = found else { return Ok(None) };
            let Some(next) = change(&event) else { return Ok(Some(event)) };
            match self.0.store().swap(Some(event.version), next, mode).await? {
                Swap::Written(written) => return Ok(Some(written)),
                Swap::Conflict(newer) => found = newer,
            }
        }
    }
}
