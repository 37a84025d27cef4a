//! Record and effect in one transaction, for effects in the caller's own database. Pure: a back end reads the record,
//! asks here, and writes what it is told.
//!
//! The intent, the effect and its ending are committed together or not at all, so nothing is ever in doubt: whoever is
//! cut off asks again, and finds either the result or nothing. A second caller meets the first one's uncommitted record
//! and waits for that transaction to end, which is all the locking there is.

use std::sync::Arc;

use crate::attempt::{Dispatched, Done, Failure};
use crate::decide::{self, Decision, Liveness};
use crate::error::{Error, Ran};
use crate::ledger::{Receipt, in_doubt, refused};
use crate::operation::Intent;
use crate::record::{Owner, Record};
use crate::transition::{self, Ending};

/// What a call comes to.
#[expect(clippy::large_enum_variant, reason = "it is looked at once and never kept")]
pub enum Step {
    /// Write this record first, in the place of `found`; then execute.
    Execute {
        /// The version of the record that it takes the place of.
        expected: Option<u64>,
        /// The record of the attempt.
        record: Record,
    },
    /// It was done before: nothing is to be run.
    Replay(Receipt),
}

/// Decides what a call with this intent gets.
///
/// # Errors
/// Every refusal of the contract. Nothing was run.
pub fn begin(found: Option<Arc<Record>>, intent: &Intent, now_ms: i64) -> Result<Step, Error> {
    let decision = decide::begin(found.as_deref(), intent, Liveness::Unknown, now_ms);
    match (decision, found) {
        (Decision::Start { .. }, found) => {
            // Nobody else ever sees it under way, so its owner needs no name.
            let lease_until_ms = transition::later(now_ms, intent.terms.lease_ms);
            let owner = Owner { token: 0, lease_until_ms };
            let record = transition::start(found.as_deref(), intent, owner, now_ms);
            Ok(Step::Execute { expected: found.map(|found| found.version), record })
        }
        (Decision::Replay, Some(record)) => Ok(Step::Replay(Receipt::new(record, Ran::No))),
        (Decision::ReplayFailure, Some(record)) => {
            let reason = record.reason().unwrap_or("it failed").to_owned();
            Err(Error::Failed { record, reason, ran: Ran::No })
        }
        // Begun by another kind of caller on the same ledger.
        (Decision::Wait, Some(record)) => Err(Error::InProgress { record, ran: Ran::No }),
        (Decision::Doubt | Decision::Probe, Some(record)) => Err(in_doubt(record)),
        (Decision::Refuse(refusal), Some(record)) => Err(refused(refusal, record, intent)),
        // Only a start is decided on nothing.
        (
            Decision::Replay
            | Decision::ReplayFailure
            | Decision::Wait
            | Decision::Doubt
            | Decision::Probe
            | Decision::Refuse(_),
            None,
        ) => Err(Error::NotFound { id: intent.id.to_string() }),
    }
}

/// The token for an effect that shares the record's transaction: there is nothing to note, as both are committed or
/// neither is.
#[must_use]
pub fn dispatch() -> Dispatched {
    Dispatched::in_transaction()
}

/// The record with the attempt done, to be written before the transaction is committed.
#[must_use]
pub fn done(record: &Record, done: Done, now_ms: i64) -> Record {
    transition::finish(record, record.attempt, Ending::Done(done.outcome), now_ms)
}

/// The proof, once the transaction is committed.
#[must_use]
pub fn receipt(record: Record) -> Receipt {
    Receipt::new(Arc::new(record), Ran::Yes)
}

/// What a failed effect comes to, once the transaction is rolled back: nothing happened, and nothing is on record.
#[must_use]
pub fn failed(record: Record, failure: Failure) -> Error {
    Error::Failed { record: Arc::new(record), reason: failure.reason, ran: Ran::Yes }
}

/// What a commit without a reply comes to. The same call, made again, finds out.
#[must_use]
pub fn unanswered(record: Record, source: impl std::fmt::Display) -> Error {
    let reason =
        format!("the reply to the commit was lost ({source}); make the same call again: it finds out");
    Error::InDoubt { record: Arc::new(record), reason, ran: Ran::Yes }
}
