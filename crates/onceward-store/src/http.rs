//! The ledger of a running `once serve`, over HTTP or a Unix socket. An agent's machine needs no database credentials,
//! and many processes on one machine share the commits of one server.
//!
//! Requests are those of [`onceward::wire`]. The server carries them out on its own store, one by one or together, and
//! keeps no state for a caller. An owner is alive by its lease, for the users of the server and for the processes that
//! use the server's ledger directly: see [`Owner::is_leased`]. So an attempt outlives the death and the restart of the
//! server, and its dispatch is not noted: a crash before it leaves the operation in doubt.
//!
//! # Layout
//! - [`options`](HttpOptions): the URL. `link`: connections, retries, and replies. `lane`: requests on the caller's
//!   thread. `direct`: the same over a Unix socket. `batch`: requests of several callers. `refusal`: what a reply that
//!   is an error means. `tls`: whom to trust. `clock`: the ledger's time. `tallies`: counts of replays.

mod batch;
mod clock;
mod direct;
mod lane;
mod link;
mod options;
mod refusal;
mod tallies;
mod tls;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use onceward::wire::{
    self, ApplyReply, ApplyRequest, Barriers, ChangedRequest, DeleteRequest, Deleted, DueRequest, Empty,
    Hello, ListReply, LivenessReply, Load, Loaded, Message, OccurrencesRequest, RecordsReply, ResumeRequest,
    SwapReply, SwapRequest,
};
use onceward::{
    Applied, Barrier, Begin, Change, Clock, Counts, Filter, Identity, Inherit, Listed, Liveness,
    LivenessSource, OperationId, Owner, OwnerLock, Record, Store, StoreError, Swap, WriteMode,
};
use tokio::sync::oneshot;

pub use options::{Endpoint, HttpOptions, Security};

use crate::health::{Finding, Verdict};
use crate::remote::{RuntimeThread, Token};
use crate::writing::{Writing, only_swap};
use crate::{Backend, Overwrite, back_up_by};
use batch::Swaps;
use clock::ServerClock;
use direct::Direct;
use lane::Lanes;
use link::{Link, Unanswered};
use tallies::Tallies;

/// The shortest wait for a change. The owner of an attempt may be a process on the server's machine that renews no
/// lease, and the ledger asks at once when a lease is over.
const MIN_WAIT_MS: u64 = 20;
/// The pause before a change is asked for again if the server cannot be reached.
const POLL_MS: u64 = 200;
/// The size of the results in one batch.
const BATCH_BYTES: usize = 8 * 1024 * 1024;
/// A larger difference between the ledger's time and this machine's clock is reported.
const MAX_CLOCK_DIFFERENCE_MS: i64 = 10_000;
/// A slower reply is reported.
const SLOW: Duration = Duration::from_millis(250);

/// The ledger of a running `once serve`. It is a [`Store`] and a [`Backend`].
///
/// The store runs its own thread with an async runtime, so its methods can be awaited on any executor.
///
/// ```no_run
/// use onceward::Ledger;
/// use onceward_store::{HttpOptions, HttpStore};
///
/// let options = HttpOptions::parse("unix:/run/once.sock")?;
/// let ledger = Ledger::new(HttpStore::open(options)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct HttpStore {
    link: Arc<Link>,
    lanes: Lanes,
    /// If the server is on a Unix socket.
    direct: Option<Direct>,
    clock: Arc<ServerClock>,
    identity: Identity,
    /// How the server's own store finds out whether an owner is alive.
    server_watch: LivenessSource,
    tallies: Arc<Tallies>,
    /// If the server can carry out several swaps together.
    swaps: Option<Arc<Swaps>>,
    /// Dropped last: it runs the tasks of the others.
    runtime: RuntimeThread,
}

impl HttpStore {
    /// Opens the ledger of the server.
    ///
    /// # Errors
    /// If the server cannot be used. The error says what to do.
    pub fn open(options: HttpOptions) -> Result<Arc<Self>, StoreError> {
        let runtime = RuntimeThread::start("once-http")?;
        let clock = Arc::new(ServerClock::default());
        let mut link = Link::new(&options, Arc::clone(&clock))?;
        let greeting = encode(&Empty {})?;
        let (link, hello) = runtime.wait_for(async move {
            let until = link.until();
            let hello: Hello = link.read(wire::HELLO, greeting, until).await?;
            link.bind_to(&hello.identity.mark())?;
            Ok((link, hello))
        })?;
        let link = Arc::new(link);
        let tallies = Tallies::start(&runtime, &link);
        let Hello { identity, watch: server_watch, takes_swaps } = hello;
        let (lanes, direct) = (Lanes::new(&link), Direct::new(&link));
        let swaps = takes_swaps.then(|| Swaps::new(&link));
        Ok(Arc::new(Self { link, lanes, direct, clock, identity, server_watch, tallies, swaps, runtime }))
    }

