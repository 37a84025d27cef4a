//! A server as a process, and `curl` to ask it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::common::{Bench, eventually};

/// A running server.
pub(crate) struct Server {
    process: Child,
    said: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Starts it, and waits until it has said how to try it.
    pub(crate) fn start(bench: &Bench, args: &[&str]) -> Self {
        let args: Vec<&str> = std::iter::once("serve").chain(args.iter().copied()).collect();
        Self::of(bench.command(&args))
    }

    pub(crate) fn of(mut command: Command) -> Self {
        Self::waiting(&mut command, "listening")
    }

    /// Starts a command, and waits until it has said this.
    pub(crate) fn waiting(command: &mut Command, words: &str) -> Self {
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let (lines, stderr) = (Arc::clone(&said), process.stderr.take().unwrap());
        std::thread::spawn(move || {
            BufReader::new(stderr)
                .lines()
                .map_while(Result::ok)
                .for_each(|line| lines.lock().unwrap().push(line));
        });
        let mut server = Self { process, said };
        eventually("the server is ready", || {
            let is_over = server.process.try_wait().unwrap().is_some();
            assert!(!is_over, "the server has ended: {:?}", server.said());
            server.said().iter().any(|line| line.contains(words))
        });
        server
    }

    pub(crate) fn said(&self) -> Vec<String> {
        self.said.lock().unwrap().clone()
    }

    /// The address that it printed.
    pub(crate) fn url(&self) -> String {
        let said = self.said();
        let line = said.iter().find_map(|line| line.split_once("listening on http")).expect("an address");
        format!("http{}", line.1)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.process.id()).unwrap()), signal).unwrap();
    }

    /// Waits for its end; returns its exit code.
    pub(crate) fn end(mut self) -> Option<i32> {
        let mut ended = None;
        eventually("the server ends", || {
            ended = self.process.try_wait().unwrap();
            ended.is_some()
        });
        ended.and_then(|status| status.code())
    }

    pub(crate) fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Asks with `curl`; returns the status and the JSON.
pub(crate) fn curl(args: &[&str]) -> (u16, Value) {
    let output = Command::new("curl")
        .args(["-sS", "-m", "30", "-w", "\n%{http_code}"])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    let status: u16 = status.parse().unwrap();
    assert_ne!(status, 0, "{}", String::from_utf8_lossy(&output.stderr));
    (status, serde_json::from_str(body).unwrap_or_else(|_| panic!("not JSON: {body}")))
}
