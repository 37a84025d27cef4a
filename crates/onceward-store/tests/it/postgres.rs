//! What is specific to the PostgreSQL store: round trips, waiting without polling, lost replies, and servers that
//! stop and come back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::watch::patient;
use crate::wire::Wire;
use onceward::{Blocking, Code, Failure, Filter, Ledger, Operation, Receipt, State, Store, Swap, WriteMode};
use onceward_store::Backend;
use onceward_store::postgres::{PostgresOptions, PostgresStore};
use onceward_testkit::{Postgres, Relay, eventually};

/// More than ten times the time limit of these stores, for a machine that is busy.
const SOON: Duration = Duration::from_secs(60);

fn open(url: &str) -> Arc<PostgresStore> {
    PostgresStore::open(PostgresOptions::parse(&patient(url)).unwrap()).unwrap()
}

fn ledger(store: &Arc<PostgresStore>) -> Blocking {
    Ledger::new(Arc::clone(store) as Arc<dyn Store>).blocking()
}

fn pay(ledger: &Blocking, key: &str) -> Result<Receipt, onceward::Error> {
    ledger.run(Operation::new("pay").key(key), |attempt| {
        Ok::<_, Failure>(attempt.dispatch()?.created(&serde_json::json!({"id": 42})))
    })
}

/// Returns when the store receives notifications.
fn await_notifications(store: &PostgresStore) {
    eventually("notifications are delivered", || {
        let findings = store.health().unwrap();
        let found = findings.iter().find(|finding| finding.what == "notifications").unwrap();
        found.found.starts_with("delivered")
    });
}

/// The schema in the URL of a fresh ledger.
fn schema(url: &str) -> &str {
    url.split_once("schema=").unwrap().1.split('&').next().unwrap()
}

/// The same URL with another port.
fn via(url: &str, from: u16, to: u16) -> String {
    url.replace(&format!(":{from}/"), &format!(":{to}/"))
}

#[test]
fn a_first_call_takes_one_round_trip_and_its_end_another() {
    let server = Postgres::shared();
    let wire = Wire::to(server.port());
    let server_url = &server.fresh();
    let store = open(&wire.through(server.port(), server_url));
    let ledger = ledger(&store);
    let intent = Operation::new("pay").key("a").intent().unwrap();
    let (asked, begun) = wire.asked_by(|| ledger.begin(&intent).unwrap());
    assert_eq!(asked, 1, "to begin");
    let onceward::Begun::Execute(claim) = begun else { panic!("it is replayed") };
    let done = onceward::Ending::Done(onceward::Outcome::with_effect(onceward::Effect::Created));
    let (asked, _) = wire.asked_by(|| ledger.wait_for(claim.finish(done)).unwrap());
    assert_eq!(asked, 1, "to finish");
    await_notifications(&store);
    // Where the server is slow, the cache may be out of use for a while.
    eventually("a cached result is replayed without a request", || {
        let (asked, receipt) = wire.asked_by(|| pay(&ledger, "a").unwrap());
        assert!(receipt.replayed());
        asked == 0
    });
    let apart = Wire::to(server.port());
    let other = open(&apart.through(server.port(), server_url));
    let other_ledger = self::ledger(&other);
    let (asked, receipt) = apart.asked_by(|| pay(&other_ledger, "a").unwrap());
    assert!(receipt.replayed());
    assert_eq!(asked, 1, "to replay a result that is not cached");
}

#[test]
fn a_replay_from_the_server_does_not_wait_for_the_disk() {
    let server = Postgres::start();
    let url = format!("{}&notify=no", server.fresh());
    let store = open(&url);
    let ledger = ledger(&store);
    pay(&ledger, "a").unwrap();
    let at: String = server.sql("select pg_current_wal_insert_lsn()");
    for _ in 0..100 {
        assert!(pay(&ledger, "a").unwrap().replayed());
    }
    // One commit per replay would write many times that. Only the position sequence is logged now and then.
    let bytes = server.sql(&format!("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '{at}')"));
    assert!(bytes.parse::<u64>().unwrap() < 3_000, "{bytes} bytes were written");
}

