//! One server, and the connections to it. All commands waiting when a connection is free are sent in one batch.
//!
//! A server syncs once for everything in its buffers, and a replica confirms everything before a point with one
//! reply. So commands are sent together: the scripts of all callers, a mark, and one `WAIT` after them. No result is
//! reported before the replicas have what it is based on.

mod command;
pub(super) mod recent;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use onceward::OperationId;
use redis::{Pipeline, ServerError, Value};
use tokio::sync::{mpsc, oneshot};

use super::entry::Keys;
use super::fault::ConnectError;
use super::link::{Address, Link};
use super::options::{Layout, MAX_SHARDS, RedisOptions};
use super::scripts::Script;
use super::settings::{Replicas, text};
use crate::remote::recent::RecentWrites;

/// The maximum number of commands in a batch, and the maximum size.
const MAX_BATCH: usize = 512;
const MAX_BATCH_BYTES: usize = 4 * 1024 * 1024;
/// How many operations may have an unwritten replay tally. Beyond that, replays are not counted.
const MAX_TALLIES: usize = 65_536;
/// How many tallies one batch writes.
const TALLIES_PER_BATCH: usize = 64;
/// Back-off after a server could not be reached: initial and maximum.
const BACKOFF: std::ops::RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_millis(400);

/// A command for a server.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) what: What,
    pub(super) confirm: Confirm,
    pub(super) safety: Safety,
    /// The shard whose server must answer.
    pub(super) shard: u16,
}

/// Whether a command may be sent to a server whose settings are unsafe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Safety {
    /// It may not: an attempt may begin because of it.
    Required,
    /// It may: it records how an attempt ended, and a record that may be lost is better than none.
    NotRequired,
}

#[derive(Debug)]
pub(super) enum What {
    Script { script: Script, keys: Vec<String>, arguments: Vec<Vec<u8>> },
    Plain(Vec<Vec<u8>>),
}

/// Whether the reply may be used only after the replicas have what it is based on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Confirm {
    /// Only after they have it.
    Required,
    /// At once: nothing runs because of it.
    NotRequired,
}

/// The result of a command.
#[derive(Debug)]
pub(super) enum NodeReply {
    /// The server's reply.
    Reply(Value),
    /// It certainly was not executed, and may be sent again.
    NotRun(NotRun),
    /// It was sent, and no reply came.
    Lost(String),
    /// The server rejected it, with this message.
    Refused(String),
    /// The ledger is not the one that was opened. Nothing was written.
    Replaced(String),
    /// The ledger is in an older state than was acknowledged. Nothing was written.
    Older(String),
    /// Too few replicas have it.
    Unconfirmed { have: i64, need: u32 },
}

/// Why a command was not executed.
#[derive(Debug, Clone)]
pub(super) enum NotRun {
    /// There is no connection, or the server is not ready.
    Later(String),
    /// Another server has the shard.
    Elsewhere(String),
    /// The server's settings are unsafe.
    Unusable(String),
}

struct NodeRequest {
    command: Arc<Command>,
    until: Instant,
    answer: oneshot::Sender<NodeReply>,
}

/// What is known about the ledger once it has been opened.
#[derive(Debug)]
pub(super) struct Terms {
    /// How many replicas must confirm a write.
    pub(super) wait: AtomicU32,
    /// The ledger's mark, which every write compares.
    pub(super) mark: OnceLock<String>,
    /// Whether something was written since this was last read.
    pub(super) wrote: AtomicBool,
    /// The number of acknowledged writes in each shard, as far as this store knows.
    writes: Box<[AtomicU64]>,
    /// The newest records that this handle wrote, by shard.
    pub(super) recent: Arc<RecentWrites>,
    /// How the ledger was found to be in an older state, or without its own key. This is permanent: other stores may
    /// write to it and catch up with the number.
    pub(super) older: OnceLock<String>,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            wait: AtomicU32::default(),
            mark: OnceLock::default(),
            wrote: AtomicBool::default(),
            writes: (0..MAX_SHARDS).map(|_| AtomicU64::new(0)).collect(),
            recent: Arc::default(),
            older: OnceLock::default(),
        }
    }
}

