//! The downstream, which counts what really happened, and the workers that change it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onceward::{
    Attempt, Call, Class, Clock, Done, Effect, Failure, Ledger, Operation, OperationId, Outcome, ProbeAnswer,
    Record, Terms, Verdict,
};

use super::clock::VirtualClock;
use crate::random::Random;

/// How many operations there are: few, so that workers meet. One of each class, and one whose result soon expires.
pub const OPERATIONS: usize = 5;
const CLASSES: [Class; OPERATIONS] =
    [Class::Once, Class::Probed, Class::Idempotent, Class::Keyed, Class::Once];
const SHORT_LIVED: usize = 4;
const NAP_MS: u64 = 400;
/// How long a slow request may be under way after its sender has given up. A worker that is stopped before it sends,
/// and then sends a slow one, is still done before lease and quarantine are over.
const SLOW_REQUEST_MS: u64 = 15_000;
/// How long the downstream honours a key at least, and how long it really remembers it.
const PROMISED_WINDOW_MS: u64 = 20_000;
const REAL_WINDOW_MS: i64 = 100_000;

/// What is outside the ledger.
pub struct World {
    clock: VirtualClock,
    inner: Mutex<Inner>,
}

struct Inner {
    random: Random,
    effects: BTreeMap<String, Vec<u32>>,
    /// Requests that are under way, whether or not their sender lives.
    under_way: Vec<Request>,
    /// Calls that may still send something.
    calling: BTreeMap<String, u64>,
    /// When the downstream first saw a key that it honours.
    keys: BTreeMap<String, i64>,
    /// How many workers did it themselves and were told that it is done.
    told: BTreeMap<String, u64>,
    /// A caller that was told `done` before anything had happened.
    lied_to: Vec<String>,
    settled: u64,
}

#[derive(Debug, Clone)]
struct Request {
    arrives_ms: i64,
    id: String,
    attempt: u32,
    /// The key, for a downstream that honours one.
    key: Option<String>,
}

impl Inner {
    /// Lets the requests arrive whose time has come.
    fn arrive(&mut self, now_ms: i64) {
        let (mut arrived, under_way) = std::mem::take(&mut self.under_way)
            .into_iter()
            .partition::<Vec<_>, _>(|request| request.arrives_ms <= now_ms);
        self.under_way = under_way;
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

/// A call that may still send something, for as long as its worker lives.
struct Calling<'a> {
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
    /// An empty one.
    #[must_use]
    pub fn new(clock: VirtualClock, random: Random) -> Self {
        let inner = Inner {
            random,
            effects: BTreeMap::new(),
            under_way: Vec::new(),
            calling: BTreeMap::new(),
            keys: BTreeMap::new(),
            told: BTreeMap::new(),
            lied_to: Vec::new(),
            settled: 0,
        };
        Self { clock, inner: Mutex::new(inner) }
    }

    /// The world as it is now.
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

    /// How many workers did it themselves and were told that it is done.
    #[must_use]
    pub fn told(&self, id: &str) -> u64 {
        self.inner().told.get(id).copied().unwrap_or(0)
    }

    /// Callers that were told `done` before anything had happened.
    #[must_use]
    pub fn lied_to(&self) -> Vec<String> {
        self.inner().lied_to.clone()
    }

    /// All that happened.
    #[must_use]
    pub fn effects_in_all(&self) -> u64 {
        self.inner().effects.values().map(|attempts| attempts.len() as u64).sum()
    }

    /// How many doubts a person has settled.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.inner().settled
    }

    async fn nap(&self) {
        let ms = self.inner().random.below(NAP_MS);
        self.clock.sleep(ms).await;
    }

    fn chance(&self, permille: u64) -> bool {
        self.inner().random.permille(permille)
    }

    /// Whether it happened, for a probe.
    fn answer(&self, record: &Record) -> ProbeAnswer {
        if self.chance(100) {
            return ProbeAnswer::CannotTell("the probe is out of order".to_owned());
        }
        match self.effects(record.id.as_str()).is_empty() {
            true => ProbeAnswer::No,
            false => ProbeAnswer::Yes(Outcome::with_effect(Effect::Created)),
        }
    }

