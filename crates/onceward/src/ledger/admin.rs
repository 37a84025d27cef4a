//! Administration of records: settle, cancel, verify, forget, stage, and sweep.

use std::sync::Arc;

use super::{Ledger, stopped_error};
use crate::decide::{self, Decision, Refusal};
use crate::error::Error;
use crate::facts::{Liveness, Verdict};
use crate::key::OperationId;
use crate::operation::Intent;
use crate::record::{Delivered, Outcome, Record, State, Verification};
use crate::store::{Applied, Begin, Change, Counts, Filter, Swap, WriteMode};
use crate::transition::{self, Ageing, Cancelling};
use crate::word::Word;

/// How many records one step of a sweep processes.
const SWEEP_BATCH: usize = 2_000;

/// The result of cancelling an operation.
#[derive(Debug, Clone)]
pub enum Cancelled {
    /// It will not happen; this is certain.
    Certain(Arc<Record>),
    /// It was running: its owner is asked to stop, and the attempt's own ending will say what happened.
    Requested(Arc<Record>),
}

/// What a sweep did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Results that were replaced by tombstones.
    pub expired: u64,
    /// Tombstones that were deleted.
    pub deleted: u64,
    /// Attempts without a live owner that were marked as in doubt.
    pub doubted: u64,
}

/// Whether more work is due after a step of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// There may be more.
    More,
    /// There is no more.
    Nothing,
}

impl SweepReport {
    fn add(&mut self, more: Self) {
        self.expired += more.expired;
        self.deleted += more.deleted;
        self.doubted += more.doubted;
    }
}

impl Ledger {
    /// Settles an operation in doubt on someone's word, which is kept with it. The outcome has the effect and the
    /// result, if they are known.
    ///
    /// # Errors
    /// [`Error::WrongState`] if it is not in doubt, and the ledger's own errors.
    pub async fn settle(
        &self,
        id: &OperationId,
        verdict: Verdict,
        word: Word,
        outcome: Outcome,
    ) -> Result<Arc<Record>, Error> {
        let settled = self
            .change(id, "settling", |record, liveness, now_ms| {
                transition::settle(record, liveness, verdict, word.clone(), outcome.clone(), now_ms)
            })
            .await?;
        self.note_settled_compensation(&settled).await?;
        Ok(settled)
    }

    /// Settles an operation in doubt if this attempt is still the newest one. An answer about one attempt says
    /// nothing about the next.
    ///
    /// # Errors
    /// [`Error::WrongState`] if it is not in doubt or another attempt is, and the ledger's own errors.
    pub async fn settle_attempt(
        &self,
        id: &OperationId,
        attempt: u32,
        verdict: Verdict,
        word: Word,
        outcome: Outcome,
    ) -> Result<Arc<Record>, Error> {
        let settled = self
            .change(id, "settling", |record, liveness, now_ms| {
                let (word, outcome) = (word.clone(), outcome.clone());
                let settled = || transition::settle(record, liveness, verdict, word, outcome, now_ms);
                (record.attempt == attempt).then(settled).flatten()
            })
            .await?;
        self.note_settled_compensation(&settled).await?;
        Ok(settled)
    }

