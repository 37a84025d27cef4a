//! A private PostgreSQL server.

use std::fs::{File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use nix::sys::signal::Signal;

use crate::home::{self, RunAs, must};
use crate::server::{Server, is_a_server};
use crate::{PgBouncer, Relay, faketime};

const PACKAGE: &str = "postgresql";

/// A PostgreSQL server on a free port of 127.0.0.1 that accepts every user as `postgres`. It syncs its commits.
#[derive(Debug)]
pub struct Postgres {
    server: Server,
    clock: Clock,
}

is_a_server!(Postgres);

/// The contents of a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dump {
    /// Tables, functions and rows.
    All,
    /// Only the rows.
    Rows,
}

/// The clock of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clock {
    /// The machine's clock.
    Machine,
    /// A clock that can be set, with libfaketime.
    Settable,
}

impl Postgres {
    /// Starts a server with its package's default settings.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with additional settings, in the form of `postgresql.conf`.
    #[must_use]
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        Self::start_at(&home::folder("postgres"), settings)
    }

    /// Starts a server with its data in this folder, which it creates and removes; for example to fill its disk.
    #[must_use]
    pub fn start_at(folder: &Path, settings: &[(&str, &str)]) -> Self {
        home::make_folder(folder);
        make_data(folder);
        Self::start_on(folder, settings, Clock::Machine)
    }

    /// Starts a server whose clock can be set with [`Postgres::set_clock`], with libfaketime.
    #[must_use]
    pub fn start_with_clock() -> Self {
        let folder = home::folder("postgres");
        home::make_folder(&folder);
        make_data(&folder);
        must(std::fs::write(folder.join("clock"), "+0"), "cannot write a server's clock");
        Self::start_on(&folder, &[], Clock::Settable)
    }

    /// Sets the clock of a server that was started with [`Postgres::start_with_clock`], relative to the machine's; a
    /// negative value sets it behind.
    pub fn set_clock(&self, ahead_s: i64) {
        assert_eq!(self.clock, Clock::Settable, "this server has the machine's clock");
        // Atomically, so that the server never reads half of it.
        let next = self.folder().join("clock.next");
        must(std::fs::write(&next, format!("{ahead_s:+}")), "cannot write a server's clock");
        must(std::fs::rename(&next, self.folder().join("clock")), "cannot write a server's clock");
    }

    /// The server that all tests of this process share. Each test uses its own ledger: see [`Postgres::fresh`].
    #[must_use]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(|| Self::start_with(&[("max_connections", "400")]))
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port())
    }

    /// The URL of a new, empty ledger.
    #[must_use]
    pub fn fresh(&self) -> String {
        format!("{}?schema={}", self.url(), home::unique())
    }

    /// The result of a statement: one line per row, with `|` between columns.
    #[must_use]
    #[track_caller]
    pub fn sql(&self, text: &str) -> String {
        let mut psql = home::command("psql", PACKAGE, RunAs::NotRoot);
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", &self.url(), "-c", text]);
        home::run(&mut psql)
    }

    /// A dump of a schema as SQL: all of it, or only the rows.
    #[must_use]
    #[track_caller]
    pub fn dump(&self, schema: &str, what: Dump) -> String {
        let mut dump = home::command("pg_dump", PACKAGE, RunAs::NotRoot);
        dump.args(["-d", &self.url(), "--schema", schema]);
        if what == Dump::Rows {
            dump.arg("--data-only");
        }
        home::run(&mut dump)
    }

    /// Restores the output of [`Postgres::dump`] in one transaction. The schema must have been removed before.
    #[track_caller]
    pub fn restore(&self, dump: &str) {
        let file = self.folder().join("dump.sql");
        must(std::fs::write(&file, dump), "cannot write a dump");
        let mut psql = home::command("psql", PACKAGE, RunAs::NotRoot);
        psql.args(["-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-d", &self.url(), "-f"]).arg(&file);
        drop(home::run(&mut psql));
    }

    /// Copies the data of a stopped server, like a backup of its disk.
    #[must_use]
    pub fn copy_data(&self) -> PathBuf {
        let copy = home::folder("backup");
        let mut cp = home::command("cp", "coreutils", RunAs::CurrentUser);
        drop(home::run(cp.arg("-a").arg(self.folder().join("data")).arg(&copy)));
        copy
    }

    /// Replaces its data by a copy. The server must be stopped.
    pub fn put_back(&self, copy: &Path) {
        let data = self.folder().join("data");
        must(std::fs::remove_dir_all(&data), "cannot remove a server's data");
        let mut cp = home::command("cp", "coreutils", RunAs::CurrentUser);
        drop(home::run(cp.arg("-a").arg(copy).arg(&data)));
    }

    /// Stops it cleanly: connections are ended, everything is written.
    pub fn stop(&mut self) {
        self.server.end(Signal::SIGINT);
    }

    /// Restarts it with the same port and data.
    pub fn start_again(&mut self) {
        let command = command(self.folder(), self.clock);
        let folder = self.folder().to_owned();
        self.server.restart("PostgreSQL", command, |pid, _| is_ready(&folder, pid));
    }

    /// A standby that streams from this server under this name. The primary decides whether it is synchronous: see
    /// [`Postgres::synchronous`].
    #[must_use]
    pub fn standby(&self, name: &str) -> Self {
        self.standby_from(self.port(), name)
    }

    /// The same through a relay to this server, which can be stalled to partition the two.
    #[must_use]
    pub fn standby_through(&self, relay: &Relay, name: &str) -> Self {
        self.standby_from(relay.port(), name)
    }

    /// Makes commits wait for the standby with this name; returns when it has caught up.
    pub fn synchronous(&self, name: &str) {
        // Separate statements, because ALTER SYSTEM is refused within a transaction.
        drop(self.sql(&format!("alter system set synchronous_standby_names = '\"{name}\"'")));
        drop(self.sql("select pg_reload_conf()"));
        let state = format!("select sync_state from pg_stat_replication where application_name = '{name}'");
        home::eventually("the standby is synchronous", || self.sql(&state) == "sync");
    }

    /// Makes a standby the primary; returns when it accepts writes.
    pub fn promote(&mut self) {
        let promoted = self.sql("select pg_promote(true, 60)");
        assert_eq!(promoted, "t", "the standby was not promoted: {}", self.server.log_tail());
    }

    /// A PgBouncer in front of it, with transaction pooling.
    #[must_use]
    pub fn pgbouncer(&self) -> PgBouncer {
        PgBouncer::start(self.port())
    }

    fn standby_from(&self, port: u16, name: &str) -> Self {
        let folder = home::folder("standby");
        home::make_folder(&folder);
        let data = folder.join("data");
        let mut backup = home::command("pg_basebackup", PACKAGE, RunAs::NotRoot);
        backup.args(["-h", "127.0.0.1", "-p", &self.port().to_string(), "-U", "postgres", "-X", "stream"]);
        home::run(backup.args(["-c", "fast", "-D"]).arg(&data));
        must(std::fs::write(data.join("standby.signal"), ""), "cannot make a standby of it");
        let primary = format!("host=127.0.0.1 port={port} user=postgres application_name={name}");
        // The primary's synchronous standby is not the one for this server once it is promoted.
        let settings = [("primary_conninfo", primary.as_str()), ("synchronous_standby_names", "")];
        Self::start_on(&folder, &settings, Clock::Machine)
    }

    /// Starts a server on existing data.
    fn start_on(folder: &Path, settings: &[(&str, &str)], clock: Clock) -> Self {
        let file = folder.join("data/postgresql.conf");
        let before = must(std::fs::read_to_string(&file), "cannot read postgresql.conf");
        let command = |port| {
            must(std::fs::write(&file, before.clone() + &lines(port, settings)), "cannot write its settings");
            command(folder, clock)
        };
        let server = Server::start("PostgreSQL", folder, command, |pid, _| is_ready(folder, pid));
        Self { server, clock }
    }
}

