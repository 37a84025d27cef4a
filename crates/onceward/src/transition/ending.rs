//! How an attempt's own ending changes its record. An ending is never discarded, even if it is late.

use super::{later, without_oversized_result};
use crate::Class;
use crate::evidence::Evidence;
use crate::facts::Ending;
use crate::record::{DoubleEffect, Outcome, Past, Record, State};
use crate::word::Speaker;

/// The record with an attempt's own ending, which is never discarded, even if it is late.
#[must_use]
pub fn finish(record: &Record, attempt: u32, ending: Ending, now_ms: i64) -> Record {
    // An attempt of an earlier occurrence says nothing about this one.
    if attempt <= record.detail.attempts_before {
        return note(record, attempt, ending, now_ms);
    }
    if attempt < record.attempt {
        return end_overtaken(record, attempt, ending, now_ms);
    }
    match record.state {
        State::Running | State::InDoubt => end(record, including_earlier_attempts(record, ending), now_ms),
        State::Done | State::Failed | State::Cancelled => end_settled(record, ending, now_ms),
        // A tombstone keeps no results, but records how the operation ended.
        State::Expired => {
            let happened = matches!(ending, Ending::Done(_));
            let mut next = note(record, attempt, ending, now_ms);
            if happened {
                next.detail.ended = Some(State::Done);
            }
            next
        }
        // A staged operation has no attempt that could end.
        State::Staged => note(record, attempt, ending, now_ms),
    }
}

/// How a report of an attempt relates to the success that the same attempt has reported before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// The attempt has not reported a success, as far as the record shows.
    New,
    /// It repeats that success, for example because the first reply was lost.
    Repeated,
    /// It contradicts that success, whose result retries may already have.
    Contradicts,
}

/// Compares a report of an attempt with the success that the record holds.
#[must_use]
pub fn report(record: &Record, attempt: u32, ending: &Ending) -> Report {
    let Some(known) = record.outcome.as_ref().filter(|_| record.state == State::Done) else {
        return Report::New;
    };
    // A success that a settlement or another attempt reported says nothing about what this attempt will report.
    let is_anothers = another_succeeded(record, attempt) && !has_succeeded(record, attempt);
    if attempt != record.attempt || known.settled_by.is_some() || is_anothers {
        return Report::New;
    }
    let Ending::Done(outcome) = ending else { return Report::Contradicts };
    // A check may have added its result since.
    let repeated = Outcome { verified: known.verified, ..without_oversized_result(outcome.clone()) };
    if repeated == *known { Report::Repeated } else { Report::Contradicts }
}

/// Whether the history has a success that this attempt has reported.
fn has_succeeded(record: &Record, attempt: u32) -> bool {
    successes(record).any(|succeeded| succeeded == attempt)
}

/// Whether the history has a success that another attempt has reported.
fn another_succeeded(record: &Record, attempt: u32) -> bool {
    successes(record).any(|succeeded| succeeded != attempt)
}

/// The attempts of the history that have reported a success. What someone else said about one is no report.
fn successes(record: &Record) -> impl Iterator<Item = u32> {
    let own = |past: &&Past| past.ended == State::Done && past.settled_by.is_none();
    record.detail.history.iter().filter(own).map(|past| past.attempt)
}

/// What an attempt's own ending says about the operation. That this attempt had no effect does not rule out an
/// earlier one.
pub(super) fn including_earlier_attempts(record: &Record, ending: Ending) -> Ending {
    match ending {
        Ending::Failed(_, outcome) if record.detail.late.is_none() && record.earlier_attempt_in_doubt() => {
            Ending::InDoubt(outcome)
        }
        Ending::Done(_) | Ending::Failed(..) | Ending::InDoubt(_) => ending,
    }
}

/// Ends the newest attempt.
pub(super) fn end(record: &Record, ending: Ending, now_ms: i64) -> Record {
    let mut next = match (ending, record.detail.late.clone()) {
        (Ending::Done(outcome), None) => record.settle_as(State::Done, outcome, now_ms),
        (Ending::Done(outcome), Some(_)) => {
            let mut next = record.settle_as(State::Done, outcome, now_ms);
            next.alarm(DoubleEffect::Certain);
            next.remember_success(now_ms);
            next
        }
        // It had no effect, but the previous attempt reported a success late: one effect in total.
        (Ending::Failed(..), Some(late)) => {
            let mut next = record.settle_as(State::Done, late, now_ms);
            next.all_clear();
            next
        }
        (Ending::InDoubt(_), Some(late)) => record.settle_as(State::Done, late, now_ms),
        (Ending::Failed(evidence, outcome), None) => record.failed(evidence, outcome, now_ms),
        (Ending::InDoubt(outcome), None) => return in_doubt(record, outcome, now_ms),
    };
    next.detail.owner = None;
    next.detail.late = None;
    next
}

/// Marks the operation as in doubt. The owner's token stays, because a process that it started may still hold its
/// lock. The request may still be in flight, so a probe's *no* does not count yet.
fn in_doubt(record: &Record, outcome: Outcome, now_ms: i64) -> Record {
    let mut next = record.next(State::InDoubt, now_ms);
    next.replace_outcome(record.state, outcome);
    next.detail.quarantine_until_ms = Some(later(now_ms, record.detail.quarantine_ms));
    next.detail.silent = false;
    next
}

