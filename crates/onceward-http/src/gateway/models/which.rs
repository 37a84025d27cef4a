//! Which operation a model call refers to: a retry attaches to an earlier call, a new sample is one of its own.
//!
//! In this order: the caller's key; an explicit sample; the n-th equal call of a run; a call whose client left without
//! the answer; if the SDK reports a retry, a call that failed or that another gateway makes; otherwise a new sample.
//!
//! An answer that was delivered is never a retry's, whatever the SDK reports: it counts its own tries, and the first of
//! them may not have reached the gateway.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use onceward::repeat::{self, Choice, Identified};
use onceward::transition::later;
use onceward::{Error, Intent, InvalidInput, Json, Kind, Operation, Ran, Record, RepeatRule, State};

use super::super::aliases::{self, Written};
use super::super::choose::{self, Decided};
use super::super::context::RequestContext;
use super::super::named_locks::NamedLock;
use super::ModelCall;
use super::generation::Ownership;
use crate::headers::{self, KEY};

/// For how long a retry that an SDK reports finds the call before it, if the SDK does not say how long it waits.
const RETRY_WINDOW: Duration = Duration::from_secs(660);

/// The operation of a call.
pub(crate) struct Chosen {
    pub(crate) intent: Intent,
    pub(crate) rule: RepeatRule,
    /// Which layer asked.
    pub(crate) layer: &'static str,
    /// The position of the call in its run, which is delivered with the answer.
    pub(crate) position: Option<Arc<Record>>,
    /// Held until the operation has begun.
    pub(crate) turn: Option<NamedLock>,
    pub(crate) ownership: Ownership,
}

/// Chooses the operation of a call.
///
/// # Errors
/// [`Error::Invalid`], [`Error::InProgress`] if it stays unknown whether the client of an equal call is there, or the
/// ledger cannot be used.
pub(crate) async fn choose(call: &ModelCall, operation: Operation) -> Result<Chosen, Error> {
    let RequestContext { tenant, request, options, .. } = &call.context;
    let ledger = &tenant.ledger;
    let given = |operation: Operation| Ok(Chosen::given(ledger.intent(operation)?));
    if let Some(key) = headers::key(&request.headers, &KEY) {
        return given(operation.key(key));
    }
    if let Some(label) = &options.occurrence {
        return given(operation.occurrence(label.clone()));
    }
    let run = match (&options.run, &options.scope) {
        (Some(run), Some(scope)) => Some((run, scope)),
        (Some(_), None) => {
            return Err(InvalidInput::new("Once-Run names a start of a scope: send Once-Scope too").into());
        }
        (None, _) => None,
    };
    match (&options.sample, run) {
        (Some(sample), _) if sample.eq_ignore_ascii_case("new") => {
            // The samples of a run are counted apart from its positions, which are the same after a restart.
            let operation = match run {
                Some(_) => operation.input(with_members(call, [("sample", Json::from("new"))])),
                None => operation,
            };
            new_sample(call, &ledger.intent(operation)?).await
        }
        (Some(_), _) => Err(InvalidInput::new("Once-Sample has the value `new`, or is left out").into()),
        (None, Some((run, scope))) => in_run(call, operation, scope, run).await,
        (None, None) => {
            let since_ms = (reported(call) > 0).then(|| ledger.clock_ms() - retry_window_ms(call));
            by_delivery(call, &ledger.intent(operation)?, since_ms).await
        }
    }
}

impl Chosen {
    /// The operation that the caller names.
    fn given(intent: Intent) -> Self {
        Self {
            intent,
            rule: RepeatRule::Given,
            layer: "caller",
            position: None,
            turn: None,
            ownership: Ownership::Shared,
        }
    }

    fn retry(intent: Intent, state: State, layer: &'static str, turn: NamedLock) -> Self {
        let ownership = match state {
            State::Failed | State::InDoubt => Ownership::Own,
            State::Staged | State::Running | State::Done | State::Cancelled | State::Expired => {
                Ownership::Shared
            }
        };
        Self { rule: RepeatRule::Retry(state), layer, turn: Some(turn), ownership, ..Self::given(intent) }
    }

    fn new(intent: Intent, rule: RepeatRule, turn: NamedLock) -> Self {
        Self { rule, turn: Some(turn), ownership: Ownership::Own, ..Self::given(intent) }
    }
}

