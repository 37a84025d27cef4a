//! The servers of a ledger: which one has which shard, and how a command reaches it.
//!
//! The client library's own cluster support is not used, because it silently resends commands that may have been
//! executed. This module resends only commands that certainly were not.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::timer::sleep;
use onceward::{OperationId, StoreError};
use redis::{Pipeline, Value};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::entry::{self, Keys};
use super::fault::ConnectError;
use super::invalidations::{Invalidations, Subscription};
use super::link::{Address, Link};
use super::node::{Command, Node, NodeReply, NotRun, Safety, Terms};
use super::options::{Layout, MAX_SHARDS, RedisOptions};
use super::settings::text;
use crate::remote::RuntimeThread;

/// Back-off before an unanswered command is sent again: initial and maximum.
const AGAIN: std::ops::RangeInclusive<Duration> = Duration::from_millis(5)..=Duration::from_millis(100);
/// How many unreadable records are remembered by id.
const MAX_UNREADABLE: usize = 32;
/// How long a slot map is considered current, whatever a server says.
const SETTLED: Duration = Duration::from_millis(100);

/// The servers of a ledger, and the thread that talks to them.
pub(super) struct Cluster {
    runtime: RuntimeThread,
    topology: Arc<Topology>,
}

/// What is known about the servers, and what is needed to find out more.
pub(super) struct Topology {
    pub(super) options: Arc<RedisOptions>,
    pub(super) keys: Keys,
    pub(super) invalidations: Arc<Invalidations>,
    pub(super) terms: Arc<Terms>,
    map: RwLock<Arc<Map>>,
    refreshed: tokio::sync::Mutex<Option<Instant>>,
    /// The runtime of the store's own thread.
    thread: Handle,
    /// Records that could not be decoded when they were listed.
    unreadable: Mutex<BTreeSet<OperationId>>,
}

/// Which server has which shard.
#[derive(Default)]
pub(super) struct Map {
    pub(super) nodes: Vec<Member>,
    of_shard: Vec<usize>,
}

/// A server and the subscription to its changes.
#[derive(Clone)]
pub(super) struct Member {
    pub(super) node: Arc<Node>,
    pub(super) subscription: Arc<Subscription>,
}

/// Why a command has no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// It was sent, and it is unknown whether it was executed.
    Lost(String),
    /// It was not executed, or its reply must not be used.
    Error(StoreError),
}

impl Cluster {
    /// Connects and finds the servers.
    pub(super) fn open(options: RedisOptions) -> Result<Self, StoreError> {
        let runtime = RuntimeThread::start("once-redis")?;
        let terms = Arc::<Terms>::default();
        let topology = Arc::new(Topology {
            keys: Keys::new(&options.prefix, options.shards),
            invalidations: Arc::new(Invalidations::new(Arc::clone(&terms.recent))),
            terms,
            options: Arc::new(options),
            map: RwLock::default(),
            refreshed: tokio::sync::Mutex::default(),
            thread: runtime.handle(),
            unreadable: Mutex::default(),
        });
        let first = Arc::clone(&topology);
        runtime.wait_for(async move { first.refresh().await.map_err(|closed| closed.into_error(CANNOT)) })?;
        Ok(Self { runtime, topology })
    }

    pub(super) fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    pub(super) fn runtime(&self) -> &RuntimeThread {
        &self.runtime
    }
}

const CANNOT: &str = "the ledger's server is not available";

/// The error if too few replicas have a write.
pub(super) fn unconfirmed(have: i64, need: u32) -> StoreError {
    StoreError::unavailable(format!(
        "{have} of {need} replicas confirmed the write in time, so it can be lost with the primary and does not \
         count; bring the replicas back, or set wait={} in the URL to require fewer",
        have.max(0)
    ))
}

impl Topology {
    /// The current map.
    pub(super) fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sends a command to the server that has its shard.
    pub(super) fn send(&self, command: &Arc<Command>, until: Instant) -> oneshot::Receiver<NodeReply> {
        let refused = match (self.terms.older.get(), self.map().member(command.shard)) {
            (Some(seen), _) => NodeReply::Older(seen.clone()),
            (None, Some(member)) => match (command.safety, member.node.settings_problem()) {
                (Safety::Required, Some(what)) => NodeReply::NotRun(NotRun::Unusable(what)),
                (Safety::NotRequired, _) | (Safety::Required, None) => {
                    return member.node.send(command, until);
                }
            },
            (None, None) => {
                NodeReply::NotRun(NotRun::Elsewhere("no server has this part of the ledger".to_owned()))
            }
        };
        let (answer, answered) = oneshot::channel();
        drop(answer.send(refused));
        answered
    }

