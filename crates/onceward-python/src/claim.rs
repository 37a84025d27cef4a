//! An attempt that is begun in one place and finished in another, as a `with` block does.

use std::sync::{Arc, Mutex, PoisonError};

use onceward::{Ending, Outcome};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::attempt::{Attempt, Token};
use crate::drive::drive;
use crate::fork::Process;
use crate::handle::Opened;
use crate::keep::{Kept, keep};
use crate::receipt::Receipt;
use crate::{error, told};

/// An attempt whose intent is on disk. Dropped without an ending, it is in doubt, at once and for everyone.
#[pyclass(frozen, module = "onceward._onceward")]
pub(crate) struct Claim {
    held: Mutex<Option<(onceward::Claim, Kept)>>,
    attempt: onceward::Attempt,
    token: Token,
    process: Process,
    opened: Arc<Opened>,
}

impl Claim {
    pub(crate) fn new(claim: onceward::Claim, opened: Arc<Opened>, lease_ms: u64) -> Self {
        let attempt = claim.attempt();
        let kept = keep(&opened.ledger, &attempt, lease_ms);
        let (token, process) = (Token::default(), Process::this());
        Self { held: Mutex::new(Some((claim, kept))), attempt, token, process, opened }
    }

    fn finish(&self, py: Python<'_>, ending: Ending, own: Option<Py<PyAny>>) -> PyResult<Receipt> {
        self.process.check(py)?;
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (claim, kept) =
            held.ok_or_else(|| PyRuntimeError::new_err("this attempt is finished already"))?;
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
    /// What the code that does the work sees.
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
        let ending = Ending::Done(told::outcome(effect, json)?);
        self.finish(py, ending, value)
    }

    /// It did not happen, for certain. Raises `Failed`.
    fn failed(&self, py: Python<'_>, reason: String) -> PyResult<Receipt> {
        self.finish(py, Ending::Failed(Outcome::because(Some(reason))), None)
    }

    /// Nobody can say whether it happened. Raises `InDoubt`.
    fn in_doubt(&self, py: Python<'_>, reason: String) -> PyResult<Receipt> {
        self.finish(py, Ending::InDoubt(Outcome::because(Some(reason))), None)
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
