//! Which requests are the same event: ids, and digests of what is signed.

use bytes::Bytes;
use onceward_http::inbox::{Event, Judgement, Reason, Sample, Signed, Trial};
use serde_json::{Value, json};

use super::{NOW_MS, PRESETS, URL, config, event, headers, judge, judge_with, rejected};

/// The id of a redelivery: the vendor's own, at a later time.
fn redelivered(trial: &Trial, sample: &Sample, later_ms: i64) -> Event {
    let signed = trial.sign(&Sample { now_ms: NOW_MS + later_ms, ..sample.clone() }).unwrap();
    event(judge(trial, &signed, NOW_MS + later_ms))
}

#[test]
fn a_redelivery_at_another_time_is_the_same_event() {
    for preset in PRESETS {
        let trial = Trial::new(preset).unwrap();
        let sample = trial.source.sample(URL, 1, NOW_MS).unwrap();
        let (first, again) = (redelivered(&trial, &sample, 0), redelivered(&trial, &sample, 4_000));
        assert_eq!((first.digest, &first.id), (again.digest, &again.id), "{preset}");
        let other = trial.source.sample(URL, 2, NOW_MS).unwrap();
        let other = redelivered(&trial, &other, 0);
        assert_ne!(first.digest, other.digest, "{preset}");
        if preset != "discord" {
            assert!(first.id.is_some(), "{preset}");
            assert_ne!(first.id, other.id, "{preset}");
        }
        let has_no_kind = ["hmac"];
        assert!(first.kind.is_some() || has_no_kind.contains(&preset), "{preset}");
    }
}

#[test]
fn ids_outside_the_signature_are_marked_and_a_fresh_one_has_the_same_digest() {
    for (preset, header) in [
        ("github", "x-github-delivery"),
        ("shopify", "x-shopify-event-id"),
        ("linear", "linear-delivery"),
        ("twilio", "i-twilio-idempotency-token"),
    ] {
        let trial = Trial::new(preset).unwrap();
        let signed = trial.sign_sample(URL, 1, NOW_MS).unwrap();
        let first = event(judge(&trial, &signed, NOW_MS));
        let mut captured = signed.clone();
        captured.headers.insert(header, "fresh".parse().unwrap());
        let replay = event(judge(&trial, &captured, NOW_MS));
        assert!(!first.is_id_signed && !replay.is_id_signed, "{preset}");
        assert_ne!(first.id, replay.id, "{preset}");
        assert_eq!(first.digest, replay.digest, "{preset}: a captured body under a fresh id");
        captured.headers.remove(header);
        let nameless = event(judge(&trial, &captured, NOW_MS));
        assert_eq!((nameless.id, nameless.digest), (None, first.digest), "{preset}");
    }
    for preset in PRESETS {
        let trial = Trial::new(preset).unwrap();
        let event = event(judge(&trial, &trial.sign_sample(URL, 1, NOW_MS).unwrap(), NOW_MS));
        let unsigned = ["github", "shopify", "linear", "twilio", "paypal", "discord"].contains(&preset);
        assert_eq!(event.is_id_signed, !unsigned, "{preset}");
    }
}

#[test]
fn a_topic_of_shopify_tells_equal_bodies_apart_only_if_asked() {
    for (settings, is_same) in [("", true), ("distinct = [\"X-Shopify-Topic\"]", false)] {
        let trial = Trial::with("shopify", config(settings)).unwrap();
        let signed = trial.sign_sample(URL, 1, NOW_MS).unwrap();
        let mut other = signed.clone();
        other.headers.insert("x-shopify-topic", "orders/paid".parse().unwrap());
        let (first, other) = (event(judge(&trial, &signed, NOW_MS)), event(judge(&trial, &other, NOW_MS)));
        assert_ne!(first.id, other.id);
        assert_eq!(first.digest == other.digest, is_same);
    }
}

/// Four bytes that give `text` + bytes the CRC-32 `wanted`, found by going through the polynomial backwards.
fn crc32_patch(text: &[u8], wanted: u32) -> [u8; 4] {
    let mut state = !wanted;
    let mut crc = !crc32fast::hash(text);
    for _ in 0..32 {
        state = if state & 0x8000_0000 != 0 { ((state ^ 0xedb8_8320) << 1) | 1 } else { state << 1 };
    }
    crc ^= state;
    crc.to_le_bytes()
}

