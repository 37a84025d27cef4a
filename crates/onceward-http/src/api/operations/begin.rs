//! Beginning an operation.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State as AppState;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use onceward::{
    Answer, Begun, Claim, Class, Effect, Ending, Error, Evidence, Intent, InvalidInput, Ledger, Operation,
    Preview, Ran, Receipt, RepeatRule, State, Surface,
};
use onceward::{OperationView, rfc3339};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tracing::Instrument;
use utoipa::ToSchema;

use super::super::extract::JsonBody;
use super::token;
use crate::App;
use crate::headers;
use crate::problem::ProblemResponse;
use crate::telemetry::{self, CallSurface};
use crate::tenant::Tenant;

/// The longest wait for another caller's attempt.
const MAX_WAIT_MS: u64 = 60_000;
/// The shortest and the longest lease.
const LEASE_MS: std::ops::RangeInclusive<u64> = 100..=3_600_000;

/// What a caller is about to do.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "charge_payment", "key": "order-7", "input": {"amount": 100}}))]
pub(crate) struct BeginRequest {
    /// The kind of action. The policy has rules by name.
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    name: String,
    /// The namespace of the key: a session, a run. `default` if absent.
    #[schema(min_length = 1, max_length = 255, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    scope: Option<String>,
    /// Identifies the action within scope and name: 1 to 255 visible ASCII characters. Derived from the input if
    /// absent; one of the two is needed.
    #[schema(min_length = 1, max_length = 255, pattern = "^[!-~]+$")]
    key: Option<String>,
    /// The inputs of the action. They are not stored; hashes of them tell a retry from a reused key.
    #[schema(value_type = Option<serde_json::Value>)]
    input: Option<Box<RawValue>>,
    /// The fields of the input that identify the action, as names or JSON pointers; all if absent.
    key_fields: Option<Vec<String>>,
    /// The fields of the input that may differ between a call and its retry.
    volatile: Option<Vec<String>>,
    /// 2, 3, … or any label, to do the same action again on purpose.
    occurrence: Option<Occurrence>,
    /// How safe it is to repeat when it is in doubt. If the policy sets a class for the name, only a stricter one is
    /// accepted.
    class: Option<Class>,
    /// How long the attempt is presumed alive without a renewal.
    #[schema(minimum = 100, maximum = 3_600_000)]
    lease_ms: Option<u64>,
    /// How long to wait for another caller's attempt before `IN_PROGRESS`.
    #[schema(maximum = 60_000)]
    wait_ms: Option<u64>,
    /// The most attempts, if fewer than the policy allows.
    #[schema(minimum = 1)]
    max_attempts: Option<u32>,
    /// Whether the caller reports its dispatch. If it is gone before that, there was certainly no effect.
    #[serde(default)]
    reports_dispatch: bool,
    /// Only say what the call would do; nothing is written.
    #[serde(default)]
    dry_run: bool,
    /// What a success changes, for the answer of a dry run.
    effect: Option<Effect>,
}

/// An occurrence: a number or a label.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
enum Occurrence {
    Number(i64),
    Label(String),
}

/// The caller must execute the action, then report how it ended.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BegunAttempt {
    operation: OperationView,
    /// The number of the attempt.
    attempt: u32,
    /// Proves that the caller began this attempt. Needed to renew and to end it.
    token: String,
    /// The attempt is presumed alive for this long. Renew it in time.
    lease_ms: u64,
    /// When the lease ends.
    lease_until: String,
    /// A key for a downstream that deduplicates: the same for every attempt.
    downstream_key: String,
}

