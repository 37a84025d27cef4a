//! One ledger is one ledger, by whatever path it is reached.
//!
//! The log and the `…-live` file are named after the database. Two processes that reach one database by two names
//! would have two logs and could not see each other's locks, and an operation could run twice. So symbolic links are
//! followed, a file that has several names is refused, and a process that uses a ledger marks the database itself: by
//! a shared lock on a byte that the identity of its `…-live` file names. A process that comes with another `…-live`
//! file sees the mark and is refused, be it that the file was bind-mounted, linked, or its `…-live` file removed or
//! replaced.

use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use onceward::StoreError;

/// How many symbolic links are followed, as by the kernel.
const MAX_LINKS: usize = 40;
/// Marks are locks on bytes from here on, far beyond those that SQLite locks and those that a database can have.
const FIRST_MARK: i64 = 1 << 62;
const MARKS: i64 = 1 << 40;

/// The device and inode of a file.
pub(super) type FileId = (u64, u64);

/// The device and inode of the file at `path`, where there is one.
pub(super) fn file_id(path: &Path) -> Option<FileId> {
    std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// The one path of a ledger, with all symbolic links followed. The file itself need not be there yet.
pub(super) fn canonical(path: &Path) -> Result<PathBuf, StoreError> {
    let cannot = |error| StoreError::because(format!("cannot use {}", path.display()), error);
    let mut place = std::path::absolute(path).map_err(cannot)?;
    for _ in 0..MAX_LINKS {
        match std::fs::canonicalize(&place) {
            Ok(real) => return Ok(real),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(cannot(error)),
        }
        let (Some(folder), Some(name)) = (place.parent(), place.file_name()) else { break };
        let folder = std::fs::canonicalize(folder).map_err(cannot)?;
        match std::fs::read_link(folder.join(name)) {
            // It leads to a file that is to be made.
            Ok(target) => place = folder.join(target),
            Err(_) => return Ok(folder.join(name)),
        }
    }
    Err(cannot(std::io::Error::other("too many symbolic links")))
}

/// Refuses what cannot be a ledger, and a database that has a second name. Opens nothing: to open a pipe is to wait.
pub(super) fn refuse_unfit(path: &Path) -> Result<(), StoreError> {
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(StoreError::because(format!("cannot read {}", path.display()), error)),
    };
    let unusable = |what: String| Err(StoreError::Unusable { what: format!("{} {what}", path.display()) });
    if let Some(kind) = not_a_file(&meta) {
        return unusable(format!("is {kind}; give the path of a file"));
    }
    if meta.nlink() > 1 {
        return unusable(format!(
            "has {} names (hard links). Each name would have a log and locks of its own, and one operation could run \
             twice. Remove the other names (`find -inum {}` finds them), or make a copy with `once backup`",
            meta.nlink(),
            meta.ino()
        ));
    }
    if is_mount_point(path) {
        return unusable(
            "is mounted by itself, so its log and its locks are not where other processes look for them, and one \
             operation could run twice. Mount its folder instead"
                .to_owned(),
        );
    }
    Ok(())
}

/// What it is, where it is not a file.
pub(super) fn not_a_file(meta: &Metadata) -> Option<&'static str> {
    let kind = meta.file_type();
    match () {
        () if kind.is_file() => None,
        () if kind.is_dir() => Some("a folder"),
        () if kind.is_fifo() => Some("a named pipe"),
        () if kind.is_socket() => Some("a socket"),
        () => Some("a device"),
    }
}

/// Whether something is mounted on this very path.
fn is_mount_point(path: &Path) -> bool {
    let Ok(mounts) = std::fs::read("/proc/self/mountinfo") else { return false };
    let path = path.as_os_str().as_bytes();
    mounts
        .split(|byte| *byte == b'\n')
        .any(|line| line.split(|byte| *byte == b' ').nth(4).is_some_and(|point| unescaped(point) == path))
}

/// A path as the kernel writes it, with `\040` for a space.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let octal = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { &after[3..] } else { after };
    }
    bytes
}

/// The databases that this process has marked. One description for each, however many stores use it: to close a second
/// one would free every lock that SQLite holds on the file in this process.
static MARKED: Mutex<Vec<Marked>> = Mutex::new(Vec::new());

struct Marked {
    database: FileId,
    live: FileId,
    file: File,
    users: usize,
}

