//! One attempt to execute an operation, as the code that does the work sees it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use onceward::{Dispatched, StoreError};
use pyo3::prelude::*;

use crate::drive::drive;
use crate::error;
use crate::stop_watch::StopWatch;

/// How often the ledger is read for a request to stop, and how long after the beginning for the first time.
const LOOK: Duration = Duration::from_millis(500);

/// Keeps the token of a dispatch until the attempt ends.
pub(crate) type Token = Arc<Mutex<Option<Dispatched>>>;

/// One attempt to execute an operation. Its intent is on disk.
#[pyclass(frozen, module = "onceward")]
pub(crate) struct Attempt {
    attempt: onceward::Attempt,
    token: Token,
    /// When the ledger was last read for a request to stop.
    looked: Mutex<Instant>,
}

impl Attempt {
    pub(crate) fn new(attempt: onceward::Attempt, token: Token) -> Self {
        Self { attempt, token, looked: Mutex::new(Instant::now()) }
    }

    /// Whether it is time to read the ledger again.
    fn is_due(&self) -> bool {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = looked.elapsed() >= LOOK;
        if is_due {
            *looked = Instant::now();
        }
        is_due
    }
}

/// The token of the attempt's dispatch. A function that succeeded has had its effect, so a missing dispatch is recorded
/// now; `None` if that fails.
pub(crate) fn dispatched(attempt: &onceward::Attempt, token: &Token) -> Option<Dispatched> {
    let noted = lock(token).take();
    noted.or_else(|| attempt.note_dispatched().ok())
}

#[pymethods]
impl Attempt {
    /// `op_…`: identifies the operation.
    #[getter]
    fn id(&self) -> &str {
        self.attempt.operation().as_str()
    }

    /// Its number: a fencing token, for services that can check one.
    #[getter]
    fn number(&self) -> u32 {
        self.attempt.number()
    }

    /// The operation's key.
    #[getter]
    fn key(&self) -> &str {
        self.attempt.key()
    }

    /// The operation's scope.
    #[getter]
    fn scope(&self) -> &str {
        self.attempt.scope()
    }

    /// The key for a service that accepts one: the same for every attempt, and unique across scopes.
    #[getter]
    fn downstream_key(&self) -> &str {
        self.attempt.downstream_key()
    }

    /// Whether someone asked for the attempt to end. Reads the ledger at most twice a second, and not in the first half
    /// second of the attempt.
    fn stop_requested(&self, py: Python<'_>) -> PyResult<bool> {
        if !self.attempt.is_cancel_requested() && self.is_due() {
            let read = py.detach(|| drive(self.attempt.check_cancel_requested()))?;
            // A ledger that cannot be read now is read again later.
            drop(read);
        }
        Ok(self.attempt.is_cancel_requested())
    }

    /// Waits for such a request in an event loop.
    fn watch_stop(&self) -> StopWatch {
        StopWatch::new(self.attempt.clone())
    }

    /// Records that the request is being sent: from here on a crash leaves the operation in doubt.
    fn dispatched(&self, py: Python<'_>) -> PyResult<()> {
        let mut token = lock(&self.token);
        if token.is_none() {
            // Eight bytes that are not synced: releasing the interpreter would cost more than writing them.
            let noted = self.attempt.dispatch().map_err(|failure| {
                if self.attempt.is_cancel_requested() {
                    return error::not_dispatched(py, failure.reason());
                }
                let why = "the dispatch could not be noted, so nothing must be sent";
                error::of(py, &StoreError::unavailable(why).into())
            })?;
            *token = Some(noted);
        }
        Ok(())
    }
}

fn lock(token: &Token) -> MutexGuard<'_, Option<Dispatched>> {
    token.lock().unwrap_or_else(PoisonError::into_inner)
}
