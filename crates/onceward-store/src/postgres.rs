//! The ledger in PostgreSQL, shared by any number of processes on any number of machines.
//!
//! A process cannot see whether an owner on another machine is alive, so liveness is decided by leases, measured in
//! the ledger's own time. The first call of an operation takes one round trip, and so does its end. Concurrent calls
//! are batched: one statement, one transaction, one sync. Waiting callers are woken by the server (`LISTEN` and
//! `NOTIFY`).
//!
//! # Layout
//! - [`options`](PostgresOptions): the URL options. `tls`: TLS setup. `link`: one connection.
//! - `check`: checks that the server keeps what it acknowledges. `schema`: the tables. `rows`: conversion
//!   between records and rows.
//! - `identity`: which ledger this is, and whether it was replaced.
//! - `queue` and `pool`: the jobs waiting for the server, and the connections that send them. `fault`: error
//!   classification.
//! - `stop`: stopped scopes.
//! - `listen`: notifications of changes made elsewhere, and the cache of finished records.
//! - [`atomic`]: record and effect in one transaction of the caller.

pub mod atomic;
mod check;
mod fault;
mod identity;
mod link;
mod listen;
mod options;
mod pool;
mod queue;
mod rows;
mod schema;
mod stop;
mod tls;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use onceward::{
    Applied, Barrier, Begin, Change, Clock, Counts, Filter, Identity, Inherit, Listed, Liveness,
    LivenessSource, OperationId, Owner, OwnerLock, Record, State, Store, StoreError, Swap, Watchers,
    WriteMode, open_or_newest,
};
use tokio::sync::{oneshot, watch};

pub use options::{Notify, PostgresOptions, Standby};
pub use schema::SCHEMA_VERSION;

use crate::health::Finding;
use crate::remote::{LedgerClock, RuntimeThread, Token, yield_if_deferred};
use crate::writing::{Writing, only_swap};
use crate::{Backend, Overwrite, back_up_by};
use identity::{Found, LedgerStatus};
use link::{Link, Pooler};
use listen::{ListenState, Memory};
use pool::Pool;
use queue::{PoolJob, ReplySender};

/// The server's clock.
const TIME: &str = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::int8";

/// How long a process waits after its first finished operation before it starts to listen. Most processes have exited
/// by then.
const LISTEN_AFTER: Duration = Duration::from_millis(30);

/// Polling interval of waiting callers when notifications are not available: initial and maximum.
const POLL_INTERVAL: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(5)..=Duration::from_millis(200);

/// The ledger in PostgreSQL. It is a [`Store`] and a [`Backend`].
///
/// The store runs its own thread with an async runtime, so its methods can be awaited on any executor.
///
/// ```no_run
/// use onceward::Ledger;
/// use onceward_store::postgres::{PostgresOptions, PostgresStore};
///
/// let mut options = PostgresOptions::parse("postgres://agent@db.example/app?schema=onceward")?;
/// options.connections = 8;
/// let ledger = Ledger::new(PostgresStore::open(options)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PostgresStore {
    shared: Arc<Shared>,
    pool: Arc<Pool>,
    listen_state: watch::Receiver<ListenState>,
    // Taken by the first caller that needs notifications.
    listening: Mutex<Option<watch::Sender<ListenState>>>,
    listens: AtomicBool,
    runtime: RuntimeThread,
}

/// State shared by the connections of one store.
struct Shared {
    options: PostgresOptions,
    clock: Arc<LedgerClock>,
    memory: Memory,
    watchers: Watchers,
    /// Whether connections are known to go to the server directly, without a pooler.
    own: AtomicBool,
    status: LedgerStatus,
}

impl Shared {
    fn pooler(&self) -> Pooler {
        if self.own.load(Ordering::Relaxed) { Pooler::No } else { Pooler::Perhaps }
    }
}

impl PostgresStore {
    /// Opens the ledger, and creates it if it does not exist.
    ///
    /// # Errors
    /// If the server, its version, its settings or the role's privileges do not allow it. The error says what to
    /// change.
    pub fn open(options: PostgresOptions) -> Result<Arc<Self>, StoreError> {
        let runtime = RuntimeThread::start("once-postgres")?;
        let (opening, clock) = (options.clone(), Arc::<LedgerClock>::default());
        let begun = Arc::clone(&clock);
        let (first, status) = runtime.wait_for(async move {
            let (mut link, server) = Link::open(&opening).await?;
            server.refuse(&opening)?;
            let started = Instant::now();
            let found = Found::open(&mut link.client, &opening).await?;
            // Creating the ledger takes time, and so does waiting for another process that creates it.
            let passed_ms = i64::try_from(started.elapsed().as_millis()).unwrap_or(0);
            begun.begin(server.now_ms + passed_ms, found.clock.as_ref());
            let status = LedgerStatus::new(&found, Some(&server), &begun);
            if status.refusal().is_none() {
                identity::note_server(&link.client, &opening.schema, &found, &server).await?;
            }
            Ok((link, status))
        })?;
        let shared = Arc::new(Shared {
            memory: Memory::new(options.cache_bytes),
            clock,
            watchers: Watchers::default(),
            own: AtomicBool::new(false),
            status,
            options,
        });
        let pool = Pool::new(Arc::clone(&shared), runtime.handle(), first);
        let (listening, listen_state) = watch::channel(ListenState::NotStarted);
        let listening = Mutex::new(Some(listening));
        Ok(Arc::new(Self { shared, pool, listen_state, listening, listens: AtomicBool::new(false), runtime }))
    }

