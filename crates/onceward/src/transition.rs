//! How a record changes: each function takes the old record and returns the new one. Pure: `now` is an argument.

mod ending;
mod restored;
mod undo;

pub use ending::{Report, finish, report};
pub use restored::{lost, outdated};
pub use undo::{begin_undo, begin_undo_attempt, undone, withdraw_undo};

use std::sync::Arc;

use self::ending::end;
use crate::decide::{self, effective_state};
use crate::evidence::Evidence;
use crate::facts::{Ending, Liveness, Verdict};
use crate::kind::Kind;
use crate::operation::Intent;
use crate::policy::Hold;
use crate::record::{
    Delivered, Detail, Downstream, Effect, Held, MAX_HISTORY, MAX_RESULT, Outcome, Owner, Past, Record,
    State, Verification,
};
use crate::word::{Speaker, Word};

/// The result of cancelling an operation.
#[derive(Debug, Clone)]
pub enum Cancelling {
    /// It will not happen; this is certain.
    Cancelled(Record),
    /// It is running: its owner is asked to stop, and the attempt's own ending will say what happened.
    Requested(Record),
    /// It was already cancelled.
    Already,
    /// It cannot be cancelled, because it happened, may have happened, or has expired.
    TooLate,
}

/// How a record ages.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "it is looked at once and never kept")]
pub enum Ageing {
    /// Replace the result by a tombstone.
    Tombstone(Record),
    /// Delete the tombstone.
    Delete,
    /// Change nothing yet.
    Keep,
}

impl Detail {
    /// What a tombstone keeps: the key, how the operation ended, and when to delete it.
    fn tombstone(&self, ended: State) -> Self {
        Self {
            fingerprint: self.fingerprint.clone(),
            fields: Arc::default(),
            class: self.class,
            downstream: None,
            owner: None,
            attempts_before: self.attempts_before,
            max_attempts: self.max_attempts,
            retention_ms: self.retention_ms,
            tombstone_ms: self.tombstone_ms,
            probe: None,
            probe_no: Vec::new(),
            verify: None,
            undo: None,
            undone: self.undone.clone(),
            undoes: self.undoes.clone(),
            // What an attempt used was paid for, even when its answer is gone; and what someone said is kept.
            history: self
                .history
                .iter()
                .filter(|past| past.usage.is_some() || past.settled_by.is_some())
                .map(|past| Past { reason: None, ..past.clone() })
                .collect(),
            cancel_requested_ms: None,
            cancelled_by: self.cancelled_by.clone(),
            quarantine_ms: 0,
            quarantine_until_ms: None,
            silent: false,
            folder: None,
            command: None,
            trace_parent: None,
            ended: Some(ended),
            late: None,
            double_effect: self.double_effect,
            delivered: None,
            held: None,
            event: self.event.clone(),
        }
    }
}

impl Record {
    /// How many attempts were made in the current occurrence of the key.
    #[must_use]
    pub fn spent_attempts(&self) -> u32 {
        self.attempt - self.detail.attempts_before
    }

    /// Whether an attempt before the newest one may have taken effect. If the class allowed the newest attempt, that
    /// is unknown. If a probe allowed it, the earlier ones had no effect until the probe looked: one that reported its
    /// doubt after that may have had one since.
    pub(crate) fn earlier_attempt_in_doubt(&self) -> bool {
        use crate::Class;
        let history = &self.detail.history;
        let is_doubt = |past: &Past| past.ended == State::InDoubt && past.attempt < self.attempt;
        match self.detail.class {
            Class::Idempotent | Class::Keyed => history.iter().any(is_doubt),
            Class::Probed => {
                let says_no = |past: &Past| past.evidence == Some(Evidence::ProbeSaysNo);
                history.iter().skip_while(|past| !says_no(past)).any(is_doubt)
            }
            Class::Read | Class::Once => false,
        }
    }

    /// How the operation ended: this effective state, or, if it has expired, the one before that.
    #[must_use]
    pub fn ended_as(&self, state: State) -> State {
        match (state, self.state) {
            (State::Expired, State::Expired) => self.detail.ended.unwrap_or(State::Expired),
            (State::Expired, stored) => stored,
            (state, _) => state,
        }
    }

