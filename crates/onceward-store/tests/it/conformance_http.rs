//! The store on a ledger's server passes the conformance suite: over TCP, TLS and a Unix socket, and on each kind of
//! store.

use std::sync::Arc;

use crate::served::{Files, Over, open};
use onceward::{MemoryStore, Store, conformance};
use onceward_store::SystemClock;
use onceward_store::postgres::{PostgresOptions, PostgresStore};
use onceward_store::sqlite::SqliteStore;
use onceward_testkit::Postgres;

/// With a time limit that a busy machine does not reach.
fn remote(url: &str) -> Arc<dyn Store> {
    let mark = if url.contains('?') { '&' } else { '?' };
    open(&format!("{url}{mark}timeout=60s"))
}

#[test]
fn a_file_behind_a_unix_socket_conforms() {
    let files = Files::default();
    let report = conformance::run(&|| remote(&files.served(Over::Unix)));
    report.assert_clean();
    assert!(report.passed.len() >= 100, "{} cases", report.passed.len());
}

#[test]
fn a_file_behind_tcp_conforms() {
    let files = Files::default();
    conformance::run(&|| remote(&files.served(Over::Tcp))).assert_clean();
}

#[test]
fn a_file_behind_tls_conforms() {
    let files = Files::default();
    let report = conformance::run(&|| remote(&files.served(Over::Tls)));
    report.assert_clean();
    assert!(report.passed.len() >= 100, "{} cases", report.passed.len());
}

#[test]
fn memory_behind_a_unix_socket_conforms() {
    let files = Files::default();
    let make = || remote(&files.serve(Arc::new(MemoryStore::new(SystemClock)), Over::Unix));
    conformance::run(&make).assert_clean();
}

#[test]
fn two_stores_on_one_server_conform() {
    let files = Files::default();
    for over in [Over::Unix, Over::Tcp, Over::Tls] {
        let report = conformance::run_pair(&|| {
            let url = files.served(over);
            (remote(&url), remote(&url))
        });
        report.assert_clean();
    }
}

/// As two machines behind a load balancer.
#[test]
fn stores_on_two_servers_of_one_file_conform() {
    let files = Files::default();
    let report = conformance::run_pair(&|| {
        let options = files.fresh();
        let serve = || files.serve(SqliteStore::open(options.clone()).unwrap(), Over::Unix);
        (remote(&serve()), remote(&serve()))
    });
    report.assert_clean();
}

#[test]
fn postgres_behind_tcp_conforms() {
    let (files, server) = (Files::default(), Postgres::shared());
    let serve = |url: &str| {
        let store =
            PostgresStore::open(PostgresOptions::parse(&format!("{url}&timeout=60s")).unwrap()).unwrap();
        remote(&files.serve(store, Over::Tcp))
    };
    conformance::run(&|| serve(&server.fresh())).assert_clean();
    let report = conformance::run_pair(&|| {
        let url = server.fresh();
        (serve(&url), serve(&url))
    });
    report.assert_clean();
}
