//! A client of `once mcp`, as a process.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::Bench;

pub(crate) const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/mcp/server.py");
const PATIENCE: Duration = Duration::from_secs(30);

/// One connection.
pub(crate) struct Session {
    pub(crate) process: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    early: VecDeque<String>,
}

impl Session {
    /// `once mcp` with these flags before the counting server.
    pub(crate) fn start(bench: &Bench, flags: &[&str]) -> Self {
        // A policy of the working folder is not believed unless it is named.
        let named = bench.path("onceward.toml").exists();
        Self::begin(bench, if named { &["--config", "onceward.toml"] } else { &[] }, flags)
    }

    /// The same, under a policy of the working folder that is not named.
    pub(crate) fn under(bench: &Bench, flags: &[&str]) -> Self {
        Self::begin(bench, &[], flags)
    }

    fn begin(bench: &Bench, before: &[&str], flags: &[&str]) -> Self {
        let args = [before, &["mcp"], flags, &["--", "python3", SERVER]].concat();
        let mut command = bench.command(&args);
        let mut process = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let stdin = process.stdin.take();
        Self { process, stdin, lines, early: VecDeque::new() }
    }

    /// In the scope `s`.
    pub(crate) fn scoped(bench: &Bench) -> Self {
        Self::start(bench, &["--scope", "s"])
    }

    pub(crate) fn send_line(&mut self, line: &[u8]) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(line).and_then(|()| stdin.write_all(b"\n")).and_then(|()| stdin.flush()).unwrap();
    }

    pub(crate) fn send(&mut self, message: &Value) {
        self.send_line(message.to_string().as_bytes());
    }

    /// Sends a call and does not wait for its answer.
    pub(crate) fn ask(&mut self, id: u64, tool: &str, args: &Value) {
        self.send(&request(id, tool, args));
    }

    /// Calls a tool and gives the result.
    pub(crate) fn call(&mut self, id: u64, tool: &str, args: &Value) -> Value {
        self.ask(id, tool, args);
        self.answer(id)["result"].clone()
    }

    /// The next line.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        match self.early.pop_front() {
            Some(line) => line,
            None => self.lines.recv_timeout(PATIENCE).expect("an answer"),
        }
    }

    /// The answer to that request, whatever comes before it.
    #[track_caller]
    pub(crate) fn answer(&mut self, id: u64) -> Value {
        let mut others = VecDeque::new();
        loop {
            let line = self.line();
            match serde_json::from_str::<Value>(&line) {
                Ok(message) if message["id"] == json!(id) => {
                    others.append(&mut self.early);
                    self.early = others;
                    return message;
                }
                Ok(_) | Err(_) => others.push_back(line),
            }
        }
    }

    pub(crate) fn cancel(&mut self, id: u64) {
        self.send(
            &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}),
        );
    }

    /// Whether nothing has arrived for some time.
    pub(crate) fn is_silent(&mut self, ms: u64) -> bool {
        match self.lines.recv_timeout(Duration::from_millis(ms)) {
            Ok(line) => {
                self.early.push_back(line);
                false
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => self.early.is_empty(),
        }
    }

    /// The client says no more.
    pub(crate) fn close_input(&mut self) {
        drop(self.stdin.take());
    }

    /// The client goes away; gives the exit code of the proxy.
    pub(crate) fn leave(mut self) -> Option<i32> {
        drop(self.stdin.take());
        self.process.wait().unwrap().code()
    }

    /// The names of the tools that the client sees.
    pub(crate) fn tools(&mut self, id: u64) -> Vec<String> {
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/list"}));
        let listed = self.answer(id)["result"]["tools"].as_array().cloned().unwrap_or_default();
        listed.iter().map(|tool| tool["name"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Waits for such a notification, which may come before or after an answer.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, method: &str) {
        if let Some(found) = self.early.iter().position(|line| line.contains(method)) {
            drop(self.early.remove(found));
            return;
        }
        loop {
            let line = self.lines.recv_timeout(PATIENCE).expect("a notification");
            if line.contains(method) {
                return;
            }
            self.early.push_back(line);
        }
    }

    /// Kills the proxy.
    pub(crate) fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

pub(crate) fn request(id: u64, tool: &str, args: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool, "arguments": args}})
}

/// A request with something in its `_meta`.
pub(crate) fn with_meta(id: u64, tool: &str, args: &Value, meta: &Value) -> Value {
    let mut request = request(id, tool, args);
    request["params"]["_meta"] = meta.clone();
    request
}

/// What we say about a result.
pub(crate) fn about(result: &Value) -> &Value {
    &result["_meta"]["dev.onceward/effect"]
}

/// The words of a result.
pub(crate) fn words(result: &Value) -> String {
    let blocks = result["content"].as_array().cloned().unwrap_or_default();
    blocks.iter().map(|block| block["text"].as_str().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// How many effects the server had.
pub(crate) fn effects(bench: &Bench) -> usize {
    bench.read("effects").lines().count()
}

/// The code of an answer of the proxy.
pub(crate) fn code(result: &Value) -> &str {
    about(result)["error"]["code"].as_str().unwrap_or_default()
}
