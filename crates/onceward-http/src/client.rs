//! The HTTP client for upstreams.
//!
//! - `fresh`: connections on which nothing was sent before, and those of requests that may be sent twice.

mod fresh;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::{HeaderMap, Method, Request, Response, Uri, header};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use onceward::InvalidInput;
use rustls::{ClientConfig, RootCertStore};
use tower::Service;

use fresh::{Connected, Fresh, Reuse};

/// How long connecting to an upstream may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(30);
/// How long an idle connection is kept. Most servers close theirs after five seconds.
const IDLE: Duration = Duration::from_secs(3);

/// A request or response body.
pub type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Broken>;

/// A body that broke off.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Broken(pub String);

/// Why there is no response.
#[derive(Debug)]
pub enum SendError {
    /// No byte was sent.
    NotSent(String),
    /// Some or all bytes may have been sent.
    MaybeSent(String),
}

/// Whether a connection may be reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connection {
    /// It may be one from the pool.
    Kept,
    /// No other request was sent on it. If the server closed one between two requests, the second would be in doubt.
    Fresh,
    /// It may be used again, because the request may be sent twice. If there is no response and [`Watch::is_reused`],
    /// the caller sends it once more.
    Reused,
}

/// Which addresses an upstream may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// All of them.
    Anywhere,
    /// Public ones. A name that resolves to a private, loopback or link-local address is refused.
    Public,
}

type Connector = HttpsConnector<HttpConnector<Resolver>>;

/// A server that is reached over HTTP or HTTPS.
pub struct Remote {
    address: Uri,
    scheme: Scheme,
    authority: Authority,
    kept: Client<Connector, Body>,
    fresh: Fresh,
}

impl Remote {
    /// The server at that URL, at any address.
    ///
    /// # Errors
    /// If it is not an `http` or `https` URL, or TLS cannot be set up.
    pub fn new(url: &str) -> Result<Self, InvalidInput> {
        Self::build(url, Reach::Anywhere, Protocols::Http1)
    }

    /// The server at that URL, at one of these addresses, with HTTP/2 for reads where it is offered. The address that
    /// is connected to is checked, so a name whose address changes later is refused as well.
    ///
    /// # Errors
    /// If it is not an `http` or `https` URL, its address is out of reach, or TLS cannot be set up.
    pub fn within(url: &str, reach: Reach) -> Result<Self, InvalidInput> {
        Self::build(url, reach, Protocols::All)
    }

    fn build(url: &str, reach: Reach, reads: Protocols) -> Result<Self, InvalidInput> {
        let wrong = |why: &str| {
            InvalidInput::new(format!("{:?} is not a server address: {why}", without_secrets(url)))
        };
        let address: Uri = url.parse().map_err(|error| wrong(&format!("{error}")))?;
        let scheme =
            address.scheme().cloned().ok_or_else(|| wrong("it must begin with http:// or https://"))?;
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
            return Err(wrong("it must begin with http:// or https://"));
        }
        let authority = address.authority().cloned().ok_or_else(|| wrong("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("it contains a password; clients send their own credentials"));
        }
        // An invalid port may be part of a password with a special character.
        if authority.port_u16().is_none() && authority.host().len() != authority.as_str().len() {
            return Err(InvalidInput::new("the server address has an invalid port"));
        }
        // The connector does not resolve a host that is an address, so it is checked here.
        let literal = authority.host().trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if reach == Reach::Public && literal.is_ok_and(is_private) {
            return Err(wrong("it is a private address; allow it with allow_private = true"));
        }
        let tls = tls(&scheme)?;
        let kept = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector(tls.clone(), reach, reads));
        let http1 = connector(tls, reach, Protocols::Http1);
        let fresh =
            Fresh::new(http1, &address, &scheme, &authority).ok_or_else(|| wrong("its host is not valid"))?;
        Ok(Self { kept, fresh, address, scheme, authority })
    }

    /// Whether that is an address of this server.
    #[must_use]
    pub fn is_at(&self, uri: &Uri) -> bool {
        uri.scheme() == Some(&self.scheme) && uri.authority() == Some(&self.authority)
    }

    /// The path and query of its URL.
    #[must_use]
    pub fn path(&self) -> &str {
        self.address.path_and_query().map_or("/", PathAndQuery::as_str)
    }

    /// The path and query of its URL for display. Query values are hidden, because they may be secrets.
    #[must_use]
    pub fn shown_path(&self) -> String {
        without_values(self.path())
    }

    /// Its URL for display, without secrets.
    #[must_use]
    pub fn shown(&self) -> String {
        format!("{}://{}{}", self.scheme, self.authority, self.shown_path())
    }

    /// What distinguishes it from other servers.
    #[must_use]
    pub fn identity(&self) -> String {
        self.address.to_string()
    }

    /// Its host name.
    #[must_use]
    pub fn host(&self) -> &str {
        self.authority.host()
    }

    /// A request to the server. The host of the headers is replaced by the server's own.
    pub fn request(&self, method: Method, path: &str, headers: HeaderMap, body: Body) -> Request<Body> {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.headers_mut() = headers;
        request.headers_mut().remove(header::HOST);
        let uri = Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone());
        // The path comes from a valid request, so this does not fail.
        *request.uri_mut() = uri.path_and_query(path).build().unwrap_or_else(|_| self.address.clone());
        request
    }

    /// Sends a request and returns the response head; the body is still to come. Redirects are not followed.
    ///
    /// # Errors
    /// Says whether any byte may have been sent.
    pub async fn send(
        &self,
        request: Request<Body>,
        connection: Connection,
    ) -> Result<Response<hyper::body::Incoming>, SendError> {
        match connection {
            Connection::Kept => self.kept.request(request).await.map_err(|error| {
                let words = in_words(&error);
                // The library retries a request only if no byte of it was sent.
                if error.is_connect() { SendError::NotSent(words) } else { SendError::MaybeSent(words) }
            }),
            Connection::Fresh => self.fresh.send(request, Reuse::Forbidden).await,
            Connection::Reused => self.fresh.send(request, Reuse::Allowed).await,
        }
    }
}