#[test]
fn a_waiting_caller_is_notified_and_does_not_poll() {
    let server = Postgres::shared();
    let url = server.fresh();
    let wire = Wire::to(server.port());
    let (here, there) = (open(&url), open(&wire.through(server.port(), &url)));
    await_notifications(&there);
    let intent = Operation::new("pay").key("a").intent().unwrap();
    let owner = ledger(&here);
    let onceward::Begun::Execute(claim) = owner.begin(&intent).unwrap() else { panic!("it is replayed") };
    let waiter = ledger(&there);
    let watched = format!("select count(*) from {}.operation where watched", schema(&url));
    let receipt = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pay(&waiter, "a").unwrap());
        eventually("the caller waits to be notified", || server.sql(&watched) == "1");
        // It reads the record once more, and then asks for nothing. A polling caller would ask ten times a second.
        let (asked, checked) = (wire.asked(), wire.checked());
        eventually("the listening connection is checked, every two seconds", || wire.checked() > checked + 1);
        let asked = wire.asked() - asked;
        assert!(asked < 10, "the caller asked {asked} times");
        let done = onceward::Ending::Done(onceward::Outcome::with_effect(onceward::Effect::Created));
        owner.wait_for(claim.finish(done)).unwrap();
        waiting.join().unwrap()
    });
    assert!(receipt.replayed());
}

#[test]
fn replays_soon_come_from_the_cache() {
    let url = Postgres::shared().fresh();
    let id = pay(&ledger(&open(&url)), "a").unwrap().record().id.clone();
    let there = open(&url);
    eventually("the server is not asked each time", || {
        assert!(pay(&ledger(&there), "a").unwrap().replayed());
        pollster::block_on(there.load_cached(&id)).unwrap().is_some()
    });
}

#[test]
fn a_record_changed_elsewhere_is_soon_not_served_from_the_cache() {
    let url = Postgres::shared().fresh();
    let (here, there) = (open(&url), open(&url));
    await_notifications(&there);
    let id = pay(&ledger(&there), "a").unwrap().record().id.clone();
    assert!(pollster::block_on(there.load_cached(&id)).unwrap().is_some(), "it is cached");
    let settler = ledger(&here);
    settler.admin().forget(&id).unwrap();
    eventually("it is no longer served", || pollster::block_on(there.load_cached(&id)).unwrap().is_none());
    assert!(!pay(&ledger(&there), "a").unwrap().replayed(), "it was forgotten, so it runs");
}

#[test]
fn a_lost_reply_is_not_a_conflict_with_itself() {
    let server = Postgres::shared();
    let relay = Relay::to(server.port());
    let url = via(&server.fresh(), server.port(), relay.port());
    // Only this connection is left, so the lost reply must be its own.
    let store = open(&format!("{url}&connections=1&notify=no"));
    let record = onceward::transition::stage(&Operation::new("pay").key("a").intent().unwrap(), 1);
    let next = onceward::Record { version: 2, state: State::Done, ..record.clone() };
    for (expected, record) in [(None, &record), (Some(1), &next)] {
        relay.drop_replies_once();
        let swap = pollster::block_on(store.swap(expected, record.clone(), WriteMode::Async)).unwrap();
        assert!(matches!(swap, Swap::Written(_)), "{swap:?}");
    }
    assert_eq!(relay.replies_dropped(), 2);
    // A conflict with another caller remains a conflict.
    let other = onceward::Record { attempt: 9, ..next.clone() };
    relay.drop_replies_once();
    let swap = pollster::block_on(store.swap(Some(1), other, WriteMode::Async)).unwrap();
    assert!(matches!(swap, Swap::Conflict(Some(_))), "{swap:?}");
    // For a delete it is unknown who deleted the record.
    relay.drop_replies_once();
    let deleted = pollster::block_on(store.delete(&record.id, 2, WriteMode::Async));
    assert!(deleted.is_err(), "{deleted:?}");
    assert!(pollster::block_on(store.load(&record.id)).unwrap().is_none());
}

