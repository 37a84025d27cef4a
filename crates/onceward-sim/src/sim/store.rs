//! A store whose calls take their time and fail: before they are carried out (the request is lost) or after (the reply
//! is lost).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use onceward::{
    Clock, Counts, Dispatch, Door, Filter, Hold, Inherit, Listed, Liveness, MemoryStore, OperationId, Owner,
    Record, Store, StoreError, Swap, Watch,
};

use super::clock::VirtualClock;
use crate::random::Random;

/// Of a thousand calls so many lose their request, and as many their reply.
const LOST: u64 = 40;
/// Of a thousand looks at what is known nearby so many find nothing.
const FORGOTTEN: u64 = 400;
/// Of a thousand calls so many take a while, before and after.
const SLOW: u64 = 300;
const SLOW_MS: u64 = 60;

/// A store in memory behind a network that fails.
pub struct FaultyStore {
    inner: MemoryStore<VirtualClock>,
    clock: VirtualClock,
    chance: Arc<Chance>,
}

struct Chance {
    random: Mutex<Random>,
    calm: AtomicBool,
    faults: AtomicU64,
}

/// What happens to one call.
#[derive(Debug, Clone, Copy)]
struct Fate {
    request_lost: bool,
    reply_lost: bool,
    before_ms: u64,
    after_ms: u64,
}

impl FaultyStore {
    /// Over that store, with faults from that generator.
    #[must_use]
    pub fn new(inner: MemoryStore<VirtualClock>, clock: VirtualClock, random: Random) -> Self {
        let chance =
            Chance { random: Mutex::new(random), calm: AtomicBool::new(false), faults: AtomicU64::new(0) };
        Self { inner, clock, chance: Arc::new(chance) }
    }

    /// From now on everything goes well.
    pub fn calm(&self) {
        self.chance.calm.store(true, Ordering::SeqCst);
    }

    /// How many calls have failed.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.chance.faults.load(Ordering::SeqCst)
    }

    /// Carries a call out, as its fate wills.
    async fn carry<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let fate = self.chance.draw();
        self.nap(fate.before_ms).await;
        if fate.request_lost {
            return Err(lost("request"));
        }
        let result = call.await;
        self.nap(fate.after_ms).await;
        if fate.reply_lost { Err(lost("reply")) } else { result }
    }

    async fn nap(&self, ms: u64) {
        if ms > 0 {
            self.clock.sleep(ms).await;
        }
    }
}

impl Chance {
    fn draw(&self) -> Fate {
        if self.calm.load(Ordering::SeqCst) {
            return Fate { request_lost: false, reply_lost: false, before_ms: 0, after_ms: 0 };
        }
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let mut slow = || {
            if random.permille(SLOW) { 1 + random.below(SLOW_MS) } else { 0 }
        };
        let (before_ms, after_ms) = (slow(), slow());
        let (request_lost, reply_lost) = (random.permille(LOST), random.permille(LOST));
        self.faults.fetch_add(u64::from(request_lost || reply_lost), Ordering::SeqCst);
        Fate { request_lost, reply_lost, before_ms, after_ms }
    }
}

impl Chance {
    fn forgets(&self) -> bool {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        random.permille(FORGOTTEN)
    }
}

fn lost(what: &str) -> StoreError {
    StoreError::unavailable(format!("the {what} was lost"))
}

/// A lock whose notes can be lost, before they are written and after.
struct FaultyHold {
    inner: Box<dyn Hold>,
    chance: Arc<Chance>,
}

impl Hold for FaultyHold {
    fn token(&self) -> u64 {
        self.inner.token()
    }

    fn note_dispatch(&self, dispatch: Dispatch) -> Result<(), StoreError> {
        let fate = self.chance.draw();
        if fate.request_lost {
            return Err(lost("request"));
        }
        let result = self.inner.note_dispatch(dispatch);
        if fate.reply_lost { Err(lost("reply")) } else { result }
    }
}

#[async_trait]
impl Store for FaultyStore {
    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn watch(&self) -> Watch {
        self.inner.watch()
    }

    /// Forgetful, as a cache may be: *nothing* says nothing.
    async fn recall(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        if self.chance.forgets() { Ok(None) } else { self.load(id).await }
    }

    async fn load(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        self.carry(self.inner.load(id)).await
    }

    async fn swap(&self, expected: Option<u64>, record: Record, door: Door) -> Result<Swap, StoreError> {
        self.carry(self.inner.swap(expected, record, door)).await
    }

    async fn delete(&self, id: &OperationId, expected: u64, door: Door) -> Result<bool, StoreError> {
        self.carry(self.inner.delete(id, expected, door)).await
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        self.carry(self.inner.list(filter)).await
    }

    async fn due(&self, now_ms: i64, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.carry(self.inner.due(now_ms, limit)).await
    }

    async fn counts(&self, filter: &Filter) -> Result<Counts, StoreError> {
        self.carry(self.inner.counts(filter)).await
    }

    async fn changed(&self, id: &OperationId, seen: u64, timeout_ms: u64) {
        self.inner.changed(id, seen, timeout_ms).await;
    }

    fn hold(&self, inherit: Inherit) -> Result<Box<dyn Hold>, StoreError> {
        if self.chance.draw().request_lost {
            return Err(lost("request"));
        }
        Ok(Box::new(FaultyHold { inner: self.inner.hold(inherit)?, chance: Arc::clone(&self.chance) }))
    }

    async fn liveness(&self, owner: &Owner) -> Result<Liveness, StoreError> {
        self.carry(self.inner.liveness(owner)).await
    }

    fn tally_replay(&self, id: &OperationId) {
        self.inner.tally_replay(id);
    }
}
