//! Taking a request back with another request to the same API: `Once-Undo: OPERATION`.
//!
//! Credentials are never stored, so the caller brings them, in the headers that the API expects. They also identify the
//! caller: only the operations of the same caller can be taken back.

use std::sync::Arc;
use std::time::Instant;

use axum::response::Response;
use bytes::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, Method, StatusCode};
use onceward::{
    Class, EffectNow, Error, FieldValue, InvalidInput, Operation, OperationId, PRINCIPAL, Record,
    RequestUndo, Reversal, Template, ToUndo, UndoLine, UndoOutcome, UndoReport, UndoResult, UndoStart,
    Undoing, Verification, field, fill_json,
};

use super::checks::Check;
use super::content::Request;
use super::exchange::{Exchange, OnFinal};
use super::mutate;
use super::names::Named;
use super::payload::Payload;
use super::policy::OperationRule;
use super::query::{fields_of, in_path};
use super::readers::Reader;
use super::reply::{self, Reply};
use super::upstream::{Ruling, Upstream};
use super::{Gateway, without_dots};
use crate::headers::{KEY, only};
use crate::telemetry::{self, CallSurface};
use crate::tenant::Tenant;

/// The header with the operation that is taken back.
pub(crate) const UNDO: &str = "once-undo";

/// A request to take an operation back.
pub(crate) struct Undo {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) tenant: Tenant,
    pub(crate) upstream: Arc<Upstream>,
    /// The caller's headers, with its credentials.
    pub(crate) headers: HeaderMap,
    pub(crate) dry_run: bool,
    pub(crate) reader: Arc<Reader>,
}

/// What is done about the operation.
enum Action {
    /// Send this request, under this ruling.
    Send(Box<(Request, Ruling)>),
    /// Its compensation is done already: only record it.
    Finish,
    /// Nothing, for this reason.
    Leave(String),
}

impl Undo {
    /// Takes the operation back and answers. Runs to its end even if the client is gone.
    pub(crate) async fn run(self) -> Response {
        let word = only(&self.headers, UNDO).unwrap_or_default();
        let done = match OperationId::parse(word) {
            Ok(id) => self.line(&id).await,
            Err(invalid) => Err(invalid.into()),
        };
        match done {
            Ok(line) => reply::undone(&UndoReport::new(None, vec![line]), self.dry_run),
            Err(error) => reply::problem(&error),
        }
    }

    async fn line(&self, id: &OperationId) -> Result<UndoLine, Error> {
        let found = self.tenant.ledger.undo().of(id).await?;
        // Another caller's operation is not even named.
        if !self.is_callers(&found.record) {
            return Err(Error::NotFound { id: id.to_string() });
        }
        let action = self.action(&found);
        match (action, self.dry_run) {
            (Action::Leave(why), _) => Ok(UndoLine::untouched(&found.record, found.reversal, why)),
            (Action::Finish, true) => {
                Ok(UndoLine::new(&found.record, found.reversal, UndoResult::WouldUndo, None))
            }
            (Action::Send(sent), true) => {
                let line = UndoLine::new(&found.record, found.reversal, UndoResult::WouldUndo, None);
                Ok(line.with_command(Some(in_words(&sent.0))))
            }
            (Action::Finish, false) => self.finish(&found).await,
            (Action::Send(sent), false) => self.send(&found, *sent).await,
        }
    }

    /// Whether the caller is the one that made the request, at this upstream.
    fn is_callers(&self, record: &Record) -> bool {
        let principal = self.upstream.principal(&self.tenant, &self.headers);
        let of_record = record.scope.rsplit_once(PRINCIPAL).map(|(_, principal)| principal);
        let at_upstream =
            record.name.strip_prefix(&self.upstream.name).is_some_and(|rest| rest.starts_with(' '));
        at_upstream && of_record == principal.as_deref()
    }

