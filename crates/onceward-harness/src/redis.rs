//! A Redis server of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use nix::sys::signal::Signal;

use crate::Relay;
use crate::home::{self, As, must};
use crate::server::Server;

const PACKAGE: &str = "redis-server";
/// How often another port is tried when the first was taken.
const TRIES: usize = 5;
/// It syncs what it acknowledges, and a replica need not wait before its first copy.
const OWN: [(&str, &str); 6] = [
    ("bind", "127.0.0.1"),
    ("protected-mode", "no"),
    ("save", ""),
    ("appendonly", "yes"),
    ("appendfsync", "always"),
    ("repl-diskless-sync-delay", "0"),
];

/// A Redis server on a free port of 127.0.0.1. It syncs what it acknowledges.
#[derive(Debug)]
pub struct Redis {
    folder: PathBuf,
    port: u16,
    settings: Vec<(String, String)>,
    server: Server,
}

impl Redis {
    /// A server that syncs each write.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A server with further settings, as they stand in `redis.conf`.
    #[must_use]
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        Self::start_at(&home::folder("redis"), settings)
    }

    /// A server whose data is in this folder, which it makes and removes again: to fill its disk, for example.
    #[must_use]
    pub fn start_at(folder: &Path, settings: &[(&str, &str)]) -> Self {
        home::make_folder(folder);
        let owned = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let settings: Vec<(String, String)> = owned.collect();
        let mut words = String::new();
        for _ in 0..TRIES {
            let port = home::free_port();
            must(std::fs::write(folder.join("redis.conf"), lines(port, folder, &settings)), "redis.conf");
            let server = launch(folder);
            let mut redis = Self { folder: folder.to_owned(), port, settings: settings.clone(), server };
            if redis.wait() {
                return redis;
            }
            words = redis.server.last_words();
            // Only the process is let go; the folder is needed for the next try.
            redis.folder = PathBuf::new();
        }
        panic!("Redis does not start: {words}")
    }

    /// The server that all tests of this process share. Each takes a ledger of its own with [`Redis::fresh`].
    #[must_use]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Redis> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The URL of an empty ledger of its own.
    #[must_use]
    pub fn fresh(&self) -> String {
        format!("{}?prefix={}", self.url(), home::unique())
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where it keeps its data and its log.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What it answers to a command, as `redis-cli` prints it; an error of the server's is an answer too.
    #[must_use]
    #[track_caller]
    pub fn cli(&self, words: &[&str]) -> String {
        home::run(ask(self.port).args(words))
    }

    /// Stops it as its operator would: everything is written.
    pub fn stop(&mut self) {
        self.server.end(Signal::SIGTERM);
    }

    /// Kills it, with no chance to write anything more.
    pub fn kill(&mut self) {
        self.server.kill_all();
    }

    /// Whether it runs: a server whose disk is full may have ended by itself.
    #[must_use]
    pub fn is_running(&mut self) -> bool {
        self.server.is_running()
    }

    /// Starts it again, with the same port and data.
    pub fn start_again(&mut self) {
        self.server = launch(&self.folder);
        let ready = self.wait();
        assert!(ready, "Redis does not start again: {}", self.server.last_words());
    }

    /// Stops its process where it stands.
    pub fn pause(&self) {
        self.server.signal(Signal::SIGSTOP);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.server.signal(Signal::SIGCONT);
    }

    /// A replica with the same settings, which follows when this returns.
    #[must_use]
    pub fn replica(&self) -> Self {
        self.replica_of(self.port)
    }

    /// The same through a relay to this server, which can be stalled: a partition between the two.
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
        // It is called online up to a second before the first command is sent to it: so it must have confirmed one. A
        // message is such a command, and leaves nothing behind.
        drop(self.cli(&["PUBLISH", "harness", "follow"]));
        home::wait_until("the replica follows", || {
            confirmed(&self.cli(&["INFO", "replication"]), replica.port)
        });
        replica
    }

    /// Whoever answers must be this very process: another one may have taken the port a moment ago.
    fn wait(&mut self) -> bool {
        let port = self.port;
        self.server.wait_until_ready(|pid| {
            let own = format!("process_id:{pid}");
            let answer = ask(port).args(["INFO", "server"]).output();
            answer.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).lines().any(|line| line == own))
        })
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.server.kill_all();
        if !self.folder.as_os_str().is_empty() {
            // What cannot be removed now goes with the process.
            drop(std::fs::remove_dir_all(&self.folder));
        }
    }
}

/// The file of settings: the last one of a name counts.
fn lines(port: u16, folder: &Path, settings: &[(String, String)]) -> String {
    let own = OWN.iter().copied();
    let given = settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let line = |(name, value): (&str, &str)| match value {
        "" => format!("{name} \"\"\n"),
        value => format!("{name} {value}\n"),
    };
    format!("port {port}\ndir {}\n", folder.display()) + &own.chain(given).map(line).collect::<String>()
}

/// Whether the replica on that port has confirmed all that there is, by what its primary says.
fn confirmed(replication: &str, port: u16) -> bool {
    let all = replication.lines().find_map(|line| line.strip_prefix("master_repl_offset:"));
    let replica = replication.lines().find(|line| line.contains(&format!("port={port},state=online")));
    let offset = replica.and_then(|line| line.split(',').find_map(|word| word.strip_prefix("offset=")));
    all.is_some_and(|all| all.trim() != "0" && offset == Some(all.trim()))
}

fn ask(port: u16) -> Command {
    let mut command = home::command("redis-cli", PACKAGE, As::Us);
    command.args(["-h", "127.0.0.1", "-p", &port.to_string()]);
    command
}

fn launch(folder: &Path) -> Server {
    let mut command = home::command("redis-server", PACKAGE, As::Us);
    command.arg(folder.join("redis.conf"));
    Server::start(command, &folder.join("log"))
}
