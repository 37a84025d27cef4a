//! One server, and the lanes to it. Whatever waits when a lane is free goes over it in one batch.
//!
//! A server that syncs does so once for all that it finds in its buffers, and a replica confirms everything before it
//! with one word. So commands travel together: the scripts of all callers, a mark, and one `WAIT` behind them. Nobody
//! hears what was read or written before the replicas have it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use onceward::OperationId;
use redis::{Cmd, Pipeline, ServerError, Value};
use tokio::sync::{mpsc, oneshot};

use super::entry::Keys;
use super::link::{Address, Closed, Link};
use super::options::RedisOptions;
use super::scripts::Script;

/// How many commands travel together at the most, and how many bytes.
const MAX_BATCH: usize = 512;
const MAX_BATCH_BYTES: usize = 4 * 1024 * 1024;
/// How many operations have a tally of replays that is not written yet; beyond that, replays are not counted.
const MAX_TALLIES: usize = 65_536;
/// How many of these a batch takes along.
const TALLIES_PER_BATCH: usize = 64;
/// How long a server that could not be reached is left alone, at first and at most.
const REST: std::ops::RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_millis(400);

/// What is asked of a server.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) what: What,
    pub(super) proof: Proof,
    /// The shard whose server must answer.
    pub(super) shard: u16,
}

#[derive(Debug)]
pub(super) enum What {
    Script { script: Script, keys: Vec<String>, arguments: Vec<Vec<u8>> },
    Plain(Vec<Vec<u8>>),
}

/// Whether the answer may be told before the replicas have what it rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof {
    /// Not before.
    Needed,
    /// It may: nothing is run because of it.
    NotNeeded,
}

/// What became of a command.
#[derive(Debug)]
pub(super) enum Answer {
    /// The server's own.
    Reply(Value),
    /// It was certainly not executed, and may be sent again.
    NotRun(NotRun),
    /// It was sent, and no answer came.
    Lost(String),
    /// The server will not do it, in its own words.
    Refused(String),
    /// Too few replicas have it.
    Unconfirmed { have: i64, need: u32 },
}

/// Why a command was not executed.
#[derive(Debug)]
pub(super) enum NotRun {
    /// There is no connection, or the server is not ready.
    Later(String),
    /// Another server has it.
    Elsewhere(String),
    /// The server's settings do not allow the promise.
    Unusable(String),
}

struct Job {
    command: Arc<Command>,
    until: Instant,
    answer: oneshot::Sender<Answer>,
}

/// What is known of the ledger once it was found.
#[derive(Debug, Default)]
pub(super) struct Terms {
    /// How many replicas must have a write.
    pub(super) wait: AtomicU32,
    /// Whether all records are in the look-up indexes. In a ledger of an older build those before it are not.
    pub(super) lookup: OnceLock<bool>,
    /// Which ledger it is. A server that holds another one, or none, has lost this one.
    pub(super) identity: OnceLock<String>,
}

/// One server.
pub(super) struct Node {
    pub(super) hosts: Vec<Address>,
    queue: mpsc::UnboundedSender<Job>,
    shared: Arc<Shared>,
}

/// What the lanes to a server share.
struct Shared {
    options: Arc<RedisOptions>,
    keys: Keys,
    hosts: Vec<Address>,
    terms: Arc<Terms>,
    tallies: Mutex<HashMap<OperationId, u64>>,
    rest: Mutex<Rest>,
}

/// Until when a server is left alone, and why.
#[derive(Default)]
struct Rest {
    until: Option<Instant>,
    pause: Duration,
    why: String,
}

impl Node {
    /// Opens the lanes to the primary among `hosts`. Must be called on the store's own thread.
    pub(super) fn start(
        options: &Arc<RedisOptions>,
        keys: Keys,
        hosts: Vec<Address>,
        terms: &Arc<Terms>,
    ) -> Arc<Self> {
        let shared = Arc::new(Shared {
            options: Arc::clone(options),
            keys,
            hosts: hosts.clone(),
            terms: Arc::clone(terms),
            tallies: Mutex::default(),
            rest: Mutex::default(),
        });
        let (queue, jobs) = mpsc::unbounded_channel();
        tokio::spawn(serve(Arc::clone(&shared), jobs));
        Arc::new(Self { hosts, queue, shared })
    }

