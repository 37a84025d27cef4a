//! Renews the leases of blocking callers, on one thread for all of them.
//!
//! Most calls are over long before their lease needs a renewal, so to begin and to end one must cost little: it only
//! enters or leaves a list. The thread looks at the list at intervals that fit the shortest lease in it.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;

use super::Ledger;
use crate::attempt::Attempt;
use crate::store::WriteMode;

/// The leases of one ledger handle and its clones.
#[derive(Default)]
pub(crate) struct Renewals {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    list: Mutex<List>,
    earlier: Condvar,
}

#[derive(Default)]
struct List {
    running: BTreeMap<u64, Running>,
    next: u64,
    thread: Thread,
}

/// What the thread is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Thread {
    #[default]
    NotStarted,
    /// It waits for an attempt.
    Idle,
    /// It looks at the list at least once in this time.
    Looking { every_ms: u64 },
    /// The ledger is closed.
    Over,
}

/// An attempt that runs.
struct Running {
    ledger: Ledger,
    attempt: Attempt,
    lease_ms: u64,
    /// How long ago its lease was written, or more.
    age_ms: u64,
}

impl Running {
    /// How often the list must be looked at for this attempt. Its lease is renewed when a third of it is over.
    fn every_ms(&self) -> u64 {
        (self.lease_ms / 6).max(1)
    }
}

/// Keeps a lease renewed until it is dropped.
pub(crate) struct Kept<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        let ended = self.shared.list().running.remove(&self.number);
        // Without the lock: it may be the last handle of its ledger.
        drop(ended);
    }
}

impl Renewals {
    /// Renews the lease of this attempt while it runs. If no thread can be started, the lease is not renewed, and the
    /// attempt may be presumed dead before it ends; its ending is recorded then as a late answer.
    pub(crate) fn keep(&self, ledger: &Ledger, attempt: &Attempt, lease_ms: u64) -> Kept<'_> {
        // Renewals of many attempts share round trips, so they must not block one another.
        let ledger = Ledger { mode: WriteMode::Async, ..ledger.clone() };
        let running = Running { ledger, attempt: attempt.clone(), lease_ms, age_ms: 0 };
        let mut list = self.shared.list();
        let number = list.next;
        list.next += 1;
        match list.thread {
            Thread::NotStarted => {
                let shared = Arc::clone(&self.shared);
                let thread = std::thread::Builder::new().name("once-lease".to_owned());
                if thread.spawn(move || shared.renew_until_closed()).is_ok() {
                    list.thread = Thread::Idle;
                }
            }
            Thread::Looking { every_ms } if every_ms <= running.every_ms() => {}
            Thread::Idle | Thread::Looking { .. } => self.shared.earlier.notify_one(),
            Thread::Over => {}
        }
        list.running.insert(number, running);
        Kept { shared: &self.shared, number }
    }
}

impl Drop for Renewals {
    fn drop(&mut self) {
        self.shared.list().thread = Thread::Over;
        self.shared.earlier.notify_one();
    }
}

impl Shared {
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renew_until_closed(&self) {
        let mut list = self.list();
        while list.thread != Thread::Over {
            let Some(every_ms) = list.running.values().map(Running::every_ms).min() else {
                list.thread = Thread::Idle;
                list = self.earlier.wait(list).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            list.thread = Thread::Looking { every_ms };
            let waited = self.earlier.wait_timeout(list, Duration::from_millis(every_ms));
            (list, _) = waited.unwrap_or_else(PoisonError::into_inner);
            let due = list.due(every_ms);
            if !due.is_empty() {
                drop(list);
                let renewals = due.iter().map(|(ledger, attempt, lease_ms)| ledger.renew(attempt, *lease_ms));
                pollster::block_on(join_all(renewals));
                drop(due);
                list = self.list();
            }
        }
    }
}

impl List {
    /// The leases to renew. An attempt that has come during the wait counts as if it had been there all the time: that
    /// only renews its lease early.
    fn due(&mut self, waited_ms: u64) -> Vec<(Ledger, Attempt, u64)> {
        let mut due = Vec::new();
        for running in self.running.values_mut() {
            running.age_ms += waited_ms;
            if running.age_ms + waited_ms > running.lease_ms / 3 {
                running.age_ms = 0;
                due.push((running.ledger.clone(), running.attempt.clone(), running.lease_ms));
            }
        }
        due
    }
}
