//! What the PostgreSQL store requires of its server, such as settings, privileges, versions and standbys, and the
//! errors if they are missing.

use std::sync::Arc;

use crate::watch::patient;
use crate::wire::Wire;
use onceward::{Blocking, Filter, Ledger, Operation, Receipt, Store};
use onceward_store::postgres::{PostgresOptions, PostgresStore};
use onceward_store::{Backend, Verdict};
use onceward_testkit::{Postgres, Relay, eventually};

fn try_open(url: &str) -> Result<Arc<PostgresStore>, onceward::StoreError> {
    PostgresStore::open(PostgresOptions::parse(&patient(url)).unwrap())
}

fn open(url: &str) -> Arc<PostgresStore> {
    try_open(url).unwrap()
}

#[track_caller]
fn refused(url: &str, said: &str) {
    let refusal = try_open(url).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(refusal.contains(said), "{url}: {refusal:?}");
}

fn pay(ledger: &Blocking, key: &str) -> Result<Receipt, onceward::Error> {
    ledger.run(Operation::new("pay").key(key), |attempt| Ok(attempt.dispatch()?.created(&key)))
}

fn ledger(store: &Arc<PostgresStore>) -> Blocking {
    Ledger::new(Arc::clone(store) as Arc<dyn Store>).blocking()
}

fn found(store: &PostgresStore, what: &str) -> (Verdict, String) {
    let findings = store.health().unwrap();
    let finding = findings.into_iter().find(|finding| finding.what == what).unwrap();
    (finding.verdict, finding.found)
}

#[test]
fn twenty_processes_may_start_at_once_on_a_new_ledger() {
    for more in ["", "&partitions=3"] {
        let url = format!("{}{more}", Postgres::shared().fresh());
        let gate = std::sync::Barrier::new(20);
        std::thread::scope(|scope| {
            let starts: Vec<_> = (0..20)
                .map(|number| {
                    let (url, gate) = (&url, &gate);
                    scope.spawn(move || {
                        gate.wait();
                        pay(&ledger(&open(url)), &number.to_string()).unwrap();
                    })
                })
                .collect();
            starts.into_iter().for_each(|start| start.join().unwrap());
        });
    }
}

#[test]
fn a_newer_ledger_and_a_foreign_schema_are_left_alone() {
    let server = Postgres::shared();
    let url = server.fresh();
    let schema = url.split_once("schema=").unwrap().1;
    drop(open(&url));
    drop(server.sql(&format!("update {schema}.meta set value = '99' where name = 'schema'")));
    refused(&url, "another version");
    drop(server.sql("create schema foreign_one; create table foreign_one.meta (name text, value text)"));
    refused(&format!("{}?schema=foreign_one", server.url()), "another program");
    drop(server.sql("create schema foreign_two; create table foreign_two.operation (x int)"));
    refused(&format!("{}?schema=foreign_two", server.url()), "operation");
    assert_eq!(server.sql("select count(*) from pg_tables where schemaname like 'foreign_%'"), "2");
}

#[test]
fn partitions_are_chosen_once() {
    let server = Postgres::shared();
    let url = server.fresh();
    drop(open(&format!("{url}&partitions=2")));
    drop(open(&url));
    refused(&format!("{url}&partitions=4"), "created with 2 partitions");
}

#[test]
fn a_server_that_may_lose_acknowledged_writes_is_refused() {
    for setting in ["fsync", "full_page_writes"] {
        let server = Postgres::start_with(&[(setting, "off")]);
        refused(&server.fresh(), "fsync or full_page_writes off");
    }
}

#[test]
fn a_commit_is_synced_whatever_the_servers_default() {
    let settings =
        [("synchronous_commit", "off"), ("wal_writer_delay", "10s"), ("wal_writer_flush_after", "0")];
    let mut server = Postgres::start_with(&settings);
    let url = server.fresh();
    let store = open(&url);
    assert_eq!(found(&store, "synchronous_commit").0, Verdict::Good);
    pay(&ledger(&store), "a").unwrap();
    server.kill();
    server.start_again();
    assert!(pay(&ledger(&open(&url)), "a").unwrap().replayed());
}

