//! What is specific to the SQLite store: the file, its permissions, versions, clock, locks and cache.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::Arc;

use onceward::{
    Blocking, Delivered, Failure, Filter, Inherit, Ledger, Liveness, Operation, Owner, Record, State, Store,
    StoreError, Swap, Verdict, Verification, Word, WriteMode,
};
use onceward_store::Backend;
use onceward_store::sqlite::{SqliteOptions, SqliteStore, Sync};
use rusqlite::Connection;

struct Fixture {
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        Self { folder: onceward_testkit::scratch() }
    }

    fn options(&self) -> SqliteOptions {
        SqliteOptions::new(self.folder.path().join("once.db"))
    }

    fn store(&self) -> Arc<SqliteStore> {
        SqliteStore::open(self.options()).unwrap()
    }

    fn ledger(&self) -> Blocking {
        Ledger::new(self.store()).blocking()
    }

    /// The file as another program sees it.
    fn shell(&self) -> Connection {
        Connection::open(self.folder.path().join("once.db")).unwrap()
    }
}

fn pay(ledger: &Blocking, key: &str) -> Result<onceward::Receipt, onceward::Error> {
    ledger.run(Operation::new("pay").key(key), |attempt| {
        Ok::<_, Failure>(attempt.dispatch()?.created(&serde_json::json!({"id": 42})))
    })
}

#[test]
fn files_are_private() {
    let fixture = Fixture::new();
    let ledger = fixture.ledger();
    pay(&ledger, "a").unwrap();
    let entries: Vec<_> = std::fs::read_dir(fixture.folder.path()).unwrap().map(Result::unwrap).collect();
    assert_eq!(entries.len(), 4, "the database, its log and the log's index, and the locks");
    for entry in entries {
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", entry.file_name());
    }
}

#[test]
fn the_file_is_readable_in_a_shell() {
    let fixture = Fixture::new();
    pay(&fixture.ledger(), "a").unwrap();
    let row: (String, String, i64, String) = fixture
        .shell()
        .query_row(
            "SELECT state, name, detail ->> 'max_attempts', outcome ->> '$.data.id' || ' ' || (outcome ->> 'effect')
             FROM operations",
            [],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)),
        )
        .unwrap();
    assert_eq!(row, ("done".into(), "pay".into(), 20, "42 created".into()));
}

#[test]
fn every_commit_is_synced_unless_asked_otherwise() {
    let fixture = Fixture::new();
    let health = fixture.store().health().unwrap();
    // If the test folder is in memory, that is reported too, but this test is not about it.
    let bad: Vec<_> = health
        .iter()
        .filter(|finding| finding.what != "file system" && finding.verdict != onceward_store::Verdict::Good)
        .collect();
    assert!(bad.is_empty(), "{bad:?}");
    let sync = health.iter().find(|finding| finding.what == "sync").unwrap();
    assert!(sync.found.starts_with("full"), "{sync:?}");
    assert_eq!(SqliteOptions::parse("x.db").unwrap().sync, Sync::Full);
    assert_eq!(SqliteOptions::parse("x.db?sync=normal").unwrap().sync, Sync::Normal);
    assert!(SqliteOptions::parse("x.db?sync=fast").is_err());
}

#[test]
fn a_file_of_another_version_and_a_foreign_one_are_left_alone() {
    for version in [3, 99] {
        let other = Fixture::new();
        drop(other.store());
        other.shell().pragma_update(None, "user_version", version).unwrap();
        let refused = SqliteStore::open(other.options()).err().unwrap().to_string();
        assert!(
            refused.contains(&format!("schema {version}")) && refused.contains("once export"),
            "{refused}"
        );
    }

    let foreign = Fixture::new();
    foreign.shell().execute_batch("CREATE TABLE theirs (x)").unwrap();
    let refused = SqliteStore::open(foreign.options()).err().unwrap().to_string();
    assert!(refused.contains("another program"), "{refused}");
    assert!(!live_file(&foreign).exists(), "nothing is created next to a file of another program");
    let tables: i64 =
        foreign.shell().query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).unwrap();
    assert_eq!(tables, 1);
}

