//! The ledger: the complete loop of begin, execute and finish over any [`Store`].

mod blocking;
mod import;
mod call;
mod claim;
mod events;
mod held;
mod lookup;
mod names;
mod receipt;
mod renewals;
mod repeat;
mod stop;
mod refusal;
mod admin;
mod attempts;
mod undo;
mod unanswered;

use std::borrow::Cow;
use std::sync::Arc;

pub use admin::{Admin, Cancelled, Left, SweepReport};
pub use attempts::Attempts;
pub use blocking::{
    Blocking, BlockingAdmin, BlockingAttempts, BlockingRepeats, BlockingScopes, BlockingUndo,
};
pub use call::{Call, ProbeAnswer};
pub use claim::{Claim, Lease};
pub use events::Events;
pub use import::Imported;
pub use names::Names;
pub use receipt::Receipt;
pub(crate) use refusal::{in_doubt_error, refusal_error, stopped, stopped_error};
pub use repeat::{Occurrences, Repeats, Wanted, delivered_by, delivers};
pub use stop::{Resumed, Scopes, Stopped};
pub use undo::{ToUndo, Undo, UndoStart, Undoing};

use crate::attempt::{Attempt, Done, Failure};
use crate::barrier::Barrier;
use crate::decide::{self, Decision, Refusal};
use crate::error::Error;
use crate::facts::{Liveness, Ran, Verdict};
use crate::identity::Identity;
use crate::kind::Kind;
use crate::operation::{Intent, Operation};
use crate::record::{Class, Outcome, Owner, Record, State};
use crate::store::{
    Begin, Clock, Dispatch, Inherit, LivenessSource, OwnerLock, Store, StoreError, Swap, WriteMode,
};
use crate::transition;
use crate::word::Word;
use renewals::Renewals;
use unanswered::Unanswered;

/// The first and the longest pause between two polls of another caller's attempt, if the kernel tells who is
/// alive.
const POLL_MS: std::ops::RangeInclusive<u64> = 1..=20;

/// How often a store may refuse a new record and then have none with that id: others may have deleted it meanwhile.
const MOST_REFUSED: u32 = 100;

/// The ledger between intent and effect. Cheap to clone; clones share one store.
///
/// ```
/// use std::sync::Arc;
/// use onceward::{Ledger, ManualClock, MemoryStore, Operation};
///
/// # pollster::block_on(async {
/// let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0))));
/// let order = Operation::new("create_order").key("order-7");
/// let receipt = ledger
///     .run(order, |attempt| async move {
///         let sent = attempt.dispatch()?;
///         // Call the shop here.
///         Ok(sent.created(&"order 7"))
///     })
///     .await?;
/// assert_eq!(receipt.data(), Some("\"order 7\""));
/// # Ok::<(), onceward::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Ledger {
    store: Arc<dyn Store>,
    mode: WriteMode,
    unanswered: Arc<Unanswered>,
    renewals: Arc<Renewals>,
}

/// The result of [`Ledger::begin`].
pub enum Begun {
    /// The intent is durable: execute it, then finish the claim.
    Execute(Claim),
    /// The operation is already done: run nothing.
    Replay(Receipt),
}

/// The result of writing the next attempt.
enum ClaimResult {
    /// This caller's attempt is written.
    Written(Claim),
    /// Another caller was faster. Holds the record that conflicted, if it is known.
    Conflict(Option<Arc<Record>>),
    /// The scope is stopped.
    Stopped(Barrier),
}

/// What a call would do. Finding out writes nothing.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The decision. Never [`Decision::Doubt`].
    pub decision: Decision,
    /// The record that the decision is based on.
    pub record: Option<Arc<Record>>,
}

