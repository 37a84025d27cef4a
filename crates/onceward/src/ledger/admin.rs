//! What people and maintenance do with operations: settle, cancel, forget, count, and sweep.

use std::sync::Arc;

use super::Ledger;
use crate::decide;
use crate::error::Error;
use crate::facts::{Liveness, Verdict};
use crate::key::OperationId;
use crate::record::{Outcome, Record, State};
use crate::store::{Applied, Change, Counts, Filter, Swap};
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

/// What people and maintenance do: settle, cancel, release, forget, count, import, clean up. See [`Ledger::admin`].
#[derive(Clone, Copy)]
pub struct Admin<'a>(pub(super) &'a Ledger);

impl Ledger {
    /// What people and maintenance do: settle, cancel, release, forget, count, import, clean up.
    #[must_use]
    pub fn admin(&self) -> Admin<'_> {
        Admin(self)
    }
}

impl Admin<'_> {
    /// Settles an operation in doubt on someone's word, which is kept with it. The outcome has the effect and the
    /// result, if they are known.
    ///
    /// # Errors
    /// [`Error::WrongState`] if it is not in doubt, and the ledger's own errors.
    pub async fn settle(
        self,
        id: &OperationId,
        verdict: Verdict,
        word: Word,
        outcome: Outcome,
    ) -> Result<Arc<Record>, Error> {
        let settled = self
            .0
            .change(id, "settling", |record, liveness, now_ms| {
                transition::settle(record, liveness, verdict, word.clone(), outcome.clone(), now_ms)
            })
            .await?;
        self.0.note_settled_compensation(&settled).await?;
        Ok(settled)
    }

    /// Cancels an operation on someone's word, which equal calls get as the reason. One that runs is asked to stop.
    ///
    /// # Errors
    /// [`Error::WrongState`] if it happened or may have happened, and the ledger's own errors.
    pub async fn cancel(self, id: &OperationId, word: &Word) -> Result<Cancelled, Error> {
        let mut certain = false;
        let record = self
            .0
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

    /// Deletes the record, as if the operation had never been requested. The caller takes responsibility: the next
    /// call with this key runs.
    ///
    /// # Errors
    /// [`Error::WrongState`] while it is running.
    pub async fn forget(self, id: &OperationId) -> Result<Arc<Record>, Error> {
        loop {
            let (record, state) = self.0.find(id).await?;
            if state == State::Running {
                return Err(Error::WrongState { action: "forgetting", record });
            }
            if self.0.store().delete(id, record.version, self.0.mode).await? {
                return Ok(record);
            }
        }
    }

    /// Expires results, deletes old tombstones, and marks attempts without a live owner as in doubt. Works in small
    /// steps that do not block other callers, and calls `step` after each.
    ///
    /// # Errors
    /// When the ledger cannot be read or written.
    pub async fn sweep(self, mut step: impl FnMut(SweepReport)) -> Result<SweepReport, Error> {
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
    pub async fn sweep_some(self) -> Result<(SweepReport, Left), Error> {
        let now_ms = self.0.now_ms();
        let due = self.0.store().due(now_ms, SWEEP_BATCH).await?;
        let full = due.len() == SWEEP_BATCH;
        let mut changes = Vec::with_capacity(due.len());
        let fence = self.0.identity().fence;
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
        let swept = self.0.apply_batch(changes).await?;
        // If every change conflicted, other processes are sweeping, so leave the rest to them.
        let left = if full && swept != SweepReport::default() { Left::More } else { Left::Nothing };
        Ok((swept, left))
    }

    /// Marks attempts without a live owner as in doubt, and returns how many.
    ///
    /// # Errors
    /// When the ledger cannot be read or written.
    pub async fn record_doubts(self) -> Result<u64, Error> {
        let mut doubted = 0;
        let mut filter = Filter { states: vec![State::Running], limit: SWEEP_BATCH, ..Filter::default() };
        loop {
            let page = self.0.store().list(&filter).await?;
            let full = page.len() == SWEEP_BATCH;
            filter.before = page.last().map(|listed| listed.cursor);
            let mut changes = Vec::new();
            for listed in page {
                let record = listed.record;
                let liveness = self.0.liveness(Some(&record)).await?;
                let now_ms = self.0.now_ms();
                if decide::effective_state(&record, liveness, now_ms) != State::Running {
                    let next = transition::doubt(&record, liveness, now_ms);
                    changes.push(Change::Swap { expected: Some(record.version), record: next });
                }
            }
            doubted += self.0.apply_batch(changes).await?.expired;
            if !full {
                return Ok(doubted);
            }
        }
    }

    /// The number of records in each stored state.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn counts(self) -> Result<Counts, Error> {
        Ok(self.0.store().counts(&Filter::default()).await?)
    }
}

impl Ledger {
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
}