impl Terms {
    /// What every write to a shard compares: the ledger's mark, and the minimum number of writes. If the server has
    /// had fewer, its state is older: a replica that lacked some writes was promoted, or a backup was restored.
    pub(super) fn write_guard(&self, shard: u16) -> [Vec<u8>; 2] {
        let writes = self.writes.get(usize::from(shard)).map_or(0, |writes| writes.load(Ordering::SeqCst));
        [self.mark().as_bytes().to_vec(), writes.to_string().into_bytes()]
    }

    /// The shards with acknowledged writes, and how many each has.
    pub(super) fn acknowledged_writes(&self) -> Vec<(u16, u64)> {
        let known = self.writes.iter().map(|writes| writes.load(Ordering::SeqCst));
        (0..).zip(known).filter(|(_, writes)| *writes > 0).collect()
    }

    /// Records the number of acknowledged writes in a shard.
    pub(super) fn acknowledge(&self, shard: u16, writes: i64) {
        if let (Some(known), Ok(writes)) = (self.writes.get(usize::from(shard)), u64::try_from(writes)) {
            known.fetch_max(writes, Ordering::SeqCst);
        }
        self.wrote.store(true, Ordering::Relaxed);
    }

    pub(super) fn mark(&self) -> &str {
        self.mark.get().map_or("", String::as_str)
    }
}

/// One server.
pub(super) struct Node {
    pub(super) hosts: Vec<Address>,
    queue: mpsc::UnboundedSender<NodeRequest>,
    shared: Arc<Shared>,
}

/// State shared by the connections to a server.
struct Shared {
    options: Arc<RedisOptions>,
    keys: Keys,
    hosts: Vec<Address>,
    terms: Arc<Terms>,
    tallies: Mutex<HashMap<OperationId, u64>>,
    backoff: Mutex<Backoff>,
    /// The number of replicas when the last batch was sent.
    replicas: AtomicU32,
    /// What is wrong with the server's settings, according to the last check.
    problem: RwLock<Option<String>>,
    /// The start and the history of the server that had the newest records of this handle.
    verified: Mutex<Option<String>>,
}

/// Until when a server is not contacted, and why.
#[derive(Default)]
struct Backoff {
    until: Option<Instant>,
    pause: Duration,
    why: String,
}

impl Node {
    /// Starts to serve the primary among `hosts`. Must be called on the store's own thread.
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
            backoff: Mutex::default(),
            replicas: AtomicU32::default(),
            problem: RwLock::default(),
            verified: Mutex::default(),
        });
        let (queue, jobs) = mpsc::unbounded_channel();
        tokio::spawn(serve(Arc::clone(&shared), jobs));
        Arc::new(Self { hosts, queue, shared })
    }

    /// Submits a command. Its answer comes within a bounded time.
    pub(super) fn send(&self, command: &Arc<Command>, until: Instant) -> oneshot::Receiver<NodeReply> {
        let (answer, answered) = oneshot::channel();
        let job = NodeRequest { command: Arc::clone(command), until, answer };
        if let Err(refused) = self.queue.send(job) {
            let gone = NotRun::Elsewhere("the store's runtime thread has stopped".to_owned());
            drop(refused.0.answer.send(NodeReply::NotRun(gone)));
        }
        answered
    }

    /// What is wrong with the server's settings. No attempt begins there until it is fixed.
    pub(super) fn settings_problem(&self) -> Option<String> {
        self.shared.problem.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records the result of a settings check.
    pub(super) fn record_check(&self, found: Result<(), String>) {
        *self.shared.problem.write().unwrap_or_else(PoisonError::into_inner) = found.err();
    }

    /// Counts a replay. Tallies are written with later batches.
    pub(super) fn tally_replay(&self, id: &OperationId) {
        let mut tallies = self.shared.tallies();
        if let Some(count) = tallies.get_mut(id) {
            *count += 1;
        } else if tallies.len() < MAX_TALLIES {
            tallies.insert(id.clone(), 1);
        }
    }

    /// Whether there are unwritten tallies.
    pub(super) fn has_tallies(&self) -> bool {
        !self.shared.tallies().is_empty()
    }
}

