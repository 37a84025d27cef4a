//! Accepting a request: verify, deduplicate, record, and only then answer.
//!
//! An event with an authentic id is one record, and writing it is the decision: the first writer accepts the event, and
//! all others find a duplicate. If the id is not signed, anyone who saw the request can send it again under another id,
//! or without one, and can send other content under this id. There the signed content is the identity. A second record,
//! the guard, binds the digest of the content to one event. It is written first:
//!
//! - no guard: this request writes it, then the event. A crash in between leaves a guard without an event. The vendor
//!   got no answer and sends the event again under the same id, finds its own guard and writes the event.
//! - a guard of an event with this content: a duplicate, or a suspected replay if the id is another one. Nothing runs,
//!   and the new id is not taken.
//! - a guard of another event that is not recorded: that request is still being recorded, or it was interrupted. The
//!   answer is 503, and the vendor's own redelivery decides.
//! - a guard of an event with other content, or an id that other content has: one of the two is forged, and nothing
//!   says which. Both are signed, so both are events. This one gets the digest as its key, and the guard is bound to
//!   it.
//!
//! PayPal signs no content: a digest there names a transmission, and a transmission whose id is known is a duplicate.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use onceward::{Error, OperationId, Record, StoreError, Swap, rfc3339};

use super::config::MAX_BODY;
use super::hook::Hook;
use super::record::{self, EventData};
use super::rejected::Refused;
use super::{Event, Inbox, Judgement, Reason, Received, Rejection, Reply};
use crate::intake;
use crate::problem;
use crate::telemetry::Arrived;
use crate::time;

/// After this time the answer is 503: the tightest vendor waits three seconds.
const DEADLINE: Duration = Duration::from_millis(2_500);

/// The pause that a vendor is asked for.
const RETRY_AFTER_MS: u64 = 5_000;

/// What became of one event.
enum Taken {
    /// It is recorded now.
    New(Arc<Record>, EventData),
    /// It was recorded before.
    Duplicate(OperationId),
    /// The same content was recorded under another id.
    Replay(OperationId),
}

/// `POST /hooks/SOURCE`.
pub(super) async fn hook(
    State(inbox): State<Arc<Inbox>>,
    Path(source): Path<String>,
    request: Request,
) -> Response {
    let begun = Instant::now();
    let Some(hook) = inbox.hook(&source) else {
        let message = "there is no source with this name; nothing was recorded";
        return problem::refusal(StatusCode::NOT_FOUND, "NOT_FOUND", message);
    };
    let (hook, counted) = (Arc::clone(hook), source);
    let (head, body) = request.into_parts();
    let most = hook.max_body.unwrap_or(MAX_BODY).min(inbox.intake.most()).min(MAX_BODY);
    let body = match inbox.intake.whole_up_to(body, most).await {
        Ok(body) => body,
        Err(refused) => {
            inbox.metrics.arrived(&counted, Arrived::Rejected("body"), begun.elapsed());
            let response = problem::of_body(&refused, most);
            note_unread(&inbox, &hook, response.status(), &refused, most);
            return response;
        }
    };
    let ledger = hook.ledger().clone();
    // Recording continues if the sender disconnects, so that its redelivery is a duplicate.
    let task = {
        let own = Arc::clone(&inbox);
        inbox.tasks.spawn(async move { answer(&own, &hook, &head, &body).await })
    };
    let answered = time::within(ledger.clock(), DEADLINE, task).await;
    let (response, arrived) = match answered {
        Some(Ok(answer)) => answer,
        Some(Err(_)) => (try_again("the server is ending"), Arrived::Unavailable),
        None => (try_again("the event could not be recorded in time"), Arrived::Unavailable),
    };
    inbox.metrics.arrived(&counted, arrived, begun.elapsed());
    response
}

