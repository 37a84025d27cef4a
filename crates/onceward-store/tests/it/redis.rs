//! What is specific to the Redis store: guarantees with replicas, lost replies, servers that stop and come back,
//! settings, caching, waiting, and the cost of a call.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::watch::patient;
use onceward::{Blocking, Code, Error, Failure, Ledger, Operation, Receipt, Store, Terms};
use onceward_store::redis::{RedisOptions, RedisStore};
use onceward_store::{Backend, IfMissing, StoreUrl, Verdict};
use onceward_testkit::{Redis, RedisCluster, Relay, eventually};

/// More than ten times the time limit of these stores, for a machine that is busy.
const SOON: Duration = Duration::from_secs(60);

fn store(url: &str) -> Arc<RedisStore> {
    RedisStore::open(RedisOptions::parse(&patient(url)).unwrap()).unwrap()
}

fn ledger(url: &str) -> Blocking {
    Ledger::new(store(url)).blocking()
}

fn refused(url: &str) -> String {
    RedisStore::open(RedisOptions::parse(&patient(url)).unwrap()).err().unwrap().to_string()
}

/// Counts the effects.
#[derive(Default)]
struct World {
    effects: AtomicUsize,
}

impl World {
    fn pay(&self, ledger: &Blocking, key: &str) -> Result<Receipt, Error> {
        ledger.run(Operation::new("pay").key(key), |attempt| {
            self.effects.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Failure>(attempt.dispatch()?.created(&serde_json::json!({"id": 42})))
        })
    }

    fn effects(&self) -> usize {
        self.effects.load(Ordering::SeqCst)
    }
}

fn through(relay: &Relay, options: &str) -> String {
    format!("redis://127.0.0.1:{}?{options}", relay.port())
}

/// How often a command was executed since the counters were reset.
fn calls(server: &Redis, command: &str) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let name = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&name));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

fn reset_counters(server: &Redis) {
    assert_eq!(server.cli(&["CONFIG", "RESETSTAT"]), "OK");
}

/// Waits until this many stores are subscribed to the changes of a ledger.
fn await_subscribers(server: &Redis, url: &str, count: usize) {
    let channel = url.split_once("prefix=").unwrap().1;
    eventually("the stores are subscribed", || {
        server.cli(&["PUBSUB", "NUMSUB", channel]).lines().last() == Some(count.to_string().as_str())
    });
}

#[test]
fn a_first_call_takes_one_round_trip_and_its_end_another() {
    let server = Redis::start();
    let (ledger, world) = (ledger(&server.fresh()), World::default());
    world.pay(&ledger, "warm").unwrap();
    eventually("the subscription is active", || {
        reset_counters(&server);
        assert!(world.pay(&ledger, "warm").unwrap().replayed());
        calls(&server, "evalsha") + calls(&server, "mget") == 0
    });
    // The store writes the tallies of these replays at a time of its own.
    let mut keys = 0..;
    eventually("a first call takes two round trips", || {
        reset_counters(&server);
        let key = format!("a-{}", keys.next().unwrap_or(0));
        assert!(!world.pay(&ledger, &key).unwrap().replayed());
        (calls(&server, "evalsha"), calls(&server, "mget")) == (2, 0)
    });
    eventually("it is cached", || {
        reset_counters(&server);
        assert!(world.pay(&ledger, "a-0").unwrap().replayed());
        (calls(&server, "evalsha"), calls(&server, "mget")) == (0, 0)
    });
}

#[test]
fn a_result_of_another_process_is_replayed_in_one_round_trip() {
    let server = Redis::start();
    let url = server.fresh();
    let world = World::default();
    world.pay(&ledger(&url), "a").unwrap();
    let other = ledger(&url);
    reset_counters(&server);
    assert!(world.pay(&other, "a").unwrap().replayed());
    assert_eq!((calls(&server, "evalsha"), calls(&server, "mget")), (1, 0));
    assert_eq!(world.effects(), 1);
}

#[test]
fn scripts_that_the_server_has_lost_are_loaded_again() {
    let server = Redis::start();
    let (ledger, world) = (ledger(&server.fresh()), World::default());
    world.pay(&ledger, "a").unwrap();
    assert_eq!(server.cli(&["SCRIPT", "FLUSH"]), "OK");
    assert!(!world.pay(&ledger, "b").unwrap().replayed());
    assert_eq!(world.effects(), 2);
}

