//! The downstream, which counts what really happened, and the workers that change it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onceward::{
    Attempt, Class, Clock, Done, Effect, Failure, Ledger, Operation, Outcome, ProbeAnswer, Record, Terms,
};

use super::clock::VirtualClock;
use crate::random::Random;

/// How many operations there are: few, so that workers meet.
pub const OPERATIONS: usize = 3;
const NAP_MS: u64 = 400;

/// What is outside the ledger.
pub struct World {
    clock: VirtualClock,
    inner: Mutex<Inner>,
}

struct Inner {
    random: Random,
    effects: BTreeMap<String, Vec<u32>>,
    /// How many workers did it themselves and were told that it is done.
    told: BTreeMap<String, u64>,
    /// A caller that was told `done` before anything had happened.
    lied_to: Vec<String>,
}

impl World {
    /// An empty one.
    #[must_use]
    pub fn new(clock: VirtualClock, random: Random) -> Self {
        let inner = Inner { random, effects: BTreeMap::new(), told: BTreeMap::new(), lied_to: Vec::new() };
        Self { clock, inner: Mutex::new(inner) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// The work of one attempt.
    async fn act(&self, attempt: Attempt) -> Result<Done, Failure> {
        self.nap().await;
        if self.chance(50) {
            return Err(Failure::no_effect("refused"));
        }
        // Where this fails nothing must be dispatched.
        attempt.dispatched()?;
        self.nap().await;
        let id = attempt.operation().to_string();
        self.inner().effects.entry(id).or_default().push(attempt.number());
        self.nap().await;
        if self.chance(80) {
            return Err(Failure::in_doubt("the answer was lost"));
        }
        Ok(attempt.dispatch()?.created(&attempt.number()))
    }
}

/// An operation and its class, which belongs to it.
#[must_use]
pub fn operation(number: usize) -> Operation {
    let class = [Class::Once, Class::Probed, Class::Idempotent][number % 3];
    // A crash or two must not spend the budget, and nobody waits for ever.
    let terms = Terms { class, max_attempts: 1_000, wait_ms: 5_000, ..Terms::default() };
    Operation::new("simulated").key(format!("key-{number}")).terms(terms)
}

/// The class of that operation.
#[must_use]
pub fn class(number: usize) -> Class {
    [Class::Once, Class::Probed, Class::Idempotent][number % 3]
}

/// A worker: calls one operation after the other, whatever comes of it.
pub async fn work(ledger: Ledger, world: Arc<World>, worker: usize, calls: usize) {
    for call in 0..calls {
        world.nap().await;
        let number = world.inner().random.index(OPERATIONS);
        let asked = Arc::clone(&world);
        let mut called = ledger.call(operation(number));
        if class(number) == Class::Probed {
            called = called.probe(move |record| {
                let answer = asked.answer(&record);
                std::future::ready(answer)
            });
        }
        if world.chance(500) {
            called = called.dispatch_marked();
        }
        let acting = Arc::clone(&world);
        let did_it = Arc::new(AtomicBool::new(false));
        let doing = Arc::clone(&did_it);
        let result = called
            .run(move |attempt| {
                let (world, doing) = (Arc::clone(&acting), Arc::clone(&doing));
                async move {
                    let result = world.act(attempt).await;
                    doing.store(result.is_ok(), Ordering::SeqCst);
                    result
                }
            })
            .await;
        // Every error is a fair answer here; what the ledger says in the end is checked.
        let Ok(receipt) = result else { continue };
        let id = receipt.record().id.to_string();
        if world.effects(&id).is_empty() {
            world.inner().lied_to.push(format!("worker {worker}, call {call}, {id}"));
        }
        if did_it.load(Ordering::SeqCst) {
            *world.inner().told.entry(id).or_default() += 1;
        }
    }
}