async fn answer(inbox: &Inbox, hook: &Arc<Hook>, head: &Parts, body: &Bytes) -> (Response, Arrived) {
    let url = full_url(&head.uri, &head.headers);
    let received = Received { method: &head.method, url: &url, headers: &head.headers, body };
    let now_ms = hook.ledger().clock_ms();
    match hook.source.judge(&received, now_ms, inbox.fetcher()).await {
        Judgement::Events(events) => accept(inbox, hook, events).await,
        Judgement::Challenge(reply) => (response(reply), Arrived::Handshake),
        Judgement::Confirm(confirmation) => match inbox.certificates.confirm(&confirmation).await {
            Ok(()) => (response(hook.source.accepted()), Arrived::Handshake),
            Err(error) => (try_again(&format!("the subscription: {error}")), Arrived::Unavailable),
        },
        Judgement::Rejected(rejection) => {
            let arrived = Arrived::Rejected(rejection.reason.as_str());
            (rejected(inbox, hook, &rejection, body.len()), arrived)
        }
    }
}

/// Records events that arrived together. The answer is a success only if all of them are durable.
async fn accept(inbox: &Inbox, hook: &Arc<Hook>, events: Vec<Event>) -> (Response, Arrived) {
    let taken = match take(hook, &events).await {
        Ok(taken) => taken,
        Err(error) => {
            tracing::warn!(source = hook.name(), %error, "an event could not be recorded");
            return (try_again("the event could not be recorded"), Arrived::Unavailable);
        }
    };
    let mut arrived = Arrived::Duplicate;
    let mut id = None;
    for (event, taken) in events.iter().zip(taken) {
        match taken {
            Taken::New(record, data) => {
                arrived = Arrived::Accepted;
                id = Some(record.id.clone());
                hook.accepted(&record, data);
            }
            Taken::Duplicate(of) => {
                hook.tenant.store.tally_replay(&of);
                id.get_or_insert(of);
            }
            Taken::Replay(of) => {
                if arrived == Arrived::Duplicate {
                    arrived = Arrived::Replay;
                }
                suspect(inbox, hook, event, &of).await;
                id.get_or_insert(of);
            }
        }
    }
    let mut response = response(hook.source.accepted());
    // A sender of replays is not told that it was found out.
    let word = if arrived == Arrived::Accepted { "accepted" } else { "duplicate" };
    response.headers_mut().insert("once-result", HeaderValue::from_static(word));
    if let Some(value) = id.and_then(|id| HeaderValue::try_from(id.as_str()).ok()) {
        response.headers_mut().insert("once-operation", value);
    }
    (response, arrived)
}

/// Lists a suspected replay. It takes no place in the ledger: a flood of them must not grow it.
async fn suspect(inbox: &Inbox, hook: &Hook, event: &Event, of: &OperationId) {
    let found = hook.tenant.store.load(of).await.ok().flatten();
    let same_as = found.map(|record| record.key.text.clone());
    let message = "the same content arrived before under another id, which is not signed; nothing ran. If it was \
                   meant, `once inbox replay` runs the first one again";
    let status = hook.source.accepted().status;
    let refused = refused(hook, "suspected_replay", message.to_owned(), status, event.body.len());
    inbox.refusals.add(Refused { id: event.id.clone(), same_as, ..refused });
}

/// Records what is new. An event that occurs twice in one request is recorded once.
async fn take(hook: &Hook, events: &[Event]) -> Result<Vec<Taken>, Error> {
    if let [event] = events {
        return Ok(vec![take_one(hook, event).await?]);
    }
    if events.iter().any(needs_guard) {
        let mut taken = Vec::with_capacity(events.len());
        for event in events {
            taken.push(take_one(hook, event).await?);
        }
        return Ok(taken);
    }
    let mut first: BTreeMap<String, usize> = BTreeMap::new();
    let mut new = Vec::new();
    for (place, event) in events.iter().enumerate() {
        if let std::collections::btree_map::Entry::Vacant(entry) = first.entry(record::key(event)) {
            entry.insert(place);
            let data = hook.data(event);
            let key = record::key(event);
            let record = record::event(hook.ledger(), hook.name(), &hook.terms, &key, event, &data)?;
            new.push((place, record, data.0));
        }
    }
    let records = new.iter().map(|(_, record, _)| record.clone()).collect();
    let accepted = hook.ledger().events().accept_all(records).await?;
    let duplicate = |event: &Event| Taken::Duplicate(record::event_id(hook.name(), &record::key(event)));
    let mut taken: Vec<Taken> = events.iter().map(duplicate).collect();
    for ((place, record, data), is_new) in new.into_iter().zip(accepted) {
        taken[place] = match is_new {
            true => Taken::New(Arc::new(record), data),
            false => take_one(hook, &events[place]).await?,
        };
    }
    Ok(taken)
}

