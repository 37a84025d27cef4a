//! The synchronous interface: the same ledger for threads that may block, without a runtime.

use std::sync::Arc;

use super::{
    Admin, Attempts, Begun, Call, Cancelled, Imported, Lease, Ledger, Left, Occurrences, Plan, Receipt,
    Repeats, Resumed, Scopes, Stopped, SweepReport, ToUndo, Undo, UndoStart, Undoing, Wanted,
};
use crate::attempt::{Attempt, Done, Failure};
use crate::barrier::Barrier;
use crate::error::Error;
use crate::facts::{Ending, RepeatRule, Verdict};
use crate::identity::Identity;
use crate::key::OperationId;
use crate::operation::{Intent, Operation};
use crate::policy::Terms;
use crate::record::{Outcome, Record, State, Verification};
use crate::settlement::Settlement;
use crate::store::{Clock, Counts, Filter, Listed, LivenessSource};
use crate::undo::{UndoLine, UndoOutcome, UndoStep};
use crate::word::Word;

/// A ledger for threads that may block.
///
/// It has every method of [`Ledger`] and of its handles, as plain functions. [`Blocking::wait_for`] drives the futures
/// of other types, such as [`Claim::finish`](crate::Claim::finish).
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

/// The blocking forms of the methods of [`Ledger`] and its handles. `architecture.rs` checks that none is missing.
macro_rules! blocking {
    ($of:literal, $type:ty, $inner:ident:
     now { $($now:ident($($n:ident: $n_type:ty),*) -> $n_output:ty;)* }
     waits { $($wait:ident($($w:ident: $w_type:ty),*) -> $w_output:ty;)* }) => {
        impl $type {
            $(
                #[doc = concat!("See [`", $of, "::", stringify!($now), "`](crate::", $of, "::", stringify!($now), ").")]
                #[must_use]
                pub fn $now(&self, $($n: $n_type),*) -> $n_output {
                    self.$inner.$now($($n),*)
                }
            )*
            $(
                #[doc = concat!("The blocking form of [`", $of, "::", stringify!($wait), "`](crate::", $of, "::",
                                stringify!($wait), ").")]
                ///
                /// # Errors
                /// The errors of the async form.
                pub fn $wait(&self, $($w: $w_type),*) -> Result<$w_output, Error> {
                    pollster::block_on(self.$inner.$wait($($w),*))
                }
            )*
        }
    };
}

/// The blocking form of a handle.
macro_rules! handle {
    ($accessor:ident, $handle:ident, $blocking:ident, $of:literal: $($methods:tt)*) => {
        #[doc = concat!("The blocking form of [`", $of, "`](crate::", $of, ").")]
        #[derive(Clone, Copy)]
        pub struct $blocking<'a> {
            handle: $handle<'a>,
        }

        impl Blocking {
            #[doc = concat!("See [`Ledger::", stringify!($accessor), "`].")]
            #[must_use]
            pub fn $accessor(&self) -> $blocking<'_> {
                $blocking { handle: self.ledger.$accessor() }
            }
        }

        blocking!($of, $blocking<'_>, handle: $($methods)*);
    };
}

blocking!("Ledger", Blocking, ledger:
    now {
        watch() -> LivenessSource;
        identity() -> &Identity;
        clock_ms() -> i64;
        clock() -> &dyn Clock;
        keyed(intent: Intent) -> Intent;
        call(intent: Intent) -> Call<'_>;
    }
    waits {
        plan(intent: &Intent) -> Plan;
        begin(intent: &Intent) -> Begun;
        begin_undispatched(intent: &Intent) -> Begun;
        find(id: &OperationId) -> (Arc<Record>, State);
        list(filter: &Filter) -> Vec<(Listed, State)>;
        wait(id: &OperationId, timeout_ms: u64) -> (Arc<Record>, State);
    }
);

