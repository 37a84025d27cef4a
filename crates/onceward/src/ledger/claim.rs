//! A running attempt: its record, its lock, and the ways to end it.

use std::sync::Arc;

use futures_util::future::{Either, select};

use super::{Attempts, Ledger, Receipt, require_readable};
use crate::attempt::{Attempt, EndingKind};
use crate::error::{Error, clip};
use crate::facts::{Ending, Happened, Ran, RefusalOf};
use crate::invalid::InvalidInput;
use crate::key::OperationId;
use crate::policy::Terms;
use crate::record::{Outcome, Record, State, Verification};
use crate::redact::Redaction;
use crate::store::{LivenessSource, OwnerLock, StoreError, Swap};
use crate::transition::{self, Report};

/// Back-off between retries of the final write. An outcome is too valuable to lose to a disk that is briefly full.
const WRITE_RETRY_MS: [u64; 5] = [20, 50, 100, 300, 1_000];

/// An attempt whose intent is durable. Dropping it without an ending leaves the operation in doubt at once.
pub struct Claim {
    ledger: Ledger,
    record: Arc<Record>,
    lease_ms: u64,
    redact: Redaction,
    // Shared by all callers of `attempt()`, so that a dispatch noted by one of them counts for all.
    attempt: Attempt,
    _lock: Arc<dyn OwnerLock>,
}

impl Claim {
    pub(super) fn new(ledger: Ledger, record: Arc<Record>, lock: Arc<dyn OwnerLock>, terms: &Terms) -> Self {
        let store = Arc::downgrade(&ledger.store);
        let attempt = Attempt::new(Arc::clone(&record), Arc::downgrade(&lock), store);
        Self { ledger, record, lease_ms: terms.lease_ms, redact: terms.redact.clone(), attempt, _lock: lock }
    }

    /// The view of this attempt for the code that does the work.
    #[must_use]
    pub fn attempt(&self) -> Attempt {
        self.attempt.clone()
    }

    /// The record as this claim last wrote it.
    #[must_use]
    pub fn record(&self) -> &Arc<Record> {
        &self.record
    }

    /// Drives the work, and renews the lease meanwhile if liveness depends on leases.
    pub async fn keep_alive<T>(&self, work: impl Future<Output = T>) -> T {
        if self.ledger.store().watch() == LivenessSource::Kernel {
            return work.await;
        }
        let mut work = std::pin::pin!(work);
        loop {
            let nap = self.ledger.store().clock().sleep(self.lease_ms / 3);
            match select(work, nap).await {
                Either::Left((output, _)) => return output,
                Either::Right(((), unfinished)) => work = unfinished,
            }
            self.ledger.renew(&self.attempt, self.lease_ms).await;
        }
    }

    /// Records how the attempt ended. The ending is never discarded, even if it is late.
    ///
    /// # Errors
    /// The ending itself if it is not a success; [`Error::Unrecorded`] if it could not be written.
    pub async fn finish(self, ending: Ending) -> Result<Receipt, Error> {
        self.finish_as(ending, EndingKind::Normal).await
    }

    pub(crate) async fn finish_as(self, ending: Ending, kind: EndingKind) -> Result<Receipt, Error> {
        let attempt = self.record.attempt;
        let ending = self.redact.ending(ending);
        let found = Arc::clone(&self.record);
        let record = self.ledger.write_ending(found, attempt, &ending, Reporter::Owner).await?;
        let answer = answer(record, ending, kind);
        match answer {
            Err(Error::Failed { record, reason, ran }) if self.attempt.is_cancel_requested() => {
                Err(self.ledger.stopped_or_failed(record, reason, ran).await)
            }
            Ok(_) | Err(_) => answer,
        }
    }
}

/// Who reports an ending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reporter {
    /// The owner of the claim, which reports once.
    Owner,
    /// A caller in another process, which may report again, and differently.
    Caller,
}

