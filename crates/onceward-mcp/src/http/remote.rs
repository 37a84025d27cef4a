//! The server by HTTP: where it is, and how requests get there.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::http::request::Parts;
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::{HeaderMap, Method, Request, Response, Uri, header};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use onceward::InvalidInput;
use rustls::{ClientConfig, RootCertStore};

use super::{Body, headers};
use crate::ends::Unsent;

/// How long the server has to take a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(30);
/// How long a connection is kept for the next read. Most servers close theirs after five seconds.
const IDLE: Duration = Duration::from_secs(3);

/// The server by HTTP.
pub struct Remote {
    address: Uri,
    scheme: Scheme,
    authority: Authority,
    kept: Client<HttpsConnector<HttpConnector>, Body>,
    fresh: Client<HttpsConnector<HttpConnector>, Body>,
}

/// Whether a connection may have been used before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Connection {
    /// It may.
    Kept,
    /// It may not: one that the server closes meanwhile would leave the request in doubt.
    Fresh,
}

impl Remote {
    /// The server at that URL.
    ///
    /// # Errors
    /// Where it is no URL of a server by HTTP, or TLS cannot be set up.
    pub fn new(url: &str) -> Result<Self, InvalidInput> {
        let wrong = |why: &str| InvalidInput::new(format!("{url:?} is no address of a server: {why}"));
        let address: Uri = url.parse().map_err(|error| wrong(&format!("{error}")))?;
        let scheme = address.scheme().cloned().ok_or_else(|| wrong("it begins with http:// or https://"))?;
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
            return Err(wrong("it begins with http:// or https://"));
        }
        let authority = address.authority().cloned().ok_or_else(|| wrong("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("it holds a password, which would be shown; the client sends its own"));
        }
        let connector = connector(&scheme)?;
        let client = |idle: usize| {
            Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .pool_idle_timeout(IDLE)
                .pool_max_idle_per_host(idle)
                .build(connector.clone())
        };
        Ok(Self { kept: client(usize::MAX), fresh: client(0), address, scheme, authority })
    }

    /// The path that its URL names.
    #[must_use]
    pub fn path(&self) -> &str {
        self.address.path_and_query().map_or("/", PathAndQuery::as_str)
    }

    /// What tells it from other servers.
    #[must_use]
    pub fn identity(&self) -> String {
        self.address.to_string()
    }

    /// Its host, as a name.
    #[must_use]
    pub fn host(&self) -> &str {
        self.authority.host()
    }

    /// A request as a client made it, on its way to the server.
    pub(crate) fn forwarded(&self, head: &Parts, body: Body) -> Request<Body> {
        let path = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        self.request(head.method.clone(), path, headers::passed_on(&head.headers), body)
    }

    /// A request with other text, or of our own, with these headers, in the place of the client's.
    pub(crate) fn posted(&self, head: &Parts, mut headers: HeaderMap, text: String) -> Request<Body> {
        headers.remove(header::CONTENT_LENGTH);
        let path = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        self.request(Method::POST, path, headers, full(text))
    }

    pub(crate) fn request(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Body,
    ) -> Request<Body> {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.headers_mut() = headers;
        request.headers_mut().remove(header::HOST);
        let uri = Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone());
        // What came as a path is one.
        *request.uri_mut() = uri.path_and_query(path).build().unwrap_or_else(|_| self.address.clone());
        request
    }

    /// Sends a request and gives the head of the answer, with its body still to come.
    pub(crate) async fn send(
        &self,
        request: Request<Body>,
        connection: Connection,
    ) -> Result<Response<hyper::body::Incoming>, Unsent> {
        let client = match connection {
            Connection::Kept => &self.kept,
            Connection::Fresh => &self.fresh,
        };
        client.request(request).await.map_err(|error| {
            let words = in_words(&error);
            // The library sends a request again only where it knows that no byte of it had left.
            if error.is_connect() { Unsent::Nothing(words) } else { Unsent::Perhaps(words) }
        })
    }
}

/// A body that is all there.
pub(crate) fn full(body: impl Into<Bytes>) -> Body {
    Body::new(Full::new(body.into()).map_err(|never| match never {}))
}

/// An error with all that it came from.
pub(crate) fn in_words(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        words.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    words
}

fn connector(scheme: &Scheme) -> Result<HttpsConnector<HttpConnector>, InvalidInput> {
    let failed = |why: String| InvalidInput::new(format!("TLS cannot be set up: {why}"));
    let mut roots = RootCertStore::empty();
    if *scheme == Scheme::HTTPS {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(failed("the machine names nobody to trust; install ca-certificates".to_owned()));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT_PATIENCE));
    Ok(HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_or_http()
        .enable_http1()
        .wrap_connector(http))
}
