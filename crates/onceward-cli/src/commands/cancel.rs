//! `once cancel`: asks an operation to stop, and says what had already happened.

use std::process::ExitCode;

use onceward::{Cancelled, Error, State};

use super::listing::{Line, standing};
use crate::answer::{self, BOLD, styled};
use crate::cli::ChangeArgs;
use crate::context::{Context, Missing};
use crate::exit::Ended;

pub(super) fn run(context: &Context, args: &ChangeArgs) -> Ended {
    let ledger = context.ledger(Missing::Refuse)?;
    let id = context.operation(&ledger, &args.operation)?;
    let (record, state) = ledger.wait_for(ledger.ledger().find(&id))?;
    let (would, text) = match state {
        State::Staged | State::Failed => ("would_update", "would cancel it; it has had no effect"),
        State::Running => ("would_update", "would ask the running attempt to stop"),
        State::Cancelled => ("would_noop", "it is already cancelled"),
        State::Done | State::InDoubt | State::Expired => {
            return Err(Error::WrongState { action: "cancelling", record: standing(record, state) }.into());
        }
    };
    if args.dry.dry_run {
        answer::success(context.global.json, would, &Line::of(&record, state), || format!("{would}: {text}"));
        return Ok(ExitCode::SUCCESS);
    }
    let effect = if state == State::Cancelled { "noop" } else { "updated" };
    match ledger.wait_for(ledger.ledger().cancel(&id))? {
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