impl Attempts<'_> {
    /// Records how an attempt ended that another process runs, for a server whose caller reports it. The ending is
    /// never discarded, even if it is late. A success that the attempt has reported is final: the same report again
    /// changes nothing. Returns the record as it is then.
    ///
    /// The caller must have checked that the attempt is that of the process that reports.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Invalid`] if there was no such attempt; [`Error::WrongState`] if the attempt has
    /// reported a success with another result; [`Error::Unrecorded`] if the ending could not be written.
    pub async fn finish(self, id: &OperationId, attempt: u32, ending: &Ending) -> Result<Arc<Record>, Error> {
        let found = self.0.store().load(id).await?.ok_or_else(|| Error::NotFound { id: id.to_string() })?;
        if !(1..=found.attempt).contains(&attempt) {
            let newest = found.attempt;
            let problem =
                format!("there was no attempt {attempt}: the newest attempt of this operation is {newest}");
            return Err(InvalidInput::new(problem).into());
        }
        self.0.write_ending(found, attempt, ending, Reporter::Caller).await
    }

    /// Renews the lease of an attempt that another process runs, if it is the newest one and has not ended.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::WrongState`] if it has ended or another attempt has been started; and the
    /// ledger's own errors.
    pub async fn renew(
        self,
        id: &OperationId,
        attempt: u32,
        token: u64,
        lease_ms: u64,
    ) -> Result<Arc<Record>, Error> {
        self.0
            .change(id, "renewing", |record, _, now_ms| {
                transition::renew(record, attempt, token, transition::later(now_ms, lease_ms), now_ms)
            })
            .await
    }

    /// The lease of an attempt, or `None` if the kernel tells who is alive and nothing needs renewing.
    #[must_use]
    pub fn lease(self, attempt: &Attempt, lease_ms: u64) -> Option<Lease> {
        (self.0.store().watch() == LivenessSource::Lease).then(|| Lease {
            ledger: self.0.clone(),
            attempt: attempt.clone(),
            lease_ms,
        })
    }

    /// The lease of an attempt that another process began, if the attempt is the newest and has not ended.
    /// For a process that keeps it alive after the first process is gone.
    #[must_use]
    pub fn lease_of(self, record: &Arc<Record>, attempt: u32, lease_ms: u64) -> Option<Lease> {
        let open = matches!(record.state, State::Running | State::InDoubt) && record.attempt == attempt;
        let attempt = Attempt::without_lock(Arc::clone(record));
        self.lease(&attempt, lease_ms).filter(|_| open)
    }
}

impl Ledger {
    /// The error for an attempt that was asked to end and had no effect: another one would be refused if its scope is
    /// stopped.
    async fn stopped_or_failed(&self, record: Arc<Record>, reason: String, ran: Ran) -> Error {
        match self.barrier_of(&record.scope).await {
            Ok(Some(barrier)) => Error::Stopped { barrier, record: Some(record), ran },
            // The barrier cannot be read: what is certain is that it failed.
            Ok(None) | Err(_) => Error::Failed { record, reason, ran },
        }
    }

    /// Writes an attempt's own ending. Retries if the ledger cannot be written.
    async fn write_ending(
        &self,
        mut found: Arc<Record>,
        attempt: u32,
        ending: &Ending,
        reporter: Reporter,
    ) -> Result<Arc<Record>, Error> {
        let mut pauses = WRITE_RETRY_MS.iter();
        loop {
            match (reporter, transition::report(&found, attempt, ending)) {
                (Reporter::Caller, Report::Repeated) => return Ok(found),
                (Reporter::Caller, Report::Contradicts) => {
                    return Err(Error::WrongState { action: contradiction(ending), record: found });
                }
                (Reporter::Owner, Report::New | Report::Repeated | Report::Contradicts)
                | (Reporter::Caller, Report::New) => {}
            }
            let next = transition::finish(&found, attempt, ending.clone(), self.now_ms());
            let why = match self.store().swap(Some(found.version), next, self.mode).await {
                Ok(Swap::Written(record)) => return Ok(record),
                Ok(Swap::Conflict(Some(newer))) => {
                    found = newer;
                    continue;
                }
                Ok(Swap::Conflict(None)) => StoreError::unavailable("its record was deleted while it ran"),
                Err(error) => match pauses.next() {
                    Some(pause_ms) => {
                        self.store().clock().sleep(*pause_ms).await;
                        continue;
                    }
                    None => error,
                },
            };
            return Err(Error::Unrecorded { ended: happened(ending, &found), record: found, why });
        }
    }
}

/// What a report that contradicts an earlier one tries to do.
fn contradiction(ending: &Ending) -> &'static str {
    match ending {
        Ending::Done(_) => "replacing the result that this attempt has already reported",
        Ending::Failed(..) => "reporting a failure after this attempt has reported its success",
        Ending::InDoubt(_) => "reporting a doubt after this attempt has reported its success",
    }
}

/// What an attempt's own ending says about the operation, if the ledger does not have it yet.
fn happened(ending: &Ending, record: &Record) -> Happened {
    match ending {
        Ending::Done(_) => Happened::Yes,
        Ending::Failed(..) if !record.earlier_attempt_in_doubt() => Happened::No,
        Ending::Failed(..) | Ending::InDoubt(_) => Happened::Unknown,
    }
}