/// Begins an operation.
#[utoipa::path(
    post,
    path = "/v1/operations",
    tag = "operations",
    operation_id = "begin",
    request_body = BeginRequest,
    responses(
        (status = 201, description = "The intent is durable: execute the action, then report how it ended",
            body = BegunAttempt, headers(("Location" = String, description = "The operation"))),
        (status = 200, description = "Already done, with the stored result; or the answer to a dry run", body = Answer),
        (status = 400, description = "INVALID_INPUT, KEY_MISSING"),
        (status = 409, description = "IN_PROGRESS: another caller executes it"),
        (status = 410, description = "KEY_EXPIRED, CANCELLED, UNDONE, RESULT_UNAVAILABLE"),
        (status = 422, description = "KEY_REUSED"),
        (status = 424, description = "IN_DOUBT, BUDGET_EXHAUSTED"),
        (status = 502, description = "FAILED, and the policy replays failures"),
    )
)]
pub(super) async fn begin(
    AppState(app): AppState<Arc<App>>,
    tenant: Tenant,
    headers: HeaderMap,
    JsonBody(request): JsonBody<BeginRequest>,
) -> Result<Response, ProblemResponse> {
    let trace = headers::only(&headers, "traceparent");
    let effect = request.effect.unwrap_or(app.policy.settings(&request.name)?.effect);
    let (dry_run, reports_dispatch) = (request.dry_run, request.reports_dispatch);
    let mut intent = tenant.ledger.intent(request.operation(&app)?.trace_parent(trace))?;
    intent.terms.class = strictest(&tenant.ledger, &intent).await?;
    if dry_run {
        let preview = Preview::of(&tenant.ledger.plan(&intent).await?, &intent, effect);
        return Ok(Json(Answer::preview(&preview, Vec::new(), &Surface::Http)).into_response());
    }
    let lease_ms = intent.terms.lease_ms;
    let span = telemetry::call_span(CallSurface::Api, trace);
    match begin_detached(&app, &tenant, intent, reports_dispatch).instrument(span).await? {
        Begun::Replay(receipt) => {
            let answer = Answer::of_wanted(
                &Ok(receipt),
                RepeatRule::Given,
                None,
                &Surface::Http,
                tenant.ledger.clock_ms(),
            );
            Ok(Json(answer).into_response())
        }
        Begun::Execute(claim) => Ok(begun(&app, &tenant, claim, lease_ms)),
    }
}

/// Begins in a task of its own. If the client disconnects before it is given the attempt, nothing was run.
async fn begin_detached(
    app: &App,
    tenant: &Tenant,
    intent: Intent,
    reports_dispatch: bool,
) -> Result<Begun, ProblemResponse> {
    let (give, take) = oneshot::channel();
    let (ledger, asked, window_ms) = (tenant.ledger.clone(), Instant::now(), intent.terms.repeat_window_ms);
    app.tasks.spawn(async move {
        let begun = if reports_dispatch {
            ledger.begin_undispatched(&intent).await
        } else {
            ledger.begin(&intent).await
        };
        if let Err(Ok(Begun::Execute(claim))) = give.send(begun) {
            let reason = "the caller disconnected before it was given the attempt, so nothing was run";
            match claim.finish(Ending::failed(Evidence::NotStarted, reason)).await {
                // An ending that could not be written leaves the operation in doubt.
                Ok(_) | Err(_) => {}
            }
        }
    });
    match take.await {
        Ok(Ok(Begun::Execute(claim))) => {
            telemetry::operation(&claim.record().id);
            Ok(Begun::Execute(claim))
        }
        Ok(Ok(Begun::Replay(receipt))) => ended(app, Ok(receipt), asked),
        Ok(Err(error)) => {
            drop(tenant.ledger.attempts().refusal_delivered(&error, window_ms).await);
            ended(app, Err(error), asked)
        }
        Err(_) => Err(Error::from(onceward::StoreError::unavailable("the server is ending")).into()),
    }
}

/// Reports a call that ends with its begin.
fn ended(app: &App, result: Result<Receipt, Error>, asked: Instant) -> Result<Begun, ProblemResponse> {
    telemetry::ended(CallSurface::Api, &result, asked.elapsed(), Some(&app.metrics));
    Ok(result.map(Begun::Replay)?)
}

