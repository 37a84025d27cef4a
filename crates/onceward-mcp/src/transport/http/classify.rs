//! Classifies responses without a result by what they prove about the effect.

use hyper::StatusCode;
use hyper::http::response::Parts;
use onceward_http::evidence::refuses;

use crate::call::ending::has_own_status;
use crate::transport::call_transport::ServerReply;
use crate::wire::message::{Head, Id};
use crate::wire::raw::Object;

/// How messages begin with which SDKs refuse a request before it is handled. Their error codes alone prove nothing.
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
/// Errors of a resource server about a token (RFC 6750).
const TOKEN_ERRORS: [&str; 4] = ["invalid_token", "invalid_request", "insufficient_scope", "unauthorized"];

/// Classifies a response. It is a rejection if the status or the body proves that nothing was started, and unclear
/// otherwise.
pub(crate) fn unanswered(head: &Parts, body: &[u8]) -> ServerReply {
    let status = head.status;
    let text = std::str::from_utf8(body).unwrap_or_default();
    let words: String = text.chars().take(300).collect();
    let said = format!("the server answered with status {}: {words}", status.as_u16());
    let certain = refuses(status) || (status.is_client_error() && is_refusal(text));
    if certain { ServerReply::Rejected(said) } else { ServerReply::Unclear(said) }
}

/// Whether the response answers the request with that id, and a tool may have caused it. The Python SDK maps error
/// codes to statuses, wherever the error comes from.
pub(crate) fn is_answer(head: &Parts, body: &[u8], id: &Id) -> bool {
    let message = std::str::from_utf8(body).ok().and_then(Head::parse);
    let Some(message) = message.filter(Head::is_response) else { return false };
    if message.id.map(Id::of).as_ref() != Some(id) {
        return false;
    }
    if head.status.is_success() {
        return true;
    }
    let coded = matches!(head.status, StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND);
    coded && message.error.is_some_and(has_own_status)
}

/// Whether SDKs send this body when they refuse a request before handling it.
fn is_refusal(text: &str) -> bool {
    let Some(object) = Object::parse(text) else { return false };
    // A token error of a resource server is not a JSON-RPC message.
    if object.string("error").is_some_and(|error| TOKEN_ERRORS.contains(&error.as_str())) {
        return true;
    }
    let Some(error) = Head::parse(text).and_then(|head| head.error) else { return false };
    let words = Object::parse(error).and_then(|error| error.string("message")).unwrap_or_default();
    has_own_status(error) || REFUSALS.iter().any(|beginning| words.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;

    use super::*;

    fn classified(status: u16, body: &str) -> &'static str {
        let (mut head, ()) = hyper::Response::new(()).into_parts();
        head.status = StatusCode::from_u16(status).unwrap();
        match unanswered(&head, body.as_bytes()) {
            ServerReply::Rejected(_) => "rejected",
            ServerReply::Unclear(_) => "unclear",
            ServerReply::Answer(_) | ServerReply::Over(_) => "?",
        }
    }

    #[test]
    fn an_error_that_answers_the_request_may_come_from_the_tool() {
        let error = |id: &str, code: i64| {
            format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"x"}}}}"#)
        };
        for (status, body, expected) in [
            (200, error("7", -32602), true),
            (200, error("8", -32602), false),
            (200, error("\"7\"", -32602), false),
            (200, error("null", -32602), false),
            (200, r#"{"jsonrpc":"2.0","id":7,"result":{}}"#.to_owned(), true),
            (200, r#"{"jsonrpc":"2.0","id":8,"result":{}}"#.to_owned(), false),
            (400, error("7", -32602), true),
            (400, error("7", -32600), true),
            (404, error("7", -32601), true),
            (400, error("7", -32021), true),
            (400, error("8", -32602), false),
            (400, error("null", -32600), false),
            (400, error("\"server-error\"", -32602), false),
            (400, error("7", -32020), true),
            (400, error("7", -32022), true),
            (400, error("7", -32700), true),
            (400, error("null", -32020), false),
            (404, error("7", -32001), false),
            (413, error("7", -32602), false),
            (404, "not found".to_owned(), false),
        ] {
            let (mut head, ()) = hyper::Response::new(()).into_parts();
            head.status = StatusCode::from_u16(status).unwrap();
            assert_eq!(is_answer(&head, body.as_bytes(), &Id::of("7")), expected, "{status} {body}");
        }
    }

    #[test]
    fn only_some_statuses_and_bodies_prove_a_rejection() {
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
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32020,"message":"HeaderMismatch"}}"#,
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
            assert_eq!(classified(status, body), expected, "{status} {body}");
        }
    }
}
