//! Changes under an open store: the settings of its server, and the server's clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::watch::{eventually, patient, pay};
use onceward::{Blocking, Code, Ledger, Store};
use onceward_store::postgres::{PostgresOptions, PostgresStore};
use onceward_testkit::Postgres;

/// How often a store looks at its server here.
const LOOK: Duration = Duration::from_millis(50);

fn open(url: &str) -> Arc<PostgresStore> {
    let mut options = PostgresOptions::parse(&patient(url)).unwrap();
    options.check_interval = LOOK;
    PostgresStore::open(options).unwrap()
}

fn ledger(store: &Arc<PostgresStore>) -> Blocking {
    Ledger::new(Arc::clone(store) as Arc<dyn Store>).blocking()
}

fn set(server: &Postgres, setting: &str) {
    drop(server.sql(&format!("alter system set {setting}")));
    drop(server.sql("select pg_reload_conf()"));
}

/// Calls until one is refused, or until one succeeds. Returns the refusal.
#[track_caller]
fn until(ledger: &Blocking, refused: bool) -> String {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let mut said = String::new();
    let what = if refused { "a call is refused" } else { "a call succeeds" };
    eventually(what, || match pay(ledger, &format!("n{}", CALLS.fetch_add(1, Ordering::SeqCst))) {
        Ok(_) => !refused,
        Err(error) => {
            // A call that is under way when the change is noticed cannot record its end, and is in doubt.
            assert!(matches!(error.code(), Code::LedgerUnavailable | Code::InDoubt), "{error}");
            said = error.to_string();
            refused && error.code() == Code::LedgerUnavailable
        }
    });
    said
}

#[test]
fn a_store_stops_while_its_servers_settings_are_unsafe() {
    let server = Postgres::start();
    let url = server.fresh();
    let store = open(&url);
    let ledger = ledger(&store);
    pay(&ledger, "a").unwrap();
    for (broken, fixed) in
        [("fsync = off", "fsync = on"), ("full_page_writes = off", "full_page_writes = on")]
    {
        set(&server, broken);
        let said = until(&ledger, true);
        assert!(said.contains("fsync or full_page_writes off"), "{said}");
        assert!(pay(&ledger, "a").unwrap().replayed(), "finished results are still replayed");
        set(&server, fixed);
        until(&ledger, false);
    }
    let standby = server.standby("second");
    let said = until(&ledger, true);
    assert!(said.contains("asynchronous standby"), "{said}");
    server.synchronous("second");
    until(&ledger, false);
    drop(standby);
}

#[test]
fn a_store_that_is_always_busy_also_checks_its_server() {
    let server = Postgres::start();
    let store = open(&format!("{}&connections=1", server.fresh()));
    let ledger = ledger(&store);
    pay(&ledger, "a").unwrap();
    set(&server, "fsync = off");
    let calls = AtomicUsize::new(0);
    let busy = |caller: usize| {
        while pay(&ledger, &format!("{caller}-{}", calls.fetch_add(1, Ordering::SeqCst))).is_ok() {}
    };
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..4).map(|caller| scope.spawn(move || busy(caller))).collect();
        eventually("all callers are refused", || callers.iter().all(|caller| caller.is_finished()));
    });
}

#[test]
fn a_newer_schema_version_stops_an_open_store() {
    let server = Postgres::shared();
    let url = server.fresh();
    let store = open(&url);
    let ledger = ledger(&store);
    pay(&ledger, "a").unwrap();
    let schema = url.split_once("schema=").unwrap().1;
    drop(server.sql(&format!("update {schema}.meta set value = '99' where name = 'schema'")));
    let said = until(&ledger, true);
    assert!(said.contains("another version"), "{said}");
}

#[test]
fn a_store_waits_for_a_server_that_became_read_only() {
    let server = Postgres::start();
    let store = open(&format!("{}&timeout=10s", server.fresh()));
    let ledger = ledger(&store);
    pay(&ledger, "a").unwrap();
    set(&server, "default_transaction_read_only = on");
    // A call in progress at that moment cannot record its end and is in doubt. Those after it are refused.
    let mut calls = 0..;
    eventually("calls are refused", || {
        let paid = pay(&ledger, &format!("{:?}", calls.next()));
        paid.is_err_and(|error| error.code() == Code::LedgerUnavailable)
    });
    drop(server.sql("set default_transaction_read_only = off; select 1"));
    set(&server, "default_transaction_read_only = off");
    until(&ledger, false);
}

#[test]
fn setting_the_servers_clock_causes_no_second_effect_and_no_endless_wait() {
    let server = Postgres::start_with_clock();
    for steps_s in crate::watch::CLOCK_STEPS_S {
        let url = server.fresh();
        crate::watch::set_clock_in_use(|ahead_s| server.set_clock(ahead_s), || open(&url), steps_s);
    }
}

#[test]
fn the_mark_of_the_ledgers_time_only_advances() {
    let server = Postgres::shared();
    let url = server.fresh();
    let schema = url.split_once("schema=").unwrap().1;
    let mark = format!("select split_part(value, ' ', 1) from {schema}.meta where name = 'clock'");
    drop(open(&url));
    assert_eq!(server.sql(&mark), "0", "opening without writing leaves it alone");
    let store = open(&url);
    pay(&ledger(&store), "a").unwrap();
    let first: i64 = server.sql(&mark).parse().unwrap();
    assert!((store.clock().now_ms() - first).abs() < 60_000, "{first}");
    pay(&ledger(&store), "b").unwrap();
    assert_eq!(server.sql(&mark), first.to_string(), "it is not written each time");
    let ahead = first + 3_600_000;
    drop(server.sql(&format!("update {schema}.meta set value = '{ahead} 5 elsewhere' where name = 'clock'")));
    pay(&ledger(&open(&url)), "c").unwrap();
    assert!(server.sql(&mark).parse::<i64>().unwrap() >= ahead, "it went back");
}
