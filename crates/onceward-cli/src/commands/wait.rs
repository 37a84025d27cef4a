//! `once wait`: until an operation is no longer running.

use std::process::ExitCode;

use onceward::decide::seen_as;
use onceward::{Code, Error, Ran, RefusalOf, State};
use serde::Serialize;

use super::listing::Line;
use super::output::{self, Output};
use super::show;
use crate::answer;
use crate::cli::WaitArgs;
use crate::context::{Context, IfMissing};
use crate::exit::{CommandError, Ended};

#[derive(Serialize)]
struct Waited {
    #[serde(flatten)]
    line: Line,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Output>,
}

pub(super) fn run(context: &Context, args: &WaitArgs) -> Ended {
    let ledger = context.ledger(IfMissing::Fail)?;
    let id = context.operation(&ledger, &args.operation)?;
    let (record, state) = ledger.wait(&id, args.timeout)?;
    let (json, surface) = (context.global.json, context.surface());
    if args.output {
        output::check_opened(&record)?;
    }
    let record = record.into_readable();
    if args.output && !json && matches!(state, State::Done | State::Failed) {
        output::print(&record);
    }
    let error = match state {
        State::Done => {
            let output = args.output.then(|| output::beginning(&record, &surface)).flatten();
            let waited = Waited { line: Line::of(&record, state), output };
            answer::success(json, "noop", &waited, || {
                if args.output {
                    return String::new();
                }
                show::text(&record, state, None, ledger.clock_ms(), &surface)
            });
            return Ok(ExitCode::SUCCESS);
        }
        State::Staged if record.held().is_some() => {
            // The wait is over, and it is still held: that is not what the caller waited for.
            answer::held(&record, json, &surface);
            return Ok(ExitCode::from(Code::Held.exit()));
        }
        State::Running | State::Staged => Error::InProgress { record, ran: Ran::No },
        State::InDoubt => {
            let lost =
                "the attempt was interrupted before it reported back; it may or may not have taken effect";
            let reason = record.reason().unwrap_or(lost).to_owned();
            Error::InDoubt { record: seen_as(record, state), reason, ran: Ran::No }
        }
        State::Cancelled => Error::Cancelled { record, ran: Ran::No, of: RefusalOf::Own },
        State::Expired => Error::KeyExpired { record },
        State::Failed => {
            // The exit code is the command's own, as it was for the call that ran it.
            let code = output::summary(&record).and_then(|summary| summary.exit_code);
            let code = code.and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);
            let reason = record.reason().unwrap_or("it failed without effect").to_owned();
            let error: CommandError =
                Error::Failed { record: seen_as(record, state), reason, ran: Ran::No }.into();
            answer::error(&error, json, &surface);
            return Ok(ExitCode::from(code.unwrap_or(error.exit())));
        }
    };
    Err(error.into())
}
