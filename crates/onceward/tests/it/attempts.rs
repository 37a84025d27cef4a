//! How attempts are started, renewed and marked as in doubt: what is written before anything runs.

use crate::common::table::Table;
use crate::common::{NOW_MS, combinations, intent, record};
use onceward::transition::{self, later};
use onceward::{
    Class, DoubleEffect, Downstream, Ending, Evidence, Intent, KeyOrigin, Liveness, MAX_HISTORY, MAX_RESULT,
    Outcome, Owner, Past, Record, State,
};

const OWNER: Owner = Owner { token: 77, lease_until_ms: NOW_MS + 300 };

/// The records that an attempt may start from; `…-over` is settled and past its retention.
const FOUND: &[&str] = &[
    "absent",
    "staged",
    "failed",
    "in_doubt",
    "running",
    "expired",
    "done-over",
    "failed-over",
    "cancelled-over",
];

/// `remembers` is how the previous attempt appears in the history.
const START: &str = "
    found           => attempt spent remembers downstream alarm created
    absent          => 1       1     nothing   fresh      none  now
    staged          => 5       3     nothing   kept       kept  then
    failed          => 5       3     failed    kept       kept  then
    in_doubt        => 5       3     in_doubt  kept       kept  then
    running         => 5       3     in_doubt  kept       kept  then
    expired         => 5       1     nothing   fresh      none  now
    done-over       => 5       1     nothing   fresh      none  now
    failed-over     => 5       1     nothing   fresh      none  now
    cancelled-over  => 5       1     nothing   fresh      none  now
";

#[test]
fn what_is_written_before_an_attempt_runs() {
    let mut table = Table::read(START);
    for found in FOUND {
        let intent = keyed();
        let before = (*found != "absent").then(|| before(found, &intent));
        let after = transition::start(before.as_ref(), &intent, OWNER, NOW_MS);
        let past = after.detail.history.iter().find(|past| past.attempt == 4);
        let downstream = after.detail.downstream.as_ref().map(|downstream| downstream.key.as_str());
        let seen = format!(
            "{} {} {} {} {} {}",
            after.attempt,
            after.spent_attempts(),
            past.map_or("nothing", |past| past.ended.as_str()),
            if downstream == Some("first") { "kept" } else { "fresh" },
            after.detail.double_effect.map_or("none", |_| "kept"),
            if after.created_ms == NOW_MS { "now" } else { "then" },
        );
        assert_eq!(seen, table.look_up(&[found]), "{found}");
        assert_eq!(after.version, before.as_ref().map_or(1, |before| before.version + 1), "{found}");
    }
    table.assert_all_rows_fitted();
}

#[test]
fn an_attempt_starts_open_with_its_owner_and_the_terms_of_its_call() {
    for found in FOUND {
        let intent = keyed();
        let before = (*found != "absent").then(|| before(found, &intent));
        let after = transition::start(before.as_ref(), &intent, OWNER, NOW_MS);
        assert_eq!((after.state, after.due_ms, &after.outcome), (State::Running, None, &None), "{found}");
        assert_eq!((after.updated_ms, after.detail.owner), (NOW_MS, Some(OWNER)), "{found}");
        let detail = &after.detail;
        assert_eq!(*detail.fields, intent.fields(), "{found}");
        assert_eq!((detail.cancel_requested_ms, detail.quarantine_until_ms), (None, None), "{found}");
        assert_eq!((detail.class, detail.max_attempts), (Class::Keyed, 3), "{found}");
        assert_eq!((detail.retention_ms, detail.tombstone_ms), (11, 12), "{found}");
    }
}

#[test]
fn the_attempt_before_is_remembered_with_its_reason() {
    let intent = keyed();
    let mut failed = before("failed", &intent);
    failed.outcome = Some(Outcome::because(Some("declined".to_owned())));
    let after = transition::start(Some(&failed), &intent, OWNER, NOW_MS);
    let past = Past {
        attempt: 4,
        ended: State::Failed,
        at_ms: failed.updated_ms,
        reason: Some("declined".to_owned()),
        evidence: None,
        settled_by: None,
        usage: None,
    };
    assert_eq!(after.detail.history.last(), Some(&past));
    let gone = transition::start(Some(&before("running", &intent)), &intent, OWNER, NOW_MS);
    let past = Past {
        attempt: 4,
        ended: State::InDoubt,
        at_ms: NOW_MS,
        reason: Some("its owner was gone".to_owned()),
        evidence: None,
        settled_by: None,
        usage: None,
    };
    assert_eq!(gone.detail.history.last(), Some(&past));
}

