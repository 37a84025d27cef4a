//! Deciding about an undo: what can be taken back, in which order, and what a compensation's end proves. Pure.

mod report;

use crate::error::Error;
use crate::facts::Happened;
use crate::key::OperationId;
use crate::record::{
    Compensation, CompensationKind, Effect, ProgramUndo, Record, State, UndoEvidence, Verification,
};
use crate::text::{one_line, shell_word};

pub use report::{UndoLine, UndoReport, UndoResult};

/// What an undo does about one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reversal {
    /// Its effect stands: run its compensation, or finish one that has begun.
    Compensate,
    /// It stands, because nothing is registered that takes it back.
    Irreversible,
    /// It may have happened: it must be settled first. An unknown effect is never compensated.
    InDoubt,
    /// Its success was only accepted, or its check has not confirmed it yet.
    Unconfirmed,
    /// Two attempts had an effect, or may have: one compensation does not take it back.
    Doubled,
    /// It is running, so it may still happen.
    Running,
    /// It has been taken back.
    AlreadyUndone,
    /// It had no effect: it failed, was cancelled, or changed nothing.
    NothingHappened,
    /// It is held back: it had no effect, but it may still start.
    Held,
    /// It stands, and its result has expired, so its compensation is no longer known.
    Expired,
    /// It takes another operation back itself.
    Compensation,
}

impl Reversal {
    /// The name of the decision.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Compensate => "compensate",
            Self::Irreversible => "irreversible",
            Self::InDoubt => "in_doubt",
            Self::Unconfirmed => "unconfirmed",
            Self::Doubled => "doubled",
            Self::Running => "running",
            Self::AlreadyUndone => "already_undone",
            Self::NothingHappened => "nothing_happened",
            Self::Held => "held",
            Self::Expired => "expired",
            Self::Compensation => "compensation",
        }
    }

    /// Why an operation of this kind is left alone; `None` if its compensation decides.
    #[must_use]
    pub const fn why_left(self) -> Option<&'static str> {
        match self {
            Self::Compensate => None,
            Self::Irreversible => Some("nothing is registered that takes it back"),
            Self::InDoubt => Some("it may have happened, and there is no probe to ask: settle it first"),
            Self::Unconfirmed => Some(
                "its success is not confirmed yet, so its effect may not be there: wait for its check, or record what \
                 is known with `once verify`",
            ),
            Self::Doubled => Some(
                "two attempts had an effect, or may have: one compensation would leave the other effect, so take both \
                 back by hand",
            ),
            Self::Running => Some("it is still running"),
            Self::AlreadyUndone => Some("it has been taken back"),
            Self::NothingHappened => Some("it had no effect"),
            Self::Held => Some("it is held back and may still start: cancel it, or stop the scope"),
            Self::Expired => Some("it was done, and its result has expired"),
            Self::Compensation => Some("it takes another operation back itself"),
        }
    }

    /// Decides about a record in this effective state.
    #[must_use]
    pub fn of(record: &Record, state: State) -> Self {
        if record.detail.undoes.is_some() {
            return Self::Compensation;
        }
        let changed_nothing = || record.outcome.as_ref().is_some_and(|end| end.effect == Some(Effect::Noop));
        let is_pending =
            || record.outcome.as_ref().and_then(|end| end.verified) == Some(Verification::Pending);
        match state {
            State::Done if record.detail.double_effect.is_some() => Self::Doubled,
            State::Done if record.is_undone() => Self::AlreadyUndone,
            State::Done if changed_nothing() => Self::NothingHappened,
            // An unknown effect is not compensated. A compensation that has begun is finished.
            State::Done if is_pending() && record.detail.undone.is_none() => Self::Unconfirmed,
            // A mark without a stored compensation: the caller brought its own.
            State::Done if record.detail.undo.is_some() || record.detail.undone.is_some() => Self::Compensate,
            State::Done => Self::Irreversible,
            State::Staged => Self::Held,
            State::Failed | State::Cancelled => Self::NothingHappened,
            State::Running => Self::Running,
            State::InDoubt => Self::InDoubt,
            State::Expired => match record.happened() {
                Happened::No => Self::NothingHappened,
                Happened::Yes if record.is_undone() => Self::AlreadyUndone,
                Happened::Yes if changed_nothing() => Self::NothingHappened,
                Happened::Yes | Happened::Unknown => Self::Expired,
            },
        }
    }
}

