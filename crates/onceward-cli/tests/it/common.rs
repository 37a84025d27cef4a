//! A folder of its own for every test, and the built `once` run in it as a process.

pub(crate) mod ledgers;
pub(crate) mod server;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A command that says that it has begun and ends when [`Bench::release`] is called, or when its folder goes.
pub(crate) const HELD: &str = "echo ran >> runs; while [ -e runs ] && [ ! -e release ]; do sleep 0.02; done";

/// A command that leaves one line in `runs` each time it really runs.
pub(crate) const COUNTED: &str = "echo ran >> runs; echo out; echo err >&2";

/// A folder with a ledger in it. It goes with the test, and so must every process that was started in it.
pub(crate) struct Bench {
    /// Gone only while it is dropped.
    folder: Option<TempDir>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.folder.take().into_iter().for_each(onceward_testkit::leave);
    }
}

/// What a process of `once` said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) exit: i32,
    pub(crate) out: Vec<u8>,
    pub(crate) err: Vec<u8>,
}

/// Everything in a folder: for each path its mode and its bytes.
pub(crate) type Listing = BTreeMap<PathBuf, (u32, Vec<u8>)>;

impl Bench {
    pub(crate) fn new() -> Self {
        Self { folder: Some(onceward_testkit::scratch()) }
    }

    /// A bench on a disk, where that is said. Others are in memory.
    pub(crate) fn on_disk() -> Self {
        Self { folder: Some(tempfile::tempdir().unwrap()) }
    }

    /// A bench whose ledger has the secret of another one, so that records can move between them.
    pub(crate) fn like(other: &Self) -> Self {
        let bench = Self::new();
        other.share_secret(&bench.ledger());
        bench
    }

    /// Gives the secret of this ledger to an empty one.
    pub(crate) fn share_secret(&self, url: &str) {
        if !self.path("secret").exists() {
            self.once(&["export", "--secret-file", "secret"]).exits(0);
        }
        let args = ["import", "--secret-file", "secret", "--ledger", url];
        self.once_with_stdin(&args, b"{\"exported\":0}\n").exits(0);
    }

    fn folder(&self) -> &Path {
        self.folder.as_ref().unwrap().path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> &Self {
        std::fs::write(self.path(name), bytes).unwrap();
        self
    }

    /// Writes a policy into the folder and allows it.
    pub(crate) fn policy(&self, text: &str) -> &Self {
        self.write("onceward.toml", text);
        self.once(&["config", "allow"]).exits(0);
        self
    }

    /// Writes a script that can be started.
    pub(crate) fn script(&self, name: &str, text: &str) -> &Self {
        self.write(name, format!("#!/bin/sh\n{text}\n"));
        std::fs::set_permissions(self.path(name), PermissionsExt::from_mode(0o755)).unwrap();
        self
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// How often a counted command really ran.
    pub(crate) fn runs(&self) -> usize {
        self.read("runs").lines().count()
    }

    /// Lets a held command end.
    pub(crate) fn release(&self) {
        self.write("release", "");
    }

    /// `once`, in this folder and with nothing else of the environment than it needs.
    pub(crate) fn command<A: AsRef<OsStr>>(&self, args: &[A]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_once"));
        command.args(args).current_dir(self.folder()).env_clear();
        command.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        command.env("HOME", self.path("home")).env("ONCE_LEDGER", "sqlite:once.db");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs `once` to its end.
    pub(crate) fn once<A: AsRef<OsStr>>(&self, args: &[A]) -> Said {
        self.command(args).output().unwrap().into()
    }

    /// Runs `once` to its end with something on its standard input.
    pub(crate) fn once_with_stdin(&self, args: &[&str], stdin: &[u8]) -> Said {
        let mut process = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        // Who replays does not read it, and may be gone already.
        drop(process.stdin.take().unwrap().write_all(stdin));
        process.wait_with_output().unwrap().into()
    }

    /// Runs `once --json` to its end; gives the answer.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let args: Vec<&str> = std::iter::once("--json").chain(args.iter().copied()).collect();
        self.once(&args).json()
    }

    /// Runs `once` to its end in a folder below this one.
    pub(crate) fn once_in(&self, folder: &str, args: &[&str]) -> Said {
        let mut command = self.command(args);
        command.current_dir(self.path(folder)).env("ONCE_LEDGER", self.ledger());
        command.output().unwrap().into()
    }

    /// The ledger's address from any folder.
    pub(crate) fn ledger(&self) -> String {
        format!("sqlite:{}", self.path("once.db").display())
    }

    /// Runs a line of shell, in which `once` is the built one, as a person would type it.
    pub(crate) fn shell(&self, line: &str) -> Said {
        self.shell_command(line).output().unwrap().into()
    }

    /// The same, not started yet.
    pub(crate) fn shell_command(&self, line: &str) -> Command {
        let mut command = Command::new("bash");
        command.args(["-c", line]).current_dir(self.folder()).env_clear();
        let folder = Path::new(env!("CARGO_BIN_EXE_once")).parent().unwrap();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&path));
        command.env("PATH", std::env::join_paths(folders).unwrap());
        command.env("HOME", self.path("home")).env("ONCE_LEDGER", self.ledger());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts `once` and leaves it running.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        Running { process: Some(self.command(args).spawn().unwrap()) }
    }

