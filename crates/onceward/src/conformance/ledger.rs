//! The complete loop over the store: the contract's promises, checked end to end.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::bench::{Bench, Problem, Verdict, ensure, equal, intent};
use super::{Case, cases};
use crate::attempt::{Attempt, Done, Failure};
use crate::error::{Code, Error};
use crate::evidence::Evidence;
use crate::facts::Ending;
use crate::facts::Verdict as Said;
use crate::ledger::{Begun, Claim, ProbeAnswer, Receipt};
use crate::operation::Operation;
use crate::policy::{Hold, Terms};
use crate::record::{Class, Effect, HeldBy, Outcome, State};
use crate::store::LivenessSource;
use crate::word::Word;

pub(super) const CASES: &[Case] = cases![
    an_operation_runs_once_and_is_replayed,
    other_inputs_under_one_key_are_refused,
    another_scope_is_another_operation,
    a_certain_failure_can_be_tried_again,
    an_attempt_without_an_ending_is_in_doubt,
    an_operation_in_doubt_is_not_run_again,
    what_is_in_doubt_can_be_settled,
    what_converges_is_run_again,
    a_probe_settles_what_is_in_doubt,
    a_late_answer_settles_what_is_in_doubt,
    an_overtaken_success_raises_the_alarm,
    many_callers_have_one_effect,
    a_caller_that_does_not_wait_is_told_so,
    what_is_staged_runs_when_it_is_called,
    what_is_held_runs_when_it_is_released,
    what_is_cancelled_is_not_run,
    what_is_forgotten_runs_again,
    time_turns_results_into_tombstones_and_removes_them,
    a_sweep_writes_doubts_down,
];

fn pay() -> Operation {
    Operation::new("pay").key("a").input(serde_json::json!({"amount": 100}))
}

fn terms(change: impl FnOnce(&mut Terms)) -> Terms {
    // Longer than any machine needs for a case: what must be over is written as over, and never waited for.
    let mut terms = Terms { lease_ms: 600_000, wait_ms: 60_000, quarantine_ms: 0, ..Terms::default() };
    change(&mut terms);
    terms
}

fn paid(attempt: &Attempt, id: u32) -> Result<Done, Failure> {
    Ok(attempt.dispatch()?.created(&serde_json::json!({"id": id})).body(*b"\0\xffbody"))
}

/// Begins the first attempt of this operation.
fn begun(bench: &Bench, operation: &Operation) -> Result<Claim, Problem> {
    let ledger = bench.ledger();
    match ledger.begin(&intent(operation)?)? {
        Begun::Execute(claim) => Ok(claim),
        Begun::Replay(_) => Err(Problem::new("it was replayed, where it should run")),
    }
}

/// Leaves an attempt of this operation behind whose owner is gone.
fn abandoned(bench: &Bench, operation: &Operation) -> Verdict {
    let claim = begun(bench, operation)?;
    abandon(bench, claim)
}

/// Lets the owner of an attempt go, and its lease end, where only the lease tells: the record says that it ended just
/// now, as if its owner had been silent since.
fn abandon(bench: &Bench, claim: Claim) -> Verdict {
    let id = claim.record().id.clone();
    drop(claim);
    if bench.watch() == LivenessSource::Lease {
        let (found, now_ms) = (bench.found(&id)?, bench.now_ms());
        let token = found.detail.owner.map_or(0, |owner| owner.token);
        let over = crate::transition::renew(&found, found.attempt, token, now_ms, now_ms);
        let over = over.ok_or_else(|| Problem::new("the attempt is not running"))?;
        bench.replace(&found, &over)?;
        bench.wait_past(now_ms);
    }
    Ok(())
}

fn refused(result: Result<Receipt, Error>, code: Code) -> Verdict {
    match result {
        Ok(_) => Err(Problem::new(format!("it went through, where it should be refused with {code}"))),
        Err(error) => {
            equal!(error.code(), code, format!("the code of \"{error}\""));
            Ok(())
        }
    }
}

