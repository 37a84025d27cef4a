//! Proof that an operation is done.

use onceward::{Answer, Effect, RepeatRule, Surface};
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::record::Record;

/// Proof that an operation is done, by this call or by an earlier one.
#[pyclass(frozen, module = "onceward._onceward")]
pub(crate) struct Receipt {
    receipt: onceward::Receipt,
    now_ms: i64,
    replayed: bool,
    /// What the function returned, if this call ran it.
    own: Option<Py<PyAny>>,
    /// Converts the stored result to the function's value.
    decode: Option<Py<PyAny>>,
    /// The answer in words, if the receipt comes from another process.
    words: Option<Words>,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Words {
    reason: Option<String>,
    warnings: Vec<String>,
    answer: String,
}

impl Receipt {
    pub(crate) fn new(
        receipt: onceward::Receipt,
        now_ms: i64,
        own: Option<Py<PyAny>>,
        decode: Option<Py<PyAny>>,
    ) -> Self {
        let replayed = receipt.replayed();
        Self { own: own.filter(|_| !replayed), receipt, now_ms, replayed, decode, words: None }
    }

    fn stored<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let Some(text) = self.receipt.data() else { return Ok(None) };
        LOADS.import(py, "onceward._json", "loads")?.call1((text,)).map(Some)
    }

    fn decoded<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match (self.stored(py)?, &self.decode) {
            (Some(stored), Some(decode)) => decode.bind(py).call1((stored,)).map(Some),
            (stored, _) => Ok(stored),
        }
    }
}

#[pymethods]
impl Receipt {
    /// What this call changed: `created`, `updated`, `deleted`, or `noop` for a replay.
    #[getter]
    fn effect(&self) -> &'static str {
        if self.replayed { Effect::Noop.as_str() } else { self.receipt.effect().as_str() }
    }

    /// What the operation changed when it was done.
    #[getter]
    fn original_effect(&self) -> &'static str {
        self.receipt.original_effect().as_str()
    }

    /// Whether the result was replayed and nothing was run.
    #[getter]
    fn replayed(&self) -> bool {
        self.replayed
    }

    /// Whether this call ran the function.
    #[getter]
    fn ran(&self) -> bool {
        !self.replayed
    }

    /// What the function returned: its own object if this call ran it, otherwise the stored result.
    ///
    /// Raises `ResultUnavailable` if the result could not be kept, or can no longer be read.
    #[getter]
    fn value<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if let Some(own) = &self.own {
            return Ok(own.bind(py).clone());
        }
        match self.decoded(py) {
            Ok(Some(value)) => Ok(value),
            Ok(None) if self.available() => Ok(py.None().into_bound(py)),
            Ok(None) => Err(crate::error::result_unavailable(py, self.record(), None)),
            Err(error) if error.is_instance_of::<PyException>(py) => {
                Err(crate::error::result_unavailable(py, self.record(), Some(error)))
            }
            Err(error) => Err(error),
        }
    }

    /// The stored result as plain data; `None` if there is none.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.stored(py)
    }

    /// The stored result as JSON text.
    #[getter]
    fn json(&self) -> Option<&str> {
        self.receipt.data()
    }

    /// Whether the result could be kept. If it could not, the operation still does not run again.
    #[getter]
    fn available(&self) -> bool {
        self.receipt.record().outcome.as_ref().is_none_or(|outcome| !outcome.unavailable)
    }

    /// The operation, as the ledger recorded it.
    #[getter]
    fn operation(&self) -> Record {
        self.record()
    }

    /// `op_…`: identifies the operation.
    #[getter]
    fn id(&self) -> &str {
        self.receipt.record().id.as_str()
    }

    /// The reason, in words for an agent. For a replay: that nothing was run, and how to ask for a repeat.
    #[getter]
    fn reason(&self) -> Option<String> {
        self.words.as_ref().map_or_else(|| self.answer().reason, |words| words.reason.clone())
    }

    /// Warnings for the caller.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.words.as_ref().map_or_else(|| self.answer().warnings, |words| words.warnings.clone())
    }

    /// The whole answer of the contract, as JSON text.
    fn to_json(&self) -> PyResult<String> {
        match &self.words {
            Some(words) => Ok(words.answer.clone()),
            None => text(&self.answer()),
        }
    }

    #[staticmethod]
    #[pyo3(signature = (record, words, now_ms, replayed, own=None, decode=None))]
    fn _restored(
        record: &Bound<'_, Record>,
        words: &str,
        now_ms: i64,
        replayed: bool,
        own: Option<Py<PyAny>>,
        decode: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let receipt = onceward::atomic::receipt(onceward::Record::clone(record.get().inner()));
        let words = serde_json::from_str(words).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self { receipt, now_ms, replayed, own, decode, words: Some(words) })
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        let words = Words { reason: this.reason(), warnings: this.warnings(), answer: this.to_json()? };
        let (own, decode) = (this.own.as_ref(), this.decode.as_ref());
        let given = (this.record(), text(&words)?, this.now_ms, this.replayed, own, decode);
        // Leave out what cannot be pickled; the stored result is always included.
        py.import("onceward._values")?.getattr("reduced_receipt")?.call1((slf.get_type(), given))
    }

    fn __repr__(&self) -> String {
        format!(
            "Receipt(effect={:?}, replayed={}, id={:?})",
            self.effect(),
            if self.replayed { "True" } else { "False" },
            self.id()
        )
    }
}

impl Receipt {
    fn record(&self) -> Record {
        let record = self.receipt.record();
        Record::new(record.clone(), record.state)
    }

    fn answer(&self) -> Answer {
        Answer::of_wanted(&Ok(self.receipt.clone()), RepeatRule::Given, None, &Surface::Python, self.now_ms)
    }
}

fn text(value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| PyValueError::new_err(error.to_string()))
}
