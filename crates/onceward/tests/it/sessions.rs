//! Scopes, names and expiry: who chose the scope or name decides what a key means and how long it lasts.

use crate::common::{Bench, terms};
use onceward::{Code, Error, Evidence, Failure, Happened, OnExpired, Operation, State};

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

fn mail() -> Operation {
    Operation::new("mail").input(serde_json::json!({"to": "a@b"}))
}

fn sweep(bench: &Bench) {
    bench.wait(bench.ledger.ledger().admin().sweep(|_| ())).expect("it sweeps");
}

#[test]
fn results_of_a_session_are_kept_for_thirty_days() {
    for (operation, days) in [
        (mail(), 1),
        (mail().host_scope("conversation-7"), 1),
        (mail().scope("default"), 1),
        (mail().scope("run-7"), 30),
        (mail().scope("run-7").key("k"), 30),
        (mail().scope("run-7").terms(terms(|terms| terms.keep_results_for(1_000))), 0),
    ] {
        let bench = Bench::new();
        bench.run(&operation).expect("it runs");
        bench.clock.advance((days * DAY_MS).max(1_000) - 1);
        assert!(bench.ask(&operation).expect("the last millisecond").replayed(), "{days} days");
        bench.clock.advance(1);
        assert_eq!(bench.state_of(&operation), State::Expired, "{days} days");
    }
}

/// A run that is resumed after its results have expired repeats nothing on its own.
#[test]
fn an_expired_key_of_a_session_is_refused_and_says_what_happened() {
    for swept in [false, true] {
        let bench = Bench::new();
        let done = mail().scope("run-7");
        let failed = mail().scope("run-8");
        bench.run(&done).expect("it runs");
        bench
            .ledger
            .run(failed.clone(), |_| Err(Failure::no_effect(Evidence::NotSent, "declined")))
            .expect_err("it fails");
        bench.clock.advance(30 * DAY_MS);
        if swept {
            sweep(&bench);
        }
        for (operation, happened) in [(&done, Happened::Yes), (&failed, Happened::No)] {
            let error = bench.ask(operation).expect_err("it has expired");
            assert_eq!(
                (error.code(), error.happened()),
                (Code::KeyExpired, Some(happened)),
                "swept: {swept}"
            );
        }
    }
}

#[test]
fn an_expired_derived_key_in_the_default_scope_starts_the_next_occurrence() {
    for operation in [mail(), mail().host_scope("conversation-7")] {
        for swept in [false, true] {
            let bench = Bench::new();
            bench.run(&operation).expect("it runs");
            bench.clock.advance(DAY_MS);
            if swept {
                sweep(&bench);
            }
            let again = bench.run(&operation).expect("it runs again");
            assert_eq!((again.replayed(), again.record().detail.ended), (false, None), "swept: {swept}");
        }
    }
}

#[test]
fn a_tombstone_keeps_how_it_ended_and_an_old_one_does_not_know() {
    let bench = Bench::new();
    let given = mail().key("k");
    bench.run(&given).expect("it runs");
    bench.clock.advance(DAY_MS);
    sweep(&bench);
    let tombstone = bench.found(&given);
    assert_eq!((tombstone.detail.ended, tombstone.happened()), (Some(State::Done), Happened::Yes));
    let mut old = onceward::Record::clone(&tombstone);
    old.detail.ended = None;
    assert_eq!(old.happened(), Happened::Unknown);
    let rerun = given.terms(terms(|terms| terms.on_expired = OnExpired::Rerun));
    assert!(!bench.run(&rerun).expect("by the caller's say-so").replayed());
}

fn command(program: &str, argument: &str) -> Operation {
    Operation::unnamed(program).input(serde_json::json!({"argv": [program, argument]}))
}

#[test]
fn beside_a_given_key_a_name_that_no_one_chose_does_not_count() {
    let bench = Bench::new();
    bench.run(&command("./pay.sh", "1").key("order-17")).expect("it runs");
    assert!(bench.ask(&command("./pay.sh", "1").key("order-17")).expect("a retry").replayed());
    for other in [command("sh", "./pay.sh"), command("env", "./pay.sh"), command("./pay.sh", "2")] {
        let error = bench.ask(&other.key("order-17")).expect_err("another command under the same key");
        let Error::KeyReused { fields, .. } = &error else { panic!("{error}") };
        assert!(fields.iter().all(|field| field.starts_with("/argv/")), "{fields:?}");
    }
    // A different scope, a chosen name or a derived key make a different operation.
    for other in [
        command("./pay.sh", "1").key("order-17").scope("other"),
        Operation::new("./pay.sh").input(serde_json::json!({"argv": ["./pay.sh", "1"]})).key("order-17"),
        command("./pay.sh", "1"),
    ] {
        assert!(!bench.run(&other).expect("it runs").replayed());
    }
    assert!(!bench.run(&command("sh", "./pay.sh")).expect("the program counts without a key").replayed());
}
