//! Probes and checks: read-only questions about what happened.

use crate::common::{Bench, NOW_MS, id, left_in_doubt, once, pay, short_lease, terms};
use onceward::{
    Answer, Claim, Class, Clock, Code, Effect, Ending, Error, Evidence, Failure, NextStep, Operation,
    Outcome, ProbeAnswer, Ran, Receipt, Speaker, State, Verification,
};

fn probed(bench: &Bench, operation: &Operation, answer: ProbeAnswer) -> Result<Receipt, Error> {
    let call = bench.ledger.call(operation.clone().intent().expect("a valid operation"));
    bench.ledger.run_call(call.probe(move |_| std::future::ready(answer.clone())), |attempt| {
        Ok(attempt.dispatch()?.created(&"again"))
    })
}

/// Every kind of doubt: the owner is gone or reported a timeout, and liveness comes from the kernel or from leases.
fn doubts() -> Vec<(&'static str, Bench)> {
    let operation = short_lease();
    let timed_out = |bench: &Bench| {
        let error = bench.ledger.run(operation.clone(), |attempt| {
            attempt.dispatch()?;
            Err(Failure::timed_out("no answer"))
        });
        assert_eq!(error.expect_err("it is in doubt").code(), Code::Timeout);
    };
    let (crashed, silent, late, blind) = (Bench::new(), Bench::blind(), Bench::new(), Bench::blind());
    drop(crashed.begin(&operation));
    drop(silent.begin(&operation));
    silent.clock.advance(300);
    timed_out(&late);
    timed_out(&blind);
    vec![("crashed", crashed), ("silent", silent), ("timed out", late), ("timed out, by lease", blind)]
}

#[test]
fn a_probes_yes_counts_at_once() {
    for (what, bench) in doubts() {
        let yes = ProbeAnswer::Yes(Outcome::with_effect(Effect::Updated));
        let receipt = probed(&bench, &short_lease(), yes).expect("it happened");
        assert_eq!((receipt.replayed(), receipt.original_effect()), (true, Effect::Updated), "{what}");
        let settled_by = receipt.record().outcome.as_ref().and_then(|outcome| outcome.settled_by.clone());
        assert_eq!(settled_by.map(|word| word.by), Some(Speaker::Probe), "{what}");
    }
}

#[test]
fn a_probes_no_counts_only_after_the_quarantine() {
    for (what, bench) in doubts() {
        let no = || probed(&bench, &short_lease(), ProbeAnswer::No);
        assert_eq!(no().expect_err("the request may be under way").code(), Code::InDoubt, "{what}");
        bench.clock.advance(4_999);
        assert_eq!(no().expect_err("the request may be under way").code(), Code::InDoubt, "{what}");
        bench.clock.advance(1);
        let receipt = no().expect("the quarantine is over");
        assert_eq!((receipt.data(), receipt.record().attempt), (Some("\"again\""), 2), "{what}");
    }
}

#[test]
fn a_no_that_lets_the_next_attempt_run_is_in_the_history() {
    for (what, bench) in doubts() {
        probed(&bench, &short_lease(), ProbeAnswer::No).expect_err("the quarantine begins");
        bench.clock.advance(5_000);
        let receipt = probed(&bench, &short_lease(), ProbeAnswer::No).expect("the quarantine is over");
        let [past] = receipt.record().detail.history.as_slice() else { panic!("{what}: one attempt before") };
        assert_eq!(
            (past.attempt, past.ended, past.at_ms),
            (1, State::Failed, bench.clock.now_ms()),
            "{what}"
        );
        assert_eq!(past.evidence, Some(Evidence::ProbeSaysNo), "{what}");
        let word = past.settled_by.as_ref().expect("the word of the probe");
        assert_eq!((word.by, word.at_ms), (Speaker::Probe, past.at_ms), "{what}");
        assert!(word.doubt.is_some(), "{what}: why it was in doubt");
    }
}

/// While the scope is stopped the answer lets nothing run, so it settles nothing either.
#[test]
fn a_no_in_a_stopped_scope_leaves_the_doubt() {
    let bench = Bench::new();
    drop(bench.begin(&short_lease()));
    probed(&bench, &short_lease(), ProbeAnswer::No).expect_err("the quarantine begins");
    bench.clock.advance(5_000);
    let scope = short_lease().intent().expect("a valid operation").scope;
    bench.ledger.scopes().stop(&scope, &onceward::Word::person("ada")).expect("a barrier");
    let error = probed(&bench, &short_lease(), ProbeAnswer::No).expect_err("nothing begins");
    assert_eq!((error.code(), bench.state_of(&short_lease())), (Code::InDoubt, State::InDoubt));
    assert_eq!(error.happened(), Some(onceward::Happened::Unknown));
}

#[test]
fn asking_again_does_not_prolong_the_quarantine() {
    let bench = Bench::new();
    drop(bench.begin(&short_lease()));
    for _ in 0..5 {
        probed(&bench, &short_lease(), ProbeAnswer::No).expect_err("the request may be under way");
        bench.clock.advance(1_000);
    }
    assert_eq!(probed(&bench, &short_lease(), ProbeAnswer::No).expect("5 s are over").record().attempt, 2);
}

