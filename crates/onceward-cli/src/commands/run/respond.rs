//! What the caller of `once run` sees: the output again, byte for byte, or one JSON answer.

use std::io::Write;
use std::process::{Command, ExitCode};

use onceward::{
    Answer, Blocking, Decision, Error, Operation, Receipt, Record, Refusal, Replayed, Settings, Verification,
};
use serde::Serialize;
use serde_json::value::RawValue;

use super::RunArgs;
use super::child::Relay;
use super::input::Gathered;
use super::recording::{Stream, Summary, collect, frames};
use crate::answer;
use crate::context::{Context, Missing};
use crate::exit::Ended;

/// How the caller wants to be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Show {
    /// The command's own output.
    Output,
    /// One JSON object on stdout.
    Json,
}

impl From<&Context> for Show {
    fn from(context: &Context) -> Self {
        if context.global.json { Self::Json } else { Self::Output }
    }
}

impl Show {
    pub(super) fn relay(self) -> Relay {
        match self {
            Self::Output => Relay::Both,
            Self::Json => Relay::ErrOnly,
        }
    }
}

/// Answers a call and gives its exit code.
pub(super) fn answer(ledger: &Blocking, result: Result<Receipt, Error>, show: Show) -> ExitCode {
    let now_ms = ledger.ledger().clock_ms();
    let answer = Answer::of(&result, now_ms);
    let exit = exit_code(&result);
    match show {
        Show::Json => {
            let record = match &result {
                Ok(receipt) => Some(receipt.record()),
                Err(error) => error.record(),
            };
            let output = record.and_then(|record| output(record));
            let data = output.and_then(|output| serde_json::value::to_raw_value(&output).ok());
            answer::json(&Answer { data: data.or(answer.data.clone()), ..answer });
        }
        Show::Output => {
            match &result {
                Ok(receipt) if receipt.replayed() => replay(receipt.record()),
                Err(Error::Failed { record, replayed: Replayed::Yes, .. }) => replay(record),
                Ok(_) | Err(_) => {}
            }
            say(&answer, &result);
        }
    }
    exit
}

fn say(answer: &Answer, result: &Result<Receipt, Error>) {
    if let Some(operation) = answer.operation.as_ref().filter(|_| answer.ok) {
        if operation.replayed {
            let reason = answer.reason.as_deref().unwrap_or("already done");
            answer::talk(&format!("once: {reason} [{}]", operation.id));
        }
    } else if let Some(view) = &answer.error {
        answer::talk(&answer::error_text(view));
    }
    let record = match result {
        Ok(receipt) => Some(receipt.record()),
        Err(error) => error.record(),
    };
    if record.and_then(|record| summary(record)).is_some_and(|summary| summary.cut) {
        answer::talk("once: the output was longer than --max-output allows; a replay has its beginning only");
    }
    for warning in &answer.warnings {
        answer::talk(&format!("once: warning: {warning}"));
    }
}

/// Writes the stored output again, each stream to its own, in the order in which it came.
fn replay(record: &Record) {
    let Some(outcome) = &record.outcome else { return };
    let Some(body) = outcome.body.as_deref() else {
        // Who settled it by hand said what its result is; the command's own output is lost.
        if let Some(data) = outcome.data.as_ref().filter(|_| outcome.settled_by.is_some()) {
            answer::data(data.get());
        }
        return;
    };
    let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr().lock());
    for (stream, bytes) in frames(body) {
        // A reader that has gone away misses the rest; nothing else depends on it.
        drop(match stream {
            Stream::Out => out.write_all(bytes).and_then(|()| out.flush()),
            Stream::Err => err.write_all(bytes).and_then(|()| err.flush()),
        });
    }
}

/// 0 where it is done; the command's own code where it failed; else the contract's.
fn exit_code(result: &Result<Receipt, Error>) -> ExitCode {
    match result {
        Ok(_) => ExitCode::SUCCESS,
        Err(error @ Error::Failed { record, .. }) => {
            let own = summary(record)
                .and_then(|summary| summary.exit_code)
                .and_then(|code| u8::try_from(code).ok());
            ExitCode::from(own.filter(|code| *code != 0).unwrap_or(error.code().exit()))
        }
        Err(error) => ExitCode::from(error.code().exit()),
    }
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
    cut: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<Box<RawValue>>,
}

