//! One writer, many callers, one sync: all changes waiting when a commit begins share it.
//!
//! Changes are queued. The thread that holds the connection takes all waiting changes, writes them in one
//! transaction, and replies to each. That is the writer's own thread or, for a single caller that may block, the
//! caller itself, which saves two thread switches. Deferred changes are added to the next commit.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use onceward::{Identity, OperationId, StoreError};
use rusqlite::{Connection, ErrorCode};

use super::disk;
use super::live::FinishedChange;
use super::options::Sync;
use super::progress::Progress;
use super::queue::{Batch, Change, PAUSE, Priority, Queue, Sleep, WriteJob, Written};
use super::rows::{Replaces, Touch};
use super::schema::LedgerRow;
use super::{Shared, rows, schema};

/// How many operations may have an unwritten replay tally. Beyond that, replays are not counted.
const MAX_TALLIES: usize = 65_536;
/// How many tallies one commit writes.
const TALLIES_PER_COMMIT: usize = 64;

/// The pause between two slices of a bulk write, in which other processes can write.
const GAP: Duration = Duration::from_micros(500);

/// The writer of one process.
pub(super) struct Writer {
    core: Arc<Core>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Core {
    shared: Arc<Shared>,
    queue: Mutex<Queue>,
    wake: Condvar,
    connection: Mutex<WriterConnection>,
    tallies: Mutex<Tallies>,
}

type Tallies = HashMap<OperationId, u64>;

/// The writer's connection; `None` after a failure, until it is reopened.
struct WriterConnection {
    connection: Option<Connection>,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, connection: Connection) -> Self {
        let core = Core {
            shared,
            queue: Mutex::default(),
            wake: Condvar::new(),
            connection: Mutex::new(WriterConnection { connection: Some(connection) }),
            tallies: Mutex::default(),
        };
        Self { core: Arc::new(core), thread: Mutex::new(None) }
    }

    /// Writes through the writer's thread.
    pub(super) async fn write(&self, change: Change, priority: Priority) -> Result<Written, StoreError> {
        let written = self.core.queue().push(change, priority);
        self.wake_thread(priority);
        written.await
    }

    /// Writes many changes through the writer's thread, in slices that share a sync.
    pub(super) async fn write_all(&self, changes: Vec<Change>) -> Result<Vec<Written>, StoreError> {
        let waiting = self.core.queue().push_all(changes);
        self.wake_thread(Priority::Now);
        let mut written = Vec::with_capacity(waiting.len());
        let mut failed = None;
        // Wait for all of them even after one has failed, so that nothing is in progress when this returns.
        for one in waiting {
            match one.await {
                Ok(one) => written.push(one),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(written), Err)
    }

    /// Writes on this thread if the writer's connection is free.
    pub(super) async fn write_here(&self, change: Change) -> Result<Written, StoreError> {
        let written = self.core.queue().push(change, Priority::Now);
        match self.core.connection.try_lock() {
            Ok(mut writer) => {
                self.core.work(&mut writer);
                drop(writer);
            }
            Err(TryLockError::Poisoned(writer)) => self.core.work(&mut writer.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
        // The writer's thread handles changes that arrived meanwhile, and this one if it was not written.
        if self.core.queue().has_urgent() {
            self.wake_thread(Priority::Now);
        }
        written.await
    }

    /// Reads on the writer's connection, unless it is busy. After a failed write the connection is reopened first, so
    /// that changes that never reached the disk are not read.
    pub(super) fn try_read<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Option<Result<T, StoreError>> {
        let mut writer = self.core.connection.try_lock().ok()?;
        if writer.connection.is_none()
            && let Err(error) = self.core.open_connection(&mut writer).map(drop)
        {
            return Some(Err(error));
        }
        let connection = writer.connection.as_ref()?;
        Some(read(connection).map_err(|error| self.core.shared.explain(error)))
    }

    /// Writes a new identity, if the ledger still has the one that it was opened with.
    pub(super) fn set_identity(&self, next: &Identity) -> Result<(), StoreError> {
        self.core.set_identity(&mut self.core.lock_connection(), next)
    }

    /// Counts a replay. Tallies are written with later changes, or when the store is closed.
    pub(super) fn tally_replay(&self, id: &OperationId) {
        let mut tallies = self.core.tallies();
        if let Some(count) = tallies.get_mut(id) {
            *count += 1;
        } else if tallies.len() < MAX_TALLIES {
            tallies.insert(id.clone(), 1);
        }
    }

    /// Writes the tallies without a sync of their own. They may be lost.
    pub(super) fn write_tallies(&self) {
        if !self.core.tallies().is_empty() {
            self.core.write_tallies();
        }
    }

    fn wake_thread(&self, priority: Priority) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let core = Arc::clone(&self.core);
            let spawned =
                std::thread::Builder::new().name("once-writer".to_owned()).spawn(move || core.serve());
            match spawned {
                Ok(handle) => *thread = Some(handle),
                // The thread cannot be started, so this one does the work.
                Err(_) => {
                    self.core.work(&mut self.core.lock_connection());
                    while self.core.write_slice() {}
                    self.core.write_remaining();
                }
            }
        }
        drop(thread);
        // At most one wake-up per sleep. A change added before the thread is awake is found in the queue.
        if self.core.queue().should_wake(priority) {
            self.core.wake.notify_one();
        }
    }
}

impl Writer {
    /// Leaks the connections. A forked process has neither the writer's thread nor the locks of SQLite's connections,
    /// and must not even close them.
    pub(super) fn leak(&self) {
        std::mem::forget(Arc::clone(&self.core));
        if let Ok(mut thread) = self.thread.try_lock() {
            std::mem::forget(thread.take());
        }
    }