#[test]
fn a_downstream_key_is_made_for_keyed_operations_only() {
    for class in Class::ALL {
        let mut intent = keyed();
        intent.terms.class = class;
        let downstream = transition::start(None, &intent, OWNER, NOW_MS).detail.downstream;
        let expected = Downstream { key: intent.id.to_string(), safe_until_ms: NOW_MS + 500 };
        assert_eq!(downstream, (class == Class::Keyed).then_some(expected), "{class}");
    }
}

#[test]
fn a_history_keeps_its_newest() {
    let intent = keyed();
    let mut record = before("failed", &intent);
    for _ in 0..40 {
        record = transition::start(Some(&record), &intent, OWNER, NOW_MS);
        record = transition::finish(
            &record,
            record.attempt,
            Ending::Failed(Evidence::NotSent, Outcome::because(None)),
            NOW_MS,
        );
        record.due_ms = Some(NOW_MS + 1);
    }
    let attempts: Vec<u32> = record.detail.history.iter().map(|past| past.attempt).collect();
    assert_eq!(attempts.len(), MAX_HISTORY);
    assert_eq!(attempts.last(), Some(&(record.attempt - 1)));
    assert!(attempts.is_sorted());
}

const RENEW: &str = "
    found    attempt  => renewed
    running  newest   => yes
    running  other    => no
    staged|done|failed|in_doubt|cancelled|expired  *  => no
";

#[test]
fn whose_lease_is_renewed() {
    let mut table = Table::read(RENEW);
    let states = &["staged", "running", "done", "failed", "in_doubt", "cancelled", "expired"];
    for words in combinations([states, &["newest", "other"]]) {
        let before = record(words[0].parse().expect("a state"), &keyed());
        let number = if words[1] == "newest" { 4 } else { 3 };
        let after = transition::renew(&before, number, 9, NOW_MS + 900, NOW_MS);
        assert_eq!(if after.is_some() { "yes" } else { "no" }, table.look_up(&words), "{words:?}");
        if let Some(after) = after {
            assert_eq!(
                after.detail.owner,
                Some(Owner { token: 9, lease_until_ms: NOW_MS + 900 }),
                "the same owner"
            );
            assert_eq!((after.version, after.state, after.due_ms), (8, State::Running, None));
        }
    }
    table.assert_all_rows_fitted();
    let mut unowned = record(State::Running, &keyed());
    unowned.detail.owner = None;
    assert!(transition::renew(&unowned, 4, 9, NOW_MS, NOW_MS).is_none(), "there is no lease to renew");
    let running = record(State::Running, &keyed());
    assert!(transition::renew(&running, 4, 8, NOW_MS, NOW_MS).is_none(), "the owner is another one");
    let silent = transition::doubt(&running, Liveness::Unknown, NOW_MS);
    let back = transition::renew(&silent, 4, 9, NOW_MS + 900, NOW_MS).expect("a living owner takes it back");
    assert_eq!((back.state, back.outcome, back.detail.quarantine_until_ms), (State::Running, None, None));
    let own = transition::finish(&silent, 4, Ending::InDoubt(Outcome::because(None)), NOW_MS);
    assert!(transition::renew(&own, 4, 9, NOW_MS, NOW_MS).is_none(), "it has ended by its own word");
    let gone = transition::doubt(&running, Liveness::Gone, NOW_MS);
    assert!(transition::renew(&gone, 4, 9, NOW_MS, NOW_MS).is_none(), "its owner is known to be gone");
}