    /// Runs a request on the store's thread. The task ends with its caller.
    async fn on_thread<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (mut reply, replied) = oneshot::channel();
        self.runtime.spawn(async move {
            tokio::select! {
                answer = work => drop(reply.send(answer)),
                () = reply.closed() => {}
            }
        });
        replied.await.map_err(|_| StoreError::unavailable("the store's runtime thread has stopped"))
    }

    async fn read<R: Message + Send + 'static>(
        &self,
        name: &'static str,
        message: &impl Message,
    ) -> Result<R, StoreError> {
        let (link, body, until) = (Arc::clone(&self.link), encode(message)?, self.link.until());
        self.on_thread(async move { link.read(name, body, until).await }).await?
    }

    async fn write<R: Message + Send + 'static>(
        &self,
        name: &'static str,
        body: &Bytes,
        until: Instant,
        mode: WriteMode,
    ) -> Result<R, Unanswered> {
        if mode == WriteMode::Blocking
            && let Some(direct) = &self.direct
            && let Some(answer) = direct.write(name, body, until)
        {
            return answer;
        }
        let body = body.clone();
        let send = move |link: Arc<Link>| async move { link.write(name, &body, until).await };
        let send = match mode {
            WriteMode::Blocking => match self.lanes.block_on(send) {
                Ok(answer) => return answer,
                Err(send) => send,
            },
            WriteMode::Async | WriteMode::Deferred => send,
        };
        self.on_thread(send(Arc::clone(&self.link))).await.map_err(Unanswered::Error)?
    }

    async fn fetch(&self, id: &OperationId, until: Instant) -> Result<Option<Arc<Record>>, StoreError> {
        let (link, body) = (Arc::clone(&self.link), encode(&Load { id: id.clone() })?);
        let loaded = self.on_thread(async move { link.read(wire::LOAD, body, until).await }).await?;
        loaded.map(|loaded: Loaded| loaded.record)
    }

    async fn write_record(
        &self,
        expected: Option<u64>,
        record: Record,
        writing: Writing,
        mode: WriteMode,
    ) -> Result<Begin, StoreError> {
        let until = self.link.until();
        let record = Arc::new(record);
        let asked = Arc::new(SwapRequest { expected, writing, mode, record: Arc::clone(&record) });
        let mut lost = false;
        loop {
            let answer = match &self.swaps {
                // A deferred write would keep the others waiting, and a thread that may block needs no other.
                Some(swaps) if mode == WriteMode::Async => {
                    swaps.swap(Arc::clone(&asked), until, &self.runtime).await
                }
                Some(_) | None => self.write(wire::SWAP, &encode(&*asked)?, until, mode).await,
            };
            match answer {
                Ok(SwapReply::Written) => return Ok(Begin::Swapped(Swap::Written(record))),
                // The lost write may have arrived after all. A caller must not conflict with its own record.
                Ok(SwapReply::Conflict(Some(found))) if lost && is_same(&found, &record) => {
                    return Ok(Begin::Swapped(Swap::Written(record)));
                }
                Ok(SwapReply::Conflict(found)) => return Ok(Begin::Swapped(Swap::Conflict(found))),
                Ok(SwapReply::Stopped(barrier)) => return Ok(Begin::Stopped(barrier)),
                Err(Unanswered::Error(error)) => return Err(error),
                Err(Unanswered::Lost(why)) => {
                    let found = self.fetch(&record.id, until).await?;
                    if found.as_ref().is_some_and(|found| is_same(found, &record)) {
                        return Ok(Begin::Swapped(Swap::Written(record)));
                    }
                    if found.as_ref().map(|found| found.version) != expected {
                        return Ok(Begin::Swapped(Swap::Conflict(found)));
                    }
                    if Instant::now() >= until {
                        return Err(self.link.unavailable(&why));
                    }
                    lost = true;
                }
            }
        }
    }

    async fn apply_some(&self, changes: Vec<Change>, mode: WriteMode) -> Result<Vec<Applied>, StoreError> {
        let expected = changes.len();
        let body = encode(&ApplyRequest { changes, mode })?;
        match self.write(wire::APPLY, &body, self.link.until(), mode).await {
            Ok(ApplyReply { applied }) if applied.len() == expected => Ok(applied),
            Ok(_) => Err(self.link.unavailable("its reply is about another number of changes")),
            Err(Unanswered::Error(error)) => Err(error),
            // Some of the changes may have been written, as the error of a batch says.
            Err(Unanswered::Lost(why)) => Err(self.link.unavailable(&why)),
        }
    }
}

