//! Connections to the server, and what its replies mean.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::rt::{Read, Write};
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use onceward::StoreError;
use onceward::wire::{self, Message, Problem};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout_at;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::clock::{Sent, ServerClock};
use super::options::{Endpoint, HttpOptions, Security, bracketed};
use super::refusal::{self, SendError, Server};
use super::tls;

/// The first and the longest pause between two tries.
pub(super) const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));
/// How long to try to connect.
pub(super) const CONNECT: Duration = Duration::from_secs(2);
/// How many connections are kept for later.
pub(super) const MAX_IDLE: usize = 64;

type Sender = SendRequest<Full<Bytes>>;

/// The connections to one server, all driven by one runtime.
pub(super) struct Link {
    endpoint: Endpoint,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    headers: HeaderMap,
    /// The path of every request, up to its name.
    root: String,
    /// The server's address, for messages.
    pub(super) shown: String,
    pub(super) timeout: Duration,
    pub(super) clock: Arc<ServerClock>,
    idle: Mutex<Vec<Sender>>,
}

/// Why a write has no result.
pub(super) enum Unanswered {
    /// The store or the server says so.
    Error(StoreError),
    /// It may have been carried out.
    Lost(String),
}

impl Link {
    pub(super) fn new(options: &HttpOptions, clock: Arc<ServerClock>) -> Result<Self, StoreError> {
        let unusable = |what: &str| StoreError::Unusable { what: what.to_owned() };
        let (host, prefix, tls) = match &options.endpoint {
            Endpoint::Unix { .. } => ("localhost".to_owned(), "", None),
            Endpoint::Tcp { host, port, prefix, security } => {
                let tls = match security {
                    Security::Plain => None,
                    Security::Tls { ca } => {
                        let name = ServerName::try_from(host.clone()).map_err(|_| {
                            unusable("the host of the ledger's URL is not a name or an address")
                        })?;
                        Some((tls::connector(ca.as_deref())?, name))
                    }
                };
                (format!("{}:{port}", bracketed(host)), prefix.as_str(), tls)
            }
        };
        let mut headers = HeaderMap::new();
        let host = HeaderValue::try_from(host).map_err(|_| unusable("the ledger's host is not valid"))?;
        headers.insert(HOST, host);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(wire::CONTENT_TYPE));
        headers.insert(wire::VERSION_HEADER, HeaderValue::from_static(wire::VERSION));
        if let Some(token) = options.token() {
            let mut token = HeaderValue::try_from(format!("Bearer {}", token.0))
                .map_err(|_| unusable("the token of the ledger's server contains control characters"))?;
            token.set_sensitive(true);
            headers.insert(AUTHORIZATION, token);
        }
        Ok(Self {
            endpoint: options.endpoint.clone(),
            tls,
            headers,
            root: format!("{prefix}{}", wire::ROOT),
            shown: options.shown(),
            timeout: options.timeout,
            clock,
            idle: Mutex::default(),
        })
    }

    /// Names the ledger in every request from now on.
    pub(super) fn bind_to(&mut self, mark: &str) -> Result<(), StoreError> {
        let mark = HeaderValue::try_from(mark).map_err(|_| StoreError::Unusable {
            what: format!("the server at {} has a ledger without a valid name", self.shown),
        })?;
        self.headers.insert(wire::LEDGER_HEADER, mark);
        Ok(())
    }

    /// The same server, with connections of its own.
    pub(super) fn another(&self) -> Self {
        Self {
            endpoint: self.endpoint.clone(),
            tls: self.tls.clone(),
            headers: self.headers.clone(),
            root: self.root.clone(),
            shown: self.shown.clone(),
            timeout: self.timeout,
            clock: Arc::clone(&self.clock),
            idle: Mutex::default(),
        }
    }

    /// Where the server is.
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The head of a request with a body of this length, as it is sent.
    pub(super) fn head(&self, name: &str, length: usize) -> Vec<u8> {
        let mut head = Vec::with_capacity(512);
        head.extend_from_slice(format!("POST {}{name} HTTP/1.1\r\n", self.root).as_bytes());
        for (name, value) in &self.headers {
            for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                head.extend_from_slice(part);
            }
        }
        head.extend_from_slice(format!("content-length: {length}\r\n\r\n").as_bytes());
        head
    }

    /// When a call that begins now must have ended.
    pub(super) fn until(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// Sends a request that changes nothing, as often as needed.
    pub(super) async fn read<R: Message>(
        &self,
        name: &str,
        body: Bytes,
        until: Instant,
    ) -> Result<R, StoreError> {
        let (mut pause, mut said) = (PAUSES.0, None);
        loop {
            let why = match self.send(name, body.clone(), until).await {
                Ok(bytes) => return self.decode(&bytes),
                Err(SendError::Final(error)) => return Err(error),
                Err(SendError::NotSent(why) | SendError::MaybeSent(why)) => reason(&mut said, why, until),
            };
            self.pause(&mut pause, until).await.map_err(|()| self.unavailable(&why))?;
        }
    }

    /// Sends a request that changes something. If it certainly did not arrive, it is sent again.
    pub(super) async fn write<R: Message>(
        &self,
        name: &str,
        body: &Bytes,
        until: Instant,
    ) -> Result<R, Unanswered> {
        let (mut pause, mut said) = (PAUSES.0, None);
        loop {
            let why = match self.send(name, body.clone(), until).await {
                Ok(bytes) => return self.decode(&bytes).map_err(Unanswered::Error),
                Err(SendError::Final(error)) => return Err(Unanswered::Error(error)),
                Err(SendError::MaybeSent(why)) => return Err(Unanswered::Lost(why)),
                Err(SendError::NotSent(why)) => reason(&mut said, why, until),
            };
            let over = |()| Unanswered::Error(self.unavailable(&why));
            self.pause(&mut pause, until).await.map_err(over)?;
        }
    }

    /// The error for a server that could not be reached in time.
    pub(super) fn unavailable(&self, why: &str) -> StoreError {
        StoreError::unavailable(format!(
            "the ledger's server at {} cannot be used: {why}. Check that `once serve` is running there",
            self.shown
        ))
    }

    async fn pause(&self, pause: &mut Duration, until: Instant) -> Result<(), ()> {
        if Instant::now() + *pause >= until {
            return Err(());
        }
        tokio::time::sleep(*pause).await;
        *pause = (*pause * 2).min(PAUSES.1);
        Ok(())
    }

    pub(super) fn decode<R: Message>(&self, bytes: &[u8]) -> Result<R, StoreError> {
        wire::decode(bytes).map_err(|error| StoreError::Unusable {
            what: format!("the reply of the ledger's server at {} cannot be read: {error}", self.shown),
        })
    }

    /// Sends a request once, and returns the message of its reply.
    async fn send(&self, name: &str, body: Bytes, until: Instant) -> Result<Bytes, SendError> {
        let mut sender = self.sender(until).await?;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = hyper::Method::POST;
        *request.uri_mut() = format!("{}{name}", self.root)
            .parse()
            .map_err(|_| SendError::Final(StoreError::unavailable("the path of the request is not valid")))?;
        request.headers_mut().clone_from(&self.headers);
        let sent = Sent::now();
        let answered = timeout_at(until.into(), async {
            let response = sender.try_send_request(request).await.map_err(|mut error| {
                let unsent = error.take_message().is_some();
                let why = words(error.error());
                if unsent { SendError::NotSent(why) } else { SendError::MaybeSent(why) }
            })?;
            let (head, body) = response.into_parts();
            let body = body.collect().await.map_err(|error| SendError::MaybeSent(words(&error)))?;
            Ok(Response::from_parts(head, body.to_bytes()))
        });
        let response =
            answered.await.map_err(|_| SendError::MaybeSent("it did not answer in time".to_owned()))??;
        self.keep(sender);
        self.interpret(response, sent)
    }

    /// The message of a reply, or what its error means.
    pub(super) fn interpret(&self, response: Response<Bytes>, sent: Sent) -> Result<Bytes, SendError> {
        let headers = response.headers();
        if let Some(now_ms) = number(headers.get(wire::NOW_HEADER)) {
            self.clock.read(now_ms, sent);
        }
        let version = headers.get(wire::VERSION_HEADER).map(HeaderValue::as_bytes);
        let status = response.status();
        if status == StatusCode::OK && version == Some(wire::VERSION.as_bytes()) {
            return Ok(response.into_body());
        }
        let problem: Option<Problem> = serde_json::from_slice(response.body()).ok();
        let server = Server { at: &self.shown, got_token: self.headers.contains_key(AUTHORIZATION) };
        Err(refusal::explain(&server, status, version, problem))
    }

    fn keep(&self, sender: Sender) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push(sender);
        }
    }

    /// A connection that can send: an idle one, or a new one.
    async fn sender(&self, until: Instant) -> Result<Sender, SendError> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(mut sender) = idle else { break };
            if !sender.is_closed() && sender.ready().await.is_ok() {
                return Ok(sender);
            }
        }
        let connect_until = until.min(Instant::now() + CONNECT);
        match timeout_at(connect_until.into(), self.connect()).await {
            // TLS: the certificate will not change while this call waits.
            Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                Err(SendError::Final(StoreError::unavailable(format!(
                    "the ledger's server at {} cannot be used: {}",
                    self.shown,
                    tls::explain(&error)
                ))))
            }
            Ok(connected) => connected.map_err(|error| SendError::NotSent(error.to_string())),
            Err(_) => Err(SendError::NotSent("it does not accept connections".to_owned())),
        }
    }

    async fn connect(&self) -> io::Result<Sender> {
        match &self.endpoint {
            Endpoint::Unix { path } => handshake(TokioIo::new(UnixStream::connect(path).await?)).await,
            Endpoint::Tcp { host, port, .. } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                match &self.tls {
                    None => handshake(TokioIo::new(stream)).await,
                    Some((connector, name)) => {
                        handshake(TokioIo::new(connector.connect(name.clone(), stream).await?)).await
                    }
                }
            }
        }
    }
}

async fn handshake(stream: impl Read + Write + Send + Unpin + 'static) -> io::Result<Sender> {
    let (sender, connection) = http1::handshake(stream).await.map_err(io::Error::other)?;
    // The error of a connection is that of its requests.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

/// The reason to give when the time is over: what the server said last, rather than that the last try came too late.
fn reason(said: &mut Option<String>, why: String, until: Instant) -> String {
    if Instant::now() >= until
        && let Some(said) = said.take()
    {
        return said;
    }
    *said = Some(why.clone());
    why
}

/// An error and its causes, in words.
fn words(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error} ({cause})"),
        None => error.to_string(),
    }
}

fn number(value: Option<&HeaderValue>) -> Option<i64> {
    value?.to_str().ok()?.parse().ok()
}
