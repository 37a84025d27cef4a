//! Calls that continue if their client disconnects. A server that ends waits for them.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The calls in flight.
#[derive(Clone, Default)]
pub(crate) struct DetachedTasks {
    running: Arc<watch::Sender<usize>>,
}

/// One of them. Dropping this ends it.
struct Running(Arc<watch::Sender<usize>>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.send_modify(|running| *running -= 1);
    }
}

impl DetachedTasks {
    /// Runs a call in a task of its own.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        call: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.running.send_modify(|running| *running += 1);
        let running = Running(Arc::clone(&self.running));
        tokio::spawn(async move {
            let result = call.await;
            drop(running);
            result
        })
    }

    /// Resolves when no call is in flight.
    pub(crate) async fn idle(&self) {
        match self.running.subscribe().wait_for(|running| *running == 0).await {
            // The sender lives as long as this.
            Ok(_) | Err(_) => {}
        }
    }
}