#[async_trait]
impl Store for HttpStore {
    fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    fn watch(&self) -> LivenessSource {
        LivenessSource::Lease
    }

    fn identity(&self) -> &Identity {
        &self.identity
    }

    async fn set_identity(&self, next: &Identity) -> Result<(), StoreError> {
        let body = encode(next)?;
        match self.write(wire::SET_IDENTITY, &body, self.link.until(), WriteMode::Async).await {
            Ok(Empty {}) => Ok(()),
            Err(Unanswered::Error(error)) => Err(error),
            Err(Unanswered::Lost(why)) => Err(self.link.unavailable(&why)),
        }
    }

    /// Nothing is cached here: the server answers a swap of a finished record from its own cache.
    async fn load_cached(&self, _id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        Ok(None)
    }

    async fn load(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        self.fetch(id, self.link.until()).await
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
        // Safe to send again if the reply is lost: the first barrier stays.
        self.read(wire::STOP, barrier).await
    }

    async fn resume(&self, scope: &str) -> Result<Option<Barrier>, StoreError> {
        let body = encode(&ResumeRequest { scope: scope.to_owned() })?;
        match self.write(wire::RESUME, &body, self.link.until(), WriteMode::Async).await {
            Ok(Barriers { barriers }) => Ok(barriers.into_iter().next()),
            Err(Unanswered::Error(error)) => Err(error),
            Err(Unanswered::Lost(why)) => Err(self.link.unavailable(&why)),
        }
    }

    async fn barriers(&self) -> Result<Vec<Barrier>, StoreError> {
        let Barriers { barriers } = self.read(wire::BARRIERS, &Empty {}).await?;
        Ok(barriers)
    }

    async fn delete(&self, id: &OperationId, expected: u64, mode: WriteMode) -> Result<bool, StoreError> {
        let until = self.link.until();
        let body = encode(&DeleteRequest { id: id.clone(), expected, mode })?;
        let mut lost = false;
        loop {
            match self.write(wire::DELETE, &body, until, mode).await {
                // A record that is gone after a lost reply was deleted, as requested.
                Ok(Deleted { deleted: false }) if lost => return Ok(self.fetch(id, until).await?.is_none()),
                Ok(Deleted { deleted }) => return Ok(deleted),
                Err(Unanswered::Error(error)) => return Err(error),
                Err(Unanswered::Lost(why)) => match self.fetch(id, until).await? {
                    None => return Ok(true),
                    Some(found) if found.version != expected => return Ok(false),
                    Some(_) if Instant::now() >= until => return Err(self.link.unavailable(&why)),
                    Some(_) => lost = true,
                },
            }
        }
    }

    async fn apply(&self, changes: Vec<Change>, mode: WriteMode) -> Result<Vec<Applied>, StoreError> {
        let mut applied = Vec::with_capacity(changes.len());
        let (mut batch, mut bytes) = (Vec::new(), 0);
        for change in changes {
            bytes += size(&change);
            if bytes > BATCH_BYTES && !batch.is_empty() {
                applied.extend(self.apply_some(std::mem::take(&mut batch), mode).await?);
                bytes = size(&change);
            }
            batch.push(change);
        }
        if !batch.is_empty() {
            applied.extend(self.apply_some(batch, mode).await?);
        }
        Ok(applied)
    }

    async fn occurrences(&self, action: &OperationId, now_ms: i64) -> Result<Vec<Record>, StoreError> {
        let asked = OccurrencesRequest { action: action.clone(), now_ms };
        let RecordsReply { records } = self.read(wire::OCCURRENCES, &asked).await?;
        Ok(records)
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        let mut page = filter.clone();
        let mut all = Vec::new();
        loop {
            let ListReply { listed, more } = self.read(wire::LIST, &page).await?;
            let last = listed.last().map(|listed| listed.cursor);
            all.extend(listed);
            page.limit = filter.limit.saturating_sub(all.len());
            if !more || page.limit == 0 || last.is_none() {
                return Ok(all);
            }
            page.before = last;
        }
    }

    async fn due(&self, now_ms: i64, limit: usize) -> Result<Vec<Record>, StoreError> {
        let RecordsReply { records } = self.read(wire::DUE, &DueRequest { now_ms, limit }).await?;
        Ok(records)
    }

