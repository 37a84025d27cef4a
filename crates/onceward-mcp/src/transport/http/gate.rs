//! Routes HTTP requests: forwards them, or guards them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use hyper::body::Body as HttpBody;
use hyper::header;
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use onceward::{Code, Happened, Ledger};
use onceward_http::intake::{Intake, Refused};
use onceward_http::socket::Peer;
use onceward_http::{Reach, host};
use tokio::runtime::Handle;

use super::arrivals::Arrivals;
use super::call::HttpTransport;
use super::callers::Callers;
use super::limits::Limits;
use super::notifications::{Listening, NotificationStreams};
use super::outlet::Outlet;
use super::principals::Principals;
use super::remote::{Connection, ForwardTo, Remote, full};
use super::watch::{Watched, passed};
use super::{Body, headers, reply};
use crate::call::scope::random_name;
use crate::call::waiters::{Caller, Waiter};
use crate::options::Options;
use crate::proxy_state::ProxyState;
use crate::transport::call_transport::SendError;
use crate::wire::message::{Head, Message};
use crate::wire::tool_call::{ToolCall, is_call, unreadable, unreadable_call};

/// The proxy between the clients of a listener and one server.
pub struct Gate {
    pub(crate) state: Arc<ProxyState>,
    pub(crate) remote: Remote,
    pub(crate) arrivals: Arrivals,
    pub(crate) notifications: NotificationStreams,
    pub(crate) callers: Callers,
    pub(crate) principals: Principals,
    intake: Intake,
    limits: Limits,
    numbers: AtomicU64,
    /// Makes our ids unique.
    name: String,
}

impl Gate {
    /// Creates a proxy for that server. Its calls run on that runtime.
    #[must_use]
    pub fn new(
        ledger: Ledger,
        options: Options,
        remote: Remote,
        limits: Limits,
        runtime: Handle,
    ) -> Arc<Self> {
        Arc::new(Self {
            callers: Callers::new(&ledger, remote.path(), &limits.ignored_headers),
            principals: Principals::new(limits.renewal),
            state: ProxyState::new(ledger, options, runtime),
            remote,
            arrivals: Arrivals::default(),
            notifications: NotificationStreams::default(),
            intake: Intake::new(&limits.transport),
            limits,
            numbers: AtomicU64::new(1),
            name: format!("once-{}", random_name()),
        })
    }

    /// The limits of this listener.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn notice(&self, text: &str) {
        self.state.notice(text);
    }

    /// A number that is unique in this proxy.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// An id for a request of the proxy.
    pub(crate) fn own_id(&self) -> String {
        format!("\"{}-{}\"", self.name, self.number())
    }

    /// The caller of this request, as it was known before its token was renewed.
    fn caller(&self, head: &Parts) -> Caller {
        self.principals.known(self.callers.of(head))
    }

    /// Notes the status with which the server answered that request.
    pub(crate) fn answered(&self, head: &Parts, status: StatusCode) {
        let now_ms = self.state.ledger.clock_ms();
        self.principals.answered(&head.headers, &self.callers.of(head), status, now_ms);
    }

    /// Waits for the calls in flight, as long as the options allow.
    pub async fn drain(&self) {
        let (state, patience_ms) = (Arc::clone(&self.state), self.state.options.drain_ms);
        match tokio::task::spawn_blocking(move || state.wait_idle(patience_ms)).await {
            // Calls that have not ended by now are in doubt.
            Ok(_) | Err(_) => {}
        }
    }

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
        let admitted = match &self.limits.token {
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

    /// Reads the request body. A call that cannot be read cannot be guarded.
    async fn read_body<B>(&self, head: &Parts, body: B) -> Result<Bytes, Response<Body>>
    where
        B: HttpBody<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let refuse = |status, detail: &str| {
            let detail = format!("{detail}; nothing was run");
            reply::problem(status, Code::InvalidInput, Happened::No, &detail)
        };
        let is_plain = |value: &header::HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
        if head.method == Method::POST && !head.headers.get_all(header::CONTENT_ENCODING).iter().all(is_plain)
        {
            let detail = "a compressed request cannot be read, so it cannot be guarded";
            return Err(refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
        }
        let refused = match self.intake.whole(body).await {
            Ok(body) => return Ok(body),
            Err(refused) => refused,
        };
        Err(match refused {
            Refused::TooLong => {
                let detail = format!("the request is longer than {} bytes", self.limits.transport.body_bytes);
                refuse(StatusCode::PAYLOAD_TOO_LARGE, &detail)
            }
            Refused::TooSlow => {
                let (seconds, rate) =
                    (self.limits.transport.body_ms / 1_000, self.limits.transport.body_rate);
                let detail =
                    format!("the body did not arrive within {seconds} s, or at {rate} bytes per second");
                refuse(StatusCode::REQUEST_TIMEOUT, &detail)
            }
            Refused::NoRoom => {
                let detail = "other requests use all the memory for large bodies; nothing was run, and it may \
                              be sent again";
                reply::problem(StatusCode::SERVICE_UNAVAILABLE, Code::Failed, Happened::No, detail)
            }
            Refused::Broken(why) => refuse(StatusCode::BAD_REQUEST, &format!("the request broke off: {why}")),
        })
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

    /// Forwards a request and its response unchanged.
    pub(crate) async fn pass(
        self: &Arc<Self>,
        head: &Parts,
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

/// The response if the server cannot be reached.
pub(crate) fn unreachable(unsent: &SendError) -> Response<Body> {
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
