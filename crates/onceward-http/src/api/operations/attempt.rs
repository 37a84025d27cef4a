//! What a caller reports about its attempt: it is alive, it has sent its request, it has ended.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State as AppState;
use axum::http::HeaderMap;
use onceward::decide::seen_as;
use onceward::rfc3339;
use onceward::{
    Effect, Ending, Error, Evidence, InvalidInput, LivenessSource, Outcome, Record, State, StoreError,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tracing::Instrument;
use utoipa::ToSchema;

use super::super::extract::{Id, JsonBody};
use super::token;
use super::view::OperationDetail;
use crate::App;
use crate::problem::ProblemResponse;
use crate::telemetry::{self, CallSurface};
use crate::tenant::Tenant;
use crate::{headers, inbox};

/// The shortest and the longest lease.
const LEASE_MS: std::ops::RangeInclusive<u64> = 100..=3_600_000;

/// Which attempt a report is about.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttemptRequest {
    /// The number of the attempt.
    #[schema(minimum = 1)]
    attempt: u32,
    /// The token that its begin returned.
    token: String,
}

/// A renewal of a lease.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RenewRequest {
    /// The number of the attempt.
    #[schema(minimum = 1)]
    attempt: u32,
    /// The token that its begin returned.
    token: String,
    /// The length of the new lease; that of the policy if absent.
    #[schema(minimum = 100, maximum = 3_600_000)]
    lease_ms: Option<u64>,
}

/// A renewed lease.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RenewedLease {
    lease_ms: u64,
    /// When the lease ends.
    lease_until: String,
    /// Whether the operation was asked to stop.
    cancel_requested: bool,
}

/// A success.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FinishRequest {
    /// The number of the attempt.
    #[schema(minimum = 1)]
    attempt: u32,
    /// The token that its begin returned.
    token: String,
    /// What it changed; what the policy says if absent.
    effect: Option<Effect>,
    /// The result. Retries get it byte for byte.
    #[schema(value_type = Option<serde_json::Value>)]
    data: Option<Box<RawValue>>,
    /// An explanation, for example why nothing had to be changed.
    reason: Option<String>,
}

/// Why it is certain that an attempt had no effect. What is not in this list is in doubt.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NoEffect {
    /// The attempt ended before it made its request.
    NotStarted,
    /// The request never left: no name, no connection, no TLS.
    NotSent,
    /// The other side refused it before executing it. The reason names the documented rule.
    Refused,
    /// The author of the program declares that this error means no effect. The reason says which.
    Declared,
}

impl NoEffect {
    /// The reason is not repeated here: it is the caller's own text, which may be sealed or redacted.
    fn evidence(self) -> Evidence {
        match self {
            Self::NotStarted => Evidence::NotStarted,
            Self::NotSent => Evidence::NotSent,
            Self::Refused => Evidence::refused("as its caller reports"),
            Self::Declared => Evidence::declared("by its caller"),
        }
    }
}

/// A failure.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FailRequest {
    /// The number of the attempt.
    #[schema(minimum = 1)]
    attempt: u32,
    /// The token that its begin returned.
    token: String,
    /// Why it is certain that nothing happened.
    evidence: NoEffect,
    /// What went wrong.
    #[schema(min_length = 1)]
    reason: String,
    /// What the attempt returned.
    #[schema(value_type = Option<serde_json::Value>)]
    data: Option<Box<RawValue>>,
}

/// A doubt.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DoubtRequest {
    /// The number of the attempt.
    #[schema(minimum = 1)]
    attempt: u32,
    /// The token that its begin returned.
    token: String,
    /// What went wrong.
    #[schema(min_length = 1)]
    reason: String,
    /// What the attempt returned.
    #[schema(value_type = Option<serde_json::Value>)]
    data: Option<Box<RawValue>>,
}

/// Renews the lease of an attempt.
#[utoipa::path(
    post,
    path = "/v1/operations/{id}/renew",
    tag = "attempts",
    operation_id = "renew",
    params(("id" = String, Path, description = "The operation")),
    request_body = RenewRequest,
    responses(
        (status = 200, description = "The attempt is presumed alive until then", body = RenewedLease),
        (status = 400, description = "INVALID_INPUT: among others, a wrong token"),
        (status = 404, description = "NOT_FOUND"),
        (status = 422, description = "WRONG_STATE: it has ended, or its lease has lapsed. Still report how it ended"),
    )
)]
pub(super) async fn renew(
    AppState(app): AppState<Arc<App>>,
    tenant: Tenant,
    Id(id): Id,
    JsonBody(request): JsonBody<RenewRequest>,
) -> Result<Json<RenewedLease>, ProblemResponse> {
    let ledger = &tenant.ledger;
    let owner = token::check(ledger.identity(), &id, request.attempt, &request.token)?;
    let (record, state) = ledger.find(&id).await?;
    let lease_ms = match request.lease_ms {
        None => app.policy.settings(&record.name)?.terms.lease_ms,
        Some(ms) if LEASE_MS.contains(&ms) => ms,
        Some(_) => {
            let problem = format!("lease_ms: must be {} to {}", LEASE_MS.start(), LEASE_MS.end());
            return Err(InvalidInput::new(problem).into());
        }
    };
    let place = tenant.place(&id);
    let is_held = app.leases.renew(&place, request.attempt, Duration::from_millis(lease_ms));
    let record = match ledger.watch() {
        LivenessSource::Kernel if is_held => record,
        LivenessSource::Kernel => return Err(too_late("renewing", record, state, request.attempt).into()),
        LivenessSource::Lease => match ledger.attempts().renew(&id, request.attempt, owner, lease_ms).await {
            Err(Error::WrongState { action, record }) => {
                let state = record.state;
                return Err(too_late(action, record, state, request.attempt).into());
            }
            renewed => renewed?,
        },
    };
    Ok(Json(RenewedLease {
        lease_ms,
        lease_until: rfc3339(onceward::transition::later(ledger.clock_ms(), lease_ms)),
        cancel_requested: record.detail.cancel_requested_ms.is_some(),
    }))
}

