//! Reading and writing single records, by compare-and-swap on the version.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::bench::{
    Bench, Verdict, conflict, done, ensure, equal, in_state, next, same, staged, wait, written,
};
use super::{Case, cases};
use crate::evidence::Evidence;
use crate::record::{
    Class, DoubleEffect, Downstream, Effect, Held, Outcome, Owner, Past, Record, State, Usage, Verification,
};
use crate::store::WriteMode;
use crate::word::Word;

pub(super) const CASES: &[Case] = cases![
    nothing_is_found_in_an_empty_store,
    what_is_written_is_found,
    what_was_written_is_given_back,
    a_first_write_needs_that_there_is_none,
    a_conflict_brings_the_record_that_is_there,
    a_conflict_changes_nothing,
    the_right_version_is_written,
    an_older_version_is_a_conflict,
    a_newer_version_is_a_conflict,
    a_version_of_what_is_not_there_is_a_conflict_with_nothing,
    every_write_mode_writes,
    a_version_can_jump,
    records_do_not_disturb_each_other,
    every_state_is_kept,
    every_field_is_kept,
    a_field_can_become_empty_again,
    the_largest_numbers_are_kept,
];

fn nothing_is_found_in_an_empty_store(bench: &Bench) -> Verdict {
    ensure!(bench.find(&staged("a")?.id)?.is_none(), "load returned a record that was never written");
    Ok(())
}

fn what_is_written_is_found(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    bench.put(&record)?;
    same(&*bench.found(&record.id)?, &record)
}

fn what_was_written_is_given_back(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    same(&*bench.put(&record)?, &record)?;
    let second = next(&record);
    same(&*bench.replace(&record, &second)?, &second)
}

fn a_first_write_needs_that_there_is_none(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    bench.put(&record)?;
    conflict(bench.try_swap(None, &record)?)?;
    conflict(bench.try_swap(None, &next(&record))?)?;
    Ok(())
}

fn a_conflict_brings_the_record_that_is_there(bench: &Bench) -> Verdict {
    let outcome = Outcome { body: Some(b"body".as_slice().into()), ..Outcome::with_effect(Effect::Created) };
    let record = done("a", outcome)?;
    bench.put(&record)?;
    for expected in [None, Some(record.version + 7)] {
        let found = conflict(bench.try_swap(expected, &staged("a")?)?)?;
        let Some(found) = found else {
            return Err(super::bench::Problem::new("the conflict returned no record"));
        };
        same(&found, &record)?;
    }
    Ok(())
}

fn a_conflict_changes_nothing(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    bench.put(&record)?;
    let other = Record { state: State::Running, ..next(&next(&record)) };
    conflict(bench.try_swap(Some(9), &other)?)?;
    conflict(bench.try_swap(None, &other)?)?;
    same(&*bench.found(&record.id)?, &record)
}

fn the_right_version_is_written(bench: &Bench) -> Verdict {
    let mut record = staged("a")?;
    bench.put(&record)?;
    for _ in 0..3 {
        let after = next(&record);
        bench.replace(&record, &after)?;
        record = after;
    }
    equal!(bench.found(&record.id)?.version, 4, "the version after three changes");
    Ok(())
}

fn an_older_version_is_a_conflict(bench: &Bench) -> Verdict {
    let first = staged("a")?;
    let second = next(&first);
    bench.put(&first)?;
    bench.replace(&first, &second)?;
    conflict(bench.try_swap(Some(first.version), &next(&second))?)?;
    same(&*bench.found(&first.id)?, &second)
}

fn a_newer_version_is_a_conflict(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    bench.put(&record)?;
    conflict(bench.try_swap(Some(record.version + 1), &next(&record))?)?;
    same(&*bench.found(&record.id)?, &record)
}

fn a_version_of_what_is_not_there_is_a_conflict_with_nothing(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    let found = conflict(bench.try_swap(Some(record.version), &next(&record))?)?;
    ensure!(found.is_none(), "the conflict returned a record that was never written");
    ensure!(bench.find(&record.id)?.is_none(), "the record was written anyway");
    Ok(())
}

fn every_write_mode_writes(bench: &Bench) -> Verdict {
    for (key, mode) in [("a", WriteMode::Blocking), ("b", WriteMode::Async), ("c", WriteMode::Deferred)] {
        let record = staged(key)?;
        written(wait(bench.swap(None, record.clone(), mode))?)?;
        written(wait(bench.swap(Some(record.version), next(&record), mode))?)?;
        same(&*bench.found(&record.id)?, &next(&record))?;
        ensure!(wait(bench.delete(&record.id, 2, mode))?, "the {mode:?} mode deletes nothing");
    }
    Ok(())
}

