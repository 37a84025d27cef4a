//! Reads: forwarded as they are, in both directions, without being stored.

use axum::body::Body;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::header;
use hyper::{HeaderMap, Method, Request, StatusCode};
use onceward::Happened;

use super::content;
use super::exchange::{forwarded, with_trailers};
use super::reply;
use super::upstream::Upstream;
use crate::client::{self, Broken, Connection, SendError, in_words};
use crate::headers::passed_on;

/// Forwards a read and streams the answer.
pub(crate) async fn read(upstream: &Upstream, path: &str, request: Request<Body>) -> Response {
    let (head, body) = request.into_parts();
    let headers = with_trailers(&head.headers, forwarded(&head.headers));
    let body = client::Body::new(body.map_err(|error| Broken(in_words(&error))));
    send(upstream, head.method, path, headers, body, Connection::Kept).await
}

/// Forwards a request with a body that was read already: a rule says that it changes nothing.
pub(crate) async fn spooled(upstream: &Upstream, request: &content::Request) -> Response {
    let mut headers = with_trailers(&request.headers, forwarded(&request.headers));
    headers.remove(header::EXPECT);
    request.payload.frame(&mut headers);
    let path = request.path_and_query();
    // The server may treat it as a change, so the client does not send it twice.
    send(upstream, request.method.clone(), &path, headers, request.payload.body(), Connection::Fresh).await
}

async fn send(
    upstream: &Upstream,
    method: Method,
    path: &str,
    headers: HeaderMap,
    body: client::Body,
    connection: Connection,
) -> Response {
    let request = upstream.remote.request(method, path, headers, body);
    match upstream.remote.send(request, connection).await {
        Ok(response) => {
            let (mut head, body) = response.into_parts();
            head.headers = with_trailers(&head.headers, passed_on(&head.headers));
            head.version = hyper::Version::HTTP_11;
            Response::from_parts(head, Body::new(body.map_err(axum::Error::new)))
        }
        Err(SendError::NotSent(why) | SendError::MaybeSent(why)) => {
            let detail = format!("{} cannot be reached: {why}", upstream.remote.shown());
            reply::refusal(StatusCode::BAD_GATEWAY, "FAILED", Some(Happened::No), &detail)
        }
    }
}