    async fn counts(&self, filter: &Filter) -> Result<Counts, StoreError> {
        self.read(wire::COUNTS, filter).await
    }

    async fn changed(&self, id: &OperationId, seen: u64, timeout_ms: u64) {
        let timeout_ms = timeout_ms.clamp(MIN_WAIT_MS, wire::MAX_WAIT_MS);
        let asked = ChangedRequest { id: id.clone(), seen, timeout_ms };
        let until = self.link.until() + Duration::from_millis(timeout_ms);
        let Ok(body) = encode(&asked) else { return };
        let link = Arc::clone(&self.link);
        let answer =
            self.on_thread(async move { link.write::<Empty>(wire::CHANGED, &body, until).await }).await;
        if !matches!(answer, Ok(Ok(Empty {}))) {
            // The caller reads the record next. If the server is gone, that read waits for it.
            self.clock.sleep(POLL_MS.min(timeout_ms)).await;
        }
    }

    fn hold(&self, _inherit: Inherit) -> Result<Box<dyn OwnerLock>, StoreError> {
        Ok(Box::new(match self.server_watch {
            LivenessSource::Kernel => Token::leased()?,
            LivenessSource::Lease => Token::new()?,
        }))
    }

    async fn liveness(&self, owner: &Owner) -> Result<Liveness, StoreError> {
        if owner.is_leased() || self.server_watch == LivenessSource::Lease {
            return Ok(Liveness::Unknown);
        }
        let LivenessReply { liveness } = self.read(wire::LIVENESS, owner).await?;
        Ok(liveness)
    }

    fn tally_replay(&self, id: &OperationId) {
        self.tallies.add(id);
    }
}

impl Backend for HttpStore {
    fn health(&self) -> Result<Vec<Finding>, StoreError> {
        let (link, clock) = (Arc::clone(&self.link), Arc::clone(&self.clock));
        let identity = self.identity.clone();
        self.runtime.wait_for(async move {
            let begun = Instant::now();
            let hello: Hello = link.read(wire::HELLO, encode(&Empty {})?, link.until()).await?;
            let took = begun.elapsed();
            let same = hello.identity.mark() == identity.mark();
            let ahead_ms = clock.now_ms() - crate::clock::wall_ms();
            Ok(vec![
                Finding::check(
                    "server",
                    took < SLOW,
                    Verdict::Look,
                    format!("{} answers in {:.1} ms", link.shown, took.as_secs_f64() * 1_000.0),
                ),
                Finding::check(
                    "ledger",
                    same,
                    Verdict::Bad,
                    format!(
                        "{} in epoch {}; for its file or database run `once doctor` where the server runs",
                        hello.identity.name, hello.identity.epoch
                    ),
                ),
                Finding::check(
                    "clock",
                    ahead_ms.abs() <= MAX_CLOCK_DIFFERENCE_MS,
                    Verdict::Look,
                    format!("the ledger's time is {ahead_ms} ms ahead of this machine's clock; the ledger's counts"),
                ),
                Finding::good(
                    "owners",
                    match hello.watch {
                        LivenessSource::Kernel => {
                            "alive by their lease, and on the server's machine by their kernel locks"
                        }
                        LivenessSource::Lease => "alive by their lease",
                    },
                ),
            ])
        })
    }

    fn check_backup(&self, _file: &Path, _overwrite: Overwrite) -> Result<(), StoreError> {
        Err(back_up_by(&format!("run `once backup` where the server of {} runs", self.link.shown)))
    }
}

impl Drop for HttpStore {
    fn drop(&mut self) {
        self.tallies.close(&self.runtime, &self.link);
    }
}

fn encode(message: &impl Message) -> Result<Bytes, StoreError> {
    wire::encode(message)
        .map(Bytes::from)
        .map_err(|error| StoreError::Unusable { what: format!("the record cannot be sent: {error}") })
}

/// Whether the stored record is the one that this store has sent.
fn is_same(stored: &Record, sent: &Record) -> bool {
    let place = |record: &Record| {
        let Record { version, state, attempt, created_ms, updated_ms, due_ms, .. } = *record;
        (version, state, attempt, created_ms, updated_ms, due_ms)
    };
    place(stored) == place(sent) && stored.detail == sent.detail && stored.outcome == sent.outcome
}

fn size(change: &Change) -> usize {
    let outcome = |outcome: &Option<onceward::Outcome>| outcome.as_ref().map_or(0, onceward::Outcome::size);
    match change {
        Change::Swap { record, .. } => 1_024 + outcome(&record.outcome) + 2 * outcome(&record.detail.late),
        Change::Delete { .. } => 128,
    }
}
