//! The view of an attempt for the code that does the work, and the ways to report how it went.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use futures_util::future::{Either, select};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::evidence::{Doubt, Evidence};
use crate::facts::Ending;
use crate::key::OperationId;
use crate::record::{Effect, Outcome, Record, State, Usage};
use crate::store::{Dispatch, OwnerLock, Store, StoreError};

/// How long an attempt runs before its record is read for a request to end, and how long until the next read.
const LOOK_MS: u64 = 500;
/// How long a request that is under way has to be answered after its attempt was asked to end.
pub const STOP_GRACE_MS: u64 = 10_000;

/// One try at executing an operation. Its intent is durable, and nothing has been sent yet.
///
/// Work that changes something calls [`Attempt::dispatch`] first: only the token that it returns can report
/// an effect.
///
/// ```
/// use std::sync::Arc;
/// use onceward::{Ledger, ManualClock, MemoryStore, Operation};
///
/// let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0)))).blocking();
/// ledger.run(Operation::new("charge").key("order-7"), |attempt| {
///     let idempotency_key = attempt.downstream_key().to_owned();
///     let sent = attempt.dispatch()?;
///     // Send the request, with `idempotency_key`, here.
///     Ok(sent.created(&idempotency_key))
/// })?;
/// # Ok::<(), onceward::Error>(())
/// ```
#[derive(Clone)]
pub struct Attempt {
    record: Arc<Record>,
    /// Weak, so that work that keeps the attempt cannot keep it alive after it has ended. A read has no lock.
    lock: Option<Weak<dyn OwnerLock>>,
    /// Where a request to end it can be read. Weak for the same reason. A read cannot be asked to end.
    store: Option<Weak<dyn Store>>,
    /// Whether such a request was seen.
    asked: Arc<AtomicBool>,
}

/// The proof that the dispatch is recorded: a crash from here on leaves the operation in doubt. Only this
/// token can report an effect.
#[derive(Debug)]
pub struct Dispatched(());

impl Attempt {
    /// The attempt of the record's owner.
    pub(crate) fn new(record: Arc<Record>, lock: Weak<dyn OwnerLock>, store: Weak<dyn Store>) -> Self {
        Self { lock: Some(lock), store: Some(store), ..Self::without_lock(record) }
    }

    /// A read, or the attempt of another process.
    pub(crate) fn without_lock(record: Arc<Record>) -> Self {
        Self { record, lock: None, store: None, asked: Arc::default() }
    }

    /// The operation's id.
    #[must_use]
    pub fn operation(&self) -> &OperationId {
        &self.record.id
    }

