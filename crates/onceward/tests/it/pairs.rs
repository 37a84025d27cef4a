//! Where two features meet in one operation: the cells of `pairs.toml` that the core alone shows.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::common::{Bench, NOW_MS, id, pay, terms};
use async_trait::async_trait;
use onceward::{
    Attempt, Begun, Blocking, Class, Clock, Code, Compensation, CompensationKind, Ending, Error, Evidence,
    Failure, Fence, Happened, Hold, Identity, Ledger, ManualClock, MemoryStore, OnExpired, Operation,
    Outcome, ProbeAnswer, Ran, State, Store, UndoOutcome, Verdict, Verification, Wanted, Word,
};

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// A call without a key.
fn mail() -> Operation {
    Operation::new("mail").input(serde_json::json!({"to": "a@b"}))
}

pub(crate) fn ada() -> Word {
    Word::person("ada")
}

fn sent(attempt: Attempt) -> Result<onceward::Done, Failure> {
    Ok(attempt.dispatch()?.created(&attempt.number()))
}

pub(crate) fn not_sent(_: Attempt) -> Result<onceward::Done, Failure> {
    Err(Failure::no_effect(Evidence::NotSent, "declined"))
}

/// The operation that a call refers to now.
fn wanted(bench: &Bench, operation: &Operation) -> Wanted {
    bench.wait(bench.ledger.ledger().repeats().wanted(operation.clone())).expect("an operation")
}

/// Makes the call, and gives the code of its answer; `None` is a success.
fn call(bench: &Bench, operation: &Operation) -> Option<Code> {
    let intent = wanted(bench, operation).intent;
    bench.ledger.run_call(bench.ledger.call(intent), sent).err().map(|error| error.code())
}

/// Notes that the newest answer of this action was delivered.
fn delivered(bench: &Bench, operation: &Operation) {
    let ledger = bench.ledger.ledger();
    let (found, _) = bench.wait(ledger.find(&wanted(bench, operation).intent.id)).expect("it is there");
    bench.wait(ledger.attempts().delivered(&found, bench.clock.now_ms())).expect("it has an answer");
}

fn refuse(bench: &Bench, operation: &Operation) {
    let intent = bench.ledger.intent(operation.clone()).expect("a valid operation");
    bench.ledger.attempts().stage(&intent).expect("it is staged");
    bench.ledger.admin().cancel(&intent.id, &ada()).expect("it has not begun");
}

#[test]
fn a_stop_refuses_what_is_new_and_hides_no_answer() {
    let bench = Bench::new();
    assert_eq!(call(&bench, &mail()), None);
    bench.run(&pay()).expect("it runs");
    let other = pay().key("refused").input(serde_json::json!({"amount": 9}));
    refuse(&bench, &other);
    bench.ledger.scopes().stop("default", &ada()).expect("a barrier");
    // The answer that was not delivered, a refusal, and a reused key come before the barrier.
    for _ in 0..2 {
        assert_eq!(call(&bench, &mail()), None);
    }
    assert_eq!(bench.refused(&other), Code::Cancelled);
    assert_eq!(bench.refused(&pay().input(serde_json::json!({"amount": 2}))), Code::KeyReused);
    delivered(&bench, &mail());
    for _ in 0..2 {
        assert_eq!(call(&bench, &mail()), Some(Code::Stopped), "the next occurrence");
    }
    assert_eq!(bench.refused(&pay().occurrence("2")), Code::Stopped);
    let refused = wanted(&bench, &mail()).intent.id;
    bench.ledger.scopes().resume("default", &ada()).expect("it is stopped");
    assert_eq!(wanted(&bench, &mail()).intent.id, refused, "STOPPED is no answer that was delivered");
    assert_eq!(call(&bench, &mail()), None);
    assert_eq!(bench.records(), 4);
}

fn refund() -> Option<Compensation> {
    Some(Compensation { runs: CompensationKind::Command, text: "refund".to_owned() })
}