/// Whose request it is. Callers do not share a connection that is used again: a server that answers on it out of turn
/// would give one caller the answer of another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller(Option<Arc<str>>);

impl Caller {
    /// The caller that this text tells from all others.
    #[must_use]
    pub fn new(identity: &str) -> Self {
        Self(Some(Arc::from(identity)))
    }

    /// Makes this request one of the caller's.
    pub fn sends(&self, request: &mut Request<Body>) {
        request.extensions_mut().insert(self.clone());
    }
}

/// Notes whether a request on a fresh or reused connection got one.
pub struct Watch(Connected);

impl Watch {
    /// Watches this request.
    pub fn of(request: &mut Request<Body>) -> Self {
        let connected = Connected::default();
        request.extensions_mut().insert(connected.clone());
        Self(connected)
    }

    /// Whether there was a connection, with TLS where it is used. Before that, no byte of the request is sent.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.0.get()
    }

    /// Whether another request was sent on the connection before. The server may have closed it meanwhile.
    #[must_use]
    pub fn is_reused(&self) -> bool {
        self.0.is_reused()
    }
}

/// An invalid URL for display. The part before an `@` may be a password.
fn without_secrets(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    let rest = match rest.rsplit_once('@') {
        Some((_, rest)) => format!("…@{rest}"),
        None => rest.to_owned(),
    };
    let rest = without_values(&rest);
    if scheme.is_empty() { rest } else { format!("{scheme}://{rest}") }
}

/// A path with the values of its query hidden.
fn without_values(path: &str) -> String {
    let Some((path, query)) = path.split_once('?') else { return path.to_owned() };
    let names = query
        .split('&')
        .map(|pair| pair.split_once('=').map_or("…".to_owned(), |(name, _)| format!("{name}=…")));
    format!("{path}?{}", names.collect::<Vec<_>>().join("&"))
}

/// A complete body.
pub fn full(body: impl Into<Bytes>) -> Body {
    Body::new(Full::new(body.into()).map_err(|never| match never {}))
}

/// The error with all its sources.
pub fn in_words(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        words.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    words
}

/// Whether an address belongs to this machine or a private network, directly or inside an IPv6 address.
#[must_use]
pub fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_private_v4(address),
        IpAddr::V6(address) => {
            let parts = address.segments();
            let embedded = match parts {
                [0, 0, 0, 0, 0, 0xffff, _, _] | [0x64, 0xff9b, 0, 0, 0, 0, _, _] => {
                    Some((parts[6], parts[7]))
                }
                [0x2002, high, low, ..] => Some((high, low)),
                _ => None,
            };
            let embedded = embedded.map(|(high, low)| {
                let [a, b] = high.to_be_bytes();
                let [c, d] = low.to_be_bytes();
                Ipv4Addr::new(a, b, c, d)
            });
            embedded.is_some_and(is_private_v4) || is_private_v6(address)
        }
    }
}

fn is_private_v4(address: Ipv4Addr) -> bool {
    let [a, b, ..] = address.octets();
    address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_broadcast()
        || a == 0
        // Shared by carriers (RFC 6598), benchmarks (RFC 2544), and reserved.
        || (a == 100 && (64..128).contains(&b))
        || (a == 198 && (b == 18 || b == 19))
        || a >= 240
}