    /// The attempt's number: the fencing token, for a downstream that can check one.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.record.attempt
    }

    /// The number of the owner's lock. A read has none.
    pub(crate) fn token(&self) -> Option<u64> {
        self.record.detail.owner.map(|owner| owner.token)
    }

    /// The operation's key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.record.key.text
    }

    /// The operation's scope.
    #[must_use]
    pub fn scope(&self) -> &str {
        &self.record.scope
    }

    /// Whether it takes another operation back.
    #[must_use]
    pub fn is_compensation(&self) -> bool {
        self.record.detail.undoes.is_some()
    }

    /// The key to send to a downstream that deduplicates: the same for every attempt, and unique across
    /// scopes.
    #[must_use]
    pub fn downstream_key(&self) -> &str {
        match &self.record.detail.downstream {
            Some(downstream) => &downstream.key,
            None => self.record.id.as_str(),
        }
    }

    /// Resolves when someone asked for this attempt to end: its scope was stopped, or the operation cancelled. Never
    /// resolves otherwise, so it is raced against the work. The ledger is not read during the first half second, and
    /// then twice a second.
    ///
    /// Work that has not dispatched anything then fails with certainty. Other work stops if it can, and reports what
    /// the evidence says: [`Attempt::finish_or_give_up`] waits for it a little longer.
    pub async fn cancel_requested(&self) {
        while !self.is_cancel_requested() {
            let Some(store) = self.store.as_ref().and_then(Weak::upgrade) else {
                return std::future::pending().await;
            };
            store.clock().sleep(LOOK_MS).await;
            // A ledger that cannot be read now is read again later.
            drop(self.check_cancel_requested().await);
        }
    }

    /// Reads whether someone asked for this attempt to end. For work that cannot wait for
    /// [`Attempt::cancel_requested`]; do not call it more often than twice a second.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn check_cancel_requested(&self) -> Result<bool, StoreError> {
        if !self.is_cancel_requested()
            && let Some(store) = self.store.as_ref().and_then(Weak::upgrade)
            && let Some(found) = store.load(self.operation()).await?
            && asks_to_end(&found, self.number())
        {
            self.asked.store(true, Ordering::SeqCst);
        }
        Ok(self.is_cancel_requested())
    }

    /// Whether a request to end this attempt was seen so far. Reads nothing.
    #[must_use]
    pub fn is_cancel_requested(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    /// Drives work that has dispatched its request. If the attempt is asked to end, `ask` tells the other side, and
    /// the work has [`STOP_GRACE_MS`] more. `None` if that was not enough: then only a doubt can be reported.
    pub async fn finish_or_give_up<T>(
        &self,
        work: impl Future<Output = T>,
        ask: impl Future<Output = ()>,
    ) -> Option<T> {
        let mut work = std::pin::pin!(work);
        match select(work.as_mut(), std::pin::pin!(self.cancel_requested())).await {
            Either::Left((output, _)) => return Some(output),
            Either::Right(((), _)) => {}
        }
        // It is not awaited before the time counts: the other side may not take it.
        let asking = async {
            ask.await;
            std::future::pending::<()>().await
        };
        let grace = async {
            if let Some(store) = self.store.as_ref().and_then(Weak::upgrade) {
                store.clock().sleep(STOP_GRACE_MS).await;
            }
        };
        match select(work, select(std::pin::pin!(grace), std::pin::pin!(asking))).await {
            Either::Left((output, _)) => Some(output),
            Either::Right(_) => None,
        }
    }

    /// Records that the request is about to be sent. Before this call, a crash certainly had no effect.
    ///
    /// # Errors
    /// The dispatch could not be recorded, the attempt has ended, or it was asked to end. Send nothing in that case:
    /// other callers may already treat this attempt as one without effect.
    pub fn dispatch(&self) -> Result<Dispatched, Failure> {
        if self.is_cancel_requested() {
            let reason = "it was asked to stop before anything was sent";
            return Err(Failure::no_effect(Evidence::NotStarted, reason).stopped());
        }
        self.note_dispatched()
    }

    /// Records that the request was sent, for work that has sent it already: it is not refused.
    ///
    /// # Errors
    /// The dispatch could not be recorded, or the attempt has ended.
    pub fn note_dispatched(&self) -> Result<Dispatched, Failure> {
        if let Some(lock) = &self.lock {
            let Some(lock) = lock.upgrade() else {
                let reason = "the attempt has ended, so nothing was sent";
                return Err(Failure::no_effect(Evidence::NotStarted, reason));
            };
            lock.note_dispatch(Dispatch::Begun).map_err(|error| {
                let reason = format!("the dispatch could not be noted, so nothing was sent: {error}");
                Failure::no_effect(Evidence::NotStarted, reason)
            })?;
        }
        Ok(Dispatched(()))
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("record", &self.record)
            .field("asked", &self.asked)
            .finish_non_exhaustive()
    }
}

/// Whether the record asks the owner of this attempt to end it.
fn asks_to_end(record: &Record, attempt: u32) -> bool {
    let is_open = match record.state {
        // One that was put in doubt because its owner was silent has not ended.
        State::Running | State::InDoubt => true,
        State::Staged | State::Done | State::Failed | State::Cancelled | State::Expired => false,
    };
    is_open && record.attempt == attempt && record.detail.cancel_requested_ms.is_some()
}

