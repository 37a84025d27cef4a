//! The attempts of API callers. A caller's attempt is alive while the caller renews its lease; until then the server
//! holds the attempt's lock on the caller's behalf.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use onceward::{Attempt, Claim, Ledger, OperationId};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Whose operation it is: the tenant's name and the operation.
type Place = (Option<Arc<str>>, OperationId);

/// The attempts whose locks this server holds.
#[derive(Default)]
pub(crate) struct Leases {
    held: Mutex<HashMap<Place, Held>>,
}

/// The newest attempt of one operation.
struct Held {
    claim: Claim,
    until: Instant,
    reaper: AbortHandle,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.reaper.abort();
    }
}

impl Leases {
    /// Holds the lock of this attempt until its lease lapses.
    pub(crate) fn hold(self: &Arc<Self>, place: Place, claim: Claim, lease: Duration, ledger: &Ledger) {
        let until = Instant::now() + lease;
        let reaper =
            tokio::spawn(reap(Arc::downgrade(self), place.clone(), ledger.clone(), until)).abort_handle();
        // An attempt that another one overtook is gone: its lease has lapsed.
        drop(self.lock().insert(place, Held { claim, until, reaper }));
    }

    /// Extends the lease of this attempt. Returns whether it was still held.
    pub(crate) fn renew(&self, place: &Place, attempt: u32, lease: Duration) -> bool {
        let mut held = self.lock();
        let Some(held) = held.get_mut(place).filter(|held| held.claim.record().attempt == attempt) else {
            return false;
        };
        held.until = Instant::now() + lease;
        true
    }

    /// The attempt, if its lock is held.
    pub(crate) fn attempt(&self, place: &Place, attempt: u32) -> Option<Attempt> {
        let held = self.lock();
        let claim = held.get(place).map(|held| &held.claim)?;
        (claim.record().attempt == attempt).then(|| claim.attempt())
    }

    /// Releases the lock of an attempt that has ended.
    pub(crate) fn release(&self, place: &Place, attempt: u32) {
        let mut held = self.lock();
        if held.get(place).is_some_and(|held| held.claim.record().attempt == attempt) {
            drop(held.remove(place));
        }
    }

    /// When the lease lapses, or `None` if it has.
    fn until(&self, place: &Place) -> Option<Instant> {
        let mut held = self.lock();
        let until = held.get(place)?.until;
        if until > Instant::now() {
            return Some(until);
        }
        drop(held.remove(place));
        None
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Place, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Releases the lock when the lease lapses, and records the doubt, so that callers that wait learn about it.
async fn reap(leases: Weak<Leases>, place: Place, ledger: Ledger, mut until: Instant) {
    loop {
        tokio::time::sleep_until(until).await;
        let Some(leases) = leases.upgrade() else { return };
        match leases.until(&place) {
            Some(later) => until = later,
            None => break,
        }
    }
    match ledger.note_doubt(&place.1).await {
        // If it cannot be written, the next call that meets the operation records it.
        Ok(_) | Err(_) => {}
    }
}