#[test]
fn a_body_of_paypal_with_an_equal_crc_32_is_the_same_transmission() {
    let trial = Trial::new("paypal").unwrap();
    let signed = trial.sign_sample(URL, 1, NOW_MS).unwrap();
    let first = event(judge(&trial, &signed, NOW_MS));
    let forged =
        br#"{"id":"WH-FORGED","event_type":"PAYMENT.CAPTURE.COMPLETED","resource":{"amount":"9999.00"}} "#;
    let patch = crc32_patch(forged, crc32fast::hash(&signed.body));
    let forged = Bytes::from([&forged[..], &patch].concat());
    assert_eq!(crc32fast::hash(&forged), crc32fast::hash(&signed.body));
    let judged = judge(&trial, &Signed { body: forged, ..signed.clone() }, NOW_MS);
    // PayPal's signature cannot tell, so the transmission id must: it counts once.
    let replay = event(judged);
    assert_eq!(replay.digest, first.digest);
    assert!(!replay.is_id_signed);
    // Two transmissions whose bodies have an equal CRC-32 are two events.
    let sample = trial.source.sample(URL, 1, NOW_MS).unwrap();
    let other = trial.sign(&Sample { id: "another transmission".to_owned(), ..sample }).unwrap();
    assert_ne!(event(judge(&trial, &other, NOW_MS)).digest, first.digest);
}

#[test]
fn twilios_joined_fields_have_one_digest_however_they_are_written() {
    let trial = Trial::new("twilio").unwrap();
    let sample = |body: &'static str| Sample {
        url: URL.to_owned(),
        id: String::new(),
        headers: headers(&[("content-type", "application/x-www-form-urlencoded")]),
        body: Bytes::from_static(body.as_bytes()),
        now_ms: NOW_MS,
    };
    let signed = trial.sign(&sample("Body=Hi&From=%2B1415&MessageSid=SM1")).unwrap();
    let first = event(judge(&trial, &signed, NOW_MS));
    // The same signature, because nothing separates names from values.
    for body in ["Bo=dyHi&From=%2B1415&MessageSid=SM1", "From=%2b1415&MessageSid=SM1&Body=%48i&Body=Hi"] {
        let changed = Signed { body: Bytes::from_static(body.as_bytes()), ..signed.clone() };
        assert_eq!(event(judge(&trial, &changed, NOW_MS)).digest, first.digest, "{body}");
    }
    let ported = Signed { url: URL.replace("example.com", "example.com:443"), ..signed.clone() };
    assert_eq!(event(judge(&trial, &ported, NOW_MS)).digest, first.digest);
    let json = Signed {
        headers: {
            let mut headers = signed.headers.clone();
            headers.insert("content-type", "application/json".parse().unwrap());
            headers
        },
        ..signed
    };
    assert_eq!(rejected(judge(&trial, &json, NOW_MS)), Reason::Unsigned);
}

#[test]
fn arrays_are_split_into_events_with_their_own_identity() {
    let trial = Trial::new("sendgrid").unwrap();
    let items = [json!({"sg_event_id": "a", "event": "open", "timestamp": 1}), json!({"sg_event_id": "b"})];
    let sign = |items: &[Value]| {
        let mut sample = trial.source.sample(URL, 1, NOW_MS).unwrap();
        sample.body = format!("{}\r\n", serde_json::to_string(items).unwrap()).into();
        judge(&trial, &trial.sign(&sample).unwrap(), NOW_MS)
    };
    let Judgement::Events(both) = sign(&items) else { panic!() };
    assert_eq!(both.iter().map(|event| event.id.as_deref()).collect::<Vec<_>>(), [Some("a"), Some("b")]);
    assert!(both.iter().all(|event| event.is_id_signed));
    assert_eq!((both[0].kind.as_deref(), both[0].occurred_ms), (Some("open"), Some(1_000)));
    let Judgement::Events(one) = sign(&items[1..]) else { panic!() };
    assert_eq!(one[0], both[1], "another batch has the same event");
    assert_eq!(sign(&[]), Judgement::Events(Vec::new()));
    let mut sample = trial.source.sample(URL, 1, NOW_MS).unwrap();
    sample.body = Bytes::from_static(b"{}");
    assert_eq!(rejected(judge(&trial, &trial.sign(&sample).unwrap(), NOW_MS)), Reason::Body);
}

