//! A call of a coroutine. The ledger's own loop is a future; what it wants done in Python it asks for, and the code
//! around the coroutine answers. So the rules are the ones that every call is under.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use onceward::{Attempt, Done, Error, Failure, Intent, Ledger, ProbeAnswer, Receipt, Verification};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::attempt::{Attempt as Seen, Token};
use crate::bell::Bell;
use crate::drive::{drive, own_waker};
use crate::fork::Process;
use crate::handle::Opened;
use crate::keep::keep;
use crate::receipt::Receipt as Shown;
use crate::record::Record;
use crate::run::{Own, lock};
use crate::{error, told};

type Running = Pin<Box<dyn Future<Output = Result<Receipt, Error>> + Send>>;

/// How long an abandoned call may take to its end.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the ledger wants done.
enum Request {
    Execute(Attempt),
    Probe(Arc<onceward::Record>),
    Verify,
}

/// What came of it.
enum Reply {
    Executed(Result<Done, Failure>),
    Probed(ProbeAnswer),
    Verified(Verification, String),
}

#[derive(Default)]
struct Mail {
    request: Option<Request>,
    reply: Option<Reply>,
}

/// Waits for a reply. It wakes nobody: whoever answers also polls.
struct Asked<'a>(&'a Mutex<Mail>);

impl Future for Asked<'_> {
    type Output = Reply;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Reply> {
        mail(self.0).reply.take().map_or(Poll::Pending, Poll::Ready)
    }
}

/// A call of a coroutine that is under way.
#[pyclass(frozen, module = "onceward._onceward")]
pub(crate) struct Conversation {
    running: Mutex<Option<Running>>,
    mail: Arc<Mutex<Mail>>,
    /// The attempt that Python is executing, and the token of its dispatch.
    executing: Mutex<Option<(Attempt, Token)>>,
    process: Process,
    own: Mutex<Own>,
    opened: Arc<Opened>,
    decode: Option<Py<PyAny>>,
    waiter: Mutex<Option<(Py<Bell>, u64)>>,
}

/// What the call of a coroutine can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asks {
    pub(crate) probe: bool,
    pub(crate) verify: bool,
}

impl Conversation {
    pub(crate) fn new(opened: Arc<Opened>, intent: Intent, asks: Asks, decode: Option<Py<PyAny>>) -> Self {
        let mail = Arc::new(Mutex::new(Mail::default()));
        let running = talk(opened.ledger.clone(), intent, asks, Arc::clone(&mail));
        Self {
            running: Mutex::new(Some(Box::pin(running))),
            mail,
            executing: Mutex::default(),
            process: Process::this(),
            own: Mutex::default(),
            opened,
            decode,
            waiter: Mutex::default(),
        }
    }

    /// What there is to do, or the end.
    fn turn<'py>(
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
        let request = mail(&self.mail).request.take();
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
        if let Some((bell, number)) = waiter {
            drop(bell.get().forget(number));
        }
    }
}