#[test]
fn a_change_of_one_record_leaves_the_others_in_the_cache() {
    let fixture = Fixture::new();
    let store = fixture.store();
    let ledger = Ledger::new(Arc::clone(&store) as Arc<dyn Store>).blocking();
    let [kept, changed] = ["kept", "changed"].map(|key| Arc::clone(pay(&ledger, key).unwrap().record()));
    ledger.attempts().verified(&changed.id, Verification::Confirmed, None).unwrap();
    // Behind the ledger's back, so that only the cache has them.
    let forget = "DELETE FROM operations";
    fixture.shell().execute(forget, []).unwrap();
    let cached = |id| pollster::block_on(store.load_cached(id)).unwrap();
    assert_eq!(cached(&kept.id).map(|record| record.version), Some(kept.version));
    let noted = cached(&changed.id).expect("what was written is cached as well");
    assert_eq!(noted.outcome.as_ref().unwrap().verified, Some(Verification::Confirmed));
}

#[test]
fn a_record_changed_by_one_process_is_not_served_from_anothers_cache() {
    let fixture = Fixture::new();
    let (here, there) = (fixture.ledger(), fixture.ledger());
    let receipt = pay(&here, "a").unwrap();
    let id = &receipt.record().id;
    // Cached on both sides.
    assert!(pay(&here, "a").unwrap().replayed() && pay(&there, "a").unwrap().replayed());
    there.admin().forget(id).unwrap();
    assert!(!pay(&here, "a").unwrap().replayed(), "it was forgotten, so it runs");
    assert!(pay(&there, "a").unwrap().replayed());
}

#[test]
fn a_child_inherits_only_the_lock_meant_for_it() {
    let fixture = Fixture::new();
    let store = fixture.store();
    let inherited = store.hold(Inherit::Children).unwrap();
    let owner = Owner { token: inherited.token(), lease_until_ms: 0 };
    let mut child = Command::new("sleep").arg("30").stdin(Stdio::null()).spawn().unwrap();
    drop(inherited);
    let liveness = || pollster::block_on(store.liveness(&owner)).unwrap();
    assert_eq!(liveness(), Liveness::Alive, "the child holds it");
    let private = store.hold(Inherit::No).unwrap();
    let other = Owner { token: private.token(), lease_until_ms: 0 };
    drop(private);
    assert_eq!(pollster::block_on(store.liveness(&other)).unwrap(), Liveness::Gone);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(liveness(), Liveness::Gone);
}

#[test]
fn an_attempt_that_never_dispatched_has_certainly_failed() {
    let fixture = Fixture::new();
    let ledger = fixture.ledger();
    let operation = Operation::new("pay").key("a");
    let id = operation.clone().intent().unwrap().id;
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let call = ledger.call(operation.clone().intent().unwrap());
        ledger.run_call(call, |_| panic!("the process dies here"))
    }));
    assert!(died.is_err());
    let (_, state) = ledger.find(&id).unwrap();
    assert_eq!(state, State::Failed);
    assert_eq!(pay(&ledger, "a").unwrap().record().attempt, 2);
}

#[test]
fn an_attempt_that_dispatched_is_in_doubt() {
    let fixture = Fixture::new();
    let ledger = fixture.ledger();
    let operation = Operation::new("pay").key("a");
    let id = operation.clone().intent().unwrap().id;
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let call = ledger.call(operation.clone().intent().unwrap());
        ledger.run_call(call, |attempt| {
            attempt.dispatch().unwrap();
            panic!("the process dies here")
        })
    }));
    assert!(died.is_err());
    assert_eq!(ledger.find(&id).unwrap().1, State::InDoubt);
    assert!(pay(&ledger, "a").is_err());
    let settled = ledger.ledger().admin().settle(
        &id,
        Verdict::Failed,
        Word::person("ada"),
        onceward::Outcome::because(None),
    );
    ledger.wait_for(settled).unwrap();
    assert!(pay(&ledger, "a").is_ok());
}

