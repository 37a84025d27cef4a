//! The settlement of a scope: every intent is accounted for, with the evidence for what became of it.

use serde::Serialize;

use crate::barrier::Barrier;
use crate::kind::Kind;
use crate::record::{DoubleEffect, Effect, Record, State, Usage, Verification};
use crate::time::rfc3339;

/// What became of an intent. Each operation of a scope has exactly one fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// It happened, and its effect was not taken back.
    Standing,
    /// It happened, and its effect was taken back.
    Undone,
    /// It succeeded and changed nothing (effect `noop`), so nothing stands.
    Unchanged,
    /// It did not happen: the attempt failed, and there is evidence for it.
    Failed,
    /// It did not happen: it was cancelled before it began.
    Cancelled,
    /// It is not known whether it happened.
    InDoubt,
    /// It is held back; nothing was sent.
    Held,
    /// It is running.
    Running,
}

impl Fate {
    /// Every fate, in the order of the sum.
    pub const ALL: [Self; 8] = [
        Self::Standing,
        Self::Undone,
        Self::Unchanged,
        Self::Failed,
        Self::Cancelled,
        Self::InDoubt,
        Self::Held,
        Self::Running,
    ];

    /// The fate of an operation in this effective state.
    #[must_use]
    pub fn of(record: &Record, state: State) -> Self {
        match state {
            State::Staged => Self::Held,
            State::Running => Self::Running,
            State::Done => Self::of_done(record),
            State::Failed => Self::Failed,
            State::InDoubt => Self::InDoubt,
            State::Cancelled => Self::Cancelled,
            // A settled record whose retention is over may not be a tombstone yet.
            State::Expired => match (record.state, record.detail.ended) {
                (State::Done, _) | (State::Expired, Some(State::Done)) => Self::of_done(record),
                (State::Failed, _) | (State::Expired, Some(State::Failed)) => Self::Failed,
                (State::Cancelled, _) | (State::Expired, Some(State::Cancelled)) => Self::Cancelled,
                // Older tombstones do not record how the operation ended.
                (State::Staged | State::Running | State::InDoubt | State::Expired, _) => Self::InDoubt,
            },
        }
    }

    /// The fate of an operation that happened: whether it changed something, and whether that was taken back.
    fn of_done(record: &Record) -> Self {
        match &record.detail.undone {
            None if record.outcome.as_ref().is_some_and(|end| end.effect == Some(Effect::Noop)) => {
                Self::Unchanged
            }
            None => Self::Standing,
            Some(mark) if mark.evidence.is_gone() => match record.detail.double_effect {
                None => Self::Undone,
                // One compensation takes one effect back.
                Some(DoubleEffect::Certain) => Self::Standing,
                Some(DoubleEffect::Possible) => Self::InDoubt,
            },
            // Its compensation runs or is in doubt, so it is not known whether the effect is still there.
            Some(_) => Self::InDoubt,
        }
    }

    /// The name of the fate, the same on every surface.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Standing => "standing",
            Self::Undone => "undone",
            Self::Unchanged => "unchanged",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::InDoubt => "in_doubt",
            Self::Held => "held",
            Self::Running => "running",
        }
    }
}

/// The sum of a settlement: *intended = done (standing + undone + unchanged) + not done (failed + cancelled) + in
/// doubt + held + running*.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Sums {
    /// All operations of the scope.
    pub intended: u64,
    /// Those that succeeded: standing, undone and unchanged.
    pub done: u64,
    /// Those that happened and were not taken back.
    pub standing: u64,
    /// Those that happened and were taken back.
    pub undone: u64,
    /// Those that succeeded and changed nothing.
    pub unchanged: u64,
    /// Those that did not happen: failed and cancelled.
    pub not_done: u64,
    /// Those that failed without effect.
    pub failed: u64,
    /// Those that were cancelled before they began.
    pub cancelled: u64,
    /// Those of which it is not known whether they happened.
    pub in_doubt: u64,
    /// Those that are held back.
    pub held: u64,
    /// Those that are running.
    pub running: u64,
}

impl Sums {
    fn add(&mut self, fate: Fate) {
        self.intended += 1;
        match fate {
            Fate::Standing => (self.done, self.standing) = (self.done + 1, self.standing + 1),
            Fate::Undone => (self.done, self.undone) = (self.done + 1, self.undone + 1),
            Fate::Unchanged => (self.done, self.unchanged) = (self.done + 1, self.unchanged + 1),
            Fate::Failed => (self.not_done, self.failed) = (self.not_done + 1, self.failed + 1),
            Fate::Cancelled => (self.not_done, self.cancelled) = (self.not_done + 1, self.cancelled + 1),
            Fate::InDoubt => self.in_doubt += 1,
            Fate::Held => self.held += 1,
            Fate::Running => self.running += 1,
        }
    }