fn must_not_run(_: crate::Attempt) -> Result<Done, Failure> {
    Err(Failure::in_doubt("it was run"))
}

fn an_operation_runs_once_and_is_replayed(bench: &Bench) -> Verdict {
    let ledger = bench.ledger();
    let first = ledger.run(pay(), |attempt| paid(&attempt, 1))?;
    let retry = ledger.run(pay(), must_not_run)?;
    equal!((first.replayed(), retry.replayed()), (false, true), "replayed");
    equal!((first.effect(), retry.effect()), (Effect::Created, Effect::Noop), "the effects");
    equal!(retry.data(), Some("{\"id\":1}"), "the result");
    equal!(retry.body(), Some(b"\0\xffbody".as_slice()), "the body");
    Ok(())
}

fn other_inputs_under_one_key_are_refused(bench: &Bench) -> Verdict {
    let ledger = bench.ledger();
    ledger.run(pay(), |attempt| paid(&attempt, 1))?;
    let other = pay().input(serde_json::json!({"amount": 200}));
    match ledger.run(other, must_not_run) {
        Err(Error::KeyReused { fields, .. }) => equal!(fields, ["/amount"], "the fields that differ"),
        result => return refused(result, Code::KeyReused),
    }
    Ok(())
}

fn another_scope_is_another_operation(bench: &Bench) -> Verdict {
    let ledger = bench.ledger();
    ledger.run(pay(), |attempt| paid(&attempt, 1))?;
    let other = ledger.run(pay().scope("other"), |attempt| paid(&attempt, 2))?;
    equal!((other.replayed(), other.data()), (false, Some("{\"id\":2}")), "the other scope");
    Ok(())
}

fn a_certain_failure_can_be_tried_again(bench: &Bench) -> Verdict {
    let ledger = bench.ledger();
    refused(ledger.run(pay(), |_| Err(Failure::no_effect(Evidence::NotSent, "declined"))), Code::Failed)?;
    let second = ledger.run(pay(), |attempt| paid(&attempt, 1))?;
    equal!(second.record().attempt, 2, "the attempt");
    Ok(())
}

fn an_attempt_without_an_ending_is_in_doubt(bench: &Bench) -> Verdict {
    let operation = pay().terms(terms(|_| ()));
    let claim = begun(bench, &operation)?;
    let ledger = bench.ledger();
    let id = claim.record().id.clone();
    equal!(ledger.find(&id)?.1, State::Running, "while its owner lives");
    abandon(bench, claim)?;
    equal!(ledger.find(&id)?.1, State::InDoubt, "when its owner is gone");
    Ok(())
}

fn an_operation_in_doubt_is_not_run_again(bench: &Bench) -> Verdict {
    let operation = pay().terms(terms(|_| ()));
    abandoned(bench, &operation)?;
    refused(bench.ledger().run(operation.clone(), must_not_run), Code::InDoubt)?;
    equal!(bench.count(State::InDoubt)?, 1, "doubts that are recorded");
    refused(bench.ledger().run(operation, must_not_run), Code::InDoubt)
}

fn what_is_in_doubt_can_be_settled(bench: &Bench) -> Verdict {
    let operation = pay().terms(terms(|_| ()));
    abandoned(bench, &operation)?;
    let ledger = bench.ledger();
    let id = intent(&operation)?.id;
    ledger.admin().settle(&id, Said::Done, Word::person("me"), Outcome::with_effect(Effect::Created))?;
    let receipt = ledger.run(operation, must_not_run)?;
    ensure!(
        receipt.replayed() && receipt.original_effect() == Effect::Created,
        "it is not replayed as created"
    );
    Ok(())
}

fn what_converges_is_run_again(bench: &Bench) -> Verdict {
    let operation = pay().terms(terms(|terms| terms.class = Class::Idempotent));
    abandoned(bench, &operation)?;
    let receipt = bench.ledger().run(operation, |attempt| paid(&attempt, 2))?;
    equal!((receipt.record().attempt, receipt.double_effect()), (2, None), "the attempt and the alarm");
    Ok(())
}

