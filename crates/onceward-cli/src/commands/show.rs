//! `once show`: everything recorded about one operation.

use std::process::ExitCode;
use std::sync::Arc;

use onceward::decide::seen_as;
use onceward::{
    Error, Held, Liveness, Outcome, Past, Ran, Record, State, Store, Surface, UndoEvidence, Word, WordView,
    rfc3339, span_in_words,
};
use onceward_store::Backend;
use serde::Serialize;
use serde_json::value::RawValue;

use super::listing::{self, Line, double_effect};
use super::output::{self, Output};
use super::run::recording::{Stream, collect};
use super::usage::{self, ModelAttempt};
use crate::answer;
use crate::cli::ShowArgs;
use crate::context::{Context, IfMissing};
use crate::exit::Ended;
use crate::style::{BOLD, RED, YELLOW, state_style, styled};
use crate::table::{cut, one_line};

/// How much of an output is shown beside the rest.
const FIRST_LINE: usize = 80;

#[derive(Serialize)]
struct ShownOperation<'a> {
    #[serde(flatten)]
    line: Line,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'static str>,
    /// What would run, if it is held and stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    would_run: Option<String>,
    detail: &'a onceward::Detail,
    outcome: Option<HowItEnded<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Output>,
}

/// How it ended, without long results.
#[derive(Serialize)]
struct HowItEnded<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    effect: Option<onceward::Effect>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<onceward::Verification>,
    #[serde(skip_serializing_if = "Option::is_none")]
    settled_by: Option<WordView>,
    /// Why it is certain that nothing happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    evidence: Option<&'a onceward::Evidence>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Arc<RawValue>>,
    /// The command that prints a result that is too long for this answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    all: Option<String>,
    unavailable: bool,
}

pub(super) fn run(context: &Context, args: &ShowArgs) -> Ended {
    let store = context.store(IfMissing::Fail)?;
    let ledger = onceward::Ledger::new(store.clone()).blocking();
    let id = context.operation(&ledger, &args.operation)?;
    let (record, state) = ledger.find(&id)?;
    let surface = context.surface();
    if args.output {
        output::check_opened(&record)?;
    }
    let record = record.into_readable();
    if args.output && !context.global.json {
        output::print(&record);
        return Ok(ExitCode::SUCCESS);
    }
    let owner = ledger.wait_for(owner(&store, &record));
    let shown = ShownOperation {
        line: Line::of(&record, state),
        owner,
        would_run: record.held().and_then(Held::shown).map(|shown| shown.to_string()),
        detail: &record.detail,
        outcome: record.outcome.as_ref().map(|outcome| ended(&record, outcome, &surface)),
        output: output::beginning(&record, &surface),
    };
    answer::success(context.global.json, "noop", &shown, || {
        text(&record, state, owner, ledger.clock_ms(), &surface)
    });
    Ok(ExitCode::SUCCESS)
}

fn ended<'a>(record: &Record, outcome: &'a Outcome, surface: &Surface) -> HowItEnded<'a> {
    let data = output::result(record);
    let all = (data.is_none() && outcome.data.is_some()).then(|| output::command(record, surface));
    HowItEnded {
        effect: outcome.effect,
        reason: outcome.reason.as_deref(),
        verified: outcome.verified,
        settled_by: outcome.settled_by.as_deref().map(WordView::of),
        evidence: outcome.evidence.as_ref().filter(|evidence| !evidence.is_someones_word()),
        data,
        all,
        unavailable: outcome.unavailable,
    }
}

/// Whether the owner of the newest attempt is alive, while that matters.
async fn owner(store: &Arc<dyn Backend>, record: &Record) -> Option<&'static str> {
    let owner = record.detail.owner.as_ref().filter(|_| !record.state.is_settled())?;
    Some(match Store::liveness(&**store, owner).await.ok()? {
        Liveness::Alive => "alive",
        Liveness::Gone => "gone",
        Liveness::NeverDispatched => "ended before it dispatched anything",
        Liveness::Unknown => "not visible from here",
    })
}

