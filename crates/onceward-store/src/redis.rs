//! The ledger on Redis or Valkey: one server, one with replicas, or a cluster.
//!
//! One script compares and swaps; another one deletes. With replicas nothing that was read or written is told before
//! they have it, and what they did not confirm in time is unknown: nothing runs on it. The server must sync every
//! write before it answers, unless the URL says by name that less will do.
//!
//! Records are spread over a fixed number of shards. All keys of a shard have one hash tag, so in a cluster they are on
//! one server, and a shard that moves to another one is on neither until all of it has arrived.
//!
//! # Layout
//! - [`options`](RedisOptions): what a URL can say. `settings`: what a server must say.
//! - `entry`: names of keys, and records as the server keeps them. `scripts` and the `.lua` files: what runs there.
//! - `link`: one connection. `node`: one server, and batches to it. `fleet`: which server has what.
//! - `news`: being told of changes. `listing`: orders of all shards, merged.

mod entry;
mod fleet;
mod link;
mod listing;
mod news;
mod node;
mod options;
mod scripts;
mod settings;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::join_all;
use onceward::{
    Applied, Change, Clock, Counts, Door, Filter, Hold, Inherit, Listed, Liveness, OperationId, Owner,
    Record, Store, StoreError, Swap, Watch,
};
use redis::Value;

pub use options::{Durability, Layout, RedisOptions, Secret, Transport};

use crate::cache::Cache;
use crate::health::Finding;
use crate::remote::{ServerClock, Token, give_way};
use crate::{Backend, Missing, Overwrite, back_up_by, no_ledger};
use fleet::{Crew, Fleet, Unanswered};
use node::{Answer, Command, Proof};
use scripts::Script;
use settings::{Settings, text};

/// The version of what the keys hold.
const FORMAT: &str = "1";
/// How often the servers' clocks are read, after the first readings.
const READ_CLOCK_EVERY: Duration = Duration::from_secs(5);
/// How long a waiter waits at the most where nobody tells it of changes.
const LOOK_MS: u64 = 200;
/// How long closing a store may take to write the last tallies.
const CLOSING: Duration = Duration::from_millis(500);

/// The ledger on Redis or Valkey.
pub struct RedisStore {
    fleet: Fleet,
    cache: Cache,
    clock: Arc<ServerClock>,
}

/// What the server holds of a record.
struct Stored {
    value: Option<Vec<u8>>,
    body: Option<Vec<u8>>,
}

impl RedisStore {
    /// Opens the ledger, and creates it where there is none.
    ///
    /// # Errors
    /// Says what is in the way and what to do about it.
    pub fn open(options: RedisOptions) -> Result<Arc<Self>, StoreError> {
        let cache = Cache::new(options.cache_bytes);
        let fleet = Fleet::open(options)?;
        let clock = Arc::new(ServerClock::default());
        let (crew, read) = (Arc::clone(fleet.crew()), Arc::clone(&clock));
        fleet.engine().wait_for(async move { introduce(&crew, &read).await })?;
        let (crew, read) = (Arc::downgrade(fleet.crew()), Arc::clone(&clock));
        fleet.engine().spawn(async move {
            loop {
                tokio::time::sleep(READ_CLOCK_EVERY).await;
                let Some(crew) = crew.upgrade() else { return };
                // A reading that fails is made up for by the next one.
                drop(read_clock(&crew, &read).await);
            }
        });
        Ok(Arc::new(Self { fleet, cache, clock }))
    }

    fn crew(&self) -> &Crew {
        self.fleet.crew()
    }

    async fn look(&self, id: &OperationId, until: Instant) -> Result<Stored, StoreError> {
        let keys = &self.crew().keys;
        let record = keys.record(id);
        let body = body_key(&record);
        // Both at once, so that they belong together.
        let command = Command::plain(keys.shard(id), ["MGET", &record, &body]).proof(Proof::Needed);
        Ok(stored(self.fleet.read(command, until).await?))
    }

    /// A finished record is kept in memory, as of the epoch before it was asked for.
    fn kept(&self, stored: Stored, epoch: u64) -> Result<Option<Arc<Record>>, StoreError> {
        let Some(value) = stored.value else { return Ok(None) };
        let record = Arc::new(entry::decode(&value, stored.body)?);
        self.cache.keep(&record, epoch);
        Ok(Some(record))
    }

    fn swap_command(&self, expected: Option<u64>, record: &Record, value: &[u8]) -> Command {
        let keys = &self.crew().keys;
        let shard = keys.shard(&record.id);
        let name = keys.record(&record.id);
        let arguments = [
            record.id.as_str().as_bytes().to_vec(),
            expected.map(|version| version.to_string()).unwrap_or_default().into_bytes(),
            value.to_vec(),
            entry::indexed_scope(&record.scope).as_bytes().to_vec(),
            keys.channel().as_bytes().to_vec(),
            record.key.text.as_bytes().to_vec(),
        ];
        Command::script(shard, Script::Swap)
            .keys([name.clone(), body_key(&name), keys.tag(shard)])
            .arguments(arguments)
            .arguments(entry::body(record).map(<[u8]>::to_vec))
    }

