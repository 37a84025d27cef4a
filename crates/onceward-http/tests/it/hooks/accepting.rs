//! What is accepted, what is a duplicate, and what is not believed.

use onceward::{Clock, Kind, State};
use onceward_http::inbox::{HostEnvironment, Trial, record};
use onceward_testkit::Stepped;
use serde_json::json;

use super::rig::{Handler, Rig, Vendor, preset_of};

fn policy(preset: &str, url: &str) -> String {
    format!(
        "[hook.{preset}]\npreset = \"{}\"\nsecrets = [\"$SECRET\"]\n[hook.{preset}.handler.app]\nurl = \
         \"{url}\"\nbackoff = \"20ms\"\n",
        preset_of(preset)
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_handled_once_however_often_it_arrives() {
    let (handler, url) = Handler::start(&[]).await;
    let rig = Rig::new(&policy("standard", &url)).await;
    let vendor = Vendor::new("standard");
    let first = vendor.event("msg_1", &json!({"type": "invoice.paid", "n": 1}));
    let answer = rig.deliver("standard", &first).await;
    assert_eq!((answer.status, answer.result()), (200, "accepted"), "{}", answer.text);
    let repeats: Vec<_> = (0..20).map(|_| rig.deliver("standard", &first)).collect();
    for answer in futures_util::future::join_all(repeats).await {
        assert_eq!((answer.status, answer.result()), (200, "duplicate"), "{}", answer.text);
    }
    let event = rig.event_when("standard", "msg_1", "done").await;
    assert_eq!(event["type"], "invoice.paid");
    assert_eq!(event["deliveries"][0]["attempts"], 1, "{event}");
    let again =
        rig.deliver("standard", &vendor.event("msg_1", &json!({"type": "invoice.paid", "n": 2}))).await;
    assert_eq!(
        again.result(),
        "duplicate",
        "an id that is signed counts, whatever the counters in its content say"
    );
    let got = handler.got();
    assert_eq!(got.len(), 1);
    assert_eq!(got[0].body, first.body, "byte for byte");
    assert_eq!(got[0].header("once-attempt"), "1");
    assert_eq!(got[0].header("once-event-type"), "invoice.paid");
    assert_eq!(got[0].header("idempotency-key"), got[0].header("webhook-id"));
    assert!(!got[0].headers.contains_key("webhook-signature"), "no secret is configured");
    assert!(
        rig.get("/metrics")
            .await
            .text
            .contains("onceward_inbox_requests_total{source=\"standard\",result=\"duplicate\"} 21")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_first_deliveries_are_one_event() {
    let (handler, url) = Handler::start(&[]).await;
    let rig = Rig::new(&policy("standard", &url)).await;
    let event = Vendor::new("standard").event("msg_1", &json!({"n": 1}));
    let all = futures_util::future::join_all((0..30).map(|_| rig.deliver("standard", &event))).await;
    assert!(all.iter().all(|answer| answer.status == 200));
    assert_eq!(all.iter().filter(|answer| answer.result() == "accepted").count(), 1);
    rig.event_when("standard", "msg_1", "done").await;
    assert_eq!(handler.got().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_captured_body_under_a_fresh_id_does_not_run() {
    let (handler, url) = Handler::start(&[]).await;
    let rig = Rig::new(&policy("github", &url)).await;
    let vendor = Vendor::new("github");
    let body = json!({"ref": "refs/heads/main", "n": 1});
    assert_eq!(rig.deliver("github", &vendor.event("guid-1", &body)).await.result(), "accepted");
    rig.event_when("github", "guid-1", "done").await;
    // GitHub does not sign the id, so anyone who saw the request can send it under another one.
    let replay = rig.deliver("github", &vendor.event("guid-2", &body)).await;
    assert_eq!(
        (replay.status, replay.result()),
        (200, "duplicate"),
        "the sender is not told that it was found out"
    );
    let listed = rig.get("/v1/inbox/github/rejected").await.json();
    assert_eq!(listed["rejected"][0]["reason"], "suspected_replay", "{listed}");
    let mut anonymous = vendor.event("guid-1", &body);
    anonymous.headers.remove("x-github-delivery");
    assert_ne!(
        rig.deliver("github", &anonymous).await.result(),
        "accepted",
        "an id that is not signed can be removed"
    );
    let listed = rig.get("/v1/inbox/github/rejected").await.json();
    let listed = serde_json::json!({ "rejected": [listed["rejected"][1]] });
    assert_eq!(
        (listed["rejected"][0]["id"].as_str(), listed["rejected"][0]["same_as"].as_str()),
        (Some("guid-2"), Some("guid-1"))
    );
    // The replay did not take the id: the event that really has it runs.
    let real =
        rig.deliver("github", &vendor.event("guid-2", &json!({"ref": "refs/heads/main", "n": 2}))).await;
    assert_eq!(real.result(), "accepted");
    rig.event_when("github", "guid-2", "done").await;
    assert_eq!(handler.got().len(), 2);
}

/// An id that is not signed can be used for other content. Either may be the forged one, so both run, each once, and no
/// request that runs nothing takes an id or a digest.
#[tokio::test(flavor = "multi_thread")]
async fn other_content_under_an_id_that_is_not_signed_is_another_event() {
    let (handler, url) = Handler::start(&[]).await;
    let rig = Rig::new(&policy("github", &url)).await;
    let vendor = Vendor::new("github");
    let send = async |id: &str, n: u32| {
        let answer = rig.deliver("github", &vendor.event(id, &json!({"n": n}))).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.result().to_owned()
    };
    assert_eq!(send("guid-1", 1).await, "accepted");
    // Content of guid-2, which was seen on its way, under an id that is known.
    assert_eq!(send("guid-1", 2).await, "accepted");
    assert_eq!(send("guid-2", 2).await, "duplicate", "the content has run");
    let listed = rig.get("/v1/inbox/github/rejected").await.json();
    assert_eq!(listed["rejected"][0]["reason"], "suspected_replay", "{listed}");
    for (id, n) in [("guid-1", 1), ("guid-1", 2)] {
        assert_eq!(send(id, n).await, "duplicate", "a redelivery of {id} with {n}");
    }
    assert_eq!(rig.get("/v1/inbox/github/rejected").await.json()["rejected"].as_array().unwrap().len(), 1);
    // Content of guid-3 under the id of guid-4, before either arrives.
    assert_eq!(send("guid-4", 3).await, "accepted");
    assert_eq!(send("guid-4", 4).await, "accepted", "the genuine event is not lost");
    assert_eq!(send("guid-3", 3).await, "duplicate");
    rig.until(async || (handler.got().len() == 4).then_some(())).await;
    let mut bodies: Vec<String> =
        handler.got().iter().map(|got| String::from_utf8(got.body.to_vec()).unwrap()).collect();
    bodies.sort();
    assert_eq!(bodies, [1, 2, 3, 4].map(|n| format!("{{\"n\":{n}}}")));
    let events = rig.get("/v1/inbox/github/events").await.json();
    let reused: Vec<bool> =
        events["events"].as_array().unwrap().iter().map(|event| event["id_reused"] == true).collect();
    assert_eq!(reused, [true, false, true, false], "{events}");
}

/// A source whose id is signed in some requests and not in others: an id that was not signed keeps no signed one out.
#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_is_not_signed_does_not_keep_a_signed_one_out() {
    let (handler, url) = Handler::start(&[]).await;
    let id = "id = [\"$.id\", \"header:X-Id\"]\n";
    let rig = Rig::new(&policy("stripe", &url).replace("secrets", &format!("{id}secrets"))).await;
    let vendor = Vendor::new("stripe");
    let mut forged = vendor.event("", &json!({"n": 1}));
    forged.headers.insert("x-id", "evt_1".parse().unwrap());
    assert_eq!(rig.deliver("stripe", &forged).await.result(), "accepted");
    let genuine = vendor.event("", &json!({"id": "evt_1"}));
    assert_eq!(rig.deliver("stripe", &genuine).await.result(), "accepted");
    for again in [&forged, &genuine] {
        assert_eq!(rig.deliver("stripe", again).await.result(), "duplicate");
    }
    rig.until(async || (handler.got().len() == 2).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn contents_that_share_an_id_at_the_same_time_run_once_each() {
    let (handler, url) = Handler::start(&[]).await;
    let rig = Rig::new(&policy("github", &url)).await;
    let vendor = Vendor::new("github");
    let all: Vec<_> =
        (0..24).map(|n| vendor.event(&format!("guid-{}", n % 2), &json!({"n": n % 3}))).collect();
    loop {
        let answers = all.iter().map(|event| rig.deliver("github", event));
        let answers = futures_util::future::join_all(answers).await;
        assert!(answers.iter().all(|answer| answer.status == 200 || answer.status == 503));
        // A vendor sends again what was answered with 503.
        if answers.iter().all(|answer| answer.result() == "duplicate") {
            break;
        }
    }
    rig.until(async || {
        let events = rig.get("/v1/inbox/github/events?progress=pending").await.json();
        events["events"].as_array().unwrap().is_empty().then_some(())
    })
    .await;
    let mut bodies: Vec<_> = handler.got().iter().map(|got| got.body.clone()).collect();
    bodies.sort();
    assert_eq!(bodies, [0, 1, 2].map(|n| format!("{{\"n\":{n}}}")));
}

/// A ledger of an earlier version may have content whose digest is bound to an event with other content.
#[tokio::test(flavor = "multi_thread")]
async fn content_that_was_bound_to_the_event_of_other_content_runs() {
    let (handler, url) = Handler::start(&[]).await;
    let rig = Rig::new(&policy("github", &url)).await;
    let vendor = Vendor::new("github");
    for (id, n) in [("guid-1", 1), ("guid-2", 2)] {
        rig.deliver("github", &vendor.event(id, &json!({"n": n}))).await;
        rig.event_when("github", id, "done").await;
    }
    let records = rig.records().await;
    let of =
        |key: &str| records.iter().find(|record| record.key.text == key && record.name == "github").unwrap();
    let (first, second) = (of("guid-1"), of("guid-2"));
    let guard = records.iter().find(|record| record.alias_of().as_ref() == Some(&second.id)).unwrap();
    let mut wrong = onceward::Record { version: guard.version + 1, ..guard.clone() };
    let text = format!("{{\"alias_of\":\"{}\"}}", first.id);
    wrong.outcome.as_mut().unwrap().data =
        serde_json::value::RawValue::from_string(text).ok().map(Into::into);
    rig.store.swap(Some(guard.version), wrong, onceward::WriteMode::Async).await.unwrap();
    let lost = records.iter().filter(|record| record.key.text == "guid-2");
    for record in lost {
        assert!(rig.store.delete(&record.id, record.version, onceward::WriteMode::Async).await.unwrap());
    }
    let genuine = rig.deliver("github", &vendor.event("guid-2", &json!({"n": 2}))).await;
    assert_eq!(genuine.result(), "accepted", "{}", genuine.text);
    rig.event_when("github", "guid-2", "done").await;
    assert_eq!(handler.got().len(), 3);
}

/// PayPal signs only the CRC-32 of a body, so another body can be sent with a captured signature.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_paypal_with_an_equal_crc_32_does_not_run_twice() {
    let (handler, url) = Handler::start(&[]).await;
    let trial = std::sync::Arc::new(Trial::new("paypal").unwrap());
    let webhook = trial.config.webhook_id.clone().unwrap();
    let policy =
        format!("[hook.paypal]\nwebhook_id = \"{webhook}\"\n[hook.paypal.handler.app]\nurl = \"{url}\"\n");
    let clock = Stepped::new();
    let (now_ms, store) = (clock.now_ms(), std::sync::Arc::new(onceward::MemoryStore::new(clock.clone())));
    let environment = HostEnvironment::default().certificates(trial.clone());
    let rig = Rig::with(clock, store, &policy, environment).await;
    let signed = trial.sign(&trial.source.sample("https://example.com/hooks", 1, now_ms).unwrap()).unwrap();
    let first = rig.deliver("paypal", &signed).await;
    assert_eq!(first.result(), "accepted", "{}", first.text);
    let mut forged = signed.clone();
    let body = br#"{"id":"WH-FORGED","event_type":"PAYMENT.SALE.COMPLETED","resource":{"amount":"9999.00"}}"#;
    let patch = crc32_patch(body, crc32fast::hash(&signed.body));
    forged.body = [&body[..], &patch].concat().into();
    assert_eq!(crc32fast::hash(&forged.body), crc32fast::hash(&signed.body), "its signature is valid");
    let answer = rig.deliver("paypal", &forged).await;
    assert_ne!(answer.result(), "accepted", "{}", answer.text);
    rig.until(async || (!handler.got().is_empty()).then_some(())).await;
    rig.deliver("paypal", &forged).await;
    assert_eq!(handler.got().len(), 1);
    assert_eq!(handler.got()[0].body, signed.body);
    // An event that PayPal sends again has a new transmission id. It runs nothing, and takes nothing: the next event with
    // that transmission runs.
    let mut next = trial.source.sample("https://example.com/hooks", 2, now_ms).unwrap();
    let genuine = next.body.clone();
    next.body = signed.body.clone();
    assert_eq!(rig.deliver("paypal", &trial.sign(&next).unwrap()).await.result(), "duplicate");
    next.body = genuine;
    assert_eq!(rig.deliver("paypal", &trial.sign(&next).unwrap()).await.result(), "accepted");
}

/// Four bytes that give `text` and them the CRC-32 `wanted`, found by going through the polynomial backwards.
fn crc32_patch(text: &[u8], wanted: u32) -> [u8; 4] {
    let mut state = !wanted;
    for _ in 0..32 {
        state = if state & 0x8000_0000 == 0 { state << 1 } else { ((state ^ 0xEDB8_8320) << 1) | 1 };
    }
    (state ^ !crc32fast::hash(text)).to_le_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn many_replays_at_once_run_once() {
    let (handler, url) = Handler::start(&[]).await;
    let rig = Rig::new(&policy("github", &url)).await;
    let vendor = Vendor::new("github");
    let body = json!({"n": 1});
    let events: Vec<_> = (0..16).map(|n| vendor.event(&format!("guid-{n}"), &body)).collect();
    let all = futures_util::future::join_all(events.iter().map(|event| rig.deliver("github", event))).await;
    // Some may find the winner still being recorded and get 503; no other one is accepted.
    assert!(all.iter().all(|answer| answer.status == 200 || answer.status == 503));
    assert_eq!(all.iter().filter(|answer| answer.result() == "accepted").count(), 1);
    let again = futures_util::future::join_all(events.iter().map(|event| rig.deliver("github", event))).await;
    assert!(again.iter().all(|answer| answer.result() == "duplicate"));
    rig.until(async || (!handler.got().is_empty()).then_some(())).await;
    assert_eq!(handler.got().len(), 1);
}

/// A crash between the two writes of an event whose id is not signed: the vendor's redelivery repairs it.
#[tokio::test(flavor = "multi_thread")]
async fn a_redelivery_repairs_an_event_that_was_half_written() {
    let (handler, url) = Handler::start(&[]).await;
    let rig = Rig::new(&policy("github", &url)).await;
    let vendor = Vendor::new("github");
    let body = json!({"n": 1});
    let first = vendor.event("guid-1", &body);
    assert_eq!(rig.deliver("github", &first).await.result(), "accepted");
    rig.event_when("github", "guid-1", "done").await;
    // As if only the guard had been written.
    for lost in rig.records().await.iter().filter(|record| record.kind != Kind::Guard) {
        assert!(rig.store.delete(&lost.id, lost.version, onceward::WriteMode::Async).await.unwrap());
    }
    let other = rig.deliver("github", &vendor.event("guid-2", &body)).await;
    assert_eq!(other.status, 503, "it is not known yet which of them is the event");
    assert_eq!(rig.deliver("github", &first).await.result(), "accepted");
    rig.event_when("github", "guid-1", "done").await;
    assert_eq!(handler.got().len(), 2, "the first run was forgotten with its record");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_forged_requests_writes_nothing() {
    let (_, url) = Handler::start(&[]).await;
    let rig = Rig::new(&policy("stripe", &url)).await;
    let mut forged = Vendor::new("stripe").event("evt_1", &json!({"id": "evt_1", "type": "x"}));
    forged.body = r#"{"id":"evt_2","type":"x"}"#.into();
    for _ in 0..50 {
        let answer = rig.deliver("stripe", &forged).await;
        assert_eq!(answer.status, 401);
        assert!(
            !answer.text.contains("signature"),
            "a forger is not told which check failed: {}",
            answer.text
        );
    }
    assert!(rig.records().await.is_empty());
    let listed = rig.get("/v1/inbox/stripe/rejected").await.json();
    assert_eq!(listed["rejected"].as_array().unwrap().len(), 50);
    assert_eq!(listed["rejected"][0]["reason"], "signature");
    assert_eq!(
        rig.send(axum::http::Method::POST, "/hooks/none", Default::default(), Vec::new()).await.status,
        404
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_no_handler_wants_is_remembered_and_done() {
    let (handler, url) = Handler::start(&[]).await;
    let rig = Rig::new(&format!("{}types = [\"invoice.*\"]\n", policy("standard", &url))).await;
    let event = Vendor::new("standard").event("msg_1", &json!({"type": "ping"}));
    assert_eq!(rig.deliver("standard", &event).await.result(), "accepted");
    assert_eq!(rig.deliver("standard", &event).await.result(), "duplicate");
    rig.event_when("standard", "msg_1", "done").await;
    let records = rig.records().await;
    assert_eq!((records.len(), records[0].state), (1, State::Done));
    assert_eq!(records[0].id, record::event_id("standard", "msg_1"));
    assert!(handler.got().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_of_the_api_cannot_name_an_event() {
    let (_, url) = Handler::start(&[]).await;
    let rig = Rig::new(&policy("standard", &url)).await;
    let begin = json!({"name": "standard", "scope": "hooks~standard", "key": "msg_1"});
    let refused = rig.post("/v1/operations", begin).await;
    assert_eq!(refused.status, 400, "{}", refused.text);
    assert!(refused.text.contains("webhook inbox"), "{}", refused.text);
}

/// A server on a loopback address refuses other names, so that no page in a browser reaches it. Webhooks are signed.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_with_a_public_name_reaches_only_the_hooks() {
    let (_, url) = Handler::start(&[]).await;
    let rig = Rig::new(&policy("standard", &url)).await;
    let event = Vendor::new("standard").event("msg_1", &json!({"n": 1}));
    let answer = rig.deliver_through_proxy("/hooks/standard", &event).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let answer = rig.deliver_through_proxy("/v1/operations", &event).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_on_one_ledger_are_one_inbox() {
    let (handler, url) = Handler::start(&[]).await;
    let one = Rig::new(&policy("standard", &url)).await;
    let two = one.beside().await;
    let vendor = Vendor::new("standard");
    for n in 0..20 {
        let event = vendor.event(&format!("msg_{n}"), &json!({ "n": n }));
        let both =
            futures_util::future::join(one.deliver("standard", &event), two.deliver("standard", &event))
                .await;
        let accepted =
            [both.0.result(), both.1.result()].into_iter().filter(|word| *word == "accepted").count();
        assert_eq!(accepted, 1);
        two.event_when("standard", &format!("msg_{n}"), "done").await;
    }
    assert_eq!(handler.got().len(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_too_long_is_listed_with_the_reason() {
    let rig = Rig::new(
        "[hook.standard]\npreset = \"standard-webhooks\"\nsecrets = [\"$SECRET\"]\nmax_body = 64\n\
         [hook.standard.handler.app]\npull = true\n",
    )
    .await;
    let long = Vendor::new("standard").event("msg_1", &json!({"text": "x".repeat(100)}));
    assert_eq!(rig.deliver("standard", &long).await.status, 413);
    let listed = rig.get("/v1/inbox/standard/rejected").await.json();
    assert_eq!(listed["rejected"][0]["reason"], "body", "{listed}");
    assert_eq!(listed["rejected"][0]["message"], "the body is longer than 64 bytes", "{listed}");
}

/// Two lengths: the chunks count, and what follows them on the connection is not read (RFC 9112, section 6.1).
#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_two_lengths_ends_its_connection() {
    let (_, url) = Handler::start(&[]).await;
    let rig = Rig::new(&policy("standard", &url)).await;
    let mut signed = Vendor::new("standard").event("msg_1", &json!({"n": 1}));
    let body = signed.body.clone();
    signed.body = format!("{:x}\r\n{}\r\n0\r\n\r\n", body.len(), String::from_utf8_lossy(&body)).into();
    signed.headers.insert("transfer-encoding", "chunked".parse().unwrap());
    // It returns when the server has closed the connection.
    let answer = rig.deliver_on_one_connection("/hooks/standard", &signed).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
}

/// What is wrong with a request that may be authentic is said as it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_may_be_authentic_is_not_called_a_forgery() {
    struct Nowhere;
    #[async_trait::async_trait]
    impl onceward_http::inbox::FetchCertificate for Nowhere {
        async fn fetch(&self, _: &str) -> Result<axum::body::Bytes, onceward_http::inbox::CertificateError> {
            Err(onceward_http::inbox::CertificateError("no route to host".to_owned()))
        }
    }
    let trial = Trial::new("paypal").unwrap();
    let webhook = trial.config.webhook_id.clone().unwrap();
    let policy = format!(
        "[hook.paypal]\nwebhook_id = \"{webhook}\"\n[hook.batch]\npreset = \"stripe\"\nsecrets = [\"$SECRET\"]\n\
         events = \"array\"\n"
    );
    let clock = Stepped::new();
    let (now_ms, store) = (clock.now_ms(), std::sync::Arc::new(onceward::MemoryStore::new(clock.clone())));
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned();
    let environment =
        HostEnvironment::variables(move |_| Some(secret.clone())).certificates(std::sync::Arc::new(Nowhere));
    let rig = Rig::with(clock, store, &policy, environment).await;
    let signed = trial.sign(&trial.source.sample("https://example.com/hooks", 1, now_ms).unwrap()).unwrap();
    let answer = rig.deliver("paypal", &signed).await;
    assert_eq!((answer.status, answer.json()["retryable"].as_bool()), (503, Some(true)), "{}", answer.text);
    assert!(answer.headers.contains_key("retry-after") && answer.text.contains("could not be fetched"));
    let answer = rig.deliver("batch", &Vendor::new("stripe").event("evt_1", &json!({"id": "evt_1"}))).await;
    assert_eq!(answer.status, 400, "{}", answer.text);
    assert!(answer.text.contains("is authentic, but"), "{}", answer.text);
}