#[test]
fn a_lost_reply_is_neither_a_failure_nor_a_conflict_with_itself() {
    let server = Redis::start();
    let relay = Relay::to(server.port());
    let ledger = ledger(&through(&relay, "prefix=lost"));
    let world = World::default();
    world.pay(&ledger, "warm").unwrap();
    for round in 0..20 {
        relay.drop_replies_once();
        let receipt = world.pay(&ledger, &round.to_string()).unwrap();
        assert_eq!((receipt.replayed(), receipt.record().attempt), (false, 1), "round {round}");
    }
    assert!(relay.replies_dropped() > 5, "only {} replies were lost", relay.replies_dropped());
    assert_eq!(world.effects(), 21);
}

#[test]
fn reset_connections_are_reopened() {
    let server = Redis::start();
    let relay = Relay::to(server.port());
    let ledger = ledger(&through(&relay, "prefix=reset"));
    let world = World::default();
    for round in 0..5 {
        world.pay(&ledger, &round.to_string()).unwrap();
        relay.cut();
        relay.mend();
    }
    assert_eq!(world.effects(), 5);
}

#[test]
fn nothing_runs_while_the_server_is_down() {
    let mut server = Redis::start();
    let ledger = ledger(&format!("{}&timeout=10s", server.fresh()));
    let world = World::default();
    world.pay(&ledger, "a").unwrap();
    server.kill();
    let began = Instant::now();
    let error = world.pay(&ledger, "b").unwrap_err();
    assert_eq!(error.code(), Code::LedgerUnavailable, "{error}");
    assert!(began.elapsed() < SOON, "it took {:?} to say so", began.elapsed());
    assert_eq!(world.effects(), 1, "nothing runs without its intent");
    server.start_again();
    eventually("the ledger recovers", || world.pay(&ledger, "b").is_ok());
    assert!(world.pay(&ledger, "a").unwrap().replayed());
    assert_eq!(world.effects(), 2);
}

#[test]
fn a_silent_server_times_out() {
    let server = Redis::start();
    let relay = Relay::to(server.port());
    let ledger = ledger(&through(&relay, "prefix=silent&timeout=10s"));
    let world = World::default();
    world.pay(&ledger, "a").unwrap();
    relay.stall();
    let began = Instant::now();
    let error = world.pay(&ledger, "b").unwrap_err();
    assert_eq!(error.code(), Code::LedgerUnavailable, "{error}");
    assert!(began.elapsed() < SOON, "it took {:?} to say so", began.elapsed());
    assert_eq!(world.effects(), 1);
    relay.mend();
    eventually("the ledger recovers", || world.pay(&ledger, "c").is_ok());
}

#[test]
fn a_write_counts_only_if_the_replica_has_it() {
    let primary = Redis::start();
    let relay = Relay::to(primary.port());
    let _replica = primary.replica_through(&relay);
    // Detected automatically: the primary has a replica.
    let url = format!("{}&wait_timeout=10s&timeout=30s", primary.fresh());
    let (ledger, world) = (ledger(&url), World::default());
    world.pay(&ledger, "a").unwrap();
    relay.stall();
    let error = world.pay(&ledger, "b").unwrap_err();
    assert_eq!(error.code(), Code::LedgerUnavailable, "{error}");
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    assert_eq!(world.effects(), 1, "the intent is on the primary alone, so nothing runs");
    // Another process does not use the unconfirmed record either, nor serve what the replica may lack.
    let id = Operation::new("pay").key("b").intent().unwrap().id;
    assert!(onceward_store::open(&url).is_err());
    let looking = StoreUrl::parse(&url).unwrap().open(IfMissing::Fail).unwrap();
    assert!(pollster::block_on(looking.load(&id)).is_err());
    relay.mend();
    eventually("a new operation runs again", || world.pay(&ledger, "c").is_ok());
    assert_eq!(world.effects(), 2);
    let found = pollster::block_on(store(&url).load(&id)).unwrap();
    assert_eq!(found.unwrap().attempt, 1, "what was not acknowledged is on record");
}

#[test]
fn a_ledger_that_its_replica_lacks_is_not_opened() {
    let primary = Redis::start();
    let relay = Relay::to(primary.port());
    let _replica = primary.replica_through(&relay);
    let url = format!("{}&wait_timeout=10s&timeout=30s", primary.fresh());
    relay.stall();
    let error = onceward_store::open(&url).err().unwrap();
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    relay.mend();
    eventually("it is opened when the replica knows it", || onceward_store::open(&url).is_ok());
}

