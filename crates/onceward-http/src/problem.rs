//! Errors as problem documents (RFC 9457), with the contract's fields.

use axum::Json;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use onceward::{Answer, Code, Error, Happened, InvalidInput, Surface};
use onceward::{ErrorView, Problem};

use crate::intake::Refused;

/// What SDKs obey as a stop signal.
const STOP_SIGNALS: [HeaderName; 2] =
    [HeaderName::from_static("x-should-retry"), HeaderName::from_static("stripe-should-retry")];

/// An error that a handler can return with `?`.
pub(crate) struct ProblemResponse(Box<Response>);

impl From<Error> for ProblemResponse {
    fn from(error: Error) -> Self {
        of_error(&error).into()
    }
}

impl From<InvalidInput> for ProblemResponse {
    fn from(invalid: InvalidInput) -> Self {
        Error::from(invalid).into()
    }
}

impl From<Response> for ProblemResponse {
    fn from(response: Response) -> Self {
        Self(Box::new(response))
    }
}

impl IntoResponse for ProblemResponse {
    fn into_response(self) -> Response {
        *self.0
    }
}

/// The problem document of a ledger's error.
pub(crate) fn of_error(error: &Error) -> Response {
    let answer = Answer::failed(error, &Surface::Http);
    match answer.problem(error.code().http()) {
        Some(problem) => response(&problem),
        // A call that is held back is no problem: the envelope says that nothing was sent yet.
        None => {
            let status =
                StatusCode::from_u16(error.code().http()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            (status, Json(answer)).into_response()
        }
    }
}

/// A problem with a request that reached no operation. Nothing was run.
pub(crate) fn refusal(status: StatusCode, code: &'static str, message: impl Into<String>) -> Response {
    // These two are about no operation.
    let is_about_none = [Code::NotFound.as_str(), Code::InvalidInput.as_str()].contains(&code);
    let happened = (!is_about_none).then_some(Happened::No);
    let error = ErrorView { happened, ..ErrorView::new(code, message) };
    let answer = Answer { ok: false, ran: Some(false), error: Some(error), ..Answer::plain("noop") };
    match answer.problem(status.as_u16()) {
        Some(mut problem) => {
            problem.title = status.canonical_reason().unwrap_or("Error");
            response(&problem)
        }
        None => status.into_response(),
    }
}

/// Too many requests. Nothing was run, so the same request may be sent again.
pub(crate) fn rate_limited(wait_ms: u64) -> Response {
    let message = "this tenant sends more requests than its limit; nothing was run";
    later(StatusCode::TOO_MANY_REQUESTS, "RATE_LIMITED", message, wait_ms)
}

/// Something that is needed outside the ledger is missing. Nothing was run, so the same request may be sent again.
pub(crate) fn unavailable(message: &str, wait_ms: u64) -> Response {
    later(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", message, wait_ms)
}

fn later(status: StatusCode, code: &'static str, message: &str, wait_ms: u64) -> Response {
    let error = ErrorView {
        happened: Some(Happened::No),
        retryable: true,
        retry_after_ms: Some(wait_ms),
        ..ErrorView::new(code, message)
    };
    let answer = Answer { ok: false, ran: Some(false), error: Some(error), ..Answer::plain("noop") };
    let Some(mut problem) = answer.problem(status.as_u16()) else { return status.into_response() };
    problem.title = status.canonical_reason().unwrap_or("Error");
    let mut response = response(&problem);
    let seconds = HeaderValue::from(wait_ms.div_ceil(1_000).max(1));
    response.headers_mut().insert(header::RETRY_AFTER, seconds);
    response
}

/// The problem of a body that could not be read. Nothing was run.
pub(crate) fn of_body(refused: &Refused, most: usize) -> Response {
    let invalid = Code::InvalidInput.as_str();
    match refused {
        Refused::TooLong => refusal(
            StatusCode::PAYLOAD_TOO_LARGE,
            invalid,
            format!("the request is longer than {most} bytes; nothing was run"),
        ),
        Refused::TooSlow => refusal(
            StatusCode::REQUEST_TIMEOUT,
            invalid,
            "the request did not arrive in time, or arrived too slowly; nothing was run",
        ),
        Refused::NoRoom => refusal(
            StatusCode::SERVICE_UNAVAILABLE,
            Code::LedgerUnavailable.as_str(),
            "other requests use all the memory for large bodies; nothing was run, and it may be sent again",
        ),
        Refused::Broken(why) => refusal(
            StatusCode::BAD_REQUEST,
            invalid,
            format!("the request broke off: {why}; nothing was run"),
        ),
    }
}

/// An error of a parser without the value that it quotes, which may be a secret. The names of fields and the expected
/// types stay.
pub(crate) fn without_value(error: &str) -> String {
    for kind in ["invalid type: ", "invalid value: ", "unknown variant "] {
        if let (Some((before, _)), Some((_, expected))) =
            (error.split_once(kind), error.rsplit_once(", expected "))
        {
            let kind = kind.trim_end_matches([':', ' ']);
            return format!("{before}{kind}, expected {expected}");
        }
    }
    error.to_owned()
}

fn response(problem: &Problem) -> Response {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    // A blind retry of these must not come.
    if matches!(problem.status, 410 | 422 | 424) {
        for name in STOP_SIGNALS {
            headers.insert(name, HeaderValue::from_static("false"));
        }
    }
    let mut response = (status, Json(problem)).into_response();
    response.headers_mut().extend(headers);
    // The gateway says the same in a form that the SDKs of vendors understand.
    response.extensions_mut().insert(problem.clone());
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_caller_does_not_learn_where_the_ledger_is() {
        let full = onceward::StoreError::unavailable("cannot write /var/lib/o n/once.db: disk full");
        let body = of_error(&Error::Unavailable(full)).into_body();
        let text = axum::body::to_bytes(body, 10_000).await.unwrap();
        let text = String::from_utf8(text.to_vec()).unwrap();
        assert!(text.contains("disk full") && !text.contains("/var") && !text.contains("once.db"), "{text}");
    }

    #[test]
    fn an_error_names_the_field_and_the_type_and_not_the_value() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "only its errors count")]
        struct Wanted {
            count: u32,
            class: onceward::Class,
        }
        for (text, words) in [
            (r#"{"count":"a \"b\", expected c"}"#, "invalid type, expected u32 at line 1"),
            (r#"{"count":-1}"#, "invalid value, expected u32 at line 1"),
            (r#"{"class":"secret"}"#, "unknown variant, expected one of"),
            (r#"{"cnt":1}"#, "unknown field `cnt`, expected `count` or `class`"),
            (r#"{"count":1}"#, "missing field `class`"),
        ] {
            let error = serde_json::from_str::<Wanted>(text).unwrap_err().to_string();
            let said = without_value(&error);
            assert!(said.starts_with(words), "{said}");
            assert!(!said.contains("secret") && !said.contains('"'), "{said}");
        }
    }
}
