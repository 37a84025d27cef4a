//! Reading operations: one, a page of them, a report, and waiting for one.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderMap, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, stream};
use onceward::{Cursor, Error, Filter, InvalidInput, OperationId, Record, State};
use serde::Deserialize;
use utoipa::IntoParams;

use super::super::extract::{Id, Params};
use super::view::{OperationDetail, OperationList, OperationSummary, Report};
use crate::problem::ProblemResponse;
use crate::tenant::Tenant;

/// The most operations on one page, and how many there are if the caller does not say.
const MAX_PAGE: usize = 500;
const PAGE: usize = 50;
/// The longest wait, and how long it is if the caller does not say, in seconds.
const MAX_WAIT: u64 = 300;
const WAIT: u64 = 30;
/// How many open operations a report lists.
const MAX_OPEN: usize = 100;
/// How long a stream of events waits before it checks that the owner is still alive.
const LOOK_MS: u64 = 1_000;
/// The same if its attempt has reported a doubt. Its lock is released just after that is written.
const SOON_MS: u64 = 20;
/// How often it is looked at so soon before it is shown as running: a process that it left behind may hold its lock.
const PATIENCE: u32 = 10;
/// How often a stream of events shows that it is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Which operations to list. All conditions must hold.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// Only in this scope.
    scope: Option<String>,
    /// Only with this name.
    name: Option<String>,
    /// Only with exactly this key.
    key: Option<String>,
    /// Only in these states, separated by commas: `in_doubt,running`.
    state: Option<String>,
    /// Only created at this time or later (RFC 3339).
    #[param(format = "date-time")]
    since: Option<String>,
    /// Only created before this time (RFC 3339).
    #[param(format = "date-time")]
    until: Option<String>,
    /// The most operations on the page: 1 to 500, 50 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// The `next_cursor` of the page before.
    #[param(pattern = "^[0-9]{1,19}$")]
    cursor: Option<String>,
}

/// How long to wait.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WaitQuery {
    /// In seconds: 0 to 300, 30 by default.
    #[param(maximum = 300)]
    timeout: Option<u64>,
}

/// What to report on.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ReportQuery {
    /// Only this scope; all of them if absent.
    scope: Option<String>,
}

/// Shows an operation.
#[utoipa::path(
    get,
    path = "/v1/operations/{id}",
    tag = "operations",
    operation_id = "get",
    params(("id" = String, Path, description = "The operation")),
    responses(
        (status = 200, description = "The operation", body = OperationDetail),
        (status = 404, description = "NOT_FOUND"),
    )
)]
pub(super) async fn get(tenant: Tenant, Id(id): Id) -> Result<Json<OperationDetail>, ProblemResponse> {
    let (record, state) = tenant.ledger.find(&id).await?;
    Ok(Json(OperationDetail::of(&record, state)))
}

/// Lists operations, newest first.
#[utoipa::path(
    get,
    path = "/v1/operations",
    tag = "operations",
    operation_id = "list",
    params(ListQuery),
    responses(
        (status = 200, description = "A page of operations", body = OperationList),
        (status = 400, description = "INVALID_INPUT"),
    )
)]
pub(super) async fn list(
    tenant: Tenant,
    Params(query): Params<ListQuery>,
) -> Result<Json<OperationList>, ProblemResponse> {
    let mut filter = query.filter()?;
    let limit = filter.limit;
    // One more tells whether there is a next page.
    filter.limit += 1;
    let mut listed = tenant.ledger.list(&filter).await?;
    let more = listed.len() > limit;
    listed.truncate(limit);
    let last = listed.last().filter(|_| more).map(|(listed, _)| listed.cursor.0.to_string());
    let operations = listed.iter().map(|(listed, state)| OperationSummary::of(&listed.record, *state));
    Ok(Json(OperationList { operations: operations.collect(), next_cursor: last }))
}

impl ListQuery {
    fn filter(self) -> Result<Filter, InvalidInput> {
        let mut problems = Vec::new();
        let mut note = |what: &str, problem: &str| problems.push(format!("{what}: {problem}"));
        let states = self.state.as_deref().unwrap_or_default().split(',').map(str::trim);
        let names = || State::ALL.map(State::as_str).join(", ");
        let states = states.filter(|word| !word.is_empty()).filter_map(|word| {
            let state = word.parse::<State>().ok();
            if state.is_none() {
                note("state", &format!("must be some of {}", names()));
            }
            state
        });
        let states: Vec<State> = states.collect();
        let mut time = |what: &str, text: Option<String>| {
            let parsed = humantime::parse_rfc3339(&text?).ok();
            let since = parsed.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
            let ms = since.and_then(|since| i64::try_from(since.as_millis()).ok());
            if ms.is_none() {
                note(what, "must be a time like 2026-01-02T03:04:05Z");
            }
            ms
        };
        let (since_ms, until_ms) = (time("since", self.since), time("until", self.until));
        let limit = self.limit.unwrap_or(PAGE);
        if !(1..=MAX_PAGE).contains(&limit) {
            note("limit", "must be 1 to 500");
        }
        let is_cursor =
            |text: &String| (1..=19).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        let cursor = self.cursor.map(|text| text.parse::<i64>().ok().filter(|_| is_cursor(&text)));
        if cursor == Some(None) {
            note("cursor", "must be the `next_cursor` of another page");
        }
        if let Some(invalid) = InvalidInput::all(problems) {
            return Err(invalid);
        }
        Ok(Filter {
            scope: self.scope,
            name: self.name,
            key: self.key,
            since_ms,
            until_ms,
            states,
            before: cursor.flatten().map(Cursor),
            limit,
            ..Filter::default()
        })
    }
}

