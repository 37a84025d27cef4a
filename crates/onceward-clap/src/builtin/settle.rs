//! Looking at an operation, and saying what became of one in doubt.

use std::sync::Arc;

use clap::{Args, ValueEnum};
use onceward::answer::{OperationView, rfc3339};
use onceward::{
    Blocking, Class, Effect, Error, InvalidInput, Json, OperationId, Outcome, Record, Replayed, State,
    Verdict,
};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::command::World;
use crate::envelope::Envelope;
use crate::plan::Plan;
use crate::session::Session;

/// What is typed after `settle`.
#[derive(Debug, Args)]
pub(crate) struct SettleArgs {
    /// The operation (op_…)
    #[arg(value_name = "OPERATION")]
    operation: String,
    /// What became of it
    #[arg(long = "as", value_name = "VERDICT")]
    verdict: SettleAs,
    /// Why, for those who look later
    #[arg(long)]
    note: Option<String>,
    /// The result that retries get, as JSON
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
    /// Say what would change and change nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SettleAs {
    /// It happened: retries get its result
    Done,
    /// It did not happen: the next call runs it
    Failed,
}

/// All that is known of an operation.
#[derive(Serialize)]
struct Shown<'a> {
    operation: OperationView,
    class: Class,
    created_at: String,
    updated_at: String,
    replays: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    settled_by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

pub(super) fn show<W: World>(session: &Session<W>, operation: &str) -> Envelope {
    let shown = || -> Result<Envelope, Error> {
        let (_, record, state) = find(session, operation)?;
        let outcome = record.outcome.as_ref();
        let next = || format!("{} settle {} --as 'done|failed'", session.tool, record.id);
        Ok(Envelope::read(&Shown {
            operation: OperationView::of(&record, state, Replayed::No),
            class: record.detail.class,
            created_at: rfc3339(record.created_ms),
            updated_at: rfc3339(record.updated_ms),
            replays: record.replays,
            reason: record.reason(),
            settled_by: outcome.and_then(|outcome| outcome.settled_by.as_deref()),
            result: outcome.and_then(|outcome| outcome.data.as_deref()),
            next: (state == State::InDoubt).then(next),
        }))
    };
    shown().unwrap_or_else(|error| session.failed(error))
}

pub(super) fn settle<W: World>(session: &Session<W>, args: &SettleArgs) -> Envelope {
    try_settle(session, args).unwrap_or_else(|error| session.failed(error))
}

fn try_settle<W: World>(session: &Session<W>, args: &SettleArgs) -> Result<Envelope, Error> {
    let data = match &args.data {
        Some(text) => {
            Json::parse(text).map_err(|invalid| InvalidInput::new(format!("--data: {invalid}")))?;
            serde_json::from_str(text).ok()
        }
        None => None,
    };
    let (ledger, record, state) = find(session, &args.operation)?;
    let (verdict, word, effect) = match args.verdict {
        SettleAs::Done => (Verdict::Done, State::Done, Some(Effect::Updated)),
        SettleAs::Failed => (Verdict::Failed, State::Failed, None),
    };
    let view = |record: &Record| Some(OperationView::of(record, word, Replayed::No));
    if state == word {
        let reason = Some(format!("it is {word} already"));
        return Ok(Envelope { reason, operation: view(&record), ..Envelope::success("noop") });
    }
    if state != State::InDoubt {
        let record = Arc::new(Record { state, ..Record::clone(&record) });
        return Err(Error::WrongState { action: "settling", record });
    }
    if args.dry_run {
        let plan = Plan::update(format_args!("{}: settle it as {word}", record.id));
        return Ok(Envelope { operation: view(&record), ..Envelope::preview(&plan) });
    }
    let reason = args.note.clone().unwrap_or_else(|| "settled by hand".to_owned());
    let settled_by = Some("hand".to_owned());
    let outcome = Outcome { effect, data, settled_by, ..Outcome::because(Some(reason)) };
    let record = ledger.wait_for(ledger.ledger().settle(&record.id, verdict, outcome))?;
    let meaning = if word == State::Done { "retries get its result" } else { "the next call runs it" };
    let reason = Some(format!("{} is {word}: {meaning}", record.id));
    Ok(Envelope { reason, operation: view(&record), ..Envelope::success("updated") })
}

fn find<W: World>(session: &Session<W>, operation: &str) -> Result<(Blocking, Arc<Record>, State), Error> {
    let id = OperationId::parse(operation)?;
    let none = "there is no ledger yet; the first command that changes something makes one";
    let ledger = session.existing_ledger()?.ok_or_else(|| InvalidInput::new(none))?;
    let (record, state) = ledger.wait_for(ledger.ledger().find(&id))?;
    Ok((ledger, record, state))
}