impl Compensation {
    /// Who takes the operation back, for a caller that cannot.
    #[must_use]
    pub fn taken_back_by(&self, id: &OperationId) -> String {
        match self.runs {
            CompensationKind::Command => format!("a command takes it back: `once undo {id}`"),
            CompensationKind::Code => {
                format!("the program that ran it takes it back, in Python with ledger.compensate(\"{id}\")")
            }
            CompensationKind::Program => match ProgramUndo::parse(&self.text) {
                Some(undo) => {
                    let program = shell_word(&undo.program);
                    format!("the tool that ran it takes it back: `{} undo {id}`", one_line(&program))
                }
                None => "the tool that ran it takes it back, with its command `undo`".to_owned(),
            },
            CompensationKind::Tool => format!(
                "a tool of its MCP server takes it back: `once undo {id} -- SERVER`, with the command of the server, \
                 or `once undo {id} --http URL`"
            ),
            CompensationKind::Request => format!(
                "a request to its API takes it back: send `Once-Undo: {id}` to the gateway (POST /gw/UPSTREAM), with \
                 the credentials of the call"
            ),
        }
    }
}

/// One operation of a plan.
#[derive(Debug, Clone)]
pub struct UndoStep {
    /// The operation, without the body of its result.
    pub record: Record,
    /// Its effective state.
    pub state: State,
    /// What an undo does about it.
    pub reversal: Reversal,
}

/// Sorts operations into the order in which they are taken back: the last one that was done comes first. Operations
/// that ended at the same time keep their order, so list the newest first.
pub fn sort_for_undo(steps: &mut [UndoStep]) {
    steps.sort_by_key(|step| std::cmp::Reverse(step.record.done_at_ms()));
}

impl Record {
    /// When the operation was done: marks and checks that came later do not count.
    #[must_use]
    pub fn done_at_ms(&self) -> i64 {
        let retained = i64::try_from(self.detail.retention_ms).unwrap_or(i64::MAX);
        match (self.state, self.due_ms) {
            (State::Done, Some(due_ms)) => due_ms.saturating_sub(retained),
            (
                State::Staged
                | State::Running
                | State::Done
                | State::Failed
                | State::InDoubt
                | State::Cancelled
                | State::Expired,
                _,
            ) => self.updated_ms,
        }
    }
}

/// What the operation's own probe says after its compensation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EffectNow {
    /// There is no probe.
    NotAsked,
    /// It no longer finds the effect.
    Gone,
    /// It still finds the effect.
    StillThere,
    /// It cannot tell, for this reason.
    CannotTell(String),
}

/// What became of an undo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UndoOutcome {
    /// The effect is gone, on this evidence.
    Undone(UndoEvidence),
    /// The compensation succeeded, but the operation's probe does not confirm that the effect is gone.
    Unconfirmed(String),
    /// The compensation certainly had no effect. The operation stands.
    NotUndone(String),
    /// It is not known whether the compensation took effect.
    InDoubt(String),
}

impl UndoOutcome {
    /// Decides what the end of a compensation and the operation's own probe prove together. A success counts as an undo
    /// only if the probe, where there is one, confirms it.
    #[must_use]
    pub fn of(compensation: Result<(), &Error>, now: &EffectNow) -> Self {
        match compensation {
            Ok(()) => Self::of_end(Some(Happened::Yes), String::new(), now),
            // The compensation's key belongs to another action, or could not be formed: nothing ran for this one.
            Err(error @ (Error::KeyReused { .. } | Error::Invalid(_) | Error::KeyMissing { .. })) => {
                Self::NotUndone(error.to_string())
            }
            Err(error) => Self::of_end(error.happened(), error.to_string(), now),
        }
    }

    /// The same for a compensation of which only this is known: whether it happened, and why it did not succeed.
    #[must_use]
    pub fn of_end(happened: Option<Happened>, why: String, now: &EffectNow) -> Self {
        match (now, happened) {
            (_, Some(Happened::No)) => Self::NotUndone(why),
            (EffectNow::Gone, _) => Self::Undone(UndoEvidence::Probe),
            (_, Some(Happened::Unknown) | None) => Self::InDoubt(why),
            (EffectNow::NotAsked, _) => Self::Undone(UndoEvidence::Compensation),
            (EffectNow::StillThere, _) => Self::Unconfirmed(
                "the compensation reported success, but the probe still finds the effect".to_owned(),
            ),
            (EffectNow::CannotTell(why), _) => Self::Unconfirmed(format!(
                "the compensation reported success, but the effect is not confirmed to be gone: {why}"
            )),
        }
    }
}
