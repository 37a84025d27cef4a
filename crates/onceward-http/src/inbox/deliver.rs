//! Delivering events: one attempt at one handler, and what follows from how it ended.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onceward::event::{self, Fate};
use onceward::{Begun, Claim, Class, Code, Error, Kind, OperationId, Record, State};
use tokio::sync::Semaphore;

use super::Inbox;
use super::handler_queue::{Closed, Item, Job, Seen};
use super::hook::{Handler, Hook};
use super::host_environment::{CommandDelivery, Unsuccessful};
use super::record::{self, EventData};
use super::target::Target;
use crate::telemetry::{self, CallSurface, Delivered, Metrics};
use crate::time;

/// The pause before an event is looked at again that another process delivers, or if the ledger cannot be used.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The longest body that is passed in an environment variable.
const MAX_VARIABLE: usize = 4_096;
/// The pause before the next delivery of a source that is stopped.
const WHILE_STOPPED: Duration = Duration::from_secs(2);
/// How long an ordered handler's leader is waited for before the next question.
const LEADER_MS: u64 = 30_000;

/// What follows from an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// The delivery has ended so.
    Ended(Fate),
    /// The event was forgotten, or its content is gone.
    Forgotten,
    /// It is looked at again after this pause.
    Again(Duration),
}

/// Delivers the events of all hooks until the server ends.
pub(crate) async fn run(inbox: Arc<Inbox>) {
    let mut loops = tokio::task::JoinSet::new();
    for hook in inbox.hooks() {
        loops.spawn(Arc::clone(hook).watch());
        for handler in hook.handlers.values() {
            match handler.target {
                // Programs take from its queue.
                Target::Pull if !handler.queue.is_ordered() => {}
                Target::Pull => drop(loops.spawn(lead(Arc::clone(hook), Arc::clone(handler), None))),
                Target::Url(_) | Target::Command(..) if handler.queue.is_ordered() => {
                    let inbox = Some(Arc::clone(&inbox));
                    drop(loops.spawn(lead(Arc::clone(hook), Arc::clone(handler), inbox)));
                }
                Target::Url(_) | Target::Command(..) => {
                    drop(loops.spawn(deliver_all(Arc::clone(&inbox), Arc::clone(hook), Arc::clone(handler))));
                }
            }
        }
    }
    while loops.join_next().await.is_some() {}
    std::future::pending::<()>().await;
}

/// Delivers to an ordered handler while this process is the one that does.
async fn lead(hook: Arc<Hook>, handler: Arc<Handler>, inbox: Option<Arc<Inbox>>) {
    loop {
        let Ok(claim) = leadership(&hook, &handler).await else {
            time::sleep(hook.ledger().clock(), LOOK_AGAIN).await;
            continue;
        };
        hook.lead(&handler);
        match &inbox {
            Some(inbox) => {
                let all = deliver_all(Arc::clone(inbox), Arc::clone(&hook), Arc::clone(&handler));
                claim.keep_alive(all).await;
            }
            None => claim.keep_alive(std::future::pending::<()>()).await,
        }
        Hook::stop_leading(&handler);
    }
}

/// The one attempt that says which process delivers to an ordered handler. Its owner lives as long as the process, and
/// sends nothing, so its end is never in doubt. It is not an operation: it is not listed as one, and a stop of the
/// source neither asks it to end nor waits for it.
async fn leadership(hook: &Hook, handler: &Handler) -> Result<Claim, Error> {
    let mut terms = handler.terms.clone();
    (terms.class, terms.max_attempts, terms.wait_ms) = (Class::Idempotent, 1 << 30, LEADER_MS);
    let leader = onceward::Operation::of_kind(Kind::Marker, "leader")
        .scope(record::scope(hook.name()))
        .key(handler.name.clone())
        .terms(terms);
    let intent = hook.ledger().intent(leader)?;
    match hook.ledger().begin_undispatched(&intent).await? {
        Begun::Execute(claim) => Ok(claim),
        Begun::Replay(receipt) => {
            Err(Error::InProgress { record: Arc::clone(receipt.record()), ran: onceward::Ran::No })
        }
    }
}

/// Takes events from the queue of a handler and delivers them, as many at once as it wants.
async fn deliver_all(inbox: Arc<Inbox>, hook: Arc<Hook>, handler: Arc<Handler>) {
    let room = Arc::new(Semaphore::new(handler.concurrency));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let job = handler.queue.next().await;
        handler.queue.rested().await;
        let (metrics, hook, handler) = (inbox.metrics.clone(), Arc::clone(&hook), Arc::clone(&handler));
        inbox.tasks.spawn(async move {
            let next = deliver(&metrics, &hook, &handler, &job).await;
            follow(&metrics, &hook, &handler, &job.item, next).await;
            drop(permit);
        });
    }
}

