//! One call of a coroutine. The ledger's loop is a future. When it needs something from Python, it sends a request and
//! the code around the coroutine replies, so the same rules apply to every call.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use onceward::{Attempt, Done, Error, Evidence, Failure, Intent, Ledger, ProbeAnswer, Receipt, Verification};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::attempt::{Attempt as Seen, Token};
use crate::drive::{drive, own_waker};
use crate::fork::Process;
use crate::handle::Opened;
use crate::lease_keeper::keep_lease;
use crate::loop_waker::LoopWaker;
use crate::receipt::Receipt as Shown;
use crate::record::Record;
use crate::run::{Own, lock};
use crate::{error, wire};

type Running = Pin<Box<dyn Future<Output = Result<Receipt, Error>> + Send>>;

/// The time limit for finishing an abandoned call.
const ABANDONED_LIMIT: Duration = Duration::from_secs(2);

/// What the ledger needs from Python.
enum Request {
    Execute(Attempt),
    Probe(Arc<onceward::Record>),
    Verify,
}

/// What Python replied.
enum PythonReply {
    Executed(Result<Done, Failure>),
    Probed(ProbeAnswer),
    Verified(Verification, String),
}

#[derive(Default)]
struct Mailbox {
    request: Option<Request>,
    reply: Option<PythonReply>,
}

/// Waits for a reply. It needs no waker: the code that replies also polls.
struct AwaitReply<'a>(&'a Mutex<Mailbox>);

impl Future for AwaitReply<'_> {
    type Output = PythonReply;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<PythonReply> {
        lock_mailbox(self.0).reply.take().map_or(Poll::Pending, Poll::Ready)
    }
}

/// A running call of a coroutine.
#[pyclass(frozen, module = "onceward._onceward")]
pub(crate) struct AsyncCall {
    running: Mutex<Option<Running>>,
    mailbox: Arc<Mutex<Mailbox>>,
    /// The attempt that Python is executing, and the token of its dispatch.
    executing: Mutex<Option<(Attempt, Token)>>,
    process: Process,
    own: Mutex<Own>,
    opened: Arc<Opened>,
    decode: Option<Py<PyAny>>,
    waiter: Mutex<Option<(Py<LoopWaker>, u64)>>,
}

/// Which questions the call of a coroutine can answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asks {
    pub(crate) probe: bool,
    pub(crate) verify: bool,
}

impl AsyncCall {
    pub(crate) fn new(opened: Arc<Opened>, intent: Intent, asks: Asks, decode: Option<Py<PyAny>>) -> Self {
        let mailbox = Arc::new(Mutex::new(Mailbox::default()));
        let running = run_call(opened.ledger.clone(), intent, asks, Arc::clone(&mailbox));
        Self {
            running: Mutex::new(Some(Box::pin(running))),
            mailbox,
            executing: Mutex::default(),
            process: Process::this(),
            own: Mutex::default(),
            opened,
            decode,
            waiter: Mutex::default(),
        }
    }

    /// The next request, or the answer.
    fn next_step<'py>(
        &self,
        py: Python<'py>,
        polled: Poll<Result<Receipt, Error>>,
    ) -> PyResult<Option<(&'static str, Bound<'py, PyAny>)>> {
        if let Poll::Ready(result) = polled {
            let own = std::mem::take(&mut *lock(&self.own));
            let receipt = result.map_err(|problem| error::caused_by(py, &problem, own.cause))?;
            let decode = self.decode.as_ref().map(|decode| decode.clone_ref(py));
            let shown = Shown::new(receipt, self.opened.ledger.clock_ms(), own.value, decode);
            return Ok(Some(("answer", Bound::new(py, shown)?.into_any())));
        }
        let request = lock_mailbox(&self.mailbox).request.take();
        Ok(match request {
            None => None,
            Some(Request::Execute(attempt)) => {
                let token = Token::default();
                *self.executing.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some((attempt.clone(), Token::clone(&token)));
                Some(("execute", Bound::new(py, Seen::new(attempt, token))?.into_any()))
            }
            Some(Request::Probe(record)) => {
                let state = record.state;
                Some(("probe", Bound::new(py, Record::new(record, state))?.into_any()))
            }
            Some(Request::Verify) => {
                let value = lock(&self.own).value.as_ref().map(|value| value.clone_ref(py));
                Some(("verify", value.unwrap_or_else(|| py.None()).into_bound(py)))
            }
        })
    }

    fn forget_waiter(&self) {
        let waiter = self.waiter.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((loop_waker, number)) = waiter {
            drop(loop_waker.get().forget(number));
        }
    }
}

