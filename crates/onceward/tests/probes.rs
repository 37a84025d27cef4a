//! Probes and checks: read-only questions about what happened.
#![allow(clippy::expect_used, reason = "a test may")]

mod common;

use common::{Bench, NOW_MS, id, pay, short_lease, terms};
use onceward::record::Outcome;
use onceward::{
    Answer, Class, Clock, Code, Done, Effect, Error, Failure, Operation, ProbeAnswer, Receipt, State,
    Verification,
};

fn probed(bench: &Bench, operation: &Operation, answer: ProbeAnswer) -> Result<Receipt, Error> {
    let call = bench.ledger.ledger().call(operation.clone());
    bench.ledger.run_call(call.probe(move |_| std::future::ready(answer.clone())), |attempt| {
        Ok(attempt.dispatch()?.created(&"again"))
    })
}

#[test]
fn a_probe_decides_at_once_where_the_owner_is_known_to_be_gone() {
    let yes = ProbeAnswer::Yes(Outcome::with_effect(Effect::Updated));
    let bench = Bench::new();
    drop(bench.begin(&pay()));
    let receipt = probed(&bench, &pay(), yes).expect("it happened");
    assert_eq!((receipt.replayed(), receipt.original_effect()), (true, Effect::Updated));
    let settled_by = receipt.record().outcome.as_ref().and_then(|outcome| outcome.settled_by.clone());
    assert_eq!(settled_by.as_deref(), Some("probe"));

    let bench = Bench::new();
    drop(bench.begin(&pay()));
    let receipt = probed(&bench, &pay(), ProbeAnswer::No).expect("it runs again");
    assert_eq!((receipt.data(), receipt.record().attempt), (Some("\"again\""), 2));

    let bench = Bench::new();
    drop(bench.begin(&pay()));
    let unsure = ProbeAnswer::CannotTell("offline".to_owned());
    assert_eq!(probed(&bench, &pay(), unsure).expect_err("it stays in doubt").code(), Code::InDoubt);
}

#[test]
fn a_probes_no_counts_only_after_the_quarantine_where_nobody_can_see() {
    let bench = Bench::blind();
    let operation = short_lease();
    drop(bench.begin(&operation));
    bench.clock.advance(300);
    let no = || probed(&bench, &operation, ProbeAnswer::No);
    assert_eq!(no().expect_err("the owner may still act").code(), Code::InDoubt);
    bench.clock.advance(4_999);
    assert_eq!(no().expect_err("the owner may still act").code(), Code::InDoubt);
    bench.clock.advance(1);
    assert_eq!(no().expect("the quarantine is over").record().attempt, 2);
}

#[test]
fn a_probes_yes_counts_at_once_everywhere() {
    let bench = Bench::blind();
    let operation = short_lease();
    drop(bench.begin(&operation));
    bench.clock.advance(300);
    let yes = ProbeAnswer::Yes(Outcome::with_effect(Effect::Created));
    assert!(probed(&bench, &operation, yes).expect("it happened").replayed());
}

#[test]
fn a_probed_operation_without_a_probe_stays_in_doubt() {
    let bench = Bench::new();
    let operation = pay().class(Class::Probed).probe_command(Some("look".to_owned()));
    drop(bench.begin(&operation));
    let error = bench.ask(&operation).expect_err("nobody can say");
    assert_eq!(error.code(), Code::InDoubt);
    assert_eq!(error.fix_command(), Some(format!("once settle {} --probe", id(&operation))));
}

/// Runs with a check that gives these answers, one after the other, and the last one for ever.
fn checked(bench: &Bench, answers: &[Verification]) -> Result<Receipt, Error> {
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let check = |_| {
        let at = asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst).min(answers.len() - 1);
        std::future::ready((answers[at], "looked".to_owned()))
    };
    let operation = pay().terms(terms(|t| (t.verify_deadline_ms, t.verify_interval_ms) = (1_000, 400)));
    bench.ledger.run_call(bench.ledger.ledger().call(operation).verify(check), |attempt| {
        Ok(attempt.dispatch()?.created(&1))
    })
}

#[test]
fn a_success_is_done_when_the_check_confirms_it() {
    use Verification::{Confirmed, Pending};
    let bench = Bench::new();
    let receipt = checked(&bench, &[Pending, Pending, Confirmed]).expect("it is confirmed");
    let verified = receipt.record().outcome.as_ref().and_then(|outcome| outcome.verified);
    assert_eq!((verified, bench.clock.now_ms() - NOW_MS), (Some(Confirmed), 800), "asked again twice");
}

#[test]
fn a_success_that_stays_pending_is_done_with_a_warning() {
    let bench = Bench::new();
    let answer = Answer::of(&checked(&bench, &[Verification::Pending]), NOW_MS);
    assert!(answer.ok && answer.warnings[0].contains("could not be confirmed yet"), "{:?}", answer.warnings);
    assert_eq!(answer.operation.expect("an operation").verified, Some("pending"));
    assert_eq!(bench.clock.now_ms() - NOW_MS, 1_200, "asked until its deadline was over");
}

#[test]
fn a_success_that_the_check_refutes_is_in_doubt() {
    let bench = Bench::new();
    let error = checked(&bench, &[Verification::Refuted]).expect_err("it is refuted");
    assert_eq!((error.code(), error.retryable()), (Code::Unverified, false));
    assert_eq!(error.to_string(), "success was reported, but the check refuted it: looked");
    assert_eq!((bench.stands(&pay()), bench.refused(&pay())), (State::InDoubt, Code::Unverified));
}

#[test]
fn a_failure_is_not_checked() {
    let bench = Bench::new();
    let call = bench.ledger.ledger().call(pay()).verify(|_| async { panic!("there is nothing to check") });
    let error = bench.ledger.run_call(call, |_| Err(Failure::no_effect("declined"))).expect_err("it fails");
    assert_eq!(error.code(), Code::Failed);
}
