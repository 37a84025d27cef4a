//! The `…-live` file: who lives, what time it is, and whether a finished record has changed.
//!
//! Each attempt under way has a byte of this file locked by an open-file-description lock. The kernel frees it when the
//! last process that holds the description is gone, however it went, and not before. The file itself holds the count of
//! changes to finished records, the anchor of the ledger's clock, and notes of attempts that have dispatched nothing
//! yet. None of it matters after a reboot, and none of it is synced.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::timer::sleep;
use async_trait::async_trait;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use onceward::{Clock, Dispatch, Hold, Inherit, Liveness, StoreError};

use super::identity::{self, FileId, Mark, file_id};
use super::options::SqliteOptions;
use crate::clock::{namespace_offset_ms, since_boot_ms, wall_ms};

const EPOCH_AT: u64 = 0;
/// One byte that is not zero while the log holds changes that the database lacks. Tallies do not count.
const LOG_AT: u64 = 8;
const ANCHOR_AT: u64 = 16;
const ANCHOR_BYTES: usize = 32;
/// The byte that is locked while the anchor is set or the database is set up.
const SETUP_BYTE: u64 = 64;
/// The byte on which every store that has the ledger open holds a shared lock.
const USERS_BYTE: u64 = 65;
/// How long to wait for a process that sets the database up.
const SETUP_LIMIT: Duration = Duration::from_secs(10);
/// Attempts lock bytes from here on.
const FIRST_TOKEN: u64 = 1 << 20;
/// The notes of dispatch: eight bytes each, at a place that the token names. Two attempts may share a place; then the
/// older note is gone, and its attempt is in doubt where it could have been certain.
const NOTES_AT: u64 = 4_096;
const NOTES: u64 = 4_096;
/// A note is the attempt's token, in one of two disguises.
const NOT_YET: u64 = 0xa5a5_a5a5_a5a5_a5a5;
const BEGUN: u64 = 0x5a5a_5a5a_5a5a_5a5a;

/// The `…-live` file of a ledger, opened.
pub(super) struct Live {
    file: File,
    path: PathBuf,
    /// Of the file that is open, wherever it is now.
    identity: FileId,
    database: PathBuf,
    /// On the database, that it is used with this file.
    mark: Mark,
    time: Time,
    held: Mutex<HashSet<u64>>,
    notes: Notes,
    /// Whether this process has written to the log.
    wrote: AtomicBool,
    /// Tokens of one store follow each other, so that the kernel keeps the locks of neighbours as one.
    next_token: AtomicU64,
}

/// Whether the notes of dispatch can be believed: only where it is certain that they are of this run of the machine,
/// since a power cut may keep an old note and lose a newer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notes {
    Trusted,
    Worthless,
}

/// Ledger time is the wall clock's at the anchor plus what has passed since by a clock that nobody can set. So a jump
/// of the wall clock neither expires a record nor brings one back, for as long as the machine is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Anchor {
    boot_id: [u8; 16],
    boot_ms: i64,
    wall_ms: i64,
}

/// The ledger's time when it was opened here, and what the boot clock said then. From there on the boot clock counts:
/// in one process it does not jump.
#[derive(Debug, Clone, Copy)]
struct Time {
    opened_ms: i64,
    opened_boot_ms: i64,
}

impl Live {
    /// Where the `…-live` file of a ledger is.
    pub(super) fn path_of(options: &SqliteOptions) -> PathBuf {
        let mut path = options.path.clone().into_os_string();
        path.push("-live");
        PathBuf::from(path)
    }

