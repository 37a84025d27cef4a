//! Administration of records: cancel, forget, stage, verify, wait, list, sweep.

use crate::common::{Bench, NOW_MS, id, left_in_doubt, pay, terms};
use onceward::{
    Cancelled, Class, Clock, Code, Effect, Ending, Evidence, Failure, Filter, Happened, OnExpired, Operation,
    Outcome, State, SweepReport, Verification, Word,
};

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

fn derived() -> Operation {
    Operation::new("mail").input(serde_json::json!({"to": "a@b"}))
}

fn fail(bench: &Bench, operation: &Operation) {
    bench
        .ledger
        .run(operation.clone(), |_| Err(Failure::no_effect(Evidence::NotSent, "declined")))
        .expect_err("it fails");
}

fn stage(bench: &Bench, operation: &Operation) -> Result<onceward::State, Code> {
    let intent = operation.clone().intent().expect("a valid operation");
    bench
        .wait(bench.ledger.ledger().attempts().stage(&intent))
        .map(|record| record.state)
        .map_err(|error| error.code())
}

#[test]
fn what_is_staged_waits_for_its_call() {
    let bench = Bench::new();
    assert_eq!(stage(&bench, &pay()), Ok(State::Staged));
    assert_eq!(stage(&bench, &pay()), Ok(State::Staged), "staging twice is staging");
    assert_eq!(stage(&bench, &pay().input(serde_json::json!({}))), Err(Code::KeyReused));
    bench.clock.advance(1_000 * DAY_MS);
    assert_eq!(bench.state_of(&pay()), State::Staged, "it does not expire on its own");
    let receipt = bench.run(&pay()).expect("its first call commits it");
    assert_eq!((receipt.replayed(), receipt.record().attempt), (false, 1));
    assert_eq!(stage(&bench, &pay()), Err(Code::WrongState));
}

#[test]
fn what_is_staged_can_be_aborted() {
    let bench = Bench::new();
    stage(&bench, &pay()).expect("it is staged");
    let cancelled = bench
        .wait(bench.ledger.ledger().admin().cancel(&id(&pay()), &Word::person("ada")))
        .expect("it is cancelled");
    assert!(matches!(cancelled, Cancelled::Certain(_)));
    assert_eq!(bench.refused(&pay()), Code::Cancelled);
}

#[test]
fn cancelling_in_every_state() {
    let cancel = |bench: &Bench| match bench
        .wait(bench.ledger.ledger().admin().cancel(&id(&pay()), &Word::person("ada")))
    {
        Ok(Cancelled::Certain(record)) => format!("certain, {}", record.state),
        Ok(Cancelled::Requested(record)) => format!("requested, {}", record.state),
        Err(error) => {
            format!("{}, happened: {}", error.code(), error.happened().map_or("-", Happened::as_str))
        }
    };
    let bench = Bench::new();
    assert_eq!(cancel(&bench), "NOT_FOUND, happened: -");
    let claim = bench.begin(&pay());
    assert_eq!(cancel(&bench), "requested, running");
    assert_eq!(bench.found(&pay()).detail.cancel_requested_ms, Some(NOW_MS), "its owner can see it");
    bench
        .wait(claim.finish(Ending::Failed(Evidence::NotSent, Outcome::because(None))))
        .expect_err("it stopped");
    assert_eq!(cancel(&bench), "certain, cancelled");
    assert_eq!(cancel(&bench), "certain, cancelled", "cancelling twice is cancelling");
    assert_eq!(bench.refused(&pay()), Code::Cancelled);
    bench.clock.advance(DAY_MS);
    assert_eq!(cancel(&bench), "WRONG_STATE, happened: no", "it has expired");

    let bench = Bench::new();
    drop(bench.begin(&pay()));
    assert_eq!(cancel(&bench), "WRONG_STATE, happened: unknown");
    bench.refused(&pay());
    assert_eq!(cancel(&bench), "WRONG_STATE, happened: unknown");

    let bench = Bench::new();
    bench.run(&pay()).expect("it runs");
    assert_eq!(cancel(&bench), "WRONG_STATE, happened: yes");
}

#[test]
fn what_is_forgotten_is_as_if_it_had_never_been() {
    let bench = Bench::new();
    let forget = || bench.wait(bench.ledger.ledger().admin().forget(&id(&pay())));
    assert_eq!(forget().expect_err("there is none").code(), Code::NotFound);
    let claim = bench.begin(&pay());
    assert_eq!(forget().expect_err("it runs").code(), Code::WrongState);
    drop(claim);
    forget().expect("a doubt can be forgotten, by say-so");
    assert_eq!(bench.records(), 0);
    assert_eq!(bench.run(&pay()).expect("it runs").record().attempt, 1);
    forget().expect("it is done");
    assert!(!bench.run(&pay()).expect("it runs again").replayed());
}

