//! The layer in a plain tower stack. What clients of an API see is tested by tests/idempotent-api, beside Python.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, Method, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use onceward::{Attempt, Filter, Happened, Ledger, ManualClock, MemoryStore, State};
use onceward_http::layer::{BoxError, IdempotencyLayer, RequestBody, ResponseBody};
use onceward_http::telemetry::Metrics;
use tokio::sync::Notify;
use tower::{Layer, Service, ServiceExt, service_fn};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

type Sent = Request<RequestBody<Full<Bytes>>>;

fn ledger() -> Ledger {
    Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0))))
}

fn request(key: &str, body: &'static str) -> Request<Full<Bytes>> {
    Request::post("/charges").header("Idempotency-Key", key).body(Full::from(body)).unwrap()
}

fn answer(status: u16, body: &'static str) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::from(body)).unwrap()
}

async fn text<B: Body<Data = Bytes>>(response: Response<ResponseBody<B>>) -> (u16, String)
where
    B::Error: Into<BoxError>,
{
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn records(ledger: &Ledger) -> Vec<(Arc<onceward::Record>, State)> {
    let listed = ledger.list(&Filter { limit: 100, ..Filter::default() }).await.unwrap();
    listed.into_iter().map(|(listed, state)| (Arc::new(listed.record), state)).collect()
}

#[tokio::test]
async fn a_request_is_carried_out_once_and_its_handler_knows_the_attempt() {
    let (ledger, metrics) = (ledger(), Metrics::new());
    let layer = IdempotencyLayer::new(ledger.clone()).metrics(metrics.clone());
    let service = layer.layer(service_fn(async |request: Sent| {
        let attempt = request.extensions().get::<Attempt>().unwrap().clone();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let said = format!("{} for {}", attempt.downstream_key(), String::from_utf8_lossy(&body));
        Ok::<_, Infallible>(Response::new(Full::from(said)))
    }));
    let mut asked = request("k", "5");
    asked.headers_mut().insert("traceparent", PARENT.parse().unwrap());
    let first = text(service.clone().oneshot(asked).await.unwrap()).await;
    let again = service.clone().oneshot(request("k", "5")).await.unwrap();
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert_eq!(text(again).await, first);
    assert_eq!(service.oneshot(request("k", "6")).await.unwrap().status(), 422);

    let found = records(&ledger).await;
    let [(record, State::Done)] = found.as_slice() else { panic!("one is done") };
    assert_eq!(first.1, format!("{} for 5", record.id));
    assert_eq!(record.detail.trace_parent.as_deref(), Some(PARENT));
    let counted = metrics.text();
    for line in [
        "onceward_attempts_total{surface=\"layer\",outcome=\"done\"} 1",
        "onceward_replays_total{surface=\"layer\"} 1",
        "onceward_duplicates_prevented_total{surface=\"layer\",reason=\"replayed\"} 1",
    ] {
        assert!(counted.contains(line), "{line}\n{counted}");
    }
}

#[tokio::test]
async fn a_handler_says_by_its_type_that_nothing_happened() {
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let service = IdempotencyLayer::new(ledger()).layer(service_fn(move |_: Sent| {
        let count = Arc::clone(&count);
        async move {
            count.fetch_add(1, Ordering::Relaxed);
            let mut response = answer(503, "closed");
            response.extensions_mut().insert(Happened::No);
            Ok::<_, Infallible>(response)
        }
    }));
    for _ in 0..2 {
        assert_eq!(service.clone().oneshot(request("k", "")).await.unwrap().status(), 503);
    }
    assert_eq!(runs.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_panic_and_an_error_of_the_service_are_in_doubt() {
    let ledger = ledger();
    let service = IdempotencyLayer::new(ledger.clone()).layer(service_fn(async |request: Sent| {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        assert_ne!(body, "panic", "as it was asked to");
        Err::<Response<Full<Bytes>>, _>(std::io::Error::other("broken"))
    }));
    assert_eq!(service.clone().oneshot(request("a", "panic")).await.unwrap().status(), 500);
    assert_eq!(service.clone().oneshot(request("b", "error")).await.unwrap_err().to_string(), "broken");
    for (key, body) in [("a", "panic"), ("b", "error")] {
        let (status, problem) = text(service.clone().oneshot(request(key, body)).await.unwrap()).await;
        assert_eq!(status, 424);
        assert!(problem.contains("\"happened\":\"unknown\"") && !problem.contains("asked"), "{problem}");
    }
    assert!(records(&ledger).await.iter().all(|(_, state)| *state == State::InDoubt));
}

#[tokio::test]
async fn a_client_that_leaves_does_not_abort_its_request() {
    let (ledger, go, begun) = (ledger(), Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (gate, began) = (Arc::clone(&go), Arc::clone(&begun));
    let layer = IdempotencyLayer::new(ledger).wait(Duration::from_secs(30));
    let service = layer.layer(service_fn(move |_: Sent| {
        let (gate, began) = (Arc::clone(&gate), Arc::clone(&began));
        async move {
            began.notify_one();
            gate.notified().await;
            Ok::<_, Infallible>(answer(201, "charged"))
        }
    }));
    let left = tokio::spawn(service.clone().oneshot(request("k", "")));
    begun.notified().await;
    left.abort();
    assert!(left.await.unwrap_err().is_cancelled());
    go.notify_one();
    let again = service.oneshot(request("k", "")).await.unwrap();
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert_eq!(text(again).await, (201, "charged".to_owned()));
}

#[tokio::test]
async fn a_caller_is_whom_the_closure_or_the_headers_say() {
    let named = IdempotencyLayer::new(ledger()).principal(|parts| {
        let account = parts.headers.get("x-account").map_or(&b"none"[..], |value| value.as_bytes());
        format!("account-{}", String::from_utf8_lossy(account))
    });
    let hashed = IdempotencyLayer::new(ledger()).credential_headers([HeaderName::from_static("x-account")]);
    for layer in [named, hashed] {
        let service = layer.layer(service_fn(async |_: Sent| Ok::<_, Infallible>(answer(200, "done"))));
        let mut replayed = Vec::new();
        for account in ["a", "b", "a"] {
            let mut asked = request("k", "");
            asked.headers_mut().insert("x-account", account.parse().unwrap());
            let answer = service.clone().oneshot(asked).await.unwrap();
            replayed.push(answer.headers().contains_key("idempotent-replayed"));
        }
        assert_eq!(replayed, [false, false, true]);
    }
}

#[tokio::test]
async fn methods_headers_and_statuses_can_be_chosen() {
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let layer = IdempotencyLayer::new(ledger())
        .methods([Method::DELETE])
        .header(HeaderName::from_static("x-request-id"))
        .outcome(StatusCode::CONFLICT, Happened::Yes);
    let service = layer.layer(service_fn(move |_: Sent| {
        count.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, Infallible>(answer(409, "gone before")) }
    }));
    let delete = || {
        let asked = Request::delete("/charges/7").header("x-request-id", "k");
        asked.body(Full::<Bytes>::default()).unwrap()
    };
    for (index, asked) in [delete(), delete(), request("k", ""), request("k", "")].into_iter().enumerate() {
        let answer = service.clone().oneshot(asked).await.unwrap();
        assert_eq!(answer.headers().contains_key("idempotent-replayed"), index == 1, "request {index}");
    }
    assert_eq!(runs.load(Ordering::Relaxed), 3);
}

/// A body in parts, whose size is not known in advance.
struct Parts(Vec<Result<&'static str, &'static str>>);

impl Body for Parts {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let next = (!self.0.is_empty()).then(|| self.0.remove(0));
        Poll::Ready(next.map(|part| match part {
            Ok(part) => Ok(Frame::data(Bytes::from(part))),
            Err("panic") => panic!("as it was asked to"),
            Err(why) => Err(why.into()),
        }))
    }
}

fn streaming(
    ledger: &Ledger,
    parts: Vec<Result<&'static str, &'static str>>,
) -> impl Service<Request<Full<Bytes>>, Response = Response<ResponseBody<Parts>>, Error = Infallible> + Clone
{
    let layer = IdempotencyLayer::new(ledger.clone()).largest_response(5);
    layer.layer(service_fn(move |_: Sent| {
        let parts = parts.clone();
        async move { Ok::<_, Infallible>(Response::new(Parts(parts))) }
    }))
}

#[tokio::test]
async fn the_end_of_a_stream_is_held_back_until_it_is_recorded() {
    let ledger = ledger();
    let service = streaming(&ledger, vec![Ok("ab"), Ok("cd")]);
    let mut body = service.clone().oneshot(request("k", "")).await.unwrap().into_body();
    for part in ["ab", "cd"] {
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), part);
    }
    assert!(body.frame().await.is_none());
    assert_eq!(records(&ledger).await.iter().map(|(_, state)| *state).collect::<Vec<_>>(), [State::Done]);
    assert_eq!(text(service.oneshot(request("k", "")).await.unwrap()).await, (200, "abcd".to_owned()));
}

