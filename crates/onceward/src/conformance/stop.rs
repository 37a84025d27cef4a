//! Stopped scopes: after `stop` has returned, no record of the scope begins.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::bench::{
    Bench, Problem, Verdict, ensure, equal, in_state, next, staged, staged_as, wait, written,
};
use super::{Case, cases};
use crate::barrier::Barrier;
use crate::record::{Record, State};
use crate::store::{Begin, Filter, Swap, WriteMode};
use crate::word::Word;

pub(super) const CASES: &[Case] = cases![
    without_a_barrier_a_begin_is_a_swap,
    a_stopped_scope_refuses_a_new_record,
    a_stopped_scope_refuses_the_next_attempt,
    a_change_that_begins_nothing_is_not_refused,
    a_conflict_takes_precedence,
    the_scopes_of_its_callers_are_stopped_with_it,
    other_scopes_go_on,
    stopping_twice_keeps_the_first_barrier,
    a_barrier_keeps_who_set_it_and_why,
    a_resumed_scope_begins_again,
    barriers_are_listed_in_the_order_of_their_scopes,
    no_record_begins_after_a_stop_has_returned,
];

const THREADS: usize = 4;
const ROUNDS: usize = 6;

fn try_begin(bench: &Bench, expected: Option<u64>, record: &Record) -> Result<Begin, Problem> {
    Ok(wait(bench.begin(expected, record.clone(), WriteMode::Blocking))?)
}

fn begun(bench: &Bench, expected: Option<u64>, record: &Record) -> Result<Arc<Record>, Problem> {
    match try_begin(bench, expected, record)? {
        Begin::Swapped(swap) => written(swap),
        Begin::Stopped(barrier) => {
            Err(Problem::new(format!("refused by the barrier of {:?}", barrier.scope)))
        }
    }
}

fn refused(bench: &Bench, expected: Option<u64>, record: &Record) -> Result<Barrier, Problem> {
    match try_begin(bench, expected, record)? {
        Begin::Stopped(barrier) => Ok(barrier),
        Begin::Swapped(Swap::Written(_)) => Err(Problem::new("it began in a stopped scope")),
        Begin::Swapped(Swap::Conflict(_)) => {
            Err(Problem::new("a conflict, where a barrier should refuse it"))
        }
    }
}

fn barrier(scope: &str, why: Option<&str>, at_ms: i64) -> Barrier {
    Barrier::new(scope, Word::person("Zoë").note(why.map(str::to_owned)).at(at_ms))
}

pub(super) fn stop(bench: &Bench, scope: &str) -> Result<Barrier, Problem> {
    Ok(wait(bench.stop(&barrier(scope, None, bench.now_ms())))?)
}

fn running(scope: &str, key: &str) -> Result<Record, Problem> {
    Ok(Record { state: State::Running, attempt: 1, ..staged_as(scope, "conformance", key)? })
}

fn without_a_barrier_a_begin_is_a_swap(bench: &Bench) -> Verdict {
    let record = running("run-7", "a")?;
    begun(bench, None, &record)?;
    begun(bench, Some(record.version), &next(&record))?;
    ensure!(
        matches!(try_begin(bench, None, &record)?, Begin::Swapped(Swap::Conflict(Some(_)))),
        "a begin of an existing record is no conflict"
    );
    equal!(bench.found(&record.id)?.version, next(&record).version, "the version");
    Ok(())
}

fn a_stopped_scope_refuses_a_new_record(bench: &Bench) -> Verdict {
    stop(bench, "run-7")?;
    for state in [State::Running, State::Staged] {
        let record = Record { state, ..running("run-7", "a")? };
        equal!(refused(bench, None, &record)?.scope, "run-7", "the scope of the barrier");
        ensure!(bench.find(&record.id)?.is_none(), "the refused record was written");
    }
    Ok(())
}

fn a_stopped_scope_refuses_the_next_attempt(bench: &Bench) -> Verdict {
    let failed = in_state("a", State::Failed, None)?;
    bench.put(&failed)?;
    stop(bench, "default")?;
    refused(bench, Some(failed.version), &Record { state: State::Running, ..next(&failed) })?;
    equal!(bench.found(&failed.id)?.version, failed.version, "the version");
    Ok(())
}

fn a_change_that_begins_nothing_is_not_refused(bench: &Bench) -> Verdict {
    let record = running("run-7", "a")?;
    begun(bench, None, &record)?;
    stop(bench, "run-7")?;
    bench.replace(&record, &Record { state: State::Done, ..next(&record) })?;
    bench.put(&running("run-7", "b")?)?;
    Ok(())
}

fn a_conflict_takes_precedence(bench: &Bench) -> Verdict {
    let record = in_state("a", State::Done, None)?;
    bench.put(&record)?;
    stop(bench, "default")?;
    let begin = try_begin(bench, None, &staged("a")?)?;
    ensure!(
        matches!(&begin, Begin::Swapped(Swap::Conflict(Some(found))) if found.state == State::Done),
        "the finished record is hidden by the barrier: {begin:?}"
    );
    Ok(())
}

