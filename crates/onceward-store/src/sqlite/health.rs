//! The checks of the file, its log and its locks for `once doctor`.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use onceward::{Inherit, Liveness, StoreError};

use super::live::Live;
use super::schema::SCHEMA_VERSION;
use super::time::{ClockTrust, STABLE_MS};
use super::{SqliteStore, Sync, Trust};
use super::{files, identity};
use crate::health::{Finding, Verdict};
use crate::{Backend, Compacted, Overwrite};

/// A clock difference above this is reported.
const DRIFT_MS: i64 = 60_000;

impl Backend for SqliteStore {
    fn health(&self) -> Result<Vec<Finding>, StoreError> {
        let meta = std::fs::metadata(self.path()).ok();
        let mode = meta.as_ref().map_or(0, |meta| meta.permissions().mode() & 0o777);
        let identity = &self.shared.identity;
        let mut findings = vec![
            Finding::good("ledger", self.spelling()),
            Finding::good("identity", format!("{}, epoch {}", identity.name, identity.epoch)),
            files::check_file_system(self.path()),
            Finding::check(
                "file mode",
                mode == 0o600,
                Verdict::Look,
                format!("{mode:04o} (0600: other users cannot read the results)"),
            ),
        ];
        // The store was opened anyway, so the URL says owner=any.
        let untrusted =
            meta.and_then(|meta| identity::refuse_untrusted(self.path(), &meta, Trust::Own).err());
        if untrusted.is_some() {
            let found =
                "another user owns the file or can write to it, and so can decide what runs (owner=any)";
            findings.push(Finding::look("owner", found));
        }
        findings.extend(self.file()?);
        findings.push(match self.locks_work() {
            Ok(true) => Finding::good("locks", "the kernel reports which owners are alive"),
            Ok(false) => Finding::bad(
                "locks",
                "this file system does not support locks; put the ledger on a local one",
            ),
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
        self.vacuum().map(Some)
    }
}

impl SqliteStore {
    /// The canonical path of the ledger, and the path it was opened by if that differs.
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
            Finding::check("schema", version == SCHEMA_VERSION, Verdict::Bad, format!("version {version}")),
            Finding::check("journal", journal == "wal", Verdict::Bad, format!("{journal} (wal)")),
            Finding::check(
                "sync",
                sync == Sync::Full,
                Verdict::Look,
                format!("{sync} (full: a power failure loses nothing)"),
            ),
            Finding::check("integrity", integrity == "ok", Verdict::Bad, integrity),
            self.clock(drift_ms),
        ])
    }

    fn clock(&self, drift_ms: i64) -> Finding {
        let off = format!("the machine's clock differs from the ledger's by {drift_ms} ms");
        if drift_ms.abs() < DRIFT_MS {
            return Finding::good("clock", off);
        }
        Finding::look(
            "clock",
            match self.shared.live.trust() {
                ClockTrust::Trusted => off,
                ClockTrust::Pending => format!(
                    "{off}: the machine was restarted, and its clock is trusted after {} minutes without a \
                     change. Until then results and quarantines last longer",
                    STABLE_MS / 60_000
                ),
            },
        )
    }

    /// Takes a lock and checks it through another descriptor, as another process would.
    fn locks_work(&self) -> Result<bool, StoreError> {
        let live = &self.shared.live;
        let hold = Live::hold(live, Inherit::Children)?;
        let token = hold.token();
        let alive = live.liveness(token)?;
        drop(hold);
        Ok((alive, live.liveness(token)?) == (Liveness::Alive, Liveness::Gone))
    }
}
