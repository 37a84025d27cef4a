//! Probes and checks.

use hyper::{Method, StatusCode};
use onceward::{Clock, State, Verification};
use onceward_testkit::Stepped;

use crate::common::found;
use crate::gateway::rig::Rig;
use crate::gateway::vendor::{Act, Vendor};
use crate::gateway::{TIMEOUT_MS, plain};

fn github(vendor: &Vendor, more: &str) -> String {
    format!(
        "[upstream.github]\nurl = \"{}\"\nallow_private = true\nbackoff = \"20ms\"\ntimeout = \"600s\"\n{more}\n",
        vendor.url
    )
}

const ISSUES: &str = "/gw/github/repos/o/r/issues";
const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

#[tokio::test]
async fn an_issue_that_was_made_is_found_and_given_to_the_caller() {
    for act in [Act::Status(502), Act::Reset, Act::Hang, Act::Cut] {
        let vendor = Vendor::start(None).await;
        vendor.on_any_get(
            r#"[{"number":9,"title":"other","created_at":"2999-01-01T00:00:00Z"},
                {"number":7,"title":"it's \"broken\"","created_at":"2999-01-01T00:00:00Z"},
                {"number":1,"title":"it's \"broken\"","created_at":"2020-01-01T00:00:00Z"}]"#,
        );
        vendor.script([act.clone()]);
        // After the time limit, callers still wait.
        let rig = Rig::start(&github(&vendor, "wait = \"1h\"")).await;
        let sent = rig.send(Method::POST, ISSUES, &JSON, r#"{"title":"it's \"broken\""}"#);
        let (got, ()) = tokio::join!(sent, async {
            if matches!(act, Act::Hang) {
                vendor.has(1).await;
                rig.clock.step(TIMEOUT_MS);
            }
        });
        assert_eq!((got.status, vendor.effects()), (StatusCode::CREATED, 1), "{act:?} {got:?}");
        assert_eq!(got.json()["number"], 7, "not an older issue with that title");
        assert_eq!((got.header("once-happened"), rig.states().await), (Some("yes"), vec![State::Done]));
        let asked = vendor.seen().into_iter().find(|seen| seen.method == "GET").unwrap();
        assert!(asked.path.starts_with("/repos/o/r/issues?state=all"), "{}", asked.path);
    }
}

#[tokio::test]
async fn a_no_counts_only_after_the_quarantine() {
    let vendor = Vendor::start(None).await;
    vendor.on_any_get("[]");
    vendor.script([Act::Refuse(502, "")]);
    let rig = Rig::start(&github(&vendor, "wait = \"1s\"\nquarantine = \"1h\"")).await;
    let body = r#"{"title":"t"}"#;
    let got = rig.passing(rig.send(Method::POST, ISSUES, &JSON, body)).await;
    assert_eq!((got.status, vendor.posts().len()), (StatusCode::FAILED_DEPENDENCY, 1));
    rig.clock.step(3_600_000);
    let got = rig.send(Method::POST, ISSUES, &JSON, body).await;
    assert_eq!((got.status, vendor.posts().len(), vendor.effects()), (StatusCode::OK, 2, 1));
}