#[test]
fn how_a_doubt_is_written_down() {
    let running = record(State::Running, &keyed());
    for (liveness, reason) in [
        (Liveness::Gone, "its owner ended before it reported back"),
        (Liveness::Unknown, "its owner has been silent for longer than its lease"),
    ] {
        let after = transition::doubt(&running, liveness, NOW_MS);
        assert_eq!((after.state, after.version, after.due_ms), (State::InDoubt, 8, None));
        assert_eq!((after.detail.quarantine_until_ms, after.reason()), (Some(NOW_MS + 60), Some(reason)));
        assert_eq!(
            after.detail.owner, running.detail.owner,
            "a process of its owner may still hold the lock"
        );
    }
}

#[test]
fn an_owner_that_dispatched_nothing_has_failed_for_certain() {
    let after = transition::doubt(&record(State::Running, &keyed()), Liveness::NeverDispatched, NOW_MS);
    assert_eq!((after.state, after.version, after.detail.quarantine_until_ms), (State::Failed, 8, None));
    assert_eq!(after.reason(), Some("its owner ended before anything was dispatched"));
}

#[test]
fn a_late_success_settles_the_doubt_that_would_be_written() {
    let mut running = record(State::Running, &keyed());
    running.detail.late = Some(Outcome::because(Some("late".to_owned())));
    running.detail.double_effect = Some(DoubleEffect::Possible);
    for liveness in [Liveness::Gone, Liveness::Unknown] {
        let after = transition::doubt(&running, liveness, NOW_MS);
        assert_eq!(
            (after.state, after.reason(), after.detail.late.is_some()),
            (State::Done, Some("late"), false)
        );
        assert_eq!(after.detail.double_effect, Some(DoubleEffect::Possible));
    }
    let after = transition::doubt(&running, Liveness::NeverDispatched, NOW_MS);
    assert_eq!((after.state, after.reason(), after.detail.double_effect), (State::Done, Some("late"), None));
}

#[test]
fn a_result_that_is_too_large_is_unavailable_and_no_reason_to_run_again() {
    let running = record(State::Running, &keyed());
    let done = |size: usize| {
        let outcome =
            Outcome { body: Some(vec![0; size - 3].into()), data: json("123"), ..Outcome::because(None) };
        transition::finish(&running, 4, Ending::Done(outcome), NOW_MS).outcome.expect("an outcome")
    };
    let largest = done(MAX_RESULT);
    assert_eq!((largest.size(), largest.unavailable), (MAX_RESULT, false));
    let larger = done(MAX_RESULT + 1);
    assert_eq!((larger.size(), larger.unavailable), (0, true));
}

#[test]
fn a_time_later_never_overflows() {
    assert_eq!(later(5, 7), 12);
    assert_eq!((later(5, u64::MAX), later(i64::MAX, 1)), (i64::MAX, i64::MAX));
}

fn json(text: &str) -> Option<std::sync::Arc<serde_json::value::RawValue>> {
    serde_json::value::RawValue::from_string(text.to_owned()).ok().map(Into::into)
}

/// An intent whose terms differ from those in its record.
fn keyed() -> Intent {
    let mut intent = intent(KeyOrigin::Derived);
    intent.terms.class = Class::Keyed;
    intent.terms.max_attempts = 3;
    (intent.terms.retention_ms, intent.terms.tombstone_ms) = (11, 12);
    (intent.terms.downstream_window_ms, intent.terms.quarantine_ms) = (500, 60);
    intent
}

fn before(found: &str, intent: &Intent) -> Record {
    let (state, over) = match found.strip_suffix("-over") {
        Some(state) => (state, true),
        None => (found, false),
    };
    let mut record = record(state.parse().expect("a state"), intent);
    if over {
        record.due_ms = Some(NOW_MS);
    }
    record.outcome = Some(Outcome::because(None));
    let detail = &mut record.detail;
    detail.class = Class::Once;
    detail.downstream = Some(Downstream { key: "first".to_owned(), safe_until_ms: 1 });
    detail.double_effect = Some(DoubleEffect::Possible);
    detail.cancel_requested_ms = Some(1);
    detail.quarantine_until_ms = Some(1);
    (detail.max_attempts, detail.retention_ms, detail.tombstone_ms) = (90, 91, 92);
    record
}