/// Sends waiting commands over free connections until the node is dropped.
async fn serve(shared: Arc<Shared>, mut jobs: mpsc::UnboundedReceiver<NodeRequest>) {
    let (back, mut returned) = mpsc::unbounded_channel();
    let mut idle: Vec<Link> = Vec::new();
    let mut busy = 0;
    while let Some(first) = jobs.recv().await {
        while let Ok(link) = returned.try_recv() {
            busy -= 1;
            return_link(&mut idle, link);
        }
        if busy >= shared.options.connections_per_node {
            let Some(link) = returned.recv().await else { return };
            busy -= 1;
            return_link(&mut idle, link);
        }
        // Only now, to include the commands that have arrived meanwhile.
        let batch = collect_batch(first, &mut jobs);
        // The connection that was used last, so that sequential calls use only one.
        let link = idle.pop();
        let (shared, back) = (Arc::clone(&shared), back.clone());
        busy += 1;
        tokio::spawn(async move { drop(back.send(shared.send_batch(link, batch).await)) });
    }
}

/// Keeps a connection for the next batch. If one has died, the others are most likely dead too.
fn return_link(idle: &mut Vec<Link>, link: Option<Link>) {
    match link {
        Some(link) => idle.push(link),
        None => idle.clear(),
    }
}

/// A job, and all that wait behind it, up to the limits.
fn collect_batch(first: NodeRequest, jobs: &mut mpsc::UnboundedReceiver<NodeRequest>) -> Vec<NodeRequest> {
    let mut bytes = first.command.bytes();
    let mut batch = vec![first];
    while batch.len() < MAX_BATCH && bytes < MAX_BATCH_BYTES {
        let Ok(job) = jobs.try_recv() else { break };
        bytes += job.command.bytes();
        batch.push(job);
    }
    batch
}

/// Replies to all jobs. Their callers may have stopped waiting.
fn answer_all(jobs: Vec<NodeRequest>, answer: impl Fn() -> NodeReply) {
    for job in jobs {
        drop(job.answer.send(answer()));
    }
}

/// What to do with a connection after a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// Keep it.
    Keep,
    /// Load the scripts again: the server has lost them.
    Reload,
    /// Close it.
    Close,
}