fn the_scopes_of_its_callers_are_stopped_with_it(bench: &Bench) -> Verdict {
    stop(bench, "run-7")?;
    equal!(refused(bench, None, &running("run-7~alice", "a")?)?.scope, "run-7", "the scope of the barrier");
    stop(bench, "run-8~alice")?;
    refused(bench, None, &running("run-8~alice", "a")?)?;
    begun(bench, None, &running("run-8~bob", "a")?)?;
    begun(bench, None, &running("run-8", "a")?)?;
    Ok(())
}

fn other_scopes_go_on(bench: &Bench) -> Verdict {
    stop(bench, "run-7")?;
    for scope in ["default", "run-70", "run-7/a", "run-", "Run-7"] {
        begun(bench, None, &running(scope, "a")?)?;
    }
    Ok(())
}

fn stopping_twice_keeps_the_first_barrier(bench: &Bench) -> Verdict {
    let first = barrier("run-7", Some("wrong list"), 1_000);
    equal!(wait(bench.stop(&first))?, first, "the first barrier");
    let second = barrier("run-7", Some("another reason"), 2_000);
    equal!(wait(bench.stop(&second))?, first, "the barrier after the second stop");
    equal!(wait(bench.barriers())?, [first], "the barriers");
    Ok(())
}

fn a_barrier_keeps_who_set_it_and_why(bench: &Bench) -> Verdict {
    let barrier = barrier("Zoë's run #7", Some("it's \"wrong\"\n\u{1F6D1} \\"), i64::MAX);
    wait(bench.stop(&barrier))?;
    equal!(wait(bench.barriers())?, std::slice::from_ref(&barrier), "the barriers");
    equal!(refused(bench, None, &running("Zoë's run #7", "a")?)?, barrier, "the barrier");
    Ok(())
}

fn a_resumed_scope_begins_again(bench: &Bench) -> Verdict {
    equal!(wait(bench.resume("run-7"))?, None, "what was lifted");
    let barrier = stop(bench, "run-7")?;
    equal!(wait(bench.resume("run-7~alice"))?, None, "what was lifted");
    equal!(wait(bench.resume("run-7"))?, Some(barrier), "what was lifted");
    equal!(wait(bench.resume("run-7"))?, None, "what was lifted");
    begun(bench, None, &running("run-7", "a")?)?;
    ensure!(wait(bench.barriers())?.is_empty(), "a barrier is left");
    Ok(())
}

fn barriers_are_listed_in_the_order_of_their_scopes(bench: &Bench) -> Verdict {
    for scope in ["b", "a~x", "c", "a"] {
        stop(bench, scope)?;
    }
    let scopes: Vec<String> = wait(bench.barriers())?.into_iter().map(|barrier| barrier.scope).collect();
    equal!(scopes, ["a", "a~x", "b", "c"], "the scopes");
    Ok(())
}

fn no_record_begins_after_a_stop_has_returned(bench: &Bench) -> Verdict {
    (0..ROUNDS).try_for_each(|round| race(bench, bench, &format!("round-{round}")))
}

/// Begins records on many threads here, and stops their scope there.
pub(super) fn race(here: &Bench, there: &Bench, scope: &str) -> Verdict {
    let (begun, stopped) = (&AtomicU64::new(0), &AtomicBool::new(false));
    std::thread::scope(|threads| {
        let callers: Vec<_> = (0..THREADS)
            .map(|thread| threads.spawn(move || begin_until_refused(here, scope, thread, (begun, stopped))))
            .collect();
        // Stop while they are at work, not before.
        while begun.load(Ordering::SeqCst) < 3
            && !callers.iter().any(std::thread::ScopedJoinHandle::is_finished)
        {
            here.pause(1);
        }
        let after_stop = stop(there, scope).and_then(|_| count(there, scope));
        stopped.store(true, Ordering::SeqCst);
        for caller in callers {
            caller.join().map_err(|_| Problem::new("a thread panicked"))??;
        }
        let after_stop = after_stop?;
        equal!(count(here, scope)?, after_stop, "records that began, in the end and when the stop returned");
        equal!(after_stop, begun.load(Ordering::SeqCst), "records that began");
        Ok(())
    })
}

fn begin_until_refused(
    bench: &Bench,
    scope: &str,
    thread: usize,
    (begun, stopped): (&AtomicU64, &AtomicBool),
) -> Verdict {
    for number in 0_u64.. {
        let late = stopped.load(Ordering::SeqCst);
        match try_begin(bench, None, &running(scope, &format!("{thread}-{number}"))?)? {
            Begin::Swapped(swap) => drop(written(swap)?),
            Begin::Stopped(_) => return Ok(()),
        }
        ensure!(!late, "a record began after the stop had returned");
        begun.fetch_add(1, Ordering::SeqCst);
    }
    Ok(())
}

fn count(bench: &Bench, scope: &str) -> Result<u64, Problem> {
    bench.count_of(&Filter { scope: Some(scope.to_owned()), ..Filter::default() }, State::Running)
}