/// Takes the operation back, and returns the answer of its compensation.
fn take_back(bench: &Bench, operation: &Operation) -> Result<(), Error> {
    let found = bench.found(operation);
    let undoing = bench.ledger.undo().begin(&found.id, Operation::undo_of(&found)).expect("it is done");
    let result = bench.ledger.run_call(bench.ledger.call(undoing.intent.clone()), sent).map(drop);
    let outcome = UndoOutcome::of(result.as_ref().copied(), &onceward::EffectNow::NotAsked);
    bench.ledger.undo().end(&undoing, &outcome).expect("it was begun");
    result
}

#[test]
fn what_was_taken_back_is_refused_unless_its_result_was_delivered() {
    let bench = Bench::new();
    let mail = mail().undo(refund());
    assert_eq!(call(&bench, &mail), None);
    take_back(&bench, &mail).expect("it is taken back");
    for _ in 0..2 {
        assert_eq!(call(&bench, &mail), Some(Code::Undone));
    }
    let bench = Bench::new();
    assert_eq!(call(&bench, &mail), None);
    delivered(&bench, &mail);
    take_back(&bench, &mail).expect("it is taken back");
    assert_eq!(call(&bench, &mail), None, "a new action");
}

/// A ledger in memory, and a restore of it from a backup of [`NOW_MS`], ten seconds later.
struct Restored {
    bench: Bench,
    store: Arc<MemoryStore<Arc<ManualClock>>>,
}

impl Restored {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::at(NOW_MS));
        let store = Arc::new(MemoryStore::new(Arc::clone(&clock)));
        Self { bench: Bench::on(Arc::clone(&store) as Arc<dyn Store>, clock), store }
    }

    fn restore(&self) -> Bench {
        let restored_ms = self.bench.clock.now_ms() + 10_000;
        let fence = Fence { lost_from_ms: NOW_MS, restored_ms, until_ms: restored_ms + DAY_MS };
        let next = self.store.identity().restored(fence, 0);
        pollster::block_on(self.store.set_identity(&next)).expect("it is written");
        let clock = Arc::clone(&self.bench.clock);
        clock.advance(11_000);
        Bench::on(Arc::new(self.store.open_again(Arc::clone(&clock))), clock)
    }
}

#[test]
fn after_a_restore_equal_calls_are_one_doubt() {
    let before = Restored::new();
    assert_eq!(call(&before.bench, &mail()), None);
    let bench = before.restore();
    assert_eq!(call(&bench, &mail()), None, "a delivery that is lost makes it a retry");
    let before = Restored::new();
    assert_eq!(call(&before.bench, &mail()), None);
    delivered(&before.bench, &mail());
    let bench = before.restore();
    for _ in 0..3 {
        assert_eq!(call(&bench, &mail()), Some(Code::InDoubt), "the second one may have run");
    }
    assert_eq!(bench.records(), 2, "equal calls do not count past it");
}

#[test]
fn an_occurrence_of_a_key_compares_its_input_with_its_own_first_call() {
    let bench = Bench::new();
    let other = || pay().input(serde_json::json!({"amount": 2}));
    bench.run(&pay()).expect("it runs");
    bench.run(&other().occurrence("2")).expect("a key of its own");
    assert!(bench.ask(&other().occurrence("2")).expect("a retry").replayed());
    assert_eq!(bench.refused(&pay().occurrence("2")), Code::KeyReused);
    assert_eq!(bench.refused(&other()), Code::KeyReused);
}

#[test]
fn a_lost_operation_has_the_input_of_its_first_call_since() {
    let bench = Restored::new().restore();
    assert_eq!(bench.refused(&pay()), Code::InDoubt);
    assert_eq!(bench.refused(&pay().input(serde_json::json!({"amount": 2}))), Code::KeyReused);
    assert_eq!(bench.refused(&pay()), Code::InDoubt);
}

#[test]
fn occurrences_and_refusals_belong_to_one_scope() {
    let bench = Bench::new();
    let there = || mail().host_scope("there");
    for _ in 0..2 {
        assert_eq!(call(&bench, &there()), None);
        delivered(&bench, &there());
    }
    assert_eq!(wanted(&bench, &there()).intent.number, Some(3));
    assert_eq!(wanted(&bench, &mail()).intent.number, Some(1));
    refuse(&bench, &mail());
    assert_eq!(call(&bench, &mail()), Some(Code::Cancelled));
    assert_eq!(call(&bench, &mail().host_scope("elsewhere")), None);
}

