//! Connections on which nothing was sent before, and connections for requests that may be sent twice.
//!
//! A request that must not be in doubt needs a connection of its own. To open one takes a round trip, and several with
//! TLS. So when a server has answered, a connection is opened for the next request. It is closed if none comes soon,
//! long before servers close silent connections. A request that may be sent twice takes a connection that was used
//! before: if the server has just closed it, the request is sent again.
//!
//! - `pool`: connections that wait.

mod pool;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{self, HeaderValue};
use hyper::http::uri::{Authority, Scheme};
use hyper::{Request, Response, Uri, Version};
use tower::ServiceExt;

use super::{Body, CONNECT_PATIENCE, Caller, Connector, IDLE, SendError, in_words};
use pool::{Pool, Take};

/// How long a connection waits for a request.
const LIFE: Duration = Duration::from_secs(2);
/// The most connections that wait for requests.
const MOST: usize = 16;
/// The most connections that wait to be used again.
const MOST_USED: usize = 64;

/// Opens connections, each for one request.
pub(super) struct Fresh {
    all: Arc<Opener>,
    host: HeaderValue,
}

struct Opener {
    connector: Connector,
    address: Uri,
    /// Connections on which nothing was sent.
    spares: Arc<Pool>,
    /// How many of them are being opened.
    opening: AtomicUsize,
    /// Connections that can be used again.
    used: Arc<Pool>,
}

/// Whether a request has a connection, and whether that was used before. A request without one was not sent.
#[derive(Debug, Clone, Default)]
pub(super) struct Connected(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    is_connected: AtomicBool,
    is_reused: AtomicBool,
}

impl Connected {
    pub(super) fn get(&self) -> bool {
        self.0.is_connected.load(Ordering::Acquire)
    }

    pub(super) fn is_reused(&self) -> bool {
        self.0.is_reused.load(Ordering::Acquire)
    }

    fn set(&self, by: Option<Origin>) {
        self.0.is_reused.store(by == Some(Origin::Used), Ordering::Release);
        self.0.is_connected.store(by.is_some(), Ordering::Release);
    }
}

/// Where a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    New,
    /// It was opened beforehand.
    Spare,
    /// Other requests were sent on it.
    Used,
}

/// Whether a connection may be one that was used before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reuse {
    Allowed,
    Forbidden,
}

impl Fresh {
    pub(super) fn new(
        connector: Connector,
        address: &Uri,
        scheme: &Scheme,
        authority: &Authority,
    ) -> Option<Self> {
        let usual = if *scheme == Scheme::HTTPS { 443 } else { 80 };
        let host = match authority.port_u16() {
            Some(port) if port != usual => format!("{}:{port}", authority.host()),
            Some(_) | None => authority.host().to_owned(),
        };
        let (spares, used) = (Pool::new(LIFE, MOST), Pool::new(IDLE, MOST_USED));
        let (address, opening) = (address.clone(), AtomicUsize::new(0));
        let all = Arc::new(Opener { connector, address, spares, opening, used });
        Some(Self { all, host: HeaderValue::try_from(host).ok()? })
    }

    /// Sends a request: on a connection of its own, or on one that is used again.
    pub(super) async fn send(
        &self,
        mut request: Request<Body>,
        reuse: Reuse,
    ) -> Result<Response<Incoming>, SendError> {
        let connected = request.extensions_mut().remove::<Connected>().unwrap_or_default();
        let caller = request.extensions_mut().remove::<Caller>().unwrap_or_default();
        if let Some(path) = request.uri().path_and_query().cloned() {
            *request.uri_mut() = Uri::from(path);
        }
        request.headers_mut().entry(header::HOST).or_insert_with(|| self.host.clone());
        loop {
            let (mut sender, origin) = match self.all.take(reuse, &caller) {
                Some(found) => found,
                // Boxed, so that the future of a request with a connection is small.
                None => (Box::pin(self.all.open()).await.map_err(SendError::NotSent)?, Origin::New),
            };
            connected.set(Some(origin));
            let mut error = match sender.try_send_request(request).await {
                Ok(response) => {
                    match reuse {
                        Reuse::Allowed if keeps_open(&response) => self.all.used.put(sender, caller),
                        Reuse::Forbidden if keeps_open(&response) => self.all.open_another(),
                        Reuse::Allowed | Reuse::Forbidden => {}
                    }
                    return Ok(response);
                }
                Err(error) => error,
            };
            match error.take_message() {
                // The server closed the connection before this request was sent on it.
                Some(unsent) if origin != Origin::New => {
                    connected.set(None);
                    request = unsent;
                }
                Some(_) => return Err(SendError::NotSent(in_words(error.error()))),
                None => return Err(SendError::MaybeSent(in_words(error.error()))),
            }
        }
    }
}

/// Whether the server expects connections on which nothing is sent for a while.
fn keeps_open(response: &Response<Incoming>) -> bool {
    let closes = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"close");
    response.version() == Version::HTTP_11
        && !response.headers().get_all(header::CONNECTION).iter().any(closes)
}

impl Opener {
    /// A connection that waits: one that was used before, if it may be, or one that was not.
    fn take(&self, reuse: Reuse, caller: &Caller) -> Option<(SendRequest<Body>, Origin)> {
        let used = match reuse {
            Reuse::Allowed => self.used.take(Take::Ready(caller)),
            Reuse::Forbidden => None,
        };
        let spare = || Some((self.spares.take(Take::Any)?, Origin::Spare));
        used.map(|used| (used, Origin::Used)).or_else(spare)
    }