/// Whether the digest must be bound to the event: unless its id is signed. An id that is not signed can also be removed
/// from a captured request, so an event without one is bound as well.
fn needs_guard(event: &Event) -> bool {
    event.id.is_none() || !event.is_id_signed
}

async fn take_one(hook: &Hook, event: &Event) -> Result<Taken, Error> {
    if needs_guard(event) {
        return take_guarded(hook, event).await;
    }
    let store = &hook.tenant.store;
    let data = hook.data(event);
    let mut key = record::key(event);
    loop {
        let id = record::event_id(hook.name(), &key);
        let found = match store.load_cached(&id).await? {
            Some(found) => Some(found),
            None => {
                let new = record::event(hook.ledger(), hook.name(), &hook.terms, &key, event, &data)?;
                match hook.ledger().events().accept(new).await? {
                    Swap::Written(written) => return Ok(Taken::New(written, data.0)),
                    Swap::Conflict(found) => found,
                }
            }
        };
        // Other content that came with this id, which was not signed there, does not keep the event out.
        let other = found.and_then(|found| EventData::read(&found));
        if !other.is_some_and(|other| other.unsigned_id && other.digest != data.0.digest) {
            return Ok(Taken::Duplicate(id));
        }
        key = record::digest_key(&event.digest);
    }
}

/// Records an event whose identity is its content.
async fn take_guarded(hook: &Hook, event: &Event) -> Result<Taken, Error> {
    let store = &hook.tenant.store;
    let data = hook.data(event);
    let with_key = |key: &str| record::event(hook.ledger(), hook.name(), &hook.terms, key, event, &data);
    let by_digest = record::digest_key(&event.digest);
    let mut new = with_key(&record::key(event))?;
    if !event.is_digest_of_content && store.load(&new.id).await?.is_some() {
        return Ok(Taken::Duplicate(new.id));
    }
    let mut guard = bind(hook, event, &new.id).await?;
    let Some(of) = guard.alias_of() else {
        // Sealed with a key that is missing: the content was seen before.
        return Ok(Taken::Replay(guard.id.clone()));
    };
    match store.load(&of).await? {
        Some(found) if has_same_content(&found, &new) => return Ok(seen_before(&found, event)),
        // Nothing is recorded for this content yet: its guard was bound to an id that other content has.
        Some(_) => {}
        None if of == new.id => {}
        None if of == record::event_id(hook.name(), &by_digest) => new = with_key(&by_digest)?,
        None => {
            let what = "another request with the same content is being recorded, or was interrupted";
            return Err(StoreError::unavailable(what).into());
        }
    }
    loop {
        if guard.alias_of().as_ref() != Some(&new.id) {
            guard = bind_again(hook, event, &guard, &new.id).await?;
        }
        match hook.ledger().events().accept(new.clone()).await? {
            Swap::Written(written) => {
                if written.key.text == by_digest
                    && let Some(id) = &event.id
                {
                    let source = hook.name();
                    tracing::warn!(source, id, "an id that is not signed was used before for other content");
                }
                return Ok(Taken::New(written, data.0));
            }
            Swap::Conflict(Some(found)) if has_same_content(&found, &new) => {
                return Ok(Taken::Duplicate(found.id.clone()));
            }
            // What runs nothing takes nothing: not the digest either.
            Swap::Conflict(Some(found)) if !event.is_digest_of_content => {
                hook.ledger().names().take_back(&guard).await?;
                return Ok(Taken::Duplicate(found.id.clone()));
            }
            Swap::Conflict(_) if new.key.text != by_digest => new = with_key(&by_digest)?,
            Swap::Conflict(_) => {
                return Err(StoreError::unavailable("the event was changed meanwhile").into());
            }
        }
    }
}

/// Whether a recorded event has the digest of this one. A tombstone tells as well.
fn has_same_content(found: &Record, new: &Record) -> bool {
    found.detail.fingerprint == new.detail.fingerprint
}

/// What an event is whose content is recorded.
fn seen_before(found: &Record, event: &Event) -> Taken {
    let is_same_id = found.key.text == record::key(event)
        || EventData::read(found).is_some_and(|data| data.id.is_some() && data.id == event.id);
    if is_same_id { Taken::Duplicate(found.id.clone()) } else { Taken::Replay(found.id.clone()) }
}

