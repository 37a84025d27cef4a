//! A ledger, opened when it is first used, and what happens to it when the process forks.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use onceward::{Error, Intent, Ledger};
use onceward_store::{IfMissing, StoreUrl};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::async_call::{Asks, AsyncCall};
use crate::claim::Claim;
use crate::drive::drive;
use crate::error;
use crate::fork::Process;
use crate::plan::Plan;
use crate::receipt::Receipt;
use crate::run::{self, Actors, Own, lock};
use crate::spec::{Spec, identity};

/// Whether this process was forked while a ledger of its parent was in use: SQLite and the store's threads may have
/// been in the middle of work that no thread of this process will ever finish.
static FORKED_IN_USE: AtomicBool = AtomicBool::new(false);

const FORKED: &str = "this process was forked while its parent was using the ledger, and a ledger cannot be shared \
                      that way; start workers with the spawn or forkserver method, or fork before a call is under way";

const IN_MEMORY: &str = "a ledger in memory belongs to the process that created it, and this process was forked from \
                         that one; use a file, or create a ledger here";

/// An open ledger.
pub(crate) struct Opened {
    pub(crate) ledger: Ledger,
    pub(crate) blocking: Ledger,
}

enum State {
    /// Not opened yet, or closed: the next use opens it.
    Closed,
    Open(Arc<Opened>),
    /// The parent's, and unusable here.
    Forked,
}

/// A ledger at a URL.
#[pyclass(frozen, weakref, module = "onceward._onceward")]
pub(crate) struct Handle {
    place: StoreUrl,
    state: Mutex<State>,
}

impl Handle {
    /// The open ledger. The interpreter must be released.
    pub(crate) fn opened(&self) -> Result<Arc<Opened>, Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &*state {
            State::Open(opened) => return Ok(Arc::clone(opened)),
            State::Closed => {}
            State::Forked => {
                let why = if self.is_in_memory() { IN_MEMORY } else { FORKED };
                return Err(onceward::StoreError::unavailable(why).into());
            }
        }
        if FORKED_IN_USE.load(Ordering::SeqCst) {
            return Err(onceward::StoreError::unavailable(FORKED).into());
        }
        let ledger = Ledger::new(self.place.clone().open(IfMissing::Create)?);
        let opened = Arc::new(Opened { blocking: ledger.blocking().ledger().clone(), ledger });
        *state = State::Open(Arc::clone(&opened));
        Ok(opened)
    }

    /// The open ledger for a caller that only reads: `None` if there is none yet and the first call would create it.
    fn existing(&self) -> Result<Option<Arc<Opened>>, Error> {
        let missing = {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            matches!(&*state, State::Closed) && self.file().is_some_and(|file| !file.exists())
        };
        match self.file().and_then(Path::parent) {
            Some(folder) if missing && folder.is_dir() => Ok(None),
            Some(_) | None => self.opened().map(Some),
        }
    }

    fn file(&self) -> Option<&Path> {
        match &self.place {
            StoreUrl::Sqlite(options) => Some(&options.path),
            StoreUrl::Postgres(_) | StoreUrl::Redis(_) | StoreUrl::Http(_) | StoreUrl::Memory => None,
        }
    }

    /// A ledger in memory cannot be reopened.
    fn is_in_memory(&self) -> bool {
        matches!(self.place, StoreUrl::Memory)
    }

    /// Waits for the work of a call, with the interpreter released.
    pub(crate) fn wait<T, W>(&self, py: Python<'_>, work: impl FnOnce(Arc<Opened>) -> W + Send) -> PyResult<T>
    where
        T: Send,
        W: Future<Output = Result<T, Error>>,
    {
        self.done(py, work)?.map_err(|problem| error::of(py, &problem))
    }

    /// Waits for administrative work. An error says nothing about an effect: no call was made.
    pub(crate) fn administer<T, W>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(Arc<Opened>) -> W + Send,
    ) -> PyResult<T>
    where
        T: Send,
        W: Future<Output = Result<T, Error>>,
    {
        self.done(py, work)?.map_err(|problem| error::not_done(py, &problem))
    }

    fn done<T, W>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(Arc<Opened>) -> W + Send,
    ) -> PyResult<Result<T, Error>>
    where
        T: Send,
        W: Future<Output = Result<T, Error>>,
    {
        py.detach(|| match self.opened() {
            Ok(opened) => drive(work(opened)),
            Err(problem) => Ok(Err(problem)),
        })
    }
}

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
        let id = crate::admin::parsed(args.py(), id)?;
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

/// A URL without its password, for display.
#[pyfunction]
pub(crate) fn masked(url: &str) -> String {
    onceward::text::masked(url).into_owned()
}

#[pymethods]
impl Handle {
    /// Parses the URL; nothing is opened yet.
    #[new]
    fn new(py: Python<'_>, url: &str) -> PyResult<Self> {
        let place = StoreUrl::parse(url).map_err(|invalid| error::of(py, &invalid.into()))?;
        Ok(Self { place, state: Mutex::new(State::Closed) })
    }

    /// Opens the ledger now, so that a problem with it is reported now.
    fn open(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.opened()).map(drop).map_err(|problem| error::of(py, &problem))
    }

    /// The ledger's time, in milliseconds since 1970.
    fn clock_ms(&self, py: Python<'_>) -> PyResult<i64> {
        let opened = py.detach(|| self.opened()).map_err(|problem| error::of(py, &problem))?;
        Ok(opened.ledger.clock_ms())
    }

    /// Whether it is open. The first use opens it, which may take a while on a server.
    #[getter]
    fn is_open(&self) -> bool {
        matches!(self.state.try_lock().as_deref(), Ok(State::Open(_)))
    }

    /// Closes it. The next use opens it again.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            let before = {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                match &*state {
                    State::Open(_) => std::mem::replace(&mut *state, State::Closed),
                    State::Closed | State::Forked => return,
                }
            };
            drop(before);
        });
    }

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

    /// Before the process forks: closes a ledger that is not in use, so that both processes open their own.
    fn before_fork(&self, py: Python<'_>) {
        if self.is_in_memory() {
            return;
        }
        let idle = py.detach(|| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            match &*state {
                State::Open(opened) if Arc::strong_count(opened) == 1 => {
                    Some(std::mem::replace(&mut *state, State::Closed))
                }
                State::Open(_) | State::Closed | State::Forked => None,
            }
        });
        py.detach(|| drop(idle));
    }

    /// In the child: what is the parent's is neither used nor closed, because closing it would end the parent's locks.
    fn after_fork(&self) {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            // Another thread of the parent was opening it.
            Err(TryLockError::WouldBlock) => {
                FORKED_IN_USE.store(true, Ordering::SeqCst);
                return;
            }
        };
        if let State::Open(opened) = std::mem::replace(&mut *state, State::Closed) {
            if !self.is_in_memory() {
                FORKED_IN_USE.store(true, Ordering::SeqCst);
            }
            std::mem::forget(opened);
            *state = State::Forked;
        }
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
