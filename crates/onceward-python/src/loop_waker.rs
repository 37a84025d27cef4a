//! Wakes an event loop from the ledger's threads, which must never enter the interpreter: they write a byte to a socket
//! that the loop watches, and keep a list of the futures to resolve.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use pyo3::intern;
use pyo3::prelude::*;

/// The waker of one event loop.
#[pyclass(frozen, module = "onceward._onceward")]
pub(crate) struct LoopWaker {
    core: Arc<Core>,
    watched: UnixStream,
    /// Futures of the event loop, by the number that their wakers hold.
    waiters: Mutex<Waiters>,
}

#[derive(Default)]
struct Waiters {
    next: u64,
    futures: HashMap<u64, Py<PyAny>>,
}

struct Core {
    line: UnixStream,
    woken: Mutex<Vec<u64>>,
}

struct FutureWaker {
    core: Arc<Core>,
    waiter: u64,
}

impl Wake for FutureWaker {
    fn wake(self: Arc<Self>) {
        let mut woken = lock(&self.core.woken);
        woken.push(self.waiter);
        // One byte for the whole list; a full socket already contains one.
        if woken.len() == 1 {
            drop((&self.core.line).write(&[1]));
        }
    }
}

#[pymethods]
impl LoopWaker {
    #[new]
    fn new() -> PyResult<Self> {
        let (line, watched) = UnixStream::pair()?;
        line.set_nonblocking(true)?;
        watched.set_nonblocking(true)?;
        let core = Arc::new(Core { line, woken: Mutex::default() });
        Ok(Self { core, watched, waiters: Mutex::default() })
    }

    /// The descriptor that the event loop watches.
    fn fileno(&self) -> i32 {
        self.watched.as_raw_fd()
    }

    /// The event loop's reader: resolves the futures on the list.
    fn wake_futures(&self, py: Python<'_>) -> PyResult<()> {
        let mut bytes = [0; 64];
        while (&self.watched).read(&mut bytes).is_ok_and(|read| read == bytes.len()) {}
        let woken = std::mem::take(&mut *lock(&self.core.woken));
        for waiter in woken {
            let future = lock(&self.waiters).futures.remove(&waiter);
            let Some(future) = future else { continue };
            let future = future.bind(py);
            if !future.call_method0(intern!(py, "done"))?.is_truthy()? {
                future.call_method1(intern!(py, "set_result"), (py.None(),))?;
            }
        }
        Ok(())
    }
}

impl LoopWaker {
    /// A waker for that future of the event loop, and the number to remove it by.
    pub(crate) fn waker(&self, future: Py<PyAny>) -> (Waker, u64) {
        let mut waiters = lock(&self.waiters);
        let waiter = waiters.next;
        waiters.next += 1;
        waiters.futures.insert(waiter, future);
        (Arc::new(FutureWaker { core: Arc::clone(&self.core), waiter }).into(), waiter)
    }

    /// Removes a future that no longer waits.
    pub(crate) fn forget(&self, waiter: u64) -> Option<Py<PyAny>> {
        lock(&self.waiters).futures.remove(&waiter)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
