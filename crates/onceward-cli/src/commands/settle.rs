//! `once settle`: somebody says what became of an operation in doubt.

use std::process::ExitCode;

use onceward::{Effect, Error, Json, Outcome, ProbeAnswer, State, Verdict};

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
        return Err(Error::WrongState {
            action: "settling",
            record: standing(record, state),
        }
        .into());
    }
    let (verdict, mut outcome) = match args.verdict {
        Some(SettleAs::Done) => (Verdict::Done, by_hand(args, Some(Effect::Updated))),
        Some(SettleAs::Failed) => (Verdict::Failed, by_hand(args, None)),
        None => {
            let Some(probe) = &record.detail.probe else {
                return Err(CommandError::invalid(
                    "this operation has no probe; say --as done or --as failed",
                ));
            };
            let settled_by = Some("probe".to_owned());
            match ask::probe(probe, &record) {
                ProbeAnswer::Yes(outcome) => (
                    Verdict::Done,
                    Outcome {
                        settled_by,
                        ..outcome
                    },
                ),
                ProbeAnswer::No => {
                    let reason = Some("the probe says that it did not happen".to_owned());
                    (
                        Verdict::Failed,
                        Outcome {
                            settled_by,
                            ..Outcome::because(reason)
                        },
                    )
                }
                ProbeAnswer::CannotTell(reason) => {
                    return Err(Error::InDoubt {
                        record: standing(record, state),
                        reason,
                    }
                    .into());
                }
            }
        }
    };
    outcome.data = data;
    let word = if verdict == Verdict::Done {
        State::Done
    } else {
        State::Failed
    };
    if args.dry.dry_run {
        let text = format!("would_update: would settle {id} as {word}");
        answer::success(
            context.global.json,
            "would_update",
            &Line::of(&record, word),
            || text,
        );
        return Ok(ExitCode::SUCCESS);
    }
    let record = ledger.wait_for(ledger.ledger().settle(&id, verdict, outcome))?;
    answer::success(context.global.json, "updated", &Line::of(&record, word), || {
        let meaning = if word == State::Done {
            "retries get its result"
        } else {
            "the next call runs it"
        };
        format!("{id} is {}: {meaning}", styled(BOLD, word))
    });
    Ok(ExitCode::SUCCESS)
}

fn by_hand(args: &SettleArgs, effect: Option<Effect>) -> Outcome {
    let reason = args.note.clone().or_else(|| Some("settled by hand".to_owned()));
    Outcome {
        effect,
        settled_by: Some("hand".to_owned()),
        ..Outcome::because(reason)
    }
}
