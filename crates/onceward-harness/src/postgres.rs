//! A PostgreSQL server of its own.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nix::sys::signal::Signal;

use crate::home::{self, As, must};
use crate::server::Server;
use crate::{PgBouncer, Relay};

const PACKAGE: &str = "postgresql";
/// How often another port is tried when the first was taken.
const TRIES: usize = 5;

/// A PostgreSQL server on a free port of 127.0.0.1, which lets everybody in as `postgres`. It syncs what it commits.
#[derive(Debug)]
pub struct Postgres {
    folder: PathBuf,
    port: u16,
    server: Server,
}

impl Postgres {
    /// A server with the settings of its package.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A server with further settings, as they stand in `postgresql.conf`.
    #[must_use]
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        Self::start_at(&home::folder("postgres"), settings)
    }

    /// A server whose data is in this folder, which it makes and removes again: to fill its disk, for example.
    #[must_use]
    pub fn start_at(folder: &Path, settings: &[(&str, &str)]) -> Self {
        home::make_folder(folder);
        let mut copy = home::command("cp", "coreutils", As::NotRoot);
        home::run(copy.arg("-a").arg(template()).arg(folder.join("data")));
        Self::start_on(folder, settings)
    }

    /// The server that all tests of this process share. Each takes a ledger of its own with [`Postgres::fresh`].
    #[must_use]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(|| Self::start_with(&[("max_connections", "400")]))
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// The URL of an empty ledger of its own.
    #[must_use]
    pub fn fresh(&self) -> String {
        format!("{}?schema={}", self.url(), home::unique())
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

    /// What it answers to a statement: a line a row, `|` between columns.
    #[must_use]
    #[track_caller]
    pub fn sql(&self, text: &str) -> String {
        let mut psql = home::command("psql", PACKAGE, As::NotRoot);
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", &self.url(), "-c", text]);
        home::run(&mut psql)
    }

    /// Stops it as its operator would: connections are ended, everything is written.
    pub fn stop(&mut self) {
        self.server.end(Signal::SIGINT);
    }

    /// Kills the whole server, with no chance to write anything more.
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
        let ready = self.run();
        assert!(ready, "PostgreSQL does not start again: {}", self.server.last_words());
    }

    /// A standby that streams from this one under that name. Whether it is synchronous is for the primary to say: see
    /// [`Postgres::synchronous`].
    #[must_use]
    pub fn standby(&self, name: &str) -> Self {
        self.standby_from(self.port, name)
    }

    /// The same through a relay to this server, which can be stalled: a partition between the two.
    #[must_use]
    pub fn standby_through(&self, relay: &Relay, name: &str) -> Self {
        self.standby_from(relay.port(), name)
    }

    /// From now on a commit waits for the standby of that name; returns when it follows.
    pub fn synchronous(&self, name: &str) {
        // Each is a statement of its own: ALTER SYSTEM is refused within a transaction.
        drop(self.sql(&format!("alter system set synchronous_standby_names = '\"{name}\"'")));
        drop(self.sql("select pg_reload_conf()"));
        let state = format!("select sync_state from pg_stat_replication where application_name = '{name}'");
        home::wait_until("the standby is synchronous", || self.sql(&state) == "sync");
    }

    /// Makes a standby the primary; returns when it takes writes.
    pub fn promote(&mut self) {
        let promoted = self.sql("select pg_promote(true, 60)");
        assert_eq!(promoted, "t", "the standby was not promoted: {}", self.server.last_words());
    }

    /// A PgBouncer in front of it, with transaction pooling.
    #[must_use]
    pub fn pgbouncer(&self) -> PgBouncer {
        PgBouncer::start(self.port)
    }

    fn standby_from(&self, port: u16, name: &str) -> Self {
        let folder = home::folder("standby");
        home::make_folder(&folder);
        let data = folder.join("data");
        let mut backup = home::command("pg_basebackup", PACKAGE, As::NotRoot);
        backup.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "postgres", "-X", "stream"]);
        home::run(backup.args(["-c", "fast", "-D"]).arg(&data));
        must(std::fs::write(data.join("standby.signal"), ""), "cannot make a standby of it");
        let primary = format!("host=127.0.0.1 port={port} user=postgres application_name={name}");
        // What the primary waits for is not what the standby waits for once it is promoted.
        Self::start_on(&folder, &[("primary_conninfo", &primary), ("synchronous_standby_names", "")])
    }

    /// Starts a server on data that is there.
    fn start_on(folder: &Path, settings: &[(&str, &str)]) -> Self {
        let file = folder.join("data/postgresql.conf");
        let before = must(std::fs::read_to_string(&file), "cannot read postgresql.conf");
        let mut words = String::new();
        for _ in 0..TRIES {
            let port = home::free_port();
            must(std::fs::write(&file, before.clone() + &lines(port, settings)), "cannot write its settings");
            let mut server = Self { folder: folder.to_owned(), port, server: launch(folder) };
            if server.wait() {
                return server;
            }
            words = server.server.last_words();
            // Only the process is let go; the folder is needed for the next try.
            server.folder = PathBuf::new();
        }
        panic!("PostgreSQL does not start: {words}")
    }

    fn run(&mut self) -> bool {
        self.server = launch(&self.folder);
        self.wait()
    }

    /// It says of itself when it is ready, in the last line of its pid file.
    fn wait(&mut self) -> bool {
        let file = self.folder.join("data/postmaster.pid");
        self.server.wait_until_ready(|pid| {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            let mut lines = text.lines();
            let own = lines.next() == Some(pid.to_string().as_str());
            own && lines.nth(6).is_some_and(|state| matches!(state.trim(), "ready" | "standby"))
        })
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.server.kill_all();
        if !self.folder.as_os_str().is_empty() {
            // What cannot be removed now goes with the process.
            drop(std::fs::remove_dir_all(&self.folder));
        }
    }
}

/// The settings of one server, after those that are there: the last one counts.
fn lines(port: u16, settings: &[(&str, &str)]) -> String {
    let port = port.to_string();
    let own = [("listen_addresses", "127.0.0.1"), ("unix_socket_directories", ""), ("port", port.as_str())];
    let line = |(name, value): &(&str, &str)| format!("\n{name} = '{}'", value.replace('\'', "''"));
    own.iter().chain(settings).map(line).collect::<String>() + "\n"
}

fn launch(folder: &Path) -> Server {
    let mut command = home::command("postgres", PACKAGE, As::NotRoot);
    command.arg("-D").arg(folder.join("data"));
    Server::start(command, &folder.join("log"))
}

/// Data of a server that was never started. To copy it is much faster than to make it.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let folder = home::folder("template");
        home::make_folder(&folder);
        let data = folder.join("data");
        let mut make = home::command("initdb", PACKAGE, As::NotRoot);
        make.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale", "C", "--no-sync", "-D"]);
        home::run(make.arg(&data));
        data
    })
}
