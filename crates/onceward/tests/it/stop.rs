//! Stopping a scope, and the settlement that accounts for every intent.

use std::future::{pending, ready};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use crate::common::NOW_MS;
use async_trait::async_trait;
use onceward::{
    Begun, Claim, Class, Clock, Code, Ending, Error, Evidence, Failure, Fate, Happened, ManualClock,
    MemoryStore, Operation, Outcome, Ran, Record, Settlement, State, Word, transition,
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
    ledger.run(mail("b"), |_| Err(Failure::no_effect(Evidence::NotSent, "declined"))).unwrap_err();
    ledger.run(mail("c"), |_| Err(Failure::in_doubt("reset"))).unwrap_err();
    ledger.scopes().stop("run-7", &Word::person("ada").note("wrong list".to_owned())).unwrap();
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
    assert_eq!(ledger.attempts().stage(&intent).unwrap_err().code(), Code::Stopped);
    // A doubt that the class would run again stays in doubt.
    let again = mail("c").class(Class::Idempotent);
    assert_eq!(ledger.run(again, send).unwrap_err().code(), Code::InDoubt);
    ledger.scopes().resume("run-7", &Word::person("ada")).unwrap();
    assert!(!ledger.run(mail("b"), send).unwrap().replayed());
}

#[test]
fn a_stop_cancels_what_is_held_and_asks_what_runs_to_end() {
    let ledger = ledger();
    let held = ledger.attempts().stage(&ledger.intent(mail("held")).unwrap()).unwrap();
    let other = Operation::new("send_mail").scope("run-70").key("a");
    let other = ledger.attempts().stage(&ledger.intent(other).unwrap()).unwrap();
    let onceward::Begun::Execute(claim) = ledger.begin(&ledger.intent(mail("runs")).unwrap()).unwrap() else {
        unreachable!("it is new");
    };
    let stopped = ledger.scopes().stop("run-7", &Word::person("ada")).unwrap();
    assert_eq!((stopped.cancelled, stopped.asked), (vec![held.id.clone()], vec![claim.record().id.clone()]));
    assert!(ledger.find(&claim.record().id).unwrap().0.detail.cancel_requested_ms.is_some());
    assert_eq!(ledger.find(&other.id).unwrap().1, State::Staged);
    let cancelled = ledger.find(&held.id).unwrap().0.outcome.clone().and_then(|outcome| outcome.settled_by);
    let cancelled = cancelled.expect("who stopped the scope");
    assert_eq!(
        (cancelled.to_string(), cancelled.note),
        ("a person (ada)".to_owned(), Some("the scope was stopped".to_owned()))
    );
    let first = ledger.scopes().settlement("run-7").unwrap();
    assert_eq!((first.sums.cancelled, first.sums.running, first.sums.intended), (1, 1, 2));
    // Its own ending counts, although the scope is stopped.
    let sent = claim.attempt().dispatch().unwrap().created(&1);
    drop(sent);
    let done = onceward::Ending::Done(Outcome::with_effect(onceward::Effect::Created));
    ledger.wait_for(claim.finish(done)).unwrap();
    assert!(ledger.scopes().wait("run-7", 0).unwrap().is_empty());
    ledger.scopes().stop("run-7", &Word::person("ada").note("again".to_owned())).unwrap();
    let settled = ledger.scopes().settlement("run-7").unwrap();
    assert_eq!((settled.sums.cancelled, settled.sums.standing, settled.sums.running), (1, 1, 0));
    ledger.scopes().stop("run-7", &Word::person("ada")).unwrap();
    assert_eq!(
        ledger.scopes().settlement("run-7").unwrap(),
        settled,
        "stopping again gives the same settlement"
    );
}

fn begun(ledger: &onceward::Blocking, key: &str) -> Claim {
    match ledger.begin_undispatched(&ledger.intent(mail(key)).unwrap()).unwrap() {
        Begun::Execute(claim) => claim,
        Begun::Replay(_) => unreachable!("it is new"),
    }
}

/// Whether the future is still pending after many polls.
fn stays_pending(future: impl Future<Output = ()>) -> bool {
    let mut future = pin!(future);
    (0..20).all(|_| future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending())
}

#[test]
fn an_attempt_learns_that_its_scope_was_stopped_and_sends_nothing() {
    let ledger = ledger();
    let (claim, other) = (begun(&ledger, "a"), begun(&ledger, "b"));
    let attempt = claim.attempt();
    assert!(stays_pending(attempt.cancel_requested()), "nobody asked it to end");
    ledger.scopes().stop("run-7", &Word::person("ada").note("wrong list".to_owned())).unwrap();
    assert!(!attempt.is_cancel_requested(), "it has not looked");
    ledger.wait_for(attempt.cancel_requested());
    assert!(claim.attempt().is_cancel_requested(), "every view of the attempt knows");
    let refused = attempt.dispatch().expect_err("nothing is sent any more");
    assert_eq!(refused.reason(), "it was asked to stop before anything was sent");
    let failed = Ending::failed(Evidence::NotStarted, refused.reason());
    let error = ledger.wait_for(claim.finish(failed)).expect_err("it failed");
    assert_eq!((error.code(), error.happened(), error.ran()), (Code::Stopped, Some(Happened::No), Ran::Yes));
    assert!(error.to_string().ends_with("(wrong list); the attempt of this call had no effect"), "{error}");
    // Its neighbour has not looked either, and reports what happened.
    let done = Ending::Done(Outcome::with_effect(onceward::Effect::Created));
    ledger.wait_for(other.finish(done)).unwrap();
    let sums = ledger.scopes().settlement("run-7").unwrap().sums;
    assert_eq!((sums.failed, sums.standing, sums.running), (1, 1, 0));
}

