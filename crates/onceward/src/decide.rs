//! Deciding how to begin: reads one record, makes one decision. Pure: no clock, no I/O; `now` is an argument.

use std::sync::Arc;

use crate::barrier::Barrier;
use crate::facts::Liveness;
use crate::key::KeyOrigin;
use crate::operation::{Intent, ScopeOrigin};
use crate::policy::{Hold, OnExpired, OnFailure};
use crate::record::{Class, Record, State};

/// What to do about a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Record attempt `attempt`, then execute it.
    Start {
        /// The attempt's number.
        attempt: u32,
    },
    /// Record the operation and hold it back: it starts at its time, or when a person releases it.
    Hold,
    /// It is held back already: say so.
    Held,
    /// Return the stored result.
    Replay,
    /// Return the stored failure.
    ReplayFailure,
    /// Another caller is executing it: wait, or refuse with `IN_PROGRESS`.
    Wait,
    /// Ask the probe whether it happened, and decide again on its answer.
    Probe,
    /// Record what is known about its owner (in doubt, or certainly failed), and decide again.
    Doubt,
    /// Run nothing.
    Refuse(Refusal),
}

/// Why nothing is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The key was used with different inputs, in these fields.
    KeyReused(Vec<String>),
    /// The retention period has ended.
    KeyExpired,
    /// The operation was cancelled.
    Cancelled,
    /// The operation was done, and was taken back or is being taken back.
    Undone,
    /// The scope is stopped. Only the store decides this, when an attempt begins.
    Stopped(Barrier),
    /// The budget of attempts is spent.
    BudgetExhausted,
    /// The outcome is unknown.
    InDoubt,
}

