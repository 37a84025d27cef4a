//! The rules of an idempotent API as a `tower::Layer`, for people who write one.
//!
//! A request with an `Idempotency-Key` is carried out once. A retry gets the same status, headers and body, and
//! `Idempotent-Replayed: true`. The Python middleware (`onceward.asgi`) gives the same answers: one test suite runs
//! against both.
//!
//! ```
//! use std::sync::Arc;
//! use axum::{Extension, Router, routing::post};
//! use onceward::{Attempt, Ledger, ManualClock, MemoryStore};
//! use onceward_http::layer::IdempotencyLayer;
//!
//! # async fn charge_card(_idempotency_key: &str) {}
//! async fn charge(Extension(attempt): Extension<Attempt>) -> &'static str {
//!     // The same for every attempt at this request.
//!     charge_card(attempt.downstream_key()).await;
//!     "charged"
//! }
//!
//! // A server opens its ledger with `onceward_store::open(url)`.
//! let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0))));
//! let app: Router = Router::new()
//!     .route("/charges", post(charge))
//!     .layer(IdempotencyLayer::new(ledger).require_key());
//! ```
//!
//! | request | answer |
//! |---|---|
//! | the first with its key | the handler's |
//! | a repeat | the same status, headers and body, and `Idempotent-Replayed: true` |
//! | a repeat while the first one runs | 409 and `Retry-After`, after [`IdempotencyLayer::wait`] |
//! | another query or body with the same key | 422, with the fields that differ. JSON is compared by its meaning |
//! | without a key, where it is required | 400 |
//! | a repeat after a crash, a panic or a 5xx | 424 with `x-should-retry: false`: it is in doubt |
//! | a repeat after a 4xx | carried out again: the handler said that it did nothing |
//! | a repeat after its result has expired | 410 |
//! | a repeat after a response that was too large to keep | 410: it was carried out |
//! | the ledger cannot be used | 503, and nothing was carried out |

mod body;
mod call;
mod key;
mod problem;
mod stored;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, Method, Request, Response, StatusCode};
use http_body::Body;
use onceward::{Class, Happened, Ledger, Terms};
use tower::{Layer, Service};

pub use body::{RequestBody, ResponseBody};

use crate::telemetry::Metrics;

/// Any error, in a box.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The response header in which a handler can say whether its request took effect: `no`, `yes` or `unknown`.
pub const HAPPENED: HeaderName = HeaderName::from_static("once-happened");

/// Lets a request that carries a key be carried out once. The [module](self) shows how.
#[derive(Clone)]
pub struct IdempotencyLayer {
    rules: Arc<Rules>,
}

type Principal = dyn Fn(&Parts) -> String + Send + Sync;
type Requires = dyn Fn(&Parts) -> bool + Send + Sync;

/// What all requests share.
#[derive(Clone)]
struct Rules {
    ledger: Ledger,
    methods: Vec<Method>,
    header: HeaderName,
    required: Arc<Requires>,
    principal: Arc<Principal>,
    outcomes: BTreeMap<u16, Happened>,
    largest_request: usize,
    largest_response: usize,
    terms: Terms,
    metrics: Option<Metrics>,
}

impl IdempotencyLayer {
    /// A layer that records requests in this ledger. It looks at POST and PATCH, a key is optional, and callers with
    /// the same `Authorization` header are one.
    #[must_use]
    pub fn new(ledger: Ledger) -> Self {
        let rules = Rules {
            ledger,
            methods: vec![Method::POST, Method::PATCH],
            header: HeaderName::from_static("idempotency-key"),
            required: Arc::new(|_| false),
            principal: Arc::new(|parts| key::principal(parts, &[http::header::AUTHORIZATION])),
            outcomes: BTreeMap::new(),
            largest_request: 8 * 1024 * 1024,
            largest_response: 1024 * 1024,
            terms: Terms { wait_ms: 0, retries: 0, ..Terms::default() },
            metrics: None,
        };
        Self { rules: Arc::new(rules) }
    }

    fn with(mut self, change: impl FnOnce(&mut Rules)) -> Self {
        change(Arc::make_mut(&mut self.rules));
        self
    }

