//! A mutating request: which operation it is, one call of the ledger, and the answer.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use hyper::StatusCode;
use onceward::transition::later;
use onceward::{
    Attempt, Class, Error, Happened, HeldBy, Hold, Intent, InvalidInput, Ledger, Operation, OperationId,
    Pointer, Preview, Ran, Receipt, Record, RefusalOf, State, Verification,
};

use super::aliases::{self, NewKey, Resolved, Unresolved};
use super::checks::Check;
use super::content::{Kind, Request};
use super::context::RequestContext;
use super::exchange::{Exchange, LEFT};
use super::names;
use super::policy::OperationRule;
use super::probes::{self, ProbeContext};
use super::reply::{self, Reply};
use super::rules::{Part, Placement};
use super::upstream::Ruling;
use super::{actions, graphql, pass};
use crate::headers::{self, KEY};
use crate::telemetry::{self, CallSurface};
use crate::time;

/// The name of this surface in a record.
const SURFACE: &str = "gateway";
/// The first pause before an upstream is asked again whether a request in doubt happened.
const PROBE_PAUSE: Duration = Duration::from_millis(200);

/// What the policy says about the operation: by its name, and by its name without the action.
fn rule(context: &RequestContext) -> Result<OperationRule, InvalidInput> {
    OperationRule::of_any(&context.gateway.policy, &[&name(context), &context.bare_name()])
}

fn name(context: &RequestContext) -> String {
    let (method, action) = (context.request.method.as_str(), context.request.action());
    names::name(&context.upstream.name, method, &context.path, action.as_deref())
}

/// Makes the call and answers it. Runs to its end even if the client is gone.
pub(crate) async fn run(context: RequestContext) -> Response {
    let target = context.request.target();
    let rule = match rule(&context) {
        Ok(rule) => rule,
        Err(invalid) => return reply::problem(&invalid.into()),
    };
    let mut ruling = context.upstream.ruling(&context.request.method, &context.path, target.as_deref(), rule);
    if actions::overrides(&context.request.method, &context.request.headers)
        && matches!(ruling.terms.class, Class::Read | Class::Idempotent)
    {
        // The rules are about another method than the one that the upstream may execute.
        (ruling.key, ruling.terms.class) = (None, without_key(&ruling));
    }
    let is_query = ruling.key.as_ref().is_some_and(|key| key.part == Part::Graphql)
        && graphql::is_read(&context.request.body);
    if ruling.terms.class == Class::Read || is_query {
        return pass::spooled(&context.upstream, &context.request).await;
    }
    let place = usable_place(&mut ruling, &context.request);
    let vendor_key = ruling.key.as_ref().and_then(|place| context.request.key_at(place));
    let key = headers::key(&context.request.headers, &KEY).or(vendor_key.clone());
    let is_signed = context.request.is_signed();
    if is_signed && ruling.key.is_some() && vendor_key.is_none() {
        // No key can be added to a request that is signed.
        (ruling.key, ruling.terms.class) = (None, without_key(&ruling));
    }
    if let Some(place) = ruling.key.as_ref().filter(|_| !is_signed)
        && let Err(why) = context.request.with_key(place, "key")
    {
        // No retry can change this, so it is not an attempt.
        let detail = format!("{why}; nothing was sent");
        return reply::refusal(StatusCode::BAD_REQUEST, "INVALID_INPUT", Some(Happened::No), &detail);
    }
    let operation = match operation(&context, &ruling, place.as_ref(), key.is_none()) {
        Ok(operation) => operation,
        Err(error) => return reply::problem(&error),
    };
    let operation = match (&vendor_key, is_signed) {
        (Some(pinned), true) => operation.downstream_key(pinned.clone()),
        (Some(_) | None, _) => operation,
    };
    let pinned = vendor_key.filter(|_| is_signed);
    loop {
        let resolved = aliases::resolve(&context, operation.clone(), key.clone(), ruling.terms.keys).await;
        let resolved = match resolved {
            Ok(resolved) => resolved,
            Err(Unresolved::Error(error)) => return reply::problem(&error),
            Err(Unresolved::KeyInUse) => {
                let detail = "this key is being used for a different request; nothing was sent";
                let status = StatusCode::UNPROCESSABLE_ENTITY;
                return reply::refusal(status, "KEY_REUSED", Some(Happened::Unknown), detail);
            }
        };
        if let Some(response) = answered(&context, ruling.clone(), resolved, pinned.as_deref()).await {
            return response;
        }
    }
}

