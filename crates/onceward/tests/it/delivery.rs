//! What the ledger records about the delivery of an answer.

use std::sync::Arc;

use crate::common::{Bench, id};
use onceward::{Code, Evidence, Failure, Operation, RepeatRule, State, Word};

/// A call without a key: only for such a call delivery distinguishes a repeat.
fn pay() -> Operation {
    Operation::new("pay").input(serde_json::json!({"amount": 100}))
}

#[test]
fn the_first_sure_delivery_counts_and_can_be_taken_back() {
    let bench = Bench::new();
    let ledger = bench.ledger.ledger();
    let refused = bench.wait(ledger.attempts().not_delivered(&id(&pay())));
    assert_eq!(refused.expect_err("there is nothing").code(), Code::NotFound);
    let receipt = bench.run(&pay()).expect("it runs");
    assert_eq!(receipt.record().delivered_ms(), None);
    let before = Arc::clone(receipt.record());
    // A caller that records the delivery may hold an outdated version.
    let note = |at| bench.wait(ledger.attempts().delivered(&before, at));
    let after = note(9_000).expect("it is done");
    assert_eq!(after.delivered_ms(), Some(9_000));
    assert_eq!(
        (after.due_ms, after.updated_ms, after.state),
        (before.due_ms, before.updated_ms, before.state)
    );
    assert_eq!(note(5_000).expect("sooner").delivered_ms(), Some(5_000));
    let same = note(7_000).expect("later changes nothing");
    assert_eq!((same.delivered_ms(), same.version), (Some(5_000), after.version + 1));
    let taken_back = bench.wait(ledger.attempts().not_delivered(&id(&pay())));
    assert_eq!(taken_back.expect("not taken after all").delivered_ms(), None);
    assert_eq!(bench.run(&pay()).expect("a replay").data(), receipt.data());
    // The replay is delivered. Its caller read the record before the first delivery was taken back.
    let again = bench.wait(ledger.attempts().delivered(&same, 5_000));
    assert_eq!(again.expect("it is done").delivered_ms(), Some(5_000));
    let (stored, _) = bench.wait(ledger.find(&id(&pay()))).expect("it is there");
    assert_eq!(stored.delivered_ms(), Some(5_000));
}

#[test]
fn a_failure_is_delivered_too_and_the_next_attempt_is_not() {
    let bench = Bench::new();
    let ledger = bench.ledger.ledger();
    bench
        .ledger
        .run(pay(), |_| Err(Failure::no_effect(Evidence::NotSent, "declined")))
        .expect_err("it fails");
    let (found, _) = bench.wait(ledger.find(&id(&pay()))).expect("it is there");
    let failed = bench.wait(ledger.attempts().delivered(&found, 1)).expect("it ended");
    assert_eq!(failed.delivered_ms(), Some(1));
    let receipt = bench.run(&pay()).expect("the next attempt");
    assert_eq!(receipt.record().delivered_ms(), None);
}

/// The caller of the first attempt reports its delivery late: another caller's answer was not delivered by that.
#[test]
fn the_delivery_of_an_answer_is_not_that_of_the_next_one() {
    let bench = Bench::new();
    let ledger = bench.ledger.ledger();
    let fail = |_| Err(Failure::no_effect(Evidence::NotSent, "declined"));
    bench.ledger.run(pay(), fail).expect_err("it fails");
    let (failed, _) = bench.wait(ledger.find(&id(&pay()))).expect("it is there");
    bench.run(&pay()).expect("the next attempt");
    let later = bench.wait(ledger.attempts().delivered(&failed, 1)).expect("it has ended");
    assert_eq!((later.state, later.delivered_ms()), (State::Done, None));
    let cancelled = Operation::new("pay").input(serde_json::json!({"amount": 200}));
    bench.ledger.run(cancelled.clone(), fail).expect_err("it fails");
    let (failed, _) = bench.wait(ledger.find(&id(&cancelled))).expect("it is there");
    bench.wait(ledger.admin().cancel(&id(&cancelled), &Word::person("ada"))).expect("it has failed");
    let later = bench.wait(ledger.attempts().delivered(&failed, 1)).expect("it has ended");
    assert_eq!((later.state, later.delivered_ms()), (State::Cancelled, None));
}

#[test]
fn what_is_in_doubt_has_no_answer_to_deliver() {
    let bench = Bench::new();
    let ledger = bench.ledger.ledger();
    bench.ledger.run(pay(), |_| Err(Failure::in_doubt("lost"))).expect_err("it is in doubt");
    let (found, _) = bench.wait(ledger.find(&id(&pay()))).expect("it is there");
    let refused = bench.wait(ledger.attempts().delivered(&found, 1));
    assert_eq!(refused.expect_err("it has none").code(), Code::WrongState);
}

#[test]
fn a_doubt_is_found_across_occurrences_that_were_forgotten() {
    let bench = Bench::new();
    let ledger = bench.ledger.ledger();
    let action = || Operation::new("backup").input(serde_json::json!({"disk": 1}));
    let wanted = || bench.wait(ledger.repeats().wanted(action())).expect("a valid operation");
    let first =
        bench.ledger.run_call(ledger.call(wanted().intent), |attempt| Ok(attempt.dispatch()?.created(&1)));
    let first = first.expect("it runs");
    bench.wait(ledger.attempts().delivered(first.record(), 1)).expect("it is done");
    let second = wanted().intent;
    let doubtful = second.id.clone();
    bench
        .ledger
        .run_call(ledger.call(second), |attempt| {
            let _sent = attempt.dispatch()?;
            Err(Failure::in_doubt("the disk was pulled"))
        })
        .expect_err("it is in doubt");
    bench.wait(ledger.admin().forget(&first.record().id)).expect("it is forgotten");
    let retry = wanted();
    assert_eq!((retry.intent.id, retry.rule), (doubtful, RepeatRule::Retry(State::InDoubt)));
    let labelled = action().occurrence("friday");
    let labelled = bench.wait(ledger.repeats().wanted(labelled)).expect("a valid operation");
    assert_eq!(labelled.rule, RepeatRule::Given, "a label names another operation");
}
