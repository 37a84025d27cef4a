//! Model calls: a retry gets the same answer, the answer is paid for once, and it survives its client.
//!
//! # Layout
//! - `dialect`: the protocols of providers. `scanner`, `elements`: where an answer ends. `usage`: what it used.
//!   `encoding`: compressed answers. `settings`: what is configured.
//! - `which`: whether a request is a retry or a new sample.
//! - `generation`: an answer while it grows, and its readers. `unattended`: generations without readers. `attempt`: one
//!   request to the provider. `budget`: how many there may be.

mod attempt;
mod budget;
pub(crate) mod dialect;
mod elements;
mod encoding;
mod generation;
mod scanner;
pub(crate) mod settings;
mod unattended;
mod usage;
mod which;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::response::Response;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use onceward::{
    Class, Effect, Error, InvalidInput, Json, OnFailure, Operation, Preview, Ran, Receipt, Record, RefusalOf,
    State, Terms,
};

use super::context::RequestContext;
use super::delivery::Delivery;
use super::policy::OperationRule;
use super::readers::Reader;
use super::reply::{self, Reply};
use super::rules::{Format, Part, Placement};
use crate::locks::lock;
use crate::telemetry::{self, CallSurface};
use crate::tenant::Place;
use attempt::ModelRequest;
use dialect::{Dialect, ModelApi};
use generation::{Follower, Generation, Growing, Opening, Ownership, Settled, Stored};
use settings::Settings;
use which::Chosen;

/// The header in which Gemini accepts the same credential as in the query.
const GEMINI_KEY: HeaderName = HeaderName::from_static("x-goog-api-key");

/// The answers that grow in this process.
pub(crate) type Generations = Mutex<HashMap<Place, Arc<Generation>>>;

/// A request to a model.
pub(crate) struct ModelCall {
    pub(crate) context: RequestContext,
    pub(crate) settings: Settings,
    pub(crate) dialect: Dialect,
    /// The same client, as the reader of the call's position in its run.
    pub(crate) position_reader: Arc<Reader>,
}

impl ModelCall {
    /// Answers the request, with a new generation or an earlier one.
    pub(crate) async fn run(self) -> Response {
        let terms = match self.terms() {
            Ok(terms) => terms,
            Err(invalid) => return reply::problem(&invalid.into()),
        };
        let tries = terms.max_attempts;
        let operation = match self.operation(terms) {
            Ok(operation) => operation,
            Err(error) => return reply::problem(&error),
        };
        let (mut last, mut failures) = (None, 0);
        while failures < tries {
            let mut chosen = match which::choose(&self, operation.clone()).await {
                Ok(chosen) => chosen,
                Err(error) => return reply::problem(&error),
            };
            if self.context.options.dry_run {
                return match self.context.tenant.ledger.plan(&chosen.intent).await {
                    Ok(plan) => reply::preview(&Preview::of(&plan, &chosen.intent, Effect::Created)),
                    Err(error) => reply::problem(&error),
                };
            }
            let (follower, is_own) = self.follow(&chosen, tries).await;
            chosen.turn = None;
            let rule = chosen.rule;
            match self.respond(follower, is_own, chosen).await {
                Answered::Response(mut response) => {
                    reply::put_rule(response.headers_mut(), rule);
                    return response;
                }
                // The generation of another request failed, so this one makes the next attempt.
                Answered::Failed(settled) => (last, failures) = (Some(settled), failures + 1),
                Answered::Taken => {}
            }
        }
        match last.as_deref() {
            Some(Err(error)) => self.failed(error),
            Some(Ok(_)) | None => reply::refusal(
                StatusCode::FAILED_DEPENDENCY,
                "BUDGET_EXHAUSTED",
                Some(onceward::Happened::No),
                "the budget of attempts is spent",
            ),
        }
    }

    fn terms(&self) -> Result<Terms, InvalidInput> {
        let rule = OperationRule::of(&self.context.gateway.policy, &self.context.bare_name())?;
        let ruling =
            self.context.upstream.ruling(&self.context.request.method, &self.context.path, None, rule);
        // A further attempt costs money and changes nothing else.
        Ok(Terms { class: Class::Idempotent, on_failure: OnFailure::Retry, ..ruling.terms })
    }

    fn operation(&self, terms: Terms) -> Result<Operation, Error> {
        let operation = Operation::new(self.context.bare_name())
            .input(self.input())
            .trace_parent(self.context.trace_parent())
            .terms(terms);
        self.in_scope(operation, self.context.options.scope.as_deref())
    }

    /// What identifies the content of the call.
    fn input(&self) -> Json {
        self.context.request.input(self.key_in_query().as_ref())
    }

