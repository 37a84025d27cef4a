//! What a listener asks of its clients before anything is run.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may give up")]

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper::{Request, StatusCode};
use onceward::{Ledger, ManualClock, MemoryStore, Policy};
use onceward_mcp::http::{Gate, Limits, Reach, Remote};
use onceward_mcp::{Asking, Exposure, Guess, HostScope, Options, Slow, Trust};

fn gate(limits: Limits) -> Arc<Gate> {
    let options = Options {
        server: "s".to_owned(),
        identity: "s".to_owned(),
        policy: Policy::default(),
        scope: HostScope::Chosen("s".to_owned()),
        keys: None,
        trust: Trust::Annotations,
        guess: Guess::Reads,
        on_tool_error: None,
        program: "once".to_owned(),
        exposure: Exposure::Hidden,
        dry_run: false,
        slow: Slow { ms: 4_000, every_client: false },
        window_ms: 120_000,
        wait_ms: 1_000,
        drain_ms: 0,
        asking: Asking::Nobody,
        notice: Box::new(|_| {}),
    };
    let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0))));
    let remote = Remote::new("http://127.0.0.1:1/mcp").unwrap();
    Gate::new(ledger, options, remote, limits, tokio::runtime::Handle::current())
}

/// A request whose body begins and does not end.
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
        let gate = gate(Limits { body_ms: 50, ..Limits::default() });
        gate.handle(endless(), Reach::Loopback).await.status()
    });
    assert_eq!(status, StatusCode::REQUEST_TIMEOUT);
}

#[test]
fn others_than_this_machine_need_the_token_and_without_one_no_one_else_is_let_in() {
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
    let with_token = || Limits { token: Some("t".to_owned()), ..Limits::default() };
    assert_eq!(status(Limits::default(), Reach::Network, None), StatusCode::UNAUTHORIZED);
    assert_eq!(status(with_token(), Reach::Network, Some("x")), StatusCode::UNAUTHORIZED);
    assert_eq!(status(with_token(), Reach::Loopback, None), StatusCode::UNAUTHORIZED);
    // Nothing listens behind this gate: a request that is let in is told so.
    assert_eq!(status(with_token(), Reach::Network, Some("t")), StatusCode::BAD_GATEWAY);
    assert_eq!(status(Limits::default(), Reach::Loopback, None), StatusCode::BAD_GATEWAY);
}
