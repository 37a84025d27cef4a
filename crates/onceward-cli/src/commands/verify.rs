//! `once verify`: checks a reported success again.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use onceward::decide::seen_as;
use onceward::{Blocking, Error, Outcome, Ran, Record, State, Verdict, Verification, Word};

use super::ask::{self, Question};
use super::listing::Line;
use super::stored::{self, Which};
use crate::answer;
use crate::cli::VerifyArgs;
use crate::context::{Context, IfMissing};
use crate::environment::PassLedger;
use crate::exit::{CommandError, Ended};
use crate::style::{BOLD, styled};

pub(super) fn run(context: &Context, args: &VerifyArgs) -> Ended {
    let ledger = context.ledger(IfMissing::Fail)?;
    let id = context.operation(&ledger, &args.operation)?;
    let (record, state) = ledger.find(&id)?;
    let outcome = record.outcome.clone().unwrap_or_else(|| Outcome::because(None));
    // A refuted success is in doubt, and can be checked again.
    let refuted = state == State::InDoubt && outcome.verified == Some(Verification::Refuted);
    if state != State::Done && !refuted {
        return Err(Error::WrongState { action: "verifying", record: seen_as(record, state) }.into());
    }
    let own = args.check.clone().map(|command| Question { command, no: Vec::new() });
    let check = stored::question(context, &record, Which::Check, own)?;
    let json = context.global.json;
    if args.dry.dry_run {
        // A check is a command like any other.
        let command = onceward::text::one_line(&check.command);
        let text = format!("would_update: would run the check `{command}` and record its answer");
        answer::success(json, "would_update", &Line::of(&record, state), || text);
        return Ok(ExitCode::SUCCESS);
    }
    let folder = record.detail.folder.as_deref().map(Path::new);
    let (verification, reason) = ask::verify(&check, &outcome, folder, &context.environment(PassLedger::No));
    let reason = context.policy.settings(&record.name)?.terms.redact.text(&reason).into_owned();
    let record = match (verification, refuted) {
        (Verification::Confirmed, true) => confirm(&ledger, &record, &check.command, outcome)?,
        (Verification::Pending, true) => {
            return Err(Error::Unverified { record, reason, ran: Ran::No }.into());
        }
        (Verification::Refuted, true) => record,
        (_, false) => {
            let written = ledger.ledger().attempts().verified(&id, verification, Some(reason.clone()));
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
            let warning = format!("success is not confirmed yet ({reason}); check again with `{again}`");
            let line = Line::of(&record, record.state);
            answer::success_with(json, "noop", &line, vec![warning.clone()], || {
                format!("{id} is {}: {warning}", styled(BOLD, verification))
            });
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The check that refuted it now confirms it: its stored result is valid again.
fn confirm(
    ledger: &Blocking,
    record: &Record,
    check: &str,
    outcome: Outcome,
) -> Result<Arc<Record>, CommandError> {
    let outcome = Outcome {
        verified: Some(Verification::Confirmed),
        reason: Some("the check refuted it first and confirmed it later".to_owned()),
        ..outcome
    };
    let word = Word::program(format!("the check `{check}`"));
    let settled = ledger.ledger().attempts().settle(&record.id, record.attempt, Verdict::Done, word, outcome);
    Ok(ledger.wait_for(settled)?)
}
