//! Batches: each change is a compare-and-swap, and no change affects another.

use super::bench::{Bench, Verdict, ensure, equal, everything, in_state, next, same, staged};
use super::{Case, cases};
use crate::record::{Record, State};
use crate::store::{Applied, Change};

pub(super) const CASES: &[Case] = cases![
    an_empty_batch_changes_nothing,
    a_batch_writes_new_records,
    a_batch_swaps_and_deletes,
    answers_come_in_the_order_of_the_changes,
    a_conflict_in_a_batch_stops_no_other_change,
    a_conflict_in_a_batch_changes_nothing,
    a_batch_is_larger_than_any_limit_inside,
    a_batch_updates_the_cache,
];

fn swap(expected: Option<u64>, record: &Record) -> Change {
    Change::Swap { expected, record: record.clone() }
}

fn delete(record: &Record) -> Change {
    Change::Delete { id: record.id.clone(), expected: record.version }
}

fn an_empty_batch_changes_nothing(bench: &Bench) -> Verdict {
    equal!(bench.batch(Vec::new())?, Vec::<Applied>::new(), "the answers");
    equal!(bench.keys(&everything())?, Vec::<String>::new(), "the listing");
    Ok(())
}

fn a_batch_writes_new_records(bench: &Bench) -> Verdict {
    let (a, b) = (staged("a")?, staged("b")?);
    let applied = bench.batch(vec![swap(None, &a), swap(None, &b)])?;
    equal!(applied, [Applied::Written; 2], "the answers");
    same(&*bench.found(&a.id)?, &a)?;
    same(&*bench.found(&b.id)?, &b)
}

fn a_batch_swaps_and_deletes(bench: &Bench) -> Verdict {
    let (a, b) = (in_state("a", State::Done, Some(5))?, in_state("b", State::Expired, Some(5))?);
    bench.put(&a)?;
    bench.put(&b)?;
    let tombstone = Record { state: State::Expired, due_ms: Some(50), ..next(&a) };
    let applied = bench.batch(vec![swap(Some(a.version), &tombstone), delete(&b)])?;
    equal!(applied, [Applied::Written; 2], "the answers");
    same(&*bench.found(&a.id)?, &tombstone)?;
    ensure!(bench.find(&b.id)?.is_none(), "the deleted record is still there");
    equal!(bench.due_keys(50, 10)?, ["a"], "what is due");
    equal!(bench.count(State::Expired)?, 1, "the count");
    Ok(())
}

fn answers_come_in_the_order_of_the_changes(bench: &Bench) -> Verdict {
    let records = ["a", "b", "c", "d", "e"].map(staged);
    let mut changes = Vec::new();
    for (index, record) in records.into_iter().enumerate() {
        let record = record?;
        if index < 2 {
            bench.put(&record)?;
        }
        // In turn: already stored, deleted, written, nothing to delete, written.
        changes.push(if index % 2 == 0 { swap(None, &record) } else { delete(&record) });
    }
    let (written, conflict) = (Applied::Written, Applied::Conflict);
    equal!(bench.batch(changes)?, [conflict, written, written, conflict, written], "the answers");
    Ok(())
}

fn a_conflict_in_a_batch_stops_no_other_change(bench: &Bench) -> Verdict {
    let (a, b, c) = (staged("a")?, staged("b")?, staged("c")?);
    bench.put(&b)?;
    let applied = bench.batch(vec![swap(None, &a), swap(None, &b), swap(None, &c)])?;
    equal!(applied, [Applied::Written, Applied::Conflict, Applied::Written], "the answers");
    equal!(bench.keys(&everything())?.len(), 3, "how many records there are");
    Ok(())
}

fn a_conflict_in_a_batch_changes_nothing(bench: &Bench) -> Verdict {
    let first = staged("a")?;
    let second = next(&first);
    bench.put(&first)?;
    bench.replace(&first, &second)?;
    let stale = Record { state: State::Done, ..next(&first) };
    equal!(bench.batch(vec![swap(Some(first.version), &stale)])?, [Applied::Conflict], "a stale swap");
    equal!(bench.batch(vec![delete(&first)])?, [Applied::Conflict], "a stale deletion");
    same(&*bench.found(&second.id)?, &second)
}

fn a_batch_is_larger_than_any_limit_inside(bench: &Bench) -> Verdict {
    const MANY: usize = 1_500;
    let mut records = Vec::with_capacity(MANY);
    for number in 0..MANY {
        records.push(staged(&number.to_string())?);
    }
    let applied = bench.batch(records.iter().map(|record| swap(None, record)).collect())?;
    equal!(applied.iter().filter(|applied| **applied == Applied::Written).count(), MANY, "written");
    equal!(bench.count(State::Staged)?, MANY as u64, "the count");
    let applied = bench.batch(records.iter().map(delete).collect())?;
    equal!(applied.iter().filter(|applied| **applied == Applied::Written).count(), MANY, "deleted");
    equal!(bench.count(State::Staged)?, 0, "the count");
    Ok(())
}

fn a_batch_updates_the_cache(bench: &Bench) -> Verdict {
    let record = in_state("a", State::Done, Some(5))?;
    bench.put(&record)?;
    bench.found(&record.id)?;
    let tombstone = Record { state: State::Expired, ..next(&record) };
    bench.batch(vec![swap(Some(record.version), &tombstone)])?;
    same(&*bench.found(&record.id)?, &tombstone)?;
    let cached = super::bench::wait(bench.load_cached(&record.id))?;
    ensure!(
        cached.is_none_or(|seen| seen.version == tombstone.version),
        "load_cached returned an old version"
    );
    Ok(())
}
