//! Requests to the server, made from those of clients.

use hyper::http::request::Parts;
use hyper::http::uri::PathAndQuery;
use hyper::{HeaderMap, Method, Request, header};
pub use onceward_http::client::Remote;
pub(crate) use onceward_http::client::{Connection, full, in_words};

use super::{Body, headers};

/// A server to which clients' requests are addressed.
pub(crate) trait ForwardTo {
    /// The client's request, addressed to the server.
    fn forwarded(&self, head: &Parts, body: Body) -> Request<Body>;

    /// A `POST` with another text and these headers, to the path of the client's request.
    fn posted(&self, head: &Parts, headers: HeaderMap, text: String) -> Request<Body>;
}

impl ForwardTo for Remote {
    fn forwarded(&self, head: &Parts, body: Body) -> Request<Body> {
        let path = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        self.request(head.method.clone(), path, headers::passed_on(&head.headers), body)
    }

    fn posted(&self, head: &Parts, mut headers: HeaderMap, text: String) -> Request<Body> {
        headers.remove(header::CONTENT_LENGTH);
        let path = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        self.request(Method::POST, path, headers, full(text))
    }
}
