//! What the attempts of a model call used.

use onceward::{Class, Past, Record, State, Usage};
use serde::Serialize;

/// What became of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Role {
    /// It made the answer.
    Answer,
    /// It ended, and its answer is not the one that callers get.
    Wasted,
    /// It is not over.
    Running,
}

impl Role {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Answer => "the answer",
            Self::Wasted => "wasted",
            Self::Running => "running",
        }
    }
}

/// One attempt of a model call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct ModelAttempt {
    pub(super) attempt: u32,
    pub(super) role: Role,
    /// What it used. `None` if that is unknown: it runs, was refused, or was interrupted.
    pub(super) usage: Option<Usage>,
}

/// The attempts of a model call, oldest first. None if the operation is not a model call.
pub(super) fn attempts(record: &Record, state: State) -> Vec<ModelAttempt> {
    let outcome = record.outcome.as_ref().and_then(|outcome| outcome.usage.as_ref());
    let pasts = &record.detail.history;
    let has_used = outcome.is_some() || pasts.iter().any(|past| past.usage.is_some());
    let is_named_so = record.detail.class == Class::Idempotent && onceward_http::is_model_call(&record.name);
    if !has_used && !is_named_so {
        return Vec::new();
    }
    let is_done = match state {
        State::Done => true,
        State::Expired => record.detail.ended == Some(State::Done),
        State::Staged | State::Running | State::Failed | State::InDoubt | State::Cancelled => false,
    };
    // An attempt that was overtaken may have answered late.
    let late = pasts.iter().find(|past| past.ended == State::Done).map(|past| past.attempt);
    let answered_by = late.unwrap_or(record.attempt);
    let numbers = record.detail.attempts_before + 1..=record.attempt;
    let one = |attempt: u32| {
        let in_history = || pasts.iter().filter(|past| past.attempt == attempt);
        let past = in_history().find(|past| past.usage.is_some());
        let usage = if attempt == answered_by { outcome } else { None };
        let role = if is_done && attempt == answered_by {
            Role::Answer
        } else if attempt == record.attempt && state == State::Running {
            Role::Running
        } else {
            Role::Wasted
        };
        ModelAttempt { attempt, role, usage: usage.or(past.and_then(used)).cloned() }
    };
    numbers.map(one).collect()
}

fn used(past: &Past) -> Option<&Usage> {
    past.usage.as_ref()
}

/// The tokens of each attempt, for a table: `?` if they are unknown, and `~` before an estimate.
pub(super) fn per_attempt(record: &Record, state: State) -> String {
    let attempts = attempts(record, state);
    let of = |attempt: &ModelAttempt| match &attempt.usage {
        Some(usage) => {
            let about = if usage.estimated { "~" } else { "" };
            format!("{about}{}", grouped(total(usage)))
        }
        None => "?".to_owned(),
    };
    attempts.iter().map(of).collect::<Vec<_>>().join(" + ")
}

/// Tokens in words, with `~` before an estimate.
pub(super) fn in_words(usage: &Usage) -> String {
    let about = if usage.estimated { "~" } else { "" };
    let cached =
        if usage.cached > 0 { format!(" + {} cached", grouped(usage.cached)) } else { String::new() };
    format!("{about}{} in{cached}, {} out", grouped(usage.input), grouped(usage.output))
}

/// All tokens.
pub(super) fn total(usage: &Usage) -> u64 {
    usage.input.saturating_add(usage.cached).saturating_add(usage.output)
}

