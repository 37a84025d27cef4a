//! What a store knows at hand may be nothing, but never something else than what is stored.

use super::bench::{Bench, Verdict, done, ensure, in_state, next, same, staged, wait};
use super::{Case, cases};
use std::sync::Arc;

use crate::record::{Effect, Outcome, Record, State};

pub(super) const CASES: &[Case] = cases![
    nothing_is_recalled_in_an_empty_store,
    what_is_recalled_is_what_is_stored,
    what_was_loaded_is_recalled_as_it_is,
    a_change_is_not_recalled_as_it_was,
    a_deleted_record_is_not_recalled,
];

fn recalled(bench: &Bench, record: &Record) -> Verdict {
    match wait(bench.recall(&record.id))? {
        Some(seen) => same(&seen, record),
        None => Ok(()),
    }
}

fn finished(key: &str) -> Result<Record, super::bench::Problem> {
    let body = Some(Arc::from([0, 1, 255]));
    done(key, Outcome { body, ..Outcome::with_effect(Effect::Created) })
}

fn nothing_is_recalled_in_an_empty_store(bench: &Bench) -> Verdict {
    ensure!(wait(bench.recall(&staged("a")?.id))?.is_none(), "a record is recalled that nobody wrote");
    Ok(())
}

fn what_is_recalled_is_what_is_stored(bench: &Bench) -> Verdict {
    for record in [finished("a")?, staged("b")?, in_state("c", State::Failed, Some(5))?] {
        bench.put(&record)?;
        recalled(bench, &record)?;
    }
    Ok(())
}

fn what_was_loaded_is_recalled_as_it_is(bench: &Bench) -> Verdict {
    let record = finished("a")?;
    bench.put(&record)?;
    bench.found(&record.id)?;
    recalled(bench, &record)
}

fn a_change_is_not_recalled_as_it_was(bench: &Bench) -> Verdict {
    let mut record = finished("a")?;
    bench.put(&record)?;
    for _ in 0..4 {
        bench.found(&record.id)?;
        let after = next(&record);
        bench.replace(&record, &after)?;
        recalled(bench, &after)?;
        record = after;
    }
    Ok(())
}

fn a_deleted_record_is_not_recalled(bench: &Bench) -> Verdict {
    let record = finished("a")?;
    bench.put(&record)?;
    bench.found(&record.id)?;
    bench.remove(&record)?;
    ensure!(wait(bench.recall(&record.id))?.is_none(), "it is recalled after it was deleted");
    Ok(())
}
