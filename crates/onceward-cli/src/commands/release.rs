//! `once release`: starts an operation that is held back, or all whose time has come.

use std::path::Path;
use std::process::ExitCode;

use onceward::{Answer, Blocking, Error, Held, OperationId, Ran, Record, Release, State};
use serde::Serialize;

use super::listing::Line;
use super::person::person;
use super::run::held::{self, HeldCommand, Print, Released};
use super::run::input::this_host;
use crate::answer;
use crate::cli::{OperationArg, ReleaseArgs};
use crate::context::{Context, IfMissing};
use crate::exit::{CommandError, Ended};
use crate::style::{BOLD, styled};
use crate::table::one_line;

pub(super) fn run(context: &Context, args: &ReleaseArgs) -> Ended {
    let ledger = context.ledger(IfMissing::Fail)?;
    match &args.operation {
        Some(operation) => {
            let named = OperationArg {
                operation: operation.clone(),
                scope: args.scope.clone(),
                name: args.name.clone(),
            };
            let id = context.operation(&ledger, &named)?;
            one(context, &ledger, args, &id)
        }
        None => due(context, &ledger, args),
    }
}

/// What a release would start.
#[derive(Serialize)]
struct Planned {
    #[serde(flatten)]
    line: Line,
    #[serde(skip_serializing_if = "Option::is_none")]
    would_run: Option<String>,
}

/// Releases one operation. The command of `once run` is shown, and runs now.
fn one(context: &Context, ledger: &Blocking, args: &ReleaseArgs, id: &OperationId) -> Ended {
    let (record, state) = ledger.find(id)?;
    let json = context.global.json;
    let is_ready = match state {
        State::Staged => record.held().is_some(),
        // Its last attempt had no effect, and its request is still stored.
        State::Failed => record.held_request().is_some(),
        State::Running | State::Done | State::InDoubt | State::Cancelled | State::Expired => false,
    };
    if !is_ready {
        let record = onceward::decide::seen_as(record, state);
        return Err(Error::WrongState { action: "releasing", record }.into());
    }
    let command = if has_command(&record) { Some(HeldCommand::read(&record)?) } else { None };
    if let Some(command) = command.as_ref().filter(|command| command.action.host != this_host() && !args.here)
    {
        return Err(CommandError::invalid(format!(
            "it was held on the machine {}; release it there, or add --here to run it on this one; nothing was run",
            one_line(&command.action.host)
        )));
    }
    if let Some(folder) =
        command.as_ref().map(HeldCommand::folder).filter(|folder| !Path::new(folder).is_dir())
    {
        return Err(CommandError::invalid(format!(
            "its folder {} is gone; create it, or cancel the operation; nothing was released",
            one_line(&folder.to_string_lossy())
        )));
    }
    if let Some(command) = &command {
        command.check()?;
    }
    if args.dry.dry_run {
        let would_run = record.detail.held.as_deref().and_then(Held::shown).map(|shown| shown.to_string());
        answer::success(json, "would_update", &Planned { line: Line::of(&record, state), would_run }, || {
            format!("would_update: would {} [{id}]", plan(&record, command.as_ref()))
        });
        return Ok(ExitCode::SUCCESS);
    }
    let redact = context.policy.settings(&record.name)?.terms.redact;
    let record = ledger.admin().release(id, &redact.word(person("once release").note(args.note.clone())))?;
    let Some(command) = command else {
        answer::success(json, "updated", &Line::of(&record, record.state), || {
            format!("{id} is {}: {}", styled(BOLD, "released"), starter(&record))
        });
        return Ok(ExitCode::SUCCESS);
    };
    let begins = || {
        if !json {
            announce(&record, &command);
        }
    };
    Ok(held::run(context, ledger, &record, &command, Print::Answer, &begins)?.exit)
}

/// Whether it is a command that `once run` held.
fn has_command(record: &Record) -> bool {
    record.detail.held.as_ref().is_some_and(|held| held.surface == held::SURFACE && held.request.is_some())
}

fn plan(record: &Record, command: Option<&HeldCommand>) -> String {
    match command {
        Some(command) => format!("run {}", command.shown()),
        None => match record.held().and_then(Held::shown) {
            Some(shown) => format!("release {shown}: {}", starter(record)),
            None => format!("release it: {}", starter(record)),
        },
    }
}

/// Prints what runs now: the command, and the commands that may be run about it.
fn announce(record: &Record, command: &HeldCommand) {
    answer::talk(&format!("once: running {} [{}]", command.shown(), record.id));
    for (what, question) in [("probe", &record.detail.probe), ("check", &record.detail.verify)] {
        if let Some(question) = question {
            answer::talk(&format!("once: its {what}: {}", one_line(question)));
        }
    }
}

