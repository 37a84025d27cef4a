//! Waking an event loop from the ledger's threads, which must never enter the interpreter: a byte in a socket that the
//! loop watches, and a list of who is meant.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

use pyo3::intern;
use pyo3::prelude::*;

/// One for each event loop.
#[pyclass(frozen, module = "onceward._onceward")]
pub(crate) struct Bell {
    core: Arc<Core>,
    watched: UnixStream,
    /// Futures of the event loop, by the number that their wakers know.
    waiters: Mutex<Waiters>,
}

#[derive(Default)]
struct Waiters {
    next: u64,
    futures: HashMap<u64, Py<PyAny>>,
}

struct Core {
    line: UnixStream,
    rung: Mutex<Vec<u64>>,
}

struct Ring {
    core: Arc<Core>,
    waiter: u64,
}

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        let mut rung = lock(&self.core.rung);
        rung.push(self.waiter);
        // A byte for all who are on the list; a full socket has one in it already.
        if rung.len() == 1 {
            drop((&self.core.line).write(&[1]));
        }
    }
}

#[pymethods]
impl Bell {
    #[new]
    fn new() -> PyResult<Self> {
        let (line, watched) = UnixStream::pair()?;
        line.set_nonblocking(true)?;
        watched.set_nonblocking(true)?;
        let core = Arc::new(Core { line, rung: Mutex::default() });
        Ok(Self { core, watched, waiters: Mutex::default() })
    }

    /// What the event loop watches.
    fn fileno(&self) -> i32 {
        self.watched.as_raw_fd()
    }

    /// The event loop's reader: lets those go on who are meant.
    fn ring(&self, py: Python<'_>) -> PyResult<()> {
        let mut bytes = [0; 64];
        while (&self.watched).read(&mut bytes).is_ok_and(|read| read == bytes.len()) {}
        let rung = std::mem::take(&mut *lock(&self.core.rung));
        for waiter in rung {
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

impl Bell {
    /// A waker for that future of the event loop, and the number to forget it by.
    pub(crate) fn waker(&self, future: Py<PyAny>) -> (Waker, u64) {
        let mut waiters = lock(&self.waiters);
        let waiter = waiters.next;
        waiters.next += 1;
        waiters.futures.insert(waiter, future);
        (Arc::new(Ring { core: Arc::clone(&self.core), waiter }).into(), waiter)
    }

    /// Nobody waits there any more.
    pub(crate) fn forget(&self, waiter: u64) -> Option<Py<PyAny>> {
        lock(&self.waiters).futures.remove(&waiter)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
