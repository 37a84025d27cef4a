//! The connections, and what goes over them.
//!
//! A job waits in the queue until a connection is free, which takes all that can go with it. Where all are busy
//! another one is opened, up to a limit. A job whose reply was lost goes back to the queue and is sent again:
//! writing by compare-and-swap is safe to repeat, and whoever then finds his very own record in the way has written
//! it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use onceward::{OperationId, Record, State, StoreError, Swap};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::fault::{self, Fault};
use super::link::{Link, Pooler, no_answer};
use super::listen::Moment;
use super::queue::{Company, Job, Kind, Queue, Sent, Waiting};
use super::rows::{self, Answered, Body, Changes, Statements, signed};
use super::{Shared, TIME};

/// How long a statement waits for somebody else's lock; after that its jobs go one by one, and the one that is held up
/// lets the others pass. Shorter than the server takes to look for a deadlock.
const PATIENCE_MS: i32 = 200;
/// How long jobs wait for a busy connection before another one takes them, and how many wait at the most.
const WORTH_WAITING: Duration = Duration::from_millis(8);
const CROWD: usize = 128;
/// How many operations have a tally of replays that is not written yet; beyond that, replays are not counted.
const MAX_TALLIES: usize = 65_536;
/// How long a tally waits for a lock.
const TALLY_PATIENCE_MS: i32 = 50;
/// How long a listing or a count may take.
const LONG_QUESTION: Duration = Duration::from_secs(60);
/// How old a reading of the server's clock may be that comes along with a batch.
const GOOD_READING: Duration = Duration::from_millis(20);
/// How often an idle store looks at the server's clock.
const CLOCK: Duration = Duration::from_secs(5);

/// The connections of one store.
pub(super) struct Desk {
    shared: Arc<Shared>,
    statements: Statements,
    handle: Handle,
    state: Mutex<Inside>,
    tallies: Mutex<HashMap<OperationId, u64>>,
}

#[derive(Default)]
struct Inside {
    queue: Queue,
    idle: Vec<Link>,
    /// How many connections are busy, or being opened.
    busy: usize,
    /// How many of them with a question that may take long.
    asking: usize,
    /// Whether somebody will look again soon at what waits.
    reminded: bool,
}

/// What is left of a batch after it was sent.
enum Rest {
    /// Nothing: all were answered.
    Answered,
    /// These were not, and the connection is of no use any more.
    Lost(Vec<Waiting>, StoreError),
    /// These were not written, and are tried again, each alone.
    Again(Vec<Waiting>),
    /// This one was not written, because of somebody else's lock: after all others, again.
    HeldUp(Waiting),
}

