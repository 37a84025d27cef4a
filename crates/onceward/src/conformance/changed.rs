//! Waiting for a record to change. Returning early is allowed, missing a change is not.

use super::bench::{Bench, Problem, Verdict, ensure, next, staged, wait};
use super::{Case, cases};
use crate::record::Record;

/// How long a store sleeps that misses the change. Only a failing store waits that long.
const TOO_LONG_MS: u64 = 60_000;

pub(super) const CASES: &[Case] = cases![
    a_change_that_was_before_is_seen_at_once,
    a_record_that_is_not_there_is_no_reason_to_wait,
    waiting_ends_when_the_time_is_over,
    a_change_wakes_a_waiter,
    a_delete_wakes_a_waiter,
    a_change_wakes_all_waiters,
];

/// Waits for a change of `record` while `meanwhile` runs, and fails if the change did not end the wait.
fn ends_the_wait(
    bench: &Bench,
    waiters: usize,
    record: &Record,
    meanwhile: impl FnOnce() -> Verdict,
) -> Verdict {
    let until_ms = bench.now_ms().saturating_add_unsigned(TOO_LONG_MS);
    std::thread::scope(|scope| {
        for _ in 0..waiters {
            scope.spawn(|| {
                // Returning early is allowed, so keep waiting until something has changed.
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
    ensure!(bench.now_ms() < until_ms, "the change was missed");
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

fn a_change_wakes_a_waiter(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    bench.put(&record)?;
    ends_the_wait(bench, 1, &record, || bench.replace(&record, &next(&record)).map(drop))
}

fn a_delete_wakes_a_waiter(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    bench.put(&record)?;
    ends_the_wait(bench, 1, &record, || bench.remove(&record).map(drop))
}

fn a_change_wakes_all_waiters(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    bench.put(&record)?;
    ends_the_wait(bench, 4, &record, || bench.replace(&record, &next(&record)).map(drop))
}

fn took_ms(bench: &Bench, before_ms: i64) -> Result<u64, Problem> {
    u64::try_from(bench.now_ms() - before_ms).map_err(|_| Problem::new("the clock went back"))
}
