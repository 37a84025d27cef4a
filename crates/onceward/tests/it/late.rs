//! Late answers: none is discarded, and two effects raise the alarm.

use crate::common::{Bench, id, once, short_lease};
use onceward::{
    Answer, Claim, Class, Clock, Code, DoubleEffect, Effect, Ending, Evidence, Operation, Outcome, Ran,
    State, Verdict, Word,
};

fn done(data: &str) -> Ending {
    let data = serde_json::value::to_raw_value(data).ok().map(Into::into);
    Ending::Done(Outcome { data, ..Outcome::with_effect(Effect::Created) })
}

#[test]
fn a_late_answer_settles_the_doubt() {
    let bench = Bench::blind();
    let operation = short_lease();
    let claim = bench.begin(&operation);
    bench.clock.advance(300);
    assert_eq!(bench.refused(&operation), Code::InDoubt);
    let late = bench.wait(claim.finish(done("late"))).expect("it is done");
    assert!(!late.replayed());
    let replay = bench.ask(&operation).expect("it is replayed");
    assert_eq!((replay.data(), replay.double_effect()), (Some("\"late\""), None));
}

/// Attempt 1 is slow, and attempt 2 overtakes it.
fn overtaken(bench: &Bench) -> (Operation, Claim, Claim) {
    let operation = short_lease().class(Class::Idempotent);
    let slow = bench.begin(&operation);
    bench.clock.advance(300);
    let fast = bench.begin(&operation);
    assert_eq!((slow.attempt().number(), fast.attempt().number()), (1, 2));
    (operation, slow, fast)
}

#[test]
fn an_overtaken_success_after_another_is_a_certain_double_effect() {
    let bench = Bench::blind();
    let (operation, slow, fast) = overtaken(&bench);
    bench.wait(fast.finish(done("fast"))).expect("it is done");
    let late = bench.wait(slow.finish(done("slow"))).expect("it is done too");
    assert_eq!((late.double_effect(), late.data()), (Some(DoubleEffect::Certain), Some("\"fast\"")));
    let answer = Answer::of(&bench.ask(&operation), &once(), bench.clock.now_ms());
    assert_eq!(answer.warnings, ["double_effect: two attempts had an effect"]);
}

#[test]
fn an_overtaken_success_before_the_other_ends_is_kept_for_it() {
    let endings = [
        (done("fast"), Some(DoubleEffect::Certain), "\"fast\""),
        (Ending::Failed(Evidence::NotSent, Outcome::because(None)), None, "\"slow\""),
        (Ending::InDoubt(Outcome::because(None)), Some(DoubleEffect::Possible), "\"slow\""),
    ];
    for (ending, alarm, data) in endings {
        let bench = Bench::blind();
        let (operation, slow, fast) = overtaken(&bench);
        let late = bench.wait(slow.finish(done("slow"))).expect("its own success");
        assert_eq!((late.data(), late.double_effect()), (Some("\"slow\""), Some(DoubleEffect::Possible)));
        bench.wait(fast.finish(ending)).expect("the operation is done");
        let replay = bench.ask(&operation).expect("it is replayed");
        assert_eq!((replay.double_effect(), replay.data()), (alarm, Some(data)));
    }
}

#[test]
fn an_overtaken_success_settles_when_the_other_never_answers() {
    let bench = Bench::blind();
    let (operation, slow, fast) = overtaken(&bench);
    bench.wait(slow.finish(done("slow"))).expect("its own success");
    drop(fast);
    bench.clock.advance(300);
    let replay = bench.ask(&operation).expect("it is not run a third time");
    assert_eq!((replay.data(), replay.double_effect()), (Some("\"slow\""), Some(DoubleEffect::Possible)));
}

#[test]
fn an_overtaken_failure_does_not_speak_for_the_operation() {
    let failed = || Ending::failed(Evidence::NotSent, "declined");
    let bench = Bench::blind();
    let (_, slow, fast) = overtaken(&bench);
    let error = bench.wait(slow.finish(failed())).expect_err("the other one still runs");
    assert_eq!(error.code(), Code::InProgress);
    bench.wait(fast.finish(done("fast"))).expect("it is done");

    let bench = Bench::blind();
    let (_, slow, fast) = overtaken(&bench);
    bench.wait(fast.finish(Ending::InDoubt(Outcome::because(None)))).expect_err("it is in doubt");
    let error = bench.wait(slow.finish(failed())).expect_err("the outcome of the other one is unknown");
    assert_eq!((error.code(), error.retryable(), error.ran()), (Code::InDoubt, false, Ran::Yes));

    let bench = Bench::blind();
    let (_, _slow, fast) = overtaken(&bench);
    let error =
        bench.wait(fast.finish(failed())).expect_err("it failed, but the other one may have happened");
    assert_eq!((error.code(), error.retryable(), error.ran()), (Code::InDoubt, false, Ran::Yes));
    let said = "this attempt had no effect (declined), but another attempt may have taken effect";
    assert_eq!(error.to_string(), said);
}

#[test]
fn an_answer_after_a_person_settled_tells_the_truth() {
    let bench = Bench::blind();
    let operation = short_lease();
    let claim = bench.begin(&operation);
    bench.clock.advance(300);
    let failed = Outcome::because(Some("I think not".to_owned()));
    bench
        .wait(bench.ledger.ledger().admin().settle(
            &id(&operation),
            Verdict::Failed,
            Word::person("ada"),
            failed,
        ))
        .expect("there is a doubt");
    bench
        .wait(bench.ledger.ledger().admin().cancel(&id(&operation), &Word::person("ada")))
        .expect("it can be cancelled");
    let receipt = bench.wait(claim.finish(done("late"))).expect("it happened after all");
    assert_eq!((receipt.record().state, receipt.data()), (State::Done, Some("\"late\"")));
    let history = &receipt.record().detail.history;
    let said: Vec<_> = history.iter().map(|past| (past.ended, past.settled_by.is_some())).collect();
    assert_eq!(said, [(State::Failed, true), (State::Cancelled, true)], "both of her words are kept");
}
