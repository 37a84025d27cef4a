//! Responses that are looked at on their way to the client: lists of tools, tasks, and streams of news.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::Response;
use hyper::body::{Body as _, Frame, Incoming};
use hyper::header;
use hyper::http::response::Parts;
use tokio::sync::mpsc;

use super::events::{Event, Events};
use super::gate::Gate;
use super::remote::in_words;
use super::{Body, Broken, headers, reply};
use crate::frame::MAX_LINE;
use crate::message::{Head, Id};
use crate::upstream::lock;
use crate::waiters::Caller;

/// How many events wait for a client that is slow to read.
const EVENTS: usize = 16;

/// What a response is looked at for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watched {
    /// The server's tools.
    Tools,
    /// What became of a task.
    Task,
    /// That the tools have changed, and answers that were asked for on another stream.
    News,
}

/// A response's head as it is passed on, and its body. A length is told anew by whoever sends it.
pub(crate) fn split(response: Response<Incoming>) -> (Parts, Incoming) {
    let (mut head, body) = response.into_parts();
    head.headers = headers::passed_on(&head.headers);
    head.headers.remove(header::CONTENT_LENGTH);
    (head, body)
}

/// All of a body. Its pieces are let go as they come: a body that is put together at the end is there twice.
pub(crate) async fn collect(mut body: Incoming) -> Result<Bytes, String> {
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(MAX_LINE).min(MAX_LINE);
    let mut whole = Vec::with_capacity(expected);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| in_words(&error))?;
        whole.extend_from_slice(frame.data_ref().unwrap_or(&Bytes::new()));
        if whole.len() > MAX_LINE {
            return Err(format!("it is longer than {MAX_LINE} bytes"));
        }
    }
    Ok(whole.into())
}

/// A stream of events, one by one.
pub(crate) struct Reader {
    body: Incoming,
    events: Events,
}

impl Reader {
    pub(crate) fn new(body: Incoming) -> Self {
        Self { body, events: Events::default() }
    }

    /// The next event, or nothing when the stream has ended.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, String> {
        loop {
            if let Some(event) = self.events.next() {
                return Ok(Some(event));
            }
            if self.events.is_too_long() {
                return Err(format!("an event is longer than {MAX_LINE} bytes"));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.events.push(&data);
                    }
                }
                Some(Err(error)) => return Err(in_words(&error)),
                None => return Ok(None),
            }
        }
    }

    /// What is left when the stream has ended.
    fn rest(&mut self) -> Bytes {
        self.events.rest()
    }
}

impl Gate {
    /// Passes a response on, and looks at it.
    pub(crate) async fn watched(
        self: &Arc<Self>,
        response: Response<Incoming>,
        caller: Caller,
        what: Watched,
    ) -> Response<Body> {
        let is_plain = !reply::is_json(response.headers()) || !response.status().is_success();
        if !reply::is_event_stream(response.headers()) && (what == Watched::News || is_plain) {
            return passed(response);
        }
        let (head, body) = split(response);
        if reply::is_event_stream(&head.headers) {
            return self.watched_events(head, body, caller, what);
        }
        match collect(body).await {
            Ok(line) => reply::with_body(head, self.learn(what, line, &caller).await),
            Err(error) => broken(&error),
        }
    }

    fn watched_events(
        self: &Arc<Self>,
        head: Parts,
        body: Incoming,
        caller: Caller,
        what: Watched,
    ) -> Response<Body> {
        let (sender, receiver) = mpsc::channel::<Result<Frame<Bytes>, Broken>>(EVENTS);
        let gate = Arc::clone(self);
        tokio::spawn(async move {
            let mut reader = Reader::new(body);
            loop {
                let piece = match reader.next().await {
                    Ok(Some(event)) => Ok(Frame::data(gate.event_passes(event, &caller, what).await)),
                    Ok(None) => {
                        // Whoever has gone meanwhile needs no end.
                        drop(sender.send(Ok(Frame::data(reader.rest()))).await);
                        return;
                    }
                    Err(error) => Err(Broken(error)),
                };
                let is_end = piece.is_err();
                // A client that is gone ends the server's stream with its own.
                if sender.send(piece).await.is_err() || is_end {
                    return;
                }
            }
        });
        let stream = futures_util::stream::poll_fn({
            let mut receiver = receiver;
            move |context| receiver.poll_recv(context)
        });
        Response::from_parts(head, Body::new(StreamBody::new(stream)))
    }

    async fn event_passes(&self, event: Event, caller: &Caller, what: Watched) -> Bytes {
        let Some(data) = event.data() else { return event.raw };
        let Some(message) = std::str::from_utf8(data).ok().and_then(Head::parse) else { return event.raw };
        self.heard(&message);
        if !message.is_response() {
            return event.raw.clone();
        }
        match what {
            Watched::Tools | Watched::Task => {
                event.with_data(&self.learn(what, Bytes::copy_from_slice(data), caller).await)
            }
            Watched::News => {
                let id = Id::of(message.id.unwrap_or_default());
                if let Some(released) = self.arrivals.offer(caller, id, data) {
                    // Nobody hears of a result before it is written down; whoever let it go need not say so.
                    drop(released.await);
                }
                event.raw.clone()
            }
        }
    }

    /// Takes note of a message of the server's that is for everybody.
    pub(crate) fn heard(&self, message: &Head<'_>) {
        if message.method.as_deref() == Some("notifications/tools/list_changed") {
            lock(&self.desk.catalogue).note_changed();
        }
    }

    async fn learn(&self, what: Watched, line: Bytes, caller: &Caller) -> Bytes {
        match what {
            Watched::Tools => {
                let line = self.desk.learn_tools(line.into());
                self.desk.with_own_tools(line, caller).await.into()
            }
            Watched::Task => {
                self.desk.learn_task(&line);
                line
            }
            Watched::News => line,
        }
    }
}

/// A response as it came.
pub(crate) fn passed(response: Response<Incoming>) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    head.headers = headers::passed_on(&head.headers);
    Response::from_parts(head, Body::new(body.map_err(|error| Broken(in_words(&error)))))
}

/// What the client is told of a response that broke off before anything of it was passed on.
fn broken(error: &str) -> Response<Body> {
    let detail = format!("the server's answer broke off: {error}");
    reply::problem(
        hyper::StatusCode::BAD_GATEWAY,
        onceward::Code::InDoubt,
        onceward::Happened::Unknown,
        &detail,
    )
}
