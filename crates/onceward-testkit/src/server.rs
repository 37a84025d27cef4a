//! One started process: its folder, its port, its log, its signals, its end.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::home::{self, Port, must};

/// The name of a server's log in its folder.
const LOG: &str = "log";
/// How many ports are tried if the first is taken.
const TRIES: usize = 5;

/// A server's process, or none while it is stopped. Its folder is removed with it.
#[derive(Debug)]
pub struct Server {
    process: Option<Child>,
    folder: PathBuf,
    port: Port,
}

impl Server {
    /// Starts the command for a free port and waits until it is ready, by its process id and its port.
    #[track_caller]
    pub(crate) fn start(
        what: &str,
        folder: &Path,
        command: impl Fn(u16) -> Command,
        ready: impl Fn(u32, u16) -> bool,
    ) -> Self {
        let mut words = String::new();
        for _ in 0..TRIES {
            let port = home::reserve_port();
            let process = Some(spawn(command(port.number), folder));
            let mut server = Self { process, folder: folder.to_owned(), port };
            if server.wait_until_ready(&ready) {
                return server;
            }
            words = server.log_tail();
            // Drop only the process; the folder is needed for the next try.
            server.folder = PathBuf::new();
        }
        panic!("{what} did not start: {words}")
    }

    /// Starts the command in the same folder, for the same port.
    #[track_caller]
    pub(crate) fn restart(&mut self, what: &str, command: Command, ready: impl Fn(u32, u16) -> bool) {
        self.process = Some(spawn(command, &self.folder));
        assert!(self.wait_until_ready(ready), "{what} did not restart: {}", self.log_tail());
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// The folder with its data and its log.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Kills it and the processes that it forked, so that they cannot write anything more.
    pub fn kill(&mut self) {
        let Some(pid) = self.pid() else { return };
        // A stopped process does not fork, so the list stays complete.
        send(pid, Signal::SIGSTOP);
        let children = children(pid);
        self.end(Signal::SIGKILL);
        for child in &children {
            send(*child, Signal::SIGKILL);
        }
        home::eventually("a killed server is gone", || children.iter().all(|child| gone(*child)));
    }

    /// Suspends its process.
    pub fn pause(&self) {
        self.pid().into_iter().for_each(|pid| send(pid, Signal::SIGSTOP));
    }

    /// Resumes its process.
    pub fn resume(&self) {
        self.pid().into_iter().for_each(|pid| send(pid, Signal::SIGCONT));
    }

    fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// Whether it is running. A server whose disk is full may have exited.
    #[must_use]
    pub fn is_running(&mut self) -> bool {
        let ended =
            |process: &mut Child| must(process.try_wait(), "cannot check a server's process").is_some();
        if self.process.as_mut().is_some_and(ended) {
            self.process = None;
        }
        self.process.is_some()
    }

    /// Waits until it is ready. Returns `false` if it exits first, for example because its port is taken.
    #[track_caller]
    fn wait_until_ready(&mut self, ready: impl Fn(u32, u16) -> bool) -> bool {
        let (begun, port) = (Instant::now(), self.port.number);
        loop {
            if !self.is_running() {
                return false;
            }
            if self.pid().is_some_and(|pid| ready(pid, port)) {
                return true;
            }
            let words = self.log_tail();
            assert!(begun.elapsed() < home::TIMEOUT, "a server did not become ready: {words}");
            std::thread::sleep(Duration::from_millis(3));
        }
    }

    /// The end of its log.
    pub(crate) fn log_tail(&self) -> String {
        let log = std::fs::read(self.folder.join(LOG)).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }

    /// Sends a signal that ends it, and waits for its end.
    #[track_caller]
    pub(crate) fn end(&mut self, signal: Signal) {
        let Some(mut process) = self.process.take() else { return };
        send(process.id(), signal);
        let begun = Instant::now();
        while must(process.try_wait(), "cannot check a server's process").is_none() {
            if begun.elapsed() > home::TIMEOUT {
                send(process.id(), Signal::SIGKILL);
                panic!("a server did not end after {signal}: {}", self.log_tail());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if !self.folder.as_os_str().is_empty() {
            remove_memory(&self.folder.join("data/postmaster.pid"));
            // Anything that cannot be removed now is removed with the process.
            drop(std::fs::remove_dir_all(&self.folder));
        }
    }
}

/// Removes the shared memory that a killed PostgreSQL leaves, if this is its lock file. Starting it again would too.
fn remove_memory(lock: &Path) {
    let text = std::fs::read_to_string(lock).unwrap_or_default();
    if let Some(id) = text.lines().nth(6).and_then(|line| line.split_whitespace().last()) {
        drop(Command::new("ipcrm").args(["-m", id]).output());
    }
}

/// Starts the command and appends its output to the log.
fn spawn(mut command: Command, folder: &Path) -> Child {
    let log = File::options().create(true).append(true).open(folder.join(LOG));
    let log = must(log, "cannot write a server's log");
    command.stdout(must(log.try_clone(), "cannot write a server's log")).stderr(log);
    home::spawn(command)
}

/// A process that has ended needs no signal.
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

/// A process's state and its parent. The name before them, in parentheses, may contain anything.
fn status(pid: u32) -> Option<(String, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    let mut words = rest.split(' ');
    Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
}

/// Lets a kind of server be used like the [`Server`] in its field `server`.
macro_rules! is_a_server {
    ($kind:ty) => {
        impl std::ops::Deref for $kind {
            type Target = Server;
            fn deref(&self) -> &Server {
                &self.server
            }
        }

        impl std::ops::DerefMut for $kind {
            fn deref_mut(&mut self) -> &mut Server {
                &mut self.server
            }
        }
    };
}

pub(crate) use is_a_server;
