//! Record and effect in one transaction, for effects in the caller's own database. Pure: a back end reads the record,
//! calls these functions, and writes what they return.
//!
//! The intent, the effect and its ending are committed together or not at all, so nothing is ever in doubt: a caller
//! that is cut off repeats the call and finds either the result or nothing. A second caller blocks on the uncommitted
//! record of the first until that transaction ends. No other locking is needed.

use std::sync::Arc;

use crate::attempt::{Dispatched, Done, Failure};
use crate::barrier::Barrier;
use crate::decide::{self, Decision};
use crate::error::Error;
use crate::evidence::Evidence;
use crate::facts::{Ending, Liveness, Ran};
use crate::invalid::InvalidInput;
use crate::ledger::{Receipt, in_doubt_error, refusal_error, require_readable, stopped_error};
use crate::operation::Intent;
use crate::record::{Owner, Record};
use crate::redact::Redaction;
use crate::transition;

/// What a call must do.
#[expect(clippy::large_enum_variant, reason = "it is looked at once and never kept")]
pub enum Step {
    /// Write this record in place of `found`, then execute.
    Execute {
        /// The version of the record that it replaces.
        expected: Option<u64>,
        /// The record of the attempt.
        record: Record,
    },
    /// The operation is already done: run nothing.
    Replay(Receipt),
}

/// Decides what a call with this intent must do.
///
/// # Errors
/// Every refusal in the contract. Nothing was run.
pub fn begin(found: Option<Arc<Record>>, intent: &Intent, now_ms: i64) -> Result<Step, Error> {
    let decision = decide::begin(found.as_deref(), intent, Liveness::Unknown, now_ms);
    match (decision, found) {
        (Decision::Start { .. }, found) => {
            // No other caller ever sees it running, so its owner needs no token.
            let lease_until_ms = transition::later(now_ms, intent.terms.lease_ms);
            let owner = Owner { token: 0, lease_until_ms };
            let record = transition::start(found.as_deref(), intent, owner, now_ms);
            Ok(Step::Execute { expected: found.map(|found| found.version), record })
        }
        (Decision::Replay, Some(record)) => {
            Ok(Step::Replay(Receipt::new(require_readable(record)?, Ran::No)))
        }
        (Decision::ReplayFailure, Some(record)) => {
            let reason = record.reason().unwrap_or("it failed").to_owned();
            Err(Error::Failed { record, reason, ran: Ran::No })
        }
        // A transaction has nothing that could be sent later, so it cannot be held.
        (Decision::Hold, _) => Err(InvalidInput::new(
            "the policy holds this operation, and an effect in the caller's own transaction cannot be held; \
             nothing was run",
        )
        .into()),
        (Decision::Held, Some(record)) => Err(Error::Held { record }),
        // Started by a non-transactional caller on the same ledger.
        (Decision::Wait, Some(record)) => Err(Error::InProgress { record, ran: Ran::No }),
        (Decision::Doubt | Decision::Probe, Some(record)) => Err(in_doubt_error(record)),
        (Decision::Refuse(refusal), Some(record)) => Err(refusal_error(refusal, record, intent)),
        // Without a record, the decision is always to start.
        (
            Decision::Held
            | Decision::Replay
            | Decision::ReplayFailure
            | Decision::Wait
            | Decision::Doubt
            | Decision::Probe
            | Decision::Refuse(_),
            None,
        ) => Err(Error::NotFound { id: intent.id.to_string() }),
    }
}

/// The error for an attempt that a barrier refused. `found` is the record that the decision was based on.
#[must_use]
pub fn stopped(barrier: Barrier, found: Option<Arc<Record>>) -> Error {
    stopped_error(barrier, found)
}

/// The token for an effect in the record's own transaction. There is no dispatch to record, because either both are
/// committed or neither is.
#[must_use]
pub fn dispatch() -> Dispatched {
    Dispatched::in_transaction()
}

/// The record of the finished attempt, to be written before the transaction is committed. `redact` are the operation's
/// own rules ([`Terms::redact`](crate::Terms::redact)).
#[must_use]
pub fn done(record: &Record, done: Done, redact: &Redaction, now_ms: i64) -> Record {
    finish(record, Ending::Done(done.outcome), redact, now_ms)
}

/// The same for any ending.
#[must_use]
pub fn finish(record: &Record, ending: Ending, redact: &Redaction, now_ms: i64) -> Record {
    transition::finish(record, record.attempt, redact.ending(ending), now_ms)
}

/// The receipt, once the transaction is committed.
#[must_use]
pub fn receipt(record: Record) -> Receipt {
    Receipt::new(Arc::new(record), Ran::Yes)
}

/// The failure of an effect in the record's own transaction, which is rolled back.
pub fn rolled_back(error: impl ToString) -> Failure {
    Failure::no_effect(Evidence::refused("the transaction was rolled back"), error)
}

/// The error for a failed effect, once the transaction is rolled back: nothing happened, and nothing is recorded.
#[must_use]
pub fn failed(record: Record, failure: Failure) -> Error {
    Error::Failed { record: Arc::new(record), reason: failure.reason, ran: Ran::Yes }
}

/// The error for a commit whose reply was lost. Repeating the call finds out what happened.
#[must_use]
pub fn unanswered(record: Record, source: impl std::fmt::Display) -> Error {
    let reason = format!(
        "the reply to the commit was lost ({source}); make the same call again to find out whether it was done"
    );
    Error::InDoubt { record: Arc::new(record), reason, ran: Ran::Yes }
}
