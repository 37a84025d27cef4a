//! The answer to a call of `once run`: the stored output, byte for byte, or one JSON object.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use onceward::{
    Answer, Effect, Error, Hold, Intent, KeyPolicy, NextStep, Ran, Receipt, Record, RepeatRule, Surface,
};
use serde::Serialize;
use serde_json::value::RawValue;

use super::child::Relay;
use super::delivery::Delivery;
use super::preflight::{self, Obstacle};
use super::recording::{Stream, Summary, collect, frames};
use super::{Run, RunArgs};
use crate::answer;
use crate::context::{Context, quoted};
use crate::exit::CommandError;

/// How much of each stream a JSON answer contains. The rest is in the ledger.
const MOST_IN_JSON: usize = 64 * 1024;

/// The output options of the caller.
#[derive(Debug, Clone, Copy)]
pub(super) struct Show<'a> {
    pub(super) form: Form,
    quiet: bool,
    noop_exit: Option<i32>,
    status_file: Option<&'a Path>,
    hold: HoldAsked,
}

/// Whether the call itself asked to be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HoldAsked {
    /// It did, and expects it.
    Yes,
    /// Only the policy holds it, so the caller expects that the command has run.
    No,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// The command's own output.
    Output,
    /// One JSON object on stdout.
    Json,
}

impl<'a> Show<'a> {
    pub(super) fn from(context: &Context, args: &'a RunArgs) -> Self {
        let form = if context.global.json { Form::Json } else { Form::Output };
        let status_file = args.status_file.as_deref();
        let hold = match args.hold {
            Some(Hold::For(_) | Hold::Approve) => HoldAsked::Yes,
            Some(Hold::No) | None => HoldAsked::No,
        };
        Self { form, quiet: args.quiet, noop_exit: args.noop_exit, status_file, hold }
    }

    /// The output of a command that is released, in the same form as that of a call.
    pub(super) fn released(form: Form) -> Self {
        Self { form, quiet: false, noop_exit: None, status_file: None, hold: HoldAsked::No }
    }

    pub(super) fn relay(self) -> Relay {
        match self.form {
            Form::Output => Relay::Both,
            Form::Json => Relay::ErrOnly,
        }
    }

    /// Refuses a call whose answer could not be written to the file, before anything is run.
    pub(super) fn check_status_file(self) -> Result<(), CommandError> {
        let Some(file) = self.status_file else { return Ok(()) };
        let checked = match File::create_new(file) {
            // It appears with the answer in it: who waits for the file must not find it empty.
            Ok(_) => std::fs::remove_file(file),
            // A pipe or a device is not opened twice.
            Err(_) if std::fs::metadata(file).is_ok_and(|found| !found.is_file() && !found.is_dir()) => {
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                File::options().append(true).create(true).open(file).map(drop)
            }
            Err(error) => Err(error),
        };
        checked.map_err(|error| {
            let problem =
                format!("cannot write the status file {}: {error}; nothing was run", file.display());
            CommandError::invalid(problem)
        })
    }

    pub(super) fn without_status_file(self) -> Self {
        Self { status_file: None, ..self }
    }

    fn write_status(self, answer: &Answer) {
        let Some(file) = self.status_file else { return };
        let written = serde_json::to_string(answer)
            .map_err(Into::into)
            .and_then(|text| std::fs::write(file, onceward::text::json(&text).as_bytes()));
        if let Err(error) = written {
            answer::talk(&format!("once: cannot write {}: {error}", file.display()));
        }
    }
}

