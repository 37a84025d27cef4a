//! A retry or an intended repeat without a key: which operation a call refers to, and by which rule.

use crate::common::{Bench, left_in_doubt, terms};
use onceward::{
    Attempt, Code, Ending, Evidence, Failure, KeyPolicy, Operation, OperationId, Outcome, RepeatRule, State,
    Verdict, Wanted, Word,
};

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

fn mail() -> Operation {
    Operation::new("mail").input(serde_json::json!({"to": "a@b"}))
}

fn wanted(bench: &Bench, operation: &Operation) -> Wanted {
    bench.wait(bench.ledger.ledger().wanted(operation.clone())).expect("an operation")
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
    bench.wait(bench.ledger.ledger().note_delivery(&record, at_ms)).expect("it has an answer");
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
        .wait(bench.ledger.ledger().settle(
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

#[test]
fn what_was_cancelled_or_has_expired_is_over() {
    let bench = Bench::new();
    let intent = mail().intent().expect("a valid operation");
    bench.wait(bench.ledger.ledger().stage(&intent)).expect("it is staged");
    assert_eq!(next(&bench), (1, RepeatRule::Retry(State::Staged)));
    bench.wait(bench.ledger.ledger().cancel(&intent.id, &Word::person("ada"))).expect("it is cancelled");
    assert_eq!(next(&bench), (2, RepeatRule::Repeat));

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
    let refused = bench.wait(bench.ledger.ledger().wanted(keyed)).expect_err("a key is required");
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
