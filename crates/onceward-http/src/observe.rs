//! Health and metrics of the server.
//!
//! - `access`: who may read the metrics. `health`: whether the server can be used.

mod access;
mod health;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::get;

pub(crate) use access::MetricsGate;
pub use health::Health;

use crate::App;

pub(crate) fn router(app: &Arc<App>) -> Router<Arc<App>> {
    let counted = Router::new().route("/metrics", get(metrics));
    Router::new()
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready))
        .merge(counted.layer(from_fn_with_state(Arc::clone(app), access::admit)))
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
