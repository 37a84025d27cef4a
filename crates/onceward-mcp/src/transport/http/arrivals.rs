//! Answers that arrive on another stream than the one of their request. In revisions with sessions a stream may end
//! early, and the client resumes it with a request of its own.

use std::collections::HashMap;
use std::sync::Mutex;

use tokio::sync::oneshot;

use crate::call::waiters::Caller;
use crate::sync::lock;
use crate::wire::message::Id;

/// An answer that arrived on another stream.
pub(crate) struct Arrival {
    /// The answer, as JSON text.
    pub(crate) line: Vec<u8>,
    /// Releases it to the client. Dropping this releases it too.
    pub(crate) release: oneshot::Sender<()>,
}

/// The answers that may arrive on another stream.
#[derive(Default)]
pub(crate) struct Arrivals {
    table: Mutex<HashMap<(Caller, Id), oneshot::Sender<Arrival>>>,
}

/// An expected answer. Dropping this removes the expectation.
pub(crate) struct Expected<'a> {
    arrivals: &'a Arrivals,
    key: (Caller, Id),
    receiver: oneshot::Receiver<Arrival>,
}

impl Arrivals {
    /// Expects the answer to this request of the caller.
    pub(crate) fn expect(&self, caller: &Caller, id: &Id) -> Expected<'_> {
        let (sender, receiver) = oneshot::channel();
        let key = (caller.clone(), id.clone());
        lock(&self.table).insert(key.clone(), sender);
        Expected { arrivals: self, key, receiver }
    }

    /// Offers an answer that arrived on another stream. If it is expected, returns a receiver that fires when it may
    /// be forwarded.
    pub(crate) fn offer(&self, caller: &Caller, id: Id, line: &[u8]) -> Option<oneshot::Receiver<()>> {
        let waiting = lock(&self.table).remove(&(caller.clone(), id))?;
        let (release, released) = oneshot::channel();
        waiting.send(Arrival { line: line.to_vec(), release }).ok()?;
        Some(released)
    }
}

impl Expected<'_> {
    /// The answer. Pending for ever if there is none.
    pub(crate) async fn arrival(&mut self) -> Arrival {
        match (&mut self.receiver).await {
            Ok(arrival) => arrival,
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        // A request that reuses the id has an entry of its own, which must stay.
        let mut table = lock(&self.arrivals.table);
        if table.get(&self.key).is_some_and(oneshot::Sender::is_closed) {
            table.remove(&self.key);
        }
    }
}
