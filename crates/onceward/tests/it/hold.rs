//! Held operations: every state and every event, and the answers to their callers.

use crate::common::ended::{STATES, ended_record, sound};
use crate::common::table::Table;
use crate::common::{Bench, NOW_MS, combinations, id, intent, pay, record, terms};
use onceward::transition::{self, Cancelling};
use onceward::{
    Cancelled, Clock, Code, Decision, Ending, Evidence, Failure, Happened, Held, HeldBy, Hold, KeyOrigin,
    Liveness, MAX_REQUEST, OnExpired, Operation, Outcome, Owner, Ran, Record, State, Terms, Word, decide,
};

const MINUTES_10: i64 = 600_000;

fn hold_for_10m() -> Terms {
    terms(|terms| terms.hold = Hold::For(600_000))
}

fn held_pay() -> Operation {
    pay().terms(hold_for_10m()).held("run", HeldBy::Caller, Some("{\"command\":[\"pay\"]}".to_owned()))
}

fn hold(until_ms: Option<i64>, released: bool) -> Option<Box<Held>> {
    Some(Box::new(Held {
        until_ms,
        surface: "run".to_owned(),
        by: HeldBy::Policy,
        released: released.then(|| Word::person("alice")),
        request: Some("{}".to_owned()),
        caller_only: false,
    }))
}

const BEGIN: &str = "
    found     held                   inputs  terms         => decision
    staged    *                      other   *             => refuse
    staged    approve|later          same    *             => say that it is held
    staged    due|released           same    *             => start
    staged    none                   same    *             => start
    nothing   none                   *       no            => start
    nothing   none                   *       10m|approve   => hold
    expired   none                   same    no            => start
    expired   none                   same    10m|approve   => hold
    expired   none                   other   *             => refuse
    failed    approve|later          same    *             => hold
    failed    none|due|released      same    *             => start
    failed    *                      other   *             => refuse
";

#[test]
fn what_a_call_gets() {
    let mut table = Table::read(BEGIN);
    let lists: [&[&str]; 4] = [
        &["staged", "nothing", "expired", "failed"],
        &["none", "approve", "later", "due", "released"],
        &["same", "other"],
        &["no", "10m", "approve"],
    ];
    for words in combinations(lists) {
        let [found, held, inputs, said] = words;
        if matches!(found, "nothing" | "expired") && held != "none" {
            continue;
        }
        let mut intent = intent(KeyOrigin::Given);
        intent.terms.hold = said.parse().expect("a hold");
        intent.terms.on_expired = OnExpired::Rerun;
        let record = (found != "nothing").then(|| {
            let mut record = record(found.parse().expect("a state"), &intent);
            record.detail.held = match held {
                "none" => None,
                "approve" => hold(None, false),
                "later" => hold(Some(NOW_MS + 1), false),
                "due" => hold(Some(NOW_MS), false),
                _ => hold(None, true),
            };
            record
        });
        if inputs == "other" {
            intent.fingerprint = onceward::Fingerprint::of("other");
        }
        let seen = match decide::begin(record.as_ref(), &intent, Liveness::Gone, NOW_MS) {
            Decision::Start { .. } => "start",
            Decision::Hold => "hold",
            Decision::Held => "say that it is held",
            Decision::Refuse(_) => "refuse",
            Decision::Replay
            | Decision::ReplayFailure
            | Decision::Wait
            | Decision::Probe
            | Decision::Doubt => "something else",
        };
        assert_eq!(seen, table.look_up(&words), "{words:?}");
    }
    table.assert_all_rows_fitted();
}

const RELEASE: &str = "
    found   held            => becomes
    staged  approve|later   => released
    staged  due|released    => unchanged
    staged  none            => refused
    failed  approve|later   => released
    failed  due|released    => unchanged
    *       *               => refused
";

#[test]
fn what_a_release_does() {
    let mut table = Table::read(RELEASE);
    for words in combinations([STATES, &["none", "approve", "later", "due", "released"]]) {
        let [found, held] = words;
        let mut before = ended_record(found, "attempt", "none");
        before.detail.held = match held {
            "none" => None,
            "approve" => hold(None, false),
            "later" => hold(Some(NOW_MS + 1), false),
            "due" => hold(Some(NOW_MS), false),
            _ => hold(None, true),
        };
        let seen = match transition::release(&before, &Word::person("bob"), NOW_MS) {
            None => "refused",
            Some(after) if after.version == before.version => "unchanged",
            Some(after) => {
                sound(&before, &after);
                assert_eq!((after.state, after.due_ms), (before.state, before.due_ms));
                let held = after.detail.held.as_ref().expect("it is held");
                let word = held.released.as_ref().expect("it is released");
                assert_eq!((word.at_ms, word.name.as_str()), (NOW_MS, "bob"));
                assert!(held.may_start(NOW_MS) && held.request.is_some());
                "released"
            }
        };
        assert_eq!(seen, table.look_up(&words), "{words:?}");
    }
    table.assert_all_rows_fitted();
}

