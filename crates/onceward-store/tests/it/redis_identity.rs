//! A ledger on Redis that was emptied, replaced or restored to an older state is detected by the write
//! itself, in open stores and in new ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::watch::patient;
use onceward::{Blocking, Code, Error, Failure, Fence, Ledger, Operation, Receipt, Store, StoreError};
use onceward_store::StoreUrl;
use onceward_store::redis::{RedisOptions, RedisStore};
use onceward_testkit::{Redis, RedisCluster, eventually};

fn open(url: &str) -> Result<Arc<RedisStore>, StoreError> {
    RedisStore::open(RedisOptions::parse(&patient(url)).unwrap())
}

fn store(url: &str) -> Arc<RedisStore> {
    open(url).unwrap()
}

fn ledger(url: &str) -> Blocking {
    Ledger::new(store(url)).blocking()
}

/// Opening is refused because the ledger was replaced.
#[track_caller]
fn is_replaced(url: &str) {
    match open(url) {
        Err(StoreError::Replaced { .. }) => {}
        Err(error) => panic!("refused for another reason: {error}"),
        Ok(_) => panic!("it was opened"),
    }
}

/// Counts the effects.
#[derive(Default)]
struct World {
    effects: AtomicUsize,
}

impl World {
    fn pay(&self, ledger: &Blocking, key: impl std::fmt::Display) -> Result<Receipt, Error> {
        ledger.run(Operation::new("pay").key(key.to_string()), |attempt| {
            self.effects.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Failure>(attempt.dispatch()?.created(&serde_json::json!({"id": 42})))
        })
    }

    fn effects(&self) -> usize {
        self.effects.load(Ordering::SeqCst)
    }
}

fn code(result: Result<Receipt, Error>) -> Code {
    result.err().map(|error| error.code()).unwrap()
}

/// The prefix in a URL of the harness.
fn prefix(url: &str) -> &str {
    url.split("prefix=").nth(1).unwrap().split('&').next().unwrap()
}

#[test]
fn on_an_emptied_server_open_stores_run_nothing_again() {
    let server = Redis::start();
    let url = server.fresh();
    let (here, there, world) = (ledger(&url), ledger(&url), World::default());
    for key in 0..20 {
        world.pay(&here, key).unwrap();
    }
    assert_eq!(server.cli(&["FLUSHALL"]), "OK");
    for key in 0..20 {
        assert_eq!(code(world.pay(&there, key)), Code::LedgerReplaced, "{key}");
    }
    assert_eq!(code(world.pay(&here, "new")), Code::LedgerReplaced);
    assert_eq!(world.effects(), 20);
    // An empty server gets a new ledger, unless the URL says that there must be one.
    match open(&format!("{url}&create=no")) {
        Err(StoreError::Missing { what }) => assert!(what.contains("create=no"), "{what}"),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("a ledger was made"),
    }
    let anew = ledger(&url);
    assert_eq!(code(world.pay(&there, "a")), Code::LedgerReplaced, "another ledger under the same prefix");
    world.pay(&anew, "a").unwrap();
    assert!(open(&format!("{url}&create=no")).is_ok());
}

#[test]
fn a_server_that_comes_back_empty_is_not_used_as_the_ledger() {
    let mut server = Redis::start();
    let ledger = ledger(&format!("{}&timeout=20s", server.fresh()));
    let world = World::default();
    world.pay(&ledger, "a").unwrap();
    assert_eq!(server.cli(&["FLUSHALL"]), "OK");
    server.stop();
    server.start_again();
    eventually("the handle has connected again", || code(world.pay(&ledger, "b")) == Code::LedgerReplaced);
    assert_eq!(world.effects(), 1);
}

