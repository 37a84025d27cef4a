//! The ledger on Redis or Valkey: one server, one with replicas, or a cluster.
//!
//! One script does the compare-and-swap, another one deletes. If there are replicas, no read or write is reported
//! before they have it. What they did not confirm in time is treated as unknown, and nothing runs because of it. The
//! server must sync every write before it answers, unless the URL explicitly allows less.
//!
//! Records are spread over a fixed number of shards. All keys of a shard share a hash tag, so in a cluster they are
//! on one server. While a shard moves to another server it is unavailable until all of it has arrived.
//!
//! # Layout
//! - [`options`](RedisOptions): the URL options. `settings`: the settings that a server must have.
//! - `entry`: the names of keys, and records as the server stores them. `scripts` and the `.lua` files: what runs on
//!   the server.
//! - `link`: one connection. `fault`: why there is none. `node`: one server, and the batches sent to it. `cluster`:
//!   which server has which shard.
//! - `identity`: which ledger this is, in every shard. `stop`: stopped scopes. `upkeep`: periodic checks of
//!   clocks and settings.
//! - `invalidations`: notifications of changes. `listing`: the orders of all shards, merged.

mod cluster;
mod entry;
mod fault;
mod identity;
mod invalidations;
mod link;
mod listing;
mod node;
mod options;
mod scripts;
mod settings;
mod stop;
mod upkeep;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::join_all;
use onceward::{
    Applied, Barrier, Begin, Change, Clock, Counts, Filter, Identity, Inherit, Listed, Liveness,
    LivenessSource, OperationId, Owner, OwnerLock, Record, State, Store, StoreError, Swap, WriteMode,
    stopping_scopes,
};
use redis::Value;

pub use crate::remote::url::Secret;
pub use options::{Durability, Emptied, Layout, RedisOptions, SentinelAuth, Transport};

use crate::cache::Cache;
use crate::health::{Finding, Verdict};
use crate::remote::{LedgerClock, Token, yield_if_deferred};
use crate::writing::{Writing, only_swap};
use crate::{Backend, IfMissing, Overwrite, back_up_by};
use cluster::{Cluster, Topology, Unanswered};
use node::{Command, Confirm, Safety};
use scripts::Script;
use settings::Settings;

/// The maximum wait when the store receives no change notifications.
const POLL_MS: u64 = 200;
/// A larger difference between the servers' clocks and the ledger's time is reported.
const MAX_CLOCK_DIFFERENCE_MS: i64 = 10_000;
/// How many records the health check reads.
const CHECKED_RECORDS: usize = 1_000;
/// How long closing a store may take to write the last tallies.
const CLOSING: Duration = Duration::from_millis(500);

/// The ledger on Redis or Valkey. It is a [`Store`] and a [`Backend`].
///
/// The store runs its own thread with an async runtime, so its methods can be awaited on any executor.
///
/// ```no_run
/// use onceward::Ledger;
/// use onceward_store::redis::{RedisOptions, RedisStore};
///
/// let mut options = RedisOptions::parse("redis://agent@cache.example:6379/0?prefix=once")?;
/// options.connections_per_node = 8;
/// let ledger = Ledger::new(RedisStore::open(options)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RedisStore {
    cluster: Cluster,
    cache: Cache,
    clock: Arc<LedgerClock>,
    identity: Identity,
}

/// What the server stores for a record.
struct Stored {
    value: Option<Vec<u8>>,
    body: Option<Vec<u8>>,
}

impl RedisStore {
    /// Opens the ledger, and creates it if it does not exist.
    ///
    /// # Errors
    /// If the server cannot be used. The error says what to do.
    pub fn open(options: RedisOptions) -> Result<Arc<Self>, StoreError> {
        let cache = Cache::new(options.cache_bytes);
        let cluster = Cluster::open(options)?;
        let clock = Arc::new(LedgerClock::default());
        let (topology, read) = (Arc::clone(cluster.topology()), Arc::clone(&clock));
        let identity = cluster.runtime().wait_for(async move { open_ledger(&topology, &read).await })?;
        cluster.runtime().spawn(upkeep::run(Arc::downgrade(cluster.topology()), Arc::clone(&clock)));
        Ok(Arc::new(Self { cluster, cache, clock, identity }))
    }

