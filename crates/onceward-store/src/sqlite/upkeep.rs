//! Backups of a ledger in use, and returning free space to the file system.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use onceward::StoreError;
use rusqlite::Connection;

use super::identity::{self, file_id};
use super::{SqliteStore, schema};
use crate::{Compacted, Overwrite};

impl SqliteStore {
    /// Writes a consistent copy of the ledger while other processes may write to it. The copy gets its name when it
    /// is complete and synced. Returns its size in bytes.
    pub(super) fn back_up(&self, to: &Path, overwrite: Overwrite) -> Result<u64, StoreError> {
        let cannot = |error| StoreError::because(format!("cannot write the backup {}", to.display()), error);
        let to = identity::canonical(to)?;
        self.refuse_target(&to, overwrite)?;
        let part = Part::create(&to)?;
        self.shared.live.check_unchanged()?;
        let connection = schema::open_for_writing(&self.shared.options, &self.shared.live)?;
        let name = part.path.to_str().ok_or_else(|| StoreError::Unusable {
            what: format!("{} is not UTF-8, which SQLite needs; give the backup another path", to.display()),
        })?;
        let copied = connection.execute("VACUUM INTO ?1", [name]);
        copied.map_err(|error| schema::explain(&part.path, error))?;
        stamp(&part.path).map_err(|error| schema::explain(&part.path, error))?;
        let file = File::open(&part.path).map_err(cannot)?;
        file.sync_all().map_err(cannot)?;
        let bytes = file.metadata().map_err(cannot)?.len();
        match overwrite {
            Overwrite::Yes => std::fs::rename(&part.path, &to).map_err(cannot)?,
            // Unlike a rename, a link never replaces a file that another process has created meanwhile.
            Overwrite::No => std::fs::hard_link(&part.path, &to).map_err(cannot)?,
        }
        drop(part);
        if let Some(folder) = to.parent() {
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(cannot)?;
        }
        Ok(bytes)
    }

    pub(super) fn refuse_target(&self, to: &Path, overwrite: Overwrite) -> Result<(), StoreError> {
        let refuse = |what: &str| {
            Err(StoreError::Unusable { what: format!("{} {what}; the backup was not written", to.display()) })
        };
        let there = match std::fs::symlink_metadata(to) {
            Ok(meta) => meta,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(StoreError::because(format!("cannot read {}", to.display()), error)),
        };
        if let Some(kind) = identity::not_a_file(&there) {
            return refuse(&format!("is {kind}"));
        }
        if file_id(to) == file_id(self.path()) {
            return refuse("is the ledger itself");
        }
        if overwrite == Overwrite::No {
            return refuse("exists (--force replaces it)");
        }
        // SQLite would apply the old log to the new file.
        if std::fs::metadata(beside(to, "-wal")).is_ok_and(|log| log.len() > 0) {
            return refuse("has a -wal file next to it, so it may be a ledger in use; choose another file");
        }
        Ok(())
    }

    /// Returns the space of deleted records to the file system. Writers wait meanwhile.
    pub(super) fn vacuum(&self) -> Result<Compacted, StoreError> {
        let path = self.path();
        let before = self.size();
        self.shared.live.check_unchanged()?;
        let connection = schema::open_for_writing(&self.shared.options, &self.shared.live)?;
        let compacted = connection
            .execute_batch("VACUUM")
            .and_then(|()| connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())));
        compacted.map_err(|error| schema::explain(path, error))?;
        Ok(Compacted { before_bytes: before, after_bytes: self.size() })
    }

    /// The size of the database and its log in bytes.
    fn size(&self) -> u64 {
        let bytes = |path: &Path| std::fs::metadata(path).map_or(0, |meta| meta.len());
        bytes(self.path()) + bytes(&beside(self.path(), "-wal"))
    }
}

/// Marks the file as a copy. If it replaces the ledger, it counts as older than any state seen.
fn stamp(copy: &Path) -> rusqlite::Result<()> {
    let connection = Connection::open(copy)?;
    // The copy has a temporary name until it is complete, so it needs no journal.
    connection.pragma_update(None, "journal_mode", "off")?;
    connection.execute_batch("UPDATE ledger SET count = 0; UPDATE twin SET count = 0")
}

/// A file under a temporary name while it is written. It is removed on drop.
struct Part {
    path: PathBuf,
}

impl Part {
    fn create(to: &Path) -> Result<Self, StoreError> {
        let cannot = |error| StoreError::because(format!("cannot write a backup to {}", to.display()), error);
        let random = getrandom::u64().map_err(|error| cannot(std::io::Error::other(error)))?;
        let path = beside(to, &format!(".part-{random:016x}"));
        // Created by us, so that it is private from the start.
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(cannot)?;
        Ok(Self { path })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // After a rename there is nothing to remove.
        drop(std::fs::remove_file(&self.path));
    }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}
