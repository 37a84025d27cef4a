//! The servers of a ledger: which one has which shard, and how a question reaches it.
//!
//! The client's own cluster support is not used: it sends again behind one's back what may have been executed. Here
//! only what certainly was not is sent again.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::timer::sleep;
use onceward::StoreError;
use redis::{Pipeline, Value};
use tokio::sync::oneshot;

use super::entry::{self, Keys};
use super::link::{Address, Closed, Link};
use super::news::{News, Subscription};
use super::node::{Answer, Command, Node, NotRun, Terms};
use super::options::{Layout, MAX_SHARDS, RedisOptions};
use super::settings::text;
use crate::remote::Engine;

/// How long to wait before a question that was not answered is asked again, at first and at most.
const AGAIN: std::ops::RangeInclusive<Duration> = Duration::from_millis(5)..=Duration::from_millis(100);
/// How long the servers of a cluster are believed to be as they were, whatever one of them says.
const SETTLED: Duration = Duration::from_millis(100);

/// The servers of a ledger.
pub(super) struct Fleet {
    engine: Engine,
    crew: Arc<Crew>,
}

/// What is known of the servers, and what is needed to find out more.
pub(super) struct Crew {
    pub(super) options: Arc<RedisOptions>,
    pub(super) keys: Keys,
    pub(super) news: Arc<News>,
    pub(super) terms: Arc<Terms>,
    map: RwLock<Arc<Map>>,
    drawn: tokio::sync::Mutex<Option<Instant>>,
}

/// Which server has which shard.
#[derive(Default)]
pub(super) struct Map {
    pub(super) nodes: Vec<Post>,
    of_shard: Vec<usize>,
}

/// A server and the subscription at it.
#[derive(Clone)]
pub(super) struct Post {
    pub(super) node: Arc<Node>,
    pub(super) subscription: Arc<Subscription>,
}

/// Why a question has no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// It was sent, and nobody knows whether it was executed.
    Lost(String),
    /// It was not executed, or the answer must not be told.
    Error(StoreError),
}

impl Fleet {
    /// Finds the servers.
    pub(super) fn open(options: RedisOptions) -> Result<Self, StoreError> {
        let engine = Engine::start("once-redis")?;
        let crew = Arc::new(Crew {
            keys: Keys::new(&options.prefix, options.shards),
            news: Arc::default(),
            terms: Arc::default(),
            options: Arc::new(options),
            map: RwLock::default(),
            drawn: tokio::sync::Mutex::default(),
        });
        let drawing = Arc::clone(&crew);
        engine.wait_for(async move { drawing.draw().await.map_err(|closed| closed.into_error(CANNOT)) })?;
        Ok(Self { engine, crew })
    }

