//! A back end in a folder: one JSON file per record. It is small enough to read in ten minutes, passes the whole
//! conformance suite, and works for several processes on one machine. `docs/backend.md` explains every method.
//!
//! It is an example, not a product: every call reads and writes whole files, and `list` reads all of them.
//!
//! ```
//! use std::sync::Arc;
//! use onceward::{Ledger, Operation};
//!
//! let folder = tempfile::tempdir()?;
//! let ledger = Ledger::new(Arc::new(folder_store::FolderStore::open(folder.path())?)).blocking();
//! let receipt = ledger.run(Operation::new("ship"), |attempt| Ok(attempt.dispatch()?.created(&"parcel 7")))?;
//! assert_eq!(receipt.effect().as_str(), "created");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Layout
//! - `FolderStore`: the implementation of [`Store`]. `files`: reading, writing and locking files.
//! - `owner`: locks that the kernel releases when their process dies. `clock`: the clock of this machine.

mod clock;
mod files;
mod owner;

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use clock::SystemClock;
use files::{Entry, Folder};
use onceward::{
    Barrier, Begin, Clock, Counts, Cursor, Filter, Identity, Inherit, Listed, Liveness, LivenessSource,
    OperationId, Owner, OwnerLock, RANDOM_BYTES, Record, Store, StoreError, Swap, Watchers, WriteMode,
    open_or_newest,
};

/// How long a waiting caller sleeps before it reads the record again: changes by other processes wake no one.
const POLL_MS: u64 = 10;

/// A ledger in a folder.
pub struct FolderStore {
    folder: Folder,
    clock: SystemClock,
    /// The identity at the time the ledger was opened. Every write compares it with the stored one.
    identity: Identity,
    /// Wakes the callers of this process.
    watchers: Watchers,
    /// How often this process has replayed each result. The count is lost when the process ends, which is allowed.
    replays: Mutex<HashMap<OperationId, u64>>,
}

impl FolderStore {
    /// Opens the ledger in this folder, and creates it if there is none.
    ///
    /// # Errors
    /// If the folder cannot be read or written, or contains something else.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let folder = Folder::create(path)?;
        let lock = folder.lock()?;
        let identity = match folder.identity()? {
            Some(identity) => identity,
            None => {
                let mut random = [0; RANDOM_BYTES];
                getrandom::fill(&mut random)
                    .map_err(|error| StoreError::because("no random bytes", error))?;
                let identity = Identity::fresh(&random);
                folder.set_identity(&identity)?;
                identity
            }
        };
        drop(lock);
        Ok(Self {
            folder,
            clock: SystemClock::new(),
            identity,
            watchers: Watchers::default(),
            replays: Mutex::default(),
        })
    }

    /// Fails if the ledger in the folder is not the one that was opened. The caller holds the lock of the folder.
    fn check_identity(&self) -> Result<(), StoreError> {
        match self.folder.identity()? {
            Some(stored) if stored.mark() == self.identity.mark() => Ok(()),
            Some(_) => Err(StoreError::replaced("it has another name or epoch")),
            None => Err(StoreError::replaced("it has no identity")),
        }
    }

    /// Compare-and-swap. The caller holds the lock of the folder.
    fn write(&self, _lock: &File, expected: Option<u64>, record: Record) -> Result<Swap, StoreError> {
        let record = Arc::new(record);
        let found = self.folder.read(&record.id)?;
        if found.as_ref().map(|entry| entry.record.version) != expected {
            return Ok(Swap::Conflict(found.map(|entry| Arc::new(entry.record))));
        }
        // A record keeps its row for ever: listings are in the order of creation, not of the last change.
        let row = match found {
            Some(entry) => entry.row,
            None => self.folder.next_number("row")?,
        };
        self.folder.write(row, &record)?;
        self.watchers.notify(&record.id);
        Ok(Swap::Written(record))
    }

    fn version(&self, id: &OperationId) -> Result<Option<u64>, StoreError> {
        Ok(self.folder.read(id)?.map(|entry| entry.record.version))
    }

    /// All records, newest first.
    fn entries(&self) -> Result<Vec<Entry>, StoreError> {
        let mut entries = self.folder.entries()?;
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.row));
        Ok(entries)
    }
}

#[async_trait]
impl Store for FolderStore {
    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn watch(&self) -> LivenessSource {
        LivenessSource::Kernel
    }

    fn identity(&self) -> &Identity {
        &self.identity
    }

    async fn set_identity(&self, next: &Identity) -> Result<(), StoreError> {
        let _lock = self.folder.lock()?;
        self.check_identity()?;
        self.folder.set_identity(next)
    }

    async fn load(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        let Some(mut entry) = self.folder.read(id)? else { return Ok(None) };
        let replays = self.replays.lock().unwrap_or_else(PoisonError::into_inner);
        entry.record.replays += replays.get(id).copied().unwrap_or(0);
        Ok(Some(Arc::new(entry.record)))
    }

