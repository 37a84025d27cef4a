//! What a server tells its operators: health, metrics, logs and traces. A secret in a request is in none of them.

use std::io::Write;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use bytes::Bytes;
use http_body_util::BodyExt;
use onceward::{Attempt, Ledger, ManualClock, MemoryStore, Policy};
use onceward_http::layer::IdempotencyLayer;
use onceward_http::telemetry::otel;
use onceward_http::{App, Config, server, telemetry};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::net::TcpListener;
use tower::ServiceExt;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;

const CANARY: &str = "canary-4f1d";
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Everything that was sent to one place.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<Vec<u8>>>>);

impl Heard {
    fn all(&self) -> Vec<Vec<u8>> {
        self.0.lock().unwrap().clone()
    }
}

impl Write for Heard {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().push(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Heard {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// A collector that keeps what it is sent. Returns the address of its endpoint for traces.
async fn collector(heard: Heard) -> String {
    async fn take(State(heard): State<Heard>, body: Bytes) -> StatusCode {
        heard.0.lock().unwrap().push(body.to_vec());
        StatusCode::OK
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().route("/v1/traces", post(take)).with_state(heard);
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    format!("http://{address}/v1/traces")
}

/// A handler that passes the trace on, and fails as it is asked to.
async fn charge(Extension(_): Extension<Attempt>, request: Request<Body>) -> Response {
    let incoming = request.headers().get("traceparent").map(|value| value.to_str().unwrap().to_owned());
    let onward = telemetry::onward(incoming.as_deref()).unwrap_or_default();
    telemetry::tool("charge_card", Some("call-7"));
    let body = request.into_body().collect().await.unwrap().to_bytes();
    match &body[..4] {
        b"boom" => panic!("{CANARY}"),
        b"fail" => (StatusCode::INTERNAL_SERVER_ERROR, CANARY).into_response(),
        _ => ([("x-onward", onward)], CANARY).into_response(),
    }
}

fn asked(key: &str, body: &str) -> Request<Body> {
    Request::post(format!("/charges/{CANARY}?token={CANARY}"))
        .header("Idempotency-Key", format!("{key}-{CANARY}"))
        .header("Authorization", format!("Bearer {CANARY}"))
        .header("Cookie", CANARY)
        .header("traceparent", PARENT)
        .header("tracestate", CANARY)
        .body(Body::from(format!("{body} {CANARY}")))
        .unwrap()
}

async fn get(app: &Router, path: &str) -> (u16, String) {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    (status, String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap())
}

fn attribute<'a>(span: &'a Span, name: &str) -> Option<&'a Value> {
    span.attributes.iter().find(|pair| pair.key == name)?.value.as_ref()?.value.as_ref()
}

fn is_text(span: &Span, name: &str, text: &str) -> bool {
    matches!(attribute(span, name), Some(Value::StringValue(value)) if value == text)
}

#[test]
fn operators_see_every_call_and_no_secret() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (logs, traces) = (Heard::default(), Heard::default());
    let url = runtime.block_on(collector(traces.clone()));
    let exporter = otel::exporter(&url, "shop", runtime.handle().clone()).unwrap();
    let json = tracing_subscriber::fmt::layer().json().with_writer(logs.clone());
    let subscriber = tracing_subscriber::registry().with(json).with(exporter.layer());
    tracing::subscriber::set_global_default(subscriber).unwrap();
    // The message of the handler's panic is its own, and not part of a log that this crate writes.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some(CANARY) {
            hook(panic);
        }
    }));

    let store = Arc::new(MemoryStore::new(ManualClock::at(0)));
    // No listener says from where these requests are.
    let open = Policy::parse("[serve]\nmetrics = \"open\"\n").unwrap();
    let app = App::new(store.clone(), Config::from_policy(&open).unwrap()).unwrap();
    let operators = server::router(Arc::clone(&app));
    let layer = IdempotencyLayer::new(Ledger::new(store)).metrics(app.metrics().clone());
    let shop = Router::new().route("/charges/{id}", post(charge)).layer(layer);
    let idle = runtime.metrics().num_alive_tasks();
    let (onward, metrics) = runtime.block_on(async {
        let call = async |key: &str, body: &str| shop.clone().oneshot(asked(key, body)).await.unwrap();
        let first = call("a", "done").await;
        let onward = first.headers()["x-onward"].to_str().unwrap().to_owned();
        assert_eq!(call("a", "done").await.headers()["idempotent-replayed"], "true");
        assert_eq!(call("a", "more").await.status(), 422);
        assert_eq!(call("b", "fail").await.status(), 500);
        assert_eq!(call("b", "fail").await.status(), 424);
        assert_eq!(call("c", "boom").await.status(), 500);
        call_the_api(&operators).await;
        assert_eq!(get(&operators, "/healthz").await, (200, "ok\n".to_owned()));
        assert_eq!(get(&operators, "/readyz").await, (200, "ready\n".to_owned()));
        let metrics = get(&operators, "/metrics").await.1;
        app.health().drain();
        assert_eq!(get(&operators, "/readyz").await, (503, "not ready\n".to_owned()));
        (onward, metrics)
    });
    // A call has its answer before its task has ended, and with it its span.
    while runtime.metrics().num_alive_tasks() > idle {
        std::thread::yield_now();
    }
    exporter.shut_down();
    check_metrics(&metrics);
    check_logs(&logs);
    check_traces(&traces, &onward);
}

