//! Failures: which are certain, when they are retried, and when retrying stops.

use crate::common::{Bench, NOW_MS, once, pay, terms};
use onceward::{Answer, Clock, Code, Evidence, Failure, Happened, OnFailure, State};

#[test]
fn a_certain_failure_is_tried_again_by_the_next_call() {
    let bench = Bench::new();
    let error = bench
        .ledger
        .run(pay(), |_| Err(Failure::no_effect(Evidence::NotSent, "declined")))
        .expect_err("it fails");
    assert_eq!((error.code(), error.retryable(), error.happened()), (Code::Failed, true, Some(Happened::No)));
    assert_eq!(error.to_string(), "declined");
    let receipt = bench.run(&pay()).expect("it runs");
    assert_eq!((receipt.replayed(), receipt.record().attempt), (false, 2));
    assert_eq!(receipt.record().detail.history[0].reason.as_deref(), Some("declined"));
}

#[test]
fn one_call_tries_again_with_pauses_that_double() {
    for on_failure in [OnFailure::Retry, OnFailure::Replay] {
        let bench = Bench::new();
        let operation =
            pay().terms(terms(|t| (t.retries, t.backoff_ms, t.on_failure) = (3, 200, on_failure)));
        let mut begun_ms = Vec::new();
        let receipt = bench.ledger.run(operation.clone(), |attempt| {
            begun_ms.push(bench.clock.now_ms() - NOW_MS);
            if attempt.number() < 4 {
                Err(Failure::no_effect(Evidence::NotSent, "busy"))
            } else {
                Ok(attempt.dispatch()?.created(&1))
            }
        });
        assert_eq!(receipt.expect("the fourth attempt").record().attempt, 4);
        assert_eq!(begun_ms, [0, 200, 600, 1_400], "{on_failure:?}");
    }
}

#[test]
fn a_pause_between_tries_has_a_limit() {
    let bench = Bench::new();
    let operation = pay().terms(terms(|terms| (terms.retries, terms.backoff_ms) = (3, 50_000)));
    bench
        .ledger
        .run(operation, |_| Err(Failure::no_effect(Evidence::NotSent, "busy")))
        .expect_err("it fails");
    assert_eq!(bench.clock.now_ms() - NOW_MS, 50_000 + 60_000 + 60_000);
}

#[test]
fn doubt_is_never_tried_again_by_the_same_call() {
    let bench = Bench::new();
    let mut tries = 0;
    let operation = pay().terms(terms(|terms| terms.retries = 3));
    let error = bench.ledger.run(operation, |_| {
        tries += 1;
        Err(Failure::in_doubt("reset"))
    });
    assert_eq!((error.expect_err("it is in doubt").code(), tries), (Code::InDoubt, 1));
}

#[test]
fn a_call_that_was_broken_off_does_not_try_again_by_itself() {
    let bench = Bench::new();
    let mut tries = 0;
    let operation = pay().terms(terms(|terms| terms.retries = 3));
    let error = bench.ledger.run(operation.clone(), |_| {
        tries += 1;
        Err(Failure::no_effect(Evidence::NotSent, "interrupted").stopped())
    });
    let error = error.expect_err("it fails");
    assert_eq!((error.code(), error.retryable(), tries), (Code::Failed, true, 1));
    let next = bench.ledger.run(operation, |attempt| Ok(attempt.dispatch()?.created(&1)));
    assert_eq!(next.expect("the next call may").record().attempt, 2);
}

#[test]
fn a_budget_that_is_spent_refuses_and_says_so_before() {
    let bench = Bench::new();
    let operation = pay().terms(terms(|terms| terms.max_attempts = 2));
    let fail = || {
        bench
            .ledger
            .run(operation.clone(), |_| Err(Failure::no_effect(Evidence::NotSent, "busy")))
            .expect_err("it fails")
    };
    assert!(fail().retryable(), "one attempt is left");
    assert!(!fail().retryable(), "none is left");
    let error = bench.ask(&operation).expect_err("it is refused");
    assert_eq!((error.code(), error.happened()), (Code::BudgetExhausted, Some(Happened::No)));
}

#[test]
fn a_failure_is_replayed_where_the_policy_says_so() {
    let bench = Bench::new();
    let operation = pay().terms(terms(|terms| terms.on_failure = OnFailure::Replay));
    let data = serde_json::value::to_raw_value(&"why").ok().map(std::sync::Arc::from);
    let first = bench.ledger.run(operation.clone(), |_| {
        Err(Failure::no_effect(Evidence::NotSent, "declined").with(data.clone(), None))
    });
    first.expect_err("it fails");
    let answer = Answer::failed(&bench.ask(&operation).expect_err("the failure is replayed"), &once());
    let error = answer.error.expect("an error");
    assert_eq!((&*error.code, error.message.as_str(), error.retryable), ("FAILED", "declined", false));
    assert!(answer.operation.expect("an operation").replayed);
    assert_eq!(answer.data.expect("its data").get(), "\"why\"");
}

/// Any other error says nothing about the effect, whether or not the work has dispatched.
#[test]
fn an_error_that_claims_nothing_is_in_doubt() {
    type Say = fn(&onceward::Attempt);
    let cases: [(&str, Say); 2] = [
        ("not dispatched", |_| ()),
        ("dispatched", |attempt| {
            attempt.dispatch().expect("a note");
        }),
    ];
    for (what, say) in cases {
        let bench = Bench::new();
        let result = bench.ledger.run(pay(), |attempt| {
            say(&attempt);
            Err(std::fmt::Error.into())
        });
        assert_eq!(result.expect_err("an error").code(), Code::InDoubt, "{what}");
        assert_eq!(bench.state_of(&pay()), State::InDoubt, "{what}");
    }
    let bench = Bench::new();
    let result = bench.ledger.run(pay(), |_| Err(Failure::timed_out("30 s")));
    assert_eq!(result.expect_err("an error").code(), Code::Timeout);
    assert_eq!(bench.state_of(&pay()), State::InDoubt);
}

#[test]
fn a_call_tries_again_after_a_doubt_only_where_repeating_is_safe() {
    use onceward::Class;
    for (class, attempts) in [(Class::Idempotent, 3), (Class::Keyed, 3), (Class::Once, 1)] {
        let bench = Bench::new();
        let operation = pay().terms(terms(|t| (t.class, t.retries, t.backoff_ms) = (class, 2, 1)));
        let mut begun = 0;
        let result = bench.ledger.run(operation, |attempt| {
            begun += 1;
            let _sent = attempt.dispatch()?;
            Err(Failure::in_doubt("the reply was lost"))
        });
        assert_eq!(result.expect_err("it is in doubt").code(), Code::InDoubt);
        assert_eq!(begun, attempts, "{class}");
    }
}
