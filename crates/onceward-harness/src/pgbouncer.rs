//! A PgBouncer in front of a PostgreSQL server.

use std::path::PathBuf;

use crate::home::{self, As, must};
use crate::server::Server;

/// A pool of few connections that each transaction may get another one of.
#[derive(Debug)]
pub struct PgBouncer {
    folder: PathBuf,
    port: u16,
    server: Server,
}

impl PgBouncer {
    pub(crate) fn start(postgres: u16) -> Self {
        let folder = home::folder("pgbouncer");
        home::make_folder(&folder);
        let port = home::free_port();
        let settings = format!(
            "[databases]\n\
             postgres = host=127.0.0.1 port={postgres} user=postgres\n\
             [pgbouncer]\n\
             listen_addr = 127.0.0.1\n\
             listen_port = {port}\n\
             unix_socket_dir =\n\
             auth_type = any\n\
             pool_mode = transaction\n\
             default_pool_size = 4\n\
             max_client_conn = 500\n\
             ignore_startup_parameters = extra_float_digits\n"
        );
        let file = folder.join("pgbouncer.ini");
        must(std::fs::write(&file, settings), "cannot write PgBouncer's settings");
        let mut command = home::command("pgbouncer", "pgbouncer", As::NotRoot);
        command.arg(&file);
        let mut server = Server::start(command, &folder.join("log"));
        let ready = server.wait_until_ready(|_| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        assert!(ready, "PgBouncer does not start: {}", server.last_words());
        Self { folder, port, server }
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
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        self.server.kill_all();
        // What cannot be removed now goes with the process.
        drop(std::fs::remove_dir_all(&self.folder));
    }
}
