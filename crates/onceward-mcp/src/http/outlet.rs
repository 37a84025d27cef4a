//! The answer to one request by HTTP, while it is being made: whole, or as a stream of events.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper::http::response::Parts;
use tokio::sync::{mpsc, oneshot};

use super::{Body, events::Event, reply};
use crate::ends::Left;
use crate::upstream::lock;
use crate::waiters::Waiter;

/// A large body leaves in pieces: only when the last was taken, all of it was.
const PIECE: usize = 64 * 1024;
/// How many events wait for a client that is slow to read.
const EVENTS: usize = 256;
/// How long an event waits for room. A client that does not read for so long is gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where the answer to one request goes.
pub(crate) struct Outlet {
    waiter: Arc<Waiter>,
    state: Mutex<State>,
}

enum State {
    /// Nothing was said yet.
    Silent(oneshot::Sender<Response<Body>>),
    /// Events are being sent; the receiver tells when the last was taken.
    Open(mpsc::Sender<Bytes>, oneshot::Receiver<()>),
    /// All was said.
    Ended,
}

impl Outlet {
    /// An outlet, and where its response comes out.
    pub(crate) fn new(waiter: Arc<Waiter>) -> (Self, oneshot::Receiver<Response<Body>>) {
        let (sender, receiver) = oneshot::channel();
        (Self { waiter, state: Mutex::new(State::Silent(sender)) }, receiver)
    }

    /// Begins a stream of events with that head, unless something was said already.
    pub(crate) fn open(&self, head: Parts) {
        let mut state = lock(&self.state);
        match std::mem::replace(&mut *state, State::Ended) {
            State::Silent(sender) => {
                let (events, receiver) = mpsc::channel(EVENTS);
                let (sent, taken) = oneshot::channel();
                let body = Leaving::new(Source::Events(receiver), &self.waiter, sent);
                // A client that is gone is seen by its body, which is dropped with the response.
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

    /// Sends an event, and waits for room for it.
    pub(crate) async fn event(&self, raw: Bytes) {
        let Some(events) = self.events() else { return };
        if events.send_timeout(raw, PATIENCE).await.is_err() {
            self.waiter.leave();
        }
    }

    /// Sends an event if there is room for it.
    pub(crate) fn try_event(&self, raw: Bytes) {
        if let Some(events) = self.events() {
            // News of a call are not worth waiting for.
            drop(events.try_send(raw));
        }
    }

    /// Ends the stream of events, whether anybody reads it or not.
    pub(crate) fn close(&self) {
        *lock(&self.state) = State::Ended;
    }

    /// Ends the stream of events; tells whether all of it was taken.
    pub(crate) async fn end(&self) -> Left {
        self.open(reply::event_stream());
        let state = std::mem::replace(&mut *lock(&self.state), State::Ended);
        match state {
            State::Open(events, taken) => {
                drop(events);
                left(taken.await)
            }
            State::Silent(_) | State::Ended => Left::No,
        }
    }

    /// Answers with a whole response; tells whether all of it was taken.
    pub(crate) async fn whole(&self, head: Parts, body: Bytes) -> Left {
        let state = std::mem::replace(&mut *lock(&self.state), State::Ended);
        match state {
            State::Silent(sender) => {
                let (sent, taken) = oneshot::channel();
                let body = Leaving::new(Source::Whole(body), &self.waiter, sent);
                drop(sender.send(Response::from_parts(head, Body::new(body))));
                left(taken.await)
            }
            open @ State::Open(..) => {
                *lock(&self.state) = open;
                self.event(Event::of(&body)).await;
                self.end().await
            }
            State::Ended => Left::No,
        }
    }

    /// Answers with somebody else's response.
    pub(crate) fn respond(&self, response: Response<Body>) {
        let state = std::mem::replace(&mut *lock(&self.state), State::Ended);
        match state {
            State::Silent(sender) => drop(sender.send(response)),
            State::Open(..) | State::Ended => {}
        }
    }
}

fn left(taken: Result<(), oneshot::error::RecvError>) -> Left {
    match taken {
        Ok(()) => Left::Yes,
        Err(_) => Left::No,
    }
}

/// A body that knows whether all of it was taken. One that is dropped before means that the client has left.
struct Leaving {
    source: Source,
    piece: Bytes,
    waiter: Arc<Waiter>,
    sent: Option<oneshot::Sender<()>>,
}

enum Source {
    Whole(Bytes),
    Events(mpsc::Receiver<Bytes>),
}

impl Leaving {
    fn new(source: Source, waiter: &Arc<Waiter>, sent: oneshot::Sender<()>) -> Self {
        let mut body = Self { source, piece: Bytes::new(), waiter: Arc::clone(waiter), sent: Some(sent) };
        // Nobody asks for a body that is empty.
        if body.is_end_stream() {
            body.all_taken();
        }
        body
    }

    fn all_taken(&mut self) {
        if let Some(sent) = self.sent.take() {
            match sent.send(()) {
                // Whoever does not want to know any more need not.
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

impl HttpBody for Leaving {
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

impl Drop for Leaving {
    fn drop(&mut self) {
        if self.sent.is_some() {
            self.waiter.leave();
        }
    }
}