#[test]
fn a_node_of_a_cluster_that_comes_back_empty_is_detected_by_all() {
    let mut cluster = RedisCluster::start();
    // The node with the ledger's own key, and one without it.
    for emptied in 0..3 {
        let url = format!("{}&timeout=20s", cluster.fresh());
        let (before, world) = (ledger(&url), World::default());
        for key in 0..60 {
            world.pay(&before, key).unwrap();
        }
        let folder = cluster.nodes()[emptied].folder().join("appendonlydir");
        cluster.nodes_mut()[emptied].kill();
        std::fs::remove_dir_all(folder).unwrap();
        cluster.nodes_mut()[emptied].start_again();
        cluster.wait_until_ready();
        let replaced = (0..60).filter(|key| match world.pay(&before, format!("new-{key}")) {
            Ok(_) => false,
            Err(error) => {
                // One that has begun when it is detected is done, and cannot be recorded any more.
                assert!(matches!(error.code(), Code::LedgerReplaced | Code::InDoubt), "{error}");
                true
            }
        });
        assert!(replaced.count() > 5, "a third of the keys is on that node");
        let effects = world.effects();
        is_replaced(&url);
        is_replaced(&url);
        for key in 0..60 {
            drop(world.pay(&before, key));
        }
        assert_eq!(world.effects(), effects, "nothing runs a second time");
    }
}

#[test]
fn a_shard_without_the_ledgers_mark_is_never_filled_in() {
    let server = Redis::start();
    let url = format!("{}&shards=4", server.fresh());
    let (before, world) = (ledger(&url), World::default());
    for key in 0..40 {
        world.pay(&before, key).unwrap();
    }
    let key = format!("{{{}:2}}v3:ledger", prefix(&url));
    assert_eq!(server.cli(&["DEL", &key]), "1");
    is_replaced(&url);
    is_replaced(&format!("{url}&create=no"));
    assert_eq!(server.cli(&["EXISTS", &key]), "0");
    let refused = (0..40).filter(|key| world.pay(&before, format!("new-{key}")).is_err());
    assert!((1..40).contains(&refused.count()), "only that shard is refused");
    // If the lost data cannot be recovered, a restore is declared, and everything since is in doubt.
    let accepting = store(&format!("{url}&emptied=accept"));
    let next = accepting.identity().restored(fence(), 0);
    pollster::block_on(accepting.set_identity(&next)).unwrap();
    let after = store(&url);
    assert_eq!((after.identity().epoch, after.identity().fence), (2, Some(fence())));
    assert_eq!(server.cli(&["EXISTS", &key]), "1");
}

#[test]
fn a_ledger_whose_own_key_is_missing_is_not_created_again() {
    let server = Redis::start();
    let url = server.fresh();
    let (before, world) = (ledger(&url), World::default());
    world.pay(&before, "a").unwrap();
    assert_eq!(server.cli(&["DEL", &format!("{{{}:0}}:ledger", prefix(&url))]), "1");
    is_replaced(&url);
    // No write reads that key, so an open store finds out when it checks its servers.
    let mut number = 0..;
    eventually("the open store stops", || {
        let paid = world.pay(&before, format!("new-{}", number.next().unwrap_or_default()));
        paid.is_err_and(|refused| refused.code() == Code::LedgerReplaced)
    });
    let effects = world.effects();
    assert_eq!(code(world.pay(&before, "more")), Code::LedgerReplaced);
    assert_eq!(world.effects(), effects);
}

#[test]
fn a_partially_raised_epoch_is_completed_by_the_next_open() {
    let server = Redis::start();
    let url = format!("{}&shards=4", server.fresh());
    let (before, world) = (store(&url), World::default());
    let old = Ledger::new(Arc::clone(&before) as Arc<dyn Store>).blocking();
    world.pay(&old, "a").unwrap();
    let (from, next) = (before.identity().mark(), before.identity().restored(fence(), 0));
    // The state left by a process that dies after it has raised two of four shards.
    let meta = format!("{{{}:0}}:ledger", prefix(&url));
    let json = serde_json::to_string(&next).unwrap();
    let said = server.cli(&["HSET", &meta, "identity", &json, "mark", &next.mark(), "making", &from]);
    assert_eq!(said, "1");
    for shard in 0..2 {
        let key = format!("{{{}:{shard}}}v3:ledger", prefix(&url));
        let writes = server.cli(&["HGET", &key, &from]);
        assert_eq!(server.cli(&["HDEL", &key, &from]), "1");
        assert_eq!(server.cli(&["HSET", &key, &next.mark(), &writes]), "1");
    }
    let after = ledger(&url);
    assert_eq!(after.identity(), &next);
    for key in 0..20 {
        assert_eq!(code(world.pay(&old, format!("new-{key}"))), Code::LedgerReplaced);
    }
    assert_eq!(server.cli(&["HEXISTS", &meta, "making"]), "0");
}

