//! The webhook inbox: its events, and fetching them.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State as AppState};
use data_encoding::BASE64;
use onceward::event::Fate;
use onceward::transition::later;
use onceward::{Begun, Cursor, Error, InvalidInput, Record, rfc3339};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{JsonBody, Params};
use super::operations::token;
use crate::App;
use crate::inbox::admin::{Again, EventList, EventView, Events, Progress, Wanted};
use crate::inbox::rejected::Refused;
use crate::inbox::{Handler, Hook, Job, Next, Seen, Target, after_error, follow, look};
use crate::problem::ProblemResponse;
use crate::tenant::Tenant;
use crate::time;

/// The most events on one page, and how many there are if the caller does not say.
const MAX_PAGE: usize = 500;
const PAGE: usize = 50;
/// The most events that are fetched at once.
const MAX_FETCH: usize = 100;
/// The longest wait for an event.
const MAX_WAIT_MS: u64 = 60_000;
/// The shortest and the longest lease, and the one if the caller does not say.
const LEASE_MS: std::ops::RangeInclusive<u64> = 100..=3_600_000;
const LEASE: u64 = 30_000;
/// How long after its lease a delivery is looked at: its lock is released a little after the lease.
const AFTER_LEASE: Duration = Duration::from_millis(200);

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(sources))
        .routes(routes!(events))
        .routes(routes!(event))
        .routes(routes!(retry))
        .routes(routes!(replay))
        .routes(routes!(rejected))
        .routes(routes!(receive))
}

/// A source and its handlers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SourceView {
    source: String,
    /// The vendor.
    preset: String,
    /// Events that this server is delivering.
    backlog: usize,
    handlers: Vec<HandlerView>,
}

/// A handler.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HandlerView {
    name: String,
    /// `url`, `command` or `pull`.
    kind: &'static str,
    /// What may be done about a delivery in doubt.
    class: onceward::Class,
    /// Whether it gets a rest, because it failed again and again.
    resting: bool,
}

/// All sources.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SourceList {
    sources: Vec<SourceView>,
}

/// Which events to list. All conditions must hold.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventQuery {
    /// Only in these places, separated by commas: `pending,dead,in_doubt,done,expired`.
    progress: Option<String>,
    /// Only of this kind.
    #[serde(rename = "type")]
    kind: Option<String>,
    /// The most events on the page: 1 to 500, 50 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// The `next_cursor` of the page before.
    #[param(pattern = "^[0-9]{1,19}$")]
    cursor: Option<String>,
}

/// Whether a doubt is settled on the caller's word.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RetryRequest {
    /// Say that a delivery in doubt did not happen.
    again: bool,
}

/// Requests that ran nothing.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RefusedList {
    /// The newest first. They are kept in the server's memory.
    rejected: Vec<Refused>,
}

/// What to fetch.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ReceiveRequest {
    /// The handler; needed if the source has several with `pull = true`.
    handler: Option<String>,
    /// The most events: 1 to 100, 1 by default.
    #[schema(minimum = 1, maximum = 100)]
    max: Option<usize>,
    /// How long each event is reserved; 30,000 by default.
    #[schema(minimum = 100, maximum = 3_600_000)]
    lease_ms: Option<u64>,
    /// How long to wait for the first event; 0 by default.
    #[schema(maximum = 60_000)]
    wait_ms: Option<u64>,
}

/// Fetched events.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReceivedEvents {
    events: Vec<ReceivedEvent>,
}

/// A fetched event. Report how it went with `/v1/operations/{operation}/finish`, `fail` or `doubt`, and renew its lease
/// with `renew`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReceivedEvent {
    source: String,
    /// The delivery.
    operation: String,
    attempt: u32,
    /// Proves that the caller fetched it.
    token: String,
    lease_ms: u64,
    /// The same for every attempt: pass it on to what deduplicates.
    idempotency_key: String,
    /// The event's key.
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    received: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    occurred: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    headers: Vec<(String, String)>,
    /// The body, if it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    /// The body in base64, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
}

/// Lists the sources and their handlers.
#[utoipa::path(
    get,
    path = "/v1/inbox",
    tag = "inbox",
    operation_id = "inbox_sources",
    responses(
        (status = 200, description = "The sources", body = SourceList),
    )
)]
async fn sources(AppState(app): AppState<Arc<App>>, tenant: Tenant) -> Json<SourceList> {
    let own = app.inbox.hooks().filter(|hook| hook.tenant.name == tenant.name);
    let view = |hook: &Arc<Hook>| SourceView {
        source: hook.name().to_owned(),
        preset: hook.source.preset().about.title.clone(),
        backlog: hook.backlog(),
        handlers: hook.handlers.values().map(|handler| HandlerView::of(handler)).collect(),
    };
    Json(SourceList { sources: own.map(view).collect() })
}