#[test]
fn another_occurrence_is_held_by_itself() {
    for hold in [Hold::Approve, Hold::For(600_000)] {
        let bench = Bench::new();
        let held = |operation: Operation| operation.terms(terms(|terms| terms.hold = hold));
        assert_eq!(bench.refused(&held(pay())), Code::Held);
        bench.clock.advance(300_000);
        assert_eq!(bench.refused(&held(pay().occurrence("2"))), Code::Held);
        bench.ledger.admin().release(&id(&pay()), &ada()).expect("it is held");
        bench.run(&held(pay())).expect("it was released");
        bench.clock.advance(300_000);
        assert_eq!(bench.refused(&held(pay().occurrence("2"))), Code::Held, "{hold}");
        bench.clock.advance(300_000);
        let second = bench.ledger.run(held(pay().occurrence("2")), sent);
        assert_eq!(second.is_err(), hold == Hold::Approve, "{hold}: only a time comes by itself");
    }
}

#[test]
fn a_refusal_binds_a_label_too() {
    let bench = Bench::new();
    refuse(&bench, &mail());
    for label in ["2", "friday"] {
        assert_eq!(call(&bench, &mail().occurrence(label)), Some(Code::Cancelled));
    }
    delivered(&bench, &mail());
    assert_eq!(call(&bench, &mail().occurrence("friday")), None, "its caller has had the refusal");
}

#[test]
fn a_resume_brings_back_nothing_that_the_stop_ended() {
    let bench = Bench::new();
    let held = pay().terms(terms(|terms| terms.hold = Hold::For(1_000)));
    assert_eq!(bench.refused(&held), Code::Held);
    let claim = bench.begin(&pay().key("runs"));
    bench.ledger.admin().cancel(&claim.record().id, &ada()).expect("it is asked to end");
    let asked = |bench: &Bench| bench.found(&pay().key("runs")).detail.cancel_requested_ms;
    bench.clock.advance(5);
    bench.ledger.scopes().stop("default", &ada()).expect("a barrier");
    assert_eq!(asked(&bench), Some(NOW_MS), "the first request counts");
    bench.ledger.scopes().resume("default", &ada()).expect("it is stopped");
    assert_eq!(asked(&bench), Some(NOW_MS), "a resume does not take it back");
    assert!(bench.wait(claim.attempt().check_cancel_requested()).expect("it can be read"));
    claim.attempt().dispatch().expect_err("nothing is sent any more");
    bench.clock.advance(2_000);
    assert_eq!(bench.refused(&held), Code::Cancelled, "although its time has come");
}

#[test]
fn what_no_one_released_is_held_again_after_a_restore() {
    for (class, hold) in [
        (Class::Once, Hold::Approve),
        (Class::Idempotent, Hold::Approve),
        (Class::Idempotent, Hold::For(600_000)),
    ] {
        let before = Restored::new();
        let held = pay().terms(terms(|terms| (terms.hold, terms.class) = (hold, class)));
        let held = held.held("run", onceward::HeldBy::Caller, Some("{\"pay\":1}".to_owned()));
        assert_eq!(before.bench.refused(&held), Code::Held);
        let bench = before.restore();
        if class == Class::Once {
            assert_eq!(bench.refused(&held), Code::InDoubt, "it may have been released since");
            bench
                .ledger
                .admin()
                .settle(&id(&pay()), Verdict::Failed, ada(), Outcome::because(None))
                .expect("a doubt");
        }
        // Also for a call that does not hold it itself.
        let plain = pay().terms(terms(|terms| terms.class = class));
        for operation in [&held, &plain] {
            assert_eq!(bench.refused(operation), Code::Held, "{class} {hold}: it did not start");
        }
        let found = bench.found(&held);
        found.check().expect("a sound record");
        assert_eq!(found.held_request(), Some("{\"pay\":1}"));
        bench.ledger.admin().release(&found.id, &ada()).expect("it is held");
        bench.run(&held).expect("it was released");
    }
}

