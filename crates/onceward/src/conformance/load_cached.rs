//! `load_cached` may return nothing, but never anything other than the stored record.

use super::bench::{Bench, Verdict, done, ensure, in_state, next, same, staged, wait};
use super::{Case, cases};
use std::sync::Arc;

use crate::record::{Effect, Outcome, Record, State};

pub(super) const CASES: &[Case] = cases![
    nothing_is_cached_in_an_empty_store,
    a_cached_record_equals_the_stored_one,
    a_loaded_record_is_cached_unchanged,
    a_changed_record_is_not_cached_in_its_old_version,
    a_deleted_record_is_not_cached,
];

fn check_cached(bench: &Bench, record: &Record) -> Verdict {
    match wait(bench.load_cached(&record.id))? {
        Some(seen) => same(&seen, record),
        None => Ok(()),
    }
}

fn finished(key: &str) -> Result<Record, super::bench::Problem> {
    let body = Some(Arc::from([0, 1, 255]));
    done(key, Outcome { body, ..Outcome::with_effect(Effect::Created) })
}

fn nothing_is_cached_in_an_empty_store(bench: &Bench) -> Verdict {
    ensure!(
        wait(bench.load_cached(&staged("a")?.id))?.is_none(),
        "load_cached returned a record that was never written"
    );
    Ok(())
}

fn a_cached_record_equals_the_stored_one(bench: &Bench) -> Verdict {
    for record in [finished("a")?, staged("b")?, in_state("c", State::Failed, Some(5))?] {
        bench.put(&record)?;
        check_cached(bench, &record)?;
    }
    Ok(())
}

fn a_loaded_record_is_cached_unchanged(bench: &Bench) -> Verdict {
    let record = finished("a")?;
    bench.put(&record)?;
    bench.found(&record.id)?;
    check_cached(bench, &record)
}

fn a_changed_record_is_not_cached_in_its_old_version(bench: &Bench) -> Verdict {
    let mut record = finished("a")?;
    bench.put(&record)?;
    for _ in 0..4 {
        bench.found(&record.id)?;
        let after = next(&record);
        bench.replace(&record, &after)?;
        check_cached(bench, &after)?;
        record = after;
    }
    Ok(())
}

fn a_deleted_record_is_not_cached(bench: &Bench) -> Verdict {
    let record = finished("a")?;
    bench.put(&record)?;
    bench.found(&record.id)?;
    bench.remove(&record)?;
    ensure!(wait(bench.load_cached(&record.id))?.is_none(), "load_cached returned it after it was deleted");
    Ok(())
}
