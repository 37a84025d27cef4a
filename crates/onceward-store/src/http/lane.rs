//! Requests on the thread of their caller.
//!
//! A caller that may block drives its own connection, on a runtime of its own. That saves the switches to the store's
//! thread and back, which cost more than the request itself if many processes share few processors.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::{Builder, Handle, Runtime};

use super::link::Link;

/// How many lanes are kept for later.
const MAX_IDLE: usize = 64;

/// The lanes that no caller uses now.
pub(super) struct Lanes {
    link: Arc<Link>,
    idle: Mutex<Vec<Lane>>,
}

/// A runtime that runs only while a caller blocks on it, and its connections.
struct Lane {
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
    link: Arc<Link>,
}

impl Lanes {
    /// Lanes to the same server.
    pub(super) fn new(link: &Arc<Link>) -> Self {
        Self { link: Arc::clone(link), idle: Mutex::default() }
    }

    /// Carries out the work on this thread. `Err` returns the work if this thread must not block, or no runtime can be
    /// made for it.
    pub(super) fn block_on<T, F: Future<Output = T>, W: FnOnce(Arc<Link>) -> F>(
        &self,
        work: W,
    ) -> Result<T, W> {
        // A thread that belongs to a runtime cannot run another one.
        if Handle::try_current().is_ok() {
            return Err(work);
        }
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(lane) = idle.or_else(|| Lane::new(&self.link)) else { return Err(work) };
        let Some(runtime) = &lane.runtime else { return Err(work) };
        let answer = runtime.block_on(work(Arc::clone(&lane.link)));
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push(lane);
        }
        Ok(answer)
    }
}

impl Lane {
    fn new(link: &Link) -> Option<Self> {
        let runtime = Builder::new_current_thread().enable_all().build().ok()?;
        Some(Self { runtime: Some(runtime), link: Arc::new(link.another()) })
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Also where blocking is not allowed.
            runtime.shutdown_background();
        }
    }
}
