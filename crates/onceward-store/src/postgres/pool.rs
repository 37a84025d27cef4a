//! The connection pool.
//!
//! A job waits in the queue until a connection is free. The connection takes all jobs that can share a statement. If
//! all connections are busy another one is opened, up to the configured limit. A job whose reply was lost goes back
//! to the queue and is sent again. Compare-and-swap writes are safe to repeat: if the record found on the second try
//! equals the one to be written, the first try succeeded.

mod batch;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use onceward::{Begin, OperationId, Record, State, StoreError, Swap};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use self::batch::{answer_watches, fail_all, ids_of, isolate, mark_sent, version};
use super::Shared;
use super::fault::{self, Fault};
use super::identity::{Found, check_recent};
use super::link::{Link, Pooler, no_answer};
use super::listen::Moment;
use super::queue::{Batching, JobKind, PoolJob, Queue, QueuedJob, Sent};
use super::rows::{self, Answered, Body, Changes, Statements, Terms, signed};

/// How long a statement waits for a lock. After that its jobs are sent one by one, and the blocked one goes to the
/// back of the queue. Shorter than the server's `deadlock_timeout`.
const PATIENCE_MS: i32 = 200;
/// How long jobs wait for a busy connection before another connection takes them, and how many may wait.
const MAX_BATCH_WAIT: Duration = Duration::from_millis(8);
const MAX_WAITING: usize = 128;
/// How many operations may have an unwritten replay tally. Beyond that, replays are not counted.
const MAX_TALLIES: usize = 65_536;
/// How long a tally update waits for a lock.
const TALLY_PATIENCE_MS: i32 = 50;
/// The timeout of a listing or a count.
const LONG_QUERY: Duration = Duration::from_secs(60);
/// A reading of the server's clock that arrives with a batch is used only if the batch took less than this.
const MAX_CLOCK_AGE: Duration = Duration::from_millis(20);

/// The connections of one store and the jobs that wait for them.
pub(super) struct Pool {
    shared: Arc<Shared>,
    statements: Statements,
    handle: Handle,
    state: Mutex<PoolState>,
    tallies: Mutex<HashMap<OperationId, u64>>,
}

#[derive(Default)]
struct PoolState {
    queue: Queue,
    idle: Vec<Link>,
    /// Connections that are busy or being opened.
    busy: usize,
    /// How many of the busy connections run a query that may take long.
    long_queries: usize,
    /// Whether a delayed `dispatch` is already scheduled.
    dispatch_scheduled: bool,
    /// Whether the next free connection must check the server and the ledger.
    recheck_due: bool,
}

/// The result of sending a batch.
enum SendOutcome {
    /// All jobs were answered.
    Answered,
    /// These jobs were not answered, and the connection is unusable.
    Lost(Vec<QueuedJob>, StoreError),
    /// These jobs were not written. They are retried one by one.
    Retry(Vec<QueuedJob>),
    /// This job was not written because another transaction holds a lock. It is retried after all others.
    Blocked(QueuedJob),
}

