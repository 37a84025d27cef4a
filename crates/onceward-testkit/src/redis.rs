//! A private Redis server.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use nix::sys::signal::Signal;

use crate::home::{self, RunAs, must};
use crate::server::{Server, is_a_server};
use crate::{Relay, faketime};

const PACKAGE: &str = "redis-server";
/// The file with the time of a server whose clock can be set.
const CLOCK: &str = "clock";
/// Syncs every acknowledged write, and lets a replica get its first copy without delay.
const OWN: [(&str, &str); 6] = [
    ("bind", "127.0.0.1"),
    ("protected-mode", "no"),
    ("save", ""),
    ("appendonly", "yes"),
    ("appendfsync", "always"),
    ("repl-diskless-sync-delay", "0"),
];

/// A Redis server on a free port of 127.0.0.1. It syncs every acknowledged write.
#[derive(Debug)]
pub struct Redis {
    settings: Vec<(String, String)>,
    server: Server,
}

is_a_server!(Redis);

impl Redis {
    /// Starts a server that syncs each write.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with additional settings, in the form of `redis.conf`.
    #[must_use]
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        Self::start_at(&home::folder("redis"), settings)
    }

    /// Starts a server with its data in this folder, which it creates and removes; for example to fill its disk.
    #[must_use]
    pub fn start_at(folder: &Path, settings: &[(&str, &str)]) -> Self {
        home::make_folder(folder);
        let owned = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let settings: Vec<(String, String)> = owned.collect();
        let command = |port| {
            must(std::fs::write(folder.join("redis.conf"), lines(port, folder, &settings)), "redis.conf");
            command(folder)
        };
        let server = Server::start("Redis", folder, command, is_ready);
        Self { settings, server }
    }

    /// Starts a server whose clock can be set with [`Redis::set_clock`], with libfaketime.
    #[must_use]
    pub fn start_with_clock() -> Self {
        let folder = home::folder("redis");
        home::make_folder(&folder);
        must(std::fs::write(folder.join(CLOCK), "+0"), "cannot write a server's clock");
        Self::start_at(&folder, &[])
    }

    /// Sets the clock of a server that was started with [`Redis::start_with_clock`], relative to the machine's; a
    /// negative value sets it behind.
    pub fn set_clock(&self, ahead_s: i64) {
        assert!(self.folder().join(CLOCK).exists(), "this server has the machine's clock");
        // Atomically, so that the server never reads half of it.
        let next = self.folder().join("clock.next");
        must(std::fs::write(&next, format!("{ahead_s:+}")), "cannot write a server's clock");
        must(std::fs::rename(&next, self.folder().join(CLOCK)), "cannot write a server's clock");
    }

    /// The server that all tests of this process share. Each test uses its own ledger: see [`Redis::fresh`].
    #[must_use]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Redis> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// The URL of a new, empty ledger.
    #[must_use]
    pub fn fresh(&self) -> String {
        format!("{}?prefix={}", self.url(), home::unique())
    }

    /// The reply to a command, as `redis-cli` prints it. An error from the server is a reply too.
    #[must_use]
    #[track_caller]
    pub fn cli(&self, words: &[&str]) -> String {
        home::run(ask(self.port()).args(words))
    }

    /// Stops it cleanly: everything is written.
    pub fn stop(&mut self) {
        self.server.end(Signal::SIGTERM);
    }

    /// Restarts it with the same port and data.
    pub fn start_again(&mut self) {
        let command = command(self.folder());
        self.server.restart("Redis", command, is_ready);
    }

    /// A replica with the same settings; returns when it has caught up.
    #[must_use]
    pub fn replica(&self) -> Self {
        self.replica_of(self.port())
    }

    /// The same through a relay to this server, which can be stalled to partition the two.
    #[must_use]
    pub fn replica_through(&self, relay: &Relay) -> Self {
        self.replica_of(relay.port())
    }

    /// Makes a replica the primary.
    pub fn promote(&mut self) {
        let answer = self.cli(&["REPLICAOF", "NO", "ONE"]);
        assert_eq!(answer, "OK", "the replica was not promoted");
    }

    fn replica_of(&self, port: u16) -> Self {
        let primary = format!("127.0.0.1 {port}");
        let mut settings: Vec<(&str, &str)> =
            self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        settings.push(("replicaof", &primary));
        let replica = Self::start_with(&settings);
        // A replica is reported as online up to a second before the first command is sent to it, so wait until it has
        // confirmed one. A message is such a command and leaves nothing behind.
        drop(self.cli(&["PUBLISH", "harness", "follow"]));
        home::eventually("the replica follows", || {
            confirmed(&self.cli(&["INFO", "replication"]), replica.port())
        });
        replica
    }
}

/// The reply must come from this process: another server may have just taken the port.
fn is_ready(pid: u32, port: u16) -> bool {
    let own = format!("process_id:{pid}\r\n");
    info(port).is_ok_and(|answer| answer.contains(&own))
}

/// What the server says about itself, without a process for the question: it is asked many times until it answers.
fn info(port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(home::TIMEOUT))?;
    stream.write_all(b"INFO server\r\nQUIT\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The configuration file. The last setting of a name counts.
fn lines(port: u16, folder: &Path, settings: &[(String, String)]) -> String {
    let own = OWN.iter().copied();
    let given = settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let line = |(name, value): (&str, &str)| match value {
        "" => format!("{name} \"\"\n"),
        value => format!("{name} {value}\n"),
    };
    format!("port {port}\ndir {}\n", folder.display()) + &own.chain(given).map(line).collect::<String>()
}

/// Whether the replica on this port has confirmed everything, according to its primary.
fn confirmed(replication: &str, port: u16) -> bool {
    let all = replication.lines().find_map(|line| line.strip_prefix("master_repl_offset:"));
    let replica = replication.lines().find(|line| line.contains(&format!("port={port},state=online")));
    let offset = replica.and_then(|line| line.split(',').find_map(|word| word.strip_prefix("offset=")));
    all.is_some_and(|all| all.trim() != "0" && offset == Some(all.trim()))
}

fn ask(port: u16) -> Command {
    let mut command = home::command("redis-cli", PACKAGE, RunAs::CurrentUser);
    command.args(["-h", "127.0.0.1", "-p", &port.to_string()]);
    command
}

fn command(folder: &Path) -> Command {
    let mut command = home::command("redis-server", PACKAGE, RunAs::CurrentUser);
    command.arg(folder.join("redis.conf"));
    if folder.join(CLOCK).exists() {
        command
            .env("LD_PRELOAD", faketime::library_before_an_allocator())
            .env("FAKETIME_TIMESTAMP_FILE", folder.join(CLOCK));
        // Fakes only the wall clock; each reading uses the file.
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("FAKETIME_NO_CACHE", "1");
    }
    command
}
