//! Replaying a result that the store has at hand, without the loop of begin.

use super::{Ledger, Receipt, require_readable};
use crate::decide::{self, Decision};
use crate::error::Error;
use crate::facts::{Liveness, Ran};
use crate::operation::Intent;
use crate::record::Class;

impl Ledger {
    /// The stored result of the operation, if it is done and the store has its record at hand. Otherwise call
    /// [`Ledger::begin`], which decides the same and everything else. Runs and writes nothing.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use onceward::{Ledger, ManualClock, MemoryStore, Operation};
    ///
    /// # pollster::block_on(async {
    /// let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0))));
    /// let intent = ledger.intent(Operation::new("charge").key("order-7"))?;
    /// assert!(ledger.replay_cached(&intent).await?.is_none());
    /// ledger.call(intent.clone()).run(|attempt| async move { Ok(attempt.dispatch()?.created(&1)) }).await?;
    /// assert!(ledger.replay_cached(&intent).await?.is_some_and(|receipt| receipt.replayed()));
    /// # Ok::<(), onceward::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// When the ledger cannot be read, or the result is sealed with a key that is missing.
    pub async fn replay_cached(&self, intent: &Intent) -> Result<Option<Receipt>, Error> {
        let intent = &self.keyed_form(intent);
        // A read runs every time, even if a record exists.
        if intent.terms.class == Class::Read {
            return Ok(None);
        }
        let Some(record) = self.store.load_cached(&intent.id).await? else { return Ok(None) };
        let now_ms = self.now_ms();
        // The liveness of an owner says nothing about what is done.
        if decide::begin(Some(&record), intent, Liveness::Gone, now_ms) != Decision::Replay
            || self.doubt_after_restore(Some(&record), intent, now_ms).is_some()
        {
            return Ok(None);
        }
        let record = require_readable(record)?;
        self.store.tally_replay(&record.id);
        Ok(Some(Receipt::new(record, Ran::No)))
    }
}
