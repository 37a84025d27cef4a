//! `once cancel`: asks an operation to stop, and says what had already happened.

use std::process::ExitCode;

use onceward::{Cancelled, Error, State};

use super::ls::Line;
use crate::answer::{self, BOLD, styled};
use crate::cli::ChangeArgs;
use crate::context::{Context, Missing};
use crate::exit::Ended;

pub(super) fn run(context: &Context, args: &ChangeArgs) -> Ended {
    let id = context.operation(&args.operation.operation)?;
    let ledger = context.ledger(Missing::Refuse)?;
    if args.dry.dry_run {
        let (record, state) = ledger.wait_for(ledger.ledger().find(&id))?;
        let text = match state {
            State::Staged | State::Failed => "would_update: would cancel it; it has had no effect",
            State::Running => "would_update: would ask the running attempt to stop",
            State::Cancelled => "would_noop: it is cancelled already",
            State::Done | State::InDoubt | State::Expired => {
                return Err(Error::WrongState { action: "cancelling", record }.into());
            }
        };
        answer::success(context.global.json, "would_update", &Line::of(&record, state), || text.to_owned());
        return Ok(ExitCode::SUCCESS);
    }
    match ledger.wait_for(ledger.ledger().cancel(&id))? {
        Cancelled::Certain(record) => {
            answer::success(context.global.json, "updated", &Line::of(&record, record.state), || {
                format!("{id} is {}: it has had no effect and will have none", styled(BOLD, "cancelled"))
            });
        }
        Cancelled::Requested(record) => {
            answer::success(context.global.json, "updated", &Line::of(&record, record.state), || {
                format!("{id} is running; it was asked to stop, and `once wait {id}` tells what happened")
            });
        }
    }
    Ok(ExitCode::SUCCESS)
}
