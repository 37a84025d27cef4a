//! Forks in the middle of a call. The child has a copy of everything, and owns none of it: what it would write or let
//! go of is its parent's.

use onceward::{Error, StoreError};
use pyo3::prelude::*;

use crate::error;

/// The process in which something was begun.
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

    /// Leaves what is the parent's untouched.
    ///
    /// # Errors
    /// Where this is a child.
    pub(crate) fn check(self, py: Python<'_>) -> PyResult<()> {
        if self.is_left() { Err(left(py)) } else { Ok(()) }
    }
}

/// What a child is told that comes to the end of its parent's call.
pub(crate) fn left(py: Python<'_>) -> PyErr {
    let why = "this process was forked inside a guarded call, which is its parent's: how it ends is for the parent to \
               say. Nothing was written here; leave a forked child with os._exit";
    error::of(py, &Error::from(StoreError::unavailable(why)))
}
