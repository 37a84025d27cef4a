//! One writer, many callers, one sync: whatever is waiting when a commit begins shares it.
//!
//! Changes queue up. Whoever holds the connection takes all that are waiting, writes them in one transaction, and
//! answers each. That is a thread of its own, or, where a caller may block and is alone, the caller itself, which saves
//! two changes of thread. What has time goes along with somebody else's commit.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;

use onceward::{OperationId, StoreError};
use rusqlite::{Connection, ErrorCode};

use super::identity::file_id;
use super::options::Sync;
use super::queue::{Batch, Change, Haste, Job, PAUSE, Queue, Sleep, Written};
use super::rows::Touch;
use super::{Shared, rows, schema};

/// How many operations have a tally of replays that is not written yet; beyond that, replays are not counted.
const MAX_TALLIES: usize = 65_536;
/// How many of these tallies a commit takes along.
const TALLIES_PER_COMMIT: usize = 64;

/// The writer of one process.
pub(super) struct Writer {
    core: Arc<Core>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Core {
    shared: Arc<Shared>,
    queue: Mutex<Queue>,
    wake: Condvar,
    desk: Mutex<Desk>,
    tallies: Mutex<Tallies>,
}

type Tallies = HashMap<OperationId, u64>;

/// The connection, and the identity of the file that it has open.
struct Desk {
    connection: Option<Connection>,
    database: Option<(u64, u64)>,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, connection: Connection) -> Self {
        let database = file_id(&shared.options.path);
        let core = Core {
            shared,
            queue: Mutex::default(),
            wake: Condvar::new(),
            desk: Mutex::new(Desk { connection: Some(connection), database }),
            tallies: Mutex::default(),
        };
        Self { core: Arc::new(core), thread: Mutex::new(None) }
    }

    /// Writes through the writer's thread.
    pub(super) async fn write(&self, change: Change, haste: Haste) -> Result<Written, StoreError> {
        let written = self.core.queue().push(change, haste);
        self.wake_thread(haste);
        written.await
    }

    /// Writes many changes through the writer's thread: as many as a commit takes share a sync.
    pub(super) async fn write_all(&self, changes: Vec<Change>) -> Result<Vec<Written>, StoreError> {
        let waiting = self.core.queue().push_all(changes);
        self.wake_thread(Haste::Now);
        let mut written = Vec::with_capacity(waiting.len());
        let mut failed = None;
        // All are waited for, also after one has failed: nothing is under way when the caller hears of it.
        for one in waiting {
            match one.await {
                Ok(one) => written.push(one),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(written), Err)
    }

    /// Writes on this thread, if nobody else is writing.
    pub(super) async fn write_here(&self, change: Change) -> Result<Written, StoreError> {
        let written = self.core.queue().push(change, Haste::Now);
        match self.core.desk.try_lock() {
            Ok(mut desk) => {
                self.core.work(&mut desk);
                drop(desk);
            }
            Err(TryLockError::Poisoned(desk)) => self.core.work(&mut desk.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
        // What came while this thread wrote, and its own change where it did not, is the other thread's.
        if self.core.queue().is_wanted() {
            self.wake_thread(Haste::Now);
        }
        written.await
    }

    /// Reads on the writer's connection, unless it is busy. After a failed write it is opened again first, so that
    /// nobody takes what never reached the disk for written.
    pub(super) fn try_read<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Option<Result<T, StoreError>> {
        let mut desk = self.core.desk.try_lock().ok()?;
        if desk.connection.is_none()
            && let Err(error) = self.core.connection(&mut desk)
        {
            return Some(Err(error));
        }
        let connection = desk.connection.as_ref()?;
        Some(read(connection).map_err(|error| schema::explain(&self.core.shared.options.path, error)))
    }

    /// Notes a replay; it is written along with later changes, or when the store is closed.
    pub(super) fn tally_replay(&self, id: &OperationId) {
        let mut tallies = self.core.tallies();
        if let Some(count) = tallies.get_mut(id) {
            *count += 1;
        } else if tallies.len() < MAX_TALLIES {
            tallies.insert(id.clone(), 1);
        }
    }

    /// Writes the tallies without a sync of their own: they may be lost.
    pub(super) fn write_tallies(&self) {
        if !self.core.tallies().is_empty() {
            self.core.write_tallies();
        }
    }

    fn wake_thread(&self, haste: Haste) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let core = Arc::clone(&self.core);
            let spawned =
                std::thread::Builder::new().name("once-writer".to_owned()).spawn(move || core.serve());
            match spawned {
                Ok(handle) => *thread = Some(handle),
                // No thread to be had: this one does the work.
                Err(_) => {
                    self.core.work(&mut self.core.desk());
                    self.core.write_left();
                }
            }
        }
        drop(thread);
        // Once a sleep: whoever comes before it is up finds the queue open.
        if self.core.queue().wakes(haste) {
            self.core.wake.notify_one();
        }
    }
}

impl Writer {
    /// Leaves everything as it is, for good: a process that was forked has neither the writer's thread nor the locks of
    /// SQLite's connections, and must not even close them.
    pub(super) fn leak(&self) {
        std::mem::forget(Arc::clone(&self.core));
        if let Ok(mut thread) = self.thread.try_lock() {
            std::mem::forget(thread.take());
        }
    }