/// The error of an attempt that has ended, whose lease has lapsed, or that another attempt has overtaken.
fn too_late(action: &'static str, record: Arc<Record>, state: State, attempt: u32) -> Error {
    let action = match (record.attempt == attempt, action) {
        (true, _) => action,
        (false, "dispatching") => "dispatching an attempt that another one has overtaken",
        (false, _) => "renewing an attempt that another one has overtaken",
    };
    Error::WrongState { action, record: seen_as(record, state) }
}

/// Records that the request of an attempt is about to be sent.
#[utoipa::path(
    post,
    path = "/v1/operations/{id}/dispatch",
    tag = "attempts",
    operation_id = "dispatch",
    params(("id" = String, Path, description = "The operation")),
    request_body = AttemptRequest,
    responses(
        (status = 200, description = "Noted: send the request", body = OperationDetail),
        (status = 400, description = "INVALID_INPUT: among others, a wrong token"),
        (status = 404, description = "NOT_FOUND"),
        (status = 422, description = "WRONG_STATE: the attempt has ended, was asked to stop, or its lease has lapsed. \
            Send nothing"),
        (status = "default", description = "Any other problem. Send nothing"),
    )
)]
pub(super) async fn dispatch(
    AppState(app): AppState<Arc<App>>,
    tenant: Tenant,
    Id(id): Id,
    JsonBody(request): JsonBody<AttemptRequest>,
) -> Result<Json<OperationDetail>, ProblemResponse> {
    let ledger = &tenant.ledger;
    token::check(ledger.identity(), &id, request.attempt, &request.token)?;
    let place = tenant.place(&id);
    let held = app.leases.attempt(&place, request.attempt);
    let (record, state) = ledger.find(&id).await?;
    let is_running = state == State::Running && record.attempt == request.attempt;
    if is_running && record.detail.cancel_requested_ms.is_some() {
        let action = "dispatching an attempt that was asked to stop";
        return Err(Error::WrongState { action, record }.into());
    }
    match (held, ledger.watch()) {
        (Some(attempt), _) if is_running => {
            let noted = attempt.dispatch().map_err(|failure| StoreError::unavailable(failure.reason()));
            noted.map_err(Error::from)?;
            app.leases.note_dispatch(&place, request.attempt);
        }
        // Another server of this ledger holds the attempt, and its lease alone tells whether it is alive.
        (None, LivenessSource::Lease) if is_running => {}
        (_, LivenessSource::Kernel | LivenessSource::Lease) => {
            return Err(too_late("dispatching", record, state, request.attempt).into());
        }
    }
    Ok(Json(OperationDetail::of(&record, state)))
}

/// Records that an attempt is done.
#[utoipa::path(
    post,
    path = "/v1/operations/{id}/finish",
    tag = "attempts",
    operation_id = "finish",
    params(("id" = String, Path, description = "The operation")),
    request_body = FinishRequest,
    responses(
        (status = 200, description = "Recorded. A late report is recorded too: see `state` and `warnings`",
            body = OperationDetail),
        (status = 400, description = "INVALID_INPUT: among others, a wrong token"),
        (status = 404, description = "NOT_FOUND"),
        (status = 422, description = "WRONG_STATE: the attempt has reported a success, and this report differs"),
    )
)]
pub(super) async fn finish(
    AppState(app): AppState<Arc<App>>,
    tenant: Tenant,
    Id(id): Id,
    headers: HeaderMap,
    JsonBody(request): JsonBody<FinishRequest>,
) -> Result<Json<OperationDetail>, ProblemResponse> {
    let FinishRequest { attempt, token, effect, data, reason } = request;
    if effect.is_some_and(|effect| !Effect::REAL.contains(&effect)) {
        return Err(InvalidInput::new("effect: must be created, updated, deleted or noop").into());
    }
    let outcome = Outcome { effect, data: data.map(Arc::from), ..Outcome::because(reason) };
    end(app, tenant, id, &headers, (attempt, token), Ending::Done(outcome)).await
}