    /// Asks to be told of the next change, and returns if there was one already; else never.
    async fn watch_closely(&self, id: &OperationId, seen: u64) {
        let keys = &self.crew().keys;
        let shard = keys.shard(id);
        let command = Command::script(shard, Script::Watch)
            .keys([keys.record(id), keys.tag(shard)])
            .arguments([seen.to_string().into_bytes()])
            .unproven();
        match self.fleet.read(command, self.fleet.until()).await {
            Ok(Value::Int(1)) => std::future::pending().await,
            // The next look says what it is.
            Ok(_) => {}
            Err(_) => self.clock.sleep(LOOK_MS).await,
        }
    }

    fn is_told_of(&self, id: &OperationId) -> bool {
        let shard = self.crew().keys.shard(id);
        self.crew().map().post(shard).is_some_and(|post| post.subscription.is_alive())
    }
}

#[async_trait]
impl Store for RedisStore {
    fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    fn watch(&self) -> Watch {
        Watch::Lease
    }

    async fn recall(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        let told = self.is_told_of(id);
        Ok(if told { self.cache.find(id, self.crew().news.epoch(id)) } else { None })
    }

    async fn load(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        let epoch = self.crew().news.epoch(id);
        let stored = self.look(id, self.fleet.until()).await?;
        self.kept(stored, epoch)
    }

    async fn swap(&self, expected: Option<u64>, record: Record, door: Door) -> Result<Swap, StoreError> {
        give_way(door).await;
        let until = self.fleet.until();
        let epoch = self.crew().news.epoch(&record.id);
        let value = entry::encode(&record)?;
        let command = Arc::new(self.swap_command(expected, &record, &value));
        let record = Arc::new(record);
        let is_ours = |found: &Stored| {
            let same = found.value.as_deref().is_some_and(|found| entry::same(found, &value));
            same && found.body.as_deref() == entry::body(&record)
        };
        let mut lost = false;
        loop {
            match self.fleet.write(&command, until).await {
                Ok(Value::Int(_)) => break,
                Ok(answer) => {
                    let found = stored(answer);
                    // What was lost on the way may have arrived after all: nobody is in his own way.
                    if lost && is_ours(&found) {
                        break;
                    }
                    return Ok(Swap::Conflict(self.kept(found, epoch)?));
                }
                Err(Unanswered::Error(error)) => return Err(error),
                Err(Unanswered::Lost(why)) => {
                    let found = self.look(&record.id, until).await?;
                    if is_ours(&found) {
                        break;
                    }
                    if found.value.as_deref().and_then(entry::version) != expected {
                        return Ok(Swap::Conflict(self.kept(found, epoch)?));
                    }
                    if Instant::now() >= until {
                        return Err(unknown(&why));
                    }
                    lost = true;
                }
            }
        }
        self.cache.keep(&record, epoch);
        self.crew().news.watchers.notify(&record.id);
        Ok(Swap::Written(record))
    }

    async fn delete(&self, id: &OperationId, expected: u64, _door: Door) -> Result<bool, StoreError> {
        let until = self.fleet.until();
        let keys = &self.crew().keys;
        let (shard, name) = (keys.shard(id), keys.record(id));
        let arguments =
            [id.as_str().to_owned(), expected.to_string(), keys.channel().to_owned()].map(String::into_bytes);
        let command = Command::script(shard, Script::Delete)
            .keys([name.clone(), body_key(&name), keys.tag(shard)])
            .arguments(arguments);
        let command = Arc::new(command);
        let deleted = loop {
            match self.fleet.write(&command, until).await {
                Ok(answer) => break matches!(answer, Value::Int(1)),
                Err(Unanswered::Error(error)) => return Err(error),
                Err(Unanswered::Lost(why)) => match self.look(id, until).await?.value {
                    // It is gone, as it should be.
                    None => break true,
                    Some(value) if entry::version(&value) != Some(expected) => break false,
                    Some(_) if Instant::now() >= until => return Err(unknown(&why)),
                    Some(_) => {}
                },
            }
        };
        self.crew().news.changed(id);
        Ok(deleted)
    }

