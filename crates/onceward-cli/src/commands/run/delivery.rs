//! Whether the caller got the answer. Without a key, that distinguishes a retry from an intended repeat.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Pid, getppid};
use onceward::{Blocking, Record};

use super::outlet::Outlet;

/// Evidence of delivery: all output was written, and the parent process is still alive at the end.
#[derive(Clone)]
pub(super) struct Delivery {
    parent: Pid,
    broken: Arc<AtomicBool>,
    outlet: Arc<OnceLock<Arc<Outlet>>>,
}

impl Delivery {
    /// Starts watching.
    pub(super) fn watch() -> Self {
        Self { parent: getppid(), broken: Arc::default(), outlet: Arc::default() }
    }

    /// Where the output of commands goes.
    pub(super) fn outlet(&self) -> &Arc<Outlet> {
        self.outlet.get_or_init(|| {
            let broken = Arc::clone(&self.broken);
            Outlet::start(move || broken.store(true, Ordering::SeqCst))
        })
    }

    /// Waits until the output of the command is written, at most for this time.
    pub(super) fn finish_output(&self, limit: Option<Duration>) {
        if self.outlet.get().is_some_and(|outlet| !outlet.finish(limit)) {
            self.broken();
        }
    }

    /// Part of the answer could not be written, or this call was interrupted.
    pub(super) fn broken(&self) {
        self.broken.store(true, Ordering::SeqCst);
    }

    /// Whether that is known.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }

    /// Records the delivery, if there is no evidence against it.
    pub(super) fn note(&self, ledger: &Blocking, record: &Arc<Record>, window_ms: u64) {
        if self.is_broken() || !has_readers() || getppid() != self.parent {
            return;
        }
        // Without this record the same call counts as a retry and gets this result again, which is safe and is
        // reported.
        let from_ms = record.answer_counts_from_ms(ledger.clock_ms(), window_ms);
        drop(ledger.attempts().delivered(record, from_ms));
    }
}

/// Whether both streams still have a reader. A write shows that a pipe, a socket or a terminal was closed only if
/// something is written after that. A stream that was closed from the beginning was not wanted.
fn has_readers() -> bool {
    let (out, err) = (std::io::stdout(), std::io::stderr());
    let mut streams = [out.as_fd(), err.as_fd()].map(|stream| PollFd::new(stream, PollFlags::POLLOUT));
    let closed = PollFlags::POLLERR | PollFlags::POLLHUP;
    match poll(&mut streams, PollTimeout::ZERO) {
        Ok(_) => streams.iter().all(|stream| stream.revents().is_none_or(|seen| !seen.intersects(closed))),
        Err(_) => false,
    }
}
