//! A server with an inbox, a vendor that signs, and a handler that counts.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use onceward::{Clock, Filter, Policy, Record, Store};
use onceward_http::client::{Connection, Remote, full};
use onceward_http::inbox::{HostEnvironment, Signed, Source};
use onceward_http::{App, Config};
use onceward_testkit::Stepped;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::common::found;

/// The secret of all sources, in the form of each.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A running server. Its clock stands still, except while the test waits for an event: see [`Rig::until`].
pub(crate) struct Rig {
    pub(crate) clock: Arc<Stepped>,
    pub(crate) store: Arc<dyn Store>,
    base: String,
    policy: String,
    folder: Option<tempfile::TempDir>,
    stop: Option<oneshot::Sender<()>>,
    server: Option<JoinHandle<()>>,
}

/// An answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub(crate) fn result(&self) -> &str {
        self.headers.get("once-result").map_or("", |value| value.to_str().unwrap())
    }
}

impl Rig {
    pub(crate) async fn new(policy: &str) -> Self {
        let (folder, clock) = (tempfile::tempdir().unwrap(), Stepped::new());
        let mut rig = Self::on(Arc::clone(&clock), open(&folder, &clock), policy).await;
        rig.folder = Some(folder);
        rig
    }

    /// A server on a store with this clock, which others may use as well.
    pub(crate) async fn on(clock: Arc<Stepped>, store: Arc<dyn Store>, policy: &str) -> Self {
        Self::with(clock, store, policy, HostEnvironment::variables(|_| Some(SECRET.to_owned()))).await
    }

    pub(crate) async fn with(
        clock: Arc<Stepped>,
        store: Arc<dyn Store>,
        policy: &str,
        environment: HostEnvironment,
    ) -> Self {
        let mut config = Config::from_policy(&Policy::parse(policy).unwrap()).unwrap();
        config.environment = environment;
        let app = App::new(Arc::clone(&store), config).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(async move {
            onceward_http::serve(listener, app, async { drop(stopped.await) }).await.unwrap();
        });
        let (stop, server) = (Some(stop), Some(server));
        Self { clock, store, base, policy: policy.to_owned(), folder: None, stop, server }
    }

    /// Ends the server and starts another one on the same file.
    pub(crate) async fn restarted(self) -> Self {
        let policy = self.policy.clone();
        self.restarted_with(&policy).await
    }

    /// The same with another configuration.
    pub(crate) async fn restarted_with(mut self, policy: &str) -> Self {
        self.end().await;
        let (folder, clock) = (self.folder.take().unwrap(), Arc::clone(&self.clock));
        drop(self);
        let mut next = Self::on(Arc::clone(&clock), open(&folder, &clock), policy).await;
        next.folder = Some(folder);
        next
    }

    pub(crate) async fn end(&mut self) {
        drop(self.stop.take());
        if let Some(server) = self.server.take() {
            server.await.unwrap();
        }
    }

    pub(crate) async fn send(&self, method: Method, path: &str, headers: HeaderMap, body: Vec<u8>) -> Answer {
        let remote = Remote::new(&format!("{}{path}", self.base)).unwrap();
        let request = remote.request(method, remote.path(), headers, full(body));
        let response = remote.send(request, Connection::Fresh).await.map_err(|_| "not answered").unwrap();
        let (head, body) = response.into_parts();
        let text = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8(text.to_vec()).unwrap();
        Answer { status: head.status.as_u16(), headers: head.headers, text }
    }

    /// Sends a signed request under another name of the server, as a proxy does.
    pub(crate) async fn deliver_through_proxy(&self, path: &str, signed: &Signed) -> String {
        self.write(
            &format!("POST {path} HTTP/1.1\r\nhost: hooks.example.com\r\nconnection: close\r\n"),
            signed,
        )
        .await
    }

    /// Sends a signed request that does not ask for the end of its connection, and reads until that ends.
    pub(crate) async fn deliver_on_one_connection(&self, path: &str, signed: &Signed) -> String {
        self.write(&format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n"), signed).await
    }

    async fn write(&self, head: &str, signed: &Signed) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut request = head.to_owned();
        for (name, value) in signed.headers.iter().filter(|(name, _)| *name != "content-length") {
            request.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap()));
        }
        request.push_str(&format!("content-length: {}\r\n\r\n", signed.body.len()));
        let address = self.base.trim_start_matches("http://");
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(&[request.as_bytes(), &signed.body].concat()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    /// Sends a signed request as it is.
    pub(crate) async fn deliver(&self, source: &str, signed: &Signed) -> Answer {
        self.send(Method::POST, &format!("/hooks/{source}"), signed.headers.clone(), signed.body.to_vec())
            .await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, HeaderMap::new(), Vec::new()).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        self.send(Method::POST, path, headers, body.to_string().into_bytes()).await
    }

    /// One more server on the same ledger.
    pub(crate) async fn beside(&self) -> Self {
        Self::on(Arc::clone(&self.clock), Arc::clone(&self.store), &self.policy).await
    }

    /// Waits until there is a value, while time passes: four times as fast as it does outside.
    pub(crate) async fn until<T>(&self, look: impl AsyncFnMut() -> Option<T>) -> T {
        self.clock.run(20, found("what the test waits for", look)).await
    }

    /// The event, when it has come so far.
    pub(crate) async fn event_when(&self, source: &str, key: &str, progress: &str) -> Value {
        let path = format!("/v1/inbox/{source}/events/{key}");
        self.until(async || {
            let event = self.get(&path).await;
            (event.status == 200).then(|| event.json()).filter(|event| event["progress"] == progress)
        })
        .await
    }

    /// All records.
    pub(crate) async fn records(&self) -> Vec<Record> {
        let all = Filter { limit: 10_000, ..Filter::default() };
        self.store.list(&all).await.unwrap().into_iter().map(|listed| listed.record).collect()
    }
}

