//! How a record changes: each function takes the old record and gives the new one. Pure: `now` is an argument.

use crate::decide::{Liveness, standing};
use crate::operation::{Intent, MAX_RESULT};
use crate::record::{
    Detail, DoubleEffect, Downstream, MAX_HISTORY, Outcome, Owner, Past, Record, State, Verification,
};

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

/// What somebody says about an operation in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It happened.
    Done,
    /// It did not.
    Failed,
}

/// What asking an operation to stop comes to.
#[derive(Debug, Clone)]
pub enum Cancelling {
    /// It will not happen, for certain.
    Cancelled(Record),
    /// It is under way: its owner is asked to stop, and its own ending will say what happened.
    Requested(Record),
    /// It was cancelled already.
    Already,
    /// It cannot be cancelled, because it happened, may have happened, or is forgotten.
    TooLate,
}

/// What time does to a record.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "it is looked at once and never kept")]
pub enum Ageing {
    /// Its result goes and its tombstone stays.
    Tombstone(Record),
    /// Its tombstone goes.
    Delete,
    /// Nothing yet.
    Keep,
}

impl Record {
    /// How many attempts were made under the key as it is understood now.
    #[must_use]
    pub fn spent_attempts(&self) -> u32 {
        self.attempt - self.detail.attempts_before
    }

    /// The next version of this record.
    fn next(&self, state: State, now_ms: i64) -> Self {
        Self { version: self.version + 1, state, updated_ms: now_ms, due_ms: None, ..self.clone() }
    }

    /// The next version, with its result and for as long as that is kept.
    fn settled(&self, state: State, outcome: Outcome, now_ms: i64) -> Self {
        let due_ms = Some(later(now_ms, self.detail.retention_ms));
        let mut next = Self { due_ms, outcome: Some(fitting(outcome)), ..self.next(state, now_ms) };
        next.detail.quarantine_until_ms = None;
        next
    }

