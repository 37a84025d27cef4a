//! One request: who asks, for which ledger, and what. And its reply.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use onceward::wire::{self, Message, Problem};
use onceward::{Store, StoreError};

use crate::App;
use crate::tenant::Tenant;

/// A request for the caller's view of the ledger.
pub(super) struct Asked<M> {
    pub(super) store: Arc<dyn Store>,
    pub(super) message: M,
}

/// The first request of a store, which does not know the ledger yet.
pub(super) struct Greeting(pub(super) Arc<dyn Store>);

impl<M: Message> FromRequest<Arc<App>> for Asked<M> {
    type Rejection = Response;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Response> {
        let store = store_of(&request, app).map_err(|refused| *refused)?;
        check_ledger(request.headers(), &*store).map_err(|refused| *refused)?;
        let bytes = Bytes::from_request(request, app).await.map_err(|refused| {
            refuse(refused.status(), "the message cannot be read", &refused.body_text())
        })?;
        let message = wire::decode(&bytes).map_err(|malformed| {
            refuse(StatusCode::BAD_REQUEST, "the message cannot be read", &malformed.to_string())
        })?;
        Ok(Self { store, message })
    }
}

impl FromRequest<Arc<App>> for Greeting {
    type Rejection = Response;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Response> {
        store_of(&request, app).map(Self).map_err(|refused| *refused)
    }
}

/// The view of the ledger that the caller may use, if both sides have the same version of the protocol.
fn store_of(request: &Request, app: &App) -> Result<Arc<dyn Store>, Box<Response>> {
    let version = request.headers().get(wire::VERSION_HEADER).map(HeaderValue::as_bytes);
    if version != Some(wire::VERSION.as_bytes()) {
        let asked = version.map_or_else(|| "none".into(), String::from_utf8_lossy);
        let detail = format!(
            "this server speaks version {} of the protocol of ledgers over HTTP, and the request has {asked} in its \
             header {}; use the same version of Onceward on both sides",
            wire::VERSION,
            wire::VERSION_HEADER
        );
        return Err(refuse(StatusCode::BAD_REQUEST, "another version of the protocol", &detail).into());
    }
    let tenant = request.extensions().get::<Tenant>().or_else(|| app.tenants.open());
    tenant.map(|tenant| Arc::clone(&tenant.store)).ok_or_else(|| {
        refuse(StatusCode::UNAUTHORIZED, "a token is required", "this server requires a token").into()
    })
}

/// Refuses a caller that opened another ledger, or this one before a restore.
fn check_ledger(headers: &HeaderMap, store: &dyn Store) -> Result<(), Box<Response>> {
    let mark = store.identity().mark();
    match headers.get(wire::LEDGER_HEADER) {
        Some(opened) if opened.as_bytes() == mark.as_bytes() => Ok(()),
        Some(_) => {
            let (name, epoch) = (&store.identity().name, store.identity().epoch);
            let seen = format!("the server now has the ledger {name} in epoch {epoch}");
            Err(failed(store, &StoreError::replaced(&seen)).into())
        }
        None => {
            let detail = format!("the header {} must name the ledger and its epoch", wire::LEDGER_HEADER);
            Err(refuse(StatusCode::BAD_REQUEST, "the ledger is not named", &detail).into())
        }
    }
}

/// The reply with a message, or with the error of the store.
pub(super) fn reply<M: Message>(store: &dyn Store, result: Result<M, StoreError>) -> Response {
    let message = match result {
        Ok(message) => message,
        Err(error) => return failed(store, &error),
    };
    match wire::encode(&message) {
        Ok(bytes) => respond(StatusCode::OK, wire::CONTENT_TYPE, bytes.into(), Some(store)),
        Err(error) => {
            failed(store, &StoreError::unavailable(format!("the reply cannot be written: {error}")))
        }
    }
}

fn failed(store: &dyn Store, error: &StoreError) -> Response {
    let problem = Problem::from(error);
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    respond(status, wire::PROBLEM_TYPE, document(&problem), Some(store))
}

fn refuse(status: StatusCode, title: &str, detail: &str) -> Response {
    let problem = Problem {
        title: title.to_owned(),
        status: status.as_u16(),
        detail: detail.to_owned(),
        store_error: None,
    };
    respond(status, wire::PROBLEM_TYPE, document(&problem), None)
}

fn document(problem: &Problem) -> Body {
    // A problem consists of text and numbers.
    serde_json::to_vec(problem).unwrap_or_default().into()
}

fn respond(status: StatusCode, kind: &'static str, body: Body, store: Option<&dyn Store>) -> Response {
    let mut response = (status, body).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(wire::VERSION_HEADER, HeaderValue::from_static(wire::VERSION));
    if let Some(store) = store {
        headers.insert(wire::NOW_HEADER, HeaderValue::from(store.clock().now_ms()));
    }
    response
}
