//! Undo: what can be taken back, what a compensation's end proves, and what a retry gets meanwhile.

use std::sync::Arc;

use crate::common::table::Table;
use crate::common::{Bench, NOW_MS, combinations, intent, record};
use onceward::decide::begin;
use onceward::{
    Class, Code, Compensation, CompensationKind, Decision, DoubleEffect, Effect, EffectNow, Ending, Error,
    Evidence, Failure, Fate, Happened, KeyOrigin, Liveness, OnExpired, Operation, OperationId, Outcome,
    ProbeAnswer, Ran, Record, Refusal, Reversal, State, StoreError, UndoEvidence, UndoOutcome, Undoing,
    Undone, Verdict, Verification, Word, transition,
};

const FOUND: &[&str] = &["staged", "running", "done", "failed", "in_doubt", "cancelled", "expired"];

const REVERSALS: &str = "
    state                     role          undo   mark          effect  => reversal
    *                         compensation  *      *             *       => compensation
    staged                    ordinary      *      *             *       => held
    failed|cancelled          ordinary      *      *             *       => nothing_happened
    running                   ordinary      *      *             *       => running
    in_doubt                  ordinary      *      *             *       => in_doubt
    done|expired              ordinary      *      probe|word    *       => already_undone
    done|expired              ordinary      *      *             noop    => nothing_happened
    done                      ordinary      *      pending       *       => compensate
    done                      ordinary      given  *             *       => compensate
    done                      ordinary      none   none          *       => irreversible
    expired                   ordinary      *      *             *       => expired
";

#[test]
fn what_can_be_taken_back() {
    let mut table = Table::read(REVERSALS);
    for words in combinations([
        FOUND,
        &["ordinary", "compensation"],
        &["given", "none"],
        &["none", "pending", "word", "probe"],
        &["created", "noop"],
    ]) {
        let [state, role, undo, mark, effect] = words;
        let intent = intent(KeyOrigin::Given);
        let mut record = record(state.parse().unwrap(), &intent);
        record.detail.ended = (state == "expired").then_some(State::Done);
        record.detail.undo = (undo == "given").then(refund);
        record.detail.undoes = (role == "compensation").then(|| record.id.clone());
        record.detail.undone = evidence(mark).map(|evidence| marked(&record, evidence));
        record.outcome = Some(Outcome::with_effect(effect.parse().unwrap()));
        assert_eq!(Reversal::of(&record, record.state).as_str(), table.look_up(&words), "{words:?}");
    }
    table.assert_all_rows_fitted();
}

#[test]
fn two_effects_and_an_unconfirmed_one_are_left_alone() {
    let with = |change: fn(&mut Record)| {
        let mut record = record(State::Done, &intent(KeyOrigin::Given));
        record.detail.undo = Some(refund());
        record.outcome = Some(Outcome::with_effect(Effect::Created));
        change(&mut record);
        record
    };
    let twice = with(|record| record.detail.double_effect = Some(DoubleEffect::Certain));
    assert_eq!(Reversal::of(&twice, State::Done), Reversal::Doubled);
    let pending = with(|record| {
        record.outcome =
            Some(Outcome { verified: Some(Verification::Pending), ..Outcome::with_effect(Effect::Created) });
    });
    assert_eq!(Reversal::of(&pending, State::Done), Reversal::Unconfirmed);
    // If one of two effects was taken back, the other one stands.
    for (alarm, fate) in [
        (None, Fate::Undone),
        (Some(DoubleEffect::Certain), Fate::Standing),
        (Some(DoubleEffect::Possible), Fate::InDoubt),
    ] {
        let mut undone = with(|record| {
            record.detail.undone = evidence("word").map(|evidence| marked(record, evidence));
        });
        undone.detail.double_effect = alarm;
        assert_eq!(Fate::of(&undone, State::Done), fate);
    }
}

