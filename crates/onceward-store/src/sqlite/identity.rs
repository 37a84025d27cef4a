//! One ledger, whatever path leads to it.
//!
//! The log and the `…-live` file are named after the database. Two processes that reach one database by two names
//! would have two logs and could not see each other's locks, and an operation could run twice. So symbolic links are
//! resolved, a file with several names is refused, and a process that uses a ledger marks the database itself: it
//! holds a shared lock on a byte derived from the id of the `…-live` file. A process with a different `…-live` file
//! sees the mark and is refused, whether the file was bind-mounted or linked, or its `…-live` file removed or
//! replaced.

use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use onceward::StoreError;

/// The maximum number of symbolic links, as in the kernel.
const MAX_LINKS: usize = 40;
/// Marks are locks on bytes from here on, far beyond the bytes that SQLite locks and the maximum size of a database.
const FIRST_MARK: i64 = 1 << 62;
const MARKS: i64 = 1 << 40;

/// The device and inode of a file.
pub(super) type FileId = (u64, u64);

/// The device and inode of the file at `path`, if it exists.
pub(super) fn file_id(path: &Path) -> Option<FileId> {
    std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// The canonical path of a ledger, with all symbolic links resolved. The file need not exist yet.
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
            // A link to a file that does not exist yet.
            Ok(target) => place = folder.join(target),
            Err(_) => return Ok(folder.join(name)),
        }
    }
    Err(cannot(std::io::Error::other("too many symbolic links")))
}

/// Which owners of a ledger file are trusted. The content of a ledger decides what runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Trust {
    /// The current user and root, if no other user can write to the file.
    #[default]
    Own,
    /// Any owner: the users of this ledger trust each other (`owner=any`).
    Any,
}

/// Refuses a file that another user could have prepared.
pub(super) fn refuse_untrusted(path: &Path, meta: &Metadata, trust: Trust) -> Result<(), StoreError> {
    let user = nix::unistd::geteuid().as_raw();
    match untrusted_reason(meta.uid(), meta.mode(), user).filter(|_| trust == Trust::Own) {
        None => Ok(()),
        Some(why) => Err(StoreError::Unusable {
            what: format!(
                "{} {why}, so others can decide what runs. Use another path for the ledger or, if you trust everyone \
                 who can write to it, add ?owner=any to its URL",
                path.display()
            ),
        }),
    }
}

/// Why a file with this owner and mode is not trusted by a user.
fn untrusted_reason(owner: u32, mode: u32, user: u32) -> Option<String> {
    if owner != user && owner != 0 {
        return Some(format!("belongs to the user with id {owner}"));
    }
    (mode & 0o002 != 0).then(|| format!("is writable by everyone (mode {:04o})", mode & 0o7777))
}

/// Refuses what cannot be a ledger, and a database with a second name. Opens nothing, because opening a pipe blocks.
pub(super) fn refuse_unfit(path: &Path, trust: Trust) -> Result<(), StoreError> {
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(StoreError::because(format!("cannot read {}", path.display()), error)),
    };
    let unusable = |what: String| Err(StoreError::Unusable { what: format!("{} {what}", path.display()) });
    if let Some(kind) = not_a_file(&meta) {
        return unusable(format!("is {kind}; give the path of a file"));
    }
    refuse_untrusted(path, &meta, trust)?;
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
            "is a mount point itself, so its log and its locks are not where other processes look for them, and one \
             operation could run twice. Mount its folder instead"
                .to_owned(),
        );
    }
    Ok(())
}

/// What it is, if it is not a regular file.
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

/// Whether something is mounted on exactly this path.
fn is_mount_point(path: &Path) -> bool {
    let Ok(mounts) = std::fs::read("/proc/self/mountinfo") else { return false };
    let path = path.as_os_str().as_bytes();
    mounts
        .split(|byte| *byte == b'\n')
        .any(|line| line.split(|byte| *byte == b' ').nth(4).is_some_and(|point| unescape(point) == path))
}

/// Decodes a path as the kernel writes it, with `\040` for a space.
fn unescape(text: &[u8]) -> Vec<u8> {
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

/// The databases that this process has marked. One description for each, however many stores use it: closing a second
/// one would release every POSIX lock that SQLite holds on the file in this process.
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
    /// Marks the database as used together with that `…-live` file. Refuses if another one is in use.
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
                return Err(in_use_error(database));
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
            // A length of zero would mean up to the end of the file.
            if length == 0 {
                continue;
            }
            let mut others = range(libc::F_WRLCK, start, length);
            fcntl(&file, FcntlArg::F_OFD_GETLK(&mut others)).map_err(|error| cannot(error.into()))?;
            if i32::from(others.l_type) != libc::F_UNLCK {
                return Err(in_use_error(database));
            }
        }
        let database = (meta.dev(), meta.ino());
        marked.push(Marked { database, live, file, users: 1 });
        Ok(Self { database, process: std::process::id() })
    }

    /// The first bytes of the database file, read through the only description that this process has of it.
    pub(super) fn first_bytes(&self) -> Option<[u8; 20]> {
        let mut bytes = [0; 20];
        let marked = marked();
        let known = marked.iter().find(|known| known.database == self.database)?;
        known.file.read_exact_at(&mut bytes, 0).ok().map(|()| bytes)
    }

    /// The id of the marked database.
    pub(super) fn database(&self) -> FileId {
        self.database
    }

    /// Lets child processes inherit the mark: a command whose wrapper was killed still uses the ledger's locks.
    pub(super) fn let_children_inherit(&self) -> nix::Result<()> {
        match marked().iter().find(|known| known.database == self.database) {
            Some(known) => fcntl(&known.file, FcntlArg::F_SETFD(FdFlag::empty())).map(drop),
            None => Ok(()),
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // A forked process has a copy of the list, but none of the connections.
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

/// The byte that represents a `…-live` file.
fn mark_of((device, inode): FileId) -> i64 {
    let mixed = (device.rotate_left(32) ^ inode).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    FIRST_MARK + i64::try_from(mixed >> 24).unwrap_or_default() % MARKS
}

fn in_use_error(database: &Path) -> StoreError {
    let database = database.display();
    StoreError::Replaced {
        what: format!(
            "{database} is in use with another {database}-live file: another path leads to it (a bind mount or a \
             hard link), or its -live file was removed or replaced while in use. Use one path everywhere, put the \
             -live file back, or wait until the processes that use it have ended"
        ),
    }
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
    fn kernel_paths_are_unescaped() {
        assert_eq!(unescape(br"/a\040b\134c"), br"/a b\c");
        assert_eq!(unescape(br"/a\9"), br"/a\9");
    }

    #[test]
    fn files_of_other_users_are_not_trusted() {
        assert_eq!(untrusted_reason(1_000, 0o600, 1_000), None);
        assert_eq!(untrusted_reason(0, 0o644, 1_000), None);
        assert!(untrusted_reason(1_001, 0o600, 1_000).is_some_and(|why| why.contains("1001")));
        assert!(untrusted_reason(1_001, 0o600, 0).is_some());
        assert!(untrusted_reason(1_000, 0o666, 1_000).is_some_and(|why| why.contains("everyone")));
    }

    #[test]
    fn marks_are_in_their_range() {
        for id in [(0, 0), (1, 2), (u64::MAX, u64::MAX), (64_768, 12_345_678)] {
            assert!((FIRST_MARK..FIRST_MARK + MARKS).contains(&mark_of(id)));
        }
        assert_ne!(mark_of((1, 2)), mark_of((1, 3)));
    }
}