impl Ledger {
    /// A ledger on this store, for async callers. See [`Ledger::blocking`] for threads that may block.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, mode: WriteMode::Async, unanswered: Arc::default(), renewals: Arc::default() }
    }

    /// The same ledger for threads that may block. It needs no runtime.
    #[must_use]
    pub fn blocking(&self) -> Blocking {
        Blocking::new(Self { mode: WriteMode::Blocking, ..self.clone() })
    }

    /// How this ledger finds out whether an owner is alive.
    #[must_use]
    pub fn watch(&self) -> LivenessSource {
        self.store.watch()
    }

    /// The same ledger for maintenance work: its writes may wait and share the sync of another write.
    #[must_use]
    pub fn patient(&self) -> Self {
        Self { mode: WriteMode::Deferred, ..self.clone() }
    }

    /// Executes the operation once, or replays its stored result. The example of [`Ledger`] shows a call.
    ///
    /// # Errors
    /// Each says whether the effect happened: see [`Error::code`].
    pub async fn run<F, W>(&self, operation: Operation, act: F) -> Result<Receipt, Error>
    where
        F: FnMut(Attempt) -> W,
        W: Future<Output = Result<Done, Failure>>,
    {
        self.call(self.intent(operation)?).run(act).await
    }

    /// Computes the identity and fingerprint of an operation, as this ledger stores them.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use onceward::{Ledger, ManualClock, MemoryStore, Operation};
    ///
    /// let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0))));
    /// let first = ledger.intent(Operation::new("charge").input(serde_json::json!({"amount": 100})))?;
    /// let retry = ledger.intent(Operation::new("charge").input(serde_json::json!({"amount": 100})))?;
    /// assert_eq!(first.id, retry.id);
    /// # Ok::<(), onceward::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] with every problem at once, or [`Error::KeyMissing`].
    pub fn intent(&self, operation: Operation) -> Result<Intent, Error> {
        operation.intent_for(self.store.identity().secret.as_ref())
    }

    /// Converts an intent that was computed without a ledger into the form that this ledger stores.
    #[must_use]
    pub fn keyed(&self, intent: Intent) -> Intent {
        intent.keyed_with(self.store.identity().secret.as_ref())
    }

    /// The same without a copy, if the intent has that form already.
    fn keyed_form<'a>(&self, intent: &'a Intent) -> Cow<'a, Intent> {
        intent.keyed_form(self.store.identity().secret.as_ref())
    }

    /// The ledger's identity.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        self.store.identity()
    }

    /// Prepares a call for an intent that is already computed. A probe or a check can be added before it
    /// runs.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use onceward::{Failure, Ledger, ManualClock, MemoryStore, Operation, Outcome, ProbeAnswer};
    ///
    /// # pollster::block_on(async {
    /// let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0))));
    /// let intent = ledger.intent(Operation::new("charge").key("order-7").with_probe())?;
    /// let lost = |_| async { Err(Failure::in_doubt("the connection was reset")) };
    /// ledger.call(intent.clone()).run(lost).await.unwrap_err();
    ///
    /// // The retry asks the probe instead of charging again.
    /// let found = Outcome::with_effect(onceward::Effect::Created);
    /// let retry = ledger.call(intent).probe(|_| std::future::ready(ProbeAnswer::Yes(found.clone())));
    /// assert!(retry.run(|_| async { unreachable!("it has happened") }).await?.replayed());
    /// # Ok::<(), onceward::Error>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn call(&self, intent: Intent) -> Call<'_> {
        Call::new(self, self.keyed(intent))
    }

    /// What a call would do, without running or writing anything.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use onceward::{Decision, Ledger, ManualClock, MemoryStore, Operation};
    ///
    /// # pollster::block_on(async {
    /// let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0))));
    /// let intent = ledger.intent(Operation::new("charge").key("order-7"))?;
    /// assert_eq!(ledger.plan(&intent).await?.decision, Decision::Start { attempt: 1 });
    /// # Ok::<(), onceward::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn plan(&self, intent: &Intent) -> Result<Plan, Error> {
        // A read runs every time, even if a record exists.
        if intent.terms.class == Class::Read {
            return Ok(Plan { decision: Decision::Start { attempt: 1 }, record: None });
        }
        let keyed = self.keyed_form(intent);
        let record = self.store.load(&keyed.id).await?;
        let (intent, mut record) = self.bound_by_word(&keyed, record).await?;
        let intent = &intent;
        let now_ms = self.now_ms();
        if let Some(known) = self.known_otherwise(record.as_deref(), intent, now_ms) {
            record = Some(Arc::new(known));
        }
        let mut liveness = self.liveness(record.as_deref()).await?;
        loop {
            let decision = decide::begin(record.as_deref(), intent, liveness, now_ms);
            match (&decision, &record) {
                // A real call would record the doubt and decide again.
                (Decision::Doubt, Some(seen)) if seen.state == State::Running => {
                    record = Some(Arc::new(transition::doubt(seen, liveness, now_ms)));
                    liveness = Liveness::Gone;
                }
                (Decision::Start { .. }, _) if intent.undoes.is_none() => {
                    let decision = match self.barrier_of(&intent.scope).await? {
                        Some(barrier) => Decision::Refuse(stopped(barrier, record.as_deref())),
                        None => decision,
                    };
                    return Ok(Plan { decision, record });
                }
                _ => return Ok(Plan { decision, record }),
            }
        }
    }

    /// Records the intent, unless the operation is done, running, or must not run.
    ///
    /// # Errors
    /// Every refusal in the contract. Nothing was run.
    pub async fn begin(&self, intent: &Intent) -> Result<Begun, Error> {
        // This caller does not report its dispatch, so a crash leaves the operation in doubt.
        self.begin_with(&self.keyed_form(intent), Inherit::No, Dispatch::Begun, None).await
    }

    /// The same for a caller that reports its dispatch with [`Attempt::dispatch`]: if its owner ends before that,
    /// there was certainly no effect.
    ///
    /// # Errors
    /// Every refusal in the contract. Nothing was run.
    pub async fn begin_undispatched(&self, intent: &Intent) -> Result<Begun, Error> {
        self.begin_with(&self.keyed_form(intent), Inherit::No, Dispatch::NotYet, None).await
    }

    /// The record of an operation that may have happened during the time that a restore lost; it is in doubt.
    fn doubt_after_restore(&self, found: Option<&Record>, intent: &Intent, now_ms: i64) -> Option<Record> {
        let fence = self.store.identity().fence.as_ref()?;
        fence.covers(found, now_ms).then(|| transition::lost(found, intent, fence, now_ms))
    }

    /// The record of an operation about which more is known than its own record says: a restore may have lost it, or
    /// someone's word about an equal operation answers a new key.
    fn known_otherwise(&self, found: Option<&Record>, intent: &Intent, now_ms: i64) -> Option<Record> {
        let lost = self.doubt_after_restore(found, intent, now_ms);
        lost.or_else(|| match (found, &intent.answered_by) {
            (None, Some(by)) => Some(transition::answered(intent, by, now_ms)),
            (Some(_), _) | (None, None) => None,
        })
    }

    /// A stored record as it counts since a restore: in doubt, if it may be outdated, even though no call has recorded
    /// that yet. Everything that reads records sees them like this.
    pub(crate) fn through_fence(&self, record: Record) -> Record {
        match self.store.identity().fence.as_ref() {
            // The event of a webhook is not an attempt at anything.
            _ if record.kind != Kind::Operation => record,
            Some(fence) if fence.covers(Some(&record), self.now_ms()) => transition::outdated(&record, fence),
            Some(_) | None => record,
        }
    }

    pub(crate) async fn begin_with(
        &self,
        intent: &Intent,
        inherit: Inherit,
        dispatch: Dispatch,
        probe: Option<&call::Probe<'_>>,
    ) -> Result<Begun, Error> {
        let wait_until = transition::later(self.now_ms(), intent.terms.wait_ms);
        let (mut poll_ms, mut refused) = (*POLL_MS.start(), RefusedInserts::default());
        self.withdraw_unanswered().await?;
        let found = self.store.load_cached(&intent.id).await?;
        let (intent, found) = &self.bound_by_word(intent, found).await?;
        let mut seen = Some(found.clone());
        loop {
            let found = match seen.take() {
                Some(found) => found,
                None => self.store.load(&intent.id).await?,
            };
            let now_ms = self.now_ms();
            if let Some(known) = self.known_otherwise(found.as_deref(), intent, now_ms) {
                self.note_known(found.as_deref(), known, intent).await?;
                continue;
            }
            let liveness = self.liveness(found.as_deref()).await?;
            let (mut decision, mut denied) =
                (decide::begin(found.as_deref(), intent, liveness, now_ms), None);
            if let (Decision::Probe, Some(record)) = (&decision, &found) {
                match self.ask(record, intent, liveness, probe).await? {
                    Some(answered) => (decision, denied) = answered,
                    None => continue,
                }
            }
            match (decision, found) {
                (Decision::Start { .. }, found) => {
                    match self.claim(denied.as_ref().or(found.as_deref()), intent, inherit, dispatch).await? {
                        ClaimResult::Written(claim) => return self.begun(claim, intent).await,
                        ClaimResult::Conflict(None) if found.is_none() => refused.again()?,
                        ClaimResult::Conflict(found) => seen = found.map(Some),
                        ClaimResult::Stopped(barrier) => return Err(stopped_error(barrier, found)),
                    }
                }
                (Decision::Hold, found) => match self.hold(found.as_deref(), intent, now_ms).await? {
                    Some(found) => seen = Some(Some(found)),
                    None => refused.again()?,
                },
                (Decision::Held, Some(record)) => return Err(Error::Held { record }),
                (Decision::Replay, Some(record)) => return self.replay(record),
                (Decision::ReplayFailure, Some(record)) => return Err(self.replay_failure(record)),
                (Decision::Wait, Some(record)) => {
                    let left_ms = u64::try_from(wait_until.saturating_sub(now_ms)).unwrap_or(0);
                    if left_ms == 0 {
                        return Err(Error::InProgress { record, ran: Ran::No });
                    }
                    let slice_ms = self.slice_ms(&record, now_ms, &mut poll_ms);
                    self.store.changed(&record.id, record.version, slice_ms.min(left_ms)).await;
                }
                (Decision::Doubt | Decision::Probe, Some(record)) => {
                    let next = transition::doubt(&record, liveness, now_ms);
                    self.store.swap(Some(record.version), next, self.mode).await?;
                }
                (Decision::Refuse(refusal), Some(record)) => {
                    return Err(self.refused(refusal, record, intent, denied));
                }
                (
                    Decision::Held
                    | Decision::Replay
                    | Decision::ReplayFailure
                    | Decision::Wait
                    | Decision::Doubt
                    | Decision::Probe
                    | Decision::Refuse(_),
                    None,
                ) => unreachable!("only a start or a hold is decided on nothing"),
            }
        }
    }

    /// The stored result of an operation that is done.
    fn replay(&self, record: Arc<Record>) -> Result<Begun, Error> {
        let record = require_readable(record)?;
        self.store.tally_replay(&record.id);
        Ok(Begun::Replay(Receipt::new(record, Ran::No)))
    }

    /// The stored failure of an operation.
    fn replay_failure(&self, record: Arc<Record>) -> Error {
        self.store.tally_replay(&record.id);
        let reason = record.reason().unwrap_or("it failed").to_owned();
        Error::Failed { record, reason, ran: Ran::No }
    }

    /// How long to wait before polling another caller's attempt again.
    fn slice_ms(&self, record: &Record, now_ms: i64, poll_ms: &mut u64) -> u64 {
        match self.store.watch() {
            LivenessSource::Kernel => {
                let slice = *poll_ms;
                *poll_ms = (*poll_ms * 2).min(*POLL_MS.end());
                slice
            }
            LivenessSource::Lease => {
                let until = record.detail.owner.map_or(now_ms, |owner| owner.lease_until_ms);
                u64::try_from(until - now_ms).unwrap_or(0).max(1)
            }
        }
    }

    /// Asks the probe and returns the decision that follows from its answer, with the record as it counts after a
    /// "no"; or `None` if the answer settled the doubt.
    async fn ask(
        &self,
        record: &Arc<Record>,
        intent: &Intent,
        liveness: Liveness,
        probe: Option<&call::Probe<'_>>,
    ) -> Result<Option<(Decision, Option<Record>)>, Error> {
        let answer = match probe {
            Some(probe) => probe(Arc::clone(record)).await,
            None => ProbeAnswer::CannotTell("there is no probe to ask".to_owned()),
        };
        let now_ms = self.now_ms();
        match answer {
            ProbeAnswer::Yes(outcome) => {
                let outcome = intent.terms.redact.outcome(outcome);
                self.settle_by_probe(record, liveness, Verdict::Done, outcome).await?;
                Ok(None)
            }
            ProbeAnswer::No => {
                let decision = decide::after_probe_no(record, intent, now_ms);
                if decision == Decision::Refuse(Refusal::Cancelled) {
                    self.settle_by_probe(record, liveness, Verdict::Failed, Outcome::because(None)).await?;
                    return Ok(None);
                }
                Ok(Some((decision, Some(transition::denied(record, now_ms)))))
            }
            ProbeAnswer::CannotTell(_) => Ok(Some((decide::stay_in_doubt(record), None))),
        }
    }

    /// Writes what the probe said. After a conflict the caller decides again.
    async fn settle_by_probe(
        &self,
        record: &Record,
        liveness: Liveness,
        verdict: Verdict,
        outcome: Outcome,
    ) -> Result<(), Error> {
        let settled = transition::settle(record, liveness, verdict, Word::probe(), outcome, self.now_ms());
        if let Some(next) = settled {
            self.store.swap(Some(record.version), next, self.mode).await?;
        }
        Ok(())
    }

    /// Writes the next attempt.
    async fn claim(
        &self,
        found: Option<&Record>,
        intent: &Intent,
        inherit: Inherit,
        dispatch: Dispatch,
    ) -> Result<ClaimResult, Error> {
        // Take the lock first, so that any process that sees the record also sees its owner alive.
        let lock: Arc<dyn OwnerLock> = self.store.hold(inherit)?.into();
        // Until the work reports its dispatch, a crash certainly had no effect.
        if dispatch == Dispatch::NotYet {
            lock.note_dispatch(Dispatch::NotYet)?;
        }
        let now_ms = self.now_ms();
        let owner =
            Owner { token: lock.token(), lease_until_ms: transition::later(now_ms, intent.terms.lease_ms) };
        let record = transition::start(found, intent, owner, now_ms);
        let attempt = record.attempt;
        let expected = found.map(|found| found.version);
        let begun = match &intent.undoes {
            None => self.store.begin(expected, record, self.mode).await,
            // A compensation takes back what the stopped run did, so no barrier refuses it.
            Some(_) => self.store.swap(expected, record, self.mode).await.map(Begin::Swapped),
        };
        let (seen, lost) = match begun {
            Ok(Begin::Swapped(Swap::Written(record))) => (Some(record), None),
            Ok(Begin::Swapped(Swap::Conflict(found))) => (found, None),
            Ok(Begin::Stopped(barrier)) => return Ok(ClaimResult::Stopped(barrier)),
            // Perhaps only the reply was lost, so read the record again.
            Err(error) => match self.store.load(&intent.id).await {
                Ok(seen) => (seen, Some(error)),
                Err(_) => {
                    // The intent may be written now or later, but nothing will be dispatched for it.
                    self.unanswered.note(intent.id.clone(), owner.token);
                    (None, Some(error))
                }
            },
        };
        // If the record holds our lock token, our write succeeded, even if the reply was lost.
        let mine = |seen: &Record| seen.attempt == attempt && seen.detail.owner == Some(owner);
        match (seen, lost) {
            (Some(record), _) if mine(&record) && record.state == State::Running => {
                let claim = Claim::new(self.clone(), record, lock, &intent.terms);
                Ok(ClaimResult::Written(claim))
            }
            // The reply was lost for so long that another caller presumed this owner dead. That caller may act on
            // the doubt, so nothing is dispatched: withdraw the intent, and decide again.
            (Some(record), _) if mine(&record) => {
                self.unanswered.note(intent.id.clone(), owner.token);
                self.withdraw_unanswered().await?;
                Ok(ClaimResult::Conflict(None))
            }
            (_, Some(error)) => Err(error.into()),
            (seen, None) => Ok(ClaimResult::Conflict(seen)),
        }
    }

    pub(crate) async fn liveness(&self, record: Option<&Record>) -> Result<Liveness, StoreError> {
        match record {
            Some(Record { state: State::Running | State::InDoubt, detail, .. }) => match &detail.owner {
                Some(owner) if owner.is_leased() => Ok(Liveness::Unknown),
                Some(owner) => self.store.liveness(owner).await,
                None => Ok(Liveness::Gone),
            },
            Some(_) | None => Ok(Liveness::Gone),
        }
    }

    pub(crate) fn now_ms(&self) -> i64 {
        self.store.clock().now_ms()
    }

    /// The store's time, in milliseconds since 1970.
    #[must_use]
    pub fn clock_ms(&self) -> i64 {
        self.now_ms()
    }

    /// The store's clock, for whatever decides by time about the operations of this ledger.
    #[must_use]
    pub fn clock(&self) -> &dyn Clock {
        self.store.clock()
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.store
    }
}

/// Counts how often a store has refused a new record and then had none with that id.
#[derive(Default)]
struct RefusedInserts(u32);

impl RefusedInserts {
    /// Counts one more, and gives up when another process cannot have deleted the record every time.
    fn again(&mut self) -> Result<(), StoreError> {
        self.0 += 1;
        if self.0 < MOST_REFUSED {
            return Ok(());
        }
        Err(StoreError::Unusable {
            what: "the ledger does not write a new record, although it has none with that id; does a trigger or a rule \
                   of its server suppress writes?"
                .to_owned(),
        })
    }
}

/// Returns the record if its result can be read.
pub(crate) fn require_readable(record: Arc<Record>) -> Result<Arc<Record>, Error> {
    Error::of_result(&record).map_or(Ok(record), Err)
}

impl Record {
    /// Why it ended as it did, if a reason was given.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.outcome.as_ref()?.reason()
    }
}