    /// Whether the downstream still knows the key that was sent to it, so that it does nothing twice.
    pub(crate) fn downstream_remembers(&self, now_ms: i64) -> bool {
        self.detail.downstream.as_ref().is_some_and(|downstream| now_ms < downstream.safe_until_ms)
    }

    /// The next version of this record, in this state.
    fn next(&self, state: State, now_ms: i64) -> Self {
        let mut next =
            Self { version: self.version + 1, state, updated_ms: now_ms, due_ms: None, ..self.clone() };
        next.forget_request();
        next
    }

    /// The next version, settled with this outcome and due at the end of its retention.
    fn settle_as(&self, state: State, outcome: Outcome, now_ms: i64) -> Self {
        let due_ms = Some(later(now_ms, self.detail.retention_ms));
        let mut next = Self { due_ms, ..self.next(state, now_ms) };
        next.replace_outcome(self.state, outcome);
        next.detail.quarantine_until_ms = None;
        next.detail.silent = false;
        // What was delivered was another answer. A late result of what is known to be done is not.
        next.detail.delivered = self.detail.delivered.filter(|_| self.state == state);
        next
    }

    /// The next version, cancelled on this word: what was known about an attempt stays.
    fn cancelled_on(&self, word: Word, now_ms: i64) -> Self {
        let known = self.outcome.clone().unwrap_or_else(|| Outcome::because(None));
        let outcome = Outcome { settled_by: Some(Box::new(word)), ..known };
        self.settle_as(State::Cancelled, outcome, now_ms)
    }

    /// Replaces the outcome that the record had in this state. What someone said goes into the history with it, unless
    /// the new outcome has the same word.
    fn replace_outcome(&mut self, state: State, outcome: Outcome) {
        let before = self.outcome.replace(without_oversized_result(outcome));
        let Some(before) = before else { return };
        let Some(said) = before.settled_by.clone() else { return };
        if self.outcome.as_ref().is_some_and(|outcome| outcome.settled_by.as_ref() == Some(&said)) {
            return;
        }
        let ended = match state {
            // The word was that it is done, and a check refuted it.
            State::InDoubt => State::Done,
            State::Expired => self.detail.ended.unwrap_or(state),
            State::Staged | State::Running | State::Done | State::Failed | State::Cancelled => state,
        };
        self.remember(self.attempt, ended, Some(&Outcome { usage: None, ..before }), said.at_ms);
    }

    fn remember(&mut self, attempt: u32, ended: State, outcome: Option<&Outcome>, at_ms: i64) {
        let reason = outcome.and_then(|outcome| outcome.reason.clone());
        let usage = outcome.and_then(|outcome| outcome.usage.clone());
        let evidence = outcome.and_then(|outcome| outcome.evidence.clone());
        let settled_by = outcome.and_then(|outcome| outcome.settled_by.clone());
        self.detail.history.push(Past { attempt, ended, at_ms, reason, evidence, settled_by, usage });
        let surplus = self.detail.history.len().saturating_sub(MAX_HISTORY);
        self.detail.history.drain(..surplus);
    }
}

/// The record of an operation that is held back.
#[must_use]
pub fn stage(intent: &Intent, now_ms: i64) -> Record {
    Record {
        action: Some(intent.action()).filter(|action| *action != intent.id),
        id: intent.id.clone(),
        number: intent.number,
        kind: intent.kind,
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
            undo: intent.undo.clone(),
            undone: None,
            undoes: intent.undoes.clone(),
            history: Vec::new(),
            cancel_requested_ms: None,
            cancelled_by: None,
            quarantine_ms: intent.terms.quarantine_ms,
            quarantine_until_ms: None,
            silent: false,
            folder: intent.folder.clone(),
            trace_parent: intent.trace_parent.clone(),
            command: intent.command.clone(),
            ended: None,
            late: None,
            double_effect: None,
            delivered: None,
            held: None,
            event: None,
        },
        outcome: None,
        replays: 0,
    }
}

/// The record of an operation whose key is new, and which someone's word about an equal one answers: it is done, and
/// changed nothing itself. The key keeps that answer.
#[must_use]
pub fn answered(intent: &Intent, by: &Record, now_ms: i64) -> Record {
    let said = by.outcome.as_ref();
    let outcome = Outcome {
        settled_by: said.and_then(|outcome| outcome.settled_by.clone()),
        data: said.and_then(|outcome| outcome.data.clone()),
        reason: said.and_then(|outcome| outcome.reason.clone()),
        ..Outcome::with_effect(Effect::Noop)
    };
    let mut record = stage(intent, now_ms);
    record.attempt = 1;
    record.state = State::Done;
    record.due_ms = Some(later(now_ms, record.detail.retention_ms));
    record.outcome = Some(outcome);
    // It answers this key alone.
    record.detail.delivered = Some(Delivered { at_ms: now_ms, same_until_ms: None });
    record
}