/// Does what follows from an attempt.
pub(crate) async fn follow(metrics: &Metrics, hook: &Hook, handler: &Handler, item: &Arc<Item>, next: Next) {
    let (fate, how) = match next {
        Next::Ended(fate) => (fate, Delivered::of(fate)),
        Next::Forgotten => (Fate::Dead, Delivered::Forgotten),
        Next::Again(pause) => {
            return handler.queue.again(Job { item: Arc::clone(item), seen: Seen::Ready }, pause);
        }
    };
    if hook.ended(handler, item, fate).await != Closed::Already {
        metrics.delivered(hook.name(), how);
    }
}

/// Makes one attempt, if it is time for one.
async fn deliver(metrics: &Metrics, hook: &Hook, handler: &Handler, job: &Job) -> Next {
    let attempted = attempt(metrics, hook, handler, job).await;
    attempted.unwrap_or_else(|error| {
        tracing::warn!(source = hook.name(), handler = handler.name, %error, "the ledger cannot be used");
        Next::Again(LOOK_AGAIN)
    })
}

async fn attempt(metrics: &Metrics, hook: &Hook, handler: &Handler, job: &Job) -> Result<Next, Error> {
    let item = &job.item;
    let intent = hook.ledger().intent(handler.operation(hook.name(), item))?;
    if job.seen == Seen::Unknown
        && let Some(next) = look(hook, handler, item, &intent.id).await?
    {
        return Ok(next);
    }
    let Some(event) = hook.tenant.store.load(&item.id).await? else {
        return Ok(Next::Forgotten);
    };
    let Some(body) = event.outcome.as_ref().and_then(|outcome| outcome.body.clone()) else {
        // Its content has expired, or its key is missing: then it may come back.
        let is_sealed = event.outcome.as_ref().is_some_and(|outcome| outcome.sealed_with().is_some());
        return Ok(if is_sealed { Next::Again(LOOK_AGAIN * 60) } else { Next::Forgotten });
    };
    let body = Bytes::from_owner(body);
    let begun = std::time::Instant::now();
    let result = match &handler.target {
        Target::Url(endpoint) => {
            let key = hook.tenant.downstream_key(&intent.id);
            let mut call = hook.ledger().call(intent);
            if let Some(probe) = &handler.config.probe {
                call = call.probe(|_| endpoint.ask(probe, &handler.queue, item, &key));
            }
            let sent = call
                .run(|attempt| endpoint.send(hook.name(), &handler.queue, item, &key, body.clone(), attempt));
            let result = sent.await;
            telemetry::ended(CallSurface::Inbox, &result, begun.elapsed(), Some(metrics));
            result
        }
        Target::Command(command, Some(runner)) => {
            let id = intent.id.clone();
            let delivery = command_delivery(hook, handler, item, command, intent, body);
            let ran = runner.run(delivery).await;
            return after_command(hook, handler, item, &id, ran).await;
        }
        Target::Command(_, None) | Target::Pull => return Ok(Next::Again(LOOK_AGAIN * 60)),
    };
    Ok(match result {
        Ok(_) => Next::Ended(Fate::Handled),
        Err(error) => after_error(handler, item, &error, hook.ledger().clock_ms()),
    })
}

/// What follows from a run of a command. Its record says how it ended, unless it was refused before it was recorded.
async fn after_command(
    hook: &Hook,
    handler: &Handler,
    item: &Item,
    id: &OperationId,
    ran: Result<(), Unsuccessful>,
) -> Result<Next, Error> {
    let next = match ran {
        Ok(()) => {
            handler.queue.answered();
            None
        }
        Err(Unsuccessful { code: Some(Code::Stopped), .. }) => refused(handler, Code::Stopped),
        Err(Unsuccessful { code, message }) => {
            let (source, name) = (hook.name(), code.map(Code::as_str));
            tracing::warn!(source, handler = handler.name, code = name, reason = message, "a command failed");
            match code {
                Some(Code::Failed) => handler.queue.answered(),
                Some(_) | None => handler.queue.failed(),
            }
            // A mistake in the policy says nothing about the event.
            code.filter(|code| *code != Code::InvalidInput).and_then(|code| refused(handler, code))
        }
    };
    match next {
        Some(next) => Ok(next),
        None => Ok(look(hook, handler, item, id).await?.unwrap_or(Next::Again(LOOK_AGAIN * 5))),
    }
}

fn command_delivery(
    hook: &Hook,
    handler: &Handler,
    item: &Item,
    command: &[String],
    intent: onceward::Intent,
    body: Bytes,
) -> CommandDelivery {
    CommandDelivery {
        command: command.to_vec(),
        body,
        environment: environment(hook.name(), &handler.name, item),
        scope: intent.scope,
        name: intent.name,
        key: intent.key.text,
        class: intent.terms.class,
        attempts: intent.terms.max_attempts,
        timeout_ms: u64::try_from(handler.timeout.as_millis()).unwrap_or(u64::MAX),
        retention_ms: intent.terms.retention_ms,
        probe: handler.config.probe.as_ref().and_then(|probe| probe.command.clone()),
    }
}

