//! Two handles on one ledger, as two processes have them.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::bench::{
    Bench, Problem, Verdict, conflict, ensure, equal, everything, in_state, next, same, staged, wait,
};
use super::{Case, cases, stop};
use crate::error::Error;
use crate::facts::Liveness;
use crate::ledger::{Begun, Receipt};
use crate::operation::Operation;
use crate::record::{Owner, State};
use crate::store::{Inherit, LivenessSource};
use crate::word::Word;

pub(super) const GROUP: &str = "two handles";

/// How long it may take until the other handle learns of a change.
const NOTICE_MS: i64 = 60_000;

type BothSides = fn(&Bench, &Bench) -> Verdict;

pub(super) const CASES: &[Case<BothSides>] = cases![
    what_one_writes_the_other_finds,
    what_one_changes_the_other_sees_at_once,
    what_one_deletes_the_other_does_not_find,
    the_other_handle_soon_caches_a_change,
    an_old_version_is_a_conflict_across_handles,
    what_one_writes_the_other_lists,
    a_lock_is_seen_from_the_other_side,
    a_change_wakes_a_waiter_on_the_other_handle,
    what_one_has_done_the_other_replays,
    callers_on_both_sides_have_one_effect,
    a_stop_on_one_side_holds_on_the_other,
    a_stop_on_one_side_reaches_an_attempt_on_the_other,
];

fn a_stop_on_one_side_reaches_an_attempt_on_the_other(here: &Bench, there: &Bench) -> Verdict {
    let ledger = here.ledger();
    let intent = ledger.intent(Operation::new("pay").scope("run-7").key("a"))?;
    let Begun::Execute(claim) = ledger.begin_undispatched(&intent)? else {
        return Err(Problem::new("it was replayed, where it should run"));
    };
    let attempt = claim.attempt();
    ensure!(!wait(attempt.check_cancel_requested())?, "it was asked to end before the stop");
    there.ledger().scopes().stop("run-7", &Word::person("ada"))?;
    ensure!(wait(attempt.check_cancel_requested())?, "it does not see that it was asked to end");
    ensure!(attempt.dispatch().is_err(), "it dispatched, although it was asked to end");
    Ok(())
}

fn a_stop_on_one_side_holds_on_the_other(here: &Bench, there: &Bench) -> Verdict {
    (0..6).try_for_each(|round| stop::race(here, there, &format!("round-{round}")))
}

fn what_one_writes_the_other_finds(here: &Bench, there: &Bench) -> Verdict {
    let record = staged("a")?;
    here.put(&record)?;
    same(&*there.found(&record.id)?, &record)
}

fn what_one_changes_the_other_sees_at_once(here: &Bench, there: &Bench) -> Verdict {
    let mut record = in_state("a", State::Done, None)?;
    here.put(&record)?;
    // The other handle has read the record before, so a stale cached copy would be noticed.
    for _ in 0..4 {
        there.found(&record.id)?;
        let after = next(&record);
        here.replace(&record, &after)?;
        equal!(there.found(&record.id)?.version, after.version, "the version on the other side");
        record = after;
    }
    Ok(())
}

/// A cache of finished records may lag behind the other handle until it learns of the change.
fn the_other_handle_soon_caches_a_change(here: &Bench, there: &Bench) -> Verdict {
    let mut record = in_state("a", State::Done, None)?;
    here.put(&record)?;
    for _ in 0..4 {
        there.found(&record.id)?;
        wait(there.load_cached(&record.id))?;
        let after = next(&record);
        here.replace(&record, &after)?;
        let asked_ms = here.now_ms();
        while wait(there.load_cached(&record.id))?.is_some_and(|seen| seen.version == record.version) {
            ensure!(
                here.now_ms() < asked_ms + NOTICE_MS,
                "the other handle caches a version that was replaced long ago"
            );
            here.pause(1);
        }
        record = after;
    }
    Ok(())
}

