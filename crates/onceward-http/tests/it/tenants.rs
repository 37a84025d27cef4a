//! A tenant's view is a store like any other, and shows nothing of another tenant.

use std::collections::BTreeMap;
use std::sync::Arc;

use onceward::{
    Change, Clock, Effect, Ending, Filter, Identity, Ledger, MemoryStore, Operation, OperationId, Outcome,
    Record, State, Store, StoreError, Swap, Word, WriteMode, conformance,
};
use onceward_http::tenants::TenantStore;
use proptest::prelude::*;

/// The clock of another store, which goes: the suite makes threads wait for each other, without a runtime.
struct GoingClock(Arc<dyn Store>);

impl GoingClock {
    fn new() -> Self {
        Self(onceward_store::open("memory:").unwrap())
    }
}

#[async_trait::async_trait]
impl Clock for GoingClock {
    fn now_ms(&self) -> i64 {
        self.0.clock().now_ms()
    }

    async fn sleep(&self, ms: u64) {
        self.0.clock().sleep(ms).await;
    }
}

fn view(store: Arc<dyn Store>, tenant: &str) -> Arc<dyn Store> {
    Arc::new(TenantStore::new(store, tenant))
}

/// Runs every group. A tenant cannot change the ledger's identity, so that group is checked below.
fn conforms(make: &conformance::Make<'_>) {
    let mut passed = 0;
    for group in conformance::groups().filter(|group| *group != "identity") {
        let report = conformance::run_only(make, group);
        report.assert_clean();
        passed += report.passed.len();
    }
    assert!(passed >= 90, "{passed} cases");
}

#[test]
fn a_view_of_a_store_in_memory_conforms() {
    conforms(&|| view(Arc::new(MemoryStore::new(GoingClock::new())), "acme"));
}

#[test]
fn a_view_of_a_store_that_only_sees_leases_conforms() {
    conforms(&|| view(Arc::new(MemoryStore::blind(GoingClock::new())), "acme"));
}

/// The same beside the records of another tenant and of callers without one.
#[test]
fn a_view_of_a_crowded_store_conforms() {
    conforms(&|| {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(GoingClock::new()));
        for (place, store) in [Arc::clone(&store), view(Arc::clone(&store), "globex")].into_iter().enumerate()
        {
            let ledger = Ledger::new(store).blocking();
            for key in ["a", "b", "c", "k"] {
                let operation = Operation::new("n").scope(if place == 0 { "default" } else { "s" }).key(key);
                ledger.run(operation, |attempt| Ok(attempt.dispatch()?.created(&key))).unwrap();
            }
        }
        view(store, "acme")
    });
}

#[test]
fn a_view_of_a_sqlite_file_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let number = std::cell::Cell::new(0);
    conforms(&|| {
        number.set(number.get() + 1);
        view(sqlite(&folder.path().join(format!("{}.db", number.get()))), "acme")
    });
}

fn sqlite(path: &std::path::Path) -> Arc<dyn Store> {
    let url = format!("sqlite:{}", path.display());
    onceward_store::open(&url).unwrap()
}

#[test]
fn two_handles_of_one_tenant_conform() {
    let folder = tempfile::tempdir().unwrap();
    let number = std::cell::Cell::new(0);
    let report = conformance::run_pair(&|| {
        number.set(number.get() + 1);
        let path = folder.path().join(format!("{}.db", number.get()));
        (view(sqlite(&path), "acme"), view(sqlite(&path), "acme"))
    });
    // Only an operator restores a ledger.
    let others: Vec<_> =
        report.failed.iter().filter(|failed| !failed.message.contains("a tenant cannot")).collect();
    assert!(others.is_empty() && report.passed.len() >= 5, "{report}");
}

#[test]
fn a_tenant_cannot_change_the_ledgers_identity_and_has_a_secret_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite(&folder.path().join("once.db"));
    let (acme, globex) = (view(Arc::clone(&store), "acme"), view(Arc::clone(&store), "globex"));
    let secrets: Vec<String> =
        [&store, &acme, &globex].iter().map(|store| store.identity().secret.as_ref().unwrap().id()).collect();
    assert!(secrets[0] != secrets[1] && secrets[0] != secrets[2] && secrets[1] != secrets[2]);
    assert_eq!(acme.identity().mark(), store.identity().mark());
    let next = Identity { epoch: 2, ..acme.identity().clone() };
    let refused = pollster::block_on(acme.set_identity(&next));
    assert!(matches!(refused, Err(StoreError::Unusable { .. })), "{refused:?}");
    assert_eq!(store.identity().epoch, 1);
}