/// Handles an ending of the newest attempt that arrives after the operation was settled: by hand, by a probe, by a
/// late answer, or by the same ending whose first write was not acknowledged.
fn end_settled(record: &Record, ending: Ending, now_ms: i64) -> Record {
    let another = another_succeeded(record, record.attempt);
    match ending {
        // Either it happened after all, or this is the result of a known success.
        Ending::Done(outcome) => {
            let mut next = record.settle_as(State::Done, outcome, now_ms);
            if another {
                next.alarm(DoubleEffect::Certain);
                next.remember_success(now_ms);
            }
            next
        }
        Ending::Failed(evidence, outcome) if record.state == State::Failed => {
            record.failed(evidence, outcome, now_ms)
        }
        Ending::Failed(..) => {
            let mut next = note(record, record.attempt, ending, now_ms);
            // It had no effect, so the success that settled the operation was the only one.
            if another {
                next.all_clear();
            }
            next
        }
        Ending::InDoubt(_) => note(record, record.attempt, ending, now_ms),
    }
}

/// Handles the ending of an attempt that arrives after another one was started.
fn end_overtaken(record: &Record, attempt: u32, ending: Ending, now_ms: i64) -> Record {
    let mut next = match &ending {
        Ending::Done(_) if has_succeeded(record, attempt) => {
            return Record { due_ms: record.due_ms, ..record.next(record.state, now_ms) };
        }
        Ending::Done(outcome) => late_success(record, outcome.clone(), now_ms),
        Ending::InDoubt(outcome) if rests_on_a_probe(record) => in_doubt(record, outcome.clone(), now_ms),
        Ending::Failed(..) | Ending::InDoubt(_) => return note(record, attempt, ending, now_ms),
    };
    let (ended, outcome) = ending.parts();
    next.remember(attempt, ended, Some(&outcome), now_ms);
    next
}

/// Whether the record says that nothing happened, and a probe is the evidence about its earlier attempts. One of them
/// that reports a doubt now may have sent its request after the probe had looked.
fn rests_on_a_probe(record: &Record) -> bool {
    let word = record.outcome.as_ref().and_then(|outcome| outcome.settled_by.as_ref());
    let by_hand = word.is_some_and(|word| word.by != Speaker::Probe);
    record.detail.class == Class::Probed && record.state == State::Failed && !by_hand
}

/// Handles the success of an overtaken attempt.
fn late_success(record: &Record, outcome: Outcome, now_ms: i64) -> Record {
    let mut next = Record { due_ms: record.due_ms, ..record.next(record.state, now_ms) };
    match record.state {
        State::Failed | State::Cancelled => next = record.settle_as(State::Done, outcome, now_ms),
        State::InDoubt => {
            next = record.settle_as(State::Done, outcome, now_ms);
            next.alarm(DoubleEffect::Possible);
        }
        State::Running if record.detail.late.is_some() => next.alarm(DoubleEffect::Certain),
        State::Running => {
            next.detail.late = Some(without_oversized_result(outcome));
            next.alarm(DoubleEffect::Possible);
        }
        State::Done => {
            // The settlement by hand may have been based on the effect of this attempt.
            let by_hand = record.outcome.as_ref().is_some_and(|outcome| outcome.settled_by.is_some());
            next.alarm(if by_hand { DoubleEffect::Possible } else { DoubleEffect::Certain });
            if !by_hand && !another_succeeded(record, record.attempt) {
                next.remember_success(now_ms);
            }
        }
        State::Expired => {
            match record.detail.ended {
                Some(State::Done) => next.alarm(DoubleEffect::Certain),
                Some(State::Failed | State::Cancelled) => {}
                // An older tombstone does not record how the operation ended.
                Some(State::Staged | State::Running | State::InDoubt | State::Expired) | None => {
                    next.alarm(DoubleEffect::Possible);
                }
            }
            // It took effect after all.
            next.detail.ended = Some(State::Done);
        }
        State::Staged => {}
    }
    next
}

/// The record unchanged, with an attempt's ending added to its history.
fn note(record: &Record, attempt: u32, ending: Ending, now_ms: i64) -> Record {
    let mut next = Record { due_ms: record.due_ms, ..record.next(record.state, now_ms) };
    let (ended, outcome) = ending.parts();
    next.remember(attempt, ended, Some(&outcome), now_ms);
    next
}

impl Ending {
    fn parts(self) -> (State, Outcome) {
        match self {
            Self::Done(outcome) => (State::Done, outcome),
            Self::Failed(evidence, outcome) => (State::Failed, outcome.proven_by(evidence)),
            Self::InDoubt(outcome) => (State::InDoubt, outcome),
        }
    }
}

impl Record {
    /// The next version, failed with this evidence: cancelled, if someone cancelled the operation while it ran.
    fn failed(&self, evidence: Evidence, outcome: Outcome, now_ms: i64) -> Self {
        let mut failed = self.settle_as(State::Failed, outcome.proven_by(evidence), now_ms);
        let Some(word) = failed.detail.cancelled_by.take() else { return failed };
        Self { version: failed.version, ..failed.cancelled_on(*word, now_ms) }
    }

    /// Notes that the result is the newest attempt's own, where the history has the success of another attempt: what
    /// the newest one has reported is final too. What it used is part of the result.
    fn remember_success(&mut self, now_ms: i64) {
        if !has_succeeded(self, self.attempt) {
            self.remember(self.attempt, State::Done, None, now_ms);
        }
    }

    /// Raises the alarm. A certain alarm is never lowered.
    fn alarm(&mut self, alarm: DoubleEffect) {
        if self.detail.double_effect != Some(DoubleEffect::Certain) {
            self.detail.double_effect = Some(alarm);
        }
    }

    /// Clears an alarm that proved unfounded.
    fn all_clear(&mut self) {
        self.detail.double_effect = self.detail.double_effect.filter(|alarm| *alarm == DoubleEffect::Certain);
    }
}