/// The record of an operation that is held back, in place of the record of an earlier occurrence that has expired, or
/// again because it was never released.
#[must_use]
pub fn hold(found: Option<&Record>, intent: &Intent, now_ms: i64) -> Record {
    let mut record = match found {
        None => stage(intent, now_ms),
        Some(before) => {
            Record { state: State::Staged, outcome: None, ..further_attempt(before, intent, now_ms) }
        }
    };
    record.detail.attempts_before = record.attempt;
    record.detail.quarantine_until_ms = None;
    // It keeps its time and its request: what a person may have seen is what is held.
    if record.detail.held.is_some() {
        return record;
    }
    let until_ms = match intent.terms.hold {
        Hold::For(ms) => Some(later(now_ms, ms)),
        Hold::No | Hold::Approve => None,
    };
    let held = Held { until_ms, ..intent.held() };
    record.detail.held = Some(Box::new(held));
    record
}

/// The record released before its time, on this word. Unchanged if it may start already; `None` if it is not held, and
/// cannot start again from its stored request.
#[must_use]
pub fn release(record: &Record, word: &Word, now_ms: i64) -> Option<Record> {
    let held = match record.state {
        State::Staged => record.held()?,
        State::Failed => record.held_request().and(record.detail.held.as_deref())?,
        State::Running | State::Done | State::InDoubt | State::Cancelled | State::Expired => return None,
    };
    if held.may_start(now_ms) {
        return Some(record.clone());
    }
    let mut next = Record { due_ms: record.due_ms, ..record.next(record.state, now_ms) };
    let held = Held { released: Some(word.clone().at(now_ms)), ..held.clone() };
    next.detail.held = Some(Box::new(held));
    Some(next)
}

