//! A command that is held back: what another process needs to run it, as the ledger stores it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use onceward::{
    Action, Blocking, CommandAction, Decision, Effect, Error, FileState, Intent, Receipt, Record, RepeatRule,
    Settings, ShownAction, Unreadable, delivered_by,
};
use serde::{Deserialize, Serialize};

use super::delivery::Delivery;
use super::input::Gathered;
use super::lookup::{self, bytes};
use super::respond::{self, Form, Show};
use super::rules::RuleArgs;
use super::{Run, RunArgs};
use crate::cli::IfKilled;
use crate::commands::ask;
use crate::context::Context;
use crate::environment::PassLedger;
use crate::exit::CommandError;
use crate::table::one_line;

/// The name of this surface in a record.
pub(crate) const SURFACE: &str = "run";

/// A held command.
#[derive(Debug, Clone)]
pub(crate) struct HeldCommand {
    /// What was asked for.
    pub(crate) action: CommandAction,
    how: How,
}

/// How it is run, and what its end proves.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct How {
    timeout_ms: u64,
    max_output: u64,
    retries: u32,
    verify_deadline_ms: u64,
    effect: Effect,
    no_effect_exits: Vec<i32>,
    doubt_exit: Vec<i32>,
    pass_ledger: bool,
    if_killed: IfKilled,
}

impl How {
    fn of(rules: &RuleArgs, settings: &Settings) -> Self {
        Self {
            timeout_ms: settings.timeout_ms,
            max_output: settings.max_output,
            retries: settings.terms.retries,
            verify_deadline_ms: settings.terms.verify_deadline_ms,
            effect: settings.effect,
            no_effect_exits: settings.no_effect_exits.clone(),
            doubt_exit: settings.doubt_exit.clone(),
            pass_ledger: rules.pass_ledger,
            if_killed: rules.if_killed,
        }
    }
}

impl HeldCommand {
    /// The command of this call.
    pub(super) fn of(args: &RunArgs, gathered: &Gathered, settings: &Settings) -> Result<Self, CommandError> {
        let folder = std::env::current_dir().map_err(|error| {
            CommandError::invalid(format!("the working folder: {error}; nothing was run"))
        })?;
        let (folder, programs) = (bytes(folder.as_os_str()), lookup::files_of(&args.command));
        let action = CommandAction { folder, programs, ..gathered.action.clone() };
        Ok(Self { action, how: How::of(&args.rules, settings) })
    }

    /// The command in the form in which a record stores it.
    pub(crate) fn stored(&self) -> String {
        Action::Command(self.action.clone()).stored(&self.how)
    }

    /// The command of a record that `once run` holds, or why there is none.
    pub(crate) fn read(record: &Record) -> Result<Self, CommandError> {
        let request = record.held_request().ok_or_else(|| {
            CommandError::invalid(format!("{} has no stored command; make the same call again", record.id))
        })?;
        match Action::read::<How>(request) {
            Ok((Action::Command(action), how)) if !action.argv.is_empty() => Ok(Self { action, how }),
            Ok(_) => Err(CommandError::invalid(format!("the stored command of {} is broken", record.id))),
            Err(Unreadable::Sealed { key }) => Err(CommandError::invalid(format!(
                "its command is sealed with the key {key}, and that key is not configured here; nothing was run. \
                 Set ONCE_ENCRYPTION_KEY_FILE to a file that holds the key"
            ))),
            Err(Unreadable::Broken(why)) => Err(CommandError::invalid(format!(
                "the stored command of {} cannot be read: {why}",
                record.id
            ))),
        }
    }

    fn words(&self) -> Vec<OsString> {
        self.action.argv.iter().map(|word| OsString::from_vec(word.as_bytes().to_vec())).collect()
    }

    /// The folder in which it runs.
    pub(crate) fn folder(&self) -> OsString {
        OsString::from_vec(self.action.folder.as_bytes().to_vec())
    }

    /// The command as a person sees it.
    pub(crate) fn shown(&self) -> ShownAction {
        Action::Command(self.action.clone()).shown()
    }

    /// Refuses a command whose program or declared files are not what they were when it was held.
    pub(crate) fn check(&self) -> Result<(), CommandError> {
        let _back = enter(&self.folder())?;
        self.check_here()
    }

    /// The same in its folder.
    fn check_here(&self) -> Result<(), CommandError> {
        // The programs of a command that was edited, or that could not be read, are not known.
        let known = !self.action.programs.is_empty();
        let programs = if known { lookup::files_of(&self.words()) } else { Vec::new() };
        let now = |file: &FileState| lookup::state_of(Path::new(OsStr::from_bytes(file.path.as_bytes())));
        let changed = self.action.changed(&programs, |file| now(file).map(|state| state.sha256));
        if changed.is_empty() {
            return Ok(());
        }
        let changes: Vec<String> = changed.iter().map(ToString::to_string).collect();
        Err(CommandError::invalid(format!(
            "{} since the command was held; nothing was run, and it is still held. Restore what was approved, or \
             cancel the operation and make the call again",
            changes.join("; ")
        )))
    }

