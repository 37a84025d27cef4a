//! Operations in lists: one line of JSON, or one row of a table, for each.

use anstyle::Style;
use onceward::sealed::shown;
use onceward::{
    Blocking, DoubleEffect, Error, Filter, Held, KeyOrigin, Listed, OperationView, Ran, Record, State,
    Verification, Word, rfc3339,
};
use serde::Serialize;

use super::usage::{self, ModelAttempt};
use crate::style::{DIM, RED, state_style};
use crate::table::{self, Cell, Column, Fit};

/// How much of an id a table shows: enough to identify one operation among billions.
const SHORT_ID: usize = "op_".len() + 8;
/// How much of a derived key a table shows.
const SHORT_KEY: usize = 12;

/// The operations that the filter lets through, newest first, in a scope if one is given. The gateway separates the
/// callers of a scope, so several stored scopes can be that one.
pub(super) fn in_scope(
    ledger: &Blocking,
    filter: Filter,
    scope: Option<&str>,
) -> Result<Vec<(Listed, State)>, Error> {
    let Some(scope) = scope else { return ledger.list(&filter) };
    let mut filter = Filter { scope_prefix: Some(scope.to_owned()), ..filter };
    let mut found = Vec::new();
    loop {
        let page = ledger.list(&filter)?;
        let is_last = page.len() < filter.limit;
        filter.before = page.last().map(|(listed, _)| listed.cursor);
        found.extend(
            page.into_iter().filter(|(listed, _)| onceward::is_in_scope(&listed.record.scope, scope)),
        );
        if is_last || found.len() >= filter.limit {
            found.truncate(filter.limit);
            return Ok(found);
        }
    }
}

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
    /// The attempts of a model call.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    model_attempts: Vec<ModelAttempt>,
}

impl Line {
    /// The operation's id.
    pub(super) fn id(&self) -> &str {
        &self.operation.id
    }

    pub(super) fn of(record: &Record, state: State) -> Self {
        Self {
            operation: OperationView { replayed: false, ..OperationView::of(record, state, Ran::No) },
            class: record.detail.class,
            created_at: rfc3339(record.created_ms),
            updated_at: rfc3339(record.updated_ms),
            replays: record.replays,
            command: record.detail.command.as_deref().map(|command| shown(command).into_owned()),
            reason: record.reason().map(str::to_owned),
            double_effect: record.detail.double_effect,
            model_attempts: usage::attempts(record, state),
        }
    }
}

/// What the heading already says, so that the table leaves it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heading {
    /// Nothing.
    None,
    /// The scope.
    Scope,
    /// The scope and the state.
    ScopeAndState,
}

/// Operations as a table that fits the terminal.
pub(super) fn table(listed: &[(&Record, State)], heading: Heading, now_ms: i64) -> String {
    let scopes = heading == Heading::None && listed.iter().any(|(record, _)| record.scope != "default");
    let reasons = listed.iter().any(|(record, state)| !reason(record, *state).is_empty());
    let deciders = heading == Heading::ScopeAndState
        && listed.iter().any(|(record, state)| *state == State::Failed || settled_by(record).is_some());
    let tokens = heading == Heading::ScopeAndState
        && listed.iter().any(|(record, state)| !usage::attempts(record, *state).is_empty());
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
    if tokens {
        add("TOKENS", Fit::Optional, &|record, state| plain(usage::per_attempt(record, state)));
    }
    if deciders {
        add("SAID BY", Fit::Cut(8), &|record, _| {
            plain(settled_by(record).map_or_else(|| "the attempt".to_owned(), ToString::to_string))
        });
    }
    if reasons {
        add("REASON", Fit::Cut(10), &|record, state| {
            let style = if record.detail.double_effect.is_some() { RED } else { Style::new() };
            (reason(record, state), style)
        });
    }
    add("ID", Fit::Whole, &|record, _| (short_id(record), DIM));
    table::render(&columns, &rows, table::width())
}

/// The first characters of the id, which `once show` and `once settle` take.
pub(super) fn short_id(record: &Record) -> String {
    record.id.as_str().chars().take(SHORT_ID).collect()
}

/// A derived key means nothing to a reader: its beginning is enough.
pub(super) fn key(record: &Record) -> String {
    match record.key.origin {
        KeyOrigin::Given => record.key.text.clone(),
        KeyOrigin::Derived => table::cut(&record.key.text, SHORT_KEY),
    }
}

/// The command if it is stored, otherwise the name.
pub(super) fn what(record: &Record) -> String {
    let name = &record.name;
    match record.detail.command.as_deref().map(shown) {
        None => name.clone(),
        Some(command) => {
            let program = command.split_whitespace().next().unwrap_or_default();
            let named = program.rsplit('/').next() != Some(name.as_str());
            if named { format!("{name}: {command}") } else { command.into_owned() }
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

fn settled_by(record: &Record) -> Option<&Word> {
    record.outcome.as_ref()?.settled_by.as_deref()
}

/// Why the operation needs attention.
pub(super) fn reason(record: &Record, state: State) -> String {
    let outcome = record.outcome.as_ref();
    let mut parts: Vec<&str> = double_effect(record).into_iter().collect();
    match state {
        State::InDoubt => {
            let lost = "the attempt was interrupted before it reported back";
            parts.push(record.reason().unwrap_or(lost));
        }
        State::Failed => parts.extend(record.reason()),
        State::Done | State::Expired if record.is_undone() => parts.push("taken back"),
        State::Done if record.detail.undone.is_some() => {
            parts.push("an undo has begun; the effect may or may not be gone");
        }
        State::Done if outcome.and_then(|outcome| outcome.verified) == Some(Verification::Pending) => {
            parts.push("success is not confirmed yet");
        }
        State::Running if record.detail.cancel_requested_ms.is_some() => parts.push("asked to stop"),
        State::Staged => return record.held().map(held).unwrap_or_default(),
        State::Cancelled => parts.extend(record.reason()),
        State::Running | State::Done | State::Expired => {}
    }
    parts.join("; ")
}

/// Until when and by whom an operation is held, in words.
pub(super) fn held(held: &Held) -> String {
    match (&held.released, held.until_ms) {
        (Some(who), _) => format!("released by {who}, not started yet"),
        (None, Some(until_ms)) => format!("held until {} by the {}", rfc3339(until_ms), held.by.as_str()),
        (None, None) => format!("held by the {} until it is released", held.by.as_str()),
    }
}

/// A double effect in words.
pub(super) fn double_effect(record: &Record) -> Option<&'static str> {
    record.detail.double_effect.map(|alarm| match alarm {
        DoubleEffect::Possible => "double effect possible: two attempts may have had an effect",
        DoubleEffect::Certain => "double effect certain: two attempts had an effect",
    })
}

/// The age in its largest unit.
pub(super) fn age(ms: i64) -> String {
    let seconds = ms.max(0) / 1000;
    match seconds {
        0 => "now".to_owned(),
        1..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}
