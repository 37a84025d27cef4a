//! One connection, of HTTP/1.1 or HTTP/2.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::sync::watch;
use tower::ServiceExt;

use super::admission;
use super::listener::{Accepted, Stream};
use super::resets::{Resettable, Socket};
use crate::App;
use crate::connections::{Link, RequestBody, ResponseBody};
use crate::gateway::{self, Entrance, Receipts};
use crate::limits::{Limits, Reach};
use crate::observe::Arrival;
use crate::socket::{Peer, Shared};
use crate::{host, inbox, problem};

/// The read buffer of a connection of HTTP/1.1, which also limits the head of a request.
const BUFFER: usize = 64 * 1024;
/// The most concurrent requests of one connection of HTTP/2.
const STREAMS: u32 = 256;
/// How often a connection of HTTP/2 is checked while requests are open, and how long its client has to answer.
const PING: Duration = Duration::from_secs(20);

/// What answers the requests of a listener.
#[derive(Clone)]
pub(super) struct Answers {
    pub(super) entrance: Entrance,
    /// The same as of the routes, and what is most frequent: requests to upstreams.
    pub(super) app: Arc<App>,
    pub(super) routes: Router,
}

impl Answers {
    async fn answer(self, mut request: Request<Body>) -> Response<Body> {
        self.entrance.locate(&self.app.gateway, &mut request);
        if gateway::has(request.uri().path()) {
            return admission::to_upstream(&self.app, request).await;
        }
        match self.routes.oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// What answers the requests of all connections.
#[derive(Clone)]
pub(super) struct Service {
    answers: Answers,
    builder: auto::Builder<TokioExecutor>,
    patience: Duration,
    /// Further names of this machine: those that the configuration gives to upstreams.
    hosts: Arc<[String]>,
}

impl Service {
    pub(super) fn new(answers: Answers, limits: &Limits, hosts: Arc<[String]>) -> Self {
        let patience = Duration::from_millis(limits.header_ms);
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(patience).max_buf_size(BUFFER);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING)
            .max_header_list_size(64 * 1024)
            .max_concurrent_streams(STREAMS);
        Self { answers, builder, patience, hosts }
    }

    /// How long a client may be silent.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// Serves a connection until it ends.
    pub(super) async fn connection(
        &self,
        accepted: Accepted,
        link: &Arc<Link>,
        stopping: watch::Receiver<()>,
    ) {
        let Accepted { stream, local, tls } = accepted;
        match (stream, tls) {
            (Stream::Tcp(stream), Some(tls)) => {
                let stream = Shared::new(stream);
                let arrival = (Arrival { local }, stream.peer());
                // A client that does not finish the handshake is silent, and the idle limit closes it.
                if let Ok(stream) = tls.accept(stream).await {
                    self.serve(TokioIo::new(stream), link, arrival, stopping).await;
                }
            }
            (Stream::Tcp(stream), None) => {
                let stream = Shared::new(stream);
                let arrival = (Arrival { local }, stream.peer());
                self.serve(TokioIo::new(stream), link, arrival, stopping).await;
            }
            (Stream::Unix(stream), _) => {
                let stream = Shared::new(stream);
                let arrival = (Arrival { local }, stream.peer());
                self.serve(TokioIo::new(stream), link, arrival, stopping).await;
            }
        }
    }

    async fn serve<I>(
        &self,
        io: I,
        link: &Arc<Link>,
        (arrival, peer): (Arrival, Peer),
        mut stopping: watch::Receiver<()>,
    ) where
        I: hyper::rt::Read + hyper::rt::Write + Socket + Unpin + Send + 'static,
    {
        let (io, resets) = Resettable::new(io);
        let is_old = &AtomicBool::new(false);
        let receipts = Receipts::default();
        let known = receipts.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let (answers, hosts, exchange) = (self.answers.clone(), Arc::clone(&self.hosts), link.exchange());
            is_old.store(request.version() < Version::HTTP_11, Ordering::Relaxed);
            // Requests of HTTP/2 overlap, so the next one says nothing about the last answer.
            let receipts = if request.version() < Version::HTTP_2 {
                known.are_read();
                known.sequential()
            } else {
                known.clone()
            };
            let peer = peer.clone();
            async move {
                let mut request = request.map(|body| Body::new(RequestBody::new(body, &exchange)));
                request.extensions_mut().insert(arrival);
                request.extensions_mut().insert(receipts);
                request.extensions_mut().insert(peer);
                let response = if is_admitted(&request, arrival.local, &hosts) {
                    // Boxed, so that the connection does not move the future of every kind of request.
                    Box::pin(answers.answer(request)).await
                } else {
                    from_elsewhere()
                };
                Ok::<_, Infallible>(response.map(|body| ResponseBody::new(body, &exchange)))
            }
        });
        {
            let mut connection = pin!(self.builder.serve_connection(io, service));
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                _ = stopping.changed() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            match ended {
                // For a client of HTTP/1.0, an answer without a length ends with the connection. If it broke off, the
                // connection must not end like that.
                Err(_) if is_old.load(Ordering::Relaxed) => resets.want(),
                // The code that answers a client notices if it is gone.
                Ok(()) | Err(_) => {}
            }
            // The last answer may be dropped only with its connection.
        }
        if resets.by_client() {
            receipts.take_back();
        } else {
            receipts.are_confirmed();
        }
    }
}

/// Whether the request may be from this listener's clients. A page from elsewhere can make a browser on this machine
/// send requests to a loopback address; no browser reaches a Unix socket. Webhooks come through a proxy or a tunnel,
/// under its public name, and are signed.
fn is_admitted(request: &Request<Body>, local: Option<SocketAddr>, hosts: &[String]) -> bool {
    let is_from_here = |local: SocketAddr| {
        Reach::of(local.ip()) == Reach::Network
            || request.uri().path().starts_with(inbox::PREFIX)
            || host::is_from_here(request, hosts)
    };
    local.is_none_or(is_from_here)
}

fn from_elsewhere() -> Response<Body> {
    let message = "this address serves this machine only, and the request is from a page from elsewhere (its Origin or \
                   Host says so); nothing was run";
    problem::refusal(StatusCode::FORBIDDEN, "INVALID_INPUT", message)
}
