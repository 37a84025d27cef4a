//! The downstream, which counts the real effects, and the workers that call it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onceward::{
    Attempt, Call, Cancelled, Class, Clock, Compensation, CompensationKind, DEFAULT_SCOPE, Done, Effect,
    EffectNow, Error, Evidence, Failure, Hold, Intent, Ledger, Operation, OperationId, Outcome, ProbeAnswer,
    Record, Reversal, Terms, UndoOutcome, Verdict, Word,
};

use super::clock::VirtualClock;
use crate::random::Random;

/// The number of operations: few, so that workers collide. One of each class, one with a short retention, one that is
/// staged and cancelled, and two that are held: for a time, and for a person.
pub const OPERATIONS: usize = 8;
const CLASSES: [Class; OPERATIONS] = [
    Class::Once,
    Class::Probed,
    Class::Idempotent,
    Class::Keyed,
    Class::Once,
    Class::Once,
    Class::Once,
    Class::Probed,
];
const SHORT_LIVED: usize = 4;
const CANCELLABLE: usize = 5;
const HELD_FOR_A_TIME: usize = 6;
const HELD_FOR_A_PERSON: usize = 7;
/// How long the one is held.
const HOLD_MS: u64 = 1_500;
const NAP_MS: u64 = 400;
/// How long a slow request may be in flight after its sender has given up. Even a worker that is suspended before it
/// sends a slow request is finished before lease and quarantine end.
const SLOW_REQUEST_MS: u64 = 15_000;
/// How long the downstream promises to honour a key, and how long it really does.
const PROMISED_WINDOW_MS: u64 = 20_000;
const REAL_WINDOW_MS: i64 = 100_000;

/// Everything outside the ledger.
pub struct World {
    clock: VirtualClock,
    inner: Mutex<Inner>,
}

struct Inner {
    random: Random,
    effects: BTreeMap<String, Vec<u32>>,
    /// Requests in flight, whether or not their sender is alive.
    in_flight: Vec<Request>,
    /// Calls that may still send something.
    calling: BTreeMap<String, u64>,
    /// When the downstream first saw each key that it honours.
    keys: BTreeMap<String, i64>,
    /// How many workers ran each operation themselves and got `done`.
    acknowledged: BTreeMap<String, u64>,
    /// Callers that got `done` before anything had happened.
    misinformed: Vec<String>,
    /// From when each held operation may start, according to the answers; `None` if a person must release it.
    held: BTreeMap<String, Option<i64>>,
    /// Held operations that a person has released, or has tried to.
    released: BTreeSet<String>,
    releases: u64,
    /// Callers that got the result of an operation after its effect was taken back.
    misled: Vec<String>,
    settled: u64,
    cancelled: u64,
    stopped: u64,
}

#[derive(Debug, Clone)]
struct Request {
    arrives_ms: i64,
    id: String,
    attempt: u32,
    /// The key, if the downstream honours one.
    key: Option<String>,
}

impl Inner {
    /// Delivers the requests that are due.
    fn arrive(&mut self, now_ms: i64) {
        let (mut arrived, in_flight) = std::mem::take(&mut self.in_flight)
            .into_iter()
            .partition::<Vec<_>, _>(|request| request.arrives_ms <= now_ms);
        self.in_flight = in_flight;
        arrived.sort_by_key(|request| request.arrives_ms);
        for request in arrived {
            if let Some(key) = request.key {
                let seen_ms = self.keys.get(&key).copied();
                if seen_ms.is_some_and(|seen_ms| request.arrives_ms < seen_ms + REAL_WINDOW_MS) {
                    continue;
                }
                self.keys.insert(key, request.arrives_ms);
            }
            self.effects.entry(request.id).or_default().push(request.attempt);
        }
    }
}

/// A call that may still send something, for as long as its worker is alive.
pub(super) struct Calling<'a> {
    world: &'a World,
    id: String,
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.world.inner().calling.get_mut(&self.id) {
            *count -= 1;
        }
    }
}