/// What describes an event to a command.
fn environment(source: &str, handler: &str, item: &Item) -> Vec<(String, String)> {
    let EventData { id, kind, content_type, occurred_ms, .. } = &item.data;
    let mut all = vec![
        ("ONCE_EVENT_SOURCE", source.to_owned()),
        ("ONCE_EVENT_HANDLER", handler.to_owned()),
        ("ONCE_EVENT_KEY", item.key.clone()),
        ("ONCE_EVENT_RECEIVED", onceward::rfc3339(item.created_ms)),
    ];
    all.extend(id.clone().map(|id| ("ONCE_EVENT_ID", id)));
    all.extend(kind.clone().map(|kind| ("ONCE_EVENT_TYPE", kind)));
    all.extend(content_type.clone().map(|kind| ("ONCE_EVENT_CONTENT_TYPE", kind)));
    all.extend(occurred_ms.map(|ms| ("ONCE_EVENT_OCCURRED", onceward::rfc3339(ms))));
    let is_short = |(_, value): &(&str, String)| value.len() <= MAX_VARIABLE && !value.contains('\0');
    all.into_iter().filter(is_short).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// What follows from the recorded state of a delivery. `None` if it is time for an attempt.
pub(crate) async fn look(
    hook: &Hook,
    handler: &Handler,
    item: &Item,
    id: &OperationId,
) -> Result<Option<Next>, Error> {
    match hook.ledger().find(id).await {
        Ok((record, state)) => Ok(after(handler, item, &record, state, hook.ledger().clock_ms())),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What follows from a recorded state. `None` if it is time for an attempt.
fn after(handler: &Handler, item: &Item, record: &Record, state: State, now_ms: i64) -> Option<Next> {
    match event::next(Some((record, state)), &handler.allowed(item, record), now_ms) {
        event::Next::Attempt => None,
        event::Next::Running => Some(Next::Again(LOOK_AGAIN)),
        event::Next::At(due_ms) => {
            let left_ms = u64::try_from(due_ms.saturating_sub(now_ms)).unwrap_or(0);
            Some(Next::Again(Duration::from_millis(left_ms)))
        }
        event::Next::Ended(fate) => Some(Next::Ended(fate)),
    }
}

/// What follows from the error of an attempt.
pub(crate) fn after_error(handler: &Handler, item: &Item, error: &Error, now_ms: i64) -> Next {
    let by_record = |state: State| {
        let Some(record) = error.record() else { return Next::Again(LOOK_AGAIN) };
        let next = after(handler, item, record, state, now_ms);
        next.unwrap_or_else(|| Next::Again(pause_of_questions(record, now_ms)))
    };
    let code = error.code();
    if code == Code::Failed {
        by_record(State::Failed)
    } else if matches!(code, Code::InDoubt | Code::Timeout | Code::Unverified) {
        by_record(State::InDoubt)
    } else if code == Code::KeyExpired {
        by_record(State::Expired)
    } else {
        refused(handler, code).unwrap_or(Next::Again(LOOK_AGAIN * 5))
    }
}

/// What follows from an attempt that did not begin. `None` if the code alone does not say.
fn refused(handler: &Handler, code: Code) -> Option<Next> {
    match code {
        Code::BudgetExhausted => Some(Next::Ended(Fate::Dead)),
        Code::Cancelled | Code::Undone => Some(Next::Ended(Fate::Refused)),
        Code::ResultUnavailable => Some(Next::Ended(Fate::Handled)),
        // Another event has this key: the handler's name or the source's was used for something else, or the command
        // of the handler was changed.
        Code::KeyReused | Code::InvalidInput => Some(Next::Ended(Fate::Dead)),
        Code::InProgress | Code::LedgerUnavailable | Code::LedgerReplaced => Some(Next::Again(LOOK_AGAIN)),
        // Events wait until the source is resumed. Only one at a time asks whether it was.
        Code::Stopped => {
            handler.queue.rest(WHILE_STOPPED);
            Some(Next::Again(WHILE_STOPPED))
        }
        Code::Failed | Code::InDoubt | Code::Timeout | Code::Unverified | Code::KeyExpired => None,
        Code::KeyMissing | Code::NotFound | Code::WrongState | Code::Held | _ => None,
    }
}

/// The pause before a handler that could not tell is asked again. It grows with the age of the doubt.
fn pause_of_questions(record: &Record, now_ms: i64) -> Duration {
    let age = Duration::from_millis(u64::try_from(now_ms.saturating_sub(record.updated_ms)).unwrap_or(0));
    (age / 4).clamp(LOOK_AGAIN, LOOK_AGAIN * 600)
}
