//! The ledger: the whole loop of begin, execute and finish over any [`Store`].

mod adopt;
mod call;
mod claim;
mod lookup;
mod repeat;
mod tend;

use std::sync::Arc;

pub use adopt::Adopted;
pub use call::{Call, ProbeAnswer};
pub use claim::{Claim, Lease};
pub use repeat::{Found, RepeatRule, Wanted};
pub use tend::{Cancelled, Swept};

use crate::attempt::{Attempt, Done, Failure};
use crate::blocking::Blocking;
use crate::decide::{self, Decision, Liveness, Refusal};
use crate::error::{Error, Ran, clipped};
use crate::key::OperationId;
use crate::operation::{Intent, Operation};
use crate::record::{Class, DoubleEffect, Effect, Outcome, Owner, Record, State, Verification};
use crate::store::{Dispatch, Door, Filter, Hold, Inherit, Listed, Store, StoreError, Swap, Watch};
use crate::transition::{self, Verdict};

/// How long to wait at first and at most between two looks at another's attempt, where the kernel says who lives.
const LOOK_MS: std::ops::RangeInclusive<u64> = 1..=20;

/// The ledger between intent and effect.
#[derive(Clone)]
pub struct Ledger {
    store: Arc<dyn Store>,
    door: Door,
}

/// What beginning an operation came to.
pub enum Begun {
    /// The intent is on disk: execute it, then finish the claim.
    Execute(Claim),
    /// It was done before: nothing is to be run.
    Replay(Receipt),
}

/// What writing the next attempt down came to.
enum Claimed {
    /// It is written.
    Mine(Claim),
    /// Another caller was faster; this is what stood in the way, where it could be seen.
    Others(Option<Arc<Record>>),
}

/// The proof that an operation is done.
#[derive(Debug, Clone)]
pub struct Receipt {
    record: Arc<Record>,
    ran: Ran,
}

/// What a call would come to. Nothing is written to find out.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What would be decided. Never [`Decision::Doubt`].
    pub decision: Decision,
    /// The record it would be decided on.
    pub record: Option<Arc<Record>>,
}

