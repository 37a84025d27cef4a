//! A retry or an intended repeat without a key: which operation a call refers to, and by which rule.

use crate::common::{Bench, left_in_doubt, terms};
use onceward::{
    Attempt, Code, Effect, Ending, Evidence, Failure, KeyPolicy, Operation, OperationId, Outcome, RepeatRule,
    State, Verdict, Wanted, Word,
};

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;
const WINDOW_MS: u64 = 120_000;

fn mail() -> Operation {
    Operation::new("mail").input(serde_json::json!({"to": "a@b"}))
}

fn wanted(bench: &Bench, operation: &Operation) -> Wanted {
    bench.wait(bench.ledger.ledger().repeats().wanted(operation.clone())).expect("an operation")
}

fn occurrence(number: u64) -> OperationId {
    mail().intent().and_then(|first| first.at_occurrence(number)).expect("a valid operation").id
}

/// Which occurrence an equal call refers to now, and by which rule.
fn next(bench: &Bench) -> (u64, RepeatRule) {
    let wanted = wanted(bench, &mail());
    let number = (1..100).find(|number| occurrence(*number) == wanted.intent.id);
    (number.expect("an occurrence of this action"), wanted.rule)
}

/// Makes the call and returns the resulting state.
fn make(bench: &Bench, act: impl Fn(Attempt) -> Result<onceward::Done, Failure> + Send) -> State {
    let intent = wanted(bench, &mail()).intent;
    let id = intent.id.clone();
    drop(bench.ledger.run_call(bench.ledger.call(intent), act));
    bench.wait(bench.ledger.ledger().find(&id)).expect("it is there").1
}

fn deliver(bench: &Bench, number: u64, at_ms: i64) {
    let (record, _) = bench.wait(bench.ledger.ledger().find(&occurrence(number))).expect("it is there");
    bench.wait(bench.ledger.ledger().attempts().delivered(&record, at_ms)).expect("it has an answer");
}

#[test]
fn an_answer_that_was_delivered_makes_the_same_call_a_repeat() {
    let bench = Bench::new();
    assert_eq!(next(&bench), (1, RepeatRule::First));
    for number in 1..=9 {
        assert_eq!(make(&bench, |attempt| Ok(attempt.dispatch()?.created(&1))), State::Done);
        assert_eq!(next(&bench), (number, RepeatRule::Retry(State::Done)), "it was not delivered");
        deliver(&bench, number, crate::common::NOW_MS);
        assert_eq!(next(&bench), (number + 1, RepeatRule::Repeat), "it was");
    }
    assert_eq!(bench.records(), 9);
}

#[test]
fn an_answer_counts_as_delivered_from_its_time_on() {
    let bench = Bench::new();
    make(&bench, |attempt| Ok(attempt.dispatch()?.created(&1)));
    deliver(&bench, 1, crate::common::NOW_MS + 500);
    bench.clock.advance(499);
    assert_eq!(next(&bench), (1, RepeatRule::Retry(State::Done)), "the caller may have given up");
    bench.clock.advance(1);
    assert_eq!(next(&bench), (2, RepeatRule::Repeat));
}

#[test]
fn what_runs_or_is_in_doubt_is_the_same_operation() {
    let bench = Bench::new();
    let claim = bench.begin(&mail());
    assert_eq!(next(&bench), (1, RepeatRule::Retry(State::Running)));
    left_in_doubt(&bench, &claim);
    assert_eq!(next(&bench), (1, RepeatRule::Retry(State::Running)), "a process of it still runs");
    drop(claim);
    assert_eq!(next(&bench), (1, RepeatRule::Retry(State::InDoubt)));
    bench.clock.advance(1_000 * DAY_MS);
    assert_eq!(next(&bench), (1, RepeatRule::Retry(State::InDoubt)), "for as long as it is in doubt");
    bench
        .wait(bench.ledger.ledger().admin().settle(
            &occurrence(1),
            Verdict::Done,
            Word::person("ada"),
            Outcome::because(None),
        ))
        .expect("it is in doubt");
    assert_eq!(next(&bench), (1, RepeatRule::Retry(State::Done)), "no call has had its answer yet");
}

#[test]
fn a_failure_is_tried_again_until_it_is_delivered() {
    let bench = Bench::new();
    assert_eq!(make(&bench, |_| Err(Failure::no_effect(Evidence::NotSent, "declined"))), State::Failed);
    assert_eq!(next(&bench), (1, RepeatRule::Retry(State::Failed)));
    deliver(&bench, 1, crate::common::NOW_MS);
    assert_eq!(next(&bench), (2, RepeatRule::Repeat));
}