    fn topology(&self) -> &Arc<Topology> {
        self.cluster.topology()
    }

    async fn fetch(&self, id: &OperationId, until: Instant) -> Result<Stored, StoreError> {
        let keys = &self.topology().keys;
        let record = keys.record(id);
        let body = body_key(&record);
        // In one command, so that they belong to the same version.
        let command = Command::plain(keys.shard(id), ["MGET", &record, &body]).confirm(Confirm::Required);
        Ok(parse_stored(self.topology().read(command, until).await?))
    }

    /// Caches a finished record under the epoch read before the request.
    fn cache_record(&self, stored: Stored, epoch: u64) -> Result<Option<Arc<Record>>, StoreError> {
        let Some(value) = stored.value else { return Ok(None) };
        let record = Arc::new(entry::decode(&value, stored.body)?);
        self.cache.keep(&record, epoch);
        Ok(Some(record))
    }

    fn swap_command(
        &self,
        expected: Option<u64>,
        record: &Record,
        value: &[u8],
        writing: Writing,
    ) -> Command {
        let keys = &self.topology().keys;
        let shard = keys.shard(&record.id);
        let name = keys.record(&record.id);
        let arguments = [
            record.id.as_str().as_bytes().to_vec(),
            expected.map(|version| version.to_string()).unwrap_or_default().into_bytes(),
            value.to_vec(),
            entry::indexed_scope(&record.scope).into_bytes(),
            keys.channel().as_bytes().to_vec(),
            record.key.text.as_bytes().to_vec(),
            record.action.as_ref().map(OperationId::to_string).unwrap_or_default().into_bytes(),
            record
                .number
                .filter(|number| *number > 1)
                .map(|number| number.to_string())
                .unwrap_or_default()
                .into_bytes(),
            entry::open_until(record).into_bytes(),
        ];
        let barriers: Vec<Vec<u8>> = match writing {
            Writing::Begin => stopping_scopes(&record.scope).map(|scope| scope.as_bytes().to_vec()).collect(),
            Writing::Change => Vec::new(),
        };
        let safety = match record.state {
            State::Staged | State::Running => Safety::Required,
            State::Done | State::Failed | State::InDoubt | State::Cancelled | State::Expired => {
                Safety::NotRequired
            }
        };
        Command::script(shard, Script::Swap)
            .safety(safety)
            .keys([name.clone(), body_key(&name), keys.root(shard)])
            .arguments(arguments)
            .arguments(self.topology().terms.write_guard(shard))
            .arguments(entry::body(record).map(<[u8]>::to_vec))
            .arguments(barriers)
    }

