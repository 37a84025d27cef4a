//! What counts as the answer of a model, and how a client learns that it got a part of one.

use std::io::Write;

use hyper::{Method, StatusCode};
use tokio::io::AsyncReadExt;

use crate::gateway::models::{ASK, STREAM, ask, sends_with, whole};
use crate::gateway::provider::{Play, Provider, Then};
use crate::gateway::rig::{Got, Rig};

/// The head of an answer whose body ends with its connection.
const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";

fn bytes(text: String) -> &'static [u8] {
    text.into_bytes().leak()
}

/// A document that ends with its connection.
fn document(text: &str) -> Play {
    Play::Bytes(bytes(format!("{HEAD}connection: close\r\n\r\n{text}")), Then::Close)
}

/// A body of one chunk, without its end.
fn chunked(content_type: &str, text: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{text}\r\n",
        text.len()
    )
}

async fn ask_of(play: Play, body: &str) -> (Got, u32) {
    let provider = Provider::start(&[play]).await;
    let rig = Rig::start(&provider.config("")).await;
    // The gateway waits a second for the end of a body that may be complete.
    let got = rig.passing(ask(&rig, &[], body)).await;
    (got, provider.generations())
}

#[tokio::test]
async fn an_error_as_the_first_event_of_a_stream_is_retried() {
    let error = "event: error\ndata: {\"error\":{\"message\":\"Overloaded\"}}\n\n";
    for round in 0..10 {
        let sent = format!("{}0\r\n\r\n", chunked("text/event-stream", error));
        let (got, generations) = ask_of(Play::Bytes(bytes(sent), Then::Wait), STREAM).await;
        assert_eq!((got.body.as_ref(), generations), (whole(2).as_bytes(), 2), "round {round}");
    }
}

#[tokio::test]
async fn a_client_of_a_stream_that_breaks_off_at_once_gets_its_beginning_or_a_whole_answer() {
    let part = "data: {\"choices\":[{\"delta\":{\"content\":\"part\"}}]}\n\n";
    for round in 0..20 {
        let sent = format!("{}0\r\n\r\n", chunked("text/event-stream", part));
        let provider = Provider::start(&[Play::Bytes(bytes(sent), Then::Close)]).await;
        let rig = Rig::start(&provider.config("")).await;
        let mut stream = sends_with(&rig, "HTTP/1.1", "connection: close\r\n", STREAM).await;
        let mut read = Vec::new();
        drop(stream.read_to_end(&mut read).await);
        let text = String::from_utf8_lossy(&read);
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "round {round}: {text}");
        let is_whole = text.contains("[DONE]") && text.ends_with("0\r\n\r\n");
        assert!(is_whole || (text.contains("part") && !text.ends_with("0\r\n\r\n")), "round {round}: {text}");
        assert_eq!(provider.generations(), if is_whole { 2 } else { 1 }, "round {round}");
    }
}

#[tokio::test]
async fn a_broken_answer_resets_the_connection_of_a_client_of_http_1_0() {
    for play in [Play::Cut, Play::Short] {
        let provider = Provider::start(&[play]).await;
        let rig = Rig::start(&provider.config("")).await;
        let mut stream = sends_with(&rig, "HTTP/1.0", "", STREAM).await;
        let ended = stream.read_to_end(&mut Vec::new()).await;
        let kind = ended.map_err(|error| error.kind());
        assert_eq!(kind, Err(std::io::ErrorKind::ConnectionReset), "{play:?}: the client must notice");
        let mut stream = sends_with(&rig, "HTTP/1.0", "", STREAM).await;
        let mut read = Vec::new();
        stream.read_to_end(&mut read).await.unwrap();
        assert!(
            String::from_utf8_lossy(&read).ends_with(&whole(2)),
            "{play:?}: a whole answer ends as usual"
        );
    }
}

