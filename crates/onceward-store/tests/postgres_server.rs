//! What the PostgreSQL store wants of its server: settings, rights, versions, standbys; and what it says where they
//! are not so.
#![expect(clippy::unwrap_used, reason = "a test that cannot set up its ground fails")]

use std::sync::Arc;

use onceward::{Blocking, Filter, Ledger, Operation, Receipt, Store};
use onceward_harness::{Postgres, Relay};
use onceward_store::{Backend, PostgresOptions, PostgresStore, Verdict};

fn try_open(url: &str) -> Result<Arc<PostgresStore>, onceward::StoreError> {
    PostgresStore::open(PostgresOptions::parse(url).unwrap())
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
fn twenty_may_start_at_once_on_a_new_ledger() {
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
    refused(&url, "newer version");
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
    refused(&format!("{url}&partitions=4"), "made with 2 partitions");
}

#[test]
fn a_server_that_forgets_what_it_acknowledged_is_refused() {
    for setting in ["fsync", "full_page_writes"] {
        let server = Postgres::start_with(&[(setting, "off")]);
        refused(&server.fresh(), "fsync or full_page_writes off");
    }
}

#[test]
fn a_commit_is_synced_whatever_the_server_says_by_default() {
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
fn a_role_without_rights_hears_which() {
    let server = Postgres::shared();
    drop(server.sql("create role stranger login"));
    let url = server.fresh().replace("postgres@", "stranger@");
    refused(&url, "let it own the ledger's schema");
    let schema = url.split_once("schema=").unwrap().1;
    drop(server.sql(&format!("create schema {schema} authorization stranger")));
    pay(&ledger(&open(&url)), "a").unwrap();
}

#[test]
fn a_host_that_is_not_there_and_a_database_that_is_not_there_are_said() {
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
fn a_standby_that_confirms_nothing_must_be_allowed_by_name() {
    let server = Postgres::start();
    let standby = server.standby("second");
    let url = server.fresh();
    refused(&url, "standby=async");
    refused(&standby.fresh(), "standby or read-only");
    let allowed = open(&format!("{url}&standby=async"));
    assert_eq!(found(&allowed, "standbys").0, Verdict::Bad);
    server.synchronous("second");
    let store = open(&url);
    pay(&ledger(&store), "a").unwrap();
    let (verdict, said) = found(&store, "standbys");
    assert_eq!((verdict, said.as_str()), (Verdict::Good, "1 connected, all confirm each write"));
}

#[test]
fn the_same_store_goes_on_with_the_standby_that_was_promoted() {
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
fn a_primary_that_falls_silent_hides_no_promoted_standby() {
    let primary = Postgres::start();
    let mut standby = primary.standby("second");
    primary.synchronous("second");
    let relay = Relay::to(primary.port());
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", relay.port(), standby.port());
    let url = primary.fresh().replace(&format!("127.0.0.1:{}", primary.port()), &hosts);
    let store = open(&format!("{url}&timeout=1s"));
    let ledger = ledger(&store);
    pay(&ledger, "before").unwrap();
    relay.stall();
    standby.promote();
    let begun = std::time::Instant::now();
    while pay(&ledger, "after").is_err() {
        assert!(begun.elapsed().as_secs() < 10, "the standby is not found");
    }
    assert!(pay(&ledger, "before").unwrap().replayed());
}

#[test]
fn a_write_that_the_standby_did_not_confirm_is_not_reported_as_written() {
    let server = Postgres::start();
    let mut standby = server.standby("second");
    server.synchronous("second");
    let store = open(&format!("{}&timeout=1500ms&connections=1", server.fresh()));
    let ledger = ledger(&store);
    pay(&ledger, "a").unwrap();
    standby.kill();
    std::thread::scope(|scope| {
        let paying = scope.spawn(|| pay(&ledger, "b"));
        // Somebody loses patience with the commit that waits: the server then reports a success with a warning.
        let cancel = "select count(pg_cancel_backend(pid)) from pg_stat_activity \
                      where wait_event = 'SyncRep' and query like '%swap_1%'";
        let begun = std::time::Instant::now();
        while server.sql(cancel) == "0" {
            assert!(begun.elapsed().as_secs() < 5, "nobody waits for the standby");
        }
        let refused = paying.join().unwrap().unwrap_err();
        assert_eq!(refused.code(), onceward::Code::LedgerUnavailable, "{refused}");
    });
}

#[test]
fn through_a_pooler_waiting_asks_and_health_says_so() {
    let server = Postgres::shared();
    let pooler = server.pgbouncer();
    let url = pooler.fresh();
    let (here, there) = (open(&url), open(&url));
    let (verdict, said) = found(&here, "notifications");
    assert_eq!(verdict, Verdict::Look, "{said}");
    let intent = Operation::new("pay").key("a").intent().unwrap();
    let owner = ledger(&here);
    let onceward::Begun::Execute(claim) = owner.wait_for(owner.ledger().begin(&intent)).unwrap() else {
        panic!("it is replayed")
    };
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pay(&ledger(&there), "a").unwrap());
        std::thread::sleep(std::time::Duration::from_millis(200));
        let done = onceward::Ending::Done(onceward::Outcome::with_effect(onceward::Effect::Created));
        owner.wait_for(claim.finish(done)).unwrap();
        assert!(waiting.join().unwrap().replayed());
    });
}

#[test]
fn health_says_what_there_is() {
    let store = open(&Postgres::shared().fresh());
    let findings = store.health().unwrap();
    let words: Vec<&str> = findings.iter().map(|finding| finding.what).collect();
    let expected = [
        "server",
        "disk",
        "synchronous_commit",
        "standbys",
        "clock",
        "schema",
        "notifications",
        "connections",
    ];
    assert_eq!(words, expected);
    assert!(findings.iter().all(|finding| finding.verdict == Verdict::Good), "{findings:?}");
}

#[test]
fn listings_of_a_large_ledger_come_from_an_index() {
    let server = Postgres::shared();
    let url = server.fresh();
    let store = open(&url);
    let schema = url.split_once("schema=").unwrap().1;
    drop(server.sql(&format!(
        "insert into {schema}.operation (id, version, attempt, created_ms, updated_ms, due_ms, state, origin, scope, \
         name, key, detail) select 'op_' || translate(md5(i::text), '0189', 'wxyz'), 1, 1, i, i, i, case when i % \
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
    std::thread::sleep(std::time::Duration::from_millis(1_200));
    drop(store);
    assert_eq!(scanned(), before, "the whole table was read");
}

#[test]
fn the_tables_read_well_in_a_shell() {
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
