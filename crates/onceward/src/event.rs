//! Events of an inbox: what was acknowledged is delivered to every handler that wants it, or waits for a person with
//! the reason. Pure, like the life cycles of operations and of undo: `now` is an argument.
//!
//! An event is `staged` from the moment it is accepted until each of its deliveries has a [`Fate`]:
//!
//! | the fates of its deliveries | the event is | and ends by |
//! |---|---|---|
//! | one is missing | `staged` | its deliveries |
//! | each is handled, or refused by a person | `done` | the end of its retention |
//! | one is dead or in doubt, none is missing | `in_doubt`: a dead letter | a person, who retries or refuses it |
//!
//! Only a `done` event has a due time, so nothing that was acknowledged ends by expiry. Each delivery is an operation
//! of its own, and [`next`] is the table of what follows from its state.

use std::collections::BTreeMap;

use crate::operation::Intent;
pub use crate::record::{Again, Deliveries, Fate, Round};
use crate::record::{Class, Outcome, Record, State};
use crate::transition::{later, stage};

/// What a handler allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowed {
    /// What may be done about a doubt, as it is configured now.
    pub class: Class,
    /// The most attempts of the occurrence.
    pub attempts: u32,
    /// The pause after the newest attempt.
    pub pause_ms: u64,
    /// How long after a doubt its probe is asked.
    pub asked_for_ms: u64,
}

/// What follows from the state of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It is time for an attempt.
    Attempt,
    /// Someone is at it.
    Running,
    /// The next attempt is due then.
    At(i64),
    /// It has ended so.
    Ended(Fate),
}

impl Record {
    /// Who gets this event. `None` if it is not one.
    #[must_use]
    pub fn deliveries(&self) -> Option<&Deliveries> {
        self.detail.event.as_deref()
    }

    /// The next version of an event, with these deliveries.
    fn with_deliveries(&self, deliveries: Deliveries, now_ms: i64) -> Self {
        let mut next = Self { version: self.version + 1, updated_ms: now_ms, ..self.clone() };
        next.place(deliveries, now_ms);
        next
    }

    fn place(&mut self, deliveries: Deliveries, now_ms: i64) {
        self.state = deliveries.state();
        self.attempt = u32::from(self.state != State::Staged);
        self.due_ms = (self.state == State::Done).then(|| later(now_ms, self.detail.retention_ms));
        self.detail.event = Some(Box::new(deliveries));
    }
}

/// The record of an event with this content. It is done at once if no handler wants it.
#[must_use]
pub fn accepted(intent: &Intent, deliveries: Deliveries, content: Outcome, now_ms: i64) -> Record {
    let mut record = Record { outcome: Some(content), ..stage(intent, now_ms) };
    record.place(deliveries, now_ms);
    record
}

/// The event with these fates of deliveries of this round. `None` if they say nothing new: they are known, the event is
/// done, or it has been delivered once more since, so that they are about an earlier round.
#[must_use]
pub fn ended(event: &Record, round: Round, fates: &BTreeMap<String, Fate>, now_ms: i64) -> Option<Record> {
    if !matches!(event.state, State::Staged | State::InDoubt) {
        return None;
    }
    let known = event.deliveries().filter(|known| known.round == round)?;
    let mut deliveries = known.clone();
    for (handler, fate) in &mut deliveries.handlers {
        *fate = fates.get(handler).copied().or(*fate);
    }
    (deliveries != *known).then(|| event.with_deliveries(deliveries, now_ms))
}

/// The event when it is delivered once more. `None` if no delivery is due then, or its content is gone.
#[must_use]
pub fn again(event: &Record, again: Again, now_ms: i64) -> Option<Record> {
    event.outcome.as_ref().filter(|content| content.body.is_some())?;
    if !matches!(event.state, State::Staged | State::InDoubt | State::Done) {
        return None;
    }
    let mut deliveries = event.deliveries()?.clone();
    deliveries.again(again);
    (deliveries.state() == State::Staged).then(|| event.with_deliveries(deliveries, now_ms))
}

/// The fate of a delivery that was dead or in doubt when it ended: someone may have settled or refused it since.
#[must_use]
pub fn seen_now(fate: Fate, delivery: Option<(&Record, State)>) -> Fate {
    let Some((record, state)) = delivery else { return fate };
    match (fate, record.ended_as(state)) {
        (Fate::Handled | Fate::Refused, _) => fate,
        (Fate::Dead | Fate::InDoubt, State::Done) => Fate::Handled,
        (Fate::Dead | Fate::InDoubt, State::Cancelled) => Fate::Refused,
        (Fate::Dead | Fate::InDoubt, State::Failed) => Fate::Dead,
        (Fate::Dead | Fate::InDoubt, State::InDoubt) => Fate::InDoubt,
        (Fate::Dead | Fate::InDoubt, State::Staged | State::Running | State::Expired) => fate,
    }
}

/// What follows from a delivery: from its record with its effective state, if it has one.
#[must_use]
pub fn next(delivery: Option<(&Record, State)>, allowed: &Allowed, now_ms: i64) -> Next {
    let Some((record, state)) = delivery else { return Next::Attempt };
    let is_spent = record.spent_attempts() >= allowed.attempts;
    let due_ms = later(record.updated_ms, allowed.pause_ms);
    let when_due = if now_ms < due_ms { Next::At(due_ms) } else { Next::Attempt };
    match record.ended_as(state) {
        State::Staged => Next::Attempt,
        State::Running => Next::Running,
        State::Done => Next::Ended(Fate::Handled),
        State::Cancelled => Next::Ended(Fate::Refused),
        State::Failed if is_spent => Next::Ended(Fate::Dead),
        State::Failed => when_due,
        State::InDoubt => match allowed.class {
            Class::Read | Class::Idempotent if !is_spent => when_due,
            Class::Keyed if !is_spent && record.downstream_remembers(now_ms) => when_due,
            Class::Probed if now_ms < later(record.updated_ms, allowed.asked_for_ms) => when_due,
            Class::Read | Class::Idempotent | Class::Keyed | Class::Probed | Class::Once => {
                Next::Ended(Fate::InDoubt)
            }
        },
        // Its tombstone does not say how it ended.
        State::Expired => Next::Ended(Fate::InDoubt),
    }
}