fn what_one_deletes_the_other_does_not_find(here: &Bench, there: &Bench) -> Verdict {
    let record = in_state("a", State::Done, Some(5))?;
    here.put(&record)?;
    there.found(&record.id)?;
    ensure!(here.remove(&record)?, "it says that nothing was deleted");
    ensure!(there.find(&record.id)?.is_none(), "the other side still finds it");
    ensure!(!there.remove(&record)?, "the other side deletes it again");
    Ok(())
}

fn an_old_version_is_a_conflict_across_handles(here: &Bench, there: &Bench) -> Verdict {
    let record = staged("a")?;
    here.put(&record)?;
    conflict(there.try_swap(None, &record)?)?;
    here.replace(&record, &next(&record))?;
    let found = conflict(there.try_swap(Some(record.version), &next(&record))?)?;
    equal!(found.map(|found| found.version), Some(2), "the conflicting version");
    Ok(())
}

fn what_one_writes_the_other_lists(here: &Bench, there: &Bench) -> Verdict {
    here.put(&in_state("a", State::Done, Some(5))?)?;
    there.put(&in_state("b", State::Done, Some(4))?)?;
    for side in [here, there] {
        equal!(side.keys(&everything())?, ["b", "a"], "the listing");
        equal!(side.due_keys(5, 10)?, ["b", "a"], "what is due");
        equal!(side.count(State::Done)?, 2, "the count");
    }
    Ok(())
}

fn a_lock_is_seen_from_the_other_side(here: &Bench, there: &Bench) -> Verdict {
    let expected = |seen| {
        if there.watch() == LivenessSource::Kernel { seen } else { Liveness::Unknown }
    };
    let lock = here.hold(Inherit::No)?;
    let owner = Owner { token: lock.token(), lease_until_ms: 0 };
    equal!(wait(there.liveness(&owner))?, expected(Liveness::Alive), "a lock that is held");
    drop(lock);
    equal!(wait(there.liveness(&owner))?, expected(Liveness::Gone), "a lock that was dropped");
    Ok(())
}

fn a_change_wakes_a_waiter_on_the_other_handle(here: &Bench, there: &Bench) -> Verdict {
    let record = staged("a")?;
    here.put(&record)?;
    let until_ms = there.now_ms() + NOTICE_MS;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while wait(there.load(&record.id))
                .ok()
                .flatten()
                .is_some_and(|found| found.version == record.version)
                && there.now_ms() < until_ms
            {
                // A store that is not notified of remote changes must poll; the ledger waits in short slices.
                wait(there.changed(&record.id, record.version, 20));
            }
        });
        here.pause(15);
        here.replace(&record, &next(&record))
    })?;
    ensure!(there.now_ms() < until_ms, "the change was missed");
    Ok(())
}

fn pay() -> Operation {
    Operation::new("pay").key("a")
}

fn what_one_has_done_the_other_replays(here: &Bench, there: &Bench) -> Verdict {
    here.ledger().run(pay(), |attempt| Ok(attempt.dispatch()?.created(&1)))?;
    let receipt = there.ledger().run(pay(), |attempt| Ok(attempt.dispatch()?.created(&2)))?;
    equal!((receipt.replayed(), receipt.data()), (true, Some("1")), "the answer on the other side");
    Ok(())
}

fn callers_on_both_sides_have_one_effect(here: &Bench, there: &Bench) -> Verdict {
    let effects = AtomicUsize::new(0);
    let run = |side: &Bench| {
        side.ledger().run(pay(), |attempt| {
            effects.fetch_add(1, Ordering::SeqCst);
            side.pause(5);
            Ok(attempt.dispatch()?.created(&1))
        })
    };
    let receipts: Vec<Result<Receipt, Error>> = std::thread::scope(|scope| {
        let threads: Vec<_> = [here, there, here, there].map(|side| scope.spawn(move || run(side))).into();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    equal!((receipts.len(), effects.load(Ordering::SeqCst)), (4, 1), "answers and effects");
    receipts.into_iter().try_for_each(|receipt| receipt.map(drop).map_err(Into::into))
}
