//! Changes under an open Redis store: new replicas, changed settings, clocks that are set, and sentinels that report
//! another primary. Also the privileges that a store needs.

use std::sync::Arc;

use crate::watch::{eventually, patient, pay};
use onceward::{Blocking, Code, Filter, Ledger, Record, State, Store, WriteMode};
use onceward_store::redis::{RedisOptions, RedisStore};
use onceward_store::{Backend, Verdict};
use onceward_testkit::{Redis, Relay, Sentinels};

/// How often a store looks at its server here.
const LOOK: std::time::Duration = std::time::Duration::from_millis(50);

fn open(url: &str) -> Arc<RedisStore> {
    let options = RedisOptions { check_interval: LOOK, ..RedisOptions::parse(&patient(url)).unwrap() };
    RedisStore::open(options).unwrap()
}

fn ledger(url: &str) -> Blocking {
    Ledger::new(open(url)).blocking()
}

#[test]
fn a_new_replica_must_confirm_at_once() {
    let primary = Redis::start();
    let relay = Relay::to(primary.port());
    let url = format!("{}&wait_timeout=10s&timeout=30s", primary.fresh());
    let ledger = ledger(&url);
    pay(&ledger, "before").unwrap();
    let _replica = primary.replica_through(&relay);
    relay.stall();
    // Already this call waits for the replica, not only calls after the next settings check.
    let error = pay(&ledger, "a").unwrap_err();
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    relay.mend();
    eventually("the replica confirms again", || pay(&ledger, "b").is_ok());
    // The ledger remembers the replica, for stores that are opened after it is gone.
    let prefix = url.split("prefix=").nth(1).unwrap().split('&').next().unwrap();
    let meta = format!("{{{prefix}:0}}:ledger");
    eventually("it is recorded in the ledger", || primary.cli(&["HGET", &meta, "wait"]) == "1");
}

#[test]
fn a_replica_that_is_still_loading_its_first_copy_counts() {
    let primary = Redis::start();
    let url = format!("{}&wait_timeout=10s&timeout=30s", primary.fresh());
    let ledger = ledger(&url);
    for key in 0..20 {
        pay(&ledger, &key.to_string()).unwrap();
    }
    // Slows down the copy.
    assert_eq!(primary.cli(&["CONFIG", "SET", "rdb-key-save-delay", "200000"]), "OK");
    let leader = format!("127.0.0.1 {}", primary.port());
    let _replica = Redis::start_with(&[("replicaof", &leader)]);
    eventually("the copy has begun", || primary.cli(&["INFO", "replication"]).contains("connected_slaves:1"));
    let error = pay(&ledger, "meanwhile").unwrap_err();
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    assert_eq!(primary.cli(&["CONFIG", "SET", "rdb-key-save-delay", "0"]), "OK");
    drop(primary.cli(&["CLIENT", "KILL", "TYPE", "replica"]));
    eventually("the replica has its copy", || pay(&ledger, "after").is_ok());
}

#[test]
fn a_client_that_only_fetches_a_copy_is_not_a_replica() {
    let primary = Redis::start();
    let ledger = ledger(&format!("{}&wait_timeout=10s&timeout=30s", primary.fresh()));
    pay(&ledger, "before").unwrap();
    let port = primary.port().to_string();
    assert_eq!(primary.cli(&["CONFIG", "SET", "rdb-key-save-delay", "20000"]), "OK");
    std::thread::scope(|scope| {
        let file = primary.folder().join("backup.rdb");
        let copying = scope.spawn(move || {
            std::process::Command::new("redis-cli").args(["-p", &port, "--rdb"]).arg(file).output().unwrap()
        });
        eventually("the copy has begun", || {
            primary.cli(&["INFO", "replication"]).contains("connected_slaves:1") || copying.is_finished()
        });
        pay(&ledger, "meanwhile").unwrap();
        assert!(copying.join().unwrap().status.success());
    });
    pay(&ledger, "after").unwrap();
}