impl Shared {
    fn tallies(&self) -> MutexGuard<'_, HashMap<OperationId, u64>> {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn backoff(&self) -> MutexGuard<'_, Backoff> {
        self.backoff.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a batch over a connection, opening one if needed, and returns the connection if it is still usable.
    async fn send_batch(&self, link: Option<Link>, batch: Vec<NodeRequest>) -> Option<Link> {
        let now = Instant::now();
        let (batch, late): (Vec<NodeRequest>, Vec<NodeRequest>) =
            batch.into_iter().partition(|job| job.until > now);
        answer_all(late, || NodeReply::NotRun(NotRun::Later("it timed out before it was sent".to_owned())));
        let Some(until) = batch.iter().map(|job| job.until).min() else { return link };
        let mut link = match link {
            Some(link) => link,
            None => match self.open_verified(until).await {
                Ok(link) => link,
                Err(why) => {
                    answer_all(batch, || NodeReply::NotRun(why.clone()));
                    return None;
                }
            },
        };
        if let Some(seen) = self.terms.older.get() {
            answer_all(batch, || NodeReply::Older(seen.clone()));
            return Some(link);
        }
        match self.exchange(&mut link, batch, until).await {
            After::Keep => Some(link),
            After::Reload => {
                let reloaded = link.load_scripts(Instant::now() + self.options.timeout).await;
                reloaded.is_ok().then_some(link)
            }
            After::Close => None,
        }
    }

    /// Connects, and checks that the server still has the newest records of this handle.
    async fn open_verified(&self, until: Instant) -> Result<Link, NotRun> {
        let mut link = self.open(until).await?;
        self.verify(&mut link, until).await?;
        Ok(link)
    }

    /// Connects, unless a recent attempt failed.
    async fn open(&self, until: Instant) -> Result<Link, NotRun> {
        {
            let backoff = self.backoff();
            if backoff.until.is_some_and(|until| until > Instant::now()) {
                return Err(NotRun::Later(backoff.why.clone()));
            }
        }
        let opened = Link::open(&self.options, &self.hosts, until).await;
        let mut backoff = self.backoff();
        match opened {
            Ok(link) => {
                *backoff = Backoff::default();
                Ok(link)
            }
            Err(ConnectError::Unusable(what)) => Err(NotRun::Unusable(what)),
            Err(ConnectError::Unavailable(why)) => {
                backoff.pause = (backoff.pause * 2).clamp(*BACKOFF.start(), *BACKOFF.end());
                backoff.until = Some(Instant::now() + backoff.pause);
                backoff.why.clone_from(&why);
                Err(NotRun::Elsewhere(why))
            }
        }
    }

    /// Sends a batch and replies to all jobs in it.
    async fn exchange(&self, link: &mut Link, batch: Vec<NodeRequest>, until: Instant) -> After {
        let mut pipeline = Pipeline::with_capacity(batch.len() + 3);
        for job in &batch {
            pipeline.add_command(job.command.on(link));
        }
        for command in self.take_tallies() {
            pipeline.add_command(command.on(link));
        }
        let need = self.terms.wait.load(Ordering::Relaxed).max(self.replicas.load(Ordering::Relaxed));
        let last = batch.iter().rev().find(|job| job.command.confirm == Confirm::Required);
        let confirm = last.map(|job| BatchConfirm {
            shard: job.command.shard,
            need,
            counts: self.options.wait.is_none(),
        });
        if let Some(confirm) = &confirm {
            self.append_wait(confirm, &mut pipeline, until);
        }
        let values = match link.send(&pipeline, until).await {
            Ok(values) => values,
            Err(why) => {
                answer_all(batch, || NodeReply::Lost(why.clone()));
                return After::Close;
            }
        };
        let confirmed = match confirm {
            Some(confirm) => self.confirm(link, confirm, &values, until).await,
            None => Confirmation::Yes,
        };
        let mut after =
            if matches!(confirmed, Confirmation::Unknown(_)) { After::Close } else { After::Keep };
        for (job, value) in batch.into_iter().zip(values) {
            let (answer, then) = classify(value);
            if then != After::Keep && after != After::Close {
                after = then;
            }
            drop(job.answer.send(if job.command.confirm == Confirm::Required {
                confirmed.of(answer)
            } else {
                answer
            }));
        }
        after
    }

    /// Appends the query whether the replicas have the preceding commands. The replicas are counted first, but after
    /// all writes: a replica that connects later starts with a copy that has them.
    fn append_wait(&self, confirm: &BatchConfirm, pipeline: &mut Pipeline, until: Instant) {
        if confirm.counts {
            pipeline.cmd("INFO").arg("replication");
        }
        if confirm.need > 0 {
            // `WAIT` covers what this connection has written itself, and this write comes after everything it has
            // read.
            pipeline.cmd("SET").arg(self.keys.mark(confirm.shard)).arg(1);
            let span = self.options.wait_timeout.min(until.saturating_duration_since(Instant::now()) / 2);
            let wait_ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1);
            pipeline.cmd("WAIT").arg(confirm.need).arg(wait_ms);
        }
    }

    /// Whether the replicas have a batch: both the required number and all that are connected now. A replica that has
    /// connected since the last batch is waited for as well.
    async fn confirm(
        &self,
        link: &mut Link,
        confirm: BatchConfirm,
        values: &[Value],
        until: Instant,
    ) -> Confirmation {
        let behind = if confirm.need > 0 { 2 } else { 0 };
        let mut need = confirm.need;
        if confirm.counts {
            let info = values.len().checked_sub(behind + 1).and_then(|at| values.get(at));
            match info.and_then(text) {
                Some(info) => need = self.required_replicas(Replicas::read(&info)),
                None => {
                    return Confirmation::Unknown(
                        "the server does not report how many replicas it has".to_owned(),
                    );
                }
            }
        }
        if need <= confirm.need {
            return if confirm.need > 0 { evaluate_wait(values, need) } else { Confirmation::Yes };
        }
        let mut again = Pipeline::with_capacity(2);
        self.append_wait(&BatchConfirm { need, counts: false, ..confirm }, &mut again, until);
        match link.send(&again, until).await {
            Ok(values) => evaluate_wait(&values, need),
            Err(why) => Confirmation::Unknown(why),
        }
    }

