//! Waiting for a record to change.

use onceward::wire::{ChangedRequest, MAX_WAIT_MS};
use onceward::{Liveness, LivenessSource, Record, State, Store};

/// How often a store is asked that learns only of its own process's changes.
const POLL_MS: u64 = 20;

/// Returns when the record may no longer have the version that the caller has seen, when its owner is no longer alive,
/// or when the time is over.
pub(super) async fn for_change(store: &dyn Store, asked: &ChangedRequest) {
    let timeout_ms = asked.timeout_ms.min(MAX_WAIT_MS);
    match store.watch() {
        LivenessSource::Lease => store.changed(&asked.id, asked.seen, timeout_ms).await,
        LivenessSource::Kernel => poll(store, asked, timeout_ms).await,
    }
}

/// The caller cannot see the locks of the server's machine, so the server watches them.
async fn poll(store: &dyn Store, asked: &ChangedRequest, timeout_ms: u64) {
    let until_ms = store.clock().now_ms().saturating_add_unsigned(timeout_ms);
    let mut held = false;
    loop {
        let left_ms = u64::try_from(until_ms - store.clock().now_ms()).unwrap_or(0);
        let record = match store.load(&asked.id).await {
            Ok(Some(record)) if record.version == asked.seen && left_ms > 0 => record,
            Ok(_) => return,
            // The caller's next read gets the error.
            Err(_) => return store.clock().sleep(POLL_MS.min(left_ms)).await,
        };
        match owner_is_alive(store, &record).await {
            Some(true) => held = true,
            // A running attempt whose owner is gone is in doubt, and one in doubt is free once its lock is.
            Some(false) if held || record.state == State::Running => return,
            Some(false) | None => {}
        }
        store.changed(&asked.id, asked.seen, POLL_MS.min(left_ms)).await;
    }
}

/// `None` if it cannot be observed here.
async fn owner_is_alive(store: &dyn Store, record: &Record) -> Option<bool> {
    let owner = match record.state {
        State::Running | State::InDoubt => record.detail.owner.filter(|owner| !owner.is_leased())?,
        State::Staged | State::Done | State::Failed | State::Cancelled | State::Expired => return None,
    };
    match store.liveness(&owner).await.ok()? {
        Liveness::Alive => Some(true),
        Liveness::Gone | Liveness::NeverDispatched => Some(false),
        Liveness::Unknown => None,
    }
}
