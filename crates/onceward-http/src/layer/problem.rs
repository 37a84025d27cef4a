//! Problem documents as responses.

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use onceward::ApiProblem;

use super::body::ResponseBody;

/// The problem as a response.
pub(super) fn response<B>(problem: &ApiProblem) -> Response<ResponseBody<B>> {
    let body = Bytes::from(problem.body());
    let length = HeaderValue::from(body.len());
    let mut response = Response::new(ResponseBody::whole(body));
    *response.status_mut() =
        StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    for (name, value) in problem.headers() {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    headers.insert(CONTENT_LENGTH, length);
    response
}