/// Answers a call that began, and returns its exit code. The rule distinguished it from a repetition of this action.
pub(super) fn answer(
    run: &Run<'_>,
    result: &Result<Receipt, Error>,
    (rule, action): (RepeatRule, Option<&Intent>),
    show: Show<'_>,
    delivery: &Delivery,
) -> ExitCode {
    let now_ms = run.ledger.clock_ms();
    let surface = run.context.surface();
    let is_replay = result.as_ref().is_ok_and(Receipt::replayed);
    let free = action.filter(|_| is_replay).and_then(|action| run.ledger.repeats().free_label(action).ok());
    let mut answer = Answer::of_wanted(result, rule, free.as_deref(), &surface, now_ms);
    let record = match result {
        Ok(receipt) => Some(receipt.record()),
        Err(error) => error.record(),
    };
    if let (Some(reason), Ok(receipt)) = (&mut answer.reason, result)
        && receipt.ran() == Ran::No
        && let Some(words) = rule_in_words(rule, run.settings.terms.keys)
    {
        reason.push_str(words);
    }
    if answer.ran == Some(true) {
        after_a_run(&mut answer, record.and_then(|record| summary(record)), run.stdin_bytes());
    }
    if answer.data.is_some() {
        let output = record.and_then(|record| output(record, &surface));
        let data = output.and_then(|output| serde_json::value::to_raw_value(&output).ok());
        answer.data = data.map(Arc::from).or(answer.data);
    }
    if let Some(args) = run.said {
        with_own_check(&mut answer, args);
    }
    show.write_status(&answer);
    match show.form {
        Form::Json => answer::envelope_to(&answer, || delivery.broken()),
        Form::Output => {
            match result {
                Ok(receipt) if receipt.replayed() => replay(receipt.record(), delivery),
                Err(Error::Failed { record, ran: Ran::No, .. }) => replay(record, delivery),
                Ok(_) | Err(_) => {}
            }
            // A call that is held did not succeed yet, so --quiet does not hide it.
            if !(show.quiet && answer.ok) || matches!(result, Err(Error::Held { .. })) {
                say(&answer, record);
            }
            let bytes = run.stdin_bytes();
            if bytes > 0 && matches!(result, Err(Error::Held { .. })) {
                answer::talk(&format!(
                    "once: {bytes} bytes were read from standard input for it; in a loop that reads the same input, \
                     add </dev/null"
                ));
            }
        }
    }
    exit_code(result, show)
}

/// Adds the caller's own check to the command that asks again, because the stored one is not run.
fn with_own_check(answer: &mut Answer, args: &RunArgs) {
    // What cannot be printed as it is cannot be pasted either.
    let is_shown = |text: &&String| !text.chars().any(|c| onceward::text::is_hidden(c) && c != '\n');
    if let (Some(operation), Some(check)) = (&answer.operation, args.rules.verify.as_ref().filter(is_shown)) {
        let verify = format!("verify {}", operation.id);
        let with_check = format!("{verify} --check {}", quoted(check));
        answer.warnings.iter_mut().for_each(|warning| *warning = warning.replace(&verify, &with_check));
    }
}

/// What is reported only to the call that ran the command.
fn after_a_run(answer: &mut Answer, summary: Option<Summary>, stdin_bytes: usize) {
    let Some(summary) = summary else { return };
    if (summary.not_started || summary.hopeless)
        && let Some(error) = &mut answer.error
    {
        // The same call gets the same answer until the command is fixed.
        (error.retryable, error.next) = (false, Some(preflight::CORRECT.to_owned()));
    }
    if summary.stdin_unread > 0 {
        answer.warnings.push(format!(
            "the command did not read {} of the {stdin_bytes} bytes that once had read from standard input; in a \
             loop that reads the same input, add </dev/null",
            summary.stdin_unread
        ));
    }
}

/// Answers a call that was stopped by an obstacle, and returns its exit code.
pub(super) fn stopped_short(obstacle: &Obstacle, show: Show<'_>, surface: &Surface) -> ExitCode {
    let answer = obstacle.answer(surface);
    show.write_status(&answer);
    match show.form {
        Form::Json => answer::envelope(&answer),
        Form::Output => say(&answer, None),
    }
    ExitCode::from(u8::try_from(obstacle.exit()).unwrap_or(1))
}

/// Answers a call that was refused before it began.
pub(super) fn refused(error: &Error, show: Show<'_>, surface: &Surface) -> ExitCode {
    let answer = Answer::failed(error, surface);
    show.write_status(&answer);
    match show.form {
        Form::Json => answer::envelope(&answer),
        Form::Output => say(&answer, None),
    }
    ExitCode::from(error.code().exit())
}

/// The rule that made the call a retry, if the answer does not say so yet.
fn rule_in_words(rule: RepeatRule, keys: KeyPolicy) -> Option<&'static str> {
    match rule {
        RepeatRule::Given => Some(". Recognised by its key"),
        RepeatRule::Strict if keys == KeyPolicy::Strict => Some(". Recognised because keys are strict"),
        RepeatRule::Strict => Some(". Recognised because keys are strict in a given scope (--keys auto)"),
        RepeatRule::First | RepeatRule::Repeat | RepeatRule::Retry(_) => None,
    }
}

fn say(answer: &Answer, record: Option<&Arc<Record>>) {
    if let Some(operation) = answer.operation.as_ref().filter(|_| answer.ok) {
        if answer.effect == Effect::Held.as_str() {
            let reason = answer.reason.as_deref().unwrap_or("held; nothing was sent");
            answer::talk(&format!("once: {} [{}]", onceward::text::one_line(reason), operation.id));
        } else if operation.replayed {
            let reason = answer.reason.as_deref().unwrap_or("already done");
            answer::talk(&format!("once: {} [{}]", onceward::text::one_line(reason), operation.id));
        }
    } else if let Some(view) = &answer.error {
        answer::talk(&answer::error_text(view, answer.ran));
    }
    if record.and_then(|record| summary(record)).is_some_and(|summary| summary.cut) {
        answer::talk(
            "once: the output was longer than --max-output allows; a replay contains only its beginning",
        );
    }
    for warning in &answer.warnings {
        answer::talk(&format!("once: warning: {warning}"));
    }
}