#[test]
fn what_was_settled_as_not_done_after_a_restore_can_be_released_at_once() {
    let before = Restored::new();
    let held = pay().terms(terms(|terms| terms.hold = Hold::Approve));
    let held = held.held("run", onceward::HeldBy::Caller, Some("{}".to_owned()));
    assert_eq!(before.bench.refused(&held), Code::Held);
    let bench = before.restore();
    bench
        .ledger
        .admin()
        .settle(&id(&pay()), Verdict::Failed, ada(), Outcome::because(None))
        .expect("a doubt");
    let released = bench.ledger.admin().release(&id(&pay()), &ada()).expect("its request is stored");
    released.check().expect("a sound record");
    bench.run(&held).expect("it was released");
}

/// What is done in the pause between two tries.
pub(crate) type Interrupt = Box<dyn Fn() + Send + Sync>;

/// A clock whose pauses are used by someone.
#[derive(Default)]
pub(crate) struct Pauses(pub(crate) Arc<OnceLock<Interrupt>>);

#[async_trait]
impl Clock for Pauses {
    fn now_ms(&self) -> i64 {
        NOW_MS
    }

    async fn sleep(&self, _: u64) {
        if let Some(interrupt) = self.0.get() {
            interrupt();
        }
    }
}

#[test]
fn what_a_person_says_between_two_tries_ends_the_call() {
    type Say = fn(&Blocking);
    let cases: [(Say, Code); 2] = [
        (|ledger| drop(ledger.admin().cancel(&id(&pay()), &ada()).expect("it has failed")), Code::Cancelled),
        (|ledger| drop(ledger.scopes().stop("default", &ada()).expect("a barrier")), Code::Stopped),
    ];
    for (say, code) in cases {
        let pauses = Pauses::default();
        let interrupt = Arc::clone(&pauses.0);
        let ledger = Ledger::new(Arc::new(MemoryStore::new(Arc::new(pauses)))).blocking();
        let same = ledger.clone();
        assert!(interrupt.set(Box::new(move || say(&same))).is_ok());
        let runs = AtomicU32::new(0);
        let retried = pay().terms(terms(|terms| terms.retries = 3));
        let error = ledger.run(retried, |attempt| {
            runs.fetch_add(1, Ordering::SeqCst);
            not_sent(attempt)
        });
        let error = error.expect_err("it failed, and was ended");
        assert_eq!((error.code(), error.happened()), (code, Some(Happened::No)));
        assert_eq!((runs.load(Ordering::SeqCst), error.retryable()), (1, false));
    }
}

#[test]
fn a_success_after_a_cancel_is_checked() {
    for (answer, state) in [(Verification::Confirmed, State::Done), (Verification::Refuted, State::InDoubt)] {
        let bench = Bench::new();
        let intent = bench.ledger.intent(pay()).expect("a valid operation");
        let check = |_| std::future::ready((answer, "looked".to_owned()));
        let result = bench.ledger.run_call(bench.ledger.call(intent).verify(check), |attempt| {
            let token = attempt.dispatch()?;
            bench.ledger.admin().cancel(attempt.operation(), &ada())?;
            Ok(token.created(&1))
        });
        assert_eq!((result.is_ok(), bench.state_of(&pay())), (state == State::Done, state));
    }
}

#[test]
fn a_cancel_after_a_restore_is_too_late() {
    let before = Restored::new();
    drop(before.bench.begin(&pay()));
    let bench = before.restore();
    let refused = bench.ledger.admin().cancel(&id(&pay()), &ada()).expect_err("it is in doubt");
    assert_eq!((refused.code(), refused.happened()), (Code::WrongState, Some(Happened::Unknown)));
}

#[test]
fn a_refusal_in_the_backup_still_counts() {
    let before = Restored::new();
    refuse(&before.bench, &pay());
    let held = pay().key("held").input(serde_json::json!({"amount": 9}));
    let held = held.terms(terms(|terms| terms.hold = Hold::Approve));
    assert_eq!(before.bench.refused(&held), Code::Held);
    let bench = before.restore();
    assert_eq!(bench.refused(&pay()), Code::Cancelled);
    assert_eq!(bench.refused(&held), Code::InDoubt, "it may have been refused since, or released");
}