    /// Starts a held command under that key, and waits until it really runs.
    pub(crate) fn start_held(&self, key: &str) -> Running {
        let before = self.runs();
        let running = self.start(&["run", "--key", key, "--", "sh", "-c", HELD]);
        eventually("the command runs", || self.runs() > before);
        running
    }

    /// The id of the only operation, or of the newest.
    pub(crate) fn newest(&self) -> String {
        self.json(&["ls", "-n", "1"])["data"][0]["id"].as_str().unwrap().to_owned()
    }

    /// The state that `once show` tells.
    pub(crate) fn state(&self, id: &str) -> String {
        self.json(&["show", id])["data"]["state"].as_str().unwrap_or("?").to_owned()
    }

    /// Everything there is. SQLite's index of its log is left out, and a log that is empty: they hold nothing.
    pub(crate) fn listing(&self) -> Listing {
        let mut listing = Listing::new();
        list(self.folder(), self.folder(), &mut listing);
        listing
    }
}

fn list(root: &Path, folder: &Path, listing: &mut Listing) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let meta = std::fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().to_owned();
        if meta.is_dir() {
            listing.insert(name, (meta.permissions().mode(), Vec::new()));
            list(root, &path, listing);
        } else if !holds_nothing(&name.to_string_lossy(), meta.len()) {
            listing.insert(name, (meta.permissions().mode(), std::fs::read(&path).unwrap()));
        }
    }
}

fn holds_nothing(name: &str, bytes: u64) -> bool {
    name.ends_with("-shm") || (name.ends_with("-wal") && bytes == 0)
}

impl Said {
    pub(crate) fn out(&self) -> String {
        tidy(&self.out)
    }

    pub(crate) fn err(&self) -> String {
        tidy(&self.err)
    }

    /// The one JSON object on stdout.
    pub(crate) fn json(&self) -> Value {
        let text = String::from_utf8(self.out.clone()).expect("JSON is text");
        assert_eq!(text.lines().count(), 1, "not one line: {text:?} {}", self.err());
        let value: Value = serde_json::from_str(&text).expect("stdout is JSON");
        assert!(value.is_object(), "not an object: {text}");
        value
    }

    /// Checks the exit code, and shows what was said where it is another.
    #[track_caller]
    pub(crate) fn exits(self, exit: i32) -> Self {
        assert_eq!(self.exit, exit, "stdout: {}\nstderr: {}", self.out(), self.err());
        self
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self { exit: output.status.code().unwrap_or(-1), out: output.stdout, err: output.stderr }
    }
}

/// A process of `once` that is left running. It is ended with the test.
pub(crate) struct Running {
    process: Option<Child>,
}

