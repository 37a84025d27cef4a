//! How operations get into doubt, and how people settle them.

use crate::common::{Bench, NOW_MS, id, left_in_doubt, once, pay, short_lease, terms};
use onceward::{
    Answer, Class, Clock, Code, Decision, Effect, Ending, Outcome, Speaker, State, Verdict, Word,
};

#[test]
fn a_dropped_claim_is_in_doubt_at_once_where_the_kernel_sees_it() {
    let bench = Bench::new();
    let claim = bench.begin(&pay());
    assert_eq!(bench.state_of(&pay()), State::Running);
    bench.clock.advance(1_000_000_000);
    assert_eq!(bench.state_of(&pay()), State::Running, "silent is not dead");
    drop(claim);
    assert_eq!(bench.state_of(&pay()), State::InDoubt);
    let error = bench.ask(&pay()).expect_err("it is refused");
    let answer = Answer::failed(&error, &once());
    let view = answer.error.expect("an error");
    assert_eq!(
        (&*view.code, view.retryable, answer.effect, answer.ran),
        ("IN_DOUBT", false, "noop", Some(false))
    );
    assert!(view.options.is_empty(), "nothing has answered, so its caller does not settle it");
    assert_eq!(view.fix_command, Some(format!("once show {}", id(&pay()))));
    let options = Answer::failed(&error, &once().to_person()).error.expect("an error").options;
    let options: Vec<_> = options.into_iter().map(|choice| choice.command).collect();
    assert_eq!(
        options,
        ["done", "failed"].map(|verdict| format!("once settle {} --as {verdict}", id(&pay())))
    );
    assert_eq!(bench.found(&pay()).state, State::InDoubt, "the doubt is written down");
}