    async fn apply(&self, changes: Vec<Change>, door: Door) -> Result<Vec<Applied>, StoreError> {
        // All are under way at once, so they share round trips and syncs.
        let changes = changes.into_iter().map(|change| async move {
            let written = match change {
                Change::Swap { expected, record } => {
                    matches!(self.swap(expected, record, door).await?, Swap::Written(_))
                }
                Change::Delete { id, expected } => self.delete(&id, expected, door).await?,
            };
            Ok(if written { Applied::Written } else { Applied::Conflict })
        });
        join_all(changes).await.into_iter().collect()
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        listing::list(&self.fleet, filter).await
    }

    async fn due(&self, now_ms: i64, limit: usize) -> Result<Vec<Record>, StoreError> {
        listing::due(&self.fleet, now_ms, limit).await
    }

    async fn counts(&self, filter: &Filter) -> Result<Counts, StoreError> {
        listing::counts(&self.fleet, filter).await
    }

    async fn changed(&self, id: &OperationId, seen: u64, timeout_ms: u64) {
        let news = &self.crew().news;
        // Where nobody tells of changes, a short wait and a look must do.
        let timeout_ms = if self.is_told_of(id) { timeout_ms } else { timeout_ms.min(LOOK_MS) };
        tokio::select! {
            // In this order: whoever asks to be told must be listening already.
            biased;
            () = news.missed.notified() => {}
            () = news.watchers.wait(id, timeout_ms, &*self.clock, || true) => {}
            () = self.watch_closely(id, seen) => {}
        }
    }

    fn hold(&self, _inherit: Inherit) -> Result<Box<dyn Hold>, StoreError> {
        Ok(Box::new(Token::new()?))
    }

    async fn liveness(&self, _owner: &Owner) -> Result<Liveness, StoreError> {
        Ok(Liveness::Unknown)
    }

    fn tally_replay(&self, id: &OperationId) {
        if let Some(post) = self.crew().map().post(self.crew().keys.shard(id)) {
            post.node.tally_replay(id);
        }
    }
}

impl Backend for RedisStore {
    fn health(&self) -> Result<Vec<Finding>, StoreError> {
        let crew = Arc::clone(self.fleet.crew());
        self.fleet.engine().wait_for(async move {
            let wait = crew.terms.wait.load(Ordering::Relaxed);
            let mut findings = Vec::new();
            for (address, settings) in settings_of_all(&crew).await? {
                findings.extend(settings.findings(&crew.options, &address, wait));
            }
            Ok(findings)
        })
    }

    fn check_backup(&self, _file: &Path, _overwrite: Overwrite) -> Result<(), StoreError> {
        Err(back_up_by("BGSAVE, and a copy of its files"))
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        let crew = Arc::clone(self.fleet.crew());
        if crew.map().nodes.iter().any(|post| post.node.has_tallies()) {
            // Each batch takes some along. Those that do not make it in time may be lost.
            drop(self.fleet.engine().wait_for(async move {
                let until = Instant::now() + CLOSING;
                for post in &crew.map().nodes {
                    while post.node.has_tallies() && Instant::now() < until {
                        drop(post.node.send(&Arc::new(Command::plain(0, ["PING"])), until).await);
                    }
                }
                Ok(())
            }));
        }
    }
}

/// Finds out what kind of ledger it is, and makes one where there is none.
async fn introduce(crew: &Crew, clock: &ServerClock) -> Result<(), StoreError> {
    let foreign = |what: String| StoreError::Unusable { what };
    let meta = crew.keys.meta();
    if crew.options.missing == Missing::Refuse
        && !matches!(ask(crew, Command::plain(0, ["EXISTS", &meta])).await?, Value::Int(1))
    {
        return Err(no_ledger(&format!("under the prefix {:?}", crew.options.prefix)));
    }
    // First how many replicas there must be: a ledger whose own key they lack would not be known after a failover.
    let replicas = agree_on_replicas(crew, &meta).await?;
    let identity = format!("{:016x}", Token::new()?.token());
    let terms = [FORMAT.to_owned(), crew.options.shards.to_string(), identity, replicas.to_string()];
    let open = Command::script(0, Script::Open).keys([meta.clone()]).arguments(terms.map(String::into_bytes));
    let answer = ask(
        crew,
        match crew.options.missing {
            Missing::Make => open,
            // Who only looks makes nothing, and may look where nobody confirms anything.
            Missing::Refuse => open.unproven(),
        },
    );
    let fields: Vec<String> = if let Value::Array(fields) = answer.await? {
        fields.iter().map(|field| text(field).unwrap_or_default()).collect()
    } else {
        Vec::new()
    };
    let [format, shards, identity, lookup] = fields.as_slice() else {
        return Err(foreign(format!("{meta:?} is not the ledger's own key")));
    };
    if format != FORMAT {
        return Err(foreign(format!(
            "the ledger has the format {format:?}, of a newer version; update this program"
        )));
    }
    let shards = shards.parse().ok().filter(|shards| (1..=options::MAX_SHARDS).contains(shards));
    crew.keys.found_shards(shards.ok_or_else(|| {
        foreign(
            "the ledger does not say how many shards it has; is another program using its keys?".to_owned(),
        )
    })?);
    crew.terms.identity.get_or_init(|| identity.clone());
    crew.terms.lookup.get_or_init(|| lookup == "1");
    read_clock(crew, clock).await
}

