//! A stop while a request is under way: what it ends, and what it waits for.

use std::future::pending;

use hyper::{Method, StatusCode};
use onceward::{Ledger, STOP_GRACE_MS, Settlement, State, Stopped};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use crate::common::{soon, until};
use crate::gateway::models::{ASK, STREAM, ask, sends_in};
use crate::gateway::plain;
use crate::gateway::provider::{Play, Provider};
use crate::gateway::rig::{Got, Rig};
use crate::gateway::vendor::{Act, Vendor};

const SCOPE: (&str, &str) = ("once-scope", "run-7");

/// Stops the scope as another process does. One attempt must be running.
async fn stop(rig: &Rig) {
    let Stopped { asked, .. } = Ledger::new(rig.store.clone())
        .scopes()
        .stop("run-7", &onceward::Word::person("ada").note("wrong list".to_owned()))
        .await
        .unwrap();
    assert_eq!(asked.len(), 1, "an attempt was asked to end");
}

async fn settled(rig: &Rig) -> Settlement {
    let ledger = Ledger::new(rig.store.clone());
    assert!(ledger.scopes().wait("run-7", 60_000).await.unwrap().is_empty(), "it still runs");
    ledger.scopes().settlement("run-7").await.unwrap()
}

#[tokio::test]
async fn a_stopped_generation_is_cancelled_at_the_provider_and_its_stream_breaks() {
    let provider = Provider::start(&[Play::Drip(20)]).await;
    let rig = Rig::start(&provider.config("")).await;
    let mut client = sends_in(&rig, "run-7", STREAM).await;
    let mut read = vec![0; 2_000];
    client.read_exact(&mut read).await.unwrap();
    stop(&rig).await;
    // The provider sends without an end, so only the gateway can end this.
    drop(soon(client.read_to_end(&mut read)).await);
    assert!(
        !read.ends_with(b"0\r\n\r\n") && !read.windows(6).any(|part| part == b"[DONE]"),
        "no end is invented"
    );
    until("the provider is told", async || provider.closed() == 1).await;
    let settlement = settled(&rig).await;
    assert_eq!((settlement.sums.intended, settlement.sums.failed), (1, 1));
    let record = rig.operations().await.remove(0);
    let outcome = record.outcome.as_ref().unwrap();
    assert_eq!(outcome.reason(), Some("it was asked to stop, so the generation was cancelled"));
    let usage = outcome.usage.as_ref().unwrap();
    assert!(
        usage.estimated && usage.output > 0 && usage.input > 0,
        "what was received is counted: {usage:?}"
    );
    let retry = ask(&rig, &[SCOPE], STREAM).await;
    assert_eq!((retry.status, retry.json()["code"].as_str()), (StatusCode::GONE, Some("STOPPED")));
    let detail = retry.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.ends_with("the scope was stopped on purpose; a person resumes it."), "{detail}");
    assert_eq!((provider.generations(), rig.operations().await.len()), (1, 1));
}

#[tokio::test]
async fn a_client_that_has_no_byte_yet_is_told_of_the_stop() {
    let provider = Provider::start(&[Play::Held]).await;
    let rig = Rig::start(&provider.config("")).await;
    let stopping = async {
        until("it is sent", async || provider.generations() == 1).await;
        stop(&rig).await;
        pending::<()>().await
    };
    let got = answered(ask(&rig, &[SCOPE], ASK), stopping).await;
    let told = got.json();
    assert_eq!((got.status, told["code"].as_str()), (StatusCode::GONE, Some("STOPPED")), "{told}");
    assert!(told["detail"].as_str().unwrap().contains("wrong list"), "{told}");
    assert_eq!(got.header("x-should-retry"), Some("false"));
    assert_eq!((settled(&rig).await.sums.failed, provider.generations()), (1, 1));
}

async fn answered(call: impl Future<Output = Got>, beside: impl Future<Output = ()>) -> Got {
    tokio::select! {
        got = soon(call) => got,
        () = beside => unreachable!("it does not end"),
    }
}

/// Sends a request to a vendor that does this, stops the scope when the request is there, and then does this when the
/// gateway waits for the answer no longer than it must.
async fn stopped_while(vendor: &Vendor, rig: &Rig, then: impl FnOnce()) -> Got {
    let stopping = async {
        until("it is sent", async || vendor.effects() == 1).await;
        stop(rig).await;
        until("the last wait begins", async || rig.clock.sleepers(STOP_GRACE_MS) == 1).await;
        then();
        pending::<()>().await
    };
    answered(rig.send(Method::POST, "/gw/api/pay", &[SCOPE], "100"), stopping).await
}

#[tokio::test]
async fn an_answer_that_comes_after_the_stop_decides() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Gate]);
    let rig = Rig::start(&plain(&vendor, "")).await;
    let got = stopped_while(&vendor, &rig, || vendor.open_gate(1)).await;
    assert_eq!((got.status, got.json()["id"].as_str()), (StatusCode::OK, Some("obj_1")));
    let sums = settled(&rig).await.sums;
    assert_eq!((sums.intended, sums.standing, vendor.effects()), (1, 1, 1));
}

#[tokio::test]
async fn a_request_that_is_not_answered_after_the_stop_is_in_doubt_and_not_sent_again() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Hang]);
    let rig = Rig::start(&plain(&vendor, "class = \"idempotent\"")).await;
    let got = stopped_while(&vendor, &rig, || rig.clock.step(10_000)).await;
    let told = got.json();
    assert_eq!(
        (got.status, told["code"].as_str()),
        (StatusCode::FAILED_DEPENDENCY, Some("IN_DOUBT")),
        "{told}"
    );
    assert!(told["detail"].as_str().unwrap().contains("asked to stop"), "{told}");
    let sums = settled(&rig).await.sums;
    assert_eq!((sums.in_doubt, vendor.effects(), vendor.posts().len()), (1, 1, 1));
}

#[tokio::test]
async fn a_request_that_never_left_fails_with_certainty() {
    // It accepts connections and never answers the TLS handshake.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let config =
        format!("[upstream.api]\nurl = \"https://{address}\"\nallow_private = true\ntimeout = \"600s\"\n");
    let rig = Rig::start(&config).await;
    let stopping = async {
        until("it begins", async || rig.states().await == [State::Running]).await;
        stop(&rig).await;
        until("the last wait begins", async || rig.clock.sleepers(STOP_GRACE_MS) == 1).await;
        rig.clock.step(10_000);
        pending::<()>().await
    };
    let got = answered(rig.send(Method::POST, "/gw/api/pay", &[SCOPE], "100"), stopping).await;
    assert_eq!((got.status, got.json()["code"].as_str()), (StatusCode::GONE, Some("STOPPED")));
    assert_eq!(got.header("once-happened"), Some("no"));
    assert_eq!(settled(&rig).await.sums.failed, 1);
}