fn is_private_v6(address: Ipv6Addr) -> bool {
    let first = address.segments()[0];
    address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
        || (first & 0xfe00) == 0xfc00
        || (first & 0xffc0) == 0xfe80
        || (first & 0xffc0) == 0xfec0
}

/// Resolves names, and refuses addresses that are out of reach.
#[derive(Clone)]
struct Resolver {
    names: GaiResolver,
    reach: Reach,
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.names.poll_ready(context)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (host, reach, found) = (name.to_string(), self.reach, self.names.call(name));
        Box::pin(async move {
            let found: Vec<SocketAddr> = found.await?.collect();
            if reach == Reach::Public && found.iter().any(|address| is_private(address.ip())) {
                let why = format!("{host} is a private address; allow it with allow_private = true");
                return Err(std::io::Error::other(why));
            }
            Ok(found.into_iter())
        })
    }
}

/// Which versions of HTTP a client offers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocols {
    /// HTTP/2 and HTTP/1.1.
    All,
    /// Only HTTP/1.1: one request on a connection of its own, so that its failure is about no other request.
    Http1,
}

fn tls(scheme: &Scheme) -> Result<ClientConfig, InvalidInput> {
    let failed = |why: String| InvalidInput::new(format!("TLS cannot be set up: {why}"));
    let mut roots = RootCertStore::empty();
    if *scheme == Scheme::HTTPS {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(failed(
                "no trusted root certificates were found; install ca-certificates".to_owned(),
            ));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

fn connector(tls: ClientConfig, reach: Reach, protocols: Protocols) -> Connector {
    let mut http = HttpConnector::new_with_resolver(Resolver { names: GaiResolver::new(), reach });
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT_PATIENCE));
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    match protocols {
        Protocols::All => builder.enable_all_versions().wrap_connector(http),
        Protocols::Http1 => builder.enable_http1().wrap_connector(http),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_for_display_contain_no_secrets() {
        for url in [
            "https://bob:S3CRET@h/mcp",
            "https://u:S3CRET?pw@h/",
            "https://h/mcp?S3CRET",
            "bob:S3CRET@h",
            "ftp://h/mcp?api_key=S3CRET",
            "https://h h/?api_key=S3CRET",
        ] {
            assert!(!without_secrets(url).contains("S3CRET"), "{url}");
            match Remote::new(url) {
                Err(invalid) => assert!(!invalid.to_string().contains("S3CRET"), "{invalid}"),
                Ok(remote) => assert!(!remote.shown().contains("S3CRET"), "{}", remote.shown()),
            }
        }
        assert!(Remote::new("http://[::1]:8/mcp").is_ok() && Remote::new("http://[::1]/mcp").is_ok());
        let remote = Remote::new("http://h:1/@team/mcp?api_key=S3CRET&v=2").unwrap();
        assert_eq!(remote.shown(), "http://h:1/@team/mcp?api_key=…&v=…");
    }

    #[test]
    fn private_addresses_are_recognized_in_every_form() {
        for address in [
            "127.0.0.1",
            "10.1.2.3",
            "172.31.0.1",
            "192.168.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::10.0.0.1",
            "2002:7f00:1::",
            "ff02::1",
        ] {
            assert!(is_private(address.parse().unwrap()), "{address}");
        }
        for address in ["8.8.8.8", "100.128.0.1", "172.32.0.1", "2606:4700::1111", "::ffff:8.8.8.8"] {
            assert!(!is_private(address.parse().unwrap()), "{address}");
        }
        for url in ["http://127.0.0.1:1", "http://[::1]/", "http://169.254.169.254/latest"] {
            assert!(Remote::within(url, Reach::Public).is_err(), "{url}");
            assert!(Remote::within(url, Reach::Anywhere).is_ok(), "{url}");
        }
    }

    #[tokio::test]
    async fn a_name_with_a_private_address_is_not_connected_to() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://localhost:{}/", listener.local_addr().unwrap().port());
        let remote = Remote::within(&url, Reach::Public).unwrap();
        for connection in [Connection::Kept, Connection::Fresh] {
            let request = remote.request(Method::GET, "/", HeaderMap::new(), full(""));
            match remote.send(request, connection).await {
                Err(SendError::NotSent(why)) => assert!(why.contains("private address"), "{why}"),
                Err(SendError::MaybeSent(why)) => panic!("{why}"),
                Ok(_) => panic!("it was sent"),
            }
        }
        assert!(listener.into_std().unwrap().accept().is_err(), "there was a connection");
    }
}