/// Held and then refused by a person.
fn refused(bench: &Bench, operation: &Operation) -> OperationId {
    let intent = operation.clone().intent().expect("a valid operation");
    bench.wait(bench.ledger.ledger().attempts().stage(&intent)).expect("it is staged");
    let word = Word::person("ada").note("the invoice is wrong".to_owned());
    bench.wait(bench.ledger.ledger().admin().cancel(&intent.id, &word)).expect("it is cancelled");
    intent.id
}

/// The caller has the answer to this operation, and of a refusal it has had it for less than the window.
fn answered(bench: &Bench, id: &OperationId) {
    let ledger = bench.ledger.ledger();
    let (record, _) = bench.wait(ledger.find(id)).expect("it is there");
    let from_ms = record.answer_counts_from_ms(ledger.clock_ms(), WINDOW_MS);
    bench.wait(ledger.attempts().delivered(&record, from_ms)).expect("it has an answer");
}

#[test]
fn a_refusal_is_the_answer_until_its_caller_has_it_and_the_window_is_over() {
    let bench = Bench::new();
    let id = refused(&bench, &mail());
    bench.clock.advance(DAY_MS / 2);
    assert_eq!(next(&bench), (1, RepeatRule::Retry(State::Cancelled)), "no caller has it yet");
    answered(&bench, &id);
    bench.clock.advance(i64::try_from(WINDOW_MS).unwrap() - 1);
    assert_eq!(next(&bench), (1, RepeatRule::Retry(State::Cancelled)), "it repeats its call at once");
    bench.clock.advance(1);
    assert_eq!(next(&bench), (2, RepeatRule::Repeat), "it asks anew");
}

#[test]
fn a_refusal_binds_equal_calls_with_and_without_a_key() {
    let given = |operation: &Operation| operation.clone().key("invoice-7");
    for (first, second) in
        [(mail(), given(&mail())), (given(&mail()), mail()), (given(&mail()), mail().key("new"))]
    {
        let bench = Bench::new();
        let id = refused(&bench, &first);
        let again = wanted(&bench, &second).intent;
        assert_eq!(again.id, id);
        let answer = bench.ledger.run_call(bench.ledger.call(again), |_| panic!("it was refused"));
        let answer = answer.expect_err("it was refused");
        assert_eq!(answer.code(), Code::Cancelled, "{answer}");
        answered(&bench, &id);
        bench.clock.advance(i64::try_from(WINDOW_MS).unwrap());
        assert_ne!(wanted(&bench, &second).intent.id, id, "the window is over");
    }
}

#[test]
fn what_someone_settled_as_done_answers_the_equal_call_but_not_another_key() {
    let doubtful = |operation: &Operation| {
        let bench = Bench::new();
        bench.ledger.run(operation.clone(), |_| Err(Failure::in_doubt("lost"))).expect_err("it is in doubt");
        let id = crate::common::id(operation);
        let word = Word::person("ada");
        let outcome = Outcome::because(None);
        bench
            .wait(bench.ledger.ledger().admin().settle(&id, Verdict::Done, word, outcome))
            .expect("it is in doubt");
        (bench, id)
    };
    let refers = |bench: &Bench, operation: &Operation| wanted(bench, operation).intent.id;
    let (bench, id) = doubtful(&mail());
    let own = mail().key("k");
    for _ in 0..2 {
        let intent = wanted(&bench, &own).intent;
        let receipt = bench.ledger.run_call(bench.ledger.call(intent), |_| panic!("it is done"));
        let receipt = receipt.expect("the caller names it now");
        assert_eq!((receipt.effect(), &receipt.record().id), (Effect::Noop, &crate::common::id(&own)));
        let word = receipt.record().outcome.as_ref().and_then(|outcome| outcome.settled_by.as_deref());
        assert_eq!(word.map(|word| word.name.as_str()), Some("ada"));
        answered(&bench, &receipt.record().id);
    }
    assert_eq!(refers(&bench, &mail()), id, "the caller without a key has not had its answer");
    let (bench, id) = doubtful(&mail().key("k"));
    assert_eq!(refers(&bench, &mail()), id, "the caller has left the key out");
    assert_ne!(refers(&bench, &mail().key("another")), id, "another invoice over the same amount");
    answered(&bench, &id);
    assert_ne!(refers(&bench, &mail()), id, "the result was delivered");
}