/// The answer. `None` if another gateway began the operation first, and the request may be meant beside it.
async fn answered(
    context: &RequestContext,
    ruling: Ruling,
    mut resolved: Resolved,
    pinned: Option<&str>,
) -> Option<Response> {
    let ledger = context.tenant.ledger.clone();
    if context.options.dry_run {
        return Some(match ledger.plan(&resolved.intent).await {
            Ok(plan) => reply::preview(&Preview::of(&plan, &resolved.intent, ruling.effect)),
            Err(error) => reply::problem(&error),
        });
    }
    if let Some(pinned) = pinned
        && is_pinned_to_another(&ledger, &resolved.intent, pinned).await
    {
        // The vendor knows the first request by another key, so it would execute this one.
        resolved.intent.terms.class = Class::Once;
    }
    let (id, rule) = (resolved.intent.id.clone(), resolved.rule);
    if context.reader.is_gone() && may_be_left(&ledger, &id).await {
        let detail = format!("{LEFT}; nothing was recorded");
        return Some(reply::refusal(StatusCode::BAD_REQUEST, "FAILED", Some(Happened::No), &detail));
    }
    context.reader.refers_to(context.tenant.place(&id));
    let exchange = Exchange::new(
        &context.tenant,
        &context.upstream,
        ruling,
        Arc::clone(&context.request),
        pinned.is_some(),
        &context.reader,
    );
    let exchange = Arc::new(exchange.of_class(resolved.intent.terms.class));
    let begins = resolved.alias.as_ref().is_some_and(|alias| alias.turn.is_some());
    if begins {
        // If another gateway has begun it, this request does not wait for that one.
        resolved.intent.terms.wait_ms = 0;
    }
    let known = resolved.known_key.map(|key| (key, resolved.intent.clone()));
    let new_key = resolved.alias.as_ref().map(|alias| alias.record.clone());
    let written = new_key_written(context, &exchange, resolved.alias, &id);
    let (result, written) = both(call(&ledger, &exchange, resolved.intent), written, || {
        if !begins || exchange.has_begun() { Rest::Awaited } else { Rest::Dropped }
    })
    .await;
    let written = match (&result, new_key) {
        // A held request keeps its key, although it does not begin yet.
        (Err(Error::Held { .. }), Some(key)) => {
            Some(aliases::write(&context.tenant, key, &id).await.map(drop))
        }
        _ => written,
    };
    let is_anothers = matches!(result, Ok(_) | Err(Error::InProgress { .. } | Error::Failed { .. }));
    if begins && !exchange.has_begun() && is_anothers {
        return None;
    }
    telemetry::ended(CallSurface::Gateway, &result, context.asked.elapsed(), Some(&context.gateway.metrics));
    // A key that could not be recorded must not be answered: its retry could be a new operation.
    let result = match (result, written) {
        (Ok(_) | Err(Error::Held { .. }), Some(Err(error))) => return Some(reply::problem(&error)),
        (result, _) => result,
    };
    let receipt = result.as_ref().ok().cloned();
    let mut response = respond(context, &exchange, result).await;
    reply::put_rule(response.headers_mut(), rule);
    if let (Some((key, intent)), Some(receipt), None) = (known, receipt, pinned)
        && let Some(sent) = context.sent()
    {
        context.gateway.replays.remember(&sent, &key, intent, &receipt, &response);
    }
    Some(response)
}

/// Records a new key: at once if it is a key of a known operation, otherwise when the operation has begun.
async fn new_key_written(
    context: &RequestContext,
    exchange: &Exchange,
    alias: Option<NewKey>,
    of: &OperationId,
) -> Result<(), Error> {
    let Some(NewKey { record, used, turn }) = alias else { return Ok(()) };
    if turn.is_some() {
        exchange.begun().await;
        used.set(of);
    }
    drop(turn);
    aliases::write(&context.tenant, record, of).await.map(drop)
}

