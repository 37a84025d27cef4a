//! What every answer carries, on every surface: one envelope, one preview, one problem document.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;
use serde_json::value::RawValue;

use crate::decide::Decision;
use crate::error::{Error, Happened, Ran};
use crate::ledger::{Plan, Receipt, RepeatRule, refused};
use crate::next_step::{Choice, Surface};
use crate::operation::Intent;
use crate::record::{Class, DoubleEffect, Effect, Record, State, Verification};
use crate::transition;

/// The contract's envelope.
#[derive(Debug, Clone, Serialize)]
pub struct Answer {
    /// Whether the operation is done; in a dry run, whether the call would be let through.
    pub ok: bool,
    /// What this call did to the world; `unknown` where that is in doubt.
    pub effect: &'static str,
    /// Whether the operation's effect happened. Absent where the answer is not about an operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub happened: Option<Happened>,
    /// Whether this call ran it. Absent where the answer is not about a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ran: Option<bool>,
    /// What a dry run found: `run`, `replay`, `replay_failure`, `wait`, `probe` or `refuse`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<&'static str>,
    /// Why, in words that an agent reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What a dry run would change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<Vec<String>>,
    /// The operation, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<OperationView>,
    /// The result, as the JSON text it came as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Arc<RawValue>>,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorView>,
    /// What the caller should know besides.
    pub warnings: Vec<String>,
}

/// An operation, as shown to callers.
#[derive(Debug, Clone, Serialize)]
pub struct OperationView {
    /// `op_…`
    pub id: String,
    /// Who shares the key.
    pub scope: String,
    /// What is done.
    pub name: String,
    /// Which one of them.
    pub key: String,
    /// Its real state: a running one whose owner is gone is in doubt.
    pub state: State,
    /// The number of the newest attempt.
    pub attempt: u32,
    /// Whether the answer is the stored result of an earlier call.
    pub replayed: bool,
    /// What the operation did when it was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original_effect: Option<Effect>,
    /// Who or what decided how it ended, where that was not its own answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled_by: Option<String>,
    /// What the check said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified: Option<&'static str>,
    /// When the result stops being replayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

/// An error, as shown to callers.
#[derive(Debug, Clone, Serialize)]
pub struct ErrorView {
    /// The contract's code, or a tool's own.
    pub code: Cow<'static, str>,
    /// In words.
    pub message: String,
    /// Whether the operation's effect happened. Absent where the error is not about an operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub happened: Option<Happened>,
    /// Whether the same call may simply be made again.
    pub retryable: bool,
    /// When, where that is worth it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// What to do next, in one sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// What to paste next. It never decides a doubt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix_command: Option<String>,
    /// What to paste for each finding.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<Choice>,
    /// Each problem, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// An error as a problem document (RFC 9457), for surfaces that speak HTTP.
#[derive(Debug, Clone, Serialize)]
pub struct Problem {
    /// Names the code: `urn:onceward:IN_DOUBT`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The code in words.
    pub title: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// What happened, what did not, and what to do.
    pub detail: String,
    /// The fields of the envelope's error.
    #[serde(flatten)]
    pub error: ErrorView,
    /// Whether this call ran the operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ran: Option<bool>,
    /// The operation, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<OperationView>,
}

impl Answer {
    /// An answer that is not about a call, such as that of an administrative command.
    #[must_use]
    pub fn plain(effect: &'static str) -> Self {
        Self {
            ok: true,
            effect,
            happened: None,
            ran: None,
            decision: None,
            reason: None,
            changes: None,
            operation: None,
            data: None,
            error: None,
            warnings: Vec::new(),
        }
    }

    /// The answer to a call.
    #[must_use]
    pub fn of(result: &Result<Receipt, Error>, surface: &Surface, now_ms: i64) -> Self {
        match result {
            Ok(receipt) => Self::done(receipt, surface, surface.repeat_hint(), now_ms),
            Err(error) => Self::failed(error, surface),
        }
    }

    /// The answer to a call that this rule told from a repeat.
    #[must_use]
    pub fn of_wanted(
        result: &Result<Receipt, Error>,
        rule: RepeatRule,
        surface: &Surface,
        now_ms: i64,
    ) -> Self {
        match result {
            Ok(receipt) => Self::done(receipt, surface, surface.repeat_hint_under(rule), now_ms),
            Err(error) => Self::failed(error, surface),
        }
    }

