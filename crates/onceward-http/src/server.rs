//! Listeners, connections, limits and shutdown.
//!
//! # Layout
//! - `listener`: TCP and Unix sockets, with or without TLS. `unix`: the socket file. `tls`: certificates.
//! - `admission`: who calls. `connection`: one connection, of HTTP/1.1 or HTTP/2. `resets`: whether its client reset
//!   it.

mod admission;
mod connection;
mod listener;
mod resets;
mod tls;
mod unix;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::any;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, watch};
use tokio::task::JoinSet;

pub use listener::Listener;
pub use tls::{Tls, TlsError};
pub use unix::UnixSocket;

use crate::App;
use crate::connections::Connections;
use crate::gateway::Entrance;
use crate::{api, gateway, inbox, observe, problem};
use connection::{Answers, Service};

/// How long requests in flight may take after `shutdown`, unless the configuration says otherwise.
pub const DRAIN: Duration = Duration::from_secs(30);
/// The pause after a connection could not be accepted, for example for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Everything the server answers.
pub fn router(app: Arc<App>) -> Router {
    gateway::entered(Arc::clone(&app.gateway), Entrance::Shared, routes(app))
}

fn routes(app: Arc<App>) -> Router {
    let api = api::router().layer(from_fn_with_state(Arc::clone(&app), admission::admit_api));
    Router::new()
        .merge(observe::router(&app))
        .merge(api::document())
        .merge(api)
        .merge(upstreams())
        .merge(inbox::router(Arc::clone(&app.inbox)))
        .fallback(async || {
            problem::refusal(
                StatusCode::NOT_FOUND,
                "NOT_FOUND",
                "there is nothing at this path; nothing was run",
            )
        })
        .method_not_allowed_fallback(async || {
            let message = "this path does not have that method; nothing was run";
            problem::refusal(StatusCode::METHOD_NOT_ALLOWED, "INVALID_INPUT", message)
        })
        .with_state(app)
}

/// `/gw/UPSTREAM/…`: the paths for which [`gateway::has`] holds.
fn upstreams() -> Router<Arc<App>> {
    let routed = async |State(app): State<Arc<App>>, request| admission::to_upstream(&app, request).await;
    let paths = ["/gw/{upstream}", "/gw/{upstream}/", "/gw/{upstream}/{*path}"];
    paths.into_iter().fold(Router::new(), |router, path| router.route(path, any(routed)))
}

/// Everything that one upstream answers on a port of its own. `None` if there is no such upstream.
pub fn upstream_router(app: &Arc<App>, name: &str) -> Option<Router> {
    let entrance = Entrance::of(&app.gateway, name)?;
    Some(gateway::entered(Arc::clone(&app.gateway), entrance, routes(Arc::clone(app))))
}

/// Serves connections until `shutdown` resolves, then lets the requests in flight end.
///
/// # Errors
/// If the listener has no address.
pub async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    serve_all(vec![Listener::tcp(listener, None)?], app, DRAIN, shutdown).await;
    Ok(())
}

/// Serves the connections of all listeners until `shutdown` resolves. Then it accepts no more, waits for the requests
/// and calls in flight for at most `drain`, and closes the rest.
///
/// ```
/// use std::sync::Arc;
/// use onceward::{ManualClock, MemoryStore};
/// use onceward_http::server::{DRAIN, Listener, serve_all};
/// use onceward_http::{App, Config};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let app = App::new(Arc::new(MemoryStore::new(ManualClock::at(0))), Config::default())?;
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
/// // Usually a signal. This one ends the server at once.
/// let shutdown = std::future::ready(());
/// serve_all(vec![Listener::tcp(listener, None)?], app, DRAIN, shutdown).await;
/// # Ok(())
/// # }
/// ```
pub async fn serve_all(
    listeners: Vec<Listener>,
    app: Arc<App>,
    drain: Duration,
    shutdown: impl Future<Output = ()>,
) {
    let room = Arc::new(Semaphore::new(app.limits().connections));
    let links = Arc::new(Connections::default());
    let (stop, stopping) = watch::channel(());
    let hosts = app.gateway.hosts();
    let answers = |entrance| Answers { entrance, routes: routes(Arc::clone(&app)), app: Arc::clone(&app) };
    let service = Service::new(answers(Entrance::Shared), app.limits(), Arc::clone(&hosts));
    let mut accepting = JoinSet::new();
    for listener in listeners {
        let (room, links, stopping) = (Arc::clone(&room), Arc::clone(&links), stopping.clone());
        let own = listener.upstream.as_deref().and_then(|name| Entrance::of(&app.gateway, name));
        let service = match own {
            Some(entrance) => Service::new(answers(entrance), app.limits(), Arc::clone(&hosts)),
            None => service.clone(),
        };
        accepting.spawn(accept(listener, service, room, links, stopping));
    }
    drop(stopping);
    let mut checks = JoinSet::new();
    checks.spawn(gateway::resume(Arc::clone(&app.gateway), app.tenants.all()));
    checks.spawn(inbox::run(Arc::clone(&app.inbox)));
    pin!(shutdown).await;
    drop((stop, checks));
    let all = async {
        while accepting.join_next().await.is_some() {}
        app.tasks.idle().await;
    };
    match tokio::time::timeout(drain, all).await {
        // What remains are endless streams, clients that do not read, and calls that are in doubt from now on.
        Ok(()) | Err(_) => accepting.abort_all(),
    }
}

/// Accepts the connections of one listener until `stopping` closes, then waits for them.
async fn accept(
    listener: Listener,
    service: Service,
    room: Arc<Semaphore>,
    links: Arc<Connections>,
    mut stopping: watch::Receiver<()>,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.changed() => break,
        };
        let Ok(stream) = accepted else {
            // The process may be out of file descriptors.
            links.close_one();
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let permit = tokio::select! {
            permit = connection_permit(&room, &links) => permit,
            _ = stopping.changed() => break,
        };
        let (service, stopping, slot) = (service.clone(), stopping.clone(), links.add());
        connections.spawn(async move {
            tokio::select! {
                () = service.connection(stream, &slot.link, stopping) => {}
                () = slot.link.closing() => {}
                () = slot.link.idle(service.patience()) => {}
            }
            drop(permit);
        });
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// A permit for one more connection. If there is none, a connection with a silent client is closed.
async fn connection_permit(room: &Arc<Semaphore>, links: &Connections) -> Option<OwnedSemaphorePermit> {
    loop {
        match Arc::clone(room).try_acquire_owned() {
            Ok(permit) => return Some(permit),
            Err(TryAcquireError::Closed) => return None,
            Err(TryAcquireError::NoPermits) => links.close_one(),
        }
        // If all are busy, one may become silent a little later.
        if let Ok(permit) = tokio::time::timeout(PAUSE, Arc::clone(room).acquire_owned()).await {
            return permit.ok();
        }
    }
}