async fn respond(
    context: &RequestContext,
    exchange: &Arc<Exchange>,
    result: Result<Receipt, Error>,
) -> Response {
    let (record, ran) = match &result {
        Ok(receipt) => (Arc::clone(receipt.record()), receipt.ran()),
        Err(Error::Failed { record, ran, .. }) => (Arc::clone(record), *ran),
        Err(error @ Error::Cancelled { record, of: RefusalOf::Own, .. }) => {
            let window_ms = exchange.ruling.terms.repeat_window_ms;
            return context.delivery(record).of_refusal(window_ms).attach(reply::problem(error));
        }
        Err(error) => {
            if exchange.live().is_in_flight {
                return in_flight(error);
            }
            return reply::problem(error);
        }
    };
    let (live, stream) = {
        let mut live = exchange.live();
        (live.reply.take().filter(|_| ran == Ran::Yes), live.stream.take().filter(|_| ran == Ran::Yes))
    };
    if let Some((head, begun, rest)) = stream {
        return context.delivery(&record).attach(reply::streamed(&head, begun, rest, &record, ran));
    }
    let stored = || record.outcome.as_ref().and_then(|outcome| Reply::decode(outcome.body.as_deref()?));
    let Some(reply) = live.or_else(stored) else {
        return match &result {
            // This is not the result, so a retry is still the same request.
            Ok(_) => reply::unavailable(&record),
            Err(error) => context.delivery(&record).attach(reply::problem(error)),
        };
    };
    let record = if result.is_ok() { verified(context, exchange, record, ran, &reply).await } else { record };
    context.delivery(&record).attach(reply.response(&record, ran))
}

/// Notes that a success is not confirmed yet, and begins to check it.
async fn verified(
    context: &RequestContext,
    exchange: &Arc<Exchange>,
    record: Arc<Record>,
    ran: Ran,
    reply: &Reply,
) -> Arc<Record> {
    let known = record.outcome.as_ref().and_then(|outcome| outcome.verified);
    let check = exchange.ruling.verify.is_some() && reply.status.is_success();
    let is_new = ran == Ran::Yes && known.is_none() && (check || exchange.live().is_accepted);
    let ledger = context.tenant.ledger.patient();
    let record = match is_new {
        true => ledger.attempts().verified(&record.id, Verification::Pending, None).await.unwrap_or(record),
        false => record,
    };
    if check && (is_new || known == Some(Verification::Pending)) {
        let check = Check {
            tenant: context.tenant.clone(),
            upstream: Arc::clone(&exchange.upstream),
            ruling: exchange.ruling.clone(),
            headers: exchange.request.headers.clone(),
            id: record.id.clone(),
            reply: reply.clone(),
            since_ms: ledger.clock_ms(),
        };
        check.in_background(&context.gateway);
    }
    record
}

fn operation(
    context: &RequestContext,
    ruling: &Ruling,
    place: Option<&Placement>,
    is_derived: bool,
) -> Result<Operation, Error> {
    let in_body = |field: &String| {
        let name = match context.request.kind {
            Kind::Form => format!("/{}", field.replace('~', "~0").replace('/', "~1")),
            Kind::Json | Kind::Opaque => Pointer::parse(field)?.to_string(),
        };
        Ok::<_, Error>(format!("/body{name}"))
    };
    let volatile: Vec<String> = ruling.volatile.iter().map(in_body).collect::<Result<_, _>>()?;
    let key_fields: Vec<String> = ruling.key_fields.iter().map(in_body).collect::<Result<_, _>>()?;
    let mut operation = Operation::new(name(context))
        .input(context.request.input(place))
        .volatile(volatile)
        .trace_parent(context.trace_parent())
        .undo(ruling.undo.as_ref().map(onceward::RequestUndo::compensation))
        .terms(ruling.terms.clone());
    if is_derived {
        operation = operation.key_fields(key_fields);
    }
    if ruling.terms.hold != Hold::No {
        let shown = context.request.shown(&ruling.terms.redact);
        operation = operation.held_for_its_caller(SURFACE, HeldBy::Policy, &shown);
    }
    if let Some(label) = &context.options.occurrence {
        operation = operation.occurrence(label.clone());
    }
    let (headers, scope) = (&context.request.headers, context.options.scope.as_deref());
    Ok(context.upstream.in_scope(operation, &context.tenant, headers, scope)?)
}