#[test]
fn a_key_decides_about_what_is_open_under_another_one() {
    let bench = Bench::new();
    bench.ledger.run(mail(), |_| Err(Failure::in_doubt("lost"))).expect_err("it is in doubt");
    let own = mail().key("k");
    assert_eq!(wanted(&bench, &own).intent.id, crate::common::id(&own));
    assert_eq!(next(&bench), (1, RepeatRule::Retry(State::InDoubt)));
}

#[test]
fn a_doubt_about_a_labelled_or_keyed_call_is_the_answer_to_the_equal_call() {
    for open in [mail().key("k"), mail().occurrence("friday")] {
        let bench = Bench::new();
        bench.ledger.run(open.clone(), |_| Err(Failure::in_doubt("lost"))).expect_err("it is in doubt");
        assert_eq!(wanted(&bench, &mail()).intent.id, crate::common::id(&open));
        let word = Word::person("ada");
        let id = crate::common::id(&open);
        let ledger = bench.ledger.ledger();
        bench
            .wait(ledger.admin().settle(&id, Verdict::Failed, word, Outcome::because(None)))
            .expect("it is in doubt");
        let receipt = bench.run(&mail()).expect("it did not happen, so it runs");
        assert!(!receipt.replayed());
    }
}

#[test]
fn what_was_delivered_before_a_settlement_was_another_answer() {
    let bench = Bench::new();
    make(&bench, |_| Err(Failure::no_effect(Evidence::NotSent, "declined")));
    deliver(&bench, 1, crate::common::NOW_MS);
    bench
        .wait(bench.ledger.ledger().admin().cancel(&occurrence(1), &Word::person("ada")))
        .expect("it has failed");
    assert_eq!(next(&bench), (1, RepeatRule::Retry(State::Cancelled)), "the refusal was not delivered");
}

#[test]
fn what_has_expired_is_over() {
    let bench = Bench::new();
    make(&bench, |attempt| Ok(attempt.dispatch()?.created(&1)));
    bench.clock.advance(DAY_MS);
    assert_eq!(next(&bench), (2, RepeatRule::Repeat));
}

#[test]
fn what_the_caller_says_comes_first() {
    let bench = Bench::new();
    bench.run(&mail().occurrence("1")).expect("it runs");
    deliver(&bench, 1, crate::common::NOW_MS);
    let rule = |operation: Operation| {
        let wanted = wanted(&bench, &operation);
        (wanted.intent.id == crate::common::id(&operation), wanted.rule)
    };
    assert_eq!(rule(mail().key("k")), (true, RepeatRule::Given));
    assert_eq!(rule(mail().occurrence("1")), (true, RepeatRule::Given));
    assert_eq!(rule(mail().scope("run-7")), (true, RepeatRule::Strict), "a scope that the caller chose");
    assert_eq!(rule(mail().terms(terms(|t| t.keys = KeyPolicy::Strict))), (true, RepeatRule::Strict));
    assert_eq!(rule(mail().host_scope("conversation-7")), (true, RepeatRule::First), "it only separates");
    let keyed = mail().terms(terms(|terms| terms.keys = KeyPolicy::Keyed));
    let refused = bench.wait(bench.ledger.ledger().repeats().wanted(keyed)).expect_err("a key is required");
    assert_eq!(refused.code(), Code::KeyMissing);
}

/// Two concurrent equal calls are the same operation: the second one waits for the first.
#[test]
fn a_call_beside_its_twin_is_the_same_operation() {
    let bench = Bench::new();
    let claim = bench.begin(&mail());
    let twin = wanted(&bench, &mail());
    assert_eq!(&twin.intent.id, &claim.record().id);
    bench.wait(claim.finish(Ending::Done(Outcome::because(None)))).expect("it is done");
    let receipt = bench.ledger.run_call(bench.ledger.call(twin.intent), |_| panic!("it was run"));
    assert!(receipt.expect("the result of the first").replayed());
}

#[test]
fn a_label_is_never_the_number_of_an_automatic_repetition() {
    let bench = Bench::new();
    bench.run(&mail().occurrence("2")).expect("it runs");
    assert_eq!(next(&bench), (1, RepeatRule::First), "no call has asked for the action itself");
    for number in 1..=2 {
        make(&bench, |attempt| Ok(attempt.dispatch()?.created(&1)));
        deliver(&bench, number, crate::common::NOW_MS);
    }
    assert_eq!((next(&bench), bench.records()), ((3, RepeatRule::Repeat), 3));
}
