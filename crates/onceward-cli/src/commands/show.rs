//! `once show`: one operation with all that is known of it.

use std::process::ExitCode;

use onceward::answer::{rfc3339, span_in_words};
use onceward::{Outcome, Record, State};
use serde::Serialize;

use super::ls::Line;
use super::run::recording::{Stream, collect};
use crate::answer::{self, BOLD, RED, YELLOW, state_style, styled};
use crate::cli::OperationArg;
use crate::context::{Context, Missing};
use crate::exit::Ended;

#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    line: Line,
    detail: &'a onceward::Detail,
    outcome: Option<&'a onceward::Outcome>,
}

pub(super) fn run(context: &Context, args: &OperationArg) -> Ended {
    let id = context.operation(&args.operation)?;
    let ledger = context.ledger(Missing::Refuse)?;
    let (record, state) = ledger.wait_for(ledger.ledger().find(&id))?;
    let shown =
        Shown { line: Line::of(&record, state), detail: &record.detail, outcome: record.outcome.as_ref() };
    answer::success(context.global.json, "noop", &shown, || text(&record, state, ledger.ledger().clock_ms()));
    Ok(ExitCode::SUCCESS)
}

/// All that is known, in lines.
pub(super) fn text(record: &Record, state: State, now_ms: i64) -> String {
    let mut lines = vec![format!("{} {}", styled(BOLD, &record.name), styled(state_style(state), state))];
    let mut line = |title: &str, value: String| lines.push(format!("  {title:<12} {value}"));
    line("operation", record.id.to_string());
    line("scope", record.scope.clone());
    line("key", record.key.text.clone());
    line("class", record.detail.class.to_string());
    line("attempt", format!("{} of {}", record.attempt, record.detail.max_attempts));
    let time = |ms: i64| format!("{} ({} ago)", rfc3339(ms), span_in_words(now_ms - ms));
    line("created", time(record.created_ms));
    line("updated", time(record.updated_ms));
    if let Some(due_ms) = record.due_ms {
        line("expires", rfc3339(due_ms));
    }
    line("replays", record.replays.to_string());
    if let Some(outcome) = &record.outcome {
        how_it_ended(outcome, &mut line);
    }
    for past in &record.detail.history {
        let reason = past.reason.as_deref().unwrap_or("-");
        line(
            "before",
            format!("attempt {} {}: {reason} ({})", past.attempt, past.ended, rfc3339(past.at_ms)),
        );
    }
    if record.detail.double_effect.is_some() {
        line("alarm", styled(RED.bold(), "double_effect: more than one attempt may have had an effect"));
    }
    if state == State::InDoubt {
        let next = format!("once settle {} --as 'done|failed'", record.id);
        line("next", styled(YELLOW, next));
    }
    lines.join("\n")
}

fn how_it_ended(outcome: &Outcome, line: &mut impl FnMut(&str, String)) {
    if let Some(effect) = outcome.effect {
        line("effect", effect.to_string());
    }
    if let Some(verified) = outcome.verified {
        line("verified", verified.to_string());
    }
    if let Some(reason) = &outcome.reason {
        line("reason", reason.clone());
    }
    if let Some(by) = &outcome.settled_by {
        line("settled by", by.clone());
    }
    if let Some(data) = &outcome.data {
        line("data", data.get().to_owned());
    }
    let printed = outcome.body.as_deref().map(|body| collect(body, Stream::Out)).unwrap_or_default();
    if let Some(first) = String::from_utf8_lossy(&printed).lines().next() {
        line("output", first.chars().take(80).collect());
    }
}
