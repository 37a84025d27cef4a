//! What a response's status proves about the effect of its request, for every surface that calls servers over HTTP.

use hyper::StatusCode;

/// Whether a status is only sent for a request that was refused before it was handled, by any server.
#[must_use]
pub fn refuses(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::NOT_ACCEPTABLE
            | StatusCode::LENGTH_REQUIRED
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::URI_TOO_LONG
            | StatusCode::UNSUPPORTED_MEDIA_TYPE
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    )
}

/// Whether a REST API that answers with this status has rejected the request: its input, its credentials or its
/// target. RFC 9110 defines these statuses so; 408 and 409 are not among them, because the request may have begun.
#[must_use]
pub fn rejects(status: StatusCode) -> bool {
    refuses(status)
        || matches!(
            status,
            StatusCode::BAD_REQUEST
                | StatusCode::UNAUTHORIZED
                | StatusCode::FORBIDDEN
                | StatusCode::NOT_FOUND
                | StatusCode::PRECONDITION_FAILED
                | StatusCode::EXPECTATION_FAILED
                | StatusCode::MISDIRECTED_REQUEST
                | StatusCode::UNPROCESSABLE_ENTITY
                | StatusCode::UPGRADE_REQUIRED
                | StatusCode::PRECONDITION_REQUIRED
                | StatusCode::UNAVAILABLE_FOR_LEGAL_REASONS
        )
}