    pub(super) fn crew(&self) -> &Arc<Crew> {
        &self.crew
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(super) fn until(&self) -> Instant {
        Instant::now() + self.crew.options.timeout
    }

    /// Asks until there is an answer, whatever was lost on the way: for questions that change nothing.
    pub(super) async fn read(&self, command: Command, until: Instant) -> Result<Value, StoreError> {
        let command = Arc::new(command);
        self.read_on(&command, until, self.crew.send(&command, until)).await
    }

    /// The same for many at once.
    pub(super) async fn read_all(&self, commands: Vec<Command>) -> Result<Vec<Value>, StoreError> {
        let until = self.until();
        let sent: Vec<_> = commands
            .into_iter()
            .map(Arc::new)
            .map(|command| {
                let answered = self.crew.send(&command, until);
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
        &self,
        command: &Arc<Command>,
        until: Instant,
        mut answered: oneshot::Receiver<Answer>,
    ) -> Result<Value, StoreError> {
        let mut pause = *AGAIN.start();
        loop {
            match self.heard(answered, command, until).await {
                Ok(value) => return Ok(value),
                Err(Unanswered::Lost(why)) if Instant::now() + pause >= until => {
                    return Err(StoreError::unavailable(format!("{CANNOT}: {why}")));
                }
                Err(Unanswered::Lost(_)) => {
                    sleep(pause).await;
                    pause = (pause * 2).min(*AGAIN.end());
                    answered = self.crew.send(command, until);
                }
                Err(Unanswered::Error(error)) => return Err(error),
            }
        }
    }

    /// Asks until it was executed or nobody can tell: for questions that change something.
    pub(super) async fn write(&self, command: &Arc<Command>, until: Instant) -> Result<Value, Unanswered> {
        self.heard(self.crew.send(command, until), command, until).await
    }

    /// Hears the answer, and sends again what certainly was not executed.
    async fn heard(
        &self,
        mut answered: oneshot::Receiver<Answer>,
        command: &Arc<Command>,
        until: Instant,
    ) -> Result<Value, Unanswered> {
        let mut pause = *AGAIN.start();
        loop {
            let why = match answered
                .await
                .unwrap_or_else(|_| Answer::Lost("the ledger's thread is gone".into()))
            {
                Answer::Reply(value) => return Ok(value),
                Answer::Lost(why) => return Err(Unanswered::Lost(why)),
                Answer::Refused(words) => {
                    let what = format!("the ledger's server refuses it: {words}");
                    return Err(Unanswered::Error(StoreError::unavailable(what)));
                }
                Answer::Unconfirmed { have, need } => return Err(Unanswered::Error(unconfirmed(have, need))),
                Answer::NotRun(NotRun::Unusable(what)) => {
                    return Err(Unanswered::Error(StoreError::Unusable { what }));
                }
                Answer::NotRun(NotRun::Later(why)) => why,
                Answer::NotRun(NotRun::Elsewhere(why)) => {
                    self.redraw().await;
                    why
                }
            };
            if Instant::now() + pause >= until {
                return Err(Unanswered::Error(StoreError::unavailable(format!("{CANNOT}: {why}"))));
            }
            sleep(pause).await;
            pause = (pause * 2).min(*AGAIN.end());
            answered = self.crew.send(command, until);
        }
    }

    /// Finds out again which server has which shard.
    async fn redraw(&self) {
        if self.crew.options.layout == Layout::Cluster {
            let crew = Arc::clone(&self.crew);
            let (done, drawn) = oneshot::channel::<()>();
            self.engine.spawn(async move {
                // Where no server can be asked, the old map is as good as any.
                drop(crew.draw().await);
                drop(done);
            });
            drop(drawn.await);
        }
    }
}

const CANNOT: &str = "the ledger's server cannot be used now";

/// What is said when too few replicas have a write.
pub(super) fn unconfirmed(have: i64, need: u32) -> StoreError {
    StoreError::unavailable(format!(
        "{have} of {need} replicas confirmed it in time, so it may be lost with the primary and does not count; bring \
         the replicas back, or say with wait={} in the URL how many are enough",
        have.max(0)
    ))
}

impl Crew {
    /// The map as it is now.
    pub(super) fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sends a command to the server that has its shard.
    pub(super) fn send(&self, command: &Arc<Command>, until: Instant) -> oneshot::Receiver<Answer> {
        match self.map().post(command.shard) {
            Some(post) => post.node.send(command, until),
            None => {
                let (answer, answered) = oneshot::channel();
                let why = "no server has this part of the ledger".to_owned();
                drop(answer.send(Answer::NotRun(NotRun::Elsewhere(why))));
                answered
            }
        }
    }

    /// Draws the map. Must be called on the store's own thread.
    async fn draw(&self) -> Result<(), Closed> {
        // Of many who see that it is wrong, one draws a new one.
        let mut drawn = self.drawn.lock().await;
        if drawn.is_some_and(|at| at.elapsed() < SETTLED) {
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
            self.news.lost();
        }
        *drawn = Some(Instant::now());
        Ok(())
    }

    /// The number of a server on the new map, which keeps the lanes that the old one has to it.
    fn index(&self, map: &mut Map, before: &Map, hosts: &[Address]) -> usize {
        if let Some(index) = map.nodes.iter().position(|post| post.node.hosts == hosts) {
            return index;
        }
        let post = before.nodes.iter().find(|post| post.node.hosts == hosts).cloned();
        map.nodes.push(post.unwrap_or_else(|| Post {
            node: Node::start(&self.options, self.keys.clone(), hosts.to_vec(), &self.terms),
            subscription: Subscription::start(&self.options, &self.keys, hosts.to_vec(), &self.news),
        }));
        map.nodes.len() - 1
    }

    /// Asks the servers that are known, and those that were named, for who has which slots.
    async fn ask_for_slots(&self) -> Result<Vec<Range>, Closed> {
        let map = self.map();
        let mut addresses: Vec<Address> = map.nodes.iter().flat_map(|post| post.node.hosts.clone()).collect();
        addresses.extend(self.options.hosts.iter().cloned());
        let until = Instant::now() + self.options.timeout / 2;
        let mut why = Closed::Now("no host is named".to_owned());
        for (index, address) in addresses.iter().enumerate() {
            // Each gets its share of the time, so that one that is silent does not hide the others.
            let left = until.saturating_duration_since(Instant::now());
            let share = left / u32::try_from(addresses.len() - index).unwrap_or(1);
            match slots(&self.options, address, Instant::now() + share).await {
                Ok(ranges) if !ranges.is_empty() => return Ok(ranges),
                Ok(_) => why = Closed::Now("the cluster has no slots".to_owned()),
                Err(closed @ Closed::Unusable(_)) => return Err(closed),
                Err(closed) => why = closed,
            }
        }
        Err(why)
    }
}

/// Slots from one to another, and the server that has them.
type Range = (u16, u16, Vec<Address>);

async fn slots(options: &RedisOptions, address: &Address, until: Instant) -> Result<Vec<Range>, Closed> {
    let mut link = Link::open_any(options, address, until).await?;
    let mut question = Pipeline::new();
    question.cmd("CLUSTER").arg("SLOTS");
    let answer = link.send(&question, until).await.map_err(Closed::Now)?;
    Ok(answer.first().map(|value| ranges(value, address)).unwrap_or_default())
}

impl Map {
    /// The server that has a shard.
    pub(super) fn post(&self, shard: u16) -> Option<&Post> {
        self.nodes.get(*self.of_shard.get(usize::from(shard))?)
    }
}

/// Which primary has which slots, from an answer to `CLUSTER SLOTS`.
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
    // A server that does not know its own name is where it was asked.
    let host = text(host).filter(|host| !host.is_empty()).unwrap_or_else(|| asked.0.clone());
    let address = (host, u16::try_from(*port).ok()?);
    Some((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, vec![address]))
}
