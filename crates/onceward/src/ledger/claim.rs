//! An attempt that is under way: its record, its lock, and the way to end it.

use std::sync::Arc;

use futures_util::future::{Either, select};

use super::{Ledger, Receipt};
use crate::attempt::{Attempt, Kind};
use crate::error::{Error, Happened, Ran, clipped};
use crate::key::OperationId;
use crate::record::{Record, State, Verification};
use crate::store::{Hold, StoreError, Swap, Watch};
use crate::transition::{self, Ending};

/// Back-off between retries of the final write. An outcome is too valuable to lose to a disk that is briefly full.
const WRITE_AGAIN_MS: [u64; 5] = [20, 50, 100, 300, 1_000];

/// An attempt whose intent is on disk. Dropped without an ending, it is in doubt, at once and for everyone.
pub struct Claim {
    ledger: Ledger,
    record: Arc<Record>,
    lease_ms: u64,
    // One for all who ask: what one of them says of the dispatch holds for all.
    attempt: Attempt,
    _hold: Arc<dyn Hold>,
}

impl Claim {
    pub(super) fn new(ledger: Ledger, record: Arc<Record>, hold: Arc<dyn Hold>, lease_ms: u64) -> Self {
        let attempt = Attempt::new(Arc::clone(&record), Some(Arc::downgrade(&hold)));
        Self { ledger, record, lease_ms, attempt, _hold: hold }
    }

    /// What the code that does the work sees.
    #[must_use]
    pub fn attempt(&self) -> Attempt {
        self.attempt.clone()
    }

    /// The record, as it was written last by this claim.
    #[must_use]
    pub fn record(&self) -> &Arc<Record> {
        &self.record
    }

    /// Drives the work, and renews the lease beside it where only leases tell who lives.
    pub async fn keep_alive<T>(&self, work: impl Future<Output = T>) -> T {
        if self.ledger.store().watch() == Watch::Kernel {
            return work.await;
        }
        let mut work = std::pin::pin!(work);
        loop {
            let nap = self.ledger.store().clock().sleep(self.lease_ms / 3);
            match select(work, nap).await {
                Either::Left((output, _)) => return output,
                Either::Right(((), unfinished)) => work = unfinished,
            }
            self.ledger.renew(&self.record.id, self.record.attempt, self.lease_ms).await;
        }
    }

    /// Writes down how the attempt ended. However late, it is never dropped.
    ///
    /// # Errors
    /// The ending itself where it is not a success; [`Error::Unrecorded`] where it could not be written.
    pub async fn finish(self, ending: Ending) -> Result<Receipt, Error> {
        self.finish_as(ending, Kind::Plain).await
    }

    pub(crate) async fn finish_as(self, ending: Ending, kind: Kind) -> Result<Receipt, Error> {
        let attempt = self.record.attempt;
        let mut found = Arc::clone(&self.record);
        let mut pauses = WRITE_AGAIN_MS.iter();
        let record = loop {
            let next = transition::finish(&found, attempt, ending.clone(), self.ledger.now_ms());
            match self.ledger.store().swap(Some(found.version), next, self.ledger.door).await {
                Ok(Swap::Written(record)) => break record,
                Ok(Swap::Conflict(Some(newer))) => found = newer,
                Ok(Swap::Conflict(None)) => {
                    let source = StoreError::unavailable("its record was deleted while it ran");
                    return Err(Error::Unrecorded {
                        ended: happened(&ending, &found),
                        record: found,
                        source,
                    });
                }
                Err(source) => match pauses.next() {
                    Some(pause_ms) => self.ledger.store().clock().sleep(*pause_ms).await,
                    None => {
                        return Err(Error::Unrecorded {
                            ended: happened(&ending, &found),
                            record: found,
                            source,
                        });
                    }
                },
            }
        };
        answer(record, ending, kind)
    }
}

