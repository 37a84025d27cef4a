//! The ledger in one SQLite file: any number of processes on one machine, and no server.
//!
//! Three files belong together: the database, its write-ahead log, and `…-live`, on which the kernel holds a lock for
//! every attempt under way. A lock that is free means an owner that is gone, at once and for certain; one that is held
//! means an owner that lives or may wake. No lease is needed, and none is trusted.
//!
//! # Layout
//! - [`options`](SqliteOptions): what a URL can say. `schema`: tables and their versions. `rows`: records and rows.
//! - `identity`: one ledger by whatever path it is reached. `upkeep`: backups, and giving space back.
//! - `live`: the locks, the ledger's own clock, and the count of changes to finished records.
//! - `queue`: what waits to be written. `writer`: one writer, many callers, one sync.
//! - [`atomic`]: record and effect in one transaction of the caller's own. `health`: whether all is as it should be.

pub mod atomic;
mod files;
mod health;
mod identity;
mod live;
mod options;
mod queue;
mod rows;
mod schema;
mod upkeep;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use onceward::watchers::Watchers;
use onceward::{
    Applied, Change, Clock, Counts, Door, Filter, Hold, Inherit, Listed, Liveness, OperationId, Owner,
    Record, Store, StoreError, Swap, Watch,
};
use rusqlite::Connection;

pub use options::{SqliteOptions, Sync};
pub use schema::SCHEMA_VERSION;

use crate::cache::Cache;
use live::Live;
use queue::{Haste, Written};
use rows::Entry;
use writer::Writer;

/// The ledger in one SQLite file.
pub struct SqliteStore {
    shared: Arc<Shared>,
    writer: Writer,
    /// The process that opened it.
    process: u32,
    /// The path as it was given.
    given: PathBuf,
}

/// What readers and the writer of one process share.
struct Shared {
    options: SqliteOptions,
    live: Arc<Live>,
    cache: Cache,
    watchers: Watchers,
    readers: Mutex<Vec<Connection>>,
}

/// What to do about a record that memory does not hold, while the writer is at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Busy {
    /// Read on another connection. Each commit makes it forget the pages it knows, so this costs some reads.
    LookBeside,
    /// Nothing: the intent goes to the writer next, who finds what there is on the pages it has at hand.
    LetTheWriterTell,
}

impl SqliteStore {
    /// Opens the ledger, and creates it where there is none.
    ///
    /// # Errors
    /// Says what is in the way and what to do about it; nothing is changed then.
    pub fn open(mut options: SqliteOptions) -> Result<Arc<Self>, StoreError> {
        if rusqlite::version_number() < schema::SQLITE_FLOOR {
            return Err(StoreError::Unusable {
                what: format!(
                    "SQLite {} is built in, which can damage shared files; 3.51.3 is needed",
                    rusqlite::version()
                ),
            });
        }
        let given = options.path.clone();
        options.path = identity::canonical(&options.path)?;
        identity::refuse_unfit(&options.path)?;
        schema::refuse_foreign(&options.path, &Live::path_of(&options))?;
        schema::create_private(&options.path)?;
        let live = Arc::new(Live::open(&options)?);
        let connection = schema::open_for_writing(&options, &live)?;
        let shared = Arc::new(Shared {
            cache: Cache::new(options.cache_bytes),
            options,
            live,
            watchers: Watchers::default(),
            readers: Mutex::default(),
        });
        let writer = Writer::new(Arc::clone(&shared), connection);
        Ok(Arc::new(Self { shared, writer, process: std::process::id(), given }))
    }