    pub(super) fn open(options: &SqliteOptions) -> Result<Self, StoreError> {
        let path = Self::path_of(options);
        let cannot = |error| StoreError::because(format!("cannot open {}", path.display()), error);
        if let Some(kind) = std::fs::metadata(&path).ok().as_ref().and_then(identity::not_a_file) {
            let what = format!("{} is {kind}, where the ledger keeps its locks; remove it", path.display());
            return Err(StoreError::Unusable { what });
        }
        let file = open_file(&path).map_err(cannot)?;
        let meta = file.metadata().map_err(cannot)?;
        let identity = (meta.dev(), meta.ino());
        let mark = Mark::set(&options.path, identity)?;
        // Somewhere in a range so wide that no two stores ever meet in it.
        let random = getrandom::u64().map_err(|error| cannot(std::io::Error::other(error)))?;
        let mut live = Self {
            file,
            identity,
            database: options.path.clone(),
            mark,
            time: Time { opened_ms: 0, opened_boot_ms: 0 },
            held: Mutex::default(),
            next_token: AtomicU64::new(FIRST_TOKEN + (random >> 2)),
            wrote: AtomicBool::new(false),
            notes: if boot_id().is_some() { Notes::Trusted } else { Notes::Worthless },
            path,
        };
        let user = range(libc::F_RDLCK, USERS_BYTE);
        fcntl(&live.file, FcntlArg::F_OFD_SETLK(&user)).map_err(|error| live.cannot_lock(error.into()))?;
        let anchor = live.anchored()?;
        let boot_ms = since_boot_ms();
        live.time = Time {
            opened_ms: anchor.time_ms(boot_ms - namespace_offset_ms(), wall_ms()),
            opened_boot_ms: boot_ms,
        };
        Ok(live)
    }

    fn anchored(&self) -> Result<Anchor, StoreError> {
        let cannot = |error| StoreError::because(format!("cannot use {}", self.path.display()), error);
        let boot_id = boot_id().unwrap_or_default();
        let read = || {
            let mut bytes = [0; ANCHOR_BYTES];
            let whole = self.file.read_exact_at(&mut bytes, ANCHOR_AT).is_ok();
            whole.then(|| Anchor::from_bytes(&bytes)).filter(|anchor| anchor.boot_id == boot_id)
        };
        if let Some(anchor) = read() {
            return Ok(anchor);
        }
        let _setup = self.setup_lock()?;
        if let Some(anchor) = read() {
            return Ok(anchor);
        }
        // Whatever was noted before is of another run of the machine.
        self.file.set_len(NOTES_AT).map_err(cannot)?;
        self.file.write_all_at(&[1], LOG_AT).map_err(cannot)?;
        let boot_ms = since_boot_ms() - namespace_offset_ms();
        let anchor = Anchor { boot_id, boot_ms, wall_ms: wall_ms() };
        self.file.write_all_at(&anchor.to_bytes(), ANCHOR_AT).map_err(cannot)?;
        Ok(anchor)
    }