/// An export of the whole ledger can be imported: a tenant's record is checked as the tenant wrote it.
#[test]
fn the_operator_can_check_the_records_of_tenants() {
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite(&folder.path().join("once.db"));
    let ledger = Ledger::new(view(Arc::clone(&store), "acme")).blocking();
    let long = "s".repeat(255);
    ledger
        .run(Operation::new("pay").scope(&long).key("1"), |attempt| Ok(attempt.dispatch()?.created(&1)))
        .unwrap();
    let all = pollster::block_on(store.list(&Filter { limit: 9, ..Filter::default() })).unwrap();
    let record = &all[0].record;
    assert_eq!(record.scope, format!("acme/{long}"));
    record.check_in(|tenant| store.identity().tenant_mask(tenant)).unwrap();
    assert!(record.check().is_err(), "its id is masked");
    let moved = Record { scope: format!("globex/{long}"), ..record.clone() };
    let checked = moved.check_in(|tenant| store.identity().tenant_mask(tenant));
    assert!(checked.is_err(), "it was moved to another tenant");
}

/// One step of a tenant. The numbers choose from few scopes, names and keys, so that tenants meet often.
#[derive(Debug, Clone)]
enum Step {
    Run { scope: u8, key: u8, value: u16 },
    Doubt { scope: u8, key: u8 },
    Settle { id: usize },
    Cancel { id: usize },
    Forget { id: usize },
    Delete { id: usize, version: u8 },
    Overwrite { id: usize, version: Option<u8> },
    Apply { id: usize, version: u8 },
    Finish { id: usize, attempt: u8 },
    Find { id: usize },
    Sweep,
}

fn step() -> impl Strategy<Value = Step> {
    let (scope, key) = (0..2_u8, 0..3_u8);
    prop_oneof![
        4 => (scope.clone(), key.clone(), any::<u16>()).prop_map(|(scope, key, value)| Step::Run { scope, key, value }),
        2 => (scope, key).prop_map(|(scope, key)| Step::Doubt { scope, key }),
        1 => any::<usize>().prop_map(|id| Step::Settle { id }),
        1 => any::<usize>().prop_map(|id| Step::Cancel { id }),
        1 => any::<usize>().prop_map(|id| Step::Forget { id }),
        1 => (any::<usize>(), 1..4_u8).prop_map(|(id, version)| Step::Delete { id, version }),
        2 => (any::<usize>(), proptest::option::of(1..4_u8)).prop_map(|(id, version)| Step::Overwrite { id, version }),
        1 => (any::<usize>(), 1..4_u8).prop_map(|(id, version)| Step::Apply { id, version }),
        1 => (any::<usize>(), 1..3_u8).prop_map(|(id, attempt)| Step::Finish { id, attempt }),
        1 => any::<usize>().prop_map(|id| Step::Find { id }),
        1 => Just(Step::Sweep),
    ]
}

fn operation(scope: u8, key: u8) -> Operation {
    Operation::new("pay").scope(["default", "run"][usize::from(scope)]).key(format!("order-{key}"))
}

/// Every id that a tenant can have come across: its own, those that the other one computes, and the stored ones.
fn ids(store: &dyn Store) -> Vec<OperationId> {
    let mut all: Vec<OperationId> = Vec::new();
    for scope in ["default", "run", "acme/default", "globex/run"] {
        for key in 0..3 {
            all.push(OperationId::of(scope, "pay", &format!("order-{key}")));
        }
    }
    for tenant in ["acme", "globex"] {
        let mask = store.identity().tenant_mask(tenant);
        let masked: Vec<OperationId> = all.iter().take(6).map(|id| id.masked(&mask)).collect();
        all.extend(masked);
    }
    // The worst case: a tenant that knows both masks.
    let (mine, other) = (store.identity().tenant_mask("acme"), store.identity().tenant_mask("globex"));
    let crossed: Vec<OperationId> = all.iter().take(6).map(|id| id.masked(&mine).masked(&other)).collect();
    all.extend(crossed);
    all
}

/// What a tenant sees of everything.
fn seen(store: &dyn Store, ids: &[OperationId]) -> (Vec<String>, Vec<Option<String>>, BTreeMap<State, u64>) {
    // SQLite writes the counts of replays with some later change, so they are checked below.
    let text = |record: &Record| serde_json::to_string(&Record { replays: 0, ..record.clone() }).unwrap();
    let all = Filter { limit: 1_000, ..Filter::default() };
    let listed = pollster::block_on(store.list(&all)).unwrap();
    let loaded = ids.iter().map(|id| pollster::block_on(store.load(id)).unwrap().map(|record| text(&record)));
    (
        listed.iter().map(|listed| text(&listed.record)).collect(),
        loaded.collect(),
        pollster::block_on(store.counts(&all)).unwrap(),
    )
}