#[test]
fn the_caller_of_a_forgotten_record_gets_its_answer() {
    let bench = Bench::blind();
    let claim = bench.begin(&pay());
    bench.clock.advance(15_000);
    bench.wait(bench.ledger.ledger().admin().forget(&id(&pay()))).expect("it is presumed dead");
    let error =
        bench.wait(claim.finish(Ending::Done(Outcome::because(None)))).expect_err("it cannot be recorded");
    assert_eq!(
        (error.code(), error.happened(), error.retryable()),
        (Code::InDoubt, Some(Happened::Yes), false)
    );
}

#[test]
fn a_later_check_is_written_down() {
    let bench = Bench::new();
    let ledger = bench.ledger.ledger();
    let check = |verification| {
        bench
            .wait(ledger.attempts().verified(&id(&pay()), verification, Some("looked".to_owned())))
            .map(|r| r.state)
    };
    bench.run(&pay()).expect("it runs");
    assert_eq!(check(Verification::Pending).expect("it is done"), State::Done);
    assert_eq!(check(Verification::Confirmed).expect("it is done"), State::Done);
    assert!(bench.ask(&pay()).expect("it is replayed").replayed());
    assert_eq!(check(Verification::Refuted).expect("it is done"), State::InDoubt);
    assert_eq!(bench.refused(&pay()), Code::Unverified);
    assert_eq!(check(Verification::Confirmed).expect_err("it is in doubt").code(), Code::WrongState);
}

#[test]
fn an_expired_key_is_refused_when_given_and_begins_anew_when_derived() {
    for swept in [false, true] {
        let bench = Bench::new();
        bench.run(&pay()).expect("it runs");
        bench.run(&derived()).expect("it runs");
        bench.clock.advance(DAY_MS - 1);
        assert!(bench.ask(&pay()).expect("the last millisecond").replayed());
        bench.clock.advance(1);
        if swept {
            let done = bench.wait(bench.ledger.ledger().admin().sweep(|_| ())).expect("it sweeps");
            assert_eq!(done, SweepReport { expired: 2, deleted: 0, doubted: 0 });
        }
        assert_eq!(bench.state_of(&pay()), State::Expired);
        assert_eq!(bench.refused(&pay()), Code::KeyExpired, "swept: {swept}");
        let again = bench.run(&derived()).expect("the next occurrence");
        assert_eq!((again.replayed(), again.record().spent_attempts()), (false, 1), "swept: {swept}");
        assert!(!bench.run(&pay().occurrence("2")).expect("the way to do it again").replayed());
    }
}

#[test]
fn a_policy_says_otherwise_of_expired_keys() {
    let bench = Bench::new();
    let with = |operation: Operation, rule| operation.terms(terms(|terms| terms.on_expired = rule));
    bench.run(&pay()).expect("it runs");
    bench.run(&derived()).expect("it runs");
    bench.clock.advance(DAY_MS);
    assert_eq!(bench.refused(&with(derived(), OnExpired::Refuse)), Code::KeyExpired);
    assert_eq!(bench.run(&with(pay(), OnExpired::Rerun)).expect("it runs").record().attempt, 2);
}

#[test]
fn a_tombstone_refuses_for_its_time_and_then_goes() {
    let bench = Bench::new();
    let sweep = || bench.wait(bench.ledger.ledger().admin().sweep(|_| ())).expect("it sweeps");
    bench.run(&pay()).expect("it runs");
    bench.clock.advance(DAY_MS);
    assert_eq!(sweep(), SweepReport { expired: 1, deleted: 0, doubted: 0 });
    let tombstone = bench.found(&pay());
    let outcome = tombstone.outcome.as_ref().expect("how it ended");
    assert_eq!((outcome.effect, outcome.size()), (Some(Effect::Created), 0), "the result is gone");
    assert_eq!(tombstone.happened(), Happened::Yes);
    bench.clock.advance(30 * DAY_MS - 1);
    assert_eq!((sweep(), bench.refused(&pay())), (SweepReport::default(), Code::KeyExpired));
    bench.clock.advance(1);
    assert_eq!(sweep(), SweepReport { expired: 0, deleted: 1, doubted: 0 });
    assert_eq!(bench.run(&pay()).expect("it runs").record().attempt, 1);
}

