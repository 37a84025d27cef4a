//! `once verify`: a reported success is checked again.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use onceward::{Blocking, Error, Outcome, Ran, Record, State, Verdict, Verification};

use super::ask;
use super::listing::{Line, standing};
use crate::answer::{self, BOLD, styled};
use crate::cli::VerifyArgs;
use crate::context::{Context, Missing};
use crate::exit::{CommandError, Ended};

pub(super) fn run(context: &Context, args: &VerifyArgs) -> Ended {
    let ledger = context.ledger(Missing::Refuse)?;
    let id = context.operation(&ledger, &args.operation)?;
    let (record, state) = ledger.wait_for(ledger.ledger().find(&id))?;
    let outcome = record.outcome.clone().unwrap_or_else(|| Outcome::because(None));
    // A success that a check refuted is in doubt; the same question can be asked again.
    let refuted = state == State::InDoubt && outcome.verified == Some(Verification::Refuted);
    if state != State::Done && !refuted {
        return Err(Error::WrongState { action: "verifying", record: standing(record, state) }.into());
    }
    let Some(check) = args.check.clone().or_else(|| record.detail.verify.clone()) else {
        return Err(CommandError::invalid("this operation has no check of its own; give --check COMMAND"));
    };
    let folder = record.detail.folder.as_deref().map(Path::new);
    let (verification, reason) = ask::verify(&check, &outcome, folder);
    let json = context.global.json;
    if args.dry.dry_run {
        let text = format!("would_update: the check says {verification}; nothing was written");
        answer::success(json, "would_update", &Line::of(&record, state), || text);
        return Ok(ExitCode::SUCCESS);
    }
    let record = match (verification, refuted) {
        (Verification::Confirmed, true) => confirm(&ledger, &record, &check, outcome)?,
        (Verification::Pending, true) => {
            return Err(Error::Unverified { record, reason, ran: Ran::No }.into());
        }
        (Verification::Refuted, true) => record,
        (_, false) => {
            let written = ledger.ledger().record_verification(&id, verification, Some(reason.clone()));
            ledger.wait_for(written)?
        }
    };
    let again = format!("{} verify {id}", context.program());
    match verification {
        Verification::Refuted => return Err(Error::Unverified { record, reason, ran: Ran::No }.into()),
        Verification::Confirmed => {
            let effect = if refuted { "updated" } else { "noop" };
            answer::success(json, effect, &Line::of(&record, record.state), || {
                let meaning = if refuted { ": it is done, and retries get its result" } else { "" };
                format!("{id} is {}{meaning}", styled(BOLD, verification))
            });
        }
        Verification::Pending => {
            let warning = format!("success is not confirmed yet ({reason}); ask again with `{again}`");
            let line = Line::of(&record, record.state);
            answer::success_with(json, "noop", &line, vec![warning.clone()], || {
                format!("{id} is {}: {warning}", styled(BOLD, verification))
            });
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The check that refuted it confirms it now: its stored result counts again.
fn confirm(
    ledger: &Blocking,
    record: &Record,
    check: &str,
    outcome: Outcome,
) -> Result<Arc<Record>, CommandError> {
    let outcome = Outcome {
        verified: Some(Verification::Confirmed),
        settled_by: Some(format!("the check `{check}`")),
        reason: Some("the check refuted it first and confirmed it later".to_owned()),
        ..outcome
    };
    let settled = ledger.ledger().settle_attempt(&record.id, record.attempt, Verdict::Done, outcome);
    Ok(ledger.wait_for(settled)?)
}
