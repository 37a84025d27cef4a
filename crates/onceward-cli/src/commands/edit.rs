//! `once edit`: replaces an operation that is held back by another, which is held instead.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args, ValueHint};
use onceward::{Action, Class, Edited, Error, Held, Hold, Json, Operation, Record, Settings};
use serde::Serialize;

use super::listing::Line;
use super::run::held::{self, HeldCommand};
use super::run::rules::RuleArgs;
use crate::answer;
use crate::cli::{DryRunArgs, OperationArg, hold};
use crate::context::{Context, IfMissing};
use crate::exit::{CommandError, Ended};
use crate::style::{BOLD, styled};
use crate::table::one_line;

/// Replace an operation that is held back by another, which is held instead
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["command", "arguments"]))]
pub(crate) struct EditArgs {
    #[command(flatten)]
    operation: OperationArg,
    /// The arguments of the tool or function, as JSON, for an operation of `once mcp` or Python
    #[arg(long, value_name = "JSON")]
    arguments: Option<String>,
    /// How long the new operation is held, or `approve` [default: until the time of the old one]
    #[arg(long, value_name = "TIME|approve", value_parser = hold)]
    hold: Option<Hold>,
    #[command(flatten)]
    rules: RuleArgs,
    #[command(flatten)]
    dry: DryRunArgs,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// The answer: both operations, and what applies to the new one.
#[derive(Serialize)]
struct EditLines {
    replaced: Line,
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<Line>,
    #[serde(flatten)]
    new: New,
}

/// What replaces the held operation.
#[derive(Serialize)]
struct New {
    #[serde(skip)]
    operation: Operation,
    /// What would run, in words.
    #[serde(skip)]
    line: String,
    name: String,
    class: Class,
    undo: Option<String>,
    probe: Option<String>,
    verify: Option<String>,
    /// What was stored with the old operation and does not apply to the new one.
    dropped: Vec<String>,
}

pub(super) fn run(context: &Context, args: &EditArgs) -> Ended {
    let ledger = context.ledger(IfMissing::Fail)?;
    let id = context.operation(&ledger, &args.operation)?;
    let (record, state) = ledger.find(&id)?;
    let Some(held) = record.held() else {
        let record = onceward::decide::seen_as(record, state);
        return Err(Error::WrongState { action: "editing", record }.into());
    };
    let new = replacement(context, &record, held, args)?;
    let json = context.global.json;
    if args.dry.dry_run {
        let lines = EditLines { replaced: Line::of(&record, state), held: None, new };
        answer::success(json, "would_update", &lines, || {
            let line = &lines.new.line;
            format!("would_update: would cancel {id} and hold {line} in its place{}", lines.new.in_words())
        });
        return Ok(ExitCode::SUCCESS);
    }
    let Edited { replaced, held } = ledger.edit(&id, new.operation.clone(), args.hold)?;
    let (replaced, is_held) = (Line::of(&replaced, replaced.state), Line::of(&held, held.state));
    let lines = EditLines { replaced, held: Some(is_held), new };
    answer::success(json, "updated", &lines, || {
        let (line, cancelled) = (&lines.new.line, styled(BOLD, "cancelled"));
        format!("{id} is {cancelled}; held in its place: {line} [{}]{}", held.id, lines.new.in_words())
    });
    Ok(ExitCode::SUCCESS)
}

/// The operation that replaces the held one.
fn replacement(
    context: &Context,
    record: &Record,
    held: &Held,
    args: &EditArgs,
) -> Result<New, CommandError> {
    let wrong = |what: &str| {
        let surface = &held.surface;
        CommandError::invalid(format!("{} was held by {surface}: {what}; nothing was changed", record.id))
    };
    match (&args.arguments, held.surface.as_str()) {
        (None, held::SURFACE) => command(context, record, held, args),
        (None, _) => Err(wrong("give its new arguments with --arguments JSON")),
        (Some(_), held::SURFACE) => Err(wrong("give the new command after --")),
        (Some(_), _) if args.rules != RuleArgs::default() => {
            Err(wrong("its probe, its check, its compensation and its limits are not flags"))
        }
        (Some(text), _) => {
            let unreadable =
                |why: String| CommandError::invalid(format!("--arguments: {why}; nothing was changed"));
            let arguments: serde_json::Value =
                serde_json::from_str(text).map_err(|error| unreadable(error.to_string()))?;
            let (action, how): (Action, serde_json::Value) = record
                .held_request()
                .and_then(|request| Action::read(request).ok())
                .ok_or_else(|| wrong("it has no request that can be edited"))?;
            let action = action.with_arguments(text).map_err(unreadable)?;
            let line = format!("{} {arguments}", record.name);
            let command = record.detail.command.as_ref().map(|_| line.clone());
            let request = action.stored(&how);
            let input = Json::parse(&request).map_err(|invalid| unreadable(invalid.to_string()))?;
            let operation = Operation::instead_of(record).input(input).command_line(command).held(
                &held.surface,
                held.by,
                Some(request),
            );
            let detail = &record.detail;
            Ok(New {
                operation,
                line,
                name: record.name.clone(),
                class: detail.class,
                undo: detail.undo.as_ref().map(|undo| undo.text.clone()),
                probe: detail.probe.clone(),
                verify: detail.verify.clone(),
                dropped: Vec::new(),
            })
        }
    }
}

/// Another command, with what the flags and the policy say about it. The old command's probe, check and compensation
/// name what that one would have changed, so none of them is kept.
fn command(context: &Context, record: &Record, held: &Held, args: &EditArgs) -> Result<New, CommandError> {
    let old = HeldCommand::read(record)?;
    let settings_of = |name: &str| -> Result<Settings, CommandError> {
        let mut settings = context.policy.settings(name)?;
        args.rules.override_settings(&mut settings)?;
        Ok(settings)
    };
    let program = super::run::input::name_of(&args.command);
    // A name that the caller chose says what kind of action it is. Another program is another kind.
    let name = if program == old.program() { record.name.clone() } else { program };
    let settings = settings_of(&name)?;
    let folder = old.folder().to_string_lossy().into_owned();
    let new = old.replaced_by(&args.command, &args.rules, &settings);
    let (line, request) = (new.action.line(), new.stored());
    let asks = settings.probe.is_some() || settings.verify.is_some() || settings.undo.is_some();
    let stores = settings.store_command || record.detail.command.is_some();
    let operation = Operation::new(&name)
        .input(Json::parse(&request)?)
        .terms(settings.terms.clone())
        .probe_command(settings.probe.clone())
        .probe_no(settings.probe_no.clone())
        .verify_command(settings.verify.clone())
        .undo(settings.undo.clone())
        .folder(asks.then_some(folder))
        .command_line(stores.then(|| line.clone()))
        .held(&held.surface, held.by, Some(request));
    let undo = settings.undo.map(|undo| undo.text);
    let detail = &record.detail;
    let old_undo = detail.undo.as_ref().map(|undo| undo.text.clone());
    let dropped = [
        ("undo", &old_undo, &undo),
        ("probe", &detail.probe, &settings.probe),
        ("verify", &detail.verify, &settings.verify),
    ];
    let dropped = dropped.into_iter().filter(|(_, old, new)| old != new);
    let dropped = dropped.filter_map(|(what, old, _)| Some(format!("{what} {}", shown(old.as_deref()?))));
    Ok(New {
        dropped: dropped.collect(),
        operation,
        line,
        name,
        class: settings.terms.class,
        undo,
        probe: settings.probe,
        verify: settings.verify,
    })
}

impl New {
    /// What applies to the new operation, in lines below the answer.
    fn in_words(&self) -> String {
        let all = [("undo", &self.undo), ("probe", &self.probe), ("verify", &self.verify)];
        let all = all.map(|(what, text)| {
            text.as_deref().map_or_else(|| format!("no {what}"), |text| format!("{what} {}", shown(text)))
        });
        let dropped = match self.dropped.as_slice() {
            [] => String::new(),
            dropped => format!("\n  of the old command, and dropped: {}", dropped.join(", ")),
        };
        let class = self.class.as_str();
        format!("\n  {}: class {class}, {}{dropped}", one_line(&self.name), all.join(", "))
    }
}

fn shown(text: &str) -> String {
    format!("`{}`", one_line(&onceward::sealed::shown(text)))
}