#[tokio::test]
async fn a_whole_document_is_the_answer_even_if_its_body_has_no_end() {
    let text = r#"{"id":"c-0","choices":[]}"#;
    let short = format!("{HEAD}content-length: {}\r\n\r\n{text}", text.len() + 1);
    for (sent, then, expected) in [
        (chunked("application/json", text), Then::Close, "c-0"),
        (chunked("application/json", text), Then::Wait, "c-0"),
        (format!("{HEAD}\r\n{text}\n"), Then::Wait, "c-0"),
        // Something is missing, or follows.
        (short, Then::Close, "c-2"),
        (chunked("application/json", &text[..text.len() - 1]), Then::Close, "c-2"),
        (chunked("application/json", &format!("{text}{{")), Then::Close, "c-2"),
    ] {
        let (got, _) = ask_of(Play::Bytes(bytes(sent.clone()), then), ASK).await;
        assert_eq!(got.json()["id"], expected, "{sent}");
    }
}

#[tokio::test]
async fn a_document_that_is_no_answer_is_a_failed_attempt() {
    for text in ["null", "{}", r#"{"detail":"Not Found"}"#, r#"{"object":"error","message":"busy"}"#] {
        let (got, generations) = ask_of(document(text), ASK).await;
        assert_eq!((&got.json()["id"], generations), (&"c-2".into(), 2), "{text}");
    }
}

#[tokio::test]
async fn a_damaged_answer_is_a_failed_attempt() {
    for (body, text) in [(ASK, r#"{"id":"c-0","choices":[]}"#), (STREAM, "data: [DONE]\n\n")] {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(text.as_bytes()).unwrap();
        let mut damaged = gzip.finish().unwrap();
        let sum = damaged.len() - 8;
        damaged[sum] ^= 1;
        let head = format!("{HEAD}content-encoding: gzip\r\ncontent-length: {}\r\n\r\n", damaged.len());
        let sent = [head.as_bytes(), &damaged].concat().leak();
        let (got, generations) = ask_of(Play::Bytes(sent, Then::Close), body).await;
        assert_eq!((got.status, generations), (StatusCode::OK, 2), "{text}");
    }
}

#[tokio::test]
async fn every_byte_of_a_stream_is_kept_and_estimates_are_marked() {
    let stream = "data: {\"choices\":[{\"delta\":{\"content\":\"text\"}}]}\r\n\r\ndata: [DONE]\r\n\r";
    let sent = format!("{}1\r\n\n\r\n", chunked("text/event-stream", stream));
    let provider = Provider::start(&[Play::Bytes(bytes(sent), Then::Close)]).await;
    let rig = Rig::start(&provider.config("")).await;
    for _ in 0..2 {
        let got = ask(&rig, &[("idempotency-key", "k")], STREAM).await;
        assert_eq!(got.body.as_ref(), format!("{stream}\n").as_bytes());
    }
    let replayed = ask(&rig, &[("idempotency-key", "k")], STREAM).await;
    let tokens = format!("in={};cached=0;out=1;estimated", STREAM.len() / 4);
    assert_eq!(replayed.header("once-tokens"), Some(tokens.as_str()));
    let known = ask(&rig, &[], ASK).await;
    assert_eq!(known.header("once-tokens"), Some("in=7;cached=0;out=1"));
}

#[tokio::test]
async fn a_credential_in_the_query_identifies_the_caller() {
    let answer = |number: u32| document(&format!("{{\"responseId\":\"{number}\",\"candidates\":[]}}"));
    let provider = Provider::start(&[answer(1), answer(2)]).await;
    let rig = Rig::start(&provider.config_of("gemini", "")).await;
    let ask = async |query: &str, headers: &[(&str, &str)]| {
        let path = format!("/gw/gemini/v1beta/models/g:generateContent{query}");
        let mut all = vec![("content-type", "application/json"), ("idempotency-key", "k")];
        all.extend(headers);
        let got = rig.send(Method::POST, &path, &all, r#"{"contents":[]}"#).await;
        assert_eq!(got.status, StatusCode::OK, "{query}: {got:?}");
        got.json()["responseId"].as_str().unwrap().to_owned()
    };
    assert_eq!(ask("?key=first", &[]).await, "1");
    assert_eq!(ask("?key=second", &[]).await, "2", "another caller has keys of its own");
    assert_eq!(ask("?key=first", &[]).await, "1");
    assert_eq!(ask("", &[("x-goog-api-key", "second")]).await, "2", "the same credential in a header");
    let stored = std::fs::read(rig.folder.path().join("ledger.db")).unwrap();
    assert!(!String::from_utf8_lossy(&stored).contains("second"));
}
