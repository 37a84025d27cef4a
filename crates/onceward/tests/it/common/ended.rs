//! Records of finished operations, and a textual summary of them.

use onceward::{DoubleEffect, Effect, Evidence, KeyOrigin, Outcome, Past, Record, State, Verification, Word};

use super::{NOW_MS, intent, record};

pub(crate) const STATES: &[&str] =
    &["staged", "running", "done", "failed", "in_doubt", "cancelled", "expired"];

/// Holds for every change: the version increases, an open record has no due time, and done stays done.
#[track_caller]
pub(crate) fn sound(before: &Record, after: &Record) {
    assert_eq!((after.version, after.updated_ms), (before.version + 1, NOW_MS));
    assert_eq!((&after.id, after.created_ms, after.attempt), (&before.id, before.created_ms, before.attempt));
    let refuted =
        after.outcome.as_ref().is_some_and(|outcome| outcome.verified == Some(Verification::Refuted));
    match after.state {
        State::Staged | State::Running | State::InDoubt => assert_eq!(after.due_ms, None, "{}", after.state),
        State::Done | State::Failed | State::Cancelled | State::Expired => assert!(after.due_ms.is_some()),
    }
    assert!(
        before.state != State::Done || after.state == State::Done || refuted,
        "done becomes {}",
        after.state
    );
    assert!(after.detail.history.len() <= onceward::MAX_HISTORY);
}

/// A record whose newest attempt was 4, whose attempt 3 was overtaken, and which is settled as the case says.
pub(crate) fn ended_record(found: &str, settled_by: &str, late: &str) -> Record {
    let state: State = found.parse().expect("a state");
    let mut record = record(state, &intent(KeyOrigin::Given));
    record.detail.retention_ms = 1_000;
    record.detail.tombstone_ms = 5_000;
    record.outcome = match state {
        State::Done | State::Failed | State::Cancelled | State::InDoubt => Some(outcome("found")),
        State::Staged | State::Running | State::Expired => None,
    };
    if let ("hand", Some(outcome)) = (settled_by, &mut record.outcome) {
        outcome.settled_by = Some(Word::person("ada").into());
    }
    let past = |attempt, ended: State| {
        let evidence = (ended == State::Failed).then_some(Evidence::NotSent);
        Past { attempt, ended, at_ms: 1, reason: None, evidence, settled_by: None, usage: None }
    };
    record.detail.history = vec![past(2, State::Failed)];
    if late == "late" || settled_by == "late" {
        record.detail.history.push(past(3, State::Done));
        record.detail.double_effect = Some(DoubleEffect::Possible);
    }
    if late == "late" {
        record.detail.late = Some(outcome("late"));
    }
    record
}

pub(crate) fn outcome(data: &str) -> Outcome {
    let data = serde_json::value::to_raw_value(data).expect("JSON");
    Outcome { data: Some(data.into()), ..Outcome::with_effect(Effect::Created) }
}

pub(crate) fn result(record: &Record) -> &'static str {
    match record.outcome.as_ref().and_then(|outcome| outcome.data.as_ref()).map(|data| data.get()) {
        Some("\"ending\"") => "ending",
        Some("\"late\"") => "late",
        Some("\"found\"") => "found",
        Some(_) => "other",
        None => "none",
    }
}

pub(crate) fn alarm(record: &Record) -> &'static str {
    match record.detail.double_effect {
        None => "none",
        Some(DoubleEffect::Possible) => "possible",
        Some(DoubleEffect::Certain) => "certain",
    }
}
