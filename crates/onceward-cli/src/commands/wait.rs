//! `once wait`: until an operation is no longer running.

use std::process::ExitCode;

use onceward::{Error, Ran, State};

use super::ls::{Line, standing};
use super::show;
use crate::answer;
use crate::cli::WaitArgs;
use crate::context::{Context, Missing};
use crate::exit::Ended;

pub(super) fn run(context: &Context, args: &WaitArgs) -> Ended {
    let id = context.operation(&args.operation.operation)?;
    let ledger = context.ledger(Missing::Refuse)?;
    let (record, state) = ledger.wait_for(ledger.ledger().wait(&id, args.timeout))?;
    match state {
        State::Running | State::Staged => Err(Error::InProgress { record, ran: Ran::No }.into()),
        State::InDoubt => {
            let reason = record.reason().unwrap_or("its owner ended without an answer").to_owned();
            Err(Error::InDoubt { record: standing(record, state), reason, ran: Ran::No }.into())
        }
        State::Done | State::Failed | State::Cancelled | State::Expired => {
            answer::success(context.global.json, "noop", &Line::of(&record, state), || {
                show::text(&record, state, ledger.ledger().clock_ms())
            });
            Ok(ExitCode::SUCCESS)
        }
    }
}