    /// Writes what is left and closes all connections of the store, the writer's last.
    pub(super) fn close(&self) {
        self.core.queue().closing = true;
        self.core.wake.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A writer that panicked has answered nobody: its callers' attempts are in doubt, and that is all.
            drop(thread.join());
        }
        self.write_tallies();
        self.core.shared.readers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let connection = self.core.desk().connection.take();
        if let Some(connection) = connection {
            schema::close(connection, &self.core.shared.live);
        }
    }
}

impl Core {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tallies(&self) -> MutexGuard<'_, Tallies> {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Some of the tallies, to be written along with a commit.
    fn some_tallies(&self) -> Tallies {
        let mut tallies = self.tallies();
        let some: Vec<OperationId> = tallies.keys().take(TALLIES_PER_COMMIT).cloned().collect();
        some.into_iter().filter_map(|id| tallies.remove_entry(&id)).collect()
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writer's thread.
    fn serve(&self) {
        loop {
            let mut queue = self.queue();
            while !queue.is_wanted() {
                if !queue.has_time() && queue.closing {
                    return;
                }
                let rides = queue.rides();
                if queue.has_time() {
                    queue.sleep = Sleep::ForAWhile;
                    let waited = self.wake.wait_timeout(queue, PAUSE).unwrap_or_else(PoisonError::into_inner);
                    queue = waited.0;
                    let left = queue.has_time() && queue.rides() == rides;
                    if (waited.1.timed_out() || queue.closing) && left && !queue.is_wanted() {
                        queue.sleep = Sleep::Awake;
                        drop(queue);
                        self.write_left();
                        queue = self.queue();
                    }
                } else {
                    queue.sleep = Sleep::UntilWoken;
                    queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
            }
            queue.sleep = Sleep::Awake;
            drop(queue);
            self.work(&mut self.desk());
        }
    }

    /// Takes all that is waiting, up to the limit, and writes it.
    fn work(&self, desk: &mut Desk) {
        let batch = self.queue().take();
        if let Some(batch) = batch {
            self.write(desk, &batch);
        }
    }

    /// Writes what nobody has taken along.
    fn write_left(&self) {
        let mut desk = self.desk();
        let batch = self.queue().take_left();
        if batch.jobs.is_empty() {
            return;
        }
        if self.sync(&mut desk, Haste::Later).is_ok() {
            self.write(&mut desk, &batch);
        } else {
            // It stays with its caller, who may try again.
            batch
                .jobs
                .iter()
                .for_each(|job| job.answer(Err(StoreError::unavailable("the ledger is closed"))));
        }
        self.sync_again(&mut desk);
    }

    /// A connection that would not sync must not write intents.
    fn sync_again(&self, desk: &mut Desk) {
        if desk.connection.is_some() && self.sync(desk, Haste::Now).is_err() {
            desk.connection = None;
        }
    }

    /// Whether commits are synced from here on. In a write-ahead log `normal` still syncs before pages are copied
    /// into the database: what is not synced may be lost, and nothing else.
    fn sync(&self, desk: &mut Desk, haste: Haste) -> Result<(), StoreError> {
        let sync = match (haste, self.shared.options.sync) {
            (Haste::Later, Sync::Full) => Sync::Normal,
            (Haste::Now | Haste::Later, chosen) => chosen,
        };
        let sync = sync.as_str();
        let set = self.connection(desk)?.pragma_update(None, "synchronous", sync);
        set.map_err(|error| schema::explain(&self.shared.options.path, error))
    }

    fn write(&self, desk: &mut Desk, batch: &Batch) {
        let tallies = match batch.haste {
            Haste::Now => self.some_tallies(),
            Haste::Later => Tallies::new(),
        };
        let jobs = &batch.jobs;
        let changes: Vec<&Change> = jobs.iter().map(|job| &job.change).collect();
        match self.commit(desk, &changes, &tallies) {
            Ok(written) => {
                // Backwards: what was taken along came first, and nobody waits for it.
                for (job, written) in jobs.iter().zip(written).rev() {
                    self.answer(job, Ok(written));
                }
            }
            // One change that cannot be written must not take the others with it.
            Err(_) if jobs.len() > 1 => {
                for job in jobs {
                    let result = self.commit(desk, &[&job.change], &Tallies::new());
                    let result = result.and_then(|written| {
                        written
                            .into_iter()
                            .next()
                            .ok_or_else(|| StoreError::unavailable("the commit answered nothing"))
                    });
                    self.answer(job, result);
                }
            }
            Err(error) => {
                if let Some(job) = jobs.first() {
                    self.answer(job, Err(error));
                }
            }
        }
    }

    fn answer(&self, job: &Job, result: Result<Written, StoreError>) {
        job.answer(result);
        self.shared.watchers.notify(job.change.id());
    }

    /// Writes the changes in one transaction that is on disk when this returns.
    fn commit(
        &self,
        desk: &mut Desk,
        changes: &[&Change],
        tallies: &Tallies,
    ) -> Result<Vec<Written>, StoreError> {
        let connection = self.connection(desk)?;
        if !changes.is_empty() {
            self.shared.live.note_log();
        }
        let epoch = self.shared.live.epoch();
        let mut touched = Touched::NothingFinished;
        let transaction = |touched: &mut Touched| {
            connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
            let mut written = Vec::with_capacity(changes.len());
            for change in changes {
                written.push(self.apply(connection, change, epoch, touched)?);
            }
            for (id, replays) in tallies {
                rows::add_replays(connection, id, *replays)?;
            }
            connection.prepare_cached("COMMIT")?.execute([])?;
            Ok(written)
        };
        let result = transaction(&mut touched);
        if result.is_err() && !connection.is_autocommit() {
            // Where even this fails, the connection is closed below, which rolls back as well.
            drop(connection.execute_batch("ROLLBACK"));
        }
        if touched == Touched::Finished {
            self.shared.live.finished_records_changed();
        }
        result.map_err(|error: rusqlite::Error| {
            let io = matches!(
                error.sqlite_error_code(),
                Some(ErrorCode::SystemIoFailure | ErrorCode::DatabaseCorrupt)
            );
            if io {
                // A sync that failed is never tried again on the same descriptor: the kernel may have dropped pages.
                desk.connection = None;
            }
            schema::explain(&self.shared.options.path, error)
        })
    }

    /// The connection to the file that is still where it was.
    fn connection<'a>(&self, desk: &'a mut Desk) -> Result<&'a Connection, StoreError> {
        if desk.connection.is_none() {
            desk.connection = Some(schema::open_after_a_failure(&self.shared.options, &self.shared.live)?);
            desk.database = file_id(&self.shared.options.path);
        }
        if let Some(database) = desk.database {
            self.shared.live.check_in_place(database)?;
        }
        desk.connection.as_ref().ok_or_else(|| StoreError::unavailable("the ledger is closed"))
    }