/// A number with its thousands separated.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use onceward::{
        Blocking, Effect, Evidence, Failure, Ledger, ManualClock, MemoryStore, OnFailure, Operation, Outcome,
        Terms,
    };

    use super::*;

    fn usage(output: u64) -> Usage {
        Usage { model: "m".to_owned(), output, ..Usage::default() }
    }

    fn call(ledger: &Blocking, name: &str, endings: Vec<Result<u64, Option<u64>>>) -> Arc<Record> {
        let terms = Terms {
            class: Class::Idempotent,
            on_failure: OnFailure::Retry,
            max_attempts: u32::try_from(endings.len()).unwrap(),
            backoff_ms: 0,
            ..Terms::default()
        };
        let one = |ending| {
            let operation = Operation::new(name).key("k").terms(terms.clone());
            let result = ledger.run(operation, |attempt| {
                let sent = attempt.dispatch()?;
                match ending {
                    Ok(output) => Ok(sent.done(Effect::Created, &()).usage(usage(output))),
                    Err(Some(output)) => {
                        Err(Failure::no_effect(Evidence::NotSent, "no").usage(usage(output)))
                    }
                    Err(None) => Err(Failure::no_effect(Evidence::NotSent, "no")),
                }
            });
            match result {
                Ok(receipt) => Arc::clone(receipt.record()),
                Err(onceward::Error::Failed { record, .. }) => record,
                Err(error) => panic!("{error}"),
            }
        };
        let records: Vec<Arc<Record>> = endings.into_iter().map(one).collect();
        Arc::clone(records.last().expect("an attempt"))
    }

    fn ledger() -> Blocking {
        Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0)))).blocking()
    }

    fn shape(record: &Record, state: State) -> Vec<(u32, Role, Option<u64>)> {
        attempts(record, state)
            .iter()
            .map(|one| (one.attempt, one.role, one.usage.as_ref().map(|u| u.output)))
            .collect()
    }

    #[test]
    fn the_newest_attempt_of_a_success_made_the_answer() {
        let record = call(&ledger(), "api POST /v1/x", vec![Err(Some(3)), Err(None), Ok(7)]);
        let expected = vec![(1, Role::Wasted, Some(3)), (2, Role::Wasted, None), (3, Role::Answer, Some(7))];
        assert_eq!(shape(&record, record.state), expected);
        // A tombstone still says what was paid for.
        let age = onceward::transition::age(&record, i64::MAX);
        let onceward::transition::Ageing::Tombstone(tombstone) = age else { panic!("{age:?}") };
        assert_eq!(shape(&tombstone, State::Expired), expected);
        assert!(tombstone.detail.history.iter().all(|past| past.reason.is_none()));
    }

    #[test]
    fn a_failure_made_none_and_a_model_call_without_usage_is_known_by_its_name() {
        let failed = call(&ledger(), "openai POST /v1/chat/completions", vec![Err(None), Err(None)]);
        let expected = vec![(1, Role::Wasted, None), (2, Role::Wasted, None)];
        assert_eq!(shape(&failed, failed.state), expected);
        let running = Record { state: State::Running, outcome: None, ..Record::clone(&failed) };
        let expected = vec![(1, Role::Wasted, None), (2, Role::Running, None)];
        assert_eq!(shape(&running, State::Running), expected);
        assert_eq!(shape(&call(&ledger(), "pay", vec![Err(None)]), State::Failed), vec![]);
    }

    #[test]
    fn a_late_answer_belongs_to_the_attempt_that_gave_it() {
        let mut record = Record::clone(&call(&ledger(), "x", vec![Err(None), Ok(7)]));
        let past = |ended, usage| Past {
            attempt: 1,
            ended,
            at_ms: 0,
            reason: None,
            evidence: None,
            settled_by: None,
            usage,
        };
        record.detail.history = vec![past(State::InDoubt, None), past(State::Done, Some(usage(5)))];
        record.outcome = Some(Outcome { usage: Some(usage(5)), ..Outcome::with_effect(Effect::Created) });
        let expected = vec![(1, Role::Answer, Some(5)), (2, Role::Wasted, None)];
        assert_eq!(shape(&record, State::Done), expected);
    }

    #[test]
    fn numbers_are_grouped() {
        let of = [0, 999, 1_000, 1_234_567].map(grouped);
        assert_eq!(of, ["0", "999", "1,000", "1,234,567"]);
    }
}