    fn done(receipt: &Receipt, surface: &Surface, hint: &str, now_ms: i64) -> Self {
        let record = receipt.record();
        let outcome = record.outcome.as_ref();
        let data = outcome.and_then(|outcome| outcome.data.clone());
        let ran = receipt.ran();
        if record.detail.class == Class::Read {
            // A read changes nothing and leaves no record behind.
            return Self { ran: Some(true), data, ..Self::plain(Effect::Noop.as_str()) };
        }
        let reason = match ran {
            Ran::Yes => record.reason().map(str::to_owned),
            Ran::No => Some(replay_in_words(record, hint, now_ms)),
        };
        let mut warnings = warnings(record);
        if outcome.is_some_and(|outcome| outcome.unavailable) {
            warnings.push(
                "the result is not available: it was too large or could not be written as JSON".to_owned(),
            );
        }
        if outcome.and_then(|outcome| outcome.verified) == Some(Verification::Pending) {
            warnings.push(match surface {
                Surface::Shell { program, .. } if program == "once" => {
                    let ask = surface.line(&format!("verify {}", record.id));
                    format!("success was reported but is not confirmed yet; ask again with `{ask}`")
                }
                Surface::Shell { .. } | Surface::Python | Surface::McpAgent | Surface::McpPerson { .. } => {
                    "success was reported but is not confirmed yet".to_owned()
                }
            });
        }
        Self {
            happened: Some(Happened::Yes),
            ran: Some(ran.as_bool()),
            reason,
            operation: Some(OperationView::of(record, record.state, ran)),
            data,
            warnings,
            ..Self::plain(receipt.effect().as_str())
        }
    }

    /// The answer to a call that did not succeed.
    #[must_use]
    pub fn failed(error: &Error, surface: &Surface) -> Self {
        let record = error.record();
        let ran = error.ran();
        // Another call's output is no answer to a call that was refused for its own inputs.
        let own = !matches!(error, Error::KeyReused { .. } | Error::KeyExpired { .. });
        Self {
            ok: false,
            happened: error.happened(),
            ran: Some(ran.as_bool()),
            operation: record.map(|record| {
                let replayed = matches!(error, Error::Failed { ran: Ran::No, .. });
                OperationView { replayed, ..OperationView::of(record, real_state(error, record), ran) }
            }),
            data: record.filter(|_| own).and_then(|record| record.outcome.as_ref()?.data.clone()),
            error: Some(ErrorView::of(error, surface)),
            warnings: record.map(|record| warnings(record)).unwrap_or_default(),
            ..Self::plain(effect_of(error))
        }
    }

    /// The answer to an administrative command that did not succeed: it claims nothing about the effect.
    #[must_use]
    pub fn not_done(error: &Error, surface: &Surface) -> Self {
        let answer = Self::failed(error, surface);
        let error = answer.error.map(|error| ErrorView { happened: None, retryable: false, ..error });
        Self { effect: Effect::Noop.as_str(), happened: None, ran: None, data: None, error, ..answer }
    }

    /// What a call would get. `changes` is what it would change if it ran.
    #[must_use]
    pub fn preview(preview: &Preview, changes: Vec<String>, surface: &Surface) -> Self {
        let would_run = matches!(preview.decision, "run" | "probe");
        let answer = match &preview.refusal {
            Some(error) => Self::failed(error, surface),
            None => Self { happened: preview.happened, ..Self::plain("") },
        };
        Self {
            effect: preview.effect.as_str(),
            ran: Some(false),
            decision: Some(preview.decision),
            reason: Some(preview.sentence.clone()),
            changes: Some(if would_run { changes } else { Vec::new() }),
            operation: Some(preview.operation.clone()),
            data: None,
            ..answer
        }
    }