/// Records that an attempt certainly had no effect.
#[utoipa::path(
    post,
    path = "/v1/operations/{id}/fail",
    tag = "attempts",
    operation_id = "fail",
    params(("id" = String, Path, description = "The operation")),
    request_body = FailRequest,
    responses(
        (status = 200, description = "Recorded: a retry may run it, within its budget", body = OperationDetail),
        (status = 400, description = "INVALID_INPUT: among others, a wrong token, or evidence that contradicts a \
            dispatch that was reported"),
        (status = 404, description = "NOT_FOUND"),
        (status = 422, description = "WRONG_STATE: the attempt has reported a success, and this report differs"),
    )
)]
pub(super) async fn fail(
    AppState(app): AppState<Arc<App>>,
    tenant: Tenant,
    Id(id): Id,
    headers: HeaderMap,
    JsonBody(request): JsonBody<FailRequest>,
) -> Result<Json<OperationDetail>, ProblemResponse> {
    let FailRequest { attempt, token, evidence, reason, data } = request;
    let ending = Ending::Failed(evidence.evidence(), outcome_of(reason, data)?);
    token::check(tenant.ledger.identity(), &id, attempt, &token)?;
    let is_dispatched = || app.leases.is_dispatched(&tenant.place(&id), attempt);
    if matches!(evidence, NoEffect::NotStarted) && is_dispatched() {
        let problem = "evidence: `not_started` contradicts the dispatch that this attempt reported. If no connection \
                       was made, say `not_sent`; if you do not know, report a doubt with POST …/doubt";
        return Err(InvalidInput::new(problem).into());
    }
    end(app, tenant, id, &headers, (attempt, token), ending).await
}

/// Records that it is unknown whether an attempt had an effect.
#[utoipa::path(
    post,
    path = "/v1/operations/{id}/doubt",
    tag = "attempts",
    operation_id = "doubt",
    params(("id" = String, Path, description = "The operation")),
    request_body = DoubtRequest,
    responses(
        (status = 200, description = "Recorded: it stays in doubt until its class, a settlement or a late answer \
            resolves it", body = OperationDetail),
        (status = 400, description = "INVALID_INPUT: among others, a wrong token"),
        (status = 404, description = "NOT_FOUND"),
        (status = 422, description = "WRONG_STATE: the attempt has reported a success, and this report differs"),
    )
)]
pub(super) async fn doubt(
    AppState(app): AppState<Arc<App>>,
    tenant: Tenant,
    Id(id): Id,
    headers: HeaderMap,
    JsonBody(request): JsonBody<DoubtRequest>,
) -> Result<Json<OperationDetail>, ProblemResponse> {
    let DoubtRequest { attempt, token, reason, data } = request;
    let ending = Ending::InDoubt(outcome_of(reason, data)?);
    end(app, tenant, id, &headers, (attempt, token), ending).await
}

fn outcome_of(reason: String, data: Option<Box<RawValue>>) -> Result<Outcome, InvalidInput> {
    if reason.trim().is_empty() {
        return Err(InvalidInput::new("reason: say what happened"));
    }
    Ok(Outcome { data: data.map(Arc::from), ..Outcome::because(Some(reason)) })
}

/// Writes an ending. It is written even if the client disconnects meanwhile.
async fn end(
    app: Arc<App>,
    tenant: Tenant,
    id: onceward::OperationId,
    headers: &HeaderMap,
    (attempt, token): (u32, String),
    ending: Ending,
) -> Result<Json<OperationDetail>, ProblemResponse> {
    token::check(tenant.ledger.identity(), &id, attempt, &token)?;
    let (tasks, app) = (app.tasks.clone(), Arc::clone(&app));
    let span = telemetry::call_span(CallSurface::Api, headers::only(headers, "traceparent"));
    let write = async move {
        let (record, _) = tenant.ledger.find(&id).await?;
        let settings = app.policy.settings(&record.name)?;
        let ending = match settings.terms.redact.ending(ending) {
            Ending::Done(outcome) => {
                Ending::Done(Outcome { effect: outcome.effect.or(Some(settings.effect)), ..outcome })
            }
            ending @ (Ending::Failed(..) | Ending::InDoubt(_)) => ending,
        };
        let outcome = match &ending {
            Ending::Done(_) => telemetry::Outcome::Done,
            Ending::Failed(..) => telemetry::Outcome::Failed,
            Ending::InDoubt(_) => telemetry::Outcome::InDoubt,
        };
        let record = tenant.ledger.attempts().finish(&id, attempt, &ending).await?;
        let took_ms = u64::try_from(tenant.ledger.clock_ms() - record.created_ms).unwrap_or(0);
        let took = Duration::from_millis(took_ms);
        telemetry::attempt_ended(CallSurface::Api, &record, outcome, took, &app.metrics);
        app.leases.release(&tenant.place(&id), attempt);
        inbox::reported(&app.inbox, tenant.name.as_deref(), &record);
        Ok::<_, Error>(OperationDetail::of(&record, record.state))
    };
    match tasks.spawn(write.instrument(span)).await {
        Ok(detail) => Ok(Json(detail?)),
        Err(_) => Err(Error::from(StoreError::unavailable("the server is ending")).into()),
    }
}