/// Begins an operation with a trace, finishes it, and repeats it.
async fn call_the_api(app: &Router) {
    let post = async |path: &str, body: String| {
        let request = Request::post(path)
            .header("Content-Type", "application/json")
            .header("traceparent", PARENT)
            .header("tracestate", CANARY);
        let response = app.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice::<serde_json::Value>(&bytes).unwrap())
    };
    let begin = format!(r#"{{"name":"pay","key":"order-7","input":"{CANARY}"}}"#);
    let (status, begun) = post("/v1/operations", begin.clone()).await;
    assert_eq!(status, 201, "{begun}");
    let finish = format!(r#"{{"attempt":1,"token":{},"data":"{CANARY}"}}"#, begun["token"]);
    let id = begun["operation"]["id"].as_str().unwrap();
    let (status, done) = post(&format!("/v1/operations/{id}/finish"), finish).await;
    assert_eq!(status, 200, "{done}");
    let (status, replayed) = post("/v1/operations", begin).await;
    assert_eq!((status, &replayed["data"]), (200, &CANARY.into()));
}

fn check_metrics(metrics: &str) {
    for line in [
        "onceward_attempts_total{surface=\"api\",outcome=\"done\"} 1",
        "onceward_replays_total{surface=\"api\"} 1",
        "onceward_attempts_total{surface=\"layer\",outcome=\"done\"} 1",
        "onceward_attempts_total{surface=\"layer\",outcome=\"in_doubt\"} 2",
        "onceward_doubts_total{surface=\"layer\"} 2",
        "onceward_replays_total{surface=\"layer\"} 1",
        "onceward_duplicates_prevented_total{surface=\"layer\",reason=\"in_doubt\"} 1",
        "onceward_operations_in_doubt 2",
        "onceward_ledger_up 1",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    assert!(!metrics.contains(CANARY), "{metrics}");
}

fn check_logs(logs: &Heard) {
    let logs = String::from_utf8(logs.all().concat()).unwrap();
    let ended = logs.lines().filter(|line| line.contains("call ended")).count();
    assert_eq!(ended, 6 + 2, "{logs}");
    assert!(logs.contains("\"operation\":\"op_"), "{logs}");
    assert!(!logs.contains(CANARY), "{logs}");
}

fn check_traces(traces: &Heard, onward: &str) {
    let sent = traces.all();
    assert!(!sent.is_empty(), "no trace was exported");
    for bytes in &sent {
        assert!(!bytes.windows(CANARY.len()).any(|part| part == CANARY.as_bytes()), "a trace has the secret");
    }
    let spans: Vec<Span> = sent
        .iter()
        .map(|bytes| ExportTraceServiceRequest::decode(&bytes[..]).unwrap())
        .flat_map(|export| export.resource_spans)
        .flat_map(|resource| resource.scope_spans)
        .flat_map(|scope| scope.spans)
        .filter(|span| span.name == "onceward.call")
        .collect();
    let trace: Vec<u8> =
        vec![0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd, 0x84, 0x48, 0xeb, 0x21, 0x1c, 0x80, 0x31, 0x9c];
    let parent = vec![0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31];
    for span in &spans {
        assert_eq!((&span.trace_id, &span.parent_span_id), (&trace, &parent), "the caller's trace goes on");
        assert!(
            matches!(attribute(span, "onceward.operation"), Some(Value::StringValue(id)) if id.starts_with("op_"))
        );
    }
    let (spans, of_api): (Vec<Span>, Vec<Span>) =
        spans.into_iter().partition(|span| is_text(span, "onceward.surface", "layer"));
    assert_eq!((spans.len(), of_api.len()), (6, 3), "begin, finish and the repeat are calls of the API");
    for (name, value) in [("onceward.outcome", "done"), ("onceward.decision", "replayed")] {
        assert!(of_api.iter().any(|span| is_text(span, name, value)), "{name} {value}");
    }
    let first = spans.iter().find(|span| is_text(span, "onceward.decision", "executed")).unwrap();
    assert!(is_text(first, "onceward.outcome", "done"));
    assert!(is_text(first, "gen_ai.operation.name", "execute_tool"));
    assert!(
        is_text(first, "gen_ai.tool.name", "charge_card") && is_text(first, "gen_ai.tool.call.id", "call-7")
    );
    // The upstream gets the span of the call as its parent.
    let id: String = first.span_id.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(onward, format!("00-0af7651916cd43dd8448eb211c80319c-{id}-01"));
    for (name, value) in
        [("onceward.decision", "replayed"), ("onceward.code", "KEY_REUSED"), ("onceward.code", "IN_DOUBT")]
    {
        assert!(spans.iter().any(|span| is_text(span, name, value)), "{name} {value}");
    }
}
