//! The ledger in PostgreSQL: any number of processes on any number of machines.
//!
//! Nobody on another machine can see whether an owner lives, so leases tell, by the server's clock. A first call is
//! one way to the server and back, an ending is one, and calls that come together travel together: one statement,
//! one transaction, one sync. Those who wait are told by the server (LISTEN and NOTIFY).
//!
//! # Layout
//! - [`options`](PostgresOptions): what a URL can say. `tls`: the way there. `link`: one connection.
//! - `check`: whether the server keeps what it acknowledges. `schema`: tables and their versions. `rows`: records
//!   and rows.
//! - `queue` and `desk`: what waits for the server, and the connections it goes over. `fault`: what errors mean.
//! - `listen`: hearing of changes elsewhere; finished records in memory.
//! - [`atomic`]: record and effect in one transaction of the caller's own.

pub mod atomic;
mod check;
mod desk;
mod fault;
mod link;
mod listen;
mod options;
mod queue;
mod rows;
mod schema;
mod tls;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use onceward::watchers::Watchers;
use onceward::{
    Applied, Change, Clock, Counts, Door, Filter, Hold, Inherit, Listed, Liveness, OperationId, Owner,
    Record, State, Store, StoreError, Swap, Watch,
};
use tokio::sync::{oneshot, watch};

pub use options::{Notify, PostgresOptions, Standby};
pub use schema::SCHEMA_VERSION;

use crate::health::Finding;
use crate::remote::{Engine, ServerClock, Token, give_way};
use crate::{Backend, Overwrite, back_up_by};
use desk::Desk;
use link::{Link, Pooler};
use listen::{Hearing, Memory};
use queue::{Job, Reply};

/// The server's clock.
const TIME: &str = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::int8";

/// How long a process that has just finished its first operation waits before it listens: most are gone by then.
const LISTEN_AFTER: Duration = Duration::from_millis(30);

/// The pauses of those who wait where the server cannot tell them, at first and at most.
const LOOK_AGAIN: std::ops::RangeInclusive<Duration> = Duration::from_millis(5)..=Duration::from_millis(200);

/// The ledger in PostgreSQL.
pub struct PostgresStore {
    shared: Arc<Shared>,
    desk: Arc<Desk>,
    hearing: watch::Receiver<Hearing>,
    // Taken by whoever first wants to hear.
    listening: Mutex<Option<watch::Sender<Hearing>>>,
    listens: AtomicBool,
    engine: Engine,
}

/// What the connections of one store share.
struct Shared {
    options: PostgresOptions,
    clock: Arc<ServerClock>,
    memory: Memory,
    watchers: Watchers,
    /// Whether connections are known to be the store's own.
    own: AtomicBool,
}

impl Shared {
    fn pooler(&self) -> Pooler {
        if self.own.load(Ordering::Relaxed) { Pooler::No } else { Pooler::Perhaps }
    }
}

impl PostgresStore {
    /// Opens the ledger, and creates it where there is none.
    ///
    /// # Errors
    /// Says what is in the way and what to do about it: the server, its version, its settings, the role's rights.
    pub fn open(options: PostgresOptions) -> Result<Arc<Self>, StoreError> {
        let engine = Engine::start("once-postgres")?;
        let shared = Arc::new(Shared {
            memory: Memory::new(options.cache_bytes),
            clock: Arc::default(),
            watchers: Watchers::default(),
            own: AtomicBool::new(false),
            options,
        });
        let opening = Arc::clone(&shared);
        let first = engine.wait_for(async move {
            let (mut link, server) = Link::open(&opening.options).await?;
            opening.clock.read(server.now_ms);
            schema::prepare(&mut link.client, &opening.options).await?;
            Ok(link)
        })?;
        let desk = Desk::new(Arc::clone(&shared), engine.handle(), first);
        let (listening, hearing) = watch::channel(Hearing::Unasked);
        let listening = Mutex::new(Some(listening));
        Ok(Arc::new(Self { shared, desk, hearing, listening, listens: AtomicBool::new(false), engine }))
    }

    /// A word where an index is missing, as in a ledger that an older build made.
    fn on_indexes(&self) -> Result<Option<Finding>, StoreError> {
        let shared = Arc::clone(&self.shared);
        let schema = shared.options.schema.clone();
        let there = self.engine.wait_for(async move {
            let link = Link::connect(&shared.options, None).await?;
            schema::has_key_index(&link.client, &shared.options.schema).await
        })?;
        let add = format!("CREATE INDEX operation_key_idx ON \"{schema}\".operation (key)");
        Ok((!there).then(|| Finding::look("indexes", format!("looking up keys is slow; run {add}"))))
    }