    fn action(&self, found: &ToUndo) -> Action {
        let record = &found.record;
        match (found.reversal, found.reversal.why_left()) {
            (Reversal::InDoubt, _) => {
                let why = "it may have happened: make the same request again, or settle it first";
                return Action::Leave(why.to_owned());
            }
            (_, Some(why)) => return Action::Leave(why.to_owned()),
            (_, None) if found.compensated => return Action::Finish,
            (_, None) => {}
        }
        let Some(undo) = &record.detail.undo else {
            return Action::Leave("an undo with another program has begun; finish it there".to_owned());
        };
        if let Some(error) = Error::of_result(record) {
            return Action::Leave(error.to_string());
        }
        let Some(request) = RequestUndo::of(undo) else {
            return Action::Leave(undo.taken_back_by(&record.id));
        };
        // What a ledger stores is data. It is sent only if the configuration says the same.
        if self.configured(record).as_ref() != Some(&request) {
            return Action::Leave(
                "the request stored with it was not sent, because the configuration of this server does not have it"
                    .to_owned(),
            );
        }
        self.request(&request, record).map_or_else(
            |invalid| Action::Leave(format!("the request cannot be made: {invalid}")),
            |sent| Action::Send(Box::new(sent)),
        )
    }

    /// The compensation that the configuration has for an operation.
    fn configured(&self, record: &Record) -> Option<RequestUndo> {
        let named = Named::parse(&record.name)?;
        let rule = named.rule(&self.gateway.policy)?;
        self.upstream.ruling(&named.method, named.path, named.action, rule).undo
    }