#[test]
fn a_probe_that_cannot_tell_leaves_the_doubt() {
    for (what, bench) in doubts() {
        bench.clock.advance(1_000_000);
        let unsure = ProbeAnswer::CannotTell("offline".to_owned());
        let error = probed(&bench, &short_lease(), unsure).expect_err("it stays in doubt");
        assert_eq!((error.code(), error.ran()), (Code::InDoubt, Ran::No), "{what}");
    }
}

#[test]
fn a_probe_is_not_asked_while_a_process_of_the_attempt_holds_its_lock() {
    let bench = Bench::new();
    let operation = short_lease().terms(terms(|terms| (terms.wait_ms, terms.quarantine_ms) = (0, 0)));
    let claim = bench.begin(&operation);
    left_in_doubt(&bench, &claim);
    assert_eq!(probed(&bench, &operation, ProbeAnswer::No).expect_err("it runs").code(), Code::InProgress);
    drop(claim);
    assert_eq!(probed(&bench, &operation, ProbeAnswer::No).expect("it runs again").record().attempt, 2);
}

/// The owner of the first attempt slept, and sent its request after the probe had looked.
#[test]
fn a_doubt_that_an_overtaken_attempt_reports_is_not_answered_by_the_probe_before() {
    for reports_first in [true, false] {
        let bench = Bench::blind();
        let mut slept = Some(bench.begin(&short_lease()));
        bench.clock.advance(300);
        probed(&bench, &short_lease(), ProbeAnswer::No).expect_err("the quarantine begins");
        bench.clock.advance(5_000);
        let reports = |slept: &mut Option<Claim>| {
            let ending = Ending::InDoubt(Outcome::because(Some("no answer in time".to_owned())));
            drop(bench.wait(slept.take().expect("its first report").finish(ending)));
        };
        let call = bench.ledger.call(short_lease().intent().expect("a valid operation"));
        let second = bench.ledger.run_call(call.probe(|_| std::future::ready(ProbeAnswer::No)), |_| {
            if reports_first {
                reports(&mut slept);
            }
            Err(Failure::no_effect(Evidence::NotSent, "refused"))
        });
        if !reports_first {
            assert_eq!(second.expect_err("refused").code(), Code::Failed);
            reports(&mut slept);
        }
        assert_eq!(bench.state_of(&short_lease()), State::InDoubt, "reports first: {reports_first}");
        let yes = ProbeAnswer::Yes(Outcome::with_effect(Effect::Created));
        assert!(probed(&bench, &short_lease(), yes).expect("it happened").replayed());
    }
}

#[test]
fn a_probed_operation_without_a_probe_stays_in_doubt() {
    let bench = Bench::new();
    let operation = pay().class(Class::Probed).probe_command(Some("look".to_owned()));
    drop(bench.begin(&operation));
    let error = bench.ask(&operation).expect_err("it is unknown");
    assert_eq!(error.code(), Code::InDoubt);
    assert_eq!(
        error.next_step(),
        Some(NextStep::Probe { id: id(&operation), command: "look".to_owned(), no: Vec::new() })
    );
}

/// Runs with a check that gives these answers in order, and then repeats the last one.
fn checked(bench: &Bench, answers: &[Verification]) -> Result<Receipt, Error> {
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let check = |_| {
        let at = asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst).min(answers.len() - 1);
        std::future::ready((answers[at], "looked".to_owned()))
    };
    let operation = pay().terms(terms(|t| (t.verify_deadline_ms, t.verify_interval_ms) = (1_000, 400)));
    bench.ledger.run_call(
        bench.ledger.call(operation.intent().expect("a valid operation")).verify(check),
        |attempt| Ok(attempt.dispatch()?.created(&1)),
    )
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
    let answer = Answer::of(&checked(&bench, &[Verification::Pending]), &once(), NOW_MS);
    assert!(answer.ok && answer.warnings[0].contains("is not confirmed yet"), "{:?}", answer.warnings);
    assert_eq!(answer.operation.expect("an operation").verified, Some("pending"));
    assert_eq!(bench.clock.now_ms() - NOW_MS, 1_200, "asked until its deadline was over");
}

#[test]
fn a_success_that_the_check_refutes_is_in_doubt() {
    let bench = Bench::new();
    let error = checked(&bench, &[Verification::Refuted]).expect_err("it is refuted");
    assert_eq!((error.code(), error.retryable()), (Code::Unverified, false));
    assert_eq!(error.to_string(), "success was reported, but the check refuted it: looked");
    assert_eq!((bench.state_of(&pay()), bench.refused(&pay())), (State::InDoubt, Code::Unverified));
}

#[test]
fn a_failure_is_not_checked() {
    let bench = Bench::new();
    let call = bench
        .ledger
        .ledger()
        .call(pay().intent().expect("a valid operation"))
        .verify(|_| async { panic!("there is nothing to check") });
    let error = bench
        .ledger
        .run_call(call, |_| Err(Failure::no_effect(Evidence::NotSent, "declined")))
        .expect_err("it fails");
    assert_eq!(error.code(), Code::Failed);
}
