//! Forwards requests, and inspects responses on their way to the client: lists of tools, tasks, and streams of
//! notifications.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::http::request;
use hyper::http::response::Parts;
use hyper::{Response, StatusCode, header};
use onceward::{Code, Happened};
use tokio::sync::mpsc;

use super::gate::Gate;
use super::notifications::Listening;
use super::reader::{Reader, collect, split};
use super::remote::{Connection, ForwardTo, in_words};
use super::{Body, Broken, headers, reply};
use crate::call::waiters::Caller;
use crate::sync::lock;
use crate::transport::call_transport::SendError;
use crate::wire::message::{Head, Id};
use onceward_http::events::Event;

/// How many events are queued for a client that reads slowly.
const EVENTS: usize = 16;

/// What a response is inspected for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Watched {
    /// A list of tools.
    Tools,
    /// The state of a task.
    Task,
    /// Changes of the tools, and answers that belong to another stream. The field says which of our notifications the
    /// client wants.
    Notifications(Option<Listening>),
}

impl Gate {
    /// Forwards a request and its response unchanged.
    pub(crate) async fn pass(
        self: &Arc<Self>,
        head: &request::Parts,
        body: Body,
        watched: Option<Watched>,
    ) -> Response<Body> {
        let mut request = self.remote.forwarded(head, body);
        if watched.is_some() {
            // A compressed response cannot be inspected.
            request.headers_mut().remove(header::ACCEPT_ENCODING);
        }
        let sent = self.remote.send(request, Connection::Kept).await;
        if let Ok(response) = &sent {
            self.answered(head, response.status());
        }
        match (sent, watched) {
            (Ok(response), Some(what)) => self.watch_response(response, self.caller(head), what).await,
            (Ok(response), None) => passed(response),
            (Err(unsent), _) => unreachable(&unsent),
        }
    }

    /// Forwards a response and inspects it.
    async fn watch_response(
        self: &Arc<Self>,
        response: Response<Incoming>,
        caller: Caller,
        what: Watched,
    ) -> Response<Body> {
        let is_plain = !reply::is_json(response.headers()) || !response.status().is_success();
        if !reply::is_event_stream(response.headers())
            && (matches!(what, Watched::Notifications(_)) || is_plain)
        {
            return passed(response);
        }
        let (head, body) = split(response);
        if reply::is_event_stream(&head.headers) {
            return self.watch_events(head, body, caller, what);
        }
        match collect(body).await {
            Ok(line) => reply::with_body(head, self.learn(&what, line, &caller).await),
            Err(error) => broken(&error),
        }
    }

    fn watch_events(
        self: &Arc<Self>,
        head: Parts,
        body: Incoming,
        caller: Caller,
        what: Watched,
    ) -> Response<Body> {
        let (sender, receiver) = mpsc::channel::<Result<Frame<Bytes>, Broken>>(EVENTS);
        let gate = Arc::clone(self);
        let mut own = match &what {
            Watched::Notifications(Some(listening)) => {
                Some(self.notifications.open(&caller, listening.clone()))
            }
            Watched::Notifications(None) | Watched::Tools | Watched::Task => None,
        };
        tokio::spawn(async move {
            let mut reader = Reader::new(body);
            loop {
                let next = tokio::select! {
                    next = reader.next() => next,
                    Some(event) = next_own_event(&mut own) => {
                        if sender.send(Ok(Frame::data(event))).await.is_err() {
                            return;
                        }
                        continue;
                    }
                };
                let piece = match next {
                    Ok(Some(event)) => Ok(Frame::data(gate.pass_event(event, &caller, &what).await)),
                    Ok(None) => {
                        // The client may be gone; then it needs no end.
                        drop(sender.send(Ok(Frame::data(reader.rest()))).await);
                        return;
                    }
                    Err(error) => Err(Broken(error)),
                };
                let is_end = piece.is_err();
                // If the client is gone, the server's stream ends too.
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

    async fn pass_event(&self, event: Event, caller: &Caller, what: &Watched) -> Bytes {
        let Some(data) = event.data() else { return event.raw };
        let Some(message) = std::str::from_utf8(data).ok().and_then(Head::parse) else { return event.raw };
        self.observe(&message);
        if !message.is_response() {
            return event.raw.clone();
        }
        match what {
            Watched::Tools | Watched::Task => {
                event.with_data(&self.learn(what, Bytes::copy_from_slice(data), caller).await)
            }
            Watched::Notifications(_) => {
                let id = Id::of(message.id.unwrap_or_default());
                if let Some(released) = self.arrivals.offer(caller, id, data) {
                    // A result is not forwarded before it is recorded. The sender may also be dropped.
                    drop(released.await);
                }
                event.raw.clone()
            }
        }
    }

    /// Notes a server message that concerns all callers.
    pub(crate) fn observe(&self, message: &Head<'_>) {
        if message.method.as_deref() == Some("notifications/tools/list_changed") {
            lock(&self.state.catalogue).note_changed();
        }
    }

    async fn learn(&self, what: &Watched, line: Bytes, caller: &Caller) -> Bytes {
        match what {
            Watched::Tools => {
                let line = self.state.learn_tools(line.into());
                self.state.with_own_tools(line, caller).await.into()
            }
            Watched::Task => {
                self.state.learn_task(&line);
                line
            }
            Watched::Notifications(_) => line,
        }
    }
}

/// The next event of our own. Pending for ever if we send none on this stream.
async fn next_own_event(own: &mut Option<mpsc::Receiver<Bytes>>) -> Option<Bytes> {
    match own {
        Some(own) => own.recv().await,
        None => std::future::pending().await,
    }
}

/// Forwards a response unchanged.
fn passed(response: Response<Incoming>) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    head.headers = headers::passed_on(&head.headers);
    Response::from_parts(head, Body::new(body.map_err(|error| Broken(in_words(&error)))))
}

/// The response if the server cannot be reached.
fn unreachable(unsent: &SendError) -> Response<Body> {
    let status = StatusCode::BAD_GATEWAY;
    match unsent {
        SendError::NotSent(why) => {
            let detail = format!("the server cannot be reached, so nothing was sent: {why}");
            reply::problem(status, Code::Failed, Happened::No, &detail)
        }
        SendError::MaybeSent(why) => {
            let detail = format!("no answer came from the server: {why}");
            reply::problem(status, Code::InDoubt, Happened::Unknown, &detail)
        }
    }
}

/// The response to a client if the server's response broke off before any of it was forwarded.
fn broken(error: &str) -> Response<Body> {
    let detail = format!("the server's answer broke off: {error}");
    reply::problem(StatusCode::BAD_GATEWAY, Code::InDoubt, Happened::Unknown, &detail)
}