    /// The request that takes an operation back, with fields of its answer and the caller's credentials.
    fn request(&self, undo: &RequestUndo, record: &Record) -> Result<(Request, Ruling), InvalidInput> {
        let stored = record.outcome.as_ref().and_then(|outcome| Reply::decode(outcome.body.as_deref()?));
        let answer = stored.as_ref().map(|reply| fields_of(&reply.body)).unwrap_or_default();
        let value = |path: &str| match path {
            "once.operation" => Ok(FieldValue::from(record.id.as_str())),
            "once.key" => Ok(FieldValue::from(record.key.text.as_str())),
            path => field(answer, path),
        };
        let (method, template) = undo.target()?;
        let target = Template::parse(template)?.fill(|path| in_path(path, value(path)?.text()))?;
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (without_dots(path), Some(query.to_owned())),
            None => (without_dots(&target), None),
        };
        let method: Method = method.parse().map_err(|_| InvalidInput::new("the method is not valid"))?;
        let mut headers = self.headers.clone();
        for name in [header::CONTENT_TYPE, header::CONTENT_LENGTH, header::TRANSFER_ENCODING, KEY] {
            headers.remove(name);
        }
        let body = match (&undo.json, &undo.form) {
            (Some(json), _) => {
                headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
                Bytes::from(fill_json(json, &value)?)
            }
            (None, Some(form)) => {
                let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
                headers.insert(header::CONTENT_TYPE, kind);
                let mut pairs = form_urlencoded::Serializer::new(String::new());
                for (name, template) in form {
                    let text = Template::parse(template)?.fill(|path| Ok(value(path)?.text()))?;
                    pairs.append_pair(name, &text);
                }
                Bytes::from(pairs.finish())
            }
            (None, None) => Bytes::new(),
        };
        let request = Request::new(method, self.upstream.path(&path), query, headers, Payload::memory(body));
        let ruling = self.ruling(&request, &path, record)?;
        Ok((request, ruling))
    }

    /// What applies to the compensation: the rules of its own route, and the policy's for `undo:NAME`.
    fn ruling(&self, request: &Request, path: &str, record: &Record) -> Result<Ruling, InvalidInput> {
        let rule = OperationRule::of(&self.gateway.policy, Operation::undo_of(record).name())?;
        let mut ruling = self.upstream.ruling(&request.method, path, request.target().as_deref(), rule);
        if ruling.terms.class == Class::Read {
            return Err(InvalidInput::new(format!("the rules say that {path} only reads")));
        }
        if request.is_signed() {
            return Err(InvalidInput::new("the caller signs its requests, and this one is not the caller's"));
        }
        mutate::usable_place(&mut ruling, request);
        if let Some(place) = &ruling.key {
            request.with_key(place, "key").map_err(InvalidInput::new)?;
        }
        Ok(ruling)
    }

    async fn send(&self, found: &ToUndo, (request, ruling): (Request, Ruling)) -> Result<UndoLine, Error> {
        let (begun, command) = (Instant::now(), in_words(&request));
        let ledger = &self.tenant.ledger;
        let operation = Operation::undo_of(&found.record).terms(ruling.terms.clone());
        let undoing = match ledger.undo().start(found, operation).await? {
            UndoStart::Begun(undoing) => undoing,
            UndoStart::Changed(line) => return Ok(line),
        };
        let mut exchange =
            Exchange::new(&self.tenant, &self.upstream, ruling, Arc::new(request), false, &self.reader);
        exchange.on_final = OnFinal::Fail;
        let exchange = Arc::new(exchange);
        let result = mutate::call(ledger, &exchange, undoing.intent.clone()).await;
        telemetry::ended(CallSurface::Gateway, &result, begun.elapsed(), Some(&self.gateway.metrics));
        if let Err(error @ Error::Unavailable(_)) = result {
            return Err(error);
        }
        if result.is_ok() {
            self.check(&exchange, &undoing).await?;
        }
        let outcome = UndoOutcome::of(result.as_ref().map(|_| ()), &EffectNow::NotAsked);
        let line = ledger.undo().finish(found, &undoing, outcome).await?;
        Ok(line.with_command(Some(command)))
    }

    /// A success that was only accepted, or that the rules check, is not confirmed yet.
    async fn check(&self, exchange: &Exchange, undoing: &Undoing) -> Result<(), Error> {
        let (reply, is_accepted) = {
            let mut live = exchange.live();
            (live.reply.take(), live.is_accepted)
        };
        let is_checked = exchange.ruling.verify.is_some();
        // Without an answer of this call, it is an earlier one's success.
        let Some(reply) = reply.filter(|_| is_checked || is_accepted) else { return Ok(()) };
        let (ledger, id) = (&self.tenant.ledger, undoing.intent.id.clone());
        let record = ledger.attempts().verified(&id, Verification::Pending, None).await?;
        self.check_in_background(&record, exchange.ruling.clone(), reply);
        Ok(())
    }

    /// Resumes the check of a compensation that an earlier undo made, with the credentials of this caller.
    async fn check_again(&self, found: &ToUndo, undoing: &Undoing) -> Result<(), Error> {
        let (record, _) = self.tenant.ledger.find(&undoing.intent.id).await?;
        let Some(outcome) = record.outcome.as_ref() else { return Ok(()) };
        let undo = found.record.detail.undo.as_ref().and_then(RequestUndo::of);
        let ruling = undo.and_then(|undo| self.request(&undo, &found.record).ok()).map(|(_, ruling)| ruling);
        let reply = outcome.body.as_deref().and_then(Reply::decode);
        if let (Some(Verification::Pending), Some(ruling), Some(reply)) = (outcome.verified, ruling, reply) {
            self.check_in_background(&record, ruling, reply);
        }
        Ok(())
    }

    fn check_in_background(&self, record: &Record, ruling: Ruling, reply: Reply) {
        if ruling.verify.is_none() {
            return;
        }
        let check = Check {
            tenant: self.tenant.clone(),
            upstream: Arc::clone(&self.upstream),
            ruling,
            headers: self.headers.clone(),
            id: record.id.clone(),
            reply,
            since_ms: self.tenant.ledger.clock_ms(),
        };
        check.in_background(&self.gateway);
    }

    /// Records a compensation that was done, and whose undo was interrupted.
    async fn finish(&self, found: &ToUndo) -> Result<UndoLine, Error> {
        let ledger = &self.tenant.ledger;
        match ledger.undo().start(found, Operation::undo_of(&found.record)).await? {
            UndoStart::Changed(line) => Ok(line),
            UndoStart::Begun(undoing) => {
                self.check_again(found, &undoing).await?;
                let outcome = UndoOutcome::of(Ok(()), &EffectNow::NotAsked);
                ledger.undo().finish(found, &undoing, outcome).await
            }
        }
    }
}

/// The refusal of an undo with a path, a query, a body or another method.
pub(crate) fn with_more() -> Response {
    let detail = "a request with Once-Undo has no path, no query and no body of its own: they come from the rule of \
                  the operation; send POST /gw/UPSTREAM; nothing was sent";
    reply::refusal(StatusCode::BAD_REQUEST, "INVALID_INPUT", None, detail)
}

fn in_words(request: &Request) -> String {
    format!("{} {}", request.method, request.path_and_query())
}