/// The record with its next attempt, to be written before that attempt runs.
#[must_use]
pub fn start(found: Option<&Record>, intent: &Intent, owner: Owner, now_ms: i64) -> Record {
    let mut record = match found {
        None => Record { state: State::Running, ..stage(intent, now_ms) },
        Some(before) => further_attempt(before, intent, now_ms),
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
    detail.undo.clone_from(&intent.undo);
    detail.undoes.clone_from(&intent.undoes);
    detail.folder.clone_from(&intent.folder);
    detail.trace_parent.clone_from(&intent.trace_parent);
    detail.command.clone_from(&intent.command);
    detail.cancel_requested_ms = None;
    detail.cancelled_by = None;
    detail.quarantine_ms = intent.terms.quarantine_ms;
    detail.quarantine_until_ms = None;
    detail.silent = false;
    detail.ended = None;
    detail.delivered = None;
    // The downstream counts its window from the first time it sees the key, so a retry does not extend it.
    if intent.terms.class == crate::Class::Keyed && detail.downstream.is_none() {
        detail.downstream = Some(Downstream {
            key: intent.downstream_key(),
            safe_until_ms: later(now_ms, intent.terms.downstream_window_ms),
        });
    }
    record
}

/// A record in doubt as it counts after its probe said that nothing happened, so that the next attempt may start. It
/// has the version of the stored one, because the write that starts that attempt records the answer as well.
#[must_use]
pub fn denied(record: &Record, now_ms: i64) -> Record {
    let word = Word { doubt: record.reason().map(str::to_owned), ..Word::probe().at(now_ms) };
    let outcome = Outcome { settled_by: Some(Box::new(word)), ..Outcome::because(None) };
    let mut seen = Record { state: State::Failed, updated_ms: now_ms, ..record.clone() };
    seen.replace_outcome(record.state, outcome.proven_by(Evidence::ProbeSaysNo));
    seen
}

/// The record of a further attempt; the previous one goes into the history.
fn further_attempt(before: &Record, intent: &Intent, now_ms: i64) -> Record {
    let mut record = before.next(State::Running, now_ms);
    let outcome = before.outcome.as_ref();
    let is_over = before.due_ms.is_some_and(|due| due <= now_ms) || before.state == State::Expired;
    if is_over && !decide::continues_when_expired(before, intent) {
        // The retention has ended: this is the next occurrence, with its own budget and downstream key.
        record.created_ms = now_ms;
        record.detail.attempts_before = before.attempt;
        record.detail.history.clear();
        record.detail.downstream = None;
        record.detail.late = None;
        record.detail.double_effect = None;
        record.detail.undone = None;
        record.detail.fields = Arc::new(intent.fields());
        record.detail.held = None;
        return record;
    }
    if before.state == State::Expired {
        record.detail.fields = Arc::new(intent.fields());
        record.detail.ended = None;
    }
    match before.ended_as(before.state) {
        State::Failed => record.remember(before.attempt, State::Failed, outcome, before.updated_ms),
        State::InDoubt => record.remember(before.attempt, State::InDoubt, outcome, before.updated_ms),
        State::Running => {
            let gone = Outcome::because(Some("its owner was gone".to_owned()));
            record.remember(before.attempt, State::InDoubt, Some(&gone), now_ms);
        }
        State::Staged | State::Done | State::Cancelled | State::Expired => {}
    }
    record
}

/// The record with a renewed lease, if the attempt is still the newest and has not ended. An owner that missed its
/// lease but is alive takes its operation back from the doubt, unless another caller has acted on the doubt.
#[must_use]
pub fn renew(record: &Record, attempt: u32, token: u64, lease_until_ms: i64, now_ms: i64) -> Option<Record> {
    let unended = match record.state {
        State::Running => true,
        State::InDoubt => record.detail.silent,
        State::Staged | State::Done | State::Failed | State::Cancelled | State::Expired => false,
    };
    let mine = unended && record.attempt == attempt;
    let owner = record.detail.owner.filter(|owner| mine && owner.token == token)?;
    let mut next = Record { outcome: None, ..record.next(State::Running, now_ms) };
    next.detail.owner = Some(Owner { lease_until_ms, ..owner });
    next.detail.quarantine_until_ms = None;
    next.detail.silent = false;
    Some(next)
}

/// The record of an attempt whose owner knows that nothing was dispatched, because only the reply to its intent was
/// lost.
#[must_use]
pub fn withdraw(record: &Record, token: u64, now_ms: i64) -> Option<Record> {
    let open = matches!(record.state, State::Running | State::InDoubt);
    record.detail.owner.filter(|owner| open && owner.token == token)?;
    let reason = "its intent was written and the reply was lost, so nothing was run";
    Some(not_started(record, reason, now_ms))
}

/// The record marked as in doubt, because its owner is gone or has not renewed its lease. If an overtaken attempt has
/// reported a success meanwhile, that success settles it.
#[must_use]
pub fn doubt(record: &Record, liveness: Liveness, now_ms: i64) -> Record {
    let reason = silence(liveness);
    if liveness == Liveness::NeverDispatched {
        return not_started(record, reason, now_ms);
    }
    let mut next = end(record, Ending::in_doubt(reason), now_ms);
    next.detail.silent = next.state == State::InDoubt && liveness == Liveness::Unknown;
    next
}

/// Why an attempt that has not reported back is not running.
fn silence(liveness: Liveness) -> &'static str {
    match liveness {
        Liveness::NeverDispatched => "its owner ended before anything was dispatched",
        Liveness::Gone | Liveness::Alive => "its owner ended before it reported back",
        Liveness::Unknown => "its owner has been silent for longer than its lease",
    }
}

/// The record of an attempt that ended before its dispatch.
fn not_started(record: &Record, reason: &str, now_ms: i64) -> Record {
    let ending = Ending::failed(Evidence::NotStarted, reason);
    end(record, ending::including_earlier_attempts(record, ending), now_ms)
}

