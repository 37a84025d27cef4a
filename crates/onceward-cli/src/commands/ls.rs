//! `once ls`: operations, newest first.

use std::process::ExitCode;
use std::sync::Arc;

use onceward::answer::{OperationView, rfc3339, span_in_words};
use onceward::{Filter, Ran, Record, State};
use serde::Serialize;

use crate::answer::{self, DIM, state_style};
use crate::cli::ListArgs;
use crate::context::{Context, Missing};
use crate::exit::Ended;

/// An operation in a listing.
#[derive(Serialize)]
pub(super) struct Line {
    #[serde(flatten)]
    operation: OperationView,
    class: onceward::Class,
    created_at: String,
    updated_at: String,
    replays: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    double_effect: Option<onceward::DoubleEffect>,
}

impl Line {
    pub(super) fn of(record: &Record, state: State) -> Self {
        Self {
            operation: OperationView { replayed: false, ..OperationView::of(record, state, Ran::No) },
            class: record.detail.class,
            created_at: rfc3339(record.created_ms),
            updated_at: rfc3339(record.updated_ms),
            replays: record.replays,
            reason: record.reason().map(str::to_owned),
            double_effect: record.detail.double_effect,
        }
    }
}

/// The record with where it really stands, for errors that tell it: of an attempt whose owner is gone nobody has
/// written down yet that it is in doubt.
pub(super) fn standing(record: Arc<Record>, state: State) -> Arc<Record> {
    match record.state {
        State::Running => Arc::new(Record { state, ..Record::clone(&record) }),
        State::Staged | State::Done | State::Failed | State::InDoubt | State::Cancelled | State::Expired => {
            record
        }
    }
}

pub(super) fn run(context: &Context, args: &ListArgs) -> Ended {
    let ledger = context.ledger(Missing::Refuse)?;
    let filter = Filter {
        scope: args.scope.clone(),
        name: args.name.clone(),
        states: args.state.clone(),
        limit: args.limit as usize,
        ..Filter::default()
    };
    let listed = ledger.wait_for(ledger.ledger().list(&filter))?;
    let now_ms = ledger.ledger().clock_ms();
    let lines: Vec<Line> = listed.iter().map(|(listed, state)| Line::of(&listed.record, *state)).collect();
    answer::success(context.global.json, "noop", &lines, || {
        let rows: Vec<_> = listed.iter().map(|(listed, state)| row(&listed.record, *state, now_ms)).collect();
        let table =
            answer::table(&["STATE", "NAME", "SCOPE", "ATTEMPT", "REPLAYS", "AGO", "OPERATION"], &rows);
        match listed.len() {
            0 => "no operations".to_owned(),
            full if full == filter.limit => format!("{table}\n(the newest {full}; -n shows more)"),
            _ => table,
        }
    });
    Ok(ExitCode::SUCCESS)
}

pub(super) fn row(record: &Record, state: State, now_ms: i64) -> Vec<(String, anstyle::Style)> {
    let plain = anstyle::Style::new();
    vec![
        (state.to_string(), state_style(state)),
        (record.name.clone(), plain),
        (record.scope.clone(), plain),
        (record.attempt.to_string(), plain),
        (record.replays.to_string(), plain),
        (span_in_words(now_ms - record.updated_ms), DIM),
        (record.id.to_string(), DIM),
    ]
}
