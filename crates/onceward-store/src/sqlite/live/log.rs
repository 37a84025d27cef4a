//! The write-ahead log next to the database: whether it is the one that SQLite has open.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use onceward::StoreError;

use super::super::disk::replaced;
use super::super::identity::file_id;
use super::{LOG_AT, Live};

impl Live {
    /// Refuses a log that cannot be the database's own, because SQLite would apply it to the file. A copy made by
    /// `once backup` has no log, and its header says so until the copy is used.
    pub(in crate::sqlite) fn check_log(&self) -> Result<(), StoreError> {
        const NO_LOG: u8 = 1;
        let without = self.mark.first_bytes().is_some_and(|bytes| bytes[18] == NO_LOG);
        if without && std::fs::metadata(self.log_path()).is_ok_and(|log| log.len() > 0) {
            return Err(replaced(&self.database, "its -wal file belongs to another state of the file"));
        }
        Ok(())
    }

    /// Notes which log a connection uses that was just opened. SQLite keeps it until the last connection is closed.
    pub(in crate::sqlite) fn note_log_file(&self) {
        *self.log.lock().unwrap_or_else(PoisonError::into_inner) = file_id(&self.log_path());
    }

    /// Refuses if the log was removed or replaced while in use: commits to it would be lost with this process.
    pub(super) fn check_log_file(&self) -> Result<(), StoreError> {
        let opened = *self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if opened.is_some() && file_id(&self.log_path()) != opened {
            return Err(replaced(&self.database, "its -wal file was moved or removed while in use"));
        }
        Ok(())
    }

    /// Records that the log will contain changes that the database lacks. Only the first call costs something.
    pub(in crate::sqlite) fn note_log(&self) {
        if !self.wrote.swap(true, Ordering::Relaxed) {
            // If it cannot be recorded, this process still knows.
            drop(self.file.write_all_at(&[1], LOG_AT));
        }
    }

    fn log_path(&self) -> PathBuf {
        let mut log = self.database.clone().into_os_string();
        log.push("-wal");
        log.into()
    }
}
