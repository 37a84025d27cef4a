//! Running, replaying and refusing: what a caller sees of a ledger.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{Bench, GoingClock, NOW_MS, id, once, pay, terms};
use onceward::{
    Answer, Class, Clock, Code, Decision, Dispatched, Done, Effect, Error, Failure, Happened, Ledger,
    MAX_RESULT, MemoryStore, Operation, Ran, Refusal, State, Store,
};

fn both() -> [Bench; 2] {
    [Bench::new(), Bench::blind()]
}

#[test]
fn a_result_is_replayed_byte_for_byte() {
    for bench in both() {
        let text = "{ \"b\": 1.0,\"a\":\"\\u00e9\" }";
        let first = bench.ledger.run(pay(), |attempt| {
            let json = serde_json::value::RawValue::from_string(text.to_owned())?;
            Ok(attempt.dispatch()?.done_with_json(Effect::Deleted, json).body([0, 255, 10]))
        });
        let (first, retry) = (first.expect("it runs"), bench.ask(&pay()).expect("it is replayed"));
        assert_eq!(
            (first.replayed(), first.effect(), first.original_effect()),
            (false, Effect::Deleted, Effect::Deleted)
        );
        assert_eq!(
            (retry.replayed(), retry.effect(), retry.original_effect()),
            (true, Effect::Noop, Effect::Deleted)
        );
        assert_eq!((retry.data(), retry.body()), (Some(text), Some([0, 255, 10].as_slice())));
        assert_eq!((first.data(), first.body()), (retry.data(), retry.body()));
    }
}

#[test]
fn every_word_of_success_has_its_effect() {
    let bench = Bench::new();
    type Word = fn(Dispatched) -> Done;
    let cases: [(Effect, Word); 4] = [
        (Effect::Created, |sent| sent.created(&1)),
        (Effect::Updated, |sent| sent.updated(&1)),
        (Effect::Deleted, |sent| sent.deleted(&1)),
        (Effect::Noop, |_| Done::noop("it was so", &1)),
    ];
    for (effect, done) in cases {
        let receipt = bench
            .ledger
            .run(pay().key(effect.as_str()), |attempt| Ok(done(attempt.dispatch()?)))
            .expect("it runs");
        assert_eq!((receipt.effect(), receipt.data()), (effect, Some("1")));
    }
    let noop = bench.ask(&pay().key("noop")).expect("it is replayed");
    assert_eq!(noop.record().reason(), Some("it was so"));
}

#[test]
fn a_replay_is_tallied() {
    let bench = Bench::new();
    bench.run(&pay()).expect("it runs");
    assert_eq!(bench.found(&pay()).replays, 0);
    for _ in 0..3 {
        bench.ask(&pay()).expect("it is replayed");
    }
    assert_eq!(bench.found(&pay()).replays, 3);
}

#[test]
fn a_reused_key_is_refused_in_every_state_and_names_fields_without_values() {
    let other =
        pay().input(serde_json::json!({"customer": "c1", "amount": 98_765, "note": {"secret": "s3cret"}}));
    let check = |bench: &Bench| {
        let error = bench.ask(&other).expect_err("it is refused");
        let text = serde_json::to_string(&Answer::failed(&error, &once())).expect("JSON");
        let Error::KeyReused { fields, .. } = error else { panic!("{error}") };
        assert_eq!(fields, ["/amount", "/note/secret"]);
        assert!(text.contains("/amount, /note/secret differ"), "{text}");
        assert!(!text.contains("98765") && !text.contains("s3cret"), "a value is revealed: {text}");
    };
    let bench = Bench::new();
    bench.run(&pay()).expect("it runs");
    check(&bench);
    let bench = Bench::new();
    let claim = bench.begin(&pay());
    check(&bench);
    drop(claim);
    check(&bench);
    let error = bench.ask(&other).expect_err("it is refused");
    assert_eq!(error.happened(), Some(Happened::Unknown));
    assert!(error.to_string().contains("which is in doubt"), "the doubt is not hidden: {error}");
}

#[test]
fn a_volatile_field_may_differ() {
    let bench = Bench::new();
    let traced =
        |trace: &str| pay().input(serde_json::json!({"amount": 1, "trace": trace})).volatile(["trace"]);
    bench.run(&traced("a")).expect("it runs");
    assert!(bench.ask(&traced("b")).expect("it is replayed").replayed());
}

#[test]
fn the_same_action_again_needs_another_occurrence() {
    for operation in [pay(), Operation::new("mail").input(serde_json::json!({"to": "a@b"}))] {
        let bench = Bench::new();
        bench.run(&operation).expect("it runs");
        assert!(bench.ask(&operation.clone().occurrence("1")).expect("the first").replayed());
        for label in ["2", "monday"] {
            let again = operation.clone().occurrence(label);
            assert!(!bench.run(&again).expect("it runs").replayed(), "{label}");
            assert!(bench.ask(&again).expect("it is replayed").replayed(), "{label}");
        }
        assert_eq!(bench.records(), 3);
    }
}

#[test]
fn scopes_never_see_each_other() {
    let bench = Bench::new();
    bench.run(&pay()).expect("it runs");
    assert!(!bench.run(&pay().scope("other")).expect("it runs").replayed());
}

