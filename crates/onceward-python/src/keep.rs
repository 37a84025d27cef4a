//! Leases are renewed beside the work, on a thread: the work may block, or its event loop may.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use onceward::{Attempt, Ledger};

/// Renews a lease until it is dropped.
pub(crate) struct Kept {
    _working: Option<Sender<()>>,
}

/// Keeps the attempt's lease alive, where there is one.
pub(crate) fn keep(ledger: &Ledger, attempt: &Attempt, lease_ms: u64) -> Kept {
    let Some(lease) = ledger.lease(attempt, lease_ms) else { return Kept { _working: None } };
    let blocking = ledger.blocking();
    let (working, over) = mpsc::channel::<()>();
    let renew = move || {
        let pause = Duration::from_millis(lease.pause_ms());
        while over.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            blocking.wait_for(lease.renew());
        }
    };
    let spawned = std::thread::Builder::new().name("once-lease".to_owned()).spawn(renew);
    // Without a thread the lease runs out while the work goes on, and its late answer settles the doubt.
    Kept { _working: spawned.is_ok().then_some(working) }
}