#[test]
fn the_three_forms_of_cloudevents_have_one_identity() {
    let trial = Trial::new("cloudevents").unwrap();
    let signed = trial.sign_sample(URL, 1, NOW_MS).unwrap();
    let structured = event(judge(&trial, &signed, NOW_MS));
    assert_eq!(structured.id.as_deref(), Some("https://example.com/orders 0000000000000001"));
    let mut batch = signed.clone();
    batch.body = Bytes::from([b"[", &signed.body[..], b"]"].concat());
    batch.headers.insert("content-type", "application/cloudevents-batch+json".parse().unwrap());
    let batched = event(judge(&trial, &batch, NOW_MS));
    assert_eq!((&batched.id, batched.digest), (&structured.id, structured.digest));
    let mut binary = signed.clone();
    binary.body = Bytes::from_static(b"{\"id\":\"not this one\"}");
    for (name, value) in [
        ("content-type", "application/json"),
        ("ce-specversion", "1.0"),
        ("ce-id", "0000000000000001"),
        ("ce-source", "https://example.com/orders"),
        ("ce-type", "com.example.order.created"),
    ] {
        binary.headers.insert(name, value.parse().unwrap());
    }
    let found = event(judge(&trial, &binary, NOW_MS));
    assert_eq!(found.id, structured.id);
    assert_eq!(found.headers.len(), 4, "{:?}", found.headers);
    assert!(found.headers.iter().all(|(name, _)| name != "authorization"));
    binary.headers.remove("ce-id");
    assert_eq!(rejected(judge(&trial, &binary, NOW_MS)), Reason::Body);
}

