//! What a call would get.

use std::sync::Arc;

use onceward::{Effect, Happened, Intent, Preview};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::record::Record;

/// What a call would get. Nothing was run or written to find out.
#[pyclass(frozen, module = "onceward._onceward")]
pub(crate) struct Plan {
    said: Said,
    record: Option<Arc<onceward::Record>>,
}

/// What makes the same plan in another process: a function, and what it is called with.
type Reduced<'py> = (Bound<'py, PyAny>, (String, Option<Record>));

/// All of it but the record, as it is pickled.
#[derive(serde::Serialize, serde::Deserialize)]
struct Said {
    decision: String,
    reason: String,
    effect: String,
    code: Option<String>,
    happened: Option<String>,
    id: String,
    key: String,
}

impl Plan {
    pub(crate) fn new(plan: &onceward::Plan, intent: &Intent, effect: Effect) -> Self {
        let preview = Preview::of(plan, intent, effect);
        let said = Said {
            decision: preview.decision.to_owned(),
            reason: preview.sentence,
            effect: preview.effect.as_str().to_owned(),
            code: preview.refusal.map(|refusal| refusal.code().to_string()),
            happened: preview.happened.map(Happened::as_str).map(str::to_owned),
            id: intent.id.to_string(),
            key: intent.key.text.clone(),
        };
        Self { said, record: plan.record.clone() }
    }
}

/// What `pickle` makes a plan of again: the function, and its arguments.
type Reduced<'py> = (Bound<'py, PyAny>, (String, Option<Record>));

#[pymethods]
impl Plan {
    /// `run`, `replay`, `replay_failure`, `wait`, `probe` or `refuse`.
    #[getter]
    fn decision(&self) -> &str {
        &self.said.decision
    }

    /// The decision in words.
    #[getter]
    fn reason(&self) -> &str {
        &self.said.reason
    }

    /// `would_create`, `would_update`, `would_delete` or `would_noop`.
    #[getter]
    fn effect(&self) -> &str {
        &self.said.effect
    }

    /// The code of the refusal that the call would get.
    #[getter]
    fn code(&self) -> Option<&str> {
        self.said.code.as_deref()
    }

    /// Whether the effect happened already; `None` where the operation is new.
    #[getter]
    fn happened(&self) -> Option<&str> {
        self.said.happened.as_deref()
    }

    /// `op_…`: names the operation.
    #[getter]
    fn id(&self) -> &str {
        &self.said.id
    }

    /// The operation's key.
    #[getter]
    fn key(&self) -> &str {
        &self.said.key
    }

    /// The operation as the ledger remembers it; `None` where it was never asked for.
    #[getter]
    fn operation(&self) -> Option<Record> {
        self.record.as_ref().map(|record| Record::new(Arc::clone(record), record.state))
    }

    #[staticmethod]
    fn _restored(said: &str, record: Option<&Bound<'_, Record>>) -> PyResult<Self> {
        let said = serde_json::from_str(said).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self { said, record: record.map(|record| Arc::clone(record.get().inner())) })
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let said =
            serde_json::to_string(&self.said).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok((py.get_type::<Self>().getattr("_restored")?, (said, self.operation())))
    }

    fn __repr__(&self) -> String {
        format!("Plan(decision={:?}, effect={:?}, id={:?})", self.decision(), self.effect(), self.id())
    }
}