    async fn write(
        &self,
        expected: Option<u64>,
        record: Record,
        writing: Writing,
        mode: WriteMode,
    ) -> Result<Begin, StoreError> {
        yield_if_deferred(mode).await;
        let until = self.topology().until();
        let epoch = self.topology().invalidations.epoch(&record.id);
        let value = entry::encode(&record)?;
        let command = Arc::new(self.swap_command(expected, &record, &value, writing));
        let record = Arc::new(record);
        let is_ours = |found: &Stored| {
            let same = found.value.as_deref().is_some_and(|found| entry::same(found, &value));
            same && found.body.as_deref() == entry::body(&record)
        };
        let mut lost = false;
        loop {
            match self.topology().write(&command, until).await {
                Ok(Value::Int(writes)) => {
                    self.topology().terms.acknowledge(command.shard, writes);
                    break;
                }
                Ok(answer) => {
                    if let Some(barrier) = stop::refused(&answer)? {
                        return Ok(Begin::Stopped(barrier));
                    }
                    let found = parse_stored(answer);
                    // The lost write may have arrived after all. A caller must not conflict with its own record.
                    if lost && is_ours(&found) {
                        break;
                    }
                    return Ok(Begin::Swapped(Swap::Conflict(self.cache_record(found, epoch)?)));
                }
                Err(Unanswered::Error(error)) => return Err(error),
                Err(Unanswered::Lost(why)) => {
                    let found = self.fetch(&record.id, until).await?;
                    if is_ours(&found) {
                        break;
                    }
                    if found.value.as_deref().and_then(entry::version) != expected {
                        return Ok(Begin::Swapped(Swap::Conflict(self.cache_record(found, epoch)?)));
                    }
                    if Instant::now() >= until {
                        return Err(unknown(&why));
                    }
                    lost = true;
                }
            }
        }
        self.topology().terms.recent.add(command.shard, &record);
        self.cache.keep(&record, epoch);
        self.topology().invalidations.watchers.notify(&record.id);
        Ok(Begin::Swapped(Swap::Written(record)))
    }

    /// Asks the server to announce the next change. Returns if the record has already changed, else never.
    async fn watch_version(&self, id: &OperationId, seen: u64) {
        let keys = &self.topology().keys;
        let shard = keys.shard(id);
        let command = Command::script(shard, Script::Watch)
            .keys([keys.record(id), keys.root(shard)])
            .arguments([seen.to_string().into_bytes(), self.topology().terms.mark().as_bytes().to_vec()])
            .unconfirmed();
        match self.topology().read(command, self.topology().until()).await {
            Ok(Value::Int(1)) => std::future::pending().await,
            // The caller's next read finds the change.
            Ok(_) => {}
            Err(_) => self.clock.sleep(POLL_MS).await,
        }
    }

    fn receives_changes(&self, id: &OperationId) -> bool {
        let shard = self.topology().keys.shard(id);
        self.topology().map().member(shard).is_some_and(|member| member.subscription.is_alive())
    }
}