impl Blocking {
    /// See [`Ledger::intent`].
    ///
    /// # Errors
    /// [`Error::Invalid`] with every problem at once, or [`Error::KeyMissing`].
    pub fn intent(&self, operation: Operation) -> Result<Intent, Error> {
        self.ledger.intent(operation)
    }
}

handle!(repeats, Repeats, BlockingRepeats, "Repeats":
    now {}
    waits {
        wanted(operation: Operation) -> Wanted;
        wanted_by_content(action: Intent) -> Wanted;
        identified(intent: Intent, rule: RepeatRule) -> Wanted;
        free_label(action: &Intent) -> String;
        occurrences(action: &Intent) -> Occurrences;
    }
);

handle!(attempts, Attempts, BlockingAttempts, "Attempts":
    now {
        lease(attempt: &Attempt, lease_ms: u64) -> Option<Lease>;
        lease_of(record: &Arc<Record>, attempt: u32, lease_ms: u64) -> Option<Lease>;
    }
    waits {
        replay_cached(intent: &Intent) -> Option<Receipt>;
        stage(intent: &Intent) -> Arc<Record>;
        finish(id: &OperationId, attempt: u32, ending: &Ending) -> Arc<Record>;
        renew(id: &OperationId, attempt: u32, token: u64, lease_ms: u64) -> Arc<Record>;
        settle(
            id: &OperationId,
            attempt: u32,
            verdict: Verdict,
            word: Word,
            outcome: Outcome
        ) -> Arc<Record>;
        note_doubt(id: &OperationId) -> Arc<Record>;
        note_lost(intent: &Intent) -> ();
        verified(id: &OperationId, verification: Verification, reason: Option<String>) -> Arc<Record>;
        delivered(known: &Arc<Record>, counts_from_ms: i64) -> Arc<Record>;
        not_delivered(id: &OperationId) -> Arc<Record>;
        refusal_delivered(error: &Error, window_ms: u64) -> ();
    }
);

handle!(admin, Admin, BlockingAdmin, "Admin":
    now {
        held_intent(record: &Record, terms: Terms) -> Intent;
    }
    waits {
        settle(id: &OperationId, verdict: Verdict, word: Word, outcome: Outcome) -> Arc<Record>;
        cancel(id: &OperationId, word: &Word) -> Cancelled;
        held(scope: Option<&str>) -> Vec<Record>;
        release(id: &OperationId, word: &Word) -> Arc<Record>;
        forget(id: &OperationId) -> Arc<Record>;
        import(record: Record) -> Imported;
        lookup(word: &str, scope: Option<&str>, limit: usize) -> Vec<Listed>;
        totals(filter: &Filter) -> Counts;
        counts() -> Counts;
        sweep(step: impl FnMut(SweepReport)) -> SweepReport;
        sweep_some() -> (SweepReport, Left);
        record_doubts() -> u64;
    }
);

handle!(scopes, Scopes, BlockingScopes, "Scopes":
    now {}
    waits {
        stop(scope: &str, word: &Word) -> Stopped;
        wait(scope: &str, timeout_ms: u64) -> Vec<OperationId>;
        resume(scope: &str, word: &Word) -> Option<Resumed>;
        stopped() -> Vec<Barrier>;
        settlement(scope: &str) -> Settlement;
        settlement_between(scope: &str, since_ms: Option<i64>, until_ms: Option<i64>) -> Settlement;
    }
);

handle!(undo, Undo, BlockingUndo, "Undo":
    now {}
    waits {
        plan(scope: &str, since: Option<&OperationId>) -> Vec<UndoStep>;
        of(id: &OperationId) -> ToUndo;
        of_scope(scope: &str, since: Option<&OperationId>) -> Vec<ToUndo>;
        start(planned: &ToUndo, compensation: Operation) -> UndoStart;
        finish(planned: &ToUndo, undoing: &Undoing, outcome: UndoOutcome) -> UndoLine;
        begin(id: &OperationId, compensation: Operation) -> Undoing;
        end(undoing: &Undoing, outcome: &UndoOutcome) -> Arc<Record>;
    }
);
