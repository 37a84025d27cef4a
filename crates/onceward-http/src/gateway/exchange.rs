//! One attempt: the request with its key, the upstream's answer, and what it proves.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::http::response::Parts;
use hyper::{HeaderMap, StatusCode};
use onceward::transition::later;
use onceward::{Attempt, Class, Clock, Done, Evidence, Failure};
use serde_json::value::RawValue;
use tokio::sync::watch;

use super::classify::{self, Verdict};
use super::content::{Request, formatted};
use super::readers::Reader;
use super::reply::Reply;
use super::upstream::{Ruling, Upstream};
use crate::client::{Caller, Connection, SendError, Watch, in_words};
use crate::headers::{KEY, only, passed_on};
use crate::locks::lock;
use crate::telemetry;
use crate::tenant::Tenant;
use crate::time;

/// The W3C trace context.
const TRACE_PARENT: &str = "traceparent";
/// The first and the longest pause before a request that the vendor is still executing is sent again.
const ASK_AGAIN_MS: std::ops::RangeInclusive<u64> = 100..=2_000;

/// Why nothing was sent for a client that had left.
pub(crate) const LEFT: &str = "the client had left before the request was sent";

/// What the caller that made an attempt gets, beside what is stored.
#[derive(Default)]
pub(crate) struct Live {
    /// The complete answer, with the headers that are not stored.
    pub(crate) reply: Option<Reply>,
    /// An answer that is too large to store: its head, its beginning and the rest.
    pub(crate) stream: Option<(Parts, Bytes, Incoming)>,
    /// Whether the upstream said that it has only accepted the request.
    pub(crate) is_accepted: bool,
    /// Whether the upstream still executes a request with this key.
    pub(crate) is_in_flight: bool,
}

/// What a final answer without a success means: a vendor stored it, and repeats it for this key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnFinal {
    /// The request is done with, and its caller gets the answer.
    Store,
    /// The request had no effect. A compensation that was refused has taken nothing back.
    Fail,
}

/// A request to an upstream, for any number of attempts.
pub(crate) struct Exchange {
    /// Who calls: two tenants with the same key send two keys, also if they share an account.
    tenant: Tenant,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) ruling: Ruling,
    pub(crate) request: Arc<Request>,
    /// The caller signed the request with its own key in it.
    pub(crate) is_signed: bool,
    pub(crate) on_final: OnFinal,
    /// Which connections it may be sent on.
    connection: Connection,
    live: Mutex<Live>,
    /// The client's request.
    reader: Arc<Reader>,
    /// Whether an attempt was made.
    begun: watch::Sender<bool>,
}

/// How often a request was sent, to get one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sends {
    Once,
    /// The connection of the first broke, and it may have arrived.
    Twice,
}

/// What came back.
enum Received {
    Whole(Reply),
    /// A success whose body is too large to store.
    Large(Parts, Bytes, Incoming),
}

impl Exchange {
    pub(crate) fn new(
        tenant: &Tenant,
        upstream: &Arc<Upstream>,
        ruling: Ruling,
        request: Arc<Request>,
        is_signed: bool,
        reader: &Arc<Reader>,
    ) -> Self {
        let (tenant, upstream, reader) = (tenant.clone(), Arc::clone(upstream), Arc::clone(reader));
        let (live, begun) = (Mutex::default(), watch::Sender::new(false));
        let (on_final, connection) = (OnFinal::Store, Connection::Fresh);
        Self { tenant, upstream, ruling, request, is_signed, on_final, connection, live, reader, begun }
    }

    /// The same for an operation of this class: the one of this call, which may be stricter than the rule's.
    pub(crate) fn of_class(mut self, class: Class) -> Self {
        self.connection = connection(class);
        self
    }

    /// Whether this request made an attempt.
    pub(crate) fn has_begun(&self) -> bool {
        *self.begun.borrow()
    }

    /// Resolves when the first attempt of this request is recorded.
    pub(crate) async fn begun(&self) {
        match self.begun.subscribe().wait_for(|begun| *begun).await {
            // The sender lives as long as this.
            Ok(_) | Err(_) => {}
        }
    }