    /// Reports which ledger this is, and whether it may be written to.
    fn check_identity(&self) -> Finding {
        const WHAT: &str = "ledger";
        let identity = self.identity();
        let name = format!("{}, epoch {}", identity.name, identity.epoch);
        match (self.shared.status.refusal(), &identity.fence) {
            (Some(refusal), _) => Finding::bad(WHAT, format!("{name}: {refusal}")),
            (None, Some(_)) => Finding::look(WHAT, format!("{name}, restored from a backup and fenced")),
            (None, None) => Finding::good(WHAT, name),
        }
    }

    /// Reports whether notifications are delivered. Waits up to two seconds to find out.
    fn check_notifications(&self) -> Finding {
        const WHAT: &str = "notifications";
        let mut listen_state = self.listen_state.clone();
        let found = self.runtime.wait_for(async move {
            let known = |listen_state: &ListenState| {
                matches!(listen_state, ListenState::Listening(_) | ListenState::Unsupported)
            };
            let found = tokio::time::timeout(Duration::from_secs(2), listen_state.wait_for(known)).await;
            Ok(found
                .ok()
                .and_then(Result::ok)
                .map_or(ListenState::Disconnected, |listen_state| *listen_state))
        });
        match found {
            Ok(ListenState::Listening(_)) => Finding::good(WHAT, "delivered: waiting callers are woken"),
            Ok(ListenState::Unsupported | ListenState::NotStarted) => Finding::look(
                WHAT,
                "not delivered (a pooler in transaction mode, or notify=no): waiting callers poll, and \
                 finished records are not cached",
            ),
            Ok(ListenState::Disconnected) | Err(_) => {
                Finding::look(WHAT, "not delivered at the moment; waiting callers poll")
            }
        }
    }

    /// Starts to listen, unless the store already listens.
    fn listen(&self, patience: Duration) {
        if self.listens.swap(true, Ordering::Relaxed) {
            return;
        }
        let listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(listening) = listening {
            self.runtime.spawn(listen::listen(Arc::clone(&self.shared), listening, patience));
        }
    }

    /// Does rare work on a connection of its own.
    async fn alone<T, W>(
        &self,
        work: impl FnOnce(Link, Arc<Shared>) -> W + Send + 'static,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, StoreError>> + Send,
    {
        let shared = Arc::clone(&self.shared);
        let (reply, answer) = oneshot::channel();
        self.runtime.spawn(async move {
            let done = async {
                let (link, _) = Link::open(&shared.options).await?;
                work(link, Arc::clone(&shared)).await
            };
            // The caller may have stopped waiting.
            drop(reply.send(done.await));
        });
        answer
            .await
            .unwrap_or_else(|_| Err(StoreError::unavailable("the store's runtime thread has stopped")))
    }

    async fn write(
        &self,
        expected: Option<u64>,
        record: Record,
        writing: Writing,
        mode: WriteMode,
    ) -> Result<Begin, StoreError> {
        yield_if_deferred(mode).await;
        let is_done = record.state == State::Done;
        let record = Arc::new(record);
        let begin = self.ask(|reply| PoolJob::Swap { expected, record, writing, reply }).await?;
        let met = matches!(&begin, Begin::Swapped(Swap::Conflict(Some(found))) if found.state == State::Done);
        // A finished record is worth caching, which requires notifications of its changes.
        if is_done || met {
            self.listen(LISTEN_AFTER);
        }
        Ok(begin)
    }

    /// Submits a job and waits for its reply.
    async fn ask<T>(&self, job: impl FnOnce(ReplySender<T>) -> PoolJob) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.pool.submit(job(reply));
        answer
            .await
            .unwrap_or_else(|_| Err(StoreError::unavailable("the store's runtime thread has stopped")))
    }
}

