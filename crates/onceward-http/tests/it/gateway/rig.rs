//! A gateway on a ledger of its own, and a client.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::header::HeaderName;
use hyper::{HeaderMap, Method, StatusCode};
use onceward::{Filter, Policy, Record, State, Store};
use onceward_http::client::{Connection, Remote, full};
use onceward_http::{App, Config};
use onceward_testkit::Stepped;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::common::until;

/// A running gateway. Its clock stands still until the test steps it.
pub(crate) struct Rig {
    pub(crate) clock: Arc<Stepped>,
    pub(crate) url: String,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) folder: Arc<TempDir>,
    config: String,
    server: JoinHandle<()>,
}

/// What a client gets.
#[derive(Debug, Clone)]
pub(crate) struct Got {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Got {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

impl Rig {
    /// A gateway with this configuration, on a new ledger.
    pub(crate) async fn start(config: &str) -> Self {
        Self::on(Arc::new(tempfile::tempdir().unwrap()), config, Stepped::new()).await
    }

    async fn on(folder: Arc<TempDir>, config: &str, clock: Arc<Stepped>) -> Self {
        let url = format!("sqlite:{}", folder.path().join("ledger.db").display());
        let store = onceward_store::StoreUrl::parse(&url).unwrap();
        let store = clock.on(store.open(onceward_store::IfMissing::Create).unwrap());
        let policy = Policy::parse(config).unwrap();
        let app = App::new(Arc::clone(&store), Config::from_policy(&policy).unwrap()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            onceward_http::serve(listener, app, std::future::pending()).await.unwrap();
        });
        Self { clock, url, store, folder, config: config.to_owned(), server }
    }

    /// One more gateway on the same ledger.
    pub(crate) async fn beside(&self) -> Self {
        Self::on(Arc::clone(&self.folder), &self.config, Arc::clone(&self.clock)).await
    }

    /// One more gateway on the same ledger, with another configuration.
    pub(crate) async fn beside_with(&self, config: &str) -> Self {
        Self::on(Arc::clone(&self.folder), config, Arc::clone(&self.clock)).await
    }

    /// The same ledger with another gateway process's worth of state.
    pub(crate) async fn restarted(self) -> Self {
        self.server.abort();
        Self::on(Arc::clone(&self.folder), &self.config, Arc::clone(&self.clock)).await
    }

    pub(crate) async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: &str) -> Got {
        request(&self.url, method, path, headers, body).await
    }

    /// A `POST` of a form with a credential, as an SDK sends it.
    pub(crate) async fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Got {
        let mut all =
            vec![("authorization", "Bearer sk_test"), ("content-type", "application/x-www-form-urlencoded")];
        all.extend(headers);
        self.send(Method::POST, path, &all, body).await
    }

    /// The operations, without further keys.
    pub(crate) async fn operations(&self) -> Vec<Record> {
        let all = self.store.list(&Filter { limit: 1_000, ..Filter::default() }).await.unwrap();
        all.into_iter()
            .map(|listed| listed.record)
            .filter(|record| record.kind == onceward::Kind::Operation)
            .collect()
    }

    pub(crate) async fn states(&self) -> Vec<State> {
        self.operations().await.iter().map(|record| record.state).collect()
    }

    /// Waits until every operation that is done was delivered.
    pub(crate) async fn delivered(&self) {
        until("every answer is noted as delivered", async || {
            let all = self.operations().await;
            all.iter().all(|record| record.state != State::Done || record.detail.delivered.is_some())
        })
        .await;
    }

    /// How many keys and notes are recorded beside the operations.
    pub(crate) async fn aliases(&self) -> usize {
        let all = self.store.list(&Filter { limit: 1_000, ..Filter::default() }).await.unwrap();
        all.iter().filter(|listed| listed.record.kind != onceward::Kind::Operation).count()
    }

    /// The same while time passes, a tenth of a second at a time.
    pub(crate) async fn passing<T>(&self, future: impl Future<Output = T>) -> T {
        self.clock.run(100, future).await
    }

    /// A client of HTTP/1.1 that has sent a `POST` and waits. Dropping it closes the connection at once.
    pub(crate) async fn waiting(&self, path: &str, headers: &str, body: &str) -> TcpStream {
        let address = self.url.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\n{headers}content-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }
}

pub(crate) async fn request(
    url: &str,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Got {
    let remote = Remote::new(url).unwrap();
    let headers: HeaderMap = headers
        .iter()
        .map(|(name, value)| (HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap()))
        .collect();
    let host = headers.get("x-test-host").cloned();
    let mut request = remote.request(method, path, headers, full(body.to_owned()));
    if let Some(host) = host {
        request.headers_mut().remove("x-test-host");
        request.headers_mut().insert("host", host);
    }
    let response = remote.send(request, Connection::Fresh).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Got { status: head.status, headers: head.headers, body }
}
