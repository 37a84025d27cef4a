//! The ledger in one SQLite file, shared by any number of processes on one machine, without a server.
//!
//! A ledger consists of three files: the database, its write-ahead log, and the `…-live` file, on which the kernel
//! holds a lock for every attempt in progress. A free lock means that the owner is gone, immediately and definitely.
//! A held lock means that the owner is alive or may resume. So no leases are needed.
//!
//! # Layout
//! - [`options`](SqliteOptions): the URL options. `schema`: the tables. `rows`: conversion between records
//!   and rows.
//! - `identity`: one ledger, whatever path leads to it. `upkeep`: backups, and returning free space.
//! - `live`: the locks, and the counter of changes to finished records. `header`: which ledger a `…-live` file
//!   belongs to.
//! - `disk`: detects a replaced database file. `time`: the ledger's own clock.
//! - `queue`: the changes waiting to be written. `writer`: one writer, many callers, one sync.
//! - [`atomic`]: record and effect in one transaction of the caller. `health`: the checks of `once doctor`.

pub mod atomic;
mod disk;
mod files;
mod header;
mod health;
mod identity;
mod live;
mod options;
mod progress;
mod queue;
mod rows;
mod schema;
mod time;
mod upkeep;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use onceward::{
    Applied, Barrier, Begin, Change, Clock, Counts, Filter, Identity, Inherit, Listed, Liveness,
    LivenessSource, OperationId, Owner, OwnerLock, Record, Store, StoreError, Swap, Watchers, WriteMode,
};
use rusqlite::Connection;

pub use identity::Trust;
pub use options::{SqliteOptions, Sync};
pub use schema::SCHEMA_VERSION;

use crate::cache::Cache;
use crate::writing::{Writing, only_swap};
use live::Live;
use queue::{Priority, Written};
use rows::{Entry, Replaces};
use writer::Writer;

/// The ledger in one SQLite file. It is a [`Store`] and a [`Backend`](crate::Backend).
///
/// ```
/// use onceward::{Ledger, Operation};
/// use onceward_store::sqlite::{SqliteOptions, SqliteStore};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("agent.db");
/// let store = SqliteStore::open(SqliteOptions::new(path))?;
/// let ledger = Ledger::new(store).blocking();
/// let greet = Operation::new("greet").key("1");
/// let receipt = ledger.run(greet, |attempt| Ok(attempt.dispatch()?.created(&"hello")))?;
/// assert_eq!(receipt.data(), Some(r#""hello""#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SqliteStore {
    shared: Arc<Shared>,
    writer: Writer,
    /// The process that opened the store.
    process: u32,
    /// The path as the caller gave it.
    given: PathBuf,
}

/// State shared by the readers and the writer of one process.
struct Shared {
    options: SqliteOptions,
    identity: Identity,
    /// The text that every write compares.
    mark: String,
    live: Arc<Live>,
    cache: Cache,
    watchers: Watchers,
    readers: Mutex<Vec<Connection>>,
}

/// How to read a record that is not cached while the writer is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Busy {
    /// Read on another connection. Each commit invalidates its page cache, so this costs extra reads.
    ReadElsewhere,
    /// Do not read. The caller sends the intent to the writer next, which finds the record in its own page cache.
    Skip,
}

impl SqliteStore {
    /// Opens the ledger, and creates it if it does not exist.
    ///
    /// # Errors
    /// If the file cannot be used. The error says what to do. Nothing is changed then.
    pub fn open(mut options: SqliteOptions) -> Result<Arc<Self>, StoreError> {
        if rusqlite::version_number() < schema::SQLITE_FLOOR {
            return Err(StoreError::Unusable {
                what: format!(
                    "this build contains SQLite {}, which can damage shared files; build with 3.51.3 or newer",
                    rusqlite::version()
                ),
            });
        }
        let given = options.path.clone();
        options.path = identity::canonical(&options.path)?;
        identity::refuse_unfit(&options.path, options.trust)?;
        refuse_missing(&options)?;
        schema::refuse_foreign(&options.path, &Live::path_of(&options))?;
        schema::create_private(&options.path)?;
        let live = Arc::new(Live::open(&options)?);
        live.check_database()?;
        let connection = schema::open_for_writing(&options, &live)?;
        let (identity, clock) = schema::identity(&connection, &options.path)?;
        live.bind_to(&identity)?;
        live.start_clock(clock.as_ref())?;
        let shared = Arc::new(Shared {
            cache: Cache::new(options.cache_bytes),
            mark: identity.mark(),
            identity,
            options,
            live,
            watchers: Watchers::default(),
            readers: Mutex::default(),
        });
        let writer = Writer::new(Arc::clone(&shared), connection);
        Ok(Arc::new(Self { shared, writer, process: std::process::id(), given }))
    }