    /// Marks an attempt whose owner is gone as in doubt, so that its quarantine begins. Leaves every other record
    /// unchanged.
    ///
    /// # Errors
    /// [`Error::NotFound`], and the ledger's own errors.
    pub async fn note_doubt(&self, id: &OperationId) -> Result<Arc<Record>, Error> {
        self.change(id, "noting a doubt", |record, liveness, now_ms| {
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
    pub async fn record_verification(
        &self,
        id: &OperationId,
        verification: Verification,
        reason: Option<String>,
    ) -> Result<Arc<Record>, Error> {
        self.change(id, "verifying", |record, _, now_ms| {
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
    pub async fn note_delivery(
        &self,
        known: &Arc<Record>,
        counts_from_ms: i64,
    ) -> Result<Arc<Record>, Error> {
        let now_ms = self.now_ms();
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
                let Some(stored) = self.store().load(&known.id).await? else {
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
                if self.mode == WriteMode::Blocking { WriteMode::Blocking } else { WriteMode::Deferred };
            match self.store().swap(Some(record.version), next, mode).await? {
                Swap::Written(record) => return Ok(record),
                Swap::Conflict(Some(newer)) => record = newer,
                Swap::Conflict(None) => return Err(Error::NotFound { id: known.id.to_string() }),
            }
        }
    }

    /// Records that the answer was not received after all. This is durable at once, because a retry may follow.
    ///
    /// # Errors
    /// [`Error::WrongState`] if there is no answer, and the ledger's own errors.
    pub async fn take_delivery_back(&self, id: &OperationId) -> Result<Arc<Record>, Error> {
        self.change(id, "delivering", |record, _, _| transition::delivered(record, None)).await
    }

    /// Cancels an operation on someone's word, which equal calls get as the reason. One that runs is asked to stop.
    ///
    /// # Errors
    /// [`Error::WrongState`] if it happened or may have happened, and the ledger's own errors.
    pub async fn cancel(&self, id: &OperationId, word: &Word) -> Result<Cancelled, Error> {
        let mut certain = false;
        let record = self
            .change(id, "cancelling", |record, liveness, now_ms| {
                match transition::cancel(record, liveness, word, now_ms) {
                    Cancelling::Cancelled(next) => {
                        certain = true;
                        Some(next)
                    }
                    Cancelling::Requested(next) => {
                        certain = false;
                        Some(next)
                    }
                    Cancelling::Already => {
                        certain = true;
                        Some(record.clone())
                    }
                    Cancelling::TooLate => None,
                }
            })
            .await?;
        Ok(if certain { Cancelled::Certain(record) } else { Cancelled::Requested(record) })
    }

    /// Applies one change by compare-and-swap, and repeats it after a conflict.
    pub(super) async fn change(
        &self,
        id: &OperationId,
        action: &'static str,
        mut change: impl FnMut(&Record, Liveness, i64) -> Option<Record>,
    ) -> Result<Arc<Record>, Error> {
        loop {
            let (record, state) = self.find(id).await?;
            let liveness = self.liveness(Some(&record)).await?;
            let Some(next) = change(&record, liveness, self.now_ms()) else {
                return Err(Error::WrongState { action, record: decide::seen_as(record, state) });
            };
            if next.version == record.version {
                return Ok(record);
            }
            if let Swap::Written(record) = self.store().swap(Some(record.version), next, self.mode).await? {
                return Ok(record);
            }
        }
    }

    /// Deletes the record, as if the operation had never been requested. The caller takes responsibility: the next
    /// call with this key runs.
    ///
    /// # Errors
    /// [`Error::WrongState`] while it is running.
    pub async fn forget(&self, id: &OperationId) -> Result<Arc<Record>, Error> {
        loop {
            let (record, state) = self.find(id).await?;
            if state == State::Running {
                return Err(Error::WrongState { action: "forgetting", record });
            }
            if self.store().delete(id, record.version, self.mode).await? {
                return Ok(record);
            }
        }
    }

    /// Records an operation and holds it back. Its first call commits it; [`Ledger::cancel`] aborts it.
    ///
    /// # Errors
    /// [`Error::WrongState`] if it is already past that state, [`Error::KeyReused`], or [`Error::Stopped`].
    pub async fn stage(&self, intent: &Intent) -> Result<Arc<Record>, Error> {
        let intent = &self.keyed_form(intent);
        loop {
            match self.store().load(&intent.id).await? {
                None => {
                    let record = transition::stage(intent, self.now_ms());
                    match self.store().begin(None, record, self.mode).await? {
                        Begin::Swapped(Swap::Written(record)) => return Ok(record),
                        Begin::Swapped(Swap::Conflict(_)) => {}
                        Begin::Stopped(barrier) => return Err(stopped_error(barrier, None)),
                    }
                }
                Some(record) => {
                    let decision = decide::begin(Some(&record), intent, Liveness::Alive, self.now_ms());
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

    /// Waits until the operation is neither staged nor running, or until `timeout_ms` have passed. Returns its
    /// effective state.
    ///
    /// # Errors
    /// [`Error::NotFound`], or the ledger cannot be read.
    pub async fn wait(&self, id: &OperationId, timeout_ms: u64) -> Result<(Arc<Record>, State), Error> {
        let until_ms = transition::later(self.now_ms(), timeout_ms);
        let mut poll_ms = *super::POLL_MS.start();
        loop {
            let (record, state) = self.find(id).await?;
            let now_ms = self.now_ms();
            let open = matches!(state, State::Staged | State::Running);
            if !open || now_ms >= until_ms {
                return Ok((record, state));
            }
            let left_ms = u64::try_from(until_ms - now_ms).unwrap_or(0);
            let slice_ms = self.slice_ms(&record, now_ms, &mut poll_ms);
            self.store().changed(id, record.version, slice_ms.min(left_ms)).await;
        }
    }

    /// Expires results, deletes old tombstones, and marks attempts without a live owner as in doubt. Works in small
    /// steps that do not block other callers, and calls `step` after each.
    ///
    /// # Errors
    /// When the ledger cannot be read or written.
    pub async fn sweep(&self, mut step: impl FnMut(SweepReport)) -> Result<SweepReport, Error> {
        let mut swept = SweepReport::default();
        loop {
            let (more, left) = self.sweep_some().await?;
            swept.add(more);
            step(swept);
            if left == Left::Nothing {
                break;
            }
        }
        swept.doubted = self.record_doubts().await?;
        step(swept);
        Ok(swept)
    }

    /// One step of a sweep: returns what it did and whether more is due.
    ///
    /// # Errors
    /// When the ledger cannot be read or written.
    pub async fn sweep_some(&self) -> Result<(SweepReport, Left), Error> {
        let now_ms = self.now_ms();
        let due = self.store().due(now_ms, SWEEP_BATCH).await?;
        let full = due.len() == SWEEP_BATCH;
        let mut changes = Vec::with_capacity(due.len());
        let fence = self.identity().fence;
        for record in due {
            match transition::age(&record, now_ms) {
                Ageing::Tombstone(mut tombstone) => {
                    // What a restore put in doubt stays so: the tombstone is as old as what it replaces.
                    if fence.is_some_and(|fence| fence.covers(Some(&record), now_ms)) {
                        tombstone.updated_ms = record.updated_ms;
                    }
                    changes.push(Change::Swap { expected: Some(record.version), record: tombstone });
                }
                Ageing::Delete => {
                    changes.push(Change::Delete { id: record.id.clone(), expected: record.version });
                }
                Ageing::Keep => {}
            }
        }
        let swept = self.apply_batch(changes).await?;
        // If every change conflicted, other processes are sweeping, so leave the rest to them.
        let left = if full && swept != SweepReport::default() { Left::More } else { Left::Nothing };
        Ok((swept, left))
    }

    /// Applies a batch, and returns how many results expired and how many tombstones were deleted.
    async fn apply_batch(&self, changes: Vec<Change>) -> Result<SweepReport, Error> {
        let deletes: Vec<bool> =
            changes.iter().map(|change| matches!(change, Change::Delete { .. })).collect();
        let applied = self.store().apply(changes, self.mode).await?;
        let mut swept = SweepReport::default();
        for (deleted, applied) in deletes.into_iter().zip(applied) {
            match (deleted, applied) {
                (true, Applied::Written) => swept.deleted += 1,
                (false, Applied::Written) => swept.expired += 1,
                (_, Applied::Conflict) => {}
            }
        }
        Ok(swept)
    }

    /// Marks attempts without a live owner as in doubt, and returns how many.
    ///
    /// # Errors
    /// When the ledger cannot be read or written.
    pub async fn record_doubts(&self) -> Result<u64, Error> {
        let mut doubted = 0;
        let mut filter = Filter { states: vec![State::Running], limit: SWEEP_BATCH, ..Filter::default() };
        loop {
            let page = self.store().list(&filter).await?;
            let full = page.len() == SWEEP_BATCH;
            filter.before = page.last().map(|listed| listed.cursor);
            let mut changes = Vec::new();
            for listed in page {
                let record = listed.record;
                let liveness = self.liveness(Some(&record)).await?;
                let now_ms = self.now_ms();
                if decide::effective_state(&record, liveness, now_ms) != State::Running {
                    let next = transition::doubt(&record, liveness, now_ms);
                    changes.push(Change::Swap { expected: Some(record.version), record: next });
                }
            }
            doubted += self.apply_batch(changes).await?.expired;
            if !full {
                return Ok(doubted);
            }
        }
    }

    /// The number of records in each stored state.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn counts(&self) -> Result<Counts, Error> {
        Ok(self.store().counts(&Filter::default()).await?)
    }
}
