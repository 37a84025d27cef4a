//! Routes HTTP requests: forwards them, or guards them.

use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Body as HttpBody;
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use onceward::{Code, Happened};
use onceward_http::socket::Peer;
use onceward_http::{Reach, host};

use super::call::HttpTransport;
use super::gate::Gate;
use super::notifications::Listening;
use super::outlet::Outlet;
use super::remote::full;
use super::watch::Watched;
use super::{Body, headers, reply};
use crate::call::waiters::Waiter;
use crate::wire::message::{Head, Message};
use crate::wire::tool_call::{ToolCall, is_call, unreadable, unreadable_call};

impl Gate {
    /// Answers one HTTP request.
    pub async fn handle<B>(self: &Arc<Self>, request: Request<B>, reach: Reach) -> Response<Body>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if reach == Reach::Loopback && !host::is_from_here(&request, &[]) {
            let detail = "this listener accepts requests from this machine only, and the Origin or Host of the \
                          request names another; nothing was run";
            return reply::problem(StatusCode::FORBIDDEN, Code::InvalidInput, Happened::No, detail);
        }
        let (mut head, body) = request.into_parts();
        let admitted = match &self.limits().token {
            Some(token) => headers::take_token(&mut head.headers, token),
            // Without a token only this machine is let in; the server then decides who may call.
            None => reach == Reach::Loopback,
        };
        if !admitted {
            let detail = "the request does not carry the token of this listener (`Authorization: Bearer …`, or \
                          `X-Once-Token`); nothing was run";
            return reply::problem(StatusCode::UNAUTHORIZED, Code::InvalidInput, Happened::No, detail);
        }
        match self.read_body(&head, body).await {
            Ok(body) if head.method == Method::POST => self.post(head, body).await,
            Ok(body) => {
                let notifications = Watched::Notifications(Some(Listening::Everything));
                let what = (head.method == Method::GET).then_some(notifications);
                self.pass(&head, full(body), what).await
            }
            Err(refusal) => refusal,
        }
    }

    async fn post(self: &Arc<Self>, head: Parts, body: Bytes) -> Response<Body> {
        match Message::of(&body) {
            Message::One(message) => self.one(&head, &message, &body).await,
            Message::Batch(items) if items.iter().any(|item| is_call(item)) => self.batch(head, &items),
            Message::Batch(_) => self.pass(&head, full(body), None).await,
            Message::Opaque => match unreadable_call(&body) {
                // Some servers accept what we cannot parse (a `NaN`, half a character) and would execute it
                // unguarded.
                Some(id) => reply::with_body(reply::message(StatusCode::BAD_REQUEST), unreadable(&id)),
                None => self.pass(&head, full(body), None).await,
            },
        }
    }

    pub(crate) async fn one(
        self: &Arc<Self>,
        head: &Parts,
        message: &Head<'_>,
        body: &Bytes,
    ) -> Response<Body> {
        let guarded = match (message.method.as_deref(), message.id) {
            (Some("tools/call"), Some(_)) => {
                ToolCall::parse(message).filter(|call| !self.state.is_known_read(&call.tool))
            }
            (Some(_) | None, _) => None,
        };
        if let Some(call) = guarded {
            return self.guarded(head, call, body.clone()).await;
        }
        if message.method.is_some() && message.id.is_some() {
            self.state.note_request_from(&self.caller(head));
        }
        let watched = match (message.method.as_deref(), message.id) {
            // A read, or a request that no server could execute: the server answers it.
            (Some("tools/call"), Some(_)) => None,
            (Some("tools/call"), None) => {
                let detail = "a tool call without an id cannot be answered; not sent";
                return reply::problem(StatusCode::BAD_REQUEST, Code::InvalidInput, Happened::No, detail);
            }
            (Some("tools/list"), Some(_)) => Some(Watched::Tools),
            (Some("tasks/get" | "tasks/result"), Some(_)) => Some(Watched::Task),
            (Some("subscriptions/listen"), Some(_)) => Some(Watched::Notifications(Listening::of(message))),
            (Some("notifications/cancelled"), None) => {
                if self.state.cancel(&self.caller(head), message) {
                    return reply::empty(StatusCode::ACCEPTED);
                }
                None
            }
            (Some(_) | None, _) => None,
        };
        self.pass(head, full(body.clone()), watched).await
    }

    /// Answers a guarded call. It continues if the client disconnects.
    async fn guarded(self: &Arc<Self>, head: &Parts, mut call: ToolCall, body: Bytes) -> Response<Body> {
        call.key_beside = headers::key(&head.headers);
        if call.trace_parent.is_none() {
            call.trace_parent = headers::only(&head.headers, "traceparent").map(str::to_owned);
        }
        let caller = self.principal(head, &call).await;
        let peer = head.extensions.get::<Peer>().cloned().unwrap_or_default();
        let waiter = self.state.waiter(call.id(), caller, self.number(), peer);
        let (outlet, response) = Outlet::new(Arc::clone(&waiter));
        let mut presence = Presence(Some(Arc::clone(&waiter)));
        let transport = HttpTransport::new(Arc::clone(self), head.clone(), body, waiter, outlet);
        self.state.take(call, Arc::new(transport));
        let response = response.await;
        // From here on, the response body notices if the client disconnects.
        drop(presence.0.take());
        response.unwrap_or_else(|_| {
            let detail = "the call was interrupted in the proxy; `once ls` shows its state";
            reply::problem(StatusCode::BAD_GATEWAY, Code::InDoubt, Happened::Unknown, detail)
        })
    }
}

/// A client that waits for the head of its response. Dropping this means that it disconnected.
struct Presence(Option<Arc<Waiter>>);

impl Drop for Presence {
    fn drop(&mut self) {
        if let Some(waiter) = self.0.take() {
            waiter.leave();
        }
    }
}
