//! Copies of a ledger that is in use, and giving space back.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use onceward::StoreError;

use super::identity::{self, file_id};
use super::{SqliteStore, schema};
use crate::{Compacted, Overwrite};

impl SqliteStore {
    /// Writes a consistent copy of the ledger, which others may go on writing meanwhile. The copy appears under its
    /// name when it is whole and synced. Gives its size in bytes.
    pub(super) fn back_up(&self, to: &Path, overwrite: Overwrite) -> Result<u64, StoreError> {
        let cannot = |error| StoreError::because(format!("cannot write the backup {}", to.display()), error);
        let to = identity::canonical(to)?;
        self.refuse_target(&to, overwrite)?;
        let part = Part::create(&to)?;
        let connection = schema::open_for_writing(&self.shared.options, &self.shared.live)?;
        let name = part.path.to_str().ok_or_else(|| StoreError::Unusable {
            what: format!("{} is not UTF-8, which SQLite needs; give the backup another path", to.display()),
        })?;
        let copied = connection.execute("VACUUM INTO ?1", [name]);
        copied.map_err(|error| schema::explain(&part.path, error))?;
        let file = File::open(&part.path).map_err(cannot)?;
        file.sync_all().map_err(cannot)?;
        let bytes = file.metadata().map_err(cannot)?.len();
        match overwrite {
            Overwrite::Yes => std::fs::rename(&part.path, &to).map_err(cannot)?,
            // Unlike a rename, a link never replaces what another process has put there meanwhile.
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
        // SQLite would put the old log into the new file.
        if std::fs::metadata(beside(to, "-wal")).is_ok_and(|log| log.len() > 0) {
            return refuse("has a -wal file beside it, as a ledger that may be in use; choose another file");
        }
        Ok(())
    }

    /// Gives the space of deleted records back to the file system. Writers wait meanwhile.
    pub(super) fn give_space_back(&self) -> Result<Compacted, StoreError> {
        let path = self.path();
        let before = self.size();
        let connection = schema::open_for_writing(&self.shared.options, &self.shared.live)?;
        let compacted = schema::add_missing_indexes(&connection)
            .and_then(|()| connection.execute_batch("VACUUM"))
            .and_then(|()| connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())));
        compacted.map_err(|error| schema::explain(path, error))?;
        Ok(Compacted { before_bytes: before, after_bytes: self.size() })
    }

    /// How many bytes the database and its log take.
    fn size(&self) -> u64 {
        let bytes = |path: &Path| std::fs::metadata(path).map_or(0, |meta| meta.len());
        bytes(self.path()) + bytes(&beside(self.path(), "-wal"))
    }
}

/// A file while it is written, under a name of its own. It goes when this is dropped.
struct Part {
    path: PathBuf,
}

impl Part {
    fn create(to: &Path) -> Result<Self, StoreError> {
        let cannot = |error| StoreError::because(format!("cannot write a backup to {}", to.display()), error);
        let random = getrandom::u64().map_err(|error| cannot(std::io::Error::other(error)))?;
        let path = beside(to, &format!(".part-{random:016x}"));
        // Made by us, so that it is private from its first moment.
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(cannot)?;
        Ok(Self { path })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Where it was renamed there is nothing left to remove.
        drop(std::fs::remove_file(&self.path));
    }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}
