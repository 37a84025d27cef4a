//! An operation, as the ledger recorded it.

use std::sync::Arc;

use onceward::{Action, DoubleEffect, State, rfc3339};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// An operation as the ledger recorded it, with its effective state.
#[pyclass(frozen, module = "onceward._onceward")]
pub(crate) struct Record {
    record: Arc<onceward::Record>,
    state: State,
}

impl Record {
    pub(crate) fn new(record: Arc<onceward::Record>, state: State) -> Self {
        Self { record: record.into_readable(), state }
    }

    pub(crate) fn inner(&self) -> &Arc<onceward::Record> {
        &self.record
    }
}

#[pymethods]
impl Record {
    /// `op_…`: identifies the operation, the same in every process.
    #[getter]
    fn id(&self) -> &str {
        self.record.id.as_str()
    }

    /// The namespace of the key.
    #[getter]
    fn scope(&self) -> &str {
        &self.record.scope
    }

    /// What kind of action it is.
    #[getter]
    fn name(&self) -> &str {
        &self.record.name
    }

    /// The key, which identifies the action within scope and name.
    #[getter]
    fn key(&self) -> &str {
        &self.record.key.text
    }

    /// `staged`, `running`, `done`, `failed`, `in_doubt`, `cancelled` or `expired`.
    #[getter]
    fn state(&self) -> &'static str {
        self.state.as_str()
    }

    /// The number of the newest attempt.
    #[getter]
    fn attempt(&self) -> u32 {
        self.record.attempt
    }

    /// The class: what may be done about a doubt.
    #[getter]
    fn class_(&self) -> &'static str {
        self.record.detail.class.as_str()
    }

    /// The fingerprint: a hash of its inputs.
    #[getter]
    fn fingerprint(&self) -> &str {
        self.record.detail.fingerprint.as_str()
    }

    /// What it changed when it was done.
    #[getter]
    fn original_effect(&self) -> Option<&'static str> {
        self.record.outcome.as_ref()?.effect.map(onceward::Effect::as_str)
    }

    /// Why it ended as it did, if that was recorded.
    #[getter]
    fn reason(&self) -> Option<&str> {
        self.record.reason()
    }

    /// What the check said: `confirmed`, `refuted` or `pending`.
    #[getter]
    fn verified(&self) -> Option<&'static str> {
        self.record.outcome.as_ref()?.verified.map(onceward::Verification::as_str)
    }

    /// Who settled it, if it was not its own attempt.
    #[getter]
    fn settled_by(&self) -> Option<String> {
        self.record.outcome.as_ref()?.settled_by.as_ref().map(ToString::to_string)
    }

    /// Why it is certain that nothing happened, if it failed.
    #[getter]
    fn evidence(&self) -> Option<String> {
        self.record.outcome.as_ref()?.evidence.as_ref().map(ToString::to_string)
    }

    /// `possible` or `certain`, if more than one attempt had an effect.
    #[getter]
    fn double_effect(&self) -> Option<&'static str> {
        Some(match self.record.detail.double_effect? {
            DoubleEffect::Possible => "possible",
            DoubleEffect::Certain => "certain",
        })
    }

    /// What took it back, or is taking it back: `by`, `evidence` (`probe`, `compensation` or `pending`) and `gone`.
    #[getter]
    fn undone<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(mark) = &self.record.detail.undone else { return Ok(None) };
        let undone = PyDict::new(py);
        undone.set_item("by", mark.by.as_str())?;
        undone.set_item("evidence", mark.evidence.as_str())?;
        undone.set_item("settled_by", mark.settled_by.as_ref().map(ToString::to_string))?;
        undone.set_item("gone", mark.evidence.is_gone())?;
        Ok(Some(undone))
    }

    /// The operation that this one takes back.
    #[getter]
    fn undoes(&self) -> Option<&str> {
        self.record.detail.undoes.as_ref().map(onceward::OperationId::as_str)
    }

    /// The result as JSON text.
    #[getter]
    fn json(&self) -> Option<&str> {
        Some(self.record.outcome.as_ref()?.data.as_ref()?.get())
    }

    /// How often the result was replayed. The count may lag behind.
    #[getter]
    fn replays(&self) -> u64 {
        self.record.replays
    }

    /// When it was first requested, in RFC 3339.
    #[getter]
    fn created_at(&self) -> String {
        rfc3339(self.record.created_ms)
    }

    /// When it last changed, in RFC 3339.
    #[getter]
    fn updated_at(&self) -> String {
        rfc3339(self.record.updated_ms)
    }

    /// When the result stops being replayed, in RFC 3339.
    #[getter]
    fn expires_at(&self) -> Option<String> {
        self.record.due_ms.map(rfc3339)
    }

    /// The attempts that ended before the newest: a list of `attempt`, `ended`, `at` and `reason`.
    #[getter]
    fn history<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for past in &self.record.detail.history {
            let row = PyDict::new(py);
            row.set_item("attempt", past.attempt)?;
            row.set_item("ended", past.ended.as_str())?;
            row.set_item("at", rfc3339(past.at_ms))?;
            row.set_item("reason", past.reason.as_deref())?;
            list.append(row)?;
        }
        Ok(list)
    }

    /// Whether its effect happened: `yes`, `no` or `unknown`.
    #[getter]
    fn held<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(held) = self.record.held() else { return Ok(None) };
        let said = PyDict::new(py);
        said.set_item("until", held.until_ms.map(rfc3339))?;
        said.set_item("by", held.by.as_str())?;
        said.set_item("surface", &held.surface)?;
        said.set_item("released_by", held.released.as_ref().map(ToString::to_string))?;
        said.set_item("would_run", held.shown().map(|shown| shown.to_string()))?;
        Ok(Some(said))
    }

    /// The stored arguments of a held call as JSON text, or why they cannot be read. `None` if none are stored.
    #[getter]
    fn _stored_call(&self) -> Option<(Option<String>, Option<String>)> {
        Some(match Action::read::<()>(self.record.held_request()?) {
            Ok((Action::Function(call), ())) => (serde_json::to_string(&call.arguments).ok(), None),
            Ok(_) => (None, Some("it is not a call of a function".to_owned())),
            Err(unreadable) => (None, Some(unreadable.to_string())),
        })
    }

    /// Whether a held operation may start now.
    fn _may_start(&self, now_ms: i64) -> bool {
        self.record.held().is_some_and(|held| held.may_start(now_ms))
    }

    #[getter]
    fn happened(&self) -> &'static str {
        self.record.happened().as_str()
    }

    #[staticmethod]
    fn _restored(json: &str, state: &str) -> PyResult<Self> {
        let record = serde_json::from_str(json).map_err(unreadable)?;
        Ok(Self { record: Arc::new(record), state: state.parse().map_err(unreadable)? })
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (String, &'static str))> {
        let json = serde_json::to_string(&*self.record).map_err(unreadable)?;
        Ok((py.get_type::<Self>().getattr("_restored")?, (json, self.state.as_str())))
    }

    fn __repr__(&self) -> String {
        format!(
            "Record(id={:?}, name={:?}, key={:?}, state={:?}, attempt={})",
            self.id(),
            self.name(),
            self.key(),
            self.state(),
            self.attempt()
        )
    }
}

fn unreadable(problem: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(problem.to_string())
}
