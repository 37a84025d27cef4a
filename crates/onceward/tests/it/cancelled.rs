//! An operation that was cancelled while it ran: if its attempt had no effect, it is cancelled, on every way to that
//! finding.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{Bench, id, pay, terms};
use crate::pairs::{Pauses, ada, not_sent};
use onceward::{
    Begun, Class, Code, Ending, Evidence, Failure, Happened, Ledger, MemoryStore, Operation, Outcome,
    ProbeAnswer, Ran, Verdict, Word,
};

/// An operation of this class that was cancelled while it ran, and whose attempt is in doubt.
fn cancelled_in_doubt(bench: &Bench, class: Class) -> Operation {
    let operation = pay().key(class.as_str()).terms(terms(|terms| {
        (terms.class, terms.quarantine_ms) = (class, 0);
    }));
    let lost = bench.ledger.run(operation.clone(), |attempt| {
        bench.ledger.admin().cancel(attempt.operation(), &ada().note("wrong account".to_owned()))?;
        Err(Failure::in_doubt("lost"))
    });
    assert_eq!(lost.expect_err("it is lost").code(), Code::InDoubt);
    operation
}

/// It was cancelled on Ada's word, whichever way it is called.
#[track_caller]
fn is_cancelled_by_ada(bench: &Bench, operation: &Operation) {
    for _ in 0..2 {
        let error = bench.ask(operation).expect_err("it was cancelled");
        assert_eq!((error.code(), error.happened()), (Code::Cancelled, Some(Happened::No)));
    }
    let found = bench.found(operation);
    found.check().expect("a sound record");
    let word = found.outcome.as_ref().and_then(|outcome| outcome.settled_by.as_deref());
    assert_eq!(
        word.map(|word| (word.name.as_str(), word.note.as_deref())),
        Some(("ada", Some("wrong account")))
    );
}

#[test]
fn what_was_cancelled_while_it_ran_is_not_tried_again() {
    for class in [Class::Once, Class::Idempotent, Class::Keyed] {
        let bench = Bench::new();
        let retried = pay().terms(terms(|terms| (terms.retries, terms.class) = (3, class)));
        let runs = AtomicU32::new(0);
        let error = bench.ledger.run(retried.clone(), |attempt| {
            runs.fetch_add(1, Ordering::SeqCst);
            bench.ledger.admin().cancel(attempt.operation(), &ada().note("wrong account".to_owned()))?;
            not_sent(attempt)
        });
        let error = error.expect_err("it was cancelled");
        assert_eq!(
            (error.code(), error.happened(), error.ran()),
            (Code::Cancelled, Some(Happened::No), Ran::Yes)
        );
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        is_cancelled_by_ada(&bench, &retried);
    }
}

#[test]
fn no_class_tries_again_what_was_cancelled_while_it_ran() {
    for class in [Class::Idempotent, Class::Keyed, Class::Once, Class::Probed] {
        let bench = Bench::new();
        let operation = cancelled_in_doubt(&bench, class);
        assert_eq!(bench.refused(&operation), Code::InDoubt, "{class}");
        bench.ledger.scopes().stop("default", &ada()).expect("a barrier");
        bench.ledger.scopes().resume("default", &ada()).expect("it is stopped");
        assert_eq!(bench.refused(&operation), Code::InDoubt, "{class}: a resume does not take it back");
    }
}

#[test]
fn after_a_probes_no_what_was_cancelled_is_cancelled() {
    for class in [Class::Probed, Class::Once] {
        let bench = Bench::new();
        let operation = cancelled_in_doubt(&bench, class);
        let asked = bench.ledger.intent(operation.clone().with_probe()).expect("a valid operation");
        let asked = bench.ledger.call(asked).probe(|_| std::future::ready(ProbeAnswer::No));
        let error = bench.ledger.run_call(asked, |_| panic!("it was run")).expect_err("it was cancelled");
        assert_eq!((error.code(), error.ran()), (Code::Cancelled, Ran::No), "{class}");
        is_cancelled_by_ada(&bench, &operation);
    }
}

#[test]
fn what_was_cancelled_and_settled_as_not_done_is_cancelled() {
    let bench = Bench::new();
    let operation = cancelled_in_doubt(&bench, Class::Once);
    let bob = Word::person("bob").note("not in the bank's list".to_owned());
    bench
        .ledger
        .admin()
        .settle(&id(&operation), Verdict::Failed, bob, Outcome::because(None))
        .expect("a doubt");
    is_cancelled_by_ada(&bench, &operation);
    let said =
        bench.found(&operation).detail.history.iter().filter_map(|past| past.settled_by.clone()).count();
    assert_eq!(said, 1, "what Bob said is kept");
    let bench = Bench::new();
    let operation = cancelled_in_doubt(&bench, Class::Idempotent);
    bench
        .ledger
        .admin()
        .settle(&id(&operation), Verdict::Done, ada(), Outcome::because(None))
        .expect("a doubt");
    assert!(bench.ask(&operation).expect("it happened").replayed());
}

