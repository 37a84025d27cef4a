//! Two tenants with the same scopes, names and keys send random requests to the ledger API. Neither sees or changes
//! anything of the other, also with the other's ids and tokens.

use std::sync::Arc;

use crate::common::{Server, tenant};
use axum::http::Method;
use onceward::{MemoryStore, OperationId};
use onceward_testkit::Stepped;
use proptest::prelude::*;
use serde_json::{Value, json};

/// One request. The numbers choose from few scopes and keys, and from all ids and tokens that either tenant was given.
#[derive(Debug, Clone)]
enum Step {
    Begin { scope: u8, key: u8, value: u8 },
    Report { what: u8, id: usize, token: usize, attempt: u8 },
    Settle { id: usize, done: bool },
    Cancel { id: usize },
    Read { id: usize },
    List { query: u8 },
}

const REPORTS: [&str; 5] = ["finish", "fail", "doubt", "renew", "dispatch"];
const QUERIES: [&str; 8] = [
    "operations",
    "operations?scope=acme/default",
    "operations?scope=globex/run",
    "operations?scope=acme",
    "operations?key=order-1&state=done,failed,in_doubt,running",
    "operations?name=pay&limit=1&cursor=1",
    "report?scope=acme/default",
    "report?scope=globex/default",
];

fn step() -> impl Strategy<Value = Step> {
    let id = any::<usize>;
    prop_oneof![
        4 => (0..2_u8, 0..3_u8, 0..2_u8).prop_map(|(scope, key, value)| Step::Begin { scope, key, value }),
        4 => (0..5_u8, id(), id(), 1..3_u8)
            .prop_map(|(what, id, token, attempt)| Step::Report { what, id, token, attempt }),
        1 => (id(), any::<bool>()).prop_map(|(id, done)| Step::Settle { id, done }),
        1 => id().prop_map(|id| Step::Cancel { id }),
        1 => id().prop_map(|id| Step::Read { id }),
        1 => (0..8_u8).prop_map(|query| Step::List { query }),
    ]
}

/// A tenant: its name, its token, and what it wrote.
struct Caller {
    name: &'static str,
    token: String,
}

/// What both were given.
struct Known {
    ids: Vec<String>,
    tokens: Vec<String>,
}

impl Caller {
    async fn send(&self, server: &Server, path: &str, body: Option<Value>) -> (u16, String) {
        let method = if body.is_some() { Method::POST } else { Method::GET };
        let reply = server.as_tenant(&self.token, method, path, body).await;
        (reply.status.as_u16(), reply.text)
    }

    /// Everything that it can see.
    async fn view(&self, server: &Server, known: &Known) -> Vec<(u16, String)> {
        let mut seen = vec![
            self.send(server, "/v1/operations?limit=500", None).await,
            self.send(server, "/v1/report?scope=default", None).await,
            self.send(server, "/v1/report?scope=run", None).await,
        ];
        for id in &known.ids {
            seen.push(self.send(server, &format!("/v1/operations/{id}"), None).await);
        }
        seen
    }

    /// Makes a request, and notes what it was given.
    async fn act(&self, server: &Server, step: &Step, known: &mut Known) -> String {
        let id = |index: &usize| known.ids[index % known.ids.len()].clone();
        let own = |what: &str| format!("{what} of-{}", self.name);
        let (path, body) = match step {
            Step::Begin { scope, key, value } => {
                let scope = ["default", "run"][usize::from(*scope)];
                let begin = json!({"name": "pay", "scope": scope, "key": format!("order-{key}"), "wait_ms": 0,
                                   "lease_ms": 3_600_000, "input": value});
                ("/v1/operations".to_owned(), Some(begin))
            }
            Step::Report { what, id: index, token, attempt } => {
                let what = REPORTS[usize::from(*what)];
                let token = &known.tokens[token % known.tokens.len()];
                let mut body = json!({"attempt": attempt, "token": token});
                match what {
                    "finish" => body["data"] = json!(own("result")),
                    "fail" => {
                        body["reason"] = json!(own("reason"));
                        body["evidence"] = json!("refused");
                    }
                    "doubt" => body["reason"] = json!(own("reason")),
                    _ => {}
                }
                (format!("/v1/operations/{}/{what}", id(index)), Some(body))
            }
            Step::Settle { id: index, done } => {
                let verdict = if *done { "done" } else { "failed" };
                let body = json!({"verdict": verdict, "evidence": own("evidence"), "by": own("person")});
                (format!("/v1/operations/{}/settle", id(index)), Some(body))
            }
            Step::Cancel { id: index } => (format!("/v1/operations/{}/cancel", id(index)), Some(json!({}))),
            Step::Read { id: index } => (format!("/v1/operations/{}", id(index)), None),
            Step::List { query } => (format!("/v1/{}", QUERIES[usize::from(*query)]), None),
        };
        let (status, text) = self.send(server, &path, body).await;
        assert!(status < 500, "{path}: {status} {text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        if let (Some(id), Some(token)) = (answer["operation"]["id"].as_str(), answer["token"].as_str()) {
            known.ids.push(id.to_owned());
            known.tokens.push(token.to_owned());
        }
        text
    }
}

async fn isolated(steps: &[(bool, Step)]) -> usize {
    let ((acme_policy, acme), (globex_policy, globex)) = (tenant("acme", ""), tenant("globex", ""));
    let clock = Stepped::at(1_000_000);
    let store = Arc::new(MemoryStore::new(Arc::clone(&clock)));
    let policy = format!("{acme_policy}{globex_policy}");
    let server = Server::on(clock, store, &policy, tempfile::tempdir().unwrap());
    let callers = [Caller { name: "acme", token: acme }, Caller { name: "globex", token: globex }];
    // An id that neither has, and a token of no attempt.
    let mut known = Known {
        ids: vec![OperationId::of("acme/default", "pay", "order-1").to_string()],
        tokens: vec!["at_none".to_owned()],
    };
    for (first, step) in steps {
        let (actor, other) = if *first { (&callers[0], &callers[1]) } else { (&callers[1], &callers[0]) };
        let before = other.view(&server, &known).await;
        let answer = actor.act(&server, step, &mut known).await;
        assert!(!answer.contains(&format!("of-{}", other.name)), "{step:?} shows {answer}");
        // An id that is new to both may be the other's too, but it saw nothing of it before.
        let after = other.view(&server, &known).await;
        assert_eq!(after[..before.len()], before[..], "{step:?} of {} is seen by {}", actor.name, other.name);
    }
    known.tokens.len() - 1
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn requests_of_one_tenant_are_not_seen_by_the_other(steps in prop::collection::vec((any::<bool>(), step()), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(isolated(&steps));
    }
}

/// The steps meet: without this, a generator that begins nothing would prove nothing.
#[test]
fn both_tenants_begin_the_same_operation_and_end_their_own() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let begin = Step::Begin { scope: 0, key: 1, value: 0 };
    let finish = |token| Step::Report { what: 0, id: 1, token, attempt: 1 };
    let steps =
        [(true, begin.clone()), (false, begin), (true, finish(1)), (false, finish(1)), (false, finish(2))];
    assert_eq!(runtime.block_on(isolated(&steps)), 2, "each has an attempt of its own");
}
