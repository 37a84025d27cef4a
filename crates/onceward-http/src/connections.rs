//! Tracks which connections wait for their clients, to make room for new ones.
//!
//! A client that starts a request and then stalls blocks others. When all slots are taken, the connection whose
//! client has been silent longest is closed. A connection whose request is complete is never closed for another.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::Notify;

use crate::guarded::Guarded;
use crate::locks::lock;

/// All connections.
#[derive(Default)]
pub struct Connections {
    all: Mutex<HashMap<u64, Arc<Link>>>,
    numbers: AtomicU64,
}

/// One connection.
pub struct Link {
    activity: Mutex<Activity>,
    closing: Notify,
}

struct Activity {
    /// How many requests have begun to arrive and are not answered yet.
    open: usize,
    /// How many complete requests are being answered. A connection of HTTP/2 has several at once.
    answering: usize,
    /// When its client last sent something, or an answer to it ended.
    last: Instant,
}

/// A registered connection. Dropping this removes it.
pub struct ConnectionSlot {
    connections: Arc<Connections>,
    number: u64,
    /// The connection.
    pub link: Arc<Link>,
}

impl Connections {
    /// Adds a connection that waits for its client.
    pub fn add(self: &Arc<Self>) -> ConnectionSlot {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let activity = Activity { open: 0, answering: 0, last: Instant::now() };
        let link = Arc::new(Link { activity: Mutex::new(activity), closing: Notify::new() });
        lock(&self.all).insert(number, Arc::clone(&link));
        ConnectionSlot { connections: Arc::clone(self), number, link }
    }

    /// Closes the connection whose client has been silent longest. Does nothing if none waits.
    pub fn close_one(&self) {
        let mut all = lock(&self.all);
        let waiting = all.iter().filter_map(|(number, link)| Some((link.since()?, *number)));
        if let Some((_, number)) = waiting.min()
            && let Some(link) = all.remove(&number)
        {
            link.closing.notify_one();
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        lock(&self.connections.all).remove(&self.number);
    }
}

impl Link {
    /// Since when its client has been silent; `None` while a request is being answered.
    fn since(&self) -> Option<Instant> {
        let activity = lock(&self.activity);
        (activity.answering == 0).then_some(activity.last)
    }

    /// A request on this connection, from its head to the end of its answer.
    #[must_use]
    pub fn exchange(self: &Arc<Self>) -> Arc<Exchange> {
        let mut activity = lock(&self.activity);
        activity.last = Instant::now();
        activity.open += 1;
        drop(activity);
        Arc::new(Exchange { link: Arc::clone(self), answering: AtomicBool::new(false) })
    }

    /// Resolves when the connection has to be closed for another one.
    pub async fn closing(&self) {
        loop {
            self.closing.notified().await;
            // A client that continued meanwhile keeps its connection.
            if self.since().is_some() {
                return;
            }
        }
    }

    /// Resolves when the client has been silent for that long between two requests. A request has limits of its own.
    pub async fn idle(&self, patience: Duration) {
        loop {
            let left = {
                let activity = lock(&self.activity);
                if activity.open == 0 { patience.saturating_sub(activity.last.elapsed()) } else { patience }
            };
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }
}

/// A request and its answer. Its bodies share it, and it ends with the last of them.
pub struct Exchange {
    link: Arc<Link>,
    answering: AtomicBool,
}

impl Exchange {
    /// The client sent a part of the request.
    fn note_arrival(&self) {
        lock(&self.link.activity).last = Instant::now();
    }

    /// The request is complete, or its answer has begun.
    fn note_answering(&self) {
        if !self.answering.swap(true, Ordering::Relaxed) {
            lock(&self.link.activity).answering += 1;
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let mut activity = lock(&self.link.activity);
        activity.last = Instant::now();
        activity.open -= 1;
        if *self.answering.get_mut() {
            activity.answering -= 1;
        }
    }
}

/// A request body that updates its connection as it arrives.
pub struct RequestBody<B> {
    body: B,
    exchange: Arc<Exchange>,
}

impl<B: HttpBody> RequestBody<B> {
    /// The body of this request.
    pub fn new(body: B, exchange: &Arc<Exchange>) -> Self {
        if body.is_end_stream() {
            exchange.note_answering();
        }
        Self { body, exchange: Arc::clone(exchange) }
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for RequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(_)) => self.exchange.note_arrival(),
            Some(Err(_)) | None => self.exchange.note_answering(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A response body. When it ends, the connection waits for its client again.
pub type ResponseBody<B> = Guarded<B, Arc<Exchange>>;

impl<B> ResponseBody<B> {
    /// The body of the answer to this request.
    pub fn new(body: B, exchange: &Arc<Exchange>) -> Self {
        exchange.note_answering();
        Self::with(body, Arc::clone(exchange))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn the_connection_with_the_longest_silence_is_closed() {
        let connections = Arc::new(Connections::default());
        let places: Vec<ConnectionSlot> = (0..4).map(|_| connections.add()).collect();
        let is_closing = |place: &ConnectionSlot| place.link.closing().now_or_never().is_some();
        let begin = |place: &ConnectionSlot| {
            let exchange = place.link.exchange();
            exchange.note_answering();
            exchange
        };
        let first = begin(&places[0]);
        drop(begin(&places[1]));
        connections.close_one();
        let closing: Vec<bool> = places.iter().map(is_closing).collect();
        assert_eq!(closing, [false, false, true, false], "the first is busy, the second is waiting");
        connections.close_one();
        let third = begin(&places[3]);
        assert!(!is_closing(&places[3]), "its client continued before it was closed");
        drop((first, third, places));
        assert!(lock(&connections.all).is_empty());
        connections.close_one();
    }

    #[test]
    fn a_connection_with_several_requests_is_busy_until_the_last_answer_ends() {
        let connections = Arc::new(Connections::default());
        let place = connections.add();
        let (one, other) = (place.link.exchange(), place.link.exchange());
        assert!(place.link.since().is_some(), "neither request is complete");
        let answers = (ResponseBody::new((), &one), ResponseBody::new((), &other));
        drop((one, answers.0));
        assert!(place.link.since().is_none());
        drop((other, answers.1));
        assert!(place.link.since().is_some());
    }
}