#[test]
fn a_role_without_privileges_is_told_which_it_needs() {
    let server = Postgres::shared();
    drop(server.sql("create role stranger login"));
    let url = server.fresh().replace("postgres@", "stranger@");
    refused(&url, "let it own the ledger's schema");
    let schema = url.split_once("schema=").unwrap().1;
    drop(server.sql(&format!("create schema {schema} authorization stranger")));
    pay(&ledger(&open(&url)), "a").unwrap();
}

#[test]
fn a_missing_host_and_a_missing_database_are_reported() {
    let server = Postgres::shared();
    refused("postgres://postgres@127.0.0.1:1/postgres", "cannot be reached");
    refused(&server.url().replace("/postgres", "/nowhere").replace("//nowhere@", "//postgres@"), "nowhere");
}

#[test]
fn a_database_in_another_encoding_is_refused() {
    let server = Postgres::shared();
    let make = "create database latin encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0";
    drop(server.sql(make));
    refused(&format!("postgres://postgres@127.0.0.1:{}/latin", server.port()), "UTF8");
}

#[test]
fn an_asynchronous_standby_must_be_allowed_explicitly() {
    let server = Postgres::start();
    let standby = server.standby("second");
    let url = server.fresh();
    eventually("the standby is connected", || server.sql("select count(*) from pg_stat_replication") == "1");
    refused(&url, "standby=async");
    refused(&standby.fresh(), "standby or read-only");
    let allowed = open(&format!("{url}&standby=async"));
    eventually("the standby is seen", || found(&allowed, "standbys").0 == Verdict::Bad);
    server.synchronous("second");
    let store = open(&url);
    pay(&ledger(&store), "a").unwrap();
    let good = (Verdict::Good, "1 connected, all confirm each write".to_owned());
    eventually("the standby confirms", || found(&store, "standbys") == good);
}

#[test]
fn the_same_store_continues_with_the_promoted_standby() {
    let mut primary = Postgres::start();
    let mut standby = primary.standby("second");
    primary.synchronous("second");
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", primary.port(), standby.port());
    let url = primary.fresh().replace(&format!("127.0.0.1:{}", primary.port()), &hosts);
    let store = open(&url);
    let ledger = ledger(&store);
    for n in 0..20 {
        pay(&ledger, &format!("before-{n}")).unwrap();
    }
    primary.kill();
    standby.promote();
    for n in 0..20 {
        assert!(pay(&ledger, &format!("before-{n}")).unwrap().replayed(), "before-{n} was acknowledged");
    }
    pay(&ledger, "after").unwrap();
}

#[test]
fn a_silent_primary_does_not_hide_a_promoted_standby() {
    let primary = Postgres::start();
    let mut standby = primary.standby("second");
    primary.synchronous("second");
    let relay = Relay::to(primary.port());
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", relay.port(), standby.port());
    let url = primary.fresh().replace(&format!("127.0.0.1:{}", primary.port()), &hosts);
    let store = open(&format!("{url}&timeout=10s"));
    let ledger = ledger(&store);
    pay(&ledger, "before").unwrap();
    relay.stall();
    standby.promote();
    eventually("the standby is found", || pay(&ledger, "after").is_ok());
    assert!(pay(&ledger, "before").unwrap().replayed());
}

#[test]
fn a_write_that_the_standby_did_not_confirm_is_not_reported_as_written() {
    let server = Postgres::start();
    let mut standby = server.standby("second");
    server.synchronous("second");
    let store = open(&format!("{}&timeout=10s&connections=1", server.fresh()));
    let ledger = ledger(&store);
    pay(&ledger, "a").unwrap();
    standby.kill();
    std::thread::scope(|scope| {
        let paying = scope.spawn(|| pay(&ledger, "b"));
        // An operator cancels the commit that waits. The server then reports a success with a warning.
        let cancel = "select count(pg_cancel_backend(pid)) from pg_stat_activity \
                      where wait_event = 'SyncRep' and query like '%swap%'";
        eventually("a commit waits for the standby", || server.sql(cancel) != "0");
        let refused = paying.join().unwrap().unwrap_err();
        assert_eq!(refused.code(), onceward::Code::LedgerUnavailable, "{refused}");
    });
}

