//! Ledgers and other files in the state in which a test wants to find them.

use std::os::unix::fs::FileExt;

use rusqlite::Connection;

use super::{Bench, COUNTED};

/// `ONCE` in ASCII: what marks a file as a ledger.
const APPLICATION_ID: i64 = 0x4f4e_4345;

impl Bench {
    /// A ledger with one operation that is done, under the key `done`; gives its id.
    pub(crate) fn with_done(&self) -> String {
        self.once(&["run", "--key", "done", "--", "sh", "-c", COUNTED]).exits(0);
        self.newest()
    }

    /// A ledger with one operation in doubt, under the key `doubt`; gives its id.
    pub(crate) fn with_doubt(&self) -> String {
        self.once(&["run", "--key", "doubt", "--", "sh", "-c", "kill -9 $$"]).exits(79);
        self.newest()
    }

    /// A ledger with one operation that failed, under the key `failed`; gives its id.
    pub(crate) fn with_failed(&self) -> String {
        self.once(&["run", "--key", "failed", "--fail-exit", "3", "--", "sh", "-c", "exit 3"]).exits(3);
        self.newest()
    }

    /// Writes an alarm into the record of every operation, as an attempt that comes back late would.
    pub(crate) fn raise_alarm(&self, word: &str) {
        let connection = Connection::open(self.path("once.db")).unwrap();
        let alarm = format!("UPDATE operations SET detail = json_set(detail, '$.double_effect', '{word}')");
        assert_eq!(connection.execute(&alarm, []).unwrap(), 1);
    }

    /// A SQLite file of another program, at the ledger's place.
    pub(crate) fn with_foreign_database(&self) -> &Self {
        let connection = Connection::open(self.path("once.db")).unwrap();
        connection
            .execute_batch("CREATE TABLE bookmark (url TEXT); INSERT INTO bookmark VALUES ('a')")
            .unwrap();
        self
    }

    /// A ledger that a later version of Onceward has written.
    pub(crate) fn with_newer_ledger(&self) -> &Self {
        let connection = Connection::open(self.path("once.db")).unwrap();
        connection.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
        connection.pragma_update(None, "user_version", 99).unwrap();
        connection.execute_batch("CREATE TABLE operation (later TEXT)").unwrap();
        self
    }

    /// A ledger with many operations in one file without a log, of which every page can be damaged.
    pub(crate) fn with_long_ledger(&self) -> &Self {
        self.with_done();
        let connection = Connection::open(self.path("once.db")).unwrap();
        connection.pragma_update(None, "journal_mode", "delete").unwrap();
        connection
            .execute_batch(
                "WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
                 INSERT INTO operations (row, slot, id, kind, number, scope, name, key, origin, state, version, attempt,
                   created_ms, updated_ms, due_ms, agenda, detail, outcome)
                 SELECT i, slot + i, substr(id, 1, 19) || replace(replace(replace(replace(
                     printf('%016d', i), '0', 'a'), '1', 'b'), '8', 'c'), '9', 'd'),
                   kind, number, scope, name, key, origin, state, version, attempt,
                   created_ms, updated_ms, due_ms, agenda, detail, outcome FROM operations, n WHERE row = 1",
            )
            .unwrap();
        connection.pragma_update(None, "journal_mode", "wal").unwrap();
        drop(connection);
        self
    }

    /// Overwrites all of the ledger between two places, up to its end.
    pub(crate) fn damage(&self, pages: std::ops::Range<u64>) -> &Self {
        let file = std::fs::OpenOptions::new().write(true).open(self.path("once.db")).unwrap();
        let end = file.metadata().unwrap().len() / 4096;
        for page in pages.start..pages.end.min(end) {
            file.write_all_at(&[0xa7; 4096], page * 4096).unwrap();
        }
        self
    }
}