impl HandlerView {
    fn of(handler: &Handler) -> Self {
        Self {
            name: handler.name.clone(),
            kind: handler.target.as_str(),
            class: handler.terms.class,
            resting: handler.queue.is_resting(),
        }
    }
}

/// Lists the events of a source, newest first.
#[utoipa::path(
    get,
    path = "/v1/inbox/{source}/events",
    tag = "inbox",
    operation_id = "inbox_events",
    params(("source" = String, Path, description = "The source"), EventQuery),
    responses(
        (status = 200, description = "A page of events", body = EventList),
        (status = 400, description = "INVALID_INPUT"),
    )
)]
async fn events(
    tenant: Tenant,
    Path(source): Path<String>,
    Params(query): Params<EventQuery>,
) -> Result<Json<EventList>, ProblemResponse> {
    Ok(Json(Events::new(tenant.store).list(&query.wanted(source)?).await?))
}

impl EventQuery {
    fn wanted(self, source: String) -> Result<Wanted, InvalidInput> {
        let limit = self.limit.unwrap_or(PAGE);
        if !(1..=MAX_PAGE).contains(&limit) {
            return Err(InvalidInput::new(format!("limit: must be 1 to {MAX_PAGE}")));
        }
        let before = self.cursor.map(|cursor| cursor.parse().map(Cursor));
        let before = before.transpose().map_err(|_| InvalidInput::new("cursor: it is not one"))?;
        let words = self.progress.as_deref().unwrap_or_default().split(',').map(str::trim);
        let mut progress = Vec::new();
        for word in words.filter(|word| !word.is_empty()) {
            let known = Progress::ALL.into_iter().find(|known| known.as_str() == word);
            progress.push(known.ok_or_else(|| {
                let all = Progress::ALL.map(Progress::as_str).join(", ");
                InvalidInput::new(format!("progress: must be some of {all}"))
            })?);
        }
        Ok(Wanted { source: Some(source), progress, kind: self.kind, limit, before, ..Wanted::default() })
    }
}

/// Shows an event.
#[utoipa::path(
    get,
    path = "/v1/inbox/{source}/events/{key}",
    tag = "inbox",
    operation_id = "inbox_event",
    params(("source" = String, Path, description = "The source"),
        ("key" = String, Path, description = "The event: its key, or the vendor's id")),
    responses(
        (status = 200, description = "The event", body = EventView),
        (status = 404, description = "NOT_FOUND"),
    )
)]
async fn event(
    tenant: Tenant,
    Path((source, key)): Path<(String, String)>,
) -> Result<Json<EventView>, ProblemResponse> {
    let events = Events::new(tenant.store);
    let (source, record) = events.find(&key, Some(&source)).await?;
    Ok(Json(events.view(&source, &record).await?))
}

/// Gives the failed deliveries of an event a new budget of attempts.
#[utoipa::path(
    post,
    path = "/v1/inbox/{source}/events/{key}/retry",
    tag = "inbox",
    operation_id = "inbox_retry",
    params(("source" = String, Path, description = "The source"),
        ("key" = String, Path, description = "The event: its key, or the vendor's id")),
    request_body = RetryRequest,
    responses(
        (status = 200, description = "It is being delivered", body = EventView),
        (status = 400, description = "INVALID_INPUT: nothing has failed, or a doubt forbids it"),
        (status = 404, description = "NOT_FOUND"),
    )
)]
async fn retry(
    AppState(app): AppState<Arc<App>>,
    tenant: Tenant,
    Path((source, key)): Path<(String, String)>,
    JsonBody(request): JsonBody<RetryRequest>,
) -> Result<Json<EventView>, ProblemResponse> {
    let events = Events::new(tenant.store);
    let (source, record) = events.find(&key, Some(&source)).await?;
    let again = if request.again { Again::Yes } else { Again::No };
    let view = events.retry(&source, &record, again, "a caller of the API (retry)").await?;
    released(&app, tenant.name.as_deref(), &source);
    Ok(Json(view))
}

