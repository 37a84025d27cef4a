//! How an attempt's own ending changes its record: never dropped, however late it comes.

use super::{fitting, later};
use crate::record::{DoubleEffect, Outcome, Record, State};

/// How an attempt ended, by its own word.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// It happened.
    Done(Outcome),
    /// It did not happen, for certain.
    Failed(Outcome),
    /// Nobody can say.
    InDoubt(Outcome),
}

/// The record with an attempt's own ending, which is never dropped, however late it comes.
#[must_use]
pub fn finish(record: &Record, attempt: u32, ending: Ending, now_ms: i64) -> Record {
    // An attempt of an earlier occurrence says nothing of this one.
    if attempt <= record.detail.attempts_before {
        return note(record, attempt, ending, now_ms);
    }
    if attempt < record.attempt {
        return overtaken(record, attempt, ending, now_ms);
    }
    match record.state {
        State::Running | State::InDoubt => end(record, in_all(record, ending), now_ms),
        State::Done | State::Failed | State::Cancelled => after_settling(record, ending, now_ms),
        // A tombstone keeps no results, but it says how the operation ended.
        State::Expired => {
            let happened = matches!(ending, Ending::Done(_));
            let mut next = note(record, attempt, ending, now_ms);
            if happened {
                next.detail.ended = Some(State::Done);
            }
            next
        }
        // What is staged has no attempt that could end.
        State::Staged => note(record, attempt, ending, now_ms),
    }
}

/// What an attempt's own ending says of the operation: that this attempt did nothing does not clear an earlier one.
pub(super) fn in_all(record: &Record, ending: Ending) -> Ending {
    match ending {
        Ending::Failed(outcome) if record.detail.late.is_none() && record.earlier_attempt_in_doubt() => {
            Ending::InDoubt(outcome)
        }
        Ending::Done(_) | Ending::Failed(_) | Ending::InDoubt(_) => ending,
    }
}

/// The newest attempt says how it ended.
pub(super) fn end(record: &Record, ending: Ending, now_ms: i64) -> Record {
    let mut next = match (ending, record.detail.late.clone()) {
        (Ending::Done(outcome), None) => record.settled(State::Done, outcome, now_ms),
        (Ending::Done(outcome), Some(_)) => {
            let mut next = record.settled(State::Done, outcome, now_ms);
            next.alarm(DoubleEffect::Certain);
            next
        }
        // It did nothing, but the attempt before it came back with a success: one effect in all.
        (Ending::Failed(_), Some(late)) => {
            let mut next = record.settled(State::Done, late, now_ms);
            next.all_clear();
            next
        }
        (Ending::InDoubt(_), Some(late)) => record.settled(State::Done, late, now_ms),
        (Ending::Failed(outcome), None) => record.settled(State::Failed, outcome, now_ms),
        (Ending::InDoubt(outcome), None) => return in_doubt(record, outcome, now_ms),
    };
    next.detail.owner = None;
    next.detail.late = None;
    next
}

/// The outcome is unknown. The owner's token stays: a process that it started may still hold its lock. A request may
/// still be under way, so a probe's *no* does not count yet.
fn in_doubt(record: &Record, outcome: Outcome, now_ms: i64) -> Record {
    let mut next = Record { outcome: Some(fitting(outcome)), ..record.next(State::InDoubt, now_ms) };
    next.detail.quarantine_until_ms = Some(later(now_ms, record.detail.quarantine_ms));
    next
}

