//! A ledger in PostgreSQL that was emptied, restored or replaced is detected by the store that has it open, and by
//! stores that are opened later. Nothing runs twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::watch::patient;
use onceward::{Blocking, Code, Error, Fence, Ledger, Operation, Receipt, Store};
use onceward_store::postgres::{PostgresOptions, PostgresStore};
use onceward_store::{Backend, Verdict};
use onceward_testkit::{Dump, Postgres, eventually};

/// Counts how often each key took effect.
#[derive(Default)]
struct World {
    effects: AtomicUsize,
}

impl World {
    fn pay(&self, ledger: &Blocking, key: &str) -> Result<Receipt, Error> {
        ledger.run(Operation::new("pay").key(key), |attempt| {
            let dispatched = attempt.dispatch()?;
            self.effects.fetch_add(1, Ordering::SeqCst);
            Ok(dispatched.created(&key))
        })
    }

    fn pay_all(&self, ledger: &Blocking, keys: std::ops::Range<u32>) {
        for key in keys {
            self.pay(ledger, &key.to_string()).unwrap();
        }
    }

    /// All keys are refused because the ledger was replaced, and none takes effect.
    #[track_caller]
    fn is_refused(&self, ledger: &Blocking, keys: std::ops::Range<u32>) -> String {
        let before = self.effects.load(Ordering::SeqCst);
        let mut said = String::new();
        for key in keys {
            let refused = self.pay(ledger, &key.to_string()).err().unwrap();
            assert_eq!(refused.code(), Code::LedgerReplaced, "{refused}");
            said = refused.to_string();
        }
        assert_eq!(self.effects.load(Ordering::SeqCst), before, "something ran");
        assert!(said.contains("once restored"), "it says what to do: {said}");
        said
    }
}

fn try_open(url: &str) -> Result<Arc<PostgresStore>, onceward::StoreError> {
    PostgresStore::open(PostgresOptions::parse(&patient(url)).unwrap())
}

fn open(url: &str) -> Arc<PostgresStore> {
    try_open(url).unwrap()
}

fn ledger(store: &Arc<PostgresStore>) -> Blocking {
    Ledger::new(Arc::clone(store) as Arc<dyn Store>).blocking()
}

fn schema(url: &str) -> &str {
    url.split_once("schema=").unwrap().1.split('&').next().unwrap()
}

/// Does what `once restored` does.
fn restored(store: &PostgresStore) {
    let now_ms = store.clock().now_ms();
    let fence = Fence { lost_from_ms: now_ms, restored_ms: now_ms, until_ms: now_ms };
    let next = store.identity().restored(fence, 0);
    pollster::block_on(store.set_identity(&next)).unwrap();
}

#[test]
fn a_schema_that_was_dropped_and_restored_under_an_open_store_is_detected() {
    let (server, world) = (Postgres::shared(), World::default());
    let url = server.fresh();
    let (store, other) = (open(&url), open(&url));
    world.pay_all(&ledger(&store), 0..20);
    let dump = server.dump(schema(&url), Dump::All);
    world.pay_all(&ledger(&other), 20..40);
    drop(server.sql(&format!("drop schema {} cascade", schema(&url))));
    world.is_refused(&ledger(&other), 40..42);
    server.restore(&dump);
    world.is_refused(&ledger(&store), 20..40);
    world.is_refused(&ledger(&other), 42..44);
    // A process that starts now does not accept the copy as the ledger either.
    let later = open(&url);
    let said = world.is_refused(&ledger(&later), 20..40);
    assert!(said.contains("copy"), "{said}");
    let finding = later.health().unwrap().into_iter().find(|finding| finding.what == "ledger").unwrap();
    assert_eq!(finding.verdict, Verdict::Bad, "{}", finding.found);
    // After `once restored`, new stores may write, and the old ones still may not.
    restored(&later);
    world.pay(&ledger(&open(&url)), "new").unwrap();
    world.is_refused(&ledger(&store), 20..22);
    world.is_refused(&ledger(&later), 20..22);
}

#[test]
fn rows_that_were_restored_from_a_dump_under_an_open_store_are_detected() {
    let (server, world) = (Postgres::shared(), World::default());
    let url = server.fresh();
    let store = open(&url);
    world.pay_all(&ledger(&store), 0..5);
    let dump = server.dump(schema(&url), Dump::Rows);
    world.pay_all(&ledger(&open(&url)), 5..10);
    // Without TRUNCATE: each row is deleted, and written again by the dump.
    drop(server.sql(&format!("delete from {0}.operation; delete from {0}.meta", schema(&url))));
    server.restore(&dump);
    world.is_refused(&ledger(&store), 5..10);
    world.is_refused(&ledger(&open(&url)), 5..10);
}

