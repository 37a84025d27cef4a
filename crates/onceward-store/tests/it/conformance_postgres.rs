//! The PostgreSQL store passes the conformance suite: with a plain table, partitioned, and through a pooler.

use std::sync::Arc;

use onceward::{Store, conformance};
use onceward_store::postgres::{PostgresOptions, PostgresStore};
use onceward_testkit::Postgres;

/// With a time limit that a busy machine does not reach.
fn open(url: &str) -> Arc<dyn Store> {
    PostgresStore::open(PostgresOptions::parse(&format!("{url}&timeout=60s")).unwrap()).unwrap()
}

#[test]
fn the_postgres_store_conforms() {
    let server = Postgres::shared();
    let report = conformance::run(&|| open(&server.fresh()));
    report.assert_clean();
    assert!(report.passed.len() >= 100, "{} cases", report.passed.len());
}

#[test]
fn two_stores_on_one_server_conform() {
    let server = Postgres::shared();
    let report = conformance::run_pair(&|| {
        let url = server.fresh();
        (open(&url), open(&url))
    });
    report.assert_clean();
}

#[test]
fn a_partitioned_ledger_conforms() {
    let server = Postgres::shared();
    conformance::run(&|| open(&format!("{}&partitions=4", server.fresh()))).assert_clean();
}

#[test]
fn one_connection_without_notifications_conforms() {
    let server = Postgres::shared();
    conformance::run(&|| open(&format!("{}&connections=1&notify=no", server.fresh()))).assert_clean();
}

#[test]
fn it_conforms_through_a_transaction_pooler() {
    let server = Postgres::shared();
    let pooler = server.pgbouncer();
    conformance::run(&|| open(&pooler.fresh())).assert_clean();
    let pair = conformance::run_pair(&|| {
        let url = pooler.fresh();
        (open(&url), open(&url))
    });
    pair.assert_clean();
}
