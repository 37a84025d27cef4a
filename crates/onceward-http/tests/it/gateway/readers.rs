//! Retry or repeat: a retry with a new key comes from a client that left without its answer.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use onceward::State;
use tokio::net::TcpStream;

use crate::common::until;
use crate::gateway::rig::{Got, Rig};
use crate::gateway::vendor::{Act, Vendor};
use crate::gateway::{CHARGE, plain, stripe};

const PAY: &str = "/gw/api/pay";

async fn pay(rig: &Rig, key: &str) -> Got {
    rig.send(Method::POST, PAY, &[("idempotency-key", key)], "100").await
}

/// A client of HTTP/1.1 that has sent its request and waits.
async fn waiting(rig: &Rig, key: &str) -> TcpStream {
    rig.waiting(PAY, &format!("idempotency-key: {key}\r\n"), "100").await
}

/// Waits until this number of keys is recorded.
async fn keys(rig: &Rig, count: usize) {
    until("the keys are known", async || rig.aliases().await >= count).await;
}

/// A client of HTTP/2 with one connection.
async fn h2(rig: &Rig) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(rig.url.strip_prefix("http://").unwrap()).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn h2_pay(rig: &Rig, key: &str, amount: &'static str) -> Request<Full<Bytes>> {
    Request::post(format!("{}{PAY}", rig.url)).header("idempotency-key", key).body(amount.into()).unwrap()
}

#[tokio::test]
async fn two_clients_that_wait_with_two_keys_have_two_operations() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Gate, Act::Gate, Act::Gate]);
    let rig = Rig::start(&plain(&vendor, "")).await;
    let (a, b, c, ()) = tokio::join!(pay(&rig, "a"), pay(&rig, "b"), pay(&rig, "c"), async {
        vendor.has(3).await;
        vendor.open_gate(3);
    });
    assert_eq!(vendor.effects(), 3, "each of them wanted one");
    assert!(a.body != b.body && b.body != c.body && a.body != c.body);
    rig.delivered().await;
    for (key, first) in [("a", &a), ("b", &b), ("c", &c)] {
        let retry = pay(&rig, key).await;
        assert_eq!((retry.header("idempotent-replayed"), &retry.body), (Some("true"), &first.body), "{key}");
    }
    assert_eq!(vendor.effects(), 3);
}

#[tokio::test]
async fn one_key_at_the_same_time_is_one_operation() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Gate]);
    let rig = Rig::start(&plain(&vendor, "")).await;
    let (a, b, c, ()) = tokio::join!(pay(&rig, "a"), pay(&rig, "a"), pay(&rig, "a"), async {
        vendor.has(1).await;
        vendor.open_gate(1);
    });
    assert_eq!((vendor.effects(), vendor.posts().len()), (1, 1));
    assert!([&a, &b, &c].iter().all(|got| got.status == StatusCode::OK && got.body == a.body));
}

#[tokio::test]
async fn a_new_key_after_the_client_left_is_a_retry() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Gate]);
    let rig = Rig::start(&plain(&vendor, "")).await;
    let client = waiting(&rig, "a").await;
    vendor.has(1).await;
    drop(client);
    let (retry, ()) = tokio::join!(pay(&rig, "b"), async {
        keys(&rig, 2).await;
        vendor.open_gate(1);
    });
    assert_eq!((retry.status, retry.header("once-rule")), (StatusCode::OK, Some("retry")));
    assert_eq!((retry.header("idempotent-replayed"), vendor.effects()), (Some("true"), 1));
    rig.delivered().await;
    // Both keys are its keys from now on, and the answer was delivered.
    for key in ["a", "b"] {
        assert_eq!(pay(&rig, key).await.header("idempotent-replayed"), Some("true"), "{key}");
    }
    assert_eq!((pay(&rig, "c").await.header("once-rule"), vendor.effects()), (Some("repeat"), 2));
}