/// The last line of its pid file says when it is ready.
fn is_ready(folder: &Path, pid: u32) -> bool {
    let text = std::fs::read_to_string(folder.join("data/postmaster.pid")).unwrap_or_default();
    let mut lines = text.lines();
    let own = lines.next() == Some(pid.to_string().as_str());
    own && lines.nth(6).is_some_and(|state| matches!(state.trim(), "ready" | "standby"))
}

/// The settings of one server, appended to the existing ones: the last one counts.
fn lines(port: u16, settings: &[(&str, &str)]) -> String {
    let port = port.to_string();
    let own = [
        ("listen_addresses", "127.0.0.1"),
        ("unix_socket_directories", ""),
        ("port", port.as_str()),
        // In a file in its own folder, so that a killed server leaves no shared memory behind.
        ("dynamic_shared_memory_type", "mmap"),
    ];
    let line = |(name, value): &(&str, &str)| format!("\n{name} = '{}'", value.replace('\'', "''"));
    own.iter().chain(settings).map(line).collect::<String>() + "\n"
}

fn command(folder: &Path, clock: Clock) -> Command {
    let mut command = match clock {
        Clock::Machine => home::command("postgres", PACKAGE, RunAs::NotRoot),
        Clock::Settable => faked(folder),
    };
    command.arg("-D").arg(folder.join("data"));
    command
}