    /// Whether every intent is accounted for.
    #[must_use]
    pub fn adds_up(&self) -> bool {
        self.done == self.standing + self.undone + self.unchanged
            && self.not_done == self.failed + self.cancelled
            && self.intended == self.done + self.not_done + self.in_doubt + self.held + self.running
    }

    /// The sum in one line.
    #[must_use]
    pub fn in_words(&self) -> String {
        format!(
            "{} intended = {} done ({} standing, {} undone, {} unchanged) + {} not done ({} failed, {} cancelled) + {} \
             in doubt + {} held + {} running",
            self.intended,
            self.done,
            self.standing,
            self.undone,
            self.unchanged,
            self.not_done,
            self.failed,
            self.cancelled,
            self.in_doubt,
            self.held,
            self.running
        )
    }
}

/// One operation in a settlement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct SettlementLine {
    /// The operation.
    pub operation: String,
    /// Its name.
    pub name: String,
    /// Its key.
    pub key: String,
    /// What became of it.
    pub fate: Fate,
    /// Who or what said so.
    pub evidence: String,
    /// What it changed, if it is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
    /// How many attempts were made.
    pub attempts: u32,
    /// How often its result was replayed instead of running it again.
    pub duplicates_prevented: u64,
    /// Whether more than one attempt had, or may have had, an effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub double_effect: Option<&'static str>,
    /// The tokens that its model calls used, if there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Tokens>,
    /// When it was first asked for.
    pub created_at: String,
    /// When it last changed.
    pub updated_at: String,
}

/// The tokens of an operation, or of a scope.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Tokens {
    /// Tokens of the requests, with those that the provider read from its cache.
    pub input: u64,
    /// Tokens of the answers.
    pub output: u64,
}

impl Tokens {
    fn add(&mut self, usage: &Usage) {
        self.input += usage.input + usage.cached;
        self.output += usage.output;
    }
}

/// The settlement of a scope. Two settlements without a change in between are equal.
///
/// ```
/// use std::sync::Arc;
/// use onceward::{Ledger, ManualClock, MemoryStore, Operation};
///
/// let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0)))).blocking();
/// let mail = Operation::new("send_mail").scope("run-7").key("welcome");
/// ledger.run(mail, |attempt| Ok(attempt.dispatch()?.created(&())))?;
/// let settlement = ledger.scopes().settlement("run-7")?;
/// assert_eq!((settlement.sums.intended, settlement.sums.standing), (1, 1));
/// assert!(settlement.sums.adds_up());
/// # Ok::<(), onceward::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Settlement {
    /// The scope.
    pub scope: String,
    /// The barrier, if the scope is stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Barrier>,
    /// The times between which the operations were first requested, if this is not the settlement of the whole scope.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// The sum.
    pub sums: Sums,
    /// The attempts of all operations.
    pub attempts: u64,
    /// How often a result was replayed instead of running an operation again.
    pub duplicates_prevented: u64,
    /// The tokens of all model calls, if there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Tokens>,
    /// The webhook events that wait for their deliveries. An event is no operation: its deliveries are, once they have
    /// begun. So events are not part of the sum.
    #[serde(skip_serializing_if = "is_zero")]
    pub events_waiting: u64,
    /// The operations, oldest first.
    pub lines: Vec<SettlementLine>,
}

impl Settlement {
    /// The settlement of a scope without operations.
    pub fn new(scope: impl Into<String>, stopped: Option<Barrier>) -> Self {
        Self {
            scope: scope.into(),
            stopped,
            part: None,
            sums: Sums::default(),
            attempts: 0,
            duplicates_prevented: 0,
            tokens: None,
            events_waiting: 0,
            lines: Vec::new(),
        }
    }

    /// The events that wait, in one sentence.
    #[must_use]
    pub fn events_in_words(&self) -> Option<String> {
        let events = self.events_waiting;
        let until = if self.stopped.is_some() { " until the scope is resumed" } else { "" };
        match events {
            0 => None,
            1 => Some(format!("1 webhook event waits to be delivered{until}; it is not part of the sum")),
            _ => Some(format!(
                "{events} webhook events wait to be delivered{until}; they are not part of the sum"
            )),
        }
    }

