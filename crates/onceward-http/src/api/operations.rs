//! Operations: begin, renew, finish, fail, doubt, settle, cancel, release, get, list, wait, report; and scopes: stop,
//! resume.
//!
//! # Layout
//! - `begin`: the intent. `attempt`: what its caller reports. `token`: how the caller proves that it began it.
//! - `admin`: settle, cancel and release. `stop`: stop and resume a scope. `read`: get, list, wait and report. `view`:
//!   operations as the API shows them.

mod admin;
mod attempt;
mod begin;
mod read;
mod stop;
pub(super) mod token;
mod view;

use std::sync::Arc;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(begin::begin, read::list))
        .routes(routes!(read::get))
        .routes(routes!(read::wait))
        .routes(routes!(read::report))
        .routes(routes!(attempt::renew))
        .routes(routes!(attempt::dispatch))
        .routes(routes!(attempt::finish))
        .routes(routes!(attempt::fail))
        .routes(routes!(attempt::doubt))
        .routes(routes!(admin::settle))
        .routes(routes!(admin::cancel))
        .routes(routes!(admin::release))
        .routes(routes!(stop::stop))
        .routes(routes!(stop::resume))
}
