//! The other side of `bench/serve` and `bench/models`: servers on the same stack as `once serve`, and the ledger without a server.
//!
//! - `axum`: a bare server. It is also the API behind the gateway and the proxy.
//! - `model`: a model that answers chat completions at once, or with the pauses that the request asks for.
//! - `proxy UPSTREAM`: a bare proxy that forwards every request as it is. `proxy UPSTREAM fresh`: each on a connection of
//!   its own.
//! - `layer FILE`: the bare server behind the idempotency layer, with a ledger in this file.
//! - `ledger URL CALLERS SECONDS`: first calls of this ledger by one process. Prints one JSON line.
//!
//! A server prints its address, and ends with its input.
#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a program that prints figures"
)]

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::ListenerExt;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use onceward::{Ledger, Operation};
use onceward_http::layer::IdempotencyLayer;

/// The allocator of the `once` binary, for all of them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ANSWER: &str = r#"{"id":"ch_1","object":"charge","amount":100,"currency":"eur","status":"succeeded"}"#;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).filter(|word| *word != "--bench").collect();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    match words.as_slice() {
        ["axum"] => runtime.block_on(serve(api())),
        ["model"] => runtime.block_on(serve(model())),
        ["proxy", upstream] => runtime.block_on(serve(proxy(upstream, usize::MAX))),
        ["proxy", upstream, "fresh"] => runtime.block_on(serve(proxy(upstream, 0))),
        ["layer", file] => {
            let layer = IdempotencyLayer::new(ledger(&format!("sqlite:{file}")));
            runtime.block_on(serve(api().layer(layer)));
        }
        ["ledger", url, callers, seconds] => {
            let limit = Duration::from_secs_f64(seconds.parse().unwrap());
            runtime.block_on(first_calls(&ledger(url), callers.parse().unwrap(), limit));
        }
        _ => println!("bench/serve runs this program"),
    }
}

/// One resource that can be read and created.
fn api() -> Router {
    Router::new().route(
        "/charges",
        get(async || answer(StatusCode::OK)).post(async |_: Bytes| answer(StatusCode::CREATED)),
    )
}

fn answer(status: StatusCode) -> impl IntoResponse {
    (status, [(header::CONTENT_TYPE, "application/json")], ANSWER)
}

/// How many events a streamed answer has before its end, if the request does not say.
const EVENTS: u64 = 50;

/// A model. The answer is a stream if the request says so, with `"events":N` and a pause of `"pause":MS` before each.
fn model() -> Router {
    Router::new()
        .route("/v1/chat/completions", axum::routing::post(complete))
        .route("/", get(async || "ready"))
}

async fn complete(body: Bytes) -> Response {
    let asked: serde_json::Value = serde_json::from_slice(&body).expect("a JSON document");
    let word = "steady ".repeat(20);
    if asked["stream"] != true {
        let text = word.repeat(7);
        let whole = serde_json::json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
            "usage": {"prompt_tokens": 11, "completion_tokens": 200, "total_tokens": 211}});
        return ([(header::CONTENT_TYPE, "application/json")], whole.to_string()).into_response();
    }
    let event = serde_json::json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{"index": 0, "finish_reason": null, "delta": {"content": word}}]});
    let one = Bytes::from(format!("data: {event}\n\n"));
    let count = asked["events"].as_u64().unwrap_or(EVENTS);
    let events = (0..count).map(move |_| one.clone());
    let events = events.chain([Bytes::from_static(b"data: [DONE]\n\n")]);
    let pause = Duration::from_millis(asked["pause"].as_u64().unwrap_or(0));
    let events = futures_util::StreamExt::then(futures_util::stream::iter(events), move |event| async move {
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        Ok::<_, std::convert::Infallible>(event)
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response()
}

type HttpClient = Client<HttpConnector, Body>;

/// A proxy that keeps this many idle connections.
fn proxy(upstream: &str, idle: usize) -> Router {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: HttpClient =
        Client::builder(TokioExecutor::new()).pool_max_idle_per_host(idle).build(connector);
    Router::new().fallback(forward).with_state((client, Arc::from(upstream)))
}

async fn forward(State((client, upstream)): State<(HttpClient, Arc<str>)>, mut request: Request) -> Response {
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
    *request.uri_mut() = Uri::try_from(format!("{upstream}{target}")).unwrap();
    request.headers_mut().remove(header::HOST);
    client.request(request).await.expect("the API answers").into_response()
}

async fn serve(router: Router) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("http://{}", listener.local_addr().unwrap());
    let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap());
    let ended = tokio::task::spawn_blocking(|| drop(std::io::stdin().read_to_end(&mut Vec::new())));
    tokio::select! {
        served = axum::serve(listener, router) => served.unwrap(),
        ended = ended => ended.unwrap(),
    }
}

fn ledger(url: &str) -> Ledger {
    Ledger::new(onceward_store::open(url).expect("a ledger"))
}

/// First calls with given keys, by tasks on a runtime like the server's.
async fn first_calls(ledger: &Ledger, callers: usize, limit: Duration) {
    let next = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    let callers: Vec<_> = (0..callers)
        .map(|_| tokio::spawn(caller(ledger.clone(), Arc::clone(&next), begun + limit)))
        .collect();
    let mut micros = Vec::new();
    for caller in callers {
        micros.extend(caller.await.expect("a caller"));
    }
    let per_second = micros.len() as f64 / begun.elapsed().as_secs_f64();
    micros.sort_by(f64::total_cmp);
    let at = |share: f64| micros[((micros.len() - 1) as f64 * share) as usize];
    println!(r#"{{"per_second":{per_second:.0},"p50_us":{:.1},"p99_us":{:.1}}}"#, at(0.5), at(0.99));
}

/// Calls until the time is over. Returns how long each call took.
async fn caller(ledger: Ledger, next: Arc<AtomicU64>, until: Instant) -> Vec<f64> {
    let mut micros = Vec::new();
    loop {
        let start = Instant::now();
        if start >= until {
            return micros;
        }
        let key = format!("order-{}", next.fetch_add(1, Ordering::Relaxed));
        let input = serde_json::json!({"order": key, "amount": 100, "currency": "eur"});
        ledger
            .run(Operation::new("charge").key(key).input(input), async |attempt| {
                Ok(attempt.dispatch()?.created(&ANSWER))
            })
            .await
            .expect("a receipt");
        micros.push(start.elapsed().as_secs_f64() * 1e6);
    }
}