#[test]
fn lost_replies_under_load_neither_lose_nor_repeat_an_effect() {
    let server = Postgres::shared();
    let relay = Relay::to(server.port());
    let store = open(&via(&server.fresh(), server.port(), relay.port()));
    let ledger = ledger(&store);
    let effects = std::sync::atomic::AtomicUsize::new(0);
    let done = || effects.load(std::sync::atomic::Ordering::SeqCst);
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..8)
            .map(|caller| {
                let (ledger, effects) = (&ledger, &effects);
                scope.spawn(move || {
                    for n in 0..100 {
                        let operation = Operation::new("pay").key(format!("{caller}-{n}"));
                        let receipt = ledger.run(operation, |attempt| {
                            effects.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                            Ok::<_, Failure>(attempt.dispatch()?.created(&n))
                        });
                        assert!(!receipt.unwrap().replayed());
                    }
                })
            })
            .collect();
        let over = || callers.iter().all(std::thread::ScopedJoinHandle::is_finished);
        while !over() {
            relay.drop_replies_once();
            let before = done();
            eventually("the calls go on", || over() || done() > before + 20);
        }
    });
    assert_eq!(effects.into_inner(), 800);
    assert!(relay.replies_dropped() > 2, "{} replies were lost", relay.replies_dropped());
    assert_eq!(
        pollster::block_on(store.counts(&onceward::Filter::default())).unwrap().get(&State::Done),
        Some(&800)
    );
}

#[test]
fn a_stopped_server_is_reported_in_time_and_found_again() {
    let mut server = Postgres::start();
    let store = open(&format!("{}&timeout=10s", server.fresh()));
    let ledger = ledger(&store);
    pay(&ledger, "a").unwrap();
    server.stop();
    let begun = Instant::now();
    let refused = pay(&ledger, "b").unwrap_err();
    assert_eq!(refused.code(), Code::LedgerUnavailable, "{refused}");
    assert!(begun.elapsed() < SOON, "it took {:?}", begun.elapsed());
    server.start_again();
    assert!(!pay(&ledger, "b").unwrap().replayed());
    server.kill();
    server.start_again();
    assert!(pay(&ledger, "b").unwrap().replayed(), "what was acknowledged survived kill -9");
}

#[test]
fn a_network_partition_is_reported_in_time_and_its_end_noticed() {
    let server = Postgres::shared();
    let relay = Relay::to(server.port());
    let store = open(&format!("{}&timeout=10s", via(&server.fresh(), server.port(), relay.port())));
    let ledger = ledger(&store);
    pay(&ledger, "a").unwrap();
    relay.stall();
    let begun = Instant::now();
    let refused = pay(&ledger, "b").unwrap_err();
    assert_eq!(refused.code(), Code::LedgerUnavailable, "{refused}");
    assert!(begun.elapsed() < SOON, "it took {:?}", begun.elapsed());
    relay.mend();
    pay(&ledger, "c").unwrap();
}

#[test]
fn a_waiting_caller_is_woken_even_if_the_listening_connection_is_lost() {
    let server = Postgres::shared();
    let url = server.fresh();
    let relay = Relay::to(server.port());
    let (here, there) = (open(&url), open(&via(&url, server.port(), relay.port())));
    await_notifications(&there);
    let intent = Operation::new("pay").key("a").intent().unwrap();
    let owner = ledger(&here);
    let onceward::Begun::Execute(claim) = owner.begin(&intent).unwrap() else { panic!("it is replayed") };
    let waiter = ledger(&there);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pay(&waiter, "a").unwrap());
        let watched = format!("select count(*) from {}.operation where watched", schema(&url));
        eventually("the caller waits", || server.sql(&watched) == "1");
        relay.cut();
        let done = onceward::Ending::Done(onceward::Outcome::with_effect(onceward::Effect::Created));
        owner.wait_for(claim.finish(done)).unwrap();
        relay.mend();
        // A caller that is not woken gives up after its time, and is refused.
        assert!(waiting.join().unwrap().replayed());
    });
}

