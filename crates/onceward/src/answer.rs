//! What every answer carries, on every surface.

use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;
use serde_json::value::RawValue;

use crate::error::{Code, Error, Happened, Replayed};
use crate::ledger::Receipt;
use crate::record::{Effect, Record, State};

/// The contract's envelope.
#[derive(Debug, Clone, Serialize)]
pub struct Answer {
    /// Whether the operation is done.
    pub ok: bool,
    /// What this call did to the world; `unknown` where nobody can say.
    pub effect: &'static str,
    /// Why, in words that an agent reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The operation, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<OperationView>,
    /// The result, as the JSON text it came as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<RawValue>>,
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
    /// Where it really stands.
    pub state: State,
    /// The number of the newest attempt.
    pub attempt: u32,
    /// Whether nothing was run for this answer.
    pub replayed: bool,
    /// What the operation did when it was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original_effect: Option<Effect>,
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
    /// The contract's code.
    pub code: Code,
    /// In words.
    pub message: String,
    /// Whether the effect happened.
    pub happened: Happened,
    /// Whether the same call may simply be made again.
    pub retryable: bool,
    /// When, where that is worth it.
    pub retry_after_ms: Option<u64>,
    /// What takes the caller on from here.
    pub fix_command: Option<String>,
    /// Each problem, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

impl Answer {
    /// The answer to a call.
    #[must_use]
    pub fn of(result: &Result<Receipt, Error>, now_ms: i64) -> Self {
        match result {
            Ok(receipt) => Self::done(receipt, now_ms),
            Err(error) => Self::failed(error),
        }
    }

    fn done(receipt: &Receipt, now_ms: i64) -> Self {
        let record = receipt.record();
        let outcome = record.outcome.as_ref();
        let replayed = if receipt.replayed() { Replayed::Yes } else { Replayed::No };
        let reason = match replayed {
            Replayed::No => record.reason().map(str::to_owned),
            Replayed::Yes => Some(format!(
                "already done {} ago by attempt {}; nothing was run (a wanted repeat needs another occurrence)",
                span_in_words(now_ms - record.updated_ms),
                record.attempt
            )),
        };
        let mut warnings = warnings(record);
        if outcome.is_some_and(|outcome| outcome.unavailable) {
            warnings.push(
                "the result was too large to keep or could not be written as JSON: result unavailable"
                    .to_owned(),
            );
        }
        if outcome.and_then(|o| o.verified) == Some(crate::Verification::Pending) {
            warnings.push(
                "success was reported but could not be confirmed yet: `once verify` asks again".to_owned(),
            );
        }
        Self {
            ok: true,
            effect: receipt.effect().as_str(),
            reason,
            operation: Some(OperationView::of(record, record.state, replayed)),
            data: outcome.and_then(|outcome| outcome.data.clone()),
            error: None,
            warnings,
        }
    }

    /// The answer to a call that did not succeed.
    #[must_use]
    pub fn failed(error: &Error) -> Self {
        let code = error.code();
        let problems = if let Error::Invalid(invalid) = error { invalid.problems() } else { &[] };
        let replayed = if let Error::Failed { replayed, .. } = error { *replayed } else { Replayed::No };
        let happened = error.happened();
        Self {
            ok: false,
            effect: if happened == Happened::No { Effect::Noop.as_str() } else { "unknown" },
            reason: None,
            operation: error.record().map(|record| OperationView::of(record, record.state, replayed)),
            data: error.record().and_then(|record| record.outcome.as_ref()?.data.clone()),
            error: Some(ErrorView {
                code,
                message: error.to_string(),
                happened,
                retryable: error.retryable(),
                retry_after_ms: error.retry_after_ms(),
                fix_command: error.fix_command(),
                problems: if problems.len() > 1 { problems.to_vec() } else { Vec::new() },
            }),
            warnings: error.record().map(|record| warnings(record)).unwrap_or_default(),
        }
    }
}

impl OperationView {
    /// The operation of a record that really stands at `state`.
    #[must_use]
    pub fn of(record: &Record, state: State, replayed: Replayed) -> Self {
        let outcome = record.outcome.as_ref();
        Self {
            id: record.id.to_string(),
            scope: record.scope.clone(),
            name: record.name.clone(),
            key: record.key.text.clone(),
            state,
            attempt: record.attempt,
            replayed: replayed == Replayed::Yes,
            original_effect: outcome.and_then(|outcome| outcome.effect),
            verified: outcome.and_then(|outcome| outcome.verified).map(crate::Verification::as_str),
            expires_at: record.due_ms.map(rfc3339),
        }
    }
}

fn warnings(record: &Record) -> Vec<String> {
    use crate::DoubleEffect;
    match record.detail.double_effect {
        None => Vec::new(),
        Some(DoubleEffect::Possible) => vec!["double_effect: two attempts may have had an effect".to_owned()],
        Some(DoubleEffect::Certain) => vec!["double_effect: two attempts had an effect".to_owned()],
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
