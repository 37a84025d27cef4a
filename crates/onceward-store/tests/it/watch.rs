//! What the tests of the server-based stores share: simple calls, and a server clock that is
//! set while the ledger is in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use onceward::{
    Begun, Blocking, Class, Code, Error, Filter, Ledger, Operation, OperationId, ProbeAnswer, Receipt, State,
    Terms,
};
pub(crate) use onceward_harness::eventually;
use onceward_store::{Backend, Verdict};

const HOUR_S: i64 = 3_600;

/// How long an owner may be silent, and how long the live owner takes.
const LEASE: Duration = Duration::from_secs(4);
const TAKES: Duration = Duration::from_secs(8);

/// The steps of the server's clock, in seconds from the real time, one series per ledger.
pub(crate) const CLOCK_STEPS_S: [&[i64]; 5] =
    [&[20], &[HOUR_S, 2 * HOUR_S], &[25 * HOUR_S], &[32 * 24 * HOUR_S], &[-HOUR_S]];

/// Runs an operation with that key.
pub(crate) fn pay(ledger: &Blocking, key: &str) -> Result<Receipt, Error> {
    ledger.run(Operation::new("pay").key(key), |attempt| Ok(attempt.dispatch()?.created(&key)))
}

fn terms(class: Class) -> Terms {
    let mut terms = Terms { class, wait_ms: 1, ..Terms::default() };
    (terms.lease_ms, terms.quarantine_ms) = (4_000, 6_000);
    terms
}

fn probed(key: &str) -> Operation {
    Operation::new("pay").key(key).terms(terms(Class::Probed)).with_probe()
}

/// Without a given key, so that the operation may run again after its result has expired.
fn derived() -> Operation {
    Operation::new("pay").input(serde_json::json!({"amount": 100}))
}

/// Calls an operation. Its probe always answers that there was no effect.
fn call(
    store: &Arc<dyn Backend>,
    operation: Operation,
    effects: &AtomicUsize,
    takes: Duration,
) -> Result<Receipt, Error> {
    let ledger = Ledger::new(Arc::<dyn Backend>::clone(store));
    let call = ledger.call(ledger.intent(operation)?);
    let call = call.probe(|_| std::future::ready(ProbeAnswer::No));
    pollster::block_on(call.run(|attempt| async move {
        let dispatched = attempt.dispatch()?;
        store.clock().sleep(u64::try_from(takes.as_millis()).unwrap_or(0)).await;
        effects.fetch_add(1, Ordering::SeqCst);
        Ok(dispatched.created(&1))
    }))
}

/// Begins an operation that is never finished and whose lease is never renewed.
fn die(store: &Arc<dyn Backend>, key: &str) -> OperationId {
    let ledger = Ledger::new(Arc::<dyn Backend>::clone(store));
    let intent = ledger.intent(Operation::new("pay").key(key).terms(terms(Class::Once))).unwrap();
    match pollster::block_on(ledger.begin(&intent)).unwrap() {
        Begun::Execute(claim) => claim.record().id.clone(),
        Begun::Replay(_) => panic!("it is replayed"),
    }
}

/// Sets the server's clock while one owner is alive, after an operation was done, and after another owner died. Stores
/// that had the ledger open and stores opened later repeat all calls: there is no second effect, and the dead owner is
/// detected in time.
pub(crate) fn set_clock_in_use(
    set_clock: impl Fn(i64),
    open: impl Fn() -> Arc<dyn Backend>,
    steps_s: &[i64],
) {
    set_clock(0);
    let (owner, other) = (open(), open());
    let (alive, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    call(&owner, derived(), &done, Duration::ZERO).unwrap();
    let dead = die(&owner, "dead");
    let died = Instant::now();
    std::thread::scope(|scope| {
        let paying = scope.spawn(|| call(&owner, probed("alive"), &alive, TAKES).unwrap());
        eventually("both run", || {
            pollster::block_on(other.counts(&Filter::default())).unwrap().get(&State::Running) == Some(&2)
        });
        for step_s in steps_s {
            set_clock(*step_s);
            // Time is the subject: the live owner and the server continue for a while under the changed clock.
            std::thread::sleep(Duration::from_millis(200));
            let later = open();
            for store in [&other, &later] {
                assert!(call(store, derived(), &done, Duration::ZERO).unwrap().replayed(), "{step_s}");
                pollster::block_on(Ledger::new(Arc::<dyn Backend>::clone(store)).sweep(|_| {})).unwrap();
            }
            let findings = later.health().unwrap();
            let clock = findings.iter().find(|finding| finding.what == "clock").unwrap();
            assert_eq!(clock.verdict, Verdict::Look, "{step_s}: {}", clock.found);
        }
        let later = open();
        while !paying.is_finished() {
            for store in [&other, &later] {
                if let Err(refused) = call(store, probed("alive"), &alive, Duration::ZERO) {
                    assert_eq!(refused.code(), Code::InProgress, "{steps_s:?}: {refused}");
                }
            }
            // The pace of the callers, for as long as the owner works.
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(!paying.join().unwrap().replayed());
        assert!(call(&later, derived(), &done, Duration::ZERO).unwrap().replayed(), "{steps_s:?}");
        let ledger = Ledger::new(Arc::<dyn Backend>::clone(&later));
        eventually("the dead owner is detected", || {
            assert!(died.elapsed() < LEASE * 4, "{steps_s:?}: the dead owner was not detected");
            pollster::block_on(ledger.find(&dead)).unwrap().1 == State::InDoubt
        });
    });
    assert_eq!((alive.into_inner(), done.into_inner()), (1, 1), "{steps_s:?}");
}
