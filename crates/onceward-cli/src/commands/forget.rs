//! `once forget`: deletes the record of an operation.

use std::process::ExitCode;

use onceward::decide::seen_as;
use onceward::{Error, State};

use super::listing::Line;
use crate::answer;
use crate::cli::ForgetArgs;
use crate::context::{Context, IfMissing};
use crate::exit::{CommandError, Ended};

pub(super) fn run(context: &Context, args: &ForgetArgs) -> Ended {
    let ledger = context.ledger(IfMissing::Fail)?;
    let found = context.operation(&ledger, &args.operation).and_then(|id| Ok((ledger.find(&id)?, id)));
    let ((record, state), id) = match found {
        Ok(found) => found,
        // An operation that does not exist is already forgotten.
        Err(CommandError::Ledger(error @ Error::NotFound { .. })) => {
            let effect = if args.dry.dry_run { "would_noop" } else { "noop" };
            let reason = format!("{error}; nothing was forgotten");
            answer::nothing_to_do(context.global.json, effect, None::<&Line>, &reason, Vec::new());
            return Ok(ExitCode::SUCCESS);
        }
        Err(error) => return Err(error),
    };
    // The tombstone of a done operation keeps it from running again, as its result did.
    let ended = match (state, record.state) {
        (State::Expired, State::Expired) => record.detail.ended.unwrap_or(State::Done),
        (State::Expired, ended) => ended,
        (state, _) => state,
    };
    match ended {
        State::Running => {
            return Err(Error::WrongState { action: "forgetting", record: seen_as(record, state) }.into());
        }
        State::Done | State::InDoubt if !args.force => {
            return Err(CommandError::invalid(format!(
                "the operation {} {}: without its record the next call runs it, a second time if it happened; \
                 add --force if you want that",
                if state == State::Expired { "has expired and was" } else { "is" },
                ended.as_str().replace('_', " ")
            )));
        }
        State::Staged | State::Done | State::Failed | State::InDoubt | State::Cancelled | State::Expired => {}
    }
    let line = Line::of(&record, state);
    if args.dry.dry_run {
        answer::success(context.global.json, "would_delete", &line, || {
            format!("would_delete: the record of {id}")
        });
        return Ok(ExitCode::SUCCESS);
    }
    ledger.admin().forget(&id)?;
    answer::success(context.global.json, "deleted", &line, || {
        format!("{id} is forgotten: its key can run again")
    });
    Ok(ExitCode::SUCCESS)
}