#[test]
fn an_emptied_ledger_is_detected_by_open_and_by_new_stores() {
    let (server, world) = (Postgres::shared(), World::default());
    // Ordinary triggers do not fire in a session that imports data.
    let imports = "set session_replication_role = replica; ";
    for (more, table, first) in [
        ("", "operation", ""),
        ("&partitions=3", "operation", ""),
        ("&partitions=3", "operation_1", ""),
        ("", "operation", imports),
        ("&partitions=3", "operation_1", imports),
    ] {
        let url = server.fresh();
        let store = open(&format!("{url}{more}"));
        world.pay_all(&ledger(&store), 0..5);
        drop(server.sql(&format!("{first}truncate {}.{table}", schema(&url))));
        let said = world.is_refused(&ledger(&store), 5..7);
        assert!(said.contains("TRUNCATE"), "{said}");
        let later = open(&url);
        world.is_refused(&ledger(&later), 5..7);
        restored(&later);
        world.pay(&ledger(&open(&url)), "new").unwrap();
        world.is_refused(&ledger(&store), 5..7);
    }
}

#[test]
fn a_write_that_waits_for_a_truncate_detects_it() {
    let (server, world) = (Postgres::shared(), World::default());
    let url = server.fresh();
    let store = open(&url);
    let ledger = ledger(&store);
    world.pay_all(&ledger, 0..3);
    // Committed when a write waits for its lock.
    let slow = format!(
        "begin; truncate {0}.operation; do $$ begin for look in 1..6000 loop exit when exists \
         (select from pg_locks where not granted and relation = '{0}.operation'::regclass); perform pg_sleep(0.01); \
         end loop; end $$; commit",
        schema(&url)
    );
    std::thread::scope(|scope| {
        let emptying = scope.spawn(|| drop(server.sql(&slow)));
        let locked = "select count(*) from pg_locks where mode = 'AccessExclusiveLock' and granted and relation = \
                      (select oid from pg_class where relname = 'operation' and relnamespace = ";
        let locked = format!("{locked}'{}'::regnamespace)", schema(&url));
        eventually("the table is locked", || server.sql(&locked) != "0");
        world.is_refused(&ledger, 0..1);
        emptying.join().unwrap();
    });
}

#[test]
fn a_missing_identity_is_detected() {
    let (server, world) = (Postgres::shared(), World::default());
    for lost in ["delete from S.meta where name = 'ledger'", "delete from S.meta", "truncate S.meta"] {
        let url = server.fresh();
        let store = open(&url);
        world.pay_all(&ledger(&store), 0..2);
        drop(server.sql(&lost.replace('S', schema(&url))));
        world.is_refused(&ledger(&store), 2..4);
    }
}

#[test]
fn maintenance_of_the_server_is_not_mistaken_for_a_replacement() {
    let (server, world) = (Postgres::shared(), World::default());
    let url = server.fresh();
    let store = open(&url);
    world.pay_all(&ledger(&store), 0..2);
    for table in ["meta", "operation"] {
        for work in ["vacuum (freeze)", "vacuum (full, freeze)", "analyze"] {
            drop(server.sql(&format!("{work} {}.{table}", schema(&url))));
        }
    }
    drop(server.sql("vacuum (freeze)"));
    world.pay_all(&ledger(&store), 2..4);
    world.pay_all(&ledger(&open(&url)), 4..6);
}

#[test]
fn a_server_in_an_older_state_is_detected() {
    let (mut server, world) = (Postgres::start(), World::default());
    let url = server.fresh();
    let store = open(&url);
    let ledger = ledger(&store);
    world.pay_all(&ledger, 0..5);
    server.stop();
    let copy = server.copy_data();
    server.start_again();
    world.pay_all(&ledger, 5..60);
    server.stop();
    server.put_back(&copy);
    server.start_again();
    world.is_refused(&ledger, 5..60);
    // The right server comes back, but this store still does not trust it: an operator must decide.
    world.is_refused(&ledger, 60..61);
}

/// Stops the server, puts back what it was before `between`, and starts it again.
fn reset_around(server: &mut Postgres, between: impl FnOnce()) {
    server.stop();
    let copy = server.copy_data();
    server.start_again();
    between();
    server.stop();
    server.put_back(&copy);
    server.start_again();
}