    /// The operation in the scope of its caller.
    fn in_scope(&self, operation: Operation, scope: Option<&str>) -> Result<Operation, Error> {
        let mut headers = self.context.request.headers.clone();
        let key = self.key_in_query().and_then(|place| self.context.request.key_at(&place));
        if let Some(key) = key.and_then(|key| HeaderValue::from_bytes(key.as_bytes()).ok()) {
            headers.append(GEMINI_KEY, key);
        }
        Ok(self.context.upstream.in_scope(operation, &self.context.tenant, &headers, scope)?)
    }

    /// The parameter in which Gemini accepts the caller's credential. It identifies the caller, not the content.
    fn key_in_query(&self) -> Option<Placement> {
        let (name, max) = ("key".to_owned(), usize::MAX);
        let place = Placement {
            part: Part::Query,
            name,
            names: Vec::new(),
            max,
            format: Format::Plain,
            if_present: true,
        };
        self.context.upstream.models.as_ref().filter(|(api, _)| *api == ModelApi::Gemini).map(|_| place)
    }

    /// The generation of the chosen operation, from its first byte, and whether this request began it.
    async fn follow(&self, chosen: &Chosen, tries: u32) -> (Follower, bool) {
        let place = self.context.tenant.place(&chosen.intent.id);
        self.context.reader.refers_to(place.clone());
        let (generation, follower, is_own) = {
            let mut all = lock(&self.context.gateway.generations);
            match all.get(&place) {
                Some(running) => (Arc::clone(running), running.follow(), false),
                None => {
                    let is_whole = chosen.intent.terms.redact.is_empty();
                    let stored = if is_whole { Stored::Whole } else { Stored::Redacted };
                    let generation = Arc::new(Generation::new(stored));
                    all.insert(place.clone(), Arc::clone(&generation));
                    let follower = generation.follow();
                    (generation, follower, true)
                }
            }
        };
        if is_own {
            self.generate(place, &generation, chosen, tries);
        }
        // Until the operation is in the ledger, an equal request could choose it too.
        generation.begun().await;
        (follower, is_own)
    }

    /// Begins a generation, which continues without this request.
    fn generate(&self, place: Place, generation: &Arc<Generation>, chosen: &Chosen, tries: u32) {
        let (mut intent, layer, ownership) = (chosen.intent.clone(), chosen.layer, chosen.ownership);
        if ownership == Ownership::Own {
            // If another gateway has begun it, this call does not wait for that one.
            intent.terms.wait_ms = 0;
        }
        let request = Arc::new(ModelRequest {
            tenant: self.context.tenant.clone(),
            upstream: Arc::clone(&self.context.upstream),
            settings: self.settings.clone(),
            dialect: self.dialect,
            redact: intent.terms.redact.clone(),
            request: Arc::clone(&self.context.request),
            layer,
            generation: Arc::clone(generation),
        });
        let gateway = Arc::clone(&self.context.gateway);
        let (tenant, asked) = (self.context.tenant.clone(), self.context.asked);
        let reader = Arc::clone(&self.context.reader);
        drop(self.context.gateway.tasks.spawn(async move {
            let mut is_first = true;
            let act = |attempt| {
                let (request, is_first) = (Arc::clone(&request), std::mem::replace(&mut is_first, false));
                // Only now: if another gateway began the operation, this process does not know its clients.
                reader.executes();
                request.generation.note_begun();
                async move { request.attempt(attempt, is_first).await }
            };
            // A call that another gateway makes is waited for: its answer is replayed when it is complete.
            let result = budget::within(&tenant, &gateway.readers, intent, tries, act).await;
            telemetry::ended(CallSurface::Gateway, &result, asked.elapsed(), Some(&gateway.metrics));
            lock(&gateway.generations).remove(&place);
            request.generation.settle(Arc::new(result), ownership);
        }));
    }

    async fn respond(&self, follower: Follower, is_own: bool, chosen: Chosen) -> Answered {
        match follower.opening().await {
            Opening::Begun(head) => {
                let delivery = self.delivery_at_end(chosen.position);
                let mut response = Response::new(Body::new(Growing::new(follower, delivery)));
                *response.status_mut() = head.status;
                *response.headers_mut() = head.headers;
                response.headers_mut().remove(hyper::header::CONTENT_LENGTH);
                let headers = response.headers_mut();
                reply::put(headers, "once-operation", chosen.intent.id.as_str());
                reply::put(headers, "once-effect", if is_own { "created" } else { "noop" });
                if !is_own {
                    reply::put(headers, "idempotent-replayed", "true");
                }
                Answered::Response(response)
            }
            Opening::Settled(settled) => match &*settled {
                Ok(receipt) => {
                    let own = follower.whole().filter(|_| receipt.ran() == Ran::Yes);
                    let reply = own.map(|(head, body)| Reply {
                        status: head.status,
                        headers: head.headers,
                        body,
                        trailers: None,
                    });
                    Answered::Response(self.stored(receipt, reply, is_own, chosen.position))
                }
                Err(Error::Failed { .. }) if !is_own => Answered::Failed(settled),
                Err(error) => Answered::Response(self.failed(error)),
            },
            Opening::Taken => Answered::Taken,
        }
    }

