//! The words of answers.

use crate::advice::{NextStep, Surface};
use crate::error::{Code, Error, held_in_words};
use crate::facts::{Happened, Ran};
use crate::operation::Intent;
use crate::policy::Hold;
use crate::record::{DoubleEffect, Effect, Record, State};
use crate::time::span_in_words;

/// The state in which a call found its operation. The stored state may be older.
pub(super) fn real_state(error: &Error, record: &Record) -> State {
    if matches!(error, Error::KeyExpired { .. }) {
        State::Expired
    } else if matches!(error, Error::InProgress { .. }) {
        State::Running
    } else {
        record.state
    }
}

/// What a call that did not succeed changed.
pub(super) fn effect_of(error: &Error) -> &'static str {
    match (error.ran(), error.happened()) {
        // Its own attempt had no effect; another one is still running.
        (Ran::Yes, _) if matches!(error, Error::InProgress { .. }) => Effect::Noop.as_str(),
        (Ran::Yes, Some(Happened::Unknown | Happened::Yes)) => "unknown",
        (Ran::Yes, Some(Happened::No) | None) | (Ran::No, _) => Effect::Noop.as_str(),
    }
}

/// What would be done with a call that is held.
pub(super) fn hold_in_words(intent: &Intent) -> String {
    match intent.terms.hold {
        Hold::Approve => "would hold it until a person releases it, and run nothing".to_owned(),
        Hold::For(_) | Hold::No => format!("would hold it for {}, and run nothing", intent.terms.hold),
    }
}

/// That an operation is held, and what can be done about it, in one sentence.
pub(super) fn held_sentence(record: &Record, surface: &Surface) -> String {
    let guidance = surface.spell(&NextStep::Release(record.id.clone()));
    let [release, cancel] = guidance.options.as_slice() else {
        return format!("{}; {}", held_in_words(record), guidance.say);
    };
    format!(
        "{}; release it with `{}`, or cancel it with `{}`",
        held_in_words(record),
        release.command,
        cancel.command
    )
}

pub(super) fn replay_in_words(record: &Record, now_ms: i64) -> String {
    let ago = span_in_words(now_ms - record.updated_ms);
    match record.outcome.as_ref().and_then(|outcome| outcome.settled_by.as_ref()) {
        Some(who) => {
            let why = record.reason().map(|why| format!(" ({why})")).unwrap_or_default();
            format!("already done: settled {ago} ago by {who}{why}; nothing was run")
        }
        None => format!("already done {ago} ago by attempt {}; nothing was run", record.attempt),
    }
}

pub(super) fn warnings(record: &Record) -> Vec<String> {
    match record.detail.double_effect {
        None => Vec::new(),
        Some(DoubleEffect::Possible) => vec!["double_effect: two attempts may have had an effect".to_owned()],
        Some(DoubleEffect::Certain) => vec!["double_effect: two attempts had an effect".to_owned()],
    }
}

pub(super) fn title(code: &str) -> &'static str {
    match Code::ALL.into_iter().find(|known| known.as_str() == code) {
        Some(Code::InvalidInput) => "The input is invalid",
        Some(Code::KeyMissing) => "A key is required",
        Some(Code::NotFound) => "There is no such operation",
        Some(Code::WrongState) => "Not possible in the operation's state",
        Some(Code::InProgress) => "The operation is still running",
        Some(Code::Held) => "The operation is held back, and nothing was sent",
        Some(Code::KeyExpired) => "The stored result has expired",
        Some(Code::Cancelled) => "The operation was cancelled",
        Some(Code::Undone) => "The operation was taken back",
        Some(Code::Stopped) => "The scope is stopped",
        Some(Code::BudgetExhausted) => "The retry budget is spent",
        Some(Code::KeyReused) => "The key was used for a different action",
        Some(Code::Failed) | None => "The operation failed without effect",
        Some(Code::Timeout) => "The operation timed out, and its outcome is unknown",
        Some(Code::InDoubt) => "The outcome is unknown",
        Some(Code::Unverified) => "Success was reported and refuted",
        Some(Code::ResultUnavailable) => "The operation was done, and its result is unavailable",
        Some(Code::LedgerUnavailable) => "The ledger cannot be used",
        Some(Code::LedgerReplaced) => "The ledger was replaced",
    }
}
