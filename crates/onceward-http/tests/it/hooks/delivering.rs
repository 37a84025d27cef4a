//! How events reach their handlers: retries, doubts, dead letters, order, fan-out, restarts.

use onceward::event::Again;
use onceward::{Ledger, State};
use onceward_http::inbox::record;
use serde_json::json;

use super::rig::{Handler, Rig, Vendor};
use crate::common::until;

fn policy(url: &str, more: &str) -> String {
    format!(
        "[hook.standard]\npreset = \"standard-webhooks\"\nsecrets = [\"$SECRET\"]\n[hook.standard.handler.app]\nurl = \"{url}\"\nbackoff = \
         \"20ms\"\n{more}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_honours_the_key_is_tried_again_under_the_same_key() {
    let (handler, url) = Handler::start(&[500, 503, 429]).await;
    let rig = Rig::new(&policy(&url, "secret = \"$SECRET\"")).await;
    rig.deliver("standard", &Vendor::new("standard").event("msg_1", &json!({"n": 1}))).await;
    let event = rig.event_when("standard", "msg_1", "done").await;
    assert_eq!(event["deliveries"][0]["attempts"], 4, "{event}");
    let got = handler.got();
    let attempts: Vec<&str> = got.iter().map(|one| one.header("once-attempt")).collect();
    assert_eq!(attempts, ["1", "2", "3", "4"]);
    assert!(got.iter().all(|one| one.header("idempotency-key") == got[0].header("idempotency-key")));
    assert!(got.iter().all(|one| one.header("webhook-signature").starts_with("v1,")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_of_the_class_once_is_not_tried_again_after_a_doubt() {
    let (handler, url) = Handler::start(&[429, 500]).await;
    let rig = Rig::new(&policy(&url, "class = \"once\"")).await;
    rig.deliver("standard", &Vendor::new("standard").event("msg_1", &json!({"n": 1}))).await;
    // 429 is a refusal, so it is tried again; 500 says nothing, so it is not.
    let event = rig.event_when("standard", "msg_1", "in_doubt").await;
    assert_eq!(event["deliveries"][0]["attempts"], 2, "{event}");
    let refused = rig.post("/v1/inbox/standard/events/msg_1/retry", json!({})).await;
    assert_eq!(refused.status, 400);
    assert!(refused.text.contains("in doubt") && refused.text.contains("--again"), "{}", refused.text);
    let again = rig.post("/v1/inbox/standard/events/msg_1/retry", json!({"again": true})).await;
    assert_eq!(again.status, 200, "{}", again.text);
    rig.event_when("standard", "msg_1", "done").await;
    assert_eq!(handler.got().len(), 3);
}

/// The class that is configured when a delivery is in doubt decides about it, not the class of its last attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_doubt_under_a_class_that_was_changed_is_listed_and_lets_later_events_continue() {
    let (handler, url) = Handler::start(&[500]).await;
    let order = "order = \"/customer\"\n";
    let rig = Rig::new(&policy(&url, order).replace("20ms", "1h")).await;
    let vendor = Vendor::new("standard");
    rig.deliver("standard", &vendor.event("msg_1", &json!({"customer": "c"}))).await;
    until("it is in doubt", async || {
        let event = rig.get("/v1/inbox/standard/events/msg_1").await.json();
        event["deliveries"][0]["state"] == "in_doubt"
    })
    .await;
    let rig = rig.restarted_with(&policy(&url, &format!("{order}class = \"once\""))).await;
    rig.deliver("standard", &vendor.event("msg_2", &json!({"customer": "c"}))).await;
    rig.event_when("standard", "msg_2", "done").await;
    let listed = rig.get("/v1/inbox/standard/events?progress=in_doubt").await.json();
    assert_eq!(listed["events"][0]["id"], "msg_1", "{listed}");
    assert_eq!(handler.got().len(), 2);
}

/// A handler that answers in the contract's envelope is believed, whatever its status is.
#[tokio::test(flavor = "multi_thread")]
async fn a_handlers_own_word_counts_more_than_its_status() {
    let (handler, url) = Handler::start(&[]).await;
    let rig = Rig::new(&policy(&url, "class = \"once\"")).await;
    let vendor = Vendor::new("standard");
    for (id, said, progress, attempts) in [
        ("msg_1", (200, r#"{"ok":false,"happened":"no"}"#), "done", 2),
        ("msg_2", (200, r#"{"ok":true,"effect":"held","happened":"no"}"#), "done", 2),
        ("msg_3", (200, r#"{"ok":false,"happened":"unknown"}"#), "in_doubt", 1),
        ("msg_4", (422, r#"{"happened":"unknown"}"#), "in_doubt", 1),
        ("msg_5", (500, r#"{"happened":"no"}"#), "done", 2),
        ("msg_6", (410, r#"{"ok":false,"happened":"yes"}"#), "done", 1),
        ("msg_7", (200, r#"{"ok":true}"#), "done", 1),
    ] {
        handler.says(&[said]);
        rig.deliver("standard", &vendor.event(id, &json!({ "id": id }))).await;
        let event = rig.event_when("standard", id, progress).await;
        assert_eq!(event["deliveries"][0]["attempts"], attempts, "{said:?}: {event}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_whose_attempts_are_spent_is_a_dead_letter_and_can_be_retried_and_replayed() {
    let (handler, url) = Handler::start(&[404, 404]).await;
    let rig = Rig::new(&policy(&url, "attempts = 2")).await;
    rig.deliver("standard", &Vendor::new("standard").event("msg_1", &json!({"n": 1}))).await;
    rig.event_when("standard", "msg_1", "dead").await;
    assert_eq!(handler.got().len(), 2);
    let listed = rig.get("/v1/inbox/standard/events?progress=dead").await.json();
    assert_eq!(listed["events"].as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(rig.post("/v1/inbox/standard/events/msg_1/retry", json!({})).await.status, 200);
    rig.event_when("standard", "msg_1", "done").await;
    assert_eq!(handler.got().len(), 3);
    let nothing = rig.post("/v1/inbox/standard/events/msg_1/retry", json!({})).await;
    assert_eq!(nothing.status, 400, "{}", nothing.text);
    let replayed = rig.post("/v1/inbox/standard/events/msg_1/replay", json!({})).await;
    assert_eq!(replayed.json()["occurrence"], 2, "{}", replayed.text);
    rig.event_when("standard", "msg_1", "done").await;
    let got = handler.got();
    assert_eq!(got.len(), 4);
    assert_ne!(
        got[3].header("idempotency-key"),
        got[2].header("idempotency-key"),
        "it is another occurrence"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_handler_gets_an_event_once_and_only_the_kinds_that_it_wants() {
    let (app, app_url) = Handler::start(&[]).await;
    let (flaky, flaky_url) = Handler::start(&[404, 404, 404]).await;
    let (mail, mail_url) = Handler::start(&[]).await;
    let more = format!(
        "[hook.standard.handler.flaky]\nurl = \"{flaky_url}\"\nbackoff = \"20ms\"\n[hook.standard.handler.mail]\nurl = \
         \"{mail_url}\"\ntypes = [\"mail.*\"]\n"
    );
    let rig = Rig::new(&policy(&app_url, &more)).await;
    let vendor = Vendor::new("standard");
    rig.deliver("standard", &vendor.event("msg_1", &json!({"type": "invoice.paid"}))).await;
    rig.deliver("standard", &vendor.event("msg_2", &json!({"type": "mail.opened"}))).await;
    rig.event_when("standard", "msg_1", "done").await;
    rig.event_when("standard", "msg_2", "done").await;
    assert_eq!((app.got().len(), flaky.got().len(), mail.got().len()), (2, 5, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn events_with_one_value_are_delivered_one_at_a_time_in_the_order_of_their_arrival() {
    let (handler, url) = Handler::start(&[500, 200, 500, 200, 429]).await;
    let rig = Rig::new(&policy(&url, "order = \"/customer\"\nconcurrency = 8")).await;
    let vendor = Vendor::new("standard");
    for n in 0..24 {
        let customer = format!("c{}", n % 3);
        let event = vendor.event(&format!("msg_{n:02}"), &json!({"customer": customer, "n": n}));
        assert_eq!(rig.deliver("standard", &event).await.result(), "accepted");
    }
    for n in 0..24 {
        rig.event_when("standard", &format!("msg_{n:02}"), "done").await;
    }
    let mut last = std::collections::BTreeMap::new();
    for got in handler.got() {
        let body: serde_json::Value = serde_json::from_slice(&got.body).unwrap();
        let (customer, n) = (body["customer"].to_string(), body["n"].as_i64().unwrap());
        let before = last.insert(customer.clone(), n).unwrap_or(-1);
        assert!(n >= before, "{customer}: {n} came after {before}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_is_delivered_after_a_restart() {
    // A socket that does not listen yet: its connections are refused, and its port cannot be taken.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let rig = Rig::new(&policy(&format!("http://{address}/in"), "")).await;
    let vendor = Vendor::new("standard");
    for n in 0..5 {
        rig.deliver("standard", &vendor.event(&format!("msg_{n}"), &json!({ "n": n }))).await;
    }
    let rig = rig.restarted().await;
    let refused = rig.event_when("standard", "msg_0", "pending").await;
    assert_ne!(
        refused["deliveries"][0]["state"], "in_doubt",
        "a refused connection is a definite failure: {refused}"
    );
    let handler = Handler::at(socket.listen(64).unwrap(), &[]);
    for n in 0..5 {
        let again = rig.deliver("standard", &vendor.event(&format!("msg_{n}"), &json!({ "n": n }))).await;
        assert_eq!(again.result(), "duplicate");
        rig.event_when("standard", &format!("msg_{n}"), "done").await;
    }
    assert_eq!(handler.got().len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_handlers_do_not_slow_the_answers() {
    let (handler, url) = Handler::start(&[]).await;
    let held = handler.held().await;
    let rig = Rig::new(&policy(&url, "concurrency = 2")).await;
    let vendor = Vendor::new("standard");
    for n in 0..40 {
        let answer = rig.deliver("standard", &vendor.event(&format!("msg_{n}"), &json!({ "n": n }))).await;
        assert_eq!(answer.result(), "accepted");
    }
    until("it gets two", async || handler.got().len() == 2).await;
    drop(held);
    rig.until(async || (handler.got().len() == 40).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_waits_at_least_as_long_as_it_asked_for() {
    let (handler, url) = Handler::start(&[429, 503]).await;
    handler.asks_for("1");
    let rig = Rig::new(&policy(&url, "")).await;
    handler.looks_at(&rig.clock);
    rig.deliver("standard", &Vendor::new("standard").event("msg_1", &json!({"n": 1}))).await;
    rig.event_when("standard", "msg_1", "done").await;
    let times: Vec<i64> = handler.got().iter().filter_map(|got| got.at_ms).collect();
    assert_eq!(times.len(), 3);
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= 1_000), "{times:?}");
}

/// A retry was once forgotten if another handler of the event was not done yet: its end completed the event.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_can_be_retried_while_another_handler_is_not_done() {
    let (app, app_url) = Handler::start(&[404]).await;
    let (down, down_url) = Handler::start(&[404]).await;
    down.asks_for("3600");
    let more = format!("attempts = 1\n[hook.standard.handler.down]\nurl = \"{down_url}\"\n");
    let rig = Rig::new(&policy(&app_url, &more)).await;
    rig.deliver("standard", &Vendor::new("standard").event("msg_1", &json!({"n": 1}))).await;
    let path = "/v1/inbox/standard/events/msg_1";
    let first_is = async |state: &str| {
        rig.until(async || (rig.get(path).await.json()["deliveries"][0]["state"] == state).then_some(()))
            .await;
    };
    first_is("failed").await;
    let retried = rig.post(&format!("{path}/retry"), json!({})).await;
    assert_eq!(retried.status, 200, "{}", retried.text);
    first_is("done").await;
    let event = rig.event_when("standard", "msg_1", "pending").await;
    assert_eq!((app.got().len(), down.got().len()), (2, 1), "{event}");
}

/// A retry that a person asked for while the last attempt was on its way. The clock does not advance, and a look at the
/// ledger leaves young events to the process that accepted them: so this process must find the release itself.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_was_released_during_its_last_delivery_is_not_left_to_the_next_look() {
    let (handler, url) = Handler::start(&[]).await;
    let rig = Rig::new(&policy(&url, "")).await;
    let vendor = Vendor::new("standard");
    let held = handler.held().await;
    rig.deliver("standard", &vendor.event("msg_1", &json!({"n": 1}))).await;
    until("it is delivered", async || handler.got().len() == 1).await;
    // As `once inbox retry` does it from another process, which cannot tell this one.
    let event = record_of(&rig, "msg_1").await;
    let ledger = Ledger::new(rig.store.clone());
    ledger.events().again(&event.id, Again::Dead).await.unwrap().unwrap();
    drop(held);
    until("it is done", async || {
        let event = rig.get("/v1/inbox/standard/events/msg_1").await;
        event.json()["progress"] == "done"
    })
    .await;
    assert_eq!(handler.got().len(), 1, "it was not delivered again");
}

async fn record_of(rig: &Rig, key: &str) -> std::sync::Arc<onceward::Record> {
    rig.store.load(&record::event_id("standard", key)).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_doubt_at_one_handler_does_not_keep_a_dead_letter_of_another_from_being_retried() {
    let (app, app_url) = Handler::start(&[404]).await;
    let (once, once_url) = Handler::start(&[500]).await;
    let more =
        format!("attempts = 1\n[hook.standard.handler.once]\nurl = \"{once_url}\"\nclass = \"once\"\n");
    let rig = Rig::new(&policy(&app_url, &more)).await;
    rig.deliver("standard", &Vendor::new("standard").event("msg_1", &json!({"n": 1}))).await;
    rig.event_when("standard", "msg_1", "in_doubt").await;
    let retried = rig.post("/v1/inbox/standard/events/msg_1/retry", json!({})).await;
    assert_eq!(retried.status, 200, "{}", retried.text);
    let event = rig.event_when("standard", "msg_1", "in_doubt").await;
    let states = [&event["deliveries"][0]["state"], &event["deliveries"][1]["state"]];
    assert_eq!(states, ["done", "in_doubt"], "{event}");
    assert_eq!((app.got().len(), once.got().len()), (2, 1), "the doubt stays one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_can_be_asked_is_asked_after_a_doubt() {
    let (handler, url) = Handler::start(&[500]).await;
    handler.tells(&[(503, ""), (200, "msg_2"), (200, "event msg_1 was booked")]);
    let probe = "probe = { get = \"/events/{key}/{id}\", expect = \"{id}\" }";
    let rig = Rig::new(&policy(&url, probe)).await;
    rig.deliver("standard", &Vendor::new("standard").event("msg_1", &json!({"n": 1}))).await;
    rig.event_when("standard", "msg_1", "done").await;
    let got = handler.got();
    assert_eq!(got.len(), 1, "it has the event, so it did not get it again");
    let asked = format!("/events/{}/msg_1", got[0].header("idempotency-key"));
    assert_eq!(handler.questions(), [asked.clone(), asked.clone(), asked]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_says_that_it_does_not_have_an_event_gets_it_again() {
    let (handler, url) = Handler::start(&[500]).await;
    handler.tells(&[(404, "")]);
    let more = "probe = { get = \"/events/{key}\" }\n[operation.\"standard/app\"]\nquarantine = \"10ms\"\n";
    let rig = Rig::new(&policy(&url, more)).await;
    rig.deliver("standard", &Vendor::new("standard").event("msg_1", &json!({"n": 1}))).await;
    rig.event_when("standard", "msg_1", "done").await;
    assert_eq!((handler.got().len(), handler.questions().len()), (2, 1));
}

/// One server delivers to an ordered handler. It once delivered the events that it had accepted itself at once, before
/// older ones that another server had acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn events_that_several_servers_accept_are_delivered_in_the_order_of_their_arrival() {
    let (handler, url) = Handler::start(&[]).await;
    let policy = policy(&url, "order = \"/customer\"\n");
    let first = Rig::new(&policy).await;
    let second = first.beside().await;
    let vendor = Vendor::new("standard");
    for n in 0..20 {
        let event = vendor.event(&format!("msg_{n:02}"), &json!({"customer": "c", "n": n}));
        let server = if n % 2 == 0 { &first } else { &second };
        assert_eq!(server.deliver("standard", &event).await.result(), "accepted");
    }
    for n in 0..20 {
        first.event_when("standard", &format!("msg_{n:02}"), "done").await;
    }
    let number =
        |body: &[u8]| serde_json::from_slice::<serde_json::Value>(body).unwrap()["n"].as_i64().unwrap();
    let order: Vec<i64> = handler.got().iter().map(|got| number(&got.body)).collect();
    assert_eq!(order, (0..20).collect::<Vec<_>>());
}

/// Everything about an event is past its time before a handler that was down answers: it gets the event, once.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_does_not_expire_before_its_next_delivery() {
    for sweeps in [false, true] {
        let (handler, url) = Handler::start(&[404]).await;
        let (other, other_url) = Handler::start(&[]).await;
        let more = format!("[hook.standard.handler.other]\nurl = \"{other_url}\"\n");
        let kept = "[hook.standard]\nids = \"6m\"\npayloads = \"6m\"\n";
        let policy = policy(&url, &more).replace("[hook.standard]\n", kept).replace("20ms", "10m");
        let mut rig = Rig::new(&policy).await;
        rig.deliver("standard", &Vendor::new("standard").event("msg_1", &json!({"n": 1}))).await;
        rig.until(async || {
            let event = rig.get("/v1/inbox/standard/events/msg_1").await.json();
            let is = |place: usize, state: &str| event["deliveries"][place]["state"] == state;
            (is(0, "failed") && is(1, "done")).then_some(())
        })
        .await;
        // A server that runs would begin the next delivery now, and see it time out while the clock is stepped.
        rig.end().await;
        rig.clock.step(10 * 60_000);
        if sweeps {
            let ledger = Ledger::new(rig.store.clone());
            // The first sweep leaves tombstones, the second deletes them.
            ledger.admin().sweep(|_| ()).await.unwrap();
            rig.clock.step(30 * 24 * 3_600_000);
            ledger.admin().sweep(|_| ()).await.unwrap();
        }
        let rig = rig.restarted().await;
        rig.event_when("standard", "msg_1", "done").await;
        assert_eq!((handler.got().len(), other.got().len()), (2, 1), "swept: {sweeps}");
    }
}

/// What was acknowledged for a handler that is not configured any more waits for a person, also after its ids and
/// contents are past their time.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_whose_handler_was_removed_is_a_dead_letter_and_can_be_retried() {
    let (handler, url) = Handler::start(&[404]).await;
    let of = |name: &str| {
        policy(&url, "").replace("handler.app", &format!("handler.{name}")).replace("20ms", "10s")
    };
    let rig = Rig::new(&of("app")).await;
    rig.deliver("standard", &Vendor::new("standard").event("msg_1", &json!({"n": 1}))).await;
    until("it was tried", async || handler.got().len() == 1).await;
    let rig = rig.restarted_with(&of("renamed")).await;
    let event = rig.event_when("standard", "msg_1", "dead").await;
    assert_eq!(event["deliveries"][0]["handler"], "app", "{event}");
    let path = "/v1/inbox/standard/events/msg_1/retry";
    assert_eq!(rig.post(path, json!({})).await.status, 200);
    rig.event_when("standard", "msg_1", "dead").await;
    rig.clock.step(90 * 24 * 3_600_000);
    Ledger::new(rig.store.clone()).admin().sweep(|_| ()).await.unwrap();
    rig.event_when("standard", "msg_1", "dead").await;
    let rig = rig.restarted_with(&of("app")).await;
    rig.event_when("standard", "msg_1", "dead").await;
    assert_eq!(rig.post(path, json!({})).await.status, 200);
    rig.event_when("standard", "msg_1", "done").await;
    assert_eq!(handler.got().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_doubt_that_a_person_settles_ends_the_event() {
    let (handler, url) = Handler::start(&[500]).await;
    let rig = Rig::new(&policy(&url, "class = \"once\"")).await;
    rig.deliver("standard", &Vendor::new("standard").event("msg_1", &json!({"n": 1}))).await;
    let event = rig.event_when("standard", "msg_1", "in_doubt").await;
    let delivery = event["deliveries"][0]["operation"].as_str().unwrap().to_owned();
    let settle = json!({"verdict": "done", "evidence": "the order is booked", "by": "ada"});
    let settled = rig.post(&format!("/v1/operations/{delivery}/settle"), settle).await;
    assert_eq!(settled.status, 200, "{}", settled.text);
    rig.event_when("standard", "msg_1", "done").await;
    let listed = rig.get("/v1/inbox/standard/events?progress=in_doubt,dead").await.json();
    assert_eq!(listed["events"], json!([]));
    assert_eq!(record_of(&rig, "msg_1").await.state, State::Done, "whoever lists it records its end");
    assert_eq!(handler.got().len(), 1);
}