    /// Hands a command over; its answer comes in bounded time.
    pub(super) fn send(&self, command: &Arc<Command>, until: Instant) -> oneshot::Receiver<Answer> {
        let (answer, answered) = oneshot::channel();
        let job = Job { command: Arc::clone(command), until, answer };
        if let Err(refused) = self.queue.send(job) {
            let gone = NotRun::Elsewhere("the ledger's thread is gone".to_owned());
            drop(refused.0.answer.send(Answer::NotRun(gone)));
        }
        answered
    }

    /// Notes a replay; it is written along with later batches.
    pub(super) fn tally_replay(&self, id: &OperationId) {
        let mut tallies = self.shared.tallies();
        if let Some(count) = tallies.get_mut(id) {
            *count += 1;
        } else if tallies.len() < MAX_TALLIES {
            tallies.insert(id.clone(), 1);
        }
    }

    /// Whether there are tallies that are not written yet.
    pub(super) fn has_tallies(&self) -> bool {
        !self.shared.tallies().is_empty()
    }
}

/// Lets what waits go over a lane that is free, again and again until the server is no longer wanted.
async fn serve(shared: Arc<Shared>, mut jobs: mpsc::UnboundedReceiver<Job>) {
    let (back, mut returned) = mpsc::unbounded_channel();
    let mut idle: Vec<Link> = Vec::new();
    let mut busy = 0;
    while let Some(first) = jobs.recv().await {
        while let Ok(link) = returned.try_recv() {
            busy -= 1;
            put_away(&mut idle, link);
        }
        if busy >= shared.options.lanes {
            let Some(link) = returned.recv().await else { return };
            busy -= 1;
            put_away(&mut idle, link);
        }
        // Only now, so that whatever has come meanwhile goes along.
        let batch = with_others(first, &mut jobs);
        // The one that was used last: who does one thing after the other has one connection.
        let link = idle.pop();
        let (shared, back) = (Arc::clone(&shared), back.clone());
        busy += 1;
        tokio::spawn(async move { drop(back.send(shared.carry(link, batch).await)) });
    }
}

/// Keeps a connection for the next batch. Where one has died, the others are most likely dead too.
fn put_away(idle: &mut Vec<Link>, link: Option<Link>) {
    match link {
        Some(link) => idle.push(link),
        None => idle.clear(),
    }
}

/// A job, and all that wait behind it.
fn with_others(first: Job, jobs: &mut mpsc::UnboundedReceiver<Job>) -> Vec<Job> {
    let mut bytes = first.command.bytes();
    let mut batch = vec![first];
    while batch.len() < MAX_BATCH && bytes < MAX_BATCH_BYTES {
        let Ok(job) = jobs.try_recv() else { break };
        bytes += job.command.bytes();
        batch.push(job);
    }
    batch
}

/// Whoever no longer waits for an answer does not miss it.
fn answer_all(jobs: Vec<Job>, answer: impl Fn() -> Answer) {
    for job in jobs {
        drop(job.answer.send(answer()));
    }
}

/// What is to be done with a connection after a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// Nothing.
    Fine,
    /// The server has forgotten the scripts.
    Reload,
    /// It is no good any more.
    Close,
}

impl Shared {
    fn tallies(&self) -> MutexGuard<'_, HashMap<OperationId, u64>> {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries a batch over a connection, which is opened where there is none, and gives it back if it is still good.
    async fn carry(&self, link: Option<Link>, batch: Vec<Job>) -> Option<Link> {
        let now = Instant::now();
        let (batch, late): (Vec<Job>, Vec<Job>) = batch.into_iter().partition(|job| job.until > now);
        answer_all(late, || Answer::NotRun(NotRun::Later("the time was over before it was sent".to_owned())));
        let Some(until) = batch.iter().map(|job| job.until).min() else { return link };
        let mut link = match link {
            Some(link) => link,
            None => match self.open(until).await {
                Ok(link) => link,
                Err(why) => {
                    answer_all(batch, || Answer::NotRun(why.again()));
                    return None;
                }
            },
        };
        match self.exchange(&mut link, batch, until).await {
            After::Fine => Some(link),
            After::Reload => {
                let reloaded = link.load_scripts(Instant::now() + self.options.timeout).await;
                reloaded.is_ok().then_some(link)
            }
            After::Close => None,
        }
    }

