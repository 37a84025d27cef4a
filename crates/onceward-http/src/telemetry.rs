//! Reports calls: as spans, as events and as metrics.
//!
//! - `metrics`: what is counted. `otel`: traces over OTLP (a feature).
//!
//! This crate only emits `tracing` spans and events; the program decides where they go. No span, event or metric
//! contains the value of a header, a body, a key or a name that a caller chose: an operation is known by its id.

mod metrics;
#[cfg(feature = "otel")]
pub mod otel;

use std::time::Duration;

use onceward::{Code, Error, OperationId, Receipt, Record};
use tracing::{Span, field};

pub(crate) use metrics::{Arrived, Delivered};
pub use metrics::{CallSurface, Decision, Metrics, Outcome};

/// The span of one call. `trace_parent` is the caller's, as it was sent: one that is not valid is ignored.
///
/// The span is named after the operation it contains when [`operation`] is called in it, and its result is added by
/// [`ended`].
#[must_use]
pub fn call_span(surface: CallSurface, trace_parent: Option<&str>) -> Span {
    let span = tracing::info_span!(
        "onceward.call",
        "onceward.surface" = surface.as_str(),
        "onceward.operation" = field::Empty,
        "onceward.attempt" = field::Empty,
        "onceward.decision" = field::Empty,
        "onceward.outcome" = field::Empty,
        "onceward.code" = field::Empty,
        "onceward.replayed" = field::Empty,
        "gen_ai.operation.name" = field::Empty,
        "gen_ai.tool.name" = field::Empty,
        "gen_ai.tool.call.id" = field::Empty,
    );
    #[cfg(feature = "otel")]
    otel::continue_trace(&span, trace_parent);
    #[cfg(not(feature = "otel"))]
    let _ = trace_parent;
    span
}

/// Adds an agent's tool call to the current span: the name of the tool, and the id of the call if there is one.
pub fn tool(name: &str, call: Option<&str>) {
    let span = Span::current();
    span.record("gen_ai.operation.name", "execute_tool");
    span.record("gen_ai.tool.name", name);
    if let Some(call) = call {
        span.record("gen_ai.tool.call.id", call);
    }
}

/// Adds the operation to the current span.
pub fn operation(id: &OperationId) {
    Span::current().record("onceward.operation", id.as_str());
}

/// The `traceparent` to pass on to an upstream: of the current span if it is exported, otherwise the caller's.
#[must_use]
pub fn onward(trace_parent: Option<&str>) -> Option<String> {
    #[cfg(feature = "otel")]
    if let Some(own) = otel::trace_parent(&Span::current()) {
        return Some(own);
    }
    trace_parent.map(str::to_owned)
}

/// Reports how a call ended: to the current span, as an event, and to the metrics.
pub fn ended(
    surface: CallSurface,
    result: &Result<Receipt, Error>,
    elapsed: Duration,
    metrics: Option<&Metrics>,
) {
    let record = match result {
        Ok(receipt) => Some(receipt.record()),
        Err(error) => error.record(),
    };
    let code = result.as_ref().err().map(Error::code);
    tell(surface, (Decision::of(result), Outcome::of(result)), record.map(|record| &**record), code, elapsed);
    if let Some(metrics) = metrics {
        metrics.result(surface, result, elapsed);
    }
}

/// Reports how an attempt ended that its caller carried out: to the current span, as an event, and to the metrics.
pub(crate) fn attempt_ended(
    surface: CallSurface,
    record: &Record,
    outcome: Outcome,
    elapsed: Duration,
    metrics: &Metrics,
) {
    tell(surface, (Decision::Executed, outcome), Some(record), None, elapsed);
    metrics.call_ended(surface, Decision::Executed, outcome, elapsed);
}

fn tell(
    surface: CallSurface,
    (decision, outcome): (Decision, Outcome),
    record: Option<&Record>,
    code: Option<Code>,
    elapsed: Duration,
) {
    let span = Span::current();
    span.record("onceward.decision", decision.as_str());
    span.record("onceward.outcome", outcome.as_str());
    span.record("onceward.replayed", decision == Decision::Replayed);
    if let Some(record) = record {
        span.record("onceward.operation", record.id.as_str());
        span.record("onceward.attempt", record.attempt);
    }
    let is_unavailable = matches!(code, Some(Code::LedgerUnavailable | Code::LedgerReplaced));
    let code = code.map(Code::as_str);
    if let Some(code) = code {
        span.record("onceward.code", code);
    }
    macro_rules! told {
        ($level:ident) => {
            tracing::$level!(
                surface = surface.as_str(),
                operation = record.map(|record| record.id.as_str()),
                attempt = record.map(|record| record.attempt),
                decision = decision.as_str(),
                outcome = outcome.as_str(),
                code,
                elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
                "call ended"
            )
        };
    }
    // What an operator must act on is a warning; a normal end is a debug message.
    match (decision, outcome) {
        (_, Outcome::InDoubt) => told!(warn),
        (Decision::Rejected, _) if is_unavailable => told!(warn),
        (Decision::Executed | Decision::Replayed, Outcome::Done) => told!(debug),
        (_, Outcome::Done | Outcome::Failed | Outcome::None) => told!(info),
    }
}
