//! Waits for the ledger with the interpreter released, and reacts to Ctrl-C.

use std::cell::RefCell;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

use crate::fork::{self, Process};

/// How often a waiting thread checks for signals.
const LISTEN: Duration = Duration::from_millis(50);

/// Drives a future to completion on this thread. The interpreter must be released.
///
/// # Errors
/// What a signal handler raised. The future is then dropped.
pub(crate) fn drive<T>(future: impl Future<Output = T>) -> PyResult<T> {
    drive_unless(|| false, future)
}

/// The same, but ignores signals while `deaf` returns true. They are handled when the interpreter runs again.
pub(crate) fn drive_unless<T>(deaf: impl Fn() -> bool, future: impl Future<Output = T>) -> PyResult<T> {
    let process = Process::this();
    let mut future = Box::pin(future);
    let waker = own_waker();
    let mut context = Context::from_waker(&waker);
    let mut heard: Option<Instant> = None;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Ok(output);
        }
        if process.is_left() {
            // Dropping it would end the parent's attempt and free its lock.
            std::mem::forget(future);
            return Err(Python::attach(fork::left));
        }
        let heard_at = *heard.get_or_insert_with(Instant::now);
        thread::park_timeout(LISTEN);
        // Most waits end sooner, and taking the interpreter is expensive if many threads want it.
        if heard_at.elapsed() < LISTEN || deaf() {
            continue;
        }
        heard = Some(Instant::now());
        // If the interpreter is gone, so is the caller that waits.
        Python::try_attach(|py| py.check_signals())
            .unwrap_or_else(|| Err(PyKeyboardInterrupt::new_err(())))?;
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// One waker per thread: most calls end before they wait.
pub(crate) fn own_waker() -> Waker {
    thread_local! {
        static WAKER: RefCell<Option<Waker>> = const { RefCell::new(None) };
    }
    WAKER.with_borrow_mut(|waker| {
        waker.get_or_insert_with(|| Arc::new(Unpark(thread::current())).into()).clone()
    })
}