#[test]
fn an_older_state_is_noticed_even_after_other_processes_have_written_more_than_was_lost() {
    // One lost operation is as bad as many.
    for lost in [1, 20] {
        let (mut server, world) = (Postgres::start(), World::default());
        let url = server.fresh();
        let store = open(&url);
        let ledger = ledger(&store);
        world.pay_all(&ledger, 0..10);
        reset_around(&mut server, || world.pay_all(&ledger, 10..10 + lost));
        // No write of the old store meets a number that it has not seen.
        world.pay_all(&self::ledger(&open(&url)), 1_000..1_100);
        let said = world.is_refused(&ledger, 10..10 + lost);
        assert!(said.contains("acknowledged"), "{said}");
        world.is_refused(&ledger, 2_000..2_001);
    }
}

#[test]
fn an_older_version_of_a_record_is_noticed() {
    let (mut server, world) = (Postgres::start(), World::default());
    let url = server.fresh();
    let store = open(&url);
    let ledger = ledger(&store);
    let mut began = None;
    let paid = ledger.run(Operation::new("pay").key("a"), |attempt| {
        let dispatched = attempt.dispatch()?;
        // The record is in the copy, and its end is not.
        server.stop();
        began = Some(server.copy_data());
        server.start_again();
        Ok(dispatched.created(&"a"))
    });
    assert!(paid.is_ok(), "{paid:?}");
    server.stop();
    server.put_back(&began.unwrap());
    server.start_again();
    world.pay_all(&self::ledger(&open(&url)), 0..20);
    let said = world.is_refused(&ledger, 100..101);
    assert!(said.contains("version"), "{said}");
}

#[test]
fn a_server_that_only_restarts_is_trusted_even_if_records_were_deleted() {
    let (mut server, world) = (Postgres::start_with(&[("log_statement", "all")]), World::default());
    let url = server.fresh();
    let store = open(&url);
    let ledger = ledger(&store);
    world.pay_all(&ledger, 0..10);
    for crash in [false, true, false] {
        if crash {
            server.kill();
        } else {
            server.stop();
        }
        server.start_again();
        world.pay_all(&ledger, 0..10);
        world.pay(&ledger, &format!("after-{crash}")).unwrap();
    }
    // Another process deletes all that this one wrote, and nothing announces it. The next look settles that. The store
    // asks its next question when it has read what it found.
    let delete = format!("delete from {}.operation", schema(&url));
    drop(server.sql(&delete));
    let log = || std::fs::read_to_string(server.folder().join("log")).unwrap();
    let before = log().lines().count();
    onceward_testkit::eventually("the store looks, and goes on", || {
        let log = log();
        let mut since = log.lines().skip(before);
        let looks = "SELECT id, version, created_ms, updated_ms FROM";
        since.any(|line| line.contains(looks)) && since.any(|line| line.contains("LOG:  execute"))
    });
    server.stop();
    server.start_again();
    world.pay(&ledger, "after-all").unwrap();
}

#[test]
fn another_server_in_its_place_is_detected() {
    let (first, second, world) = (Postgres::start(), Postgres::start(), World::default());
    let relay = onceward_testkit::Relay::to(first.port());
    let url = first.fresh();
    let through = url.replace(&format!(":{}/", first.port()), &format!(":{}/", relay.port()));
    let store = open(&through);
    world.pay_all(&ledger(&store), 0..3);
    drop(open(&url.replace(&format!(":{}/", first.port()), &format!(":{}/", second.port()))));
    relay.aim_at(second.port());
    relay.cut();
    relay.mend();
    world.is_refused(&ledger(&store), 0..5);
}

#[test]
fn a_former_primary_that_comes_back_is_not_written() {
    let (primary, world) = (Postgres::start(), World::default());
    let mut standby = primary.standby("second");
    let (old, new) = (format!("127.0.0.1:{}", primary.port()), format!("127.0.0.1:{}", standby.port()));
    // The asynchronous standby is allowed explicitly: only the timeline distinguishes the two.
    let url = format!("{}&standby=async&timeout=20s", primary.fresh());
    let (before, after) =
        (url.replace(&old, &format!("{old},{new}")), url.replace(&old, &format!("{new},{old}")));
    let store = open(&before);
    world.pay_all(&ledger(&store), 0..5);
    let at = primary.sql("select pg_current_wal_lsn()");
    let followed = format!("select pg_last_wal_replay_lsn() >= '{at}'");
    while standby.sql(&followed) != "t" {}
    standby.promote();
    // The former primary still accepts writes. Whichever is named first, the promoted server is used.
    for url in [&before, &after] {
        let store = open(url);
        world.pay_all(&ledger(&store), 0..5);
        world.pay(&ledger(&store), "after").unwrap();
    }
    assert_eq!(world.effects.load(Ordering::SeqCst), 6);
    let count = format!("select count(*) from {}.operation where key = 'after'", schema(&url));
    assert_eq!((primary.sql(&count), standby.sql(&count)), ("0".to_owned(), "1".to_owned()));
}