impl Ledger {
    /// A ledger on that store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, door: Door::Async }
    }

    /// The same ledger for threads that may block, with no runtime.
    #[must_use]
    pub fn blocking(&self) -> Blocking {
        Blocking::new(Self { store: Arc::clone(&self.store), door: Door::Blocking })
    }

    /// Lets the operation happen once: executes it, or replays its result.
    ///
    /// # Errors
    /// Each says whether the effect happened: see [`Error::code`].
    pub async fn run<F, W>(&self, operation: Operation, act: F) -> Result<Receipt, Error>
    where
        F: FnMut(Attempt) -> W,
        W: Future<Output = Result<Done, Failure>>,
    {
        self.call(operation.intent()?).run(act).await
    }

    /// The same, with a probe, a check, or more to say. The operation's identity is worked out already.
    #[must_use]
    pub fn call(&self, intent: Intent) -> Call<'_> {
        Call::new(self, intent)
    }

    /// What a call would come to, without running or writing anything.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn plan(&self, intent: &Intent) -> Result<Plan, Error> {
        // A read runs every time, whatever is recorded.
        if intent.terms.class == Class::Read {
            return Ok(Plan { decision: Decision::Start { attempt: 1 }, record: None });
        }
        let mut record = self.store.load(&intent.id).await?;
        let mut liveness = self.liveness(record.as_deref()).await?;
        let now_ms = self.now_ms();
        loop {
            let decision = decide::begin(record.as_deref(), intent, liveness, now_ms);
            match (&decision, &record) {
                // A real call would write the doubt down and decide again.
                (Decision::Doubt, Some(seen)) if seen.state == State::Running => {
                    record = Some(Arc::new(transition::doubt(seen, liveness, now_ms)));
                    liveness = Liveness::Gone;
                }
                _ => return Ok(Plan { decision, record }),
            }
        }
    }

    /// Writes the intent down, unless it was done, is being done, or must not be done.
    ///
    /// # Errors
    /// Every refusal of the contract. Nothing was run.
    pub async fn begin(&self, intent: &Intent) -> Result<Begun, Error> {
        // Nothing tells when this caller dispatches, so a crash leaves it in doubt.
        self.begin_with(intent, Inherit::No, Dispatch::Begun, None).await
    }

    pub(crate) async fn begin_with(
        &self,
        intent: &Intent,
        inherit: Inherit,
        dispatch: Dispatch,
        probe: Option<&call::Probe<'_>>,
    ) -> Result<Begun, Error> {
        let wait_until = transition::later(self.now_ms(), intent.terms.wait_ms);
        let mut look_ms = *LOOK_MS.start();
        let mut seen = Some(self.store.recall(&intent.id).await?);
        loop {
            let found = match seen.take() {
                Some(found) => found,
                None => self.store.load(&intent.id).await?,
            };
            let liveness = self.liveness(found.as_deref()).await?;
            let now_ms = self.now_ms();
            let mut decision = decide::begin(found.as_deref(), intent, liveness, now_ms);
            if let (Decision::Probe, Some(record)) = (&decision, &found) {
                match self.ask(record, intent, liveness, probe).await? {
                    Some(next) => decision = next,
                    None => continue,
                }
            }
            match (decision, found) {
                (Decision::Start { .. }, found) => {
                    match self.claim(found.as_deref(), intent, inherit, dispatch).await? {
                        Claimed::Mine(claim) => return Ok(Begun::Execute(claim)),
                        Claimed::Others(found) => seen = found.map(Some),
                    }
                }
                (Decision::Replay, Some(record)) => {
                    self.store.tally_replay(&record.id);
                    return Ok(Begun::Replay(Receipt { record, ran: Ran::No }));
                }
                (Decision::ReplayFailure, Some(record)) => {
                    self.store.tally_replay(&record.id);
                    let reason = record.reason().unwrap_or("it failed").to_owned();
                    return Err(Error::Failed { record, reason, ran: Ran::No });
                }
                (Decision::Wait, Some(record)) => {
                    let left_ms = u64::try_from(wait_until.saturating_sub(now_ms)).unwrap_or(0);
                    if left_ms == 0 {
                        return Err(Error::InProgress { record, ran: Ran::No });
                    }
                    let slice_ms = self.slice_ms(&record, now_ms, &mut look_ms);
                    self.store.changed(&record.id, record.version, slice_ms.min(left_ms)).await;
                }
                (Decision::Doubt | Decision::Probe, Some(record)) => {
                    let next = transition::doubt(&record, liveness, now_ms);
                    self.store.swap(Some(record.version), next, self.door).await?;
                }
                (Decision::Refuse(refusal), Some(record)) => return Err(refused(refusal, record, intent)),
                (
                    Decision::Replay
                    | Decision::ReplayFailure
                    | Decision::Wait
                    | Decision::Doubt
                    | Decision::Probe
                    | Decision::Refuse(_),
                    None,
                ) => unreachable!("only a start is decided on nothing"),
            }
        }
    }

    /// How long to wait before looking at another's attempt again.
    fn slice_ms(&self, record: &Record, now_ms: i64, look_ms: &mut u64) -> u64 {
        match self.store.watch() {
            Watch::Kernel => {
                let slice = *look_ms;
                *look_ms = (*look_ms * 2).min(*LOOK_MS.end());
                slice
            }
            Watch::Lease => {
                let until = record.detail.owner.map_or(now_ms, |owner| owner.lease_until_ms);
                u64::try_from(until - now_ms).unwrap_or(0).max(1)
            }
        }
    }

    /// Asks the probe and gives the decision after its answer, or `None` when it has settled the matter.
    async fn ask(
        &self,
        record: &Arc<Record>,
        intent: &Intent,
        liveness: Liveness,
        probe: Option<&call::Probe<'_>>,
    ) -> Result<Option<Decision>, Error> {
        let answer = match probe {
            Some(probe) => probe(Arc::clone(record)).await,
            None => ProbeAnswer::CannotTell("there is no probe to ask".to_owned()),
        };
        let now_ms = self.now_ms();
        match answer {
            ProbeAnswer::Yes(outcome) => {
                let outcome = Outcome { settled_by: Some("probe".to_owned()), ..outcome };
                if let Some(next) = transition::settle(record, liveness, Verdict::Done, outcome, now_ms) {
                    self.store.swap(Some(record.version), next, self.door).await?;
                }
                Ok(None)
            }
            ProbeAnswer::No => Ok(Some(decide::after_probe_no(record, intent, now_ms))),
            ProbeAnswer::CannotTell(_) => Ok(Some(decide::stay_in_doubt(record))),
        }
    }

    /// Writes the next attempt down.
    async fn claim(
        &self,
        found: Option<&Record>,
        intent: &Intent,
        inherit: Inherit,
        dispatch: Dispatch,
    ) -> Result<Claimed, Error> {
        // The lock comes first: whoever sees the record sees its owner alive.
        let hold: Arc<dyn Hold> = self.store.hold(inherit)?.into();
        // Until the work says that it dispatches, a crash is certain to have had no effect.
        if dispatch == Dispatch::NotYet {
            hold.note_dispatch(Dispatch::NotYet)?;
        }
        let now_ms = self.now_ms();
        let owner =
            Owner { token: hold.token(), lease_until_ms: transition::later(now_ms, intent.terms.lease_ms) };
        let record = transition::start(found, intent, owner, now_ms);
        let attempt = record.attempt;
        let (seen, lost) = match self.store.swap(found.map(|found| found.version), record, self.door).await {
            Ok(Swap::Written(record)) => (Some(record), None),
            Ok(Swap::Conflict(found)) => (found, None),
            // Only the reply may have been lost, so a second look decides.
            Err(error) => (self.store.load(&intent.id).await.unwrap_or(None), Some(error)),
        };
        // Whoever finds his own lock in the record has written it, whatever he was told.
        let mine = |seen: &Record| seen.attempt == attempt && seen.detail.owner == Some(owner);
        match (seen, lost) {
            (Some(record), _) if mine(&record) => {
                let claim = Claim::new(self.clone(), record, hold, intent.terms.lease_ms);
                Ok(Claimed::Mine(claim))
            }
            (_, Some(error)) => Err(error.into()),
            (seen, None) => Ok(Claimed::Others(seen)),
        }
    }

    pub(crate) async fn liveness(&self, record: Option<&Record>) -> Result<Liveness, StoreError> {
        match record {
            Some(Record { state: State::Running | State::InDoubt, detail, .. }) => match &detail.owner {
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

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.store
    }
}

pub(crate) fn refused(refusal: Refusal, record: Arc<Record>, intent: &Intent) -> Error {
    match refusal {
        Refusal::KeyReused(fields) => Error::KeyReused { record, fields },
        Refusal::KeyExpired => Error::KeyExpired { record },
        Refusal::Cancelled => Error::Cancelled { record },
        Refusal::BudgetExhausted => Error::BudgetExhausted { record, limit: intent.terms.max_attempts },
        Refusal::InDoubt => in_doubt(record),
    }
}

/// The answer to a call that finds its operation in doubt.
pub(crate) fn in_doubt(record: Arc<Record>) -> Error {
    let refuted = record.outcome.as_ref().is_some_and(|o| o.verified == Some(Verification::Refuted));
    let why = record.reason().unwrap_or("it gave no answer");
    if refuted {
        return Error::Unverified { reason: why.to_owned(), record, ran: Ran::No };
    }
    let reason = format!(
        "attempt {} is in doubt: {}. It may have taken effect; nothing was run",
        record.attempt,
        clipped(why)
    );
    Error::InDoubt { record, reason, ran: Ran::No }
}

impl Receipt {
    pub(crate) fn new(record: Arc<Record>, ran: Ran) -> Self {
        Self { record, ran }
    }

    /// The record behind it.
    #[must_use]
    pub fn record(&self) -> &Arc<Record> {
        &self.record
    }

    /// Whether this call ran the operation.
    #[must_use]
    pub fn ran(&self) -> Ran {
        self.ran
    }

    /// Whether this is the stored result of an earlier call: this one ran nothing.
    #[must_use]
    pub fn replayed(&self) -> bool {
        self.ran == Ran::No
    }

    /// What this call did to the world: nothing, where it is a replay.
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self.ran {
            Ran::No => Effect::Noop,
            Ran::Yes => self.original_effect(),
        }
    }

    /// What the operation did when it was done.
    #[must_use]
    pub fn original_effect(&self) -> Effect {
        self.record.outcome.as_ref().and_then(|outcome| outcome.effect).unwrap_or(Effect::Updated)
    }

    /// The stored result as JSON text, byte for byte; `None` where there is none or it could not be kept.
    #[must_use]
    pub fn data(&self) -> Option<&str> {
        self.record.outcome.as_ref()?.data.as_ref().map(|data| data.get())
    }

    /// What a surface stored beside the result.
    #[must_use]
    pub fn body(&self) -> Option<&[u8]> {
        self.record.outcome.as_ref()?.body.as_deref()
    }

    /// The alarm, where more than one attempt had an effect.
    #[must_use]
    pub fn double_effect(&self) -> Option<DoubleEffect> {
        self.record.detail.double_effect
    }
}

