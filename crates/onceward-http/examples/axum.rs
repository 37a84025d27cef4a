//! An API whose POSTs are carried out once: `cargo run -p onceward-http --example axum`.
//!
//! ```text
//! curl -i -H 'Idempotency-Key: order-7' -H 'content-type: application/json' \
//!      -d '{"order": "o-7", "amount": 5}' http://127.0.0.1:8080/charges
//! ```
//!
//! Sent again, it answers the same, with `Idempotent-Replayed: true`. The suite in tests/idempotent-api runs this
//! example beside the same API on Starlette; `mode` lets it fail in every way that the suite asks for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "an example may give up")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use onceward::{Attempt, Happened, Ledger, Terms};
use onceward_http::layer::IdempotencyLayer;
use serde::Deserialize;
use serde_json::json;

/// What a request asks for.
#[derive(Deserialize)]
struct Charge {
    order: String,
    amount: i64,
    #[serde(default)]
    mode: String,
}

#[derive(Deserialize)]
struct Size {
    size: usize,
}

/// The world that requests change: one line of a file for each effect.
#[derive(Clone)]
struct World(Arc<PathBuf>);

impl World {
    fn change(&self, what: &str) -> usize {
        use std::io::Write;
        let mut file = std::fs::File::options().append(true).create(true).open(&*self.0).unwrap();
        writeln!(file, "{what}").unwrap();
        std::fs::read_to_string(&*self.0).unwrap().lines().count()
    }

    fn says_go(&self) -> bool {
        let mut go = self.0.as_os_str().to_owned();
        go.push(".go");
        std::path::Path::new(&go).exists()
    }
}

async fn charge(
    State(world): State<World>,
    attempt: Option<Extension<Attempt>>,
    Json(asked): Json<Charge>,
) -> Response {
    match asked.mode.as_str() {
        "declined" => {
            return (StatusCode::PAYMENT_REQUIRED, Json(json!({"why": "declined"}))).into_response();
        }
        "closed" => {
            let why = Json(json!({"why": "closed"}));
            return (StatusCode::SERVICE_UNAVAILABLE, [("once-happened", "no")], why).into_response();
        }
        "closed, typed" => {
            let why = Json(json!({"why": "closed"}));
            return (StatusCode::SERVICE_UNAVAILABLE, Extension(Happened::No), why).into_response();
        }
        "unavailable" => {
            return (StatusCode::BAD_GATEWAY, Json(json!({"why": "unavailable"}))).into_response();
        }
        _ => {}
    }
    let number = world.change(&asked.order);
    match asked.mode.as_str() {
        "dies" => std::process::abort(),
        "slow" => {
            while !world.says_go() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        "breaks" => {
            return (StatusCode::INTERNAL_SERVER_ERROR, Json(json!({"why": "broken"}))).into_response();
        }
        "done, and a 500" => {
            let why = Json(json!({"why": "broken later"}));
            return (StatusCode::INTERNAL_SERVER_ERROR, [("once-happened", "yes")], why).into_response();
        }
        "raises" => panic!("the secret reason of the panic"),
        _ => {}
    }
    let mut headers = HeaderMap::new();
    headers
        .insert("x-charge", HeaderValue::from_str(&format!("{} is number {number}", asked.order)).unwrap());
    headers.append("set-cookie", HeaderValue::from_static("a=1"));
    headers.append("set-cookie", HeaderValue::from_static("b=2"));
    // The key for a payment provider: the same for every attempt at this request.
    if let Some(Extension(attempt)) = attempt {
        headers.insert("x-downstream", HeaderValue::from_str(attempt.downstream_key()).unwrap());
    }
    let answer = json!({"order": asked.order, "number": number, "amount": asked.amount});
    (StatusCode::CREATED, headers, Json(answer)).into_response()
}

/// Answers with the bytes that it was sent.
async fn echo(State(world): State<World>, body: Bytes) -> Response {
    world.change("echo");
    ([("content-type", "application/octet-stream")], body).into_response()
}

/// A response that is streamed.
async fn report(State(world): State<World>, Query(Size { size }): Query<Size>) -> Response {
    world.change("report");
    let lines = (0..size).map(|index| Ok::<_, std::io::Error>(format!("{index},")));
    let body = Body::from_stream(futures_util::stream::iter(lines));
    ([("content-type", "text/csv; charset=utf-8")], body).into_response()
}

/// A streamed response that breaks off.
async fn cut(State(world): State<World>) -> Response {
    world.change("cut");
    let parts = [Ok("a part"), Err(std::io::Error::other("the secret reason of the failure"))];
    Body::from_stream(futures_util::stream::iter(parts)).into_response()
}

fn app(world: World, layer: IdempotencyLayer) -> Router {
    Router::new()
        .route("/charges", post(charge).put(charge).patch(charge))
        .route("/strict", post(charge))
        .route("/echo", post(echo))
        .route("/report", post(report))
        .route("/cut", post(cut))
        .layer(layer)
        .route("/", get(async || "ready"))
        .with_state(world)
}

/// `axum LEDGER WORLD PORT-FILE OPTIONS`; without arguments a shop on port 8080 with a ledger in a temporary folder.
#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = tempfile::tempdir().unwrap();
    let temporary = |name: &str| folder.path().join(name).display().to_string();
    let argument = |index: usize, other: String| arguments.get(index).cloned().unwrap_or(other);
    let ledger = format!("sqlite:{}", argument(0, temporary("once.db")));
    let world = World(Arc::new(argument(1, temporary("world")).into()));
    let options: serde_json::Value = serde_json::from_str(&argument(3, "{}".to_owned())).unwrap();

    let store = onceward_store::open(&ledger).unwrap();
    let mut terms = Terms { wait_ms: options["wait_ms"].as_u64().unwrap_or(0), ..Terms::default() };
    if let Some(ms) = options["ttl_ms"].as_u64() {
        terms.keep_results_for(ms);
    }
    let mut layer = IdempotencyLayer::new(Ledger::new(store))
        .require_key_if(|request| request.uri.path() == "/strict")
        .largest_request(100_000)
        .largest_response(10_000)
        .terms(terms);
    if options["unavailable_means_no"] == true {
        layer = layer.outcome(StatusCode::BAD_GATEWAY, Happened::No);
    }

    let port = if arguments.is_empty() { 8080 } else { 0 };
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    let address = listener.local_addr().unwrap();
    match arguments.get(2) {
        Some(file) => {
            std::fs::write(format!("{file}.new"), address.port().to_string()).unwrap();
            std::fs::rename(format!("{file}.new"), file).unwrap();
        }
        None => println!("listening on http://{address}/charges"),
    }
    axum::serve(listener, app(world, layer)).await.unwrap();
}
