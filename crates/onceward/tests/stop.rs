//! Stopping a scope, and the settlement that accounts for every intent.

mod common;

use std::sync::Arc;

use common::NOW_MS;
use onceward::{
    Class, Code, Failure, Fate, Happened, ManualClock, MemoryStore, Operation, Outcome, Record, Settlement,
    State, transition,
};
use proptest::prelude::*;

fn mail(key: &str) -> Operation {
    Operation::new("send_mail").scope("run-7").key(key)
}

fn ledger() -> onceward::Blocking {
    let clock = ManualClock::at(NOW_MS);
    onceward::Ledger::new(Arc::new(MemoryStore::new(clock))).blocking()
}

#[test]
fn a_stopped_scope_starts_nothing_and_replays_what_is_done() {
    let ledger = ledger();
    let send = |attempt: onceward::Attempt| Ok(attempt.dispatch()?.created(&"sent"));
    ledger.run(mail("a"), send).unwrap();
    ledger.run(mail("b"), |_| Err(Failure::no_effect("declined"))).unwrap_err();
    ledger.run(mail("c"), |_| Err(Failure::in_doubt("reset"))).unwrap_err();
    ledger.stop("run-7", Some("wrong list".to_owned())).unwrap();
    assert!(ledger.run(mail("a"), send).unwrap().replayed());
    let refused = ledger.run(mail("b"), send).unwrap_err();
    assert_eq!(
        (refused.code(), refused.happened(), refused.retryable()),
        (Code::Stopped, Some(Happened::No), false)
    );
    assert!(refused.to_string().contains("wrong list"), "{refused}");
    assert_eq!(ledger.run(mail("c"), send).unwrap_err().code(), Code::InDoubt);
    let refused = ledger.run(mail("d"), send).unwrap_err();
    assert_eq!((refused.code(), refused.happened()), (Code::Stopped, Some(Happened::No)));
    let intent = ledger.intent(mail("d")).unwrap();
    assert!(matches!(
        ledger.plan(&intent).unwrap().decision,
        onceward::Decision::Refuse(onceward::Refusal::Stopped(_))
    ));
    assert_eq!(ledger.stage(&intent).unwrap_err().code(), Code::Stopped);
    // A doubt that the class would run again stays in doubt.
    let again = mail("c").class(Class::Idempotent);
    assert_eq!(ledger.run(again, send).unwrap_err().code(), Code::InDoubt);
    ledger.resume("run-7").unwrap();
    assert!(!ledger.run(mail("b"), send).unwrap().replayed());
}

#[test]
fn a_stop_cancels_what_is_held_and_asks_what_runs_to_end() {
    let ledger = ledger();
    let held = ledger.stage(&ledger.intent(mail("held")).unwrap()).unwrap();
    let other = Operation::new("send_mail").scope("run-70").key("a");
    let other = ledger.stage(&ledger.intent(other).unwrap()).unwrap();
    let onceward::Begun::Execute(claim) = ledger.begin(&ledger.intent(mail("runs")).unwrap()).unwrap() else {
        unreachable!("it is new");
    };
    let stopped = ledger.stop("run-7", None).unwrap();
    assert_eq!((stopped.cancelled, stopped.asked), (vec![held.id.clone()], vec![claim.record().id.clone()]));
    assert!(ledger.find(&claim.record().id).unwrap().0.detail.cancel_requested_ms.is_some());
    assert_eq!(ledger.find(&other.id).unwrap().1, State::Staged);
    let first = ledger.settlement("run-7").unwrap();
    assert_eq!((first.sums.cancelled, first.sums.running, first.sums.intended), (1, 1, 2));
    // Its own ending counts, although the scope is stopped.
    let sent = claim.attempt().dispatch().unwrap().created(&1);
    drop(sent);
    let done = onceward::Ending::Done(Outcome::with_effect(onceward::Effect::Created));
    ledger.wait_for(claim.finish(done)).unwrap();
    assert!(ledger.wait_for_scope("run-7", 0).unwrap().is_empty());
    ledger.stop("run-7", Some("again".to_owned())).unwrap();
    let settled = ledger.settlement("run-7").unwrap();
    assert_eq!((settled.sums.cancelled, settled.sums.standing, settled.sums.running), (1, 1, 0));
    ledger.stop("run-7", None).unwrap();
    assert_eq!(ledger.settlement("run-7").unwrap(), settled, "stopping again gives the same settlement");
}

#[test]
fn a_settlement_has_the_scopes_of_all_callers() {
    let ledger = ledger();
    for scope in ["run-7", "run-7~alice", "run-7/x", "run-70"] {
        let mail = Operation::new("send_mail").scope(scope).key("a");
        ledger.run(mail, |attempt| Ok(attempt.dispatch()?.created(&1))).unwrap();
    }
    assert_eq!(ledger.settlement("run-7").unwrap().sums.intended, 2);
}

proptest! {
    #[test]
    fn every_settlement_adds_up(
        states in proptest::collection::vec((0_usize..7, 0_usize..7, 0_u32..4, any::<bool>()), 0..40)
    ) {
        let mut settlement = Settlement::new("run-7", None);
        for (number, (stored, effective, attempt, by_hand)) in states.iter().enumerate() {
            let intent = mail(&number.to_string()).intent().unwrap();
            let mut record = Record { attempt: *attempt, ..transition::stage(&intent, NOW_MS) };
            record.state = State::ALL[*stored];
            record.detail.ended = Some(State::ALL[*effective]);
            record.outcome = by_hand.then(|| Outcome::because(Some("so".to_owned())));
            settlement.add(&record, State::ALL[*effective]);
        }
        prop_assert!(settlement.sums.adds_up(), "{:?}", settlement.sums);
        prop_assert_eq!(settlement.sums.intended, states.len() as u64);
        let standing = settlement.lines.iter().filter(|line| line.fate == Fate::Standing).count();
        prop_assert_eq!(settlement.sums.standing, standing as u64);
        prop_assert!(settlement.lines.iter().all(|line| !line.evidence.is_empty()));
    }
}
