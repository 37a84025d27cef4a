//! Stopping and resuming a scope, and its settlement.

use axum::Json;
use onceward::{Barrier, InvalidInput, Resumed, Settlement, Word};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::super::extract::JsonBody;
use super::admin::Who;
use crate::problem::ProblemResponse;
use crate::tenant::Tenant;

/// The longest wait for running operations, in seconds.
const MAX_WAIT: u64 = 60;

/// Asks to stop a scope.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"scope": "run-7", "reason": "wrong customer list", "by": "maria", "speaker": "person",
    "wait": 30}))]
pub(crate) struct StopRequest {
    /// The scope, of all callers.
    scope: String,
    /// Why; refused calls say it.
    reason: Option<String>,
    /// Who stops it; `api` if absent.
    by: Option<String>,
    /// What they are; a program if absent.
    #[serde(default)]
    speaker: Who,
    /// How many seconds to wait for running operations to end; 0 if absent, at most 60.
    wait: Option<u64>,
}

/// Asks to resume a scope.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"scope": "run-7", "reason": "the list is corrected", "by": "maria", "speaker": "person"}))]
pub(crate) struct ResumeRequest {
    /// The scope.
    scope: String,
    /// Why.
    reason: Option<String>,
    /// Who resumes it; `api` if absent.
    by: Option<String>,
    /// What they are; a program if absent.
    #[serde(default)]
    speaker: Who,
}

/// Whether a scope was stopped.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WasResumed {
    /// The barrier that was lifted, if the scope was stopped.
    lifted: Option<Barrier>,
    /// Who lifted it, and why. This is logged, and not kept in the ledger.
    word: Option<Word>,
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
        (status = 400, description = "INVALID_INPUT"),
    )
)]
pub(super) async fn stop(
    tenant: Tenant,
    JsonBody(request): JsonBody<StopRequest>,
) -> Result<Json<Settlement>, ProblemResponse> {
    let StopRequest { scope, reason, by, speaker, wait } = request;
    let word = speaker.word_of(by, reason)?;
    let seconds = wait.unwrap_or(0);
    if seconds > MAX_WAIT {
        return Err(InvalidInput::new(format!("wait: must be at most {MAX_WAIT} seconds")).into());
    }
    tenant.ledger.scopes().stop(&scope, &word).await?;
    tenant.ledger.scopes().wait(&scope, seconds * 1_000).await?;
    Ok(Json(tenant.ledger.scopes().settlement(&scope).await?))
}

/// Lets operations of a stopped scope begin again.
#[utoipa::path(
    post,
    path = "/v1/resume",
    tag = "scopes",
    operation_id = "resume",
    request_body = ResumeRequest,
    responses(
        (status = 200, description = "Nothing stops the scope any more", body = WasResumed),
        (status = 400, description = "INVALID_INPUT"),
    )
)]
pub(super) async fn resume(
    tenant: Tenant,
    JsonBody(request): JsonBody<ResumeRequest>,
) -> Result<Json<WasResumed>, ProblemResponse> {
    let ResumeRequest { scope, reason, by, speaker } = request;
    let resumed = tenant.ledger.scopes().resume(&scope, &speaker.word_of(by, reason)?).await?;
    let Some(Resumed { barrier, word, .. }) = resumed else {
        return Ok(Json(WasResumed { lifted: None, word: None }));
    };
    let why = word.note.as_deref().unwrap_or("no reason given");
    tracing::info!(scope, by = %word, why, stopped = barrier.in_words(), "a stopped scope was resumed");
    Ok(Json(WasResumed { lifted: Some(barrier), word: Some(word) }))
}