impl Pool {
    pub(super) fn new(shared: Arc<Shared>, handle: Handle, first: Link) -> Arc<Self> {
        let statements = Statements::new(&shared.options.schema);
        let state = PoolState { idle: vec![first], ..PoolState::default() };
        let pool = Self { shared, statements, handle, state: Mutex::new(state), tallies: Mutex::default() };
        let pool = Arc::new(pool);
        let interval = pool.shared.options.check_interval;
        pool.handle.spawn(run_upkeep(Arc::downgrade(&pool), interval));
        pool
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of connections.
    pub(super) fn connections(&self) -> usize {
        let state = self.state();
        state.busy + state.idle.len()
    }

    /// Adds a job to the queue.
    pub(super) fn submit(self: &Arc<Self>, job: PoolJob) {
        self.state().queue.push(QueuedJob::new(job, self.shared.options.timeout));
        self.dispatch();
    }

    /// Gives the waiting jobs to an idle connection or to a new one. If another connection is busy with a batch, a
    /// few jobs are better left to wait: it takes them all together when it is done.
    fn dispatch(self: &Arc<Self>) {
        let mut state = self.state();
        if state.queue.is_empty() {
            return;
        }
        let worth_it = state.busy == state.long_queries
            || state.queue.len() >= MAX_WAITING
            || state.queue.waited() >= MAX_BATCH_WAIT;
        if !worth_it {
            if !std::mem::replace(&mut state.dispatch_scheduled, true) {
                self.handle.spawn(dispatch_later(Arc::clone(self)));
            }
            return;
        }
        state.idle.retain(|link| !link.is_closed());
        let link = state.idle.pop();
        if link.is_some() || state.busy < self.shared.options.connections {
            state.busy += 1;
            self.handle.spawn(Arc::clone(self).serve(link));
        }
    }

    /// Sends batches until the queue is empty.
    async fn serve(self: Arc<Self>, mut link: Option<Link>) {
        loop {
            let Some(connected) = self.reuse_or_connect(link.take()).await else { break };
            let recheck_due = std::mem::take(&mut self.state().recheck_due);
            if recheck_due && self.recheck(&connected).await == Recheck::Lost {
                continue;
            }
            let batch = {
                let mut state = self.state();
                let batch = state.queue.take_batch();
                if batch.is_empty() {
                    state.idle.push(connected);
                    break;
                }
                batch
            };
            let batch = self.drop_expired(batch);
            let asks = batch.first().is_some_and(|waiting| waiting.job.kind() == JobKind::Query);
            self.state().long_queries += usize::from(asks);
            if asks {
                self.dispatch();
            }
            let outcome = self.send(&connected, batch).await;
            self.state().long_queries -= usize::from(asks);
            match outcome {
                SendOutcome::Answered => link = Some(connected),
                SendOutcome::Retry(jobs) => {
                    self.state().queue.put_back(jobs);
                    self.dispatch();
                    link = Some(connected);
                }
                SendOutcome::Blocked(waiting) => {
                    self.state().queue.push(waiting);
                    link = Some(connected);
                }
                SendOutcome::Lost(jobs, error) => {
                    let jobs = self.fail_expired(jobs, &error);
                    self.state().queue.put_back(jobs);
                }
            }
        }
        self.state().busy -= 1;
        self.dispatch();
    }

    /// Returns the given connection if it is usable, else opens one. `None` if no job waits any more.
    async fn reuse_or_connect(&self, link: Option<Link>) -> Option<Link> {
        // A server on an earlier timeline than one already seen is a former primary.
        let status = &self.shared.status;
        if let Some(link) = link.filter(|link| !link.is_closed() && !status.is_behind(link.timeline)) {
            return Some(link);
        }
        let mut pause = Duration::from_millis(20);
        loop {
            let error = match self.open().await {
                Ok(link) => return Some(link),
                Err(error) => error,
            };
            status.note(&error);
            let over = match &error {
                // Waiting does not help, so all jobs fail now.
                StoreError::Unusable { .. } | StoreError::Missing { .. } | StoreError::Replaced { .. } => {
                    let mut state = self.state();
                    std::iter::from_fn(|| Some(state.queue.take_batch()).filter(|batch| !batch.is_empty()))
                        .flatten()
                        .collect()
                }
                StoreError::Unavailable { .. } | _ => self.state().queue.take_expired(),
            };
            fail_all(over, &error);
            if self.state().queue.is_empty() {
                return None;
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }

    /// Opens a connection, and checks that the ledger is still the one that was opened.
    async fn open(&self) -> Result<Link, StoreError> {
        let options = &self.shared.options;
        let seen = self.shared.status.newest();
        let (link, server) = Link::open(options).await?;
        let found = timeout(options.timeout, Found::read(&link.client, &options.schema)).await;
        let found = found.map_err(|_| no_answer(options))??;
        self.shared.status.look(&found, &server, options, seen)?;
        let check = check_recent(&link.client, &options.schema, &self.shared.status, (&found, &server));
        timeout(options.timeout, check).await.map_err(|_| no_answer(options))??;
        self.shared.clock.read(server.now_ms, found.clock.as_ref());
        Ok(link)
    }

    /// Checks the server and the ledger again: settings, identity, and the time.
    async fn recheck(&self, link: &Link) -> Recheck {
        let options = &self.shared.options;
        // Read before the query: its answer does not include what is written meanwhile.
        let seen = self.shared.status.newest();
        let look = async { Ok((link.look().await?, Found::read(&link.client, &options.schema).await?)) };
        let (server, found) = match timeout(options.timeout, look).await {
            Ok(Ok(looked)) => looked,
            Ok(Err(error)) => {
                self.shared.status.note(&error);
                return Recheck::Lost;
            }
            Err(_) => return Recheck::Lost,
        };
        let status = &self.shared.status;
        let check = check_recent(&link.client, &options.schema, status, (&found, &server));
        let looked = match status.look(&found, &server, options, seen) {
            Ok(()) => timeout(options.timeout, check).await.unwrap_or_else(|_| Err(no_answer(options))),
            Err(error) => Err(error),
        };
        match looked {
            Ok(()) => self.shared.clock.read(server.now_ms, found.clock.as_ref()),
            // The primary may have moved to another host.
            Err(StoreError::Unavailable { .. }) => return Recheck::Lost,
            // Keep the connection, to notice when the problem is fixed.
            Err(_) => {}
        }
        Recheck::Usable
    }

    fn drop_expired(&self, batch: Vec<QueuedJob>) -> Vec<QueuedJob> {
        self.fail_expired(batch, &no_answer(&self.shared.options))
    }

    /// Fails the jobs that have timed out and returns the others.
    fn fail_expired(&self, jobs: Vec<QueuedJob>, error: &StoreError) -> Vec<QueuedJob> {
        let (over, left): (Vec<_>, Vec<_>) = jobs.into_iter().partition(QueuedJob::is_expired);
        fail_all(over, error);
        left
    }

    /// Sends a batch and replies to the jobs that have an answer.
    async fn send(&self, link: &Link, batch: Vec<QueuedJob>) -> SendOutcome {
        let Some(first) = batch.first() else { return SendOutcome::Answered };
        let kind = first.job.kind();
        let writes = matches!(kind, JobKind::Swap | JobKind::Delete);
        if writes && let Some(refusal) = self.shared.status.replacement() {
            fail_all(batch, &refusal);
            return SendOutcome::Answered;
        }
        let moment = self.shared.memory.moment();
        let patience = match kind {
            // Counting or listing many records takes time.
            JobKind::Query => self.shared.options.timeout.max(LONG_QUERY),
            JobKind::Swap | JobKind::Delete | JobKind::Load | JobKind::Watch => self.shared.options.timeout,
        };
        let begun = Instant::now();
        let sent = timeout(patience, self.ask(link, kind, &batch)).await;
        let took = begun.elapsed();
        // A write that the standby did not confirm is treated as a lost reply.
        let warned = link.take_warning() && writes;
        match sent {
            Ok(Ok(rows)) if !warned => {
                self.answer(kind, batch, &rows, Timing { moment, took });
                SendOutcome::Answered
            }
            Ok(Ok(_)) => SendOutcome::Lost(
                mark_sent(batch),
                StoreError::unavailable("the standby did not confirm a write"),
            ),
            Err(_) => SendOutcome::Lost(mark_sent(batch), no_answer(&self.shared.options)),
            Ok(Err(QueryError::Encode(error))) => {
                fail_all(batch, &error);
                SendOutcome::Answered
            }
            Ok(Err(QueryError::Server(error))) => match fault::of(&error) {
                Fault::Lost => SendOutcome::Lost(mark_sent(batch), fault::explain(error)),
                Fault::Busy | Fault::Refused if batch.len() > 1 => SendOutcome::Retry(isolate(batch)),
                Fault::Busy => retry_blocked(batch, error),
                Fault::Replaced => {
                    let error = fault::explain(error);
                    self.shared.status.note(&error);
                    fail_all(batch, &error);
                    SendOutcome::Answered
                }
                Fault::Refused => {
                    fail_all(batch, &fault::explain(error));
                    SendOutcome::Answered
                }
            },
        }
    }

    async fn ask(&self, link: &Link, kind: JobKind, batch: &[QueuedJob]) -> Result<Vec<Row>, QueryError> {
        let ids: Vec<&str> =
            batch.iter().filter_map(|waiting| waiting.job.id()).map(OperationId::as_str).collect();
        let versions: Vec<i64> = batch.iter().filter_map(|waiting| version(&waiting.job)).collect();
        let pooler = self.shared.pooler();
        let sent = match kind {
            JobKind::Swap => {
                let mut changes = Changes::default();
                for waiting in batch {
                    if let PoolJob::Swap { expected, record, writing, .. } = &waiting.job {
                        changes.push(*expected, record, *writing).map_err(QueryError::Encode)?;
                    }
                }
                let status = &self.shared.status;
                let terms = Terms {
                    patience_ms: Some(PATIENCE_MS),
                    again: batch.iter().any(|waiting| waiting.sent == Sent::Before),
                    ledger: &status.check,
                    seen: Some(status.newest()),
                    clock: status.clock_mark(&self.shared.clock),
                };
                let sent = link.ask(&self.statements.swap, &changes.values(&terms), pooler).await;
                if sent.is_ok() && terms.clock.is_some() {
                    status.schedule_clock_mark();
                }
                sent
            }
            JobKind::Delete => {
                for id in batch.iter().filter_map(|waiting| waiting.job.id()) {
                    self.shared.status.recent.remove(0, id);
                }
                let ledger = &self.shared.status.check;
                link.ask(&self.statements.delete, &[&PATIENCE_MS, ledger, &ids, &versions], pooler).await
            }
            JobKind::Load => link.ask(&self.statements.load, &[&ids], pooler).await,
            JobKind::Watch => {
                link.ask(&self.statements.watch, &[&PATIENCE_MS, &ids, &versions], pooler).await
            }
            JobKind::Query => match batch.first().map(|waiting| &waiting.job) {
                Some(PoolJob::Query { query, .. }) => {
                    self.write_tallies(link).await;
                    let values: Vec<&(dyn ToSql + Sync)> =
                        query.values.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect();
                    link.ask(&query.statement, &values, Pooler::Perhaps).await
                }
                Some(_) | None => Ok(Vec::new()),
            },
        };
        sent.map_err(QueryError::Server)
    }

    /// Replies to every job in the batch.
    fn answer(&self, kind: JobKind, batch: Vec<QueuedJob>, rows: &[Row], asked: Timing) {
        let answered = match kind {
            JobKind::Swap => self.answer_swaps(batch, rows, asked),
            JobKind::Delete => self.answer_deletes(batch, rows),
            JobKind::Load => self.answer_loads(batch, rows, asked.moment),
            JobKind::Watch => answer_watches(batch, rows),
            JobKind::Query => {
                for waiting in batch {
                    if let PoolJob::Query { reply, .. } = waiting.job {
                        drop(reply.send(Ok(rows.to_vec())));
                    }
                }
                Ok(())
            }
        };
        if let Err((batch, error)) = answered {
            fail_all(batch, &error);
        }
    }

    fn answer_swaps(&self, batch: Vec<QueuedJob>, rows: &[Row], asked: Timing) -> BatchResult {
        let moment = asked.moment;
        let answered = match Answered::from_rows(rows) {
            Ok(answered) => answered,
            Err(error) => return Err((batch, error)),
        };
        self.shared.status.note_position(answered.newest);
        // The server read its clock before it waited for its disk.
        if asked.took < MAX_CLOCK_AGE {
            self.shared.clock.read(answered.now_ms, None);
        }
        let written: std::collections::HashSet<&str> = answered.written.iter().map(String::as_str).collect();
        let mut current: HashMap<OperationId, Arc<Record>> =
            answered.current.into_iter().map(|record| (record.id.clone(), record)).collect();
        let mut stopped = answered.stopped;
        for waiting in batch {
            let PoolJob::Swap { expected, record, reply, .. } = waiting.job else { continue };
            let found = current.remove(&record.id);
            let mine = waiting.sent == Sent::Before
                && found.as_ref().is_some_and(|found| rows::is_same(found, &record));
            let barrier = stopped.remove(record.id.as_str());
            let unchanged = found.as_ref().map(|found| found.version) == expected;
            let begin = if mine || written.contains(record.id.as_str()) {
                self.note_written(expected, &record, moment);
                Ok(Begin::Swapped(Swap::Written(record)))
            } else if let Some(barrier) = barrier.filter(|_| unchanged) {
                Ok(Begin::Stopped(barrier))
            } else if expected.is_some() && unchanged {
                Err(fault::not_written(&self.shared.options.schema))
            } else {
                if let (Some(found), Some(moment)) = (&found, moment) {
                    self.shared.memory.keep(found, moment);
                }
                Ok(Begin::Swapped(Swap::Conflict(found)))
            };
            drop(reply.send(begin));
        }
        Ok(())
    }

    /// Updates the cache and wakes local waiters after a write. They need no notification.
    fn note_written(&self, expected: Option<u64>, record: &Arc<Record>, moment: Option<Moment>) {
        self.shared.status.recent.add(0, record);
        match moment {
            Some(moment) if record.state == State::Done => self.shared.memory.keep(record, moment),
            Some(_) | None if expected.is_some() && record.state != State::Done => {
                self.shared.memory.invalidate(&record.id);
            }
            Some(_) | None => {}
        }
        self.shared.watchers.notify(&record.id);
    }

    fn answer_deletes(&self, batch: Vec<QueuedJob>, rows: &[Row]) -> BatchResult {
        let deleted = match ids_of(rows) {
            Ok(deleted) => deleted,
            Err(error) => return Err((batch, error)),
        };
        for waiting in batch {
            let PoolJob::Delete { id, reply, .. } = waiting.job else { continue };
            let gone = deleted.contains(id.as_str());
            self.shared.memory.invalidate(&id);
            self.shared.watchers.notify(&id);
            let answer = match (gone, waiting.sent) {
                (true, _) => Ok(true),
                (false, Sent::Never) => Ok(false),
                (false, Sent::Before) => Err(StoreError::unavailable(
                    "the reply to a delete was lost, so it is not known whether the record was deleted; check again",
                )),
            };
            drop(reply.send(answer));
        }
        Ok(())
    }

    fn answer_loads(&self, batch: Vec<QueuedJob>, rows: &[Row], moment: Option<Moment>) -> BatchResult {
        let found: Result<Vec<_>, _> = rows.iter().map(|row| rows::record(row, 0, Body::Included)).collect();
        let mut found: HashMap<OperationId, Arc<Record>> = match found {
            Ok(found) => found.into_iter().map(|record| (record.id.clone(), Arc::new(record))).collect(),
            Err(error) => return Err((batch, error)),
        };
        for waiting in batch {
            let PoolJob::Load { id, reply } = waiting.job else { continue };
            let record = found.remove(&id);
            if let (Some(record), Some(moment)) = (&record, moment) {
                self.shared.memory.keep(record, moment);
            }
            drop(reply.send(Ok(record)));
        }
        Ok(())
    }

    /// Counts a replay. Tallies are written before the next listing, at intervals, and when the store is closed.
    pub(super) fn tally_replay(&self, id: &OperationId) {
        let mut tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = tallies.get_mut(id) {
            *count += 1;
        } else if tallies.len() < MAX_TALLIES {
            tallies.insert(id.clone(), 1);
        }
    }

    /// Writes the tallies. They may be lost, so failures are ignored.
    async fn write_tallies(&self, link: &Link) {
        let tallies = std::mem::take(&mut *self.tallies.lock().unwrap_or_else(PoisonError::into_inner));
        if tallies.is_empty() {
            return;
        }
        let mut tallies: Vec<_> = tallies.iter().map(|(id, more)| (id.as_str(), signed(*more))).collect();
        tallies.sort_unstable();
        for some in tallies.chunks(1_000) {
            let (ids, more): (Vec<&str>, Vec<i64>) = some.iter().copied().unzip();
            drop(link.ask(&self.statements.tally, &[&TALLY_PATIENCE_MS, &ids, &more], Pooler::Perhaps).await);
        }
    }

    /// Writes the tallies before the store is closed.
    pub(super) async fn flush_tallies(&self) {
        let Some(link) = self.state().idle.pop() else { return };
        // A lost tally is acceptable.
        drop(timeout(self.shared.options.timeout, self.write_tallies(&link)).await);
    }

    /// Periodic work: checks the server and the ledger, and writes the tallies. If all connections are busy, the next
    /// free one does the check.
    async fn upkeep(self: &Arc<Self>) {
        let link = {
            let mut state = self.state();
            let link = state.idle.pop();
            // Counted as busy, so that new jobs wait for this connection instead of opening another one.
            state.busy += usize::from(link.is_some());
            state.recheck_due = link.is_none();
            link
        };
        let Some(link) = link else { return };
        let written = timeout(self.shared.options.timeout, self.write_tallies(&link)).await.is_ok();
        let stays = written && self.recheck(&link).await == Recheck::Usable;
        let mut state = self.state();
        state.busy -= 1;
        state.idle.extend(stays.then_some(link));
        drop(state);
        self.dispatch();
    }

    /// Whether there are unwritten tallies.
    pub(super) fn has_tallies(&self) -> bool {
        !self.tallies.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

/// The result of checking the server again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Recheck {
    /// The connection can still be used.
    Usable,
    /// The connection cannot be used: its server is gone, or is no longer the primary.
    Lost,
}

/// When a batch was sent, and how long its reply took.
#[derive(Clone, Copy)]
struct Timing {
    moment: Option<Moment>,
    took: Duration,
}

/// Why a statement returned no rows.
enum QueryError {
    /// The statement could not be encoded.
    Encode(StoreError),
    /// The server or the connection failed.
    Server(tokio_postgres::Error),
}

/// The result of answering a batch. If the rows cannot be decoded, the batch is returned with the error.
type BatchResult = Result<(), (Vec<QueuedJob>, StoreError)>;

/// Retries a job that was sent alone and met a lock, until it times out.
fn retry_blocked(mut batch: Vec<QueuedJob>, error: tokio_postgres::Error) -> SendOutcome {
    match batch.pop() {
        Some(waiting) if !waiting.is_expired() => {
            SendOutcome::Blocked(QueuedJob { batching: Batching::Alone, ..waiting })
        }
        waiting => {
            fail_all(Vec::from_iter(waiting), &fault::explain(error));
            SendOutcome::Answered
        }
    }
}

/// Dispatches again after a delay, so that a slow batch does not hold up other jobs for long.
async fn dispatch_later(pool: Arc<Pool>) {
    sleep(MAX_BATCH_WAIT).await;
    pool.state().dispatch_scheduled = false;
    pool.dispatch();
}

/// Runs the periodic work for as long as the store lives.
async fn run_upkeep(pool: std::sync::Weak<Pool>, interval: Duration) {
    loop {
        sleep(interval).await;
        match pool.upgrade() {
            Some(pool) => pool.upkeep().await,
            None => return,
        }
    }
}
