//! The OpenAPI 3.1 document, generated from the types of the handlers.

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use onceward::Problem;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Content, Ref, RefOr};
use utoipa::{Modify, OpenApi};

use super::{inbox, operations};
use crate::App;

/// The document as JSON.
static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    let (_, mut document) = operations::router().merge(inbox::router()).split_for_parts();
    document.merge(Document::openapi());
    document.info = Document::openapi().info;
    document.security = Document::openapi().security;
    describe_problems(&mut document);
    // Every part of it is a string, a number or a list of them.
    document.to_json().unwrap_or_default()
});

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Onceward ledger API",
        description = "The ledger between intent and effect: begin an operation, execute it, report how it ended. A \
                       retry gets the first result. Errors are problem documents (RFC 9457).",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    security((), ("bearer" = [])),
    components(schemas(Problem)),
    modifiers(&Bearer)
)]
struct Document;

/// The token of a tenant. A server without tenants needs none.
struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("bearer", SecurityScheme::Http(scheme));
    }
}

/// Every answer that is not a success is a problem document, and every request can have one that it does not list.
fn describe_problems(document: &mut utoipa::openapi::OpenApi) {
    let paths = document.paths.paths.values_mut();
    for operation in paths.flat_map(|path| [&mut path.get, &mut path.post]).flatten() {
        let responses = &mut operation.responses.responses;
        let any = || RefOr::T(utoipa::openapi::Response::new("Any other problem"));
        responses.entry("default".to_owned()).or_insert_with(any);
        for (status, response) in responses {
            if let (RefOr::T(response), false) = (response, status.starts_with('2')) {
                let content = Content::new(Some(Ref::from_schema_name("Problem")));
                response.content.insert("application/problem+json".to_owned(), RefOr::T(content));
            }
        }
    }
}

/// Serves the document. It needs no token.
pub(crate) fn router() -> Router<Arc<App>> {
    let document = async || ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str()).into_response();
    Router::new().route("/v1/openapi.json", get(document))
}