#[test]
fn a_sweep_writes_doubts_down_and_never_ends_them() {
    let bench = Bench::new();
    drop(bench.begin(&pay()));
    let _alive = bench.begin(&pay().key("alive"));
    let sweep = || bench.wait(bench.ledger.ledger().admin().sweep(|_| ())).expect("it sweeps");
    assert_eq!(sweep(), SweepReport { expired: 0, deleted: 0, doubted: 1 });
    assert_eq!(bench.found(&pay()).state, State::InDoubt);
    bench.clock.advance(10_000 * DAY_MS);
    assert_eq!(sweep(), SweepReport::default());
    assert_eq!((bench.state_of(&pay()), bench.refused(&pay())), (State::InDoubt, Code::InDoubt));
}

#[test]
fn a_sweep_goes_on_beyond_one_batch() {
    let bench = Bench::new();
    for index in 0..2_200 {
        bench.run(&pay().key(format!("k{index}"))).expect("it runs");
    }
    for index in 0..600 {
        drop(bench.begin(&pay().key(format!("d{index}"))));
    }
    bench.clock.advance(DAY_MS);
    let mut steps = Vec::new();
    let swept = bench
        .wait(bench.ledger.ledger().admin().sweep(|swept| steps.push(swept.expired)))
        .expect("it sweeps");
    assert_eq!(swept, SweepReport { expired: 2_200, deleted: 0, doubted: 600 });
    assert_eq!(steps, [2_000, 2_200, 2_200], "it tells after each step");
}

#[test]
fn a_listing_tells_where_operations_really_stand() {
    let bench = Bench::new();
    bench.run(&pay().key("done")).expect("it runs");
    fail(&bench, &pay().key("failed"));
    drop(bench.begin(&pay().key("gone")));
    let _alive = bench.begin(&pay().key("alive"));
    let list = |states: &[State]| {
        let filter = Filter { states: states.to_vec(), limit: 2, ..Filter::default() };
        let listed = bench.wait(bench.ledger.ledger().list(&filter)).expect("a listing");
        listed
            .into_iter()
            .map(|(listed, state)| format!("{} {state}", listed.record.key.text))
            .collect::<Vec<_>>()
    };
    assert_eq!(list(&[]), ["alive running", "gone in_doubt"]);
    assert_eq!(list(&[State::InDoubt]), ["gone in_doubt"]);
    assert_eq!(list(&[State::Running]), ["alive running"]);
    assert_eq!(list(&[State::Done, State::Failed]), ["failed failed", "done done"]);
    assert_eq!(list(&[State::Expired]), Vec::<String>::new());
    bench.clock.advance(DAY_MS);
    assert_eq!(list(&[State::Expired]), ["failed expired", "done expired"]);
    assert_eq!(list(&[State::Done]), Vec::<String>::new());
}

#[test]
fn a_doubt_whose_lock_is_held_is_listed_as_running() {
    let bench = Bench::new();
    let claim = bench.begin(&pay());
    left_in_doubt(&bench, &claim);
    let list = |state| {
        let filter = Filter { states: vec![state], limit: 9, ..Filter::default() };
        bench.wait(bench.ledger.ledger().list(&filter)).expect("a listing").len()
    };
    assert_eq!((list(State::Running), list(State::InDoubt)), (1, 0));
    drop(claim);
    assert_eq!((list(State::Running), list(State::InDoubt)), (0, 1));
}

#[test]
fn waiting_ends_with_the_operation_or_with_the_time() {
    let bench = Bench::new();
    let wait = |ms| bench.wait(bench.ledger.ledger().wait(&id(&pay()), ms)).map(|(_, state)| state);
    assert_eq!(wait(10).expect_err("there is none").code(), Code::NotFound);
    let claim = bench.begin(&pay());
    let before_ms = bench.clock.now_ms();
    assert_eq!(wait(50).expect("it is there"), State::Running);
    assert_eq!(bench.clock.now_ms() - before_ms, 50);
    drop(claim);
    assert_eq!(wait(50).expect("it is there"), State::InDoubt);
    bench.run(&pay().key("b")).expect("it runs");
    let (_, state) = bench.wait(bench.ledger.ledger().wait(&id(&pay().key("b")), 50)).expect("it is there");
    assert_eq!(state, State::Done);
}

#[test]
fn an_attempt_can_be_asked_to_stop_while_it_works() {
    let bench = Bench::new();
    let result = bench.ledger.run(pay().class(Class::Once), |attempt| {
        bench
            .wait(bench.ledger.ledger().admin().cancel(&id(&pay()), &Word::person("ada")))
            .expect("it is asked to stop");
        Ok(attempt.dispatch()?.created(&1))
    });
    assert_eq!(result.expect("its own ending says what happened").record().state, State::Done);
}
