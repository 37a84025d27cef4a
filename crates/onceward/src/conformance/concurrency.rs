//! Concurrency: of several swaps that expect the same version, one succeeds.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::bench::{Bench, Problem, Verdict, ensure, equal, everything, next, staged};
use super::{Case, cases};
use crate::record::Record;
use crate::store::{Inherit, Swap};

const THREADS: usize = 8;

pub(super) const CASES: &[Case] = cases![
    of_many_first_writes_one_wins,
    of_many_swaps_of_one_version_one_wins,
    every_loser_sees_the_winner,
    no_change_is_lost_among_many,
    of_many_deletes_one_wins,
    a_swap_and_a_delete_do_not_both_win,
    many_keys_are_written_at_once,
    locks_taken_at_once_have_their_own_tokens,
];

/// Runs `work` on many threads at once, with each thread's number, and returns all results.
fn at_once<T: Send>(work: impl Fn(usize) -> Result<T, Problem> + Sync) -> Result<Vec<T>, Problem> {
    let gate = std::sync::Barrier::new(THREADS);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let (work, gate) = (&work, &gate);
                scope.spawn(move || {
                    gate.wait();
                    work(number)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| Problem::new("a thread panicked"))?)
            .collect()
    })
}

fn marked(record: &Record, number: usize) -> Record {
    let mut record = record.clone();
    record.detail.probe = Some(format!("of thread {number}"));
    record
}

fn of_many_first_writes_one_wins(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    let swaps = at_once(|number| bench.try_swap(None, &marked(&record, number)))?;
    let winners = swaps.iter().filter(|swap| matches!(swap, Swap::Written(_))).count();
    equal!(winners, 1, "winners");
    equal!(bench.keys(&everything())?, ["a"], "the listing");
    Ok(())
}

fn of_many_swaps_of_one_version_one_wins(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    bench.put(&record)?;
    let swaps = at_once(|number| bench.try_swap(Some(1), &marked(&next(&record), number)))?;
    let winners: Vec<usize> = swaps
        .iter()
        .enumerate()
        .filter(|(_, swap)| matches!(swap, Swap::Written(_)))
        .map(|(n, _)| n)
        .collect();
    equal!(winners.len(), 1, "winners");
    let found = bench.found(&record.id)?;
    equal!(found.detail.probe, Some(format!("of thread {}", winners[0])), "whose record is there");
    Ok(())
}

fn every_loser_sees_the_winner(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    let swaps = at_once(|number| bench.try_swap(None, &marked(&record, number)))?;
    let seen: Vec<Option<String>> = swaps
        .iter()
        .map(|swap| match swap {
            Swap::Written(record) | Swap::Conflict(Some(record)) => record.detail.probe.clone(),
            Swap::Conflict(None) => None,
        })
        .collect();
    ensure!(
        seen.iter().all(|mark| mark.is_some() && *mark == seen[0]),
        "they see different winners: {seen:?}"
    );
    Ok(())
}

fn no_change_is_lost_among_many(bench: &Bench) -> Verdict {
    const CHANGES: u32 = 10;
    let first = staged("a")?;
    bench.put(&first)?;
    at_once(|_| {
        for _ in 0..CHANGES {
            loop {
                let found = bench.found(&first.id)?;
                let after = Record { attempt: found.attempt + 1, ..next(&found) };
                if let Swap::Written(_) = bench.try_swap(Some(found.version), &after)? {
                    break;
                }
            }
        }
        Ok(())
    })?;
    let found = bench.found(&first.id)?;
    let expected = CHANGES * THREADS as u32;
    equal!((found.attempt, found.version), (expected, u64::from(expected) + 1), "changes and version");
    Ok(())
}

fn of_many_deletes_one_wins(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    bench.put(&record)?;
    let deleted = at_once(|_| bench.remove(&record))?;
    equal!(deleted.iter().filter(|deleted| **deleted).count(), 1, "deletes that say yes");
    Ok(())
}

fn a_swap_and_a_delete_do_not_both_win(bench: &Bench) -> Verdict {
    for round in 0..10 {
        let record = staged(&round.to_string())?;
        bench.put(&record)?;
        let winners = AtomicUsize::new(0);
        at_once(|number| {
            let won = match number % 2 {
                0 => bench.remove(&record)?,
                _ => matches!(bench.try_swap(Some(record.version), &next(&record))?, Swap::Written(_)),
            };
            winners.fetch_add(usize::from(won), Ordering::SeqCst);
            Ok(())
        })?;
        equal!(winners.into_inner(), 1, "winners");
    }
    Ok(())
}

fn many_keys_are_written_at_once(bench: &Bench) -> Verdict {
    at_once(|number| {
        for index in 0..5 {
            bench.put(&staged(&format!("{number}-{index}"))?)?;
        }
        Ok(())
    })?;
    equal!(bench.listed(&everything())?.len(), 5 * THREADS, "records");
    Ok(())
}

fn locks_taken_at_once_have_their_own_tokens(bench: &Bench) -> Verdict {
    let locks = at_once(|_| Ok(bench.hold(Inherit::No)?))?;
    let tokens: std::collections::HashSet<u64> = locks.iter().map(|lock| lock.token()).collect();
    equal!(tokens.len(), THREADS, "different tokens");
    Ok(())
}
