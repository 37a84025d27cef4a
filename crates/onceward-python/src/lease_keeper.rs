//! Renews leases on a separate thread, because the work or its event loop may block.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use onceward::{Attempt, Ledger};

/// Renews a lease until it is dropped.
pub(crate) struct LeaseKeeper {
    _working: Option<Sender<()>>,
}

/// Keeps the attempt's lease alive, if it has one.
pub(crate) fn keep_lease(ledger: &Ledger, attempt: &Attempt, lease_ms: u64) -> LeaseKeeper {
    let Some(lease) = ledger.attempts().lease(attempt, lease_ms) else {
        return LeaseKeeper { _working: None };
    };
    let blocking = ledger.blocking();
    let (working, over) = mpsc::channel::<()>();
    let renew = move || {
        let pause = Duration::from_millis(lease.pause_ms());
        while over.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            blocking.wait_for(lease.renew());
        }
    };
    let spawned = std::thread::Builder::new().name("once-lease".to_owned()).spawn(renew);
    // Without a thread the lease expires while the work continues, and its late answer settles the doubt.
    LeaseKeeper { _working: spawned.is_ok().then_some(working) }
}