impl Record {
    /// Why it ended as it did, where that was said.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.outcome.as_ref()?.reason.as_deref()
    }
}

impl Ledger {
    /// The record of that id, and where it really stands.
    ///
    /// # Errors
    /// [`Error::NotFound`], or the ledger cannot be read.
    pub async fn find(&self, id: &OperationId) -> Result<(Arc<Record>, State), Error> {
        let record = self.store.load(id).await?.ok_or_else(|| Error::NotFound { id: id.to_string() })?;
        let liveness = self.liveness(Some(&record)).await?;
        let state = decide::standing(&record, liveness, self.now_ms());
        Ok((record, state))
    }

    /// The records that the filter lets through, newest first, and where each really stands.
    ///
    /// The filter's states are those that records really have: a running one whose owner is gone is in doubt.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn list(&self, filter: &Filter) -> Result<Vec<(Listed, State)>, Error> {
        let mut written = filter.clone();
        // A record may still be written as what it was: running for in doubt or failed, in doubt for running (a process
        // that the attempt left behind holds its lock), and settled for expired.
        if filter.states.contains(&State::Running) {
            written.states.push(State::InDoubt);
        }
        if filter.states.contains(&State::InDoubt) || filter.states.contains(&State::Failed) {
            written.states.push(State::Running);
        }
        if filter.states.contains(&State::Expired) {
            written.states.extend([State::Done, State::Failed, State::Cancelled]);
        }
        let mut seen = Vec::new();
        loop {
            let page = self.store.list(&written).await?;
            let full = page.len() == written.limit;
            for listed in page {
                written.before = Some(listed.cursor);
                let liveness = self.liveness(Some(&listed.record)).await?;
                let state = decide::standing(&listed.record, liveness, self.now_ms());
                if filter.states.is_empty() || filter.states.contains(&state) {
                    seen.push((listed, state));
                }
            }
            if !full || seen.len() >= filter.limit {
                seen.truncate(filter.limit);
                return Ok(seen);
            }
        }
    }
}