    async fn open(&self) -> Result<SendRequest<Body>, String> {
        let stream = self.connector.clone().oneshot(self.address.clone()).await;
        let stream = stream.map_err(|error| in_words(&*error))?;
        let (sender, connection) = http1::handshake(stream).await.map_err(|error| in_words(&error))?;
        // The error of a connection is that of its request.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    /// Opens a connection for the next request.
    fn open_another(self: &Arc<Self>) {
        if self.opening.fetch_add(1, Ordering::Relaxed) + self.spares.len() >= MOST {
            self.opening.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let all = Arc::clone(self);
        tokio::spawn(async move {
            let opened = tokio::time::timeout(CONNECT_PATIENCE, all.open()).await;
            // If it failed, the next request opens its own, and reports the failure.
            if let Ok(Ok(sender)) = opened {
                all.spares.put(sender, Caller::default());
            }
            all.opening.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

#[cfg(test)]
mod tests {
    use hyper::{HeaderMap, Method};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use http_body_util::BodyExt;

    use crate::client::{Caller, Connection, Remote, SendError, Watch, full};

    /// Reads a request and answers it.
    async fn serve(stream: &mut TcpStream, more: &str) {
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n") {
            assert_ne!(stream.read_buf(&mut seen).await.unwrap(), 0, "it ended before its request");
        }
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{more}\r\n");
        stream.write_all(answer.as_bytes()).await.unwrap();
    }

    async fn is_over(stream: &mut TcpStream) -> bool {
        stream.read(&mut [0]).await.is_ok_and(|read| read == 0)
    }

    #[tokio::test]
    async fn a_connection_is_opened_before_its_request_and_has_no_other() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let remote = Remote::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let send = async || {
            let request = remote.request(Method::GET, "/x", HeaderMap::new(), full(""));
            remote.send(request, Connection::Fresh).await.unwrap()
        };
        let accept = async || listener.accept().await.unwrap().0;
        let (_, mut first) = tokio::join!(send(), async {
            let mut stream = accept().await;
            serve(&mut stream, "").await;
            stream
        });
        // The next one waits already.
        let mut second = accept().await;
        while remote.fresh.all.spares.len() == 0 {
            tokio::task::yield_now().await;
        }
        assert!(is_over(&mut first).await, "nothing else is sent on the first");
        let _ = tokio::join!(send(), serve(&mut second, ""));
        // One that the server closes before it is used does not count.
        drop(accept().await);
        while !remote.fresh.all.spares.has_closed() {
            tokio::task::yield_now().await;
        }
        let _ = tokio::join!(send(), async {
            let mut stream = accept().await;
            serve(&mut stream, "connection: close\r\n").await;
        });
        let opening = remote.fresh.all.opening.load(std::sync::atomic::Ordering::Relaxed);
        let left = opening + remote.fresh.all.spares.len();
        assert_eq!(left, 0, "this server does not expect silent connections");
    }

    #[tokio::test]
    async fn callers_do_not_share_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let remote = Remote::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let server = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    loop {
                        serve(&mut stream, "").await;
                    }
                });
            }
        });
        let mut reused = Vec::new();
        for caller in ["alice", "alice", "bob", "alice", "bob"] {
            let mut request = remote.request(Method::PUT, "/x", HeaderMap::new(), full(""));
            Caller::new(caller).sends(&mut request);
            let watch = Watch::of(&mut request);
            let answer = remote.send(request, Connection::Reused).await.unwrap();
            drop(answer.into_body().collect().await.unwrap());
            reused.push(watch.is_reused());
            // The connection notices the end of its answer in its own task.
            while !remote.fresh.all.used.is_ready() {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(reused, [false, true, false, true, true]);
        server.abort();
    }

    #[tokio::test]
    async fn a_request_that_may_be_sent_twice_uses_a_connection_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let remote = Remote::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let send = async || {
            let mut request = remote.request(Method::PUT, "/x", HeaderMap::new(), full(""));
            let watch = Watch::of(&mut request);
            let answer = remote.send(request, Connection::Reused).await;
            let is_answered = match answer {
                Ok(answer) => answer.into_body().collect().await.is_ok(),
                Err(SendError::NotSent(_) | SendError::MaybeSent(_)) => false,
            };
            (is_answered, watch.is_reused())
        };
        let (first, mut stream) = tokio::join!(send(), async {
            let (mut stream, _) = listener.accept().await.unwrap();
            serve(&mut stream, "").await;
            stream
        });
        assert_eq!(first, (true, false));
        let (second, ()) = tokio::join!(send(), serve(&mut stream, ""));
        assert_eq!(second, (true, true), "on the same connection");
        // The server reads the request and hangs up.
        let (third, ()) = tokio::join!(send(), async move {
            assert_ne!(stream.read(&mut [0; 1024]).await.unwrap(), 0);
        });
        assert_eq!(third, (false, true), "the caller may send the request again");
        let (fourth, _) = tokio::join!(send(), async {
            let (mut stream, _) = listener.accept().await.unwrap();
            serve(&mut stream, "").await;
            stream
        });
        assert_eq!(fourth, (true, false));
    }
}