#[test]
fn a_scope_is_undone_with_all_of_its_callers() {
    let bench = Bench::new();
    for scope in ["trip", "trip~a", "trip~b", "trips", "other"] {
        let paid = Operation::new("pay").scope(scope).key("k").undo(Some(refund()));
        bench.ledger.run(paid, |attempt| Ok(attempt.dispatch()?.created(&1))).unwrap();
    }
    let scopes = |since: Option<&OperationId>| {
        let found = bench.ledger.undo().of_scope("trip", since).unwrap();
        found.into_iter().map(|found| found.record.scope.clone()).collect::<Vec<_>>()
    };
    assert_eq!(scopes(None), ["trip~b", "trip~a", "trip"]);
    let of = |scope: &str| Operation::new("pay").scope(scope).key("k").intent().unwrap().id;
    assert_eq!(scopes(Some(&of("trip~a"))), ["trip~b"]);
    assert!(bench.ledger.undo().of_scope("trip", Some(&of("trips"))).is_err());
    let lookup =
        |scope: &str| bench.wait(bench.ledger.ledger().admin().lookup("k", Some(scope), 10)).unwrap().len();
    assert_eq!((lookup("trip"), lookup("trip~a"), lookup("other"), lookup("tri")), (3, 1, 1, 0));
}

#[test]
fn a_tombstone_that_says_no_effect_needs_no_undo() {
    let mut record = record(State::Expired, &intent(KeyOrigin::Given));
    for (ended, expected) in [
        (Some(State::Failed), Reversal::NothingHappened),
        (Some(State::Cancelled), Reversal::NothingHappened),
        (Some(State::Done), Reversal::Expired),
        (None, Reversal::Expired),
    ] {
        record.detail.ended = ended;
        assert_eq!(Reversal::of(&record, State::Expired), expected, "{ended:?}");
    }
}

/// An undone operation never replays, whatever its class, terms and evidence, until its retention is over.
#[test]
fn a_success_that_is_taken_back_is_not_replayed() {
    for mark in ["pending", "word", "probe"] {
        for class in Class::ALL {
            let mut intent = intent(KeyOrigin::Given);
            intent.terms.class = class;
            let mut record = record(State::Done, &intent);
            record.detail.undone = evidence(mark).map(|evidence| marked(&record, evidence));
            let decision = begin(Some(&record), &intent, Liveness::Gone, NOW_MS);
            assert_eq!(decision, Decision::Refuse(Refusal::Undone), "{mark} {class}");
            // The next occurrence of an expired key is another action, and begins without the mark.
            record.due_ms = Some(NOW_MS);
            intent.terms.on_expired = OnExpired::Rerun;
            assert_eq!(begin(Some(&record), &intent, Liveness::Gone, NOW_MS), Decision::Start { attempt: 5 });
            let owner = record.detail.owner.unwrap();
            assert_eq!(transition::start(Some(&record), &intent, owner, NOW_MS).detail.undone, None);
        }
    }
}

const OUTCOMES: &str = "
    compensation            probe           => outcome
    refused                 *               => not undone
    no                      *               => not undone
    done|yes|unknown|none   gone            => undone, probe
    unknown|none            *               => in doubt
    done|yes                not_asked       => undone, compensation
    done|yes                there|cannot    => unconfirmed
";

#[test]
fn what_the_end_of_a_compensation_proves() {
    let mut table = Table::read(OUTCOMES);
    let done = Arc::new(record(State::Done, &intent(KeyOrigin::Given)));
    for [compensation, probe] in combinations([
        &["done", "yes", "no", "unknown", "none", "refused"],
        &["not_asked", "gone", "there", "cannot"],
    ]) {
        let record = Arc::clone(&done);
        let reason = "why".to_owned();
        let result = match compensation {
            "done" => Ok(()),
            // It was done, and its stored result has gone since.
            "yes" => Err(Error::ResultLost { record }),
            "no" => Err(Error::Failed { record, reason, ran: Ran::Yes }),
            "unknown" => Err(Error::InDoubt { record, reason, ran: Ran::Yes }),
            "none" => Err(Error::from(StoreError::unavailable("the disk is full"))),
            _ => Err(Error::KeyReused { record, fields: Vec::new() }),
        };
        let now = match probe {
            "not_asked" => EffectNow::NotAsked,
            "gone" => EffectNow::Gone,
            "there" => EffectNow::StillThere,
            _ => EffectNow::CannotTell("it crashed".to_owned()),
        };
        let outcome = match UndoOutcome::of(result.as_ref().copied(), &now) {
            UndoOutcome::Undone(evidence) => format!("undone, {}", evidence.as_str()),
            UndoOutcome::Unconfirmed(_) => "unconfirmed".to_owned(),
            UndoOutcome::NotUndone(_) => "not undone".to_owned(),
            UndoOutcome::InDoubt(_) => "in doubt".to_owned(),
        };
        assert_eq!(outcome, table.look_up(&[compensation, probe]), "{compensation} {probe}");
    }
    table.assert_all_rows_fitted();
}

