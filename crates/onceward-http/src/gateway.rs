//! The gateway: `/gw/<upstream>/…`. An SDK changes only its base URL, and its retries change the world once.
//!
//! # Layout
//! - `config`, `rules`, `policy`, `presets`: what is configured and what is known about vendors. `upstream`: what
//!   applies to one request.
//! - `context`: a request that may change something, while it is answered. `options`: what its caller asks of the
//!   gateway. `payload`, `content`, `actions`, `graphql`: requests and the keys in them. `names`: what operations are
//!   called.
//! - `models`: calls of language models. `pass`: reads. `mutate`: everything else.
//! - `aliases`: which operation a request refers to. `choose`: retry or repeat. `readers`: clients that wait.
//!   `named_locks`: locks by name.
//! - `undo`: taking a request back.
//! - `exchange`: one attempt. `classify`: what an answer proves. `probes`, `query`, `completeness`: probes and checks.
//!   `checks`: when successes are checked.
//! - `reply`: answers and problem documents. `replays`: requests that were answered before. `delivery`: whether an
//!   answer arrived.

mod actions;
mod aliases;
mod checks;
mod choose;
mod classify;
pub(crate) mod config;
mod content;
mod context;
mod delivery;
mod exchange;
mod graphql;
mod models;
mod mutate;
mod names;
mod options;
mod pass;
mod payload;
mod policy;
mod presets;
pub(crate) mod query;
mod probes;
mod readers;
mod replays;
mod reply;
pub(crate) mod rules;
mod named_locks;
mod undo;
mod upstream;
mod completeness;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use hyper::{Method, StatusCode, header};
use onceward::{Happened, InvalidInput, Policy, Problem};
use tracing::Instrument;

pub(crate) use checks::resume;
pub(crate) use delivery::Receipts;
pub use models::dialect::is_model_call;

use crate::detached_tasks::DetachedTasks;
use crate::socket::Peer;
use crate::telemetry::{self, CallSurface, Metrics};
use crate::tenant::{Place, Tenant};
use crate::{headers, problem};
use aliases::KeysInUse;
use config::UpstreamConfig;
use context::RequestContext;
use delivery::{Asked, Delivery};
use models::ModelCall;
use named_locks::NamedLocks;
use options::RequestOptions;
use payload::{Payload, Unread};
use readers::{Client, Reader, Readers};
use replays::{Replays, Sent};
use undo::Undo;
use upstream::Upstream;

/// The path under which upstreams answer.
const PREFIX: &str = "/gw/";
/// What the host name of an upstream ends with.
const LOCAL: &str = ".localhost";

/// The configured upstreams, and the calls that this process makes to them.
pub(crate) struct Gateway {
    upstreams: BTreeMap<String, Arc<Upstream>>,
    /// The rules for operations, by their names.
    policy: Policy,
    /// Counts calls.
    metrics: Metrics,
    /// Calls that continue if their client disconnects.
    tasks: DetachedTasks,
    /// The longest request body, in bytes, unless an upstream has a limit of its own.
    max_body: usize,
    /// New keys whose first request is being answered.
    keys_in_use: KeysInUse,
    /// Requests that are about to begin an operation.
    named_locks: NamedLocks,
    /// The clients that wait for answers.
    readers: Arc<Readers>,
    /// The requests that were answered with a stored answer.
    replays: Replays,
    /// The answers of models that are growing.
    generations: models::Generations,
    /// Operations whose success is being checked.
    checking: Mutex<HashSet<Place>>,
}

impl Gateway {
    pub(crate) fn new(
        upstreams: BTreeMap<String, UpstreamConfig>,
        policy: Policy,
        metrics: Metrics,
        tasks: DetachedTasks,
        max_body: usize,
    ) -> Result<Self, InvalidInput> {
        Ok(Self {
            upstreams: ready(upstreams)?,
            policy,
            metrics,
            tasks,
            max_body,
            keys_in_use: KeysInUse::default(),
            named_locks: NamedLocks::default(),
            readers: Arc::default(),
            replays: Replays::default(),
            generations: models::Generations::default(),
            checking: Mutex::default(),
        })
    }

    /// Checks a section as [`Gateway::new`] does.
    pub(crate) fn check(name: &str, config: &UpstreamConfig) -> Result<(), InvalidInput> {
        ready([(name.to_owned(), config.clone())].into()).map(drop)
    }

    /// The host names that the configuration gives to upstreams.
    pub(crate) fn hosts(&self) -> Arc<[String]> {
        self.upstreams.values().filter_map(|upstream| upstream.host.clone()).collect()
    }