#[pymethods]
impl Conversation {
    /// Goes on as far as it can. Gives what is to be done, `("answer", receipt)`, or `None`: then `future` is resolved
    /// when going on is worth it.
    fn poll<'py>(
        &self,
        py: Python<'py>,
        bell: &Bound<'py, Bell>,
        future: Py<PyAny>,
    ) -> PyResult<Option<(&'static str, Bound<'py, PyAny>)>> {
        self.process.check(py)?;
        self.forget_waiter();
        let (waker, number) = bell.get().waker(future);
        *self.waiter.lock().unwrap_or_else(PoisonError::into_inner) = Some((bell.clone().unbind(), number));
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
        let turn = self.turn(py, polled);
        if !matches!(turn, Ok(None)) {
            self.forget_waiter();
        }
        turn
    }

    /// Says how the attempt went.
    fn executed(&self, py: Python<'_>, said: &Bound<'_, PyAny>) -> PyResult<()> {
        self.process.check(py)?;
        let executing = self.executing.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((attempt, token)) = executing else { return Ok(()) };
        let told =
            told::attempt(said, &attempt, &token).unwrap_or_else(|error| crate::run::broken(py, error));
        *lock(&self.own) = Own { value: told.own, cause: told.cause, ended: None };
        mail(&self.mail).reply = Some(Reply::Executed(told.result));
        Ok(())
    }

    /// Says what the probe said.
    fn probed(&self, said: &Bound<'_, PyAny>) {
        let answer = told::probe(said).unwrap_or_else(|error| ProbeAnswer::CannotTell(error.to_string()));
        mail(&self.mail).reply = Some(Reply::Probed(answer));
    }

    /// Says what the check said.
    fn verified(&self, said: &Bound<'_, PyAny>) {
        let (verification, reason) =
            told::check(said).unwrap_or_else(|error| (Verification::Pending, error.to_string()));
        mail(&self.mail).reply = Some(Reply::Verified(verification, reason));
    }

    /// Writes down how the attempt went, on this very thread: for a task that is cancelled and must not wait.
    fn end(&self, py: Python<'_>, said: &Bound<'_, PyAny>) -> PyResult<()> {
        self.executed(py, said)?;
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(running) = running {
            drop(py.detach(|| drive(running))?);
        }
        Ok(())
    }

    /// Nobody waits for the answer any more. What is just being written is brought to its end beside the caller: an
    /// attempt that was not begun has failed, and the ending of one that was is not lost.
    fn abandon(&self) {
        if self.process.is_left() {
            return;
        }
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(running) = running else { return };
        let (mailbox, opened) = (Arc::clone(&self.mail), Arc::clone(&self.opened));
        let finish = move || {
            see_off(running, &mailbox);
            drop(opened);
        };
        // Without a thread the attempt ends here, as if its owner had died.
        drop(std::thread::Builder::new().name("once-abandoned".to_owned()).spawn(finish));
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        if self.process.is_left() {
            let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
            std::mem::forget(running);
        }
        self.forget_waiter();
    }
}

/// Brings an abandoned call to its end, or lets it go when that takes too long: it may be waiting for another caller.
fn see_off(mut running: Running, mailbox: &Mutex<Mail>) {
    let waker = own_waker();
    let until = Instant::now() + PATIENCE;
    while running.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() && Instant::now() < until {
        let asked = mail(mailbox).request.take();
        match asked {
            Some(Request::Execute(_)) => {
                let failure = Failure::no_effect("it was cancelled before it began").stopped();
                mail(mailbox).reply = Some(Reply::Executed(Err(failure)));
            }
            Some(Request::Probe(_) | Request::Verify) => return,
            None => std::thread::park_timeout(until.saturating_duration_since(Instant::now())),
        }
    }
}

async fn talk(
    ledger: Ledger,
    intent: Intent,
    asks: Asks,
    mailbox: Arc<Mutex<Mail>>,
) -> Result<Receipt, Error> {
    let lease_ms = intent.terms.lease_ms;
    let mut call = ledger.call(intent);
    let mailbox = &*mailbox;
    if asks.probe {
        call = call.probe(move |record| async move {
            match ask(mailbox, Request::Probe(record)).await {
                Reply::Probed(answer) => answer,
                Reply::Executed(_) | Reply::Verified(..) => {
                    ProbeAnswer::CannotTell("it was not asked".to_owned())
                }
            }
        });
    }
    if asks.verify {
        call = call.verify(move |_| async move {
            match ask(mailbox, Request::Verify).await {
                Reply::Verified(verification, reason) => (verification, reason),
                Reply::Executed(_) | Reply::Probed(_) => {
                    (Verification::Pending, "it was not asked".to_owned())
                }
            }
        });
    }
    let ledger = &ledger;
    call.run(move |attempt| async move {
        let kept = keep(ledger, &attempt, lease_ms);
        let reply = ask(mailbox, Request::Execute(attempt)).await;
        drop(kept);
        match reply {
            Reply::Executed(result) => result,
            Reply::Probed(_) | Reply::Verified(..) => Err(Failure::in_doubt("it was not asked")),
        }
    })
    .await
}

fn ask(mailbox: &Mutex<Mail>, request: Request) -> Asked<'_> {
    *mail(mailbox) = Mail { request: Some(request), reply: None };
    Asked(mailbox)
}

fn mail(mailbox: &Mutex<Mail>) -> MutexGuard<'_, Mail> {
    mailbox.lock().unwrap_or_else(PoisonError::into_inner)
}