#[test]
fn marks_are_kept_until_an_undo_proves_something() {
    let done = record(State::Done, &intent(KeyOrigin::Given));
    let (by, other) = (undo_id(&done), done.id.clone());
    let begun = transition::begin_undo(&done, &by, NOW_MS).unwrap();
    assert_eq!((begun.updated_ms, begun.due_ms), (done.updated_ms, done.due_ms), "its own times stay");
    assert!(transition::begin_undo(&begun, &other, NOW_MS).is_none(), "another one takes it back");
    assert!(transition::undone(&begun, &other, (UndoEvidence::Probe, None), NOW_MS).is_none());
    let round = |record: &Record| record.detail.undone.as_ref().unwrap().round;
    let again = transition::begin_undo(&begun, &by, NOW_MS).unwrap();
    assert_eq!((round(&begun), round(&again)), (0, 0), "no attempt has begun");
    // The first caller's compensation failed, but the second caller may have begun the next attempt.
    let second = transition::begin_undo_attempt(&again, &by, 2, NOW_MS).unwrap();
    assert_eq!(round(&second), 2, "the attempt that may take effect next");
    assert!(transition::withdraw_undo(&second, &by, 1).detail.undone.is_some());
    assert!(transition::withdraw_undo(&second, &by, 2).detail.undone.is_none());
    let undone = transition::undone(&again, &by, (UndoEvidence::Probe, None), NOW_MS + 5).unwrap();
    assert!(undone.is_undone());
    let lower = transition::undone(&undone, &by, (UndoEvidence::Compensation, None), NOW_MS + 9).unwrap();
    assert_eq!(lower.version, undone.version, "evidence is never lowered");
    assert!(transition::withdraw_undo(&undone, &by, 2).is_undone(), "nor withdrawn");
    assert!(transition::begin_undo(&undone, &by, NOW_MS).is_none(), "nor begun again");
    assert!(transition::verified(&undone, Verification::Refuted, None, NOW_MS).is_none());
    for state in State::ALL.into_iter().filter(|state| *state != State::Done) {
        let record = record(state, &intent(KeyOrigin::Given));
        assert!(transition::begin_undo(&record, &by, NOW_MS).is_none(), "{state}");
    }
}

#[test]
fn an_undo_runs_once_and_a_retry_is_refused() {
    let bench = Bench::new();
    let paid = pay(&bench, "order-1");
    let undoing = bench.ledger.undo().begin(&paid.id, Operation::undo_of(&paid)).unwrap();
    // Between the mark and the compensation's end no retry may replay the payment.
    let refused = retry(&bench, "order-1");
    assert_eq!((refused.code(), refused.happened()), (Code::Undone, Some(Happened::Yes)));
    assert!(refused.to_string().contains("may or may not be gone"), "{refused}");
    let result = refund_once(&bench, &undoing);
    let outcome = UndoOutcome::of(result.as_ref().map(|_| ()), &EffectNow::NotAsked);
    let record = bench.ledger.undo().end(&undoing, &outcome).unwrap();
    assert!(record.is_undone() && record.state == State::Done);
    assert_eq!(retry(&bench, "order-1").code(), Code::Undone);
    // The compensation is an ordinary operation: running it again replays it.
    let again =
        bench.ledger.run_call(bench.ledger.call(undoing.intent.clone()), |_| unreachable!("it is done"));
    assert!(again.unwrap().replayed());
    let refused = bench.ledger.undo().begin(&paid.id, Operation::undo_of(&record)).unwrap_err();
    assert_eq!(refused.code(), Code::WrongState);
    assert!(refused.to_string().contains("was taken back by op_"), "{refused}");
    // Another occurrence does it again.
    let second = Operation::new("pay").key("order-1").occurrence("2");
    bench.ledger.run(second, |attempt| Ok(attempt.dispatch()?.created(&"ch_2"))).unwrap();
}

