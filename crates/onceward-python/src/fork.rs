//! Forks during a call. The child has a copy of everything but owns none of it: locks and records are its parent's.

use onceward::{Error, StoreError};
use pyo3::prelude::*;

use crate::error;

/// The process in which something began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn this() -> Self {
        Self(std::process::id())
    }

    /// Whether this is a child that was forked from it.
    pub(crate) fn is_left(self) -> bool {
        self != Self::this()
    }

    /// Makes sure that a child does not touch what is the parent's.
    ///
    /// # Errors
    /// If this is a child.
    pub(crate) fn check(self, py: Python<'_>) -> PyResult<()> {
        if self.is_left() { Err(left(py)) } else { Ok(()) }
    }
}

/// The exception for a child that reaches the end of its parent's call.
pub(crate) fn left(py: Python<'_>) -> PyErr {
    let why = "this process was forked inside a guarded call of its parent, and only the parent can record how that \
               call ends. Nothing was written here; end a forked child with os._exit";
    error::of(py, &Error::from(StoreError::unavailable(why)))
}