/// Everything recorded, as lines.
pub(super) fn text(
    record: &Record,
    state: State,
    owner: Option<&str>,
    now_ms: i64,
    surface: &Surface,
) -> String {
    let detail = &record.detail;
    let mut lines =
        vec![format!("{} {}", styled(BOLD, one_line(&record.name)), styled(state_style(state), state))];
    let mut line = |title: &str, value: String| lines.push(format!("  {title:<12} {value}"));
    let time = |ms: i64| format!("{} ({} ago)", rfc3339(ms), span_in_words(now_ms - ms));
    line("operation", record.id.to_string());
    line("scope", one_line(&record.scope));
    line("key", one_line(&record.key.text));
    for (title, value) in [
        ("command", &detail.command),
        ("folder", &detail.folder),
        ("probe", &detail.probe),
        ("check", &detail.verify),
        ("trace", &detail.trace_parent),
    ] {
        if let Some(value) = value {
            line(title, one_line(value));
        }
    }
    line("class", detail.class.to_string());
    line("attempt", format!("{} of {}", record.attempt, detail.max_attempts));
    if let Some(owner) = owner {
        let lease = detail.owner.filter(|_| owner == "not visible from here");
        let lease = lease.map(|owner| format!("; its lease ends {}", rfc3339(owner.lease_until_ms)));
        line("owner", format!("{owner}{}", lease.unwrap_or_default()));
    }
    line("created", time(record.created_ms));
    line("updated", time(record.updated_ms));
    if let Some(due_ms) = record.due_ms {
        line("expires", rfc3339(due_ms));
    }
    if let Some(held) = record.held() {
        line("held", listing::held(held));
        line("held for", span_in_words(now_ms - record.created_ms));
        if let Some(shown) = held.shown() {
            line("would run", shown.what);
            shown.with.into_iter().for_each(|with| line("", with));
        }
    }
    if let Some(word) = detail.held.as_ref().and_then(|held| held.released.as_ref()) {
        line("released", in_one_line(word));
    }
    line("replays", record.replays.to_string());
    undo_lines(record, &mut line);
    if let Some(at_ms) = detail.cancel_requested_ms {
        line("cancelled", format!("it was asked to stop {}", time(at_ms)));
    }
    if let Some(word) = &detail.cancelled_by {
        line("cancelled", in_one_line(word));
    }
    if let Some(outcome) = &record.outcome {
        how_it_ended(record, outcome, surface, &mut line);
    }
    for ModelAttempt { attempt, role, usage } in usage::attempts(record, state) {
        let (used, model) = match &usage {
            Some(usage) => (usage::in_words(usage), format!(", {}, asked by {}", usage.model, usage.layer)),
            None => ("unknown".to_owned(), String::new()),
        };
        line("tokens", format!("attempt {attempt}: {used} ({}{})", role.as_str(), one_line(&model)));
    }
    for past in &detail.history {
        line("before", past_in_words(past));
    }
    if let Some(alarm) = double_effect(record) {
        line("alarm", styled(RED.bold(), alarm));
    }
    if state == State::InDoubt {
        lines.extend(way_out(record, state, now_ms, surface));
    }
    lines.join("\n")
}

/// Who said something, when and why.
fn in_one_line(word: &Word) -> String {
    let why = word.note.as_deref().map(|why| format!(": {}", one_line(why))).unwrap_or_default();
    format!("by {word}, at {}{why}", rfc3339(word.at_ms))
}

/// What takes it back, whether that was done, and what it takes back itself.
fn undo_lines(record: &Record, line: &mut impl FnMut(&str, String)) {
    let detail = &record.detail;
    if let Some(undo) = &detail.undo {
        line("undo", format!("{}: {}", undo.runs.as_str(), one_line(&undo.text)));
    }
    if let Some(mark) = &detail.undone {
        let how = match mark.evidence {
            UndoEvidence::Probe | UndoEvidence::Compensation => mark.evidence_in_words(),
            UndoEvidence::Pending => "not finished: the effect may or may not be gone".to_owned(),
        };
        line("undone", format!("by {}, at {}: {how}", mark.by, rfc3339(mark.at_ms)));
    }
    if let Some(id) = &detail.undoes {
        line("undoes", id.to_string());
    }
}

