//! A wanted sample is never answered with another call's answer, whatever the SDK counts.

use std::collections::BTreeSet;

use hyper::StatusCode;
use onceward::State;

use crate::common::until;
use crate::gateway::models::{ASK, STREAM, answer_one_by_one, ask, ends_as, sends_with, whole};
use crate::gateway::provider::{Play, Provider, Then};
use crate::gateway::rig::{Got, Rig};

const FIRST_TRY: (&str, &str) = ("x-stainless-retry-count", "0");
const SECOND_TRY: (&str, &str) = ("x-stainless-retry-count", "1");
/// A refusal with a pause that the gateway leaves to the client.
const LATER: &[u8] = b"HTTP/1.1 429 X\r\nretry-after: 3600\r\ncontent-length: 2\r\n\r\n{}";
/// Ways to ask for one answer after another.
const WAYS: [&[(&str, &str)]; 3] =
    [&[], &[("once-sample", "new")], &[("once-scope", "job"), ("once-run", "a")]];

fn with(
    headers: &[(&'static str, &'static str)],
    one: (&'static str, &'static str),
) -> Vec<(&'static str, &'static str)> {
    [headers, &[one]].concat()
}

fn id(got: &Got) -> String {
    got.json()["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_retry_whose_first_try_never_arrived_is_a_sample_of_its_own() {
    for way in WAYS {
        let provider = Provider::start(&[]).await;
        let rig = Rig::start(&provider.config("")).await;
        assert_eq!(id(&ask(&rig, &with(way, FIRST_TRY), ASK).await), "c-1", "{way:?}");
        // The first try of the second call met a closed port.
        let rig = rig.restarted().await;
        assert_eq!(id(&ask(&rig, &with(way, SECOND_TRY), ASK).await), "c-2", "{way:?}");
        assert_eq!(id(&ask(&rig, &with(way, FIRST_TRY), ASK).await), "c-3", "{way:?}");
    }
}

#[tokio::test]
async fn retries_at_once_whose_first_tries_never_arrived_are_as_many_samples() {
    for way in WAYS {
        let provider = Provider::start(&[Play::Held; 3]).await;
        let rig = Rig::start(&provider.config("")).await;
        let retry = async || ask(&rig, &with(way, SECOND_TRY), ASK).await;
        let (a, b, c, ()) = tokio::join!(retry(), retry(), retry(), async {
            provider.has(3).await;
            provider.open_gate(3);
        });
        let ids: BTreeSet<String> = [a, b, c].iter().map(id).collect();
        assert_eq!((ids.len(), provider.generations()), (3, 3), "{way:?}");
    }
}

#[tokio::test]
async fn a_retry_gets_the_answer_that_its_first_try_did_not_read() {
    for way in WAYS {
        for body in [ASK, STREAM] {
            let provider = Provider::start(&[]).await;
            let rig = Rig::start(&provider.config("")).await;
            let headers: String = way.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            let stream = sends_with(&rig, "HTTP/1.1", &headers, body).await;
            ends_as(&rig, State::Done).await;
            // The answer is there, and the client closes the connection without reading it.
            stream.readable().await.unwrap();
            rig.delivered().await;
            drop(stream);
            let got = ask(&rig, &with(way, SECOND_TRY), body).await;
            let text = String::from_utf8(got.body.to_vec()).unwrap();
            assert!(text == whole(1) || text.contains("c-1"), "{way:?}: {text}");
            assert_eq!((got.header("idempotent-replayed"), provider.generations()), (Some("true"), 1));
        }
    }
}

#[tokio::test]
async fn a_retry_of_a_failure_is_the_next_attempt_of_that_call() {
    for way in WAYS {
        let provider = Provider::start(&[Play::Bytes(LATER, Then::Close)]).await;
        let rig = Rig::start(&provider.config("")).await;
        // Longer pauses than ten seconds are the client's: the clock stands still, so the gateway does not wait.
        let refused = ask(&rig, &with(way, FIRST_TRY), ASK).await;
        assert_eq!((refused.status.as_u16(), refused.header("retry-after")), (429, Some("3600")), "{way:?}");
        let got = ask(&rig, &with(way, SECOND_TRY), ASK).await;
        assert_eq!((got.status, rig.operations().await.len()), (StatusCode::OK, 1), "{way:?}");
        assert_eq!((rig.operations().await[0].attempt, provider.generations()), (2, 2), "{way:?}");
    }
}

#[tokio::test]
async fn clients_of_two_gateways_that_read_their_answers_have_samples_of_their_own() {
    for way in [WAYS[0], WAYS[2]] {
        for round in 0..4 {
            let provider = Provider::start(&[Play::Held; 4]).await;
            let rig = Rig::start(&provider.config("")).await;
            let other = rig.beside().await;
            let (a, b, c, d, ()) = tokio::join!(
                ask(&rig, way, ASK),
                ask(&other, way, ASK),
                ask(&rig, way, ASK),
                ask(&other, way, ASK),
                answer_one_by_one(&rig, &provider, 4)
            );
            let ids: BTreeSet<String> = [a, b, c, d].iter().map(id).collect();
            assert_eq!((ids.len(), provider.generations()), (4, 4), "{way:?}, round {round}");
        }
    }
}

#[tokio::test]
async fn retries_of_two_failures_at_two_gateways_are_two_samples() {
    let refusal = Play::HeldBytes(LATER);
    for round in 0..4 {
        let provider = Provider::start(&[refusal, refusal, Play::Held, Play::Held]).await;
        let rig = Rig::start(&provider.config("")).await;
        let other = rig.beside().await;
        let (one, two, ()) =
            tokio::join!(ask(&rig, &[FIRST_TRY], ASK), ask(&rig, &[FIRST_TRY], ASK), async {
                provider.has(2).await;
                provider.open_gate(2);
            });
        assert_eq!([one.status.as_u16(), two.status.as_u16()], [429, 429]);
        until("both failures are known to be delivered", async || {
            rig.operations().await.iter().all(|record| record.detail.delivered.is_some())
        })
        .await;
        let (one, two, ()) =
            tokio::join!(ask(&rig, &[SECOND_TRY], ASK), ask(&other, &[SECOND_TRY], ASK), async {
                for number in 3..=4 {
                    provider.has(number).await;
                    provider.open_gate(1);
                }
            });
        let ids = [id(&one), id(&two)];
        assert!(ids[0] != ids[1], "round {round}: {ids:?}");
        assert_eq!((rig.operations().await.len(), provider.generations()), (2, 4), "round {round}");
    }
}
