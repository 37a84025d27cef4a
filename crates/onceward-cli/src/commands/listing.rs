//! Operations in lists: one line of JSON, or one row of a table, for each.

use std::sync::Arc;

use anstyle::Style;
use onceward::answer::{OperationView, rfc3339};
use onceward::{DoubleEffect, KeyOrigin, Ran, Record, State, Verification};
use serde::Serialize;

use crate::answer::{DIM, RED, state_style};
use crate::table::{self, Cell, Column, Fit};

/// How much of an id a table shows: enough to name one operation of billions.
const SHORT_ID: usize = "op_".len() + 8;
/// How much a table shows of a derived key, which no one chose.
const SHORT_KEY: usize = 12;

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
    command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    double_effect: Option<DoubleEffect>,
}

impl Line {
    pub(super) fn of(record: &Record, state: State) -> Self {
        Self {
            operation: OperationView { replayed: false, ..OperationView::of(record, state, Ran::No) },
            class: record.detail.class,
            created_at: rfc3339(record.created_ms),
            updated_at: rfc3339(record.updated_ms),
            replays: record.replays,
            command: record.detail.command.clone(),
            reason: record.reason().map(str::to_owned),
            double_effect: record.detail.double_effect,
        }
    }
}

/// The record with its real state, for errors that tell it: an attempt whose owner is gone may still be written as
/// running.
pub(super) fn standing(record: Arc<Record>, state: State) -> Arc<Record> {
    match record.state {
        State::Running => Arc::new(Record { state, ..Record::clone(&record) }),
        State::Staged | State::Done | State::Failed | State::InDoubt | State::Cancelled | State::Expired => {
            record
        }
    }
}

/// What a table leaves out because its heading says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heading {
    /// Nothing is said.
    None,
    /// The scope is.
    Scope,
    /// The scope and the state are.
    ScopeAndState,
}

/// Operations as a table that fits the terminal.
pub(super) fn table(listed: &[(&Record, State)], heading: Heading, now_ms: i64) -> String {
    let scopes = heading == Heading::None && listed.iter().any(|(record, _)| record.scope != "default");
    let reasons = listed.iter().any(|(record, state)| !reason(record, *state).is_empty());
    let deciders = heading == Heading::ScopeAndState
        && listed.iter().any(|(record, state)| *state == State::Failed || settled_by(record).is_some());
    let mut columns: Vec<Column> = Vec::new();
    let mut rows: Vec<Vec<Cell>> = vec![Vec::new(); listed.len()];
    let mut add = |title: &'static str, fit: Fit, cell: &dyn Fn(&Record, State) -> (String, Style)| {
        columns.push(Column { title, fit });
        for (row, (record, state)) in rows.iter_mut().zip(listed) {
            let (text, style) = cell(record, *state);
            row.push(Cell::new(text, style));
        }
    };
    let plain = |text: String| (text, Style::new());
    if heading != Heading::ScopeAndState {
        add("STATE", Fit::Whole, &|_, state| (state.to_string(), state_style(state)));
    }
    add("KEY", Fit::Cut(6), &|record, _| plain(key(record)));
    add("WHAT", Fit::Cut(6), &|record, _| plain(what(record)));
    if scopes {
        add("SCOPE", Fit::Optional, &|record, _| plain(record.scope.clone()));
    }
    add("EFFECT", Fit::Optional, &|record, state| plain(effect(record, state).to_owned()));
    add("AGE", Fit::Optional, &|record, _| (age(now_ms - record.created_ms), DIM));
    if deciders {
        add("SAID BY", Fit::Cut(8), &|record, _| {
            plain(settled_by(record).unwrap_or("the attempt").to_owned())
        });
    }
    if reasons {
        add("REASON", Fit::Cut(10), &|record, state| {
            let style = if record.detail.double_effect.is_some() { RED } else { Style::new() };
            (reason(record, state), style)
        });
    }
    add("ID", Fit::Whole, &|record, _| (record.id.as_str().chars().take(SHORT_ID).collect(), DIM));
    table::render(&columns, &rows, table::width())
}

/// A derived key says nothing to a reader: its beginning is enough.
fn key(record: &Record) -> String {
    match record.key.origin {
        KeyOrigin::Given => record.key.text.clone(),
        KeyOrigin::Derived => table::cut(&record.key.text, SHORT_KEY),
    }
}

/// The command where it is stored, else the name.
fn what(record: &Record) -> String {
    let name = &record.name;
    match &record.detail.command {
        None => name.clone(),
        Some(command) => {
            let program = command.split_whitespace().next().unwrap_or_default();
            let named = program.rsplit('/').next() != Some(name.as_str());
            if named { format!("{name}: {command}") } else { command.clone() }
        }
    }
}

fn effect(record: &Record, state: State) -> &'static str {
    let written = record.outcome.as_ref().and_then(|outcome| outcome.effect);
    match state {
        State::Done | State::Expired => written.map_or("-", onceward::Effect::as_str),
        State::Failed | State::Cancelled | State::Staged => "none",
        State::InDoubt | State::Running => "unknown",
    }
}

fn settled_by(record: &Record) -> Option<&str> {
    record.outcome.as_ref()?.settled_by.as_deref()
}

/// Why a reader should look at it.
fn reason(record: &Record, state: State) -> String {
    let outcome = record.outcome.as_ref();
    let mut parts: Vec<&str> = double_effect(record).into_iter().collect();
    match state {
        State::InDoubt => {
            let lost = "the attempt was interrupted before it reported back";
            parts.push(record.reason().unwrap_or(lost));
        }
        State::Failed => parts.extend(record.reason()),
        State::Done if outcome.and_then(|outcome| outcome.verified) == Some(Verification::Pending) => {
            parts.push("success is not confirmed yet");
        }
        State::Running if record.detail.cancel_requested_ms.is_some() => parts.push("asked to stop"),
        State::Staged | State::Running | State::Done | State::Cancelled | State::Expired => {}
    }
    parts.join("; ")
}

/// The alarm in words: `possible` and `certain` are not the same.
pub(super) fn double_effect(record: &Record) -> Option<&'static str> {
    record.detail.double_effect.map(|alarm| match alarm {
        DoubleEffect::Possible => "double effect possible: two attempts may have had an effect",
        DoubleEffect::Certain => "double effect certain: two attempts had an effect",
    })
}

/// How long ago, in its largest unit.
fn age(ms: i64) -> String {
    let seconds = ms.max(0) / 1000;
    match seconds {
        0 => "now".to_owned(),
        1..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}