    /// Writes what remains and closes all connections of the store, the writer's last.
    pub(super) fn close(&self) {
        self.core.queue().closing = true;
        self.core.wake.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // If the writer panicked, its callers got no success reply, so their attempts are in doubt at worst.
            drop(thread.join());
        }
        self.write_tallies();
        self.core.shared.readers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let connection = self.core.lock_connection().connection.take();
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

    /// Takes some of the tallies, to be written with a commit.
    fn take_tallies(&self) -> Tallies {
        let mut tallies = self.tallies();
        let some: Vec<OperationId> = tallies.keys().take(TALLIES_PER_COMMIT).cloned().collect();
        some.into_iter().filter_map(|id| tallies.remove_entry(&id)).collect()
    }

    fn lock_connection(&self) -> MutexGuard<'_, WriterConnection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop of the writer's thread.
    fn serve(&self) {
        loop {
            let mut queue = self.queue();
            // A deferred change often follows a commit. A thread that waits with a timeout anyway is not woken for it.
            let mut has_rested = false;
            while !queue.has_urgent() && !queue.has_bulk() {
                if !queue.has_piggyback() && queue.closing {
                    return;
                }
                let (piggybacked, is_due) = (queue.piggybacked(), queue.has_piggyback());
                if is_due || !has_rested {
                    queue.sleep = Sleep::Timed;
                    let waited = self.wake.wait_timeout(queue, PAUSE).unwrap_or_else(PoisonError::into_inner);
                    queue = waited.0;
                    has_rested = waited.1.timed_out();
                    // What came during the first wait waits once more.
                    let is_over = (is_due && has_rested) || queue.closing;
                    let left = queue.has_piggyback() && queue.piggybacked() == piggybacked;
                    if is_over && left && !queue.has_urgent() {
                        queue.sleep = Sleep::Awake;
                        drop(queue);
                        self.write_remaining();
                        queue = self.queue();
                    }
                } else {
                    queue.sleep = Sleep::UntilWoken;
                    queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
            }
            queue.sleep = Sleep::Awake;
            drop(queue);
            self.work(&mut self.lock_connection());
            if self.write_slice() {
                self.yield_to_others();
            }
        }
    }

    /// Lets other processes write between two slices. New changes of this process end the pause.
    fn yield_to_others(&self) {
        let mut queue = self.queue();
        if !queue.has_urgent() && queue.has_bulk() {
            queue.sleep = Sleep::Timed;
            let waited = self.wake.wait_timeout(queue, GAP).unwrap_or_else(PoisonError::into_inner);
            queue = waited.0;
            queue.sleep = Sleep::Awake;
        }
    }

    /// Writes the next slice of the bulk changes. Returns whether there was one.
    fn write_slice(&self) -> bool {
        let mut writer = self.lock_connection();
        let Some(slice) = self.queue().take_slice() else { return false };
        match slice.priority {
            Priority::Now => self.write(&mut writer, slice),
            Priority::Later => self.write_unsynced(&mut writer, slice),
        }
        true
    }

    /// Takes all waiting changes, up to the limit, and writes them.
    fn work(&self, writer: &mut WriterConnection) {
        let batch = self.queue().take();
        if let Some(batch) = batch {
            self.write(writer, batch);
        }
    }

    /// Writes the deferred changes that no commit has taken.
    fn write_remaining(&self) {
        let mut writer = self.lock_connection();
        let batch = self.queue().take_remaining();
        if !batch.jobs.is_empty() {
            self.write_unsynced(&mut writer, batch);
        }
    }

    /// Writes a batch that a later commit syncs.
    fn write_unsynced(&self, writer: &mut WriterConnection, batch: Batch) {
        if self.sync(writer, Priority::Later).is_ok() {
            self.write(writer, batch);
        } else {
            // The caller gets the error and may try again.
            for job in batch.jobs {
                job.answer(Err(StoreError::unavailable("the ledger is closed")));
            }
        }
        self.restore_sync(writer);
    }

    /// Restores full sync. A connection that does not sync must not write intents.
    fn restore_sync(&self, writer: &mut WriterConnection) {
        if writer.connection.is_some() && self.sync(writer, Priority::Now).is_err() {
            writer.connection = None;
        }
    }

    /// Sets whether commits are synced from here on. With a write-ahead log, `normal` still syncs before a
    /// checkpoint: only unsynced commits can be lost.
    fn sync(&self, writer: &mut WriterConnection, priority: Priority) -> Result<(), StoreError> {
        let sync = match (priority, self.shared.options.sync) {
            (Priority::Later, Sync::Full) => Sync::Normal,
            (Priority::Now | Priority::Later, chosen) => chosen,
        };
        let sync = sync.as_str();
        let set = self.open_connection(writer)?.pragma_update(None, "synchronous", sync);
        set.map_err(|error| schema::explain(&self.shared.options.path, error))
    }

    fn write(&self, writer: &mut WriterConnection, batch: Batch) {
        let tallies = match batch.priority {
            Priority::Now => self.take_tallies(),
            Priority::Later => Tallies::new(),
        };
        let jobs = batch.jobs;
        let changes: Vec<&Change> = jobs.iter().map(|job| &job.change).collect();
        match self.commit(writer, &changes, &tallies) {
            Ok(written) => {
                // In reverse: deferred changes come first, and their callers are in no hurry.
                for (job, written) in jobs.into_iter().zip(written).rev() {
                    self.answer(job, Ok(written));
                }
            }
            // One change that cannot be written must not fail the others.
            Err(_) if jobs.len() > 1 => {
                for job in jobs {
                    let result = self.commit(writer, &[&job.change], &Tallies::new());
                    let result = result.and_then(|written| {
                        written
                            .into_iter()
                            .next()
                            .ok_or_else(|| StoreError::unavailable("the commit returned no result"))
                    });
                    self.answer(job, result);
                }
            }
            Err(error) => {
                if let Some(job) = jobs.into_iter().next() {
                    self.answer(job, Err(error));
                }
            }
        }
    }

    fn answer(&self, job: WriteJob, result: Result<Written, StoreError>) {
        let change = job.answer(result);
        if let Some(id) = change.id() {
            self.shared.watchers.notify(id);
        }
    }

    /// Writes the changes in one transaction, which is on disk when this returns.
    fn commit(
        &self,
        writer: &mut WriterConnection,
        changes: &[&Change],
        tallies: &Tallies,
    ) -> Result<Vec<Written>, StoreError> {
        let connection = self.open_connection(writer)?;
        if !changes.is_empty() {
            self.shared.live.note_log();
            self.shared.live.update_clock();
        }
        let epoch = self.shared.live.epoch();
        let mut touched = Touched::NothingFinished;
        let transaction = |touched: &mut Touched| {
            connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
            let (ledger, on_disk) = self.check_identity(connection)?;
            let before = self.check_progress(connection, ledger.count)?;
            let mut count = ledger.count;
            // The next state of the database file needs a higher count than the one on disk.
            if ledger.count == on_disk && !changes.is_empty() {
                count = ledger.count_write(connection, &self.shared.live.clock_mark())?;
            }
            let mut written = Vec::with_capacity(changes.len());
            for change in changes {
                written.push(self.apply(connection, change, epoch, touched)?);
            }
            for (id, replays) in tallies {
                rows::add_replays(connection, id, *replays)?;
            }
            let mut after = Progress::of(connection, count)?;
            if after < before {
                after.count = ledger.count_write(connection, &self.shared.live.clock_mark())?;
            }
            connection.prepare_cached("COMMIT")?.execute([])?;
            self.shared.live.note_progress(after);
            Ok(written)
        };
        let result = transaction(&mut touched);
        if result.is_err() && !connection.is_autocommit() {
            // If this fails too, the connection is closed below, which also rolls back.
            drop(connection.execute_batch("ROLLBACK"));
        }
        let own_epoch = match &touched {
            Touched::NothingFinished => None,
            Touched::Finished(change) => self.end_finished_change(change, changes),
        };
        let mut written = result.map_err(|error| self.explain_failure(writer, error))?;
        if let Some(own) = own_epoch {
            for written in &mut written {
                written.is_under(own);
            }
        }
        // A commit to a file that is no longer the ledger's does not count.
        self.shared.live.check_unchanged()?;
        Ok(written)
    }

    /// Explains a failed transaction, and drops the connection after an I/O error.
    fn explain_failure(&self, writer: &mut WriterConnection, error: CommitError) -> StoreError {
        let error = match error {
            CommitError::Refused(refusal) => return refusal,
            CommitError::Failed(error) => error,
        };
        let io = matches!(
            error.sqlite_error_code(),
            Some(ErrorCode::SystemIoFailure | ErrorCode::DatabaseCorrupt)
        );
        if io {
            // A failed sync is never retried on the same descriptor, because the kernel may have dropped the dirty
            // pages.
            writer.connection = None;
        }
        self.shared.explain(error)
    }

    /// Refuses to write if the ledger is not the one that was opened. Runs inside the write transaction, so no other
    /// process writes now. Returns the ledger's row, and the count in the database file without its log.
    fn check_identity(&self, connection: &Connection) -> Result<(LedgerRow, u64), CommitError> {
        let path = &self.shared.options.path;
        let on_disk = self.shared.live.check_unchanged().map_err(CommitError::Refused)?;
        let ledger = LedgerRow::of(connection)?;
        let ledger = ledger
            .ok_or_else(|| CommitError::Refused(disk::replaced(path, "it is empty or not a ledger")))?;
        if let Some(refusal) = ledger.refusal(path, &self.shared.mark) {
            return Err(CommitError::Refused(refusal));
        }
        if ledger.count < on_disk {
            let seen = "its -wal file belongs to an older state of the file";
            return Err(CommitError::Refused(disk::replaced(path, seen)));
        }
        Ok((ledger, on_disk))
    }

    /// Refuses if the ledger has lost what was committed. Called in the transaction that is to write.
    fn check_progress(&self, connection: &Connection, count: u64) -> Result<Progress, CommitError> {
        let progress = Progress::of(connection, count)?;
        if progress < self.shared.live.progress() {
            let seen = "its -wal file is gone, or an older one was put in its place";
            return Err(CommitError::Refused(disk::replaced(&self.shared.options.path, seen)));
        }
        Ok(progress)
    }

    fn set_identity(&self, writer: &mut WriterConnection, next: &Identity) -> Result<(), StoreError> {
        let connection = self.open_connection(writer)?;
        self.shared.live.note_log();
        let change = || {
            connection.execute_batch("BEGIN IMMEDIATE")?;
            self.check_identity(connection)?;
            schema::set_identity(connection, next)?;
            Ok(connection.execute_batch("COMMIT")?)
        };
        let changed = change();
        if changed.is_err() && !connection.is_autocommit() {
            // If this fails too, the connection is closed, which also rolls back.
            drop(connection.execute_batch("ROLLBACK"));
        }
        if changed.is_ok() {
            // So that the file alone has the new identity. If other processes keep the log busy, a later checkpoint
            // does it.
            drop(connection.query_row("PRAGMA wal_checkpoint(FULL)", [], |_| Ok(())));
            self.shared.live.check_unchanged()?;
        }
        changed.map_err(|error| self.explain_failure(writer, error))
    }

    /// The connection, reopened if it failed before.
    fn open_connection<'a>(&self, writer: &'a mut WriterConnection) -> Result<&'a Connection, StoreError> {
        if writer.connection.is_none() {
            self.shared.live.check_unchanged()?;
            writer.connection = Some(schema::reopen_after_failure(&self.shared.options, &self.shared.live)?);
        }
        writer.connection.as_ref().ok_or_else(|| StoreError::unavailable("the ledger is closed"))
    }