#[test]
fn a_generic_source_says_what_is_signed_and_where_the_id_is() {
    let settings = r#"
        signature = { header = "X-Acme-Sig", algorithm = "hmac-sha512", encoding = "base64url", prefix = "s=" }
        timestamp = { header = "X-Acme-Time", unit = "ms" }
        signed = "{timestamp}~{url}~{body}"
        id = ["$.meta.ids[0]", "header:X-Acme-Id"]
    "#;
    let trial = Trial::with("hmac", config(settings)).unwrap();
    let sample = Sample {
        url: URL.to_owned(),
        id: String::new(),
        headers: headers(&[("x-acme-id", "h1")]),
        body: Bytes::from_static(br#"{"meta":{"ids":["b1"]}}"#),
        now_ms: NOW_MS,
    };
    let signed = trial.sign(&sample).unwrap();
    assert!(signed.headers["x-acme-sig"].to_str().unwrap().starts_with("s="));
    let found = event(judge(&trial, &signed, NOW_MS));
    assert_eq!((found.id.as_deref(), found.is_id_signed), (Some("b1"), true));
    let from_header = trial.sign(&Sample { body: Bytes::from_static(b"{}"), ..sample.clone() }).unwrap();
    let found = event(judge(&trial, &from_header, NOW_MS));
    assert_eq!((found.id.as_deref(), found.is_id_signed), (Some("h1"), false));
    let elsewhere = Signed { url: "https://other.example/".to_owned(), ..signed.clone() };
    assert_eq!(rejected(judge(&trial, &elsewhere, NOW_MS)), Reason::Signature);
    assert_eq!(rejected(judge(&trial, &signed, NOW_MS + 300_001)), Reason::Old);
    let long = Bytes::from(format!(r#"{{"meta":{{"ids":["{}"]}}}}"#, "x".repeat(1_000)));
    let long = trial.sign(&Sample { body: long, ..sample }).unwrap();
    let id = event(judge(&trial, &long, NOW_MS)).id.unwrap();
    assert!(id.starts_with("sha256:") && id.len() == 71, "{id}");
    for (wrong, words) in [
        (
            "signed = \"{timestamp}\"\nsignature = { header = \"X\" }\ntimestamp = { header = \"T\" }",
            "no {body}",
        ),
        ("signed = \"{timestamp}{body}\"\nsignature = { header = \"X\" }", "where it is"),
        ("signature = { header = \"X\" }\ntimestamp = { header = \"T\" }", "not signed"),
        ("signed = \"{nothing}\"\nsignature = { header = \"X\" }", "placeholders"),
        ("signed = \"{id}{body}\"\nsignature = { header = \"X\" }", "signed_id"),
        ("signature = { header = \"X Y\" }", "not the name of a header"),
        ("signature = { header = \"X\" }\nid = [\"id\"]", "not a place"),
    ] {
        let error = Trial::with("hmac", config(wrong)).map(drop).unwrap_err().to_string();
        assert!(error.contains(words), "{wrong}: {error}");
    }
}

#[test]
fn the_public_url_of_a_source_counts_instead_of_the_one_that_was_called() {
    let settings = "url = \"https://public.example/hooks/square\"";
    let trial = Trial::with("square", config(settings)).unwrap();
    let signed = trial.sign_sample("http://10.0.0.1:8080/hooks/square", 1, NOW_MS).unwrap();
    let inside = "http://10.0.0.1:8080/hooks/square";
    let judged = judge_with(&trial.source, &trial, inside, &signed.headers, &signed.body, NOW_MS);
    event(judged);
}

/// Twilio signs the URL with its query, which differs from request to request and has the hash of a JSON body.
#[test]
fn the_query_of_a_request_belongs_to_the_url_that_is_configured() {
    let settings = "preset = \"twilio\"\nsecrets = [\"$SECRET\"]\nurl = \"https://pub.example/hooks/tw\"";
    let source =
        onceward_http::inbox::Source::new("tw", &config(settings), &|_| Some("tok".to_owned())).unwrap();
    let json = Bytes::from_static(br#"{"n":1}"#);
    let hash = data_encoding::HEXLOWER.encode(ring::digest::digest(&ring::digest::SHA256, &json).as_ref());
    let form = Bytes::from_static(b"n=1");
    let kinds = ["application/json", "application/x-www-form-urlencoded"];
    for (query, kind, body, fields) in [
        (format!("?bodySHA256={hash}"), kinds[0], &json, ""),
        (format!("?call=7&bodySHA256={hash}"), kinds[0], &json, ""),
        ("?call=7".to_owned(), kinds[1], &form, "n1"),
        (String::new(), kinds[1], &form, "n1"),
    ] {
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, b"tok");
        let signed = format!("https://pub.example/hooks/tw{query}{fields}");
        let signature = data_encoding::BASE64.encode(ring::hmac::sign(&key, signed.as_bytes()).as_ref());
        let headers = headers(&[("x-twilio-signature", &signature), ("content-type", kind)]);
        let trial = Trial::new("twilio").unwrap();
        let at = |url: &str| judge_with(&source, &trial, url, &headers, body, NOW_MS);
        event(at(&format!("https://127.0.0.1:6270/hooks/tw{query}")));
        let mark = if query.is_empty() { '?' } else { '&' };
        let moved = at(&format!("https://127.0.0.1:6270/hooks/tw{query}{mark}x=1"));
        assert!(matches!(moved, Judgement::Rejected(_)), "{query}: {moved:?}");
    }
}

#[test]
fn long_numbers_and_repeated_members_keep_events_apart() {
    let settings = "preset = \"hmac\"\nsecrets = [\"$SECRET\"]\nsignature = { header = \"X-Sig\" }\n\
                    signed = \"{body}\"\nid = [\"$.id\"]\nvolatile = [\"at\"]";
    let source =
        onceward_http::inbox::Source::new("acme", &config(settings), &|_| Some("s".to_owned())).unwrap();
    let trial = Trial::new("hmac").unwrap();
    let of = |body: &'static str| {
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, b"s");
        let signature = data_encoding::HEXLOWER.encode(ring::hmac::sign(&key, body.as_bytes()).as_ref());
        let headers = headers(&[("x-sig", &signature)]);
        event(judge_with(&source, &trial, URL, &headers, &Bytes::from_static(body.as_bytes()), NOW_MS))
    };
    let one = of(r#"{"id":340282366920938463463374607431768211455,"at":1}"#);
    let other = of(r#"{"id":340282366920938463463374607431768211454,"at":1}"#);
    assert_eq!(one.id.as_deref(), Some("340282366920938463463374607431768211455"));
    assert!(one.id != other.id && one.digest != other.digest);
    let again = of(r#"{"id":340282366920938463463374607431768211455,"at":2}"#);
    assert_eq!((one.id, one.digest), (again.id, again.digest), "a redelivery");
    let repeated = of(r#"{"id":1,"id":2,"at":1}"#);
    assert_eq!((repeated.id, repeated.is_id_signed), (None, false), "its content is its identity");
    assert_ne!(repeated.digest, of(r#"{"id":2,"at":1}"#).digest);
}