/// Reports whether every intent is accounted for.
#[utoipa::path(
    get,
    path = "/v1/report",
    tag = "operations",
    operation_id = "report",
    params(ReportQuery),
    responses(
        (status = 200, description = "The report", body = Report),
    )
)]
pub(super) async fn report(
    tenant: Tenant,
    Params(query): Params<ReportQuery>,
) -> Result<Json<Report>, ProblemResponse> {
    let all = Filter { scope: query.scope.clone(), ..Filter::default() };
    let counts = tenant.ledger.admin().totals(&all).await?;
    let states = vec![State::Staged, State::Running, State::InDoubt];
    let open = Filter { states: states.clone(), limit: MAX_OPEN + 1, ..all };
    let mut open = tenant.ledger.list(&open).await?;
    let more = open.len() > MAX_OPEN;
    open.truncate(MAX_OPEN);
    Ok(Json(Report {
        scope: query.scope,
        settled: open.is_empty() && states.iter().all(|state| !counts.contains_key(state)),
        total: counts.values().sum(),
        counts,
        open: open.iter().map(|(listed, state)| OperationSummary::of(&listed.record, *state)).collect(),
        more,
    }))
}

/// Waits until an operation is neither running nor held back.
///
/// With `Accept: text/event-stream`, each change is an event `operation`.
#[utoipa::path(
    get,
    path = "/v1/operations/{id}/wait",
    tag = "operations",
    operation_id = "wait",
    params(("id" = String, Path, description = "The operation"), WaitQuery),
    responses(
        (status = 200, description = "The operation as it is then, or after the timeout", content(
            (OperationDetail = "application/json"),
            (String = "text/event-stream"),
        )),
        (status = 400, description = "INVALID_INPUT"),
        (status = 404, description = "NOT_FOUND"),
    )
)]
pub(super) async fn wait(
    tenant: Tenant,
    Id(id): Id,
    Params(query): Params<WaitQuery>,
    headers: HeaderMap,
) -> Result<Response, ProblemResponse> {
    let seconds = query.timeout.unwrap_or(WAIT);
    if seconds > MAX_WAIT {
        return Err(InvalidInput::new(format!("timeout: must be at most {MAX_WAIT} seconds")).into());
    }
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    if accepted.flat_map(|value| value.split(',')).any(|kind| kind.trim().starts_with("text/event-stream")) {
        // An operation that is not there is a problem document, not an empty stream.
        tenant.ledger.find(&id).await?;
        let events = events(tenant, id, seconds * 1_000);
        return Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response());
    }
    let (record, state) = tenant.ledger.wait(&id, seconds * 1_000).await?;
    Ok(Json(OperationDetail::of(&record, state)).into_response())
}

/// The next event of a stream.
enum Next {
    Look { seen: Option<(u64, State)>, until_ms: i64 },
    End,
}

/// The changes of an operation, from its current state until it is neither running nor held back.
fn events(tenant: Tenant, id: OperationId, timeout_ms: u64) -> impl Stream<Item = Result<Event, Error>> {
    let until_ms = onceward::transition::later(tenant.ledger.clock_ms(), timeout_ms);
    stream::unfold(Next::Look { seen: None, until_ms }, move |next| {
        let (tenant, id) = (tenant.clone(), id.clone());
        async move {
            let Next::Look { seen, until_ms } = next else { return None };
            match next_change(&tenant, &id, seen, until_ms).await {
                Ok(Some((record, state))) => {
                    let detail = OperationDetail::of(&record, state);
                    let event = Event::default().event("operation").json_data(&detail).unwrap_or_default();
                    let is_open = matches!(state, State::Staged | State::Running);
                    let seen = Some((record.version, state));
                    let next = if is_open { Next::Look { seen, until_ms } } else { Next::End };
                    Some((Ok(event), next))
                }
                Ok(None) => None,
                Err(error) => Some((Err(error), Next::End)),
            }
        }
    })
}

/// Waits for a version or state other than `seen`; `None` after the timeout.
async fn next_change(
    tenant: &Tenant,
    id: &OperationId,
    seen: Option<(u64, State)>,
    until_ms: i64,
) -> Result<Option<(Arc<Record>, State)>, Error> {
    let mut patience = PATIENCE;
    loop {
        let (record, state) = tenant.ledger.find(id).await?;
        let is_ending = record.state == State::InDoubt && state == State::Running;
        if seen != Some((record.version, state)) && !(is_ending && patience > 0) {
            return Ok(Some((record, state)));
        }
        let left_ms = u64::try_from(until_ms.saturating_sub(tenant.ledger.clock_ms())).unwrap_or(0);
        if left_ms == 0 {
            return Ok(None);
        }
        let look_ms = if is_ending { SOON_MS } else { LOOK_MS };
        patience = patience.saturating_sub(u32::from(is_ending));
        tenant.store.changed(id, record.version, left_ms.min(look_ms)).await;
    }
}