#[test]
fn notes_of_an_earlier_boot_are_ignored() {
    use std::os::unix::fs::FileExt;
    let fixture = Fixture::new();
    let hold = fixture.store().hold(Inherit::No).unwrap();
    hold.note_dispatch(onceward::Dispatch::NotYet).unwrap();
    let owner = Owner { token: hold.token(), lease_until_ms: 0 };
    drop(hold);
    let liveness = || pollster::block_on(fixture.store().liveness(&owner)).unwrap();
    assert_eq!(liveness(), Liveness::NeverDispatched);
    // As after a restart: the anchor names another boot.
    let live = std::fs::OpenOptions::new().write(true).open(live_file(&fixture)).unwrap();
    live.write_all_at(&[7; 16], 16).unwrap();
    assert_eq!(liveness(), Liveness::Gone);
}

fn live_file(fixture: &Fixture) -> std::path::PathBuf {
    fixture.folder.path().join("once.db-live")
}

#[test]
fn a_ledger_moved_while_in_use_runs_nothing() {
    for file in ["once.db", "once.db-live"] {
        let fixture = Fixture::new();
        let ledger = fixture.ledger();
        pay(&ledger, "a").unwrap();
        let path: &Path = &fixture.folder.path().join(file);
        std::fs::rename(path, fixture.folder.path().join("elsewhere")).unwrap();
        let refused = pay(&ledger, "b").err().unwrap();
        assert_eq!(refused.code(), onceward::Code::LedgerReplaced, "{file}: {refused}");
        std::fs::rename(fixture.folder.path().join("elsewhere"), path).unwrap();
        pay(&ledger, "b").unwrap();
    }
}

#[test]
fn replays_are_tallied_and_survive_closing() {
    let fixture = Fixture::new();
    let ledger = fixture.ledger();
    for _ in 0..4 {
        pay(&ledger, "a").unwrap();
    }
    drop(ledger);
    let replays: i64 =
        fixture.shell().query_row("SELECT replays FROM operations", [], |row| row.get(0)).unwrap();
    assert_eq!(replays, 3);
}

#[test]
fn concurrent_readers_find_all_records() {
    let fixture = Fixture::new();
    let (first, keys) = (fixture.ledger(), 0..60);
    let ids: Vec<_> = keys.map(|key| pay(&first, &key.to_string()).unwrap().record().id.clone()).collect();
    drop(first);
    for _ in 0..20 {
        // A new store has an empty cache and no attempt in progress. A reader that finds nothing would go to the
        // writer.
        let store = fixture.store();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for id in &ids {
                        assert!(
                            pollster::block_on(store.load_cached(id)).unwrap().is_some(),
                            "{id} was not found"
                        );
                    }
                });
            }
        });
    }
}

#[test]
fn many_threads_share_commits_and_lose_nothing() {
    let fixture = Fixture::new();
    let ledger = fixture.ledger();
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let ledger = &ledger;
            scope.spawn(move || {
                for n in 0..50 {
                    pay(ledger, &format!("{thread}-{n}")).unwrap();
                }
            });
        }
    });
    let done: i64 = fixture
        .shell()
        .query_row(
            "SELECT count(*) FROM operations WHERE state = 'done' AND outcome IS NOT NULL",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(done, 800);
}

/// The next version of a finished record, with a delivery note.
fn noted(record: &Record) -> Record {
    onceward::transition::delivered(record, Some(Delivered { at_ms: 7, same_until_ms: None })).unwrap()
}

