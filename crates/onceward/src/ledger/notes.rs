//! What processes leave for each other, such as the parts of an answer that grows.

use std::sync::Arc;

use super::Ledger;
use crate::error::Error;
use crate::facts::Ending;
use crate::operation::Intent;
use crate::record::{Effect, Outcome, Owner, Record};
use crate::store::{Swap, WriteMode};
use crate::transition;

/// Notes that processes leave for each other: records of the kind [`Marker`](crate::Kind::Marker). See
/// [`Ledger::notes`].
#[derive(Clone, Copy)]
pub struct Notes<'a>(&'a Ledger);

impl Ledger {
    /// The notes that processes leave for each other.
    #[must_use]
    pub fn notes(&self) -> Notes<'_> {
        Notes(self)
    }
}

impl Notes<'_> {
    /// The note.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn read(self, note: &Intent) -> Result<Option<Arc<Record>>, Error> {
        Ok(self.0.store().load(&note.id).await?)
    }

    /// Writes the note over this version (`None`: if there is none), and returns whether it was still that version.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub async fn write(self, note: &Intent, expected: Option<u64>, content: Outcome) -> Result<bool, Error> {
        let now_ms = self.0.now_ms();
        let begun = transition::start(None, note, Owner { token: 0, lease_until_ms: now_ms }, now_ms);
        let content = Outcome { effect: Some(Effect::Noop), ..content };
        let done = transition::finish(&begun, begun.attempt, Ending::Done(content), now_ms);
        let record = Record { version: expected.map_or(1, |version| version + 1), ..done };
        Ok(matches!(self.0.store().swap(expected, record, self.0.mode).await?, Swap::Written(_)))
    }

    /// Deletes a note that was written once.
    ///
    /// # Errors
    /// When the ledger cannot be written.
    pub async fn delete(self, note: &Intent) -> Result<(), Error> {
        self.0.store().delete(&note.id, 1, WriteMode::Deferred).await?;
        Ok(())
    }
}
