//! What the tests of the server-based stores share: simple calls, and a server clock that is
//! set while the ledger is in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use onceward::{
    Begun, Blocking, Class, Code, Error, Filter, Ledger, Operation, OperationId, ProbeAnswer, Receipt, State,
    Terms,
};
use onceward_store::{Backend, Verdict};
pub(crate) use onceward_testkit::eventually;
use tokio::sync::Notify;

const HOUR_S: i64 = 3_600;

/// The lease of the owners that are renewed, or found dead, within the test.
const SHORT_MS: u64 = 1_000;
/// The lease of the owner that is called beside, and all quarantines: longer than the test takes on any machine, and
/// shorter than most steps of the clock.
const LONG_MS: u64 = 600_000;
/// How far two stores may differ about the time.
const SLACK_MS: i64 = 10_000;

/// The steps of the server's clock, in seconds from the real time, one series per ledger.
pub(crate) const CLOCK_STEPS_S: [&[i64]; 5] =
    [&[20 * 60], &[HOUR_S, 2 * HOUR_S], &[25 * HOUR_S], &[32 * 24 * HOUR_S], &[-HOUR_S]];

/// The URL with a time limit that a busy machine does not reach, unless it has one.
pub(crate) fn patient(url: &str) -> String {
    let mark = if url.contains('?') { '&' } else { '?' };
    if url.contains("timeout=") { url.to_owned() } else { format!("{url}{mark}timeout=60s") }
}

/// Runs an operation with that key.
pub(crate) fn pay(ledger: &Blocking, key: &str) -> Result<Receipt, Error> {
    ledger.run(Operation::new("pay").key(key), |attempt| Ok(attempt.dispatch()?.created(&key)))
}

fn terms(class: Class, lease_ms: u64) -> Terms {
    Terms { class, lease_ms, wait_ms: 1, quarantine_ms: LONG_MS, ..Terms::default() }
}

fn probed(key: &str, lease_ms: u64) -> Operation {
    Operation::new("pay").key(key).terms(terms(Class::Probed, lease_ms)).with_probe()
}

/// Without a given key, so that the operation may run again after its result has expired.
fn derived() -> Operation {
    Operation::new("pay").input(serde_json::json!({"amount": 100}))
}

/// Calls an operation whose attempt waits for this. Its probe always answers that there was no effect.
fn call(
    store: &Arc<dyn Backend>,
    operation: Operation,
    effects: &AtomicUsize,
    until: &Notify,
) -> Result<Receipt, Error> {
    let ledger = Ledger::new(Arc::<dyn Backend>::clone(store));
    let call = ledger.call(ledger.intent(operation)?);
    let call = call.probe(|_| std::future::ready(ProbeAnswer::No));
    pollster::block_on(call.run(|attempt| async move {
        let dispatched = attempt.dispatch()?;
        until.notified().await;
        effects.fetch_add(1, Ordering::SeqCst);
        Ok(dispatched.created(&1))
    }))
}

/// What an attempt waits for that does not wait.
fn at_once() -> Notify {
    let released = Notify::new();
    released.notify_one();
    released
}

/// Begins an operation that is never finished and whose lease is never renewed.
fn die(store: &Arc<dyn Backend>, key: &str) -> OperationId {
    let ledger = Ledger::new(Arc::<dyn Backend>::clone(store));
    let operation = Operation::new("pay").key(key).terms(terms(Class::Once, SHORT_MS));
    match pollster::block_on(ledger.begin(&ledger.intent(operation).unwrap())).unwrap() {
        Begun::Execute(claim) => claim.record().id.clone(),
        Begun::Replay(_) => panic!("it is replayed"),
    }
}

/// Sets the server's clock while two owners are alive, after an operation was done, and after a third owner died.
/// Stores that had the ledger open and stores opened later repeat all calls: there is no second effect, leases are
/// renewed by the ledger's time, and the dead owner is detected.
pub(crate) fn set_clock_in_use(
    set_clock: impl Fn(i64),
    open: impl Fn() -> Arc<dyn Backend>,
    steps_s: &[i64],
) {
    set_clock(0);
    let (owner, other) = (open(), open());
    let (alive, renewed, done) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    call(&owner, derived(), &done, &at_once()).unwrap();
    let dead = die(&owner, "dead");
    let gates = [Notify::new(), Notify::new()];
    let renewed_id = Operation::new("pay").key("renewed").intent().unwrap().id;
    std::thread::scope(|scope| {
        let paying = scope.spawn(|| call(&owner, probed("alive", LONG_MS), &alive, &gates[0]).unwrap());
        let renewing =
            scope.spawn(|| call(&owner, probed("renewed", SHORT_MS), &renewed, &gates[1]).unwrap());
        eventually("all run", || {
            pollster::block_on(other.counts(&Filter::default())).unwrap().get(&State::Running) == Some(&3)
        });
        for step_s in steps_s {
            set_clock(*step_s);
            let later = open();
            let found = || pollster::block_on(later.load(&renewed_id)).unwrap().unwrap();
            let before = found().version;
            // Twice: the first renewal may have been under way.
            eventually("its lease is renewed under the changed clock", || found().version > before + 1);
            let lease_until_ms = found().detail.owner.unwrap().lease_until_ms;
            let most_ms = later.clock().now_ms() + i64::try_from(SHORT_MS).unwrap() + SLACK_MS;
            assert!(lease_until_ms < most_ms, "{step_s}: the lease ends at {lease_until_ms}");
            for store in [&other, &later] {
                assert!(call(store, derived(), &done, &at_once()).unwrap().replayed(), "{step_s}");
                pollster::block_on(Ledger::new(Arc::<dyn Backend>::clone(store)).admin().sweep(|_| {}))
                    .unwrap();
                let refused = call(store, probed("alive", LONG_MS), &alive, &at_once()).unwrap_err();
                assert_eq!(refused.code(), Code::InProgress, "{step_s}: {refused}");
            }
            let findings = later.health().unwrap();
            let clock = findings.iter().find(|finding| finding.what == "clock").unwrap();
            assert_eq!(clock.verdict, Verdict::Look, "{step_s}: {}", clock.found);
        }
        let later = open();
        let ledger = Ledger::new(Arc::<dyn Backend>::clone(&later));
        eventually("the dead owner is detected", || {
            pollster::block_on(ledger.find(&dead)).unwrap().1 == State::InDoubt
        });
        for store in [&other, &later] {
            let refused = call(store, probed("alive", LONG_MS), &alive, &at_once()).unwrap_err();
            assert_eq!(refused.code(), Code::InProgress, "{steps_s:?}: {refused}");
        }
        gates.iter().for_each(Notify::notify_one);
        assert!(!paying.join().unwrap().replayed());
        assert!(!renewing.join().unwrap().replayed());
        assert!(call(&later, derived(), &done, &at_once()).unwrap().replayed(), "{steps_s:?}");
    });
    let effects = (alive.into_inner(), renewed.into_inner(), done.into_inner());
    assert_eq!(effects, (1, 1, 1), "{steps_s:?}");
}
