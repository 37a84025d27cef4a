//! What a call would do.

use std::sync::Arc;

use onceward::{Answer, Effect, Happened, Intent, Preview, Surface};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::record::Record;

/// What a call would do. Nothing was run or written to find out.
#[pyclass(frozen, module = "onceward._onceward")]
pub(crate) struct Plan {
    words: Words,
    record: Option<Arc<onceward::Record>>,
}

/// What recreates the plan in another process: a function and its arguments.
type Reduced<'py> = (Bound<'py, PyAny>, (String, Option<Record>));

/// Everything but the record, as it is pickled.
#[derive(serde::Serialize, serde::Deserialize)]
struct Words {
    decision: String,
    reason: String,
    effect: String,
    code: Option<String>,
    happened: Option<String>,
    retryable: bool,
    next: Option<String>,
    fix_command: Option<String>,
    options: Vec<(String, String)>,
    id: String,
    key: String,
    /// The whole answer as JSON text.
    answer: String,
}

impl Plan {
    pub(crate) fn new(plan: &onceward::Plan, intent: &Intent, effect: Effect) -> PyResult<Self> {
        let preview = Preview::of(plan, intent, effect);
        let changes = vec![format!("would call {}", intent.name)];
        let answer = Answer::preview(&preview, changes, &Surface::Python);
        let text = serde_json::to_string(&answer).map_err(unwritable)?;
        let error = answer.error;
        let options = error.iter().flat_map(|error| &error.options);
        let words = Words {
            decision: preview.decision.to_owned(),
            reason: preview.sentence,
            effect: preview.effect.as_str().to_owned(),
            happened: preview.happened.map(Happened::as_str).map(str::to_owned),
            options: options.map(|choice| (choice.found.to_owned(), choice.command.clone())).collect(),
            retryable: error.as_ref().is_some_and(|error| error.retryable),
            next: error.as_ref().and_then(|error| error.next.clone()),
            fix_command: error.as_ref().and_then(|error| error.fix_command.clone()),
            code: error.map(|error| error.code.into_owned()),
            id: intent.id.to_string(),
            key: intent.key.text.clone(),
            answer: text,
        };
        Ok(Self { words, record: plan.record.clone() })
    }
}

fn unwritable(error: serde_json::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

#[pymethods]
impl Plan {
    /// `run`, `replay`, `replay_failure`, `wait`, `probe` or `refuse`.
    #[getter]
    fn decision(&self) -> &str {
        &self.words.decision
    }

    /// The decision in words.
    #[getter]
    fn reason(&self) -> &str {
        &self.words.reason
    }

    /// `would_create`, `would_update`, `would_delete` or `would_noop`.
    #[getter]
    fn effect(&self) -> &str {
        &self.words.effect
    }

    /// The code of the refusal that the call would get.
    #[getter]
    fn code(&self) -> Option<&str> {
        self.words.code.as_deref()
    }

    /// Whether the effect has already happened; `None` if the operation is new.
    #[getter]
    fn happened(&self) -> Option<&str> {
        self.words.happened.as_deref()
    }

    /// Whether this call ran the function: a plan never does.
    #[getter]
    #[expect(clippy::unused_self, reason = "receipts and errors have the same property")]
    fn ran(&self) -> bool {
        false
    }

    /// Whether the refused call may simply be made again.
    #[getter]
    fn retryable(&self) -> bool {
        self.words.retryable
    }

    /// What to do next about a refusal, in one sentence.
    #[getter]
    fn next(&self) -> Option<&str> {
        self.words.next.as_deref()
    }

    /// The line of Python for the next step after a refusal. It never decides a doubt.
    #[getter]
    fn fix_command(&self) -> Option<&str> {
        self.words.fix_command.as_deref()
    }

    /// For each finding (`it happened`, `it did not`), the line of Python that records it.
    #[getter]
    fn options(&self) -> Vec<(String, String)> {
        self.words.options.clone()
    }

    /// The whole answer of the contract, as JSON text.
    fn to_json(&self) -> &str {
        &self.words.answer
    }

    /// `op_…`: identifies the operation.
    #[getter]
    fn id(&self) -> &str {
        &self.words.id
    }

    /// The operation's key.
    #[getter]
    fn key(&self) -> &str {
        &self.words.key
    }

    /// The operation as the ledger recorded it; `None` if it is new.
    #[getter]
    fn operation(&self) -> Option<Record> {
        self.record.as_ref().map(|record| Record::new(Arc::clone(record), record.state))
    }

    #[staticmethod]
    fn _restored(words: &str, record: Option<&Bound<'_, Record>>) -> PyResult<Self> {
        let words = serde_json::from_str(words).map_err(unwritable)?;
        Ok(Self { words, record: record.map(|record| Arc::clone(record.get().inner())) })
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let words = serde_json::to_string(&self.words).map_err(unwritable)?;
        Ok((py.get_type::<Self>().getattr("_restored")?, (words, self.operation())))
    }

    fn __repr__(&self) -> String {
        format!("Plan(decision={:?}, effect={:?}, id={:?})", self.decision(), self.effect(), self.id())
    }
}