impl World {
    /// A world without effects.
    #[must_use]
    pub fn new(clock: VirtualClock, random: Random) -> Self {
        let inner = Inner {
            random,
            effects: BTreeMap::new(),
            in_flight: Vec::new(),
            calling: BTreeMap::new(),
            keys: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            misinformed: Vec::new(),
            held: BTreeMap::new(),
            released: BTreeSet::new(),
            releases: 0,
            misled: Vec::new(),
            settled: 0,
            cancelled: 0,
            stopped: 0,
        };
        Self { clock, inner: Mutex::new(inner) }
    }

    /// The world at the current time.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.arrive(self.clock.now_ms());
        inner
    }

    /// The attempts of an operation that had an effect.
    #[must_use]
    pub fn effects(&self, id: &str) -> Vec<u32> {
        self.inner().effects.get(id).cloned().unwrap_or_default()
    }

    /// How many workers ran it themselves and got `done`.
    #[must_use]
    pub fn acknowledged(&self, id: &str) -> u64 {
        self.inner().acknowledged.get(id).copied().unwrap_or(0)
    }

    /// Callers that got `done` before anything had happened.
    #[must_use]
    pub fn misinformed(&self) -> Vec<String> {
        self.inner().misinformed.clone()
    }

    /// Callers that got the result of an operation after its effect was taken back.
    #[must_use]
    pub fn misled(&self) -> Vec<String> {
        self.inner().misled.clone()
    }

    /// The total number of effects.
    #[must_use]
    pub fn effects_in_all(&self) -> u64 {
        self.inner().effects.values().map(|attempts| attempts.len() as u64).sum()
    }

    /// How many doubts a person has settled.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.inner().settled
    }

    /// How many held operations were released.
    #[must_use]
    pub fn releases(&self) -> u64 {
        self.inner().releases
    }

    /// How often the scope of the workers was stopped.
    #[must_use]
    pub fn stopped(&self) -> u64 {
        self.inner().stopped
    }

    /// How many operations were cancelled with certainty.
    #[must_use]
    pub fn cancelled(&self) -> u64 {
        self.inner().cancelled
    }

    pub(super) async fn nap(&self) {
        let ms = self.inner().random.below(NAP_MS);
        self.clock.sleep(ms).await;
    }

    fn chance(&self, permille: u64) -> bool {
        self.inner().random.permille(permille)
    }

    /// A probe's answer about whether it happened.
    fn answer(&self, record: &Record) -> ProbeAnswer {
        if self.chance(100) {
            return ProbeAnswer::CannotTell("the probe is out of order".to_owned());
        }
        match self.effects(record.id.as_str()).is_empty() {
            true => ProbeAnswer::No,
            false => ProbeAnswer::Yes(Outcome::with_effect(Effect::Created)),
        }
    }

    /// The finding of a person who can see every process and request: whether it happened, or `None` while something
    /// is in flight.
    pub(super) fn finding(&self, id: &str) -> Option<Verdict> {
        let inner = self.inner();
        if inner.effects.contains_key(id) {
            return Some(Verdict::Done);
        }
        let in_flight = inner.in_flight.iter().any(|request| request.id == id);
        let calling = inner.calling.get(id).is_some_and(|count| *count > 0);
        (!in_flight && !calling).then_some(Verdict::Failed)
    }

    pub(super) fn calling(&self, id: &OperationId) -> Calling<'_> {
        let id = id.to_string();
        *self.inner().calling.entry(id.clone()).or_default() += 1;
        Calling { world: self, id }
    }

    /// Sends the request of an attempt, which arrives after this time.
    fn send(&self, attempt: &Attempt, key: Option<String>, after_ms: u64) {
        let arrives_ms = self.clock.now_ms().saturating_add_unsigned(after_ms);
        let id = attempt.operation().to_string();
        self.inner().in_flight.push(Request { arrives_ms, id, attempt: attempt.number(), key });
    }

    /// Notes an attempt of a held operation that nothing allowed yet.
    fn note_if_early(&self, attempt: &Attempt) {
        let (id, now_ms) = (attempt.operation().to_string(), self.clock.now_ms());
        let mut inner = self.inner();
        let Some(until_ms) = inner.held.get(&id).copied() else { return };
        if !inner.released.contains(&id) && until_ms.is_none_or(|until_ms| now_ms < until_ms) {
            inner.misinformed.push(format!("the caller that started {id} while it was held"));
        }
    }

    /// The work of one attempt.
    pub(super) async fn act(&self, attempt: Attempt, class: Class) -> Result<Done, Failure> {
        self.note_if_early(&attempt);
        self.nap().await;
        if self.chance(50) {
            return Err(Failure::no_effect(Evidence::refused("the world refuses it"), "refused"));
        }
        // If this fails, nothing must be sent.
        let sent = attempt.dispatch()?;
        self.nap().await;
        let key = (class == Class::Keyed).then(|| attempt.downstream_key().to_owned());
        if self.chance(100) {
            let after_ms = self.inner().random.below(SLOW_REQUEST_MS);
            self.send(&attempt, key, after_ms);
            return Err(Failure::timed_out("no answer in time"));
        }
        self.send(&attempt, key, 0);
        self.nap().await;
        if self.chance(80) {
            return Err(Failure::in_doubt("the answer was lost"));
        }
        Ok(sent.created(&attempt.number()))
    }
}