fn a_probe_settles_what_is_in_doubt(bench: &Bench) -> Verdict {
    let operation = pay().terms(terms(|terms| terms.class = Class::Probed));
    abandoned(bench, &operation)?;
    let ledger = bench.ledger();
    let yes = |_| async { ProbeAnswer::Yes(Outcome::with_effect(Effect::Created)) };
    let receipt = ledger.run_call(ledger.call(operation.intent()?).probe(yes), must_not_run)?;
    ensure!(receipt.replayed(), "it was run although the probe says that it happened");
    let no = |_| async { ProbeAnswer::No };
    let other = pay().key("b").terms(terms(|terms| terms.class = Class::Probed));
    abandoned(bench, &other)?;
    let receipt = ledger.run_call(ledger.call(other.intent()?).probe(no), |attempt| paid(&attempt, 2))?;
    equal!(receipt.record().attempt, 2, "the attempt after the probe says that it did not happen");
    Ok(())
}

fn a_late_answer_settles_what_is_in_doubt(bench: &Bench) -> Verdict {
    let operation = pay().terms(terms(|_| ()));
    let claim = begun(bench, &operation)?;
    let ledger = bench.ledger();
    // Another process presumes it dead and settles it, and then it reports its result.
    let found = bench.found(&claim.record().id)?;
    bench.replace(&found, &crate::transition::doubt(&found, crate::Liveness::Gone, bench.now_ms()))?;
    ledger.wait_for(claim.finish(Ending::Done(Outcome::with_effect(Effect::Created))))?;
    let receipt = ledger.run(operation, must_not_run)?;
    equal!((receipt.original_effect(), receipt.double_effect()), (Effect::Created, None), "effect and alarm");
    Ok(())
}

fn an_overtaken_success_raises_the_alarm(bench: &Bench) -> Verdict {
    let operation = pay().terms(terms(|terms| terms.class = Class::Idempotent));
    let ledger = bench.ledger();
    let slow = begun(bench, &operation)?;
    let found = bench.found(&slow.record().id)?;
    // The attempt is presumed dead, so its lock no longer counts.
    let mut doubt = crate::transition::doubt(&found, crate::Liveness::Gone, bench.now_ms());
    doubt.detail.owner = None;
    bench.replace(&found, &doubt)?;
    ledger.run(operation.clone(), |attempt| paid(&attempt, 2))?;
    ledger.wait_for(slow.finish(Ending::Done(Outcome::with_effect(Effect::Created))))?;
    let receipt = ledger.run(operation, must_not_run)?;
    equal!(receipt.double_effect(), Some(crate::DoubleEffect::Certain), "the alarm");
    equal!(receipt.data(), Some("{\"id\":2}"), "the result");
    Ok(())
}

fn many_callers_have_one_effect(bench: &Bench) -> Verdict {
    let effects = AtomicUsize::new(0);
    let work = || {
        bench.ledger().run(pay(), |attempt| {
            effects.fetch_add(1, Ordering::SeqCst);
            bench.pause(5);
            paid(&attempt, 1)
        })
    };
    let receipts: Vec<Result<Receipt, Error>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(work)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    equal!((receipts.len(), effects.load(Ordering::SeqCst)), (8, 1), "answers and effects");
    let receipts = receipts.into_iter().collect::<Result<Vec<_>, _>>()?;
    ensure!(
        receipts.iter().all(|receipt| receipt.data() == Some("{\"id\":1}")),
        "they have different results"
    );
    equal!(receipts.iter().filter(|receipt| receipt.replayed()).count(), 7, "replays");
    Ok(())
}

fn a_caller_that_does_not_wait_is_told_so(bench: &Bench) -> Verdict {
    let operation = pay().terms(terms(|terms| terms.wait_ms = 0));
    let _claim = begun(bench, &operation)?;
    refused(bench.ledger().run(operation, must_not_run), Code::InProgress)
}

