//! Stopping and resuming a scope, and its settlement.

use axum::Json;
use onceward::{Barrier, InvalidInput, Problem, Settlement};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::super::extract::JsonBody;
use crate::problem::ProblemResponse;
use crate::tenants::Tenant;

/// The longest wait for running operations, in seconds.
const MAX_WAIT: u64 = 60;

/// Asks to stop a scope.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"scope": "run-7", "reason": "wrong customer list", "wait": 30}))]
pub(crate) struct StopRequest {
    /// The scope, of all callers.
    scope: String,
    /// Why; refused calls say it.
    reason: Option<String>,
    /// How many seconds to wait for running operations to end; 0 if absent, at most 60.
    wait: Option<u64>,
}

/// Asks to resume a scope.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"scope": "run-7"}))]
pub(crate) struct ResumeRequest {
    /// The scope.
    scope: String,
}

/// Whether a scope was stopped.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Resumed {
    /// The barrier that was lifted, if the scope was stopped.
    lifted: Option<Barrier>,
}

/// Stops a scope: nothing in it begins any more, what is held back is cancelled, and what runs is asked to end. Answers
/// with the settlement of the scope. Safe to repeat.
#[utoipa::path(
    post,
    path = "/v1/stop",
    tag = "scopes",
    operation_id = "stop",
    request_body = StopRequest,
    responses(
        (status = 200, description = "Stopped: every intent is accounted for", body = Settlement),
        (status = 400, description = "INVALID_INPUT", body = Problem, content_type = "application/problem+json"),
        (status = "default", description = "Any other problem", body = Problem,
            content_type = "application/problem+json"),
    )
)]
pub(super) async fn stop(
    tenant: Tenant,
    JsonBody(request): JsonBody<StopRequest>,
) -> Result<Json<Settlement>, ProblemResponse> {
    let StopRequest { scope, reason, wait } = request;
    let seconds = wait.unwrap_or(0);
    if seconds > MAX_WAIT {
        return Err(InvalidInput::new(format!("wait: must be at most {MAX_WAIT} seconds")).into());
    }
    tenant.ledger.stop(&scope, reason).await?;
    tenant.ledger.wait_for_scope(&scope, seconds * 1_000).await?;
    Ok(Json(tenant.ledger.settlement(&scope).await?))
}

/// Lets operations of a stopped scope begin again.
#[utoipa::path(
    post,
    path = "/v1/resume",
    tag = "scopes",
    operation_id = "resume",
    request_body = ResumeRequest,
    responses(
        (status = 200, description = "Nothing stops the scope any more", body = Resumed),
        (status = 400, description = "INVALID_INPUT", body = Problem, content_type = "application/problem+json"),
        (status = "default", description = "Any other problem", body = Problem,
            content_type = "application/problem+json"),
    )
)]
pub(super) async fn resume(
    tenant: Tenant,
    JsonBody(request): JsonBody<ResumeRequest>,
) -> Result<Json<Resumed>, ProblemResponse> {
    Ok(Json(Resumed { lifted: tenant.ledger.resume(&request.scope).await? }))
}