/// How an attempt ended, derived from the result of its work.
pub(crate) fn ending(result: Result<Done, Failure>) -> (Ending, EndingKind) {
    match result {
        Ok(done) => (Ending::Done(done.outcome), EndingKind::Normal),
        Err(Failure { certainty, reason, data, body, usage, retry }) => {
            let usage = usage.map(|usage| *usage);
            let outcome = Outcome { data, body, usage, ..Outcome::because(Some(reason)) };
            let kind = match (&certainty, retry) {
                (Certainty::TimedOut, _) => EndingKind::TimedOut,
                (Certainty::NoEffect(_) | Certainty::InDoubt(_), Retry::Forbidden) => EndingKind::Stopped,
                (Certainty::NoEffect(_) | Certainty::InDoubt(_), Retry::Allowed) => EndingKind::Normal,
            };
            match certainty {
                Certainty::NoEffect(evidence) => (Ending::Failed(evidence, outcome), kind),
                Certainty::InDoubt(doubt) => {
                    (Ending::InDoubt(Outcome { doubt: Some(doubt), ..outcome }), kind)
                }
                Certainty::TimedOut => {
                    (Ending::InDoubt(Outcome { doubt: Some(Doubt::Lost), ..outcome }), kind)
                }
            }
        }
    }
}

/// Distinguishes a timeout from other doubts, and a call that was stopped from one that may be retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndingKind {
    Normal,
    TimedOut,
    Stopped,
}

/// The result of work that is done. Made by [`Dispatched`]; only a `noop` needs no dispatch.
///
/// ```
/// use std::sync::Arc;
/// use onceward::{Done, Effect, Ledger, ManualClock, MemoryStore, Operation};
///
/// let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0)))).blocking();
/// let receipt = ledger.run(Operation::new("add_label"), |_| Ok(Done::noop("the label is there", &())))?;
/// assert_eq!(receipt.effect(), Effect::Noop);
/// # Ok::<(), onceward::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Done {
    pub(crate) outcome: Outcome,
}

impl Dispatched {
    pub(crate) fn in_transaction() -> Self {
        Self(())
    }

    /// Done, with this effect and a result that is stored as JSON. A result that cannot be serialised is not
    /// a failure: the operation is done and its result is unavailable.
    pub fn done(self, effect: Effect, data: &impl Serialize) -> Done {
        Done::new(effect, data)
    }

    /// Done: it created something.
    pub fn created(self, data: &impl Serialize) -> Done {
        Done::new(Effect::Created, data)
    }

    /// Done: it changed something that existed.
    pub fn updated(self, data: &impl Serialize) -> Done {
        Done::new(Effect::Updated, data)
    }

    /// Done: it deleted something.
    pub fn deleted(self, data: &impl Serialize) -> Done {
        Done::new(Effect::Deleted, data)
    }

    /// Done, with a result that is already JSON text.
    #[must_use]
    pub fn done_with_json(self, effect: Effect, data: impl Into<Arc<RawValue>>) -> Done {
        Done { outcome: Outcome { data: Some(data.into()), ..Outcome::with_effect(effect) } }
    }

    /// Done, but the result could not be kept.
    #[must_use]
    pub fn done_without_result(self, effect: Effect) -> Done {
        Done { outcome: Outcome { unavailable: true, ..Outcome::with_effect(effect) } }
    }
}

impl Done {
    fn new(effect: Effect, data: &impl Serialize) -> Self {
        let data = serde_json::value::to_raw_value(data).ok().map(Arc::from);
        Self { outcome: Outcome { unavailable: data.is_none(), data, ..Outcome::with_effect(effect) } }
    }

    /// Done: nothing had to be changed, for this reason.
    pub fn noop(reason: impl Into<String>, data: &impl Serialize) -> Self {
        let mut done = Self::new(Effect::Noop, data);
        done.outcome.reason = Some(reason.into());
        done
    }

    /// Stores what the attempt used, if it called a model.
    #[must_use]
    pub fn usage(mut self, usage: Usage) -> Self {
        self.outcome.usage = Some(usage);
        self
    }

    /// Stores the bytes that a surface needs to repeat its answer, beside the result.
    #[must_use]
    pub fn body(mut self, body: impl Into<Arc<[u8]>>) -> Self {
        self.outcome.body = Some(body.into());
        self
    }
}