impl Desk {
    pub(super) fn new(shared: Arc<Shared>, handle: Handle, first: Link) -> Arc<Self> {
        let statements = Statements::new(&shared.options.schema);
        let inside = Inside { idle: vec![first], ..Inside::default() };
        let desk = Self { shared, statements, handle, state: Mutex::new(inside), tallies: Mutex::default() };
        let desk = Arc::new(desk);
        desk.handle.spawn(keep_time(Arc::downgrade(&desk)));
        desk
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many connections there are.
    pub(super) fn connections(&self) -> usize {
        let inside = self.inside();
        inside.busy + inside.idle.len()
    }

    /// Hands a job over.
    pub(super) fn post(self: &Arc<Self>, job: Job) {
        self.inside().queue.push(Waiting::new(job, self.shared.options.timeout));
        self.set_to_work();
    }

    /// Gives what waits to a connection: to one that is idle, or to a new one. While another one is busy with a
    /// batch, a few that wait are better off together: it takes them all when it is done.
    fn set_to_work(self: &Arc<Self>) {
        let mut inside = self.inside();
        if inside.queue.is_empty() {
            return;
        }
        let worth_it = inside.busy == inside.asking
            || inside.queue.len() >= CROWD
            || inside.queue.waited() >= WORTH_WAITING;
        if !worth_it {
            if !std::mem::replace(&mut inside.reminded, true) {
                self.handle.spawn(remind(Arc::clone(self)));
            }
            return;
        }
        inside.idle.retain(|link| !link.is_closed());
        let link = inside.idle.pop();
        if link.is_some() || inside.busy < self.shared.options.connections {
            inside.busy += 1;
            self.handle.spawn(Arc::clone(self).serve(link));
        }
    }

    /// Works off the queue until it is empty.
    async fn serve(self: Arc<Self>, mut link: Option<Link>) {
        loop {
            let Some(connected) = self.connected(link.take()).await else { break };
            let batch = {
                let mut inside = self.inside();
                let batch = inside.queue.take_batch();
                if batch.is_empty() {
                    inside.idle.push(connected);
                    break;
                }
                batch
            };
            let batch = self.without_those_over(batch);
            let asks = batch.first().is_some_and(|waiting| waiting.job.kind() == Kind::Ask);
            self.inside().asking += usize::from(asks);
            if asks {
                self.set_to_work();
            }
            let rest = self.send(&connected, batch).await;
            self.inside().asking -= usize::from(asks);
            match rest {
                Rest::Answered => link = Some(connected),
                Rest::Again(jobs) => {
                    self.inside().queue.put_back(jobs);
                    self.set_to_work();
                    link = Some(connected);
                }
                Rest::HeldUp(waiting) => {
                    self.inside().queue.push(waiting);
                    link = Some(connected);
                }
                Rest::Lost(jobs, error) => {
                    let jobs = self.still_in_time(jobs, &error);
                    self.inside().queue.put_back(jobs);
                }
            }
        }
        self.inside().busy -= 1;
        self.set_to_work();
    }

    /// The connection, or a new one; `None` where nobody waits for it any more.
    async fn connected(&self, link: Option<Link>) -> Option<Link> {
        if let Some(link) = link.filter(|link| !link.is_closed()) {
            return Some(link);
        }
        let mut pause = Duration::from_millis(20);
        loop {
            let error = match Link::open(&self.shared.options).await {
                Ok((link, server)) => {
                    self.shared.clock.read(server.now_ms);
                    return Some(link);
                }
                Err(error) => error,
            };
            let over = match &error {
                // No time will mend it, so nobody need wait.
                StoreError::Unusable { .. } | StoreError::Missing { .. } => {
                    let mut inside = self.inside();
                    std::iter::from_fn(|| Some(inside.queue.take_batch()).filter(|batch| !batch.is_empty()))
                        .flatten()
                        .collect()
                }
                StoreError::Unavailable { .. } => self.inside().queue.take_over(),
            };
            fail_all(over, &error);
            if self.inside().queue.is_empty() {
                return None;
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }

    fn without_those_over(&self, batch: Vec<Waiting>) -> Vec<Waiting> {
        self.still_in_time(batch, &no_answer(&self.shared.options))
    }

    /// Those that still have time; the others hear that they have not.
    fn still_in_time(&self, jobs: Vec<Waiting>, error: &StoreError) -> Vec<Waiting> {
        let (over, left): (Vec<_>, Vec<_>) = jobs.into_iter().partition(Waiting::is_over);
        fail_all(over, error);
        left
    }

    /// Sends a batch and answers what can be answered.
    async fn send(&self, link: &Link, batch: Vec<Waiting>) -> Rest {
        let Some(first) = batch.first() else { return Rest::Answered };
        let kind = first.job.kind();
        let moment = self.shared.memory.moment();
        let patience = match kind {
            // To count or list much takes its time.
            Kind::Ask => self.shared.options.timeout.max(LONG_QUESTION),
            Kind::Swap | Kind::Delete | Kind::Load | Kind::Watch => self.shared.options.timeout,
        };
        let begun = Instant::now();
        let sent = timeout(patience, self.ask(link, kind, &batch)).await;
        let took = begun.elapsed();
        // A change that its standby did not confirm is one whose reply was lost.
        let warned = link.warned() && matches!(kind, Kind::Swap | Kind::Delete);
        match sent {
            Ok(Ok(rows)) if !warned => {
                self.answer(kind, batch, &rows, Asked { moment, took });
                Rest::Answered
            }
            Ok(Ok(_)) => {
                Rest::Lost(sent_before(batch), StoreError::unavailable("the standby did not confirm a write"))
            }
            Err(_) => Rest::Lost(sent_before(batch), no_answer(&self.shared.options)),
            Ok(Err(Failed::Ours(error))) => {
                fail_all(batch, &error);
                Rest::Answered
            }
            Ok(Err(Failed::Theirs(error))) => match fault::of(&error) {
                Fault::Lost => Rest::Lost(sent_before(batch), fault::explain(error)),
                Fault::Busy | Fault::Refused if batch.len() > 1 => Rest::Again(each_alone(batch)),
                Fault::Busy => held_up(batch, error),
                Fault::Refused => {
                    fail_all(batch, &fault::explain(error));
                    Rest::Answered
                }
            },
        }
    }

    async fn ask(&self, link: &Link, kind: Kind, batch: &[Waiting]) -> Result<Vec<Row>, Failed> {
        let ids: Vec<&str> =
            batch.iter().filter_map(|waiting| waiting.job.id()).map(OperationId::as_str).collect();
        let versions: Vec<i64> = batch.iter().filter_map(|waiting| version(&waiting.job)).collect();
        let pooler = self.shared.pooler();
        let sent = match kind {
            Kind::Swap => {
                let mut changes = Changes::default();
                for waiting in batch {
                    if let Job::Swap { expected, record, .. } = &waiting.job {
                        changes.push(*expected, record).map_err(Failed::Ours)?;
                    }
                }
                let again = batch.iter().any(|waiting| waiting.sent == Sent::Before);
                link.ask(&self.statements.swap, &changes.values(&Some(PATIENCE_MS), &again), pooler).await
            }
            Kind::Delete => link.ask(&self.statements.delete, &[&PATIENCE_MS, &ids, &versions], pooler).await,
            Kind::Load => link.ask(&self.statements.load, &[&ids], pooler).await,
            Kind::Watch => link.ask(&self.statements.watch, &[&PATIENCE_MS, &ids, &versions], pooler).await,
            Kind::Ask => match batch.first().map(|waiting| &waiting.job) {
                Some(Job::Ask { question, .. }) => {
                    self.write_tallies(link).await;
                    let values: Vec<&(dyn ToSql + Sync)> =
                        question.values.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect();
                    link.ask(&question.statement, &values, Pooler::Perhaps).await
                }
                Some(_) | None => Ok(Vec::new()),
            },
        };
        sent.map_err(Failed::Theirs)
    }

    /// Tells everyone in the batch what came of his job.
    fn answer(&self, kind: Kind, batch: Vec<Waiting>, rows: &[Row], asked: Asked) {
        let answered = match kind {
            Kind::Swap => self.answer_swaps(batch, rows, asked),
            Kind::Delete => self.answer_deletes(batch, rows),
            Kind::Load => self.answer_loads(batch, rows, asked.moment),
            Kind::Watch => answer_watches(batch, rows),
            Kind::Ask => {
                for waiting in batch {
                    if let Job::Ask { reply, .. } = waiting.job {
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

    fn answer_swaps(&self, batch: Vec<Waiting>, rows: &[Row], asked: Asked) -> Answer {
        let moment = asked.moment;
        let answered = match Answered::from_rows(rows) {
            Ok(answered) => answered,
            Err(error) => return Err((batch, error)),
        };
        // The server looked at its clock before it waited for its disk.
        if asked.took < GOOD_READING {
            self.shared.clock.read(answered.now_ms);
        }
        let written: std::collections::HashSet<&str> = answered.written.iter().map(String::as_str).collect();
        let mut standing: HashMap<OperationId, Arc<Record>> =
            answered.standing.into_iter().map(|record| (record.id.clone(), record)).collect();
        for waiting in batch {
            let Job::Swap { expected, record, reply } = waiting.job else { continue };
            let found = standing.remove(&record.id);
            let mine = waiting.sent == Sent::Before
                && found.as_ref().is_some_and(|found| rows::is_the_same(found, &record));
            let swap = if mine || written.contains(record.id.as_str()) {
                self.note_written(expected, &record, moment);
                Swap::Written(record)
            } else {
                if let (Some(found), Some(moment)) = (&found, moment) {
                    self.shared.memory.keep(found, moment);
                }
                Swap::Conflict(found)
            };
            drop(reply.send(Ok(swap)));
        }
        Ok(())
    }

    /// A record was written: those who wait here need no notification, and memory follows.
    fn note_written(&self, expected: Option<u64>, record: &Arc<Record>, moment: Option<Moment>) {
        match (record.state, moment) {
            (State::Done, Some(moment)) => self.shared.memory.keep(record, moment),
            (State::Done, None) => {}
            (
                State::Staged
                | State::Running
                | State::Failed
                | State::InDoubt
                | State::Cancelled
                | State::Expired,
                _,
            ) => {
                if expected.is_some() {
                    self.shared.memory.changed(&record.id);
                }
            }
        }
        self.shared.watchers.notify(&record.id);
    }

    fn answer_deletes(&self, batch: Vec<Waiting>, rows: &[Row]) -> Answer {
        let deleted = match ids_of(rows) {
            Ok(deleted) => deleted,
            Err(error) => return Err((batch, error)),
        };
        for waiting in batch {
            let Job::Delete { id, reply, .. } = waiting.job else { continue };
            let gone = deleted.contains(id.as_str());
            self.shared.memory.changed(&id);
            self.shared.watchers.notify(&id);
            let answer = match (gone, waiting.sent) {
                (true, _) => Ok(true),
                (false, Sent::Never) => Ok(false),
                (false, Sent::Before) => Err(StoreError::unavailable(
                    "the reply to a deletion was lost, and whether it deleted the record cannot be told; look again",
                )),
            };
            drop(reply.send(answer));
        }
        Ok(())
    }

    fn answer_loads(&self, batch: Vec<Waiting>, rows: &[Row], moment: Option<Moment>) -> Answer {
        let found: Result<Vec<_>, _> = rows.iter().map(|row| rows::record(row, 0, Body::Along)).collect();
        let mut found: HashMap<OperationId, Arc<Record>> = match found {
            Ok(found) => found.into_iter().map(|record| (record.id.clone(), Arc::new(record))).collect(),
            Err(error) => return Err((batch, error)),
        };
        for waiting in batch {
            let Job::Load { id, reply } = waiting.job else { continue };
            let record = found.remove(&id);
            if let (Some(record), Some(moment)) = (&record, moment) {
                self.shared.memory.keep(record, moment);
            }
            drop(reply.send(Ok(record)));
        }
        Ok(())
    }

    /// Notes a replay; it is written along with the next listing, now and then, or when the store is closed.
    pub(super) fn tally_replay(&self, id: &OperationId) {
        let mut tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = tallies.get_mut(id) {
            *count += 1;
        } else if tallies.len() < MAX_TALLIES {
            tallies.insert(id.clone(), 1);
        }
    }

    /// Writes the tallies. They may be lost, so nobody hears of a failure.
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

    /// What there is to do when nothing is: look at the clock, and write the tallies.
    pub(super) async fn tidy_up(&self) {
        let Some(link) = self.inside().idle.pop() else { return };
        let work = async {
            self.write_tallies(&link).await;
            link.client.query_typed(TIME, &[]).await
        };
        let Ok(Ok(rows)) = timeout(self.shared.options.timeout, work).await else { return };
        if let Some(now_ms) = rows.first().and_then(|row| row.try_get(0).ok()) {
            self.shared.clock.read(now_ms);
        }
        self.inside().idle.push(link);
    }

    /// Whether there are tallies to write.
    pub(super) fn has_tallies(&self) -> bool {
        !self.tallies.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

/// When a batch was sent, and how long its answer took.
#[derive(Clone, Copy)]
struct Asked {
    moment: Option<Moment>,
    took: Duration,
}

/// Why a statement brought no rows.
enum Failed {
    /// It could not be put together.
    Ours(StoreError),
    /// The server, or the way to it.
    Theirs(tokio_postgres::Error),
}

/// What answering a batch comes to: where it cannot be understood, the batch goes back with the reason.
type Answer = Result<(), (Vec<Waiting>, StoreError)>;

fn answer_watches(batch: Vec<Waiting>, rows: &[Row]) -> Answer {
    let unchanged = match ids_of(rows) {
        Ok(unchanged) => unchanged,
        Err(error) => return Err((batch, error)),
    };
    for waiting in batch {
        if let Job::Watch { id, reply, .. } = waiting.job {
            drop(reply.send(Ok(unchanged.contains(id.as_str()))));
        }
    }
    Ok(())
}

fn ids_of(rows: &[Row]) -> Result<std::collections::HashSet<&str>, StoreError> {
    rows.iter().map(|row| rows::cell(row, 0)).collect()
}

fn version(job: &Job) -> Option<i64> {
    match job {
        Job::Delete { expected, .. } => Some(signed(*expected)),
        Job::Watch { seen, .. } => Some(signed(*seen)),
        Job::Swap { .. } | Job::Load { .. } | Job::Ask { .. } => None,
    }
}

fn sent_before(batch: Vec<Waiting>) -> Vec<Waiting> {
    batch.into_iter().map(|waiting| Waiting { sent: Sent::Before, ..waiting }).collect()
}

fn each_alone(batch: Vec<Waiting>) -> Vec<Waiting> {
    batch.into_iter().map(|waiting| Waiting { company: Company::Alone, ..waiting }).collect()
}

/// A job that went alone and met somebody else's lock is tried again while it has time.
fn held_up(mut batch: Vec<Waiting>, error: tokio_postgres::Error) -> Rest {
    match batch.pop() {
        Some(waiting) if !waiting.is_over() => Rest::HeldUp(Waiting { company: Company::Alone, ..waiting }),
        waiting => {
            fail_all(Vec::from_iter(waiting), &fault::explain(error));
            Rest::Answered
        }
    }
}

fn fail_all(jobs: Vec<Waiting>, error: &StoreError) {
    for waiting in jobs {
        waiting.job.fail(match error {
            StoreError::Unavailable { what, .. } => StoreError::unavailable(what.clone()),
            StoreError::Unusable { what } => StoreError::Unusable { what: what.clone() },
            StoreError::Missing { what } => StoreError::Missing { what: what.clone() },
        });
    }
}

/// Looks again at what waits: a batch that takes long holds up nobody else for long.
async fn remind(desk: Arc<Desk>) {
    sleep(WORTH_WAITING).await;
    desk.inside().reminded = false;
    desk.set_to_work();
}

/// Looks at the server's clock now and then, for as long as the store lives.
async fn keep_time(desk: std::sync::Weak<Desk>) {
    loop {
        sleep(CLOCK).await;
        match desk.upgrade() {
            Some(desk) => desk.tidy_up().await,
            None => return,
        }
    }
}