#[test]
fn through_a_pooler_waiting_callers_poll_and_health_reports_it() {
    let server = Postgres::shared();
    let pooler = server.pgbouncer();
    let url = pooler.fresh();
    let wire = Wire::to(pooler.port());
    let (here, there) = (open(&url), open(&wire.through(pooler.port(), &url)));
    let (verdict, said) = found(&here, "notifications");
    assert_eq!(verdict, Verdict::Look, "{said}");
    let intent = Operation::new("pay").key("a").intent().unwrap();
    let owner = ledger(&here);
    let onceward::Begun::Execute(claim) = owner.begin(&intent).unwrap() else { panic!("it is replayed") };
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pay(&ledger(&there), "a").unwrap());
        let before = wire.asked();
        eventually("the caller polls", || wire.asked() > before + 5);
        let done = onceward::Ending::Done(onceward::Outcome::with_effect(onceward::Effect::Created));
        owner.wait_for(claim.finish(done)).unwrap();
        assert!(waiting.join().unwrap().replayed());
    });
}

#[test]
fn health_reports_all_checks() {
    let store = open(&Postgres::shared().fresh());
    let findings = store.health().unwrap();
    let words: Vec<&str> = findings.iter().map(|finding| finding.what).collect();
    let expected = [
        "server",
        "disk",
        "synchronous_commit",
        "standbys",
        "encryption",
        "clock",
        "ledger",
        "schema",
        "notifications",
        "connections",
    ];
    assert_eq!(words, expected);
    assert!(findings.iter().all(|finding| finding.verdict == Verdict::Good), "{findings:?}");
}

#[test]
fn listings_of_a_large_ledger_use_an_index() {
    let server = Postgres::shared();
    let url = server.fresh();
    let store = open(&url);
    let schema = url.split_once("schema=").unwrap().1;
    drop(server.sql(&format!(
        "insert into {schema}.operation (id, version, attempt, created_ms, updated_ms, due_ms, kind, state, origin, scope, \
         name, key, detail) select 'op_' || translate(md5(i::text), '0189', 'wxyz'), 1, 1, i, i, i, 'operation', case when i % \
         10000 = 0 then 'running' when i % 10000 = 1 then 'failed' else 'done' end, 'given', 's' || i % 1000, 'n', \
         'k', '{{\"fingerprint\":\"f1_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\",\"class\":\"once\",\"max_attempts\":1,\
         \"retention_ms\":1,\"tombstone_ms\":1}}' from generate_series(1, 100000) as i; analyze {schema}.operation"
    )));
    let scanned = || {
        drop(server.sql("select pg_stat_clear_snapshot()"));
        server.sql(&format!(
            "select seq_tup_read from pg_stat_user_tables where schemaname = '{schema}' and relname = 'operation'"
        ))
    };
    let before = scanned();
    let list =
        |filter: Filter| pollster::block_on(store.list(&Filter { limit: 50, ..filter })).unwrap().len();
    use onceward::State::{Failed, InDoubt, Running};
    assert_eq!(list(Filter::default()), 50);
    assert_eq!(list(Filter { states: vec![Running], ..Filter::default() }), 10);
    assert_eq!(list(Filter { states: vec![Failed, Running, InDoubt], ..Filter::default() }), 20);
    assert_eq!(list(Filter { scope: Some("s7".to_owned()), ..Filter::default() }), 50);
    assert_eq!(pollster::block_on(store.due(70, 500)).unwrap().len(), 70);
    drop(store);
    // A connection reports its statistics at the latest when it ends.
    let connected = format!(
        "select count(*) from pg_stat_activity where query like '%{schema}%' and pid <> pg_backend_pid()"
    );
    eventually("the connections have ended", || server.sql(&connected) == "0");
    assert_eq!(scanned(), before, "the whole table was read");
}

