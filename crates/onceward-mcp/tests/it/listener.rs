//! What a listener requires of its clients before anything is run.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper::{Request, StatusCode};
use onceward::{Ledger, ManualClock, MemoryStore};
use onceward_mcp::http::{Gate, Limits, Reach, Remote};
use onceward_mcp::{HostScope, Options};

fn gate(limits: Limits) -> Arc<Gate> {
    let options = Options { drain_ms: 0, ..Options::new("s", "s", HostScope::Chosen("s".to_owned())) };
    let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0))));
    let remote = Remote::new("http://127.0.0.1:1/mcp").unwrap();
    Gate::new(ledger, options, remote, limits, tokio::runtime::Handle::current())
}

/// A request whose body never ends.
fn endless()
-> Request<StreamBody<impl futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + 'static>> {
    let mut first = Some(Frame::data(Bytes::from_static(b"{\"jsonrpc\":")));
    let pieces = futures_util::stream::poll_fn(move |_| match first.take() {
        Some(frame) => std::task::Poll::Ready(Some(Ok(frame))),
        None => std::task::Poll::Pending,
    });
    Request::post("/mcp").header("host", "127.0.0.1").body(StreamBody::new(pieces)).unwrap()
}

#[test]
fn a_body_that_never_ends_is_refused_in_time() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let status = runtime.block_on(async {
        let mut limits = Limits::default();
        limits.transport.body_ms = 50;
        let gate = gate(limits);
        gate.handle(endless(), Reach::Loopback).await.status()
    });
    assert_eq!(status, StatusCode::REQUEST_TIMEOUT);
}

#[test]
fn other_machines_need_the_token_and_without_one_only_this_machine_is_admitted() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let status = |limits: Limits, reach: Reach, token: Option<&'static str>| {
        runtime.block_on(async {
            let mut request = Request::get("/mcp").header("host", "127.0.0.1");
            if let Some(token) = token {
                request = request.header("x-once-token", token);
            }
            let body = http_body_util::Empty::<Bytes>::new();
            gate(limits).handle(request.body(body).unwrap(), reach).await.status()
        })
    };
    let with_token = || {
        let mut limits = Limits::default();
        limits.token = Some("t".to_owned());
        limits
    };
    assert_eq!(status(Limits::default(), Reach::Network, None), StatusCode::UNAUTHORIZED);
    assert_eq!(status(with_token(), Reach::Network, Some("x")), StatusCode::UNAUTHORIZED);
    assert_eq!(status(with_token(), Reach::Loopback, None), StatusCode::UNAUTHORIZED);
    // No server listens behind this gate, so an admitted request gets a bad gateway.
    assert_eq!(status(with_token(), Reach::Network, Some("t")), StatusCode::BAD_GATEWAY);
    assert_eq!(status(Limits::default(), Reach::Loopback, None), StatusCode::BAD_GATEWAY);
}