    /// One process at a time sets the database up. Waits for its turn, but not for ever: a process that was stopped
    /// while it had its turn keeps it.
    pub(super) fn setup_lock(&self) -> Result<SetupLock, StoreError> {
        let cannot = |error: std::io::Error| self.cannot_lock(error);
        let file = self.open_again().map_err(cannot)?;
        let lock = range(libc::F_WRLCK, SETUP_BYTE);
        let begun = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            match fcntl(&file, FcntlArg::F_OFD_SETLK(&lock)) {
                Ok(_) => return Ok(SetupLock { _file: file }),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN | Errno::EACCES) if begun.elapsed() < SETUP_LIMIT => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(20));
                }
                Err(Errno::EAGAIN | Errno::EACCES) => {
                    return Err(StoreError::unavailable(format!(
                        "another process has been setting {} up for longer than {} s; it may be stopped. Let it go on, \
                         or end it, and try again",
                        self.database.display(),
                        SETUP_LIMIT.as_secs()
                    )));
                }
                Err(error) => return Err(cannot(error.into())),
            }
        }
    }

    fn cannot_lock(&self, error: std::io::Error) -> StoreError {
        StoreError::because(format!("cannot lock {}", self.path.display()), error)
    }

    /// Another description of the same file, so that a lock goes with it and never with another's.
    fn open_again(&self) -> std::io::Result<File> {
        let file = open_file(&self.path)?;
        let meta = file.metadata()?;
        if (meta.dev(), meta.ino()) == self.identity {
            return Ok(file);
        }
        Err(std::io::Error::other("the file was replaced while in use; put it back, or start again"))
    }

    pub(super) fn hold(live: &Arc<Self>, inherit: Inherit) -> Result<Box<dyn Hold>, StoreError> {
        let cannot = |error: std::io::Error| {
            StoreError::because(format!("cannot lock {} for this attempt", live.path.display()), error)
        };
        let token = live.next_token.fetch_add(1, Ordering::Relaxed);
        let lock = range(libc::F_WRLCK, token);
        match inherit {
            Inherit::No => {
                live.held_tokens().insert(token);
                let hold = SharedHold { token, live: Arc::clone(live), process: std::process::id() };
                fcntl(&live.file, FcntlArg::F_OFD_SETLK(&lock)).map_err(|error| cannot(error.into()))?;
                Ok(Box::new(hold))
            }
            Inherit::Children => {
                // A description of its own, which children keep open: they hold this lock and no other.
                let file = live.open_again().map_err(cannot)?;
                fcntl(&file, FcntlArg::F_OFD_SETLK(&lock)).map_err(|error| cannot(error.into()))?;
                live.mark.leave_to_children().map_err(|error| cannot(error.into()))?;
                fcntl(&file, FcntlArg::F_SETFD(FdFlag::empty())).map_err(|error| cannot(error.into()))?;
                Ok(Box::new(InheritedHold { token, file, process: std::process::id() }))
            }
        }
    }

    pub(super) fn liveness(&self, token: u64) -> Result<Liveness, StoreError> {
        // The kernel does not report the locks of the very description that asks.
        if self.held_tokens().contains(&token) {
            return Ok(Liveness::Alive);
        }
        let mut lock = range(libc::F_WRLCK, token);
        fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut lock)).map_err(|error| {
            StoreError::because(format!("cannot ask {} who lives", self.path.display()), error)
        })?;
        Ok(match i32::from(lock.l_type) {
            libc::F_UNLCK if self.noted_not_yet(token) => Liveness::NeverDispatched,
            libc::F_UNLCK => Liveness::Gone,
            _ => Liveness::Alive,
        })
    }

    fn noted_not_yet(&self, token: u64) -> bool {
        let mut bytes = [0; 8];
        let read = self.file.read_exact_at(&mut bytes, note_at(token));
        self.notes == Notes::Trusted && read.is_ok() && u64::from_le_bytes(bytes) == token ^ NOT_YET
    }

    /// How many attempts of this process are under way.
    pub(super) fn held(&self) -> usize {
        self.held_tokens().len()
    }

    fn held_tokens(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far the wall clock has moved away from the ledger's.
    pub(super) fn drift_ms(&self) -> i64 {
        wall_ms() - self.now_ms()
    }

    /// The count of changes to finished records, or `None` while one is under way.
    pub(super) fn epoch(&self) -> Option<u64> {
        Some(self.raw_epoch()).filter(|epoch| epoch.is_multiple_of(2))
    }

    fn raw_epoch(&self) -> u64 {
        let mut bytes = [0; 8];
        match self.file.read_exact_at(&mut bytes, EPOCH_AT) {
            Ok(()) => u64::from_le_bytes(bytes),
            // Unreadable is as good as changed: odd, so nothing is served from memory.
            Err(_) => 1,
        }
    }

    /// Says that finished records change, before the change is committed. Only the one writer of the database may.
    ///
    /// Whoever dies in between leaves an odd count, with which nothing is served from memory until the next change.
    pub(super) fn finished_records_change(&self) -> std::io::Result<()> {
        self.file.write_all_at(&(self.raw_epoch() | 1).to_le_bytes(), EPOCH_AT)
    }

    /// Says that the change is committed, or taken back.
    pub(super) fn finished_records_changed(&self) {
        let epoch = (self.raw_epoch() | 1).wrapping_add(1);
        // A count that stays odd is safe: it only costs speed.
        drop(self.file.write_all_at(&epoch.to_le_bytes(), EPOCH_AT));
    }

    /// Notes that the log gets changes that the database lacks. Costs something only the first time.
    pub(super) fn note_log(&self) {
        if !self.wrote.swap(true, Ordering::Relaxed) {
            // Where it cannot be noted, this process still knows.
            drop(self.file.write_all_at(&[1], LOG_AT));
        }
    }

    /// Whether the log may hold changes that the database lacks.
    pub(super) fn log_matters(&self) -> bool {
        let mut noted = [1];
        let read = self.file.read_exact_at(&mut noted, LOG_AT);
        self.wrote.load(Ordering::Relaxed) || read.is_err() || noted != [0]
    }

    /// This store no longer has the ledger open.
    pub(super) fn leave(&self) {
        // Where it cannot be said, the next one to leave believes that it is not alone.
        fcntl(&self.file, FcntlArg::F_OFD_SETLK(&range(libc::F_UNLCK, USERS_BYTE))).ok();
    }

    /// Whether no store has the ledger open, after this one has left.
    pub(super) fn is_left(&self) -> bool {
        let mut others = range(libc::F_WRLCK, USERS_BYTE);
        let asked = fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut others));
        asked.is_ok() && i32::from(others.l_type) == libc::F_UNLCK
    }

    /// Notes that the database has all that the log had.
    pub(super) fn note_no_log(&self) {
        drop(self.file.write_all_at(&[0], LOG_AT));
    }

    /// Refuses when somebody moved or removed the files while they are in use: locks on a file that others do not see
    /// protect nothing.
    pub(super) fn check_in_place(&self, database: (u64, u64)) -> Result<(), StoreError> {
        if file_id(&self.path) == Some(self.identity) && file_id(&self.database) == Some(database) {
            return Ok(());
        }
        Err(StoreError::unavailable(format!(
            "{} or its -live file was moved or removed while in use; put it back, or start again",
            self.database.display()
        )))
    }
}