    /// Records that a record could not be decoded.
    pub(super) fn note_unreadable(&self, id: &OperationId) {
        let mut unreadable = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
        if unreadable.len() < MAX_UNREADABLE {
            unreadable.insert(id.clone());
        }
    }

    /// The records that could not be decoded when they were listed, up to a limit.
    pub(super) fn all_unreadable(&self) -> Vec<OperationId> {
        self.unreadable.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// The deadline of a call that begins now.
    pub(super) fn until(&self) -> Instant {
        Instant::now() + self.options.timeout
    }

    /// Sends a read-only command until there is an answer, even if replies are lost.
    pub(super) async fn read(
        self: &Arc<Self>,
        command: Command,
        until: Instant,
    ) -> Result<Value, StoreError> {
        let command = Arc::new(command);
        self.read_on(&command, until, self.send(&command, until)).await
    }

    /// The same for many commands at once.
    pub(super) async fn read_all(self: &Arc<Self>, commands: Vec<Command>) -> Result<Vec<Value>, StoreError> {
        let until = self.until();
        let sent: Vec<_> = commands
            .into_iter()
            .map(Arc::new)
            .map(|command| {
                let answered = self.send(&command, until);
                (command, answered)
            })
            .collect();
        let mut values = Vec::with_capacity(sent.len());
        for (command, answered) in sent {
            values.push(self.read_on(&command, until, answered).await?);
        }
        Ok(values)
    }

    async fn read_on(
        self: &Arc<Self>,
        command: &Arc<Command>,
        until: Instant,
        mut answered: oneshot::Receiver<NodeReply>,
    ) -> Result<Value, StoreError> {
        let mut pause = *AGAIN.start();
        loop {
            match self.await_answer(answered, command, until).await {
                Ok(value) => return Ok(value),
                Err(Unanswered::Lost(why)) if Instant::now() + pause >= until => {
                    return Err(StoreError::unavailable(format!("{CANNOT}: {why}")));
                }
                Err(Unanswered::Lost(_)) => {
                    sleep(pause).await;
                    pause = (pause * 2).min(*AGAIN.end());
                    answered = self.send(command, until);
                }
                Err(Unanswered::Error(error)) => return Err(error),
            }
        }
    }

    /// Sends a writing command until it was executed or its outcome is unknown.
    pub(super) async fn write(
        self: &Arc<Self>,
        command: &Arc<Command>,
        until: Instant,
    ) -> Result<Value, Unanswered> {
        self.await_answer(self.send(command, until), command, until).await
    }

    /// Waits for the answer, and resends the command if it certainly was not executed.
    async fn await_answer(
        self: &Arc<Self>,
        mut answered: oneshot::Receiver<NodeReply>,
        command: &Arc<Command>,
        until: Instant,
    ) -> Result<Value, Unanswered> {
        let mut pause = *AGAIN.start();
        loop {
            let why = match answered
                .await
                .unwrap_or_else(|_| NodeReply::Lost("the store's runtime thread has stopped".into()))
            {
                NodeReply::Reply(value) => return Ok(value),
                NodeReply::Lost(why) => return Err(Unanswered::Lost(why)),
                NodeReply::Refused(words) => {
                    let what = format!("the ledger's server rejects the command: {words}");
                    return Err(Unanswered::Error(StoreError::unavailable(what)));
                }
                NodeReply::Replaced(seen) => return Err(Unanswered::Error(StoreError::replaced(&seen))),
                NodeReply::Older(seen) => {
                    let seen = self.terms.older.get_or_init(|| seen);
                    return Err(Unanswered::Error(StoreError::replaced(seen)));
                }
                NodeReply::Unconfirmed { have, need } => {
                    return Err(Unanswered::Error(unconfirmed(have, need)));
                }
                NodeReply::NotRun(NotRun::Unusable(what)) => {
                    return Err(Unanswered::Error(StoreError::Unusable { what }));
                }
                NodeReply::NotRun(NotRun::Later(why)) => why,
                NodeReply::NotRun(NotRun::Elsewhere(why)) => {
                    self.refresh_cluster().await;
                    why
                }
            };
            if Instant::now() + pause >= until {
                return Err(Unanswered::Error(StoreError::unavailable(format!("{CANNOT}: {why}"))));
            }
            sleep(pause).await;
            pause = (pause * 2).min(*AGAIN.end());
            answered = self.send(command, until);
        }
    }

    /// Refreshes the map of a cluster.
    async fn refresh_cluster(self: &Arc<Self>) {
        if self.options.layout == Layout::Cluster {
            let topology = Arc::clone(self);
            let (done, refreshed) = oneshot::channel::<()>();
            self.thread.spawn(async move {
                // If no server can be asked, the old map remains in use.
                drop(topology.refresh().await);
                drop(done);
            });
            drop(refreshed.await);
        }
    }

    /// Refreshes the map. Must be called on the store's own thread.
    async fn refresh(&self) -> Result<(), ConnectError> {
        // If many callers see an outdated map, only one of them refreshes it.
        let mut refreshed = self.refreshed.lock().await;
        if refreshed.is_some_and(|at| at.elapsed() < SETTLED) {
            return Ok(());
        }
        let ranges = match self.options.layout {
            Layout::Standalone { .. } => vec![(0, u16::MAX, self.options.hosts.clone())],
            Layout::Cluster => self.ask_for_slots().await?,
        };
        let before = self.map();
        let mut map = Map::default();
        for shard in 0..MAX_SHARDS {
            let slot = entry::slot(&self.keys.tag(shard));
            let range = ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
            let index = range.map_or(usize::MAX, |(_, _, hosts)| self.index(&mut map, &before, hosts));
            map.of_shard.push(index);
        }
        let same = before.of_shard == map.of_shard
            && before.nodes.len() == map.nodes.len()
            && before.nodes.iter().zip(&map.nodes).all(|(one, other)| Arc::ptr_eq(&one.node, &other.node));
        *self.map.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(map);
        if !same {
            self.invalidations.invalidate_all();
        }
        *refreshed = Some(Instant::now());
        Ok(())
    }

    /// The index of a server on the new map, which keeps the connections that the old map has to it.
    fn index(&self, map: &mut Map, before: &Map, hosts: &[Address]) -> usize {
        if let Some(index) = map.nodes.iter().position(|member| member.node.hosts == hosts) {
            return index;
        }
        let member = before.nodes.iter().find(|member| member.node.hosts == hosts).cloned();
        map.nodes.push(member.unwrap_or_else(|| Member {
            node: Node::start(&self.options, self.keys.clone(), hosts.to_vec(), &self.terms),
            subscription: Subscription::start(&self.options, &self.keys, hosts.to_vec(), &self.invalidations),
        }));
        map.nodes.len() - 1
    }

    /// Asks the known and the config_value servers for the slot map.
    async fn ask_for_slots(&self) -> Result<Vec<Range>, ConnectError> {
        let map = self.map();
        let mut addresses: Vec<Address> =
            map.nodes.iter().flat_map(|member| member.node.hosts.clone()).collect();
        addresses.extend(self.options.hosts.iter().cloned());
        let until = Instant::now() + self.options.timeout / 2;
        let mut why = ConnectError::Unavailable("the URL names no host".to_owned());
        for (index, address) in addresses.iter().enumerate() {
            // Each server gets its share of the time, so that a silent one does not hide the others.
            let left = until.saturating_duration_since(Instant::now());
            let share = left / u32::try_from(addresses.len() - index).unwrap_or(1);
            match slots(&self.options, address, Instant::now() + share).await {
                Ok(ranges) if !ranges.is_empty() => return Ok(ranges),
                Ok(_) => why = ConnectError::Unavailable("the cluster has no slots".to_owned()),
                Err(closed @ ConnectError::Unusable(_)) => return Err(closed),
                Err(closed) => why = closed,
            }
        }
        Err(why)
    }
}

/// A range of slots, and the server that has them.
type Range = (u16, u16, Vec<Address>);

async fn slots(
    options: &RedisOptions,
    address: &Address,
    until: Instant,
) -> Result<Vec<Range>, ConnectError> {
    let mut link = Link::open_any(options, address, until).await?;
    let mut query = Pipeline::new();
    query.cmd("CLUSTER").arg("SLOTS");
    let answer = link.send(&query, until).await.map_err(ConnectError::Unavailable)?;
    Ok(answer.first().map(|value| ranges(value, address)).unwrap_or_default())
}

impl Map {
    /// The server that has a shard.
    pub(super) fn member(&self, shard: u16) -> Option<&Member> {
        self.nodes.get(*self.of_shard.get(usize::from(shard))?)
    }
}

/// Parses a reply to `CLUSTER SLOTS`: which primary has which slots.
fn ranges(value: &Value, asked: &Address) -> Vec<Range> {
    let Value::Array(rows) = value else { return Vec::new() };
    rows.iter().filter_map(|row| range(row, asked)).collect()
}

fn range(row: &Value, asked: &Address) -> Option<Range> {
    let Value::Array(row) = row else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = row.as_slice() else {
        return None;
    };
    let [host, Value::Int(port), ..] = primary.as_slice() else { return None };
    // A server that does not know its own host name is at the address where it was asked.
    let host = text(host).filter(|host| !host.is_empty()).unwrap_or_else(|| asked.0.clone());
    let address = (host, u16::try_from(*port).ok()?);
    Some((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, vec![address]))
}