    fn apply(
        &self,
        connection: &Connection,
        change: &Change,
        epoch: Option<u64>,
        touched: &mut Touched,
    ) -> rusqlite::Result<Written> {
        let begun_in = change.begun_in();
        if let Some(barrier) =
            begun_in.map(|scope| rows::barrier_of(connection, scope)).transpose()?.flatten()
        {
            let found = change.id().map(|id| rows::load(connection, id)).transpose()?.flatten();
            let Change::Swap { expected, .. } = change else { return Ok(Written::Stopped(barrier)) };
            return Ok(match found.as_ref().map(|found| found.version) == *expected {
                true => Written::Stopped(barrier),
                false => Written::Conflict(found.map(Arc::new)),
            });
        }
        let written = match change {
            Change::Swap { expected: None, entry, .. } => rows::insert(connection, entry)?,
            Change::Stop(barrier) => return rows::stop(connection, barrier).map(Written::Barrier),
            Change::Resume { scope } => return rows::resume(connection, scope).map(Written::Barrier),
            // The first change shows the kind of the batch: those of a sweep are all finished records.
            Change::Swap { expected: Some(expected), entry, .. }
                if matches!(touched, Touched::Finished(_)) || entry.replaces == Replaces::SameResult =>
            {
                self.begin_finished_change(touched)?;
                rows::update(connection, *expected, entry, Touch::Any)?
            }
            Change::Swap { expected: Some(expected), entry, .. } => {
                rows::update(connection, *expected, entry, Touch::Unfinished)? || {
                    self.begin_finished_change(touched)?;
                    rows::update(connection, *expected, entry, Touch::Any)?
                }
            }
            Change::Delete { id, expected } => {
                self.begin_finished_change(touched)?;
                rows::delete(connection, id, *expected)?
            }
        };
        if written {
            return Ok(Written::Yes { epoch });
        }
        let found = change.id().map(|id| rows::load(connection, id)).transpose()?.flatten();
        Ok(Written::Conflict(found.map(Arc::new)))
    }