/// Binds the digest of an event to a record, unless it is bound. Returns the guard.
async fn bind(hook: &Hook, event: &Event, to: &OperationId) -> Result<Arc<Record>, Error> {
    let guard = record::guard(hook.ledger(), hook.name(), hook.kept, event)?;
    if let Some(found) = hook.tenant.store.load_cached(&guard.id).await? {
        return Ok(found);
    }
    match hook.ledger().names().give(&guard, to).await? {
        Swap::Written(guard) | Swap::Conflict(Some(guard)) => Ok(guard),
        Swap::Conflict(None) => {
            Err(StoreError::unavailable("the guard of this content was deleted meanwhile").into())
        }
    }
}

/// Binds a digest to another record than before.
async fn bind_again(
    hook: &Hook,
    event: &Event,
    found: &Record,
    to: &OperationId,
) -> Result<Arc<Record>, Error> {
    let guard = record::guard(hook.ledger(), hook.name(), hook.kept, event)?;
    match hook.ledger().names().give_again(found, &guard, to).await? {
        Swap::Written(guard) => Ok(guard),
        Swap::Conflict(_) => {
            Err(StoreError::unavailable("another request with the same content is being recorded").into())
        }
    }
}

/// What is listed about a request that ran nothing.
fn refused(hook: &Hook, reason: &'static str, message: String, status: StatusCode, bytes: usize) -> Refused {
    let (at, source) = (rfc3339(hook.ledger().clock_ms()), hook.name().to_owned());
    Refused { at, source, reason, message, status: status.as_u16(), bytes, id: None, same_as: None }
}

/// Lists a request whose body was not read to its end.
fn note_unread(inbox: &Inbox, hook: &Hook, status: StatusCode, why: &intake::Refused, most: usize) {
    let message = match why {
        intake::Refused::TooLong => format!("the body is longer than {most} bytes"),
        intake::Refused::TooSlow => "the body did not arrive in time".to_owned(),
        intake::Refused::NoRoom => "other requests used all the memory for large bodies".to_owned(),
        intake::Refused::Broken(why) => format!("the request broke off: {why}"),
    };
    inbox.refusals.add(refused(hook, "body", message, status, 0));
}

/// The answer to a request that is not believed. It is kept in memory only.
fn rejected(inbox: &Inbox, hook: &Hook, rejection: &Rejection, bytes: usize) -> Response {
    let status = rejection.status;
    inbox.refusals.add(refused(hook, rejection.reason.as_str(), rejection.words.clone(), status, bytes));
    let message = match rejection.reason {
        Reason::Unavailable => {
            let message = "the certificate of the signature could not be fetched; nothing was recorded, and the \
                           request may be sent again";
            return problem::unavailable(message, RETRY_AFTER_MS);
        }
        Reason::Body => "the request is authentic, but its content is not an event; nothing was recorded",
        Reason::NotConfigured => "this source does not take events from there; nothing was recorded",
        Reason::Method => "webhooks are sent with POST; nothing was recorded",
        // Which check failed is for the operator, not for a forger.
        Reason::Missing
        | Reason::Duplicate
        | Reason::Malformed
        | Reason::Version
        | Reason::Signature
        | Reason::Old
        | Reason::Future
        | Reason::Unsigned
        | Reason::Certificate => "the request is not an authentic event of this source; nothing was recorded",
    };
    problem::refusal(status, "INVALID_INPUT", message)
}

fn try_again(why: &str) -> Response {
    let message = format!("{why}; it may be sent again");
    let mut response = problem::refusal(StatusCode::SERVICE_UNAVAILABLE, "LEDGER_UNAVAILABLE", message);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_MS / 1_000));
    response
}

fn response(reply: Reply) -> Response {
    let mut response = (reply.status, Body::from(reply.body)).into_response();
    for (name, value) in reply.headers {
        response.headers_mut().insert(name, value);
    }
    response
}

/// The URL as the sender sees it, as far as the request says. A source that needs it has a configured one.
fn full_url(uri: &Uri, headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    match uri.authority() {
        Some(authority) => format!("https://{authority}{path}"),
        None => format!("https://{host}{path}"),
    }
}
