//! A clock that only the test moves, and stores that run on it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use onceward::{
    Applied, Barrier, Begin, Change, Clock, Counts, Filter, Identity, Inherit, Listed, Liveness,
    LivenessSource, OperationId, Owner, OwnerLock, Record, Store, StoreError, Swap, WriteMode,
};
use tokio::sync::watch;

/// Pauses up to this long are looks and back-offs, which decide nothing: see [`Stepped`].
const SHORT_MS: u64 = 500;
/// How long a short pause takes at most.
const NAP_MS: u64 = 20;
/// The pause between two steps of [`Stepped::run`].
const PAUSE: Duration = Duration::from_millis(5);

/// A clock that stands still until the test steps it. A sleeper wakes when the clock has reached its time.
///
/// A program that looks for a change now and then must find it while the clock stands still. So a pause of at most half
/// a second ends after a few real milliseconds; the clock does not move meanwhile.
#[derive(Debug)]
pub struct Stepped {
    now_ms: watch::Sender<i64>,
    /// The sleeps by their length.
    sleeps: Mutex<HashMap<u64, Sleeps>>,
}

#[derive(Debug, Default)]
struct Sleeps {
    begun: usize,
    going: usize,
}

/// One sleep of that length. Dropping this ends it.
struct Sleep<'a>(&'a Stepped, u64);

impl Stepped {
    /// A clock that shows the current time.
    #[must_use]
    pub fn new() -> Arc<Self> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::at(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    /// A clock that shows `now_ms`.
    #[must_use]
    pub fn at(now_ms: i64) -> Arc<Self> {
        Arc::new(Self { now_ms: watch::Sender::new(now_ms), sleeps: Mutex::default() })
    }

    /// Moves the clock.
    pub fn step(&self, ms: i64) {
        self.now_ms.send_modify(|now_ms| *now_ms += ms);
    }

    /// Moves the clock again and again by `ms` until the future is ready: for tests that say what happens in the end,
    /// and not when.
    pub async fn run<T>(&self, ms: i64, future: impl Future<Output = T>) -> T {
        let stepping = async {
            loop {
                tokio::time::sleep(PAUSE).await;
                self.step(ms);
            }
        };
        tokio::select! {
            biased;
            ready = future => ready,
            () = stepping => unreachable!("it steps for ever"),
        }
    }

    /// How many tasks sleep for exactly this long now.
    #[must_use]
    pub fn sleepers(&self, ms: u64) -> usize {
        self.sleeps().get(&ms).map_or(0, |sleeps| sleeps.going)
    }

    /// How many sleeps of exactly this length have begun so far.
    #[must_use]
    pub fn sleeps_begun(&self, ms: u64) -> usize {
        self.sleeps().get(&ms).map_or(0, |sleeps| sleeps.begun)
    }

    fn sleeps(&self) -> MutexGuard<'_, HashMap<u64, Sleeps>> {
        self.sleeps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin_sleep(&self, ms: u64) -> Sleep<'_> {
        let mut all = self.sleeps();
        let sleeps = all.entry(ms).or_default();
        (sleeps.begun, sleeps.going) = (sleeps.begun + 1, sleeps.going + 1);
        Sleep(self, ms)
    }

    /// The store on this clock.
    #[must_use]
    pub fn on(self: &Arc<Self>, store: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(OnClock { store, clock: Arc::clone(self) })
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        if let Some(sleeps) = self.0.sleeps().get_mut(&self.1) {
            sleeps.going -= 1;
        }
    }
}

#[async_trait]
impl Clock for Stepped {
    fn now_ms(&self) -> i64 {
        *self.now_ms.borrow()
    }

