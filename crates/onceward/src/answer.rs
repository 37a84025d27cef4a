//! The answer format that all surfaces share: envelope, preview and problem document.

mod words;

use std::borrow::Cow;
use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::advice::{Choice, Surface};
use crate::decide::Decision;
use crate::error::{Error, held_in_words};
use crate::facts::{Happened, Ran, RepeatRule};
use crate::key::KeyOrigin;
use crate::ledger::{Plan, Receipt, refusal_error};
use crate::operation::Intent;
use crate::record::{Class, Effect, Held, Record, State, UndoEvidence, Verification};
use crate::text;
use crate::time::rfc3339;
use crate::transition;
use crate::word::WordView;
use words::{effect_of, held_sentence, hold_in_words, real_state, replay_in_words, title, warnings};

/// The contract's envelope.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Answer {
    /// Whether the operation is done; in a dry run, whether the call would be allowed.
    pub ok: bool,
    /// What this call changed; `unknown` if it is in doubt.
    pub effect: &'static str,
    /// Whether the operation's effect happened. Absent if the answer is not about an operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub happened: Option<Happened>,
    /// Whether this call ran it. Absent if the answer is not about a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ran: Option<bool>,
    /// The decision of a dry run: `run`, `hold`, `held`, `replay`, `replay_failure`, `wait`, `probe` or `refuse`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<&'static str>,
    /// The explanation, written for agents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What a dry run would change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<Vec<String>>,
    /// The operation, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<OperationView>,
    /// The result, as the JSON text that was reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<serde_json::Value>))]
    pub data: Option<Arc<RawValue>>,
    /// The error, if the call did not succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorView>,
    /// Additional warnings.
    pub warnings: Vec<String>,
    /// The token that proves to `once run` that this is the answer of the program that it started.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(ignore))]
    pub witness: Option<String>,
}

/// An operation, as shown to callers.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OperationView {
    /// `op_…`
    pub id: String,
    /// The namespace of the key: calls in the same scope share keys.
    pub scope: String,
    /// The operation's name.
    pub name: String,
    /// The key that identifies this operation among those with the same scope and name.
    pub key: String,
    /// The effective state: a running operation whose owner is gone is in doubt.
    pub state: State,
    /// The number of the newest attempt.
    pub attempt: u32,
    /// Whether the answer is the stored result of an earlier call.
    pub replayed: bool,
    /// What the operation changed when it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original_effect: Option<Effect>,
    /// Who or what settled or cancelled it, if not its own attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled_by: Option<WordView>,
    /// Why it is certain that nothing happened, if its last attempt failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<String>,
    /// The result of the check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified: Option<&'static str>,
    /// When the result stops being replayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// The operation that took it back, or is taking it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undone: Option<UndoneView>,
    /// The operation that this one takes back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undoes: Option<String>,
    /// While it is held back: until when, and by whom.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<HeldView>,
}

/// That an operation was taken back, or is being taken back.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UndoneView {
    /// The operation that takes it back: `op_…`
    pub by: String,
    /// What shows that the effect is gone: `probe`, `compensation` (its success), or `pending` (nothing yet).
    pub evidence: UndoEvidence,
    /// Who or what said that the compensation succeeded, if that is the evidence and it was not its own answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled_by: Option<WordView>,
    /// Since when.
    pub at: String,
}

/// How an operation is held back, as shown to callers. The stored request is not shown.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeldView {
    /// From when it may start without a release. Absent if a person must release it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Since when it is held.
    pub since: String,
    /// Who said that it is held: `caller` or `policy`.
    pub by: &'static str,
    /// The surface that holds it: `run`, `mcp`, `gateway`, `python`, `library`.
    pub surface: String,
    /// Who released it, if it has not started yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released_by: Option<WordView>,
    /// Whether another process can execute it, because its request is stored.
    pub stored: bool,
}

/// An error, as shown to callers.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ErrorView {
    /// The contract's code, or a tool's own.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub code: Cow<'static, str>,
    /// The error message.
    pub message: String,
    /// Whether the operation's effect happened. Absent if the error is not about an operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub happened: Option<Happened>,
    /// Whether the same call may simply be repeated.
    pub retryable: bool,
    /// When to repeat it, if there is a useful time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// What to do next, in one sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The command to run next. It never settles a doubt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix_command: Option<String>,
    /// The command to run for each possible finding.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<Choice>,
    /// Each problem, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// An error as a problem document (RFC 9457), for HTTP surfaces.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// The code as a URN: `urn:onceward:IN_DOUBT`.
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
    /// The operation, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<OperationView>,
}