#[async_trait]
impl Clock for Live {
    fn now_ms(&self) -> i64 {
        self.time.opened_ms + (since_boot_ms() - self.time.opened_boot_ms)
    }

    async fn sleep(&self, ms: u64) {
        sleep(Duration::from_millis(ms)).await;
    }
}

impl Anchor {
    /// The ledger's time. Two clocks say how long ago the anchor was set, and the shorter span counts: a clock that is
    /// ahead must not expire a result. So both must be wrong to do harm, and one that is behind makes someone wait.
    fn time_ms(self, boot_ms: i64, wall_ms: i64) -> i64 {
        let passed_ms = (boot_ms - self.boot_ms).min(wall_ms - self.wall_ms);
        self.wall_ms + passed_ms.max(0)
    }

    fn to_bytes(self) -> [u8; ANCHOR_BYTES] {
        let mut bytes = [0; ANCHOR_BYTES];
        bytes[..16].copy_from_slice(&self.boot_id);
        bytes[16..24].copy_from_slice(&self.boot_ms.to_le_bytes());
        bytes[24..].copy_from_slice(&self.wall_ms.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; ANCHOR_BYTES]) -> Self {
        let (mut boot_id, mut boot, mut wall) = ([0; 16], [0; 8], [0; 8]);
        boot_id.copy_from_slice(&bytes[..16]);
        boot.copy_from_slice(&bytes[16..24]);
        wall.copy_from_slice(&bytes[24..]);
        Self { boot_id, boot_ms: i64::from_le_bytes(boot), wall_ms: i64::from_le_bytes(wall) }
    }
}

/// Kept while the database is set up.
pub(super) struct SetupLock {
    _file: File,
}

struct SharedHold {
    token: u64,
    live: Arc<Live>,
    /// The process that took the lock. One that was forked from it has a copy of this value, and no say in it.
    process: u32,
}

impl Hold for SharedHold {
    fn token(&self) -> u64 {
        self.token
    }

    fn note_dispatch(&self, dispatch: Dispatch) -> Result<(), StoreError> {
        refuse_forked(self.process)?;
        note_dispatch(&self.live.file, self.token, dispatch)
    }
}

impl Drop for SharedHold {
    fn drop(&mut self) {
        // A forked process shares the open file description: to unlock there is to unlock here.
        if self.process != std::process::id() {
            return;
        }
        // Unlocked first: for as long as it is locked, this process must know that it is.
        let unlocked = fcntl(&self.live.file, FcntlArg::F_OFD_SETLK(&range(libc::F_UNLCK, self.token)));
        debug_assert!(unlocked.is_ok(), "a lock that was taken can be freed");
        self.live.held_tokens().remove(&self.token);
    }
}

/// A lock that child processes inherit. Dropping it closes the file and never unlocks: the lock is free when the last
/// process that has the file open has closed it.
struct InheritedHold {
    token: u64,
    file: File,
    process: u32,
}

