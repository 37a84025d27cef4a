//! What stores on a server share: its clock, the tokens of owners, and a thread that talks to it.
//!
//! The ledger is driven by any runtime or none, and the clients of servers need one. So a store brings its own, on one
//! thread: whoever calls hands his wish over and waits for the answer, and wishes that wait together travel together.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::timer::sleep;
use async_trait::async_trait;
use onceward::{Clock, Dispatch, Door, Hold, StoreError};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::clock::since_boot_ms;

/// How long a write that has time lets others go first.
const PATIENCE: Duration = Duration::from_millis(20);
/// How many readings of the server's clock count.
const READINGS: usize = 8;

/// The server's clock, as well as it can be known from here, and never ahead of it: whoever is unsure waits longer.
#[derive(Debug, Default)]
pub(crate) struct ServerClock {
    offset_ms: AtomicI64,
    offsets: Mutex<VecDeque<i64>>,
}

impl ServerClock {
    /// Notes a reading that has just arrived. The server's clock has gone on since, by the time of the way back.
    pub(crate) fn read(&self, server_ms: i64) {
        let mut offsets = self.offsets.lock().unwrap_or_else(PoisonError::into_inner);
        if offsets.len() == READINGS {
            offsets.pop_front();
        }
        offsets.push_back(server_ms - since_boot_ms());
        // None of them is ahead, so the one furthest on is nearest.
        let nearest = offsets.iter().copied().max().unwrap_or_default();
        self.offset_ms.store(nearest, Ordering::Relaxed);
    }
}

#[async_trait]
impl Clock for ServerClock {
    fn now_ms(&self) -> i64 {
        since_boot_ms() + self.offset_ms.load(Ordering::Relaxed)
    }

    async fn sleep(&self, ms: u64) {
        sleep(Duration::from_millis(ms)).await;
    }
}

/// Lets others go first where there is no hurry: the next call's intent is not to wait behind a note on the last one.
pub(crate) async fn give_way(door: Door) {
    match door {
        Door::Patient => sleep(PATIENCE).await,
        Door::Blocking | Door::Async => {}
    }
}

/// An owner's name. Nobody on another machine can see whether its bearer lives: its lease tells.
#[derive(Debug)]
pub(crate) struct Token(u64);

impl Token {
    pub(crate) fn new() -> Result<Self, StoreError> {
        let random = getrandom::u64().map_err(|error| StoreError::because("no random numbers", error))?;
        // A number that every JSON reader keeps as it is.
        Ok(Self(random >> 11))
    }
}

impl Hold for Token {
    fn token(&self) -> u64 {
        self.0
    }

    fn note_dispatch(&self, _dispatch: Dispatch) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A thread with a runtime on it, which ends with its owner.
pub(crate) struct Engine {
    handle: Handle,
    stop: Option<oneshot::Sender<std::convert::Infallible>>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    pub(crate) fn start(name: &str) -> Result<Self, StoreError> {
        let cannot =
            |error| StoreError::because("cannot start the thread that talks to the ledger's server", error);
        let runtime = Builder::new_current_thread().enable_all().build().map_err(cannot)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let work = move || {
            // It is never sent: whoever drops the other end is done.
            drop(runtime.block_on(stopped));
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work).map_err(cannot)?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// The way to the thread for those who start tasks on it themselves.
    #[cfg(feature = "postgres")]
    pub(crate) fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Lets a task run on the thread for as long as it likes.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(task);
    }

    /// Lets a task run on the thread and waits for it here. For opening a store: it blocks.
    pub(crate) fn wait_for<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = std::sync::mpsc::sync_channel(1);
        self.handle.spawn(async move { drop(answer.send(task.await)) });
        answered.recv().unwrap_or_else(|_| Err(StoreError::unavailable("the ledger's thread is gone")))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It only talks for others, and none are left.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_never_ahead_of_the_server() {
        let clock = ServerClock::default();
        let server_ms = 1_000_000;
        clock.read(server_ms - 40);
        clock.read(server_ms - 2);
        clock.read(server_ms - 300);
        assert!((server_ms - 2..server_ms + 1_000).contains(&clock.now_ms()));
    }

    #[test]
    fn a_server_whose_clock_is_set_back_is_followed() {
        let clock = ServerClock::default();
        clock.read(10_000_000);
        for _ in 0..READINGS {
            clock.read(1_000);
        }
        assert!(clock.now_ms() < 100_000);
    }
}