/// The mark of a store that uses a database. Drop it after the store's connections are closed.
pub(super) struct Mark {
    database: FileId,
    process: u32,
}

impl Mark {
    /// Marks the database as used together with that `…-live` file; refuses where another one is in use.
    pub(super) fn set(database: &Path, live: FileId) -> Result<Self, StoreError> {
        let cannot = |error: std::io::Error| {
            StoreError::because(
                format!("cannot lock {}; is it on a local file system?", database.display()),
                error,
            )
        };
        let mut marked = marked();
        let found = file_id(database);
        if let Some(known) = marked.iter_mut().find(|known| Some(known.database) == found) {
            if known.live != live {
                return Err(used_elsewhere(database));
            }
            known.users += 1;
            return Ok(Self { database: known.database, process: std::process::id() });
        }
        let file = File::open(database).map_err(cannot)?;
        let meta = file.metadata().map_err(cannot)?;
        let mark = mark_of(live);
        let own = range(libc::F_RDLCK, mark, 1);
        fcntl(&file, FcntlArg::F_OFD_SETLK(&own)).map_err(|error| cannot(error.into()))?;
        for (start, length) in [(FIRST_MARK, mark - FIRST_MARK), (mark + 1, FIRST_MARK + MARKS - mark - 1)] {
            // A length of zero would mean up to the end of all files.
            if length == 0 {
                continue;
            }
            let mut others = range(libc::F_WRLCK, start, length);
            fcntl(&file, FcntlArg::F_OFD_GETLK(&mut others)).map_err(|error| cannot(error.into()))?;
            if i32::from(others.l_type) != libc::F_UNLCK {
                return Err(used_elsewhere(database));
            }
        }
        let database = (meta.dev(), meta.ino());
        marked.push(Marked { database, live, file, users: 1 });
        Ok(Self { database, process: std::process::id() })
    }

    /// Lets child processes keep the mark: a command whose wrapper was killed still uses the ledger's locks.
    pub(super) fn leave_to_children(&self) -> nix::Result<()> {
        match marked().iter().find(|known| known.database == self.database) {
            Some(known) => fcntl(&known.file, FcntlArg::F_SETFD(FdFlag::empty())).map(drop),
            None => Ok(()),
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // A forked process has a copy of the list, and none of the connections that it is about.
        if self.process != std::process::id() {
            return;
        }
        let mut marked = marked();
        if let Some(index) = marked.iter().position(|known| known.database == self.database) {
            marked[index].users -= 1;
            if marked[index].users == 0 {
                marked.swap_remove(index);
            }
        }
    }
}

/// Whether a store of this process uses the database.
pub(super) fn is_marked_here(database: &Path) -> bool {
    let found = file_id(database);
    marked().iter().any(|known| Some(known.database) == found)
}

fn marked() -> MutexGuard<'static, Vec<Marked>> {
    MARKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The byte that stands for a `…-live` file.
fn mark_of((device, inode): FileId) -> i64 {
    let mixed = (device.rotate_left(32) ^ inode).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    FIRST_MARK + i64::try_from(mixed >> 24).unwrap_or_default() % MARKS
}

fn used_elsewhere(database: &Path) -> StoreError {
    let database = database.display();
    StoreError::unavailable(format!(
        "{database} is in use with another {database}-live file: it is reached by another path (a bind mount or a hard \
         link), or its -live file was removed or replaced while in use. Nothing was run. Use one path everywhere, or \
         wait until the processes that use it have ended"
    ))
}

fn range(kind: i32, start: i64, length: i64) -> libc::flock {
    libc::flock {
        l_type: i16::try_from(kind).unwrap_or_default(),
        l_whence: i16::try_from(libc::SEEK_SET).unwrap_or_default(),
        l_start: start,
        l_len: length,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_kernel_are_understood() {
        assert_eq!(unescaped(br"/a\040b\134c"), br"/a b\c");
        assert_eq!(unescaped(br"/a\9"), br"/a\9");
    }

    #[test]
    fn marks_are_in_their_range() {
        for id in [(0, 0), (1, 2), (u64::MAX, u64::MAX), (64_768, 12_345_678)] {
            assert!((FIRST_MARK..FIRST_MARK + MARKS).contains(&mark_of(id)));
        }
        assert_ne!(mark_of((1, 2)), mark_of((1, 3)));
    }
}