#[test]
fn former_replicas_are_required_unless_the_url_says_otherwise() {
    let primary = Redis::start();
    let replica = primary.replica();
    let url = format!("{}&wait_timeout=10s&timeout=30s", primary.fresh());
    let world = World::default();
    world.pay(&ledger(&url), "a").unwrap();
    drop(replica);
    let error = onceward_store::open(&url).err().unwrap();
    assert!(error.to_string().contains("wait=0"), "{error}");
    world.pay(&ledger(&format!("{url}&wait=0")), "c").unwrap();
    assert_eq!(world.effects(), 2);
}

#[test]
fn after_a_failover_everything_acknowledged_is_there() {
    let mut primary = Redis::start();
    let mut replica = primary.replica();
    let url = format!(
        "redis://127.0.0.1:{},127.0.0.1:{}?prefix=failover&wait_timeout=10s&timeout=30s",
        primary.port(),
        replica.port()
    );
    let (ledger, world) = (ledger(&url), World::default());
    for key in 0..20 {
        world.pay(&ledger, &key.to_string()).unwrap();
    }
    primary.kill();
    replica.promote();
    // The same store finds the new primary, and waits until that has a replica too.
    assert!(world.pay(&ledger, "new").is_err(), "no replica has it");
    let _second = replica.replica();
    eventually("the handle has found the new primary", || world.pay(&ledger, "newer").is_ok());
    for key in 0..20 {
        assert!(world.pay(&ledger, &key.to_string()).unwrap().replayed(), "{key} was acknowledged");
    }
    assert_eq!(world.effects(), 21);
}

#[test]
fn a_caller_that_waits_elsewhere_is_woken_and_does_not_poll() {
    let server = Redis::start();
    let url = server.fresh();
    let (here, there) = (ledger(&url), ledger(&url));
    let world = World::default();
    world.pay(&there, "warm").unwrap();
    await_subscribers(&server, &url, 2);
    let operation = || {
        // Longer than the test takes on any machine: a renewal would be one more command.
        let terms = Terms { lease_ms: 3_600_000, ..Terms::default() };
        Operation::new("pay").key("slow").terms(terms)
    };
    let (begun, beginning) = std::sync::mpsc::channel();
    let end = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            here.run(operation(), |attempt| {
                begun.send(()).unwrap();
                end.wait();
                Ok::<_, Failure>(attempt.dispatch()?.created(&1))
            })
            .unwrap();
        });
        beginning.recv().unwrap();
        reset_counters(&server);
        let waiting =
            scope.spawn(|| there.run(operation(), |_| Err(Failure::in_doubt("it was run"))).unwrap());
        eventually("the caller waits", || calls(&server, "evalsha") >= 2);
        // Each store checks its subscription every second. A caller that polled would send many commands until then.
        let checks = calls(&server, "role");
        eventually("the subscriptions are checked", || calls(&server, "role") >= checks + 3);
        end.wait();
        assert!(waiting.join().unwrap().replayed());
    });
    // The waiting caller: swap, mark, read again. The other one: its end.
    let asked = calls(&server, "evalsha") + calls(&server, "mget");
    assert!(asked <= 6, "{asked} commands");
}

#[test]
fn a_record_forgotten_elsewhere_is_not_served_from_the_cache() {
    let server = Redis::start();
    let url = server.fresh();
    let (here, there) = (ledger(&url), ledger(&url));
    let world = World::default();
    let receipt = world.pay(&here, "a").unwrap();
    await_subscribers(&server, &url, 2);
    assert!(world.pay(&here, "a").unwrap().replayed() && world.pay(&there, "a").unwrap().replayed());
    there.admin().forget(&receipt.record().id).unwrap();
    eventually("it was forgotten, so it runs", || !world.pay(&here, "a").unwrap().replayed());
    assert!(world.pay(&there, "a").unwrap().replayed());
}

#[test]
fn replays_are_tallied_and_survive_closing() {
    let server = Redis::start();
    let url = server.fresh();
    let (first, world) = (ledger(&url), World::default());
    let id = world.pay(&first, "a").unwrap().record().id.clone();
    for _ in 0..3 {
        world.pay(&first, "a").unwrap();
    }
    drop(first);
    let found = pollster::block_on(store(&url).load(&id)).unwrap().unwrap();
    assert_eq!((found.replays, found.version), (3, 2));
}