#[test]
fn a_compensation_that_had_no_effect_leaves_the_operation_standing() {
    let bench = Bench::new();
    let paid = pay(&bench, "order-1");
    let undoing = bench.ledger.undo().begin(&paid.id, Operation::undo_of(&paid)).unwrap();
    let failed = bench.ledger.run_call(bench.ledger.call(undoing.intent.clone()), |attempt| {
        attempt.dispatch()?;
        Err(Failure::no_effect(Evidence::NotSent, "the account is closed"))
    });
    let outcome = UndoOutcome::of(failed.as_ref().map(|_| ()), &EffectNow::NotAsked);
    assert!(matches!(&outcome, UndoOutcome::NotUndone(why) if why.contains("account")));
    assert_eq!(bench.ledger.undo().end(&undoing, &outcome).unwrap().detail.undone, None);
    // It stands, so its result is replayed, and another undo may try again.
    let receipt = bench.ledger.run(payment("order-1"), |_| unreachable!("it is done")).unwrap();
    assert_eq!(receipt.data(), Some("\"ch_1\""));
    let undoing = bench.ledger.undo().begin(&paid.id, Operation::undo_of(&paid)).unwrap();
    assert!(refund_once(&bench, &undoing).unwrap().record().attempt == 2);
}

#[test]
fn a_compensation_that_a_person_settles_decides_about_the_operation() {
    for (verdict, is_undone) in [(Verdict::Done, true), (Verdict::Failed, false)] {
        let bench = Bench::new();
        let paid = pay(&bench, "order-1");
        let undoing = bench.ledger.undo().begin(&paid.id, Operation::undo_of(&paid)).unwrap();
        let lost = bench.ledger.run_call(bench.ledger.call(undoing.intent.clone()), |_| {
            Err(Failure::in_doubt("the connection was reset"))
        });
        let outcome = UndoOutcome::of(lost.as_ref().map(|_| ()), &EffectNow::NotAsked);
        bench.ledger.undo().end(&undoing, &outcome).unwrap();
        bench
            .ledger
            .admin()
            .settle(
                &undoing.intent.id,
                verdict,
                Word::person("ada"),
                Outcome::because(Some("looked".to_owned())),
            )
            .unwrap();
        let (record, _) = bench.ledger.find(&paid.id).unwrap();
        assert_eq!(
            (record.is_undone(), record.detail.undone.is_some()),
            (is_undone, is_undone),
            "{verdict:?}"
        );
    }
}

#[test]
fn an_undo_since_an_operation_of_another_scope_is_refused() {
    let bench = Bench::new();
    let paid = pay(&bench, "order-1");
    let refused = bench.ledger.undo().plan("another", Some(&paid.id)).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidInput, "{refused}");
    assert!(bench.ledger.undo().plan("default", Some(&paid.id)).unwrap().is_empty());
}

/// Two undos were requested. The second one's compensation fails, and then the first one's runs.
#[test]
fn a_mark_that_a_failed_compensation_withdraws_is_set_again_before_the_next_attempt() {
    let bench = Bench::new();
    let paid = pay(&bench, "order-1");
    let first = bench.ledger.undo().begin(&paid.id, Operation::undo_of(&paid)).unwrap();
    let second = bench.ledger.undo().begin(&paid.id, Operation::undo_of(&paid)).unwrap();
    let failed = bench.ledger.run_call(bench.ledger.call(second.intent.clone()), |_| {
        Err(Failure::no_effect(Evidence::NotSent, "refused"))
    });
    let outcome = UndoOutcome::of(failed.as_ref().map(|_| ()), &EffectNow::NotAsked);
    assert_eq!(bench.ledger.undo().end(&second, &outcome).unwrap().detail.undone, None);
    let result = bench.ledger.run_call(bench.ledger.call(first.intent.clone()), |attempt| {
        let sent = attempt.dispatch()?;
        assert_eq!(retry(&bench, "order-1").code(), Code::Undone, "its effect may be gone");
        // A caller whose attempt failed before reports late. It must not withdraw this attempt's mark.
        assert!(bench.ledger.undo().end(&second, &outcome).unwrap().detail.undone.is_some());
        Ok(sent.created(&"re_1"))
    });
    let outcome = UndoOutcome::of(result.as_ref().map(|_| ()), &EffectNow::NotAsked);
    assert!(bench.ledger.undo().end(&first, &outcome).unwrap().is_undone());
}

