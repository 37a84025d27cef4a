//! Record and effect in one transaction of the caller's own. Python executes the statements on the caller's connection;
//! what is written, and whether anything is run, is decided here by `onceward::atomic`.

use std::sync::Arc;

use onceward::atomic::{self, Step};
use onceward::{Ending, Error, Failure, KeyOrigin, Outcome, Ran, transition};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::receipt::Receipt;
use crate::record::Record as Shown;
use crate::spec::Spec;
use crate::{error, told};

/// A record that is to be written in the caller's transaction.
#[pyclass(frozen, module = "onceward._onceward")]
pub(crate) struct Written {
    record: onceward::Record,
    expected: Option<u64>,
}

/// What a call comes to, on the record that was found: a receipt of what was done before, or the record to be written
/// before the effect. `found` is the whole record as JSON text, `body` what stands beside it.
#[pyfunction]
#[pyo3(signature = (spec, args, kwargs, found, now_ms))]
pub(crate) fn atomic_begin<'py>(
    py: Python<'py>,
    spec: &Spec,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
    found: Option<&str>,
    now_ms: i64,
) -> PyResult<Bound<'py, PyAny>> {
    let intent = spec.intent(args, kwargs)?;
    let found = found.map(read).transpose()?.map(Arc::new);
    match atomic::begin(found, &intent, now_ms).map_err(|problem| error::of(py, &problem))? {
        Step::Replay(receipt) => {
            Ok(Bound::new(py, Receipt::new(receipt, now_ms, None, spec.decode(py)))?.into_any())
        }
        Step::Execute { expected, record } => Ok(Bound::new(py, Written { record, expected })?.into_any()),
    }
}

#[pymethods]
impl Written {
    /// `op_…`: names the operation.
    #[getter]
    fn id(&self) -> &str {
        self.record.id.as_str()
    }

    /// The version of the record that it takes the place of; `None` where there is none.
    #[getter]
    fn expected(&self) -> Option<u64> {
        self.expected
    }

    /// When the record moves on.
    #[getter]
    fn due_ms(&self) -> Option<i64> {
        self.record.due_ms
    }

    /// The whole record as JSON text.
    #[getter]
    fn json(&self) -> PyResult<String> {
        text(&self.record)
    }

    /// The record as the columns of a row: scope, name, key, origin, state, version, attempt, created_ms, updated_ms,
    /// detail and outcome.
    #[getter]
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let record = &self.record;
        let row = PyDict::new(py);
        row.set_item("scope", &record.scope)?;
        row.set_item("name", &record.name)?;
        row.set_item("key", &record.key.text)?;
        let origin = match record.key.origin {
            KeyOrigin::Given => "given",
            KeyOrigin::Derived => "derived",
        };
        row.set_item("origin", origin)?;
        row.set_item("state", record.state.as_str())?;
        row.set_item("version", record.version)?;
        row.set_item("attempt", record.attempt)?;
        row.set_item("created_ms", record.created_ms)?;
        row.set_item("updated_ms", record.updated_ms)?;
        row.set_item("detail", text(&record.detail)?)?;
        row.set_item("outcome", record.outcome.as_ref().map(text).transpose()?)?;
        Ok(row)
    }

    /// The record with the attempt done, to be written before the commit.
    fn done(&self, effect: &str, json: Option<String>, now_ms: i64) -> PyResult<Self> {
        let record = atomic::done(&self.record, told::done(atomic::dispatch(), effect, json)?, now_ms);
        Ok(Self { expected: Some(self.record.version), record })
    }

    /// The record with the attempt in doubt: part of it was committed by the function itself.
    fn in_doubt(&self, reason: String, now_ms: i64) -> Self {
        let ending = Ending::InDoubt(Outcome::because(Some(reason)));
        let record = transition::finish(&self.record, self.record.attempt, ending, now_ms);
        Self { expected: Some(self.record.version), record }
    }

    /// The exception for an attempt that is in doubt.
    fn doubted(&self, py: Python<'_>, reason: String) -> Py<PyAny> {
        let doubt = Error::InDoubt { record: Arc::new(self.record.clone()), reason, ran: Ran::Yes };
        error::of(py, &doubt).into_value(py).into_any()
    }

    /// The proof, once the transaction is committed.
    fn receipt(&self, now_ms: i64, value: Option<Py<PyAny>>) -> Receipt {
        Receipt::new(atomic::receipt(self.record.clone()), now_ms, value, None)
    }

    /// The exception for an effect that failed: the transaction is rolled back, and nothing is on record.
    fn failed(&self, py: Python<'_>, reason: String) -> Py<PyAny> {
        let failed = atomic::failed(self.record.clone(), Failure::no_effect(reason));
        error::of(py, &failed).into_value(py).into_any()
    }

    /// The exception for a commit whose reply was lost. The same call, made again, finds out.
    fn unanswered(&self, py: Python<'_>, source: String) -> Py<PyAny> {
        let lost: Error = atomic::unanswered(self.record.clone(), source);
        error::of(py, &lost).into_value(py).into_any()
    }

    /// The operation, as it stands in the transaction.
    #[getter]
    fn operation(&self) -> Shown {
        Shown::new(Arc::new(self.record.clone()), self.record.state)
    }
}

fn read(text: &str) -> PyResult<onceward::Record> {
    serde_json::from_str(text).map_err(|problem| {
        let what = format!("the table onceward holds what this version does not understand: {problem}");
        PyValueError::new_err(what)
    })
}

fn text(value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|problem| PyValueError::new_err(problem.to_string()))
}
