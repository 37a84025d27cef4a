//! A server in this process, asked without a network.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use onceward::{Policy, Store};
use onceward_http::tenants::{TokenHash, new_token};
use onceward_http::{App, Config};
use onceward_testkit::Stepped;
use serde_json::Value;
use tower::ServiceExt;

/// A server on a SQLite file in a folder of its own, and on a clock that the test steps.
pub(crate) struct Server {
    pub(crate) clock: Arc<Stepped>,
    pub(crate) app: Arc<App>,
    pub(crate) router: Router,
    pub(crate) folder: tempfile::TempDir,
}

/// An answer: status, headers and JSON.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: axum::http::HeaderMap,
    pub(crate) text: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    #[track_caller]
    pub(crate) fn is(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        self.json()
    }

    /// A problem document with this status and code.
    #[track_caller]
    pub(crate) fn problem(self, status: u16, code: &str) -> Value {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{}", self.text);
        let stops = self.headers.get("x-should-retry").map(|value| value.to_str().unwrap().to_owned());
        let must_stop = matches!(status, 410 | 422 | 424);
        assert_eq!(stops.as_deref(), must_stop.then_some("false"), "{}", self.text);
        assert!(!must_stop || !self.headers.contains_key("retry-after"), "{}", self.text);
        let problem = self.is(status);
        assert_eq!(problem["code"], code, "{problem}");
        assert_eq!(problem["status"], status, "{problem}");
        assert_eq!(problem["type"], format!("urn:onceward:{code}"), "{problem}");
        problem
    }
}

impl Server {
    pub(crate) fn new(policy: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self::opened(Stepped::new(), policy, folder)
    }

    fn opened(clock: Arc<Stepped>, policy: &str, folder: tempfile::TempDir) -> Self {
        let url = format!("sqlite:{}", folder.path().join("once.db").display());
        let store = clock.on(onceward_store::open(&url).unwrap());
        Self::on(clock, store, policy, folder)
    }

    /// A server on a store with this clock.
    pub(crate) fn on(
        clock: Arc<Stepped>,
        store: Arc<dyn Store>,
        policy: &str,
        folder: tempfile::TempDir,
    ) -> Self {
        let config = Config::from_policy(&Policy::parse(policy).unwrap()).unwrap();
        let app = App::new(store, config).unwrap();
        Self { clock, router: onceward_http::server::router(Arc::clone(&app)), app, folder }
    }

    /// Another server on the same file, as after a restart.
    pub(crate) fn restarted(self, policy: &str) -> Self {
        let Self { app, router, folder, clock } = self;
        drop((app, router));
        Self::opened(clock, policy, folder)
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Reply {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Reply { status: head.status, headers: head.headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Reply {
        self.send(post(path, &body.to_string()).body(Body::from(body.to_string())).unwrap()).await
    }

    /// The same with a tenant's token.
    pub(crate) async fn as_tenant(
        &self,
        token: &str,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Reply {
        let request = Request::builder().method(method).uri(path);
        let request = request.header("authorization", format!("Bearer {token}"));
        let request = request.header("content-type", "application/json");
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        self.send(request.body(body).unwrap()).await
    }
}

fn post(path: &str, _body: &str) -> axum::http::request::Builder {
    Request::post(path).header("content-type", "application/json")
}

/// A section for a tenant with a new token, and the token.
pub(crate) fn tenant(name: &str, more: &str) -> (String, String) {
    let (token, hash) = new_token().unwrap();
    assert_eq!(TokenHash::of(token.as_bytes()), hash);
    (format!("[tenant.{name}]\ntokens = [\"{hash}\"]\n{more}\n"), token)
}

pub(crate) use onceward_testkit::{found, until};

/// How long a test waits for what must come. A loaded machine needs seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// What must come, and comes soon.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it comes")
}
