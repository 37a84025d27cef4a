//! The synchronous interface: the same ledger for threads that may block, without a runtime.

use std::sync::Arc;

use super::{
    Begun, Call, Cancelled, Edited, Imported, Lease, Ledger, Left, Occurrences, Plan, Receipt, Resumed,
    Stopped, SweepReport, ToUndo, UndoStart, Undoing, Wanted,
};
use crate::attempt::{Attempt, Done, Failure};
use crate::barrier::Barrier;
use crate::error::Error;
use crate::facts::{Ending, RepeatRule, Verdict};
use crate::identity::Identity;
use crate::key::OperationId;
use crate::operation::{Intent, Operation};
use crate::policy::{Hold, Terms};
use crate::record::{Outcome, Record, State, Verification};
use crate::settlement::Settlement;
use crate::store::{Clock, Counts, Filter, Listed, LivenessSource};
use crate::undo::{UndoLine, UndoOutcome, UndoStep};
use crate::word::Word;

/// A ledger for threads that may block.
///
/// It has every method of [`Ledger`], as a plain function. [`Blocking::wait_for`] drives the futures of other types,
/// such as [`Claim::finish`](crate::Claim::finish).
///
/// ```
/// use std::sync::Arc;
/// use onceward::{Ledger, ManualClock, MemoryStore, Operation, State};
///
/// let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0)))).blocking();
/// let receipt = ledger.run(Operation::new("ship"), |attempt| Ok(attempt.dispatch()?.created(&"parcel 7")))?;
/// let (_, state) = ledger.find(&receipt.record().id)?;
/// assert_eq!(state, State::Done);
/// # Ok::<(), onceward::Error>(())
/// ```
#[derive(Clone)]
pub struct Blocking {
    ledger: Ledger,
}

impl Blocking {
    pub(super) fn new(ledger: Ledger) -> Self {
        Self { ledger }
    }

    /// The async ledger.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Drives a future to completion on this thread.
    pub fn wait_for<T>(&self, future: impl Future<Output = T>) -> T {
        pollster::block_on(future)
    }

    /// Executes the operation once, or replays its stored result.
    ///
    /// # Errors
    /// Each says whether the effect happened: see [`Error::code`].
    pub fn run<F>(&self, operation: Operation, act: F) -> Result<Receipt, Error>
    where
        F: FnMut(Attempt) -> Result<Done, Failure> + Send,
    {
        self.run_call(self.call(self.intent(operation)?), act)
    }