impl Answer {
    /// An answer that is not about a call, for example that of an administrative command.
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
            witness: None,
        }
    }

    /// The answer to a call.
    #[must_use]
    pub fn of(result: &Result<Receipt, Error>, surface: &Surface, now_ms: i64) -> Self {
        match result {
            Ok(receipt) => Self::done(receipt, surface, now_ms),
            Err(error) => Self::failed(error, surface),
        }
    }

    /// The same for a call that this rule distinguished from a repeat: a replay says how to repeat the action on
    /// purpose. `free` is a label that no call has used.
    #[must_use]
    pub fn of_wanted(
        result: &Result<Receipt, Error>,
        rule: RepeatRule,
        free: Option<&str>,
        surface: &Surface,
        now_ms: i64,
    ) -> Self {
        let mut answer = Self::of(result, surface, now_ms);
        if let (Ok(receipt), Some(reason)) = (result, &mut answer.reason)
            && receipt.ran() == Ran::No
        {
            // The same key is the same operation, however often it is repeated.
            let has_key = receipt.record().key.origin == KeyOrigin::Given;
            let rule = if has_key { RepeatRule::Given } else { rule };
            reason.push_str(". ");
            reason.push_str(&surface.repeat_hint(rule, free));
        }
        answer
    }

    fn done(receipt: &Receipt, surface: &Surface, now_ms: i64) -> Self {
        let record = receipt.record();
        let outcome = record.outcome.as_ref();
        let data = outcome.and_then(|outcome| outcome.data.clone());
        let ran = receipt.ran();
        if record.detail.class == Class::Read {
            // A read changes nothing and leaves no record.
            return Self { ran: Some(true), data, ..Self::plain(Effect::Noop.as_str()) };
        }
        let reason = match ran {
            Ran::Yes => record.reason().map(str::to_owned),
            Ran::No => Some(replay_in_words(record, now_ms)),
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
                Surface::Shell { .. }
                | Surface::Python
                | Surface::Http
                | Surface::McpAgent
                | Surface::McpPerson { .. } => "success was reported but is not confirmed yet".to_owned(),
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

    /// The answer to a call that is held back: not an error, and not a success of the effect.
    #[must_use]
    pub fn held(record: &Record, surface: &Surface) -> Self {
        Self {
            happened: Some(Happened::No),
            ran: Some(false),
            reason: Some(held_sentence(record, surface)),
            operation: Some(OperationView::of(record, record.state, Ran::No)),
            ..Self::plain(Effect::Held.as_str())
        }
    }

    /// The answer to a call that did not succeed, or is held back.
    #[must_use]
    pub fn failed(error: &Error, surface: &Surface) -> Self {
        if let Error::Held { record } = error {
            return Self::held(record, surface);
        }
        let record = error.record();
        let ran = error.ran();
        // The output of another call does not answer a call that was refused for its own inputs, and the result of an
        // effect that was taken back is not an answer.
        let own = !matches!(error, Error::KeyReused { .. } | Error::KeyExpired { .. } | Error::Undone { .. });
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

    /// The answer to an administrative command that did not succeed. It says nothing about the effect.
    #[must_use]
    pub fn not_done(error: &Error, surface: &Surface) -> Self {
        let answer = Self::failed(error, surface);
        let error = answer.error.map(|error| ErrorView { happened: None, retryable: false, ..error });
        Self { effect: Effect::Noop.as_str(), happened: None, ran: None, data: None, error, ..answer }
    }

    /// The answer to a dry run. `changes` lists what the call would change if it ran.
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

    /// The error as a problem document with this HTTP status; `None` for a success.
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

/// What a call would do, without running or writing anything.
#[derive(Debug)]
#[non_exhaustive]
pub struct Preview {
    /// `run`, `hold`, `held`, `replay`, `replay_failure`, `wait`, `probe` or `refuse`.
    pub decision: &'static str,
    /// The decision in words.
    pub sentence: String,
    /// `would_…`
    pub effect: Effect,
    /// The refusal that the real call would return.
    pub refusal: Option<Error>,
    /// Whether the effect has already happened.
    pub happened: Option<Happened>,
    /// The operation's current record, or the one it would start with.
    pub operation: OperationView,
}

impl Preview {
    /// The preview of a call with this intent, if a success would have this effect.
    #[must_use]
    pub fn of(plan: &Plan, intent: &Intent, effect: Effect) -> Self {
        let shown = match &plan.record {
            Some(record) => Arc::clone(record),
            None => Arc::new(transition::stage(intent, 0)),
        };
        let attempt = shown.attempt;
        let (decision, sentence, effect) = match &plan.decision {
            Decision::Start { attempt } => ("run", format!("would run attempt {attempt}"), effect.would()),
            Decision::Hold => ("hold", hold_in_words(intent), Effect::WouldNoop),
            Decision::Held => ("held", format!("is {}", held_in_words(&shown)), Effect::WouldNoop),
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
            Decision::Refuse(refusal) => Some(refusal_error(refusal.clone(), Arc::clone(&shown), intent)),
            Decision::Doubt => {
                Some(refusal_error(crate::decide::Refusal::InDoubt, Arc::clone(&shown), intent))
            }
            Decision::ReplayFailure => Some(Error::Failed {
                reason: shown.reason().unwrap_or("it failed").to_owned(),
                record: Arc::clone(&shown),
                ran: Ran::No,
            }),
            Decision::Start { .. }
            | Decision::Hold
            | Decision::Held
            | Decision::Replay
            | Decision::Wait
            | Decision::Probe => None,
        };
        let sentence = match &refusal {
            Some(error) if sentence.is_empty() => format!("would refuse: {error}"),
            Some(_) | None => sentence,
        };
        let happened = match (&plan.decision, shown.state) {
            // A start after a settled state means that the settled one was an earlier occurrence.
            (Decision::Start { .. } | Decision::Hold, state) if state.is_settled() => Happened::No,
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

/// The words of an error. A caller of a server does not learn where the server keeps its files.
fn message(error: &Error, surface: &Surface) -> String {
    let about_store = matches!(error, Error::Unavailable(_) | Error::Unrecorded { .. });
    match surface {
        Surface::Http if about_store => text::without_paths(&error.to_string()).into_owned(),
        Surface::Http
        | Surface::Shell { .. }
        | Surface::Python
        | Surface::McpAgent
        | Surface::McpPerson { .. } => error.to_string(),
    }
}

impl ErrorView {
    /// The error as this surface presents it.
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
            ..Self::new(error.code().as_str(), message(error, surface))
        }
    }

    /// An error with this code that is not about an operation.
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

    /// The error as lines of text, without the tool's name: what went wrong, whether the effect happened, what to do.
    #[must_use]
    pub fn lines(&self, ran: Option<bool>) -> Vec<String> {
        // A message can quote another program's output. Indent it so that none of its lines looks like one of ours.
        let mut message = String::new();
        for (index, line) in text::lines(&self.message).split('\n').enumerate() {
            let indent = if index == 0 || line.starts_with("  ") { "" } else { "  " };
            message.push_str(&format!("{}{indent}{line}", if index == 0 { "" } else { "\n" }));
        }
        let mut lines = vec![format!("{} {message}", self.code)];
        if let Some(happened) = self.happened {
            let yes_no = |flag| if flag { "yes" } else { "no" };
            let ran = ran.map(|ran| format!(", ran: {}", yes_no(ran))).unwrap_or_default();
            let happened = happened.as_str();
            lines.push(format!("happened: {happened}{ran}, retryable: {}", yes_no(self.retryable)));
        }
        let more = if self.fix_command.is_some() || !self.options.is_empty() { ":" } else { "" };
        lines.extend(self.next.iter().map(|next| format!("next: {next}{more}")));
        lines.extend(self.fix_command.iter().map(|command| format!("  {command}")));
        lines.extend(self.options.iter().map(|choice| format!("  {}: {}", choice.found, choice.command)));
        lines
    }
}

impl OperationView {
    /// The view of a record in this effective state.
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
            settled_by: outcome.and_then(|outcome| outcome.settled_by.as_deref()).map(WordView::of),
            evidence: outcome
                .and_then(|outcome| outcome.evidence.as_ref())
                .filter(|evidence| !evidence.is_someones_word())
                .map(ToString::to_string),
            verified: outcome.and_then(|outcome| outcome.verified).map(Verification::as_str),
            expires_at: record.due_ms.map(rfc3339),
            undone: record.detail.undone.as_ref().map(|mark| UndoneView {
                by: mark.by.to_string(),
                evidence: mark.evidence,
                settled_by: mark.settled_by.as_ref().map(WordView::of),
                at: rfc3339(mark.at_ms),
            }),
            undoes: record.detail.undoes.as_ref().map(ToString::to_string),
            held: record.held().map(|held| HeldView::of(record, held)),
        }
    }
}

impl HeldView {
    fn of(record: &Record, held: &Held) -> Self {
        Self {
            until: held.until_ms.map(rfc3339),
            since: rfc3339(record.created_ms),
            by: held.by.as_str(),
            surface: held.surface.clone(),
            released_by: held.released.as_ref().map(WordView::of),
            stored: record.held_request().is_some(),
        }
    }
}