/// The work failed, or it is unknown whether it took effect.
///
/// ```
/// use std::sync::Arc;
/// use onceward::{Error, Evidence, Failure, Happened, Ledger, ManualClock, MemoryStore, Operation};
///
/// let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0)))).blocking();
/// let declined = Evidence::refused("402: the card was declined");
/// let refused = ledger.run(Operation::new("charge"), |_| Err(Failure::no_effect(declined.clone(), "declined")));
/// assert_eq!(refused.unwrap_err().happened(), Some(Happened::No));
///
/// // Any other error leaves the operation in doubt, and a retry does not run it.
/// let reset = || std::io::Error::other("connection reset");
/// let lost = ledger.run(Operation::new("refund"), |_| Err(reset().into()));
/// assert!(matches!(lost, Err(Error::InDoubt { .. })));
/// ```
#[derive(Debug, Clone)]
pub struct Failure {
    certainty: Certainty,
    pub(crate) reason: String,
    data: Option<Arc<RawValue>>,
    body: Option<Arc<[u8]>>,
    usage: Option<Box<Usage>>,
    retry: Retry,
}

/// Whether the same call may retry after a definite failure, within its configured retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Retry {
    Allowed,
    Forbidden,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Certainty {
    NoEffect(Evidence),
    InDoubt(Doubt),
    TimedOut,
}

impl Failure {
    /// It certainly had no effect, by this evidence: the next call may try again.
    pub fn no_effect(evidence: Evidence, reason: impl ToString) -> Self {
        Self::new(Certainty::NoEffect(evidence), reason)
    }

    /// It is unknown whether it took effect: the ledger does not run it again on its own.
    pub fn in_doubt(reason: impl ToString) -> Self {
        Self::new(Certainty::InDoubt(Doubt::Lost), reason)
    }

    /// It has answered, and the answer does not show whether it took effect: an exit code, an error in words. Unlike
    /// after a lost answer, its caller may look and settle it.
    pub fn answered(reason: impl ToString) -> Self {
        Self::new(Certainty::InDoubt(Doubt::Answered), reason)
    }

    /// It took too long, and it is unknown whether it took effect.
    pub fn timed_out(reason: impl ToString) -> Self {
        Self::new(Certainty::TimedOut, reason)
    }

    /// The attempt was asked to end after its dispatch, and no answer came in time. `sent_to` is who did not answer.
    pub fn stopped_unanswered(sent_to: &str) -> Self {
        let seconds = STOP_GRACE_MS / 1_000;
        let why = format!("it was asked to stop, and {sent_to} gave no answer within {seconds} s");
        Self::in_doubt(why).stopped()
    }

    fn new(certainty: Certainty, reason: impl ToString) -> Self {
        let reason = reason.to_string();
        Self { certainty, reason, data: None, body: None, usage: None, retry: Retry::Allowed }
    }

    /// The call was interrupted: it does not retry, even if it has retries left.
    #[must_use]
    pub fn stopped(mut self) -> Self {
        self.retry = Retry::Forbidden;
        self
    }

    /// What went wrong, in words.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Why it certainly had no effect. `None` if that is unknown.
    #[must_use]
    pub fn evidence(&self) -> Option<&Evidence> {
        match &self.certainty {
            Certainty::NoEffect(evidence) => Some(evidence),
            Certainty::InDoubt(_) | Certainty::TimedOut => None,
        }
    }

    /// Stores what the attempt used, if it called a model.
    #[must_use]
    pub fn usage(mut self, usage: Usage) -> Self {
        self.usage = Some(Box::new(usage));
        self
    }

    /// Stores the output of the failed work with the failure.
    #[must_use]
    pub fn with(mut self, data: Option<Arc<RawValue>>, body: Option<Arc<[u8]>>) -> Self {
        (self.data, self.body) = (data, body);
        self
    }
}

/// An error says nothing about the effect, so it leaves the operation in doubt. Use [`Failure::no_effect`] if
/// there was certainly none.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::in_doubt(error)
    }
}
