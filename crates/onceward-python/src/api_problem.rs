//! What the middleware tells the clients of an API: the texts, the statuses and the key are the core's.

use onceward::{ApiProblem, Happened};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error;

/// A response: the status, the headers and the body.
type Response<'py> = (u16, Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>, Bound<'py, PyBytes>);

/// The key in the values of a header, quoted or bare; `None` if there is no value.
#[pyfunction]
pub(crate) fn idempotency_key(
    py: Python<'_>,
    header: &str,
    values: Vec<Vec<u8>>,
) -> PyResult<Option<String>> {
    let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
    onceward::idempotency_key(header, &values).map_err(|invalid| error::of(py, &invalid.into()))
}

/// What is said about a request without the key that it needs.
#[pyfunction]
pub(crate) fn key_missing(header: &str) -> String {
    ApiProblem::key_missing(header).detail
}

/// What is said about a request whose body is too large to compare.
#[pyfunction]
pub(crate) fn body_too_large(most: usize) -> String {
    ApiProblem::too_large(most).detail
}

/// The response for an error.
#[pyfunction]
pub(crate) fn api_problem<'py>(
    py: Python<'py>,
    code: &str,
    message: &str,
    happened: Option<&str>,
    retryable: bool,
    operation: Option<String>,
    fields: Vec<String>,
) -> Response<'py> {
    let happened = [Happened::Yes, Happened::No, Happened::Unknown]
        .into_iter()
        .find(|known| happened == Some(known.as_str()));
    let mut problem = ApiProblem::new(code, happened, message);
    (problem.retryable, problem.operation, problem.fields) = (retryable, operation, fields);
    let bytes = |text: &str| PyBytes::new(py, text.as_bytes());
    let body = problem.body();
    let mut headers: Vec<_> =
        problem.headers().iter().map(|(name, value)| (bytes(name), bytes(value))).collect();
    headers.push((bytes("content-length"), bytes(&body.len().to_string())));
    (problem.status, headers, PyBytes::new(py, &body))
}
