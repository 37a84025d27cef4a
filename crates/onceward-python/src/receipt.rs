//! The proof that an operation is done.

use onceward::Answer;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::record::Record;

/// The proof that an operation is done, by this call or by an earlier one.
#[pyclass(frozen, module = "onceward")]
pub(crate) struct Receipt {
    receipt: onceward::Receipt,
    now_ms: i64,
    /// What the function itself gave, where this call ran it.
    own: Option<Py<PyAny>>,
    /// Makes the function's value of the stored result.
    decode: Option<Py<PyAny>>,
}

impl Receipt {
    pub(crate) fn new(
        receipt: onceward::Receipt,
        now_ms: i64,
        own: Option<Py<PyAny>>,
        decode: Option<Py<PyAny>>,
    ) -> Self {
        let own = own.filter(|_| !receipt.replayed());
        Self { receipt, now_ms, own, decode }
    }

    fn stored<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let Some(text) = self.receipt.data() else { return Ok(None) };
        LOADS.import(py, "onceward._json", "loads")?.call1((text,)).map(Some)
    }
}

#[pymethods]
impl Receipt {
    /// What this call did to the world: `created`, `updated`, `deleted`, or `noop` where it is a replay.
    #[getter]
    fn effect(&self) -> &'static str {
        self.receipt.effect().as_str()
    }

    /// What the operation did when it was done.
    #[getter]
    fn original_effect(&self) -> &'static str {
        self.receipt.original_effect().as_str()
    }

    /// Whether nothing was run for this answer.
    #[getter]
    fn replayed(&self) -> bool {
        self.receipt.replayed()
    }

    /// What the function returned: its own object where this call ran it, else the stored result.
    ///
    /// Raises `ResultUnavailable` where the result could not be kept.
    #[getter]
    fn value<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if let Some(own) = &self.own {
            return Ok(own.bind(py).clone());
        }
        match self.stored(py)? {
            Some(stored) => match &self.decode {
                Some(decode) => decode.bind(py).call1((stored,)),
                None => Ok(stored),
            },
            None if self.available() => Ok(py.None().into_bound(py)),
            None => Err(crate::error::result_unavailable(py, self.record())),
        }
    }

    /// The stored result as plain data; `None` where there is none.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.stored(py)
    }

    /// The stored result as the JSON text it was kept as.
    #[getter]
    fn json(&self) -> Option<&str> {
        self.receipt.data()
    }

    /// Whether the result could be kept. One that could not is no reason to run again.
    #[getter]
    fn available(&self) -> bool {
        self.receipt.record().outcome.as_ref().is_none_or(|outcome| !outcome.unavailable)
    }

    /// The operation as the ledger remembers it.
    #[getter]
    fn operation(&self) -> Record {
        self.record()
    }

    /// `op_…`: names the operation.
    #[getter]
    fn id(&self) -> &str {
        self.receipt.record().id.as_str()
    }

    /// Why, in words that an agent reads; of a replay, that nothing was run and how a repeat is asked for.
    #[getter]
    fn reason(&self) -> Option<String> {
        self.answer().reason
    }

    /// What the caller should know besides.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.answer().warnings
    }

    /// The whole answer of the contract, as JSON text.
    fn to_json(&self) -> PyResult<String> {
        serde_json::to_string(&self.answer())
            .map_err(|error| pyo3::exceptions::PyValueError::new_err(error.to_string()))
    }

    fn __repr__(&self) -> String {
        format!(
            "Receipt(effect={:?}, replayed={}, id={:?})",
            self.effect(),
            if self.replayed() { "True" } else { "False" },
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
        Answer::of(&Ok(self.receipt.clone()), self.now_ms)
    }
}