/// Text, or bytes that are none.
#[derive(Serialize)]
#[serde(untagged)]
enum Text {
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

fn output(record: &Record) -> Option<Output> {
    let summary = summary(record)?;
    let body = record.outcome.as_ref()?.body.as_deref().unwrap_or_default();
    let stdout = collect(body, Stream::Out);
    Some(Output {
        exit_code: summary.exit_code,
        answer: serde_json::from_slice(&stdout).ok(),
        stdout: stdout.into(),
        stderr: collect(body, Stream::Err).into(),
        cut: summary.cut,
    })
}

/// What a dry run says.
#[derive(Serialize)]
struct Preview {
    ok: bool,
    effect: &'static str,
    reason: String,
    operation: onceward::answer::OperationView,
    data: PreviewData,
    warnings: [&'static str; 0],
}

#[derive(Serialize)]
struct PreviewData {
    would: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fields: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<Text>,
}

/// Says what would happen, and writes nothing: not even a ledger where there is none.
pub(super) fn dry_run(
    context: &Context,
    args: &RunArgs,
    operation: &Operation,
    settings: &Settings,
    gathered: &Gathered,
) -> Ended {
    let intent = operation.intent()?;
    let (decision, record) = match context.ledger(Missing::Refuse) {
        Ok(ledger) => {
            let plan = ledger.wait_for(ledger.ledger().plan(&intent))?;
            (plan.decision, plan.record)
        }
        Err(error) if error.exit() == 2 => (Decision::Start { attempt: 1 }, None),
        Err(error) => return Err(error),
    };
    let (would, reason) = in_words(&decision, record.as_deref());
    let effect = if would == "run" { settings.effect.would() } else { onceward::Effect::WouldNoop };
    let fields = if let Decision::Refuse(Refusal::KeyReused(fields)) = &decision {
        fields.clone()
    } else {
        Vec::new()
    };
    let plan = (!args.dry_run_args.is_empty()).then(|| own_plan(args, gathered)).transpose()?;
    let now_ms = 0;
    let shown =
        record.map_or_else(|| onceward::transition::stage(&intent, now_ms), |record| Record::clone(&record));
    let preview = Preview {
        ok: true,
        effect: effect.as_str(),
        reason: reason.clone(),
        operation: onceward::answer::OperationView::of(&shown, shown.state, Replayed::No),
        data: PreviewData { would, fields, plan },
        warnings: [],
    };
    if context.global.json {
        answer::json(&preview);
    } else {
        answer::data(&format!("{}: {reason} [{}]", answer::styled(answer::BOLD, effect), shown.id));
        if let Some(Text::Plain(plan)) = &preview.data.plan {
            answer::data(plan.trim_end());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn in_words(decision: &Decision, record: Option<&Record>) -> (&'static str, String) {
    let attempt = record.map_or(0, |record| record.attempt);
    match decision {
        Decision::Start { attempt } => ("run", format!("would run attempt {attempt}")),
        Decision::Replay => {
            let verified = record.and_then(|record| record.outcome.as_ref()?.verified);
            let note = if verified == Some(Verification::Pending) { ", not confirmed yet" } else { "" };
            ("replay", format!("would replay the result of attempt {attempt}{note}"))
        }
        Decision::ReplayFailure => ("replay", format!("would replay the failure of attempt {attempt}")),
        Decision::Wait => ("wait", format!("would wait: attempt {attempt} is running")),
        Decision::Probe => ("probe", format!("would ask the probe whether attempt {attempt} happened")),
        Decision::Doubt | Decision::Refuse(Refusal::InDoubt) => {
            ("blocked", format!("would refuse: nobody can say whether attempt {attempt} happened"))
        }
        Decision::Refuse(Refusal::KeyReused(fields)) => {
            ("conflict", format!("would refuse: the key was used with other inputs ({})", fields.join(", ")))
        }
        Decision::Refuse(Refusal::KeyExpired) => ("blocked", "would refuse: the key has expired".to_owned()),
        Decision::Refuse(Refusal::Cancelled) => ("blocked", "would refuse: it was cancelled".to_owned()),
        Decision::Refuse(Refusal::BudgetExhausted) => {
            ("blocked", format!("would refuse: {attempt} attempts were made and the budget allows no more"))
        }
    }
}

/// The command's own plan: the command with the arguments that make it a dry run.
fn own_plan(args: &RunArgs, gathered: &Gathered) -> Result<Text, crate::exit::CommandError> {
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]).args(&args.dry_run_args).stdin(std::process::Stdio::null());
    let output = command.output().map_err(|error| {
        crate::exit::CommandError::Outside(format!(
            "cannot start {} for its own plan: {error}",
            gathered.name
        ))
    })?;
    Ok(output.stdout.into())
}