/// Delivers an event again on purpose, to the handlers that it had when it arrived.
#[utoipa::path(
    post,
    path = "/v1/inbox/{source}/events/{key}/replay",
    tag = "inbox",
    operation_id = "inbox_replay",
    params(("source" = String, Path, description = "The source"),
        ("key" = String, Path, description = "The event: its key, or the vendor's id")),
    responses(
        (status = 200, description = "It is being delivered again", body = EventView),
        (status = 400, description = "INVALID_INPUT: it is still being delivered, or its content has expired"),
        (status = 404, description = "NOT_FOUND"),
    )
)]
async fn replay(
    AppState(app): AppState<Arc<App>>,
    tenant: Tenant,
    Path((source, key)): Path<(String, String)>,
) -> Result<Json<EventView>, ProblemResponse> {
    let events = Events::new(tenant.store);
    let (source, record) = events.find(&key, Some(&source)).await?;
    let view = events.replay(&source, &record).await?;
    released(&app, tenant.name.as_deref(), &source);
    Ok(Json(view))
}

/// Looks for an event that was released.
fn released(app: &App, tenant: Option<&str>, source: &str) {
    if let Some(hook) = app.inbox.of_tenant(tenant, source) {
        hook.look();
    }
}

/// Lists the newest requests that ran nothing: not authentic, or suspected replays.
#[utoipa::path(
    get,
    path = "/v1/inbox/{source}/rejected",
    tag = "inbox",
    operation_id = "inbox_rejected",
    params(("source" = String, Path, description = "The source")),
    responses(
        (status = 200, description = "The requests", body = RefusedList),
        (status = 404, description = "NOT_FOUND"),
    )
)]
async fn rejected(
    AppState(app): AppState<Arc<App>>,
    tenant: Tenant,
    Path(source): Path<String>,
) -> Result<Json<RefusedList>, ProblemResponse> {
    let hook = own_hook(&app, &tenant, &source)?;
    let rejected = app.inbox.refusals.of(|refused| refused.source == hook.name(), MAX_PAGE);
    Ok(Json(RefusedList { rejected }))
}

fn own_hook<'a>(app: &'a App, tenant: &Tenant, source: &str) -> Result<&'a Arc<Hook>, Error> {
    let shown = onceward::text::one_line(&source.chars().take(64).collect::<String>()).into_owned();
    app.inbox.of_tenant(tenant.name.as_deref(), source).ok_or(Error::NotFound { id: shown })
}

/// Fetches events for a handler with `pull = true`.
#[utoipa::path(
    post,
    path = "/v1/inbox/{source}/receive",
    tag = "inbox",
    operation_id = "inbox_receive",
    params(("source" = String, Path, description = "The source")),
    request_body = ReceiveRequest,
    responses(
        (status = 200, description = "The events; none if there were none in time", body = ReceivedEvents),
        (status = 400, description = "INVALID_INPUT"),
        (status = 404, description = "NOT_FOUND"),
    )
)]
async fn receive(
    AppState(app): AppState<Arc<App>>,
    tenant: Tenant,
    Path(source): Path<String>,
    JsonBody(request): JsonBody<ReceiveRequest>,
) -> Result<Json<ReceivedEvents>, ProblemResponse> {
    let hook = Arc::clone(own_hook(&app, &tenant, &source)?);
    let handler = Arc::clone(pull_handler(&hook, request.handler.as_deref())?);
    let (max, lease_ms) = (request.max.unwrap_or(1), request.lease_ms.unwrap_or(LEASE));
    let wait_ms = request.wait_ms.unwrap_or(0);
    let mut problems = Vec::new();
    if !(1..=MAX_FETCH).contains(&max) {
        problems.push(format!("max: must be 1 to {MAX_FETCH}"));
    }
    if !LEASE_MS.contains(&lease_ms) {
        problems.push(format!("lease_ms: must be {} to {}", LEASE_MS.start(), LEASE_MS.end()));
    }
    if wait_ms > MAX_WAIT_MS {
        problems.push(format!("wait_ms: must be at most {MAX_WAIT_MS}"));
    }
    if let Some(invalid) = InvalidInput::all(problems) {
        return Err(invalid.into());
    }
    let clock = hook.ledger().clock();
    let until_ms = later(clock.now_ms(), wait_ms);
    let mut events = Vec::new();
    while events.len() < max {
        let job = match handler.queue.take_ready() {
            Ok(job) => job,
            Err(_) if !events.is_empty() => break,
            Err(_) => {
                tokio::select! {
                    biased;
                    job = handler.queue.next() => job,
                    () = time::sleep_until(clock, until_ms) => break,
                }
            }
        };
        events.extend(fetch(&app, &hook, &handler, job, lease_ms).await);
    }
    Ok(Json(ReceivedEvents { events }))
}

