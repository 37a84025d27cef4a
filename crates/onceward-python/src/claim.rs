//! An attempt that begins in one place and ends in another, as in a `with` block.

use std::sync::{Arc, Mutex, PoisonError};

use onceward::Ending;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::attempt::{Attempt, Token};
use crate::drive::drive;
use crate::fork::Process;
use crate::handle::Opened;
use crate::lease_keeper::{LeaseKeeper, keep_lease};
use crate::receipt::Receipt;
use crate::{error, wire};

/// An attempt whose intent is on disk. If it is dropped without an ending, it is in doubt at once, for all callers.
#[pyclass(frozen, module = "onceward._onceward")]
pub(crate) struct Claim {
    held: Mutex<Option<(onceward::Claim, LeaseKeeper)>>,
    attempt: onceward::Attempt,
    token: Token,
    process: Process,
    opened: Arc<Opened>,
}

impl Claim {
    pub(crate) fn new(claim: onceward::Claim, opened: Arc<Opened>, lease_ms: u64) -> Self {
        let attempt = claim.attempt();
        let kept = keep_lease(&opened.ledger, &attempt, lease_ms);
        let (token, process) = (Token::default(), Process::this());
        Self { held: Mutex::new(Some((claim, kept))), attempt, token, process, opened }
    }

    fn finish(&self, py: Python<'_>, ending: Ending, own: Option<Py<PyAny>>) -> PyResult<Receipt> {
        self.process.check(py)?;
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (claim, kept) = held.ok_or_else(|| PyRuntimeError::new_err("this attempt has already ended"))?;
        let result = py.detach(|| {
            drop(kept);
            drive(claim.finish(ending))
        });
        let receipt = result?.map_err(|problem| error::of(py, &problem))?;
        Ok(Receipt::new(receipt, self.opened.ledger.clock_ms(), own, None))
    }
}

#[pymethods]
impl Claim {
    /// The attempt, for the code that does the work.
    #[getter]
    fn attempt(&self) -> Attempt {
        Attempt::new(self.attempt.clone(), Token::clone(&self.token))
    }

    /// It happened, with this result as JSON text; without one, the result could not be kept.
    #[pyo3(signature = (effect, json, value=None))]
    fn done(
        &self,
        py: Python<'_>,
        effect: &str,
        json: Option<String>,
        value: Option<Py<PyAny>>,
    ) -> PyResult<Receipt> {
        let ending = Ending::Done(wire::outcome(effect, json)?);
        self.finish(py, ending, value)
    }

    /// It definitely did not happen, by this evidence. Raises `Failed`.
    fn failed(&self, py: Python<'_>, evidence: &str, reason: String) -> PyResult<Receipt> {
        self.finish(py, Ending::failed(wire::evidence(evidence)?, reason), None)
    }

    /// It is unknown whether it happened. Raises `InDoubt`.
    fn in_doubt(&self, py: Python<'_>, reason: String) -> PyResult<Receipt> {
        self.finish(py, Ending::in_doubt(reason), None)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.process.is_left() {
            let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
            std::mem::forget(held);
        }
    }
}
