//! One process that was started: its log, its signals, its end.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::home::{self, must};

/// A server's process, or none while it is stopped.
#[derive(Debug)]
pub(crate) struct Server {
    process: Option<Child>,
    log: PathBuf,
}

impl Server {
    /// Starts it; what it says goes to the log.
    pub(crate) fn start(mut command: Command, log: &Path) -> Self {
        let said = must(File::options().create(true).append(true).open(log), "cannot write a server's log");
        let too = must(said.try_clone(), "cannot write a server's log");
        command.stdout(said).stderr(too);
        Self { process: Some(home::spawn(command)), log: log.to_owned() }
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// Whether it has not ended yet.
    pub(crate) fn is_running(&mut self) -> bool {
        let ended = |process: &mut Child| must(process.try_wait(), "cannot look at a server").is_some();
        if self.process.as_mut().is_some_and(ended) {
            self.process = None;
        }
        self.process.is_some()
    }

    /// Waits until it is ready. `false` where it has ended before, as when its port was taken.
    #[track_caller]
    pub(crate) fn wait_until_ready(&mut self, ready: impl Fn(u32) -> bool) -> bool {
        let begun = Instant::now();
        loop {
            if !self.is_running() {
                return false;
            }
            if self.pid().is_some_and(&ready) {
                return true;
            }
            let words = self.last_words();
            assert!(begun.elapsed() < home::PATIENCE, "a server does not get ready: {words}");
            std::thread::sleep(Duration::from_millis(3));
        }
    }

    /// The end of its log.
    pub(crate) fn last_words(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    /// Sends a signal; without a process it is nothing.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            send(pid, signal);
        }
    }

    /// Sends a signal that ends it, and waits until it has.
    #[track_caller]
    pub(crate) fn end(&mut self, signal: Signal) {
        let Some(mut process) = self.process.take() else { return };
        send(process.id(), signal);
        let begun = Instant::now();
        while must(process.try_wait(), "cannot look at a server").is_none() {
            if begun.elapsed() > home::PATIENCE {
                send(process.id(), Signal::SIGKILL);
                panic!("a server did not end after {signal}: {}", self.last_words());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends it and the processes that it has forked, with no chance to tidy up.
    pub(crate) fn kill_all(&mut self) {
        let Some(pid) = self.pid() else { return };
        // Stopped, it forks no more: the list stays true.
        send(pid, Signal::SIGSTOP);
        let children = children(pid);
        self.end(Signal::SIGKILL);
        for child in &children {
            send(*child, Signal::SIGKILL);
        }
        home::wait_until("a killed server is gone", || children.iter().all(|child| gone(*child)));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill_all();
    }
}

/// What is gone already needs no signal.
fn send(pid: u32, signal: Signal) {
    if let Ok(pid) = i32::try_from(pid) {
        drop(kill(Pid::from_raw(pid), signal).map_err(std::io::Error::from));
    }
}

fn children(parent: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| status(*pid).is_some_and(|(_, of)| of == parent)).collect()
}

fn gone(pid: u32) -> bool {
    status(pid).is_none_or(|(state, _)| state == "Z")
}

/// A process' state and its parent. Its name stands in parentheses before them and may hold anything.
fn status(pid: u32) -> Option<(String, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    let mut words = rest.split(' ');
    Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
}
