//! A ledger, opened when it is first used, and what happens to it when the process forks.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use onceward::{Error, Ledger};
use onceward_store::{IfMissing, StoreUrl};
use pyo3::prelude::*;

use crate::drive::drive;
use crate::error;

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
    pub(crate) fn existing(&self) -> Result<Option<Arc<Opened>>, Error> {
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