    async fn swap(&self, expected: Option<u64>, record: Record, _: WriteMode) -> Result<Swap, StoreError> {
        let lock = self.folder.lock()?;
        self.check_identity()?;
        self.write(&lock, expected, record)
    }

    async fn begin(&self, expected: Option<u64>, record: Record, _: WriteMode) -> Result<Begin, StoreError> {
        let lock = self.folder.lock()?;
        self.check_identity()?;
        let barrier = self.folder.barriers()?.into_iter().find(|barrier| barrier.covers(&record.scope));
        // A conflict takes precedence: a result is replayed also in a stopped scope.
        match barrier {
            Some(barrier) if self.version(&record.id)? == expected => Ok(Begin::Stopped(barrier)),
            Some(_) | None => self.write(&lock, expected, record).map(Begin::Swapped),
        }
    }

    async fn stop(&self, barrier: &Barrier) -> Result<Barrier, StoreError> {
        let _lock = self.folder.lock()?;
        self.check_identity()?;
        let mut barriers = self.folder.barriers()?;
        if let Some(there) = barriers.iter().find(|there| there.scope == barrier.scope) {
            return Ok(there.clone());
        }
        barriers.push(barrier.clone());
        barriers.sort_by(|one, other| one.scope.cmp(&other.scope));
        self.folder.set_barriers(&barriers)?;
        Ok(barrier.clone())
    }

    async fn resume(&self, scope: &str) -> Result<Option<Barrier>, StoreError> {
        let _lock = self.folder.lock()?;
        self.check_identity()?;
        let (lifted, left): (Vec<_>, Vec<_>) =
            self.folder.barriers()?.into_iter().partition(|barrier| barrier.scope == scope);
        self.folder.set_barriers(&left)?;
        Ok(lifted.into_iter().next())
    }

    async fn barriers(&self) -> Result<Vec<Barrier>, StoreError> {
        self.folder.barriers()
    }

    async fn delete(&self, id: &OperationId, expected: u64, _: WriteMode) -> Result<bool, StoreError> {
        {
            let _lock = self.folder.lock()?;
            self.check_identity()?;
            let found = self.folder.read(id)?;
            if found.is_none_or(|entry| entry.record.version != expected) {
                return Ok(false);
            }
            self.folder.remove(id)?;
        }
        self.watchers.notify(id);
        Ok(true)
    }

    async fn occurrences(&self, action: &OperationId, now_ms: i64) -> Result<Vec<Record>, StoreError> {
        let of_action = |entry: &Entry| entry.record.action() == action;
        let all = self.entries()?.into_iter().filter(of_action).map(Entry::without_body);
        Ok(open_or_newest(all.collect(), now_ms))
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        let before = filter.before.map_or(i64::MAX, |cursor| cursor.0);
        let wanted = |entry: &Entry| entry.row < before && filter.matches(&entry.record);
        let listed = self.entries()?.into_iter().filter(wanted).take(filter.limit);
        Ok(listed.map(|entry| Listed { cursor: Cursor(entry.row), record: entry.without_body() }).collect())
    }

    async fn due(&self, now_ms: i64, limit: usize) -> Result<Vec<Record>, StoreError> {
        let mut due = self.entries()?;
        due.retain(|entry| entry.record.due_ms.is_some_and(|due_ms| due_ms <= now_ms));
        due.sort_by_key(|entry| (entry.record.due_ms, entry.row));
        Ok(due.into_iter().take(limit).map(Entry::without_body).collect())
    }

    async fn counts(&self, filter: &Filter) -> Result<Counts, StoreError> {
        let mut counts = Counts::new();
        for entry in self.entries()?.iter().filter(|entry| filter.matches(&entry.record)) {
            *counts.entry(entry.record.state).or_default() += 1;
        }
        Ok(counts)
    }

    async fn changed(&self, id: &OperationId, seen: u64, timeout_ms: u64) {
        // A folder that cannot be read counts as changed: the caller then gets the error.
        let unchanged =
            || self.folder.read(id).is_ok_and(|entry| entry.is_some_and(|e| e.record.version == seen));
        // Returning early is allowed, so one pause is enough to poll for changes by other processes.
        self.watchers.wait(id, timeout_ms.min(POLL_MS), &self.clock, unchanged).await;
    }

    fn hold(&self, inherit: Inherit) -> Result<Box<dyn OwnerLock>, StoreError> {
        let lock = self.folder.lock()?;
        let token = self.folder.next_number("token")?;
        drop(lock);
        owner::hold(self.folder.owner_file(token), token.unsigned_abs(), inherit)
    }

    async fn liveness(&self, owner: &Owner) -> Result<Liveness, StoreError> {
        let Ok(token) = i64::try_from(owner.token) else { return Ok(Liveness::Gone) };
        owner::liveness(&self.folder.owner_file(token))
    }

    fn tally_replay(&self, id: &OperationId) {
        *self.replays.lock().unwrap_or_else(PoisonError::into_inner).entry(id.clone()).or_default() += 1;
    }
}