/// A deferred write that waits for another commit. It does so for some milliseconds only, which a busy machine may
/// miss, so there are several tries.
fn deferred<'a>(
    store: &'a Arc<SqliteStore>,
    ledger: &Blocking,
) -> Pin<Box<dyn Future<Output = Result<Swap, StoreError>> + 'a>> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for number in 0..1_000 {
        let record = Arc::clone(pay(ledger, &format!("deferred-{number}")).unwrap().record());
        let noted = noted(&record);
        let mut write: Pin<Box<dyn Future<Output = Result<Swap, StoreError>> + 'a>> =
            Box::pin(store.swap(Some(record.version), noted, WriteMode::Deferred));
        if write.as_mut().poll(&mut context).is_pending() {
            return write;
        }
    }
    panic!("it does not wait for another commit")
}

/// The key of the newest record.
fn newest(store: &SqliteStore) -> String {
    let filter = Filter { limit: 1, ..Filter::default() };
    pollster::block_on(store.list(&filter)).unwrap().remove(0).record.key.text
}

#[test]
fn a_deferred_write_joins_the_next_commit() {
    let fixture = Fixture::new();
    let store = fixture.store();
    let ledger = Ledger::new(Arc::<SqliteStore>::clone(&store)).blocking();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut patient = deferred(&store, &ledger);
    pay(&ledger, "b").unwrap();
    let std::task::Poll::Ready(written) = patient.as_mut().poll(&mut context) else {
        panic!("the other commit did not include it");
    };
    assert!(matches!(written, Ok(Swap::Written(_))));
}

#[test]
fn a_deferred_write_is_written_when_idle_and_on_close() {
    let fixture = Fixture::new();
    let store = fixture.store();
    let ledger = Ledger::new(Arc::<SqliteStore>::clone(&store)).blocking();
    let found = |key: &str| {
        let id = Operation::new("pay").key(key).intent().unwrap().id;
        pollster::block_on(fixture.store().load(&id)).unwrap().unwrap().delivered_ms()
    };
    let record = Arc::clone(pay(&ledger, "a").unwrap().record());
    pollster::block_on(store.swap(Some(record.version), noted(&record), WriteMode::Deferred)).unwrap();
    assert_eq!(found("a"), Some(7));
    // A conflict is reported as usual.
    let late =
        pollster::block_on(store.swap(Some(record.version), noted(&record), WriteMode::Deferred)).unwrap();
    assert!(matches!(late, Swap::Conflict(Some(newer)) if newer.delivered_ms() == Some(7)));
    // Also while the writer's thread rests after a commit.
    let other = Ledger::new(Arc::<SqliteStore>::clone(&store));
    let done = |attempt: onceward::Attempt| async move { Ok::<_, Failure>(attempt.dispatch()?.created(&1)) };
    let receipt = pollster::block_on(other.run(Operation::new("pay").key("c"), done)).unwrap();
    let written = store.swap(Some(receipt.record().version), noted(receipt.record()), WriteMode::Deferred);
    assert!(matches!(pollster::block_on(written), Ok(Swap::Written(_))));
    assert_eq!(found("c"), Some(7));
    drop(deferred(&store, &ledger));
    let last = newest(&store);
    drop((ledger, other, store));
    assert_eq!(found(&last), Some(7));
}

#[test]
fn an_open_operation_of_another_process_is_found_by_its_action() {
    let fixture = Fixture::new();
    let (here, there) = (fixture.store(), fixture.ledger());
    let pays = |to: u64| Operation::new("pay").input(serde_json::json!({"to": to}));
    let found = |to: u64| {
        let action = there.intent(pays(to)).unwrap().action();
        let found = pollster::block_on(here.occurrences(&action, 1)).unwrap();
        found.into_iter().map(|record| record.state).collect::<Vec<_>>()
    };
    assert!(found(1).is_empty());
    let receipt = there.run(pays(1), |attempt| {
        assert_eq!((found(1), found(2)), (vec![State::Running], Vec::new()));
        Ok(attempt.dispatch()?.created(&1))
    });
    receipt.unwrap();
    assert_eq!(found(1), [State::Done]);
}
