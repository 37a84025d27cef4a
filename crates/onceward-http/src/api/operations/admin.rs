//! Settling a doubt, cancelling, and releasing.

use std::sync::Arc;

use axum::Json;
use axum::extract::State as AppState;
use axum::http::StatusCode;
use onceward::{Cancelled, Effect, Error, InvalidInput, OperationId, Outcome, Record, State, Verdict, Word};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::super::extract::{Id, JsonBody, OptionalBody};
use super::view::OperationDetail;
use crate::App;
use crate::problem::ProblemResponse;
use crate::tenant::Tenant;

/// What was found about an operation in doubt.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Finding {
    /// It happened.
    Done,
    /// It did not happen.
    Failed,
}

/// Who says something about an operation.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Who {
    /// A person.
    Person,
    /// An agent.
    Agent,
    /// Another program.
    #[default]
    Program,
}

impl Who {
    fn word(self, name: String) -> Word {
        match self {
            Self::Person => Word::person(name),
            Self::Agent => Word::agent(name),
            Self::Program => Word::program(name),
        }
    }

    /// The word of this caller, and why.
    pub(super) fn word_of(self, by: Option<String>, reason: Option<String>) -> Result<Word, InvalidInput> {
        let by = by.unwrap_or_else(|| "api".to_owned());
        onceward::name_like("by", &by)?;
        Ok(self.word(by).note(reason.filter(|reason| !reason.trim().is_empty())))
    }
}

/// Who says something about an operation, and why. Without a body, a program says it, and gives no reason.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"reason": "the invoice is wrong", "by": "maria", "speaker": "person"}))]
pub(crate) struct WordRequest {
    /// Why. The caller of a cancelled operation gets it.
    reason: Option<String>,
    /// Who says it; `api` if absent.
    by: Option<String>,
    /// What they are; a program if absent.
    #[serde(default)]
    speaker: Who,
}

impl WordRequest {
    /// The word, with what the policy redacts.
    async fn word(self, app: &App, tenant: &Tenant, id: &OperationId) -> Result<Word, Error> {
        let word = self.speaker.word_of(self.by, self.reason)?;
        let (record, _) = tenant.ledger.find(id).await?;
        Ok(app.policy.settings(&record.name)?.terms.redact.word(word))
    }
}

/// A settlement.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"verdict": "done", "evidence": "the charge is in the dashboard", "by": "maria",
    "speaker": "person"}))]
pub(crate) struct SettleRequest {
    /// What was found.
    verdict: Finding,
    /// How it was found out.
    #[schema(min_length = 1)]
    evidence: String,
    /// Who found it out; `api` if absent.
    by: Option<String>,
    /// What they are; a program if absent.
    #[serde(default)]
    speaker: Who,
    /// The attempt that the finding is about; the newest if absent.
    attempt: Option<u32>,
    /// What it changed, if it happened.
    effect: Option<Effect>,
    /// The result, for retries.
    #[schema(value_type = Option<serde_json::Value>)]
    data: Option<Box<RawValue>>,
}

