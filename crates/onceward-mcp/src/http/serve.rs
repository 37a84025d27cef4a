//! Connections: how many, how long they may be silent, and how they end.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::gate::{Gate, Reach};

/// How long answers have to leave when all calls have ended.
const GRACE: Duration = Duration::from_secs(1);
/// How long to wait when no connection can be taken, for want of files.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves whoever connects, until `shutdown`; then takes no more, lets the calls under way end for as long as the
/// gate's options say, and closes what is left.
pub async fn serve(listener: TcpListener, gate: Arc<Gate>, shutdown: impl Future<Output = ()>) {
    // Where the address is not known, browsers are not trusted either.
    let reach = listener.local_addr().map_or(Reach::Loopback, |address| Reach::of(address.ip()));
    let room = Arc::new(Semaphore::new(gate.limits().connections));
    let (stop, stopping) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let permit = tokio::select! {
            permit = Arc::clone(&room).acquire_owned() => permit,
            () = &mut shutdown => break,
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let (gate, stopping) = (Arc::clone(&gate), stopping.clone());
                connections.spawn(async move {
                    connection(stream, gate, reach, stopping).await;
                    drop(permit);
                });
            }
            Err(error) => {
                gate.notice(&format!("a connection could not be taken: {error}"));
                tokio::time::sleep(PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
    drop((listener, stop));
    gate.drain().await;
    let all = async { while connections.join_next().await.is_some() {} };
    match tokio::time::timeout(GRACE, all).await {
        // What is left are streams without an end, and clients that do not read.
        Ok(()) | Err(_) => connections.abort_all(),
    }
}

async fn connection(stream: TcpStream, gate: Arc<Gate>, reach: Reach, mut stopping: watch::Receiver<()>) {
    // Without it, small events wait for each other.
    match stream.set_nodelay(true) {
        Ok(()) | Err(_) => {}
    }
    let patience = Duration::from_millis(gate.limits().header_ms);
    let service = service_fn(move |request| {
        let gate = Arc::clone(&gate);
        async move { Ok::<_, Infallible>(gate.handle(request, reach).await) }
    });
    let mut builder = http1::Builder::new();
    let connection = builder
        .timer(TokioTimer::new())
        .header_read_timeout(patience)
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
        // A client that is gone is seen by those who answer it.
        Ok(()) | Err(_) => {}
    }
}
