//! The demo's model: it listens on loopback, takes its time, and answers differently each time. And a client that asks
//! it, directly or through a gateway.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::shop::{Shop, outside};
use crate::exit::CommandError;

/// How long the model takes for an answer.
const THINKING: Duration = Duration::from_millis(600);
/// A client with this patience gives up too early.
pub(super) const IMPATIENCE: Duration = Duration::from_millis(200);
/// A client with this patience gets the answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// What one answer costs.
pub(super) const TOKENS: usize = 1_200;

const PATH: &str = "/v1/chat/completions";
const QUESTION: &str =
    r#"{"model":"demo-model","messages":[{"role":"user","content":"Which of the two offers do we take?"}]}"#;
const OPINIONS: [&str; 2] = ["Take the first offer.", "Take the second offer."];

/// A scripted model.
pub(super) struct Model {
    address: SocketAddr,
    generated: Arc<AtomicUsize>,
}

impl Model {
    pub(super) fn start() -> Result<Self, CommandError> {
        let listener =
            TcpListener::bind("127.0.0.1:0").map_err(|error| outside("the model cannot listen", &error))?;
        let address = listener.local_addr().map_err(|error| outside("the model cannot listen", &error))?;
        let generated = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&generated);
        // The threads end with this process.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let count = Arc::clone(&count);
                std::thread::spawn(move || generate(stream, &count));
            }
        });
        Ok(Self { address, generated })
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}{PATH}", self.address)
    }

    /// How many answers it has generated, or is generating.
    pub(super) fn generated(&self) -> usize {
        self.generated.load(Ordering::SeqCst)
    }
}

/// Reads a request, thinks, and answers, whether or not the client is still there.
fn generate(mut stream: TcpStream, generated: &AtomicUsize) {
    let Some(()) = read_request(&stream) else { return };
    let number = generated.fetch_add(1, Ordering::SeqCst);
    std::thread::sleep(THINKING);
    let opinion = OPINIONS[number % OPINIONS.len()];
    let body = serde_json::json!({
        "id": format!("chatcmpl-{number}"),
        "object": "chat.completion",
        "created": 1,
        "model": "demo-model",
        "choices": [{
            "index": 0,
            "message": { "role": "assistant", "content": opinion },
            "finish_reason": "stop",
        }],
        "usage": { "prompt_tokens": TOKENS - 200, "completion_tokens": 200, "total_tokens": TOKENS },
    })
    .to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    // A client that is gone does not get it.
    drop(stream.write_all(format!("{head}{body}").as_bytes()));
}

/// Reads a request to the end of its body.
fn read_request(stream: &TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        match line.trim_end().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().ok()?
            }
            None if line.trim_end().is_empty() => break,
            Some(_) | None => {}
        }
    }
    std::io::copy(&mut reader.take(length), &mut std::io::sink()).ok().filter(|read| *read == length)?;
    Some(())
}

/// What a client got.
pub(super) enum Asked {
    /// The text of the answer.
    Answered(String),
    /// It gave up and closed its connection.
    TimedOut,
}

/// Asks once, as an SDK does that gives up after some time.
pub(super) fn ask(url: &str, patience: Duration) -> Result<Asked, CommandError> {
    let cannot = |error: std::io::Error| outside("the model cannot be asked", &error);
    let (address, path) = url.trim_start_matches("http://").split_once('/').unwrap_or((url, ""));
    let mut stream = TcpStream::connect(address).map_err(cannot)?;
    stream.set_read_timeout(Some(patience)).map_err(cannot)?;
    // Version 1.0 has no chunks, so the answer is what follows the empty line.
    let request = format!(
        "POST /{path} HTTP/1.0\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{QUESTION}",
        QUESTION.len()
    );
    stream.write_all(request.as_bytes()).map_err(cannot)?;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            return Ok(Asked::TimedOut);
        }
        Err(error) => return Err(cannot(error)),
    }
    let answer = String::from_utf8_lossy(&answer);
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let read: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    let text = read.pointer("/choices/0/message/content").and_then(serde_json::Value::as_str);
    text.map(|text| Asked::Answered(text.to_owned())).ok_or_else(|| {
        CommandError::Outside(format!(
            "the model gave no answer: {}",
            answer.lines().next().unwrap_or_default()
        ))
    })
}

/// A `once serve` before the model.
pub(super) struct Gateway {
    process: Child,
    address: String,
}

impl Gateway {
    pub(super) fn start(shop: &Shop, model: &Model) -> Result<Self, CommandError> {
        let config = shop.path("onceward.toml");
        let text = format!(
            "[upstream.model]\nurl = \"http://{}\"\nmodels = \"openai\"\nallow_private = true\n",
            model.address
        );
        std::fs::write(&config, text)
            .map_err(|error| outside("cannot write the gateway's settings", &error))?;
        let config = config.display().to_string();
        let mut command = shop.once(&["serve", "--listen", "127.0.0.1:0", "--config", &config]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let process = command.spawn().map_err(|error| outside("cannot start the gateway", &error))?;
        let mut gateway = Self { process, address: String::new() };
        let Some(stderr) = gateway.process.stderr.take() else { return Ok(gateway) };
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        let found = lines.find_map(|line| Some(line.split_once("listening on http://")?.1.to_owned()));
        gateway.address =
            found.ok_or_else(|| CommandError::Outside("the demo's gateway did not start".to_owned()))?;
        // A pipe that is closed would end it.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(gateway)
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/gw/model{PATH}", self.address)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
