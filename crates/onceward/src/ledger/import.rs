//! Importing the records of another ledger.

use std::sync::Arc;

use super::Admin;
use crate::error::Error;
use crate::facts::Liveness;
use crate::record::{Detail, MAX_HISTORY, Past, Record, State, Verification};
use crate::store::Swap;
use crate::transition;

/// The result of importing a record.
#[derive(Debug, Clone)]
pub enum Imported {
    /// The record was written.
    Taken,
    /// The same operation exists in the same or a later state. Nothing was written.
    AlreadyThere,
    /// A different operation, an earlier state of this one, or a contradicting one exists. Nothing was written.
    Differs(Arc<Record>),
}

/// Whether the existing record is the exported one in the same or a later state. One version has exactly one state
/// and outcome. A later version must be reachable from the exported state: two ledgers that settled the same doubt
/// differently contradict each other, even if both records changed afterwards.
fn is_there(found: &Record, exported: &Record) -> bool {
    let same = found.created_ms == exported.created_ms
        && found.detail.fingerprint == exported.detail.fingerprint
        && found.version >= exported.version
        && found.attempt >= exported.attempt;
    let as_it_was = || found.state == exported.state && found.outcome == exported.outcome;
    same && if found.version == exported.version { as_it_was() } else { can_follow(found, exported) }
}

/// Whether `found` can be a later version of `exported`.
fn can_follow(found: &Record, exported: &Record) -> bool {
    let is = |states: &[State]| {
        let ended = if found.state == State::Expired { found.detail.ended } else { Some(found.state) };
        // An older tombstone does not record how the operation ended.
        ended.is_none_or(|ended| states.contains(&ended))
    };
    let refuted =
        found.outcome.as_ref().is_some_and(|outcome| outcome.verified == Some(Verification::Refuted));
    let failed_before = |past: &Past| past.attempt == exported.attempt && past.ended != State::Done;
    let history = &found.detail.history;
    match exported.state {
        State::Staged | State::Running | State::InDoubt => true,
        // It stays done, unless a check refuted it.
        State::Done => found.attempt == exported.attempt && (is(&[State::Done]) || refuted),
        State::Failed if found.attempt == exported.attempt => is(&[State::Failed, State::Cancelled]),
        // A tombstone has no history, and other records keep only the newest attempts.
        State::Failed => {
            let forgotten = found.state == State::Expired || history.len() == MAX_HISTORY;
            forgotten || history.iter().any(failed_before)
        }
        State::Cancelled => is(&[State::Cancelled]),
        State::Expired => found.state == State::Expired,
    }
}

impl Admin<'_> {
    /// Imports a record of another ledger. Safe to repeat.
    ///
    /// A running record becomes in doubt here: its owner, if alive, reports to the other ledger.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no ledger could have written the record; otherwise the ledger's own errors.
    pub async fn import(self, record: Record) -> Result<Imported, Error> {
        record.check_in(|tenant| self.0.identity().tenant_mask(tenant))?;
        let exported = record.clone();
        let record = match record.state {
            State::Running => transition::doubt(&record, Liveness::Unknown, self.0.now_ms()),
            State::Staged
            | State::Done
            | State::Failed
            | State::InDoubt
            | State::Cancelled
            | State::Expired => record,
        };
        // The owner held a lock of the other ledger. A lock with the same token here belongs to another attempt.
        let record = Record { detail: Detail { owner: None, ..record.detail }, ..record };
        loop {
            match self.0.store().swap(None, record.clone(), self.0.mode).await? {
                Swap::Written(_) => return Ok(Imported::Taken),
                Swap::Conflict(Some(found)) => {
                    let there = is_there(&found, &exported);
                    return Ok(if there { Imported::AlreadyThere } else { Imported::Differs(found) });
                }
                // The record existed a moment ago and has been deleted since.
                Swap::Conflict(None) => {}
            }
        }
    }
}