fn open(folder: &tempfile::TempDir, clock: &Arc<Stepped>) -> Arc<dyn Store> {
    let url = format!("sqlite:{}", folder.path().join("once.db").display());
    clock.on(onceward_store::open(&url).unwrap())
}

/// The preset of a source of these tests.
pub(crate) fn preset_of(source: &str) -> &str {
    if source == "standard" { "standard-webhooks" } else { source }
}

/// A vendor that signs its requests.
pub(crate) struct Vendor {
    source: Source,
    headers: &'static [(&'static str, &'static str)],
}

impl Vendor {
    pub(crate) fn new(preset: &str) -> Self {
        let vendor = preset_of(preset);
        let config = toml::from_str(&format!("preset = \"{vendor}\"\nsecrets = [\"$SECRET\"]")).unwrap();
        let source = Source::new(preset, &config, &|_| Some(SECRET.to_owned())).unwrap();
        let headers: &[(&str, &str)] = match preset {
            "github" => &[("x-github-event", "push")],
            _ => &[],
        };
        Self { source, headers }
    }

    /// An event with this id and content.
    pub(crate) fn event(&self, id: &str, body: &Value) -> Signed {
        let mut sample = self.source.sample("https://example.com/hooks", 1, Stepped::new().now_ms()).unwrap();
        sample.id = id.to_owned();
        sample.body = body.to_string().into();
        for (name, value) in self.headers {
            sample.headers.insert(*name, HeaderValue::from_static(value));
        }
        if let Some(delivery) = sample.headers.get_mut("x-github-delivery") {
            *delivery = HeaderValue::try_from(id).unwrap();
        }
        self.source.sign(&sample, &self.source.signer().unwrap()).unwrap()
    }
}

/// A request that a handler got.
#[derive(Debug, Clone)]
pub(crate) struct Got {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// When it came, on the clock that the handler was given.
    pub(crate) at_ms: Option<i64>,
}

impl Got {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// A handler that notes what it gets. It answers with the given statuses, and with 200 when there are no more.
#[derive(Clone, Default)]
pub(crate) struct Handler {
    got: Arc<Mutex<Vec<Got>>>,
    answers: Arc<Mutex<VecDeque<u16>>>,
    clock: Arc<Mutex<Option<Arc<Stepped>>>>,
    /// It answers when this is free.
    gate: Arc<tokio::sync::RwLock<()>>,
    /// The pause that it asks for when it refuses.
    retry_after: Arc<Mutex<Option<&'static str>>>,
    /// Answers in JSON that it gives first.
    says: Arc<Mutex<VecDeque<(u16, &'static str)>>>,
    /// The paths of the questions that it was asked, and how it answers them.
    questions: Arc<Mutex<Vec<String>>>,
    told: Arc<Mutex<VecDeque<(u16, &'static str)>>>,
}

impl Handler {
    pub(crate) async fn start(answers: &[u16]) -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/in", listener.local_addr().unwrap());
        (Self::at(listener, answers), url)
    }

    pub(crate) fn at(listener: TcpListener, answers: &[u16]) -> Self {
        let handler = Self::default();
        handler.answers.lock().unwrap().extend(answers);
        let router = Router::new().fallback(take).with_state(handler.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        handler
    }

    /// It notes on this clock when events come.
    pub(crate) fn looks_at(&self, clock: &Arc<Stepped>) {
        *self.clock.lock().unwrap() = Some(Arc::clone(clock));
    }

    /// It answers nothing while this is held.
    pub(crate) async fn held(&self) -> tokio::sync::OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.gate).write_owned().await
    }

    pub(crate) fn asks_for(&self, pause: &'static str) {
        *self.retry_after.lock().unwrap() = Some(pause);
    }

    /// Answers events with these statuses and texts in JSON before all others.
    pub(crate) fn says(&self, said: &[(u16, &'static str)]) {
        self.says.lock().unwrap().extend(said);
    }

    /// Answers questions with these statuses and texts.
    pub(crate) fn tells(&self, told: &[(u16, &'static str)]) {
        self.told.lock().unwrap().extend(told);
    }

    pub(crate) fn questions(&self) -> Vec<String> {
        self.questions.lock().unwrap().clone()
    }

    pub(crate) fn got(&self) -> Vec<Got> {
        self.got.lock().unwrap().clone()
    }
}

async fn take(
    State(handler): State<Handler>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if method == Method::GET {
        handler.questions.lock().unwrap().push(uri.path().to_owned());
        let (status, text) = handler.told.lock().unwrap().pop_front().unwrap_or((503, ""));
        return (StatusCode::from_u16(status).unwrap(), text).into_response();
    }
    let at_ms = handler.clock.lock().unwrap().as_ref().map(|clock| clock.now_ms());
    handler.got.lock().unwrap().push(Got { headers, body, at_ms });
    drop(handler.gate.read().await);
    if let Some((status, text)) = handler.says.lock().unwrap().pop_front() {
        let kind = [("content-type", "application/json")];
        return (StatusCode::from_u16(status).unwrap(), kind, text).into_response();
    }
    let status = handler.answers.lock().unwrap().pop_front().unwrap_or(200);
    let mut response = StatusCode::from_u16(status).unwrap().into_response();
    if let Some(pause) = handler.retry_after.lock().unwrap().filter(|_| status >= 400) {
        response.headers_mut().insert("retry-after", HeaderValue::from_static(pause));
    }
    response
}