/// Settles an operation in doubt.
#[utoipa::path(
    post,
    path = "/v1/operations/{id}/settle",
    tag = "operations",
    operation_id = "settle",
    params(("id" = String, Path, description = "The operation")),
    request_body = SettleRequest,
    responses(
        (status = 200, description = "Settled, or it was settled before with the same verdict: see `warnings`",
            body = OperationDetail),
        (status = 400, description = "INVALID_INPUT"),
        (status = 404, description = "NOT_FOUND"),
        (status = 422, description = "WRONG_STATE: it is not in doubt, or was settled otherwise"),
    )
)]
pub(super) async fn settle(
    AppState(app): AppState<Arc<App>>,
    tenant: Tenant,
    Id(id): Id,
    JsonBody(request): JsonBody<SettleRequest>,
) -> Result<Json<OperationDetail>, ProblemResponse> {
    let SettleRequest { verdict, evidence, by, speaker, attempt, effect, data } = request;
    if evidence.trim().is_empty() {
        return Err(InvalidInput::new("evidence: say how it was found out").into());
    }
    if effect.is_some_and(|effect| !Effect::REAL.contains(&effect)) {
        return Err(InvalidInput::new("effect: must be created, updated, deleted or noop").into());
    }
    let word = speaker.word_of(by, Some(evidence))?;
    let (record, _) = tenant.ledger.find(&id).await?;
    let settings = app.policy.settings(&record.name)?;
    let (verdict, effect) = match verdict {
        Finding::Done => (Verdict::Done, effect.or(Some(settings.effect))),
        Finding::Failed => (Verdict::Failed, None),
    };
    let redact = &settings.terms.redact;
    let outcome = redact.outcome(Outcome { effect, data: data.map(Arc::from), ..Outcome::because(None) });
    let word = redact.word(word);
    let attempt = attempt.unwrap_or(record.attempt);
    match tenant.ledger.attempts().settle(&id, attempt, verdict, word, outcome).await {
        Ok(record) => {
            app.leases.release(&tenant.place(&id), record.attempt);
            Ok(Json(OperationDetail::of(&record, record.state)))
        }
        Err(Error::WrongState { record, .. })
            if record.attempt == attempt && is_settled_as(&record, verdict) =>
        {
            let (record, state) = tenant.ledger.find(&id).await?;
            let mut detail = OperationDetail::of(&record, state);
            detail.warn("it was settled before with the same verdict; nothing was changed");
            Ok(Json(detail))
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether the operation has ended as the verdict says. The same finding again changes nothing.
fn is_settled_as(record: &Record, verdict: Verdict) -> bool {
    let found = match verdict {
        Verdict::Done => State::Done,
        Verdict::Failed => State::Failed,
    };
    record.state == found || (record.state == State::Expired && record.detail.ended == Some(found))
}

/// Asks an operation to stop.
#[utoipa::path(
    post,
    path = "/v1/operations/{id}/cancel",
    tag = "operations",
    operation_id = "cancel",
    params(("id" = String, Path, description = "The operation")),
    request_body = Option<WordRequest>,
    responses(
        (status = 200, description = "It will not happen; this is certain", body = OperationDetail),
        (status = 202, description = "It is running: its owner is asked to stop and will say what happened",
            body = OperationDetail),
        (status = 404, description = "NOT_FOUND"),
        (status = 422, description = "WRONG_STATE: it happened, or may have happened"),
    )
)]
pub(super) async fn cancel(
    AppState(app): AppState<Arc<App>>,
    tenant: Tenant,
    Id(id): Id,
    OptionalBody(request): OptionalBody<WordRequest>,
) -> Result<(StatusCode, Json<OperationDetail>), ProblemResponse> {
    let word = request.word(&app, &tenant, &id).await?;
    let (status, record) = match tenant.ledger.admin().cancel(&id, &word).await? {
        Cancelled::Certain(record) => (StatusCode::OK, record),
        Cancelled::Requested(record) => (StatusCode::ACCEPTED, record),
    };
    let (record, state) = match tenant.ledger.find(&id).await {
        Ok(found) => found,
        Err(_) => {
            let state = record.state;
            (record, state)
        }
    };
    Ok((status, Json(OperationDetail::of(&record, state))))
}

/// Releases an operation that is held back.
#[utoipa::path(
    post,
    path = "/v1/operations/{id}/release",
    tag = "operations",
    operation_id = "release",
    params(("id" = String, Path, description = "The operation")),
    request_body = Option<WordRequest>,
    responses(
        (status = 200, description = "It may start now. The server starts nothing itself: the same call, or the \
            program that holds it, does", body = OperationDetail),
        (status = 404, description = "NOT_FOUND"),
        (status = 422, description = "WRONG_STATE: it is not held any more"),
    )
)]
pub(super) async fn release(
    AppState(app): AppState<Arc<App>>,
    tenant: Tenant,
    Id(id): Id,
    OptionalBody(request): OptionalBody<WordRequest>,
) -> Result<Json<OperationDetail>, ProblemResponse> {
    let word = request.word(&app, &tenant, &id).await?;
    let record = tenant.ledger.admin().release(&id, &word).await?;
    Ok(Json(OperationDetail::of(&record, record.state)))
}
