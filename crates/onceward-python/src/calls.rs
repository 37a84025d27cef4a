//! Calls of functions on a ledger: the methods of a handle that take a function's options and arguments.

use std::sync::Mutex;

use onceward::{Error, Intent};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::admin::parsed;
use crate::async_call::{Asks, AsyncCall};
use crate::claim::Claim;
use crate::drive::drive;
use crate::error;
use crate::fork::Process;
use crate::handle::Handle;
use crate::plan::Plan;
use crate::receipt::Receipt;
use crate::run::{self, Actors, Own, lock};
use crate::spec::{Spec, identity};

impl Handle {
    /// The intent of a call, or of the held operation that it executes.
    fn intent(
        &self,
        spec: &Spec,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
        held: Option<&str>,
    ) -> PyResult<Intent> {
        let Some(id) = held else { return spec.intent(args, kwargs) };
        let id = parsed(args.py(), id)?;
        self.wait(args.py(), |opened| async move {
            let (record, _) = opened.ledger.find(&id).await?;
            Ok(opened.ledger.admin().held_intent(&record, spec.terms().clone()))
        })
    }

    /// The intent as this ledger stores it.
    pub(crate) fn keyed(&self, py: Python<'_>, intent: Intent) -> PyResult<Intent> {
        let opened = py.detach(|| self.opened()).map_err(|problem| error::of(py, &problem))?;
        Ok(opened.ledger.keyed(intent))
    }
}

#[pymethods]
impl Handle {
    /// Makes a call once: `perform` is called with the attempt, the arguments and the named arguments. `held` is the id
    /// of a held operation that the call executes.
    #[pyo3(signature = (spec, args, kwargs, perform, probe=None, verify=None, held=None))]
    #[expect(clippy::too_many_arguments, reason = "it is called from one place")]
    fn run(
        &self,
        py: Python<'_>,
        spec: &Spec,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
        perform: Py<PyAny>,
        probe: Option<Py<PyAny>>,
        verify: Option<Py<PyAny>>,
        held: Option<&str>,
    ) -> PyResult<Receipt> {
        let intent = self.intent(spec, args, kwargs, held)?;
        let process = Process::this();
        let (args, kwargs) = (args.clone().unbind(), kwargs.map(|kwargs| kwargs.clone().unbind()));
        let actors = Actors { perform, probe, verify, args, kwargs };
        let own = Mutex::new(Own::default());
        let result = py.detach(|| {
            let opened = match self.opened() {
                Ok(opened) => opened,
                Err(problem) => return Ok((Err(problem), 0)),
            };
            let result = run::run(&opened.blocking, intent, &actors, &own)?;
            Ok::<_, PyErr>((result, opened.ledger.clock_ms()))
        });
        let own = std::mem::take(&mut *lock(&own));
        if process.is_left()
            && let Some(cause) = own.cause
        {
            // The child continues with what was raised in it; its parent's call is not touched.
            return Err(PyErr::from_value(cause.into_bound(py)));
        }
        let (result, now_ms) = result?;
        match result {
            Ok(receipt) => Ok(Receipt::new(receipt, now_ms, own.value, spec.decode(py))),
            Err(problem) => Err(raised(py, &problem, own)),
        }
    }

    /// The same for a coroutine: a call that the caller's event loop drives.
    #[pyo3(signature = (spec, args, kwargs, *, probe, verify, held=None))]
    #[expect(clippy::too_many_arguments, reason = "it is called from one place")]
    fn start_async(
        &self,
        py: Python<'_>,
        spec: &Spec,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
        probe: bool,
        verify: bool,
        held: Option<&str>,
    ) -> PyResult<AsyncCall> {
        let intent = self.intent(spec, args, kwargs, held)?;
        let opened = py.detach(|| self.opened()).map_err(|problem| error::of(py, &problem))?;
        let asks = Asks { probe, verify };
        Ok(AsyncCall::new(opened, intent, asks, spec.decode(py)))
    }

    /// Records the intent of a call and returns the claim, or the receipt of an earlier call.
    #[pyo3(signature = (spec, args, kwargs=None))]
    fn begin<'py>(
        &self,
        py: Python<'py>,
        spec: &Spec,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let intent = spec.intent(args, kwargs)?;
        let lease_ms = intent.terms.lease_ms;
        let (begun, opened) = self.wait(py, |opened| async move {
            let begun = opened.blocking.begin(&intent).await;
            if let Err(error) = &begun {
                let window_ms = intent.terms.repeat_window_ms;
                drop(opened.blocking.attempts().refusal_delivered(error, window_ms).await);
            }
            Ok((begun?, opened))
        })?;
        Ok(match begun {
            onceward::Begun::Execute(claim) => {
                Bound::new(py, Claim::new(claim, opened, lease_ms))?.into_any()
            }
            onceward::Begun::Replay(receipt) => {
                let now_ms = opened.ledger.clock_ms();
                Bound::new(py, Receipt::new(receipt, now_ms, None, spec.decode(py)))?.into_any()
            }
        })
    }

    /// What a call would do. Nothing is run or written.
    #[pyo3(signature = (spec, args, kwargs=None))]
    fn plan(
        &self,
        py: Python<'_>,
        spec: &Spec,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Plan> {
        let mut intent = spec.intent(args, kwargs)?;
        let found = py.detach(|| match self.existing() {
            Ok(Some(opened)) => {
                intent = opened.ledger.keyed(intent.clone());
                drive(opened.ledger.plan(&intent))
            }
            Ok(None) => {
                let decision = onceward::decide::begin(None, &intent, onceward::Liveness::Gone, 0);
                Ok(Ok(onceward::Plan { decision, record: None }))
            }
            Err(problem) => Ok(Err(problem)),
        })?;
        Plan::new(&found.map_err(|problem| error::of(py, &problem))?, &intent, spec.success())
    }

    /// The identity of a call in this ledger, without making it: key, fingerprint and id.
    #[pyo3(signature = (spec, args, kwargs=None))]
    fn identity(
        &self,
        py: Python<'_>,
        spec: &Spec,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<(String, String, String)> {
        Ok(identity(&self.keyed(py, spec.intent(args, kwargs)?)?))
    }
}

/// The exception for the caller. Ctrl-C and the like propagate unchanged, after the ledger has recorded them.
fn raised(py: Python<'_>, problem: &Error, own: Own) -> PyErr {
    match own.cause {
        Some(cause) if !cause.bind(py).is_instance_of::<PyException>() => {
            PyErr::from_value(cause.into_bound(py))
        }
        cause => error::caused_by(py, problem, cause),
    }
}
