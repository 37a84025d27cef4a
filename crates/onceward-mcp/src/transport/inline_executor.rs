//! Runs calls on the thread that reads the message they waited for, where that is allowed.
//!
//! A single call travels to the server on the thread that reads the client, and back on the thread that reads the
//! server, because each thread switch would cost as much as a write to disk. If more input is already waiting, or the
//! ledger's writer is busy, calls continue on the runtime, concurrently.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::marker::PhantomData;

use async_task::Runnable;
use tokio::runtime::{EnterGuard, Handle};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinError;

thread_local! {
    /// The tasks that this thread runs, if it is a pump thread.
    static LOCAL_QUEUE: RefCell<Option<LocalQueue>> = const { RefCell::new(None) };
}

struct LocalQueue {
    side: StreamSide,
    woken: VecDeque<Runnable>,
}

/// The stream that a pump thread may block on. A thread that reads a server must never wait for that server to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamSide {
    /// The thread reads the client.
    WriteToServer,
    /// The thread reads the server.
    WriteToClient,
}

/// Whether the pump thread has more input to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backlog {
    /// No input is buffered.
    Empty,
    /// Input is buffered.
    Waiting,
}

/// Starts a task. Its output arrives through the receiver, unless the task panics. A task that is woken continues on
/// the thread that woke it if that is a pump thread, otherwise on the runtime.
pub(crate) fn spawn<T: Send + 'static>(
    runtime: &Handle,
    work: impl Future<Output = T> + Send + 'static,
) -> oneshot::Receiver<T> {
    let (sender, receiver) = oneshot::channel();
    let work = async move {
        // The receiver may be gone; then the output is not needed.
        drop(sender.send(work.await));
    };
    let runtime = runtime.clone();
    let schedule = move |runnable| {
        let elsewhere = LOCAL_QUEUE.with_borrow_mut(|queue| match queue {
            Some(queue) => {
                queue.woken.push_back(runnable);
                None
            }
            None => Some(runnable),
        });
        elsewhere.into_iter().for_each(|runnable| run_on(&runtime, runnable));
    };
    // A call that panics must not end the thread that all other calls need.
    let (runnable, task) = async_task::Builder::new().propagate_panic(true).spawn(|()| work, schedule);
    task.detach();
    runnable.schedule();
    receiver
}

fn run_on(runtime: &Handle, runnable: Runnable) {
    runtime.spawn(async move { runnable.run() });
}

/// Runs work that may block on a stream: on this thread if it may block on that side, otherwise on the blocking pool.
/// All writers of a stream share its permits, so that thousands of them do not take a thread each.
pub(crate) async fn run_blocking<T: Send + 'static>(
    side: StreamSide,
    permits: &Semaphore,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let inline = LOCAL_QUEUE.with_borrow(|queue| queue.as_ref().is_some_and(|queue| queue.side == side));
    if inline {
        return Ok(work());
    }
    // The semaphore is never closed. Without a permit the work would only wait for the stream itself.
    let _permit = permits.acquire().await.ok();
    tokio::task::spawn_blocking(work).await
}

/// Makes the current thread a pump thread until this is dropped.
pub(crate) struct PumpGuard<'a> {
    runtime: &'a Handle,
    _entered: EnterGuard<'a>,
    /// Keeps the guard on its thread.
    _not_send: PhantomData<*const ()>,
}

impl<'a> PumpGuard<'a> {
    pub(crate) fn new(runtime: &'a Handle, side: StreamSide) -> Self {
        LOCAL_QUEUE.set(Some(LocalQueue { side, woken: VecDeque::new() }));
        Self { runtime, _entered: runtime.enter(), _not_send: PhantomData }
    }

    /// Runs the tasks that were started or woken on this thread, or moves them to the runtime if there is a backlog.
    pub(crate) fn run_queued(&self, backlog: Backlog) {
        let next = || LOCAL_QUEUE.with_borrow_mut(|queue| queue.as_mut()?.woken.pop_front());
        while let Some(runnable) = next() {
            match backlog {
                Backlog::Empty => drop(runnable.run()),
                Backlog::Waiting => run_on(self.runtime, runnable),
            }
        }
    }
}

impl Drop for PumpGuard<'_> {
    fn drop(&mut self) {
        self.run_queued(Backlog::Waiting);
        LOCAL_QUEUE.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap()
    }

    #[test]
    fn a_woken_task_runs_on_the_thread_that_woke_it() {
        let runtime = runtime();
        let pump = PumpGuard::new(runtime.handle(), StreamSide::WriteToServer);
        let here = std::thread::current().id();
        let (wake, woken) = oneshot::channel::<()>();
        let mut ended = spawn(runtime.handle(), async move {
            woken.await.unwrap();
            let permits = Semaphore::new(1);
            let thread = run_blocking(StreamSide::WriteToServer, &permits, || std::thread::current().id())
                .await
                .unwrap();
            let other = run_blocking(StreamSide::WriteToClient, &permits, || std::thread::current().id())
                .await
                .unwrap();
            (thread, other)
        });
        pump.run_queued(Backlog::Empty);
        assert!(ended.try_recv().is_err());
        wake.send(()).unwrap();
        pump.run_queued(Backlog::Empty);
        let (thread, other) = runtime.block_on(ended).unwrap();
        assert_eq!(thread, here);
        assert_ne!(other, here, "this thread must not block on the client");
    }

    #[test]
    fn a_task_runs_on_the_runtime_if_there_is_a_backlog_or_no_pump() {
        let runtime = runtime();
        let here = std::thread::current().id();
        let pump = PumpGuard::new(runtime.handle(), StreamSide::WriteToServer);
        let where_it_runs = || spawn(runtime.handle(), async { std::thread::current().id() });
        let handed_over = where_it_runs();
        pump.run_queued(Backlog::Waiting);
        assert_ne!(handed_over.blocking_recv_outside(), here);
        let left = where_it_runs();
        drop(pump);
        assert_ne!(left.blocking_recv_outside(), here);
        assert_ne!(where_it_runs().blocking_recv_outside(), here);
    }

    #[test]
    fn a_task_that_panics_does_not_affect_others() {
        let runtime = runtime();
        let pump = PumpGuard::new(runtime.handle(), StreamSide::WriteToServer);
        let broken = spawn(runtime.handle(), async { assert!(std::hint::black_box(false), "on purpose") });
        let whole = spawn(runtime.handle(), async { 7 });
        pump.run_queued(Backlog::Empty);
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
