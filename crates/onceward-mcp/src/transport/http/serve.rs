//! Accepts connections, limits them, and shuts them down.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use onceward_http::Reach;
use onceward_http::connections::{Connections, Link, RequestBody, ResponseBody};
use onceward_http::socket::Shared;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, watch};
use tokio::task::JoinSet;

use super::gate::Gate;

/// How long answers have to be sent after all calls have ended.
const GRACE: Duration = Duration::from_secs(1);
/// The read buffer of a connection, which also limits the head of a request.
const BUFFER: usize = 64 * 1024;
/// The pause after a connection could not be accepted, for example for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves connections until `shutdown` resolves. Then it accepts no more, waits for the calls in flight as long as
/// the gate's options allow, and closes the rest.
///
/// ```
/// use std::sync::Arc;
///
/// use onceward::{Ledger, ManualClock, MemoryStore};
/// use onceward_mcp::http::{Gate, Limits, Remote, serve};
/// use onceward_mcp::{HostScope, Options};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0))));
/// let remote = Remote::new("http://127.0.0.1:3000/mcp")?;
/// let options = Options::new("shop", remote.identity(), HostScope::connection());
/// let runtime = tokio::runtime::Handle::current();
/// let gate = Gate::new(ledger, options, remote, Limits::default(), runtime);
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
/// // Usually a signal. This one ends the server at once.
/// let shutdown = std::future::ready(());
/// serve(listener, gate, shutdown).await;
/// # Ok(())
/// # })
/// # }
/// ```
pub async fn serve(listener: TcpListener, gate: Arc<Gate>, shutdown: impl Future<Output = ()>) {
    // If the address is unknown, browsers are not trusted either.
    let reach = listener.local_addr().map_or(Reach::Loopback, |address| Reach::of(address.ip()));
    let room = Arc::new(Semaphore::new(gate.limits().transport.connections));
    let links = Arc::new(Connections::default());
    let (stop, stopping) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                gate.state.notice(&format!("a connection could not be accepted: {error}"));
                // The process may be out of file descriptors.
                links.close_one();
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let permit = tokio::select! {
            permit = connection_permit(&room, &links) => permit,
            () = &mut shutdown => break,
        };
        let (gate, stopping, slot) = (Arc::clone(&gate), stopping.clone(), links.add());
        connections.spawn(async move {
            tokio::select! {
                () = connection(stream, gate, reach, &slot.link, stopping) => {}
                () = slot.link.closing() => {}
            }
            drop(permit);
        });
        while connections.try_join_next().is_some() {}
    }
    drop((listener, stop));
    gate.drain().await;
    let all = async { while connections.join_next().await.is_some() {} };
    match tokio::time::timeout(GRACE, all).await {
        // What remains are endless streams, and clients that do not read.
        Ok(()) | Err(_) => connections.abort_all(),
    }
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

async fn connection(
    stream: TcpStream,
    gate: Arc<Gate>,
    reach: Reach,
    link: &Arc<Link>,
    mut stopping: watch::Receiver<()>,
) {
    // Without this, small events are delayed.
    match stream.set_nodelay(true) {
        Ok(()) | Err(_) => {}
    }
    let stream = Shared::new(stream);
    let peer = stream.peer();
    let patience = Duration::from_millis(gate.limits().transport.header_ms);
    let service = service_fn(move |request: Request<Incoming>| {
        let (gate, exchange, peer) = (Arc::clone(&gate), link.exchange(), peer.clone());
        async move {
            let mut request = request.map(|body| RequestBody::new(body, &exchange));
            request.extensions_mut().insert(peer);
            let response = gate.handle(request, reach).await;
            Ok::<_, Infallible>(response.map(|body| ResponseBody::new(body, &exchange)))
        }
    });
    let mut builder = http1::Builder::new();
    let connection = builder
        .timer(TokioTimer::new())
        .header_read_timeout(patience)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stopping.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    match ended {
        // The code that answers a client notices if it is gone.
        Ok(()) | Err(_) => {}
    }
}