/// The server's program with a fake wall clock, read each time from the file `clock` in its folder.
fn faked(folder: &Path) -> Command {
    // Only the server loads the library: if root loaded it, other users could not open its shared memory.
    let mut command = home::command("env", "coreutils", RunAs::NotRoot);
    command.arg(format!("LD_PRELOAD={}", faketime::library().display()));
    command.arg(format!("FAKETIME_TIMESTAMP_FILE={}", folder.join("clock").display()));
    command.args(["FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_NO_CACHE=1"]);
    command.arg(home::find("postgres", PACKAGE));
    command
}

/// Puts the data of a new server into the folder `data`.
///
/// Creating it takes seconds, so it is created once for each build folder and version of PostgreSQL, and kept there as
/// an archive. The test reads the archive and PostgreSQL's user unpacks it: that user may not enter the build folder.
fn make_data(folder: &Path) {
    let data = folder.join("data");
    home::make_folder(&data);
    // PostgreSQL refuses data that others may read.
    must(std::fs::set_permissions(&data, Permissions::from_mode(0o700)), "cannot close a server's folder");
    let archive = must(File::open(archive()), "cannot read the data of a new server");
    let mut tar = home::command("tar", "tar", RunAs::NotRoot);
    home::run(tar.args(["-x", "-f", "-", "-C"]).arg(&data).stdin(archive));
}

fn archive() -> &'static Path {
    static ARCHIVE: OnceLock<PathBuf> = OnceLock::new();
    ARCHIVE.get_or_init(|| {
        let initdb = home::find("initdb", PACKAGE);
        let folder = build_folder().map_or_else(|| home::folder("template"), |folder| folder.join("tmp"));
        must(std::fs::create_dir_all(&folder), "cannot create a folder for the data of a new server");
        let archive = folder.join(format!("postgres-{}.tar", version(&initdb)));
        // Of several tests that start at once, one creates it.
        let lock = must(File::create(archive.with_extension("lock")), "cannot create a lock");
        must(lock.lock(), "cannot lock the data of a new server");
        if !archive.exists() {
            create(&initdb, &archive);
        }
        archive
    })
}

/// Cargo's build folder, if this program was started from there.
fn build_folder() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists()).map(Path::to_owned)
}

/// Another version of PostgreSQL, or another build of one, is another file with another time.
fn version(initdb: &Path) -> String {
    let meta = must(std::fs::metadata(initdb), "cannot read initdb");
    format!("{}-{}", meta.len(), meta.mtime())
}

fn create(initdb: &Path, archive: &Path) {
    let folder = home::folder("template");
    home::make_folder(&folder);
    let mut make = home::command_at(initdb, RunAs::NotRoot);
    make.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale", "C", "--no-sync", "-D"]);
    home::run(make.arg(folder.join("data")));
    let part = archive.with_extension("part");
    let mut tar = home::command("tar", "tar", RunAs::CurrentUser);
    home::run(tar.arg("-c").arg("-C").arg(folder.join("data")).arg("-f").arg(&part).arg("."));
    must(std::fs::rename(&part, archive), "cannot keep the data of a new server");
    must(std::fs::remove_dir_all(&folder), "cannot remove the data of a new server");
}