#[test]
fn invalid_input_is_refused_with_every_problem_and_nothing_runs() {
    let bench = Bench::new();
    let wrong = Operation::new("").key("a b").input_json("{").terms(terms(|terms| terms.max_attempts = 0));
    let answer = Answer::failed(&bench.ask(&wrong).expect_err("it is refused"), &once());
    let error = answer.error.expect("an error");
    assert_eq!((&*error.code, error.problems.len(), answer.effect), ("INVALID_INPUT", 4, "noop"));
    let keyless = Operation::new("x").terms(terms(|terms| terms.keys = onceward::KeyPolicy::Keyed));
    assert_eq!(bench.refused(&keyless), Code::KeyMissing);
    assert_eq!(bench.records(), 0);
}

/// Many threads call at once, on clocks that advance on their own.
#[test]
fn concurrent_duplicates_execute_once_and_the_others_replay() {
    let stores: [Arc<dyn Store>; 2] =
        [Arc::new(MemoryStore::new(GoingClock::new())), Arc::new(MemoryStore::blind(GoingClock::new()))];
    for store in stores {
        let ledger = Ledger::new(Arc::clone(&store)).blocking();
        let executed = AtomicUsize::new(0);
        let gate = std::sync::Barrier::new(16);
        let run = || {
            gate.wait();
            ledger.run(pay(), |attempt| {
                executed.fetch_add(1, Ordering::SeqCst);
                ledger.wait_for(store.clock().sleep(3));
                Ok(attempt.dispatch()?.created(&"receipt"))
            })
        };
        let receipts: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16).map(|_| scope.spawn(run)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic").expect("an answer")).collect()
        });
        assert_eq!(executed.load(Ordering::SeqCst), 1);
        assert_eq!(receipts.iter().filter(|receipt| receipt.replayed()).count(), 15);
        assert!(receipts.iter().all(|receipt| receipt.data() == Some("\"receipt\"")));
    }
}

#[test]
fn a_caller_waits_until_its_deadline_and_is_refused() {
    for bench in both() {
        let operation = pay().terms(terms(|terms| (terms.wait_ms, terms.lease_ms) = (700, 60_000)));
        let _claim = bench.begin(&operation);
        let before_ms = bench.clock.now_ms();
        let error = bench.ask(&operation).expect_err("it is refused");
        assert_eq!(bench.clock.now_ms() - before_ms, 700, "it waited to its deadline and no longer");
        assert_eq!((error.code(), error.retryable()), (Code::InProgress, false));
        assert_eq!((error.happened(), error.ran()), (Some(Happened::Unknown), Ran::No));
    }
}

#[test]
fn a_result_that_is_too_large_is_done_and_unavailable() {
    let bench = Bench::new();
    let first = bench
        .ledger
        .run(pay(), |attempt| Ok(attempt.dispatch()?.created(&"x".repeat(MAX_RESULT))))
        .expect("it is done");
    let answer = Answer::of(&bench.ask(&pay()), &once(), NOW_MS);
    assert_eq!((first.data(), answer.ok, answer.data.is_none()), (None, true, true));
    assert!(answer.warnings[0].contains("result is not available"), "{:?}", answer.warnings);
}

#[test]
fn a_read_passes_through_and_is_not_recorded() {
    let bench = Bench::new();
    let read = pay().class(Class::Read);
    for _ in 0..2 {
        assert!(!bench.run(&read).expect("it runs").replayed());
    }
    let error = bench.ledger.run(read, |_| Err(Failure::in_doubt("reset"))).expect_err("it fails");
    assert_eq!((error.code(), error.happened()), (Code::Failed, Some(Happened::No)), "a read has no effect");
    assert_eq!(bench.records(), 0);
}

#[test]
fn a_plan_writes_nothing() {
    let bench = Bench::new();
    let intent = pay().intent().expect("a valid operation");
    let plan = || bench.wait(bench.ledger.ledger().plan(&intent)).expect("a plan");
    assert_eq!(plan().decision, Decision::Start { attempt: 1 });
    assert_eq!(bench.records(), 0);
    drop(bench.begin(&pay()));
    let version = bench.found(&pay()).version;
    assert_eq!(plan().decision, Decision::Refuse(Refusal::InDoubt), "what the call gets, not how");
    assert_eq!(plan().record.expect("a record").state, State::InDoubt, "as the call would leave it");
    assert_eq!((bench.found(&pay()).version, bench.found(&pay()).state), (version, State::Running));
}

#[test]
fn an_attempt_knows_its_number_and_its_downstream_key() {
    let bench = Bench::new();
    let keyed = pay().class(Class::Keyed).scope("tenant");
    let mut seen = Vec::new();
    for _ in 0..2 {
        let result = bench.ledger.run(keyed.clone(), |attempt| {
            assert_eq!((attempt.key(), attempt.scope()), ("order-17", "tenant"));
            let written =
                bench.found(&keyed).detail.downstream.clone().expect("it is written before the call");
            assert_eq!(written.key, attempt.downstream_key());
            seen.push((attempt.number(), attempt.downstream_key().to_owned()));
            Err(Failure::in_doubt("reset"))
        });
        assert_eq!(result.expect_err("it is in doubt").code(), Code::InDoubt);
    }
    let key = id(&keyed).to_string();
    assert_eq!(seen, [(1, key.clone()), (2, key)], "the same key for every attempt");
    bench.clock.advance(24 * 60 * 60 * 1_000);
    assert_eq!(bench.refused(&keyed), Code::InDoubt, "the downstream may have forgotten it");
}
