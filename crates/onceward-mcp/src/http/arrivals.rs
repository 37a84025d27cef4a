//! Answers that come by another stream than the one they were asked for on: in the eras with sessions a stream may end
//! early, and the client takes it up again by a request of its own.

use std::collections::HashMap;
use std::sync::Mutex;

use tokio::sync::oneshot;

use crate::message::Id;
use crate::upstream::lock;
use crate::waiters::Caller;

/// An answer that came by another stream.
pub(crate) struct Arrival {
    /// The answer.
    pub(crate) line: Vec<u8>,
    /// Lets it go on to the client; dropped, it goes on too.
    pub(crate) release: oneshot::Sender<()>,
}

/// Who waits for an answer that may come by another stream.
#[derive(Default)]
pub(crate) struct Arrivals {
    table: Mutex<HashMap<(Caller, Id), oneshot::Sender<Arrival>>>,
}

/// An answer that is waited for, until this is dropped.
pub(crate) struct Expected<'a> {
    arrivals: &'a Arrivals,
    key: (Caller, Id),
    receiver: oneshot::Receiver<Arrival>,
}

impl Arrivals {
    /// Waits for the answer to that request of the caller's.
    pub(crate) fn expect(&self, caller: &Caller, id: &Id) -> Expected<'_> {
        let (sender, receiver) = oneshot::channel();
        let key = (caller.clone(), id.clone());
        lock(&self.table).insert(key.clone(), sender);
        Expected { arrivals: self, key, receiver }
    }

    /// An answer came by another stream. Where somebody waits for it, it goes on when that one says so.
    pub(crate) fn offer(&self, caller: &Caller, id: Id, line: &[u8]) -> Option<oneshot::Receiver<()>> {
        let waiting = lock(&self.table).remove(&(caller.clone(), id))?;
        let (release, released) = oneshot::channel();
        waiting.send(Arrival { line: line.to_vec(), release }).ok()?;
        Some(released)
    }
}

impl Expected<'_> {
    /// The answer. Without one this never ends.
    pub(crate) async fn arrival(&mut self) -> Arrival {
        match (&mut self.receiver).await {
            Ok(arrival) => arrival,
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        // Whoever uses an id again has a place of his own under it, which is not ours to clear.
        let mut table = lock(&self.arrivals.table);
        if table.get(&self.key).is_some_and(oneshot::Sender::is_closed) {
            table.remove(&self.key);
        }
    }
}