/// Whether the rest of the work is needed after the call ended.
enum Rest {
    Awaited,
    Dropped,
}

/// Runs a call and what accompanies it. When the call has ended, `rest` says whether the other is needed.
async fn both<A, B>(
    call: impl Future<Output = A>,
    other: impl Future<Output = B>,
    rest: impl FnOnce() -> Rest,
) -> (A, Option<B>) {
    let (mut call, mut other) = (pin!(call), pin!(other));
    tokio::select! {
        result = &mut call => match rest() {
            Rest::Awaited => (result, Some(other.await)),
            Rest::Dropped => (result, None),
        },
        ended = &mut other => (call.await, Some(ended)),
    }
}

/// Makes the call. While it is in doubt and the upstream can be asked, it is asked for as long as callers wait.
pub(crate) async fn call(
    ledger: &Ledger,
    exchange: &Arc<Exchange>,
    intent: Intent,
) -> Result<Receipt, Error> {
    let until_ms = later(ledger.clock_ms(), exchange.ruling.terms.wait_ms);
    let mut pause = PROBE_PAUSE;
    loop {
        let mut call = ledger.call(intent.clone());
        if exchange.ruling.probe.is_some() && intent.terms.class == Class::Probed {
            let (exchange, ledger) = (Arc::clone(exchange), ledger.clone());
            call = call.probe(move |record| {
                let (exchange, ledger) = (Arc::clone(&exchange), ledger.clone());
                async move {
                    let Exchange { upstream, ruling, request, .. } = &*exchange;
                    let (record, ledger) = (&*record, &ledger);
                    probes::probe(ProbeContext { upstream, ruling, request, record, ledger }).await
                }
            });
        }
        let mut newest: Option<Attempt> = None;
        let result = call
            .run(|attempt| {
                newest = Some(attempt.clone());
                exchange.attempt(attempt)
            })
            .await;
        let is_stopped = newest.is_some_and(|attempt| attempt.is_cancel_requested());
        let is_doubt = matches!(result, Err(Error::InDoubt { .. } | Error::Timeout { .. }));
        if !is_doubt || is_stopped || intent.terms.class != Class::Probed || ledger.clock_ms() >= until_ms {
            return result;
        }
        time::sleep(ledger.clock(), pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

/// The place of the key, if this request can have one. Without it, the class is that of a vendor without keys.
pub(crate) fn usable_place(ruling: &mut Ruling, request: &Request) -> Option<Placement> {
    let place = ruling.key.clone();
    let is_missing = match &place {
        Some(place) => place.if_present && request.key_at(place).is_none(),
        None => ruling.terms.class == Class::Keyed,
    };
    if is_missing {
        (ruling.key, ruling.terms.class) = (None, without_key(ruling));
    }
    place
}

fn without_key(ruling: &Ruling) -> Class {
    if ruling.probe.is_some() { Class::Probed } else { Class::Once }
}

/// Whether nothing is lost if a client that has left does not get this operation begun: it would be the first attempt,
/// or one after an attempt that certainly had no effect. What may have happened is always seen through to its end.
async fn may_be_left(ledger: &Ledger, id: &OperationId) -> bool {
    match ledger.find(id).await {
        Ok((_, State::Failed | State::Expired)) | Err(Error::NotFound { .. }) => true,
        Ok((_, State::Staged | State::Running | State::Done | State::InDoubt | State::Cancelled))
        | Err(_) => false,
    }
}

/// Whether the first attempt was signed with another key than this request.
async fn is_pinned_to_another(ledger: &Ledger, intent: &Intent, pinned: &str) -> bool {
    match ledger.find(&intent.id).await {
        Ok((record, _)) => record.detail.downstream.as_ref().is_some_and(|first| first.key != pinned),
        Err(_) => false,
    }
}

/// The vendor still executes an earlier request: the same request may come again later.
fn in_flight(error: &Error) -> Response {
    let detail =
        "the upstream is still executing an earlier request with this key; make the same request again";
    let mut response = reply::refusal(StatusCode::CONFLICT, "IN_PROGRESS", Some(Happened::Unknown), detail);
    if let Some(record) = error.record() {
        reply::put(response.headers_mut(), "once-operation", record.id.as_str());
    }
    response
}