fn what_is_staged_runs_when_it_is_called(bench: &Bench) -> Verdict {
    let ledger = bench.ledger();
    ledger.attempts().stage(&intent(&pay())?)?;
    equal!(bench.count(State::Staged)?, 1, "staged operations");
    let receipt = ledger.run(pay(), |attempt| paid(&attempt, 1))?;
    equal!((receipt.replayed(), receipt.record().attempt), (false, 1), "the attempt that commits it");
    Ok(())
}

fn what_is_held_runs_when_it_is_released(bench: &Bench) -> Verdict {
    let ledger = bench.ledger();
    let request = Some("{\"to\":\"alice\"}".to_owned());
    let held = pay().terms(terms(|terms| terms.hold = Hold::Approve)).held("run", HeldBy::Caller, request);
    refused(ledger.run(held.clone(), must_not_run), Code::Held)?;
    refused(ledger.run(held.clone(), must_not_run), Code::Held)?;
    let listed = ledger.admin().held(None)?;
    equal!(listed.len(), 1, "held operations");
    equal!(listed[0].held_request(), Some("{\"to\":\"alice\"}"), "the stored request");
    ledger.admin().release(&listed[0].id, &Word::person("me"))?;
    let receipt = ledger.run(held, |attempt| paid(&attempt, 1))?;
    equal!((receipt.replayed(), receipt.record().attempt), (false, 1), "the attempt after the release");
    let found = bench.find(&listed[0].id)?;
    ensure!(found.is_some_and(|record| record.held_request().is_none()), "the request is still stored");
    Ok(())
}

fn what_is_cancelled_is_not_run(bench: &Bench) -> Verdict {
    let ledger = bench.ledger();
    let staged = ledger.attempts().stage(&intent(&pay())?)?;
    ledger.admin().cancel(&staged.id, &Word::person("me"))?;
    refused(ledger.run(pay(), must_not_run), Code::Cancelled)
}

fn what_is_forgotten_runs_again(bench: &Bench) -> Verdict {
    let ledger = bench.ledger();
    let first = ledger.run(pay(), |attempt| paid(&attempt, 1))?;
    ledger.admin().forget(&first.record().id)?;
    let second = ledger.run(pay(), |attempt| paid(&attempt, 2))?;
    equal!((second.replayed(), second.record().attempt), (false, 1), "the call after it was forgotten");
    Ok(())
}

fn time_turns_results_into_tombstones_and_removes_them(bench: &Bench) -> Verdict {
    let ledger = bench.ledger();
    let operation = pay().terms(terms(|terms| (terms.retention_ms, terms.tombstone_ms) = (1, 3_600_000)));
    ledger.run(operation.clone(), |attempt| paid(&attempt, 1))?;
    bench.wait_past(bench.now_ms() + 1);
    let swept = ledger.admin().sweep(|_| ())?;
    equal!((swept.expired, swept.deleted), (1, 0), "the first sweep");
    refused(ledger.run(operation.clone(), must_not_run), Code::KeyExpired)?;
    let brief = pay().key("b").terms(terms(|terms| (terms.retention_ms, terms.tombstone_ms) = (1, 1)));
    ledger.run(brief.clone(), |attempt| paid(&attempt, 2))?;
    for _ in 0..2 {
        bench.wait_past(bench.now_ms() + 1);
        ledger.admin().sweep(|_| ())?;
    }
    ensure!(bench.find(&intent(&brief)?.id)?.is_none(), "the tombstone is still there");
    Ok(())
}

fn a_sweep_writes_doubts_down(bench: &Bench) -> Verdict {
    let operation = pay().terms(terms(|_| ()));
    abandoned(bench, &operation)?;
    let ledger = bench.ledger();
    let swept = ledger.admin().sweep(|_| ())?;
    equal!((swept.doubted, bench.count(State::InDoubt)?), (1, 1), "doubts that are recorded");
    Ok(())
}
