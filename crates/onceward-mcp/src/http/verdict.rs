//! What a response without a result says about the effect.

use hyper::StatusCode;
use hyper::http::response::Parts;

use crate::ending::is_rejection;
use crate::ends::Reply;
use crate::message::Head;
use crate::raw::Object;

/// Beginnings of what SDKs say when they refuse a request before anybody looks at it, under codes that mean nothing
/// by themselves.
const REFUSALS: [&str; 8] = [
    "Session not found",
    "Bad Request",
    "Not Acceptable",
    "Unsupported Media Type",
    "Method not allowed",
    "Invalid Request",
    "Parse error",
    "Payload too large",
];
/// What a resource server says about a token (RFC 6750).
const TOKEN_ERRORS: [&str; 4] = ["invalid_token", "invalid_request", "insufficient_scope", "unauthorized"];

/// What a response of that status with that body says. It is a rejection where the status or the body says that
/// nothing was begun, and tells nothing else.
pub(crate) fn of(head: &Parts, body: &[u8]) -> Reply {
    let status = head.status;
    let text = std::str::from_utf8(body).unwrap_or_default();
    let words: String = text.chars().take(300).collect();
    let said = format!("the server answered with status {}: {words}", status.as_u16());
    let certain = match status {
        StatusCode::METHOD_NOT_ALLOWED
        | StatusCode::NOT_ACCEPTABLE
        | StatusCode::LENGTH_REQUIRED
        | StatusCode::PAYLOAD_TOO_LARGE
        | StatusCode::URI_TOO_LONG
        | StatusCode::UNSUPPORTED_MEDIA_TYPE
        | StatusCode::TOO_MANY_REQUESTS
        | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
        | StatusCode::TEMPORARY_REDIRECT
        | StatusCode::PERMANENT_REDIRECT => true,
        other => other.is_client_error() && is_refusal(text),
    };
    if certain { Reply::Rejected(said) } else { Reply::Unclear(said) }
}

/// Whether a body is one by which SDKs refuse a request before they begin with it.
fn is_refusal(text: &str) -> bool {
    let Some(object) = Object::parse(text) else { return false };
    // A resource server's word about a token is no message.
    if object.string("error").is_some_and(|error| TOKEN_ERRORS.contains(&error.as_str())) {
        return true;
    }
    let Some(error) = Head::parse(text).and_then(|head| head.error) else { return false };
    let words = Object::parse(error).and_then(|error| error.string("message")).unwrap_or_default();
    is_rejection(error) || REFUSALS.iter().any(|beginning| words.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(status: u16, body: &str) -> &'static str {
        let (mut head, ()) = hyper::Response::new(()).into_parts();
        head.status = StatusCode::from_u16(status).unwrap();
        match of(&head, body.as_bytes()) {
            Reply::Rejected(_) => "rejected",
            Reply::Unclear(_) => "unclear",
            Reply::Answer(_) | Reply::Over(_) => "?",
        }
    }

    #[test]
    fn a_status_alone_says_little_and_a_refusal_says_all() {
        for (status, body, expected) in [
            (
                404,
                r#"{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"x"}}"#,
                "rejected",
            ),
            (
                404,
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}"#,
                "rejected",
            ),
            (404, "", "unclear"),
            (404, "not found", "unclear"),
            (401, r#"{"error":"invalid_token","error_description":"expired"}"#, "rejected"),
            (401, "", "unclear"),
            (
                400,
                r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32020,"message":"HeaderMismatch"}}"#,
                "rejected",
            ),
            (400, r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"broke"}}"#, "unclear"),
            (405, "", "rejected"),
            (413, "", "rejected"),
            (429, "slow down", "rejected"),
            (408, "", "unclear"),
            (500, r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"x"}}"#, "unclear"),
            (503, "", "unclear"),
            (202, "", "unclear"),
        ] {
            assert_eq!(told(status, body), expected, "{status} {body}");
        }
    }
}
