//! Reading requests. What cannot be read is refused with a problem document.

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use bytes::Bytes;
use onceward::{Code, InvalidInput, OperationId};
use serde::de::DeserializeOwned;

use crate::problem::{self, ProblemResponse, without_value};

/// A request body in JSON.
pub(super) struct JsonBody<T>(pub(super) T);

/// A request body in JSON that may be empty.
pub(super) struct OptionalBody<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = ProblemResponse;

    async fn from_request(request: Request, state: &S) -> Result<Self, ProblemResponse> {
        Body::read(request, state).await?.parsed().map(Self)
    }
}

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequest<S> for OptionalBody<T> {
    type Rejection = ProblemResponse;

    async fn from_request(request: Request, state: &S) -> Result<Self, ProblemResponse> {
        let body = Body::read(request, state).await?;
        if body.bytes.is_empty() { Ok(Self(T::default())) } else { body.parsed().map(Self) }
    }
}

/// A body that was read.
struct Body {
    bytes: Bytes,
    /// Whether the headers say that it is not JSON, or is compressed.
    other_form: bool,
}

impl Body {
    async fn read<S: Send + Sync>(request: Request, state: &S) -> Result<Self, ProblemResponse> {
        let kind = request.headers().get(header::CONTENT_TYPE);
        let is_json = kind.is_none_or(|kind| is_json(kind.as_bytes()));
        let encoded = request.headers().contains_key(header::CONTENT_ENCODING);
        let bytes = Bytes::from_request(request, state).await.map_err(|refused| {
            let message = format!("the body cannot be read: {}; nothing was run", refused.body_text());
            problem::refusal(refused.status(), Code::InvalidInput.as_str(), message)
        })?;
        Ok(Self { bytes, other_form: !is_json || encoded })
    }

    fn parsed<T: DeserializeOwned>(&self) -> Result<T, ProblemResponse> {
        if self.other_form {
            let message = "the body must be application/json, not compressed; nothing was run";
            let invalid = Code::InvalidInput.as_str();
            return Err(problem::refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, invalid, message).into());
        }
        // An array would be read as the values of the fields, without their names.
        if self.bytes.trim_ascii_start().first().is_some_and(|first| *first != b'{') {
            return Err(InvalidInput::new("the body is not valid: expected a JSON object").into());
        }
        serde_json::from_slice(&self.bytes).map_err(|error| {
            let why = without_value(&error.to_string());
            InvalidInput::new(format!("the body is not valid: {why}")).into()
        })
    }
}

fn is_json(kind: &[u8]) -> bool {
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    kind.eq_ignore_ascii_case(b"application/json") || kind.to_ascii_lowercase().ends_with(b"+json")
}

/// The query of a request.
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ProblemResponse> {
        let read = <Query<T> as FromRequestParts<S>>::from_request_parts(parts, state).await;
        let Query(params) = read.map_err(|error| {
            InvalidInput::new(format!("the query is not valid: {}", without_value(&error.body_text())))
        })?;
        Ok(Self(params))
    }
}

/// The operation that a path names.
pub(super) struct Id(pub(super) OperationId);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ProblemResponse> {
        let read = <Path<String> as FromRequestParts<S>>::from_request_parts(parts, state).await;
        let Path(text) = read.map_err(|_| InvalidInput::new("the path is not valid text"))?;
        // What is not an id names no operation.
        let id = OperationId::parse(&text).map_err(|_| onceward::Error::NotFound { id: shortened(&text) })?;
        Ok(Self(id))
    }
}

fn shortened(text: &str) -> String {
    onceward::text::one_line(&text.chars().take(64).collect::<String>()).into_owned()
}