    /// Connects, unless that has just failed.
    async fn open(&self, until: Instant) -> Result<Link, NotRun> {
        {
            let rest = self.rest();
            if rest.until.is_some_and(|until| until > Instant::now()) {
                return Err(NotRun::Later(rest.why.clone()));
            }
        }
        let opened = match Link::open(&self.options, &self.hosts, until).await {
            Ok(link) => self.recognised(link, until).await,
            Err(closed) => Err(closed),
        };
        let mut rest = self.rest();
        match opened {
            Ok(link) => {
                *rest = Rest::default();
                Ok(link)
            }
            Err(Closed::Unusable(what)) => Err(NotRun::Unusable(what)),
            Err(Closed::Now(why)) => {
                rest.pause = (rest.pause * 2).clamp(*REST.start(), *REST.end());
                rest.until = Some(Instant::now() + rest.pause);
                rest.why.clone_from(&why);
                Err(NotRun::Elsewhere(why))
            }
        }
    }

    /// A server that came back must hold the ledger that it held: on one that was emptied, everything would run again.
    async fn recognised(&self, mut link: Link, until: Instant) -> Result<Link, Closed> {
        let Some(identity) = self.terms.identity.get() else { return Ok(link) };
        let mut question = Pipeline::new();
        question.cmd("HGET").arg(self.keys.meta()).arg("identity");
        let answer = link.send(&question, until).await.map_err(Closed::Now)?;
        match answer.first() {
            Some(Value::BulkString(found)) if found == identity.as_bytes() => Ok(link),
            // Another server of the cluster has it.
            Some(Value::ServerError(_)) => Ok(link),
            Some(_) | None => Err(Closed::Unusable(format!(
                "{}:{} no longer holds the ledger that was opened: it was emptied, or has lost its data; restore \
                 it, or open the ledger anew, knowing that everything in it may run again",
                link.address.0, link.address.1
            ))),
        }
    }

    /// Sends a batch and answers everybody in it.
    async fn exchange(&self, link: &mut Link, batch: Vec<Job>, until: Instant) -> After {
        let mut pipeline = Pipeline::with_capacity(batch.len() + 2);
        for job in &batch {
            pipeline.add_command(job.command.on(link));
        }
        for command in self.some_tallies() {
            pipeline.add_command(command.on(link));
        }
        let need = self.terms.wait.load(Ordering::Relaxed);
        let proven = batch.iter().rev().find(|job| job.command.proof == Proof::Needed);
        let waits = match proven {
            Some(job) if need > 0 => {
                // A connection waits for what it has written itself, and this is written after all that it has read.
                pipeline.cmd("SET").arg(self.keys.mark(job.command.shard)).arg(1);
                let span = self.options.wait_timeout.min(until.saturating_duration_since(Instant::now()) / 2);
                let wait_ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1);
                pipeline.cmd("WAIT").arg(need).arg(wait_ms);
                true
            }
            Some(_) | None => false,
        };
        let values = match link.send(&pipeline, until).await {
            Ok(values) => values,
            Err(why) => {
                answer_all(batch, || Answer::Lost(why.clone()));
                return After::Close;
            }
        };
        let confirmed = if waits { confirmed(&values, need) } else { Confirmed::Yes };
        let mut after = if matches!(confirmed, Confirmed::NotAsked(_)) { After::Close } else { After::Fine };
        for (job, value) in batch.into_iter().zip(values) {
            let (answer, then) = classify(value);
            if then != After::Fine && after != After::Close {
                after = then;
            }
            drop(job.answer.send(if job.command.proof == Proof::Needed {
                confirmed.of(answer)
            } else {
                answer
            }));
        }
        after
    }

    /// Some of the tallies, to be written along with a batch.
    fn some_tallies(&self) -> Vec<Command> {
        let mut tallies = self.tallies();
        let some: Vec<OperationId> = tallies.keys().take(TALLIES_PER_BATCH).cloned().collect();
        let taken = some.into_iter().filter_map(|id| tallies.remove_entry(&id));
        taken
            .map(|(id, count)| {
                let shard = self.keys.shard(&id);
                Command::script(shard, Script::Tally)
                    .keys([self.keys.record(&id), self.keys.tag(shard)])
                    .arguments([count.to_string().into_bytes()])
            })
            .collect()
    }
}

/// Whether the replicas have a batch.
enum Confirmed {
    Yes,
    TooFew {
        have: i64,
        need: u32,
    },
    /// The mark could not be written, so that nobody can say.
    NotAsked(String),
}

/// Whether the replicas have a batch, by its last two answers: to the mark and to `WAIT`.
fn confirmed(values: &[Value], need: u32) -> Confirmed {
    match values {
        [.., Value::Okay, Value::Int(have)] if *have >= i64::from(need) => Confirmed::Yes,
        [.., Value::Okay, Value::Int(have)] => Confirmed::TooFew { have: *have, need },
        [.., Value::ServerError(error), _] => Confirmed::NotAsked(in_words(error)),
        [.., mark, wait] => Confirmed::NotAsked(format!("{mark:?} and {wait:?} to the mark and WAIT")),
        [] | [_] => Confirmed::NotAsked("no answer to WAIT".to_owned()),
    }
}

