//! Which clients wait for an answer, and which of them left without it.
//!
//! This is known for the calls of this process only. Other gateways on the same ledger see nothing but the record: that
//! its owner is alive, and when its answer was delivered.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use onceward::{Clock, Record};
use quick_cache::sync::Cache;

use crate::guarded::Guarded;
use crate::locks::lock;
use crate::socket::Peer;
use crate::tenant::Place;
use crate::time;

/// The most operations that are remembered after their clients left.
const MEMORY: usize = 10_000;

/// How long it may take to notice that a client left after its answer was written.
const UNCONFIRMED: Duration = Duration::from_millis(500);

/// The clients of all calls of this process.
pub(crate) struct Readers {
    calls: Mutex<HashMap<Place, Call>>,
    /// Operations that this process executed, and whose clients all left before they had the answer.
    left: Cache<Place, ()>,
    /// The attempts whose answers were delivered, and when that counts. It is written here before the ledger, and is
    /// not removed after that: a request may have read the record just before.
    delivered: Cache<Place, (u32, i64)>,
    /// Deliveries that are being revoked.
    taken_back: Mutex<HashSet<Place>>,
    /// Answers that were written to a connection, and whose client has not continued or left since.
    unconfirmed: Cache<Place, i64>,
    /// The number of the next request.
    numbers: AtomicU64,
}

/// The requests of this process about one operation.
#[derive(Default)]
struct Call {
    /// Clients that wait for the answer or read it, by the numbers of their requests.
    clients: Vec<(u64, Peer)>,
    /// Requests that are being answered, with or without a client.
    requests: usize,
    /// Whether an attempt was made in this process.
    is_ours: bool,
}

impl Call {
    /// Removes one client of this request.
    fn forget(&mut self, number: u64) {
        if let Some(at) = self.clients.iter().position(|(own, _)| *own == number) {
            self.clients.swap_remove(at);
        }
    }
}

/// What this process knows about the clients of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// A client waits for the answer, or reads it.
    Waiting,
    /// The operation was executed here, and no client is left.
    Left,
    /// It was executed elsewhere, or long ago.
    Unknown,
}

impl Default for Readers {
    fn default() -> Self {
        let (calls, taken_back) = (Mutex::default(), Mutex::default());
        let (left, delivered, unconfirmed) = (Cache::new(MEMORY), Cache::new(MEMORY), Cache::new(MEMORY));
        Self { calls, left, delivered, taken_back, unconfirmed, numbers: AtomicU64::new(0) }
    }
}

impl Readers {
    pub(crate) fn of(&self, place: &Place) -> Presence {
        match lock(&self.calls).get(place) {
            // The task of its connection may not have noticed yet that a client left.
            Some(call) if call.clients.iter().any(|(_, peer)| !peer.is_gone()) => Presence::Waiting,
            Some(call) if call.is_ours => Presence::Left,
            Some(_) | None if self.left.get(place).is_some() => Presence::Left,
            Some(_) | None => Presence::Unknown,
        }
    }

    /// When the answer counts as delivered, by what is recorded and what is being recorded.
    pub(crate) fn delivered_ms(&self, place: &Place, record: &Record) -> Option<i64> {
        if lock(&self.taken_back).contains(place) {
            return None;
        }
        self.noted_ms(place, record.attempt).into_iter().chain(record.delivered_ms()).min()
    }

    /// When the answer of this attempt counts as delivered, if this process delivered it.
    fn noted_ms(&self, place: &Place, attempt: u32) -> Option<i64> {
        self.delivered.get(place).filter(|(of, _)| *of == attempt).map(|(_, at_ms)| at_ms)
    }

    /// Notes that the answer was written, and that its client may leave without reading it.
    pub(crate) fn unconfirmed(&self, place: &Place, at_ms: i64) {
        self.unconfirmed.insert(place.clone(), at_ms);
    }

    /// Notes that the client has the answer.
    pub(crate) fn confirmed(&self, place: &Place) {
        self.unconfirmed.remove(place);
    }

    /// Whether the answer was written a moment ago, and its client may just be leaving without it.
    pub(crate) fn is_unconfirmed(&self, place: &Place, clock: &dyn Clock) -> bool {
        self.unconfirmed.get(place).is_some_and(|at_ms| time::is_within(clock, UNCONFIRMED, at_ms))
    }

    /// Notes that the answer was not read, before that is recorded.
    pub(crate) fn taking_back(&self, place: &Place) {
        self.left.insert(place.clone(), ());
        self.delivered.remove(place);
        lock(&self.taken_back).insert(place.clone());
    }

    /// It is recorded that the answer was not read.
    pub(crate) fn taken_back(&self, place: &Place) {
        lock(&self.taken_back).remove(place);
    }