/// The newest attempt's ending comes after the operation was settled: by hand, by a probe, by a late answer, or by the
/// same ending whose first write was not acknowledged.
fn after_settling(record: &Record, ending: Ending, now_ms: i64) -> Record {
    let another =
        record.detail.history.iter().any(|past| past.ended == State::Done && past.attempt != record.attempt);
    match ending {
        // It happened after all, or: it happened, and here is its result.
        Ending::Done(outcome) => {
            let mut next = record.settled(State::Done, outcome, now_ms);
            if another {
                next.alarm(DoubleEffect::Certain);
            }
            next
        }
        Ending::Failed(outcome) if record.state == State::Failed => {
            record.settled(State::Failed, outcome, now_ms)
        }
        Ending::Failed(_) => {
            let mut next = note(record, record.attempt, ending, now_ms);
            // It did nothing, so the success that settled the operation was the only one.
            if another {
                next.all_clear();
            }
            next
        }
        Ending::InDoubt(_) => note(record, record.attempt, ending, now_ms),
    }
}

/// An attempt ends after another one was started.
fn overtaken(record: &Record, attempt: u32, ending: Ending, now_ms: i64) -> Record {
    let told = record.detail.history.iter().any(|past| past.ended == State::Done && past.attempt == attempt);
    let mut next = match &ending {
        Ending::Done(_) if told => {
            return Record { due_ms: record.due_ms, ..record.next(record.state, now_ms) };
        }
        Ending::Done(outcome) => late_success(record, outcome.clone(), now_ms),
        Ending::Failed(_) | Ending::InDoubt(_) => return note(record, attempt, ending, now_ms),
    };
    let (ended, outcome) = ending.parts();
    next.remember(attempt, ended, outcome.reason, now_ms);
    next
}

/// An overtaken attempt comes back with a success.
fn late_success(record: &Record, outcome: Outcome, now_ms: i64) -> Record {
    let mut next = Record { due_ms: record.due_ms, ..record.next(record.state, now_ms) };
    match record.state {
        State::Failed | State::Cancelled => next = record.settled(State::Done, outcome, now_ms),
        State::InDoubt => {
            next = record.settled(State::Done, outcome, now_ms);
            next.alarm(DoubleEffect::Possible);
        }
        State::Running if record.detail.late.is_some() => next.alarm(DoubleEffect::Certain),
        State::Running => {
            next.detail.late = Some(fitting(outcome));
            next.alarm(DoubleEffect::Possible);
        }
        State::Done => {
            // Who settled it may have seen the effect of this very attempt.
            let by_hand = record.outcome.as_ref().is_some_and(|outcome| outcome.settled_by.is_some());
            next.alarm(if by_hand { DoubleEffect::Possible } else { DoubleEffect::Certain });
        }
        State::Expired => {
            match record.detail.ended {
                Some(State::Done) => next.alarm(DoubleEffect::Certain),
                Some(State::Failed | State::Cancelled) => {}
                // An older tombstone does not say how it ended.
                Some(State::Staged | State::Running | State::InDoubt | State::Expired) | None => {
                    next.alarm(DoubleEffect::Possible);
                }
            }
            // It had an effect after all.
            next.detail.ended = Some(State::Done);
        }
        State::Staged => {}
    }
    next
}

/// The record as it is, with an attempt's ending remembered.
fn note(record: &Record, attempt: u32, ending: Ending, now_ms: i64) -> Record {
    let mut next = Record { due_ms: record.due_ms, ..record.next(record.state, now_ms) };
    let (ended, outcome) = ending.parts();
    next.remember(attempt, ended, outcome.reason, now_ms);
    next
}

impl Ending {
    fn parts(self) -> (State, Outcome) {
        match self {
            Self::Done(outcome) => (State::Done, outcome),
            Self::Failed(outcome) => (State::Failed, outcome),
            Self::InDoubt(outcome) => (State::InDoubt, outcome),
        }
    }
}

impl Record {
    /// Raises the alarm. One that is certain is never lowered.
    fn alarm(&mut self, alarm: DoubleEffect) {
        if self.detail.double_effect != Some(DoubleEffect::Certain) {
            self.detail.double_effect = Some(alarm);
        }
    }

    /// Lowers an alarm that turned out to be unfounded.
    fn all_clear(&mut self) {
        self.detail.double_effect = self.detail.double_effect.filter(|alarm| *alarm == DoubleEffect::Certain);
    }
}
