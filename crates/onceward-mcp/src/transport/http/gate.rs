//! What all requests of a listener share, and what is read of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use hyper::body::Body as HttpBody;
use hyper::header;
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use onceward::{Code, Happened, Ledger};
use onceward_http::intake::{Intake, Refused};
use tokio::runtime::Handle;

use super::arrivals::Arrivals;
use super::callers::Callers;
use super::limits::Limits;
use super::notifications::NotificationStreams;
use super::principals::Principals;
use super::remote::Remote;
use super::{Body, reply};
use crate::call::scope::random_name;
use crate::call::waiters::Caller;
use crate::options::Options;
use crate::proxy_state::ProxyState;

/// The proxy between the clients of a listener and one server.
pub struct Gate {
    pub(crate) state: Arc<ProxyState>,
    pub(crate) remote: Remote,
    pub(crate) arrivals: Arrivals,
    pub(crate) notifications: NotificationStreams,
    pub(super) callers: Callers,
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

    /// A number that is unique in this proxy.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// An id for a request of the proxy.
    pub(crate) fn own_id(&self) -> String {
        format!("\"{}-{}\"", self.name, self.number())
    }

    /// The caller of this request, as it was known before its token was renewed.
    pub(super) fn caller(&self, head: &Parts) -> Caller {
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

    /// Reads the request body. A call that cannot be read cannot be guarded.
    pub(super) async fn read_body<B>(&self, head: &Parts, body: B) -> Result<Bytes, Response<Body>>
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
}