impl Confirmed {
    /// What may be told of an answer.
    fn of(&self, answer: Answer) -> Answer {
        match (answer, self) {
            (Answer::Reply(_), Self::TooFew { have, need }) => {
                Answer::Unconfirmed { have: *have, need: *need }
            }
            (Answer::Reply(_), Self::NotAsked(words)) => Answer::Lost(words.clone()),
            (answer, Self::Yes | Self::TooFew { .. } | Self::NotAsked(_)) => answer,
        }
    }
}

fn in_words(error: &ServerError) -> String {
    format!("{} {}", error.code(), error.details().unwrap_or_default())
}

/// What a server's answer means, and what is to be done with the connection.
fn classify(value: Value) -> (Answer, After) {
    let Value::ServerError(error) = value else { return (Answer::Reply(value), After::Fine) };
    let words = in_words(&error);
    // What a script ran into stands in the text of its own error where the server is older than 7.
    let says = |code: &str| error.code() == code || words.contains(&format!(": -{code} "));
    if says("NOSCRIPT") {
        (Answer::NotRun(NotRun::Later(words)), After::Reload)
    } else if says("READONLY") {
        (Answer::NotRun(NotRun::Elsewhere(words)), After::Close)
    } else if says("MOVED") {
        (Answer::NotRun(NotRun::Elsewhere(words)), After::Fine)
    } else if ["ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "BUSY"]
        .iter()
        .any(|code| says(code))
    {
        // A shard that is on the move from one server to another is on neither until it has arrived.
        (Answer::NotRun(NotRun::Later(words)), After::Fine)
    } else {
        (Answer::Refused(words), After::Fine)
    }
}

impl NotRun {
    fn again(&self) -> Self {
        match self {
            Self::Later(why) => Self::Later(why.clone()),
            Self::Elsewhere(why) => Self::Elsewhere(why.clone()),
            Self::Unusable(what) => Self::Unusable(what.clone()),
        }
    }
}

impl Command {
    /// A script on a shard, which nobody hears of before the replicas have it.
    pub(super) fn script(shard: u16, script: Script) -> Self {
        let what = What::Script { script, keys: Vec::new(), arguments: Vec::new() };
        Self { what, proof: Proof::Needed, shard }
    }

    /// A command of the server's own on a shard.
    pub(super) fn plain<'a>(shard: u16, words: impl IntoIterator<Item = &'a str>) -> Self {
        let words = words.into_iter().map(|word| word.as_bytes().to_vec()).collect();
        Self { what: What::Plain(words), proof: Proof::NotNeeded, shard }
    }

    pub(super) fn keys(mut self, names: impl IntoIterator<Item = String>) -> Self {
        if let What::Script { keys, .. } = &mut self.what {
            keys.extend(names);
        }
        self
    }

    pub(super) fn arguments(mut self, values: impl IntoIterator<Item = Vec<u8>>) -> Self {
        if let What::Script { arguments, .. } = &mut self.what {
            arguments.extend(values);
        }
        self
    }

    pub(super) fn proof(self, proof: Proof) -> Self {
        Self { proof, ..self }
    }

    /// The answer may be told before the replicas have what it rests on.
    pub(super) fn unproven(self) -> Self {
        self.proof(Proof::NotNeeded)
    }

    fn bytes(&self) -> usize {
        match &self.what {
            What::Script { arguments, .. } => 128 + arguments.iter().map(Vec::len).sum::<usize>(),
            What::Plain(words) => words.iter().map(Vec::len).sum(),
        }
    }

    fn on(&self, link: &Link) -> Cmd {
        match &self.what {
            What::Plain(words) => {
                let mut command = Cmd::new();
                for word in words {
                    command.arg(word.as_slice());
                }
                command
            }
            What::Script { script, keys, arguments } => {
                let mut command = Cmd::with_capacity(3 + keys.len() + arguments.len(), self.bytes() + 128);
                command.arg("EVALSHA").arg(link.hash(*script)).arg(keys.len());
                for key in keys {
                    command.arg(key.as_str());
                }
                for argument in arguments {
                    command.arg(argument.as_slice());
                }
                command
            }
        }
    }
}