    /// The same for a call with a probe, a check or other options. It is the blocking form of [`Call::run`].
    ///
    /// # Errors
    /// Each says whether the effect happened: see [`Error::code`].
    pub fn run_call<F>(&self, call: Call<'_>, mut act: F) -> Result<Receipt, Error>
    where
        F: FnMut(Attempt) -> Result<Done, Failure> + Send,
    {
        let lease_ms = call.lease_ms();
        pollster::block_on(call.run(|attempt| {
            std::future::ready(match self.ledger.store().watch() {
                LivenessSource::Kernel => act(attempt),
                LivenessSource::Lease => self.with_renewal(&attempt.clone(), lease_ms, || act(attempt)),
            })
        }))
    }

    /// Expires results, deletes old tombstones, and marks attempts without a live owner as in doubt: see
    /// [`Ledger::sweep`].
    ///
    /// # Errors
    /// When the ledger cannot be read or written.
    pub fn sweep(&self, step: impl FnMut(SweepReport)) -> Result<SweepReport, Error> {
        self.wait_for(self.ledger.sweep(step))
    }

    /// The same ledger for maintenance work: see [`Ledger::patient`].
    #[must_use]
    pub fn patient(&self) -> Self {
        Self::new(self.ledger.patient())
    }

    /// Runs `work` on this thread while another thread renews the lease.
    fn with_renewal<T>(&self, attempt: &Attempt, lease_ms: u64, work: impl FnOnce() -> T) -> T {
        let _kept = self.ledger.renewals.keep(&self.ledger, attempt, lease_ms);
        work()
    }
}

/// Methods of [`Ledger`] that need no waiting.
macro_rules! same {
    ($($name:ident($($argument:ident: $type:ty),*) -> $output:ty;)*) => {
        impl Blocking {
            $(
                #[doc = concat!("See [`Ledger::", stringify!($name), "`].")]
                #[must_use]
                pub fn $name(&self, $($argument: $type),*) -> $output {
                    self.ledger.$name($($argument),*)
                }
            )*
        }
    };
}

/// The blocking forms of async methods of [`Ledger`]. `architecture.rs` checks that none is missing.
macro_rules! blocking {
    ($($name:ident($($argument:ident: $type:ty),*) -> $output:ty;)*) => {
        impl Blocking {
            $(
                #[doc = concat!("The blocking form of [`Ledger::", stringify!($name), "`].")]
                ///
                /// # Errors
                /// The errors of the async form.
                pub fn $name(&self, $($argument: $type),*) -> Result<$output, Error> {
                    self.wait_for(self.ledger.$name($($argument),*))
                }
            )*
        }
    };
}

same! {
    watch() -> LivenessSource;
    identity() -> &Identity;
    clock_ms() -> i64;
    clock() -> &dyn Clock;
    keyed(intent: Intent) -> Intent;
    call(intent: Intent) -> Call<'_>;
    held_intent(record: &Record, terms: Terms) -> Intent;
    lease(attempt: &Attempt, lease_ms: u64) -> Option<Lease>;
    lease_of(record: &Arc<Record>, attempt: u32, lease_ms: u64) -> Option<Lease>;
}

impl Blocking {
    /// See [`Ledger::intent`].
    ///
    /// # Errors
    /// [`Error::Invalid`] with every problem at once, or [`Error::KeyMissing`].
    pub fn intent(&self, operation: Operation) -> Result<Intent, Error> {
        self.ledger.intent(operation)
    }
}

blocking! {
    plan(intent: &Intent) -> Plan;
    note_lost(intent: &Intent) -> ();
    begin(intent: &Intent) -> Begun;
    replay_cached(intent: &Intent) -> Option<Receipt>;
    begin_undispatched(intent: &Intent) -> Begun;
    finish_attempt(id: &OperationId, attempt: u32, ending: &Ending) -> Arc<Record>;
    renew_attempt(id: &OperationId, attempt: u32, token: u64, lease_ms: u64) -> Arc<Record>;
    stage(intent: &Intent) -> Arc<Record>;
    find(id: &OperationId) -> (Arc<Record>, State);
    list(filter: &Filter) -> Vec<(Listed, State)>;
    lookup(word: &str, scope: Option<&str>, limit: usize) -> Vec<Listed>;
    totals(filter: &Filter) -> Counts;
    counts() -> Counts;
    wait(id: &OperationId, timeout_ms: u64) -> (Arc<Record>, State);
    settle(id: &OperationId, verdict: Verdict, word: Word, outcome: Outcome) -> Arc<Record>;
    settle_attempt(
        id: &OperationId,
        attempt: u32,
        verdict: Verdict,
        word: Word,
        outcome: Outcome
    ) -> Arc<Record>;
    note_doubt(id: &OperationId) -> Arc<Record>;
    record_verification(id: &OperationId, verification: Verification, reason: Option<String>) -> Arc<Record>;
    note_delivery(known: &Arc<Record>, counts_from_ms: i64) -> Arc<Record>;
    take_delivery_back(id: &OperationId) -> Arc<Record>;
    cancel(id: &OperationId, word: &Word) -> Cancelled;
    held(scope: Option<&str>) -> Vec<Record>;
    release(id: &OperationId, word: &Word) -> Arc<Record>;
    edit(id: &OperationId, replacement: Operation, hold: Option<Hold>) -> Edited;
    stop(scope: &str, word: &Word) -> Stopped;
    wait_for_scope(scope: &str, timeout_ms: u64) -> Vec<OperationId>;
    resume(scope: &str, word: &Word) -> Option<Resumed>;
    barriers() -> Vec<Barrier>;
    settlement(scope: &str) -> Settlement;
    settlement_between(scope: &str, since_ms: Option<i64>, until_ms: Option<i64>) -> Settlement;
    forget(id: &OperationId) -> Arc<Record>;
    import(record: Record) -> Imported;
    undo_plan(scope: &str, since: Option<&OperationId>) -> Vec<UndoStep>;
    to_undo(id: &OperationId) -> ToUndo;
    scope_to_undo(scope: &str, since: Option<&OperationId>) -> Vec<ToUndo>;
    start_undo(planned: &ToUndo, compensation: Operation) -> UndoStart;
    finish_undo(planned: &ToUndo, undoing: &Undoing, outcome: UndoOutcome) -> UndoLine;
    begin_undo(id: &OperationId, compensation: Operation) -> Undoing;
    end_undo(undoing: &Undoing, outcome: &UndoOutcome) -> Arc<Record>;
    sweep_some() -> (SweepReport, Left);
    record_doubts() -> u64;
    wanted(operation: Operation) -> Wanted;
    wanted_by_content(action: Intent) -> Wanted;
    identified(intent: Intent, rule: RepeatRule) -> Wanted;
    free_label(action: &Intent) -> String;
    occurrences(action: &Intent) -> Occurrences;
}