    /// Adds an operation in its effective state. A compensation is no intent of its own: it shows in the fate of the
    /// operation that it takes back. Nor is an event: its deliveries are.
    pub fn add(&mut self, record: &Record, state: State) {
        if record.kind == Kind::Event {
            self.events_waiting += u64::from(state == State::Staged);
            return;
        }
        if record.detail.undoes.is_some() {
            return;
        }
        let line = SettlementLine::of(record, state);
        self.sums.add(line.fate);
        self.attempts += u64::from(line.attempts);
        self.duplicates_prevented += line.duplicates_prevented;
        if let Some(tokens) = line.tokens {
            let sum = self.tokens.get_or_insert_default();
            sum.input += tokens.input;
            sum.output += tokens.output;
        }
        self.lines.push(line);
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The part of a scope that a settlement is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Part {
    /// Operations that were first requested at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Operations that were first requested before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

impl Part {
    pub(crate) fn of(since_ms: Option<i64>, until_ms: Option<i64>) -> Option<Self> {
        (since_ms.is_some() || until_ms.is_some())
            .then(|| Self { since: since_ms.map(rfc3339), until: until_ms.map(rfc3339) })
    }

    /// The part in one sentence.
    #[must_use]
    pub fn in_words(&self) -> String {
        let since = self.since.as_ref().map(|since| format!(" since {since}")).unwrap_or_default();
        let until = self.until.as_ref().map(|until| format!(" before {until}")).unwrap_or_default();
        format!("a part of the scope: only operations that were first requested{since}{until}")
    }
}

impl SettlementLine {
    pub(crate) fn of(record: &Record, state: State) -> Self {
        let outcome = record.outcome.as_ref();
        let usages = record.detail.history.iter().filter_map(|past| past.usage.as_ref());
        let tokens =
            usages.chain(outcome.and_then(|outcome| outcome.usage.as_ref())).fold(None, |sum, usage| {
                let mut sum: Tokens = sum.unwrap_or_default();
                sum.add(usage);
                Some(sum)
            });
        let fate = Fate::of(record, state);
        Self {
            operation: record.id.to_string(),
            name: record.name.clone(),
            key: record.key.text.clone(),
            fate,
            evidence: evidence(record, fate),
            effect: outcome.and_then(|outcome| outcome.effect),
            attempts: record.attempt,
            duplicates_prevented: record.replays,
            double_effect: record.detail.double_effect.map(|alarm| match alarm {
                DoubleEffect::Possible => "possible",
                DoubleEffect::Certain => "certain",
            }),
            tokens,
            created_at: rfc3339(record.created_ms),
            updated_at: rfc3339(record.updated_ms),
        }
    }
}

/// Who or what said that this became of the operation.
fn evidence(record: &Record, fate: Fate) -> String {
    let attempt = record.attempt;
    let because = |text: String| match record.reason() {
        Some(reason) => format!("{text}: {reason}"),
        None => text,
    };
    if let Some(mark) = &record.detail.undone {
        return if let Some(alarm) = record.detail.double_effect {
            let two = match alarm {
                DoubleEffect::Certain => "two attempts had an effect",
                DoubleEffect::Possible => "two attempts may have had an effect",
            };
            format!("{two}, and {} takes back at most one of them", mark.by)
        } else if mark.evidence.is_gone() {
            format!("done, and taken back by {}: {}", mark.by, mark.evidence_in_words())
        } else {
            format!("done; {} takes it back, and it is not known whether it has", mark.by)
        };
    }
    if let Some(who) = record.outcome.as_ref().and_then(|outcome| outcome.settled_by.as_ref()) {
        let is_cancelled = fate == Fate::Cancelled;
        return because(if is_cancelled { format!("cancelled by {who}") } else { who.to_string() });
    }
    match fate {
        Fate::Unchanged => format!("the answer of attempt {attempt}: it changed nothing"),
        Fate::Standing | Fate::Undone => match record.outcome.as_ref().and_then(|outcome| outcome.verified) {
            Some(Verification::Confirmed) => {
                format!("the answer of attempt {attempt}, confirmed by its check")
            }
            Some(Verification::Pending) => format!("the answer of attempt {attempt}; its check is pending"),
            Some(Verification::Refuted) | None => format!("the answer of attempt {attempt}"),
        },
        Fate::Failed => because(format!("attempt {attempt} failed without effect")),
        Fate::Cancelled if attempt == 0 => "cancelled before anything was sent".to_owned(),
        Fate::Cancelled => because(format!("cancelled after attempt {attempt} failed without effect")),
        Fate::InDoubt => because(format!("none: attempt {attempt} may have taken effect")),
        Fate::Held => "held back; nothing was sent".to_owned(),
        Fate::Running if record.detail.cancel_requested_ms.is_some() => {
            format!("none yet: attempt {attempt} was asked to stop and is running")
        }
        Fate::Running => format!("none yet: attempt {attempt} is running"),
    }
}
