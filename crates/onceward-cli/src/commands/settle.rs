//! `once settle`: a person, or the operation's probe, says what became of an operation in doubt.

use std::process::ExitCode;
use std::sync::Arc;

use onceward::answer::{rfc3339, span_in_words};
use onceward::{Blocking, Class, Effect, Error, Json, Outcome, ProbeAnswer, Ran, Record, State, Verdict};
use serde::Serialize;

use super::ask;
use super::listing::{Line, standing};
use crate::answer::{self, BOLD, styled};
use crate::cli::{SettleArgs, SettleAs};
use crate::context::{Context, Missing};
use crate::exit::{CommandError, Ended};

#[derive(Serialize)]
struct Settled {
    #[serde(flatten)]
    line: Line,
    #[serde(skip_serializing_if = "Option::is_none")]
    probe: Option<Asked>,
}

/// The question that was asked.
#[derive(Serialize)]
struct Asked {
    command: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    folder: Option<String>,
}

pub(super) fn run(context: &Context, args: &SettleArgs) -> Ended {
    let data = match &args.data {
        Some(text) => {
            Json::parse(text).map_err(|invalid| CommandError::invalid(format!("--data: {invalid}")))?;
            serde_json::from_str(text).ok()
        }
        None => None,
    };
    let ledger = context.ledger(Missing::Refuse)?;
    let id = context.operation(&ledger, &args.operation)?;
    let (record, state) = ledger.wait_for(ledger.ledger().find(&id))?;
    let json = context.global.json;
    // A person can settle a doubt even while a process that the attempt left behind still runs; a probe cannot.
    let left_behind = record.state == State::InDoubt && state == State::Running && args.verdict.is_some();
    if state != State::InDoubt && !left_behind {
        return settled_before(args, record, state, ledger.ledger().clock_ms(), json);
    }
    let (verdict, mut outcome) = match args.verdict {
        Some(SettleAs::Done) => (Verdict::Done, by_hand(args, Some(Effect::Updated))),
        Some(SettleAs::Failed) => (Verdict::Failed, by_hand(args, None)),
        None => by_probe(&ledger, args, &record, state, json)?,
    };
    outcome.data = data;
    let word = if verdict == Verdict::Done { State::Done } else { State::Failed };
    let shown = |record: &Record| Settled { line: Line::of(record, word), probe: asked(args, record) };
    if args.dry.dry_run {
        let text = format!("would_update: would settle {id} as {word}");
        answer::success(json, "would_update", &shown(&record), || text);
        return Ok(ExitCode::SUCCESS);
    }
    let record = ledger.wait_for(ledger.ledger().settle_attempt(&id, record.attempt, verdict, outcome))?;
    answer::success(json, "updated", &shown(&record), || {
        let meaning = if word == State::Done { "retries get its result" } else { "the next call runs it" };
        format!("{id} is {}: {meaning}", styled(BOLD, word))
    });
    Ok(ExitCode::SUCCESS)
}

/// The same finding again changes nothing; another one is refused.
fn settled_before(args: &SettleArgs, record: Arc<Record>, state: State, now_ms: i64, json: bool) -> Ended {
    let ended = if state == State::Expired { record.detail.ended.unwrap_or(record.state) } else { state };
    let same = match (args.verdict, ended) {
        (Some(SettleAs::Done), State::Done) | (Some(SettleAs::Failed), State::Failed) => true,
        // The probe has nothing left to answer.
        (None, State::Done | State::Failed) => true,
        (
            _,
            State::Staged
            | State::Running
            | State::InDoubt
            | State::Cancelled
            | State::Expired
            | State::Done
            | State::Failed,
        ) => false,
    };
    if !same {
        return Err(Error::WrongState { action: "settling", record: standing(record, state) }.into());
    }
    let ago = span_in_words(now_ms - record.updated_ms);
    let by = record.outcome.as_ref().and_then(|outcome| outcome.settled_by.as_deref());
    let by = by.map_or_else(
        || format!("by the answer of attempt {}", record.attempt),
        |by| format!("settled by {by}"),
    );
    let reason = format!("{} is {ended} already, {ago} ago, {by}", record.id);
    let lost = args.note.is_some() || args.data.is_some();
    let warnings: Vec<String> = lost
        .then(|| "--note and --data were not recorded: it was settled before".to_owned())
        .into_iter()
        .collect();
    let effect = if args.dry.dry_run { "would_noop" } else { "noop" };
    answer::nothing_to_do(json, effect, Some(&Line::of(&record, state)), &reason, warnings);
    Ok(ExitCode::SUCCESS)
}

/// What the operation's own probe says. Its "no" counts only when nothing of the attempt can be under way any more.
fn by_probe(
    ledger: &Blocking,
    args: &SettleArgs,
    record: &Arc<Record>,
    state: State,
    json: bool,
) -> Result<(Verdict, Outcome), CommandError> {
    let Some(probe) = &record.detail.probe else {
        let problem =
            "this operation has no probe; check whether it happened, then give --as done or --as failed";
        return Err(CommandError::invalid(problem));
    };
    // The quarantine begins when the doubt is written down.
    let record = &match args.dry.dry_run {
        true => Arc::clone(record),
        false => ledger.wait_for(ledger.ledger().note_doubt(&record.id))?,
    };
    if !json {
        let folder =
            record.detail.folder.as_deref().map(|folder| format!(" in {folder}")).unwrap_or_default();
        answer::talk(&format!("once: asking the probe `{probe}`{folder}"));
    }
    let in_doubt = |class: Class, reason: String| {
        let mut record = Record::clone(&standing(Arc::clone(record), state));
        record.detail.class = class;
        CommandError::from(Error::InDoubt { record: Arc::new(record), reason, ran: Ran::No })
    };
    let (verdict, outcome) = match ask::probe(probe, record) {
        ProbeAnswer::Yes(outcome) => (Verdict::Done, outcome),
        ProbeAnswer::No => {
            let now_ms = ledger.ledger().clock_ms();
            let begins_now = now_ms.saturating_add_unsigned(record.detail.quarantine_ms);
            let until = record.detail.quarantine_until_ms.unwrap_or(begins_now);
            if now_ms < until {
                let reason = format!(
                    "the probe found no effect, but a request of attempt {} may still be under way; \
                     a \"no\" counts from {} (in {})",
                    record.attempt,
                    rfc3339(until),
                    span_in_words(until - now_ms)
                );
                return Err(in_doubt(record.detail.class, reason));
            }
            let reason = "the probe found that it did not happen".to_owned();
            (Verdict::Failed, Outcome::because(Some(reason)))
        }
        // Asking once more gets the same answer, so the way out is to look and to say what was found.
        ProbeAnswer::CannotTell(reason) => return Err(in_doubt(Class::Once, reason)),
    };
    Ok((verdict, Outcome { settled_by: Some("the probe".to_owned()), ..outcome }))
}

fn asked(args: &SettleArgs, record: &Record) -> Option<Asked> {
    let command = record.detail.probe.clone().filter(|_| args.probe)?;
    Some(Asked { command, folder: record.detail.folder.clone() })
}

fn by_hand(args: &SettleArgs, effect: Option<Effect>) -> Outcome {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten();
    let who = user.map(|user| format!(", user {}", user.name)).unwrap_or_default();
    let settled_by = Some(format!("a person (once settle{who})"));
    Outcome { effect, settled_by, ..Outcome::because(args.note.clone()) }
}