#[test]
fn a_store_that_has_seen_a_promoted_server_never_returns_to_the_former_primary() {
    let (primary, world) = (Postgres::start(), World::default());
    let mut standby = primary.standby("second");
    let relay = onceward_testkit::Relay::to(primary.port());
    let url = primary.fresh().replace(&format!(":{}/", primary.port()), &format!(":{}/", relay.port()));
    let store = open(&format!("{url}&standby=async&timeout=20s"));
    let ledger = ledger(&store);
    world.pay_all(&ledger, 0..3);
    let at = primary.sql("select pg_current_wal_lsn()");
    while standby.sql(&format!("select pg_last_wal_replay_lsn() >= '{at}'")) != "t" {}
    standby.promote();
    for (port, key) in [(standby.port(), "new"), (primary.port(), "old")] {
        relay.aim_at(port);
        relay.cut();
        relay.mend();
        match world.pay(&ledger, key) {
            Ok(_) => assert_eq!(key, "new", "the old primary was written to"),
            Err(refused) => {
                assert_eq!((refused.code(), key), (Code::LedgerReplaced, "old"), "{refused}");
                assert!(refused.to_string().contains("timeline"), "{refused}");
            }
        }
    }
}

#[test]
fn a_ledger_that_should_exist_is_not_created() {
    let server = Postgres::shared();
    let url = server.fresh();
    let refused = try_open(&format!("{url}&create=no")).err().unwrap();
    assert!(matches!(refused, onceward::StoreError::Missing { .. }), "{refused}");
    assert!(refused.to_string().contains("create=no"), "{refused}");
    let there = format!("select count(*) from pg_namespace where nspname = '{}'", schema(&url));
    assert_eq!(server.sql(&there), "0");
    drop(open(&url));
    drop(open(&format!("{url}&create=no")));
}

#[test]
fn a_ledger_of_another_version_is_left_alone() {
    let server = Postgres::shared();
    for version in ["3", "99"] {
        let url = server.fresh();
        drop(open(&url));
        let name = schema(&url);
        drop(server.sql(&format!("update {name}.meta set value = '{version}' where name = 'schema'")));
        let refused = try_open(&url).err().unwrap().to_string();
        assert!(
            refused.contains(&format!("schema {version}")) && refused.contains("once export"),
            "{refused}"
        );
        let stays = format!("select value from {name}.meta where name = 'schema'");
        assert_eq!(server.sql(&stays), version);
    }
}

#[test]
fn a_ledger_of_a_role_that_is_not_trusted_is_refused() {
    let server = Postgres::shared();
    drop(server.sql("create role mallory login; grant create on database postgres to mallory"));
    let url = server.fresh();
    drop(open(&url.replace("postgres@", "mallory@")));
    let refused = try_open(&url).err().unwrap().to_string();
    assert!(refused.contains("mallory") && refused.contains("owner="), "{refused}");
    // Also if only one function belongs to that role.
    let url = server.fresh();
    drop(open(&url));
    let give = format!(
        "grant create on schema {0} to mallory; alter function {0}.remove owner to mallory",
        schema(&url)
    );
    drop(server.sql(&give));
    assert!(try_open(&url).err().unwrap().to_string().contains("mallory"));
    drop(open(&format!("{url}&owner=mallory")));
}

#[test]
fn the_documented_privileges_are_sufficient() {
    let (server, world) = (Postgres::shared(), World::default());
    drop(server.sql("create role agent login"));
    let docs = include_str!("../../../../docs/fleet.md");
    let grants: Vec<&str> = docs.lines().filter(|line| line.starts_with("GRANT ")).collect();
    assert_eq!(grants.len(), 5, "{grants:?}");
    for more in ["", "&partitions=2"] {
        let url = server.fresh();
        drop(open(&format!("{url}{more}")));
        drop(server.sql(&grants.join("\n").replace("onceward", schema(&url)).replace("agents", "agent")));
        let store = open(&url.replace("postgres@", "agent@"));
        let ledger = ledger(&store);
        world.pay_all(&ledger, 0..3);
        let id = world.pay(&ledger, "4").unwrap().record().id.clone();
        ledger.admin().forget(&id).unwrap();
        ledger.admin().sweep(|_| {}).unwrap();
        ledger.scopes().stop("run-7", &onceward::Word::person("ada")).unwrap();
        assert!(ledger.scopes().resume("run-7", &onceward::Word::person("ada")).unwrap().is_some());
        let bad = store.health().unwrap().into_iter().find(|finding| finding.verdict == Verdict::Bad);
        assert_eq!(bad, None);
        restored(&store);
        world.is_refused(&ledger, 0..1);
    }
}
