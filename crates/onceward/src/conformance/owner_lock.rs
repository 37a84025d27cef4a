//! Owner locks and their liveness, the clock, and the replay count.

use std::collections::HashSet;

use super::bench::{Bench, Problem, Verdict, ensure, equal, next, same, staged, wait};
use super::{Case, cases};
use crate::facts::Liveness;
use crate::record::Owner;
use crate::store::{Dispatch, Inherit, LivenessSource};

pub(super) const CASES: &[Case] = cases![
    a_held_lock_is_never_gone,
    a_dropped_lock_is_not_alive,
    a_lock_outlives_its_lease,
    dropping_one_lock_leaves_the_others,
    every_lock_has_its_own_token,
    a_token_is_not_used_again_at_once,
    a_token_without_a_holder_is_not_alive,
    a_lock_can_be_dropped_by_another_thread,
    a_lock_for_children_is_a_lock_too,
    many_locks_are_held_at_once,
    a_note_that_nothing_was_dispatched_ends_no_lock,
    an_owner_that_dispatched_never_counts_as_one_that_did_not,
    a_note_is_of_one_lock_only,
    time_goes_on_and_never_back,
    a_tally_changes_no_version,
    a_tally_of_nothing_is_harmless,
];

fn liveness_of(bench: &Bench, token: u64) -> Result<Liveness, Problem> {
    let owner = Owner { token, lease_until_ms: bench.now_ms() + 10_000 };
    Ok(wait(bench.liveness(&owner))?)
}

/// What the store reports for a lock. A store that relies on leases always reports `Unknown`.
fn expected(bench: &Bench, where_it_looks: Liveness) -> Liveness {
    match bench.watch() {
        LivenessSource::Kernel => where_it_looks,
        LivenessSource::Lease => Liveness::Unknown,
    }
}

fn a_held_lock_is_never_gone(bench: &Bench) -> Verdict {
    let lock = bench.hold(Inherit::No)?;
    equal!(liveness_of(bench, lock.token())?, expected(bench, Liveness::Alive), "a lock that is held");
    Ok(())
}

fn a_dropped_lock_is_not_alive(bench: &Bench) -> Verdict {
    let lock = bench.hold(Inherit::No)?;
    let token = lock.token();
    drop(lock);
    equal!(liveness_of(bench, token)?, expected(bench, Liveness::Gone), "a lock that was dropped");
    Ok(())
}

fn a_lock_outlives_its_lease(bench: &Bench) -> Verdict {
    let lock = bench.hold(Inherit::No)?;
    let owner = Owner { token: lock.token(), lease_until_ms: 0 };
    // Leases are policy, and a store contains none.
    equal!(
        wait(bench.liveness(&owner))?,
        expected(bench, Liveness::Alive),
        "a held lock whose lease is over"
    );
    Ok(())
}

fn dropping_one_lock_leaves_the_others(bench: &Bench) -> Verdict {
    let (first, second) = (bench.hold(Inherit::No)?, bench.hold(Inherit::No)?);
    let gone = first.token();
    drop(first);
    equal!(
        liveness_of(bench, second.token())?,
        expected(bench, Liveness::Alive),
        "the lock that is still held"
    );
    equal!(liveness_of(bench, gone)?, expected(bench, Liveness::Gone), "the lock that was dropped");
    Ok(())
}

fn every_lock_has_its_own_token(bench: &Bench) -> Verdict {
    let locks = (0..20).map(|_| bench.hold(Inherit::No)).collect::<Result<Vec<_>, _>>()?;
    let tokens: HashSet<u64> = locks.iter().map(|lock| lock.token()).collect();
    equal!(tokens.len(), locks.len(), "different tokens");
    Ok(())
}

fn a_token_is_not_used_again_at_once(bench: &Bench) -> Verdict {
    let mut seen = HashSet::new();
    for _ in 0..20 {
        // A reused token would make a dead owner look alive.
        ensure!(seen.insert(bench.hold(Inherit::No)?.token()), "a token was used twice");
    }
    Ok(())
}

