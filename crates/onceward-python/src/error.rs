//! The ledger's errors as Python exceptions. The classes are in `onceward.errors`; the code selects one.

use onceward::{Answer, Code, Error, ErrorView, Happened, InvalidInput, Surface};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::record::Record;

/// Input that was refused. Nothing was run.
pub(crate) fn invalid(py: Python<'_>, problem: &str) -> PyErr {
    of(py, &InvalidInput::new(problem).into())
}

/// The exception for an error.
pub(crate) fn of(py: Python<'_>, error: &Error) -> PyErr {
    exception(py, error, Answer::failed(error, &Surface::Python)).unwrap_or_else(|problem| problem)
}

/// The exception for an error of administration: it says nothing about the effect.
pub(crate) fn not_done(py: Python<'_>, error: &Error) -> PyErr {
    exception(py, error, Answer::not_done(error, &Surface::Python)).unwrap_or_else(|problem| problem)
}

/// The same, with the function's exception as its cause.
pub(crate) fn caused_by(py: Python<'_>, error: &Error, cause: Option<Py<PyAny>>) -> PyErr {
    let raised = of(py, error);
    // A refusal, or a replayed failure, was not caused by anything that was raised now.
    let own = matches!(
        error,
        Error::Failed { .. } | Error::InDoubt { .. } | Error::Timeout { .. } | Error::Unrecorded { .. }
    );
    if let Some(cause) = cause.filter(|_| own) {
        raised.set_cause(py, Some(PyErr::from_value(cause.into_bound(py))));
    }
    raised
}

fn exception(py: Python<'_>, error: &Error, answer: Answer) -> PyResult<PyErr> {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make = MAKE.import(py, "onceward.errors", "_from_ledger")?;
    let said = PyDict::new(py);
    let view = answer.error.unwrap_or_else(|| ErrorView::of(error, &Surface::Python));
    said.set_item("happened", view.happened.map(Happened::as_str))?;
    said.set_item("ran", answer.ran)?;
    said.set_item("effect", answer.effect)?;
    said.set_item("retryable", view.retryable)?;
    said.set_item("retry_after_ms", view.retry_after_ms)?;
    said.set_item("next", view.next)?;
    said.set_item("fix_command", view.fix_command)?;
    let options: Vec<_> = view.options.into_iter().map(|choice| (choice.found, choice.command)).collect();
    said.set_item("options", options)?;
    said.set_item("operation", error.record().map(|record| Record::new(record.clone(), record.state)))?;
    if let Error::Invalid(invalid) = error {
        said.set_item("problems", invalid.problems())?;
    }
    if let Error::KeyReused { fields, .. } = error {
        said.set_item("fields", fields)?;
    }
    let made = make.call((error.code().to_string(), error.to_string()), Some(&said))?;
    Ok(PyErr::from_value(made))
}

/// The exception for a function that must send nothing, because its attempt was asked to end.
pub(crate) fn not_dispatched(py: Python<'_>, why: &str) -> PyErr {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let class = CLASS.import(py, "onceward.errors", "NotDispatched");
    class.and_then(|class| class.call1((why,))).map_or_else(|problem| problem, PyErr::from_value)
}

/// Every code, for the test that each has a class.
pub(crate) fn codes() -> Vec<String> {
    Code::ALL.iter().map(Code::to_string).collect()
}

/// The exception for reading the value of an operation whose result could not be kept.
pub(crate) fn result_unavailable(py: Python<'_>, record: Record, cause: Option<PyErr>) -> PyErr {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let made = CLASS
        .import(py, "onceward.errors", "_result_unavailable")
        .and_then(|make| make.call1((record, cause.map(|cause| cause.into_value(py)))))
        .map(PyErr::from_value);
    made.unwrap_or_else(|problem| problem)
}