    /// How many replicas must confirm a batch, given the connected ones. A standalone server never needs fewer later,
    /// unless the URL says so. In a cluster, replicas move between primaries.
    fn required_replicas(&self, there: Replicas) -> u32 {
        self.replicas.store(there.all, Ordering::Relaxed);
        if self.options.layout != Layout::Cluster {
            self.terms.wait.fetch_max(there.online, Ordering::Relaxed);
        }
        self.terms.wait.load(Ordering::Relaxed).max(there.all)
    }

    /// Takes some of the tallies, to be written with a batch.
    fn take_tallies(&self) -> Vec<Command> {
        let mut tallies = self.tallies();
        let some: Vec<OperationId> = tallies.keys().take(TALLIES_PER_BATCH).cloned().collect();
        let taken = some.into_iter().filter_map(|id| tallies.remove_entry(&id));
        taken
            .map(|(id, count)| {
                let shard = self.keys.shard(&id);
                Command::script(shard, Script::Tally)
                    .keys([self.keys.record(&id), self.keys.root(shard)])
                    .arguments([count.to_string().into_bytes(), self.terms.mark().as_bytes().to_vec()])
            })
            .collect()
    }
}

/// The query after a batch whether the replicas have it.
#[derive(Debug, Clone, Copy)]
struct BatchConfirm {
    /// A shard of that server.
    shard: u16,
    /// How many replicas must confirm.
    need: u32,
    /// Whether the replicas are counted. Not needed if the URL sets the number.
    counts: bool,
}

/// Whether the replicas have a batch.
enum Confirmation {
    Yes,
    TooFew {
        have: i64,
        need: u32,
    },
    /// The mark could not be written, so it is unknown.
    Unknown(String),
}

/// Evaluates the last two replies of a batch: to the mark and to `WAIT`.
fn evaluate_wait(values: &[Value], need: u32) -> Confirmation {
    match values {
        [.., Value::Okay, Value::Int(have)] if *have >= i64::from(need) => Confirmation::Yes,
        [.., Value::Okay, Value::Int(have)] => Confirmation::TooFew { have: *have, need },
        [.., Value::ServerError(error), _] => Confirmation::Unknown(error_text(error)),
        [.., mark, wait] => {
            Confirmation::Unknown(format!("unexpected replies to the mark and WAIT: {mark:?} and {wait:?}"))
        }
        [] | [_] => Confirmation::Unknown("no answer to WAIT".to_owned()),
    }
}

impl Confirmation {
    /// The answer that may be reported to the caller.
    fn of(&self, answer: NodeReply) -> NodeReply {
        match (answer, self) {
            (NodeReply::Reply(_), Self::TooFew { have, need }) => {
                NodeReply::Unconfirmed { have: *have, need: *need }
            }
            (NodeReply::Reply(_), Self::Unknown(words)) => NodeReply::Lost(words.clone()),
            (answer, Self::Yes | Self::TooFew { .. } | Self::Unknown(_)) => answer,
        }
    }
}

fn error_text(error: &ServerError) -> String {
    format!("{} {}", error.code(), error.details().unwrap_or_default())
}

/// Classifies a reply, and decides what to do with the connection.
fn classify(value: Value) -> (NodeReply, After) {
    let Value::ServerError(error) = value else { return (NodeReply::Reply(value), After::Keep) };
    let words = error_text(&error);
    // Servers before version 7 put the error of a command inside a script into the text of the script's error.
    let says = |code: &str| error.code() == code || words.contains(&format!(": -{code} "));
    if error.code() == "REPLACED" {
        (NodeReply::Replaced(error.details().unwrap_or_default().to_owned()), After::Keep)
    } else if error.code() == "OLDER" {
        (NodeReply::Older(error.details().unwrap_or_default().to_owned()), After::Keep)
    } else if says("NOSCRIPT") {
        (NodeReply::NotRun(NotRun::Later(words)), After::Reload)
    } else if says("READONLY") {
        (NodeReply::NotRun(NotRun::Elsewhere(words)), After::Close)
    } else if says("MOVED") {
        (NodeReply::NotRun(NotRun::Elsewhere(words)), After::Keep)
    } else if ["ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "BUSY"]
        .iter()
        .any(|code| says(code))
    {
        // A shard that is moving between servers is on neither until all of it has arrived.
        (NodeReply::NotRun(NotRun::Later(words)), After::Keep)
    } else {
        (NodeReply::Refused(words), After::Keep)
    }
}
