//! The `…-live` file: which owners are alive, what time it is, and whether a finished record has changed.
//!
//! Each attempt in progress holds an open-file-description lock on one byte of this file. The kernel releases it when
//! the last process that holds the description is gone, however it ended, and not before. The file contains the
//! counter of changes to finished records, the anchor of the ledger's clock, the name of its ledger with what was
//! last seen of the database, and notes of attempts that have not dispatched yet. None of it is synced. If a power
//! failure loses some of it, the ledger's time is later than it could be, or a replaced database is harder to notice,
//! and nothing worse.

mod log;
mod owner_lock;

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::timer::sleep;
use async_trait::async_trait;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use onceward::{Clock, Identity, Inherit, Liveness, OwnerLock, StoreError};

use self::owner_lock::{InheritedLock, SharedLock};
use super::disk::{self, replaced};
use super::header::{self, Access, LiveFile, Note, Seen};
use super::identity::{FileId, Mark, file_id};
use super::options::SqliteOptions;
use super::progress::Progress;
use super::time::{ANCHOR_BYTES, Anchor, ClockTrust};
use crate::clock::{self, Machine, boot_id, namespace_offset_ms, since_boot_ms, wall_ms};

const EPOCH_AT: u64 = 0;
/// One byte that is not zero while the log contains changes that the database lacks. Tallies do not count.
const LOG_AT: u64 = 8;
const ANCHOR_AT: u64 = 16;
/// The latest time of the ledger, recorded at most a minute ago while it is in use.
const NEWEST_AT: u64 = 112;
/// How far the ledger has come: a [`Progress`].
const PROGRESS_AT: u64 = 400;
/// The number of the latest change to finished records, written before it is committed.
const CHANGE_AT: u64 = 432;
/// How often the latest time is recorded and the anchor checked.
const CLOCK_UPDATE_MS: i64 = 60_000;
/// The byte that is locked while the anchor is set or the database is set up.
const SETUP_BYTE: u64 = 64;
/// The byte on which every store that has the ledger open holds a shared lock.
const USERS_BYTE: u64 = 65;
/// How long to wait for another process that sets up the database.
const SETUP_LIMIT: Duration = Duration::from_secs(10);
/// The first byte that attempts lock.
const FIRST_TOKEN: u64 = 1 << 20;
/// The dispatch notes: eight bytes each, at a position derived from the token. Two attempts may share a position.
/// Then the older note is overwritten, and its attempt is in doubt where it could have been certain.
const NOTES_AT: u64 = 4_096;
const NOTES: u64 = 4_096;
/// A note is the attempt's token, XORed with one of two constants.
const NOT_YET: u64 = 0xa5a5_a5a5_a5a5_a5a5;
const BEGUN: u64 = 0x5a5a_5a5a_5a5a_5a5a;

/// The open `…-live` file of a ledger.
pub(super) struct Live {
    file: File,
    path: PathBuf,
    /// The id of the open file, wherever it is now.
    identity: FileId,
    database: PathBuf,
    /// The mark on the database that it is used with this file.
    mark: Mark,
    /// The ledger's time minus the machine's time since boot.
    offset_ms: AtomicI64,
    /// When the clock was last updated, in milliseconds since boot.
    clock_updated_ms: AtomicI64,
    /// The id of the log that the writer's connection uses.
    log: Mutex<Option<FileId>>,
    /// The ledger that this file belongs to, and what this process last saw of the database.
    note: Mutex<Option<Note>>,
    /// The state of the database file that was refused, and why. It is not read again until it changes.
    refused: Mutex<Option<(Seen, String)>>,
    held: Mutex<HashSet<u64>>,
    notes: Notes,
    /// Whether this process has written to the log.
    wrote: AtomicBool,
    /// Consecutive tokens within a store, so that the kernel can merge adjacent locks.
    next_token: AtomicU64,
}