    async fn sleep(&self, ms: u64) {
        let mut now_ms = self.now_ms.subscribe();
        let due_ms = self.now_ms().saturating_add_unsigned(ms);
        let _sleep = self.begin_sleep(ms);
        let passed = async {
            // The clock is there for as long as this borrows it.
            drop(now_ms.wait_for(|now_ms| *now_ms >= due_ms).await);
        };
        if ms > SHORT_MS {
            passed.await;
        } else {
            drop(tokio::time::timeout(Duration::from_millis(ms.min(NAP_MS)), passed).await);
        }
    }
}

/// A store with another clock.
struct OnClock {
    store: Arc<dyn Store>,
    clock: Arc<Stepped>,
}

#[async_trait]
impl Store for OnClock {
    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn watch(&self) -> LivenessSource {
        self.store.watch()
    }

    fn identity(&self) -> &Identity {
        self.store.identity()
    }

    async fn set_identity(&self, next: &Identity) -> Result<(), StoreError> {
        self.store.set_identity(next).await
    }

    async fn load_cached(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        self.store.load_cached(id).await
    }

    async fn load(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        self.store.load(id).await
    }

    async fn swap(&self, expected: Option<u64>, record: Record, mode: WriteMode) -> Result<Swap, StoreError> {
        self.store.swap(expected, record, mode).await
    }

    async fn begin(
        &self,
        expected: Option<u64>,
        record: Record,
        mode: WriteMode,
    ) -> Result<Begin, StoreError> {
        self.store.begin(expected, record, mode).await
    }

    async fn stop(&self, barrier: &Barrier) -> Result<Barrier, StoreError> {
        self.store.stop(barrier).await
    }

    async fn resume(&self, scope: &str) -> Result<Option<Barrier>, StoreError> {
        self.store.resume(scope).await
    }

    async fn barriers(&self) -> Result<Vec<Barrier>, StoreError> {
        self.store.barriers().await
    }

    async fn delete(&self, id: &OperationId, expected: u64, mode: WriteMode) -> Result<bool, StoreError> {
        self.store.delete(id, expected, mode).await
    }

    async fn apply(&self, changes: Vec<Change>, mode: WriteMode) -> Result<Vec<Applied>, StoreError> {
        self.store.apply(changes, mode).await
    }

    async fn occurrences(&self, action: &OperationId, now_ms: i64) -> Result<Vec<Record>, StoreError> {
        self.store.occurrences(action, now_ms).await
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        self.store.list(filter).await
    }

    async fn due(&self, now_ms: i64, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.store.due(now_ms, limit).await
    }

    async fn counts(&self, filter: &Filter) -> Result<Counts, StoreError> {
        self.store.counts(filter).await
    }

    async fn changed(&self, id: &OperationId, seen: u64, timeout_ms: u64) {
        tokio::select! {
            () = self.store.changed(id, seen, u64::from(u32::MAX)) => {}
            () = self.clock.sleep(timeout_ms) => {}
        }
    }

    fn hold(&self, inherit: Inherit) -> Result<Box<dyn OwnerLock>, StoreError> {
        self.store.hold(inherit)
    }

    async fn liveness(&self, owner: &Owner) -> Result<Liveness, StoreError> {
        self.store.liveness(owner).await
    }

    fn tally_replay(&self, id: &OperationId) {
        self.store.tally_replay(id);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_sleeper_wakes_when_the_clock_has_reached_its_time() {
        let clock = Stepped::at(1_000);
        let mut sleeper = clock.sleep(60_000);
        assert!((&mut sleeper).now_or_never().is_none());
        assert_eq!((clock.sleepers(60_000), clock.sleepers(1)), (1, 0));
        clock.step(59_999);
        assert!((&mut sleeper).now_or_never().is_none());
        clock.step(1);
        assert!((&mut sleeper).now_or_never().is_some());
        assert_eq!((clock.sleepers(60_000), clock.sleeps_begun(60_000)), (0, 1));
        clock.sleep(SHORT_MS).await;
        assert_eq!(clock.now_ms(), 61_000, "a short pause does not move it");
        clock.run(10_000, clock.sleep(60_000)).await;
        assert!(clock.now_ms() >= 121_000);
    }
}
