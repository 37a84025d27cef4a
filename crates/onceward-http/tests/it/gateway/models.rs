//! Model calls: a retry gets the same answer, a new sample a new one, and a stream survives its client.

use std::collections::BTreeSet;

use http_body_util::BodyExt;
use hyper::{Method, StatusCode};
use onceward::State;
use onceward_http::client::{Connection, Remote, full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::until;
use crate::gateway::provider::{Play, Provider, events};
use crate::gateway::rig::{Got, Rig};

pub(crate) const CHAT: &str = "/gw/openai/v1/chat/completions";
pub(crate) const JSON: (&str, &str) = ("content-type", "application/json");
pub(crate) const ASK: &str = r#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;
pub(crate) const STREAM: &str =
    r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}"#;

pub(crate) async fn ask(rig: &Rig, headers: &[(&str, &str)], body: &str) -> Got {
    let mut all = vec![("authorization", "Bearer sk"), JSON];
    all.extend(headers);
    rig.send(Method::POST, CHAT, &all, body).await
}

/// A client that leaves after this many bytes of the answer, or, if that is 0, once its call has begun. The call is the
/// first one of the rig then.
pub(crate) async fn leaves_after(rig: &Rig, bytes: usize, body: &str) {
    let mut stream = sends(rig, body).await;
    if bytes == 0 {
        until("the call has begun", async || !rig.states().await.is_empty()).await;
        return;
    }
    let mut read = vec![0; bytes];
    stream.read_exact(&mut read).await.unwrap();
}

/// A client that has sent a request and waits.
pub(crate) async fn sends(rig: &Rig, body: &str) -> TcpStream {
    sends_in(rig, "default", body).await
}

/// The same in this scope.
pub(crate) async fn sends_in(rig: &Rig, scope: &str, body: &str) -> TcpStream {
    sends_with(rig, "HTTP/1.1", &format!("once-scope: {scope}\r\n"), body).await
}