    /// The upstreams with a port of their own.
    pub(crate) fn ports(&self) -> Vec<(String, u16)> {
        let all = self.upstreams.iter();
        all.filter_map(|(name, upstream)| Some((name.clone(), upstream.port?))).collect()
    }

    /// The upstream that answers under a host name: `NAME.localhost`, or the one that is configured.
    fn by_host(&self, host: &str) -> Option<&Arc<Upstream>> {
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
        let is_own = |upstream: &&Arc<Upstream>| {
            upstream.host.as_ref().is_some_and(|own| own.eq_ignore_ascii_case(host))
        };
        let parts = host.len().checked_sub(LOCAL.len()).and_then(|at| host.split_at_checked(at));
        let local = parts.filter(|(_, domain)| domain.eq_ignore_ascii_case(LOCAL));
        let by_name = local.and_then(|(name, _)| self.upstreams.get(&name.to_ascii_lowercase()));
        by_name.or_else(|| self.upstreams.values().find(is_own))
    }
}

/// The upstreams of the configuration.
fn ready(
    upstreams: BTreeMap<String, UpstreamConfig>,
) -> Result<BTreeMap<String, Arc<Upstream>>, InvalidInput> {
    let mut problems = Vec::new();
    let mut ready = BTreeMap::new();
    for (name, config) in upstreams {
        let is_label = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if name.is_empty() || !name.bytes().all(is_label) {
            problems.push(format!(
                "[upstream.{name}]: a name has lower-case letters, digits and `-`: it is part of a host name"
            ));
            continue;
        }
        match Upstream::new(&name, config) {
            Ok(upstream) => drop(ready.insert(name, Arc::new(upstream))),
            Err(invalid) => problems
                .extend(invalid.problems().iter().map(|problem| format!("[upstream.{name}] {problem}"))),
        }
    }
    InvalidInput::all(problems).map_or(Ok(ready), Err)
}

/// Whether [`answer`] answers for this path.
pub(crate) fn has(path: &str) -> bool {
    path.strip_prefix(PREFIX).is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'))
}

/// Answers a request of this tenant to an upstream.
pub(crate) async fn answer(gateway: &Arc<Gateway>, tenant: Tenant, request: Request) -> Response {
    match RequestOptions::read(request.headers()) {
        Ok(options) => by_path(gateway, tenant, options, request).await,
        Err(invalid) => refused(problem::of_error(&invalid.into())),
    }
}

/// A refusal of the server itself, in the form that the SDKs of vendors understand.
pub(crate) fn refused(mut response: Response) -> Response {
    match response.extensions_mut().remove::<Problem>() {
        Some(problem) => reply::for_sdks(response, &problem),
        None => response,
    }
}

/// The listener of a request.
#[derive(Clone)]
pub(crate) enum Entrance {
    /// It answers for everything. Upstreams have host names.
    Shared,
    /// It answers for this upstream alone.
    Upstream(Arc<str>),
}

impl Entrance {
    /// The entrance of this upstream alone. `None` if there is no such upstream.
    pub(crate) fn of(gateway: &Gateway, name: &str) -> Option<Self> {
        gateway.upstreams.contains_key(name).then(|| Self::Upstream(Arc::from(name)))
    }

    /// Gives a request to an upstream's host name or port the path that it would have under `/gw/NAME`, so that the
    /// same rules apply.
    pub(crate) fn locate(&self, gateway: &Gateway, request: &mut Request) {
        let name = match self {
            Self::Upstream(name) => Arc::clone(name),
            Self::Shared => {
                let host = request.uri().host();
                let host = host.or_else(|| request.headers().get(header::HOST)?.to_str().ok());
                match host.and_then(|host| gateway.by_host(host)) {
                    Some(upstream) => Arc::from(upstream.name.as_str()),
                    None => return,
                }
            }
        };
        move_under(&name, request);
    }
}

/// The routes, with the requests of this entrance located.
pub(crate) fn entered(gateway: Arc<Gateway>, entrance: Entrance, routes: Router) -> Router {
    let locate = axum::middleware::map_request(move |mut request: Request| {
        entrance.locate(&gateway, &mut request);
        std::future::ready(request)
    });
    Router::new().fallback_service(routes).layer(locate)
}

/// Puts the path of a request under an upstream's.
fn move_under(name: &str, request: &mut Request) {
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
    let mut parts = request.uri().clone().into_parts();
    let Ok(moved) = format!("{PREFIX}{name}{target}").parse() else { return };
    parts.path_and_query = Some(moved);
    if let Ok(uri) = hyper::Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
}