    /// What the caller of the newest attempt gets.
    pub(crate) fn live(&self) -> MutexGuard<'_, Live> {
        lock(&self.live)
    }

    /// Makes one attempt.
    pub(crate) async fn attempt(&self, attempt: Attempt) -> Result<Done, Failure> {
        *self.live() = Live::default();
        self.reader.executes();
        let was_begun = self.begun.send_replace(true);
        if !was_begun && self.reader.is_gone() {
            // Its client may have repeated it already. A repetition refers to this operation, and sends it.
            return Err(Failure::no_effect(Evidence::NotStarted, LEFT).stopped());
        }
        let ours = self.tenant.downstream_key(attempt.operation());
        let request = match &self.ruling.key {
            Some(place) if !self.is_signed => {
                let request = self.request.with_key(place, &formatted(&ours, place));
                Arc::new(request.map_err(|why| Failure::no_effect(Evidence::NotStarted, why).stopped())?)
            }
            Some(_) | None => Arc::clone(&self.request),
        };
        // A vendor may honour the caller's key although no rule says so. It is the same for operations that the caller
        // keeps apart by an occurrence or a scope, and for those of other tenants.
        let is_callers =
            request.headers.get(KEY).is_some_and(|key| Some(key) == self.request.headers.get(KEY));
        let request = match is_callers && !request.is_signed() {
            true => Arc::new(request.with_callers_key(&ours)),
            false => request,
        };
        let sent = attempt.dispatch()?;
        let mut sent_before = false;
        let mut pause_ms = *ASK_AGAIN_MS.start();
        let clock = self.clock();
        let until_ms = later(clock.now_ms(), self.ruling.terms.wait_ms);
        loop {
            let (received, sends) = self.received(&attempt, &request, sent_before).await?;
            let reply = match received {
                Received::Whole(reply) => reply,
                Received::Large(head, begun, rest) => {
                    if let Some(why) = classify::denial_of_success(&head.headers) {
                        return Err(Failure::in_doubt(why).stopped());
                    }
                    self.live().stream = Some((head, begun, rest));
                    return Ok(sent.done_without_result(self.ruling.effect));
                }
            };
            let verdict = classify::verdict(&self.ruling, reply.status, &reply.headers, &reply.body);
            if verdict == Verdict::InFlight && clock.now_ms() < until_ms {
                sent_before = true;
                tokio::select! {
                    () = clock.sleep(pause_ms) => {}
                    // Once it was asked to stop, it is not sent again.
                    () = attempt.cancel_requested() => return self.ended(verdict, reply, sent),
                }
                pause_ms = (pause_ms * 2).min(*ASK_AGAIN_MS.end());
                continue;
            }
            if verdict == Verdict::Rejected && sends == Sends::Twice {
                let why = format!("status {} is about a request that was sent again", reply.status.as_u16());
                return Err(Failure::in_doubt(why));
            }
            return self.ended(verdict, reply, sent);
        }
    }

    fn clock(&self) -> &dyn Clock {
        self.tenant.ledger.clock()
    }

    /// Sends the request and waits for the answer: for its time limit, or a little longer after a stop. A request that
    /// is under way cannot be called back, so a stop alone says nothing about its effect.
    async fn received(
        &self,
        attempt: &Attempt,
        request: &Request,
        sent_before: bool,
    ) -> Result<(Received, Sends), Failure> {
        let watch = OnceLock::new();
        let patience = self.ruling.timeout;
        let sending = time::within(self.clock(), patience, self.send(request, &watch));
        let ended = attempt.finish_or_give_up(sending, std::future::ready(())).await;
        let never_left = !sent_before && watch.get().is_some_and(|watch| !watch.is_connected());
        match ended {
            Some(Some(Ok(received))) => Ok(received),
            Some(Some(Err(SendError::NotSent(why)))) if !sent_before => {
                Err(Failure::no_effect(Evidence::NotSent, why))
            }
            Some(Some(Err(SendError::NotSent(why) | SendError::MaybeSent(why)))) => {
                Err(Failure::in_doubt(why))
            }
            Some(None) if never_left => {
                let why = format!("the connection to the upstream was not ready within {patience:?}");
                Err(Failure::no_effect(Evidence::NotSent, why))
            }
            Some(None) => Err(Failure::timed_out(format!("the upstream did not answer within {patience:?}"))),
            None if never_left => {
                let why = "it was asked to stop before it was connected to the upstream";
                Err(Failure::no_effect(Evidence::NotSent, why).stopped())
            }
            None => Err(Failure::stopped_unanswered("the upstream")),
        }
    }

    fn ended(&self, verdict: Verdict, reply: Reply, sent: onceward::Dispatched) -> Result<Done, Failure> {
        let status = reply.status.as_u16();
        let body = reply.redacted(&self.ruling.terms.redact).encode();
        let data: Option<Arc<RawValue>> =
            RawValue::from_string(format!("{{\"status\":{status}}}")).ok().map(Arc::from);
        let mut live = self.live();
        live.reply = Some(reply);
        match verdict {
            Verdict::Done | Verdict::Accepted => {
                live.is_accepted = verdict == Verdict::Accepted;
                Ok(match data {
                    Some(data) => sent.done_with_json(self.ruling.effect, data),
                    None => sent.done(self.ruling.effect, &()),
                }
                .body(body))
            }
            Verdict::Final => {
                let reason = format!("the upstream's final answer is status {status}");
                match self.on_final {
                    OnFinal::Store => Ok(Done::noop(reason, &data).body(body)),
                    OnFinal::Fail => Err(refused(status, reason).with(data, Some(body)).stopped()),
                }
            }
            Verdict::Rejected => {
                let reason = format!("the upstream rejected the request with status {status}");
                Err(refused(status, reason).with(data, Some(body)).stopped())
            }
            Verdict::InFlight => {
                live.is_in_flight = true;
                let reason = "the upstream is still executing an earlier request with this key";
                Err(Failure::in_doubt(reason).stopped())
            }
            Verdict::Doubt(why) => Err(Failure::in_doubt(why)),
            Verdict::Unknowable(why) => Err(Failure::in_doubt(why).stopped()),
        }
    }

    async fn send(&self, request: &Request, watch: &OnceLock<Watch>) -> Result<(Received, Sends), SendError> {
        let mut headers = with_trailers(&request.headers, forwarded(&request.headers));
        headers.remove(header::EXPECT);
        request.payload.frame(&mut headers);
        if !self.is_signed {
            // The answer is read here, and its replay must suit every client.
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            // The span of this call is the parent of the upstream's.
            let onward = telemetry::onward(only(&request.headers, TRACE_PARENT));
            if let Some(onward) = onward.and_then(|parent| HeaderValue::try_from(parent).ok()) {
                headers.insert(TRACE_PARENT, onward);
            }
        }
        let (method, path) = (&request.method, request.path_and_query());
        let remote = &self.upstream.remote;
        let body = || request.payload.body();
        let mut first = remote.request(method.clone(), &path, headers.clone(), body());
        if self.connection == Connection::Reused {
            let principal = self.upstream.principal(&self.tenant, &request.headers);
            Caller::new(&format!("{:?} {principal:?}", self.tenant.name)).sends(&mut first);
        }
        let watch = watch.get_or_init(|| Watch::of(&mut first));
        let (response, sends) = match remote.send(first, self.connection).await {
            // The server may have closed the connection without reading the request. This says nothing about the
            // upstream, so it is not an attempt of its own.
            Err(SendError::MaybeSent(_)) if watch.is_reused() => {
                let again = remote.request(method.clone(), &path, headers, body());
                let answer = remote.send(again, Connection::Fresh).await.map_err(|error| match error {
                    SendError::NotSent(why) | SendError::MaybeSent(why) => SendError::MaybeSent(why),
                });
                (answer?, Sends::Twice)
            }
            sent => (sent?, Sends::Once),
        };
        let (head, mut rest) = response.into_parts();
        let cut = |why: String| SendError::MaybeSent(format!("the upstream's answer broke off: {why}"));
        let mut body = BytesMut::new();
        let mut trailers: Option<HeaderMap> = None;
        while let Some(frame) = rest.frame().await {
            match frame.map_err(|error| cut(in_words(&error)))?.into_data() {
                Ok(data) => body.extend_from_slice(&data),
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
            if body.len() > self.upstream.max_stored {
                if head.status.is_success() && head.status != StatusCode::ACCEPTED {
                    return Ok((Received::Large(head, body.freeze(), rest), sends));
                }
                return Err(cut(format!("it is longer than {} bytes", self.upstream.max_stored)));
            }
        }
        let reply = Reply { status: head.status, headers: head.headers, body: body.freeze(), trailers };
        Ok((Received::Whole(reply), sends))
    }
}