/// A request waits for its turn beside an equal one, and its client leaves meanwhile. It waits five times as long as a
/// look of this test, and all of this runs on one thread: the client leaves before the wait is over.
#[tokio::test]
async fn nothing_is_sent_for_a_client_that_has_left_before() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Gate]);
    let rig = Rig::start(&plain(&vendor, "")).await;
    let (wanted, ()) = tokio::join!(pay(&rig, "wanted"), async {
        vendor.has(1).await;
        let leaves = waiting(&rig, "abandoned").await;
        until("it waits", async || rig.clock.sleepers(20) > 0).await;
        drop(leaves);
        until("its wait is over", async || rig.clock.sleeps_begun(20) == 5 && rig.clock.sleepers(20) == 0)
            .await;
        vendor.open_gate(1);
    });
    assert_eq!(wanted.status, StatusCode::OK);
    rig.delivered().await;
    assert_eq!((vendor.posts().len(), rig.states().await), (1, vec![State::Done]), "nothing was begun");
    let late = pay(&rig, "abandoned").await;
    assert_eq!((late.status, vendor.effects()), (StatusCode::OK, 2), "its key can be used");
}

#[tokio::test]
async fn a_client_that_left_before_the_end_is_known_after_it() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Gate]);
    let rig = Rig::start(&plain(&vendor, "")).await;
    let client = waiting(&rig, "a").await;
    vendor.has(1).await;
    drop(client);
    vendor.open_gate(1);
    until("the call ends", async || rig.states().await == [State::Done]).await;
    // The clock stands still, so it does not wait for a note of the delivery.
    let retry = pay(&rig, "b").await;
    assert_eq!((retry.header("idempotent-replayed"), vendor.effects()), (Some("true"), 1));
}

#[tokio::test]
async fn a_retry_belongs_to_the_operation_whose_client_left() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Gate, Act::Gate]);
    let rig = Rig::start(&plain(&vendor, "")).await;
    let leaves = waiting(&rig, "a").await;
    vendor.has(1).await;
    let retry = async {
        vendor.has(2).await;
        drop(leaves);
        pay(&rig, "c").await
    };
    let (stays, retry, ()) = tokio::join!(pay(&rig, "b"), retry, async {
        keys(&rig, 3).await;
        vendor.open_gate(2);
    });
    assert_eq!((vendor.effects(), retry.header("idempotent-replayed")), (2, Some("true")));
    assert_eq!((retry.json()["id"].as_str(), stays.json()["id"].as_str()), (Some("obj_1"), Some("obj_2")));
    assert_eq!(pay(&rig, "a").await.body, retry.body);
}

#[tokio::test]
async fn streams_of_http_2_have_clients_of_their_own() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Gate, Act::Gate]);
    let rig = Rig::start(&plain(&vendor, "")).await;
    let mut client = h2(&rig).await;
    let (a, b) =
        (client.send_request(h2_pay(&rig, "a", "100")), client.send_request(h2_pay(&rig, "b", "100")));
    let (a, b, ()) = tokio::join!(a, b, async {
        vendor.has(2).await;
        vendor.open_gate(2);
    });
    let (a, b) = (a.unwrap().into_body().collect(), b.unwrap().into_body().collect());
    let (a, b) = tokio::join!(a, b);
    assert!(a.unwrap().to_bytes() != b.unwrap().to_bytes() && vendor.effects() == 2);
    rig.delivered().await;

    // A stream that is reset has no client, although the connection is there.
    vendor.script([Act::Gate]);
    let reset = client.send_request(h2_pay(&rig, "c", "100"));
    let reset = tokio::spawn(reset);
    vendor.has(3).await;
    reset.abort();
    let (retry, ()) = tokio::join!(client.send_request(h2_pay(&rig, "d", "100")), async {
        keys(&rig, 4).await;
        vendor.open_gate(1);
    });
    let retry = retry.unwrap();
    assert_eq!((retry.headers()["once-rule"].as_bytes(), vendor.effects()), (&b"retry"[..], 3));
    drop(retry.into_body().collect().await.unwrap());
    rig.delivered().await;

    // A client that reads slowly is there until it has the last byte.
    vendor.script([Act::Large(6_000_000)]);
    let slow = client.send_request(h2_pay(&rig, "e", "200")).await.unwrap();
    let equal = async |key: &str, amount: &str| {
        rig.send(Method::POST, PAY, &[("idempotency-key", key)], amount).await
    };
    let beside = equal("f", "200").await;
    assert_eq!((beside.header("idempotent-replayed"), vendor.effects()), (None, 5));
    assert_eq!(slow.into_body().collect().await.unwrap().to_bytes().len(), 6_000_000);
    // One that leaves in the middle of its answer is not.
    vendor.script([Act::Large(6_000_000)]);
    let leaves = client.send_request(h2_pay(&rig, "g", "300")).await.unwrap();
    drop(leaves);
    let retry = equal("h", "300").await;
    assert_eq!((retry.header("idempotent-replayed"), vendor.effects()), (Some("true"), 6));
}