    fn remember(&mut self, attempt: u32, ended: State, reason: Option<String>, at_ms: i64) {
        self.detail.history.push(Past { attempt, ended, at_ms, reason });
        let surplus = self.detail.history.len().saturating_sub(MAX_HISTORY);
        self.detail.history.drain(..surplus);
    }

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

/// The record of an operation that is wanted and held back.
#[must_use]
pub fn stage(intent: &Intent, now_ms: i64) -> Record {
    Record {
        id: intent.id.clone(),
        scope: intent.scope.clone(),
        name: intent.name.clone(),
        key: intent.key.clone(),
        version: 1,
        state: State::Staged,
        attempt: 0,
        created_ms: now_ms,
        updated_ms: now_ms,
        due_ms: None,
        detail: Detail {
            fingerprint: intent.fingerprint.clone(),
            fields: intent.fields(),
            class: intent.terms.class,
            downstream: None,
            owner: None,
            attempts_before: 0,
            max_attempts: intent.terms.max_attempts,
            retention_ms: intent.terms.retention_ms,
            tombstone_ms: intent.terms.tombstone_ms,
            probe: intent.probe.clone(),
            verify: intent.verify.clone(),
            history: Vec::new(),
            cancel_requested_ms: None,
            quarantine_until_ms: None,
            late: None,
            double_effect: None,
        },
        outcome: None,
        replays: 0,
    }
}

/// The record with its next attempt written down, before that attempt runs.
#[must_use]
pub fn start(found: Option<&Record>, intent: &Intent, owner: Owner, now_ms: i64) -> Record {
    let mut record = match found {
        None => Record { state: State::Running, ..stage(intent, now_ms) },
        Some(before) => again(before, intent, now_ms),
    };
    record.attempt += 1;
    record.outcome = None;
    let detail = &mut record.detail;
    detail.owner = Some(owner);
    detail.class = intent.terms.class;
    detail.max_attempts = intent.terms.max_attempts;
    detail.retention_ms = intent.terms.retention_ms;
    detail.tombstone_ms = intent.terms.tombstone_ms;
    detail.probe.clone_from(&intent.probe);
    detail.verify.clone_from(&intent.verify);
    detail.cancel_requested_ms = None;
    detail.quarantine_until_ms = None;
    // The downstream remembers its key from the first time it saw it, so the window is not begun again.
    if intent.terms.class == crate::Class::Keyed && detail.downstream.is_none() {
        detail.downstream = Some(Downstream {
            key: intent.downstream_key(),
            safe_until_ms: later(now_ms, intent.terms.downstream_window_ms),
        });
    }
    record
}

/// A record that goes on with another attempt: what became of the last one is remembered.
fn again(before: &Record, intent: &Intent, now_ms: i64) -> Record {
    let mut record = before.next(State::Running, now_ms);
    let reason = before.outcome.as_ref().and_then(|outcome| outcome.reason.clone());
    if before.due_ms.is_some_and(|due| due <= now_ms) || before.state == State::Expired {
        // The window is over: this is the next occurrence, with a budget and a downstream key of its own.
        record.created_ms = now_ms;
        record.detail.attempts_before = before.attempt;
        record.detail.history.clear();
        record.detail.downstream = None;
        record.detail.late = None;
        record.detail.double_effect = None;
        record.detail.fields = intent.fields();
        return record;
    }
    match before.state {
        State::Failed => record.remember(before.attempt, State::Failed, reason, before.updated_ms),
        State::InDoubt => record.remember(before.attempt, State::InDoubt, reason, before.updated_ms),
        State::Running => record.remember(before.attempt, State::InDoubt, Some("its owner was gone".into()), now_ms),
        State::Staged | State::Done | State::Cancelled | State::Expired => {}
    }
    record
}

/// The record with its lease renewed, if that attempt is still the one that runs.
#[must_use]
pub fn renew(record: &Record, attempt: u32, lease_until_ms: i64, now_ms: i64) -> Option<Record> {
    let runs = record.state == State::Running && record.attempt == attempt;
    let owner = record.detail.owner.filter(|_| runs)?;
    let mut next = record.next(State::Running, now_ms);
    next.detail.owner = Some(Owner { lease_until_ms, ..owner });
    Some(next)
}

/// The record with the doubt written down: its owner is gone, or has been silent for longer than its lease. Where an
/// overtaken attempt has come back with a success meanwhile, that success settles it.
#[must_use]
pub fn doubt(record: &Record, liveness: Liveness, quarantine_ms: u64, now_ms: i64) -> Record {
    let (reason, quarantine_until_ms) = match liveness {
        Liveness::NeverDispatched => {
            let outcome = Outcome::because(Some("its owner ended before anything was dispatched".to_owned()));
            return end(record, Ending::Failed(outcome), now_ms);
        }
        Liveness::Gone | Liveness::Alive => ("its owner ended without an answer", None),
        Liveness::Unknown => ("its owner has been silent for longer than its lease", Some(later(now_ms, quarantine_ms))),
    };
    let outcome = Outcome::because(Some(reason.to_owned()));
    if record.detail.late.is_some() {
        return end(record, Ending::InDoubt(outcome), now_ms);
    }
    let mut next = Record { outcome: Some(outcome), ..record.next(State::InDoubt, now_ms) };
    next.detail.quarantine_until_ms = quarantine_until_ms;
    next
}

/// The record with an attempt's own ending, which is never dropped, however late it comes.
#[must_use]
pub fn finish(record: &Record, attempt: u32, ending: Ending, now_ms: i64) -> Record {
    if attempt < record.attempt {
        return overtaken(record, attempt, ending, now_ms);
    }
    match record.state {
        State::Running | State::InDoubt => end(record, ending, now_ms),
        State::Done | State::Failed | State::Cancelled => after_settling(record, ending, now_ms),
        // What is staged has no attempt that could end, and a tombstone keeps no results.
        State::Staged | State::Expired => note(record, attempt, ending, now_ms),
    }
}

/// The newest attempt says how it ended.
fn end(record: &Record, ending: Ending, now_ms: i64) -> Record {
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
        (Ending::InDoubt(outcome), None) => {
            Record { outcome: Some(fitting(outcome)), ..record.next(State::InDoubt, now_ms) }
        }
    };
    next.detail.owner = None;
    next.detail.late = None;
    next
}