#[test]
fn a_caller_that_waits_begins_nothing_that_was_cancelled() {
    let pauses = Pauses::default();
    let interrupt = Arc::clone(&pauses.0);
    let store = MemoryStore::new(Arc::new(pauses));
    let ledger = Ledger::new(Arc::new(store)).blocking();
    let Begun::Execute(claim) = ledger.begin(&ledger.intent(pay()).expect("valid")).expect("it begins")
    else {
        panic!("it was replayed");
    };
    let (running, same) = (Mutex::new(Some(claim)), ledger.clone());
    let end = move || {
        let Some(claim) = running.lock().unwrap().take() else { return };
        same.admin().cancel(&id(&pay()), &ada()).expect("it runs");
        let failed = Ending::failed(Evidence::NotSent, "refused");
        same.wait_for(claim.finish(failed)).expect_err("it was cancelled");
    };
    assert!(interrupt.set(Box::new(end)).is_ok());
    let waiting = pay().terms(terms(|terms| terms.wait_ms = 60_000));
    let error = ledger.run(waiting, |_| panic!("it was run")).expect_err("it was cancelled");
    assert_eq!((error.code(), error.ran()), (Code::Cancelled, Ran::No));
}

#[test]
fn a_refusal_binds_equal_calls_that_no_surface_asked_about() {
    let bench = Bench::new();
    let keyed = |key: &str| pay().key(key);
    let held = keyed("a").terms(terms(|terms| terms.hold = onceward::Hold::Approve));
    assert_eq!(bench.refused(&held), Code::Held);
    bench.ledger.admin().cancel(&id(&held), &ada()).expect("it is held");
    for call in [keyed("a"), keyed("b"), pay().occurrence("2"), keyed("b")] {
        assert_eq!(bench.refused(&call), Code::Cancelled);
        let plan = bench.ledger.plan(&bench.ledger.intent(call).expect("valid")).expect("a plan");
        assert_eq!(plan.decision, onceward::Decision::Refuse(onceward::Refusal::Cancelled));
    }
    bench.run(&keyed("c").input(serde_json::json!({"amount": 2}))).expect("another action");
    // Its caller has the answer, and the window is over.
    let record = bench.found(&held);
    let from_ms = record.answer_counts_from_ms(bench.ledger.clock_ms(), 1_000);
    bench.ledger.attempts().delivered(&record, from_ms).expect("it has an answer");
    assert_eq!(bench.refused(&keyed("b")), Code::Cancelled);
    bench.clock.advance(3_000);
    bench.run(&keyed("b")).expect("a new wish");
    assert_eq!(bench.refused(&keyed("a")), Code::Cancelled, "its own key keeps its answer");
}

#[test]
fn what_was_cancelled_while_it_ran_binds_other_keys_while_it_is_in_doubt() {
    let bench = Bench::new();
    let first = cancelled_in_doubt(&bench, Class::Once);
    let other = pay().key("another");
    assert_eq!(bench.refused(&other), Code::InDoubt, "it may have happened, and nobody wants it");
    let bob = Word::person("bob");
    bench.ledger.admin().settle(&id(&first), Verdict::Failed, bob, Outcome::because(None)).expect("a doubt");
    assert_eq!(bench.refused(&other), Code::Cancelled);
}

#[test]
fn a_refusal_that_another_key_got_is_still_the_answer_to_its_own_caller() {
    let bench = Bench::new();
    let plain = pay_by_content();
    let held = plain.clone().terms(terms(|terms| terms.hold = onceward::Hold::Approve));
    assert_eq!(bench.refused(&held), Code::Held);
    let intent = bench.ledger.intent(plain.clone()).expect("valid");
    bench.ledger.admin().cancel(&intent.id, &ada()).expect("it is held");
    let keyed = bench.ledger.run(plain.clone().key("b"), not_sent).expect_err("it is refused");
    assert_eq!((keyed.code(), onceward::delivered_by(&Err(keyed)).is_none()), (Code::Cancelled, true));
    let own = bench.ledger.run(plain, not_sent).expect_err("it is refused");
    assert_eq!((own.code(), onceward::delivered_by(&Err(own)).is_some()), (Code::Cancelled, true));
}

#[test]
fn a_settlement_as_done_answers_one_key_and_no_label() {
    let bench = Bench::new();
    let plain = pay_by_content();
    bench.ledger.run(plain.clone(), |_| Err(Failure::in_doubt("lost"))).expect_err("it is in doubt");
    let intent = bench.ledger.intent(plain.clone()).expect("valid");
    bench.ledger.admin().settle(&intent.id, Verdict::Done, ada(), Outcome::because(None)).expect("a doubt");
    assert!(!bench.run(&plain.clone().occurrence("2")).expect("it is meant").replayed());
    assert!(bench.run(&plain.clone().key("a")).expect("the caller names it now").replayed());
    assert!(!bench.run(&plain.clone().key("b")).expect("a new wish").replayed());
    assert!(bench.run(&plain.clone().key("a")).expect("it keeps its answer").replayed());
    assert!(bench.run(&plain).expect("its own caller gets it").replayed());
}

#[test]
fn a_strict_call_without_a_key_gets_what_is_open_under_one() {
    for settled in [false, true] {
        let bench = Bench::new();
        let keyed = pay_by_content().scope("q").key("a");
        bench.ledger.run(keyed.clone(), |_| Err(Failure::in_doubt("lost"))).expect_err("it is in doubt");
        if settled {
            bench
                .ledger
                .admin()
                .settle(&id(&keyed), Verdict::Done, ada(), Outcome::because(None))
                .expect("a doubt");
        }
        let strict = pay_by_content().scope("q");
        match bench.ledger.run(strict, not_sent) {
            Ok(receipt) => assert!(settled && receipt.replayed()),
            Err(error) => assert_eq!((error.code(), settled), (Code::InDoubt, false)),
        }
    }
}

/// A payment that nothing but its content identifies.
fn pay_by_content() -> Operation {
    Operation::new("pay").input(serde_json::json!({"to": "ada", "amount": 7}))
}
