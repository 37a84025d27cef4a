//! What a stop of a source does to its events and deliveries.

use onceward::{Error, Ledger, OperationId, Word};
use serde_json::json;

use super::rig::{Handler, Rig, Vendor};

const SCOPE: &str = "hooks~standard";

fn policy(url: &str) -> String {
    format!(
        "[hook.standard]\npreset = \"standard-webhooks\"\nsecrets = [\"$SECRET\"]\n\
         [hook.standard.handler.app]\nurl = \"{url}\"\nbackoff = \"1s\"\norder = \"/customer\"\n\
         [hook.standard.handler.worker]\npull = true\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_cancels_no_event_and_what_was_acknowledged_is_delivered_after_it() {
    let (handler, url) = Handler::start(&[404]).await;
    let rig = Rig::new(&policy(&url)).await;
    let vendor = Vendor::new("standard");
    let send = async |rig: &Rig, id: &str| {
        let event = vendor.event(id, &json!({"customer": "c", "id": id}));
        rig.deliver("standard", &event).await.result().to_owned()
    };
    assert_eq!(send(&rig, "msg_1").await, "accepted");
    // The first attempt was refused, and the event waits for the next one; the program has not fetched it yet.
    let failed = rig
        .until(async || {
            let event = rig.event_when("standard", "msg_1", "pending").await;
            (event["deliveries"][0]["state"] == "failed").then_some(event)
        })
        .await;
    let ledger = Ledger::new(rig.store.clone());
    let stopped = ledger.scopes().stop(SCOPE, &Word::person("ada")).await.unwrap();
    assert!(stopped.cancelled.is_empty(), "{:?}", stopped.cancelled);
    let waiting = ledger.scopes().wait(SCOPE, 60_000).await.unwrap();
    assert!(waiting.is_empty(), "neither an event nor the leader of an order is waited for: {waiting:?}");
    assert_eq!(send(&rig, "msg_2").await, "accepted", "events are recorded while their source is stopped");
    assert_eq!(send(&rig, "msg_1").await, "duplicate");
    let settlement = ledger.scopes().settlement(SCOPE).await.unwrap();
    assert_eq!((settlement.events_waiting, settlement.sums.held, settlement.sums.cancelled), (2, 0, 0));
    assert!(settlement.sums.adds_up() && settlement.sums.running == 0, "{:?}", settlement.sums);
    let id = OperationId::parse(failed["operation"].as_str().unwrap()).unwrap();
    assert!(
        matches!(ledger.admin().cancel(&id, &Word::person("ada")).await, Err(Error::WrongState { .. })),
        "an event cannot be cancelled"
    );
    let before = handler.got().len();
    let rig = rig.restarted().await;
    let again = ledger_of(&rig).scopes().stop(SCOPE, &Word::person("ada")).await.unwrap();
    assert!(again.cancelled.is_empty() && again.asked.is_empty(), "{again:?}");
    for id in ["msg_1", "msg_2"] {
        assert_eq!(rig.event_when("standard", id, "pending").await["progress"], "pending");
    }
    assert_eq!(handler.got().len(), before, "nothing is delivered while the source is stopped");
    ledger_of(&rig).scopes().resume(SCOPE, &Word::person("ada")).await.unwrap();
    for _ in 0..2 {
        let fetched = rig
            .until(async || {
                let answer = rig.post("/v1/inbox/standard/receive", json!({"wait_ms": 1_000})).await.json();
                answer["events"].get(0).cloned()
            })
            .await;
        let path = format!("/v1/operations/{}/finish", fetched["operation"].as_str().unwrap());
        let report = json!({"attempt": fetched["attempt"], "token": fetched["token"]});
        assert_eq!(rig.post(&path, report).await.status, 200);
    }
    for id in ["msg_1", "msg_2"] {
        rig.event_when("standard", id, "done").await;
    }
    let ids: Vec<String> = handler.got().iter().map(|got| got.header("once-event-id").to_owned()).collect();
    assert_eq!(ids, ["msg_1", "msg_1", "msg_2"], "in order, each once after the refusal");
    let settlement = ledger_of(&rig).scopes().settlement(SCOPE).await.unwrap();
    assert_eq!((settlement.events_waiting, settlement.sums.intended, settlement.sums.standing), (0, 4, 4));
    let steps = ledger_of(&rig).undo().plan(SCOPE, None).await.unwrap();
    assert_eq!(steps.len(), 4, "only deliveries can be taken back");
}

fn ledger_of(rig: &Rig) -> Ledger {
    Ledger::new(rig.store.clone())
}