    /// Sets the methods of the requests that are looked at.
    #[must_use]
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.with(|rules| rules.methods = methods.into_iter().collect())
    }

    /// Sets the name of the header with the key.
    #[must_use]
    pub fn header(self, name: HeaderName) -> Self {
        self.with(|rules| rules.header = name)
    }

    /// Refuses requests without a key with 400.
    #[must_use]
    pub fn require_key(self) -> Self {
        self.require_key_if(|_| true)
    }

    /// Refuses the requests without a key for which `required` holds.
    #[must_use]
    pub fn require_key_if(self, required: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|rules| rules.required = Arc::new(required))
    }

    /// Sets who is calling. A key belongs to one caller, and no caller gets another's answer.
    ///
    /// The text becomes the scope of the operation and is stored, so return the name of an account, not a secret.
    #[must_use]
    pub fn principal(self, principal: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        self.with(|rules| rules.principal = Arc::new(principal))
    }

    /// Sets the headers whose values tell callers apart. Their hash is stored, not the values.
    #[must_use]
    pub fn credential_headers(self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        let names: Vec<HeaderName> = names.into_iter().collect();
        self.principal(move |parts| key::principal(parts, &names))
    }

    /// Sets how long a second request waits for the first before it gets 409. The default is not to wait.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        self.with(|rules| rules.terms.wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX))
    }

    /// Sets what a status of the handler means: whether the request took effect.
    ///
    /// By default a status below 400 means yes; a 4xx means no, by the handler's own word; a 5xx leaves it in doubt.
    /// A handler can say more about one response: with the header [`HAPPENED`], or with [`onceward::Happened`] as an
    /// extension of the response.
    ///
    /// ```
    /// use axum::{Extension, http::StatusCode, response::IntoResponse};
    /// use onceward::Happened;
    ///
    /// async fn charge() -> impl IntoResponse {
    ///     // Refused before anything was sent: a retry may run it.
    ///     (StatusCode::SERVICE_UNAVAILABLE, Extension(Happened::No), "the bank is closed")
    /// }
    /// ```
    #[must_use]
    pub fn outcome(self, status: StatusCode, happened: Happened) -> Self {
        self.with(|rules| {
            rules.outcomes.insert(status.as_u16(), happened);
        })
    }

    /// Sets the largest body of a request with a key, in bytes. A larger one is refused with 413.
    #[must_use]
    pub fn largest_request(self, bytes: usize) -> Self {
        self.with(|rules| rules.largest_request = bytes)
    }

    /// Sets the largest response that is kept, in bytes. A larger one is sent; a retry gets 410, which says that the
    /// request was carried out and that its response was not kept.
    #[must_use]
    pub fn largest_response(self, bytes: usize) -> Self {
        self.with(|rules| rules.largest_response = bytes.min(onceward::MAX_RESULT))
    }

    /// Sets times, limits and rules, for example from a policy. The layer never retries a handler.
    #[must_use]
    pub fn terms(self, terms: Terms) -> Self {
        self.with(|rules| rules.terms = Terms { retries: 0, ..terms })
    }

    /// Sets how safe a request is to repeat when it is in doubt.
    #[must_use]
    pub fn class(self, class: Class) -> Self {
        self.with(|rules| rules.terms.class = class)
    }

    /// Counts calls in these metrics.
    #[must_use]
    pub fn metrics(self, metrics: Metrics) -> Self {
        self.with(|rules| rules.metrics = Some(metrics))
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = &self.rules;
        f.debug_struct("IdempotencyLayer")
            .field("methods", &rules.methods)
            .field("header", &rules.header)
            .field("largest_request", &rules.largest_request)
            .field("largest_response", &rules.largest_response)
            .finish_non_exhaustive()
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotency<S>;

    fn layer(&self, inner: S) -> Idempotency<S> {
        Idempotency { inner, rules: Arc::clone(&self.rules) }
    }
}

/// A service behind an [`IdempotencyLayer`].
#[derive(Clone)]
pub struct Idempotency<S> {
    inner: S,
    rules: Arc<Rules>,
}

impl<S: fmt::Debug> fmt::Debug for Idempotency<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, B, R> Service<Request<B>> for Idempotency<S>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The clone takes the place of the service that was made ready.
        let clone = self.inner.clone();
        let mut ready = std::mem::replace(&mut self.inner, clone);
        if !self.rules.methods.contains(request.method()) {
            let answer = ready.call(request.map(RequestBody::passed));
            return Box::pin(async move { Ok(answer.await?.map(ResponseBody::passed)) });
        }
        let rules = Arc::clone(&self.rules);
        Box::pin(call::guarded(rules, ready, request))
    }
}