/// The same with this version and these headers.
pub(crate) async fn sends_with(rig: &Rig, version: &str, headers: &str, body: &str) -> TcpStream {
    let address = rig.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "POST {CHAT} {version}\r\nhost: {address}\r\nauthorization: Bearer sk\r\ncontent-type: application/json\r\n\
         {headers}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Waits until the only operation is in this state.
pub(crate) async fn ends_as(rig: &Rig, state: State) {
    until(&format!("it is {state}"), async || rig.states().await == [state]).await;
}

/// Lets the provider answer one call after the other: each when all calls that have no answer yet wait for theirs, or
/// look again and again what another gateway does. Both happen in steps of 200 ms.
pub(crate) async fn answer_one_by_one(rig: &Rig, provider: &Provider, calls: u32) {
    for number in 1..=calls {
        provider.has(number).await;
        let waiting = (calls + 1 - number) as usize;
        until("the calls wait", async || rig.clock.sleepers(200) >= waiting).await;
        provider.open_gate(1);
    }
}

pub(crate) fn whole(number: u32) -> String {
    events(number).concat()
}

#[tokio::test]
async fn a_client_that_times_out_gets_the_first_answer() {
    for body in [ASK, STREAM] {
        let provider = Provider::start(&[Play::Held]).await;
        let rig = Rig::start(&provider.config("")).await;
        leaves_after(&rig, 0, body).await;
        let (got, ()) = tokio::join!(ask(&rig, &[], body), async { provider.open_gate(1) });
        assert_eq!(
            (got.status, got.header("idempotent-replayed")),
            (StatusCode::OK, Some("true")),
            "{got:?}"
        );
        let text = String::from_utf8_lossy(&got.body).into_owned();
        assert!(text.contains("1-0") || got.json()["id"] == "c-1", "{text}");
        assert_eq!(provider.generations(), 1);
    }
}

#[tokio::test]
async fn an_answer_is_never_one_that_broke_off() {
    for play in [Play::Cut, Play::Close, Play::Status(500), Play::Status(429), Play::Status(408)] {
        let provider = Provider::start(&[play]).await;
        let rig = Rig::start(&provider.config("")).await;
        let got = ask(&rig, &[], ASK).await;
        assert_eq!((got.status, &got.json()["id"]), (StatusCode::OK, &"c-2".into()), "{play:?}");
        let record = rig.operations().await.remove(0);
        assert_eq!((record.state, record.attempt, record.detail.history.len()), (State::Done, 2, 1));
        let usage = record.outcome.unwrap().usage.unwrap();
        assert_eq!((usage.input, usage.output, usage.layer.as_str()), (7, 1, "gateway"), "{play:?}");
    }
}

#[tokio::test]
async fn a_stream_that_ends_too_early_breaks_the_connection() {
    for play in [Play::Cut, Play::Short] {
        let provider = Provider::start(&[play]).await;
        let rig = Rig::start(&provider.config("")).await;
        let remote = Remote::new(&rig.url).unwrap();
        let headers = [("authorization", "Bearer sk"), JSON];
        let headers =
            headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        let request = remote.request(Method::POST, CHAT, headers, full(STREAM));
        let response = remote.send(request, Connection::Fresh).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert!(response.into_body().collect().await.is_err(), "{play:?}: the client must notice");
        ends_as(&rig, State::Failed).await;
        // The retry of the same call is the next attempt of the same operation.
        let got = ask(&rig, &[], STREAM).await;
        assert_eq!((got.status, got.body.as_ref()), (StatusCode::OK, whole(2).as_bytes()), "{play:?}");
        let record = rig.operations().await.remove(0);
        assert_eq!((record.state, record.attempt, rig.operations().await.len()), (State::Done, 2, 1));
        let wasted = record.detail.history[0].usage.as_ref().unwrap();
        assert!(wasted.estimated && wasted.output > 0, "{wasted:?}");
    }
}

#[tokio::test]
async fn a_deliberate_sample_is_never_swallowed() {
    for body in [ASK, STREAM] {
        let provider = Provider::start(&[]).await;
        let rig = Rig::start(&provider.config("")).await;
        let mut answers = BTreeSet::new();
        for _ in 0..5 {
            answers.insert(ask(&rig, &[], body).await.body);
        }
        assert_eq!((answers.len(), provider.generations()), (5, 5));
        let (a, b, c) = tokio::join!(ask(&rig, &[], body), ask(&rig, &[], body), ask(&rig, &[], body));
        answers.extend([a.body, b.body, c.body]);
        assert_eq!((answers.len(), provider.generations()), (8, 8), "three at once are three");
        let key = [("idempotency-key", "step-42")];
        let first = ask(&rig, &key, body).await;
        for _ in 0..4 {
            assert_eq!(ask(&rig, &key, body).await.body, first.body);
        }
        assert_eq!(provider.generations(), 9, "one key, one generation");
        assert_eq!(ask(&rig, &key, r#"{"model":"m"}"#).await.status, StatusCode::UNPROCESSABLE_ENTITY);
    }
}

#[tokio::test]
async fn a_persons_no_is_the_answer_to_equal_calls_however_they_are_named() {
    let provider = Provider::start(&[]).await;
    let hold = "[operation.\"openai POST /v1/chat/completions\"]\nhold = \"approve\"";
    let rig = Rig::start(&provider.config(hold)).await;
    assert_eq!(ask(&rig, &[], ASK).await.status, StatusCode::ACCEPTED);
    let ledger = onceward::Ledger::new(rig.store.clone());
    let held = ledger.admin().held(None).await.unwrap();
    ledger.admin().cancel(&held[0].id, &onceward::Word::person("maria")).await.unwrap();
    let named: [&[(&str, &str)]; 4] =
        [&[], &[("idempotency-key", "k")], &[("once-occurrence", "2")], &[("once-sample", "new")]];
    for headers in named {
        let got = ask(&rig, headers, ASK).await;
        assert_eq!((got.status, got.header("once-happened")), (StatusCode::GONE, Some("no")), "{headers:?}");
    }
    assert_eq!(provider.generations(), 0);
}

#[tokio::test]
async fn a_retry_attaches_to_a_stream_from_its_first_byte() {
    let provider = Provider::start(&[Play::Gate]).await;
    let rig = Rig::start(&provider.config("")).await;
    leaves_after(&rig, 200, STREAM).await;
    let (got, ()) = tokio::join!(ask(&rig, &[], STREAM), async { provider.open_gate(1) });
    assert_eq!((got.body.as_ref(), provider.generations()), (whole(1).as_bytes(), 1));
    assert_eq!(got.header("idempotent-replayed"), Some("true"));
    // That answer was delivered, so the next call is a new one.
    assert_eq!(ask(&rig, &[], STREAM).await.body, whole(2));
}

#[tokio::test]
async fn a_restarted_run_gets_the_answers_of_the_first_in_order() {
    let provider = Provider::start(&[]).await;
    let rig = Rig::start(&provider.config("")).await;
    let mut first = Vec::new();
    for _ in 0..3 {
        first.push(ask(&rig, &[("once-scope", "job-1"), ("once-run", "a")], ASK).await.body);
    }
    assert_eq!(provider.generations(), 3);
    let rig = rig.restarted().await;
    for (number, expected) in first.iter().enumerate() {
        let got = ask(&rig, &[("once-scope", "job-1"), ("once-run", "b")], ASK).await;
        assert_eq!((&got.body, got.header("idempotent-replayed")), (expected, Some("true")), "{number}");
    }
    let fourth = ask(&rig, &[("once-scope", "job-1"), ("once-run", "b")], ASK).await;
    assert_eq!((fourth.json()["id"].as_str(), provider.generations()), (Some("c-4"), 4));
    let other = ask(&rig, &[("once-scope", "job-2"), ("once-run", "b")], ASK).await;
    assert_eq!(other.json()["id"], "c-5", "another scope");
    let ledger = onceward::Ledger::new(std::sync::Arc::clone(&rig.store));
    let filter = onceward::Filter { limit: 50, ..onceward::Filter::default() };
    assert_eq!(ledger.list(&filter).await.unwrap().len(), 5, "positions are not operations");
    let lone = ask(&rig, &[("once-run", "b")], ASK).await;
    assert_eq!(lone.status, StatusCode::BAD_REQUEST, "a run needs a scope");
}

#[tokio::test]
async fn the_budget_is_one_for_all_layers_and_then_sdks_are_told_to_stop() {
    let provider = Provider::start(&[Play::Status(500); 20]).await;
    let rig = Rig::start(&provider.config("")).await;
    for count in ["0", "1", "2", "0"] {
        let got = ask(&rig, &[("x-stainless-retry-count", count)], ASK).await;
        assert_eq!(got.status, StatusCode::FAILED_DEPENDENCY);
        assert_eq!((got.header("x-should-retry"), got.header("retry-after")), (Some("false"), None));
    }
    assert_eq!(provider.generations(), 3);
}

#[tokio::test]
async fn a_refusal_of_the_provider_is_passed_on_as_it_is() {
    let provider = Provider::start(&[Play::Status(400), Play::Status(404)]).await;
    let rig = Rig::start(&provider.config("")).await;
    for status in [StatusCode::BAD_REQUEST, StatusCode::NOT_FOUND] {
        let got = ask(&rig, &[], ASK).await;
        assert_eq!((got.status, &got.json()["error"]["message"]), (status, &"scripted".into()));
    }
    assert_eq!(ask(&rig, &[], ASK).await.status, StatusCode::OK);
    assert_eq!(provider.generations(), 3);
}

#[tokio::test]
async fn a_redirect_does_not_lead_a_client_past_the_gateway() {
    let provider = Provider::start(&[Play::Status(307)]).await;
    let rig = Rig::start(&provider.config("")).await;
    let got = ask(&rig, &[], ASK).await;
    assert_eq!((got.status, got.header("location")), (StatusCode::BAD_GATEWAY, None), "{got:?}");
    assert!(got.json()["detail"].as_str().unwrap().contains("redirects"), "{got:?}");
    assert_eq!((provider.generations(), rig.states().await), (1, vec![State::Failed]));
}

#[tokio::test]
async fn a_generation_without_clients_is_cancelled_if_the_policy_says_so() {
    let provider = Provider::start(&[Play::Gate]).await;
    let rig = Rig::start(&provider.config("unattended = \"cancel\"")).await;
    leaves_after(&rig, 200, STREAM).await;
    rig.passing(ends_as(&rig, State::Failed)).await;
    let record = rig.operations().await.remove(0);
    let usage = record.outcome.unwrap().usage.unwrap();
    assert!(usage.estimated && usage.output > 0, "what was paid is recorded: {usage:?}");
}

#[tokio::test]
async fn a_retry_at_another_gateway_gets_the_same_answer() {
    let provider = Provider::start(&[Play::Held]).await;
    let rig = Rig::start(&provider.config("")).await;
    let other = rig.beside().await;
    leaves_after(&rig, 0, ASK).await;
    let retry = [("x-stainless-retry-count", "1")];
    let (got, ()) = tokio::join!(ask(&other, &retry, ASK), async { provider.open_gate(1) });
    assert_eq!((got.json()["id"].as_str(), provider.generations()), (Some("c-1"), 1));
}

#[tokio::test]
async fn a_slow_answer_does_not_swallow_the_next_sample() {
    let provider = Provider::start(&[Play::Held, Play::Answer]).await;
    let rig = Rig::start(&provider.config("")).await;
    let (slow, ()) = tokio::join!(ask(&rig, &[], ASK), async {
        provider.has(1).await;
        rig.clock.step(1_200);
        provider.open_gate(1);
    });
    assert_eq!(slow.json()["id"], "c-1");
    assert_eq!(ask(&rig, &[], ASK).await.json()["id"], "c-2");
    assert!(provider.has_played());
}

#[tokio::test]
async fn a_dry_run_and_an_explicit_new_sample() {
    let provider = Provider::start(&[]).await;
    let rig = Rig::start(&provider.config("")).await;
    let dry = ask(&rig, &[("once-dry-run", "true")], ASK).await;
    assert_eq!((dry.status, provider.generations()), (StatusCode::OK, 0), "{dry:?}");
    let dry = ask(&rig, &[("once-dry-run", "true"), ("once-scope", "s"), ("once-run", "a")], ASK).await;
    let filter = onceward::Filter { limit: 10, ..onceward::Filter::default() };
    assert_eq!((dry.status, rig.store.list(&filter).await.unwrap().len()), (StatusCode::OK, 0), "{dry:?}");
    for number in 1..=3 {
        let got = ask(&rig, &[("once-sample", "new")], ASK).await;
        assert_eq!(got.json()["id"], format!("c-{number}"));
    }
    let labelled = ask(&rig, &[("once-occurrence", "best-of-2")], ASK).await;
    assert_eq!(ask(&rig, &[("once-occurrence", "best-of-2")], ASK).await.body, labelled.body);
    assert_eq!(provider.generations(), 4);
}

#[tokio::test]
async fn a_steady_stream_without_clients_is_cancelled_too() {
    let provider = Provider::start(&[Play::Drip(10)]).await;
    let rig = Rig::start(&provider.config("unattended = \"cancel\"")).await;
    leaves_after(&rig, 200, STREAM).await;
    rig.passing(ends_as(&rig, State::Failed)).await;
    let record = rig.operations().await.remove(0);
    assert_eq!(record.reason(), Some("all clients left, so the generation was cancelled"));
    assert!(record.outcome.unwrap().usage.unwrap().output > 0);
}

#[tokio::test]
async fn generations_without_clients_are_limited() {
    let provider = Provider::start(&[Play::Drip(10); 3]).await;
    let rig = Rig::start(&provider.config("max_unattended = 1\nattempts = 1")).await;
    for prompt in ["a", "b"] {
        leaves_after(&rig, 200, &STREAM.replace("hello", prompt)).await;
    }
    let count = async |state| rig.states().await.iter().filter(|one| **one == state).count();
    rig.passing(until("one is cancelled", async || count(State::Failed).await == 1)).await;
    assert_eq!(count(State::Running).await, 1, "one of them continues");
    let all = rig.operations().await;
    let cancelled = all.iter().find(|record| record.state == State::Failed).unwrap();
    assert!(cancelled.reason().unwrap().contains("max_unattended"), "{:?}", cancelled.reason());
}

#[tokio::test]
async fn an_answer_is_complete_at_its_protocols_end_even_if_the_body_goes_on() {
    let provider = Provider::start(&[Play::Open]).await;
    let rig = Rig::start(&provider.config("")).await;
    let got = ask(&rig, &[], STREAM).await;
    assert_eq!((got.body.as_ref(), provider.generations()), (whole(1).as_bytes(), 1));
    assert_eq!(rig.states().await, [State::Done]);
}

#[tokio::test]
async fn an_answer_with_another_content_type_or_compression_is_the_answer() {
    for play in [Play::Typed("text/plain"), Play::Typed("application/json"), Play::Typed("text/event-stream")]
    {
        for (body, expected) in [(STREAM, "1-0 "), (ASK, "c-1")] {
            let provider = Provider::start(&[play]).await;
            let rig = Rig::start(&provider.config("")).await;
            let got = ask(&rig, &[], body).await;
            let text = String::from_utf8_lossy(&got.body);
            assert!(got.status == StatusCode::OK && text.contains(expected), "{play:?}: {got:?}");
            assert_eq!(provider.generations(), 1, "{play:?}");
        }
    }
    let provider = Provider::start(&[Play::Gzip; 2]).await;
    let rig = Rig::start(&provider.config("")).await;
    let got = ask(&rig, &[], STREAM).await;
    assert_eq!((got.body.as_ref(), got.header("content-encoding")), (whole(1).as_bytes(), None));
    assert_eq!(ask(&rig, &[], ASK).await.json()["id"], "c-2");
    for status in [200, 400] {
        let body = b"\x8b\x06\x80{\"choices\":[]}\x03";
        let provider = Provider::start(&[Play::Brotli(status, body)]).await;
        let rig = Rig::start(&provider.config("")).await;
        let got = ask(&rig, &[], ASK).await;
        assert_eq!((got.status.as_u16(), got.body.as_ref()), (status, &br#"{"choices":[]}"#[..]));
        assert_eq!((got.header("content-encoding"), provider.generations()), (None, 1));
    }
}

#[tokio::test]
async fn equal_calls_at_two_gateways_at_once_are_two_samples() {
    for headers in [&[][..], &[("once-sample", "new")], &[("once-scope", "s"), ("once-run", "a")]] {
        let provider = Provider::start(&[Play::Held, Play::Held]).await;
        let rig = Rig::start(&provider.config("")).await;
        let other = rig.beside().await;
        let answering = answer_one_by_one(&rig, &provider, 2);
        let (one, two, ()) = tokio::join!(ask(&rig, headers, ASK), ask(&other, headers, ASK), answering);
        let ids: BTreeSet<String> = [one, two].map(|got| got.json()["id"].to_string()).into();
        assert_eq!((ids.len(), provider.generations()), (2, 2), "{headers:?}");
    }
}

#[tokio::test]
async fn a_sample_is_not_a_step_of_its_run() {
    let provider = Provider::start(&[]).await;
    let rig = Rig::start(&provider.config("")).await;
    let ask = async |run: &str, headers: &[(&str, &str)]| {
        let mut all = vec![("once-scope", "job"), ("once-run", run)];
        all.extend(headers);
        ask(&rig, &all, ASK).await.json()["id"].as_str().unwrap().to_owned()
    };
    let new = ("once-sample", "New");
    assert_eq!((ask("a", &[]).await, ask("a", &[new]).await), ("c-1".to_owned(), "c-2".to_owned()));
    assert_eq!(ask("a", &[]).await, "c-3");
    assert_eq!((ask("b", &[]).await, ask("b", &[]).await), ("c-1".to_owned(), "c-3".to_owned()));
    for (name, value) in [("once-sample", "old"), ("once-run", "")] {
        let headers = [("once-scope", "job"), (name, value)];
        assert_eq!(super::models::ask(&rig, &headers, ASK).await.status, StatusCode::BAD_REQUEST, "{name}");
    }
}

#[tokio::test]
async fn each_of_several_clients_that_time_out_gets_a_sample_of_its_own() {
    let provider = Provider::start(&[Play::Held; 3]).await;
    let rig = Rig::start(&provider.config("")).await;
    let waiting = tokio::join!(sends(&rig, ASK), sends(&rig, ASK), sends(&rig, ASK));
    provider.has(3).await;
    drop(waiting);
    let retry = || ask(&rig, &[("x-stainless-retry-count", "1")], ASK);
    let (a, b, c, ()) = tokio::join!(retry(), retry(), retry(), async { provider.open_gate(3) });
    let answers: BTreeSet<_> = [a.body, b.body, c.body].into();
    assert_eq!((answers.len(), provider.generations()), (3, 3));
}

#[tokio::test]
async fn a_spent_budget_says_why_and_counts_what_was_wasted() {
    let provider = Provider::start(&[Play::Cut; 3]).await;
    let rig = Rig::start(&provider.config("")).await;
    let got = ask(&rig, &[("idempotency-key", "k")], ASK).await;
    let told = got.json();
    assert_eq!((got.status, &told["ran"]), (StatusCode::FAILED_DEPENDENCY, &true.into()), "{told}");
    assert!(told["detail"].as_str().unwrap().contains("the answer broke off"), "{told}");
    let input = ASK.len() / 4;
    let wasted: usize = got.header("once-wasted-tokens").unwrap().parse().unwrap();
    assert_eq!((wasted, got.header("once-tokens")), (3 * input, None));
    let retry = ask(&rig, &[("idempotency-key", "k")], ASK).await;
    assert_eq!((retry.status, &retry.json()["ran"]), (StatusCode::FAILED_DEPENDENCY, &false.into()));
}