/// Holds the attempt's lock for the caller, and gives it the token.
fn begun(app: &App, tenant: &Tenant, claim: Claim, lease_ms: u64) -> Response {
    let record = Arc::clone(claim.record());
    let owner = record.detail.owner.map_or(0, |owner| owner.token);
    let answer = BegunAttempt {
        operation: OperationView::of(&record, State::Running, Ran::Yes),
        attempt: record.attempt,
        token: token::of(tenant.ledger.identity(), &record.id, record.attempt, owner),
        lease_ms,
        lease_until: rfc3339(onceward::transition::later(tenant.ledger.clock_ms(), lease_ms)),
        downstream_key: tenant.downstream_key(&record.id),
    };
    let place = tenant.place(&record.id);
    app.leases.hold(place, claim, Duration::from_millis(lease_ms), &tenant.ledger);
    let mut response = (StatusCode::CREATED, Json(answer)).into_response();
    if let Ok(location) = HeaderValue::try_from(format!("/v1/operations/{}", record.id)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

impl BeginRequest {
    /// The operation, by the policy's rules for its name and what the caller may choose.
    fn operation(self, app: &App) -> Result<Operation, Error> {
        let settings = app.policy.settings(&self.name)?;
        let mut terms = settings.terms;
        let mut problems = Vec::new();
        if let Some(class) = self.class {
            match (class, app.policy.class_of(&self.name)) {
                (Class::Read, _) => {
                    problems.push("class: a read changes nothing, so it needs no operation".to_owned())
                }
                (_, Some(set)) if strictness(class) < strictness(set) => {
                    problems.push(format!("class: the policy says {set}, and {class} is less strict"));
                }
                (_, _) => terms.class = class,
            }
        }
        if let Some(lease_ms) = self.lease_ms {
            if !LEASE_MS.contains(&lease_ms) {
                problems.push(format!("lease_ms: must be {} to {}", LEASE_MS.start(), LEASE_MS.end()));
            }
            terms.lease_ms = lease_ms;
        }
        terms.wait_ms = self.wait_ms.unwrap_or(terms.wait_ms.min(MAX_WAIT_MS));
        if terms.wait_ms > MAX_WAIT_MS {
            problems.push(format!("wait_ms: must be at most {MAX_WAIT_MS}"));
        }
        if self.scope.as_ref().is_some_and(|scope| scope.starts_with(crate::inbox::record::SCOPE_PREFIX)) {
            problems.push("scope: this one belongs to the webhook inbox".to_owned());
        }
        if let Some(attempts) = self.max_attempts {
            if attempts > terms.max_attempts {
                problems.push(format!("max_attempts: the policy allows {}", terms.max_attempts));
            }
            terms.max_attempts = attempts;
        }
        if self.effect.is_some_and(|effect| !Effect::REAL.contains(&effect)) {
            problems.push("effect: must be created, updated, deleted or noop".to_owned());
        }
        // As a label it would be an action of its own, which a caller that counts from 0 does not mean.
        let is_zero = match &self.occurrence {
            Some(Occurrence::Number(number)) => *number < 1,
            Some(Occurrence::Label(label)) => label == "0",
            None => false,
        };
        if is_zero {
            problems.push("occurrence: must be 1, 2, 3, … or a label; the first one is 1".to_owned());
        }
        if let Some(invalid) = InvalidInput::all(problems) {
            return Err(invalid.into());
        }
        // Without either, all calls with this name would be one operation.
        if self.key.is_none() && self.input.is_none() {
            return Err(Error::KeyMissing { name: self.name });
        }
        let mut operation = Operation::new(self.name)
            .terms(terms)
            .key_fields(self.key_fields.unwrap_or(settings.key_fields))
            .volatile(self.volatile.unwrap_or(settings.volatile));
        if let Some(scope) = self.scope {
            operation = operation.scope(scope);
        }
        if let Some(input) = self.input {
            operation = operation.input_json(input.get());
        }
        if let Some(occurrence) = self.occurrence {
            operation = operation.occurrence(match occurrence {
                Occurrence::Number(number) => number.to_string(),
                Occurrence::Label(label) => label,
            });
        }
        // With a given key, the fields of the policy say nothing about the identity.
        Ok(match self.key {
            Some(key) => operation.key_fields([""; 0]).key(key),
            None => operation,
        })
    }
}

/// The class of an operation that may have an attempt whose outcome is unknown: the one with which it was begun, if
/// that is stricter. What one caller must not repeat, another one must not either.
async fn strictest(ledger: &Ledger, intent: &Intent) -> Result<Class, Error> {
    let wanted = intent.terms.class;
    let begun = match ledger.find(&intent.id).await {
        Ok((record, State::Running | State::InDoubt)) => record.detail.class,
        Ok((_, State::Staged | State::Done | State::Failed | State::Cancelled | State::Expired))
        | Err(Error::NotFound { .. }) => wanted,
        Err(error) => return Err(error),
    };
    Ok(if strictness(begun) > strictness(wanted) { begun } else { wanted })
}

/// How strict a class is: its place among all of them.
fn strictness(class: Class) -> usize {
    Class::ALL.iter().position(|known| *known == class).unwrap_or(Class::ALL.len())
}
