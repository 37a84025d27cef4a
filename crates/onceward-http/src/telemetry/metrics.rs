//! What is counted, in the text format that Prometheus reads.
//!
//! Labels have few values, all of them fixed here: a caller cannot add one.

use std::sync::Arc;
use std::time::Duration;

use onceward::event::Fate;
use onceward::{Code, Error, Ran, Receipt};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Upper bounds of the latency histogram, in seconds: from a replay out of memory to a call that took a minute.
const SECONDS: [f64; 14] =
    [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0];

/// A part of this crate that makes calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallSurface {
    /// The ledger API.
    Api,
    /// The gateway.
    Gateway,
    /// [`crate::layer::IdempotencyLayer`].
    Layer,
    /// Deliveries of the webhook inbox.
    Inbox,
}

impl CallSurface {
    /// The value of the label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Gateway => "gateway",
            Self::Layer => "layer",
            Self::Inbox => "inbox",
        }
    }
}

/// What the ledger did with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Decision {
    /// It was carried out.
    Executed,
    /// It got the stored result.
    Replayed,
    /// It was refused because of what the ledger knows about the operation.
    Refused,
    /// It was refused for its own sake: invalid, or the ledger could not be used.
    Rejected,
}

impl Decision {
    /// The decision that a call got.
    #[must_use]
    pub fn of(result: &Result<Receipt, Error>) -> Self {
        match result {
            Ok(receipt) if receipt.replayed() => Self::Replayed,
            Ok(_) => Self::Executed,
            Err(error) if error.ran() == Ran::Yes => Self::Executed,
            Err(error) => match error.code() {
                Code::InvalidInput
                | Code::KeyMissing
                | Code::NotFound
                | Code::LedgerUnavailable
                | Code::LedgerReplaced => Self::Rejected,
                Code::WrongState
                | Code::InProgress
                | Code::Held
                | Code::KeyExpired
                | Code::Cancelled
                | Code::Undone
                | Code::Stopped
                | Code::BudgetExhausted
                | Code::KeyReused
                | Code::Failed
                | Code::Timeout
                | Code::InDoubt
                | Code::Unverified
                | Code::ResultUnavailable
                | _ => Self::Refused,
            },
        }
    }

    /// The value of the label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Executed => "executed",
            Self::Replayed => "replayed",
            Self::Refused => "refused",
            Self::Rejected => "rejected",
        }
    }
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The operation is done.
    Done,
    /// It certainly had no effect.
    Failed,
    /// It is unknown whether it had an effect.
    InDoubt,
    /// Nothing was decided about it: it is still running, or the call was refused.
    None,
}

impl Outcome {
    /// The outcome of a call.
    #[must_use]
    pub fn of(result: &Result<Receipt, Error>) -> Self {
        match result.as_ref().map_err(Error::code) {
            Ok(_) | Err(Code::ResultUnavailable) => Self::Done,
            Err(Code::Failed) => Self::Failed,
            Err(Code::InDoubt | Code::Timeout | Code::Unverified) => Self::InDoubt,
            Err(
                Code::InvalidInput
                | Code::KeyMissing
                | Code::NotFound
                | Code::WrongState
                | Code::InProgress
                | Code::Held
                | Code::KeyExpired
                | Code::Cancelled
                | Code::Undone
                | Code::Stopped
                | Code::BudgetExhausted
                | Code::KeyReused
                | Code::LedgerUnavailable
                | Code::LedgerReplaced
                | _,
            ) => Self::None,
        }
    }

    /// The value of the label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::InDoubt => "in_doubt",
            Self::None => "none",
        }
    }
}

macro_rules! label_values {
    ($($value:ident),*) => {$(
        impl EncodeLabelValue for $value {
            fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
                EncodeLabelValue::encode(&self.as_str(), encoder)
            }
        }
    )*};
}

label_values!(CallSurface, Decision, Outcome);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BySurface {
    surface: CallSurface,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByOutcome {
    surface: CallSurface,
    outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByReason {
    surface: CallSurface,
    reason: &'static str,
}

/// What became of a request to the webhook inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// A new event was recorded.
    Accepted,
    /// All its events were recorded before.
    Duplicate,
    /// The content was recorded before, under another id.
    Replay,
    /// A handshake was answered.
    Handshake,
    /// It is not authentic, for this reason.
    Rejected(&'static str),
    /// It could not be recorded; the answer asks the sender to try again.
    Unavailable,
}

impl Arrived {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Duplicate => "duplicate",
            Self::Replay => "suspected_replay",
            Self::Handshake => "handshake",
            Self::Rejected(_) => "rejected",
            Self::Unavailable => "unavailable",
        }
    }
}

/// How the delivery of an event to a handler ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivered {
    /// The handler has it.
    Done,
    /// Its attempts are spent.
    Dead,
    /// It is unknown whether the handler has it, and its class forbids another attempt.
    InDoubt,
    /// It was cancelled.
    Cancelled,
    /// The event was forgotten or has expired.
    Forgotten,
}