    /// The canonical path of the database.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.shared.options.path
    }

    fn load_now(&self, id: &OperationId, busy: Busy) -> Result<Option<Arc<Record>>, StoreError> {
        let epoch = self.shared.live.epoch();
        if let Some(record) = epoch.and_then(|epoch| self.shared.cache.find(id, epoch)) {
            return Ok(Some(record));
        }
        // A short-lived process needs only one connection. Another one is opened only if the writer is busy.
        let record = match (self.writer.try_read(|connection| rows::load(connection, id)), busy) {
            (Some(record), _) => record?,
            // With no attempt in progress here, the connection is held by another reader and not by the writer.
            (None, Busy::Skip) if self.shared.live.held() > 0 => None,
            (None, Busy::ReadElsewhere | Busy::Skip) => {
                self.shared.read(|connection| rows::load(connection, id))?
            }
        };
        let record = record.map(Arc::new);
        if let (Some(record), Some(epoch)) = (&record, epoch) {
            self.shared.cache.keep(record, epoch);
        }
        Ok(record)
    }

    async fn write_record(
        &self,
        expected: Option<u64>,
        record: Record,
        writing: Writing,
        mode: WriteMode,
    ) -> Result<Begin, StoreError> {
        let record = Arc::new(record);
        // A record never changes without its version.
        let replaced = expected.and_then(|version| {
            self.shared.cache.last_kept(&record.id).filter(|known| known.version == version)
        });
        let replaces = replaced.map_or(Replaces::Unknown, |known| Replaces::of(&known, &record));
        let entry = Entry::new(Arc::clone(&record), replaces)
            .map_err(|error| schema::explain(&self.shared.options.path, error))?;
        match self.write(queue::Change::Swap { expected, entry, writing }, mode).await? {
            Written::Yes { epoch } => {
                if let Some(epoch) = epoch {
                    self.shared.cache.keep(&record, epoch);
                }
                Ok(Begin::Swapped(Swap::Written(record)))
            }
            Written::Conflict(found) => Ok(Begin::Swapped(Swap::Conflict(found))),
            Written::Stopped(barrier) => Ok(Begin::Stopped(barrier)),
            Written::Barrier(_) => Err(StoreError::unavailable("the writer answered another question")),
        }
    }

    async fn write(&self, change: queue::Change, mode: WriteMode) -> Result<Written, StoreError> {
        // With other attempts in progress here, a shared sync is worth the thread switch.
        match mode {
            WriteMode::Blocking if self.shared.live.held() <= 1 => self.writer.write_here(change).await,
            WriteMode::Blocking | WriteMode::Async => self.writer.write(change, Priority::Now).await,
            WriteMode::Deferred => self.writer.write(change, Priority::Later).await,
        }
    }
}

/// The barrier that a change of barriers has returned.
fn barrier_in(written: Written) -> Result<Option<Barrier>, StoreError> {
    match written {
        Written::Barrier(barrier) => Ok(barrier),
        Written::Yes { .. } | Written::Conflict(_) | Written::Stopped(_) => {
            Err(StoreError::unavailable("the writer answered another question"))
        }
    }
}

/// Whether the filter matches only operations that are not settled.
fn is_open_only(filter: &Filter) -> bool {
    !filter.states.is_empty() && filter.states.iter().all(|state| !state.is_settled())
}

/// Refuses to create a ledger where one existed before, or where none may be created.
fn refuse_missing(options: &SqliteOptions) -> Result<(), StoreError> {
    let path = &options.path;
    // In this order: a ledger that is being created has a database before the `…-live` file names it.
    let noted = Live::peek(options)?;
    let bytes = std::fs::metadata(path).map(|meta| meta.len()).ok();
    match (noted, bytes) {
        (Some(note), None) => {
            let seen = format!("the file is gone, but the ledger {} was here", note.name);
            Err(disk::replaced(path, &seen))
        }
        (Some(note), Some(0)) => {
            let seen = format!("the file is empty, but the ledger {} was here", note.name);
            Err(disk::replaced(path, &seen))
        }
        (None, None | Some(0)) => {
            crate::refuse_missing(options.create, options.missing, || format!("at {}", path.display()))
        }
        (None | Some(_), Some(_)) => Ok(()),
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            self.writer.close();
        } else {
            self.writer.leak();
        }
    }
}

impl Shared {
    /// Reads on a pooled connection.
    fn read<T>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        let pooled = self.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match pooled {
            Some(connection) => connection,
            None => {
                self.live.check_unchanged()?;
                schema::open_for_reading(&self.options)?
            }
        };
        let result = read(&connection).map_err(|error| self.explain(error));
        if result.is_ok() {
            self.readers.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        }
        result
    }
}

