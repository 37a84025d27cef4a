//! Who sees which request.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as HttpBody;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, header};
use onceward::{Code, Happened, Ledger};
use tokio::runtime::Handle;

use super::arrivals::Arrivals;
use super::call::HttpEnds;
use super::outlet::Outlet;
use super::principals::Principals;
use super::remote::{Connection, Remote, full};
use super::watch::{Watched, passed};
use super::{Body, Broken, headers, reply};
use crate::call::{ToolCall, is_call, unreadable, unreadable_call};
use crate::desk::{Desk, Options};
use crate::ends::Unsent;
use crate::message::{Head, Message};
use crate::scope::random_name;
use crate::waiters::{Caller, Waiter};

/// How much is taken.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The longest request that is read, in bytes. Longer ones are refused, and nothing is run.
    pub body_bytes: usize,
    /// How many connections there may be; more wait.
    pub connections: usize,
    /// How long a client has to send the head of a request, or is silent between two.
    pub header_ms: u64,
    /// How long a client has to send the body of a request.
    pub body_ms: u64,
    /// What clients must show to be let in; needed where others than this machine reach the listener.
    pub token: Option<String>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 64 * 1024 * 1024,
            connections: 1_024,
            header_ms: 30_000,
            body_ms: 60_000,
            token: None,
        }
    }
}

/// Who can reach the listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// This machine only: so no page from elsewhere may use its browser to get here.
    Loopback,
    /// Others too. Who may call is for the server to say.
    Network,
}

impl Reach {
    /// Who reaches a listener at that address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        if address.is_loopback() { Self::Loopback } else { Self::Network }
    }
}

/// The proxy between all clients of a listener and one server.
pub struct Gate {
    pub(crate) desk: Arc<Desk>,
    pub(crate) remote: Remote,
    pub(crate) arrivals: Arrivals,
    pub(crate) principals: Principals,
    limits: Limits,
    numbers: AtomicU64,
    /// Makes our ids nobody else's.
    name: String,
}

impl Gate {
    /// A gate before that server, which keeps its calls on that runtime.
    #[must_use]
    pub fn new(
        ledger: Ledger,
        options: Options,
        remote: Remote,
        limits: Limits,
        runtime: Handle,
    ) -> Arc<Self> {
        Arc::new(Self {
            desk: Desk::new(ledger, options, runtime),
            remote,
            arrivals: Arrivals::default(),
            principals: Principals::default(),
            limits,
            numbers: AtomicU64::new(1),
            name: format!("once-{}", random_name()),
        })
    }

