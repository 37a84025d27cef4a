//! The errors of calls that are refused.

use std::sync::Arc;

use super::Ledger;
use crate::barrier::Barrier;
use crate::decide::Refusal;
use crate::error::{Error, clip};
use crate::facts::Ran;
use crate::operation::Intent;
use crate::record::{Record, State, Verification};
use crate::time::rfc3339;

impl Ledger {
    /// The error of a call that is refused. `denied` is set if the probe has just said that nothing happened.
    pub(super) fn refused(
        &self,
        refusal: Refusal,
        record: Arc<Record>,
        intent: &Intent,
        denied: Option<Record>,
    ) -> Error {
        let until_ms = record.detail.quarantine_until_ms.filter(|until_ms| self.now_ms() < *until_ms);
        match (refusal_error(refusal, record, intent), denied, until_ms) {
            (Error::InDoubt { record, reason, ran }, Some(_), Some(until_ms)) => {
                let from = rfc3339(until_ms);
                let reason = format!("{reason}. The probe found no effect, which counts from {from}");
                Error::InDoubt { record, reason, ran }
            }
            (error, _, _) => error,
        }
    }
}

pub(crate) fn refusal_error(refusal: Refusal, record: Arc<Record>, intent: &Intent) -> Error {
    match refusal {
        Refusal::KeyReused(fields) => Error::KeyReused { record, fields },
        Refusal::KeyExpired => Error::KeyExpired { record },
        Refusal::Cancelled => Error::Cancelled { record, ran: Ran::No, of: intent.refusal_of() },
        Refusal::Undone => Error::Undone { record },
        Refusal::Stopped(barrier) => stopped_error(barrier, Some(record)),
        Refusal::BudgetExhausted => {
            Error::BudgetExhausted { record, limit: intent.terms.max_attempts, ran: Ran::No }
        }
        Refusal::InDoubt => in_doubt_error(record),
    }
}

/// The error for a call that finds its operation in doubt.
pub(crate) fn in_doubt_error(record: Arc<Record>) -> Error {
    let refuted = record.outcome.as_ref().is_some_and(|o| o.verified == Some(Verification::Refuted));
    let why = record.reason().unwrap_or("it gave no answer");
    if refuted {
        return Error::Unverified { reason: why.to_owned(), record, ran: Ran::No };
    }
    let reason = format!(
        "attempt {} is in doubt: {}. It may have taken effect; nothing was run",
        record.attempt,
        clip(why)
    );
    Error::InDoubt { record, reason, ran: Ran::No }
}

/// Why an attempt that the record would allow does not begin in a stopped scope. A doubt stays the answer.
pub(crate) fn stopped(barrier: Barrier, found: Option<&Record>) -> Refusal {
    match found {
        Some(record) if record.state == State::InDoubt => Refusal::InDoubt,
        Some(_) | None => Refusal::Stopped(barrier),
    }
}

/// The error for an attempt that did not begin because its scope is stopped.
pub(crate) fn stopped_error(barrier: Barrier, found: Option<Arc<Record>>) -> Error {
    match found {
        Some(record) if record.state == State::InDoubt => in_doubt_error(record),
        record => Error::Stopped { barrier, record, ran: Ran::No },
    }
}
