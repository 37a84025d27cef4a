//! One try to execute an operation, as the code that does the work sees it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use onceward::{Dispatched, StoreError};
use pyo3::prelude::*;

use crate::error;

/// Where the token of a dispatch waits for the end of the attempt.
pub(crate) type Token = Arc<Mutex<Option<Dispatched>>>;

/// One try to execute an operation. Its intent is on disk.
#[pyclass(frozen, module = "onceward")]
pub(crate) struct Attempt {
    attempt: onceward::Attempt,
    token: Token,
}

impl Attempt {
    pub(crate) fn new(attempt: onceward::Attempt, token: Token) -> Self {
        Self { attempt, token }
    }
}

/// The token of the attempt's dispatch. A function that succeeded has had its effect, so a dispatch that was not noted
/// before is noted now; `None` where that fails.
pub(crate) fn dispatched(attempt: &onceward::Attempt, token: &Token) -> Option<Dispatched> {
    let noted = lock(token).take();
    noted.or_else(|| attempt.dispatch().ok())
}

#[pymethods]
impl Attempt {
    /// `op_…`: names the operation.
    #[getter]
    fn id(&self) -> &str {
        self.attempt.operation().as_str()
    }

    /// Its number: the fencing token, for a downstream that can check one.
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

    /// The key for a downstream that honours one: the same for every attempt, and unique over scopes.
    #[getter]
    fn downstream_key(&self) -> &str {
        self.attempt.downstream_key()
    }

    /// Notes that the request leaves now: from here on a crash leaves the operation in doubt.
    fn dispatched(&self, py: Python<'_>) -> PyResult<()> {
        let mut token = lock(&self.token);
        if token.is_none() {
            // Eight bytes that are not synced: releasing the interpreter would cost more than writing them.
            let noted = self.attempt.dispatch().map_err(|_| {
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