#[async_trait]
impl Store for RedisStore {
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
        identity::set(self.topology(), &self.identity, next).await
    }

    async fn load_cached(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        let current = self.receives_changes(id);
        Ok(if current { self.cache.find(id, self.topology().invalidations.epoch(id)) } else { None })
    }

    async fn load(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        let epoch = self.topology().invalidations.epoch(id);
        let stored = self.fetch(id, self.topology().until()).await?;
        self.cache_record(stored, epoch)
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
        stop::set(self.topology(), barrier).await
    }

    async fn resume(&self, scope: &str) -> Result<Option<Barrier>, StoreError> {
        stop::lift(self.topology(), scope).await
    }

    async fn barriers(&self) -> Result<Vec<Barrier>, StoreError> {
        stop::all(self.topology()).await
    }

    async fn delete(&self, id: &OperationId, expected: u64, _mode: WriteMode) -> Result<bool, StoreError> {
        let until = self.topology().until();
        let keys = &self.topology().keys;
        let (shard, name) = (keys.shard(id), keys.record(id));
        let arguments =
            [id.as_str().to_owned(), expected.to_string(), keys.channel().to_owned()].map(String::into_bytes);
        let command = Command::script(shard, Script::Delete)
            .keys([name.clone(), body_key(&name), keys.root(shard)])
            .arguments(arguments)
            .arguments(self.topology().terms.write_guard(shard));
        let command = Arc::new(command);
        self.topology().terms.recent.remove(shard, id);
        let deleted = loop {
            match self.topology().write(&command, until).await {
                Ok(Value::Int(writes)) => {
                    self.topology().terms.acknowledge(shard, writes);
                    break writes > 0;
                }
                Ok(_) => break false,
                Err(Unanswered::Error(error)) => return Err(error),
                Err(Unanswered::Lost(why)) => match self.fetch(id, until).await?.value {
                    // It is deleted, as requested.
                    None => break true,
                    Some(value) if entry::version(&value) != Some(expected) => break false,
                    Some(_) if Instant::now() >= until => return Err(unknown(&why)),
                    Some(_) => {}
                },
            }
        };
        self.topology().invalidations.invalidate(id);
        Ok(deleted)
    }

    async fn apply(&self, changes: Vec<Change>, mode: WriteMode) -> Result<Vec<Applied>, StoreError> {
        // All are in flight at once, so they share round trips and syncs.
        let changes = changes.into_iter().map(|change| async move {
            let written = match change {
                Change::Swap { expected, record } => {
                    matches!(self.swap(expected, record, mode).await?, Swap::Written(_))
                }
                Change::Delete { id, expected } => self.delete(&id, expected, mode).await?,
            };
            Ok(if written { Applied::Written } else { Applied::Conflict })
        });
        join_all(changes).await.into_iter().collect()
    }

    async fn occurrences(&self, action: &OperationId, now_ms: i64) -> Result<Vec<Record>, StoreError> {
        listing::occurrences(self.topology(), action, now_ms).await
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        listing::list(self.topology(), filter).await
    }

    async fn due(&self, now_ms: i64, limit: usize) -> Result<Vec<Record>, StoreError> {
        listing::due(self.topology(), now_ms, limit).await
    }

    async fn counts(&self, filter: &Filter) -> Result<Counts, StoreError> {
        listing::counts(self.topology(), filter).await
    }

    async fn changed(&self, id: &OperationId, seen: u64, timeout_ms: u64) {
        let invalidations = &self.topology().invalidations;
        // Without change notifications, wait a short time and read again.
        let timeout_ms = if self.receives_changes(id) { timeout_ms } else { timeout_ms.min(POLL_MS) };
        tokio::select! {
            // In this order: the listener must be registered before the server is asked to announce the change.
            biased;
            () = invalidations.missed.notified() => {}
            () = invalidations.watchers.wait(id, timeout_ms, &*self.clock, || true) => {}
            () = self.watch_version(id, seen) => {}
        }
    }

    fn hold(&self, _inherit: Inherit) -> Result<Box<dyn OwnerLock>, StoreError> {
        Ok(Box::new(Token::new()?))
    }

    async fn liveness(&self, _owner: &Owner) -> Result<Liveness, StoreError> {
        Ok(Liveness::Unknown)
    }

    fn tally_replay(&self, id: &OperationId) {
        if let Some(member) = self.topology().map().member(self.topology().keys.shard(id)) {
            member.node.tally_replay(id);
        }
    }
}

impl Backend for RedisStore {
    fn health(&self) -> Result<Vec<Finding>, StoreError> {
        let topology = Arc::clone(self.cluster.topology());
        let ahead_ms = self.clock.server_ahead_ms();
        self.cluster.runtime().wait_for(async move {
            let wait = topology.terms.wait.load(Ordering::Relaxed);
            let mut findings = Vec::new();
            for (address, settings) in all_settings(&topology).await? {
                findings.extend(settings.findings(&topology.options, &address, wait));
            }
            findings.push(check_clock(ahead_ms));
            findings.push(check_records(&topology).await?);
            Ok(findings)
        })
    }

    fn check_backup(&self, _file: &Path, _overwrite: Overwrite) -> Result<(), StoreError> {
        Err(back_up_by("BGSAVE, and a copy of its files"))
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        let topology = Arc::clone(self.cluster.topology());
        let usable = topology.terms.older.get().is_none();
        if usable && topology.map().nodes.iter().any(|member| member.node.has_tallies()) {
            // Each batch writes some of them. Those that are not written in time may be lost.
            drop(self.cluster.runtime().wait_for(async move {
                let until = Instant::now() + CLOSING;
                for member in &topology.map().nodes {
                    while member.node.has_tallies() && Instant::now() < until {
                        drop(member.node.send(&Arc::new(Command::plain(0, ["PING"])), until).await);
                    }
                }
                Ok(())
            }));
        }
    }
}