#[pymethods]
impl AsyncCall {
    /// Runs as far as possible. Returns the next request, `("answer", receipt)`, or `None`: then `future` is resolved
    /// when polling makes sense again.
    fn poll<'py>(
        &self,
        py: Python<'py>,
        loop_waker: &Bound<'py, LoopWaker>,
        future: Py<PyAny>,
    ) -> PyResult<Option<(&'static str, Bound<'py, PyAny>)>> {
        self.process.check(py)?;
        self.forget_waiter();
        let (waker, number) = loop_waker.get().waker(future);
        *self.waiter.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((loop_waker.clone().unbind(), number));
        let polled = py.detach(|| {
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            let polled =
                running.as_mut().map(|running| running.as_mut().poll(&mut Context::from_waker(&waker)));
            if polled.as_ref().is_some_and(Poll::is_ready) {
                *running = None;
            }
            polled
        });
        let polled = polled.ok_or_else(|| PyRuntimeError::new_err("this call is over"))?;
        let next_step = self.next_step(py, polled);
        if !matches!(next_step, Ok(None)) {
            self.forget_waiter();
        }
        next_step
    }

    /// Reports how the attempt ended.
    fn executed(&self, py: Python<'_>, said: &Bound<'_, PyAny>) -> PyResult<()> {
        self.process.check(py)?;
        let executing = self.executing.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((attempt, token)) = executing else { return Ok(()) };
        let report =
            wire::attempt(said, &attempt, &token).unwrap_or_else(|error| crate::run::broken(py, error));
        *lock(&self.own) = Own { value: report.own, cause: report.cause, ended: None };
        lock_mailbox(&self.mailbox).reply = Some(PythonReply::Executed(report.result));
        Ok(())
    }

    /// Reports what the probe said.
    fn probed(&self, said: &Bound<'_, PyAny>) {
        let answer = wire::probe(said).unwrap_or_else(|error| ProbeAnswer::CannotTell(error.to_string()));
        lock_mailbox(&self.mailbox).reply = Some(PythonReply::Probed(answer));
    }

    /// Reports what the check said.
    fn verified(&self, said: &Bound<'_, PyAny>) {
        let (verification, reason) =
            wire::check(said).unwrap_or_else(|error| (Verification::Pending, error.to_string()));
        lock_mailbox(&self.mailbox).reply = Some(PythonReply::Verified(verification, reason));
    }

    /// Records how the attempt ended, on the current thread: for a cancelled task, which must not wait.
    fn end(&self, py: Python<'_>, said: &Bound<'_, PyAny>) -> PyResult<()> {
        self.executed(py, said)?;
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(running) = running {
            drop(py.detach(|| drive(running))?);
        }
        Ok(())
    }

    /// Drops the call, because its caller no longer waits. A write in progress is completed on another thread: an
    /// attempt that did not begin has failed, and the ending of one that did is not lost.
    fn abandon(&self) {
        if self.process.is_left() {
            return;
        }
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(running) = running else { return };
        let (mailbox, opened) = (Arc::clone(&self.mailbox), Arc::clone(&self.opened));
        let finish = move || {
            finish_abandoned(running, &mailbox);
            drop(opened);
        };
        // Without a thread the attempt ends here, as if its owner had died.
        drop(std::thread::Builder::new().name("once-abandoned".to_owned()).spawn(finish));
    }
}

impl Drop for AsyncCall {
    fn drop(&mut self) {
        if self.process.is_left() {
            let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
            std::mem::forget(running);
        }
        self.forget_waiter();
    }
}

/// Completes an abandoned call, or drops it if that takes too long: it may be waiting for another caller.
fn finish_abandoned(mut running: Running, mailbox: &Mutex<Mailbox>) {
    let waker = own_waker();
    let until = Instant::now() + ABANDONED_LIMIT;
    while running.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() && Instant::now() < until {
        let asked = lock_mailbox(mailbox).request.take();
        match asked {
            Some(Request::Execute(_)) => {
                let failure =
                    Failure::no_effect(Evidence::NotStarted, "it was cancelled before it began").stopped();
                lock_mailbox(mailbox).reply = Some(PythonReply::Executed(Err(failure)));
            }
            Some(Request::Probe(_) | Request::Verify) => return,
            None => std::thread::park_timeout(until.saturating_duration_since(Instant::now())),
        }
    }
}

async fn run_call(
    ledger: Ledger,
    intent: Intent,
    asks: Asks,
    mailbox: Arc<Mutex<Mailbox>>,
) -> Result<Receipt, Error> {
    let (lease_ms, window_ms) = (intent.terms.lease_ms, intent.terms.repeat_window_ms);
    let mut call = ledger.call(intent);
    let mailbox = &*mailbox;
    if asks.probe {
        call = call.probe(move |record| async move {
            match ask(mailbox, Request::Probe(record)).await {
                PythonReply::Probed(answer) => answer,
                PythonReply::Executed(_) | PythonReply::Verified(..) => {
                    ProbeAnswer::CannotTell("it was not asked".to_owned())
                }
            }
        });
    }
    if asks.verify {
        call = call.verify(move |_| async move {
            match ask(mailbox, Request::Verify).await {
                PythonReply::Verified(verification, reason) => (verification, reason),
                PythonReply::Executed(_) | PythonReply::Probed(_) => {
                    (Verification::Pending, "it was not asked".to_owned())
                }
            }
        });
    }
    let ledger = &ledger;
    let act = move |attempt| async move {
        let keeper = keep_lease(ledger, &attempt, lease_ms);
        let reply = ask(mailbox, Request::Execute(attempt)).await;
        drop(keeper);
        match reply {
            PythonReply::Executed(result) => result,
            PythonReply::Probed(_) | PythonReply::Verified(..) => Err(Failure::in_doubt("it was not asked")),
        }
    };
    let result = call.run(act).await;
    if let Err(error) = &result {
        drop(ledger.attempts().refusal_delivered(error, window_ms).await);
    }
    result
}

fn ask(mailbox: &Mutex<Mailbox>, request: Request) -> AwaitReply<'_> {
    *lock_mailbox(mailbox) = Mailbox { request: Some(request), reply: None };
    AwaitReply(mailbox)
}

fn lock_mailbox(mailbox: &Mutex<Mailbox>) -> MutexGuard<'_, Mailbox> {
    mailbox.lock().unwrap_or_else(PoisonError::into_inner)
}