    /// The error as a problem document, with its HTTP status; `None` for a success.
    #[must_use]
    pub fn problem(&self, status: u16) -> Option<Problem> {
        let error = self.error.clone()?;
        let detail = match &error.next {
            Some(next) => format!("{}. {next}.", error.message.trim_end_matches('.')),
            None => error.message.clone(),
        };
        Some(Problem {
            kind: format!("urn:onceward:{}", error.code),
            title: title(&error.code),
            status,
            detail,
            error,
            ran: self.ran,
            operation: self.operation.clone(),
        })
    }
}

/// What a call would get, without running or writing anything.
#[derive(Debug)]
pub struct Preview {
    /// `run`, `replay`, `replay_failure`, `wait`, `probe` or `refuse`.
    pub decision: &'static str,
    /// The decision in words.
    pub sentence: String,
    /// `would_…`
    pub effect: Effect,
    /// The refusal that the real call would get.
    pub refusal: Option<Error>,
    /// Whether the effect happened already.
    pub happened: Option<Happened>,
    /// The operation as it is, or as it would begin.
    pub operation: OperationView,
}

impl Preview {
    /// What a call with this intent would get, where a success would have this effect.
    #[must_use]
    pub fn of(plan: &Plan, intent: &Intent, effect: Effect) -> Self {
        let shown = match &plan.record {
            Some(record) => Arc::clone(record),
            None => Arc::new(transition::stage(intent, 0)),
        };
        let attempt = shown.attempt;
        let (decision, sentence, effect) = match &plan.decision {
            Decision::Start { attempt } => ("run", format!("would run attempt {attempt}"), effect.would()),
            Decision::Replay => (
                "replay",
                format!("already done by attempt {attempt}: would replay its result and run nothing"),
                Effect::WouldNoop,
            ),
            Decision::ReplayFailure => (
                "replay_failure",
                format!("would replay the failure of attempt {attempt}"),
                Effect::WouldNoop,
            ),
            Decision::Wait => {
                ("wait", format!("would wait: attempt {attempt} is running"), Effect::WouldNoop)
            }
            Decision::Probe => (
                "probe",
                format!("would ask the probe whether attempt {attempt} happened, and run only if it did not"),
                effect.would(),
            ),
            Decision::Doubt | Decision::Refuse(_) => ("refuse", String::new(), Effect::WouldNoop),
        };
        let refusal = match &plan.decision {
            Decision::Refuse(refusal) => Some(refused(refusal.clone(), Arc::clone(&shown), intent)),
            Decision::Doubt => Some(refused(crate::decide::Refusal::InDoubt, Arc::clone(&shown), intent)),
            Decision::ReplayFailure => Some(Error::Failed {
                reason: shown.reason().unwrap_or("it failed").to_owned(),
                record: Arc::clone(&shown),
                ran: Ran::No,
            }),
            Decision::Start { .. } | Decision::Replay | Decision::Wait | Decision::Probe => None,
        };
        let sentence = match &refusal {
            Some(error) if sentence.is_empty() => format!("would refuse: {error}"),
            Some(_) | None => sentence,
        };
        let happened = match (&plan.decision, shown.state) {
            // It runs on something settled only where that was an earlier occurrence.
            (Decision::Start { .. }, state) if state.is_settled() => Happened::No,
            (_, _) => shown.happened(),
        };
        let state = match (&plan.decision, &refusal) {
            (Decision::Wait, _) => State::Running,
            (_, Some(error)) => real_state(error, &shown),
            (_, None) => shown.state,
        };
        let operation = OperationView { replayed: false, ..OperationView::of(&shown, state, Ran::No) };
        Self { decision, sentence, effect, refusal, happened: Some(happened), operation }
    }
}

impl ErrorView {
    /// The error in the words of a surface.
    #[must_use]
    pub fn of(error: &Error, surface: &Surface) -> Self {
        let problems = if let Error::Invalid(invalid) = error { invalid.problems() } else { &[] };
        let guidance = error.next_step().map(|step| surface.spell(&step)).unwrap_or_default();
        Self {
            happened: error.happened(),
            retryable: error.retryable(),
            next: Some(guidance.say).filter(|say| !say.is_empty()),
            fix_command: guidance.command,
            options: guidance.options,
            problems: if problems.len() > 1 { problems.to_vec() } else { Vec::new() },
            ..Self::new(error.code().as_str(), error.to_string())
        }
    }