    /// What a person finds who knows of every process and every request: whether it happened, or nothing while
    /// something is under way.
    fn finding(&self, id: &str) -> Option<Verdict> {
        let inner = self.inner();
        if inner.effects.contains_key(id) {
            return Some(Verdict::Done);
        }
        let under_way = inner.under_way.iter().any(|request| request.id == id);
        let calling = inner.calling.get(id).is_some_and(|count| *count > 0);
        (!under_way && !calling).then_some(Verdict::Failed)
    }

    fn calling(&self, id: &OperationId) -> Calling<'_> {
        let id = id.to_string();
        *self.inner().calling.entry(id.clone()).or_default() += 1;
        Calling { world: self, id }
    }

    /// Sends the request of an attempt, which arrives after that time.
    fn send(&self, attempt: &Attempt, key: Option<String>, after_ms: u64) {
        let arrives_ms = self.clock.now_ms() + i64::try_from(after_ms).unwrap_or(i64::MAX);
        let id = attempt.operation().to_string();
        self.inner().under_way.push(Request { arrives_ms, id, attempt: attempt.number(), key });
    }

    /// The work of one attempt.
    async fn act(&self, attempt: Attempt, class: Class) -> Result<Done, Failure> {
        self.nap().await;
        if self.chance(50) {
            return Err(Failure::no_effect("refused"));
        }
        // Where this fails nothing must be sent.
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

/// An operation and its class, which belongs to it.
#[must_use]
pub fn operation(number: usize) -> Operation {
    // A crash or two must not spend the budget, and nobody waits for ever.
    let mut terms = Terms { class: class(number), max_attempts: 1_000, wait_ms: 5_000, ..Terms::default() };
    terms.downstream_window_ms = PROMISED_WINDOW_MS;
    if number == SHORT_LIVED {
        terms.keep_results_for(2_000);
    }
    Operation::new("simulated").key(format!("key-{number}")).terms(terms)
}

/// The class of that operation.
#[must_use]
pub fn class(number: usize) -> Class {
    CLASSES[number]
}

/// A worker: calls one operation after the other, whatever comes of it.
pub async fn work(ledger: Ledger, world: Arc<World>, worker: usize, calls: usize) {
    for call in 0..calls {
        world.nap().await;
        let number = world.inner().random.index(OPERATIONS);
        let Ok(intent) = operation(number).intent() else { continue };
        if world.chance(150) {
            tend(&ledger, &world, &intent.id).await;
        }
        let _calling = world.calling(&intent.id);
        let asked = Arc::clone(&world);
        let mut called = ledger.call(intent);
        if class(number) == Class::Probed {
            called = called.probe(move |record| {
                let answer = asked.answer(&record);
                std::future::ready(answer)
            });
        }
        make(called, &world, class(number), &format!("worker {worker}, call {call}")).await;
    }
}

/// What people and time do: a person settles a doubt, results expire. Every error is a fair answer here.
async fn tend(ledger: &Ledger, world: &World, id: &OperationId) {
    if let Some(verdict) = world.finding(id.as_str()) {
        let outcome = Outcome { settled_by: Some("person".to_owned()), ..Outcome::because(None) };
        let settled = ledger.settle(id, verdict, outcome).await;
        world.inner().settled += u64::from(settled.is_ok());
    }
    drop(ledger.sweep(|_| ()).await);
}

/// Makes one call and notes what its caller was told. Every error is a fair answer here; what the ledger says in the
/// end is checked.
async fn make(called: Call<'_>, world: &Arc<World>, class: Class, caller: &str) {
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
    let Ok(receipt) = result else { return };
    let id = receipt.record().id.to_string();
    if world.effects(&id).is_empty() {
        world.inner().lied_to.push(format!("{caller}, {id}"));
    }
    if did_it.load(Ordering::SeqCst) {
        *world.inner().told.entry(id).or_default() += 1;
    }
}