/// Does a step for one tenant. What it cannot do, it may not do; none of it may panic.
fn act(store: &Arc<dyn Store>, ids: &[OperationId], step: &Step) {
    let ledger = Ledger::new(Arc::clone(store)).blocking();
    let id = |index: &usize| &ids[index % ids.len()];
    let hostile = |id: &OperationId, version: u64| {
        let intent = ledger.ledger().intent(operation(0, 0)).unwrap();
        let staged = onceward::transition::stage(&intent, 1);
        Record { id: id.clone(), scope: "stolen".to_owned(), version, ..staged }
    };
    match step {
        Step::Run { scope, key, value } => {
            drop(ledger.run(operation(*scope, *key), |attempt| Ok(attempt.dispatch()?.created(value))));
        }
        Step::Doubt { scope, key } => {
            let lost = |_| Err(onceward::Failure::in_doubt("the reply was lost"));
            drop(ledger.run(operation(*scope, *key), lost));
        }
        Step::Settle { id: index } => {
            let outcome = Outcome::with_effect(Effect::Created);
            let settled = ledger.ledger().admin().settle(
                id(index),
                onceward::Verdict::Done,
                Word::person("ada"),
                outcome,
            );
            drop(ledger.wait_for(settled));
        }
        Step::Cancel { id: index } => {
            drop(ledger.wait_for(ledger.ledger().admin().cancel(id(index), &Word::person("ada"))))
        }
        Step::Forget { id: index } => drop(ledger.wait_for(ledger.ledger().admin().forget(id(index)))),
        Step::Delete { id: index, version } => {
            drop(pollster::block_on(store.delete(id(index), u64::from(*version), WriteMode::Blocking)));
        }
        Step::Overwrite { id: index, version } => {
            let expected = version.map(u64::from);
            let record = hostile(id(index), expected.unwrap_or(0) + 1);
            let swap = pollster::block_on(store.swap(expected, record, WriteMode::Blocking));
            assert!(!matches!(swap, Ok(Swap::Written(_))), "a record under a chosen id was written");
        }
        Step::Apply { id: index, version } => {
            let changes = vec![
                Change::Delete { id: id(index).clone(), expected: u64::from(*version) },
                Change::Delete { id: id(&(index + 1)).clone(), expected: u64::from(*version) },
            ];
            drop(pollster::block_on(store.apply(changes, WriteMode::Blocking)));
        }
        Step::Finish { id: index, attempt } => {
            let ending = Ending::Done(Outcome::with_effect(Effect::Created));
            let finished = ledger.ledger().attempts().finish(id(index), u32::from(*attempt), &ending);
            drop(ledger.wait_for(finished));
        }
        Step::Find { id: index } => {
            drop(ledger.wait_for(ledger.ledger().find(id(index))));
            // Waiting for another tenant's record must not tell that there is one.
            pollster::block_on(store.changed(&hostile(id(index), 1).id, u64::MAX, 50));
            store.tally_replay(id(index));
        }
        Step::Sweep => {
            drop(ledger.wait_for(ledger.ledger().admin().sweep(|_| {})));
        }
    }
}

fn isolated(store: &Arc<dyn Store>, steps: &[(bool, Step)]) {
    let ids = ids(&**store);
    let (acme, globex) = (view(Arc::clone(store), "acme"), view(Arc::clone(store), "globex"));
    for (first, step) in steps {
        let (actor, other) = if *first { (&acme, &globex) } else { (&globex, &acme) };
        let before = seen(&**other, &ids);
        act(actor, &ids, step);
        assert_eq!(seen(&**other, &ids), before, "{step:?} of one tenant is seen by the other");
    }
    // Together both listings have all the records, so none is in both.
    let all = Filter { limit: 10_000, ..Filter::default() };
    let count = |store: &dyn Store| pollster::block_on(store.list(&all)).unwrap().len();
    assert_eq!(count(&*acme) + count(&*globex), count(&**store));
}

#[test]
fn a_tenant_cannot_count_replays_of_another() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(GoingClock::new()));
    let (acme, globex) = (view(Arc::clone(&store), "acme"), view(Arc::clone(&store), "globex"));
    let ledger = Ledger::new(Arc::clone(&acme)).blocking();
    ledger.run(operation(0, 0), |attempt| Ok(attempt.dispatch()?.created(&1))).unwrap();
    ids(&*store).iter().for_each(|id| globex.tally_replay(id));
    let own = OperationId::of("default", "pay", "order-0");
    let replays = || pollster::block_on(acme.load(&own)).unwrap().unwrap().replays;
    assert_eq!(replays(), 0);
    acme.tally_replay(&own);
    assert_eq!(replays(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn tenants_with_the_same_keys_never_meet_in_memory(steps in prop::collection::vec((any::<bool>(), step()), 1..40)) {
        isolated(&(Arc::new(MemoryStore::new(GoingClock::new())) as Arc<dyn Store>), &steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn tenants_with_the_same_keys_never_meet_in_sqlite(steps in prop::collection::vec((any::<bool>(), step()), 1..40)) {
        let folder = tempfile::tempdir().unwrap();
        isolated(&sqlite(&folder.path().join("once.db")), &steps);
    }
}
