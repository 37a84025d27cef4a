//! A server of a ledger: `once serve`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::home;
use crate::server::{Server, is_a_server};

/// How long a server may take to answer the question whether it is there.
const PATIENCE: Duration = Duration::from_secs(2);

/// A `once serve` on a free port of 127.0.0.1, with a ledger in a file.
#[derive(Debug)]
pub struct LedgerServer {
    once: PathBuf,
    server: Server,
}

is_a_server!(LedgerServer);

impl LedgerServer {
    /// Starts this `once` with a new ledger.
    #[must_use]
    pub fn start(once: &Path) -> Self {
        Self::start_at(once, &home::folder("once"))
    }

    /// Starts it with the ledger in this folder, which it creates and removes; for example to fill its disk.
    #[must_use]
    pub fn start_at(once: &Path, folder: &Path) -> Self {
        home::must(std::fs::create_dir_all(folder), "cannot create a folder for the ledger");
        let server = Server::start("once serve", folder, |port| command(once, folder, port), is_there);
        Self { once: once.to_owned(), server }
    }

    /// The URL of its ledger.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }

    /// The file of its ledger.
    #[must_use]
    pub fn ledger(&self) -> PathBuf {
        self.folder().join("once.db")
    }

    /// Stops it cleanly: it lets the requests in flight end.
    pub fn stop(&mut self) {
        self.server.end(Signal::SIGTERM);
    }

    /// Restarts it with the same port and ledger.
    pub fn start_again(&mut self) {
        let command = command(&self.once, self.folder(), self.port());
        self.server.restart("once serve", command, is_there);
    }
}

fn command(once: &Path, folder: &Path, port: u16) -> Command {
    let mut command = Command::new(home::find("setpriv", "util-linux"));
    command.args(["--pdeathsig", "KILL", "--"]).arg(once);
    command.arg("--ledger").arg(format!("sqlite:{}", folder.join("once.db").display()));
    command.args(["serve", "--listen", &format!("127.0.0.1:{port}")]);
    // Nothing of the user's own settings reaches it.
    command.env("HOME", folder).env_remove("ONCE_LEDGER").env_remove("ONCE_TOKEN");
    command.env_remove("XDG_CONFIG_HOME").env_remove("XDG_DATA_HOME");
    command.stdin(Stdio::null()).current_dir(folder);
    command
}

fn is_there(_: u32, port: u16) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply)?;
        Ok(reply)
    };
    ask().is_ok_and(|reply| reply.starts_with("HTTP/1.1 200"))
}