#[test]
fn a_lock_on_one_record_does_not_delay_others() {
    let server = Postgres::shared();
    let url = server.fresh();
    let store = open(&url);
    let ledger = ledger(&store);
    let record = onceward::transition::stage(&Operation::new("pay").key("held").intent().unwrap(), 1);
    pollster::block_on(store.swap(None, record.clone(), WriteMode::Async)).unwrap();
    let hold = format!(
        "begin; update {0}.operation set replays = 0 where id = '{1}'; do $$ begin for look in 1..2400 loop exit when exists \
         (select from pg_tables where schemaname = '{0}' and tablename = 'released'); perform pg_sleep(0.05); end loop; \
         end $$; commit",
        schema(&url),
        record.id
    );
    let release = format!("create table {}.released ()", schema(&url));
    std::thread::scope(|scope| {
        let holder = scope.spawn(|| drop(server.sql(&hold)));
        let sleeping = format!(
            "select count(*) from pg_stat_activity where wait_event = 'PgSleep' and query like '%{}.%'",
            schema(&url)
        );
        eventually("the record is locked", || server.sql(&sleeping) == "1");
        let next = onceward::Record { version: 2, ..record.clone() };
        let held = scope.spawn(|| pollster::block_on(store.swap(Some(1), next, WriteMode::Async)));
        let others: Vec<_> = (0..8)
            .map(|caller| {
                let ledger = &ledger;
                scope.spawn(move || {
                    (0..5).map(|n| pay(ledger, &format!("{caller}-{n}"))).all(|paid| paid.is_ok())
                })
            })
            .collect();
        assert!(others.into_iter().all(|other| other.join().unwrap()));
        assert!(!holder.is_finished(), "the record is still locked, so the others did not wait for it");
        drop(server.sql(&release));
        match held.join().unwrap() {
            Ok(swap) => assert!(matches!(swap, Swap::Written(_))),
            // It was given up before the release, which a busy machine delays.
            Err(refused) => {
                assert!(refused.to_string().contains("another transaction has locked"), "{refused}")
            }
        }
        holder.join().unwrap();
    });
}

#[test]
fn replays_are_tallied_and_survive_closing() {
    let server = Postgres::shared();
    let url = server.fresh();
    let store = open(&url);
    let ledger = ledger(&store);
    for _ in 0..4 {
        pay(&ledger, "a").unwrap();
    }
    let listed = pollster::block_on(store.list(&Filter { limit: 9, ..Filter::default() })).unwrap();
    assert_eq!(listed.first().unwrap().record.replays, 3, "a listing includes them all");
    pay(&ledger, "a").unwrap();
    drop((ledger, store));
    let replays = format!("select replays from {}.operation", schema(&url));
    assert_eq!(server.sql(&replays), "4");
}

#[test]
fn many_callers_share_statements_and_lose_nothing() {
    let server = Postgres::shared();
    let url = server.fresh();
    let store = open(&url);
    let ledger = ledger(&store);
    std::thread::scope(|scope| {
        for caller in 0..16 {
            let ledger = &ledger;
            scope.spawn(move || {
                for n in 0..50 {
                    pay(ledger, &format!("{caller}-{n}")).unwrap();
                }
            });
        }
    });
    let done = format!("select count(*) from {}.operation where state = 'done'", schema(&url));
    assert_eq!(server.sql(&done), "800");
}

#[test]
fn one_change_that_cannot_be_written_does_not_fail_the_others() {
    let server = Postgres::shared();
    let url = server.fresh();
    let store = open(&format!("{url}&connections=1"));
    // Like a damaged index or a custom trigger would: this change is rejected.
    let refuse = format!(
        "create function {0}.refuse() returns trigger language plpgsql as $$ begin raise 'no'; end $$; \
         create trigger refuse before insert on {0}.operation for each row when (new.key = 'bad') \
         execute function {0}.refuse()",
        schema(&url)
    );
    drop(server.sql(&refuse));
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..8)
            .flat_map(|n| [format!("good-{n}"), "bad".to_owned()])
            .map(|key| {
                let store = &store;
                scope.spawn(move || (pay(&ledger(store), &key).is_ok(), key))
            })
            .collect();
        for caller in callers {
            let (written, key) = caller.join().unwrap();
            assert_eq!(written, key != "bad", "{key}");
        }
    });
}
