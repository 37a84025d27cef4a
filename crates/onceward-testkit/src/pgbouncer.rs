//! A PgBouncer in front of a PostgreSQL server.

use crate::home::{self, RunAs, must};
use crate::server::{Server, is_a_server};

/// A small pool that assigns a server connection per transaction.
#[derive(Debug)]
pub struct PgBouncer {
    server: Server,
}

is_a_server!(PgBouncer);

impl PgBouncer {
    pub(crate) fn start(postgres: u16) -> Self {
        let folder = home::folder("pgbouncer");
        home::make_folder(&folder);
        let command = |port| {
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
            let mut command = home::command("pgbouncer", "pgbouncer", RunAs::NotRoot);
            command.arg(&file);
            command
        };
        let ready = |_, port| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
        Self { server: Server::start("PgBouncer", &folder, command, ready) }
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
}