#[test]
fn unsafe_settings_stop_an_open_store_until_they_are_fixed() {
    let table = [
        ("appendfsync", "everysec", "always", "appendfsync always"),
        ("appendonly", "no", "yes", "appendonly yes"),
        ("no-appendfsync-on-rewrite", "yes", "no", "no-appendfsync-on-rewrite no"),
        ("maxmemory-policy", "allkeys-lru", "noeviction", "noeviction"),
    ];
    let server = Redis::start_with(&[("maxmemory", "1gb")]);
    let ledger = ledger(&server.fresh());
    for (name, worse, better, advice) in table {
        pay(&ledger, name).unwrap();
        assert_eq!(server.cli(&["CONFIG", "SET", name, worse]), "OK");
        let (mut said, mut number) = (String::new(), 0);
        eventually(name, || {
            number += 1;
            let Err(error) = pay(&ledger, &format!("{name}-{number}")) else { return false };
            // A call that is under way when the change is noticed cannot record its end, and is in doubt.
            assert!(matches!(error.code(), Code::LedgerUnavailable | Code::InDoubt), "{error}");
            said = error.to_string();
            error.code() == Code::LedgerUnavailable
        });
        assert!(said.contains(advice), "{said}");
        assert_eq!(server.cli(&["CONFIG", "SET", name, better]), "OK");
        eventually("it is fixed", || pay(&ledger, &format!("{name}-after")).is_ok());
    }
}

#[test]
fn setting_the_servers_clock_causes_no_second_effect_and_no_endless_wait() {
    let server = Redis::start_with_clock();
    for steps_s in crate::watch::CLOCK_STEPS_S {
        let url = server.fresh();
        crate::watch::set_clock_in_use(|ahead_s| server.set_clock(ahead_s), || open(&url), steps_s);
    }
}

#[test]
fn the_mark_of_the_ledgers_time_only_advances() {
    let server = Redis::start();
    let url = server.fresh();
    let prefix = url.split_once("prefix=").unwrap().1;
    let meta = format!("{{{prefix}:0}}:ledger");
    let mark = || server.cli(&["HGET", &meta, "clock"]);
    let at = |mark: &str| mark.split(' ').next().unwrap().parse::<i64>().unwrap();
    let store = open(&url);
    let first = mark();
    assert!((store.clock().now_ms() - at(&first)).abs() < 60_000, "{first}");
    pay(&ledger(&url), "a").unwrap();
    assert_eq!(mark(), first, "it is not written each time");
    let ahead = at(&first) + 3_600_000;
    drop(server.cli(&["HSET", &meta, "clock", &format!("{ahead} 5 elsewhere")]));
    let later = open(&url);
    assert!(later.clock().now_ms() >= ahead, "it continues from the other store's time");
    assert!(at(&mark()) >= ahead, "it went back");
}

#[test]
fn after_a_failover_the_sentinels_report_the_new_primary() {
    let mut primary = Redis::start();
    let (replica, another) = (primary.replica(), primary.replica());
    let sentinels = Sentinels::start(&primary, 2);
    let url = format!("{}&wait=1&wait_timeout=10s&timeout=30s", sentinels.url("sentinel"));
    let ledger = ledger(&url);
    for key in 0..20 {
        pay(&ledger, &key.to_string()).unwrap();
    }
    let before = sentinels.primary();
    assert_eq!(before, primary.port());
    primary.kill();
    eventually("the sentinels report another primary", || sentinels.primary() != before);
    assert!([replica.port(), another.port()].contains(&sentinels.primary()));
    eventually("the store has found the new primary", || pay(&ledger, "new").is_ok());
    let later = self::ledger(&url);
    for key in 0..20 {
        // The other replica may still be copying from the new primary.
        eventually("the other replica confirms", || {
            pay(&later, &key.to_string())
                .inspect(|receipt| assert!(receipt.replayed(), "{key} was acknowledged"))
                .is_ok()
        });
    }
    let unknown = url.replace("service=main", "service=other");
    let said = RedisStore::open(RedisOptions::parse(&unknown).unwrap()).err().unwrap().to_string();
    assert!(said.contains("knows no service \"other\""), "{said}");
}

/// The ACL rule in docs/fleet.md.
fn allowed() -> Vec<String> {
    let docs = include_str!("../../../../docs/fleet.md");
    let rule = docs.lines().find(|line| line.starts_with("ACL SETUSER")).unwrap();
    rule.split(' ').map(str::to_owned).collect()
}