impl Shared {
    /// Explains an error of SQLite. A file that was overwritten can cause any error, so that is checked first.
    fn explain(&self, error: rusqlite::Error) -> StoreError {
        match self.live.check_unchanged() {
            Err(replaced @ StoreError::Replaced { .. }) => replaced,
            Ok(_) | Err(_) => schema::explain(&self.options.path, error),
        }
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn clock(&self) -> &dyn Clock {
        &*self.shared.live
    }

    fn watch(&self) -> LivenessSource {
        LivenessSource::Kernel
    }

    fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    async fn set_identity(&self, next: &Identity) -> Result<(), StoreError> {
        self.writer.set_identity(next)
    }

    async fn load_cached(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        self.load_now(id, Busy::Skip)
    }

    async fn load(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        self.load_now(id, Busy::ReadElsewhere)
    }

    async fn swap(&self, expected: Option<u64>, record: Record, mode: WriteMode) -> Result<Swap, StoreError> {
        only_swap(self.write_record(expected, record, Writing::Change, mode).await?)
    }

    async fn begin(
        &self,
        expected: Option<u64>,
        record: Record,
        mode: WriteMode,
    ) -> Result<Begin, StoreError> {
        self.write_record(expected, record, Writing::Begin, mode).await
    }

    async fn stop(&self, barrier: &Barrier) -> Result<Barrier, StoreError> {
        let written = self.write(queue::Change::Stop(barrier.clone()), WriteMode::Async).await?;
        barrier_in(written)?.ok_or_else(|| StoreError::unavailable("the barrier was not written"))
    }

    async fn resume(&self, scope: &str) -> Result<Option<Barrier>, StoreError> {
        let resume = queue::Change::Resume { scope: scope.to_owned() };
        barrier_in(self.write(resume, WriteMode::Async).await?)
    }

    async fn barriers(&self) -> Result<Vec<Barrier>, StoreError> {
        self.shared.read(rows::barriers)
    }

    async fn delete(&self, id: &OperationId, expected: u64, mode: WriteMode) -> Result<bool, StoreError> {
        let written = self.write(queue::Change::Delete { id: id.clone(), expected }, mode).await?;
        Ok(matches!(written, Written::Yes { .. }))
    }

    async fn apply(&self, changes: Vec<Change>, _mode: WriteMode) -> Result<Vec<Applied>, StoreError> {
        let cannot = |error| schema::explain(&self.shared.options.path, error);
        let mut queued = Vec::with_capacity(changes.len());
        for change in changes {
            queued.push(match change {
                Change::Swap { expected, record } => {
                    let entry = Entry::new(Arc::new(record), Replaces::Unknown).map_err(cannot)?;
                    queue::Change::Swap { expected, entry, writing: Writing::Change }
                }
                Change::Delete { id, expected } => queue::Change::Delete { id, expected },
            });
        }
        let written = self.writer.write_all(queued).await?;
        Ok(written
            .into_iter()
            .map(|written| match written {
                Written::Yes { .. } => Applied::Written,
                Written::Conflict(_) | Written::Stopped(_) | Written::Barrier(_) => Applied::Conflict,
            })
            .collect())
    }

    async fn occurrences(&self, action: &OperationId, now_ms: i64) -> Result<Vec<Record>, StoreError> {
        // The search that precedes a first call: few rows, and they are in the writer's page cache.
        let find = |connection: &Connection| rows::occurrences(connection, action, now_ms);
        match self.writer.try_read(find) {
            Some(found) => found,
            None => self.shared.read(find),
        }
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        // Only results are replayed, so what is not settled has no tally.
        if !is_open_only(filter) {
            self.writer.write_tallies();
        }
        self.shared.read(|connection| rows::list(connection, filter))
    }

    async fn due(&self, now_ms: i64, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.shared.read(|connection| rows::due(connection, now_ms, limit))
    }

    async fn counts(&self, filter: &Filter) -> Result<Counts, StoreError> {
        self.shared.read(|connection| rows::counts(connection, filter))
    }

    async fn changed(&self, id: &OperationId, seen: u64, timeout_ms: u64) {
        let unchanged = || match self.load_now(id, Busy::ReadElsewhere) {
            Ok(record) => record.is_some_and(|record| record.version == seen),
            Err(_) => true,
        };
        self.shared.watchers.wait(id, timeout_ms, &*self.shared.live, unchanged).await;
    }

    fn hold(&self, inherit: Inherit) -> Result<Box<dyn OwnerLock>, StoreError> {
        Live::hold(&self.shared.live, inherit)
    }

    async fn liveness(&self, owner: &Owner) -> Result<Liveness, StoreError> {
        self.shared.live.liveness(owner.token)
    }

    fn tally_replay(&self, id: &OperationId) {
        self.writer.tally_replay(id);
    }
}
