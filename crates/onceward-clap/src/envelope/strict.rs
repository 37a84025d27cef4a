//! The envelope of the CLI Agent Spec: five keys, the effect in `data`, everything else in `meta`.

use std::collections::BTreeMap;

use onceward::{Choice, Effect, Happened, OperationView};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{Envelope, raw};

/// `{ok, data, error, warnings, meta}`.
#[derive(Serialize)]
pub(crate) struct Strict<'a> {
    ok: bool,
    data: Option<Box<RawValue>>,
    error: Option<Detail<'a>>,
    warnings: Vec<Warning<'a>>,
    meta: Full<'a>,
}

/// What every answer says of the call itself.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Meta {
    pub(crate) exit_code: u8,
    pub(crate) duration_ms: u64,
    pub(crate) request_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) command: Option<String>,
    pub(crate) tool_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) items_emitted: Option<u64>,
}

#[derive(Serialize)]
struct Full<'a> {
    #[serde(flatten)]
    meta: Meta,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dry_run: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_hit: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    original_effect: Option<Effect>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<&'a OperationView>,
}

#[derive(Serialize)]
struct Detail<'a> {
    code: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    happened: Option<Happened>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ran: Option<bool>,
    retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_strategy: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix_required: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix_command: Option<&'a str>,
    #[serde(skip_serializing_if = "<[Choice]>::is_empty")]
    options: &'a [Choice],
    phase: &'static str,
}

#[derive(Serialize)]
struct Warning<'a> {
    code: &'static str,
    message: &'a str,
}

impl<'a> Strict<'a> {
    pub(crate) fn of(envelope: &'a Envelope, meta: Meta) -> Self {
        let answer = &envelope.answer;
        let operation = answer.operation.as_ref();
        let dry = answer.effect.starts_with("would_");
        Self {
            ok: answer.ok,
            data: data(envelope),
            error: answer.error.as_ref().map(|error| Detail {
                code: &error.code,
                message: &error.message,
                happened: error.happened,
                ran: answer.ran,
                retryable: error.retryable,
                retry_after_ms: error.retry_after_ms.filter(|_| error.retryable),
                retry_strategy: error.retryable.then_some("exponential_backoff"),
                fix_required: (!error.retryable).then(|| error.next.as_deref().unwrap_or(&error.message)),
                fix_command: error.fix_command.as_deref(),
                options: &error.options,
                phase: if envelope.exit == 2 { "validation" } else { "execution" },
            }),
            warnings: answer.warnings.iter().map(|text| warning(text)).collect(),
            meta: Full {
                meta,
                timeout_ms: (envelope.timeout_ms > 0).then_some(envelope.timeout_ms),
                dry_run: dry.then_some(true),
                idempotency_hit: operation.filter(|_| !dry).map(|operation| operation.replayed),
                original_effect: operation.and_then(|operation| operation.original_effect),
                reason: answer.reason.as_deref(),
                operation,
            },
        }
    }
}

/// A warning begins with its code where it has one: `double_effect: …`.
fn warning(text: &str) -> Warning<'_> {
    match text.split_once(": ") {
        Some(("double_effect", message)) => Warning { code: "DOUBLE_EFFECT", message },
        Some(_) | None => Warning { code: "NOTICE", message: text },
    }
}

/// The data as an object with the effect in it, each part as the JSON text it came as.
fn data(envelope: &Envelope) -> Option<Box<RawValue>> {
    let given = envelope.answer.data.as_deref();
    let object = given.and_then(|data| serde_json::from_str::<BTreeMap<String, &RawValue>>(data.get()).ok());
    let array = given.is_some_and(|data| data.get().trim_start().starts_with('['));
    let with_effect = !envelope.reads && (envelope.answer.ok || !envelope.changes().is_empty());
    if !with_effect && (object.is_some() || array || given.is_none()) {
        return given.map(ToOwned::to_owned);
    }
    let mut parts = object.unwrap_or_default();
    if let (true, Some(result)) = (parts.is_empty(), given.filter(|data| data.get() != "{}")) {
        parts.insert("result".to_owned(), result);
    }
    let effect = raw(&preview_effect(envelope));
    let changes = raw(envelope.changes());
    let affected =
        raw(&serde_json::json!({"count": envelope.changes().len(), "changes": envelope.changes()}));
    if with_effect {
        parts.insert("effect".to_owned(), effect.as_deref()?);
    }
    if !envelope.changes().is_empty() {
        parts.insert("changes".to_owned(), changes.as_deref()?);
        parts.insert("would_affect".to_owned(), affected.as_deref()?);
    }
    serde_json::value::to_raw_value(&parts).ok()
}

/// The effect; for something destructive that was not confirmed, the one it would have had.
fn preview_effect(envelope: &Envelope) -> &'static str {
    let answer = &envelope.answer;
    if answer.ok || answer.decision.is_some() { answer.effect } else { Effect::WouldDelete.as_str() }
}
