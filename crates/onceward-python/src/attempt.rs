//! One try to execute an operation, as the code that does the work sees it.

use pyo3::prelude::*;

use crate::error;

/// One try to execute an operation. Its intent is on disk.
#[pyclass(frozen, module = "onceward")]
pub(crate) struct Attempt {
    attempt: onceward::Attempt,
}

impl Attempt {
    pub(crate) fn new(attempt: onceward::Attempt) -> Self {
        Self { attempt }
    }
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

    /// Says that nothing has left yet: until `dispatched`, an error or a crash is certain to have had no effect.
    fn not_dispatched_yet(&self) {
        self.attempt.not_dispatched_yet();
    }

    /// Says that the request leaves now: from here on an error without a class leaves the operation in doubt.
    fn dispatched(&self, py: Python<'_>) -> PyResult<()> {
        // Eight bytes that nobody syncs: to let the interpreter go would cost more than they do.
        self.attempt.dispatched().map_err(|problem| error::of(py, &problem.into()))
    }
}
