//! The suite passes on the store in memory, and catches stores that violate the contract.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common::GoingClock;
use crate::common::broken::{Broken, Fault};
use onceward::{MemoryStore, Store, conformance};

#[test]
fn the_store_in_memory_conforms() {
    let report = conformance::run(&|| Arc::new(MemoryStore::new(GoingClock::new())));
    report.assert_clean();
    assert!(report.passed.len() >= 100, "{} cases", report.passed.len());
}

#[test]
fn the_store_that_only_sees_leases_conforms() {
    conformance::run(&|| Arc::new(MemoryStore::blind(GoingClock::new()))).assert_clean();
}

#[test]
fn two_handles_on_one_store_conform() {
    let report = conformance::run_pair(&|| {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(GoingClock::new()));
        (Arc::clone(&store), store)
    });
    report.assert_clean();
}

#[test]
fn two_stores_are_not_one_ledger() {
    let make = || Arc::new(MemoryStore::new(GoingClock::times(300))) as Arc<dyn Store>;
    let report = conformance::run_pair(&|| (make(), make()));
    assert!(report.failed.len() >= 7, "{report}");
}

/// Each faulty store, and the group that must catch it.
const FAULTS: &[(Fault, &str)] = &[
    (Fault::IgnoresVersions, "load and swap"),
    (Fault::OverwritesOnFirstWrite, "load and swap"),
    (Fault::CreatesOnSwap, "load and swap"),
    (Fault::ConflictBringsNothing, "load and swap"),
    (Fault::ConflictBringsWhatWasTried, "load and swap"),
    (Fault::LosesTheLateAnswer, "load and swap"),
    (Fault::LosesDueTimes, "load and swap"),
    (Fault::CachesStaleRecords, "load_cached"),
    (Fault::BeginsInStoppedScopes, "stop"),
    (Fault::StopsOnlyTheScopeItself, "stop"),
    (Fault::ReplaysNothingWhenStopped, "stop"),
    (Fault::ChecksBarriersInTwoSteps, "stop"),
    (Fault::StopsAnew, "stop"),
    (Fault::NeverResumes, "stop"),
    (Fault::HidesBarriers, "stop"),
    (Fault::ForgetsDeletes, "delete"),
    (Fault::DeletesAnyVersion, "delete"),
    (Fault::SaysNoToEveryDelete, "delete"),
    (Fault::ListsOldestFirst, "list"),
    (Fault::ListsByLastChange, "list"),
    (Fault::OccurrencesForgetTheNewest, "occurrences"),
    (Fault::OccurrencesForgetTheOpen, "occurrences"),
    (Fault::OccurrencesOfEveryAction, "occurrences"),
    (Fault::ListIgnoresScope, "list"),
    (Fault::ListIgnoresScopePrefix, "list"),
    (Fault::ListIgnoresName, "list"),
    (Fault::ListIgnoresStates, "list"),
    (Fault::ListIgnoresCursor, "list"),
    (Fault::ListRepeatsTheCursor, "list"),
    (Fault::ListIgnoresLimit, "list"),
    (Fault::ListBringsBodies, "list"),
    (Fault::ListIgnoresKey, "list"),
    (Fault::ListIgnoresIdPrefix, "list"),
    (Fault::ListIgnoresSince, "list"),
    (Fault::ListIgnoresUntil, "list"),
    (Fault::CountsIgnoreTheFilter, "due and counts"),
    (Fault::AppliesOnlyTheFirst, "apply"),
    (Fault::AppliesAnyVersion, "apply"),
    (Fault::AnswersBatchesBackwards, "apply"),
    (Fault::DueIgnoresTime, "due and counts"),
    (Fault::DueTellsItsOwnTime, "due and counts"),
    (Fault::DueIsLateByOne, "due and counts"),
    (Fault::DueComesNewestFirst, "due and counts"),
    (Fault::DueIgnoresLimit, "due and counts"),
    (Fault::CountsOnlyDone, "due and counts"),
    (Fault::SleepsThroughChanges, "changed"),
    (Fault::NeverLooksBeforeWaiting, "changed"),
    (Fault::SeesAllOwnersAlive, "hold and liveness"),
    (Fault::SeesAllOwnersGone, "hold and liveness"),
    (Fault::KillsWhoseLeaseIsOver, "hold and liveness"),
    (Fault::UsesOneToken, "hold and liveness"),
    (Fault::LosesDispatches, "hold and liveness"),
    (Fault::TallyWrites, "hold and liveness"),
    (Fault::LosesBodies, "results"),
    (Fault::LosesEmptyBodies, "results"),
    (Fault::ReformatsResults, "results"),
    (Fault::SwapsInTwoSteps, "concurrency"),
    (Fault::IgnoresVersions, "concurrency"),
    (Fault::SeesAllOwnersGone, "ledger"),
    (Fault::SeesAllOwnersAlive, "ledger"),
    (Fault::ForgetsDeletes, "ledger"),
    (Fault::LosesBodies, "ledger"),
    (Fault::WritesInAnyEpoch, "identity"),
    (Fault::Panics, "load and swap"),
];

#[test]
fn every_fault_is_caught_by_its_group() {
    for (fault, group) in FAULTS {
        let report = conformance::run_only(&|| Arc::new(Broken::new(*fault)), group);
        assert!(!report.failed.is_empty(), "{fault:?} passes the group {group:?}");
        assert!(!report.passed.is_empty() || *fault == Fault::Panics, "{fault:?} fails all of {group:?}");
    }
}

#[test]
fn every_group_catches_something() {
    let catching: BTreeSet<&str> = FAULTS.iter().map(|(_, group)| *group).collect();
    let all: BTreeSet<&str> = conformance::groups().collect();
    assert_eq!(catching, all);
}

#[test]
fn the_wrapper_alone_breaks_nothing() {
    conformance::run(&|| Arc::new(Broken::new(Fault::None))).assert_clean();
}

#[test]
fn a_report_names_what_does_not_hold() {
    let report = conformance::run_only(&|| Arc::new(Broken::new(Fault::SaysNoToEveryDelete)), "delete");
    let text = report.to_string();
    assert!(
        text.contains("delete: a deleted record is gone\n    it says that nothing was deleted"),
        "{text}"
    );
    assert!(!conformance::Report::default().is_clean(), "a suite of no cases proves nothing");
}