/// Equal requests with new keys, one after the other; each answer is read before the next request.
async fn one_after_the_other(rig: &Rig, keys: impl IntoIterator<Item = String>, pause_ms: i64) {
    let stream = TcpStream::connect(rig.url.strip_prefix("http://").unwrap()).await.unwrap();
    let (mut client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for key in keys {
        let request = Request::post(PAY).header("host", "127.0.0.1");
        let request = if key.is_empty() { request } else { request.header("idempotency-key", key) };
        client.ready().await.unwrap();
        let got = client.send_request(request.body(Full::<Bytes>::from("100")).unwrap()).await.unwrap();
        assert_eq!(got.status(), StatusCode::OK);
        drop(got.into_body().collect().await.unwrap());
        rig.clock.step(pause_ms);
    }
}

#[tokio::test]
async fn equal_requests_after_answers_that_were_read_are_all_wanted() {
    let vendor = Vendor::start(None).await;
    let rig = Rig::start(&plain(&vendor, "")).await;
    let mut wanted = 0;
    for pause_ms in [0, 1, 5, 10] {
        one_after_the_other(&rig, (0..20).map(|number| format!("{pause_ms}-{number}")), pause_ms).await;
        one_after_the_other(&rig, std::iter::repeat_n(String::new(), 20), pause_ms).await;
        wanted += 40;
        assert_eq!(vendor.effects(), wanted, "after pauses of {pause_ms} ms");
    }
    let mut client = h2(&rig).await;
    for number in 0..20 {
        let got = client.send_request(h2_pay(&rig, &format!("h2-{number}"), "100")).await.unwrap();
        drop(got.into_body().collect().await.unwrap());
        wanted += 1;
        assert_eq!(vendor.effects(), wanted, "HTTP/2");
    }
}

#[tokio::test]
async fn a_client_that_uses_its_connection_again_has_its_answer() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Gate, Act::Gate, Act::Gate]);
    let rig = Rig::start(&plain(&vendor, "")).await;
    tokio::join!(one_after_the_other(&rig, ["a", "b", "c"].map(str::to_owned), 0), async {
        for posts in 1..=3 {
            vendor.has(posts).await;
            rig.clock.step(1_100);
            vendor.open_gate(1);
        }
    });
    assert_eq!(vendor.effects(), 3, "each answer took longer than a client may wait");
    // On another connection, the same moment after such an answer, it may be a client that gave up.
    assert_eq!((pay(&rig, "d").await.header("once-rule"), vendor.effects()), (Some("retry"), 3));
}

#[tokio::test]
async fn between_two_attempts_a_client_still_waits() {
    let vendor = Vendor::start(Some("idempotency-key")).await;
    vendor.script([Act::Status(500)]);
    let rig = Rig::start(&stripe(&vendor, "").replace("backoff = \"20ms\"", "backoff = \"60s\"")).await;
    let charge = async |key: &str| rig.post(CHARGE, &[("idempotency-key", key)], "amount=1").await;
    let mut first = std::pin::pin!(charge("a"));
    let b = tokio::select! {
        got = &mut first => panic!("its next attempt is a minute later: {got:?}"),
        got = async {
            vendor.has(1).await;
            charge("b").await
        } => got,
    };
    let a = rig.clock.run(10_000, first).await;
    assert_eq!((a.status, b.status, vendor.effects()), (StatusCode::OK, StatusCode::OK, 2));
    assert_ne!(a.body, b.body);
}