impl Hold for InheritedHold {
    fn token(&self) -> u64 {
        self.token
    }

    fn note_dispatch(&self, dispatch: Dispatch) -> Result<(), StoreError> {
        refuse_forked(self.process)?;
        note_dispatch(&self.file, self.token, dispatch)
    }
}

/// An attempt belongs to the process that began it. A process forked from it must not write the attempt's notes.
fn refuse_forked(owner: u32) -> Result<(), StoreError> {
    if owner == std::process::id() {
        return Ok(());
    }
    Err(StoreError::unavailable(format!(
        "this attempt belongs to process {owner}, from which this process was forked; nothing was written. Let \
         process {owner} finish it, or open the ledger anew here"
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

fn note_at(token: u64) -> u64 {
    NOTES_AT + token % NOTES * 8
}

fn open_file(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn range(kind: i32, byte: u64) -> libc::flock {
    libc::flock {
        l_type: i16::try_from(kind).unwrap_or_default(),
        l_whence: i16::try_from(libc::SEEK_SET).unwrap_or_default(),
        l_start: i64::try_from(byte).unwrap_or(i64::MAX),
        l_len: 1,
        l_pid: 0,
    }
}

/// Names this run of the machine.
fn boot_id() -> Option<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let number = u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()?;
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process id that is never this process's.
    const ANOTHER_PROCESS: u32 = 0;

    fn live() -> (tempfile::TempDir, Arc<Live>) {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let options = SqliteOptions::new(folder.path().join("once.db"));
        File::create(&options.path).expect("an empty database");
        let live = Arc::new(Live::open(&options).expect("a new ledger can be opened"));
        (folder, live)
    }

    /// The value that a forked process has of a lock of its parent's.
    fn forked_copy(live: &Arc<Live>, token: u64) -> SharedHold {
        SharedHold { token, live: Arc::clone(live), process: ANOTHER_PROCESS }
    }

    #[test]
    fn a_forked_process_that_drops_a_lock_does_not_release_it() {
        let (_folder, live) = live();
        let hold = Live::hold(&live, Inherit::No).expect("a lock");
        drop(forked_copy(&live, hold.token()));
        assert_eq!(live.liveness(hold.token()).expect("liveness"), Liveness::Alive);
        let other = Live::open(&SqliteOptions::new(live.database.clone())).expect("another process's view");
        assert_eq!(other.liveness(hold.token()).expect("liveness"), Liveness::Alive);
    }

    #[test]
    fn a_clock_that_is_ahead_expires_nothing() {
        const DAYS_MS: i64 = 2 * 24 * 60 * 60 * 1_000;
        let anchor = Anchor { boot_id: [1; 16], boot_ms: 5_000, wall_ms: 1_000_000 };
        assert_eq!(anchor.time_ms(6_000, 1_001_000), 1_001_000, "both agree");
        assert_eq!(anchor.time_ms(6_000 + DAYS_MS, 1_001_000), 1_001_000, "the boot clock is ahead");
        assert_eq!(anchor.time_ms(6_000, 1_001_000 + DAYS_MS), 1_001_000, "the wall clock is ahead");
        assert_eq!(anchor.time_ms(6_000 - DAYS_MS, 1_001_000), 1_000_000, "the boot clock is behind");
        assert_eq!(anchor.time_ms(6_000, 1_001_000 - DAYS_MS), 1_000_000, "the wall clock is behind");
    }

    #[test]
    fn a_forked_process_cannot_write_notes() {
        let (_folder, live) = live();
        let hold = Live::hold(&live, Inherit::No).expect("a lock");
        let token = hold.token();
        hold.note_dispatch(Dispatch::NotYet).expect("the owner writes");
        let refused = forked_copy(&live, token).note_dispatch(Dispatch::Begun);
        assert!(refused.is_err_and(|error| error.to_string().contains("forked")));
        drop(hold);
        assert_eq!(live.liveness(token).expect("liveness"), Liveness::NeverDispatched);

        let file = open_file(&live.path).expect("the file");
        let inherited = InheritedHold { token, file, process: ANOTHER_PROCESS };
        assert!(inherited.note_dispatch(Dispatch::Begun).is_err());
    }
}
