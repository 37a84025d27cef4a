//! Every row of the vendor table: where the key goes, its form and length, its window, and what answers mean.

use hyper::{Method, StatusCode};
use onceward::{Class, Record, State};

use crate::gateway::TIMEOUT_MS;
use crate::gateway::rig::{Got, Rig};
use crate::gateway::vendor::{Act, Seen, Vendor};

const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;
const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

/// Where a row's key is expected.
enum At {
    Header(&'static str),
    Field(&'static str),
    FormField(&'static str),
    Query(&'static str),
    Directive,
    /// The vendor has no keys.
    Nowhere,
}

struct Row {
    preset: &'static str,
    method: &'static str,
    path: &'static str,
    headers: &'static [(&'static str, &'static str)],
    kind: &'static str,
    body: &'static str,
    at: At,
    max: usize,
    is_uuid: bool,
    window_ms: i64,
    /// Answers, and the state in which they leave the operation.
    answers: &'static [(u16, &'static str, State)],
}

const fn row(preset: &'static str, path: &'static str, at: At, max: usize, window_ms: i64) -> Row {
    let (headers, answers): (&[_], &[_]) = (&[], &[]);
    Row {
        preset,
        method: "POST",
        path,
        headers,
        kind: JSON,
        body: "{}",
        at,
        max,
        is_uuid: false,
        window_ms,
        answers,
    }
}

const fn aws_token(body: &'static str, at: &'static str) -> Row {
    Row {
        headers: &[("x-amz-target", "Other.CreateThing")],
        kind: "application/x-amz-json-1.1",
        body,
        ..row("aws", "/", At::Field(at), 36, HOUR / 6)
    }
}

const REFUND: &str = r#"{"query":"mutation { refundCreate @idempotent(key: \"k\") { id } }"}"#;

#[expect(clippy::too_many_lines, reason = "it is a table")]
fn rows() -> Vec<Row> {
    use State::{Done, Failed, InDoubt};
    vec![
        Row {
            kind: FORM,
            body: "amount=1",
            answers: &[
                (400, r#"{"error":{"type":"idempotency_error"}}"#, InDoubt),
                (409, r#"{"error":{"code":"idempotency_key_in_use"}}"#, InDoubt),
                (400, r#"{"error":{"type":"invalid_request_error"}}"#, Failed),
                (402, r#"{"error":{"type":"card_error"}}"#, Done),
                (429, "{}", Failed),
                (500, "{}", InDoubt),
            ],
            ..row("stripe", "/v1/charges", At::Header("idempotency-key"), 255, DAY)
        },
        Row {
            answers: &[(402, "{}", InDoubt)],
            ..row("stripe", "/v2/core/accounts", At::Header("idempotency-key"), 255, 30 * DAY)
        },
        Row {
            method: "DELETE",
            ..row("stripe", "/v2/core/accounts/1", At::Header("idempotency-key"), 255, 30 * DAY)
        },
        Row {
            answers: &[
                (
                    422,
                    r#"{"details":[{"issue":"x"},{"issue":"PAYPAL_REQUEST_ID_PREVIOUSLY_USED"}]}"#,
                    InDoubt,
                ),
                (
                    422,
                    r#"{"name":"UNPROCESSABLE_ENTITY","details":[{"issue":"ORDER_NOT_APPROVED"}]}"#,
                    Failed,
                ),
                (409, r#"{"details":[{"issue":"PREVIOUS_REQUEST_IN_PROGRESS"}]}"#, InDoubt),
                (500, "{}", InDoubt),
            ],
            ..row("paypal", "/v2/checkout/orders", At::Header("paypal-request-id"), 108, 6 * HOUR)
        },
        Row {
            answers: &[(400, r#"{"name":"DUPLICATE_REQUEST_ID"}"#, InDoubt)],
            ..row("paypal", "/v2/payments/captures/1/refund", At::Header("paypal-request-id"), 38, 45 * DAY)
        },
        row("paypal", "/v1/payments/payouts", At::Header("paypal-request-id"), 38, 30 * DAY),
        row("paypal", "/v1/payments/payment", At::Header("paypal-request-id"), 78, 30 * DAY),
        row("paypal", "/v1/billing/subscriptions", At::Header("paypal-request-id"), 38, 3 * DAY),
        row("paypal", "/v1/catalogs/products", At::Header("paypal-request-id"), 38, 3 * DAY),
        row("paypal", "/v3/vault/setup-tokens", At::Header("paypal-request-id"), 38, 3 * HOUR),
        row("paypal", "/v1/payment-experience/web-profiles", At::Header("paypal-request-id"), 38, 3 * HOUR),
        row("paypal", "/v1/checkout/orders", At::Header("paypal-request-id"), 38, 365 * DAY),
        Row {
            body: r#"{"amount_money":{"amount":1}}"#,
            answers: &[
                (400, r#"{"errors":[{"code":"IDEMPOTENCY_KEY_REUSED"}]}"#, InDoubt),
                (402, r#"{"errors":[{"code":"CARD_DECLINED"}]}"#, Failed),
                (503, "{}", InDoubt),
            ],
            ..row("square", "/v2/payments", At::Field("/idempotency_key"), 45, HOUR)
        },
        Row {
            body: r#"{"idempotency_key":"k"}"#,
            ..row("square", "/v2/x/custom", At::Field("/idempotency_key"), 45, HOUR)
        },
        Row {
            answers: &[
                (422, r#"{"errorCode":"704"}"#, InDoubt),
                (409, r#"{"errorCode":"704"}"#, InDoubt),
                (422, r#"{"errorCode":"101"}"#, Failed),
                (503, r#"{"errorCode":"703"}"#, InDoubt),
            ],
            ..row("adyen", "/v71/payments", At::Header("idempotency-key"), 64, 7 * DAY)
        },
        Row {
            answers: &[
                (409, r#"{"name":"invalid_idempotent_request"}"#, InDoubt),
                (409, r#"{"name":"concurrent_idempotent_requests"}"#, InDoubt),
                (400, r#"{"name":"invalid_idempotency_key"}"#, Failed),
                (422, r#"{"name":"validation_error"}"#, Failed),
                (500, "{}", InDoubt),
            ],
            ..row("resend", "/emails", At::Header("idempotency-key"), 256, DAY)
        },
        row("resend", "/emails/batch", At::Header("idempotency-key"), 256, DAY),
        row("resend", "/audiences", At::Nowhere, 0, 0),
        Row {
            body: REFUND,
            is_uuid: true,
            answers: &[
                (
                    200,
                    r#"{"data":{"r":{"userErrors":[{"code":"IDEMPOTENCY_KEY_PARAMETER_MISMATCH"}]}}}"#,
                    InDoubt,
                ),
                (
                    200,
                    r#"{"data":{"r":{"userErrors":[{"code":"IDEMPOTENCY_CONCURRENT_REQUEST"}]}}}"#,
                    InDoubt,
                ),
                (
                    200,
                    r#"{"data":{"r":{"userErrors":[{"code":"IDEMPOTENCY_PREVIOUS_ATTEMPT_FAILED"}]}}}"#,
                    Failed,
                ),
                (200, r#"{"errors":[{"extensions":{"code":"THROTTLED"}}]}"#, Failed),
                (200, r#"{"data":{"r":{"userErrors":[]}}}"#, Done),
            ],
            ..row("shopify", "/admin/api/2026-10/graphql.json", At::Directive, 36, DAY)
        },
        Row {
            kind: FORM,
            body: "Action=RunInstances&ClientToken=abc",
            answers: &[
                (400, "<Code>IdempotentParameterMismatch</Code>", InDoubt),
                (503, "<Code>RequestLimitExceeded</Code>", Failed),
                (400, "<Code>InvalidParameterValue</Code>", Failed),
                (500, "", InDoubt),
            ],
            ..row("aws", "/", At::FormField("ClientToken"), 36, HOUR / 6)
        },
        Row {
            headers: &[("x-amz-target", "DynamoDB_20120810.TransactWriteItems")],
            kind: "application/x-amz-json-1.0",
            answers: &[(400, r#"{"__type":"x#IdempotentParameterMismatchException"}"#, InDoubt)],
            ..row("aws", "/", At::Field("/ClientRequestToken"), 36, HOUR / 6)
        },
        aws_token(r#"{"clientToken":"a"}"#, "/clientToken"),
        aws_token(r#"{"ClientToken":"a"}"#, "/ClientToken"),
        aws_token(r#"{"ClientRequestToken":"a"}"#, "/ClientRequestToken"),
        aws_token(r#"{"clientRequestToken":"a"}"#, "/clientRequestToken"),
        aws_token(r#"{"IdempotencyToken":"a"}"#, "/IdempotencyToken"),
        aws_token(r#"{"CreatorRequestId":"a"}"#, "/CreatorRequestId"),
        Row {
            headers: &[("x-amz-target", "AWSStepFunctions.StartExecution")],
            kind: "application/x-amz-json-1.0",
            body: r#"{"name":"run-1"}"#,
            ..row("aws", "/", At::Field("/name"), 80, 90 * DAY)
        },
        Row {
            headers: &[("x-amz-target", "AmazonSQS.SendMessage")],
            kind: "application/x-amz-json-1.0",
            body: r#"{"MessageDeduplicationId":"a"}"#,
            ..row("aws", "/", At::Field("/MessageDeduplicationId"), 128, HOUR / 12)
        },
        Row {
            headers: &[("x-amz-target", "Other.CreateThing")],
            kind: "application/x-amz-json-1.1",
            ..row("aws", "/", At::Nowhere, 0, 0)
        },
        Row {
            is_uuid: true,
            answers: &[(409, "{}", InDoubt), (400, "{}", Failed)],
            ..row("google", "/compute/v1/projects/p/zones/z/instances", At::Query("requestId"), 36, HOUR)
        },
        Row {
            is_uuid: true,
            ..row("google", "/v1/things?request_id=abc", At::Query("request_id"), 36, HOUR)
        },
        Row {
            answers: &[(422, "{}", Failed), (500, "{}", InDoubt)],
            ..row("checkout", "/payments", At::Header("cko-idempotency-key"), 64, DAY)
        },
        Row {
            body: r#"{"subject":"s","headers":{"X-A":"1"}}"#,
            is_uuid: true,
            answers: &[(400, "{}", Failed)],
            ..row("brevo", "/v3/smtp/email", At::Field("/headers/idempotencyKey"), 36, HOUR / 2)
        },
        Row {
            answers: &[
                (409, r#"{"code":"InvalidatedRetryToken"}"#, InDoubt),
                (409, "{}", InDoubt),
                (404, "{}", Failed),
            ],
            ..row("oci", "/20160918/instances", At::Header("opc-retry-token"), 64, DAY)
        },
        Row {
            answers: &[
                (409, r#"{"code":"idempotency_conflict"}"#, InDoubt),
                (400, "{}", Failed),
                (503, "{}", InDoubt),
            ],
            ..row("acp", "/checkout_sessions", At::Header("idempotency-key"), 255, HOUR)
        },
        Row {
            answers: &[(422, "{}", Failed), (404, "{}", Failed), (500, "{}", InDoubt), (502, "", InDoubt)],
            ..row("github", "/repos/o/r/statuses/1", At::Nowhere, 0, 0)
        },
        Row {
            answers: &[(400, "{}", Failed), (429, "{}", Failed), (500, "", InDoubt)],
            ..row("sendgrid", "/v3/mail/send", At::Nowhere, 0, 0)
        },
        Row {
            kind: FORM,
            body: "To=1&Body=x",
            answers: &[(400, "{}", Failed), (500, "", InDoubt)],
            ..row("twilio", "/2010-04-01/Accounts/A/Messages.json", At::Nowhere, 0, 0)
        },
        Row {
            kind: FORM,
            body: "ChargeAmount=1",
            ..row(
                "twilio",
                "/2010-04-01/Accounts/A/Calls/C/Payments.json",
                At::FormField("IdempotencyKey"),
                64,
                HOUR,
            )
        },
        Row {
            kind: FORM,
            body: "Content=x",
            ..row(
                "twilio",
                "/2010-04-01/Accounts/A/Calls/C/UserDefinedMessages.json",
                At::FormField("IdempotencyKey"),
                64,
                HOUR,
            )
        },
        Row {
            kind: FORM,
            body: "Callback=x",
            ..row(
                "twilio",
                "/2010-04-01/Accounts/A/Calls/C/UserDefinedMessageSubscriptions.json",
                At::FormField("IdempotencyKey"),
                64,
                HOUR,
            )
        },
        Row {
            headers: &[("idempotency-key", "k")],
            answers: &[(422, "{}", Failed), (409, "{}", InDoubt), (500, "{}", InDoubt)],
            ..row("telnyx", "/v2/messages", At::Header("idempotency-key"), 255, DAY)
        },
        row("telnyx", "/v2/messages", At::Nowhere, 0, 0),
        Row {
            headers: &[("idempotency-key", "k")],
            is_uuid: true,
            answers: &[(400, "{}", Failed), (409, "{}", InDoubt), (500, "{}", InDoubt)],
            ..row("truelayer", "/v3/payments", At::Header("idempotency-key"), 36, 30 * DAY)
        },
        Row {
            answers: &[(409, "{}", InDoubt), (400, "{}", Failed), (500, "{}", InDoubt)],
            ..row("worldline", "/v2/m/payments", At::Header("x-gcs-idempotence-key"), 40, DAY)
        },
        Row {
            answers: &[(409, "{}", InDoubt), (400, "{}", Failed), (500, "{}", InDoubt)],
            ..row("ppro", "/v1/payment-charges", At::Header("request-idempotency-key"), 64, DAY)
        },
        Row {
            headers: &[("x-qonto-idempotency-key", "k")],
            is_uuid: true,
            answers: &[(422, "{}", Failed), (500, "{}", InDoubt)],
            ..row("qonto", "/v2/external_transfers", At::Header("x-qonto-idempotency-key"), 36, HOUR / 2)
        },
    ]
}

impl Row {
    async fn rig(&self, vendor: &Vendor, more: &str) -> Rig {
        let config = format!(
            "[upstream.v]\nurl = \"{}\"\npreset = \"{}\"\nallow_private = true\nbackoff = \"20ms\"\nwait = \"50ms\"\ntimeout = \"600s\"\n\
             {more}\n",
            vendor.url, self.preset
        );
        Rig::start(&config).await
    }

    async fn send(&self, rig: &Rig) -> Got {
        let mut headers = vec![("authorization", "Bearer t"), ("content-type", self.kind)];
        headers.extend(self.headers);
        let method = Method::from_bytes(self.method.as_bytes()).unwrap();
        rig.send(method, &format!("/gw/v{}", self.path), &headers, self.body).await
    }

    fn key(&self, seen: &Seen) -> Option<String> {
        let json = || serde_json::from_str::<serde_json::Value>(&seen.body).unwrap();
        let pair = |text: &str, name: &str| {
            let mut pairs = form_urlencoded::parse(text.as_bytes()).filter(|(own, _)| own == name);
            let found = pairs.next().map(|(_, value)| value.into_owned());
            assert!(pairs.next().is_none(), "{text}");
            found
        };
        match self.at {
            At::Header(name) => seen.header(name).map(str::to_owned),
            At::Field(pointer) => Some(json().pointer(pointer)?.as_str().unwrap().to_owned()),
            At::FormField(name) => pair(&seen.body, name),
            At::Query(name) => pair(seen.path.split_once('?')?.1, name),
            At::Directive => {
                let document = json()["query"].as_str().unwrap().to_owned();
                let (_, rest) = document.split_once("key: \"")?;
                Some(rest.split_once('"')?.0.to_owned())
            }
            At::Nowhere => None,
        }
    }

    fn name(&self) -> String {
        format!("{} {} {}", self.preset, self.method, self.path)
    }
}

async fn only(rig: &Rig) -> Record {
    let mut all = rig.operations().await;
    assert_eq!(all.len(), 1);
    all.remove(0)
}

#[tokio::test]
async fn the_key_is_where_the_vendor_wants_it_and_the_same_every_time() {
    for row in rows() {
        let (name, vendor) = (row.name(), Vendor::start(None).await);
        vendor.script([Act::Reset]);
        let rig = row.rig(&vendor, "").await;
        let got = row.send(&rig).await;
        let record = only(&rig).await;
        let posts = vendor.posts();
        if matches!(row.at, At::Nowhere) {
            assert_eq!((got.status, posts.len()), (StatusCode::FAILED_DEPENDENCY, 1), "{name}");
            assert!(matches!(record.detail.class, Class::Once | Class::Probed), "{name}");
            continue;
        }
        assert_eq!(
            (got.status, posts.len(), record.detail.class),
            (StatusCode::OK, 2, Class::Keyed),
            "{name}"
        );
        let keys: Vec<String> =
            posts.iter().map(|seen| row.key(seen).unwrap_or_else(|| panic!("{name}"))).collect();
        assert_eq!(keys[0], keys[1], "{name}");
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        assert!(
            keys[0].len() <= row.max && keys[0].len() >= 16 && keys[0].bytes().all(is_plain),
            "{name}: {keys:?}"
        );
        if row.is_uuid {
            let parts: Vec<usize> = keys[0].split('-').map(str::len).collect();
            assert_eq!(
                (parts.as_slice(), keys[0].as_bytes()[14]),
                ([8, 4, 4, 4, 12].as_slice(), b'4'),
                "{name}"
            );
        }
        let downstream = record.detail.downstream.unwrap();
        assert_eq!(downstream.safe_until_ms - record.created_ms, row.window_ms, "{name}");
    }
}

#[tokio::test]
async fn after_the_window_a_doubt_is_not_retried() {
    for row in rows().into_iter().filter(|row| !matches!(row.at, At::Nowhere)) {
        let (name, vendor) = (row.name(), Vendor::start(None).await);
        vendor.script([Act::Hang]);
        let rig = row.rig(&vendor, "window = \"1ms\"").await;
        for _ in 0..2 {
            let (got, ()) = tokio::join!(row.send(&rig), async {
                vendor.has(1).await;
                rig.clock.step(TIMEOUT_MS);
            });
            assert_eq!(
                (got.status, got.header("x-should-retry")),
                (StatusCode::FAILED_DEPENDENCY, Some("false")),
                "{name}"
            );
        }
        assert_eq!((vendor.posts().len(), only(&rig).await.state), (1, State::InDoubt), "{name}");
    }
}

#[tokio::test]
async fn answers_mean_what_the_vendor_documents() {
    for row in rows() {
        for (status, body, expected) in row.answers {
            let (name, vendor) = (row.name(), Vendor::start(None).await);
            vendor.script(std::iter::repeat_n(Act::Refuse(*status, body), 20));
            let rig = row.rig(&vendor, "attempts = 1").await;
            let got = rig.passing(row.send(&rig)).await;
            assert_eq!(only(&rig).await.state, *expected, "{name} {status} {body}");
            let own =
                if *expected == State::InDoubt { "unknown" } else { got.header("once-happened").unwrap() };
            assert_eq!(got.header("once-happened"), Some(own), "{name} {status} {body}");
            if *expected != State::InDoubt {
                assert_eq!(
                    (got.status.as_u16(), &got.body[..]),
                    (*status, body.as_bytes()),
                    "{name} {status} {body}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_request_in_flight_is_asked_for_again_and_then_a_conflict() {
    let busy = r#"{"error":{"code":"idempotency_key_in_use"}}"#;
    let stripe = rows().remove(0);
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Refuse(409, busy), Act::Refuse(409, busy), Act::Answer]);
    let config =
        format!("[upstream.v]\nurl = \"{}\"\npreset = \"stripe\"\nallow_private = true\n", vendor.url);
    let rig = Rig::start(&config).await;
    let got = stripe.send(&rig).await;
    assert_eq!((got.status, vendor.posts().len(), vendor.effects()), (StatusCode::OK, 3, 1));
    let vendor = Vendor::start(None).await;
    vendor.script(std::iter::repeat_n(Act::Refuse(409, busy), 50));
    let rig = stripe.rig(&vendor, "").await;
    let got = rig.passing(stripe.send(&rig)).await;
    assert_eq!((got.status, got.json()["code"].as_str()), (StatusCode::CONFLICT, Some("IN_PROGRESS")));
    assert_eq!(got.header("x-should-retry"), None);
}

#[tokio::test]
async fn tokens_and_queries_are_not_recorded() {
    for (preset, path, headers, body) in [
        ("paypal", "/v1/oauth2/token", ("x-a", "1"), "{}"),
        ("square", "/oauth2/token", ("x-a", "1"), "{}"),
        ("shopify", "/admin/api/2026-10/graphql.json", ("x-a", "1"), r#"{"query":"{ shop { name } }"}"#),
        ("aws", "/", ("x-amz-target", "DynamoDB_20120810.GetItem"), "{}"),
        ("github", "/app/installations/1/access_tokens", ("x-a", "1"), "{}"),
    ] {
        let vendor = Vendor::start(None).await;
        let rig = row(preset, path, At::Nowhere, 0, 0).rig(&vendor, "").await;
        for _ in 0..2 {
            let headers = [("content-type", JSON), headers];
            let got = rig.send(Method::POST, &format!("/gw/v{path}"), &headers, body).await;
            assert_eq!(got.status, StatusCode::OK, "{preset}");
        }
        assert_eq!((rig.operations().await.len(), vendor.posts().len()), (0, 2), "{preset}");
    }
}

#[tokio::test]
async fn a_signed_request_keeps_its_token_and_another_token_is_refused() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Reset, Act::Answer]);
    let rig = row("aws", "/", At::Nowhere, 0, 0).rig(&vendor, "attempts = 1\nwindow = \"1h\"").await;
    let send = async |token: &str, signature: &str| {
        let signed =
            format!("AWS4-HMAC-SHA256 Credential=AKIA/20261117/r/s/aws4_request, Signature={signature}");
        let headers = [("authorization", signed.as_str()), ("content-type", JSON)];
        rig.send(Method::POST, "/gw/v/", &headers, &format!("{{\"clientToken\":\"{token}\",\"n\":1}}")).await
    };
    assert_eq!(send("t-1", "aa").await.status, StatusCode::FAILED_DEPENDENCY);
    assert_eq!(vendor.posts()[0].body, r#"{"clientToken":"t-1","n":1}"#, "signed bytes are not changed");
    assert_eq!(send("t-2", "bb").await.status, StatusCode::FAILED_DEPENDENCY, "the vendor would run it");
    assert_eq!(vendor.posts().len(), 1);
    let config = only(&rig).await;
    assert_eq!(config.detail.downstream.unwrap().key, "t-1");
}

#[tokio::test]
async fn a_signature_over_the_key_keeps_the_key() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Reset, Act::Answer]);
    let rig = row("truelayer", "/v3/payments", At::Nowhere, 0, 0).rig(&vendor, "").await;
    let key = "3c9ae5ea-980f-4ebd-a027-04529942b95e";
    let headers = [("idempotency-key", key), ("tl-signature", "s1"), ("content-type", JSON)];
    let got = rig.send(Method::POST, "/gw/v/v3/payments", &headers, "{}").await;
    let keys: Vec<Seen> = vendor.posts();
    assert_eq!((got.status, keys.len()), (StatusCode::OK, 2));
    assert!(keys.iter().all(|seen| seen.header("idempotency-key") == Some(key)), "{keys:?}");
}

#[tokio::test]
async fn a_failure_after_a_doubt_does_not_clear_it() {
    // The vendor says that the first attempt failed, or that its key was used with other parameters: it may have begun.
    for (preset, path, headers, body, status, answer) in [
        (
            "shopify",
            "/admin/api/2026-10/graphql.json",
            ("x-a", "1"),
            REFUND,
            200,
            r#"{"data":{"r":{"userErrors":[{"code":"IDEMPOTENCY_PREVIOUS_ATTEMPT_FAILED"}]}}}"#,
        ),
        ("telnyx", "/v2/messages", ("idempotency-key", "k"), "{}", 422, "{}"),
    ] {
        let vendor = Vendor::start(None).await;
        vendor.script([Act::Reset, Act::Refuse(status, answer)]);
        let rig = row(preset, path, At::Nowhere, 0, 0).rig(&vendor, "attempts = 2").await;
        let headers = [("content-type", JSON), headers];
        let got = rig.send(Method::POST, &format!("/gw/v{path}"), &headers, body).await;
        assert_eq!(
            (got.status, only(&rig).await.state),
            (StatusCode::FAILED_DEPENDENCY, State::InDoubt),
            "{preset}"
        );
    }
}

#[tokio::test]
async fn every_preset_names_its_source_and_has_a_test() {
    let presets: toml::Table = include_str!("../../../src/gateway/presets.toml").parse().unwrap();
    let tested: Vec<&str> = rows().iter().map(|row| row.preset).collect();
    for (name, preset) in &presets {
        let source = preset.get("source").and_then(toml::Value::as_str).unwrap_or_default();
        assert!(source.starts_with("https://"), "{name}");
        if preset.get("models").is_some() {
            // Model APIs have no keys; their calls are tested in `models`.
            continue;
        }
        assert!(tested.contains(&name.as_str()), "{name}");
        let page = include_str!("../../../../../docs/gateway.md");
        assert!(page.contains(&format!("`{name}`")), "{name} is not on the page");
    }
}

#[tokio::test]
async fn a_vendor_that_repeats_a_server_error_is_not_asked_again() {
    let vendor = Vendor::start(None).await;
    vendor.script([Act::Status(500), Act::Replayed(500), Act::Answer]);
    let stripe = rows().remove(0);
    let rig = stripe.rig(&vendor, "").await;
    assert_eq!(stripe.send(&rig).await.status, StatusCode::FAILED_DEPENDENCY);
    assert_eq!((vendor.posts().len(), only(&rig).await.state), (2, State::InDoubt));
}
