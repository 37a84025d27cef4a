//! The store passes the public test suite for back ends.
#![allow(clippy::unwrap_used, reason = "a test may give up")]

use std::sync::Arc;

use folder_store::FolderStore;
use onceward::{Store, conformance};

/// A folder in memory: the suite cuts no power, and thousands of syncs would take a minute.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

#[test]
fn the_store_conforms() {
    let folder = folder();
    let ledgers = std::cell::Cell::new(0);
    let report = conformance::run(&|| {
        ledgers.set(ledgers.get() + 1);
        Arc::new(FolderStore::open(&folder.path().join(ledgers.get().to_string())).unwrap()) as Arc<dyn Store>
    });
    report.assert_clean();
    assert!(report.passed.len() >= 100, "{} cases", report.passed.len());
}

#[test]
fn two_handles_on_one_folder_conform() {
    let folder = folder();
    let ledgers = std::cell::Cell::new(0);
    let report = conformance::run_pair(&|| {
        ledgers.set(ledgers.get() + 1);
        let path = folder.path().join(ledgers.get().to_string());
        let open = || Arc::new(FolderStore::open(&path).unwrap()) as Arc<dyn Store>;
        (open(), open())
    });
    report.assert_clean();
    assert!(!report.passed.is_empty());
}
