//! The attempts of API callers. A caller's attempt is alive while the caller renews its lease; until then the server
//! holds the attempt's lock on the caller's behalf.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use onceward::{Attempt, Claim, Ledger};
use tokio::task::AbortHandle;

use crate::locks::lock;
use crate::tenant::Place;
use crate::time;

/// The attempts whose locks this server holds.
#[derive(Default)]
pub(crate) struct Leases {
    held: Mutex<HashMap<Place, HeldLease>>,
}

/// The newest attempt of one operation.
struct HeldLease {
    claim: Claim,
    ledger: Ledger,
    /// Whether the caller has reported its dispatch.
    dispatched: bool,
    until_ms: i64,
    reaper: AbortHandle,
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        self.reaper.abort();
    }
}

impl Leases {
    /// Holds the lock of this attempt until its lease lapses.
    pub(crate) fn hold(self: &Arc<Self>, place: Place, claim: Claim, lease: Duration, ledger: &Ledger) {
        let (until_ms, ledger) = (time::after(ledger.clock(), lease), ledger.clone());
        let reaping = reap(Arc::downgrade(self), place.clone(), ledger.clone(), until_ms);
        let reaper = tokio::spawn(reaping).abort_handle();
        // An attempt that another one overtook is gone: its lease has lapsed.
        drop(
            lock(&self.held).insert(place, HeldLease { claim, ledger, dispatched: false, until_ms, reaper }),
        );
    }

    /// Extends the lease of this attempt. Returns whether it was still held.
    pub(crate) fn renew(&self, place: &Place, attempt: u32, lease: Duration) -> bool {
        let mut held = lock(&self.held);
        let Some(held) = held.get_mut(place).filter(|held| held.claim.record().attempt == attempt) else {
            return false;
        };
        held.until_ms = time::after(held.ledger.clock(), lease);
        true
    }

    /// The attempt, if its lock is held.
    pub(crate) fn attempt(&self, place: &Place, attempt: u32) -> Option<Attempt> {
        let held = lock(&self.held);
        let claim = held.get(place).map(|held| &held.claim)?;
        (claim.record().attempt == attempt).then(|| claim.attempt())
    }

    /// Notes that the caller has reported the dispatch of this attempt.
    pub(crate) fn note_dispatch(&self, place: &Place, attempt: u32) {
        let mut held = lock(&self.held);
        if let Some(held) = held.get_mut(place).filter(|held| held.claim.record().attempt == attempt) {
            held.dispatched = true;
        }
    }

    /// Whether the caller has reported the dispatch of this attempt, whose lock is held.
    pub(crate) fn is_dispatched(&self, place: &Place, attempt: u32) -> bool {
        let held = lock(&self.held);
        held.get(place).is_some_and(|held| held.claim.record().attempt == attempt && held.dispatched)
    }

    /// Releases the lock of an attempt that has ended.
    pub(crate) fn release(&self, place: &Place, attempt: u32) {
        let mut held = lock(&self.held);
        if held.get(place).is_some_and(|held| held.claim.record().attempt == attempt) {
            drop(held.remove(place));
        }
    }

    /// When the lease lapses, or `None` if it has.
    fn until(&self, place: &Place) -> Option<i64> {
        let mut held = lock(&self.held);
        let HeldLease { ledger, until_ms, .. } = held.get(place)?;
        if *until_ms > ledger.clock_ms() {
            return Some(*until_ms);
        }
        drop(held.remove(place));
        None
    }
}

/// Releases the lock when the lease lapses, and records the doubt, so that callers that wait learn about it.
async fn reap(leases: Weak<Leases>, place: Place, ledger: Ledger, mut until_ms: i64) {
    loop {
        time::sleep_until(ledger.clock(), until_ms).await;
        let Some(leases) = leases.upgrade() else { return };
        match leases.until(&place) {
            Some(later_ms) => until_ms = later_ms,
            None => break,
        }
    }
    match ledger.attempts().note_doubt(&place.1).await {
        // If it cannot be written, the next call that meets the operation records it.
        Ok(_) | Err(_) => {}
    }
}