#[test]
fn unsafe_settings_are_refused() {
    let table = [
        (vec![("appendonly", "no")], "appendonly yes"),
        (vec![("appendfsync", "everysec")], "appendfsync always"),
        (vec![("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lru")], "noeviction"),
        (vec![("rename-command", "CONFIG \"\"")], "durability=trusted"),
    ];
    for (settings, advice) in table {
        let server = Redis::start_with(&settings);
        let said = refused(&server.fresh());
        assert!(said.contains(advice), "{settings:?}: {said}");
        let by_name = RedisOptions::parse(&format!("{}&durability=none", server.fresh())).unwrap();
        let evicts = advice == "noeviction";
        assert_eq!(RedisStore::open(by_name).is_err(), evicts, "{settings:?}");
    }
}

#[test]
fn a_replica_and_the_wrong_kind_of_server_are_refused() {
    let primary = Redis::start();
    let replica = primary.replica();
    assert!(refused(&replica.fresh()).contains("name its primary"));
    assert!(refused(&primary.fresh().replace("redis://", "redis+cluster://")).contains("write redis://"));
    let absent = format!("redis://127.0.0.1:{}?timeout=10s", Relay::to(1).port());
    assert!(refused(&absent).contains("cannot be used"), "{}", refused(&absent));
}

#[test]
fn a_password_is_asked_for_and_never_shown() {
    let server = Redis::start();
    assert_eq!(server.cli(&["ACL", "SETUSER", "once", "on", ">s3cret", "~*", "&*", "+@all"]), "OK");
    let url = |password: &str| format!("redis://once:{password}@127.0.0.1:{}?prefix=acl", server.port());
    World::default().pay(&ledger(&url("s3cret")), "a").unwrap();
    let said = refused(&url("wr0ng"));
    assert!(said.contains("authentication failed") && !said.contains("wr0ng"), "{said}");
}

#[test]
fn health_reports_the_server() {
    let server = Redis::start_with(&[("appendfsync", "everysec")]);
    let store = store(&format!("{}&durability=everysec", server.fresh()));
    let findings = store.health().unwrap();
    let verdict = |what: &str| findings.iter().find(|finding| finding.what == what).unwrap().verdict;
    assert_eq!((verdict("server"), verdict("sync")), (Verdict::Good, Verdict::Look), "{findings:?}");
}

#[test]
fn many_threads_share_batches_and_lose_nothing() {
    let server = Redis::start();
    let ledger = ledger(&server.fresh());
    let world = World::default();
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let (ledger, world) = (&ledger, &world);
            scope.spawn(move || {
                for n in 0..50 {
                    world.pay(ledger, &format!("{thread}-{n}")).unwrap();
                }
            });
        }
    });
    let counts = ledger.admin().counts().unwrap();
    assert_eq!((counts.get(&onceward::State::Done), world.effects()), (Some(&800), 800));
}

#[test]
fn a_shard_of_a_cluster_can_move() {
    let cluster = RedisCluster::start();
    let ledger = ledger(&format!("{}&shards=1&timeout=10s", cluster.fresh()));
    let world = World::default();
    for key in 0..10 {
        world.pay(&ledger, &key.to_string()).unwrap();
    }
    let tag = cluster.nodes().iter().find_map(|node| {
        let keys = node.cli(&["KEYS", "*:=done"]);
        (!keys.is_empty()).then(|| (node, keys.lines().next().unwrap().to_owned()))
    });
    let (from, key) = tag.unwrap();
    let to = cluster.nodes().iter().find(|node| node.port() != from.port()).unwrap();
    let slot = from.cli(&["CLUSTER", "KEYSLOT", &key]);
    let (from_id, to_id) = (from.cli(&["CLUSTER", "MYID"]), to.cli(&["CLUSTER", "MYID"]));
    assert_eq!(to.cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]), "OK");
    assert_eq!(from.cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]), "OK");
    let keys = from.cli(&["CLUSTER", "GETKEYSINSLOT", &slot, "1000"]);
    for (index, key) in keys.lines().enumerate() {
        if index == keys.lines().count() / 2 {
            // Half of the shard is here and half is there: nothing is executed on either half.
            let error = world.pay(&ledger, "meanwhile").unwrap_err();
            assert_eq!(error.code(), Code::LedgerUnavailable, "{error}");
        }
        let port = to.port().to_string();
        assert_eq!(from.cli(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]), "OK");
    }
    for node in cluster.nodes() {
        assert_eq!(node.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]), "OK");
    }
    eventually("the shard has arrived", || world.pay(&ledger, "after").is_ok());
    for key in 0..10 {
        assert!(world.pay(&ledger, &key.to_string()).unwrap().replayed());
    }
    let counts = ledger.admin().counts().unwrap();
    assert_eq!((counts.get(&onceward::State::Done), world.effects()), (Some(&11), 11));
}

