//! What a surface records about attempts that it, or another process, runs.

use std::sync::Arc;

use super::{Ledger, Receipt, require_readable, stopped_error};
use crate::decide::{self, Decision, Refusal};
use crate::error::Error;
use crate::facts::{Liveness, Ran, RefusalOf, Verdict};
use crate::key::OperationId;
use crate::operation::Intent;
use crate::record::{Class, Delivered, Outcome, Record, State, Verification};
use crate::store::{Begin, Swap, WriteMode};
use crate::transition;
use crate::word::Word;

/// What a surface records about attempts that it, or another process, runs: reports, leases, checks, and whether an
/// answer reached its caller. See [`Ledger::attempts`].
#[derive(Clone, Copy)]
pub struct Attempts<'a>(pub(super) &'a Ledger);

impl Ledger {
    /// What a surface records about attempts that it, or another process, runs.
    #[must_use]
    pub fn attempts(&self) -> Attempts<'_> {
        Attempts(self)
    }
}

impl Attempts<'_> {
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
    /// assert!(ledger.attempts().replay_cached(&intent).await?.is_none());
    /// ledger.call(intent.clone()).run(|attempt| async move { Ok(attempt.dispatch()?.created(&1)) }).await?;
    /// assert!(ledger.attempts().replay_cached(&intent).await?.is_some_and(|receipt| receipt.replayed()));
    /// # Ok::<(), onceward::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// When the ledger cannot be read, or the result is sealed with a key that is missing.
    pub async fn replay_cached(self, intent: &Intent) -> Result<Option<Receipt>, Error> {
        let intent = &self.0.keyed_form(intent);
        // A read runs every time, even if a record exists.
        if intent.terms.class == Class::Read {
            return Ok(None);
        }
        let Some(record) = self.0.store.load_cached(&intent.id).await? else { return Ok(None) };
        let now_ms = self.0.now_ms();
        // The liveness of an owner says nothing about what is done.
        if decide::begin(Some(&record), intent, Liveness::Gone, now_ms) != Decision::Replay
            || self.0.doubt_after_restore(Some(&record), intent, now_ms).is_some()
        {
            return Ok(None);
        }
        let record = require_readable(record)?;
        self.0.store.tally_replay(&record.id);
        Ok(Some(Receipt::new(record, Ran::No)))
    }

    /// Settles an operation in doubt if this attempt is still the newest one. An answer about one attempt says
    /// nothing about the next.
    ///
    /// # Errors
    /// [`Error::WrongState`] if it is not in doubt or another attempt is, and the ledger's own errors.
    pub async fn settle(
        self,
        id: &OperationId,
        attempt: u32,
        verdict: Verdict,
        word: Word,
        outcome: Outcome,
    ) -> Result<Arc<Record>, Error> {
        let settled = self
            .0
            .change(id, "settling", |record, liveness, now_ms| {
                let (word, outcome) = (word.clone(), outcome.clone());
                let settled = || transition::settle(record, liveness, verdict, word, outcome, now_ms);
                (record.attempt == attempt).then(settled).flatten()
            })
            .await?;
        self.0.note_settled_compensation(&settled).await?;
        Ok(settled)
    }

    /// Marks an attempt whose owner is gone as in doubt, so that its quarantine begins. Leaves every other record
    /// unchanged.
    ///
    /// # Errors
    /// [`Error::NotFound`], and the ledger's own errors.
    pub async fn note_doubt(self, id: &OperationId) -> Result<Arc<Record>, Error> {
        self.0
            .change(id, "noting a doubt", |record, liveness, now_ms| {
                let lost = record.state == State::Running
                    && decide::effective_state(record, liveness, now_ms) == State::InDoubt;
                Some(if lost { transition::doubt(record, liveness, now_ms) } else { record.clone() })
            })
            .await
    }

    /// Records the result of a later check of a reported success.
    ///
    /// # Errors
    /// [`Error::WrongState`] if it is not done, and the ledger's own errors.
    pub async fn verified(
        self,
        id: &OperationId,
        verification: Verification,
        reason: Option<String>,
    ) -> Result<Arc<Record>, Error> {
        self.0
            .change(id, "verifying", |record, _, now_ms| {
                transition::verified(record, verification, reason.clone(), now_ms)
            })
            .await
    }

    /// Records when the answer counts as delivered. This distinguishes a retry from an intended repeat when callers
    /// give no keys. The write is deferred and shares the sync of a later one. If the machine loses power first, an
    /// intended repeat counts as a retry. `known` is the record as the caller has it, which saves a read. Writes
    /// nothing if only the operation's own key or label can ask for its answer again.
    ///
    /// # Errors
    /// [`Error::WrongState`] if there is no answer, and the ledger's own errors.
    pub async fn delivered(self, known: &Arc<Record>, counts_from_ms: i64) -> Result<Arc<Record>, Error> {
        let now_ms = self.0.now_ms();
        let delivered = Delivered {
            at_ms: counts_from_ms.min(now_ms),
            same_until_ms: Some(counts_from_ms).filter(|until_ms| *until_ms > now_ms),
        };
        let mut record = Arc::clone(known);
        if record.is_answered_by_key_only() {
            return Ok(record);
        }
        loop {
            // Another answer has replaced the one that was delivered.
            if !record.has_answer_of(known) {
                return Ok(record);
            }
            let Some(next) = transition::delivered(&record, Some(delivered)) else {
                return Err(Error::WrongState { action: "delivering", record });
            };
            if next.version == record.version {
                // The delivery that the caller knows of may have been taken back since.
                let Some(stored) = self.0.store().load(&known.id).await? else {
                    return Err(Error::NotFound { id: known.id.to_string() });
                };
                if stored.version == record.version {
                    return Ok(record);
                }
                record = stored;
                continue;
            }
            // A blocking caller is about to exit, so it does not wait for another write to share.
            let mode =
                if self.0.mode == WriteMode::Blocking { WriteMode::Blocking } else { WriteMode::Deferred };
            match self.0.store().swap(Some(record.version), next, mode).await? {
                Swap::Written(record) => return Ok(record),
                Swap::Conflict(Some(newer)) => record = newer,
                Swap::Conflict(None) => return Err(Error::NotFound { id: known.id.to_string() }),
            }
        }
    }

    /// Records that the caller has been given this error, if it is a refusal. It stays the answer to equal calls for
    /// this window more.
    ///
    /// # Errors
    /// The ledger's own. Then it stays the answer for longer, and nothing runs.
    pub async fn refusal_delivered(self, error: &Error, window_ms: u64) -> Result<(), Error> {
        if let Error::Cancelled { record, of: RefusalOf::Own, .. } = error {
            let from_ms = record.answer_counts_from_ms(self.0.now_ms(), window_ms);
            drop(self.delivered(record, from_ms).await?);
        }
        Ok(())
    }

    /// Records that the answer was not received after all. This is durable at once, because a retry may follow.
    ///
    /// # Errors
    /// [`Error::WrongState`] if there is no answer, and the ledger's own errors.
    pub async fn not_delivered(self, id: &OperationId) -> Result<Arc<Record>, Error> {
        self.0.change(id, "delivering", |record, _, _| transition::delivered(record, None)).await
    }

    /// Records an operation and holds it back. Its first call commits it; [`Admin::cancel`] aborts it.
    ///
    /// # Errors
    /// [`Error::WrongState`] if it is already past that state, [`Error::KeyReused`], or [`Error::Stopped`].
    pub async fn stage(self, intent: &Intent) -> Result<Arc<Record>, Error> {
        let intent = &self.0.keyed_form(intent);
        loop {
            match self.0.store().load(&intent.id).await? {
                None => {
                    let record = transition::stage(intent, self.0.now_ms());
                    match self.0.store().begin(None, record, self.0.mode).await? {
                        Begin::Swapped(Swap::Written(record)) => return Ok(record),
                        Begin::Swapped(Swap::Conflict(_)) => {}
                        Begin::Stopped(barrier) => return Err(stopped_error(barrier, None)),
                    }
                }
                Some(record) => {
                    let decision = decide::begin(Some(&record), intent, Liveness::Alive, self.0.now_ms());
                    return match (record.state, decision) {
                        (_, Decision::Refuse(Refusal::KeyReused(fields))) => {
                            Err(Error::KeyReused { record, fields })
                        }
                        (State::Staged, _) => Ok(record),
                        (_, _) => Err(Error::WrongState { action: "staging", record }),
                    };
                }
            }
        }
    }

    /// Records the doubt about an operation that may have happened during the time that a restore lost, if there is
    /// one, so that it can be settled.
    ///
    /// # Errors
    /// When the ledger cannot be read or written.
    pub async fn note_lost(self, intent: &Intent) -> Result<(), Error> {
        let intent = &self.0.keyed_form(intent);
        let found = self.0.store.load(&intent.id).await?;
        if let Some(lost) = self.0.doubt_after_restore(found.as_deref(), intent, self.0.now_ms()) {
            // After a conflict another caller has recorded it.
            self.0.store.swap(found.map(|found| found.version), lost, self.0.mode).await?;
        }
        Ok(())
    }
}
