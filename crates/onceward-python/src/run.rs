//! One call of a function: the ledger's loop, which calls the function.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use onceward::{Attempt, Done, Error, Failure, Intent, Ledger, ProbeAnswer, Verification};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::attempt::{Attempt as Seen, Token};
use crate::drive::{drive, drive_unless};
use crate::fork::Process;
use crate::lease_keeper::keep_lease;
use crate::record::Record;
use crate::wire::{self, Report};

/// The callbacks into Python. Each gets its subject, the arguments, and the named arguments.
pub(crate) struct Actors {
    pub(crate) perform: Py<PyAny>,
    pub(crate) probe: Option<Py<PyAny>>,
    pub(crate) verify: Option<Py<PyAny>>,
    pub(crate) args: Py<PyTuple>,
    pub(crate) kwargs: Option<Py<PyDict>>,
}

/// What the function returned or raised the last time it ran.
#[derive(Default)]
pub(crate) struct Own {
    pub(crate) value: Option<Py<PyAny>>,
    pub(crate) cause: Option<Py<PyAny>>,
    /// When it ended.
    pub(crate) ended: Option<Instant>,
}

/// How long Ctrl-C is ignored while the ending of an attempt is being written.
const WRITING: Duration = Duration::from_secs(2);

/// Makes the operation happen once. The interpreter must be released.
pub(crate) fn run(
    ledger: &Ledger,
    intent: Intent,
    actors: &Actors,
    own: &Mutex<Own>,
) -> PyResult<Result<onceward::Receipt, Error>> {
    let (lease_ms, window_ms, process) =
        (intent.terms.lease_ms, intent.terms.repeat_window_ms, Process::this());
    let mut call = ledger.call(intent);
    if let Some(probe) = &actors.probe {
        call = call.probe(move |record| {
            let about = Record::new(record.clone(), record.state);
            let said = Python::attach(|py| wire::probe(&actors.ask(probe, about, py)?));
            std::future::ready(said.unwrap_or_else(|error| ProbeAnswer::CannotTell(error.to_string())))
        });
    }
    if let Some(verify) = &actors.verify {
        call = call.verify(move |_| {
            let said = Python::attach(|py| {
                let value = lock(own).value.as_ref().map(|value| value.clone_ref(py));
                wire::check(&actors.ask(verify, value, py)?)
            });
            // A check that fails to run has not refuted anything.
            std::future::ready(said.unwrap_or_else(|error| (Verification::Pending, error.to_string())))
        });
    }
    // Ctrl-C waits while the ending is being written, so that a result is not lost.
    let ending = || lock(own).ended.is_some_and(|ended| ended.elapsed() < WRITING);
    let result = drive_unless(
        ending,
        call.run(|attempt| {
            let acted = act(ledger, &attempt, lease_ms, actors, own);
            async move {
                // In a forked child the attempt is its parent's: it does not end here.
                if process.is_left() { std::future::pending().await } else { acted }
            }
        }),
    )?;
    if let Err(error) = &result {
        drop(drive(ledger.attempts().refusal_delivered(error, window_ms))?);
    }
    Ok(result)
}

fn act(
    ledger: &Ledger,
    attempt: &Attempt,
    lease_ms: u64,
    actors: &Actors,
    own: &Mutex<Own>,
) -> Result<Done, Failure> {
    let keeper = keep_lease(ledger, attempt, lease_ms);
    let report = Python::attach(|py| {
        let token = Token::default();
        let said = actors.ask(&actors.perform, Seen::new(attempt.clone(), Token::clone(&token)), py);
        said.and_then(|said| wire::attempt(&said, attempt, &token)).unwrap_or_else(|error| broken(py, error))
    });
    drop(keeper);
    *lock(own) = Own { value: report.own, cause: report.cause, ended: Some(Instant::now()) };
    report.result
}

/// The code around the function failed. It is unknown what the function did.
pub(crate) fn broken(py: Python<'_>, error: PyErr) -> Report {
    let reason = error.to_string();
    Report { result: Err(Failure::in_doubt(reason)), own: None, cause: Some(error.into_value(py).into_any()) }
}

pub(crate) fn lock(own: &Mutex<Own>) -> std::sync::MutexGuard<'_, Own> {
    own.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Actors {
    fn ask<'py>(
        &self,
        actor: &Py<PyAny>,
        about: impl IntoPyObject<'py>,
        py: Python<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let kwargs = self.kwargs.as_ref().map(|kwargs| kwargs.bind(py));
        actor.bind(py).call1((about, self.args.bind(py), kwargs))
    }
}