/// An operation of the class that belongs to its number.
#[must_use]
pub fn operation(number: usize) -> Operation {
    // A large budget, so that crashes do not exhaust it, and a bounded wait.
    let mut terms = Terms { class: class(number), max_attempts: 1_000, wait_ms: 5_000, ..Terms::default() };
    terms.downstream_window_ms = PROMISED_WINDOW_MS;
    if number == SHORT_LIVED {
        terms.keep_results_for(2_000);
    }
    terms.hold = match number {
        HELD_FOR_A_TIME => Hold::For(HOLD_MS),
        HELD_FOR_A_PERSON => Hold::Approve,
        _ => Hold::No,
    };
    let undo = Compensation { runs: CompensationKind::Code, text: "take back".to_owned() };
    Operation::new("simulated").key(format!("key-{number}")).terms(terms).undo(Some(undo))
}

/// The operation that takes this one back.
///
/// # Errors
/// When its key is too long.
pub fn compensation(id: &OperationId) -> Result<OperationId, onceward::Error> {
    Ok(Operation::new("undo:simulated").key(format!("undo:{id}")).intent()?.id)
}

/// The class of an operation.
#[must_use]
pub fn class(number: usize) -> Class {
    CLASSES[number]
}

/// A worker: makes one call after another and ignores their errors.
pub async fn work(ledger: Ledger, world: Arc<World>, worker: usize, calls: usize) {
    for call in 0..calls {
        world.nap().await;
        let number = world.inner().random.index(OPERATIONS);
        let Ok(intent) = operation(number).intent() else { continue };
        if world.chance(150) {
            administer(&ledger, &world, &intent.id).await;
        }
        if world.chance(80) {
            take_back(&ledger, &world, &intent.id).await;
        }
        if world.chance(15) {
            stop_for_a_while(&ledger, &world).await;
        }
        if number == CANCELLABLE {
            hold_back_or_cancel(&ledger, &world, &intent).await;
        }
        if matches!(number, HELD_FOR_A_TIME | HELD_FOR_A_PERSON) {
            release_or_cancel(&ledger, &world, &intent).await;
        }
        let id = intent.id.clone();
        let _calling = world.calling(&id);
        let asked = Arc::clone(&world);
        let mut called = ledger.call(intent);
        if class(number) == Class::Probed {
            called = called.probe(move |record| {
                let answer = asked.answer(&record);
                std::future::ready(answer)
            });
        }
        let by = compensation(&id).map(|by| by.to_string()).unwrap_or_default();
        let gone_before = !world.effects(&by).is_empty();
        let done = make_call(called, &world, class(number), &format!("worker {worker}, call {call}")).await;
        if done && gone_before {
            world.inner().misled.push(format!("worker {worker}, call {call}, {id}"));
        }
    }
}

/// Stops the scope of the workers, and lets it continue after a pause. A worker that crashes in between leaves it
/// stopped.
async fn stop_for_a_while(ledger: &Ledger, world: &World) {
    if ledger.scopes().stop(DEFAULT_SCOPE, &Word::program("the simulation")).await.is_ok() {
        world.inner().stopped += 1;
    }
    world.nap().await;
    drop(ledger.scopes().resume(DEFAULT_SCOPE, &Word::program("the simulation")).await);
}