#[test]
fn the_tables_are_readable_in_a_shell() {
    let server = Postgres::shared();
    let url = server.fresh();
    pay(&ledger(&open(&url)), "a").unwrap();
    let schema = url.split_once("schema=").unwrap().1;
    let question = format!(
        "select name, key, state, detail::json->>'class', outcome::json->>'effect', outcome::json->>'data' \
         from {schema}.operation"
    );
    assert_eq!(server.sql(&question), "pay|a|done|once|created|a");
}

#[test]
fn unlogged_and_unguarded_tables_are_refused_until_they_are_fixed() {
    let server = Postgres::shared();
    let (logged, guarded) = ("SET LOGGED", "ENABLE ALWAYS TRIGGER emptied");
    for (more, table, worse, better) in [
        ("", "operation", "set unlogged", logged),
        ("&partitions=2", "operation_1", "set unlogged", logged),
        ("", "operation", "disable trigger all", guarded),
        ("&partitions=2", "operation_1", "disable trigger emptied", guarded),
    ] {
        let url = server.fresh();
        let schema = url.split_once("schema=").unwrap().1;
        let mut options = PostgresOptions::parse(&format!("{url}{more}")).unwrap();
        options.check_interval = std::time::Duration::from_millis(50);
        let store = PostgresStore::open(options).unwrap();
        let ledger = ledger(&store);
        pay(&ledger, "before").unwrap();
        drop(server.sql(&format!("alter table {schema}.{table} {worse}")));
        refused(&url, better);
        refused(&url, table);
        // An open store finds out when it checks the settings again.
        let (mut refusal, mut number) = (None, 0);
        eventually("new operations are refused", || {
            number += 1;
            refusal = pay(&ledger, &format!("new-{number}")).err();
            refusal.is_some()
        });
        assert!(refusal.unwrap().to_string().contains(better), "{table}");
        drop(server.sql(&format!("alter table {schema}.{table} {better}")));
        eventually("new operations run again", || {
            number += 1;
            pay(&ledger, &format!("mended-{number}")).is_ok()
        });
        drop(open(&url));
    }
}

#[test]
fn an_unlogged_table_with_the_identity_is_refused() {
    let server = Postgres::shared();
    let url = server.fresh();
    drop(open(&url));
    drop(server.sql(&format!("alter table {}.meta set unlogged", url.split_once("schema=").unwrap().1)));
    refused(&url, "SET LOGGED");
}

#[test]
fn writes_that_a_trigger_suppresses_are_reported_and_not_retried_without_end() {
    let server = Postgres::shared();
    let url = server.fresh();
    let schema = url.split_once("schema=").unwrap().1;
    let ledger = ledger(&open(&format!("{url}&timeout=10s")));
    let nothing = format!(
        "create function {schema}.nothing() returns trigger language plpgsql as 'begin return null; end'"
    );
    drop(server.sql(&nothing));
    let suppress = |event: &str| {
        drop(server.sql(&format!(
            "create or replace trigger swallow before {event} on {schema}.operation for each row execute function \
             {schema}.nothing()"
        )));
    };
    suppress("insert");
    let refused = pay(&ledger, "a").err().unwrap();
    assert_eq!(refused.code(), onceward::Code::LedgerUnavailable, "{refused}");
    assert!(!refused.ran().as_bool() && refused.to_string().contains("trigger"), "{refused}");
    // The intent is written, and its end is not.
    suppress("update");
    let unrecorded = pay(&ledger, "b").err().unwrap();
    assert_eq!(unrecorded.code(), onceward::Code::InDoubt, "{unrecorded}");
    assert!(unrecorded.ran().as_bool() && unrecorded.to_string().contains("trigger"), "{unrecorded}");
}
