//! A command that is held back: what another process needs to run it, as the ledger stores it.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

use onceward::{Blocking, Effect, Error, Held, Receipt, Record, RepeatRule, Settings};
use serde::{Deserialize, Serialize};

use super::delivery::Delivery;
use super::evidence::basename;
use super::input::Gathered;
use super::lookup;
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
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct HeldCommand {
    /// The command and its arguments.
    command: Vec<Word>,
    /// The folder in which it runs.
    folder: Word,
    /// The machine on which it was held.
    pub(crate) host: String,
    /// Standard input, if it was read, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stdin: Option<String>,
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

/// An argument: text, or bytes that are not text.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Word {
    Text(String),
    Hex { hex: String },
}

impl Word {
    fn of(word: &OsString) -> Self {
        match word.to_str() {
            Some(text) => Self::Text(text.to_owned()),
            None => Self::Hex { hex: data_encoding::HEXLOWER.encode(word.as_bytes()) },
        }
    }

    fn read(&self) -> Option<OsString> {
        match self {
            Self::Text(text) => Some(text.into()),
            Self::Hex { hex } => data_encoding::HEXLOWER.decode(hex.as_bytes()).ok().map(OsString::from_vec),
        }
    }
}

impl HeldCommand {
    /// The command of this call.
    pub(super) fn of(args: &RunArgs, gathered: &Gathered, settings: &Settings) -> Result<Self, CommandError> {
        let folder = std::env::current_dir().map_err(|error| {
            CommandError::invalid(format!("the working folder: {error}; nothing was run"))
        })?;
        let stdin = gathered.stdin.as_ref().map(|bytes| data_encoding::BASE64.encode(bytes));
        let place = (Word::of(&folder.into_os_string()), this_host(), stdin);
        Ok(Self::new(&args.command, place, &args.rules, settings))
    }

    /// Another command in its place. It runs in the same folder of the same machine, and gets the same standard input.
    /// Everything else that was said belonged to the old command.
    pub(crate) fn replaced_by(self, command: &[OsString], rules: &RuleArgs, settings: &Settings) -> Self {
        let Self { folder, host, stdin, .. } = self;
        Self::new(command, (folder, host, stdin), rules, settings)
    }

    fn new(
        command: &[OsString],
        (folder, host, stdin): (Word, String, Option<String>),
        rules: &RuleArgs,
        settings: &Settings,
    ) -> Self {
        Self {
            command: command.iter().map(Word::of).collect(),
            folder,
            host,
            stdin,
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

    /// The file name of its program, which is the operation's name if its caller chose none.
    pub(crate) fn program(&self) -> String {
        self.words().and_then(|words| words.first().map(|program| basename(program))).unwrap_or_default()
    }

    /// The command in the form in which a record stores it.
    #[expect(clippy::expect_used, reason = "it has no map with keys that are not text")]
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a command is JSON")
    }

    /// The command of a record that `once run` holds, or why there is none.
    pub(crate) fn read(record: &Record) -> Result<Self, CommandError> {
        let request = record.held_request().ok_or_else(|| {
            CommandError::invalid(format!("{} has no stored command; make the same call again", record.id))
        })?;
        if let Some(key) = onceward::sealed::key_of(request) {
            return Err(CommandError::invalid(format!(
                "its command is sealed with the key {key}, and that key is not configured here; nothing was run. Set \
                 ONCE_ENCRYPTION_KEY_FILE to a file that holds the key"
            )));
        }
        let command: Self = serde_json::from_str(request).map_err(|error| {
            CommandError::invalid(format!("the stored command of {} cannot be read: {error}", record.id))
        })?;
        match command.words() {
            Some(words) if !words.is_empty() => Ok(command),
            Some(_) | None => {
                Err(CommandError::invalid(format!("the stored command of {} is broken", record.id)))
            }
        }
    }

    fn words(&self) -> Option<Vec<OsString>> {
        self.command.iter().map(Word::read).collect()
    }

    /// The command line.
    pub(crate) fn line(&self) -> String {
        super::line(&self.words().unwrap_or_default())
    }

    /// The folder in which it runs.
    pub(crate) fn folder(&self) -> OsString {
        self.folder.read().unwrap_or_default()
    }

    /// The settings of the command: those of the policy, the record and the call.
    fn settings(&self, context: &Context, record: &Record) -> Result<Settings, CommandError> {
        let mut settings = context.policy.settings(&record.name)?;
        settings.terms.retries = self.retries;
        settings.terms.verify_deadline_ms = self.verify_deadline_ms;
        settings.timeout_ms = self.timeout_ms;
        settings.max_output = self.max_output;
        settings.effect = self.effect;
        settings.no_effect_exits.clone_from(&self.no_effect_exits);
        settings.doubt_exit.clone_from(&self.doubt_exit);
        settings.probe.clone_from(&record.detail.probe);
        settings.probe_no.clone_from(&record.detail.probe_no);
        settings.verify.clone_from(&record.detail.verify);
        Ok(settings)
    }
}

/// The result of releasing a command.
pub(crate) struct Released {
    pub(crate) result: Result<Receipt, Error>,
    pub(crate) exit: std::process::ExitCode,
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
/// check. The environment is that of this process. `begins` is called when the command is about to start.
pub(crate) fn run(
    context: &Context,
    ledger: &Blocking,
    record: &Record,
    held: &HeldCommand,
    print: Print,
    begins: &(dyn Fn() + Sync),
) -> Result<Released, CommandError> {
    let settings = held.settings(context, record)?;
    let command = held.words().unwrap_or_default();
    let folder = held.folder();
    let stdin = match &held.stdin {
        None => Arc::from([]),
        Some(text) => data_encoding::BASE64
            .decode(text.as_bytes())
            .map_err(|_| CommandError::invalid("the stored standard input is broken; nothing was run"))?
            .into(),
    };
    // The probe, the check and the lookup of the command depend on the folder too.
    let _back = enter(&folder)?;
    if let Err(gap) = lookup::startable(&command[0]) {
        return Err(CommandError::Outside(format!("{}; nothing was run, and it is still held", gap.reason)));
    }
    let delivery = Delivery::watch();
    let form = match print {
        Print::Answer if !context.global.json => Form::Output,
        Print::Answer | Print::Nothing => Form::Json,
    };
    let run = Run {
        context,
        settings: &settings,
        ledger,
        command: &command,
        stdin: Some(&stdin),
        pass_ledger: if held.pass_ledger { PassLedger::Yes } else { PassLedger::No },
        if_killed: held.if_killed,
        said: None,
        begins,
    };
    let show = Show::released(form);
    let result = run.execute(ledger.held_intent(record, settings.terms.clone()), show, &delivery);
    let exit = match print {
        Print::Answer => respond::answer(&run, &result, (RepeatRule::Given, None), show, &delivery),
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

/// The request of a held operation in words, for a person who decides about it.
pub(crate) fn in_words(held: &Held) -> Option<String> {
    let request = held.request.as_deref()?;
    match serde_json::from_str::<HeldCommand>(request) {
        Ok(command) if held.surface == SURFACE => Some(format!(
            "{}  (in {})",
            one_line(&command.line()),
            one_line(&command.folder().to_string_lossy())
        )),
        Ok(_) | Err(_) => Some(one_line(&onceward::sealed::shown(request))),
    }
}

/// The name of this machine.
pub(crate) fn this_host() -> String {
    nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