impl Delivered {
    pub(crate) const fn of(fate: Fate) -> Self {
        match fate {
            Fate::Handled => Self::Done,
            Fate::Refused => Self::Cancelled,
            Fate::Dead => Self::Dead,
            Fate::InDoubt => Self::InDoubt,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Dead => "dead",
            Self::InDoubt => "in_doubt",
            Self::Cancelled => "cancelled",
            Self::Forgotten => "forgotten",
        }
    }
}

/// The sources are those of the configuration: a caller cannot add one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BySource {
    source: String,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByRejection {
    source: String,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfSource {
    source: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByDecision {
    surface: CallSurface,
    decision: Decision,
    outcome: Outcome,
}

/// Counters and histograms of calls. Cheap to clone; clones count together.
///
/// ```
/// use std::time::Duration;
/// use onceward_http::telemetry::{CallSurface, Decision, Metrics, Outcome};
///
/// let metrics = Metrics::new();
/// metrics.call_ended(CallSurface::Layer, Decision::Replayed, Outcome::Done, Duration::from_millis(2));
/// assert!(metrics.text().contains("onceward_replays_total{surface=\"layer\"} 1"));
/// ```
#[derive(Debug, Clone)]
pub struct Metrics {
    all: Arc<All>,
}

#[derive(Debug)]
struct All {
    registry: Registry,
    attempts: Family<ByOutcome, Counter>,
    replays: Family<BySurface, Counter>,
    prevented: Family<ByReason, Counter>,
    doubts: Family<BySurface, Counter>,
    budget: Family<BySurface, Counter>,
    duration: Family<ByDecision, Histogram, fn() -> Histogram>,
    in_doubt: Gauge<i64>,
    running: Gauge<i64>,
    ledger_up: Gauge<i64>,
    arrivals: Family<BySource, Counter>,
    rejections: Family<ByRejection, Counter>,
    accepting: Family<BySource, Histogram, fn() -> Histogram>,
    deliveries: Family<BySource, Counter>,
    backlog: Family<OfSource, Gauge<i64>>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Metrics that start at zero.
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("onceward");
        let all = All {
            attempts: Family::default(),
            replays: Family::default(),
            prevented: Family::default(),
            doubts: Family::default(),
            budget: Family::default(),
            duration: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            in_doubt: Gauge::default(),
            running: Gauge::default(),
            ledger_up: Gauge::default(),
            arrivals: Family::default(),
            rejections: Family::default(),
            accepting: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            deliveries: Family::default(),
            backlog: Family::default(),
            registry: Registry::default(),
        };
        registry.register("attempts", "Attempts that ended, by outcome", all.attempts.clone());
        registry.register("replays", "Calls that got a stored result", all.replays.clone());
        let help = "Calls that would have run again without the ledger";
        registry.register("duplicates_prevented", help, all.prevented.clone());
        registry.register("doubts", "Attempts that ended in doubt", all.doubts.clone());
        registry.register(
            "budget_refusals",
            "Calls refused because the attempts are spent",
            all.budget.clone(),
        );
        let help = "Time of calls, in seconds";
        registry.register("call_duration_seconds", help, all.duration.clone());
        registry.register("operations_in_doubt", "Operations in doubt in the ledger", all.in_doubt.clone());
        registry.register("operations_running", "Operations running in the ledger", all.running.clone());
        registry.register("ledger_up", "Whether the ledger can be read", all.ledger_up.clone());
        registry.register("inbox_requests", "Requests to the webhook inbox, by result", all.arrivals.clone());
        let help = "Requests to the webhook inbox that are not authentic, by reason";
        registry.register("inbox_rejections", help, all.rejections.clone());
        let help = "Time until requests to the webhook inbox were answered, in seconds";
        registry.register("inbox_request_duration_seconds", help, all.accepting.clone());
        let help = "Deliveries of events that ended, by how";
        registry.register("inbox_deliveries", help, all.deliveries.clone());
        let help = "Events that this server is delivering";
        registry.register("inbox_backlog", help, all.backlog.clone());
        Self { all: Arc::new(All { registry, ..all }) }
    }

    /// Counts a call that ended: its attempt or replay, the duplicate it prevented, and its time.
    pub fn call_ended(&self, surface: CallSurface, decision: Decision, outcome: Outcome, elapsed: Duration) {
        match decision {
            Decision::Executed => {
                self.all.attempts.get_or_create(&ByOutcome { surface, outcome }).inc();
                if outcome == Outcome::InDoubt {
                    self.doubt(surface);
                }
            }
            Decision::Replayed => {
                self.all.replays.get_or_create(&BySurface { surface }).inc();
                self.prevented(surface, "replayed");
            }
            Decision::Refused | Decision::Rejected => {}
        }
        let labels = ByDecision { surface, decision, outcome };
        self.all.duration.get_or_create(&labels).observe(elapsed.as_secs_f64());
    }

    /// Counts the result of a call.
    pub fn result(&self, surface: CallSurface, result: &Result<Receipt, Error>, elapsed: Duration) {
        let decision = Decision::of(result);
        self.call_ended(surface, decision, Outcome::of(result), elapsed);
        if let (Decision::Refused, Err(error)) = (decision, result) {
            match error.code() {
                Code::InProgress => self.prevented(surface, "in_progress"),
                Code::InDoubt | Code::Timeout | Code::Unverified => self.prevented(surface, "in_doubt"),
                Code::KeyExpired | Code::ResultUnavailable => self.prevented(surface, "result_gone"),
                Code::Failed => self.prevented(surface, "failure_replayed"),
                Code::BudgetExhausted => self.budget_refused(surface),
                // These are other requests, or requests that must not run: no duplicates.
                Code::KeyReused
                | Code::Held
                | Code::Cancelled
                | Code::Undone
                | Code::Stopped
                | Code::WrongState
                | Code::InvalidInput
                | Code::KeyMissing
                | Code::NotFound
                | Code::LedgerUnavailable
                | Code::LedgerReplaced
                | _ => {}
            }
        }
    }

    /// Counts a request to the webhook inbox.
    pub(crate) fn arrived(&self, source: &str, arrived: Arrived, elapsed: Duration) {
        let labels = BySource { source: source.to_owned(), result: arrived.as_str() };
        self.all.arrivals.get_or_create(&labels).inc();
        self.all.accepting.get_or_create(&labels).observe(elapsed.as_secs_f64());
        if let Arrived::Rejected(reason) = arrived {
            self.all.rejections.get_or_create(&ByRejection { source: labels.source, reason }).inc();
        }
    }

    /// Counts a delivery of the webhook inbox that ended.
    pub(crate) fn delivered(&self, source: &str, how: Delivered) {
        let labels = BySource { source: source.to_owned(), result: how.as_str() };
        self.all.deliveries.get_or_create(&labels).inc();
    }

    /// Sets how many events of a source are being delivered.
    pub(crate) fn backlog(&self, source: &str, events: usize) {
        let labels = OfSource { source: source.to_owned() };
        self.all.backlog.get_or_create(&labels).set(i64::try_from(events).unwrap_or(i64::MAX));
    }

    /// Counts an attempt that ended in doubt outside [`Metrics::call_ended`].
    pub fn doubt(&self, surface: CallSurface) {
        self.all.doubts.get_or_create(&BySurface { surface }).inc();
    }

    /// Counts a call that was refused because its attempts are spent.
    pub fn budget_refused(&self, surface: CallSurface) {
        self.all.budget.get_or_create(&BySurface { surface }).inc();
    }

    fn prevented(&self, surface: CallSurface, reason: &'static str) {
        self.all.prevented.get_or_create(&ByReason { surface, reason }).inc();
    }

    /// Sets what the ledger holds now; `None` if it cannot be read.
    pub(crate) fn ledger(&self, found: Option<(u64, u64)>) {
        self.all.ledger_up.set(i64::from(found.is_some()));
        if let Some((in_doubt, running)) = found {
            self.all.in_doubt.set(i64::try_from(in_doubt).unwrap_or(i64::MAX));
            self.all.running.set(i64::try_from(running).unwrap_or(i64::MAX));
        }
    }

    /// All metrics in the text format of OpenMetrics.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        match encode(&mut text, &self.all.registry) {
            // Writing to a string does not fail.
            Ok(()) | Err(_) => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_is_counted_where_it_belongs() {
        let metrics = Metrics::new();
        let time = Duration::from_millis(3);
        metrics.call_ended(CallSurface::Layer, Decision::Executed, Outcome::Done, time);
        metrics.call_ended(CallSurface::Layer, Decision::Executed, Outcome::InDoubt, time);
        metrics.call_ended(CallSurface::Gateway, Decision::Replayed, Outcome::Done, time);
        metrics.budget_refused(CallSurface::Gateway);
        let text = metrics.text();
        for line in [
            "onceward_attempts_total{surface=\"layer\",outcome=\"done\"} 1",
            "onceward_attempts_total{surface=\"layer\",outcome=\"in_doubt\"} 1",
            "onceward_doubts_total{surface=\"layer\"} 1",
            "onceward_replays_total{surface=\"gateway\"} 1",
            "onceward_duplicates_prevented_total{surface=\"gateway\",reason=\"replayed\"} 1",
            "onceward_budget_refusals_total{surface=\"gateway\"} 1",
            "onceward_call_duration_seconds_count{surface=\"layer\",decision=\"executed\",outcome=\"done\"} 1",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