async fn by_path(
    gateway: &Arc<Gateway>,
    tenant: Tenant,
    options: RequestOptions,
    request: Request,
) -> Response {
    // The path as it was sent, so that escapes in it stay as they are.
    let rest = request.uri().path().strip_prefix(PREFIX).unwrap_or_default();
    let (name, path) = match rest.split_once('/') {
        Some((name, _)) => (name, without_dots(&rest[name.len()..])),
        None => (rest, "/".to_owned()),
    };
    match gateway.upstreams.get(name).cloned() {
        Some(upstream) => enter(gateway, tenant, upstream, path, options, request).await,
        None => {
            let detail = "no upstream has this name; add it to onceward.toml as [upstream.NAME]";
            reply::refusal(StatusCode::NOT_FOUND, "NOT_FOUND", None, detail)
        }
    }
}

/// A path without dot segments (RFC 3986), also if they are escaped: rules are about the path that the upstream sees.
fn without_dots(path: &str) -> String {
    // Most paths have none.
    if !path.contains('.') && !path.contains("%2e") && !path.contains("%2E") {
        return path.to_owned();
    }
    let is_dots = |segment: &str, count: usize| {
        let plain = segment.to_ascii_lowercase().replace("%2e", ".");
        plain.len() == count && plain.bytes().all(|byte| byte == b'.')
    };
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_up = is_dots(segment, 2);
        if is_up {
            kept.pop();
        }
        if !is_up && !is_dots(segment, 1) {
            kept.push(segment);
        } else if segments.peek().is_none() {
            kept.push("");
        }
    }
    format!("/{}", kept.join("/"))
}

async fn enter(
    gateway: &Arc<Gateway>,
    tenant: Tenant,
    upstream: Arc<Upstream>,
    path: String,
    options: RequestOptions,
    request: Request,
) -> Response {
    let peer = request.extensions().get::<Peer>().cloned().unwrap_or_default();
    let target = upstream.path(&path);
    let query = request.uri().query().map(str::to_owned);
    if request.headers().contains_key(undo::UNDO) {
        let is_bare = path == "/" && query.is_none() && hyper::body::Body::is_end_stream(request.body());
        return if is_bare && request.method() == Method::POST {
            let (gateway, headers) = (Arc::clone(gateway), request.into_parts().0.headers);
            let (reader, client) = Reader::new(&gateway.readers, &peer);
            let undo = Undo { gateway, tenant, upstream, headers, dry_run: options.dry_run, reader };
            taken_back(undo, client).await
        } else {
            undo::with_more()
        };
    }
    if matches!(*request.method(), Method::TRACE | Method::CONNECT) {
        let detail = format!("{} is not passed on to upstreams; nothing was sent", request.method());
        return reply::refusal(StatusCode::METHOD_NOT_ALLOWED, "INVALID_INPUT", None, &detail);
    }
    // A server that lets a header replace the method would change something.
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS)
        && !actions::overrides(request.method(), request.headers());
    if is_read {
        let target = query.map_or(target.clone(), |query| format!("{target}?{query}"));
        return pass::read(&upstream, &target, request).await;
    }
    let asked = Asked::now(&tenant);
    let receipts = request.extensions().get::<Receipts>().cloned().unwrap_or_default();
    let (head, body) = request.into_parts();
    if head.headers.get_all(headers::KEY).iter().count() > 1 {
        let detail = "the request has more than one Idempotency-Key, so nothing was sent; give it one";
        return reply::refusal(StatusCode::BAD_REQUEST, "INVALID_INPUT", None, detail);
    }
    // The limit of an upstream replaces the server's, and a tenant's limit holds for all.
    let servers = if upstream.has_own_limit { usize::MAX } else { gateway.max_body };
    let most = tenant.max_body(servers);
    let payload = match read(&upstream, body, most).await {
        Ok(payload) => payload,
        Err(refused) => return refused,
    };
    if let Some(body) = payload.bytes() {
        let (method, path, query, headers) = (&head.method, &*target, query.as_deref(), &head.headers);
        let (tenant, upstream) = (&tenant, &upstream);
        let sent = Sent { tenant, upstream, method, path, query, headers, body };
        if let Some(response) = replayed(gateway, &sent, asked, &receipts).await {
            return response;
        }
    }
    let request = content::Request::new(head.method, target, query, head.headers, payload);
    let request = Arc::new(request.with_action_headers(&upstream.action_headers));
    let model = upstream.models.as_ref().filter(|_| request.method == Method::POST);
    let model = model.and_then(|(api, settings)| Some((api.dialect(&path)?, settings.clone())));
    let (reader, client) = Reader::new(&gateway.readers, &peer);
    let gateway = Arc::clone(gateway);
    let context =
        RequestContext { gateway, tenant, upstream, path, request, options, asked, reader, receipts };
    match model {
        // Boxed, so that the future of every other request is small.
        Some((dialect, settings)) => {
            let (position_reader, position_client) = Reader::new(&context.gateway.readers, &peer);
            let span = telemetry::call_span(CallSurface::Gateway, context.trace_parent());
            let call = ModelCall { context, settings, dialect, position_reader };
            // If the client goes away, this future is dropped. The generation is a task of its own.
            let response = Box::pin(call.run()).instrument(span).await;
            response.map(|body| client.reads(position_client.reads(body)))
        }
        None => mutation(context, client).await,
    }
}

