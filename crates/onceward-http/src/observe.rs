//! Health and metrics of the server.
//!
//! - `access`: who may read the metrics. `health`: whether the server can be used.

mod access;
mod health;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

pub(crate) use access::{Arrival, MetricsGate};
pub use health::Health;

use crate::{App, problem};

pub(crate) fn router(app: &Arc<App>) -> Router<Arc<App>> {
    let counted = Router::new().route("/metrics", get(metrics));
    Router::new()
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .merge(counted.layer(from_fn_with_state(Arc::clone(app), admit)))
}

/// `/metrics`.
async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    let found = app.health.counted().await;
    app.metrics.ledger(found);
    for hook in app.inbox.hooks() {
        app.metrics.backlog(hook.name(), hook.backlog());
    }
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    (StatusCode::OK, [(header::CONTENT_TYPE, kind)], app.metrics.text())
}

/// Admits programs that may read the metrics.
async fn admit(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if app.metrics_gate.admits(request.extensions().get::<Arrival>(), request.headers()) {
        return next.run(request).await;
    }
    let message =
        "at this address, metrics need a token of [serve] metrics_tokens, as `Authorization: Bearer TOKEN`";
    let mut response = problem::refusal(StatusCode::UNAUTHORIZED, "AUTH_REQUIRED", message);
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// `/healthz`: the process answers.
async fn alive() -> &'static str {
    "ok\n"
}

/// `/readyz`: the server can be used. Every program may ask, so the answer does not say why; the log does.
async fn ready(State(app): State<Arc<App>>) -> impl IntoResponse {
    match app.health.is_ready().await {
        true => (StatusCode::OK, "ready\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
    }
}