    /// The path of the database.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.shared.options.path
    }

    fn load_now(&self, id: &OperationId, busy: Busy) -> Result<Option<Arc<Record>>, StoreError> {
        let epoch = self.shared.live.epoch();
        if let Some(record) = epoch.and_then(|epoch| self.shared.cache.find(id, epoch)) {
            return Ok(Some(record));
        }
        // A process that does one thing has one connection; only where the writer is busy is another one opened.
        let record = match (self.writer.try_read(|connection| rows::load(connection, id)), busy) {
            (Some(record), _) => record?,
            // Without an attempt under way here it is another reader that stands in the way.
            (None, Busy::LetTheWriterTell) if self.shared.live.held() > 0 => None,
            (None, Busy::LookBeside | Busy::LetTheWriterTell) => {
                self.shared.read(|connection| rows::load(connection, id))?
            }
        };
        let record = record.map(Arc::new);
        if let (Some(record), Some(epoch)) = (&record, epoch) {
            self.shared.cache.keep(record, epoch);
        }
        Ok(record)
    }

    async fn write(&self, change: queue::Change, door: Door) -> Result<Written, StoreError> {
        // With other attempts under way here a shared sync is worth the change of thread.
        match door {
            Door::Blocking if self.shared.live.held() <= 1 => self.writer.write_here(change).await,
            Door::Blocking | Door::Async => self.writer.write(change, Haste::Now).await,
            Door::Patient => self.writer.write(change, Haste::Later).await,
        }
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
    /// Reads on a connection of its own, which is kept for the next reader.
    fn read<T>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        let pooled = self.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match pooled {
            Some(connection) => connection,
            None => schema::open_for_reading(&self.options)?,
        };
        let result = read(&connection).map_err(|error| schema::explain(&self.options.path, error));
        if result.is_ok() {
            self.readers.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        }
        result
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn clock(&self) -> &dyn Clock {
        &*self.shared.live
    }

    fn watch(&self) -> Watch {
        Watch::Kernel
    }

    async fn recall(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        self.load_now(id, Busy::LetTheWriterTell)
    }

    async fn load(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        self.load_now(id, Busy::LookBeside)
    }

    async fn swap(&self, expected: Option<u64>, record: Record, door: Door) -> Result<Swap, StoreError> {
        let record = Arc::new(record);
        let entry = Entry::new(Arc::clone(&record))
            .map_err(|error| schema::explain(&self.shared.options.path, error))?;
        match self.write(queue::Change::Swap { expected, entry }, door).await? {
            Written::Yes { epoch } => {
                if let Some(epoch) = epoch {
                    self.shared.cache.keep(&record, epoch);
                }
                Ok(Swap::Written(record))
            }
            Written::Conflict(found) => Ok(Swap::Conflict(found)),
        }
    }

    async fn delete(&self, id: &OperationId, expected: u64, door: Door) -> Result<bool, StoreError> {
        let written = self.write(queue::Change::Delete { id: id.clone(), expected }, door).await?;
        Ok(matches!(written, Written::Yes { .. }))
    }

    async fn apply(&self, changes: Vec<Change>, _door: Door) -> Result<Vec<Applied>, StoreError> {
        let cannot = |error| schema::explain(&self.shared.options.path, error);
        let mut queued = Vec::with_capacity(changes.len());
        for change in changes {
            queued.push(match change {
                Change::Swap { expected, record } => {
                    queue::Change::Swap { expected, entry: Entry::new(Arc::new(record)).map_err(cannot)? }
                }
                Change::Delete { id, expected } => queue::Change::Delete { id, expected },
            });
        }
        let written = self.writer.write_all(queued).await?;
        Ok(written
            .into_iter()
            .map(|written| match written {
                Written::Yes { .. } => Applied::Written,
                Written::Conflict(_) => Applied::Conflict,
            })
            .collect())
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        self.writer.write_tallies();
        self.shared.read(|connection| rows::list(connection, filter))
    }

    async fn due(&self, now_ms: i64, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.shared.read(|connection| rows::due(connection, now_ms, limit))
    }

    async fn counts(&self, filter: &Filter) -> Result<Counts, StoreError> {
        self.shared.read(|connection| rows::counts(connection, filter))
    }

    async fn changed(&self, id: &OperationId, seen: u64, timeout_ms: u64) {
        let unchanged = || match self.load_now(id, Busy::LookBeside) {
            Ok(record) => record.is_some_and(|record| record.version == seen),
            Err(_) => true,
        };
        self.shared.watchers.wait(id, timeout_ms, &*self.shared.live, unchanged).await;
    }

    fn hold(&self, inherit: Inherit) -> Result<Box<dyn Hold>, StoreError> {
        Live::hold(&self.shared.live, inherit)
    }

    async fn liveness(&self, owner: &Owner) -> Result<Liveness, StoreError> {
        self.shared.live.liveness(owner.token)
    }

    fn tally_replay(&self, id: &OperationId) {
        self.writer.tally_replay(id);
    }
}