/// The record with the doubt settled on this word. The word keeps why there was a doubt. `None` if it is not in doubt.
#[must_use]
pub fn settle(
    record: &Record,
    liveness: Liveness,
    verdict: Verdict,
    word: Word,
    outcome: Outcome,
    now_ms: i64,
) -> Option<Record> {
    // What became of an event follows from its deliveries.
    if record.kind == Kind::Event {
        return None;
    }
    // A recorded doubt can be settled even while a process that the attempt left behind is still running.
    if record.state != State::InDoubt && effective_state(record, liveness, now_ms) != State::InDoubt {
        return None;
    }
    let evidence = match word.by {
        Speaker::Probe => Evidence::ProbeSaysNo,
        Speaker::Person | Speaker::Agent | Speaker::Program => Evidence::said(),
    };
    let known = record.outcome.as_ref().and_then(|outcome| outcome.reason.clone());
    let doubt = known.or_else(|| (record.state == State::Running).then(|| silence(liveness).to_owned()));
    let outcome = Outcome { settled_by: Some(Box::new(Word { doubt, ..word.at(now_ms) })), ..outcome };
    let ending = match verdict {
        Verdict::Done => Ending::Done(outcome),
        Verdict::Failed => Ending::Failed(evidence, outcome),
    };
    let mut next = end(record, ending, now_ms);
    // The observed effect may be that of the overtaken attempt that reported its success.
    if record.detail.late.is_some() && verdict == Verdict::Done {
        next.detail.double_effect = record.detail.double_effect;
    }
    Some(next)
}

/// Decides what cancelling the operation does, on this word.
#[must_use]
pub fn cancel(record: &Record, liveness: Liveness, word: &Word, now_ms: i64) -> Cancelling {
    match effective_state(record, liveness, now_ms) {
        // An event that was acknowledged has happened; only its deliveries can be cancelled.
        State::Staged if record.kind == Kind::Event => Cancelling::TooLate,
        State::Staged | State::Failed => {
            Cancelling::Cancelled(record.cancelled_on(word.clone().at(now_ms), now_ms))
        }
        State::Running => {
            let mut next = ask_to_end(record, now_ms);
            next.detail.cancelled_by.get_or_insert_with(|| Box::new(word.clone().at(now_ms)));
            Cancelling::Requested(next)
        }
        State::Cancelled => Cancelling::Already,
        State::Done | State::InDoubt | State::Expired => Cancelling::TooLate,
    }
}

/// The record of a running attempt that is asked to end. If it has no effect, the operation can run again. A doubt
/// remains while a process that the attempt left behind is asked.
#[must_use]
pub fn ask_to_end(record: &Record, now_ms: i64) -> Record {
    let mut next = record.next(record.state, now_ms);
    next.detail.cancel_requested_ms.get_or_insert(now_ms);
    next
}

/// The record with the result of a later check. `None` if there is no success to check.
#[must_use]
pub fn verified(
    record: &Record,
    verification: Verification,
    reason: Option<String>,
    now_ms: i64,
) -> Option<Record> {
    // A check of an effect that was taken back says nothing about whether it had happened.
    if record.state != State::Done || record.detail.undone.is_some() {
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

/// The record with the delivery of its answer, or without one if the answer was not received after all. Returns `None`
/// if there is no answer to deliver.
#[must_use]
pub fn delivered(record: &Record, delivered: Option<Delivered>) -> Option<Record> {
    if !matches!(record.state, State::Done | State::Failed | State::Cancelled) {
        return None;
    }
    let known = record.detail.delivered;
    let delivered = delivered.map(|now| known.map_or(now, |known| known.surer(now)));
    if known == delivered {
        return Some(record.clone());
    }
    let mut next = Record { due_ms: record.due_ms, ..record.next(record.state, record.updated_ms) };
    next.detail.delivered = delivered;
    Some(next)
}

/// Decides how the record ages.
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
                evidence: outcome.evidence.clone(),
                settled_by: outcome.settled_by.clone(),
                usage: outcome.usage.clone(),
                ..Outcome::because(None)
            });
            let detail = record.detail.tombstone(record.state);
            Ageing::Tombstone(Record { due_ms, outcome, detail, ..record.next(State::Expired, now_ms) })
        }
        State::Expired => Ageing::Delete,
        State::Staged | State::Running | State::InDoubt => Ageing::Keep,
    }
}

/// The time `span_ms` later, saturating instead of overflowing.
#[must_use]
pub fn later(now_ms: i64, span_ms: u64) -> i64 {
    now_ms.saturating_add_unsigned(span_ms)
}

/// The outcome, without its result if that is too large to store. This is never a reason to run again.
fn without_oversized_result(outcome: Outcome) -> Outcome {
    if outcome.size() <= MAX_RESULT {
        outcome
    } else {
        Outcome { data: None, body: None, unavailable: true, ..outcome }
    }
}
