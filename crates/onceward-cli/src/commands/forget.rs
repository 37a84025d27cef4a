//! `once forget`: deletes the record of an operation, by somebody's say-so.

use std::process::ExitCode;

use onceward::{Error, State};

use super::ls::{Line, standing};
use crate::answer;
use crate::cli::ForgetArgs;
use crate::context::{Context, Missing};
use crate::exit::{CommandError, Ended};

pub(super) fn run(context: &Context, args: &ForgetArgs) -> Ended {
    let id = context.operation(&args.operation.operation)?;
    let ledger = context.ledger(Missing::Refuse)?;
    let (record, state) = ledger.wait_for(ledger.ledger().find(&id))?;
    match state {
        State::Running => {
            return Err(Error::WrongState { action: "forgetting", record: standing(record, state) }.into());
        }
        State::Done | State::InDoubt if !args.force => {
            return Err(CommandError::invalid(format!(
                "the operation is {state}: without its record the next call runs it, a second time if it happened; \
                 --force if that is wanted"
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
    ledger.wait_for(ledger.ledger().forget(&id))?;
    answer::success(context.global.json, "deleted", &line, || {
        format!("{id} is forgotten: its key can run again")
    });
    Ok(ExitCode::SUCCESS)
}