/// The newest attempt's ending comes after the operation was settled: by hand, by a probe, by a late answer, or by the
/// same ending whose first write was not acknowledged.
fn after_settling(record: &Record, ending: Ending, now_ms: i64) -> Record {
    let another = record.detail.history.iter().any(|past| past.ended == State::Done && past.attempt != record.attempt);
    match ending {
        // It happened after all, or: it happened, and here is its result.
        Ending::Done(outcome) => {
            let mut next = record.settled(State::Done, outcome, now_ms);
            if another {
                next.alarm(DoubleEffect::Certain);
            }
            next
        }
        Ending::Failed(outcome) if record.state == State::Failed => record.settled(State::Failed, outcome, now_ms),
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
        Ending::Done(_) if told => return Record { due_ms: record.due_ms, ..record.next(record.state, now_ms) },
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
        // A tombstone does not say whether it was done, failed or cancelled.
        State::Expired => next.alarm(DoubleEffect::Possible),
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

/// The record with the doubt settled, by hand, by a probe or by a policy. `None` where there is no doubt.
#[must_use]
pub fn settle(
    record: &Record,
    liveness: Liveness,
    verdict: Verdict,
    outcome: Outcome,
    now_ms: i64,
) -> Option<Record> {
    if standing(record, liveness, now_ms) != State::InDoubt {
        return None;
    }
    let ending = match verdict {
        Verdict::Done => Ending::Done(outcome),
        Verdict::Failed => Ending::Failed(outcome),
    };
    Some(end(record, ending, now_ms))
}

/// What asking it to stop comes to.
#[must_use]
pub fn cancel(record: &Record, liveness: Liveness, now_ms: i64) -> Cancelling {
    match standing(record, liveness, now_ms) {
        State::Staged | State::Failed => {
            let outcome = record.outcome.clone().unwrap_or_else(|| Outcome::because(None));
            Cancelling::Cancelled(record.settled(State::Cancelled, outcome, now_ms))
        }
        State::Running => {
            let mut next = record.next(State::Running, now_ms);
            next.detail.cancel_requested_ms.get_or_insert(now_ms);
            Cancelling::Requested(next)
        }
        State::Cancelled => Cancelling::Already,
        State::Done | State::InDoubt | State::Expired => Cancelling::TooLate,
    }
}

/// The record with what a later check said of it. `None` where there is no success to check.
#[must_use]
pub fn verified(record: &Record, verification: Verification, reason: Option<String>, now_ms: i64) -> Option<Record> {
    if record.state != State::Done {
        return None;
    }
    let mut outcome = record.outcome.clone()?;
    outcome.verified = Some(verification);
    let state = match verification {
        Verification::Confirmed | Verification::Pending => State::Done,
        Verification::Refuted => State::InDoubt,
    };
    if state == State::InDoubt {
        outcome.reason = reason;
    }
    let due_ms = record.due_ms.filter(|_| state == State::Done);
    Some(Record { due_ms, outcome: Some(outcome), ..record.next(state, now_ms) })
}

/// What time does to it.
#[must_use]
pub fn age(record: &Record, now_ms: i64) -> Ageing {
    if record.due_ms.is_none_or(|due| now_ms < due) {
        return Ageing::Keep;
    }
    match record.state {
        State::Done | State::Failed | State::Cancelled => {
            let due_ms = Some(later(now_ms, record.detail.tombstone_ms));
            Ageing::Tombstone(Record { due_ms, outcome: None, ..record.next(State::Expired, now_ms) })
        }
        State::Expired => Ageing::Delete,
        State::Staged | State::Running | State::InDoubt => Ageing::Keep,
    }
}

/// A time `span_ms` later, which never overflows.
#[must_use]
pub fn later(now_ms: i64, span_ms: u64) -> i64 {
    now_ms.saturating_add(i64::try_from(span_ms).unwrap_or(i64::MAX))
}

/// The outcome without a result that is too large to keep: never a reason to run again.
fn fitting(outcome: Outcome) -> Outcome {
    if outcome.size() <= MAX_RESULT { outcome } else { Outcome { data: None, body: None, unavailable: true, ..outcome } }
}