    /// The complete answer, from this process if it is known, and otherwise from the ledger.
    fn stored(
        &self,
        receipt: &Receipt,
        known: Option<Reply>,
        is_own: bool,
        position: Option<Arc<Record>>,
    ) -> Response {
        let record = receipt.record();
        let stored = || record.outcome.as_ref().and_then(|outcome| Reply::decode(outcome.body.as_deref()?));
        let Some(reply) = known.or_else(stored) else { return reply::unavailable(record) };
        let ran = if is_own { receipt.ran() } else { Ran::No };
        let mut response = reply.response(record, ran);
        put_usage(record, response.headers_mut());
        let response = self.delivery(record).attach(response);
        match position {
            Some(position) => self.delivery(&position).attach(response),
            None => response,
        }
    }

    /// The provider's own refusal, or a problem that tells SDKs to stop.
    fn failed(&self, error: &Error) -> Response {
        if let Error::BudgetExhausted { record, .. } = error {
            return reply::spent(record, Ran::No);
        }
        if let Error::Cancelled { record, of: RefusalOf::Own, .. } = error {
            let window_ms = self.terms().map_or(0, |terms| terms.repeat_window_ms);
            return self.delivery(record).of_refusal(window_ms).attach(reply::problem(error));
        }
        let Error::Failed { record, ran, .. } = error else { return reply::problem(error) };
        let reply = record.outcome.as_ref().and_then(|outcome| Reply::decode(outcome.body.as_deref()?));
        let is_spent = record.spent_attempts() >= record.detail.max_attempts;
        match reply {
            Some(reply) if !is_spent || is_final(reply.status) => {
                let response = reply.response(record, *ran);
                let delivery = self.delivery(record);
                let delivery = if is_final(reply.status) { delivery } else { delivery.of_failure() };
                delivery.attach(response)
            }
            Some(_) | None if is_spent => {
                let mut response = reply::spent(record, *ran);
                put_usage(record, response.headers_mut());
                self.delivery(record).of_failure().attach(response)
            }
            Some(_) | None => self.delivery(record).of_failure().attach(reply::problem(error)),
        }
    }

    /// A client that has the whole answer of a model has waited for it, so a further call is wanted.
    fn delivery(&self, record: &Arc<Record>) -> Delivery {
        self.context.delivery(record).without_grace()
    }

    fn delivery_at_end(&self, position: Option<Arc<Record>>) -> impl FnOnce(Settled) + Send + 'static {
        let (tenant, readers) = (self.context.tenant.clone(), Arc::clone(&self.context.gateway.readers));
        let (asked, receipts) = (self.context.asked, self.context.receipts.clone());
        move |settled| {
            let Ok(receipt) = &*settled else { return };
            for record in position.iter().chain([receipt.record()]) {
                Delivery::new(&tenant, &readers, record, asked, &receipts).without_grace().end();
            }
        }
    }
}

/// The result of following a generation.
enum Answered {
    Response(Response),
    /// It failed, and another attempt may be made.
    Failed(Settled),
    /// Another gateway began it first, so this call chooses again.
    Taken,
}

/// Whether the same request would be refused again.
fn is_final(status: StatusCode) -> bool {
    status.is_client_error()
        && !matches!(
            status,
            StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS
        )
}

/// What the answer cost, and what failed attempts cost.
fn put_usage(record: &Record, headers: &mut HeaderMap) {
    reply::put(headers, "once-attempts", &record.spent_attempts().to_string());
    let last = record.outcome.as_ref().and_then(|outcome| outcome.usage.as_ref());
    let (answer, failed) = if record.state == State::Done { (last, None) } else { (None, last) };
    if let Some(usage) = answer {
        let mark = if usage.estimated { ";estimated" } else { "" };
        let tokens = format!("in={};cached={};out={}{mark}", usage.input, usage.cached, usage.output);
        reply::put(headers, "once-tokens", &tokens);
    }
    let wasted = record.detail.history.iter().filter_map(|past| past.usage.as_ref()).chain(failed);
    let wasted: u64 = wasted.map(|usage| usage.input + usage.cached + usage.output).sum();
    if wasted > 0 {
        reply::put(headers, "once-wasted-tokens", &wasted.to_string());
    }
}