    /// The settings of the command: those of the policy, the record and the call.
    fn settings(&self, context: &Context, record: &Record) -> Result<Settings, CommandError> {
        let mut settings = context.policy.settings(&record.name)?;
        settings.terms.retries = self.how.retries;
        settings.terms.verify_deadline_ms = self.how.verify_deadline_ms;
        settings.timeout_ms = self.how.timeout_ms;
        settings.max_output = self.how.max_output;
        settings.effect = self.how.effect;
        settings.no_effect_exits.clone_from(&self.how.no_effect_exits);
        settings.doubt_exit.clone_from(&self.how.doubt_exit);
        settings.probe.clone_from(&record.detail.probe);
        settings.probe_no.clone_from(&record.detail.probe_no);
        settings.verify.clone_from(&record.detail.verify);
        Ok(settings)
    }
}

/// The result of releasing a command.
pub(crate) struct Released {
    pub(crate) result: Result<Receipt, Error>,
    pub(crate) exit: ExitCode,
}

/// Whether the answer of a released command is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Print {
    /// As `once run` prints it.
    Answer,
    /// Not at all: the caller prints a line for each of several commands.
    Nothing,
}

/// Runs a held command that was released, as `once run` would run it: in its folder, with its limits, its probe and its
/// check. The environment is that of this process, with the values that the call declared. `begins` is called when the
/// command is about to start.
pub(crate) fn run(
    context: &Context,
    ledger: &Blocking,
    record: &Record,
    held: &HeldCommand,
    print: Print,
    begins: &(dyn Fn() + Sync),
) -> Result<Released, CommandError> {
    let form = match print {
        Print::Answer if !context.global.json => Form::Output,
        Print::Answer | Print::Nothing => Form::Json,
    };
    start(context, ledger, (record, held), (Show::released(form), print), &Delivery::watch(), begins)
}

/// Runs the held command that this call may start, or start again, as it was asked for and approved: what the call
/// itself brings, such as another standard input, does not count. `None` if the call has no such command.
pub(super) fn repeated(
    context: &Context,
    ledger: &Blocking,
    intent: &Intent,
    show: Show<'_>,
) -> Result<Option<ExitCode>, CommandError> {
    let plan = ledger.plan(intent)?;
    let (Decision::Start { .. }, Some(record)) = (plan.decision, plan.record) else { return Ok(None) };
    let is_ours = record.detail.held.as_ref().is_some_and(|held| held.surface == SURFACE);
    if !is_ours || record.held_request().is_none() {
        return Ok(None);
    }
    let held = HeldCommand::read(&record)?;
    let delivery = Delivery::watch();
    let released = start(context, ledger, (&record, &held), (show, Print::Answer), &delivery, &|| {})?;
    if let Some(record) = delivered_by(&released.result) {
        delivery.note(ledger, record, intent.terms.repeat_window_ms);
    }
    Ok(Some(released.exit))
}

fn start(
    context: &Context,
    ledger: &Blocking,
    (record, held): (&Record, &HeldCommand),
    (show, print): (Show<'_>, Print),
    delivery: &Delivery,
    begins: &(dyn Fn() + Sync),
) -> Result<Released, CommandError> {
    let settings = held.settings(context, record)?;
    let command = held.words();
    // What the call had no input for gets none: this process has another one.
    let stdin = held.action.stdin.as_ref().map_or_else(|| Arc::from([]), |stdin| stdin.bytes.shared());
    // The probe, the check and the lookup of the command depend on the folder too.
    let _back = enter(&held.folder())?;
    if let Err(gap) = lookup::startable(&command[0]) {
        return Err(CommandError::Outside(format!("{}; nothing was run, and it is still held", gap.reason)));
    }
    held.check_here()?;
    let pass_ledger = if held.how.pass_ledger { PassLedger::Yes } else { PassLedger::No };
    let run = Run {
        context,
        settings: &settings,
        ledger,
        command: &command,
        stdin: Some(stdin),
        environment: context.environment(pass_ledger).with_declared(&held.action.env),
        if_killed: held.how.if_killed,
        said: None,
        begins,
    };
    let result = run.execute(ledger.admin().held_intent(record, settings.terms.clone()), show, delivery);
    let exit = match print {
        Print::Answer => respond::answer(&run, &result, (RepeatRule::Given, None), show, delivery),
        Print::Nothing => respond::exit_code(&result, show),
    };
    Ok(Released { result, exit })
}

/// The folder to return to.
struct Back(std::path::PathBuf);

impl Drop for Back {
    fn drop(&mut self) {
        // If it is gone, the next command enters a folder of its own.
        drop(std::env::set_current_dir(&self.0));
    }
}

fn enter(folder: &OsString) -> Result<Back, CommandError> {
    if let Some(why) = ask::unsuitable(Path::new(folder)) {
        return Err(CommandError::Outside(format!("{why}; nothing was run, and it is still held")));
    }
    let back = Back(std::env::current_dir().unwrap_or_default());
    std::env::set_current_dir(folder).map_err(|error| {
        let folder = folder.to_string_lossy();
        CommandError::Outside(format!(
            "its folder {} cannot be used: {error}; nothing was run, and it is still held",
            one_line(&folder)
        ))
    })?;
    Ok(back)
}
