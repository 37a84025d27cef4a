//! Connections on which nothing was sent before.
//!
//! A request that must not be in doubt needs a connection of its own. To open one takes a round trip, and several with
//! TLS. So when a server has answered, a connection is opened for the next request. It is closed if none comes soon,
//! long before servers close silent connections.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{self, HeaderValue};
use hyper::http::uri::{Authority, Scheme};
use hyper::{Request, Response, Uri, Version};
use tower::ServiceExt;

use super::{Body, CONNECT_PATIENCE, Connector, SendError, in_words};

/// How long a connection waits for a request.
const LIFE: Duration = Duration::from_secs(2);
/// The most connections that wait for requests.
const MOST: usize = 16;

/// Opens connections, each for one request.
pub(super) struct Fresh {
    all: Arc<Opener>,
    host: HeaderValue,
}

struct Opener {
    connector: Connector,
    address: Uri,
    spares: Mutex<Vec<Spare>>,
    /// How many connections wait for requests or are being opened.
    count: AtomicUsize,
}

/// A connection that waits for a request.
struct Spare {
    sender: SendRequest<Body>,
    number: usize,
}

/// Whether a request has a connection. A request without one was not sent.
#[derive(Debug, Clone, Default)]
pub(super) struct Connected(Arc<AtomicBool>);

impl Connected {
    pub(super) fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self, is_connected: bool) {
        self.0.store(is_connected, Ordering::Release);
    }
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
        let (spares, count) = (Mutex::default(), AtomicUsize::new(0));
        let all = Arc::new(Opener { connector, address: address.clone(), spares, count });
        Some(Self { all, host: HeaderValue::try_from(host).ok()? })
    }

    /// Sends a request on a connection of its own.
    pub(super) async fn send(&self, mut request: Request<Body>) -> Result<Response<Incoming>, SendError> {
        let connected = request.extensions_mut().remove::<Connected>().unwrap_or_default();
        if let Some(path) = request.uri().path_and_query().cloned() {
            *request.uri_mut() = Uri::from(path);
        }
        request.headers_mut().entry(header::HOST).or_insert_with(|| self.host.clone());
        loop {
            let spare = self.all.take();
            let is_spare = spare.is_some();
            let mut sender = match spare {
                Some(sender) => sender,
                None => self.all.open().await.map_err(SendError::NotSent)?,
            };
            connected.set(true);
            let mut error = match sender.try_send_request(request).await {
                Ok(response) => {
                    if keeps_open(&response) {
                        self.all.open_another();
                    }
                    return Ok(response);
                }
                Err(error) => error,
            };
            match error.take_message() {
                // The server closed the connection before it was used.
                Some(unsent) if is_spare => {
                    connected.set(false);
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
    fn spares(&self) -> MutexGuard<'_, Vec<Spare>> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest connection that waits.
    fn take(&self) -> Option<SendRequest<Body>> {
        let mut spares = self.spares();
        while let Some(spare) = spares.pop() {
            self.count.fetch_sub(1, Ordering::Relaxed);
            if !spare.sender.is_closed() {
                return Some(spare.sender);
            }
        }
        None
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
        if self.count.fetch_add(1, Ordering::Relaxed) >= MOST {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let all = Arc::clone(self);
        tokio::spawn(async move {
            let opened = tokio::time::timeout(CONNECT_PATIENCE, all.open()).await;
            let Ok(Ok(sender)) = opened else {
                // The next request opens its own, and reports the failure.
                all.count.fetch_sub(1, Ordering::Relaxed);
                return;
            };
            let number = all.put(sender);
            tokio::time::sleep(LIFE).await;
            all.close(number);
        });
    }

    fn put(&self, sender: SendRequest<Body>) -> usize {
        static NUMBERS: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        self.spares().push(Spare { sender, number });
        number
    }

    /// Closes a connection that no request has used.
    fn close(&self, number: usize) {
        let mut spares = self.spares();
        if let Some(place) = spares.iter().position(|spare| spare.number == number) {
            drop(spares.swap_remove(place));
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::{HeaderMap, Method};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use crate::client::{Connection, Remote, full};

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
        while remote.fresh.all.spares().is_empty() {
            tokio::task::yield_now().await;
        }
        assert!(is_over(&mut first).await, "nothing else is sent on the first");
        let _ = tokio::join!(send(), serve(&mut second, ""));
        // One that the server closes before it is used does not count.
        drop(accept().await);
        let is_closed = || remote.fresh.all.spares().iter().any(|spare| spare.sender.is_closed());
        while !is_closed() {
            tokio::task::yield_now().await;
        }
        let _ = tokio::join!(send(), async {
            let mut stream = accept().await;
            serve(&mut stream, "connection: close\r\n").await;
        });
        let left = remote.fresh.all.count.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(left, 0, "this server does not expect silent connections");
    }
}