#[test]
fn a_cluster_whose_primary_is_gone_is_used_by_its_replica() {
    let mut cluster = RedisCluster::start();
    let ledger = ledger(&format!("{}&wait=0&timeout=10s", cluster.fresh()));
    let world = World::default();
    for key in 0..30 {
        world.pay(&ledger, &key.to_string()).unwrap();
    }
    let replica = Redis::start_with(&[("cluster-enabled", "yes"), ("cluster-node-timeout", "15000")]);
    let (port, primary_id) =
        (cluster.nodes()[0].port().to_string(), cluster.nodes()[0].cli(&["CLUSTER", "MYID"]));
    assert_eq!(replica.cli(&["CLUSTER", "MEET", "127.0.0.1", &port]), "OK");
    eventually("they know each other", || replica.cli(&["CLUSTER", "REPLICATE", &primary_id]) == "OK");
    eventually("the replica follows", || {
        replica.cli(&["INFO", "replication"]).contains("master_link_status:up")
    });
    eventually("the replica takes over", || {
        // It answers OK when it has begun, and an error when there is nothing left to take over.
        drop(replica.cli(&["CLUSTER", "FAILOVER"]));
        replica.cli(&["INFO", "replication"]).contains("role:master")
    });
    let replica_id = replica.cli(&["CLUSTER", "MYID"]);
    for node in &cluster.nodes()[1..] {
        eventually("the other nodes know of it", || {
            let nodes = node.cli(&["CLUSTER", "NODES"]);
            nodes.lines().any(|line| line.starts_with(&replica_id) && line.contains("master"))
        });
    }
    cluster.nodes_mut()[0].kill();
    for key in 30..60 {
        eventually("it is paid", || world.pay(&ledger, &key.to_string()).is_ok());
    }
    for key in 0..60 {
        assert!(world.pay(&ledger, &key.to_string()).unwrap().replayed(), "{key}");
    }
    assert_eq!(world.effects(), 60);
}

#[test]
fn under_many_lost_replies_and_resets_nothing_happens_twice() {
    const KEYS: usize = 80;
    let server = Redis::start();
    let relay = Relay::to(server.port());
    let url = through(&relay, "prefix=storm&timeout=20s");
    let ledgers = [ledger(&url), ledger(&url)];
    let effects: Vec<AtomicUsize> = (0..KEYS).map(|_| AtomicUsize::new(0)).collect();
    let results: Vec<AtomicUsize> = (0..KEYS).map(|_| AtomicUsize::new(0)).collect();
    let (calls, over) = (AtomicUsize::new(0), std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..8)
            .map(|caller| {
                let (ledger, effects, results, calls) = (&ledgers[caller % 2], &effects, &results, &calls);
                scope.spawn(move || {
                    for key in 0..KEYS {
                        let terms = Terms { lease_ms: 5_000, ..Terms::default() };
                        let operation = Operation::new("pay").key(key.to_string()).terms(terms);
                        let ended = ledger.run(operation, |attempt| {
                            effects[key].fetch_add(1, Ordering::SeqCst);
                            Ok::<_, Failure>(attempt.dispatch()?.created(&key))
                        });
                        results[key].fetch_add(usize::from(ended.is_ok()), Ordering::SeqCst);
                        calls.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            for round in 0.. {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let before = calls.load(Ordering::SeqCst);
                eventually("the calls go on", || {
                    over.load(Ordering::SeqCst) || calls.load(Ordering::SeqCst) > before + 4
                });
                if round % 5 == 0 {
                    relay.cut();
                    relay.mend();
                } else {
                    relay.drop_replies_once();
                }
            }
        });
        for caller in callers {
            caller.join().unwrap();
        }
        over.store(true, Ordering::SeqCst);
    });
    let total =
        |counts: &[AtomicUsize]| counts.iter().map(|count| count.load(Ordering::SeqCst)).sum::<usize>();
    assert!(effects.iter().all(|count| count.load(Ordering::SeqCst) <= 1), "{effects:?}");
    assert!(relay.replies_dropped() > 10, "only {} replies were lost", relay.replies_dropped());
    assert!(total(&effects) > KEYS / 2 && total(&results) > KEYS * 4, "hardly anything got through");
}
