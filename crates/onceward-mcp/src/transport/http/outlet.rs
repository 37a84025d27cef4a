//! The HTTP response to one request while it is produced: complete, or as an event stream.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper::http::response::Parts;
use tokio::sync::{mpsc, oneshot};

use onceward_http::events::Event;

use super::{Body, reply};
use crate::call::waiters::Waiter;
use crate::sync::lock;
use crate::transport::call_transport::Delivered;

/// The chunk size of a large body. The body was delivered when the last chunk was taken.
const PIECE: usize = 64 * 1024;
/// How many events are queued for a client that reads slowly.
const EVENTS: usize = 256;
/// How long an event waits for room in the queue. A client that does not read for this long is gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// The response to one request.
pub(crate) struct Outlet {
    waiter: Arc<Waiter>,
    state: Mutex<State>,
}

enum State {
    /// Nothing was sent yet.
    Silent(oneshot::Sender<Response<Body>>),
    /// Events are being sent. The receiver fires when the last one was taken.
    Open(mpsc::Sender<Bytes>, oneshot::Receiver<()>),
    /// The response is complete.
    Ended,
}

impl Outlet {
    /// An outlet, and the receiver of its response.
    pub(crate) fn new(waiter: Arc<Waiter>) -> (Self, oneshot::Receiver<Response<Body>>) {
        let (sender, receiver) = oneshot::channel();
        (Self { waiter, state: Mutex::new(State::Silent(sender)) }, receiver)
    }

    /// Starts an event stream with that head, unless the response was started already.
    pub(crate) fn open(&self, head: Parts) {
        let mut state = lock(&self.state);
        match std::mem::replace(&mut *state, State::Ended) {
            State::Silent(sender) => {
                let (events, receiver) = mpsc::channel(EVENTS);
                let (sent, taken) = oneshot::channel();
                let body = TrackedBody::new(Source::Events(receiver), &self.waiter, sent);
                // If the client is gone, the body is dropped with the response and notices it.
                drop(sender.send(Response::from_parts(head, Body::new(body))));
                *state = State::Open(events, taken);
            }
            other @ (State::Open(..) | State::Ended) => *state = other,
        }
    }

    fn events(&self) -> Option<mpsc::Sender<Bytes>> {
        self.open(reply::event_stream());
        match &*lock(&self.state) {
            State::Open(events, _) => Some(events.clone()),
            State::Silent(_) | State::Ended => None,
        }
    }

    /// Sends an event, waiting for room in the queue.
    pub(crate) async fn event(&self, raw: Bytes) {
        let Some(events) = self.events() else { return };
        if events.send_timeout(raw, PATIENCE).await.is_err() {
            self.waiter.leave();
        }
    }

    /// Sends an event if there is room in the queue.
    pub(crate) fn try_event(&self, raw: Bytes) {
        if let Some(events) = self.events() {
            // A progress notification is not worth waiting for.
            drop(events.try_send(raw));
        }
    }

    /// Ends the event stream without waiting for the client.
    pub(crate) fn close(&self) {
        *lock(&self.state) = State::Ended;
    }

    /// Ends the event stream. Returns whether all of it was delivered.
    pub(crate) async fn end(&self) -> Delivered {
        self.open(reply::event_stream());
        let state = std::mem::replace(&mut *lock(&self.state), State::Ended);
        match state {
            State::Open(events, taken) => {
                drop(events);
                delivered(taken.await)
            }
            State::Silent(_) | State::Ended => Delivered::No,
        }
    }

    /// Sends a complete response. Returns whether all of it was delivered.
    pub(crate) async fn whole(&self, head: Parts, body: Bytes) -> Delivered {
        let state = std::mem::replace(&mut *lock(&self.state), State::Ended);
        match state {
            State::Silent(sender) => {
                let (sent, taken) = oneshot::channel();
                let body = TrackedBody::new(Source::Whole(body), &self.waiter, sent);
                drop(sender.send(Response::from_parts(head, Body::new(body))));
                delivered(taken.await)
            }
            open @ State::Open(..) => {
                *lock(&self.state) = open;
                self.event(Event::of(&body)).await;
                self.end().await
            }
            State::Ended => Delivered::No,
        }
    }

    /// Forwards a response.
    pub(crate) fn respond(&self, response: Response<Body>) {
        let state = std::mem::replace(&mut *lock(&self.state), State::Ended);
        match state {
            State::Silent(sender) => drop(sender.send(response)),
            State::Open(..) | State::Ended => {}
        }
    }
}

fn delivered(taken: Result<(), oneshot::error::RecvError>) -> Delivered {
    match taken {
        Ok(()) => Delivered::Yes,
        Err(_) => Delivered::No,
    }
}

/// A body that reports whether all of it was taken. If it is dropped earlier, the client disconnected.
struct TrackedBody {
    source: Source,
    piece: Bytes,
    waiter: Arc<Waiter>,
    sent: Option<oneshot::Sender<()>>,
}

enum Source {
    Whole(Bytes),
    Events(mpsc::Receiver<Bytes>),
}

impl TrackedBody {
    fn new(source: Source, waiter: &Arc<Waiter>, sent: oneshot::Sender<()>) -> Self {
        let mut body = Self { source, piece: Bytes::new(), waiter: Arc::clone(waiter), sent: Some(sent) };
        // An empty body is never polled.
        if body.is_end_stream() {
            body.all_taken();
        }
        body
    }

    fn all_taken(&mut self) {
        if let Some(sent) = self.sent.take() {
            match sent.send(()) {
                // The receiver may be gone.
                Ok(()) | Err(()) => {}
            }
        }
    }

    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        while self.piece.is_empty() {
            match &mut self.source {
                Source::Whole(body) if body.is_empty() => return Poll::Ready(None),
                Source::Whole(body) => self.piece = std::mem::take(body),
                Source::Events(events) => match std::task::ready!(events.poll_recv(context)) {
                    Some(event) => self.piece = event,
                    None => return Poll::Ready(None),
                },
            }
        }
        let length = self.piece.len().min(PIECE);
        Poll::Ready(Some(self.piece.split_to(length)))
    }
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = super::Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let piece = std::task::ready!(self.poll_piece(context));
        if piece.is_none() || self.is_end_stream() {
            self.all_taken();
        }
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.source, Source::Whole(body) if body.is_empty() && self.piece.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Whole(body) => SizeHint::with_exact((body.len() + self.piece.len()) as u64),
            Source::Events(_) => SizeHint::default(),
        }
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        if self.sent.is_some() {
            self.waiter.leave();
        }
    }
}
