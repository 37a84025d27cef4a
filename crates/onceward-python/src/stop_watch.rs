//! Waits in an event loop until an attempt is asked to end. The ledger's threads only wake the loop.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use onceward::Attempt;
use pyo3::prelude::*;

use crate::fork::Process;
use crate::loop_waker::LoopWaker;

/// Watches over one attempt that has run for a while: the first poll reads the ledger.
#[pyclass(frozen, module = "onceward._onceward")]
pub(crate) struct StopWatch {
    /// `None` once the request was seen.
    waiting: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    waiter: Mutex<Option<(Py<LoopWaker>, u64)>>,
    process: Process,
}

impl StopWatch {
    pub(crate) fn new(attempt: Attempt) -> Self {
        let waiting = async move {
            // A ledger that cannot be read now is read again later.
            drop(attempt.check_cancel_requested().await);
            attempt.cancel_requested().await;
        };
        Self {
            waiting: Mutex::new(Some(Box::pin(waiting))),
            waiter: Mutex::default(),
            process: Process::this(),
        }
    }

    fn forget_waiter(&self) {
        let waiter = self.waiter.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((loop_waker, number)) = waiter {
            drop(loop_waker.get().forget(number));
        }
    }
}

#[pymethods]
impl StopWatch {
    /// Whether the attempt was asked to end. If not, `future` is resolved when polling makes sense again.
    fn poll(&self, py: Python<'_>, loop_waker: &Bound<'_, LoopWaker>, future: Py<PyAny>) -> PyResult<bool> {
        self.process.check(py)?;
        self.forget_waiter();
        let (waker, number) = loop_waker.get().waker(future);
        *self.waiter.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((loop_waker.clone().unbind(), number));
        let is_asked = py.detach(|| {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let polled =
                waiting.as_mut().map(|waiting| waiting.as_mut().poll(&mut Context::from_waker(&waker)));
            let is_asked = polled.is_none_or(|polled| polled == Poll::Ready(()));
            if is_asked {
                *waiting = None;
            }
            is_asked
        });
        if is_asked {
            self.forget_waiter();
        }
        Ok(is_asked)
    }

    /// Ends the watch.
    fn close(&self) {
        self.forget_waiter();
    }
}

impl Drop for StopWatch {
    fn drop(&mut self) {
        if self.process.is_left() {
            let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
            std::mem::forget(waiting);
        }
        self.forget_waiter();
    }
}
