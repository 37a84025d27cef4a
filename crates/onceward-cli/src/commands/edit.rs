//! `once edit`: replaces an operation that is held back by another, which is held instead.

use std::process::ExitCode;

use onceward::{Edited, Error, Record};
use serde::Serialize;

use super::listing::Line;
use super::run::held::{self, HeldCommand};
use crate::answer;
use crate::cli::EditArgs;
use crate::context::{Context, IfMissing};
use crate::exit::{CommandError, Ended};
use crate::style::{BOLD, styled};

#[derive(Serialize)]
struct EditLines {
    replaced: Line,
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<Line>,
}

pub(super) fn run(context: &Context, args: &EditArgs) -> Ended {
    let ledger = context.ledger(IfMissing::Fail)?;
    let id = context.operation(&ledger, &args.operation)?;
    let (record, state) = ledger.find(&id)?;
    if record.held().is_none() {
        let record = onceward::decide::seen_as(record, state);
        return Err(Error::WrongState { action: "editing", record }.into());
    }
    let (request, line) = request(&record, args)?;
    let json = context.global.json;
    if args.dry.dry_run {
        let lines = EditLines { replaced: Line::of(&record, state), held: None };
        answer::success(json, "would_update", &lines, || {
            format!("would_update: would cancel {id} and hold {line} in its place")
        });
        return Ok(ExitCode::SUCCESS);
    }
    let Edited { replaced, held } = ledger.edit(&id, request, Some(line.clone()), args.hold)?;
    let lines =
        EditLines { replaced: Line::of(&replaced, replaced.state), held: Some(Line::of(&held, held.state)) };
    answer::success(json, "updated", &lines, || {
        format!("{id} is {}; held in its place: {line} [{}]", styled(BOLD, "cancelled"), held.id)
    });
    Ok(ExitCode::SUCCESS)
}

/// The new request, and what it is in words.
fn request(record: &Record, args: &EditArgs) -> Result<(String, String), CommandError> {
    let surface = record.held().map_or("", |held| held.surface.as_str());
    let wrong = |what: &str| {
        CommandError::invalid(format!("{} was held by {surface}: {what}; nothing was changed", record.id))
    };
    match (&args.arguments, surface) {
        (None, held::SURFACE) => {
            let command = HeldCommand::read(record)?.with_command(&args.command);
            let line = command.line();
            Ok((command.to_json(), line))
        }
        (None, _) => Err(wrong("give its new arguments with --arguments JSON")),
        (Some(_), held::SURFACE) => Err(wrong("give the new command after --")),
        (Some(arguments), _) => {
            let arguments: serde_json::Value = serde_json::from_str(arguments).map_err(|error| {
                CommandError::invalid(format!("--arguments: {error}; nothing was changed"))
            })?;
            let mut request: serde_json::Value = record
                .held_request()
                .and_then(|request| serde_json::from_str(request).ok())
                .ok_or_else(|| wrong("it has no request that can be edited"))?;
            let line = format!("{} {arguments}", record.name);
            request["arguments"] = arguments;
            Ok((request.to_string(), line))
        }
    }
}
