//! A client of `once mcp --http`, and the server behind it, as processes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::{Bench, eventually};
use crate::mcp::session::request;

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/mcp/http_server.py");
const PATIENCE: Duration = Duration::from_secs(30);

/// A process that is ended with the test.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Starts the counting server on that port, or on a free one; gives the port.
pub(crate) fn server(bench: &Bench, port: u16) -> (Process, u16) {
    server_with(bench, &[&port.to_string()])
}

/// Starts the counting server with these arguments; gives its port.
pub(crate) fn server_with(bench: &Bench, args: &[&str]) -> (Process, u16) {
    let mut command = Command::new("python3");
    command.arg(SERVER).args(args).current_dir(bench.path(""));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (Process(child), line.trim().parse().unwrap())
}

/// A port without a listener.
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// `once mcp --http` before a server.
pub(crate) struct Web {
    pub(crate) proxy: Process,
    pub(crate) server: Option<Process>,
    pub(crate) port: u16,
}

/// What came back.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// A response that is read as it comes.
pub(crate) struct Stream {
    connection: TcpStream,
    pub(crate) heard: String,
}

impl Web {
    /// With these flags, before the counting server.
    pub(crate) fn start(bench: &Bench, flags: &[&str]) -> Self {
        let (server, port) = server(bench, 0);
        Self { server: Some(server), ..Self::before(bench, port, flags) }
    }

    /// Starts the proxy with these flags, for the server on that port.
    pub(crate) fn before(bench: &Bench, port: u16, flags: &[&str]) -> Self {
        Self::before_url(bench, &format!("http://127.0.0.1:{port}/mcp"), flags, &[])
    }

    /// With these flags and this environment, before that server.
    pub(crate) fn before_url(bench: &Bench, url: &str, flags: &[&str], env: &[(&str, &str)]) -> Self {
        let mut args = vec!["mcp", "--http", url, "--listen", "127.0.0.1:0"];
        args.extend_from_slice(flags);
        let mut child = bench.command(&args).envs(env.iter().copied()).spawn().unwrap();
        let mut talk = BufReader::new(child.stderr.take().unwrap()).lines();
        let heard = talk.by_ref().map_while(Result::ok).find(|line| line.contains("listening on"));
        let port = heard.expect("it listens").split(['/', ':']).nth(5).unwrap().parse().unwrap();
        // Its other messages are not read; it must not block on them.
        std::thread::spawn(move || talk.map_while(Result::ok).count());
        Self { proxy: Process(child), server: None, port }
    }

    /// One that was started otherwise; `log` is what it has said so far.
    pub(crate) fn of(child: Child, log: impl Fn() -> String) -> Self {
        let proxy = Process(child);
        eventually("it listens", || log().contains("listening on") && log().ends_with('\n'));
        let log = log();
        let heard = log.lines().find(|line| line.contains("listening on")).unwrap();
        let port = heard.split(['/', ':']).nth(5).unwrap().parse().unwrap();
        Self { proxy, server: None, port }
    }

    /// In the scope `s`.
    pub(crate) fn scoped(bench: &Bench) -> Self {
        Self::start(bench, &["--scope", "s"])
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let connection = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        connection
    }

    /// Sends a request and leaves its response to be read.
    pub(crate) fn open(&self, first: &str, headers: &[(&str, &str)], body: &str) -> Stream {
        let mut text = format!("{first} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| *name == "Host") {
            text.push_str("Host: localhost\r\n");
        }
        text.push_str("Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n");
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        let mut connection = self.connect();
        connection.write_all(format!("{text}\r\n{body}").as_bytes()).unwrap();
        Stream { connection, heard: String::new() }
    }

    /// Sends a request and reads all of its response.
    pub(crate) fn send(&self, first: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        self.open(first, headers, body).end()
    }

    pub(crate) fn post(&self, headers: &[(&str, &str)], message: &Value) -> Answer {
        self.send("POST /mcp", headers, &message.to_string())
    }

    /// Sends a call and does not wait for its answer.
    pub(crate) fn ask(&self, id: u64, args: &Value) -> Stream {
        self.open("POST /mcp", &[], &request(id, "count", args).to_string())
    }

    /// Calls the counting tool and gives the result.
    pub(crate) fn call(&self, id: u64, args: &Value) -> Value {
        self.call_with(&[], id, args)
    }

    pub(crate) fn call_with(&self, headers: &[(&str, &str)], id: u64, args: &Value) -> Value {
        let answer = self.post(headers, &request(id, "count", args)).message();
        assert_eq!(answer["id"], json!(id), "{answer}");
        answer["result"].clone()
    }

    pub(crate) fn cancel(&self, id: u64) -> Answer {
        let method = "notifications/cancelled";
        self.post(&[], &json!({"jsonrpc": "2.0", "method": method, "params": {"requestId": id}}))
    }

    /// Whether connections are no longer accepted.
    pub(crate) fn connect_fails(&self) -> impl FnMut() -> bool + use<> {
        let port = self.port;
        move || TcpStream::connect(("127.0.0.1", port)).is_err()
    }

    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        let id = i32::try_from(self.proxy.0.id()).unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(id), signal).unwrap();
    }
}

impl Stream {
    /// Reads until that was said.
    #[track_caller]
    pub(crate) fn until(&mut self, words: &str) -> &str {
        while !self.heard.contains(words) {
            let mut bytes = [0; 4096];
            let count = self.connection.read(&mut bytes).expect("it goes on");
            assert!(count > 0, "it ended before {words:?}: {}", self.heard);
            self.heard.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
        &self.heard
    }

    /// Reads to the end.
    pub(crate) fn end(mut self) -> Answer {
        let mut rest = Vec::new();
        self.connection.read_to_end(&mut rest).expect("an end");
        let all = self.heard + &String::from_utf8(rest).unwrap();
        let (head, body) = all.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {all:?}"));
        let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
        let body = if chunked { unchunked(body) } else { body.to_owned() };
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_lowercase(), body }
    }
}

fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        whole.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
    whole
}

impl Answer {
    /// The messages of a stream of events, or the one message.
    pub(crate) fn messages(&self) -> Vec<Value> {
        if self.head.contains("text/event-stream") {
            let data = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
            return data.map(|data| serde_json::from_str(data).unwrap()).collect();
        }
        vec![serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{} {}", self.head, self.body))]
    }

    /// The messages of a stream, which may say nothing.
    pub(crate) fn messages_of_events(&self) -> Vec<Value> {
        assert!(self.head.contains("text/event-stream"), "{}", self.head);
        self.messages()
    }

    /// The last message.
    #[track_caller]
    pub(crate) fn message(&self) -> Value {
        self.messages().pop().unwrap_or_else(|| panic!("nothing was said: {} {}", self.head, self.body))
    }
}