impl Running {
    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        let id = self.process.as_ref().unwrap().id();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(i32::try_from(id).unwrap()), signal).unwrap();
    }

    /// Whether it has a file of that name open.
    pub(crate) fn has_open(&self, name: &str) -> bool {
        let open = format!("/proc/{}/fd", self.process.as_ref().unwrap().id());
        let files = std::fs::read_dir(open).into_iter().flatten().flatten();
        files.filter_map(|file| std::fs::read_link(file.path()).ok()).any(|file| file.ends_with(name))
    }

    pub(crate) fn is_over(&mut self) -> bool {
        self.process.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn end(mut self) -> Said {
        eventually("the process ends", || self.is_over());
        self.process.take().unwrap().wait_with_output().unwrap().into()
    }

    /// Kills it, and waits until it is gone; what it started lives on, and keeps the pipes open.
    pub(crate) fn kill(mut self) {
        let mut process = self.process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            drop(process.kill());
            drop(process.wait());
        }
    }
}

/// A process as others on the machine see it.
pub(crate) struct Seen {
    pub(crate) line: String,
    pub(crate) environment: String,
}

/// Everything that a process has started and that still runs.
pub(crate) fn started_by(process: u32) -> Vec<Seen> {
    let read = |id: u32, name: &str| {
        let bytes = std::fs::read(format!("/proc/{id}/{name}")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\0', " ")
    };
    let mut parents = vec![process];
    let mut seen = Vec::new();
    while let Some(parent) = parents.pop() {
        for task in std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            for child in children.split_whitespace().filter_map(|id| id.parse().ok()) {
                seen.push(Seen { line: read(child, "cmdline"), environment: read(child, "environ") });
                parents.push(child);
            }
        }
    }
    seen
}

pub(crate) use onceward_testkit::eventually;

/// Tries a time limit, and longer ones on a machine that is too busy for it, until the command has begun in time.
pub(crate) fn in_enough_time<T>(attempt: impl Fn(&'static str) -> Option<T>) -> T {
    ["300ms", "2s", "10s", "60s"].into_iter().find_map(attempt).expect("the command begins")
}

/// What was said, with the parts that differ from run to run replaced: ids, keys, times and ages.
pub(crate) fn tidy(bytes: &[u8]) -> String {
    let text = without_folders(&String::from_utf8_lossy(bytes));
    let in_word = |c: char| c.is_ascii_alphanumeric() || "_-:.".contains(c);
    let mut tidied = String::new();
    for part in text.split_inclusive(|c| !in_word(c)) {
        let word = part.trim_end_matches(|c| !in_word(c));
        let hash =
            |prefix: &str, length: usize| word.strip_prefix(prefix).is_some_and(|rest| rest.len() == length);
        tidied.push_str(match word {
            _ if hash("op_", 32) => "op_…",
            _ if hash("k1_", 52) => "k1_…",
            _ if hash("k2_", 52) => "k2_…",
            _ if hash("f1_", 52) => "f1_…",
            _ if hash("f2_", 52) => "f2_…",
            _ if word.len() == 24 && word.ends_with('Z') && word.as_bytes()[10] == b'T' => "TIME",
            _ => word,
        });
        tidied.push_str(&part[word.len()..]);
    }
    without_ages(&tidied).trim_end().to_owned()
}

/// The ledger's file is in another folder in every run.
fn without_folders(text: &str) -> String {
    let mut parts = text.split("sqlite:/");
    let mut tidied = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        tidied.push_str("sqlite:");
        match part.split_once("/once.db") {
            Some((folder, rest)) if !folder.contains(' ') => tidied.push_str(&format!("…/once.db{rest}")),
            _ => tidied.push_str(&format!("/{part}")),
        }
    }
    tidied
}

/// `12 ms ago` and `1 s ago` become `AGE ago`.
fn without_ages(text: &str) -> String {
    let mut words: Vec<&str> = text.split(' ').collect();
    let mut at = 2;
    while at < words.len() {
        let number = words[at - 2].trim_start_matches('(');
        if words[at].starts_with("ago") && number.parse::<u64>().is_ok() {
            words[at - 1] = if words[at - 2].starts_with('(') { "(AGE" } else { "AGE" };
            words.remove(at - 2);
        }
        at += 1;
    }
    words.join(" ")
}
