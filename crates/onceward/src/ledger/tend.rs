//! What people and time do to records: settle, cancel, verify, forget, stage, and clean up.

use std::sync::Arc;

use super::Ledger;
use crate::decide::{self, Decision, Liveness, Refusal};
use crate::error::Error;
use crate::key::OperationId;
use crate::operation::Intent;
use crate::record::{Outcome, Record, State, Verification};
use crate::store::{Applied, Change, Counts, Door, Filter, Swap};
use crate::transition::{self, Ageing, Cancelling, Verdict};

/// How many records one step of a sweep looks at.
const SWEEP_BATCH: usize = 1_000;

/// What asking an operation to stop came to.
#[derive(Debug, Clone)]
pub enum Cancelled {
    /// It will not happen, for certain.
    Certain(Arc<Record>),
    /// It was under way: its owner is asked to stop, and its own ending will say what happened.
    Requested(Arc<Record>),
}

/// What a sweep did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Results that went, leaving their tombstones.
    pub expired: u64,
    /// Tombstones that went.
    pub deleted: u64,
    /// Attempts whose owner was gone, written down as in doubt.
    pub doubted: u64,
}

impl Swept {
    fn add(&mut self, more: Self) {
        self.expired += more.expired;
        self.deleted += more.deleted;
        self.doubted += more.doubted;
    }
}

impl Ledger {
    /// Settles an operation in doubt.
    ///
    /// # Errors
    /// [`Error::WrongState`] where there is no doubt, and the ledger's own.
    pub async fn settle(
        &self,
        id: &OperationId,
        verdict: Verdict,
        outcome: Outcome,
    ) -> Result<Arc<Record>, Error> {
        self.change(id, "settling", |record, liveness, now_ms| {
            transition::settle(record, liveness, verdict, outcome.clone(), now_ms)
        })
        .await
    }

    /// Settles an operation in doubt, if it is still that attempt that is: whoever was asked about one knows nothing of
    /// the next.
    ///
    /// # Errors
    /// [`Error::WrongState`] where there is no doubt or another attempt is in doubt, and the ledger's own.
    pub async fn settle_attempt(
        &self,
        id: &OperationId,
        attempt: u32,
        verdict: Verdict,
        outcome: Outcome,
    ) -> Result<Arc<Record>, Error> {
        self.change(id, "settling", |record, liveness, now_ms| {
            let same = record.attempt == attempt;
            same.then(|| transition::settle(record, liveness, verdict, outcome.clone(), now_ms)).flatten()
        })
        .await
    }

    /// Writes down that an attempt whose owner is gone is in doubt, so that its quarantine begins. Anything else stays
    /// as it is.
    ///
    /// # Errors
    /// [`Error::NotFound`], and the ledger's own.
    pub async fn note_doubt(&self, id: &OperationId) -> Result<Arc<Record>, Error> {
        self.change(id, "noting a doubt", |record, liveness, now_ms| {
            let lost = record.state == State::Running
                && decide::standing(record, liveness, now_ms) == State::InDoubt;
            Some(if lost { transition::doubt(record, liveness, now_ms) } else { record.clone() })
        })
        .await
    }

    /// Writes down what a later check said of a reported success.
    ///
    /// # Errors
    /// [`Error::WrongState`] where it is not done, and the ledger's own.
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

    /// Writes down from when on the answer counts as delivered. It tells a retry from a wanted repeat where nobody
    /// gives keys. The note stands in nobody's way: it goes along with a later write. Where the machine loses its power
    /// before, a wanted repeat is taken for a retry. `known` is the record as the caller has it, which saves a look.
    ///
    /// # Errors
    /// [`Error::WrongState`] where there is no answer, and the ledger's own.
    pub async fn note_delivery(&self, known: &Arc<Record>, delivered_ms: i64) -> Result<Arc<Record>, Error> {
        let mut record = Arc::clone(known);
        loop {
            let Some(next) = transition::delivered(&record, Some(delivered_ms)) else {
                return Err(Error::WrongState { action: "delivering", record });
            };
            if next.version == record.version {
                return Ok(record);
            }
            // A caller that blocks is about to end: it does not wait for another write to share.
            let door = if self.door == Door::Blocking { Door::Blocking } else { Door::Patient };
            match self.store().swap(Some(record.version), next, door).await? {
                Swap::Written(record) => return Ok(record),
                Swap::Conflict(Some(newer)) => record = newer,
                Swap::Conflict(None) => return Err(Error::NotFound { id: known.id.to_string() }),
            }
        }
    }

    /// Writes down that the answer was not taken after all. That is durable at once: a retry may follow.
    ///
    /// # Errors
    /// [`Error::WrongState`] where there is no answer, and the ledger's own.
    pub async fn take_delivery_back(&self, id: &OperationId) -> Result<Arc<Record>, Error> {
        self.change(id, "delivering", |record, _, _| transition::delivered(record, None)).await
    }