    /// Whether changes elsewhere are heard of, after a moment to find out.
    fn on_hearing(&self) -> Finding {
        const WHAT: &str = "notifications";
        let mut hearing = self.hearing.clone();
        let heard = self.engine.wait_for(async move {
            let known = |hearing: &Hearing| matches!(hearing, Hearing::Since(_) | Hearing::Never);
            let found = tokio::time::timeout(Duration::from_secs(2), hearing.wait_for(known)).await;
            Ok(found.ok().and_then(Result::ok).map_or(Hearing::Deaf, |hearing| *hearing))
        });
        match heard {
            Ok(Hearing::Since(_)) => Finding::good(WHAT, "arrive: who waits is told"),
            Ok(Hearing::Never | Hearing::Unasked) => Finding::look(
                WHAT,
                "do not arrive (a pooler in transaction mode, or notify=no): who waits asks again and again, and \
                 finished records are not kept in memory",
            ),
            Ok(Hearing::Deaf) | Err(_) => {
                Finding::look(WHAT, "do not arrive now; who waits asks again and again")
            }
        }
    }

    /// Begins to listen, if nobody has.
    fn listen(&self, patience: Duration) {
        if self.listens.swap(true, Ordering::Relaxed) {
            return;
        }
        let listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(listening) = listening {
            self.engine.spawn(listen::listen(Arc::clone(&self.shared), listening, patience));
        }
    }

    /// Hands a job over and waits for its answer.
    async fn ask<T>(&self, job: impl FnOnce(Reply<T>) -> Job) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.desk.post(job(reply));
        answer.await.unwrap_or_else(|_| Err(StoreError::unavailable("the ledger's thread is gone")))
    }
}

impl Backend for PostgresStore {
    fn health(&self) -> Result<Vec<Finding>, StoreError> {
        self.listen(Duration::ZERO);
        let shared = Arc::clone(&self.shared);
        let server = self.engine.wait_for(async move {
            let link = Link::connect(&shared.options, None).await?;
            link.look().await
        })?;
        let mut findings = server.findings(crate::clock::wall_ms());
        findings.push(Finding::good(
            "schema",
            format!("{:?}, version {SCHEMA_VERSION}", self.shared.options.schema),
        ));
        findings.extend(self.on_indexes()?);
        findings.push(self.on_hearing());
        let (open, most) = (self.desk.connections(), self.shared.options.connections);
        findings
            .push(Finding::good("connections", format!("{open} open, {most} at most, and one that listens")));
        Ok(findings)
    }