#[tokio::test]
async fn a_failure_that_was_told_belongs_to_its_key_alone() {
    let vendor = Vendor::start(Some("idempotency-key")).await;
    vendor.script([Act::Refuse(429, "{}")]);
    let rig = Rig::start(&stripe(&vendor, "")).await;
    let charge = async |key: &str| rig.post(CHARGE, &[("idempotency-key", key)], "amount=1").await;
    assert_eq!(charge("a").await.status, StatusCode::TOO_MANY_REQUESTS);
    let b = charge("b").await;
    let a = charge("a").await;
    assert_eq!((a.status, b.status, vendor.effects()), (StatusCode::OK, StatusCode::OK, 2));
    assert_ne!(a.body, b.body, "the first client does not get the other's charge");
}

#[tokio::test]
async fn new_keys_after_a_doubt_are_retries_of_it() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Reset]);
    let rig = Rig::start(&plain(&vendor, "")).await;
    for key in ["a", "b", "c"] {
        assert_eq!(pay(&rig, key).await.status, StatusCode::FAILED_DEPENDENCY, "{key}");
    }
    let none = rig.send(Method::POST, PAY, &[], "100").await;
    assert_eq!((none.status, vendor.effects()), (StatusCode::FAILED_DEPENDENCY, 1));
}

#[tokio::test]
async fn a_request_at_another_gateway_waits_until_it_is_known_what_it_is() {
    let vendor = Vendor::start(None).await;
    let first = Rig::start(&plain(&vendor, "")).await;
    let second = first.beside().await;

    // Two clients that are there: two operations, one after the other.
    vendor.script([Act::Gate]);
    let second_pays = async {
        vendor.has(1).await;
        pay(&second, "b").await
    };
    let (a, b, ()) = tokio::join!(pay(&first, "a"), second_pays, async {
        // The longest pause between two looks.
        until("it has looked several times", async || first.clock.sleepers(200) > 0).await;
        vendor.open_gate(1);
    });
    assert_eq!((a.status, b.status, vendor.effects()), (StatusCode::OK, StatusCode::OK, 2));
    assert_ne!(a.body, b.body);
    first.delivered().await;
    // Each gateway knows the other's key.
    for (rig, key, body) in [(&second, "a", &a.body), (&first, "b", &b.body)] {
        let retry = pay(rig, key).await;
        assert_eq!((retry.header("idempotent-replayed"), &retry.body), (Some("true"), body));
    }

    // The client of the first gateway left: its retry at the other one is a retry.
    vendor.script([Act::Gate]);
    let client = waiting(&first, "c").await;
    vendor.has(3).await;
    drop(client);
    let (retry, ()) = tokio::join!(pay(&second, "d"), async {
        until("it has looked several times", async || first.clock.sleepers(200) > 0).await;
        vendor.open_gate(1);
        until("the call ends", async || first.states().await.iter().all(|state| *state == State::Done)).await;
        // The other gateway allows two seconds for the note of the delivery.
        first.clock.step(2_000);
    });
    assert_eq!((retry.header("idempotent-replayed"), vendor.effects()), (Some("true"), 3));
    first.delivered().await;

    // The same key at both.
    vendor.script([Act::Gate]);
    let send = |rig| Rig::send(rig, Method::POST, PAY, &[("idempotency-key", "e")], "200");
    let (one, other, ()) = tokio::join!(send(&first), send(&second), async {
        vendor.has(4).await;
        vendor.open_gate(1);
    });
    assert_eq!((one.status, &one.body, vendor.effects()), (StatusCode::OK, &other.body, 4));
}

