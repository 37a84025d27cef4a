//! Locks by name, held across `await`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{Mutex as Queue, OwnedMutexGuard};

use crate::locks::lock;
use crate::tenant::Place;

/// Locks for operations and keys.
#[derive(Default)]
pub(crate) struct NamedLocks {
    all: Arc<Mutex<HashMap<Place, Arc<Queue<()>>>>>,
}

/// A lock that is held until this is dropped.
pub(crate) struct NamedLock {
    all: Arc<Mutex<HashMap<Place, Arc<Queue<()>>>>>,
    place: Place,
    held: Option<OwnedMutexGuard<()>>,
}

impl NamedLocks {
    /// Waits for the lock with this name.
    pub(crate) async fn take(&self, place: Place) -> NamedLock {
        let queue = Arc::clone(lock(&self.all).entry(place.clone()).or_default());
        // If this future is dropped while it waits, the entry is removed by the next turn that ends.
        let held = queue.lock_owned().await;
        NamedLock { all: Arc::clone(&self.all), place, held: Some(held) }
    }
}

impl Drop for NamedLock {
    fn drop(&mut self) {
        let mut all = lock(&self.all);
        self.held = None;
        // Only the map refers to it: no request holds it or waits for it.
        if all.get(&self.place).is_some_and(|queue| Arc::strong_count(queue) == 1) {
            all.remove(&self.place);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use onceward::OperationId;

    use super::*;

    #[test]
    fn one_request_at_a_time_has_its_turn() {
        let turns = NamedLocks::default();
        let place = |key: &str| (None, OperationId::of("s", "n", key));
        let first = turns.take(place("a")).now_or_never().unwrap();
        assert!(turns.take(place("a")).now_or_never().is_none(), "it is taken");
        let other = turns.take(place("b")).now_or_never().unwrap();
        drop((first, other));
        assert!(lock(&turns.all).is_empty());
        assert!(turns.take(place("a")).now_or_never().is_some());
    }
}
