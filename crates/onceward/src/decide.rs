//! Deciding to begin: one record is read, one decision is made. Pure: no clock, no I/O; `now` is an argument.

use crate::key::{KeyOrigin, fields_that_differ};
use crate::operation::{Intent, ScopeOrigin};
use crate::policy::{OnExpired, OnFailure};
use crate::record::{Class, Record, State};

/// What can be seen of an attempt's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Liveness {
    /// It holds its lock: it lives, or is stopped and may wake.
    Alive,
    /// Its lock is free: it is gone and cannot act any more.
    Gone,
    /// It is gone, and had noted that it had dispatched nothing yet.
    NeverDispatched,
    /// It cannot be seen from here: only its lease speaks for it.
    Unknown,
}

/// What to do about a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Write attempt `attempt` down, then execute it.
    Start {
        /// Its number.
        attempt: u32,
    },
    /// Give the stored result.
    Replay,
    /// Give the stored failure.
    ReplayFailure,
    /// Another caller is executing it: wait, or refuse with `IN_PROGRESS`.
    Wait,
    /// Ask whether it happened, and decide again on the answer.
    Probe,
    /// Write down what is seen of its owner (it is in doubt, or failed for certain), and decide again on that.
    Doubt,
    /// Run nothing.
    Refuse(Refusal),
}

/// Why nothing is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The key was used with other inputs, in these fields.
    KeyReused(Vec<String>),
    /// The retention is over.
    KeyExpired,
    /// It was cancelled.
    Cancelled,
    /// Enough attempts were paid for.
    BudgetExhausted,
    /// Its outcome is not known.
    InDoubt,
}

/// Where an operation really stands: a running one whose owner is gone is in doubt, a settled one whose time is over
/// has expired, whether or not anybody has written that down yet.
#[must_use]
pub fn standing(record: &Record, liveness: Liveness, now_ms: i64) -> State {
    let over = record.due_ms.is_some_and(|due| due <= now_ms);
    match record.state {
        State::Running => match liveness {
            Liveness::Alive => State::Running,
            // Of an operation that an overtaken attempt has done, this one's death is not the last word.
            Liveness::NeverDispatched
                if record.detail.late.is_none() && !record.earlier_attempt_in_doubt() =>
            {
                State::Failed
            }
            Liveness::Gone | Liveness::NeverDispatched => State::InDoubt,
            Liveness::Unknown => match record.detail.owner {
                Some(owner) if now_ms < owner.lease_until_ms => State::Running,
                Some(_) | None => State::InDoubt,
            },
        },
        // Its owner has reported a doubt, but a process that the owner started still holds its lock.
        State::InDoubt if liveness == Liveness::Alive => State::Running,
        State::Done | State::Failed | State::Cancelled if over => State::Expired,
        State::Staged | State::Done | State::Failed | State::InDoubt | State::Cancelled | State::Expired => {
            record.state
        }
    }
}

/// Decides what a call with this intent gets.
#[must_use]
pub fn begin(found: Option<&Record>, intent: &Intent, liveness: Liveness, now_ms: i64) -> Decision {
    let Some(record) = found else {
        return Decision::Start { attempt: 1 };
    };
    if record.detail.fingerprint != intent.fingerprint {
        // A doubt is written down first: the refusal must not hide it.
        if record.state == State::Running && standing(record, liveness, now_ms) != State::Running {
            return Decision::Doubt;
        }
        let fields = fields_that_differ(&record.detail.fields, &intent.fields());
        return Decision::Refuse(Refusal::KeyReused(fields));
    }
    match standing(record, liveness, now_ms) {
        State::Staged => Decision::Start { attempt: record.attempt + 1 },
        State::Running => Decision::Wait,
        State::Done => Decision::Replay,
        State::Failed if record.state == State::Running => Decision::Doubt,
        State::Failed => match intent.terms.on_failure {
            OnFailure::Retry => next_attempt(record, intent),
            OnFailure::Replay => Decision::ReplayFailure,
        },
        State::InDoubt => in_doubt(record, intent, now_ms),
        State::Cancelled => Decision::Refuse(Refusal::Cancelled),
        State::Expired if may_run_when_expired(intent) => Decision::Start { attempt: record.attempt + 1 },
        State::Expired => Decision::Refuse(Refusal::KeyExpired),
    }
}

/// Whether a call may run again after its stored result has expired. A key that someone gave, or any key in a scope
/// that someone chose, names one action for good: a run that is resumed after a weekend repeats nothing.
fn may_run_when_expired(intent: &Intent) -> bool {
    match intent.terms.on_expired {
        OnExpired::Rerun => true,
        OnExpired::Refuse => false,
        OnExpired::Auto => {
            intent.key.origin == KeyOrigin::Derived && intent.scope_origin != ScopeOrigin::Explicit
        }
    }
}

/// Decides on an operation in doubt once a probe has said that it did not happen.
#[must_use]
pub fn after_probe_no(record: &Record, intent: &Intent, now_ms: i64) -> Decision {
    match record.detail.quarantine_until_ms {
        Some(until) if now_ms < until => stay_in_doubt(record),
        Some(_) | None => next_attempt(record, intent),
    }
}

/// An operation in doubt: the class decides.
fn in_doubt(record: &Record, intent: &Intent, now_ms: i64) -> Decision {
    // An overtaken attempt has come back with a success: writing the doubt down settles it.
    if record.detail.late.is_some() {
        return Decision::Doubt;
    }
    match intent.terms.class {
        Class::Read | Class::Idempotent => next_attempt(record, intent),
        Class::Keyed => match &record.detail.downstream {
            Some(downstream) if now_ms < downstream.safe_until_ms => next_attempt(record, intent),
            Some(_) | None => stay_in_doubt(record),
        },
        // The doubt is written down before the probe is asked: its quarantine begins now.
        Class::Probed if record.state == State::Running => Decision::Doubt,
        Class::Probed => Decision::Probe,
        Class::Once => stay_in_doubt(record),
    }
}

/// The doubt is written down once; from then on it is only told.
pub(crate) fn stay_in_doubt(record: &Record) -> Decision {
    if record.state == State::InDoubt { Decision::Refuse(Refusal::InDoubt) } else { Decision::Doubt }
}

fn next_attempt(record: &Record, intent: &Intent) -> Decision {
    if record.spent_attempts() < intent.terms.max_attempts {
        Decision::Start { attempt: record.attempt + 1 }
    } else if record.state.is_settled() {
        Decision::Refuse(Refusal::BudgetExhausted)
    } else {
        // The budget is spent and the last attempt may have happened: that is the truer answer.
        stay_in_doubt(record)
    }
}
