//! The Redis store passes the conformance suite: on one server, with a replica, and on a cluster.

use std::sync::Arc;

use onceward::{Store, conformance};
use onceward_store::redis::{RedisOptions, RedisStore};
use onceward_testkit::{Redis, RedisCluster};

/// With time limits that a busy machine does not reach.
fn open(url: &str) -> Arc<dyn Store> {
    let url = format!("{url}&timeout=60s&wait_timeout=20s");
    RedisStore::open(RedisOptions::parse(&url).unwrap()).unwrap()
}

#[test]
fn the_redis_store_conforms() {
    let report = conformance::run(&|| open(&Redis::shared().fresh()));
    report.assert_clean();
    assert!(report.passed.len() >= 100, "{} cases", report.passed.len());
}

#[test]
fn it_conforms_without_a_cache() {
    conformance::run(&|| open(&format!("{}&cache_bytes=0", Redis::shared().fresh()))).assert_clean();
}

#[test]
fn two_stores_on_one_server_conform() {
    let report = conformance::run_pair(&|| {
        let url = Redis::shared().fresh();
        (open(&url), open(&url))
    });
    report.assert_clean();
}

#[test]
fn it_conforms_with_a_replica_that_confirms_every_write() {
    let primary = Redis::start();
    let _replica = primary.replica();
    let make = || open(&format!("{}&wait=1", primary.fresh()));
    conformance::run(&make).assert_clean();
    let report = conformance::run_pair(&|| {
        let url = primary.fresh();
        (open(&url), open(&url))
    });
    report.assert_clean();
}

#[test]
fn it_conforms_on_a_cluster() {
    let cluster = RedisCluster::start_with_replicas();
    conformance::run(&|| open(&cluster.fresh())).assert_clean();
    let report = conformance::run_pair(&|| {
        let url = cluster.fresh();
        (open(&url), open(&url))
    });
    report.assert_clean();
}