fn pull_handler<'a>(hook: &'a Hook, name: Option<&str>) -> Result<&'a Arc<Handler>, InvalidInput> {
    let mut all = hook.handlers.values().filter(|handler| matches!(handler.target, Target::Pull));
    match (name, all.next(), all.next()) {
        (Some(name), _, _) => {
            hook.handlers.get(name).filter(|handler| matches!(handler.target, Target::Pull)).ok_or_else(
                || InvalidInput::new("handler: the source has no handler of that name with pull = true"),
            )
        }
        (None, Some(only), None) => Ok(only),
        (None, None, _) => Err(InvalidInput::new("this source has no handler with pull = true")),
        (None, Some(_), Some(_)) => {
            Err(InvalidInput::new("handler: this source has several handlers with pull = true; name one"))
        }
    }
}

/// Begins the delivery of an event for the caller, in a task of its own: it is reserved even if the caller disconnects,
/// until its lease lapses.
async fn fetch(
    app: &Arc<App>,
    hook: &Arc<Hook>,
    handler: &Arc<Handler>,
    job: Job,
    lease_ms: u64,
) -> Option<ReceivedEvent> {
    let (own, hook, handler) = (Arc::clone(app), Arc::clone(hook), Arc::clone(handler));
    let task = app.tasks.spawn(async move {
        let begun = begin(&own, &hook, &handler, &job, lease_ms).await;
        let after = |error| after_error(&handler, &job.item, &error, hook.ledger().clock_ms());
        match begun.unwrap_or_else(|error| Err(after(error))) {
            Ok(event) => Some(event),
            Err(next) => {
                follow(&own.metrics, &hook, &handler, &job.item, next).await;
                None
            }
        }
    });
    task.await.ok().flatten()
}

async fn begin(
    app: &Arc<App>,
    hook: &Hook,
    handler: &Handler,
    job: &Job,
    lease_ms: u64,
) -> Result<Result<ReceivedEvent, Next>, Error> {
    let (item, ledger) = (&job.item, hook.ledger());
    let mut intent = ledger.intent(handler.operation(hook.name(), item))?;
    intent.terms.lease_ms = lease_ms;
    if job.seen == Seen::Unknown
        && let Some(next) = look(hook, handler, item, &intent.id).await?
    {
        return Ok(Err(next));
    }
    let event = hook.tenant.store.load(&item.id).await?;
    let Some(event) = event.filter(|event| body_of(event).is_some()) else {
        return Ok(Err(Next::Forgotten));
    };
    let claim = match ledger.begin(&intent).await? {
        Begun::Execute(claim) => claim,
        Begun::Replay(_) => return Ok(Err(Next::Ended(Fate::Handled))),
    };
    let begun = Arc::clone(claim.record());
    let owner = begun.detail.owner.map_or(0, |owner| owner.token);
    let place = hook.tenant.place(&begun.id);
    app.leases.hold(place, claim, Duration::from_millis(lease_ms), ledger);
    // If the caller reports nothing, the event is looked at again after its lease.
    let again = Job { item: Arc::clone(item), seen: Seen::Unknown };
    handler.queue.again(again, Duration::from_millis(lease_ms) + AFTER_LEASE);
    let body = body_of(&event).unwrap_or_default();
    let text = std::str::from_utf8(body).ok();
    Ok(Ok(ReceivedEvent {
        source: hook.name().to_owned(),
        operation: begun.id.to_string(),
        attempt: begun.attempt,
        token: token::of(ledger.identity(), &begun.id, begun.attempt, owner),
        lease_ms,
        idempotency_key: hook.tenant.downstream_key(&begun.id),
        key: item.key.clone(),
        id: item.data.id.clone(),
        kind: item.data.kind.clone(),
        received: rfc3339(item.created_ms),
        occurred: item.data.occurred_ms.map(rfc3339),
        content_type: item.data.content_type.clone(),
        headers: item.data.headers.clone(),
        body: text.map(str::to_owned),
        body_base64: text.is_none().then(|| BASE64.encode(body)),
    }))
}

fn body_of(event: &Record) -> Option<&[u8]> {
    event.outcome.as_ref()?.body.as_deref()
}