    /// Invalidates cached finished records before the commit.
    fn begin_finished_change(&self, touched: &mut Touched) -> rusqlite::Result<()> {
        if *touched == Touched::NothingFinished {
            let said = self.shared.live.begin_finished_change();
            let change = said.map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
            *touched = Touched::Finished(change);
        }
        Ok(())
    }

    /// Lets caches be used again after the commit. Returns the epoch from then on, if it is of this change alone.
    fn end_finished_change(&self, change: &FinishedChange, changes: &[&Change]) -> Option<u64> {
        let (before, after) = self.shared.live.end_finished_change(change);
        let ids = changes.iter().filter_map(|change| change.id());
        self.shared.cache.changed_here(ids, before, after);
        before.map(|_| after)
    }

    fn write_tallies(&self) {
        let mut writer = self.lock_connection();
        let tallies = std::mem::take(&mut *self.tallies());
        if self.sync(&mut writer, Priority::Later).is_ok() {
            // A lost tally is acceptable.
            drop(self.commit(&mut writer, &[], &tallies));
        }
        self.restore_sync(&mut writer);
    }
}

/// Why a transaction was not committed.
enum CommitError {
    /// The ledger is not the one that was opened.
    Refused(StoreError),
    /// SQLite reported an error.
    Failed(rusqlite::Error),
}

impl From<rusqlite::Error> for CommitError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Failed(error)
    }
}

/// Whether a transaction changes a record that may be cached.
#[derive(Debug, PartialEq, Eq)]
enum Touched {
    NothingFinished,
    Finished(FinishedChange),
}