#[test]
fn an_operation_that_was_forgotten_and_done_again_does_not_count_as_taken_back() {
    let bench = Bench::new();
    let paid = pay(&bench, "order-1");
    let undoing = bench.ledger.undo().begin(&paid.id, Operation::undo_of(&paid)).unwrap();
    let result = refund_once(&bench, &undoing);
    let outcome = UndoOutcome::of(result.as_ref().map(|_| ()), &EffectNow::NotAsked);
    bench.ledger.undo().end(&undoing, &outcome).unwrap();
    bench.ledger.admin().forget(&paid.id).unwrap();
    bench.clock.advance(1);
    let paid = pay(&bench, "order-1");
    let undoing = bench.ledger.undo().begin(&paid.id, Operation::undo_of(&paid)).unwrap();
    let refused = refund_once(&bench, &undoing).unwrap_err();
    assert_eq!(refused.code(), Code::KeyReused);
    let outcome = UndoOutcome::of(Err(&refused), &EffectNow::NotAsked);
    assert!(matches!(outcome, UndoOutcome::NotUndone(_)));
    assert_eq!(bench.ledger.undo().end(&undoing, &outcome).unwrap().detail.undone, None);
}

/// The compensation's owner died. The operation's own probe, asked the other way round, settles the compensation.
#[test]
fn the_probe_of_the_operation_settles_a_compensation_in_doubt() {
    for (still_there, runs) in [(false, 0), (true, 1)] {
        let bench = Bench::new();
        let paid = pay(&bench, "order-1");
        let undoing = bench.ledger.undo().begin(&paid.id, Operation::undo_of(&paid)).unwrap();
        let mut crashed = bench.ledger.begin(&undoing.intent).map(drop);
        assert!(crashed.is_ok());
        crashed = bench.ledger.attempts().note_doubt(&undoing.intent.id).map(drop);
        assert!(crashed.is_ok());
        bench.clock.advance(60 * 60 * 1000);
        let mut ran = 0;
        let call = bench.ledger.call(undoing.intent.clone()).probe(move |_| {
            std::future::ready(match still_there {
                true => ProbeAnswer::No,
                false => ProbeAnswer::Yes(Outcome::with_effect(Effect::Updated)),
            })
        });
        let result = bench.ledger.run_call(call, |attempt| {
            ran += 1;
            Ok(attempt.dispatch()?.created(&"re_1"))
        });
        assert!(result.is_ok());
        assert_eq!(ran, runs, "still there: {still_there}");
    }
}

#[test]
fn a_scope_is_taken_back_in_the_reverse_order_of_completion() {
    let bench = Bench::new();
    let names = ["flight", "hotel", "car"];
    let claims: Vec<_> = names
        .iter()
        .map(|name| {
            bench.clock.advance(1);
            let step = Operation::new(*name).scope("trip").key("1").undo(Some(refund()));
            match bench.ledger.begin(&bench.ledger.intent(step).unwrap()).unwrap() {
                onceward::Begun::Execute(claim) => claim,
                onceward::Begun::Replay(_) => unreachable!("it is new"),
            }
        })
        .collect();
    // They were begun in one order and done in another.
    let ids: Vec<OperationId> = claims.iter().map(|claim| claim.record().id.clone()).collect();
    let mut claims: Vec<_> = claims.into_iter().map(Some).collect();
    for at in [1, 0, 2] {
        bench.clock.advance(1);
        let done = Ending::Done(Outcome::with_effect(Effect::Created));
        bench.ledger.wait_for(claims[at].take().unwrap().finish(done)).unwrap();
    }
    // A later check does not change when an operation was done.
    bench.clock.advance(1);
    bench.ledger.attempts().verified(&ids[1], Verification::Confirmed, None).unwrap();
    let plan = |since| -> Vec<(String, Reversal)> {
        let steps = bench.ledger.undo().plan("trip", since).unwrap();
        steps.into_iter().map(|step| (step.record.name, step.reversal)).collect()
    };
    let compensate = |names: &[&str]| -> Vec<(String, Reversal)> {
        names.iter().map(|name| ((*name).to_owned(), Reversal::Compensate)).collect()
    };
    assert_eq!(plan(None), compensate(&["car", "flight", "hotel"]));
    assert_eq!(plan(Some(&ids[1])), compensate(&["car"]));
    assert!(bench.ledger.undo().plan("another", None).unwrap().is_empty());
}

