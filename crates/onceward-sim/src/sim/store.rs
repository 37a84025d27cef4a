//! A store whose calls take time and fail: either before they are carried out (the request is lost) or after (the
//! reply is lost).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use onceward::{
    Barrier, Begin, Clock, Counts, Dispatch, Filter, Identity, Inherit, Listed, Liveness, LivenessSource,
    MemoryStore, OperationId, Owner, OwnerLock, Record, Store, StoreError, Swap, WriteMode,
};

use super::clock::VirtualClock;
use super::history::History;
use crate::random::Random;

/// How many of a thousand calls lose their request, and how many lose their reply.
const LOST: u64 = 40;
/// How many of a thousand cached reads find nothing.
const FORGOTTEN: u64 = 400;
/// How many of a thousand calls are slow, before and after they are carried out.
const SLOW: u64 = 300;
const SLOW_MS: u64 = 60;

/// A store in memory behind a network that fails.
pub struct FaultyStore {
    inner: MemoryStore<VirtualClock>,
    clock: VirtualClock,
    chance: Arc<Chance>,
    history: History,
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
    /// Wraps a store, with faults from this generator.
    #[must_use]
    pub fn new(inner: MemoryStore<VirtualClock>, clock: VirtualClock, random: Random) -> Self {
        let chance =
            Chance { random: Mutex::new(random), calm: AtomicBool::new(false), faults: AtomicU64::new(0) };
        Self { inner, clock, chance: Arc::new(chance), history: History::default() }
    }

    /// Stops all further faults.
    pub fn calm(&self) {
        self.chance.calm.store(true, Ordering::SeqCst);
    }

    /// Every write that was carried out, whether or not its reply was lost.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// How many calls have failed.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.chance.faults.load(Ordering::SeqCst)
    }

    /// Carries out a call with a random fate.
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

/// A lock whose notes can be lost before or after they are written.
struct FaultyLock {
    inner: Box<dyn OwnerLock>,
    chance: Arc<Chance>,
}

impl OwnerLock for FaultyLock {
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

    fn watch(&self) -> LivenessSource {
        self.inner.watch()
    }

    fn identity(&self) -> &Identity {
        self.inner.identity()
    }

    async fn set_identity(&self, next: &Identity) -> Result<(), StoreError> {
        self.inner.set_identity(next).await
    }

    /// Forgetful, like a cache: `None` says nothing.
    async fn load_cached(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        if self.chance.forgets() { Ok(None) } else { self.load(id).await }
    }

    async fn load(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        self.carry(self.inner.load(id)).await
    }

    async fn swap(&self, expected: Option<u64>, record: Record, mode: WriteMode) -> Result<Swap, StoreError> {
        let written = async {
            let swap = self.inner.swap(expected, record, mode).await?;
            if let Swap::Written(record) = &swap {
                self.history.note_write(record);
            }
            Ok(swap)
        };
        self.carry(written).await
    }

    async fn begin(
        &self,
        expected: Option<u64>,
        record: Record,
        mode: WriteMode,
    ) -> Result<Begin, StoreError> {
        let written = async {
            let begin = self.inner.begin(expected, record, mode).await?;
            if let Begin::Swapped(Swap::Written(record)) = &begin {
                self.history.note_write(record);
            }
            Ok(begin)
        };
        self.carry(written).await
    }

    async fn stop(&self, barrier: &Barrier) -> Result<Barrier, StoreError> {
        let stopped = async {
            let barrier = self.inner.stop(barrier).await?;
            self.history.note_stop(true);
            Ok(barrier)
        };
        self.carry(stopped).await
    }

    async fn resume(&self, scope: &str) -> Result<Option<Barrier>, StoreError> {
        let resumed = async {
            let barrier = self.inner.resume(scope).await?;
            self.history.note_stop(false);
            Ok(barrier)
        };
        self.carry(resumed).await
    }

    async fn barriers(&self) -> Result<Vec<Barrier>, StoreError> {
        self.carry(self.inner.barriers()).await
    }

    async fn delete(&self, id: &OperationId, expected: u64, mode: WriteMode) -> Result<bool, StoreError> {
        let deleted = async {
            let deleted = self.inner.delete(id, expected, mode).await?;
            if deleted {
                self.history.note_delete(id);
            }
            Ok(deleted)
        };
        self.carry(deleted).await
    }

    async fn occurrences(&self, action: &OperationId, now_ms: i64) -> Result<Vec<Record>, StoreError> {
        self.carry(self.inner.occurrences(action, now_ms)).await
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

    fn hold(&self, inherit: Inherit) -> Result<Box<dyn OwnerLock>, StoreError> {
        if self.chance.draw().request_lost {
            return Err(lost("request"));
        }
        Ok(Box::new(FaultyLock { inner: self.inner.hold(inherit)?, chance: Arc::clone(&self.chance) }))
    }

    async fn liveness(&self, owner: &Owner) -> Result<Liveness, StoreError> {
        self.carry(self.inner.liveness(owner)).await
    }

    fn tally_replay(&self, id: &OperationId) {
        self.inner.tally_replay(id);
    }
}