/// The request is the one place where inputs are stored. It goes with the write that says that it was, or never will be
/// sent. Until then it may start again, and must be the same.
#[test]
fn which_events_delete_the_stored_request() {
    let owner = Owner { token: 9, lease_until_ms: NOW_MS + 1_000 };
    let mut staged = transition::stage(&intent(KeyOrigin::Given), NOW_MS - 5);
    staged.detail.held = hold(Some(NOW_MS), false);
    let running = transition::start(Some(&staged), &intent(KeyOrigin::Given), owner, NOW_MS);
    let ended = |ending: Ending| transition::finish(&running, 1, ending, NOW_MS);
    let because = || Outcome::because(None);
    let Cancelling::Cancelled(cancelled) =
        transition::cancel(&staged, Liveness::Gone, &Word::person("ada"), NOW_MS)
    else {
        panic!("it is not running");
    };
    let failed = ended(Ending::Failed(Evidence::NotSent, because()));
    let again = transition::start(Some(&failed), &intent(KeyOrigin::Given), owner, NOW_MS);
    let stored = |record: &Record| record.detail.held.as_ref().is_some_and(|held| held.request.is_some());
    for (what, record, keeps) in [
        ("held", &staged, true),
        (
            "released",
            &transition::release(&staged, &Word::person("bob"), NOW_MS - 1).expect("it is held"),
            true,
        ),
        ("running: a crash before the dispatch must not lose it", &running, true),
        ("failed: it was not sent", &failed, true),
        ("the next attempt", &again, true),
        ("done", &ended(Ending::Done(because())), false),
        ("in doubt: it may have had no effect", &ended(Ending::InDoubt(because())), true),
        ("cancelled", &cancelled, false),
        ("owner gone", &transition::doubt(&running, Liveness::Gone, NOW_MS), true),
        (
            "owner gone before the dispatch",
            &transition::doubt(&running, Liveness::NeverDispatched, NOW_MS),
            true,
        ),
    ] {
        assert_eq!(stored(record), keeps, "{what}");
        assert!(record.detail.held.is_some(), "{what}: that it was held stays known");
    }
    let over = Record { due_ms: Some(NOW_MS), ..failed };
    let transition::Ageing::Tombstone(tombstone) = transition::age(&over, NOW_MS) else {
        panic!("it is due")
    };
    assert_eq!(tombstone.detail.held, None);
}

#[test]
fn a_held_call_says_so_until_its_time_and_then_runs_once() {
    let bench = Bench::new();
    for _ in 0..3 {
        let error = bench.ask(&held_pay()).expect_err("it is held");
        assert_eq!((error.code(), error.happened(), error.ran()), (Code::Held, Some(Happened::No), Ran::No));
        assert_eq!(error.to_string(), "held until 1970-01-01T00:26:40Z; nothing was sent");
    }
    assert_eq!(bench.records(), 1, "a repeated call is not a second hold");
    assert_eq!(bench.refused(&held_pay().input(serde_json::json!({"amount": 2}))), Code::KeyReused);
    bench.clock.advance(MINUTES_10 - 1);
    assert_eq!(bench.refused(&held_pay()), Code::Held);
    bench.clock.advance(1);
    assert_eq!(bench.run(&held_pay()).expect("its time has come").record().attempt, 1);
    assert!(bench.ask(&held_pay()).expect("it is done").replayed());
}

#[test]
fn a_release_lets_it_start_and_a_cancel_ends_it_for_good() {
    let bench = Bench::new();
    let approve = || pay().terms(terms(|terms| terms.hold = Hold::Approve));
    assert_eq!(bench.refused(&approve()), Code::Held);
    bench.clock.advance(1_000 * MINUTES_10);
    assert_eq!(bench.refused(&approve()), Code::Held, "only a person releases it");
    let released = bench.ledger.admin().release(&id(&pay()), &Word::person("bob")).expect("it is held");
    assert_eq!(released.state, State::Staged, "a release starts nothing");
    let again = bench
        .ledger
        .admin()
        .release(&id(&pay()), &Word::person("alice"))
        .expect("releasing twice is releasing");
    assert_eq!(again.version, released.version);
    bench.run(&approve()).expect("it was released");
    assert_eq!(
        bench.ledger.admin().release(&id(&pay()), &Word::person("bob")).expect_err("it ran").code(),
        Code::WrongState
    );

    let bench = Bench::new();
    bench.refused(&held_pay());
    bench.ledger.admin().release(&id(&pay()), &Word::person("bob")).expect("it is held");
    let cancelled =
        bench.ledger.admin().cancel(&id(&pay()), &Word::person("ada")).expect("it has not started");
    assert!(matches!(cancelled, Cancelled::Certain(_)));
    bench.clock.advance(MINUTES_10);
    assert_eq!(bench.refused(&held_pay()), Code::Cancelled);
    assert_eq!(
        bench.ledger.admin().release(&id(&pay()), &Word::person("bob")).expect_err("too late").code(),
        Code::WrongState
    );
}

