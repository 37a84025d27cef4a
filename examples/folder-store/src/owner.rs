//! Owner locks. Each attempt has a file that its process keeps locked. The kernel releases the lock when the process
//! dies, so another process can see at once that the owner is gone. The content of the file says whether the attempt
//! may have sent something.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use onceward::{Dispatch, Inherit, Liveness, OwnerLock, StoreError};

use crate::files::failed;

const NOT_DISPATCHED: &[u8] = b"not dispatched";

struct FileLock {
    token: u64,
    path: PathBuf,
    /// Locked as long as it is open.
    _file: File,
}

pub(crate) fn hold(path: PathBuf, token: u64, inherit: Inherit) -> Result<Box<dyn OwnerLock>, StoreError> {
    match inherit {
        // Commands do not inherit files that Rust opens, and the standard library cannot pass one on. So a command
        // that outlives its wrapper counts as gone, and its operation is in doubt. That is safe, but less precise.
        Inherit::No | Inherit::Children => {}
    }
    let file = File::create(&path).map_err(|error| failed(&path, error))?;
    file.lock().map_err(|error| failed(&path, error))?;
    Ok(Box::new(FileLock { token, path, _file: file }))
}

pub(crate) fn liveness(path: &Path) -> Result<Liveness, StoreError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Liveness::Gone),
        Err(error) => return Err(failed(path, error)),
    };
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Ok(Liveness::Alive),
        Err(TryLockError::Error(error)) => Err(failed(path, error)),
        Ok(()) if fs::read(path).is_ok_and(|note| note == NOT_DISPATCHED) => Ok(Liveness::NeverDispatched),
        Ok(()) => Ok(Liveness::Gone),
    }
}

impl OwnerLock for FileLock {
    fn token(&self) -> u64 {
        self.token
    }

    fn note_dispatch(&self, dispatch: Dispatch) -> Result<(), StoreError> {
        // Written in place: a new file under this name would not be locked.
        let note = match dispatch {
            Dispatch::NotYet => NOT_DISPATCHED,
            Dispatch::Begun => b"",
        };
        fs::write(&self.path, note).map_err(|error| failed(&self.path, error))
    }
}
