//! Operations as the API shows them.

use std::collections::BTreeMap;
use std::sync::Arc;

use onceward::{Class, DoubleEffect, Happened, Ran, Record, State, WordView};
use onceward::{OperationView, rfc3339};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// An operation in a listing.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OperationSummary {
    #[serde(flatten)]
    pub(super) operation: OperationView,
    /// Whether its effect happened.
    pub(super) happened: Happened,
    /// How safe it is to repeat when it is in doubt.
    pub(super) class: Class,
    /// When it was first requested.
    pub(super) created_at: String,
    /// When it last changed.
    pub(super) updated_at: String,
    /// Why it ended as it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    /// What needs attention, for example that two attempts had an effect.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) warnings: Vec<String>,
}

/// An operation with its result and its history.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OperationDetail {
    #[serde(flatten)]
    pub(super) summary: OperationSummary,
    /// The result, as the JSON text that was reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(super) data: Option<Arc<RawValue>>,
    /// How often the result was replayed.
    pub(super) replays: u64,
    /// The most attempts that are allowed.
    pub(super) max_attempts: u32,
    /// When the operation was asked to stop, if it was and is still running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cancel_requested_at: Option<String>,
    /// Who cancelled it while it ran, if someone did. No other attempt begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cancelled_by: Option<WordView>,
    /// Attempts that have ended, oldest first.
    pub(super) history: Vec<PastAttempt>,
}

/// An attempt that has ended.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PastAttempt {
    attempt: u32,
    /// How it ended: `done`, `failed` or `in_doubt`.
    ended: State,
    at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Why it is certain that it had no effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    evidence: Option<String>,
    /// Who settled it, if not the attempt itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    settled_by: Option<WordView>,
}

/// A page of operations, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OperationList {
    pub(super) operations: Vec<OperationSummary>,
    /// Where the next page starts; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next_cursor: Option<String>,
}

/// Whether every intent is accounted for.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Report {
    /// The scope; absent if the report is about all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) scope: Option<String>,
    /// Whether nothing is running, held back or in doubt.
    pub(super) settled: bool,
    /// The number of operations.
    pub(super) total: u64,
    /// The number of operations in each state.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub(super) counts: BTreeMap<State, u64>,
    /// The newest operations that are running, held back or in doubt.
    pub(super) open: Vec<OperationSummary>,
    /// Whether there are more of them than are listed.
    pub(super) more: bool,
}

impl OperationSummary {
    pub(super) fn of(record: &Record, state: State) -> Self {
        // The view of a running record whose owner is gone says what is known now.
        let happened = match (state, record.state) {
            (State::Failed, _) => Happened::No,
            (State::InDoubt, _) => Happened::Unknown,
            (State::Expired, State::Done) => Happened::Yes,
            (State::Expired, State::Failed | State::Cancelled) => Happened::No,
            (State::Staged | State::Running | State::Done | State::Cancelled | State::Expired, _) => {
                record.happened()
            }
        };
        let view = OperationView { replayed: false, ..OperationView::of(record, state, Ran::No) };
        let warnings = match record.detail.double_effect {
            None => Vec::new(),
            Some(DoubleEffect::Possible) => {
                vec!["double_effect: two attempts may have had an effect".to_owned()]
            }
            Some(DoubleEffect::Certain) => vec!["double_effect: two attempts had an effect".to_owned()],
        };
        Self {
            operation: view,
            happened,
            class: record.detail.class,
            created_at: rfc3339(record.created_ms),
            updated_at: rfc3339(record.updated_ms),
            reason: record.reason().map(str::to_owned),
            warnings,
        }
    }
}

impl OperationDetail {
    pub(super) fn warn(&mut self, warning: &str) {
        self.summary.warnings.push(warning.to_owned());
    }

    pub(super) fn of(record: &Record, state: State) -> Self {
        let history = record.detail.history.iter().map(|past| PastAttempt {
            attempt: past.attempt,
            ended: past.ended,
            at: rfc3339(past.at_ms),
            reason: past.reason.clone(),
            evidence: past.evidence.as_ref().map(ToString::to_string),
            settled_by: past.settled_by.as_deref().map(WordView::of),
        });
        Self {
            summary: OperationSummary::of(record, state),
            data: record.outcome.as_ref().and_then(|outcome| outcome.data.clone()),
            replays: record.replays,
            max_attempts: record.detail.max_attempts,
            cancel_requested_at: record.detail.cancel_requested_ms.map(rfc3339),
            cancelled_by: record.detail.cancelled_by.as_deref().map(WordView::of),
            history: history.collect(),
        }
    }
}
