//! Who drives a call: whoever brings the news that it waited for, where that may be.
//!
//! A call that is alone goes from the client to the server on the thread that reads the client, and back on the one
//! that reads the server: each change of thread would cost as much as a write to the disk. Where more is waiting to be
//! read, or the ledger's writer is busy, calls go on in the runtime, side by side.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use tokio::runtime::{EnterGuard, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinError;

use crate::upstream::lock;

thread_local! {
    /// What this thread drives, if it is one that pumps.
    static HERE: RefCell<Option<Here>> = const { RefCell::new(None) };
}

struct Here {
    may: May,
    woken: VecDeque<Arc<Errand>>,
}

/// Which stream a thread that pumps may wait for. One that reads a server must never wait for the same server to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum May {
    /// It reads the client.
    WriteToServer,
    /// It reads the server.
    WriteToClient,
}

/// Whether others wait for this thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    /// Nothing is waiting to be read.
    None,
    /// Something is.
    Wait,
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Something that goes on until it is done, driven by one thread at a time.
struct Errand {
    work: Mutex<Option<Work>>,
    /// How often it was woken since it was looked at; not zero while somebody is to drive it.
    wakes: AtomicUsize,
    runtime: Handle,
}

/// Begins something that goes on beside its caller. What it gives comes through the receiver, unless it broke off.
pub(crate) fn begin<T: Send + 'static>(
    runtime: &Handle,
    work: impl Future<Output = T> + Send + 'static,
) -> oneshot::Receiver<T> {
    let (sender, receiver) = oneshot::channel();
    let work = Box::pin(async move {
        // Whoever does not wait any more needs no answer.
        drop(sender.send(work.await));
    });
    let errand =
        Errand { work: Mutex::new(Some(work)), wakes: AtomicUsize::new(1), runtime: runtime.clone() };
    Arc::new(errand).go_on();
    receiver
}

/// Does what may have to wait for a stream: here, where this thread may, and else on one that nobody needs.
pub(crate) async fn apart<T: Send + 'static>(
    may: May,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let here = HERE.with_borrow(|here| here.as_ref().is_some_and(|here| here.may == may));
    if here { Ok(work()) } else { tokio::task::spawn_blocking(work).await }
}

impl Errand {
    /// Lets it go on: here, if this thread pumps, and else in the runtime.
    fn go_on(self: Arc<Self>) {
        let elsewhere = HERE.with_borrow_mut(|here| match here {
            Some(here) => {
                here.woken.push_back(Arc::clone(&self));
                None
            }
            None => Some(self.runtime.clone()),
        });
        if let Some(runtime) = elsewhere {
            runtime.spawn(async move { self.drive() });
        }
    }

    fn drive(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        let mut context = Context::from_waker(&waker);
        let mut work = lock(&self.work);
        loop {
            let seen = self.wakes.load(Ordering::SeqCst);
            let Some(under_way) = work.as_mut() else { return };
            // One call that breaks must not take the thread along that all others need.
            let polled = catch_unwind(AssertUnwindSafe(|| under_way.as_mut().poll(&mut context)));
            if !matches!(polled, Ok(Poll::Pending)) {
                *work = None;
                return;
            }
            if self.wakes.compare_exchange(seen, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return;
            }
        }
    }
}

impl Wake for Errand {
    fn wake(self: Arc<Self>) {
        if self.wakes.fetch_add(1, Ordering::SeqCst) == 0 {
            self.go_on();
        }
    }
}

/// A thread that pumps, until this is dropped.
pub(crate) struct Pump<'a> {
    _runtime: EnterGuard<'a>,
    /// It stays on its thread.
    _here: PhantomData<*const ()>,
}

impl<'a> Pump<'a> {
    pub(crate) fn new(runtime: &'a Handle, may: May) -> Self {
        HERE.set(Some(Here { may, woken: VecDeque::new() }));
        Self { _runtime: runtime.enter(), _here: PhantomData }
    }

    /// Drives what was begun or woken on this thread, or hands it over where others wait for this thread.
    pub(crate) fn drive(&self, others: Others) {
        let next = || HERE.with_borrow_mut(|here| here.as_mut()?.woken.pop_front());
        while let Some(errand) = next() {
            match others {
                Others::None => errand.drive(),
                Others::Wait => drop(errand.runtime.clone().spawn(async move { errand.drive() })),
            }
        }
    }
}

impl Drop for Pump<'_> {
    fn drop(&mut self) {
        self.drive(Others::Wait);
        HERE.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap()
    }

    #[test]
    fn whoever_brings_the_news_drives_on() {
        let runtime = runtime();
        let pump = Pump::new(runtime.handle(), May::WriteToServer);
        let here = std::thread::current().id();
        let (news, told) = oneshot::channel::<()>();
        let mut ended = begin(runtime.handle(), async move {
            told.await.unwrap();
            let thread = apart(May::WriteToServer, || std::thread::current().id()).await.unwrap();
            let other = apart(May::WriteToClient, || std::thread::current().id()).await.unwrap();
            (thread, other)
        });
        pump.drive(Others::None);
        assert!(ended.try_recv().is_err());
        news.send(()).unwrap();
        pump.drive(Others::None);
        let (thread, other) = runtime.block_on(ended).unwrap();
        assert_eq!(thread, here);
        assert_ne!(other, here, "it waited for a stream that this thread must not wait for");
    }

    #[test]
    fn it_goes_on_in_the_runtime_where_others_wait_and_when_the_pump_has_ended() {
        let runtime = runtime();
        let here = std::thread::current().id();
        let pump = Pump::new(runtime.handle(), May::WriteToServer);
        let where_it_runs = || begin(runtime.handle(), async { std::thread::current().id() });
        let handed_over = where_it_runs();
        pump.drive(Others::Wait);
        assert_ne!(handed_over.blocking_recv_outside(), here);
        let left = where_it_runs();
        drop(pump);
        assert_ne!(left.blocking_recv_outside(), here);
        assert_ne!(where_it_runs().blocking_recv_outside(), here);
    }

    #[test]
    fn one_that_breaks_is_over_and_takes_nobody_along() {
        let runtime = runtime();
        let pump = Pump::new(runtime.handle(), May::WriteToServer);
        let broken = begin(runtime.handle(), async { assert!(std::hint::black_box(false), "on purpose") });
        let whole = begin(runtime.handle(), async { 7 });
        pump.drive(Others::None);
        assert!(broken.blocking_recv_outside_result().is_err());
        assert_eq!(whole.blocking_recv_outside(), 7);
    }

    /// Waits on a thread without a runtime.
    trait Outside<T> {
        fn blocking_recv_outside_result(self) -> Result<T, oneshot::error::RecvError>;
        fn blocking_recv_outside(self) -> T;
    }

    impl<T: Send + 'static> Outside<T> for oneshot::Receiver<T> {
        fn blocking_recv_outside_result(self) -> Result<T, oneshot::error::RecvError> {
            std::thread::spawn(|| self.blocking_recv()).join().unwrap()
        }

        fn blocking_recv_outside(self) -> T {
            self.blocking_recv_outside_result().unwrap()
        }
    }
}