/// Who starts an operation that is not a command.
fn starter(record: &Record) -> String {
    let surface = record.detail.held.as_ref().map_or("library", |held| held.surface.as_str());
    let stored = record.held_request().is_some();
    match (surface, stored) {
        ("mcp", true) => {
            "the running `once mcp` for its server sends it, or the next one that starts; if it was called over \
             HTTP, the same call again"
                .to_owned()
        }
        ("python", true) => "a Python process that calls release_due() or run_held() runs it".to_owned(),
        (_, _) => "the next call by its caller starts it".to_owned(),
    }
}

/// What became of one operation whose time has come.
#[derive(Serialize)]
struct DueLine {
    #[serde(flatten)]
    line: Line,
    /// What was or would be done: `ran`, `would_run`, `left` or `failed`.
    action: &'static str,
    /// Why, or how it ended.
    why: String,
}

/// Releases everything whose time has come, and starts what was released but did not start. Commands run only if the
/// user's flag or a trusted policy allows it: a ledger's stored commands are data until then.
fn due(context: &Context, ledger: &Blocking, args: &ReleaseArgs) -> Ended {
    let now_ms = ledger.clock_ms();
    let mut lines = Vec::new();
    let mut worst = ExitCode::SUCCESS;
    for record in ledger.admin().held(args.scope.as_deref())? {
        let is_due = record.held().is_some_and(|held| held.may_start(now_ms));
        if !is_due || args.name.as_ref().is_some_and(|name| *name != record.name) {
            continue;
        }
        let (line, exit) = due_one(context, ledger, args, record);
        worst = if exit == ExitCode::SUCCESS { worst } else { exit };
        if !context.global.json {
            answer::data(&format!("{} {} [{}]", line.action, one_line(&line.why), line.line.id()));
        }
        lines.push(line);
    }
    let effect = match (args.dry.dry_run, lines.iter().any(|line| matches!(line.action, "ran" | "would_run")))
    {
        (true, true) => "would_update",
        (true, false) => "would_noop",
        (false, true) => "updated",
        (false, false) => "noop",
    };
    answer::success(context.global.json, effect, &lines, || {
        if lines.is_empty() { "nothing is due".to_owned() } else { String::new() }
    });
    Ok(worst)
}

fn due_one(context: &Context, ledger: &Blocking, args: &ReleaseArgs, record: Record) -> (DueLine, ExitCode) {
    let told =
        |record: &Record, action, why: String| DueLine { line: Line::of(record, record.state), action, why };
    if !has_command(&record) {
        let why = format!("{}: {}", record.name, starter(&record));
        return (told(&record, "left", why), ExitCode::SUCCESS);
    }
    let auto = context.policy.settings(&record.name).is_ok_and(|settings| settings.release == Release::Auto);
    if !auto && !args.trust_commands {
        let why = format!(
            "{}: the policy does not say release = \"auto\" for it; release it by its id, or add --trust-commands",
            record.name
        );
        return (told(&record, "left", why), ExitCode::SUCCESS);
    }
    let command = match HeldCommand::read(&record) {
        Ok(command) => command,
        Err(error) => return (told(&record, "failed", error.to_string()), ExitCode::from(error.exit())),
    };
    if command.action.host != this_host() {
        let why = format!("{}: held on the machine {}", record.name, command.action.host);
        return (told(&record, "left", why), ExitCode::SUCCESS);
    }
    if args.dry.dry_run {
        return (told(&record, "would_run", plan(&record, Some(&command))), ExitCode::SUCCESS);
    }
    let line = command.action.line();
    match held::run(context, ledger, &record, &command, Print::Nothing, &|| {}) {
        Ok(Released { result: Ok(receipt), exit }) => {
            let how = if receipt.ran() == Ran::Yes { "done" } else { "done by another release" };
            (told(receipt.record(), "ran", format!("{line}: {how}")), exit)
        }
        Ok(Released { result: Err(error), exit }) => {
            let answer = Answer::failed(&error, &context.surface());
            let code =
                answer.error.as_ref().map_or_else(|| answer.effect.to_owned(), |view| view.code.to_string());
            let why = format!("{line}: {code} {error}");
            (told(error.record().map_or(&record, |record| record), "ran", why), exit)
        }
        Err(error) => (told(&record, "failed", format!("{line}: {error}")), ExitCode::from(error.exit())),
    }
}