#[tokio::test]
async fn two_gateways_that_begin_at_once_have_two_operations() {
    let vendor = Vendor::start(None).await;
    let first = Rig::start(&plain(&vendor, "")).await;
    let second = first.beside().await;
    for round in 0..10 {
        let (a_key, b_key) = (format!("a{round}"), format!("b{round}"));
        let (a, b) = tokio::join!(pay(&first, &a_key), pay(&second, &b_key));
        assert_eq!((a.status, b.status, vendor.effects()), (StatusCode::OK, StatusCode::OK, 2 * (round + 1)));
        assert_ne!(a.body, b.body);
        first.delivered().await;
        for (rig, key, body) in [(&second, &a_key, &a.body), (&first, &b_key, &b.body)] {
            assert_eq!(pay(rig, key).await.body, *body);
        }
        assert_eq!(vendor.effects(), 2 * (round + 1));
    }
}

#[tokio::test]
async fn what_stays_unknown_is_not_sent() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Hang]);
    let first = Rig::start(&plain(&vendor, "wait = \"400ms\"")).await;
    let second = first.beside().await;
    let client = waiting(&first, "a").await;
    vendor.has(1).await;
    let held = second.passing(pay(&second, "b")).await;
    assert_eq!((held.status, held.json()["code"].as_str()), (StatusCode::CONFLICT, Some("IN_PROGRESS")));
    assert_eq!((vendor.posts().len(), held.json()["ran"].as_bool()), (1, Some(false)));
    drop(client);
}

#[tokio::test]
async fn the_next_request_is_a_repeat_as_soon_as_the_answer_is_read() {
    let vendor = Vendor::start(None).await;
    let rig = Rig::start(&plain(&vendor, "")).await;
    let mut client = h2(&rig).await;
    for round in 1..=20 {
        let request =
            Request::post(format!("{}{PAY}", rig.url)).body(Full::new(Bytes::from_static(b"100"))).unwrap();
        let answer = client.send_request(request).await.unwrap();
        drop(answer.into_body().collect().await.unwrap());
        assert_eq!(vendor.effects(), round, "the note of the delivery need not be written yet");
    }
}

#[tokio::test]
async fn tenants_with_the_same_key_do_not_meet() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Gate, Act::Gate]);
    let token = |tenant: &str| onceward_http::tenants::TokenHash::of(tenant.as_bytes()).to_string();
    let tenants = format!(
        "[tenant.acme]\ntokens = [\"{}\"]\n[tenant.globex]\ntokens = [\"{}\"]\n",
        token("acme"),
        token("globex")
    );
    let rig = Rig::start(&(plain(&vendor, "") + &tenants)).await;
    let pay = async |tenant: &str, body: &str| {
        rig.send(Method::POST, PAY, &[("once-token", tenant), ("idempotency-key", "k")], body).await
    };
    let (a, b, ()) = tokio::join!(pay("acme", "1"), pay("globex", "2"), async {
        vendor.has(2).await;
        vendor.open_gate(2);
    });
    assert_eq!((a.status, b.status, vendor.effects()), (StatusCode::OK, StatusCode::OK, 2));
}

#[tokio::test]
async fn a_connection_that_is_reset_after_the_answer_did_not_deliver_it() {
    let vendor = Vendor::start(None).await;
    let rig = Rig::start(&plain(&vendor, "")).await;
    let client = waiting(&rig, "a").await;
    // The answer is in the client's buffer, and the client gives up without reading it: its kernel sends a reset.
    client.readable().await.unwrap();
    rig.delivered().await;
    drop(client);
    until("the delivery is taken back", async || rig.operations().await[0].detail.delivered.is_none()).await;
    let retry = pay(&rig, "b").await;
    assert_eq!((retry.header("idempotent-replayed"), vendor.effects()), (Some("true"), 1));
    // A client that has read its answer closes its connection without a reset.
    assert_eq!((pay(&rig, "c").await.header("once-rule"), vendor.effects()), (Some("repeat"), 2));
}