/// Drops the work before it ends, like a cancelled task.
fn dropped_work(bench: &Bench, work: impl Fn(&onceward::Attempt)) -> u32 {
    let number = std::cell::Cell::new(0);
    let call = bench.ledger.ledger().run(pay(), |attempt| {
        number.set(attempt.number());
        work(&attempt);
        std::future::pending()
    });
    let mut call = std::pin::pin!(call);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    while number.get() == 0 {
        assert!(call.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!(bench.state_of(&pay()), State::Running);
    number.get()
}

#[test]
fn an_owner_that_dies_before_the_dispatch_has_failed_where_the_kernel_sees_it() {
    let bench = Bench::new();
    assert_eq!(dropped_work(&bench, |_| ()), 1);
    assert_eq!(bench.state_of(&pay()), State::Failed);
    let next = dropped_work(&bench, |attempt| {
        attempt.dispatch().expect("a note");
    });
    assert_eq!(next, 2, "the next call tries again");
    assert_eq!((bench.state_of(&pay()), bench.refused(&pay())), (State::InDoubt, Code::InDoubt));
}

/// A thread that outlives its call must not send after other callers have been answered that nothing was sent.
#[test]
fn an_attempt_that_is_over_cannot_dispatch() {
    let bench = Bench::new();
    let kept = std::cell::RefCell::new(None);
    dropped_work(&bench, |attempt| *kept.borrow_mut() = Some(attempt.clone()));
    assert_eq!(bench.state_of(&pay()), State::Failed, "the next call may run");
    kept.take().expect("an attempt").dispatch().expect_err("nothing must be sent");

    let claim = bench.begin(&pay());
    let attempt = claim.attempt();
    bench.wait(claim.finish(Ending::Done(Outcome::because(None)))).expect("it is done");
    attempt.dispatch().expect_err("it is over");
}

#[test]
fn a_claim_that_says_nothing_of_its_dispatch_may_have_dispatched() {
    let bench = Bench::new();
    drop(bench.begin(&pay()));
    assert_eq!(bench.state_of(&pay()), State::InDoubt);
}

#[test]
fn an_expired_lease_is_in_doubt_if_only_leases_tell_who_is_alive() {
    let bench = Bench::blind();
    let operation = short_lease();
    let claim = bench.begin(&operation);
    bench.clock.advance(299);
    assert_eq!(bench.state_of(&operation), State::Running);
    drop(claim);
    assert_eq!(bench.state_of(&operation), State::Running, "its end cannot be observed");
    bench.clock.advance(1);
    assert_eq!(bench.state_of(&operation), State::InDoubt);
    assert_eq!(bench.refused(&operation), Code::InDoubt);
}

#[test]
fn renewals_keep_a_lease_alive() {
    let bench = Bench::blind();
    let operation = short_lease();
    let ledger = bench.ledger.ledger();
    let run = ledger.run(operation, |attempt| {
        let clock = &bench.clock;
        async move {
            for _ in 0..30 {
                clock.sleep(60).await;
                let (_, state) = ledger.find(attempt.operation()).await.expect("it is found");
                assert_eq!(state, State::Running, "at {}", clock.now_ms());
            }
            Ok(attempt.dispatch()?.created(&1))
        }
    });
    let receipt = bench.wait(run).expect("it is done");
    assert!(receipt.record().version > 5, "it was renewed several times");
    assert!(bench.clock.now_ms() > NOW_MS + 1_500);
}

#[test]
fn a_thread_beside_blocking_work_renews_its_lease() {
    let bench = Bench::blind();
    let operation = pay().terms(terms(|terms| terms.lease_ms = 100));
    let receipt = bench.ledger.run(operation.clone(), |attempt| {
        while bench.found(&operation).version < 2 {
            std::thread::yield_now();
        }
        Ok(attempt.dispatch()?.created(&1))
    });
    assert_eq!(receipt.expect("it is done").record().attempt, 1);
}

#[test]
fn an_owner_that_was_silent_and_lives_takes_its_operation_back() {
    let bench = Bench::blind();
    let operation = short_lease();
    let claim = bench.begin(&operation);
    let lease = bench.ledger.attempts().lease(&claim.attempt(), 300).expect("only leases tell who is alive");
    bench.clock.advance(1_000);
    assert_eq!(bench.refused(&operation), Code::InDoubt);
    bench.wait(lease.renew());
    assert_eq!(bench.state_of(&operation), State::Running);
    bench.wait(claim.finish(Ending::Done(Outcome::with_effect(Effect::Created)))).expect("it is done");
    assert!(bench.ask(&operation).expect("it is replayed").replayed());
    assert_eq!(bench.found(&operation).detail.double_effect, None);
}

#[test]
fn what_was_settled_is_not_taken_back() {
    let bench = Bench::blind();
    let operation = short_lease();
    let claim = bench.begin(&operation);
    let lease = bench.ledger.attempts().lease(&claim.attempt(), 300).expect("only leases tell who is alive");
    bench.clock.advance(1_000);
    assert_eq!(bench.refused(&operation), Code::InDoubt);
    let id = bench.found(&operation).id.clone();
    let settled = bench.ledger.ledger().admin().settle(
        &id,
        Verdict::Failed,
        Word::person("ada"),
        Outcome::because(None),
    );
    bench.wait(settled).expect("it is settled");
    bench.wait(lease.renew());
    assert_eq!(bench.state_of(&operation), State::Failed);
}

#[test]
fn a_lease_can_be_kept_alive_from_elsewhere() {
    let bench = Bench::blind();
    let operation = short_lease();
    let claim = bench.begin(&operation);
    let lease = bench.ledger.attempts().lease(&claim.attempt(), 300).expect("only leases tell who is alive");
    assert_eq!(lease.pause_ms(), 100);
    bench.clock.advance(250);
    bench.wait(lease.renew());
    bench.clock.advance(250);
    assert_eq!(bench.state_of(&operation), State::Running);
    bench.clock.advance(50);
    assert_eq!(bench.state_of(&operation), State::InDoubt);
    let seen = Bench::new();
    let claim = seen.begin(&operation);
    assert!(
        seen.ledger.attempts().lease(&claim.attempt(), 300).is_none(),
        "an owner that the kernel observes needs none"
    );
}

#[test]
fn a_waiting_caller_sees_the_owner_go() {
    for bench in [Bench::new(), Bench::blind()] {
        let operation = short_lease().class(Class::Idempotent);
        let claim = bench.begin(&operation);
        drop(claim);
        let receipt = bench.run(&operation).expect("it runs again");
        assert_eq!((receipt.record().attempt, receipt.record().detail.history[0].ended), (2, State::InDoubt));
    }
}

/// A command timed out, and a process that it started keeps running.
#[test]
fn a_doubt_whose_lock_is_held_is_a_running_attempt() {
    let operation = pay().class(Class::Idempotent).terms(terms(|terms| terms.wait_ms = 0));
    let bench = Bench::new();
    let claim = bench.begin(&operation);
    left_in_doubt(&bench, &claim);
    let found = bench.found(&operation);
    assert_eq!(
        (found.state, found.reason(), found.detail.owner),
        (State::InDoubt, Some("timed out"), claim.record().detail.owner)
    );
    assert_eq!((bench.state_of(&operation), bench.refused(&operation)), (State::Running, Code::InProgress));
    assert_eq!(bench.plan(&operation).decision, Decision::Wait);
    let forgotten = bench.wait(bench.ledger.ledger().admin().forget(&id(&operation)));
    assert_eq!(forgotten.expect_err("it runs").code(), Code::WrongState);
    drop(claim);
    assert_eq!(
        bench.state_of(&operation),
        State::InDoubt,
        "its lock is free, and its owner reported the doubt"
    );
    assert_eq!(bench.found(&operation).reason(), Some("timed out"));
}

#[test]
fn a_person_settles_a_doubt_whose_lock_is_still_held() {
    for verdict in [Verdict::Done, Verdict::Failed] {
        let bench = Bench::new();
        let claim = bench.begin(&pay());
        left_in_doubt(&bench, &claim);
        let settled = bench.wait(bench.ledger.ledger().admin().settle(
            &id(&pay()),
            verdict,
            Word::person("ada"),
            Outcome::because(None),
        ));
        let settled = settled.expect("a person may know better");
        assert_eq!((settled.state.is_settled(), settled.detail.owner), (true, None), "{verdict:?}");
        assert_eq!(bench.state_of(&pay()), settled.state, "{verdict:?}: the lock does not count any more");
    }
}

#[test]
fn a_person_does_not_settle_a_running_attempt() {
    let bench = Bench::new();
    let _claim = bench.begin(&pay());
    let settled = bench.wait(bench.ledger.ledger().admin().settle(
        &id(&pay()),
        Verdict::Done,
        Word::person("ada"),
        Outcome::because(None),
    ));
    assert_eq!(settled.expect_err("its own ending will say").code(), Code::WrongState);
}

#[test]
fn a_person_settles_the_doubt() {
    let bench = Bench::new();
    drop(bench.begin(&pay()));
    let ledger = bench.ledger.ledger();
    let settled = bench
        .wait(ledger.admin().settle(
            &id(&pay()),
            Verdict::Done,
            Word::person("ada"),
            Outcome::with_effect(Effect::Created),
        ))
        .expect("there is a doubt");
    assert_eq!(settled.state, State::Done);
    assert!(bench.ask(&pay()).expect("it is replayed").replayed());
    let error = bench
        .wait(ledger.admin().settle(
            &id(&pay()),
            Verdict::Failed,
            Word::person("ada"),
            Outcome::with_effect(Effect::Created),
        ))
        .expect_err("there is none any more");
    assert_eq!((error.code(), error.happened()), (Code::WrongState, Some(onceward::Happened::Yes)));

    let bench = Bench::new();
    drop(bench.begin(&pay()));
    bench
        .wait(bench.ledger.ledger().admin().settle(
            &id(&pay()),
            Verdict::Failed,
            Word::person("ada"),
            Outcome::with_effect(Effect::Created),
        ))
        .expect("there is a doubt");
    let again = bench.run(&pay()).expect("it runs again");
    let past = &again.record().detail.history[0];
    let word = past.settled_by.as_ref().expect("the next attempt does not erase who settled the first");
    assert_eq!((again.record().attempt, past.ended, word.by), (2, State::Failed, Speaker::Person));
    assert_eq!((word.name.as_str(), word.at_ms), ("ada", NOW_MS));
    assert_eq!(word.doubt.as_deref(), Some("its owner ended before it reported back"));
    bench.clock.advance(24 * 3_600_000);
    bench.wait(bench.ledger.ledger().admin().sweep(|_| ())).expect("it can be swept");
    let tombstone = bench.found(&pay());
    assert_eq!(tombstone.state, State::Expired);
    assert_eq!(tombstone.detail.history[0].settled_by.as_ref().map(|word| word.name.as_str()), Some("ada"));
}

#[test]
fn a_cancel_does_not_erase_who_settled_the_attempt() {
    let bench = Bench::new();
    drop(bench.begin(&pay()));
    let ledger = bench.ledger.ledger();
    let (ada, bob) = (Word::person("ada"), Word::person("bob").note("wrong customer".to_owned()));
    let id = id(&pay());
    let settled = ledger.admin().settle(&id, Verdict::Failed, ada, Outcome::because(None));
    bench.wait(settled).expect("there is a doubt");
    bench.wait(ledger.admin().cancel(&id, &bob)).expect("nothing happened");
    let record = bench.found(&pay());
    let cancelled_by = record.outcome.as_ref().and_then(|outcome| outcome.settled_by.as_ref());
    assert_eq!(cancelled_by.map(|word| word.name.as_str()), Some("bob"));
    assert_eq!(record.reason(), Some("wrong customer"));
    let before = record.detail.history[0].settled_by.as_ref();
    assert_eq!(before.map(|word| word.name.as_str()), Some("ada"));
    record.check().expect("this program wrote it");
}
