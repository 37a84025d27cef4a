//! `once cancel`: asks an operation to stop, and reports what had already happened.

use std::process::ExitCode;

use onceward::decide::seen_as;
use onceward::{Cancelled, Error, State};

use super::listing::Line;
use super::person::person;
use crate::answer;
use crate::cli::CancelArgs;
use crate::context::{Context, IfMissing};
use crate::exit::Ended;
use crate::style::{BOLD, styled};

pub(super) fn run(context: &Context, args: &CancelArgs) -> Ended {
    let ledger = context.ledger(IfMissing::Fail)?;
    let id = context.operation(&ledger, &args.operation)?;
    let (record, state) = ledger.find(&id)?;
    let (would, text) = match state {
        State::Staged if record.kind == onceward::Kind::Event => {
            return Err(Error::WrongState { action: "cancelling", record }.into());
        }
        State::Staged | State::Failed => ("would_update", "would cancel it; it has had no effect"),
        State::Running => ("would_update", "would ask the running attempt to stop"),
        State::Cancelled => ("would_noop", "it is already cancelled"),
        State::Done | State::InDoubt | State::Expired => {
            return Err(Error::WrongState { action: "cancelling", record: seen_as(record, state) }.into());
        }
    };
    if args.dry.dry_run {
        answer::success(context.global.json, would, &Line::of(&record, state), || format!("{would}: {text}"));
        return Ok(ExitCode::SUCCESS);
    }
    let effect = if state == State::Cancelled { "noop" } else { "updated" };
    let redact = context.policy.settings(&record.name)?.terms.redact;
    let word = redact.word(person("once cancel").note(args.note.clone()));
    match ledger.admin().cancel(&id, &word)? {
        Cancelled::Certain(record) => {
            answer::success(context.global.json, effect, &Line::of(&record, record.state), || {
                format!("{id} is {}: it has had no effect and will have none", styled(BOLD, "cancelled"))
            });
        }
        Cancelled::Requested(record) => {
            answer::success(context.global.json, "updated", &Line::of(&record, record.state), || {
                format!(
                    "{id} is running; it was asked to stop. See what happened: {} wait {id}",
                    context.program()
                )
            });
        }
    }
    Ok(ExitCode::SUCCESS)
}