#[test]
fn a_compensation_outlives_the_operation_that_it_takes_back() {
    let bench = Bench::new();
    let mut terms = onceward::Terms::default();
    terms.keep_results_for(90 * 86_400_000);
    terms.tombstone_ms = 400 * 86_400_000;
    let paid = bench
        .ledger
        .run(payment("order-1").terms(terms), |attempt| Ok(attempt.dispatch()?.created(&"ch_1")))
        .unwrap();
    let undoing = bench.ledger.undo().begin(&paid.record().id, Operation::undo_of(paid.record())).unwrap();
    assert_eq!(undoing.intent.terms.retention_ms, 90 * 86_400_000);
    assert_eq!(undoing.intent.terms.tombstone_ms, 400 * 86_400_000);
}

fn payment(key: &str) -> Operation {
    Operation::new("pay").key(key).undo(Some(refund()))
}

fn pay(bench: &Bench, key: &str) -> Arc<Record> {
    let paid = bench.ledger.run(payment(key), |attempt| Ok(attempt.dispatch()?.created(&"ch_1"))).unwrap();
    Arc::clone(paid.record())
}

fn retry(bench: &Bench, key: &str) -> Error {
    bench.ledger.run(payment(key), |_| unreachable!("it is done")).unwrap_err()
}

fn refund_once(bench: &Bench, undoing: &Undoing) -> Result<onceward::Receipt, Error> {
    bench.ledger.run_call(bench.ledger.call(undoing.intent.clone()), |attempt| {
        Ok(attempt.dispatch()?.created(&"re_1"))
    })
}

fn refund() -> Compensation {
    Compensation { runs: CompensationKind::Command, text: "refund {data.id}".to_owned() }
}

fn undo_id(record: &Record) -> OperationId {
    Operation::undo_of(record).intent().unwrap().id
}

fn evidence(word: &str) -> Option<UndoEvidence> {
    match word {
        "pending" => Some(UndoEvidence::Pending),
        "word" => Some(UndoEvidence::Compensation),
        "probe" => Some(UndoEvidence::Probe),
        _ => None,
    }
}

fn marked(record: &Record, evidence: UndoEvidence) -> Undone {
    Undone { by: undo_id(record), at_ms: NOW_MS, evidence, settled_by: None, round: 1 }
}

#[test]
fn each_kind_of_compensation_says_who_runs_it() {
    let id = OperationId::of("s", "n", "k");
    let program = onceward::ProgramUndo { program: "my shop".to_owned(), world: "w".to_owned() };
    let of = |runs| Compensation { runs, text: String::new() }.taken_back_by(&id);
    for (said, part) in [
        (program.compensation().taken_back_by(&id), format!("`'my shop' undo {id}`")),
        (of(CompensationKind::Program), "with its command `undo`".to_owned()),
        (of(CompensationKind::Command), format!("`once undo {id}`")),
        (of(CompensationKind::Code), format!("ledger.compensate(\"{id}\")")),
        (of(CompensationKind::Tool), format!("`once undo {id} -- SERVER`")),
        (of(CompensationKind::Request), format!("`Once-Undo: {id}`")),
    ] {
        assert!(said.contains(&part), "{said}");
    }
}
