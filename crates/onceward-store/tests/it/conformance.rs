//! The SQLite store passes the conformance suite, alone and together with another store on the same file.

use std::cell::RefCell;
use std::sync::Arc;

use onceward::{Store, conformance};
use onceward_store::sqlite::{SqliteOptions, SqliteStore};
use tempfile::TempDir;

/// Ledgers in folders that are removed after the test.
#[derive(Default)]
struct Ledgers {
    folders: RefCell<Vec<TempDir>>,
}

impl Ledgers {
    fn fresh(&self) -> SqliteOptions {
        let folder = onceward_testkit::scratch();
        let options = SqliteOptions::new(folder.path().join("once.db"));
        self.folders.borrow_mut().push(folder);
        options
    }
}

fn open(options: SqliteOptions) -> Arc<dyn Store> {
    SqliteStore::open(options).unwrap()
}

#[test]
fn the_sqlite_store_conforms() {
    let ledgers = Ledgers::default();
    let report = conformance::run(&|| open(ledgers.fresh()));
    report.assert_clean();
    assert!(report.passed.len() >= 100, "{} cases", report.passed.len());
}

#[test]
fn it_conforms_without_a_cache() {
    let ledgers = Ledgers::default();
    conformance::run(&|| open(SqliteOptions { cache_bytes: 0, ..ledgers.fresh() })).assert_clean();
}

#[test]
fn two_stores_on_one_file_conform() {
    let ledgers = Ledgers::default();
    let report = conformance::run_pair(&|| {
        let options = ledgers.fresh();
        (open(options.clone()), open(options))
    });
    report.assert_clean();
}