    /// An error of that code that is not about an operation.
    #[must_use]
    pub fn new(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
            happened: None,
            retryable: false,
            retry_after_ms: None,
            next: None,
            fix_command: None,
            options: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// The error as lines of text, each without the name of the tool: what happened, whether it did, what to do.
    #[must_use]
    pub fn lines(&self, ran: Option<bool>) -> Vec<String> {
        let mut lines = vec![format!("{} {}", self.code, self.message)];
        if let Some(happened) = self.happened {
            let yes_no = |flag| if flag { "yes" } else { "no" };
            let ran = ran.map(|ran| format!(", ran: {}", yes_no(ran))).unwrap_or_default();
            let happened = happened.as_str();
            lines.push(format!("happened: {happened}{ran}, retryable: {}", yes_no(self.retryable)));
        }
        if self.options.is_empty() {
            match (&self.fix_command, &self.next) {
                (Some(command), _) => lines.push(format!("next: {command}")),
                (None, Some(next)) => lines.push(format!("next: {next}")),
                (None, None) => {}
            }
        } else {
            lines.extend(self.next.clone().map(|next| format!("next: {next}:")));
            lines.extend(self.options.iter().map(|choice| format!("  {}: {}", choice.found, choice.command)));
        }
        lines
    }
}

impl OperationView {
    /// The operation of a record that is really in `state`.
    #[must_use]
    pub fn of(record: &Record, state: State, ran: Ran) -> Self {
        let outcome = record.outcome.as_ref();
        Self {
            id: record.id.to_string(),
            scope: record.scope.clone(),
            name: record.name.clone(),
            key: record.key.text.clone(),
            state,
            attempt: record.attempt,
            replayed: ran == Ran::No && state == State::Done,
            original_effect: outcome.and_then(|outcome| outcome.effect),
            settled_by: outcome.and_then(|outcome| outcome.settled_by.clone()),
            verified: outcome.and_then(|outcome| outcome.verified).map(Verification::as_str),
            expires_at: record.due_ms.map(rfc3339),
        }
    }
}

/// The state in which a call found its operation. What the ledger has written down may be older.
fn real_state(error: &Error, record: &Record) -> State {
    if matches!(error, Error::KeyExpired { .. }) {
        State::Expired
    } else if matches!(error, Error::InProgress { .. }) {
        State::Running
    } else {
        record.state
    }
}

/// What a call that did not succeed did to the world.
fn effect_of(error: &Error) -> &'static str {
    match (error.ran(), error.happened()) {
        // Its own attempt had no effect: another one is still running.
        (Ran::Yes, _) if matches!(error, Error::InProgress { .. }) => Effect::Noop.as_str(),
        (Ran::Yes, Some(Happened::Unknown | Happened::Yes)) => "unknown",
        (Ran::Yes, Some(Happened::No) | None) | (Ran::No, _) => Effect::Noop.as_str(),
    }
}

fn replay_in_words(record: &Record, hint: &str, now_ms: i64) -> String {
    let ago = span_in_words(now_ms - record.updated_ms);
    match record.outcome.as_ref().and_then(|outcome| outcome.settled_by.as_deref()) {
        Some(who) => {
            let why = record.reason().map(|why| format!(" ({why})")).unwrap_or_default();
            format!("already done: settled {ago} ago by {who}{why}; nothing was run. {hint}")
        }
        None => format!("already done {ago} ago by attempt {}; nothing was run. {hint}", record.attempt),
    }
}

fn warnings(record: &Record) -> Vec<String> {
    match record.detail.double_effect {
        None => Vec::new(),
        Some(DoubleEffect::Possible) => vec!["double_effect: two attempts may have had an effect".to_owned()],
        Some(DoubleEffect::Certain) => vec!["double_effect: two attempts had an effect".to_owned()],
    }
}

fn title(code: &str) -> &'static str {
    use crate::error::Code;
    match Code::ALL.into_iter().find(|known| known.as_str() == code) {
        Some(Code::InvalidInput) => "The input is invalid",
        Some(Code::KeyMissing) => "A key is required",
        Some(Code::NotFound) => "There is no such operation",
        Some(Code::WrongState) => "Not possible in the operation's state",
        Some(Code::InProgress) => "The operation is still running",
        Some(Code::KeyExpired) => "The stored result has expired",
        Some(Code::Cancelled) => "The operation was cancelled",
        Some(Code::BudgetExhausted) => "The retry budget is spent",
        Some(Code::KeyReused) => "The key was used for a different action",
        Some(Code::Failed) | None => "The operation failed without effect",
        Some(Code::Timeout) => "The operation timed out, and its outcome is unknown",
        Some(Code::InDoubt) => "The outcome is unknown",
        Some(Code::Unverified) => "Success was reported and refuted",
        Some(Code::LedgerUnavailable) => "The ledger cannot be used",
    }
}

/// A time as people and programs read it.
#[must_use]
pub fn rfc3339(ms: i64) -> String {
    let time = UNIX_EPOCH + Duration::from_millis(u64::try_from(ms).unwrap_or(0).min(253_402_300_799_000));
    humantime::format_rfc3339_millis(time).to_string()
}

/// A span of time as people say it: its two largest units.
#[must_use]
pub fn span_in_words(ms: i64) -> String {
    let seconds = ms.max(0) / 1000;
    match seconds {
        0 => format!("{} ms", ms.max(0)),
        1..60 => format!("{seconds} s"),
        60..3_600 => format!("{} m", seconds / 60),
        3_600..86_400 => format!("{} h {} m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}
