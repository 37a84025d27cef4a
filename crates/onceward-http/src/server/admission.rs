//! Who calls: a request is read and answered only for a tenant of this server, within its rate and its limits.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::Body as _;

use crate::App;
use crate::gateway;
use crate::intake::Refused;
use crate::problem::{self, ProblemResponse};
use crate::tenant::Tenant;
use crate::tenants::{Credential, ONCE_TOKEN};

/// Admits callers of the ledger API: finds the tenant of `Authorization: Bearer …`, keeps its rate, reads the body
/// within its limit, and adds the [`Tenant`] to the request.
pub(super) async fn admit_api(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let (mut request, tenant) = match identify(&app, request, Credential::Bearer) {
        Ok(identified) => identified,
        Err(refused) => return refused.into_response(),
    };
    let most = tenant.max_body(app.limits().body_bytes);
    request.extensions_mut().insert(tenant);
    let (head, body) = request.into_parts();
    match app.intake.whole_up_to(body, most).await {
        Ok(body) => next.run(Request::from_parts(head, Body::from(body))).await,
        Err(refused) => problem::of_body(&refused, most),
    }
}

/// Admits the caller of a request to an upstream, and answers it.
pub(super) async fn to_upstream(app: &App, request: Request) -> Response {
    match admit_to_gateway(app, request) {
        Ok((request, tenant)) => gateway::answer(&app.gateway, tenant, request).await,
        Err(refused) => gateway::refused(refused.into_response()),
    }
}

/// Admits callers of the gateway: finds the tenant of `Once-Token`, which is removed, and keeps its rate. The gateway
/// reads the body, which may not be longer than the tenant's limit nor slower than the server's.
fn admit_to_gateway(app: &App, request: Request) -> Result<(Request, Tenant), ProblemResponse> {
    let (request, tenant) = identify(app, request, Credential::OnceToken)?;
    let most = tenant.max_body(usize::MAX);
    if request.body().size_hint().lower() > most as u64 {
        return Err(problem::of_body(&Refused::TooLong, most).into());
    }
    Ok((request.map(|body| Body::new(app.intake.paced(body, most as u64))), tenant))
}

fn identify(
    app: &App,
    mut request: Request,
    credential: Credential,
) -> Result<(Request, Tenant), ProblemResponse> {
    let Some((tenant, rate)) = app.tenants.of(request.headers(), credential) else {
        return Err(unauthenticated(credential).into());
    };
    if let Some(rate) = rate {
        rate.take(tenant.ledger.clock_ms()).map_err(problem::rate_limited)?;
    }
    let tenant = tenant.clone();
    request.headers_mut().remove(ONCE_TOKEN);
    Ok((request, tenant))
}

fn unauthenticated(credential: Credential) -> Response {
    let how = match credential {
        Credential::Bearer => "send `Authorization: Bearer TOKEN`",
        Credential::OnceToken => "send `Once-Token: TOKEN`",
    };
    let message =
        format!("the request shows no token of a tenant of this server; nothing was run. To be known, {how}");
    let mut response = problem::refusal(StatusCode::UNAUTHORIZED, "AUTH_REQUIRED", message);
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}