/// The caller's answer, from the attempt's ending and the record it left.
fn answer(record: Arc<Record>, ending: Ending, kind: EndingKind) -> Result<Receipt, Error> {
    // Settled as done by this attempt or another one: the operation is done.
    if record.state == State::Done {
        let ran = if matches!(ending, Ending::Done(_)) { Ran::Yes } else { Ran::No };
        let record = if ran == Ran::Yes { record } else { require_readable(record)? };
        return Ok(Receipt::new(record, ran));
    }
    let because = |outcome: &crate::record::Outcome, default: &str| {
        outcome.reason.clone().unwrap_or_else(|| default.to_owned())
    };
    match ending {
        // Overtaken: the record belongs to another attempt, the result is this attempt's own.
        Ending::Done(outcome) => {
            let record = Record { outcome: Some(outcome), ..Record::clone(&record) };
            Ok(Receipt::new(Arc::new(record), Ran::Yes))
        }
        Ending::Failed(_, outcome) => Err(match record.state {
            // This attempt had no effect, but the one that overtook it may have.
            State::Running => Error::InProgress { record, ran: Ran::Yes },
            State::InDoubt => {
                let why = clip(&because(&outcome, "it failed"));
                let reason =
                    format!("this attempt had no effect ({why}), but another attempt may have taken effect");
                Error::InDoubt { reason, record, ran: Ran::Yes }
            }
            State::Cancelled => Error::Cancelled { record, ran: Ran::Yes, of: RefusalOf::Own },
            State::Staged | State::Done | State::Failed | State::Expired => {
                Error::Failed { reason: because(&outcome, "it failed"), record, ran: Ran::Yes }
            }
        }),
        Ending::InDoubt(outcome) if outcome.verified == Some(Verification::Refuted) => {
            Err(Error::Unverified { reason: because(&outcome, "it is not so"), record, ran: Ran::Yes })
        }
        Ending::InDoubt(outcome) => {
            let why = clip(&because(&outcome, "it gave no answer"));
            let reason = format!("{why}. It may have taken effect");
            Err(match kind {
                EndingKind::TimedOut => Error::Timeout { reason, record },
                EndingKind::Normal | EndingKind::Stopped => Error::InDoubt { reason, record, ran: Ran::Yes },
            })
        }
    }
}

/// The lease of an attempt, for code that renews it beside the work, for example on another thread.
#[derive(Clone)]
pub struct Lease {
    ledger: Ledger,
    attempt: Attempt,
    lease_ms: u64,
}

impl Lease {
    /// How long to wait between two renewals.
    #[must_use]
    pub fn pause_ms(&self) -> u64 {
        self.lease_ms / 3
    }

    /// Ends the attempt as in doubt. An ending that was written meanwhile is kept.
    ///
    /// # Errors
    /// When the ledger cannot be read or written.
    pub async fn give_up(&self, reason: &str) -> Result<(), Error> {
        let (ledger, attempt) = (&self.ledger, &self.attempt);
        loop {
            let Some(found) = ledger.store().load(attempt.operation()).await? else { return Ok(()) };
            let (number, now_ms) = (attempt.number(), ledger.now_ms());
            let mine = attempt.token().and_then(|token| transition::renew(&found, number, token, 0, now_ms));
            if mine.is_none() {
                return Ok(());
            }
            let ending = Ending::InDoubt(Outcome::because(Some(reason.to_owned())));
            let next = transition::finish(&found, number, ending, now_ms);
            if let Swap::Written(_) = ledger.store().swap(Some(found.version), next, ledger.mode).await? {
                return Ok(());
            }
        }
    }

    /// Renews the lease once. A failure is harmless: if another attempt overtakes this one, its result is
    /// recorded as a late answer.
    pub async fn renew(&self) {
        self.ledger.renew(&self.attempt, self.lease_ms).await;
    }
}

impl Ledger {
    /// Renews the lease of an attempt that has not ended. A failure is harmless: if another attempt overtakes
    /// this one, its result is recorded as a late answer.
    pub(crate) async fn renew(&self, attempt: &Attempt, lease_ms: u64) {
        let (id, number) = (attempt.operation(), attempt.number());
        let (Some(token), Ok(Some(found))) = (attempt.token(), self.store().load(id).await) else { return };
        let now_ms = self.now_ms();
        let until_ms = transition::later(now_ms, lease_ms);
        if let Some(next) = transition::renew(&found, number, token, until_ms, now_ms) {
            drop(self.store().swap(Some(found.version), next, self.mode).await);
        }
    }
}