/// The effective state of an operation: a running one whose owner is gone is in doubt, and a settled one past its
/// retention has expired, even if this has not been recorded yet.
#[must_use]
pub fn effective_state(record: &Record, liveness: Liveness, now_ms: i64) -> State {
    let over = record.due_ms.is_some_and(|due| due <= now_ms);
    match record.state {
        State::Running => match liveness {
            Liveness::Alive => State::Running,
            // If an overtaken attempt already succeeded, this attempt's death does not make the operation failed.
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
        // The owner reported a doubt, but a process that it started still holds the lock.
        State::InDoubt if liveness == Liveness::Alive => State::Running,
        State::Done | State::Failed | State::Cancelled if over => State::Expired,
        State::Staged | State::Done | State::Failed | State::InDoubt | State::Cancelled | State::Expired => {
            record.state
        }
    }
}

/// The record with its effective state, for errors that show it: an attempt whose owner is gone may still be recorded
/// as running.
#[must_use]
pub fn seen_as(record: Arc<Record>, state: State) -> Arc<Record> {
    match record.state {
        State::Running => Arc::new(Record { state, ..Record::clone(&record) }),
        State::Staged | State::Done | State::Failed | State::InDoubt | State::Cancelled | State::Expired => {
            record
        }
    }
}

/// Decides what a call with this intent gets.
#[must_use]
pub fn begin(found: Option<&Record>, intent: &Intent, liveness: Liveness, now_ms: i64) -> Decision {
    let Some(record) = found else {
        return first_attempt(1, intent);
    };
    if record.detail.fingerprint != intent.fingerprint {
        // Record a doubt first, so that the refusal does not hide it.
        if record.state == State::Running && effective_state(record, liveness, now_ms) != State::Running {
            return Decision::Doubt;
        }
        let fields = intent.fields_that_differ(&record.detail.fields);
        return Decision::Refuse(Refusal::KeyReused(fields));
    }
    match effective_state(record, liveness, now_ms) {
        State::Staged => match record.held() {
            Some(held) if !held.may_start(now_ms) => Decision::Held,
            Some(_) | None => Decision::Start { attempt: record.attempt + 1 },
        },
        State::Running => Decision::Wait,
        State::Done if record.detail.undone.is_some() => Decision::Refuse(Refusal::Undone),
        State::Done => Decision::Replay,
        State::Failed if record.state == State::Running => Decision::Doubt,
        State::Failed => match intent.terms.on_failure {
            OnFailure::Retry => next_attempt(record, intent, now_ms),
            OnFailure::Replay => Decision::ReplayFailure,
        },
        State::InDoubt => in_doubt(record, intent, now_ms),
        State::Cancelled => Decision::Refuse(Refusal::Cancelled),
        State::Expired if continues_when_expired(record, intent) => next_attempt(record, intent, now_ms),
        State::Expired if may_run_when_expired(intent) => first_attempt(record.attempt + 1, intent),
        State::Expired => Decision::Refuse(Refusal::KeyExpired),
    }
}

/// Starts a new occurrence, or holds it back where its terms say so. A retry of a failed attempt is not held again.
fn first_attempt(attempt: u32, intent: &Intent) -> Decision {
    match intent.terms.hold {
        Hold::No => Decision::Start { attempt },
        Hold::For(_) | Hold::Approve => Decision::Hold,
    }
}

/// Whether a call may run again after its stored result has expired. A given key, or any key in an explicit scope,
/// identifies one action permanently, so that a run resumed after a weekend repeats nothing.
fn may_run_when_expired(intent: &Intent) -> bool {
    match intent.terms.on_expired {
        OnExpired::Rerun => true,
        OnExpired::Refuse | OnExpired::RetryFailed => false,
        OnExpired::Auto => {
            intent.key.origin == KeyOrigin::Derived && intent.scope_origin != ScopeOrigin::Explicit
        }
    }
}

/// Whether the next attempt belongs to the occurrence that has expired: it failed, as its tombstone says.
pub(crate) fn continues_when_expired(record: &Record, intent: &Intent) -> bool {
    intent.terms.on_expired == OnExpired::RetryFailed && record.ended_as(State::Expired) == State::Failed
}

/// Decides about an operation in doubt after a probe answered that it did not happen. If it was cancelled while it ran,
/// the answer settles that.
#[must_use]
pub fn after_probe_no(record: &Record, intent: &Intent, now_ms: i64) -> Decision {
    match record.detail.quarantine_until_ms {
        Some(until) if now_ms < until => stay_in_doubt(record),
        Some(_) | None if record.detail.cancelled_by.is_some() => Decision::Refuse(Refusal::Cancelled),
        Some(_) | None => next_attempt(record, intent, now_ms),
    }
}

/// Decides about an operation in doubt, according to its class.
fn in_doubt(record: &Record, intent: &Intent, now_ms: i64) -> Decision {
    // An overtaken attempt reported a success late: recording the doubt settles it.
    if record.detail.late.is_some() {
        return Decision::Doubt;
    }
    match intent.terms.class {
        // Someone cancelled it while it ran: no class allows another attempt.
        Class::Read | Class::Idempotent | Class::Keyed if record.detail.cancelled_by.is_some() => {
            stay_in_doubt(record)
        }
        Class::Read | Class::Idempotent => next_attempt(record, intent, now_ms),
        Class::Keyed if record.downstream_remembers(now_ms) => next_attempt(record, intent, now_ms),
        Class::Keyed => stay_in_doubt(record),
        // Record the doubt before asking the probe, because the quarantine starts then.
        Class::Probed if record.state == State::Running => Decision::Doubt,
        Class::Probed => Decision::Probe,
        Class::Once => stay_in_doubt(record),
    }
}

/// The doubt is recorded once; after that it is only reported.
pub(crate) fn stay_in_doubt(record: &Record) -> Decision {
    if record.state == State::InDoubt { Decision::Refuse(Refusal::InDoubt) } else { Decision::Doubt }
}

fn next_attempt(record: &Record, intent: &Intent, now_ms: i64) -> Decision {
    if record.spent_attempts() < intent.terms.max_attempts {
        // A restore put it in doubt while it was held. What no person has released does not start.
        if record.needs_release(now_ms) {
            return Decision::Hold;
        }
        Decision::Start { attempt: record.attempt + 1 }
    } else if record.state.is_settled() {
        Decision::Refuse(Refusal::BudgetExhausted)
    } else {
        // The budget is spent and the last attempt may have taken effect. The doubt is the more accurate answer.
        stay_in_doubt(record)
    }
}
