//! Whether the caller has got the answer: that tells a retry from a wanted repeat, when no key was given.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::unistd::{Pid, getppid};
use onceward::{Blocking, Record};

/// The evidence that the answer is delivered: all output was written, and the parent is still there at the end.
#[derive(Clone)]
pub(super) struct Delivery {
    parent: Pid,
    broken: Arc<AtomicBool>,
}

impl Delivery {
    /// Begins to watch.
    pub(super) fn watch() -> Self {
        Self { parent: getppid(), broken: Arc::default() }
    }

    /// Part of the answer could not be written, or this call was interrupted.
    pub(super) fn broken(&self) {
        self.broken.store(true, Ordering::SeqCst);
    }

    /// Notes the delivery, if nothing speaks against it.
    pub(super) fn note(&self, ledger: &Blocking, record: &Arc<Record>) {
        if self.broken.load(Ordering::SeqCst) || getppid() != self.parent {
            return;
        }
        let noted = ledger.ledger().note_delivery(record, ledger.ledger().clock_ms());
        // Without the note the same call is taken for a retry and gets this result again: safe, and said so.
        drop(ledger.wait_for(noted));
    }
}
