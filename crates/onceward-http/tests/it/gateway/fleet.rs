//! A retry at another gateway on the same ledger waits for the answer, and gets it when it is complete.

use onceward::State;

use crate::gateway::models::{STREAM, ask, leaves_after, whole};
use crate::gateway::provider::{Play, Provider};
use crate::gateway::rig::Rig;

const RETRY: [(&str, &str); 1] = [("x-stainless-retry-count", "1")];

#[tokio::test]
async fn a_retry_at_another_gateway_gets_the_one_answer() {
    let provider = Provider::start(&[Play::Gate]).await;
    let rig = Rig::start(&provider.config("")).await;
    let other = rig.beside().await;
    leaves_after(&rig, 200, STREAM).await;
    let asked = async { other.passing(ask(&other, &RETRY, STREAM)).await };
    let (got, ()) = tokio::join!(asked, async {
        assert_eq!(rig.states().await, [State::Running]);
        provider.open_gate(1);
    });
    assert_eq!((got.header("once-effect"), got.header("x-request-id")), (Some("noop"), Some("r-1")));
    assert_eq!(got.header("idempotent-replayed"), Some("true"));
    assert_eq!((got.body.as_ref(), provider.generations()), (whole(1).as_bytes(), 1));
    other.delivered().await;
    assert_eq!(ask(&other, &[], STREAM).await.body, whole(2), "the next call is a new one");
}
