//! A vendor that counts effects and fails on request, spoken to over real sockets.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::common::until;

/// What the vendor does with the next mutating request.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// Takes effect and answers.
    Answer,
    /// Takes effect and answers when the test opens the gate.
    Gate,
    /// Takes effect and never answers.
    Hang,
    /// Takes effect and resets the connection.
    Reset,
    /// Takes effect and closes the connection.
    Close,
    /// Takes effect and answers with this status.
    Status(u16),
    /// Repeats an answer with this status.
    Replayed(u16),
    /// Takes effect and sends half of its answer.
    Cut,
    /// Does nothing and answers with this status and body.
    Refuse(u16, &'static str),
    /// Takes effect and answers with this status and body.
    Say(u16, &'static str),
    /// Takes effect and answers with a body of this size.
    Large(usize),
}

/// A request as the vendor saw it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }
}

#[derive(Default)]
struct Memory {
    acts: VecDeque<Act>,
    seen: Vec<Seen>,
    effects: u32,
    by_key: HashMap<String, String>,
    reads: HashMap<String, (u16, String)>,
    read_default: Option<String>,
    read_status: Option<u16>,
    read_headers: String,
}

/// The vendor.
#[derive(Clone)]
pub(crate) struct Vendor {
    memory: Arc<Mutex<Memory>>,
    gate: Arc<Semaphore>,
    pub(crate) url: String,
}

impl Vendor {
    /// A vendor that remembers the keys in this header, if it has one.
    pub(crate) async fn start(key_header: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let vendor = Self { memory: Arc::default(), gate: Arc::new(Semaphore::new(0)), url };
        let shared = vendor.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let vendor = shared.clone();
                tokio::spawn(async move { vendor.connection(stream, key_header).await });
            }
        });
        vendor
    }

    pub(crate) fn script(&self, acts: impl IntoIterator<Item = Act>) {
        self.memory.lock().unwrap().acts.extend(acts);
    }

    pub(crate) fn on_get(&self, path: &str, status: u16, body: &str) {
        self.memory.lock().unwrap().reads.insert(path.to_owned(), (status, body.to_owned()));
    }

    pub(crate) fn on_any_get(&self, body: &str) {
        self.memory.lock().unwrap().read_default = Some(body.to_owned());
    }

    /// All reads get this status and these header lines.
    pub(crate) fn on_any_get_with(&self, status: u16, headers: &str, body: &str) {
        let mut memory = self.memory.lock().unwrap();
        memory.read_status = Some(status);
        headers.clone_into(&mut memory.read_headers);
        memory.read_default = Some(body.to_owned());
    }

    pub(crate) fn effects(&self) -> u32 {
        self.memory.lock().unwrap().effects
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.memory.lock().unwrap().seen.clone()
    }

    /// Waits until this number of mutating requests has come.
    pub(crate) async fn has(&self, posts: usize) {
        until("the vendor gets the request", async || self.posts().len() >= posts).await;
    }

    /// Answers this number of requests that wait at the gate, now or later.
    pub(crate) fn open_gate(&self, requests: usize) {
        self.gate.add_permits(requests);
    }

    /// The mutating requests.
    pub(crate) fn posts(&self) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.method != "GET").collect()
    }

    async fn connection(&self, mut stream: TcpStream, key_header: Option<&'static str>) {
        let mut buffer = Vec::new();
        while let Some(seen) = read(&mut stream, &mut buffer).await {
            if seen.method == "GET" {
                let memory = Arc::clone(&self.memory);
                let ((status, body), more) = {
                    let mut memory = memory.lock().unwrap();
                    memory.seen.push(seen.clone());
                    let known = memory.reads.get(&seen.path).cloned();
                    let known = known.unwrap_or_else(|| match &memory.read_default {
                        Some(body) => (memory.read_status.unwrap_or(200), body.clone()),
                        None => (200, format!("{{\"path\":\"{}\"}}", seen.path)),
                    });
                    (known, memory.read_headers.clone())
                };
                answer(&mut stream, status, &body, &more).await;
                continue;
            }
            let key = key_header.and_then(|name| seen.header(name)).map(str::to_owned);
            let (act, replay, number) = {
                let mut memory = self.memory.lock().unwrap();
                memory.seen.push(seen.clone());
                let replay = key.as_ref().and_then(|key| memory.by_key.get(key).cloned());
                let act = memory.acts.pop_front().unwrap_or(Act::Answer);
                let acts = replay.is_none() && !matches!(act, Act::Refuse(..) | Act::Replayed(_));
                if acts {
                    memory.effects += 1;
                    let body = format!("{{\"id\":\"obj_{}\",\"status\":\"succeeded\"}}", memory.effects);
                    if let Some(key) = key {
                        memory.by_key.insert(key, body);
                    }
                }
                (act, replay, memory.effects)
            };
            let body = format!("{{\"id\":\"obj_{number}\",\"status\":\"succeeded\"}}");
            if self.perform(&mut stream, act, replay, body).await.is_none() {
                return;
            }
        }
    }

    async fn perform(
        &self,
        stream: &mut TcpStream,
        act: Act,
        replay: Option<String>,
        body: String,
    ) -> Option<()> {
        let marker = if replay.is_some() { "idempotent-replayed: true\r\n" } else { "" };
        let body = replay.unwrap_or(body);
        match act {
            Act::Answer => answer(stream, 200, &body, marker).await,
            Act::Gate => {
                self.gate.acquire().await.unwrap().forget();
                answer(stream, 200, &body, marker).await;
            }
            Act::Hang => {
                std::future::pending::<()>().await;
            }
            Act::Reset => {
                #[expect(deprecated, reason = "a reset is what is wanted")]
                stream.set_linger(Some(Duration::ZERO)).unwrap();
                return None;
            }
            Act::Close => return None,
            Act::Status(status) => answer(stream, status, "{\"error\":{\"type\":\"api_error\"}}", "").await,
            Act::Replayed(status) => answer(stream, status, "{}", "idempotent-replayed: true\r\n").await,
            Act::Cut => {
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                drop(stream.write_all(head.as_bytes()).await);
                drop(stream.write_all(&body.as_bytes()[..body.len() / 2]).await);
                return None;
            }
            Act::Refuse(status, body) | Act::Say(status, body) => answer(stream, status, body, "").await,
            Act::Large(size) => {
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n");
                drop(stream.write_all(head.as_bytes()).await);
                let piece = vec![b'x'; 64 * 1024];
                let mut left = size;
                while left > 0 {
                    let next = left.min(piece.len());
                    if stream.write_all(&piece[..next]).await.is_err() {
                        return None;
                    }
                    left -= next;
                }
            }
        }
        Some(())
    }
}

async fn answer(stream: &mut TcpStream, status: u16, body: &str, more: &str) {
    let text = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nset-cookie: sid=S3CRET\r\nx-request-id: r-1\r\n\
         {more}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    // The gateway may be gone.
    drop(stream.write_all(text.as_bytes()).await);
}

/// Reads one request with a length.
async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Seen> {
    let head_end = loop {
        if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(buffer[..head_end].to_vec()).ok()?;
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length").map_or("0", |(_, value)| value);
    let length: usize = length.parse().ok()?;
    while buffer.len() < head_end + 4 + length {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    let body = String::from_utf8_lossy(&buffer[head_end + 4..head_end + 4 + length]).into_owned();
    buffer.drain(..head_end + 4 + length);
    Some(Seen { method, path, headers, body })
}