/// Whether the dispatch notes can be trusted. Only if they are known to be from this boot of the machine, because a
/// power failure may keep an old note and lose a newer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notes {
    Trusted,
    Untrusted,
}

impl Live {
    /// The path of the `…-live` file of a ledger.
    pub(super) fn path_of(options: &SqliteOptions) -> PathBuf {
        let mut path = options.path.clone().into_os_string();
        path.push("-live");
        PathBuf::from(path)
    }

    /// Reads the `…-live` file if it exists. Creates nothing.
    pub(super) fn peek(options: &SqliteOptions) -> Result<Option<Note>, StoreError> {
        let path = Self::path_of(options);
        let file = match header::open(&path, Access::Read, options.trust) {
            Ok(file) => file,
            Err(StoreError::Missing { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        match header::kind(&file) {
            Ok(LiveFile::Named(note)) => Ok(Some(note)),
            Ok(LiveFile::Empty | LiveFile::Old | LiveFile::Unnamed | LiveFile::Foreign) => Ok(None),
            Err(error) => Err(StoreError::because(format!("cannot read {}", path.display()), error)),
        }
    }

    pub(super) fn open(options: &SqliteOptions) -> Result<Self, StoreError> {
        let path = Self::path_of(options);
        let cannot = |error| StoreError::because(format!("cannot open {}", path.display()), error);
        let file = header::open(&path, Access::Create, options.trust)?;
        let meta = file.metadata().map_err(cannot)?;
        let identity = (meta.dev(), meta.ino());
        let mark = Mark::set(&options.path, identity)?;
        // A random start in a range so wide that two stores never collide.
        let random = getrandom::u64().map_err(|error| cannot(std::io::Error::other(error)))?;
        let live = Self {
            file,
            identity,
            database: options.path.clone(),
            mark,
            offset_ms: AtomicI64::new(wall_ms() - machine_ms()),
            clock_updated_ms: AtomicI64::new(machine_ms()),
            log: Mutex::default(),
            note: Mutex::default(),
            refused: Mutex::default(),
            held: Mutex::default(),
            next_token: AtomicU64::new(FIRST_TOKEN + (random >> 2)),
            wrote: AtomicBool::new(false),
            notes: if boot_id().is_some() { Notes::Trusted } else { Notes::Untrusted },
            path,
        };
        let user = range(libc::F_RDLCK, USERS_BYTE);
        fcntl(&live.file, FcntlArg::F_OFD_SETLK(&user)).map_err(|error| live.cannot_lock(error.into()))?;
        Ok(live)
    }

    fn cannot_use(&self, error: std::io::Error) -> StoreError {
        StoreError::because(format!("cannot use {}", self.path.display()), error)
    }

    /// Checks that the database file is the one that this file belongs to, before it is opened.
    pub(super) fn check_database(&self) -> Result<(), StoreError> {
        if let LiveFile::Named(note) = header::kind(&self.file).map_err(|error| self.cannot_use(error))? {
            let unchanged = disk::look(&self.database).is_ok_and(|(_, now)| note.seen.is_unchanged(&now));
            *self.note() = Some(if unchanged { note } else { disk::check(&self.database, &note)? });
        }
        Ok(())
    }

    /// Binds this file to the ledger that was opened.
    pub(super) fn bind_to(&self, ledger: &Identity) -> Result<(), StoreError> {
        let note = match self.note().clone() {
            Some(note) if note.name != ledger.name || ledger.epoch < note.epoch => {
                let seen = format!(
                    "it is epoch {} of the ledger {}, but epoch {} of {} was here",
                    ledger.epoch, ledger.name, note.epoch, note.name
                );
                return Err(replaced(&self.database, &seen));
            }
            Some(note) => note,
            None => disk::first_note(&self.database, &ledger.name),
        };
        let noted = header::kind(&self.file).map_err(|error| self.cannot_use(error))?;
        if matches!(&noted, LiveFile::Named(noted) if *noted == note) {
            // Another process that opened it at the same time has already written it.
            *self.note() = Some(note);
            return Ok(());
        }
        let _setup = self.setup_lock()?;
        self.write_note(note).map_err(|error| self.cannot_use(error))
    }

    fn write_note(&self, note: Note) -> std::io::Result<()> {
        header::write(&self.file, Some(&note))?;
        *self.note() = Some(note);
        Ok(())
    }

    fn note(&self) -> MutexGuard<'_, Option<Note>> {
        self.note.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the ledger's clock. `mark` is the latest time recorded in the database.
    pub(super) fn start_clock(&self, mark: Option<&clock::Mark>) -> Result<(), StoreError> {
        self.start_clock_on(&Machine::now(), mark)
    }

    fn start_clock_on(&self, here: &Machine, mark: Option<&clock::Mark>) -> Result<(), StoreError> {
        let anchor = match self.anchor().filter(|anchor| anchor.is_of(here) && anchor.next(here).is_none()) {
            Some(anchor) => anchor,
            None => {
                let _setup = self.setup_lock()?;
                self.set_anchor(here, mark).map_err(|error| self.cannot_use(error))?
            }
        };
        let known_ms = mark.map_or(i64::MIN, |mark| known_ms(mark, here));
        self.offset_ms.store(anchor.time_ms(here).max(known_ms) - here.since_boot_ms, Ordering::Relaxed);
        Ok(())
    }

    fn anchor(&self) -> Option<Anchor> {
        let mut bytes = [0; ANCHOR_BYTES];
        self.file.read_exact_at(&mut bytes, ANCHOR_AT).ok()?;
        Anchor::from_bytes(&bytes)
    }

    /// Sets the anchor if it is due. Must hold the setup lock.
    fn set_anchor(&self, here: &Machine, mark: Option<&clock::Mark>) -> std::io::Result<Anchor> {
        let found = self.anchor();
        let anchor = match &found {
            Some(anchor) if anchor.is_of(here) => match anchor.next(here) {
                Some(next) => next,
                None => return Ok(*anchor),
            },
            Some(_) | None => {
                // All existing notes are from an earlier boot of the machine.
                let newest_ms =
                    mark.map(|mark| known_ms(mark, here)).into_iter().chain(self.newest_ms()).max();
                self.file.set_len(NOTES_AT)?;
                if matches!(header::kind(&self.file)?, LiveFile::Empty | LiveFile::Old) {
                    header::write(&self.file, None)?;
                }
                self.file.write_all_at(&[1], LOG_AT)?;
                // A commit that was noted and not synced may be lost in a power cut.
                self.file.write_all_at(&[0; Progress::BYTES], PROGRESS_AT)?;
                Anchor::first(here, found.as_ref(), newest_ms)
            }
        };
        self.file.write_all_at(&anchor.to_bytes(), ANCHOR_AT)?;
        Ok(anchor)
    }

    fn newest_ms(&self) -> Option<i64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, NEWEST_AT).ok()?;
        Some(i64::from_le_bytes(bytes)).filter(|newest_ms| *newest_ms != 0)
    }

    /// Once a minute: records the latest time, accepts a wall clock that has been stable for long enough, and follows
    /// other processes that did. Called on every write, so it must normally cost nothing.
    pub(super) fn update_clock(&self) {
        let machine_ms = machine_ms();
        if machine_ms - self.clock_updated_ms.load(Ordering::Relaxed) < CLOCK_UPDATE_MS {
            return;
        }
        self.clock_updated_ms.store(machine_ms, Ordering::Relaxed);
        let here = Machine::now();
        // If any of this fails, the clock continues as before.
        drop(self.file.write_all_at(&self.now_ms().to_le_bytes(), NEWEST_AT));
        let anchor = match self.anchor() {
            Some(anchor) if anchor.is_of(&here) && anchor.next(&here).is_some() => {
                self.setup_lock().ok().and_then(|_setup| self.set_anchor(&here, None).ok())
            }
            anchor => anchor.filter(|anchor| anchor.is_of(&here)),
        };
        if let Some(anchor) = anchor {
            self.offset_ms.fetch_max(anchor.time_ms(&here) - here.since_boot_ms, Ordering::Relaxed);
        }
    }

    /// The ledger's time, to be stored in the database in case this file is lost.
    pub(super) fn clock_mark(&self) -> clock::Mark {
        let here = Machine::now();
        let at_ms = here.since_boot_ms + self.offset_ms.load(Ordering::Relaxed);
        clock::Mark { at_ms, boot: here.boot, since_boot_ms: here.since_boot_ms }
    }

    /// Whether the wall clock is trusted.
    pub(super) fn trust(&self) -> ClockTrust {
        self.anchor().map_or(ClockTrust::Trusted, |anchor| anchor.trust())
    }

    /// Serializes the setup of the database. Waits for other processes, but not forever: a process that was stopped
    /// during the setup keeps the lock.
    pub(super) fn setup_lock(&self) -> Result<SetupLock, StoreError> {
        let cannot = |error: std::io::Error| self.cannot_lock(error);
        let file = self.open_again(Lock::Alone).map_err(cannot)?;
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
                        "another process has been setting up {} for more than {} s; it may be stopped. Resume it \
                         or kill it, and try again",
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

    /// Opens another description of the same file, so that the lock has a lifetime of its own.
    fn open_again(&self, lock: Lock) -> std::io::Result<File> {
        let file = OpenOptions::new()
            .read(true)
            .write(lock == Lock::Alone)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&self.path)?;
        let meta = file.metadata()?;
        if (meta.dev(), meta.ino()) == self.identity {
            return Ok(file);
        }
        Err(std::io::Error::other("the file was replaced while in use; put it back, or start again"))
    }

    pub(super) fn hold(live: &Arc<Self>, inherit: Inherit) -> Result<Box<dyn OwnerLock>, StoreError> {
        let cannot = |error: std::io::Error| {
            StoreError::because(format!("cannot lock {} for this attempt", live.path.display()), error)
        };
        let token = live.next_token.fetch_add(1, Ordering::Relaxed);
        match inherit {
            Inherit::No => {
                let lock = range(libc::F_WRLCK, token);
                live.held_tokens().insert(token);
                let hold = SharedLock { token, live: Arc::clone(live), process: std::process::id() };
                fcntl(&live.file, FcntlArg::F_OFD_SETLK(&lock)).map_err(|error| cannot(error.into()))?;
                Ok(Box::new(hold))
            }
            Inherit::Children => {
                // A separate description, which children keep open: they hold this lock and no other. Tokens are
                // unique, so a shared lock is enough. It needs no write access, and a command must not be able to
                // write to the file.
                let lock = range(libc::F_RDLCK, token);
                let file = live.open_again(Lock::Shared).map_err(cannot)?;
                fcntl(&file, FcntlArg::F_OFD_SETLK(&lock)).map_err(|error| cannot(error.into()))?;
                live.mark.let_children_inherit().map_err(|error| cannot(error.into()))?;
                fcntl(&file, FcntlArg::F_SETFD(FdFlag::empty())).map_err(|error| cannot(error.into()))?;
                let live = Arc::clone(live);
                Ok(Box::new(InheritedLock { token, live, _file: file, process: std::process::id() }))
            }
        }
    }

    pub(super) fn liveness(&self, token: u64) -> Result<Liveness, StoreError> {
        // The kernel does not report locks of the description that asks.
        if self.held_tokens().contains(&token) {
            return Ok(Liveness::Alive);
        }
        let mut lock = range(libc::F_WRLCK, token);
        fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut lock)).map_err(|error| {
            StoreError::because(format!("cannot check the locks on {}", self.path.display()), error)
        })?;
        Ok(match i32::from(lock.l_type) {
            libc::F_UNLCK if self.is_noted_undispatched(token) => Liveness::NeverDispatched,
            libc::F_UNLCK => Liveness::Gone,
            _ => Liveness::Alive,
        })
    }

    fn is_noted_undispatched(&self, token: u64) -> bool {
        let mut bytes = [0; 8];
        let read = self.file.read_exact_at(&mut bytes, note_at(token));
        self.notes == Notes::Trusted && read.is_ok() && u64::from_le_bytes(bytes) == token ^ NOT_YET
    }

    /// The number of attempts of this process that are in progress.
    pub(super) fn held(&self) -> usize {
        self.held_tokens().len()
    }

    fn held_tokens(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The difference between the wall clock and the ledger's clock.
    pub(super) fn drift_ms(&self) -> i64 {
        wall_ms() - self.now_ms()
    }

    /// The counter of changes to finished records, or `None` during a change.
    pub(super) fn epoch(&self) -> Option<u64> {
        Some(self.raw_epoch()).filter(|epoch| epoch.is_multiple_of(2))
    }

    fn raw_epoch(&self) -> u64 {
        let mut bytes = [0; 8];
        match self.file.read_exact_at(&mut bytes, EPOCH_AT) {
            Ok(()) => u64::from_le_bytes(bytes),
            // Unreadable counts as changed: an odd number, so nothing is served from the cache.
            Err(_) => 1,
        }
    }

    /// Announces a change to finished records before it is committed. Only the current writer of the database may
    /// call this, so each change has a number of its own, and no value of the counter occurs twice.
    ///
    /// A process that dies in between leaves an odd counter, and nothing is served from caches until the next change.
    pub(super) fn begin_finished_change(&self) -> std::io::Result<FinishedChange> {
        let epoch = self.raw_epoch();
        let number = self.change_number().max(epoch.div_ceil(2)) + 1;
        self.file.write_all_at(&number.to_le_bytes(), CHANGE_AT)?;
        self.file.write_all_at(&(2 * number - 1).to_le_bytes(), EPOCH_AT)?;
        Ok(FinishedChange { number, before: Some(epoch).filter(|epoch| epoch.is_multiple_of(2)) })
    }

    /// Announces that the change was committed or rolled back. Returns the epochs before and after it: before it is
    /// `None` if another process may have changed finished records in between.
    pub(super) fn end_finished_change(&self, change: &FinishedChange) -> (Option<u64>, u64) {
        let after = 2 * change.number;
        // If another process has begun a change, it ends both. A counter that stays odd is safe. It only costs speed.
        let is_last = || self.change_number() == change.number;
        let is_told = is_last() && self.file.write_all_at(&after.to_le_bytes(), EPOCH_AT).is_ok();
        // A change that begins after this ends with a higher number.
        (change.before.filter(|_| is_told && is_last()), after)
    }

    fn change_number(&self) -> u64 {
        let mut bytes = [0; 8];
        // An older build has not counted.
        self.file.read_exact_at(&mut bytes, CHANGE_AT).map_or(0, |()| u64::from_le_bytes(bytes))
    }

    /// Notes how far the ledger has come, after a commit.
    pub(super) fn note_progress(&self, progress: Progress) {
        // If this fails, a lost log is noticed only by the count of the database file.
        drop(self.file.write_all_at(&progress.to_bytes(), PROGRESS_AT));
    }

    /// How far the ledger has come at least.
    pub(super) fn progress(&self) -> Progress {
        let mut bytes = [0; Progress::BYTES];
        let read = self.file.read_exact_at(&mut bytes, PROGRESS_AT);
        read.ok().and_then(|()| Progress::from_bytes(bytes)).unwrap_or_default()
    }

    /// Whether the log may contain changes that the database lacks.
    pub(super) fn log_has_changes(&self) -> bool {
        let mut noted = [1];
        let read = self.file.read_exact_at(&mut noted, LOG_AT);
        self.wrote.load(Ordering::Relaxed) || read.is_err() || noted != [0]
    }

    /// Records that this store no longer has the ledger open.
    pub(super) fn leave(&self) {
        // If this fails, the last store to close believes that it is not alone.
        fcntl(&self.file, FcntlArg::F_OFD_SETLK(&range(libc::F_UNLCK, USERS_BYTE))).ok();
    }

    /// Whether no store has the ledger open, after this one has left.
    pub(super) fn is_unused(&self) -> bool {
        let mut others = range(libc::F_WRLCK, USERS_BYTE);
        let asked = fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut others));
        asked.is_ok() && i32::from(others.l_type) == libc::F_UNLCK
    }

    /// Records that the database contains everything that the log had.
    pub(super) fn note_no_log(&self) {
        drop(self.file.write_all_at(&[0], LOG_AT));
    }

    /// Refuses if the files were moved or replaced while in use. Locks on a file that other processes do not see
    /// protect nothing, and another database may lack records of completed effects.
    pub(super) fn check_in_place(&self) -> Result<(), StoreError> {
        if file_id(&self.path) != Some(self.identity) {
            let what = format!("{} was moved or removed while in use", self.path.display());
            return Err(replaced(&self.database, &what));
        }
        if file_id(&self.database) != Some(self.mark.database()) {
            return Err(self.database_moved());
        }
        Ok(())
    }

    fn database_moved(&self) -> StoreError {
        replaced(&self.database, "it was moved or removed while in use")
    }

    /// The same, and also checks that only the ledger has written to the database. Returns the count in the database
    /// file.
    pub(super) fn check_unchanged(&self) -> Result<u64, StoreError> {
        let (file, now) = disk::look(&self.database).map_err(|_| self.database_moved())?;
        if file != self.mark.database() || file_id(&self.path) != Some(self.identity) {
            self.check_in_place()?;
        }
        self.check_log_file()?;
        let note = match &*self.note() {
            Some(note) if note.seen.is_unchanged(&now) => return Ok(note.seen.count),
            Some(note) => self.check_changed(note, now)?,
            None => return Ok(0),
        };
        let count = note.seen.count;
        // If it cannot be recorded, the next process reads the file itself.
        drop(self.write_note(note));
        Ok(count)
    }

    /// Checks a database file that has changed since the note was written.
    fn check_changed(&self, note: &Note, now: Seen) -> Result<Note, StoreError> {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((seen, what)) = &*refused
            && seen.is_unchanged(&now)
        {
            return Err(StoreError::Replaced { what: what.clone() });
        }
        disk::check(&self.database, note).inspect_err(|error| {
            if let StoreError::Replaced { what } = error {
                *refused = Some((now, what.clone()));
            }
        })
    }
}

/// A change to finished records that is being written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FinishedChange {
    number: u64,
    /// The counter before it, unless another process was changing finished records, or died while it did.
    before: Option<u64>,
}

/// Whether a description is for an exclusive lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lock {
    Alone,
    /// Opened for reading only.
    Shared,
}

/// The time that has certainly passed since a mark: two clocks must agree.
fn known_ms(mark: &clock::Mark, here: &Machine) -> i64 {
    mark.passed_ms(here).min(here.wall_ms).max(mark.at_ms)
}

/// The machine's time since boot.
fn machine_ms() -> i64 {
    since_boot_ms() - namespace_offset_ms()
}

#[async_trait]
impl Clock for Live {
    fn now_ms(&self) -> i64 {
        machine_ms() + self.offset_ms.load(Ordering::Relaxed)
    }

    async fn sleep(&self, ms: u64) {
        sleep(Duration::from_millis(ms)).await;
    }
}

/// Held while the database is set up.
pub(super) struct SetupLock {
    _file: File,
}

fn note_at(token: u64) -> u64 {
    NOTES_AT + token % NOTES * 8
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

#[cfg(test)]
mod tests;