#[test]
fn a_stopped_scope_can_be_checked_settled_and_taken_back() {
    let bench = Bench::new();
    let paid = pay().undo(refund());
    bench.run(&paid).expect("it runs");
    bench.run(&pay().key("checked")).expect("it runs");
    let lost = |key: &str| {
        let doubt = pay().key(key).terms(terms(|terms| terms.quarantine_ms = 0));
        bench.ledger.run(doubt, |_| Err(Failure::in_doubt("lost"))).expect_err("it is in doubt");
    };
    for key in ["settled", "asked", "left"] {
        lost(key);
    }
    bench.ledger.scopes().stop("default", &ada()).expect("a barrier");
    bench.clock.advance(10_000 * DAY_MS);
    assert_eq!(bench.refused(&pay().key("new")), Code::Stopped, "a barrier has no time limit");
    bench.clock.advance(-10_000 * DAY_MS);
    let checked = id(&pay().key("checked"));
    bench.ledger.attempts().verified(&checked, Verification::Confirmed, None).expect("it is done");
    let settled = id(&pay().key("settled"));
    bench.ledger.admin().settle(&settled, Verdict::Failed, ada(), Outcome::because(None)).expect("a doubt");
    assert_eq!(bench.refused(&pay().key("settled")), Code::Stopped);
    take_back(&bench, &paid).expect("a compensation begins");
    bench.ledger.scopes().resume("default", &ada()).expect("it is stopped");
    assert_eq!(bench.refused(&paid), Code::Undone);
    assert_eq!(bench.refused(&pay().key("left")), Code::InDoubt, "a resume settles nothing");
    bench.run(&pay().key("settled")).expect("it did not happen");
    let asked = bench.ledger.intent(pay().key("asked")).expect("a valid operation");
    let asked = bench.ledger.call(asked).probe(|_| std::future::ready(ProbeAnswer::No));
    assert_eq!(bench.ledger.run_call(asked, sent).expect("a no counts again").record().attempt, 2);
}

#[test]
fn a_doubt_that_a_check_left_is_asked_about() {
    let bench = Bench::new();
    let probed = || bench.ledger.call(bench.ledger.intent(pay()).expect("a valid operation"));
    let yes = |_| std::future::ready(ProbeAnswer::Yes(Outcome::with_effect(onceward::Effect::Created)));
    let refuted = |_| std::future::ready((Verification::Refuted, "not there yet".to_owned()));
    let first = bench.ledger.run_call(probed().probe(yes).verify(refuted), sent);
    assert_eq!(first.expect_err("it is refuted").code(), Code::Unverified);
    let again = bench.ledger.run_call(probed().probe(yes), |_| panic!("it was run"));
    assert!(again.expect("the probe has found it").replayed());
}

#[test]
fn other_callers_wait_until_the_check_has_answered() {
    let bench = Bench::new();
    let seen = Mutex::new(Vec::new());
    let check = |_| {
        let beside = pay().terms(terms(|terms| terms.wait_ms = 0));
        seen.lock().unwrap().push(bench.refused(&beside));
        std::future::ready((Verification::Confirmed, String::new()))
    };
    let checked = bench.ledger.call(bench.ledger.intent(pay()).expect("a valid operation")).verify(check);
    bench.ledger.run_call(checked, sent).expect("it is confirmed");
    assert_eq!(*seen.lock().unwrap(), [Code::InProgress]);
}

#[test]
fn a_success_of_the_backup_can_be_checked_again() {
    let before = Restored::new();
    before.bench.run(&pay()).expect("it runs");
    let bench = before.restore();
    assert!(bench.ask(&pay()).expect("it is done").replayed());
    bench.ledger.attempts().verified(&id(&pay()), Verification::Refuted, None).expect("it is done");
    assert_eq!(bench.refused(&pay()), Code::Unverified);
}