    fn check_backup(&self, _file: &Path, _overwrite: Overwrite) -> Result<(), StoreError> {
        Err(back_up_by(&format!("pg_dump --schema={}", self.shared.options.schema)))
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        if self.desk.has_tallies() {
            let desk = Arc::clone(&self.desk);
            let tidy = async move {
                desk.tidy_up().await;
                Ok(())
            };
            // They are only tallies.
            drop(self.engine.wait_for(tidy));
        }
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn clock(&self) -> &dyn Clock {
        &*self.shared.clock
    }

    fn watch(&self) -> Watch {
        Watch::Lease
    }

    async fn recall(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        Ok(self.shared.memory.find(id))
    }

    async fn load(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        self.ask(|reply| Job::Load { id: id.clone(), reply }).await
    }

    async fn swap(&self, expected: Option<u64>, record: Record, door: Door) -> Result<Swap, StoreError> {
        give_way(door).await;
        let is_done = record.state == State::Done;
        let record = Arc::new(record);
        let swap = self.ask(|reply| Job::Swap { expected, record, reply }).await?;
        let met = matches!(&swap, Swap::Conflict(Some(found)) if found.state == State::Done);
        // What is done is worth keeping in memory, for which its changes must be heard of.
        if is_done || met {
            self.listen(LISTEN_AFTER);
        }
        Ok(swap)
    }

    async fn delete(&self, id: &OperationId, expected: u64, _door: Door) -> Result<bool, StoreError> {
        self.ask(|reply| Job::Delete { id: id.clone(), expected, reply }).await
    }

    async fn apply(&self, changes: Vec<Change>, door: Door) -> Result<Vec<Applied>, StoreError> {
        give_way(door).await;
        // All are handed over before any is waited for: those of a kind share statements.
        let waiting: Vec<Waiting> = changes
            .into_iter()
            .map(|change| match change {
                Change::Swap { expected, record } => {
                    let (reply, answer) = oneshot::channel();
                    self.desk.post(Job::Swap { expected, record: Arc::new(record), reply });
                    Waiting::Swap(answer)
                }
                Change::Delete { id, expected } => {
                    let (reply, answer) = oneshot::channel();
                    self.desk.post(Job::Delete { id, expected, reply });
                    Waiting::Delete(answer)
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

    async fn list(&self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        let question = rows::list(&self.shared.options.schema, filter);
        rows::listed(&self.ask(|reply| Job::Ask { question, reply }).await?)
    }

    async fn due(&self, now_ms: i64, limit: usize) -> Result<Vec<Record>, StoreError> {
        let question = rows::due(&self.shared.options.schema, now_ms, limit);
        let found = self.ask(|reply| Job::Ask { question, reply }).await?;
        Ok(rows::listed(&found)?.into_iter().map(|listed| listed.record).collect())
    }

    async fn counts(&self, filter: &Filter) -> Result<Counts, StoreError> {
        let question = rows::counts(&self.shared.options.schema, filter);
        rows::counted(&self.ask(|reply| Job::Ask { question, reply }).await?)
    }

    async fn changed(&self, id: &OperationId, seen: u64, timeout_ms: u64) {
        self.listen(Duration::ZERO);
        let (waiter, waits) = oneshot::channel();
        let begin = || {
            let watching = Watching {
                id: id.clone(),
                seen,
                desk: Arc::clone(&self.desk),
                shared: Arc::clone(&self.shared),
                hearing: self.hearing.clone(),
            };
            self.engine.spawn(watching.until(waits));
            true
        };
        self.shared.watchers.wait(id, timeout_ms, &*self.shared.clock, begin).await;
        drop::<oneshot::Sender<std::convert::Infallible>>(waiter);
    }

    fn hold(&self, _inherit: Inherit) -> Result<Box<dyn Hold>, StoreError> {
        Ok(Box::new(Token::new()?))
    }

    async fn liveness(&self, _owner: &Owner) -> Result<Liveness, StoreError> {
        Ok(Liveness::Unknown)
    }

    fn tally_replay(&self, id: &OperationId) {
        self.desk.tally_replay(id);
    }
}

/// The answer to one change of a batch, on its way.
enum Waiting {
    Swap(oneshot::Receiver<Result<Swap, StoreError>>),
    Delete(oneshot::Receiver<Result<bool, StoreError>>),
}

impl Waiting {
    async fn answer(self) -> Result<Applied, StoreError> {
        let gone = || StoreError::unavailable("the ledger's thread is gone");
        let written = match self {
            Self::Swap(answer) => matches!(answer.await.map_err(|_| gone())??, Swap::Written(_)),
            Self::Delete(answer) => answer.await.map_err(|_| gone())??,
        };
        Ok(if written { Applied::Written } else { Applied::Conflict })
    }
}

/// Somebody waits for a record to change.
struct Watching {
    id: OperationId,
    seen: u64,
    desk: Arc<Desk>,
    shared: Arc<Shared>,
    hearing: watch::Receiver<Hearing>,
}

impl Watching {
    /// Sees to it that he is woken, until he no longer waits.
    async fn until(mut self, mut waits: oneshot::Receiver<std::convert::Infallible>) {
        let mut pause = *LOOK_AGAIN.start();
        loop {
            let hearing = *self.hearing.borrow_and_update();
            let unchanged = match hearing {
                // From now on the server tells of the next change.
                Hearing::Since(_) => self.ask(|id, seen, reply| Job::Watch { id, seen, reply }).await,
                Hearing::Unasked | Hearing::Deaf | Hearing::Never => self.still_there().await,
            };
            // Where nobody can say, he looks for himself.
            if unchanged != Ok(true) {
                self.shared.watchers.notify(&self.id);
                return;
            }
            let nap = match hearing {
                Hearing::Since(_) => Duration::from_secs(3_600),
                Hearing::Unasked | Hearing::Deaf | Hearing::Never => pause,
            };
            pause = (pause * 2).min(*LOOK_AGAIN.end());
            tokio::select! {
                _ = &mut waits => return,
                _ = self.hearing.changed() => {}
                () = tokio::time::sleep(nap) => {}
            }
        }
    }

    async fn still_there(&self) -> Result<bool, ()> {
        let found = self.ask(|id, _, reply| Job::Load { id, reply }).await?;
        Ok(found.is_some_and(|record| record.version == self.seen))
    }

    async fn ask<T>(&self, job: impl FnOnce(OperationId, u64, Reply<T>) -> Job) -> Result<T, ()> {
        let (reply, answer) = oneshot::channel();
        self.desk.post(job(self.id.clone(), self.seen, reply));
        answer.await.map_err(drop)?.map_err(drop)
    }
}