impl Backend for PostgresStore {
    fn health(&self) -> Result<Vec<Finding>, StoreError> {
        self.listen(Duration::ZERO);
        let shared = Arc::clone(&self.shared);
        let server = self.runtime.wait_for(async move {
            let link = Link::connect(&shared.options, None).await?;
            link.look().await
        })?;
        self.shared.clock.read(server.now_ms, None);
        let mut findings = server.findings(self.shared.clock.server_ahead_ms());
        findings.push(self.check_identity());
        findings.push(Finding::good(
            "schema",
            format!("{:?}, version {SCHEMA_VERSION}", self.shared.options.schema),
        ));
        findings.push(self.check_notifications());
        let (open, most) = (self.pool.connections(), self.shared.options.connections);
        findings.push(Finding::good(
            "connections",
            format!("{open} open, {most} at most, plus one for notifications"),
        ));
        Ok(findings)
    }

    fn check_backup(&self, _file: &Path, _overwrite: Overwrite) -> Result<(), StoreError> {
        Err(back_up_by(&format!("pg_dump --schema={}", self.shared.options.schema)))
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        if self.pool.has_tallies() {
            let pool = Arc::clone(&self.pool);
            let tidy = async move {
                pool.flush_tallies().await;
                Ok(())
            };
            // A lost tally is acceptable.
            drop(self.runtime.wait_for(tidy));
        }
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn clock(&self) -> &dyn Clock {
        &*self.shared.clock
    }

    fn watch(&self) -> LivenessSource {
        LivenessSource::Lease
    }

    fn identity(&self) -> &Identity {
        &self.shared.status.identity
    }

    async fn set_identity(&self, next: &Identity) -> Result<(), StoreError> {
        let next = next.clone();
        self.alone(|mut link, shared| async move {
            identity::write(&mut link.client, &shared.options, &shared.status.identity, &next).await
        })
        .await
    }

    async fn load_cached(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        let found = self.shared.memory.find(id);
        match (&found, self.shared.status.refusal()) {
            // No attempt can begin now, so a round trip to read the stored result delays nothing.
            (None, Some(StoreError::Unusable { .. })) => self.load(id).await,
            (_, _) => Ok(found),
        }
    }

    async fn load(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        self.ask(|reply| PoolJob::Load { id: id.clone(), reply }).await
    }

    async fn swap(&self, expected: Option<u64>, record: Record, mode: WriteMode) -> Result<Swap, StoreError> {
        only_swap(self.write(expected, record, Writing::Change, mode).await?)
    }

    async fn begin(
        &self,
        expected: Option<u64>,
        record: Record,
        mode: WriteMode,
    ) -> Result<Begin, StoreError> {
        self.write(expected, record, Writing::Begin, mode).await
    }

    async fn stop(&self, barrier: &Barrier) -> Result<Barrier, StoreError> {
        let barrier = barrier.clone();
        self.alone(|link, shared| stop::set(link, shared, barrier)).await
    }

    async fn resume(&self, scope: &str) -> Result<Option<Barrier>, StoreError> {
        let scope = scope.to_owned();
        self.alone(|link, shared| stop::lift(link, shared, scope)).await
    }

    async fn barriers(&self) -> Result<Vec<Barrier>, StoreError> {
        let query = rows::barriers(&self.shared.options.schema);
        rows::decode_barriers(&self.ask(|reply| PoolJob::Query { query, reply }).await?)
    }

    async fn delete(&self, id: &OperationId, expected: u64, _mode: WriteMode) -> Result<bool, StoreError> {
        self.ask(|reply| PoolJob::Delete { id: id.clone(), expected, reply }).await
    }

    async fn apply(&self, changes: Vec<Change>, mode: WriteMode) -> Result<Vec<Applied>, StoreError> {
        yield_if_deferred(mode).await;
        // Submit all jobs before waiting for any, so that jobs of one kind share a statement.
        let waiting: Vec<PendingChange> = changes
            .into_iter()
            .map(|change| match change {
                Change::Swap { expected, record } => {
                    let (reply, answer) = oneshot::channel();
                    let (record, writing) = (Arc::new(record), Writing::Change);
                    self.pool.submit(PoolJob::Swap { expected, record, writing, reply });
                    PendingChange::Swap(answer)
                }
                Change::Delete { id, expected } => {
                    let (reply, answer) = oneshot::channel();
                    self.pool.submit(PoolJob::Delete { id, expected, reply });
                    PendingChange::Delete(answer)
                }
            })
            .collect();
        let mut applied = Vec::with_capacity(waiting.len());
        let mut failed = None;
        for one in waiting {
            match one.answer().await {
                Ok(one) => applied.push(one),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(applied), Err)
    }

    async fn occurrences(&self, action: &OperationId, now_ms: i64) -> Result<Vec<Record>, StoreError> {
        let query = rows::occurrences(&self.shared.options.schema, action, now_ms);
        let found = rows::decode_list(&self.ask(|reply| PoolJob::Query { query, reply }).await?)?;
        Ok(open_or_newest(found.into_iter().map(|listed| listed.record).collect(), now_ms))
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        let query = rows::list(&self.shared.options.schema, filter);
        rows::decode_list(&self.ask(|reply| PoolJob::Query { query, reply }).await?)
    }

    async fn due(&self, now_ms: i64, limit: usize) -> Result<Vec<Record>, StoreError> {
        let query = rows::due(&self.shared.options.schema, now_ms, limit);
        let found = self.ask(|reply| PoolJob::Query { query, reply }).await?;
        Ok(rows::decode_list(&found)?.into_iter().map(|listed| listed.record).collect())
    }

    async fn counts(&self, filter: &Filter) -> Result<Counts, StoreError> {
        let query = rows::counts(&self.shared.options.schema, filter);
        rows::decode_counts(&self.ask(|reply| PoolJob::Query { query, reply }).await?)
    }

    async fn changed(&self, id: &OperationId, seen: u64, timeout_ms: u64) {
        self.listen(Duration::ZERO);
        let (waiter, waits) = oneshot::channel();
        let begin = || {
            let watcher = Watcher {
                id: id.clone(),
                seen,
                pool: Arc::clone(&self.pool),
                shared: Arc::clone(&self.shared),
                listen_state: self.listen_state.clone(),
            };
            self.runtime.spawn(watcher.until(waits));
            true
        };
        self.shared.watchers.wait(id, timeout_ms, &*self.shared.clock, begin).await;
        drop::<oneshot::Sender<std::convert::Infallible>>(waiter);
    }

    fn hold(&self, _inherit: Inherit) -> Result<Box<dyn OwnerLock>, StoreError> {
        if let Some(refusal) = self.shared.status.refusal() {
            return Err(refusal);
        }
        Ok(Box::new(Token::new()?))
    }

    async fn liveness(&self, _owner: &Owner) -> Result<Liveness, StoreError> {
        Ok(Liveness::Unknown)
    }

    fn tally_replay(&self, id: &OperationId) {
        self.pool.tally_replay(id);
    }
}

/// The pending reply to one change of a batch.
enum PendingChange {
    Swap(oneshot::Receiver<Result<Begin, StoreError>>),
    Delete(oneshot::Receiver<Result<bool, StoreError>>),
}

impl PendingChange {
    async fn answer(self) -> Result<Applied, StoreError> {
        let gone = || StoreError::unavailable("the store's runtime thread has stopped");
        let written = match self {
            Self::Swap(answer) => {
                matches!(answer.await.map_err(|_| gone())??, Begin::Swapped(Swap::Written(_)))
            }
            Self::Delete(answer) => answer.await.map_err(|_| gone())??,
        };
        Ok(if written { Applied::Written } else { Applied::Conflict })
    }
}

/// Wakes one caller that waits for a record to change.
struct Watcher {
    id: OperationId,
    seen: u64,
    pool: Arc<Pool>,
    shared: Arc<Shared>,
    listen_state: watch::Receiver<ListenState>,
}

impl Watcher {
    /// Runs until the record has changed or the caller stops waiting.
    async fn until(mut self, mut waits: oneshot::Receiver<std::convert::Infallible>) {
        let mut pause = *POLL_INTERVAL.start();
        loop {
            let listen_state = *self.listen_state.borrow_and_update();
            let unchanged = match listen_state {
                // From now on the server announces the next change.
                ListenState::Listening(_) => {
                    self.ask(|id, seen, reply| PoolJob::Watch { id, seen, reply }).await
                }
                ListenState::NotStarted | ListenState::Disconnected | ListenState::Unsupported => {
                    self.is_unchanged().await
                }
            };
            // On an error the caller is woken and reads the record itself.
            if unchanged != Ok(true) {
                self.shared.watchers.notify(&self.id);
                return;
            }
            let nap = match listen_state {
                ListenState::Listening(_) => Duration::from_secs(3_600),
                ListenState::NotStarted | ListenState::Disconnected | ListenState::Unsupported => pause,
            };
            pause = (pause * 2).min(*POLL_INTERVAL.end());
            tokio::select! {
                _ = &mut waits => return,
                _ = self.listen_state.changed() => {}
                () = tokio::time::sleep(nap) => {}
            }
        }
    }

    async fn is_unchanged(&self) -> Result<bool, ()> {
        let found = self.ask(|id, _, reply| PoolJob::Load { id, reply }).await?;
        Ok(found.is_some_and(|record| record.version == self.seen))
    }

    async fn ask<T>(&self, job: impl FnOnce(OperationId, u64, ReplySender<T>) -> PoolJob) -> Result<T, ()> {
        let (reply, answer) = oneshot::channel();
        self.pool.submit(job(self.id.clone(), self.seen, reply));
        answer.await.map_err(drop)?.map_err(drop)
    }
}