#[tokio::test]
async fn a_stream_that_is_too_large_is_passed_on_and_not_kept() {
    let ledger = ledger();
    let service = streaming(&ledger, vec![Ok("abc"), Ok("def"), Ok("g")]);
    assert_eq!(
        text(service.clone().oneshot(request("k", "")).await.unwrap()).await,
        (200, "abcdefg".to_owned())
    );
    let (status, problem) = text(service.oneshot(request("k", "")).await.unwrap()).await;
    assert_eq!(status, 410);
    assert!(problem.contains("\"code\":\"RESULT_UNAVAILABLE\""), "{problem}");
}

#[tokio::test]
async fn a_stream_that_breaks_off_does_not_look_whole() {
    for broken in ["cut", "panic"] {
        let ledger = ledger();
        let service = streaming(&ledger, vec![Ok("ab"), Err(broken)]);
        let answer = service.clone().oneshot(request("k", "")).await.unwrap();
        answer.into_body().collect().await.map(|_| ()).unwrap_err();
        assert_eq!(service.oneshot(request("k", "")).await.unwrap().status(), 424, "{broken}");
    }
}

#[tokio::test]
async fn a_stream_whose_client_left_is_recorded() {
    let ledger = ledger();
    let service = streaming(&ledger, vec![Ok("a"), Ok("b"), Ok("c"), Ok("d"), Ok("e")]);
    drop(service.clone().oneshot(request("k", "")).await.unwrap());
    let again = loop {
        let again = service.clone().oneshot(request("k", "")).await.unwrap();
        if again.status() != 409 {
            break again;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(text(again).await, (200, "abcde".to_owned()));
}