fn a_token_without_a_holder_is_not_alive(bench: &Bench) -> Verdict {
    let lock = bench.hold(Inherit::No)?;
    let stranger = lock.token() ^ 0x5555_0000_0000;
    equal!(liveness_of(bench, stranger)?, expected(bench, Liveness::Gone), "a token without a holder");
    Ok(())
}

fn a_lock_can_be_dropped_by_another_thread(bench: &Bench) -> Verdict {
    let lock = bench.hold(Inherit::No)?;
    let token = lock.token();
    std::thread::scope(|scope| {
        scope.spawn(move || drop(lock));
    });
    equal!(liveness_of(bench, token)?, expected(bench, Liveness::Gone), "the lock that was dropped");
    Ok(())
}

fn a_lock_for_children_is_a_lock_too(bench: &Bench) -> Verdict {
    let lock = bench.hold(Inherit::Children)?;
    let token = lock.token();
    equal!(liveness_of(bench, token)?, expected(bench, Liveness::Alive), "while it is held");
    drop(lock);
    equal!(
        liveness_of(bench, token)?,
        expected(bench, Liveness::Gone),
        "after it was dropped, with no child"
    );
    Ok(())
}

fn many_locks_are_held_at_once(bench: &Bench) -> Verdict {
    let locks = (0..100).map(|_| bench.hold(Inherit::No)).collect::<Result<Vec<_>, _>>()?;
    for lock in &locks {
        equal!(liveness_of(bench, lock.token())?, expected(bench, Liveness::Alive), "one of a hundred");
    }
    Ok(())
}

fn a_note_that_nothing_was_dispatched_ends_no_lock(bench: &Bench) -> Verdict {
    let lock = bench.hold(Inherit::No)?;
    lock.note_dispatch(Dispatch::NotYet)?;
    equal!(liveness_of(bench, lock.token())?, expected(bench, Liveness::Alive), "while it is held");
    let token = lock.token();
    drop(lock);
    // A store need not keep the note. Without it, the owner is simply gone.
    let seen = liveness_of(bench, token)?;
    ensure!(
        seen == expected(bench, Liveness::NeverDispatched) || seen == expected(bench, Liveness::Gone),
        "after it was dropped it is {seen:?}"
    );
    Ok(())
}

fn an_owner_that_dispatched_never_counts_as_one_that_did_not(bench: &Bench) -> Verdict {
    for notes in [[Dispatch::NotYet, Dispatch::Begun], [Dispatch::Begun, Dispatch::Begun]] {
        let lock = bench.hold(Inherit::No)?;
        let token = lock.token();
        notes.into_iter().try_for_each(|note| lock.note_dispatch(note))?;
        drop(lock);
        equal!(
            liveness_of(bench, token)?,
            expected(bench, Liveness::Gone),
            "an owner that noted its dispatch"
        );
    }
    Ok(())
}

fn a_note_is_of_one_lock_only(bench: &Bench) -> Verdict {
    let (noted, silent) = (bench.hold(Inherit::No)?, bench.hold(Inherit::No)?);
    noted.note_dispatch(Dispatch::NotYet)?;
    let token = silent.token();
    drop((noted, silent));
    equal!(liveness_of(bench, token)?, expected(bench, Liveness::Gone), "an owner that noted nothing");
    Ok(())
}

fn time_goes_on_and_never_back(bench: &Bench) -> Verdict {
    let before_ms = bench.now_ms();
    bench.pause(3);
    let after_ms = bench.now_ms();
    ensure!(after_ms > before_ms, "{before_ms} before a pause and {after_ms} after it");
    Ok(())
}

fn a_tally_changes_no_version(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    bench.put(&record)?;
    for _ in 0..3 {
        bench.tally_replay(&record.id);
    }
    same(&*bench.found(&record.id)?, &record)?;
    bench.replace(&record, &next(&record)).map(drop)
}

fn a_tally_of_nothing_is_harmless(bench: &Bench) -> Verdict {
    let record = staged("a")?;
    bench.tally_replay(&record.id);
    ensure!(bench.find(&record.id)?.is_none(), "the tally created a record");
    bench.put(&record).map(drop)
}
