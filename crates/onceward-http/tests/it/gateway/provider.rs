//! A provider of models whose answers all differ, and that does what the test says.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::common::until;

/// What the provider does with the next request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Play {
    /// Answers.
    Answer,
    /// Answers when the test opens the gate.
    Held,
    /// Answers with half of a document or stream, and closes the connection.
    Cut,
    /// Ends a stream cleanly before its protocol's end.
    Short,
    /// Closes the connection.
    Close,
    /// Sends the first half of a stream, and the rest when the test opens the gate.
    Gate,
    /// Answers with this status.
    Status(u16),
    /// Answers with this content type.
    Typed(&'static str),
    /// Answers compressed.
    Gzip,
    /// Answers with this body, in Brotli.
    Brotli(u16, &'static [u8]),
    /// Sends these bytes, from the status line on, when the test opens the gate, and closes the connection.
    HeldBytes(&'static [u8]),
    /// Sends these bytes at once, from the status line on, and then does this.
    Bytes(&'static [u8], Then),
    /// Ends a stream by its protocol, and leaves its body open.
    Open,
    /// Sends the events of a stream with pauses of this many milliseconds, again and again, without an end.
    Drip(u64),
}

/// What the provider does after it has sent bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Then {
    /// Closes the connection.
    Close,
    /// Waits for the gateway to close it.
    Wait,
}

/// A provider whose answers all differ.
pub(crate) struct Provider {
    url: String,
    script: Script,
}

/// What the connections of a provider share.
#[derive(Clone)]
struct Script {
    plays: Arc<Mutex<VecDeque<Play>>>,
    generations: Arc<Mutex<u32>>,
    /// How many connections were closed.
    closed: Arc<AtomicU32>,
    gate: Arc<Semaphore>,
}

impl Provider {
    pub(crate) async fn start(plays: &[Play]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let script = Script {
            plays: Arc::new(Mutex::new(plays.iter().copied().collect())),
            generations: Arc::default(),
            closed: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
        };
        let shared = script.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let ended = Arc::clone(&shared.closed);
                let conversation = converse(stream, shared.clone());
                tokio::spawn(conversation.map(move |()| ended.fetch_add(1, Ordering::SeqCst)));
            }
        });
        Self { url, script }
    }

    pub(crate) fn generations(&self) -> u32 {
        *self.script.generations.lock().unwrap()
    }

    /// Waits until this number of requests has come.
    pub(crate) async fn has(&self, generations: u32) {
        until("the provider gets the request", async || self.generations() >= generations).await;
    }

    /// Whether everything in the script was used.
    pub(crate) fn has_played(&self) -> bool {
        self.script.plays.lock().unwrap().is_empty()
    }

    pub(crate) fn closed(&self) -> u32 {
        self.script.closed.load(Ordering::SeqCst)
    }

    /// Continues this number of answers that wait at the gate, now or later.
    pub(crate) fn open_gate(&self, answers: usize) {
        self.script.gate.add_permits(answers);
    }

    pub(crate) fn config(&self, more: &str) -> String {
        self.config_of("openai", more)
    }

    /// The same for the upstream with this name.
    pub(crate) fn config_of(&self, upstream: &str, more: &str) -> String {
        format!(
            "[upstream.{upstream}]\nurl = \"{}\"\nallow_private = true\nbackoff = \"10ms\"\n{more}\n",
            self.url
        )
    }
}

pub(crate) fn events(number: u32) -> Vec<String> {
    let word = |text: String| {
        format!("data: {{\"model\":\"m\",\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n")
    };
    let mut events: Vec<String> = (0..6).map(|index| word(format!("{number}-{index} "))).collect();
    events.push(
        "data: {\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":6}}\n\n"
            .to_owned(),
    );
    events.push("data: [DONE]\n\n".to_owned());
    events
}

