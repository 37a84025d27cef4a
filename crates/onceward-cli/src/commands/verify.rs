//! `once verify`: a reported success is checked again.

use std::process::ExitCode;

use onceward::{Error, Outcome, Ran, State, Verification};

use super::ask;
use super::ls::{Line, standing};
use crate::answer::{self, BOLD, styled};
use crate::cli::VerifyArgs;
use crate::context::{Context, Missing};
use crate::exit::{CommandError, Ended};

pub(super) fn run(context: &Context, args: &VerifyArgs) -> Ended {
    let id = context.operation(&args.operation.operation)?;
    let ledger = context.ledger(Missing::Refuse)?;
    let (record, state) = ledger.wait_for(ledger.ledger().find(&id))?;
    if state != State::Done {
        return Err(Error::WrongState { action: "verifying", record: standing(record, state) }.into());
    }
    let Some(check) = args.check.clone().or_else(|| record.detail.verify.clone()) else {
        return Err(CommandError::invalid("this operation has no check of its own; give --check COMMAND"));
    };
    let outcome = record.outcome.clone().unwrap_or_else(|| Outcome::because(None));
    let (verification, reason) =
        ask::verify(&check, &outcome, record.detail.folder.as_deref().map(std::path::Path::new));
    if args.dry.dry_run {
        let text = format!("would_update: the check says {verification}; nothing was written");
        answer::success(context.global.json, "would_update", &Line::of(&record, state), || text);
        return Ok(ExitCode::SUCCESS);
    }
    let written = ledger.ledger().record_verification(&id, verification, Some(reason.clone()));
    let record = ledger.wait_for(written)?;
    if verification == Verification::Refuted {
        return Err(Error::Unverified { record, reason, ran: Ran::No }.into());
    }
    answer::success(context.global.json, "noop", &Line::of(&record, record.state), || {
        format!("{id} is {}", styled(BOLD, verification))
    });
    Ok(ExitCode::SUCCESS)
}
