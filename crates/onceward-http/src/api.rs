//! The ledger API under `/v1`.
//!
//! - `operations`: begin, renew, finish, fail, doubt, settle, cancel, release, get, list, wait, report.
//! - `inbox`: the events of webhooks.
//! - `records`: single records, for `onceward-store`'s remote back end.
//! - `leases`: the attempts of callers, and the locks that the server holds for them.
//! - `extract`: reading requests. `document`: the OpenAPI document.

mod document;
mod extract;
mod inbox;
mod leases;
mod operations;
mod records;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;

use crate::App;
pub(crate) use document::router as document;
pub(crate) use leases::Leases;

pub(crate) fn router() -> Router<Arc<App>> {
    let (operations, _) = operations::router().merge(inbox::router()).split_for_parts();
    // `tenants::admit_api` has read the body within the limits of the server and the tenant.
    let operations = operations.layer(DefaultBodyLimit::disable());
    Router::new().merge(operations).merge(records::router())
}