/// What to do about a doubt, in the same words as in every other answer.
fn way_out(record: &Record, state: State, now_ms: i64, surface: &Surface) -> Vec<String> {
    let record = seen_as(Arc::new(record.clone()), state);
    let quarantine = record.detail.quarantine_until_ms.filter(|until| *until > now_ms);
    let mut lines: Vec<String> = quarantine
        .map(|until| format!("  {:<12} a probe's \"no\" counts from {}", "quarantine", rfc3339(until)))
        .into_iter()
        .collect();
    let error = Error::InDoubt { record, reason: String::new(), ran: Ran::No };
    let Some(advice) = error.next_step().map(|step| surface.spell(&step)) else { return lines };
    lines.push(format!("  {:<12} {}", "next", styled(YELLOW, &advice.say)));
    lines.extend(advice.command.iter().map(|command| format!("    {command}")));
    lines.extend(advice.options.iter().map(|choice| format!("    {}: {}", choice.found, choice.command)));
    lines
}

/// How an earlier attempt ended, and who said so.
fn past_in_words(past: &Past) -> String {
    let why = match (&past.settled_by, &past.reason) {
        (Some(word), _) => {
            let text = |before: &str, text: &Option<String>| {
                text.as_deref().map(|text| format!("{before}{}", one_line(text))).unwrap_or_default()
            };
            format!("settled by {word}{}{}", text(", ", &word.note), text("; before: ", &word.doubt))
        }
        (None, Some(reason)) => one_line(reason),
        (None, None) => "-".to_owned(),
    };
    format!("attempt {} {}: {why} ({})", past.attempt, past.ended, rfc3339(past.at_ms))
}

/// Who settled or cancelled it, when, and why.
fn said(word: &Word, line: &mut impl FnMut(&str, String)) {
    line("said by", format!("{word}, at {}", rfc3339(word.at_ms)));
    if let Some(note) = &word.note {
        line("note", one_line(note));
    }
    if let Some(doubt) = &word.doubt {
        line("doubt", format!("before that: {}", one_line(doubt)));
    }
}

fn how_it_ended(record: &Record, outcome: &Outcome, surface: &Surface, line: &mut impl FnMut(&str, String)) {
    if let Some(effect) = outcome.effect {
        line("effect", effect.to_string());
    }
    if let Some(verified) = outcome.verified {
        line("verified", verified.to_string());
    }
    if let Some(reason) = &outcome.reason {
        line("reason", one_line(reason));
    }
    match (&outcome.settled_by, &outcome.evidence) {
        (_, Some(evidence)) if !evidence.is_someones_word() => {
            line("evidence", one_line(&evidence.to_string()));
        }
        (None, None) if record.state == State::Done => {
            line("evidence", format!("the answer of attempt {}", record.attempt));
        }
        (_, Some(_) | None) => {}
    }
    if let Some(word) = &outcome.settled_by {
        said(word, line);
    }
    let Some(summary) = output::summary(record) else {
        if let Some(data) = &outcome.data {
            line("data", cut(&one_line(data.get()), FIRST_LINE));
        }
        return;
    };
    if let Some(code) = summary.exit_code {
        line("exit code", code.to_string());
    }
    let printed = outcome.body.as_deref().map(|body| collect(body, Stream::Out)).unwrap_or_default();
    let text = String::from_utf8_lossy(&printed);
    if let Some(first) = text.lines().next() {
        let whole = text.lines().count() == 1 && first.chars().count() <= FIRST_LINE;
        let rest =
            if whole { String::new() } else { format!("  (all: {})", output::command(record, surface)) };
        line("output", format!("{}{rest}", cut(&one_line(first), FIRST_LINE)));
    }
}
