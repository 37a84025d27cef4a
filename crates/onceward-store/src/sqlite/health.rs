//! Whether the file, its log and its locks are as they should be.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use onceward::{Inherit, Liveness, StoreError};

use super::live::Live;
use super::schema::SCHEMA_VERSION;
use super::{SqliteStore, Sync};
use super::{files, identity};
use crate::health::{Finding, Verdict};
use crate::{Backend, Compacted, Overwrite};

/// A clock that is further off than this is worth a word.
const DRIFT_MS: i64 = 60_000;

impl Backend for SqliteStore {
    fn health(&self) -> Result<Vec<Finding>, StoreError> {
        let mode = std::fs::metadata(self.path()).map_or(0, |meta| meta.permissions().mode() & 0o777);
        let mut findings = vec![
            Finding::good("ledger", self.spelling()),
            files::on_file_system(self.path()),
            Finding::judged(
                "file mode",
                mode == 0o600,
                Verdict::Look,
                format!("{mode:04o} (0600: nobody else reads the results)"),
            ),
        ];
        findings.extend(self.file()?);
        findings.push(match self.locks_hold() {
            Ok(true) => Finding::good("locks", "the kernel tells who lives"),
            Ok(false) => {
                Finding::bad("locks", "this file system does not keep locks; put the ledger on a local one")
            }
            Err(error) => Finding::bad("locks", error.to_string()),
        });
        Ok(findings)
    }

    fn check_backup(&self, file: &Path, overwrite: Overwrite) -> Result<(), StoreError> {
        self.refuse_target(&identity::canonical(file)?, overwrite)
    }

    fn backup(&self, file: &Path, overwrite: Overwrite) -> Result<u64, StoreError> {
        self.back_up(file, overwrite)
    }

    fn compact(&self) -> Result<Option<Compacted>, StoreError> {
        self.give_space_back().map(Some)
    }
}

impl SqliteStore {
    /// The ledger's one path, and the other one that it was given by.
    fn spelling(&self) -> String {
        let path = self.path().display();
        match std::path::absolute(&self.given) {
            Ok(given) if given == self.path() => path.to_string(),
            Ok(_) | Err(_) => format!("{path} (given as {}: the same ledger)", self.given.display()),
        }
    }

    fn file(&self) -> Result<[Finding; 6], StoreError> {
        let shared = &self.shared;
        let (version, journal, integrity) = shared.read(|connection| {
            let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
            let journal: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
            let integrity: String =
                connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
            Ok((version, journal, integrity))
        })?;
        let sync = shared.options.sync;
        let drift_ms = shared.live.drift_ms();
        Ok([
            Finding::good("sqlite", rusqlite::version()),
            Finding::judged("schema", version == SCHEMA_VERSION, Verdict::Bad, format!("version {version}")),
            Finding::judged("journal", journal == "wal", Verdict::Bad, format!("{journal} (wal)")),
            Finding::judged(
                "sync",
                sync == Sync::Full,
                Verdict::Look,
                format!("{sync} (full: a power cut loses nothing on a disk)"),
            ),
            Finding::judged("integrity", integrity == "ok", Verdict::Bad, integrity),
            Finding::judged(
                "clock",
                drift_ms.abs() < DRIFT_MS,
                Verdict::Look,
                format!("the machine's is {drift_ms} ms off the ledger's"),
            ),
        ])
    }

    /// Takes a lock and looks at it from outside, as another process would.
    fn locks_hold(&self) -> Result<bool, StoreError> {
        let live = &self.shared.live;
        let hold = Live::hold(live, Inherit::Children)?;
        let token = hold.token();
        let alive = live.liveness(token)?;
        drop(hold);
        Ok((alive, live.liveness(token)?) == (Liveness::Alive, Liveness::Gone))
    }
}