/// Writes the stored output, each stream to its own, in the original order.
fn replay(record: &Record, delivery: &Delivery) {
    let Some(outcome) = &record.outcome else { return };
    let Some(body) = outcome.body.as_deref() else {
        // The person who settled it gave its result; the command's own output is lost.
        if let Some(data) = outcome.data.as_ref().filter(|_| outcome.settled_by.is_some()) {
            answer::data(data.get());
        }
        return;
    };
    let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr().lock());
    for (stream, bytes) in frames(body) {
        let written = match stream {
            Stream::Out => out.write_all(bytes).and_then(|()| out.flush()),
            Stream::Err => err.write_all(bytes).and_then(|()| err.flush()),
        };
        // If the reader has closed the pipe, the answer was not delivered.
        if written.is_err() {
            delivery.broken();
        }
    }
}

/// 0 if it is done, the command's own code if it failed, otherwise the contract's.
pub(super) fn exit_code(result: &Result<Receipt, Error>, show: Show<'_>) -> ExitCode {
    match result {
        Ok(receipt) if receipt.replayed() => {
            ExitCode::from(show.noop_exit.and_then(exit_byte).unwrap_or_default())
        }
        Ok(_) => ExitCode::SUCCESS,
        // A caller that did not ask for a hold must not continue as if the command had run. Neither must an outer
        // `once run`, which would record this exit as its own success.
        Err(Error::Held { .. }) if show.hold == HoldAsked::Yes && !preflight::is_nested() => {
            ExitCode::SUCCESS
        }
        Err(error) => refusal_exit(error),
    }
}

/// The command's own code if it failed, now or earlier, otherwise the contract's.
pub(super) fn refusal_exit(error: &Error) -> ExitCode {
    let failed = if let Error::Failed { record, .. } = error { summary(record) } else { None };
    let own = failed.and_then(|summary| summary.exit_code).and_then(exit_byte);
    ExitCode::from(own.unwrap_or(error.code().exit()))
}

fn exit_byte(code: i32) -> Option<u8> {
    u8::try_from(code).ok().filter(|code| *code != 0)
}

fn summary(record: &Record) -> Option<Summary> {
    serde_json::from_str(record.outcome.as_ref()?.data.as_ref()?.get()).ok()
}

/// The command's output in an answer.
#[derive(Serialize)]
struct Output {
    exit_code: Option<i32>,
    stdout: Text,
    stderr: Text,
    /// The output is incomplete.
    cut: bool,
    /// The command that prints all stored output.
    #[serde(skip_serializing_if = "Option::is_none")]
    more: Option<String>,
    /// The command's own answer, if it is JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<Box<RawValue>>,
}

/// Text, or bytes that are not text.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Text {
    Plain(String),
    Base64 { base64: String },
}

impl From<Vec<u8>> for Text {
    fn from(bytes: Vec<u8>) -> Self {
        String::from_utf8(bytes)
            .map(Self::Plain)
            .unwrap_or_else(|error| Self::Base64 { base64: data_encoding::BASE64.encode(error.as_bytes()) })
    }
}

fn output(record: &Record, surface: &Surface) -> Option<Output> {
    let summary = summary(record)?;
    let body = record.outcome.as_ref()?.body.as_deref().unwrap_or_default();
    let (mut stdout, mut stderr) = (collect(body, Stream::Out), collect(body, Stream::Err));
    let shortened = [&mut stdout, &mut stderr].map(shorten).contains(&true);
    let show = || surface.spell(&NextStep::Show(record.id.clone())).command;
    Some(Output {
        exit_code: summary.exit_code,
        answer: serde_json::from_slice(&stdout).ok().filter(|_| !shortened),
        stdout: stdout.into(),
        stderr: stderr.into(),
        cut: summary.cut || shortened,
        more: shortened.then(show).flatten().map(|command| format!("{command} --output")),
    })
}

/// Shortens what is too long for an answer, at a character boundary; returns whether it did.
fn shorten(bytes: &mut Vec<u8>) -> bool {
    if bytes.len() <= MOST_IN_JSON {
        return false;
    }
    let within = (MOST_IN_JSON - 3..=MOST_IN_JSON).rev().find(|end| bytes[*end] & 0b1100_0000 != 0b1000_0000);
    bytes.truncate(within.unwrap_or(MOST_IN_JSON));
    true
}
