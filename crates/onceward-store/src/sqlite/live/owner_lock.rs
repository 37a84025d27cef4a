//! The locks of attempts, and their dispatch notes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use onceward::{Dispatch, OwnerLock, StoreError};

use super::{BEGUN, Live, NOT_YET, note_at, range};

pub(super) struct SharedLock {
    pub(super) token: u64,
    pub(super) live: Arc<Live>,
    /// The process that took the lock. A process forked from it has a copy of this value, but does not own the lock.
    pub(super) process: u32,
}

impl OwnerLock for SharedLock {
    fn token(&self) -> u64 {
        self.token
    }

    fn note_dispatch(&self, dispatch: Dispatch) -> Result<(), StoreError> {
        refuse_forked(self.process)?;
        note_dispatch(&self.live.file, self.token, dispatch)
    }
}

impl Drop for SharedLock {
    fn drop(&mut self) {
        // A forked process shares the open file description, so unlocking there would release the lock here too.
        if self.process != std::process::id() {
            return;
        }
        // Unlock first: while the byte is locked, the token must be in the set.
        let unlocked = fcntl(&self.live.file, FcntlArg::F_OFD_SETLK(&range(libc::F_UNLCK, self.token)));
        debug_assert!(unlocked.is_ok(), "a lock that was taken can be freed");
        self.live.held_tokens().remove(&self.token);
    }
}

/// A lock that child processes inherit. Dropping it closes the file without unlocking: the lock is released when the
/// last process that has the file open closes it.
pub(super) struct InheritedLock {
    pub(super) token: u64,
    pub(super) live: Arc<Live>,
    pub(super) _file: File,
    pub(super) process: u32,
}

impl OwnerLock for InheritedLock {
    fn token(&self) -> u64 {
        self.token
    }

    fn note_dispatch(&self, dispatch: Dispatch) -> Result<(), StoreError> {
        refuse_forked(self.process)?;
        note_dispatch(&self.live.file, self.token, dispatch)
    }
}

/// An attempt belongs to the process that began it. A process forked from it must not write the attempt's notes.
fn refuse_forked(owner: u32) -> Result<(), StoreError> {
    if owner == std::process::id() {
        return Ok(());
    }
    Err(StoreError::unavailable(format!(
        "this attempt belongs to process {owner}, from which this process was forked; nothing was written. Let \
         process {owner} finish it, or open the ledger again here"
    )))
}

fn note_dispatch(file: &File, token: u64, dispatch: Dispatch) -> Result<(), StoreError> {
    let note = match dispatch {
        Dispatch::NotYet => token ^ NOT_YET,
        Dispatch::Begun => token ^ BEGUN,
    };
    file.write_all_at(&note.to_le_bytes(), note_at(token))
        .map_err(|error| StoreError::because("cannot note the dispatch of this attempt", error))
}