#[test]
fn an_attempt_learns_that_its_operation_was_cancelled() {
    let ledger = ledger();
    let claim = begun(&ledger, "a");
    ledger.admin().cancel(&claim.record().id, &Word::person("ada")).unwrap();
    assert!(ledger.wait_for(claim.attempt().check_cancel_requested()).unwrap());
    let failed = Ending::failed(Evidence::NotSent, "interrupted");
    assert!(matches!(ledger.wait_for(claim.finish(failed)), Err(Error::Cancelled { .. })));
}

#[test]
fn after_a_resume_the_next_attempt_is_not_asked_to_end() {
    let ledger = ledger();
    let claim = begun(&ledger, "a");
    ledger.scopes().stop("run-7", &Word::person("ada")).unwrap();
    assert!(ledger.wait_for(claim.attempt().check_cancel_requested()).unwrap());
    let failed = Ending::failed(Evidence::NotSent, "interrupted");
    assert!(matches!(ledger.wait_for(claim.finish(failed)), Err(Error::Stopped { .. })));
    ledger.scopes().resume("run-7", &Word::person("ada")).unwrap();
    let next = begun(&ledger, "a");
    assert!(!ledger.wait_for(next.attempt().check_cancel_requested()).unwrap());
}

/// A clock on which no time passes. It notes how long callers want to sleep.
#[derive(Default)]
struct Frozen(Mutex<Vec<u64>>);

#[async_trait]
impl Clock for Frozen {
    fn now_ms(&self) -> i64 {
        NOW_MS
    }

    async fn sleep(&self, ms: u64) {
        self.0.lock().unwrap().push(ms);
        pending().await
    }
}

#[test]
fn the_ledger_is_not_read_during_the_first_half_second() {
    let clock = Arc::new(Frozen::default());
    let ledger = onceward::Ledger::new(Arc::new(MemoryStore::new(Arc::clone(&clock)))).blocking();
    let claim = begun(&ledger, "a");
    ledger.scopes().stop("run-7", &Word::person("ada")).unwrap();
    assert!(stays_pending(claim.attempt().cancel_requested()), "it would have found the request");
    assert_eq!(*clock.0.lock().unwrap(), [500]);
}

#[test]
fn work_that_was_dispatched_has_a_grace_period() {
    let ledger = ledger();
    let attempt = begun(&ledger, "a").attempt();
    let told = AtomicBool::new(false);
    let tell = || async { told.store(true, Ordering::SeqCst) };
    assert_eq!(ledger.wait_for(attempt.finish_or_give_up(ready(1), tell())), Some(1));
    assert!(!told.load(Ordering::SeqCst), "nobody asked it to end");
    let claim = begun(&ledger, "b");
    ledger.scopes().stop("run-7", &Word::person("ada")).unwrap();
    let attempt = claim.attempt();
    let answer = std::future::poll_fn(|_| match told.load(Ordering::SeqCst) {
        true => std::task::Poll::Ready(2),
        false => std::task::Poll::Pending,
    });
    assert_eq!(ledger.wait_for(attempt.finish_or_give_up(answer, tell())), Some(2), "told, it answered");
    let before_ms = ledger.clock_ms();
    assert_eq!(ledger.wait_for(attempt.finish_or_give_up(pending::<()>(), tell())), None);
    assert_eq!(ledger.clock_ms() - before_ms, i64::try_from(onceward::STOP_GRACE_MS).unwrap());
}

#[test]
fn a_call_that_was_asked_to_end_does_not_retry() {
    let ledger = ledger();
    let runs = AtomicU32::new(0);
    let mut intent = ledger.intent(mail("a").class(Class::Idempotent)).unwrap();
    intent.terms.retries = 3;
    let error = ledger
        .run_call(ledger.call(intent), |attempt| {
            runs.fetch_add(1, Ordering::SeqCst);
            ledger.admin().cancel(attempt.operation(), &Word::person("ada"))?;
            assert!(ledger.wait_for(attempt.check_cancel_requested())?);
            Err(Failure::in_doubt("reset"))
        })
        .unwrap_err();
    assert_eq!((error.code(), runs.load(Ordering::SeqCst)), (Code::InDoubt, 1));
}

#[test]
fn a_settlement_has_the_scopes_of_all_callers() {
    let ledger = ledger();
    for scope in ["run-7", "run-7~alice", "run-7/x", "run-70"] {
        let mail = Operation::new("send_mail").scope(scope).key("a");
        ledger.run(mail, |attempt| Ok(attempt.dispatch()?.created(&1))).unwrap();
    }
    assert_eq!(ledger.scopes().settlement("run-7").unwrap().sums.intended, 2);
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