#[test]
fn the_documented_acl_rule_is_sufficient_and_minimal() {
    let server = Redis::start();
    let rule = allowed();
    let rule: Vec<&str> = rule.iter().map(String::as_str).collect();
    assert_eq!(server.cli(&rule), "OK");
    let url = format!("redis://agents:PASSWORD@127.0.0.1:{}?prefix=once", server.port());
    let (here, there) = (open(&url), ledger(&url));
    let first = Ledger::new(Arc::clone(&here) as Arc<dyn Store>).blocking();
    let receipt = pay(&first, "a").unwrap();
    assert!(pay(&there, "a").unwrap().replayed());
    assert_eq!(pollster::block_on(here.counts(&Filter::default())).unwrap().get(&State::Done), Some(&1));
    for filter in [Filter { key: Some("a".to_owned()), ..Filter::default() }, Filter::default()] {
        assert_eq!(pollster::block_on(here.list(&Filter { limit: 5, ..filter })).unwrap().len(), 1);
    }
    assert_eq!(pollster::block_on(here.due(i64::MAX, 5)).unwrap().len(), 1);
    first.scopes().stop("run-7", &onceward::Word::person("ada")).unwrap();
    assert_eq!(there.scopes().stopped().unwrap().len(), 1);
    assert!(there.scopes().resume("run-7", &onceward::Word::person("ada")).unwrap().is_some());
    let findings = here.health().unwrap();
    assert!(findings.iter().all(|finding| finding.verdict == Verdict::Good), "{findings:?}");
    pollster::block_on(here.delete(&receipt.record().id, receipt.record().version, WriteMode::Async))
        .unwrap();
    eventually("it receives changes", || !pay(&there, "a").unwrap().replayed());
    // Nothing was refused, and the user has access neither to another ledger nor to the server itself.
    assert_eq!(server.cli(&["ACL", "LOG"]), "");
    assert!(
        RedisStore::open(RedisOptions::parse(&url.replace("prefix=once", "prefix=twice")).unwrap()).is_err()
    );
    let refused = |words: &[&str]| {
        let login = ["--user", "agents", "--pass", "PASSWORD", "--no-auth-warning"];
        server.cli(&[&login[..], words].concat()).contains("NOPERM")
    };
    for words in
        [&["FLUSHALL"][..], &["KEYS", "*"], &["CONFIG", "SET", "appendonly", "no"], &["GET", "other"]]
    {
        assert!(refused(words), "{words:?}");
    }
}

fn hostile(of: &Record, scope: &str, key: &str) -> Record {
    let id = onceward::OperationId::of(scope, "pay", key);
    let key = onceward::Key { text: key.to_owned(), ..of.key.clone() };
    Record { id, key, scope: scope.to_owned(), version: 1, ..of.clone() }
}

#[test]
fn a_hostile_record_hides_no_other_and_can_be_deleted() {
    let server = Redis::start();
    let url = server.fresh();
    let (store, ledger) = (open(&url), ledger(&url));
    let record = Record::clone(pay(&ledger, "good").unwrap().record());
    let long = "s".repeat(3_000);
    for (scope, key) in
        [("a\nb", "a"), (&long, "b"), ("c\r\u{1b}[2J", "c\nd"), ("d e", "\"key\":{\"text\":\"x")]
    {
        let hostile = hostile(&record, scope, key);
        let id = hostile.id.clone();
        pollster::block_on(store.swap(None, hostile, WriteMode::Async)).unwrap();
        let listed =
            |filter: Filter| pollster::block_on(store.list(&Filter { limit: 9, ..filter })).unwrap().len();
        assert_eq!(listed(Filter::default()), 2);
        assert_eq!(listed(Filter { scope: Some(scope.to_owned()), ..Filter::default() }), 1);
        assert!(pollster::block_on(store.delete(&id, 1, WriteMode::Async)).unwrap());
        assert_eq!(listed(Filter::default()), 1);
    }
    // A record that no version of this program wrote is omitted from listings, and reported by the health check.
    let bad = hostile(&record, "default", "bad");
    let id = bad.id.clone();
    pollster::block_on(store.swap(None, bad, WriteMode::Async)).unwrap();
    let name = server.cli(&["KEYS", &format!("*{id}")]);
    assert_eq!(server.cli(&["SETRANGE", &name, "0", "nonsense"]), server.cli(&["STRLEN", &name]));
    assert_eq!(pollster::block_on(store.list(&Filter { limit: 9, ..Filter::default() })).unwrap().len(), 1);
    let findings = store.health().unwrap();
    let finding = findings.iter().find(|finding| finding.what == "records").unwrap();
    assert!(finding.verdict == Verdict::Bad && finding.found.contains(id.as_str()), "{finding:?}");
    assert!(ledger.admin().forget(&id).is_err(), "it fails and does not wait forever");
}