    /// How much it takes.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn notice(&self, text: &str) {
        self.desk.notice(text);
    }

    /// A number that nobody else has.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// An id for a request of our own.
    pub(crate) fn own_id(&self) -> String {
        format!("\"{}-{}\"", self.name, self.number())
    }

    fn caller(&self, head: &Parts) -> Caller {
        self.principals.known(headers::caller(head, self.remote.path()))
    }

    /// Lets the calls under way end, for as long as the options say.
    pub async fn drain(&self) {
        let (desk, patience_ms) = (Arc::clone(&self.desk), self.desk.options.drain_ms);
        match tokio::task::spawn_blocking(move || desk.wait_idle(patience_ms)).await {
            // What has not ended by now is in doubt, as it should be.
            Ok(_) | Err(_) => {}
        }
    }

    /// Answers one request.
    pub async fn handle<B>(self: &Arc<Self>, request: Request<B>, reach: Reach) -> Response<Body>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if reach == Reach::Loopback && !is_from_here(request.headers()) {
            let detail = "this listens for this machine only, and the request is from a page from elsewhere \
                          (its Origin or Host says so); nothing was run";
            return reply::problem(StatusCode::FORBIDDEN, Code::InvalidInput, Happened::No, detail);
        }
        let (mut head, body) = request.into_parts();
        let admitted = match &self.limits.token {
            Some(token) => headers::take_token(&mut head.headers, token),
            // Who may call is for the server to say only where no one else can call at all.
            None => reach == Reach::Loopback,
        };
        if !admitted {
            let detail = "the request does not show the token of this listener (`Authorization: Bearer …`, or \
                          `X-Once-Token`); nothing was run";
            return reply::problem(StatusCode::UNAUTHORIZED, Code::InvalidInput, Happened::No, detail);
        }
        if head.method != Method::POST {
            let body = body.map_err(|error| Broken(error.into().to_string()));
            let what = (head.method == Method::GET).then_some(Watched::News);
            return self.pass(&head, Body::new(body), what).await;
        }
        match self.whole(&head, body).await {
            Ok(body) => self.post(head, body).await,
            Err(refusal) => refusal,
        }
    }

    /// All of a request's body. A call that cannot be read cannot be guarded.
    async fn whole<B>(&self, head: &Parts, body: B) -> Result<Bytes, Response<Body>>
    where
        B: HttpBody<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let refuse = |status, detail: &str| reply::problem(status, Code::InvalidInput, Happened::No, detail);
        let is_plain = |value: &header::HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
        if !head.headers.get_all(header::CONTENT_ENCODING).iter().all(is_plain) {
            let detail =
                "a request that is compressed cannot be read, and so not be guarded; nothing was run";
            return Err(refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
        }
        let most = self.limits.body_bytes;
        let too_long = || {
            let detail = format!("the request is longer than {most} bytes; nothing was run");
            refuse(StatusCode::PAYLOAD_TOO_LARGE, &detail)
        };
        // Whoever says so at first need not send it.
        if body.size_hint().lower() > most as u64 {
            return Err(too_long());
        }
        let patience = Duration::from_millis(self.limits.body_ms);
        let Ok(collected) = tokio::time::timeout(patience, Limited::new(body, most).collect()).await else {
            let detail = format!("the body did not arrive within {} s; nothing was run", patience.as_secs());
            return Err(refuse(StatusCode::REQUEST_TIMEOUT, &detail));
        };
        match collected {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(too_long()),
            Err(error) => {
                let detail = format!("the request broke off: {error}; nothing was run");
                Err(refuse(StatusCode::BAD_REQUEST, &detail))
            }
        }
    }

    async fn post(self: &Arc<Self>, head: Parts, body: Bytes) -> Response<Body> {
        match Message::of(&body) {
            Message::One(message) => self.one(&head, &message, &body).await,
            Message::Batch(items) if items.iter().any(|item| is_call(item)) => self.batch(head, &items),
            Message::Batch(_) => self.pass(&head, full(body), None).await,
            Message::Opaque => match unreadable_call(&body) {
                // Some servers read what we cannot (a `NaN`, half a character), and would act on it unguarded.
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
                ToolCall::parse(message).filter(|call| !self.desk.passes(&call.tool))
            }
            (Some(_) | None, _) => None,
        };
        if let Some(call) = guarded {
            return self.guarded(head, call, body.clone()).await;
        }
        if message.method.is_some() && message.id.is_some() {
            self.desk.heard(&self.caller(head));
        }
        let watched = match (message.method.as_deref(), message.id) {
            // A read; or nothing that a server could execute, and so the server's to refuse.
            (Some("tools/call"), Some(_)) => None,
            (Some("tools/call"), None) => {
                let detail =
                    "a call of a tool without an id: nobody could be told what became of it; not sent";
                return reply::problem(StatusCode::BAD_REQUEST, Code::InvalidInput, Happened::No, detail);
            }
            (Some("tools/list"), Some(_)) => Some(Watched::Tools),
            (Some("tasks/get" | "tasks/result"), Some(_)) => Some(Watched::Task),
            (Some("subscriptions/listen"), Some(_)) => Some(Watched::News),
            (Some("notifications/cancelled"), None) => {
                if self.desk.cancelled(&self.caller(head), message) {
                    return reply::empty(StatusCode::ACCEPTED);
                }
                None
            }
            (Some(_) | None, _) => None,
        };
        self.pass(head, full(body.clone()), watched).await
    }

    /// Passes a request on as it is, and its response.
    pub(crate) async fn pass(
        self: &Arc<Self>,
        head: &Parts,
        body: Body,
        watched: Option<Watched>,
    ) -> Response<Body> {
        let mut request = self.remote.forwarded(head, body);
        if watched.is_some() {
            // What is compressed cannot be looked at.
            request.headers_mut().remove(header::ACCEPT_ENCODING);
        }
        let sent = self.remote.send(request, Connection::Kept).await;
        if sent.as_ref().is_ok_and(|response| response.status().is_success()) {
            self.principals.accepted(&head.headers, &self.caller(head));
        }
        match (sent, watched) {
            (Ok(response), Some(what)) => self.watched(response, self.caller(head), what).await,
            (Ok(response), None) => passed(response),
            (Err(unsent), _) => unreachable(&unsent),
        }
    }

    /// A call that the ledger knows. It goes on when the client leaves.
    async fn guarded(self: &Arc<Self>, head: &Parts, mut call: ToolCall, body: Bytes) -> Response<Body> {
        call.key_beside = headers::key(&head.headers);
        let caller = self.principal(head, &call, self.caller(head)).await;
        let waiter = self.desk.waiter(call.id(), caller, self.number());
        let (outlet, response) = Outlet::new(Arc::clone(&waiter));
        let mut presence = Presence(Some(Arc::clone(&waiter)));
        let ends = HttpEnds::new(Arc::clone(self), head.clone(), body, waiter, outlet);
        self.desk.take(call, Arc::new(ends));
        let response = response.await;
        // From here on, the body of the response tells whether the client is there.
        drop(presence.0.take());
        response.unwrap_or_else(|_| {
            let detail = "the call broke off here; `once ls` tells what is known of it";
            reply::problem(StatusCode::BAD_GATEWAY, Code::InDoubt, Happened::Unknown, detail)
        })
    }
}

/// A client that waits for the head of its response. Dropped, it has left.
struct Presence(Option<Arc<Waiter>>);

impl Drop for Presence {
    fn drop(&mut self) {
        if let Some(waiter) = self.0.take() {
            waiter.leave();
        }
    }
}

/// Whether a request comes from this machine, as far as a browser would tell.
fn is_from_here(headers: &HeaderMap) -> bool {
    let origins = headers.get_all(header::ORIGIN).iter().all(headers::is_loopback_origin);
    let mut hosts = headers.get_all(header::HOST).iter();
    origins && hosts.all(|host| host.to_str().is_ok_and(headers::is_loopback_host))
}

/// What the client is told of a server that cannot be reached.
pub(crate) fn unreachable(unsent: &Unsent) -> Response<Body> {
    let status = StatusCode::BAD_GATEWAY;
    match unsent {
        Unsent::Nothing(why) => {
            let detail = format!("the server cannot be reached, so nothing was sent: {why}");
            reply::problem(status, Code::Failed, Happened::No, &detail)
        }
        Unsent::Perhaps(why) => {
            let detail = format!("no answer came from the server: {why}");
            reply::problem(status, Code::InDoubt, Happened::Unknown, &detail)
        }
    }
}