fn a_version_can_jump(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    let later = Record { version: 40, ..record.clone() };
    bench.put(&record)?;
    bench.replace(&record, &later)?;
    same(&*bench.found(&record.id)?, &later)
}

fn records_do_not_disturb_each_other(bench: &Bench) -> Verdict {
    let records = [
        staged("a")?,
        staged("b")?,
        super::bench::staged_as("other", "conformance", "a")?,
        super::bench::staged_as("default", "other", "a")?,
    ];
    records.iter().try_for_each(|record| bench.put(record).map(drop))?;
    bench.replace(&records[0], &next(&records[0]))?;
    same(&*bench.found(&records[0].id)?, &next(&records[0]))?;
    records[1..].iter().try_for_each(|record| same(&*bench.found(&record.id)?, record))
}

fn every_state_is_kept(bench: &Bench) -> Verdict {
    for state in State::ALL {
        let record = in_state(state.as_str(), state, None)?;
        bench.put(&record)?;
        equal!(bench.found(&record.id)?.state, state, "the state");
    }
    Ok(())
}

fn used() -> Usage {
    Usage {
        model: "m".to_owned(),
        input: 1,
        cached: 2,
        output: 3,
        estimated: true,
        layer: "sdk".to_owned(),
        request_id: Some("r".to_owned()),
    }
}

/// A record without empty fields.
fn full(key: &str) -> Result<Record, super::bench::Problem> {
    let data = serde_json::value::RawValue::from_string("{\"id\": 42}".to_owned())?;
    let outcome = Outcome {
        effect: Some(Effect::Deleted),
        reason: Some("because".to_owned()),
        verified: Some(Verification::Pending),
        evidence: Some(Evidence::refused("RFC 6750: 401")),
        settled_by: Some(Box::new(Word::person("ada").note("looked \u{1F6D1} \\".to_owned()))),
        doubt: Some(crate::evidence::Doubt::Answered),
        data: Some(data.into()),
        body: Some(b"body".as_slice().into()),
        unavailable: true,
        usage: Some(used()),
        lost: false,
    };
    let mut record = Record { attempt: 3, replays: 0, ..done(key, outcome.clone())? };
    let detail = &mut record.detail;
    detail.fields = Arc::new(BTreeMap::from([("/a".to_owned(), "digest".to_owned())]));
    detail.class = Class::Keyed;
    detail.downstream = Some(Downstream { key: "downstream".to_owned(), safe_until_ms: 5 });
    detail.owner = Some(Owner { token: 6, lease_until_ms: 7 });
    detail.attempts_before = 1;
    detail.probe = Some("probe it".to_owned());
    detail.verify = Some("verify it".to_owned());
    detail.history = vec![Past {
        attempt: 1,
        ended: State::Failed,
        at_ms: 8,
        reason: Some("no".to_owned()),
        evidence: Some(Evidence::ProbeSaysNo),
        settled_by: Some(Box::new(Word::agent("bob"))),
        usage: Some(used()),
    }];
    detail.cancel_requested_ms = Some(9);
    detail.quarantine_until_ms = Some(10);
    detail.late = Some(outcome);
    let released = Some(Word::person("ada").note("fine".to_owned()));
    detail.held = Some(Box::new(Held { released, ..Held::by_policy() }));
    detail.double_effect = Some(DoubleEffect::Possible);
    Ok(record)
}

fn every_field_is_kept(bench: &Bench) -> Verdict {
    let record = full("a")?;
    bench.put(&record)?;
    let found = bench.found(&record.id)?;
    same(&found, &record)?;
    ensure!(found.detail.late == record.detail.late, "the late answer is not the one that was written");
    Ok(())
}

fn a_field_can_become_empty_again(bench: &Bench) -> Verdict {
    let record = full("a")?;
    bench.put(&record)?;
    let bare = Record { version: record.version + 1, ..staged("a")? };
    bench.replace(&record, &bare)?;
    same(&*bench.found(&record.id)?, &bare)?;
    equal!(bench.due_keys(i64::MAX, 10)?, Vec::<String>::new(), "what is due");
    Ok(())
}

fn the_largest_numbers_are_kept(bench: &Bench) -> Verdict {
    let mut record = in_state("a", State::Done, Some(i64::MAX))?;
    record.attempt = u32::MAX;
    record.detail.owner = Some(Owner { token: u64::MAX, lease_until_ms: i64::MAX });
    record.detail.retention_ms = u64::MAX;
    bench.put(&record)?;
    same(&*bench.found(&record.id)?, &record)
}
