//! A retry at another gateway on the same ledger reads the answer while it grows.

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{HeaderMap, Method, Response, StatusCode};
use onceward::State;
use onceward_http::client::{Connection, Remote, full};

use crate::common::{soon, until};
use crate::gateway::models::{CHAT, STREAM, ask, ends_as, leaves_after, whole};
use crate::gateway::provider::{Play, Provider, events};
use crate::gateway::rig::Rig;

/// A retry that the SDK reports. Resolves when the answer has begun.
async fn retry(rig: &Rig) -> Response<Incoming> {
    let headers = [
        ("authorization", "Bearer sk"),
        ("content-type", "application/json"),
        ("x-stainless-retry-count", "1"),
    ];
    let headers: HeaderMap =
        headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
    let remote = Remote::new(&rig.url).unwrap();
    let request = remote.request(Method::POST, CHAT, headers, full(STREAM));
    soon(remote.send(request, Connection::Fresh)).await.unwrap()
}

/// What has arrived when the answer has at least this length.
async fn at_least(length: usize, body: &mut Incoming) -> Vec<u8> {
    let mut read = Vec::new();
    while read.len() < length {
        let frame = soon(body.frame()).await.unwrap().unwrap();
        read.extend_from_slice(&frame.into_data().unwrap());
    }
    read
}

#[tokio::test]
async fn a_retry_at_another_gateway_reads_the_stream_while_it_grows() {
    let provider = Provider::start(&[Play::Gate]).await;
    let rig = Rig::start(&provider.config("")).await;
    let other = rig.beside().await;
    leaves_after(&rig, 200, STREAM).await;
    let half = events(1)[..4].concat();
    let response = retry(&other).await;
    let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(
        (header("once-effect").as_deref(), header("x-request-id").as_deref()),
        (Some("noop"), Some("r-1"))
    );
    assert_eq!(header("idempotent-replayed").as_deref(), Some("true"));
    let mut body = response.into_body();
    let mut read = at_least(half.len(), &mut body).await;
    // The provider has not sent more, so this was read while the answer grew.
    assert_eq!(read, half.as_bytes());
    assert_eq!(rig.states().await, [State::Running]);
    provider.open_gate(1);
    read.extend(body.collect().await.unwrap().to_bytes());
    assert_eq!((read, provider.generations()), (whole(1).into_bytes(), 1));
    // It was delivered, and what the gateways shared is gone but for the board.
    other.delivered().await;
    until("the parts are deleted", async || rig.aliases().await == 1).await;
    assert_eq!(ask(&other, &[], STREAM).await.body, whole(2), "the next call is a new one");
}

#[tokio::test]
async fn a_stream_that_breaks_at_the_other_gateway_breaks_here() {
    let provider = Provider::start(&[Play::GateCut]).await;
    let rig = Rig::start(&provider.config("")).await;
    let other = rig.beside().await;
    leaves_after(&rig, 200, STREAM).await;
    let mut body = retry(&other).await.into_body();
    at_least(events(1)[..4].concat().len(), &mut body).await;
    provider.open_gate(1);
    assert!(body.collect().await.is_err(), "no end is invented");
    ends_as(&rig, State::Failed).await;
    // This gateway allows two seconds for the note that the failure was delivered.
    let got = other.passing(ask(&other, &[("x-stainless-retry-count", "2")], STREAM)).await;
    assert_eq!((got.status, got.body.as_ref()), (StatusCode::OK, whole(2).as_bytes()));
    let record = rig.operations().await.remove(0);
    assert_eq!((record.state, record.attempt, provider.generations()), (State::Done, 2, 2));
}

#[tokio::test]
async fn answers_from_which_something_is_removed_are_not_shared_in_parts() {
    let provider = Provider::start(&[Play::Gate]).await;
    let policy = format!(
        "{}\n[operation.\"openai POST /v1/chat/completions\"]\nredact = [\"re:nothing\"]\n",
        provider.config("")
    );
    let rig = Rig::start(&policy).await;
    let other = rig.beside().await;
    leaves_after(&rig, 200, STREAM).await;
    let waiting = tokio::spawn(async move { retry(&other).await.into_body().collect().await.unwrap() });
    until("the call is on the board", async || rig.aliases().await == 1).await;
    // Both gateways look at the board four times a second.
    let looks = rig.clock.sleeps_begun(250);
    until("they have looked several times", async || rig.clock.sleeps_begun(250) > looks + 10).await;
    assert_eq!(rig.aliases().await, 1, "no part");
    provider.open_gate(1);
    assert!(!waiting.await.unwrap().to_bytes().is_empty());
    assert_eq!(provider.generations(), 1);
}