/// The connections for requests of this class. If the server closes one that was used before while a request is on its
/// way, the request may have arrived: then it is sent again, if the upstream recognizes it.
fn connection(class: Class) -> Connection {
    match class {
        Class::Keyed => Connection::Reused,
        // The second of two equal requests may be refused because of the first, as one that deletes what is gone.
        Class::Read | Class::Idempotent | Class::Probed | Class::Once => Connection::Fresh,
    }
}

/// The headers that are forwarded to an upstream: not those of a connection, and none of ours.
pub(crate) fn forwarded(headers: &HeaderMap) -> HeaderMap {
    let kept = passed_on(headers);
    kept.into_iter()
        .scan(None, |last: &mut Option<header::HeaderName>, (name, value)| {
            // A name that occurs again is only given the first time.
            if name.is_some() {
                last.clone_from(&name);
            }
            Some((last.clone(), value))
        })
        .filter_map(|(name, value)| Some((name?, value)))
        .filter(|(name, _)| !name.as_str().starts_with("once-"))
        .collect()
}

/// Trailers need both headers on each connection, although they are not passed on with the rest.
pub(crate) fn with_trailers(original: &HeaderMap, mut passed: HeaderMap) -> HeaderMap {
    let wants = original.get(header::TE).and_then(|value| value.to_str().ok());
    if wants.is_some_and(|value| value.split(',').any(|one| one.trim().eq_ignore_ascii_case("trailers"))) {
        passed.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    for names in original.get_all(header::TRAILER) {
        passed.append(header::TRAILER, names.clone());
    }
    passed
}

/// A rejection that the vendor's preset or HTTP documents as made before execution.
fn refused(status: u16, reason: String) -> Failure {
    Failure::no_effect(Evidence::refused(format!("status {status}, by the rules of the upstream")), reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_upstream_recognizes_uses_a_connection_again() {
        for (class, expected) in [
            (Class::Keyed, Connection::Reused),
            (Class::Idempotent, Connection::Fresh),
            (Class::Read, Connection::Fresh),
            (Class::Once, Connection::Fresh),
            (Class::Probed, Connection::Fresh),
        ] {
            assert_eq!(connection(class), expected, "{class:?}");
        }
    }
}