/// The content of a call with further members.
fn with_members<const N: usize>(call: &ModelCall, members: [(&str, Json); N]) -> Json {
    let members = members.into_iter().chain([("call", call.input())]);
    Json::Object(members.map(|(name, value)| (name.to_owned(), value)).collect())
}

/// A sample that the caller asks for. An SDK sends the header again with its own retries, which get the sample that has
/// lost its client.
async fn new_sample(call: &ModelCall, action: &Intent) -> Result<Chosen, Error> {
    if reported(call) > 0 {
        return by_delivery(call, action, None).await;
    }
    let ledger = &call.context.tenant.ledger;
    let turn = call.context.gateway.named_locks.take(call.context.tenant.place(&action.id)).await;
    let known = ledger.repeats().occurrences(action).await?;
    let action = ledger.keyed(action.clone());
    // A person's no is the answer to a further sample, too.
    if let Choice::Same(place) = repeat::choose(&known.earlier(ledger.clock_ms()), Identified::ByOwnKey) {
        return Ok(Chosen::retry(known.same(action, place).intent, known.all[place].1, "caller", turn));
    }
    let intent = action.at_occurrence(known.next_number())?;
    Ok(Chosen::new(intent, RepeatRule::Repeat, turn))
}

/// The n-th equal call of a run is the n-th of its scope. Delivery distinguishes a retry within a run from its next
/// call.
async fn in_run(call: &ModelCall, operation: Operation, scope: &str, run: &str) -> Result<Chosen, Error> {
    let ledger = &call.context.tenant.ledger;
    // A position is another name of its operation, so it is not listed as one.
    let input = with_members(
        call,
        [("run", Json::from(run)), ("upstream", Json::from(call.context.upstream.name.as_str()))],
    );
    let position = Operation::of_kind(Kind::Alias, "position").input(input).terms(call.terms()?);
    let position = call.in_scope(position, Some(scope))?;
    let position = ledger.keyed(ledger.intent(position)?);
    let intent = ledger.keyed(ledger.intent(operation)?);
    loop {
        let chosen = by_delivery(call, &position, None).await?;
        let intent = intent.clone().at_occurrence(chosen.intent.number.unwrap_or(1))?;
        if call.context.options.dry_run {
            return Ok(Chosen { intent, ..chosen });
        }
        call.position_reader.refers_to(call.context.tenant.place(&chosen.intent.id));
        let written = aliases::write(&call.context.tenant, chosen.intent.clone(), &intent.id).await?;
        if (written, chosen.ownership) == (Written::Known, Ownership::Own) {
            // Another gateway has given this position to an equal call of the run.
            continue;
        }
        // Only now: this process does not know the clients of a position that another gateway has given.
        call.position_reader.executes();
        let (record, _) = ledger.find(&chosen.intent.id).await?;
        return Ok(Chosen { intent, position: Some(record), ownership: Ownership::Shared, ..chosen });
    }
}

/// A call that this one can be the retry of, or a new sample.
async fn by_delivery(
    call: &ModelCall,
    action: &Intent,
    repeats_since_ms: Option<i64>,
) -> Result<Chosen, Error> {
    let until_ms = later(call.context.tenant.ledger.clock_ms(), action.terms.wait_ms);
    let nothing_else = || std::future::ready(Ok(None::<Infallible>));
    let sample = Identified::AsSample { repeats_since_ms };
    match choose::decide(&call.context, action, sample, until_ms, nothing_else).await? {
        Decided::Known(never) => match never {},
        Decided::Same(intent, state, turn) => {
            let layer = if reported(call) > 0 { "sdk" } else { "retry" };
            Ok(Chosen::retry(intent, state, layer, turn))
        }
        Decided::New(intent, rule, turn) => Ok(Chosen::new(intent, rule, turn)),
        Decided::Undecided(record) => Err(Error::InProgress { record, ran: Ran::No }),
    }
}

/// How often the SDK says that it has tried this call before.
fn reported(call: &ModelCall) -> u32 {
    let said = headers::only(&call.context.request.headers, "x-stainless-retry-count");
    said.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// How long the SDK waits for an answer, and a minute more.
fn retry_window_ms(call: &ModelCall) -> i64 {
    let said = ["x-stainless-read-timeout", "x-stainless-timeout"]
        .iter()
        .find_map(|name| headers::only(&call.context.request.headers, name)?.parse::<u32>().ok());
    let patience = said.map_or(RETRY_WINDOW, |seconds| Duration::from_secs(u64::from(seconds) + 60));
    i64::try_from(patience.as_millis()).unwrap_or(i64::MAX)
}
