//! How a record changes: each function takes the old record and gives the new one. Pure: `now` is an argument.

mod ending;

pub use ending::{Ending, finish};

use std::sync::Arc;

use self::ending::end;
use crate::decide::{Liveness, standing};
use crate::operation::{Intent, MAX_RESULT};
use crate::record::{Detail, Downstream, MAX_HISTORY, Outcome, Owner, Past, Record, State, Verification};

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

    /// Whether an attempt before the newest one may have happened. A probe that let the newest one run has said of all
    /// before it that they did not; where the class alone let it run, nobody has.
    pub(crate) fn earlier_attempt_in_doubt(&self) -> bool {
        let unasked = matches!(self.detail.class, crate::Class::Idempotent | crate::Class::Keyed);
        let doubtful = |past: &Past| past.ended == State::InDoubt && past.attempt < self.attempt;
        unasked && self.detail.history.iter().any(doubtful)
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
            fields: Arc::new(intent.fields()),
            class: intent.terms.class,
            downstream: None,
            owner: None,
            attempts_before: 0,
            max_attempts: intent.terms.max_attempts,
            retention_ms: intent.terms.retention_ms,
            tombstone_ms: intent.terms.tombstone_ms,
            probe: intent.probe.clone(),
            probe_no: intent.probe_no.clone(),
            verify: intent.verify.clone(),
            history: Vec::new(),
            cancel_requested_ms: None,
            quarantine_ms: intent.terms.quarantine_ms,
            quarantine_until_ms: None,
            folder: intent.folder.clone(),
            command: intent.command.clone(),
            ended: None,
            late: None,
            double_effect: None,
            delivered_ms: None,
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
    detail.probe_no.clone_from(&intent.probe_no);
    detail.verify.clone_from(&intent.verify);
    detail.folder.clone_from(&intent.folder);
    detail.command.clone_from(&intent.command);
    detail.cancel_requested_ms = None;
    detail.quarantine_ms = intent.terms.quarantine_ms;
    detail.quarantine_until_ms = None;
    detail.ended = None;
    detail.delivered_ms = None;
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
        record.detail.fields = Arc::new(intent.fields());
        return record;
    }
    match before.state {
        State::Failed => record.remember(before.attempt, State::Failed, reason, before.updated_ms),
        State::InDoubt => record.remember(before.attempt, State::InDoubt, reason, before.updated_ms),
        State::Running => {
            record.remember(before.attempt, State::InDoubt, Some("its owner was gone".into()), now_ms)
        }
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

/// The record with the doubt written down: its owner is gone, or has been silent for longer than its lease. If an
/// overtaken attempt has reported a success meanwhile, that success settles it.
#[must_use]
pub fn doubt(record: &Record, liveness: Liveness, now_ms: i64) -> Record {
    let reason = match liveness {
        Liveness::NeverDispatched => {
            let outcome = Outcome::because(Some("its owner ended before anything was dispatched".to_owned()));
            return end(record, ending::in_all(record, Ending::Failed(outcome)), now_ms);
        }
        Liveness::Gone | Liveness::Alive => "its owner ended before it reported back",
        Liveness::Unknown => "its owner has been silent for longer than its lease",
    };
    end(record, Ending::InDoubt(Outcome::because(Some(reason.to_owned()))), now_ms)
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
    // A doubt that is written down can be settled even while a process that the attempt left behind still runs.
    if record.state != State::InDoubt && standing(record, liveness, now_ms) != State::InDoubt {
        return None;
    }
    let ending = match verdict {
        Verdict::Done => Ending::Done(outcome),
        Verdict::Failed => Ending::Failed(outcome),
    };
    let mut next = end(record, ending, now_ms);
    // The effect that was seen may be that of the overtaken attempt which has reported its success.
    if record.detail.late.is_some() && verdict == Verdict::Done {
        next.detail.double_effect = record.detail.double_effect;
    }
    Some(next)
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
            // A doubt stays one while a process that the attempt left behind is asked to stop.
            let mut next = record.next(record.state, now_ms);
            next.detail.cancel_requested_ms.get_or_insert(now_ms);
            Cancelling::Requested(next)
        }
        State::Cancelled => Cancelling::Already,
        State::Done | State::InDoubt | State::Expired => Cancelling::TooLate,
    }
}

/// The record with what a later check said of it. `None` where there is no success to check.
#[must_use]
pub fn verified(
    record: &Record,
    verification: Verification,
    reason: Option<String>,
    now_ms: i64,
) -> Option<Record> {
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

/// The record with what is known of the delivery of its answer: from when on it counts as delivered, or that it was not
/// taken after all. `None` where there is no answer that could be delivered.
#[must_use]
pub fn delivered(record: &Record, delivered_ms: Option<i64>) -> Option<Record> {
    if !matches!(record.state, State::Done | State::Failed) {
        return None;
    }
    // Of several who waited for it, the first that surely has it decides.
    let known = record.detail.delivered_ms;
    let delivered_ms = delivered_ms.map(|at| known.map_or(at, |known| known.min(at)));
    if known == delivered_ms {
        return Some(record.clone());
    }
    let mut next = Record { due_ms: record.due_ms, ..record.next(record.state, record.updated_ms) };
    next.detail.delivered_ms = delivered_ms;
    Some(next)
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
            let outcome = record.outcome.as_ref().map(|outcome| Outcome {
                effect: outcome.effect,
                settled_by: outcome.settled_by.clone(),
                ..Outcome::because(None)
            });
            let mut next = Record { due_ms, outcome, ..record.next(State::Expired, now_ms) };
            next.detail.ended = Some(record.state);
            Ageing::Tombstone(next)
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
    if outcome.size() <= MAX_RESULT {
        outcome
    } else {
        Outcome { data: None, body: None, unavailable: true, ..outcome }
    }
}
