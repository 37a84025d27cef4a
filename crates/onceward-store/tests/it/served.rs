//! Servers of a ledger in this process, on TCP, with and without TLS, and on Unix sockets.

use std::cell::RefCell;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use axum::Router;
use onceward::Store;
use onceward_http::server::{DRAIN, Listener, Tls, serve_all};
use onceward_http::{App, Config};
use onceward_store::sqlite::{SqliteOptions, SqliteStore};
use onceward_store::{HttpOptions, HttpStore};
use tempfile::TempDir;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::{Builder, Runtime};

/// How clients reach a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    Tcp,
    Tls,
    Unix,
}

/// A server of a ledger. It ends when it is dropped.
pub(crate) struct Served {
    pub(crate) url: String,
    /// Its end is the end of all connections, as when a process dies. `None` only while it is dropped.
    runtime: Option<Runtime>,
    _folder: TempDir,
}

impl Served {
    /// Serves the ledger API on this store.
    pub(crate) fn start(store: Arc<dyn Store>, over: Over) -> Self {
        if over == Over::Tls {
            return Self::with_tls(store);
        }
        Self::of(routes(store), over)
    }

    /// The same by the server's own listener, with a certificate for `localhost`.
    fn with_tls(store: Arc<dyn Store>) -> Self {
        let certificates = certificates();
        let file = |name: &str| certificates.join(name);
        let tls = Tls::read(&file("server.pem"), &file("server.key")).unwrap();
        let runtime = runtime();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = listener.local_addr().unwrap().port();
        let app = App::new(store, Config::default()).unwrap();
        runtime.spawn(async move {
            let listeners = vec![Listener::tcp(listener, Some(&tls)).unwrap()];
            serve_all(listeners, app, DRAIN, std::future::pending()).await;
        });
        let url = format!("https://localhost:{port}?ca={}", file("ca.pem").display());
        Self { url, runtime: Some(runtime), _folder: onceward_testkit::scratch() }
    }

    /// The same on a socket whose earlier server is gone.
    pub(crate) fn at(store: Arc<dyn Store>, socket: &Path) -> Self {
        drop(std::fs::remove_file(socket));
        Self::on(socket, routes(store), onceward_testkit::scratch())
    }

    /// Serves these routes.
    pub(crate) fn of(routes: Router, over: Over) -> Self {
        let folder = onceward_testkit::scratch();
        if over == Over::Unix {
            let socket = folder.path().join("once.sock");
            return Self::on(&socket, routes, folder);
        }
        let runtime = runtime();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        runtime.spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self { url, runtime: Some(runtime), _folder: folder }
    }

    fn on(socket: &Path, routes: Router, folder: TempDir) -> Self {
        let runtime = runtime();
        let listener = runtime.block_on(async { UnixListener::bind(socket) }).unwrap();
        runtime.spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self { url: format!("unix:{}", socket.display()), runtime: Some(runtime), _folder: folder }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn routes(store: Arc<dyn Store>) -> Router {
    onceward_http::server::router(App::new(store, Config::default()).unwrap())
}

/// A folder with an authority (`ca.pem`), its certificate for `localhost` (`server.pem`, `server.key`), and another
/// authority (`other.pem`). It is made once.
pub(crate) fn certificates() -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = onceward_testkit::scratch();
        for words in [
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=authority \
             -keyout ca.key -out ca.pem",
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost \
             -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=DNS:localhost \
             -CA ca.pem -CAkey ca.key -keyout server.key -out server.pem",
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=stranger \
             -keyout other.key -out other.pem",
        ] {
            let mut command = Command::new("openssl");
            let output = command.args(words.split_whitespace()).current_dir(folder.path()).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        folder
    });
    folder.path()
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

pub(crate) fn open(url: &str) -> Arc<HttpStore> {
    HttpStore::open(HttpOptions::parse(url).unwrap()).unwrap()
}

/// Servers of new ledgers in files, until the end of a test.
#[derive(Default)]
pub(crate) struct Files {
    folders: RefCell<Vec<TempDir>>,
    servers: RefCell<Vec<Served>>,
}

impl Files {
    /// A new ledger in a file.
    pub(crate) fn fresh(&self) -> SqliteOptions {
        let folder = onceward_testkit::scratch();
        let options = SqliteOptions::new(folder.path().join("once.db"));
        self.folders.borrow_mut().push(folder);
        options
    }

    /// The URL of a server of a new ledger.
    pub(crate) fn served(&self, over: Over) -> String {
        self.serve(SqliteStore::open(self.fresh()).unwrap(), over)
    }

    /// The URL of a server of this store.
    pub(crate) fn serve(&self, store: Arc<dyn Store>, over: Over) -> String {
        let server = Served::start(store, over);
        let url = server.url.clone();
        self.servers.borrow_mut().push(server);
        url
    }
}