/// How many replicas must have a write: as many as there are, and not fewer than there were, unless it is said. Gives
/// how many there are, where that counts.
async fn agree_on_replicas(crew: &Crew, meta: &str) -> Result<u32, StoreError> {
    let (wait, there) = match crew.options.wait {
        Some(wait) => (wait, 0),
        None => {
            let waited = ask(crew, Command::plain(0, ["HGET", meta, "wait"])).await?;
            let waited = text(&waited).and_then(|text| text.parse().ok()).unwrap_or_default();
            let follow = ask_each(crew, &["INFO", "replication"]).await?;
            let fewest =
                follow.iter().map(|info| Settings::read(&text(info).unwrap_or_default()).replicas).min();
            let fewest = fewest.unwrap_or_default();
            (fewest.max(waited), fewest)
        }
    };
    crew.terms.wait.store(wait, Ordering::Relaxed);
    Ok(there)
}

/// What each server says of itself now.
async fn settings_of_all(crew: &Crew) -> Result<Vec<(String, Settings)>, StoreError> {
    let mut all = Vec::new();
    for post in &crew.map().nodes {
        let until = Instant::now() + crew.options.timeout;
        let link = link::Link::open(&crew.options, &post.node.hosts, until).await;
        let link = link.map_err(|closed| closed.into_error("the ledger's server cannot be asked"))?;
        all.push((format!("{}:{}", link.address.0, link.address.1), link.settings));
    }
    Ok(all)
}

/// Reads the clocks of all servers. The one furthest behind counts, so that nobody is ahead of any.
async fn read_clock(crew: &Crew, clock: &ServerClock) -> Result<(), StoreError> {
    let times = ask_each(crew, &["TIME"]).await?;
    if let Some(server_ms) = times.iter().filter_map(time_ms).min() {
        clock.read(server_ms);
    }
    Ok(())
}

fn time_ms(answer: &Value) -> Option<i64> {
    let Value::Array(parts) = answer else { return None };
    let number = |index: usize| -> Option<i64> { text(parts.get(index)?)?.parse().ok() };
    Some(number(0)? * 1_000 + number(1)? / 1_000)
}

/// Asks the server of a shard.
async fn ask(crew: &Crew, command: Command) -> Result<Value, StoreError> {
    answered(crew.send(&Arc::new(command), Instant::now() + crew.options.timeout).await)
}

/// Asks every server, all at once.
async fn ask_each(crew: &Crew, words: &[&str]) -> Result<Vec<Value>, StoreError> {
    let until = Instant::now() + crew.options.timeout;
    let command = Arc::new(Command::plain(0, words.iter().copied()));
    let sent: Vec<_> = crew.map().nodes.iter().map(|post| post.node.send(&command, until)).collect();
    let mut values = Vec::with_capacity(sent.len());
    for answer in sent {
        values.push(answered(answer.await)?);
    }
    Ok(values)
}

/// An answer while the store is opened, when nothing is tried twice.
fn answered(answer: Result<Answer, tokio::sync::oneshot::error::RecvError>) -> Result<Value, StoreError> {
    let cannot = |why: &str| StoreError::unavailable(format!("the ledger's server cannot be used: {why}"));
    match answer {
        Ok(Answer::Reply(value)) => Ok(value),
        Ok(Answer::NotRun(node::NotRun::Unusable(what))) => Err(StoreError::Unusable { what }),
        Ok(Answer::NotRun(node::NotRun::Later(why) | node::NotRun::Elsewhere(why)) | Answer::Lost(why)) => {
            Err(cannot(&why))
        }
        Ok(Answer::Refused(words)) => Err(cannot(&words)),
        Ok(Answer::Unconfirmed { have, need }) => Err(fleet::unconfirmed(have, need)),
        Err(_) => Err(cannot("no answer")),
    }
}

fn body_key(record: &str) -> String {
    format!("{record}:body")
}

fn unknown(why: &str) -> StoreError {
    StoreError::unavailable(format!("nobody can say whether it was written: {why}"))
}

/// The value and the body in an answer.
fn stored(answer: Value) -> Stored {
    let parts = if let Value::Array(parts) = answer { parts } else { Vec::new() };
    let mut parts = parts.into_iter();
    let mut bytes = || match parts.next() {
        Some(Value::BulkString(bytes)) => Some(bytes),
        Some(_) | None => None,
    };
    Stored { value: bytes(), body: bytes() }
}
