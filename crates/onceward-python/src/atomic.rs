//! Record and effect in one transaction of the caller's. Python executes the statements on the caller's connection;
//! `onceward::atomic` decides what is written and whether anything runs.

use std::borrow::Cow;
use std::sync::Arc;

use onceward::atomic::{self, Step};
use onceward::{Ending, Error, Evidence, Failure, KeyOrigin, OperationId, Outcome, Ran, Redaction};
use onceward_store::seal::{self, Keys};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::handle::Handle;
use crate::receipt::Receipt;
use crate::record::Record as Shown;
use crate::spec::Spec;
use crate::{error, wire};

/// A record to be written in the caller's transaction.
#[pyclass(frozen, module = "onceward._onceward")]
pub(crate) struct Written {
    record: onceward::Record,
    expected: Option<u64>,
    /// What is removed from the result before it is stored.
    redact: Redaction,
    /// Encrypt the record for the caller's database, if encryption is configured.
    keys: Option<Keys>,
}

/// Decides what a call gets, given the record that was found: the receipt of an earlier call, or the record to write
/// before the effect. `found` is the whole record as JSON text. `ledger` is the ledger that the record belongs to; it
/// is missing if the caller's database has its own table of records.
#[pyfunction]
#[pyo3(signature = (spec, args, kwargs, found, now_ms, ledger=None))]
pub(crate) fn atomic_begin<'py>(
    py: Python<'py>,
    spec: &Spec,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
    found: Option<&str>,
    now_ms: i64,
    ledger: Option<&Handle>,
) -> PyResult<Bound<'py, PyAny>> {
    let intent = match ledger {
        Some(handle) => handle.keyed(py, spec.intent(args, kwargs)?)?,
        None => spec.intent(args, kwargs)?,
    };
    let keys = seal::from_environment().map_err(|problem| error::of(py, &problem.into()))?;
    let mut found = found.map(read).transpose()?;
    if let (Some(keys), Some(record)) = (&keys, &mut found) {
        keys.open(record);
    }
    let found = found.map(Arc::new);
    match atomic::begin(found, &intent, now_ms).map_err(|problem| error::of(py, &problem))? {
        Step::Replay(receipt) => {
            Ok(Bound::new(py, Receipt::new(receipt, now_ms, None, spec.decode(py)))?.into_any())
        }
        Step::Execute { expected, record } => {
            let redact = intent.terms.redact.clone();
            Ok(Bound::new(py, Written { record, expected, redact, keys })?.into_any())
        }
    }
}

#[pymethods]
impl Written {
    /// `op_…`: identifies the operation.
    #[getter]
    fn id(&self) -> &str {
        self.record.id.as_str()
    }

    /// The version of the record that this one replaces; `None` if there is none.
    #[getter]
    fn expected(&self) -> Option<u64> {
        self.expected
    }

    /// When the record is due for its next change.
    #[getter]
    fn due_ms(&self) -> Option<i64> {
        self.record.due_ms
    }

    /// The whole record as JSON text.
    #[getter]
    fn json(&self) -> PyResult<String> {
        text(&*self.sealed()?)
    }

    /// The record as the columns of a row: kind, action, number, open_until, scope, name, key, origin, state, version,
    /// attempt, created_ms, updated_ms, detail and outcome.
    #[getter]
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let record = &*self.sealed()?;
        let row = PyDict::new(py);
        row.set_item("kind", record.kind.as_str())?;
        row.set_item("action", record.action.as_ref().map(OperationId::as_str))?;
        row.set_item("number", record.number)?;
        row.set_item("open_until", record.action.as_ref().and_then(|_| record.open_until_ms()))?;
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
        let done = wire::done(atomic::dispatch(), effect, json)?;
        Ok(self.followed_by(atomic::done(&self.record, done, &self.redact, now_ms)))
    }

    /// The record with the attempt in doubt, because a part of it may have happened.
    fn in_doubt(&self, reason: String, now_ms: i64) -> Self {
        let ending = Ending::InDoubt(Outcome::because(Some(reason)));
        self.followed_by(atomic::finish(&self.record, ending, &self.redact, now_ms))
    }

    /// The same record in place of another version, or of no record.
    #[pyo3(signature = (expected))]
    fn replacing(&self, expected: Option<u64>) -> Self {
        Self { record: self.record.clone(), expected, redact: self.redact.clone(), keys: self.keys.clone() }
    }

    /// The exception for an attempt that is in doubt.
    fn doubted(&self, py: Python<'_>, reason: String) -> Py<PyAny> {
        let doubt = Error::InDoubt { record: Arc::new(self.record.clone()), reason, ran: Ran::Yes };
        error::of(py, &doubt).into_value(py).into_any()
    }

    /// The receipt, for use after the commit.
    fn receipt(&self, now_ms: i64, value: Option<Py<PyAny>>) -> Receipt {
        Receipt::new(atomic::receipt(self.record.clone()), now_ms, value, None)
    }

    /// The exception for an effect that failed: the transaction is rolled back, and nothing is recorded.
    fn failed(&self, py: Python<'_>, reason: String) -> Py<PyAny> {
        let failed = atomic::failed(
            self.record.clone(),
            Failure::no_effect(Evidence::refused("the transaction was rolled back"), reason),
        );
        error::of(py, &failed).into_value(py).into_any()
    }

    /// The exception for a commit whose reply was lost. A repeated call finds out what happened.
    fn unanswered(&self, py: Python<'_>, source: String) -> Py<PyAny> {
        let lost: Error = atomic::unanswered(self.record.clone(), source);
        error::of(py, &lost).into_value(py).into_any()
    }

    /// The operation, as the transaction sees it.
    #[getter]
    fn operation(&self) -> Shown {
        Shown::new(Arc::new(self.record.clone()), self.record.state)
    }
}

impl Written {
    /// The next record, which replaces this one.
    fn followed_by(&self, record: onceward::Record) -> Self {
        let expected = Some(self.record.version);
        Self { record, expected, redact: self.redact.clone(), keys: self.keys.clone() }
    }

    fn sealed(&self) -> PyResult<Cow<'_, onceward::Record>> {
        let Some(keys) = &self.keys else { return Ok(Cow::Borrowed(&self.record)) };
        keys.sealed(&self.record)
            .map(Cow::Owned)
            .map_err(|problem| PyValueError::new_err(problem.to_string()))
    }
}

fn read(text: &str) -> PyResult<onceward::Record> {
    serde_json::from_str(text).map_err(|problem| {
        let what = format!("the table onceward contains data that this version cannot read: {problem}");
        PyValueError::new_err(what)
    })
}

fn text(value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|problem| PyValueError::new_err(problem.to_string()))
}