/// Finds or creates the ledger and starts its clock.
async fn open_ledger(topology: &Arc<Topology>, clock: &LedgerClock) -> Result<Identity, StoreError> {
    // First the number of required replicas: if they lacked the ledger's own key, it would be unknown after a
    // failover.
    let first = identity::parse(&upkeep::ask(topology, identity::query(topology)).await?);
    let waited = first.as_ref().map_or(0, |found| found.wait);
    let wait = match topology.options.wait {
        Some(wait) => wait,
        None => upkeep::replicas(topology).await?.max(waited),
    };
    topology.terms.wait.store(wait, Ordering::Relaxed);
    let (identity, mut found) = identity::open(topology, first).await?;
    if topology.options.missing == IfMissing::Create {
        // A store that may write starts only if the replicas have what it has found.
        let proven =
            topology.read(identity::query(topology).confirm(Confirm::Required), topology.until()).await?;
        found = identity::parse(&proven).unwrap_or(found);
    }
    if let Some(server_ms) = upkeep::server_time(topology).await? {
        clock.begin(server_ms, found.clock().as_ref());
    }
    if topology.options.missing == IfMissing::Create {
        upkeep::agree_on_replicas(topology, &found).await?;
        upkeep::mark_time(topology, clock, &found).await?;
    }
    Ok(identity)
}

/// The current settings of each server.
async fn all_settings(topology: &Topology) -> Result<Vec<(String, Settings)>, StoreError> {
    let mut all = Vec::new();
    for member in &topology.map().nodes {
        let until = Instant::now() + topology.options.timeout;
        let link = link::Link::open(&topology.options, &member.node.hosts, until).await;
        let link = link.map_err(|closed| closed.into_error("the ledger's server cannot be queried"))?;
        all.push((format!("{}:{}", link.address.0, link.address.1), link.settings));
    }
    Ok(all)
}

/// Reports whether the servers' clocks agree with the ledger's time.
fn check_clock(ahead_ms: i64) -> Finding {
    let found = match ahead_ms {
        0.. => format!("the servers' clocks are {ahead_ms} ms ahead of the ledger's time"),
        _ => format!("the servers' clocks are {} ms behind the ledger's time", ahead_ms.unsigned_abs()),
    };
    Finding::check("clock", ahead_ms.abs() <= MAX_CLOCK_DIFFERENCE_MS, Verdict::Look, found)
}

/// Reports whether the newest records, and all that are due, can be read.
async fn check_records(topology: &Arc<Topology>) -> Result<Finding, StoreError> {
    let newest = Filter { limit: CHECKED_RECORDS, ..Filter::default() };
    let read = listing::list(topology, &newest).await?.len()
        + listing::due(topology, i64::MAX, CHECKED_RECORDS).await?.len();
    let unreadable = topology.all_unreadable();
    if unreadable.is_empty() {
        return Ok(Finding::good("records", format!("{read} checked, all readable")));
    }
    let ids: Vec<&str> = unreadable.iter().map(OperationId::as_str).collect();
    let found =
        format!("not written by any version of this program, and omitted from listings: {}", ids.join(", "));
    Ok(Finding::bad("records", found))
}

fn body_key(record: &str) -> String {
    format!("{record}:body")
}

fn unknown(why: &str) -> StoreError {
    StoreError::unavailable(format!("it is unknown whether the change was written: {why}"))
}

/// The value and the body in a reply.
fn parse_stored(answer: Value) -> Stored {
    let parts = if let Value::Array(parts) = answer { parts } else { Vec::new() };
    let mut parts = parts.into_iter();
    let mut bytes = || match parts.next() {
        Some(Value::BulkString(bytes)) => Some(bytes),
        Some(_) | None => None,
    };
    Stored { value: bytes(), body: bytes() }
}