#[tokio::test]
async fn what_is_no_list_of_issues_does_not_prove_that_there_is_none() {
    let page = |count: usize| {
        let one = r#"{"title":"other","created_at":"2999-01-01T00:00:00Z"}"#;
        format!("[{}]", vec![one; count].join(","))
    };
    let earlier = onceward::rfc3339(Stepped::new().now_ms() - 3_600_000);
    for answer in [
        "{}".to_owned(),
        r#"{"message":"trouble"}"#.to_owned(),
        r#""maintenance""#.to_owned(),
        "null".to_owned(),
        "[1,null]".to_owned(),
        page(100),
        format!(r#"[{{"title":"t","created_at":"{earlier}"}}]"#),
    ] {
        let vendor = Vendor::start(None).await;
        vendor.on_any_get(&answer);
        vendor.script([Act::Status(500)]);
        let rig = Rig::start(&github(&vendor, "wait = \"100ms\"\nquarantine = \"0s\"")).await;
        for _ in 0..2 {
            let got = rig.passing(rig.send(Method::POST, ISSUES, &JSON, r#"{"title":"t"}"#)).await;
            assert_eq!((got.status, vendor.effects()), (StatusCode::FAILED_DEPENDENCY, 1), "{answer:.60}");
        }
    }
    // A page that is not full is the whole list, and so is one that the vendor calls the last.
    let last = "link: </repos/o/r/issues?page=1>; rel=\"prev\"\r\n";
    for (headers, answer) in [("", page(99)), ("", "[]".to_owned()), (last, page(100))] {
        let vendor = Vendor::start(None).await;
        vendor.on_any_get_with(200, headers, &answer);
        vendor.script([Act::Refuse(500, "")]);
        let rig = Rig::start(&github(&vendor, "quarantine = \"0s\"")).await;
        let got = rig.send(Method::POST, ISSUES, &JSON, r#"{"title":"t"}"#).await;
        assert_eq!((got.status, vendor.effects()), (StatusCode::OK, 1));
    }
}

/// What a rule says about the pages, where the path does not ask for a size.
#[tokio::test]
async fn a_rule_can_say_when_a_list_is_whole() {
    for (more, is_whole) in
        [("", false), (", page = 3", false), (", page = 4", true), (", complete = true", true)]
    {
        let vendor = Vendor::start(None).await;
        vendor.on_any_get(r#"[{"text":"a"},{"text":"b"},{"text":"c"}]"#);
        vendor.script([Act::Refuse(500, "")]);
        let probe =
            format!("probe = {{ get = \"{{path}}\", found = \"$[?@.text == {{body.text}}]\"{more} }}");
        let config = plain(&vendor, &format!("wait = \"10s\"\nquarantine = \"0s\"\n{probe}"));
        let rig = Rig::start(&config).await;
        let sent = rig.send(Method::POST, "/gw/api/notes", &JSON, r#"{"text":"mine"}"#);
        let got = if is_whole { sent.await } else { rig.passing(sent).await };
        let expected = if is_whole { (StatusCode::OK, 2) } else { (StatusCode::FAILED_DEPENDENCY, 1) };
        assert_eq!((got.status, vendor.posts().len()), expected, "{more}");
    }
}

/// A part of a list is no proof that the rest does not have the resource: its first attempt took effect.
#[tokio::test]
async fn a_part_of_a_list_does_not_prove_that_there_is_none() {
    let items = r#"[{"text":"a"},{"text":"b"},{"text":"c"}]"#;
    let data = |more: &str| format!(r#"{{"data":{items}{more}}}"#);
    let (list, member) = ("$[?@.text == {body.text}]", "$.data[?@.text == {body.text}]");
    let cases = [
        (list, "", 200, "", items.to_owned()),
        (list, "?limit=3", 200, "", items.to_owned()),
        (list, "?limit=9", 206, "content-range: 0-2/6\r\n", items.to_owned()),
        (list, "?limit=9", 202, "", items.to_owned()),
        (list, "?limit=9", 203, "", items.to_owned()),
        (list, "?limit=9", 200, "link: <?page=2>; rel=\"last next\"\r\n", items.to_owned()),
        (list, "?limit=9", 200, "link: </n?page=2; rel=next\r\n", items.to_owned()),
        (list, "?limit=9", 200, "x-total-count: 6\r\n", items.to_owned()),
        (list, "?limit=9", 200, "age: 30\r\n", items.to_owned()),
        (member, "?limit=9", 200, "", data(r#","has_more":true"#)),
        (member, "?limit=9", 200, "", data(r#","next":"/n?page=2""#)),
        (member, "?limit=9", 200, "", data(r#","incomplete_results":true"#)),
    ];
    let notes = |vendor: &Vendor, found: &str, query: &str| {
        let probe = format!("probe = {{ get = \"{{path}}{query}\", found = \"{found}\", status = 201 }}");
        plain(vendor, &format!("wait = \"100ms\"\nquarantine = \"0s\"\n{probe}"))
    };
    for (found, query, status, headers, body) in cases {
        let vendor = Vendor::start(None).await;
        vendor.on_any_get_with(status, headers, &body);
        vendor.script([Act::Status(500)]);
        let rig = Rig::start(&notes(&vendor, found, query)).await;
        for _ in 0..2 {
            let got = rig.passing(rig.send(Method::POST, "/gw/api/notes", &JSON, r#"{"text":"mine"}"#)).await;
            let seen = (got.status, vendor.effects());
            assert_eq!(seen, (StatusCode::FAILED_DEPENDENCY, 1), "{query} {status} {headers} {body}");
        }
    }
}

#[tokio::test]
async fn a_success_is_checked_until_it_is_confirmed_or_refuted() {
    let verify = "verify = { get = \"/v1/refunds/{id}\", expect = \"$.status == 'succeeded'\", \
                  refute = \"$.status == 'failed'\", every = \"20ms\" }";
    for (end, expected, status) in
        [("succeeded", "confirmed", StatusCode::OK), ("failed", "", StatusCode::FAILED_DEPENDENCY)]
    {
        let vendor = Vendor::start(None).await;
        vendor.on_get("/v1/refunds/obj_1", 200, r#"{"status":"pending"}"#);
        let rig = Rig::start(&plain(&vendor, verify)).await;
        let key = [("idempotency-key", "k")];
        let first = rig.send(Method::POST, "/gw/api/v1/refunds", &key, "1").await;
        assert_eq!((first.status, first.header("once-verified")), (StatusCode::OK, Some("pending")));
        let retry = rig.send(Method::POST, "/gw/api/v1/refunds", &key, "1").await;
        assert_eq!(retry.header("once-verified"), Some("pending"));
        vendor.on_get("/v1/refunds/obj_1", 200, &format!("{{\"status\":\"{end}\"}}"));
        let last = found("it is checked", async || {
            let got = rig.send(Method::POST, "/gw/api/v1/refunds", &key, "1").await;
            (got.header("once-verified") != Some("pending")).then_some(got)
        })
        .await;
        assert_eq!((last.status, last.header("once-verified").unwrap_or("")), (status, expected));
        if end == "failed" {
            assert_eq!(last.json()["code"], "UNVERIFIED");
        }
        assert_eq!(vendor.effects(), 1);
    }
}

#[tokio::test]
async fn accepted_is_not_confirmed() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Say(202, "{}"), Act::Say(201, r#"{"status":"queued"}"#)]);
    let accepted = "accepted = [{ at = \"/status\", is = [\"queued\"] }]";
    let rig = Rig::start(&plain(&vendor, accepted)).await;
    for path in ["/gw/api/a", "/gw/api/b"] {
        let got = rig.send(Method::POST, path, &[("idempotency-key", path)], "1").await;
        assert_eq!(got.header("once-verified"), Some("pending"), "{path}");
        let retry = rig.send(Method::POST, path, &[("idempotency-key", path)], "1").await;
        assert_eq!((retry.status, retry.header("once-verified")), (got.status, Some("pending")));
    }
    let done = rig.send(Method::POST, "/gw/api/c", &[], "1").await;
    assert_eq!(done.header("once-verified"), None);
}

#[tokio::test]
async fn a_check_that_was_interrupted_is_resumed_when_a_server_starts() {
    for (end, expected) in [("succeeded", Verification::Confirmed), ("failed", Verification::Refuted)] {
        let vendor = Vendor::start(None).await;
        vendor.script([Act::Say(202, r#"{"id":"r_1"}"#)]);
        // The first server accepts the refund and does not check it.
        let rig = Rig::start(&plain(&vendor, "")).await;
        let headers = [("authorization", "Bearer caller"), ("idempotency-key", "k")];
        let first = rig.send(Method::POST, "/gw/api/v1/refunds", &headers, "1").await;
        assert_eq!(first.header("once-verified"), Some("pending"));
        let secret = rig.folder.path().join("token");
        std::fs::write(&secret, "Bearer server\n").unwrap();
        vendor.on_get("/v1/refunds/r_1", 200, &format!("{{\"status\":\"{end}\"}}"));
        let verify = format!(
            "check_headers = {{ authorization = \"@{}\" }}\nverify = {{ get = \"/v1/refunds/{{id}}\", \
             expect = \"$.status == 'succeeded'\", refute = \"$.status == 'failed'\", every = \"20ms\" }}",
            secret.display()
        );
        let _next = rig.beside_with(&plain(&vendor, &verify)).await;
        let verified = found("it is checked", async || {
            let record = rig.operations().await.remove(0);
            let verified = record.outcome.as_ref().and_then(|outcome| outcome.verified);
            verified.filter(|verified| *verified != Verification::Pending)
        })
        .await;
        assert_eq!((verified, vendor.posts().len()), (expected, 1), "no client asked again");
        let asked = vendor.seen().into_iter().find(|seen| seen.method == "GET").unwrap();
        assert_eq!(asked.header("authorization"), Some("Bearer server"), "the caller's is not stored");
    }
}