async fn converse(mut stream: TcpStream, script: Script) {
    while let Some(body) = next_request(&mut stream).await {
        let number = {
            let mut count = script.generations.lock().unwrap();
            *count += 1;
            *count
        };
        let play = script.plays.lock().unwrap().pop_front().unwrap_or(Play::Answer);
        if matches!(play, Play::Held | Play::HeldBytes(_)) {
            script.gate.acquire().await.unwrap().forget();
        }
        match play {
            Play::Close => return,
            Play::Status(status) => {
                let text = r#"{"error":{"message":"scripted"}}"#;
                let length = text.len();
                let head = format!(
                    "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
                );
                if stream.write_all(format!("{head}{text}").as_bytes()).await.is_err() {
                    return;
                }
                continue;
            }
            Play::HeldBytes(bytes) => {
                drop(stream.write_all(bytes).await);
                return;
            }
            Play::Bytes(bytes, then) => {
                if stream.write_all(bytes).await.is_ok() && matches!(then, Then::Wait) {
                    drop(stream.read_u8().await);
                }
                return;
            }
            Play::Brotli(status, body) => {
                let head = format!(
                    "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-encoding: br\r\n\
                     content-length: {}\r\n\r\n",
                    body.len()
                );
                if stream.write_all(&[head.as_bytes(), body].concat()).await.is_err() {
                    return;
                }
                continue;
            }
            Play::Answer | Play::Held | Play::Cut | Play::Short => {}
            Play::Typed(_) | Play::Gzip | Play::Open | Play::Drip(_) | Play::Gate => {}
        }
        let is_open = if body.contains("\"stream\":true") {
            streams(&mut stream, play, number, &script.gate).await
        } else {
            writes(&mut stream, play, number).await
        };
        if !is_open {
            return;
        }
    }
}

/// The head of an answer that plays this.
fn head(play: Play, number: u32, usual_type: &str) -> String {
    let content_type = if let Play::Typed(other) = play { other } else { usual_type };
    let encoding = if matches!(play, Play::Gzip) { "content-encoding: gzip\r\n" } else { "" };
    format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\n{encoding}x-request-id: r-{number}\r\n")
}

/// Answers with a document. Returns whether the connection stays open.
async fn writes(stream: &mut TcpStream, play: Play, number: u32) -> bool {
    let text = format!(
        "{{\"id\":\"c-{number}\",\"model\":\"m\",\"choices\":[{{\"message\":{{\"content\":\"{number}\"}}}}],\
         \"usage\":{{\"prompt_tokens\":7,\"completion_tokens\":1}}}}"
    );
    let text = if matches!(play, Play::Gzip) { gzip(&[text]).concat() } else { text.into_bytes() };
    let head = format!("{}content-length: {}\r\n\r\n", head(play, number, "application/json"), text.len());
    let is_cut = matches!(play, Play::Cut);
    let sent = if is_cut { &text[..text.len() / 2] } else { &text[..] };
    stream.write_all(&[head.as_bytes(), sent].concat()).await.is_ok() && !is_cut
}

/// Answers with a stream. Returns whether the connection stays open.
async fn streams(stream: &mut TcpStream, play: Play, number: u32, gate: &Semaphore) -> bool {
    let head = format!("{}transfer-encoding: chunked\r\n\r\n", head(play, number, "text/event-stream"));
    let mut sent = stream.write_all(head.as_bytes()).await;
    let plain = events(number);
    while let Play::Drip(ms) = play {
        if stream.write_all(&chunk(plain[0].as_bytes())).await.is_err() {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
    let events: Vec<Vec<u8>> = if matches!(play, Play::Gzip) {
        gzip(&plain)
    } else {
        plain.into_iter().map(String::into_bytes).collect()
    };
    for (index, event) in events.iter().enumerate() {
        match (index, play) {
            (4, Play::Cut) => return false,
            (4, Play::Short) => break,
            (4, Play::Gate) => {
                gate.acquire().await.unwrap().forget();
            }
            _ => {}
        }
        if sent.is_ok() {
            sent = stream.write_all(&chunk(event)).await;
        }
    }
    if matches!(play, Play::Open) {
        // The connection stays open until the gateway closes it.
        drop(stream.read_u8().await);
        return false;
    }
    sent.is_ok() && stream.write_all(b"0\r\n\r\n").await.is_ok()
}

/// One chunk of a body.
fn chunk(data: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat()
}

/// The parts, compressed so that each can be read when it arrives.
fn gzip(parts: &[String]) -> Vec<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    let compress = |part: &String| {
        encoder.write_all(part.as_bytes()).unwrap();
        encoder.flush().unwrap();
        std::mem::take(encoder.get_mut())
    };
    let mut compressed: Vec<Vec<u8>> = parts.iter().map(compress).collect();
    compressed.push(encoder.finish().unwrap());
    compressed
}

/// The body of the next request.
async fn next_request(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?.trim().parse().ok()?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    String::from_utf8(body).ok()
}