#[test]
fn a_partially_created_ledger_is_completed_by_the_next_open() {
    let server = Redis::start();
    let url = format!("{}&shards=4", server.fresh());
    drop(store(&url));
    let root = |shard: usize| format!("{{{}:{shard}}}v3:ledger", prefix(&url));
    assert_eq!(server.cli(&["DEL", &root(1), &root(3)]), "2");
    assert_eq!(server.cli(&["HSET", &format!("{{{}:0}}:ledger", prefix(&url)), "making", "new"]), "1");
    let (ledger, world) = (ledger(&url), World::default());
    for key in 0..20 {
        world.pay(&ledger, key).unwrap();
    }
}

#[test]
fn twenty_processes_that_start_at_once_create_one_ledger() {
    let server = Redis::start();
    let url = server.fresh();
    let names: Vec<String> = std::thread::scope(|scope| {
        let opened: Vec<_> = (0..20).map(|_| scope.spawn(|| store(&url).identity().name.clone())).collect();
        opened.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(names.iter().all(|name| *name == names[0]), "{names:?}");
}

#[test]
fn an_older_state_of_the_same_ledger_is_detected() {
    let mut server = Redis::start();
    let url = format!("{}&shards=2&timeout=20s", server.fresh());
    let (ledger, world) = (ledger(&url), World::default());
    for key in 0..10 {
        world.pay(&ledger, key).unwrap();
    }
    let saved = server.folder().join("saved");
    copy(&server.folder().join("appendonlydir"), &saved);
    for key in 10..20 {
        world.pay(&ledger, key).unwrap();
    }
    server.stop();
    std::fs::remove_dir_all(server.folder().join("appendonlydir")).unwrap();
    copy(&saved, &server.folder().join("appendonlydir"));
    server.start_again();
    eventually("the handle has connected again", || code(world.pay(&ledger, "new")) == Code::LedgerReplaced);
    for key in 10..20 {
        // Cached results are still correct.
        assert!(world.pay(&ledger, key).is_ok_and(|receipt| receipt.replayed()) || world.effects() == 20);
    }
    assert_eq!(world.effects(), 20);
}

#[test]
fn an_older_state_is_noticed_even_after_other_processes_have_written_more_than_was_lost() {
    for lost in [1, 20] {
        let mut server = Redis::start();
        let relay = onceward_testkit::Relay::to(server.port());
        let direct = format!("{}&shards=2&timeout=20s", server.fresh());
        let through = direct.replace(&format!(":{}", server.port()), &format!(":{}", relay.port()));
        let (before, world) = (ledger(&through), World::default());
        for key in 0..10 {
            world.pay(&before, key).unwrap();
        }
        let (folder, saved) = (server.folder().join("appendonlydir"), server.folder().join("saved"));
        copy(&folder, &saved);
        for key in 10..10 + lost {
            world.pay(&before, key).unwrap();
        }
        // The handle is away while the older state is written to.
        relay.cut();
        server.stop();
        std::fs::remove_dir_all(&folder).unwrap();
        copy(&saved, &folder);
        server.start_again();
        let others = ledger(&direct);
        for key in 1_000..1_100 {
            world.pay(&others, key).unwrap();
        }
        relay.mend();
        let effects = world.effects();
        eventually("the handle has connected again", || {
            code(world.pay(&before, "new")) == Code::LedgerReplaced
        });
        for key in 10..10 + lost {
            drop(world.pay(&before, key));
        }
        assert_eq!(world.effects(), effects, "nothing runs a second time");
        let said = world.pay(&before, "new").err().map(|error| error.to_string()).unwrap_or_default();
        assert!(said.contains("acknowledged"), "{said}");
    }
}

#[test]
fn a_server_that_only_restarts_is_trusted_even_if_records_were_deleted() {
    let mut server = Redis::start();
    let url = format!("{}&shards=2&timeout=20s", server.fresh());
    let (here, there, world) = (store(&url), store(&url), World::default());
    let ledger = Ledger::new(Arc::clone(&here) as Arc<dyn Store>).blocking();
    // The handle deletes what it wrote; another one does; the server crashes and nothing is deleted.
    for (round, by) in [Some(&here), Some(&there), None].into_iter().enumerate() {
        let paid: Vec<_> = (0..10).map(|key| world.pay(&ledger, format!("{round}-{key}")).unwrap()).collect();
        let Some(by) = by else {
            server.kill();
            server.start_again();
            world.pay(&ledger, "last").unwrap();
            break;
        };
        for receipt in &paid {
            let found = pollster::block_on(by.load(&receipt.record().id)).unwrap().unwrap();
            // Only what is cached shows when the deletion is announced.
            eventually("it is cached", || {
                drop(pollster::block_on(here.load(&found.id)).unwrap());
                pollster::block_on(here.load_cached(&found.id)).unwrap().is_some()
            });
            let deleted = by.delete(&found.id, found.version, onceward::WriteMode::Async);
            assert!(pollster::block_on(deleted).unwrap());
            eventually("the deletion is announced", || {
                pollster::block_on(here.load_cached(&found.id)).unwrap().is_none()
            });
        }
        server.stop();
        server.start_again();
    }
    assert_eq!(world.effects(), 31);
}

#[test]
fn a_promoted_replica_that_lacks_acknowledged_writes_is_detected() {
    let mut primary = Redis::start();
    let relay = onceward_testkit::Relay::to(primary.port());
    let mut replica = primary.replica_through(&relay);
    // The URL says not to wait for replicas.
    let url = format!(
        "redis://127.0.0.1:{},127.0.0.1:{}?prefix=behind&shards=1&wait=0&timeout=20s",
        primary.port(),
        replica.port()
    );
    let (ledger, world) = (ledger(&url), World::default());
    world.pay(&ledger, "a").unwrap();
    eventually("the replica has it", || !replica.cli(&["KEYS", "*v3:op_*"]).is_empty());
    relay.stall();
    world.pay(&ledger, "b").unwrap();
    primary.kill();
    replica.promote();
    eventually("the handle has connected to the new primary", || {
        code(world.pay(&ledger, "c")) == Code::LedgerReplaced
    });
    assert_eq!(world.effects(), 2);
    // Other stores may have written since, so the number of writes proves nothing any more.
    let other = self::ledger(&url);
    for key in 0..10 {
        world.pay(&other, format!("other-{key}")).unwrap();
    }
    assert_eq!(code(world.pay(&ledger, "d")), Code::LedgerReplaced);
}

#[test]
fn a_ledger_of_another_format_is_left_alone() {
    let server = Redis::start();
    for format in ["1", "2", "99"] {
        let url = server.fresh();
        drop(store(&url));
        let prefix =
            url.rsplit_once("prefix=").map_or("once", |(_, rest)| rest.split('&').next().unwrap_or(rest));
        let meta = format!("{{{prefix}:0}}:ledger");
        assert_eq!(server.cli(&["HSET", &meta, "format", format]), "0");
        let refused =
            StoreUrl::parse(&url).unwrap().open(onceward::IfMissing::Create).err().unwrap().to_string();
        assert!(refused.contains(&format!("{format:?}")) && refused.contains("once export"), "{refused}");
        assert_eq!(server.cli(&["HGET", &meta, "format"]), format);
    }
}

#[test]
fn create_no_applies_to_every_way_of_opening() {
    let server = Redis::start();
    let url = format!("{}&create=no", server.fresh());
    for missing in [onceward::IfMissing::Create, onceward::IfMissing::Fail] {
        let opened = StoreUrl::parse(&url).unwrap().open(missing);
        assert!(matches!(opened, Err(StoreError::Missing { .. })));
    }
    assert_eq!(server.cli(&["DBSIZE"]), "0");
}

fn fence() -> Fence {
    Fence { lost_from_ms: 1, restored_ms: 2, until_ms: 3 }
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}
