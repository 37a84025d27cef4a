//! The synchronous door: the same ledger for threads that may block, with no runtime.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::attempt::{Attempt, Done, Failure};
use crate::error::Error;
use crate::ledger::{Call, Ledger, Receipt};
use crate::operation::Operation;
use crate::store::Watch;

/// A ledger for threads that may block.
///
/// [`Blocking::wait_for`] drives any future of the ledger; [`Blocking::run`] takes plain functions.
#[derive(Clone)]
pub struct Blocking {
    ledger: Ledger,
}

impl Blocking {
    pub(crate) fn new(ledger: Ledger) -> Self {
        Self { ledger }
    }

    /// The ledger, for whatever has no synchronous form of its own.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Drives a future of the ledger to its end on this thread.
    pub fn wait_for<T>(&self, future: impl Future<Output = T>) -> T {
        pollster::block_on(future)
    }

    /// Lets the operation happen once: executes it, or replays its result.
    ///
    /// # Errors
    /// Each says whether the effect happened.
    pub fn run<F>(&self, operation: Operation, act: F) -> Result<Receipt, Error>
    where
        F: FnMut(Attempt) -> Result<Done, Failure> + Send,
    {
        self.run_call(self.ledger.call(operation.intent()?), act)
    }

    /// The same for a call that has more to say.
    ///
    /// # Errors
    /// Each says whether the effect happened.
    pub fn run_call<F>(&self, call: Call<'_>, mut act: F) -> Result<Receipt, Error>
    where
        F: FnMut(Attempt) -> Result<Done, Failure> + Send,
    {
        let lease_ms = call.lease_ms();
        pollster::block_on(call.run(|attempt| {
            std::future::ready(match self.ledger.store().watch() {
                Watch::Kernel => act(attempt),
                Watch::Lease => self.renewing(&attempt.clone(), lease_ms, || act(attempt)),
            })
        }))
    }

    /// Does the work on this thread while another one renews the lease beside it.
    fn renewing<T>(&self, attempt: &Attempt, lease_ms: u64, work: impl FnOnce() -> T) -> T {
        let (working, over) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let pause = Duration::from_millis(lease_ms / 3);
                while over.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                    pollster::block_on(self.ledger.renew(attempt.operation(), attempt.number(), lease_ms));
                }
            });
            let result = work();
            drop(working);
            result
        })
    }
}