/// Takes an operation back, and sometimes settles a compensation in doubt first. Every error is acceptable here.
async fn take_back(ledger: &Ledger, world: &Arc<World>, id: &OperationId) {
    if let (true, Ok(by)) = (world.chance(300), compensation(id)) {
        administer(ledger, world, &by).await;
    }
    let Ok((record, state)) = ledger.find(id).await else { return };
    if Reversal::of(&record, state) != Reversal::Compensate {
        return;
    }
    let terms = Terms { max_attempts: 1_000, wait_ms: 5_000, ..Terms::default() };
    let Ok(undoing) = ledger.undo().begin(id, Operation::undo_of(&record).terms(terms)).await else { return };
    let _calling = world.calling(&undoing.intent.id);
    let acting = Arc::clone(world);
    let act = move |attempt| {
        let world = Arc::clone(&acting);
        async move { world.act(attempt, Class::Once).await }
    };
    let result = ledger.call(undoing.intent.clone()).run(act).await;
    let outcome = UndoOutcome::of(result.as_ref().map(|_| ()), &EffectNow::NotAsked);
    drop(ledger.undo().end(&undoing, &outcome).await);
}

/// Administration during a run: a person settles a doubt, results expire. Every error is acceptable here.
async fn administer(ledger: &Ledger, world: &World, id: &OperationId) {
    // A finding is about one attempt: by the time it is recorded, another one may be running.
    if let Ok((record, _)) = ledger.find(id).await
        && let Some(verdict) = world.finding(id.as_str())
    {
        let (word, outcome) = (Word::person("ada"), Outcome::because(None));
        let settled = ledger.attempts().settle(id, record.attempt, verdict, word, outcome).await;
        world.inner().settled += u64::from(settled.is_ok());
    }
    drop(ledger.admin().sweep(|_| ()).await);
}

/// Stages the operation or cancels it, sometimes. A cancellation that is certain must never be followed by an effect,
/// which [`super::check`] finds out.
async fn hold_back_or_cancel(ledger: &Ledger, world: &World, intent: &Intent) {
    if world.chance(300) {
        drop(ledger.attempts().stage(intent).await);
    }
    if world.chance(100) {
        let cancelled = ledger.admin().cancel(&intent.id, &Word::person("ada")).await;
        world.inner().cancelled += u64::from(matches!(cancelled, Ok(Cancelled::Certain(_))));
    }
}

/// Releases or cancels a held operation, sometimes. What is cancelled must never start, and what is not released only
/// at its time.
async fn release_or_cancel(ledger: &Ledger, world: &World, intent: &Intent) {
    if world.chance(250) {
        // Noted first: the release may be written although its reply is lost.
        world.inner().released.insert(intent.id.to_string());
        let released = ledger.admin().release(&intent.id, &Word::person("ada")).await;
        world.inner().releases += u64::from(released.is_ok());
    }
    if world.chance(40) {
        let cancelled = ledger.admin().cancel(&intent.id, &Word::person("ada")).await;
        world.inner().cancelled += u64::from(matches!(cancelled, Ok(Cancelled::Certain(_))));
    }
}

/// Makes one call, records its answer, and returns whether it was `done`. Every error is acceptable here; the final
/// state is checked.
async fn make_call(called: Call<'_>, world: &Arc<World>, class: Class, caller: &str) -> bool {
    let acting = Arc::clone(world);
    let did_it = Arc::new(AtomicBool::new(false));
    let doing = Arc::clone(&did_it);
    let result = called
        .run(move |attempt| {
            let (world, doing) = (Arc::clone(&acting), Arc::clone(&doing));
            async move {
                let result = world.act(attempt, class).await;
                doing.store(result.is_ok(), Ordering::SeqCst);
                result
            }
        })
        .await;
    if let Err(Error::Held { record }) = &result
        && let Some(held) = record.held()
    {
        world.inner().held.insert(record.id.to_string(), held.until_ms);
    }
    let Ok(receipt) = result else { return false };
    let id = receipt.record().id.to_string();
    if world.effects(&id).is_empty() {
        world.inner().misinformed.push(format!("{caller}, {id}"));
    }
    if did_it.load(Ordering::SeqCst) {
        *world.inner().acknowledged.entry(id).or_default() += 1;
    }
    true
}