    fn apply(
        &self,
        connection: &Connection,
        change: &Change,
        epoch: Option<u64>,
        touched: &mut Touched,
    ) -> rusqlite::Result<Written> {
        let written = match change {
            Change::Swap { expected: None, entry } => rows::insert(connection, entry)?,
            Change::Swap { expected: Some(expected), entry } => {
                rows::update(connection, *expected, entry, Touch::Unfinished)? || {
                    self.finished_records_change(touched)?;
                    rows::update(connection, *expected, entry, Touch::Any)?
                }
            }
            Change::Delete { id, expected } => {
                self.finished_records_change(touched)?;
                rows::delete(connection, id, *expected)?
            }
        };
        if written {
            return Ok(Written::Yes { epoch });
        }
        Ok(Written::Conflict(rows::load(connection, change.id())?.map(Arc::new)))
    }

    /// Said before the commit: from here on nobody serves a finished record from memory.
    fn finished_records_change(&self, touched: &mut Touched) -> rusqlite::Result<()> {
        if *touched == Touched::NothingFinished {
            let said = self.shared.live.finished_records_change();
            said.map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
            *touched = Touched::Finished;
        }
        Ok(())
    }

    fn write_tallies(&self) {
        let mut desk = self.desk();
        let tallies = std::mem::take(&mut *self.tallies());
        if self.sync(&mut desk, Haste::Later).is_ok() {
            // They may be lost.
            drop(self.commit(&mut desk, &[], &tallies));
        }
        self.sync_again(&mut desk);
    }
}

/// Whether a transaction changes a record that others may hold in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Touched {
    NothingFinished,
    Finished,
}