/// Makes a mutating call. If the client goes away, this future is dropped, and the call must run to its end.
async fn mutation(context: RequestContext, client: Client) -> Response {
    let span = telemetry::call_span(CallSurface::Gateway, context.trace_parent());
    let gateway = Arc::clone(&context.gateway);
    // Boxed, because the future is large and is moved on its way to its task.
    match gateway.tasks.spawn(Box::pin(mutate::run(context)).instrument(span)).await {
        Ok(response) => response.map(|body| client.reads(body)),
        Err(_) => lost(),
    }
}

/// Takes an operation back. If the client goes away, this future is dropped, and the undo must run to its end.
async fn taken_back(undo: Undo, client: Client) -> Response {
    let span = telemetry::call_span(CallSurface::Gateway, headers::only(&undo.headers, "traceparent"));
    let gateway = Arc::clone(&undo.gateway);
    match gateway.tasks.spawn(undo.run().instrument(span)).await {
        Ok(response) => response.map(|body| client.reads(body)),
        Err(_) => lost(),
    }
}

/// The answer if the task of a request is gone.
fn lost() -> Response {
    let detail = "the gateway failed; the request may have been sent";
    reply::refusal(StatusCode::FAILED_DEPENDENCY, "IN_DOUBT", Some(Happened::Unknown), detail)
}

/// The answer to a request that was answered before. Nothing is run, so the client may go away at any time.
async fn replayed(gateway: &Gateway, sent: &Sent<'_>, asked: Asked, receipts: &Receipts) -> Option<Response> {
    let (receipt, known) = gateway.replays.find(sent).await?;
    let record = Arc::clone(receipt.record());
    let span = telemetry::call_span(CallSurface::Gateway, headers::only(sent.headers, "traceparent"));
    span.in_scope(|| {
        telemetry::ended(CallSurface::Gateway, &Ok(receipt), asked.elapsed(), Some(&gateway.metrics));
    });
    let delivery = Delivery::new(sent.tenant, &gateway.readers, &record, asked, receipts);
    Some(delivery.attach(known.response()))
}

async fn read(upstream: &Upstream, body: Body, most: usize) -> Result<Payload, Response> {
    let most = upstream.max_request.min(u64::try_from(most).unwrap_or(u64::MAX));
    Payload::read(body, most).await.map_err(|unread| match unread {
        Unread::TooLarge(max) => {
            let detail = format!(
                "the body is longer than {max} bytes, so nothing was sent; raise max_request of [upstream.{}], or \
                 max_body of the server or tenant",
                upstream.name
            );
            reply::refusal(StatusCode::PAYLOAD_TOO_LARGE, "INVALID_INPUT", None, &detail)
        }
        Unread::Broken(why) => {
            let detail = format!("the body could not be read, so nothing was sent: {why}");
            reply::refusal(StatusCode::BAD_REQUEST, "INVALID_INPUT", None, &detail)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::without_dots;

    #[test]
    fn a_path_has_no_dot_segments() {
        for (path, expected) in [
            ("/v1/charges", "/v1/charges"),
            ("/v1//charges/", "/v1//charges/"),
            ("/", "/"),
            ("/v1/oauth2/token/../../v2/orders", "/v1/v2/orders"),
            ("/a/%2e%2E/b", "/b"),
            ("/a/./b/.", "/a/b/"),
            ("/../../a/..", "/"),
            ("/a/...", "/a/..."),
            ("/a/.b", "/a/.b"),
        ] {
            assert_eq!(without_dots(path), expected, "{path}");
        }
    }
}