    /// Notes a delivery that is about to be recorded.
    pub(crate) fn delivering(&self, place: &Place, attempt: u32, at_ms: i64) {
        if self.noted_ms(place, attempt).is_none_or(|known_ms| at_ms < known_ms) {
            self.delivered.insert(place.clone(), (attempt, at_ms));
        }
    }

    fn change(&self, place: &Place, change: impl FnOnce(&mut Call)) {
        let mut calls = lock(&self.calls);
        let call = calls.entry(place.clone()).or_default();
        change(call);
        if call.clients.is_empty() && call.requests == 0 {
            if call.is_ours {
                self.left.insert(place.clone(), ());
            }
            calls.remove(place);
        }
    }
}

/// A request, for as long as it is being answered. Its client may leave before that.
pub(crate) struct Reader {
    readers: Arc<Readers>,
    number: u64,
    peer: Peer,
    state: Mutex<State>,
}

struct State {
    /// The operation that the request refers to, when it is known.
    place: Option<Place>,
    is_here: bool,
}

/// The client of a request. The connection drops it when the answer was written, or when it breaks.
pub(crate) struct Client(Arc<Reader>);

impl Reader {
    pub(crate) fn new(readers: &Arc<Readers>, peer: &Peer) -> (Arc<Self>, Client) {
        let state = Mutex::new(State { place: None, is_here: true });
        let number = readers.numbers.fetch_add(1, Ordering::Relaxed);
        let reader = Arc::new(Self { readers: Arc::clone(readers), number, peer: peer.clone(), state });
        (Arc::clone(&reader), Client(reader))
    }

    /// Whether the client has left: by now, not only when its connection was last looked at.
    pub(crate) fn is_gone(&self) -> bool {
        !lock(&self.state).is_here || self.peer.is_gone()
    }

    /// Notes which operation the request refers to.
    pub(crate) fn refers_to(&self, place: Place) {
        let mut state = lock(&self.state);
        let is_here = state.is_here;
        self.readers.change(&place, |call| {
            call.requests += 1;
            if is_here {
                call.clients.push((self.number, self.peer.clone()));
            }
        });
        let before = state.place.replace(place);
        if let Some(before) = before {
            self.leave(&before);
        }
    }

    /// Notes that this request executes the operation.
    pub(crate) fn executes(&self) {
        if let Some(place) = &lock(&self.state).place {
            self.readers.change(place, |call| call.is_ours = true);
        }
    }

    fn leave(&self, place: &Place) {
        self.readers.change(place, |call| {
            call.requests -= 1;
            call.forget(self.number);
        });
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let state = lock(&self.state);
        if let Some(place) = &state.place {
            self.leave(place);
        }
    }
}

impl Client {
    /// The body of the answer, which the client reads. The body notes a delivery, so before the client is gone.
    pub(crate) fn reads(self, body: Body) -> Body {
        Body::new(Guarded::with(body, self))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.is_here = false;
        if let Some(place) = &state.place {
            self.0.readers.change(place, |call| call.forget(self.0.number));
        }
    }
}

#[cfg(test)]
mod tests {
    use onceward::OperationId;

    use super::*;

    fn place(key: &str) -> Place {
        (None, OperationId::of("s", "n", key))
    }

    #[test]
    fn an_operation_has_clients_until_the_last_one_leaves() {
        let readers = Arc::new(Readers::default());
        let (first, client) = Reader::new(&readers, &Peer::default());
        first.refers_to(place("a"));
        assert_eq!(readers.of(&place("a")), Presence::Waiting);
        first.executes();
        let (second, other) = Reader::new(&readers, &Peer::default());
        second.refers_to(place("a"));
        drop(client);
        assert_eq!((first.is_gone(), readers.of(&place("a"))), (true, Presence::Waiting));
        drop(other);
        assert_eq!(readers.of(&place("a")), Presence::Left, "it is still being executed");
        drop((first, second));
        assert_eq!(readers.of(&place("a")), Presence::Left, "and after that");
        assert!(lock(&readers.calls).is_empty());
    }

    #[test]
    fn only_what_was_executed_here_is_known_to_have_no_client() {
        let readers = Arc::new(Readers::default());
        let (reader, client) = Reader::new(&readers, &Peer::default());
        reader.refers_to(place("a"));
        reader.refers_to(place("b"));
        assert_eq!(
            (readers.of(&place("a")), readers.of(&place("b"))),
            (Presence::Unknown, Presence::Waiting)
        );
        drop((client, reader));
        assert_eq!(readers.of(&place("b")), Presence::Unknown);
        let (late, gone) = Reader::new(&readers, &Peer::default());
        drop(gone);
        late.refers_to(place("c"));
        assert_eq!(readers.of(&place("c")), Presence::Unknown, "its client left before that");
    }
}
