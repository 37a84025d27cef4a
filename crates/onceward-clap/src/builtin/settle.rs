//! Shows an operation, and records what was found out about one in doubt.

use std::sync::Arc;

use clap::{Args, ValueEnum};
use onceward::{
    Answer, Blocking, Choice, Class, Effect, Error, Happened, InvalidInput, Json, NextStep, OperationId,
    OperationView, Outcome, Ran, Record, State, Verdict, rfc3339,
};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::command::World;
use crate::envelope::Envelope;
use crate::session::Session;

/// What is typed after `settle`.
#[derive(Debug, Args)]
pub(crate) struct SettleArgs {
    /// The operation (op_…)
    #[arg(value_name = "OPERATION")]
    operation: String,
    /// What you found: it happened (done), or it did not (failed)
    #[arg(long = "as", value_name = "VERDICT")]
    verdict: SettleAs,
    /// What the finding is based on; recorded with the operation
    #[arg(long)]
    note: Option<String>,
    /// The result that retries get, as JSON
    #[arg(long, value_name = "JSON")]
    data: Option<String>,
    /// Show what would change and change nothing
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

/// Everything recorded about an operation.
#[derive(Serialize)]
struct ShownOperation<'a> {
    operation: OperationView,
    happened: Happened,
    class: Class,
    created_at: String,
    updated_at: String,
    replays: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    options: Vec<Choice>,
}

pub(super) fn show<W: World>(session: &Session<W>, operation: &str) -> Envelope {
    let shown = || -> Result<Envelope, Error> {
        let (_, record, state) = find(session, operation)?;
        let record = record.into_readable();
        let outcome = record.outcome.as_ref();
        let in_doubt = state == State::InDoubt;
        let guidance = in_doubt.then(|| session.surface.spell(&NextStep::Settle(record.id.clone())));
        let guidance = guidance.unwrap_or_default();
        let seen = Record { state, ..Record::clone(&record) };
        Ok(Envelope::info(&ShownOperation {
            operation: OperationView { replayed: false, ..OperationView::of(&record, state, Ran::No) },
            happened: seen.happened(),
            class: record.detail.class,
            created_at: rfc3339(record.created_ms),
            updated_at: rfc3339(record.updated_ms),
            replays: record.replays,
            reason: record.reason(),
            result: outcome.and_then(|outcome| outcome.data.as_deref()),
            next: Some(guidance.say).filter(|say| !say.is_empty()),
            options: guidance.options,
        }))
    };
    shown().unwrap_or_else(|error| Envelope::not_done(&error, &session.surface))
}

pub(super) fn settle<W: World>(session: &Session<W>, args: &SettleArgs) -> Envelope {
    try_settle(session, args).unwrap_or_else(|error| Envelope::not_done(&error, &session.surface))
}

fn try_settle<W: World>(session: &Session<W>, args: &SettleArgs) -> Result<Envelope, Error> {
    let data: Option<Box<RawValue>> = match &args.data {
        Some(text) => {
            Json::parse(text).map_err(|invalid| InvalidInput::new(format!("--data: {invalid}")))?;
            serde_json::from_str(text).ok()
        }
        None => None,
    };
    let (ledger, record, state) = find(session, &args.operation)?;
    let (verdict, ended, effect) = match args.verdict {
        SettleAs::Done => (Verdict::Done, State::Done, Some(Effect::Updated)),
        SettleAs::Failed => (Verdict::Failed, State::Failed, None),
    };
    if is_settled_as(&record, state, ended) {
        return Ok(answer(&record, ended, "noop", format!("it is {ended} already; nothing was changed")));
    }
    if state != State::InDoubt {
        let record = Arc::new(Record { state, ..Record::clone(&record) });
        return Err(Error::WrongState { action: "settling", record });
    }
    if args.dry_run {
        let would = answer(&record, state, "would_update", format!("would settle it as {ended}"));
        let changes = Some(vec![format!("would settle {} as {ended}", record.id)]);
        return Ok(Envelope { answer: Answer { changes, ..would.answer }, ..would });
    }
    let outcome = Outcome { effect, data: data.map(Arc::from), ..Outcome::because(None) };
    let redact = session.redaction(&record.name)?;
    let (outcome, word) = (redact.outcome(outcome), redact.word(session.settler().note(args.note.clone())));
    // The finding is about this attempt: another one may have begun since.
    let record = match ledger.attempts().settle(&record.id, record.attempt, verdict, word, outcome) {
        // Another caller was faster, and found the same.
        Err(Error::WrongState { record, .. }) if is_settled_as(&record, record.state, ended) => {
            return Ok(answer(&record, ended, "noop", format!("it is {ended} already; nothing was changed")));
        }
        settled => settled?,
    };
    let meaning = if ended == State::Done { "retries get its result" } else { "the next call runs it" };
    Ok(answer(&record, ended, "updated", format!("{} is {ended}: {meaning}", record.id)))
}

fn is_settled_as(record: &Record, state: State, ended: State) -> bool {
    state == ended || (state == State::Expired && record.detail.ended == Some(ended))
}

fn answer(record: &Record, state: State, effect: &'static str, reason: String) -> Envelope {
    let operation = OperationView { replayed: false, ..OperationView::of(record, state, Ran::No) };
    let done = Envelope::success(effect);
    let answer = Answer { reason: Some(reason), operation: Some(operation), ..done.answer };
    Envelope { answer, ..done }
}

fn find<W: World>(session: &Session<W>, operation: &str) -> Result<(Blocking, Arc<Record>, State), Error> {
    let id = OperationId::parse(operation)?;
    let ledger = session.existing_ledger()?.ok_or_else(|| Error::NotFound { id: id.to_string() })?;
    let (record, state) = ledger.find(&id)?;
    Ok((ledger, record, state))
}