/// What an attempt's own ending says about the operation, where the ledger does not know of it yet.
fn happened(ending: &Ending, record: &Record) -> Happened {
    match ending {
        Ending::Done(_) => Happened::Yes,
        Ending::Failed(_) if !record.earlier_attempt_in_doubt() => Happened::No,
        Ending::Failed(_) | Ending::InDoubt(_) => Happened::Unknown,
    }
}

/// What the caller of an attempt gets, from its own ending and the record that it left.
fn answer(record: Arc<Record>, ending: Ending, kind: Kind) -> Result<Receipt, Error> {
    // Settled as done, by this attempt or another one: the operation is done, and the record says so.
    if record.state == State::Done {
        let ran = if matches!(ending, Ending::Done(_)) { Ran::Yes } else { Ran::No };
        return Ok(Receipt::new(record, ran));
    }
    let because = |outcome: &crate::record::Outcome, default: &str| {
        outcome.reason.clone().unwrap_or_else(|| default.to_owned())
    };
    match ending {
        // Overtaken: the record is another attempt's, the result is this one's own.
        Ending::Done(outcome) => {
            let record = Record { outcome: Some(outcome), ..Record::clone(&record) };
            Ok(Receipt::new(Arc::new(record), Ran::Yes))
        }
        Ending::Failed(outcome) => Err(match record.state {
            // This attempt did nothing, but the one that overtook it may have.
            State::Running => Error::InProgress { record, ran: Ran::Yes },
            State::InDoubt => {
                let why = clipped(&because(&outcome, "it failed"));
                let reason =
                    format!("this attempt had no effect ({why}), but another attempt may have taken effect");
                Error::InDoubt { reason, record, ran: Ran::Yes }
            }
            State::Staged | State::Done | State::Failed | State::Cancelled | State::Expired => {
                Error::Failed { reason: because(&outcome, "it failed"), record, ran: Ran::Yes }
            }
        }),
        Ending::InDoubt(outcome) if outcome.verified == Some(Verification::Refuted) => {
            Err(Error::Unverified { reason: because(&outcome, "it is not so"), record, ran: Ran::Yes })
        }
        Ending::InDoubt(outcome) => {
            let why = clipped(&because(&outcome, "it gave no answer"));
            let reason = format!("{why}. It may have taken effect");
            Err(match kind {
                Kind::TimedOut => Error::Timeout { reason, record },
                Kind::Plain | Kind::Stopped => Error::InDoubt { reason, record, ran: Ran::Yes },
            })
        }
    }
}

/// The lease of an attempt, for those who keep it alive beside the work: on a thread of their own, for example.
#[derive(Clone)]
pub struct Lease {
    ledger: Ledger,
    id: OperationId,
    attempt: u32,
    lease_ms: u64,
}

impl Lease {
    /// How long to wait between two renewals.
    #[must_use]
    pub fn pause_ms(&self) -> u64 {
        self.lease_ms / 3
    }

    /// Renews it once. A failure changes nothing: whoever overtakes finds a late answer.
    pub async fn renew(&self) {
        self.ledger.renew(&self.id, self.attempt, self.lease_ms).await;
    }
}

impl Ledger {
    /// The lease of an attempt, or `None` where the kernel knows who lives and nothing is to be renewed.
    #[must_use]
    pub fn lease(&self, attempt: &Attempt, lease_ms: u64) -> Option<Lease> {
        let (id, number) = (attempt.operation().clone(), attempt.number());
        (self.store().watch() == Watch::Lease).then(|| Lease {
            ledger: self.clone(),
            id,
            attempt: number,
            lease_ms,
        })
    }

    /// Renews the lease of a running attempt. A failure changes nothing: whoever overtakes finds a late answer.
    pub(crate) async fn renew(&self, id: &OperationId, attempt: u32, lease_ms: u64) {
        let Ok(Some(found)) = self.store().load(id).await else {
            return;
        };
        let now_ms = self.now_ms();
        if let Some(next) = transition::renew(&found, attempt, transition::later(now_ms, lease_ms), now_ms) {
            drop(self.store().swap(Some(found.version), next, self.door).await);
        }
    }
}
