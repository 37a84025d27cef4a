//! `once settle`: somebody says what became of an operation in doubt.

use std::process::ExitCode;
use std::sync::Arc;

use onceward::{Effect, Error, Json, Outcome, ProbeAnswer, Ran, Record, State, Verdict};

use super::ask;
use super::ls::{Line, standing};
use crate::answer::{self, BOLD, styled};
use crate::cli::{SettleArgs, SettleAs};
use crate::context::{Context, Missing};
use crate::exit::{CommandError, Ended};

pub(super) fn run(context: &Context, args: &SettleArgs) -> Ended {
    let id = context.operation(&args.operation.operation)?;
    let data = match &args.data {
        Some(text) => {
            Json::parse(text).map_err(|invalid| CommandError::invalid(format!("--data: {invalid}")))?;
            serde_json::from_str(text).ok()
        }
        None => None,
    };
    let ledger = context.ledger(Missing::Refuse)?;
    let (record, state) = ledger.wait_for(ledger.ledger().find(&id))?;
    if state != State::InDoubt {
        return Err(Error::WrongState { action: "settling", record: standing(record, state) }.into());
    }
    let (verdict, mut outcome) = match args.verdict {
        Some(SettleAs::Done) => (Verdict::Done, by_hand(args, Some(Effect::Updated))),
        Some(SettleAs::Failed) => (Verdict::Failed, by_hand(args, None)),
        None => by_probe(&record, state)?,
    };
    outcome.data = data;
    let word = if verdict == Verdict::Done { State::Done } else { State::Failed };
    if args.dry.dry_run {
        let text = format!("would_update: would settle {id} as {word}");
        answer::success(context.global.json, "would_update", &Line::of(&record, word), || text);
        return Ok(ExitCode::SUCCESS);
    }
    let record = ledger.wait_for(ledger.ledger().settle(&id, verdict, outcome))?;
    answer::success(context.global.json, "updated", &Line::of(&record, word), || {
        let meaning = if word == State::Done { "retries get its result" } else { "the next call runs it" };
        format!("{id} is {}: {meaning}", styled(BOLD, word))
    });
    Ok(ExitCode::SUCCESS)
}

/// What the operation's own probe says.
fn by_probe(record: &Arc<Record>, state: State) -> Result<(Verdict, Outcome), CommandError> {
    let Some(probe) = &record.detail.probe else {
        return Err(CommandError::invalid("this operation has no probe; say --as done or --as failed"));
    };
    let (verdict, outcome) = match ask::probe(probe, record) {
        ProbeAnswer::Yes(outcome) => (Verdict::Done, outcome),
        ProbeAnswer::No => {
            let reason = "the probe says that it did not happen".to_owned();
            (Verdict::Failed, Outcome::because(Some(reason)))
        }
        ProbeAnswer::CannotTell(reason) => {
            let record = standing(Arc::clone(record), state);
            return Err(Error::InDoubt { record, reason, ran: Ran::No }.into());
        }
    };
    Ok((verdict, Outcome { settled_by: Some("probe".to_owned()), ..outcome }))
}

fn by_hand(args: &SettleArgs, effect: Option<Effect>) -> Outcome {
    let reason = args.note.clone().or_else(|| Some("settled by hand".to_owned()));
    Outcome { effect, settled_by: Some("hand".to_owned()), ..Outcome::because(reason) }
}
