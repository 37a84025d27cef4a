//! Waiting for a record to change. To return early is allowed, to sleep through a change is not.

use super::bench::{Bench, Problem, Verdict, ensure, next, staged, wait};
use super::{Case, cases};
use crate::record::Record;

/// So long does a store sleep that misses the change. Only one that fails takes it.
const TOO_LONG_MS: u64 = 3_000;

pub(super) const CASES: &[Case] = cases![
    a_change_that_was_before_is_seen_at_once,
    a_record_that_is_not_there_is_no_reason_to_wait,
    waiting_ends_when_the_time_is_over,
    a_change_wakes_who_waits,
    a_delete_wakes_who_waits,
    a_change_wakes_all_who_wait,
];

/// Waits for a change of `record` while `meanwhile` happens, and says whether the waiting was cut short.
fn woken(bench: &Bench, waiters: usize, record: &Record, meanwhile: impl FnOnce() -> Verdict) -> Verdict {
    let until_ms = bench.now_ms() + i64::try_from(TOO_LONG_MS).unwrap_or(i64::MAX);
    std::thread::scope(|scope| {
        for _ in 0..waiters {
            scope.spawn(|| {
                // Returning early is allowed: as long as nothing has changed, the waiting goes on.
                while wait(bench.load(&record.id))
                    .ok()
                    .flatten()
                    .is_some_and(|found| found.version == record.version)
                    && bench.now_ms() < until_ms
                {
                    wait(bench.changed(&record.id, record.version, TOO_LONG_MS));
                }
            });
        }
        bench.pause(15);
        meanwhile()
    })?;
    ensure!(bench.now_ms() < until_ms, "the change was slept through");
    Ok(())
}

fn a_change_that_was_before_is_seen_at_once(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    bench.put(&record)?;
    bench.replace(&record, &next(&record))?;
    let before_ms = bench.now_ms();
    wait(bench.changed(&record.id, record.version, TOO_LONG_MS));
    ensure!(took_ms(bench, before_ms)? < TOO_LONG_MS, "it waited for a change that was there already");
    Ok(())
}

fn a_record_that_is_not_there_is_no_reason_to_wait(bench: &Bench) -> Verdict {
    let before_ms = bench.now_ms();
    wait(bench.changed(&staged("a")?.id, 1, TOO_LONG_MS));
    ensure!(took_ms(bench, before_ms)? < TOO_LONG_MS, "it waited for a record that is not there");
    Ok(())
}

fn waiting_ends_when_the_time_is_over(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    bench.put(&record)?;
    let before_ms = bench.now_ms();
    wait(bench.changed(&record.id, record.version, 5));
    ensure!(took_ms(bench, before_ms)? < TOO_LONG_MS, "it waited far longer than five milliseconds");
    Ok(())
}

fn a_change_wakes_who_waits(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    bench.put(&record)?;
    woken(bench, 1, &record, || bench.replace(&record, &next(&record)).map(drop))
}

fn a_delete_wakes_who_waits(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    bench.put(&record)?;
    woken(bench, 1, &record, || bench.remove(&record).map(drop))
}

fn a_change_wakes_all_who_wait(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    bench.put(&record)?;
    woken(bench, 4, &record, || bench.replace(&record, &next(&record)).map(drop))
}

fn took_ms(bench: &Bench, before_ms: i64) -> Result<u64, Problem> {
    u64::try_from(bench.now_ms() - before_ms).map_err(|_| Problem::new("the clock went back"))
}