#[test]
fn a_compensation_that_a_restore_lost_does_not_run_again() {
    let before = Restored::new();
    let paid = pay().undo(refund());
    before.bench.run(&paid).expect("it runs");
    let bench = before.restore();
    let refused = take_back(&bench, &paid).expect_err("it may have run");
    assert_eq!((refused.code(), refused.ran()), (Code::InDoubt, Ran::No));
    assert_eq!(bench.refused(&paid), Code::Undone, "its effect may be gone");
}

#[test]
fn what_expired_before_a_restore_is_in_doubt() {
    for (swept_before, swept_after) in [(false, false), (true, false), (false, true)] {
        let before = Restored::new();
        let short = |operation: Operation| operation.terms(terms(|terms| terms.keep_results_for(1_000)));
        let sweep =
            |bench: &Bench| bench.wait(bench.ledger.ledger().admin().sweep(|_| ())).expect("it sweeps");
        before.bench.run(&short(mail())).expect("it runs");
        before.bench.ledger.run(short(pay()), not_sent).expect_err("it failed");
        before.bench.clock.advance(2_000);
        if swept_before {
            assert_eq!(sweep(&before.bench).expired, 2);
        }
        let bench = before.restore();
        if swept_after {
            assert_eq!(sweep(&bench).expired, 2);
        }
        let case = (swept_before, swept_after);
        let ask = |operation: Operation| bench.refused(&short(operation));
        // Its next occurrence may have run in the lost time.
        assert_eq!(ask(mail()), Code::InDoubt, "{case:?}");
        assert_eq!(ask(pay()), Code::InDoubt, "{case:?}: it may have been tried again");
        for operation in [mail(), pay()] {
            bench.found(&operation).check().unwrap_or_else(|problem| panic!("{case:?}: {problem}"));
        }
        let doubtful = onceward::Filter { states: vec![State::InDoubt], limit: 9, ..Default::default() };
        assert_eq!(bench.ledger.list(&doubtful).expect("a list").len(), 2, "{case:?}");
    }
    // What is done and has not expired by then is replayed.
    let before = Restored::new();
    before.bench.run(&mail()).expect("it runs");
    let bench = before.restore();
    bench.clock.advance(DAY_MS - 12_000);
    assert!(bench.ask(&mail()).expect("the last millisecond").replayed());
}

#[test]
fn one_caller_begins_the_next_occurrence_of_an_expired_key() {
    let bench = Bench::new();
    let rerun = pay().terms(terms(|terms| (terms.on_expired, terms.wait_ms) = (OnExpired::Rerun, 0)));
    bench.run(&rerun).expect("it runs");
    bench.clock.advance(DAY_MS);
    let intent = bench.ledger.intent(rerun.clone()).expect("a valid operation");
    let Begun::Execute(claim) = bench.ledger.begin(&intent).expect("it begins") else {
        panic!("it has expired");
    };
    assert_eq!(bench.refused(&rerun), Code::InProgress);
    bench.wait(claim.finish(Ending::Done(Outcome::because(None)))).expect("it is done");
    assert!(bench.ask(&rerun).expect("a retry").replayed());
}

#[test]
fn a_second_restore_keeps_the_fence_of_the_first() {
    let fence = |lost_from_ms, restored_ms, until_ms| Fence { lost_from_ms, restored_ms, until_ms };
    let first = Identity::unkeyed(b"ledger").restored(fence(100, 200, 1_000), 0);
    let both = first.restored(fence(300, 400, 500), 0);
    assert_eq!((both.epoch, both.fence), (3, Some(fence(100, 400, 1_000))));
    // One that is over says nothing any more.
    assert_eq!(first.restored(fence(900, 1_000, 2_000), 0).fence, Some(fence(900, 1_000, 2_000)));
}

#[test]
fn a_compensation_is_never_held() {
    for hold in [Hold::Approve, Hold::For(600_000)] {
        let bench = Bench::new();
        bench.run(&pay().undo(refund())).expect("it runs");
        let found = bench.found(&pay());
        let held = Operation::undo_of(&found).terms(terms(|terms| terms.hold = hold));
        let undoing = bench.ledger.undo().begin(&found.id, held).expect("it is done");
        let call = bench.ledger.call(undoing.intent);
        bench.ledger.run_call(call, sent).expect("a person has asked for it");
    }
}