    /// Asks an operation to stop, and says what that came to.
    ///
    /// # Errors
    /// [`Error::WrongState`] where it happened or may have happened, and the ledger's own.
    pub async fn cancel(&self, id: &OperationId) -> Result<Cancelled, Error> {
        let mut certain = false;
        let record = self
            .change(id, "cancelling", |record, liveness, now_ms| {
                match transition::cancel(record, liveness, now_ms) {
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

    /// Applies one change by compare-and-swap, again when another caller was faster.
    async fn change(
        &self,
        id: &OperationId,
        action: &'static str,
        mut change: impl FnMut(&Record, Liveness, i64) -> Option<Record>,
    ) -> Result<Arc<Record>, Error> {
        loop {
            let (record, _) = self.find(id).await?;
            let liveness = self.liveness(Some(&record)).await?;
            let Some(next) = change(&record, liveness, self.now_ms()) else {
                return Err(Error::WrongState { action, record });
            };
            if next.version == record.version {
                return Ok(record);
            }
            if let Swap::Written(record) = self.store().swap(Some(record.version), next, self.door).await? {
                return Ok(record);
            }
        }
    }

    /// Deletes the record, as if the operation had never been asked for. The say-so is the caller's: the next call
    /// with this key runs.
    ///
    /// # Errors
    /// [`Error::WrongState`] while it runs.
    pub async fn forget(&self, id: &OperationId) -> Result<Arc<Record>, Error> {
        loop {
            let (record, standing) = self.find(id).await?;
            if standing == State::Running {
                return Err(Error::WrongState { action: "forgetting", record });
            }
            if self.store().delete(id, record.version, self.door).await? {
                return Ok(record);
            }
        }
    }

    /// Writes an operation down that is wanted and held back. Its first call commits it; [`Ledger::cancel`] aborts it.
    ///
    /// # Errors
    /// [`Error::WrongState`] where it is further on already, or [`Error::KeyReused`].
    pub async fn stage(&self, intent: &Intent) -> Result<Arc<Record>, Error> {
        loop {
            match self.store().load(&intent.id).await? {
                None => {
                    let record = transition::stage(intent, self.now_ms());
                    if let Swap::Written(record) = self.store().swap(None, record, self.door).await? {
                        return Ok(record);
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

    /// Waits until the operation is neither staged nor running, or `timeout_ms` is over; gives where it stands.
    ///
    /// # Errors
    /// [`Error::NotFound`], or the ledger cannot be read.
    pub async fn wait(&self, id: &OperationId, timeout_ms: u64) -> Result<(Arc<Record>, State), Error> {
        let until_ms = transition::later(self.now_ms(), timeout_ms);
        let mut look_ms = *super::LOOK_MS.start();
        loop {
            let (record, state) = self.find(id).await?;
            let now_ms = self.now_ms();
            let open = matches!(state, State::Staged | State::Running);
            if !open || now_ms >= until_ms {
                return Ok((record, state));
            }
            let left_ms = u64::try_from(until_ms - now_ms).unwrap_or(0);
            let slice_ms = self.slice_ms(&record, now_ms, &mut look_ms);
            self.store().changed(id, record.version, slice_ms.min(left_ms)).await;
        }
    }

    /// Does what time asks for: results become tombstones, tombstones go, attempts whose owner is gone are written
    /// down as in doubt. In small steps that hold nobody up; `step` is told after each.
    ///
    /// # Errors
    /// When the ledger cannot be read or written.
    pub async fn sweep(&self, mut step: impl FnMut(Swept)) -> Result<Swept, Error> {
        let mut swept = Swept::default();
        loop {
            let now_ms = self.now_ms();
            let due = self.store().due(now_ms, SWEEP_BATCH).await?;
            let full = due.len() == SWEEP_BATCH;
            let changed_before = swept.expired + swept.deleted;
            let mut changes = Vec::with_capacity(due.len());
            for record in due {
                match transition::age(&record, now_ms) {
                    Ageing::Tombstone(tombstone) => {
                        changes.push(Change::Swap { expected: Some(record.version), record: tombstone });
                    }
                    Ageing::Delete => {
                        changes.push(Change::Delete { id: record.id.clone(), expected: record.version });
                    }
                    Ageing::Keep => {}
                }
            }
            swept.add(self.apply_batch(changes).await?);
            step(swept);
            if !full || swept.expired + swept.deleted == changed_before {
                break;
            }
        }
        swept.doubted = self.write_doubts_down().await?;
        step(swept);
        Ok(swept)
    }

    /// Applies a batch, and tells how many results expired and how many tombstones went.
    async fn apply_batch(&self, changes: Vec<Change>) -> Result<Swept, Error> {
        let deletes: Vec<bool> =
            changes.iter().map(|change| matches!(change, Change::Delete { .. })).collect();
        let applied = self.store().apply(changes, self.door).await?;
        let mut swept = Swept::default();
        for (deleted, applied) in deletes.into_iter().zip(applied) {
            match (deleted, applied) {
                (true, Applied::Written) => swept.deleted += 1,
                (false, Applied::Written) => swept.expired += 1,
                (_, Applied::Conflict) => {}
            }
        }
        Ok(swept)
    }

    async fn write_doubts_down(&self) -> Result<u64, Error> {
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
                if decide::standing(&record, liveness, now_ms) != State::Running {
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

    /// How many records are written in each state.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn counts(&self) -> Result<Counts, Error> {
        Ok(self.store().counts(&Filter::default()).await?)
    }
}