/// Another process executes it, with nothing but the record.
#[test]
fn the_record_alone_is_enough_to_execute_it() {
    let bench = Bench::new();
    bench.refused(&held_pay());
    let record = bench.ledger.admin().release(&id(&pay()), &Word::person("bob")).expect("it is held");
    assert_eq!(record.held_request(), Some("{\"command\":[\"pay\"]}"));
    let intent = bench.ledger.admin().held_intent(&record, Terms::default());
    let call = bench.ledger.call(intent.clone());
    let failed = bench.ledger.run_call(call, |_| Err(Failure::no_effect(Evidence::NotSent, "no network")));
    assert_eq!(failed.expect_err("it failed").code(), Code::Failed);
    let record = bench
        .ledger
        .admin()
        .release(&id(&pay()), &Word::person("bob"))
        .expect("it was not sent, so it can be released again");
    assert!(record.held_request().is_some());
    let call = bench.ledger.call(intent);
    let receipt =
        bench.ledger.run_call(call, |attempt| Ok(attempt.dispatch()?.created(&1))).expect("it runs");
    assert_eq!((receipt.record().attempt, receipt.record().held_request()), (2, None));
    assert!(bench.ask(&held_pay()).expect("its caller gets the result").replayed());
}

#[test]
fn held_operations_are_listed_oldest_first() {
    let bench = Bench::new();
    for number in 0..3 {
        bench.refused(&held_pay().key(format!("order-{number}")).scope("a"));
        bench.clock.advance(1);
    }
    bench.refused(&held_pay().scope("b"));
    bench.ledger.attempts().stage(&pay().key("plain").intent().expect("an intent")).expect("it is staged");
    let keys = |scope: Option<&str>| -> Vec<String> {
        bench.ledger.admin().held(scope).expect("a list").into_iter().map(|record| record.key.text).collect()
    };
    assert_eq!(keys(Some("a")), ["order-0", "order-1", "order-2"]);
    assert_eq!(keys(None).len(), 4, "what is staged without a hold is not held");
}

#[test]
fn a_request_that_is_too_large_is_refused_before_anything_is_written() {
    let bench = Bench::new();
    let huge = held_pay().held("run", HeldBy::Caller, Some("x".repeat(MAX_REQUEST + 1)));
    assert_eq!(bench.ledger.intent(huge).expect_err("it is too large").code(), Code::InvalidInput);
    assert_eq!(bench.records(), 0);
}

#[test]
fn a_read_is_never_held() {
    let bench = Bench::new();
    let read = pay().terms(terms(|terms| (terms.class, terms.hold) = (onceward::Class::Read, Hold::Approve)));
    bench.run(&read).expect("it changes nothing, so there is nothing to hold back");
    assert_eq!(bench.records(), 0);
}

#[test]
fn a_record_that_is_held_passes_the_check_of_an_import() {
    let bench = Bench::new();
    bench.refused(&held_pay());
    let record = bench.found(&held_pay());
    record.check().expect("this program wrote it");
    let text = serde_json::to_string(&*record).expect("JSON");
    let read: Record = serde_json::from_str(&text).expect("a record");
    assert_eq!(read.detail, record.detail);
    // An occurrence after an expired one is held with the attempts of the earlier one.
    let bench = Bench::new();
    let rerun = |hold| pay().terms(terms(|terms| (terms.hold, terms.on_expired) = (hold, OnExpired::Rerun)));
    bench.run(&rerun(Hold::No)).expect("it runs");
    bench.clock.advance(100 * 24 * 3_600_000);
    assert_eq!(bench.refused(&rerun(Hold::Approve)), Code::Held);
    let record = bench.found(&pay());
    assert_eq!((record.state, record.created_ms), (State::Staged, bench.clock.now_ms()));
    record.check().expect("this program wrote it");
    bench.ledger.admin().release(&id(&pay()), &Word::person("bob")).expect("it is held");
    assert_eq!(bench.run(&rerun(Hold::Approve)).expect("it was released").record().attempt, 2);
}

#[test]
fn nothing_is_held_in_a_stopped_scope_and_a_stop_cancels_what_is_held() {
    let bench = Bench::new();
    let held = |key: &str| held_pay().scope("run").key(key);
    assert_eq!(bench.refused(&held("a")), Code::Held);
    bench.ledger.scopes().stop("run", &Word::person("ada")).expect("a barrier");
    assert_eq!(bench.state_of(&held("a")), State::Cancelled);
    let other = held("b").input(serde_json::json!({"amount": 2}));
    assert_eq!(bench.refused(&other), Code::Stopped, "it would start when the barrier is lifted");
    assert_eq!(bench.refused(&held("c")), Code::Cancelled, "an equal call gets the answer of the first");
    assert_eq!(bench.records(), 1);
}
