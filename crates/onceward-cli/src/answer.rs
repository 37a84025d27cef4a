//! What is printed: data on stdout, talk on stderr.
#![expect(clippy::print_stderr, reason = "the one place that prints")]

use std::io::{IsTerminal, Write};
use std::sync::Arc;

use anstyle::{AnsiColor, Style};
use onceward::answer::{Answer, ErrorView};
use onceward::{Code, State, Surface};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::exit::CommandError;
use crate::table::{self, Cell, Column, Fit};

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const GREEN: Style = AnsiColor::Green.on_default();
pub(crate) const YELLOW: Style = AnsiColor::Yellow.on_default();
pub(crate) const RED: Style = AnsiColor::Red.on_default();
pub(crate) const CYAN: Style = AnsiColor::Cyan.on_default();

/// Text in a style.
pub(crate) fn styled(style: Style, text: impl std::fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// The colour of a state: green is certain and good, yellow wants a look.
pub(crate) fn state_style(state: State) -> Style {
    match state {
        State::Done => GREEN,
        State::InDoubt => YELLOW.bold(),
        State::Failed => RED,
        State::Running | State::Staged => CYAN,
        State::Cancelled | State::Expired => DIM,
    }
}

/// Prints data.
pub(crate) fn data(text: &str) {
    // A reader that has gone away is no reason to fail: the ledger has been written.
    drop(writeln!(anstream::stdout(), "{text}"));
}

/// Prints data as it is.
pub(crate) fn bytes(data: &[u8]) {
    let mut out = std::io::stdout();
    // As above: `once completions bash | head` is no error.
    drop(out.write_all(data).and_then(|()| out.flush()));
}

/// Prints a JSON document as data.
pub(crate) fn json(document: &impl Serialize) {
    match serde_json::to_string(document) {
        Ok(text) => drop(writeln!(std::io::stdout(), "{text}")),
        Err(error) => talk(&format!("once: cannot write the answer as JSON: {error}")),
    }
}

/// Says something to the person, or to the agent that reads stderr.
pub(crate) fn talk(text: &str) {
    drop(writeln!(anstream::stderr(), "{text}"));
}

/// Prints what was asked for with `--help` or `--version`.
pub(crate) fn talk_to_stdout(text: &str) {
    drop(write!(anstream::stdout(), "{text}"));
}

/// Prints an answer as JSON; `unread` is told if it cannot be written.
pub(crate) fn json_to(document: &impl Serialize, unread: impl FnOnce()) {
    let text = serde_json::to_string(document).unwrap_or_default();
    let mut out = std::io::stdout();
    if writeln!(out, "{text}").and_then(|()| out.flush()).is_err() {
        unread();
    }
}

/// A success of a command that is not about one call: its data in the envelope, or as text.
pub(crate) fn success(
    json_wanted: bool,
    effect: &'static str,
    document: &impl Serialize,
    text: impl FnOnce() -> String,
) {
    success_with(json_wanted, effect, document, Vec::new(), text);
}

/// The same, with something that a program should know besides. The text says it in its own place.
pub(crate) fn success_with(
    json_wanted: bool,
    effect: &'static str,
    document: &impl Serialize,
    warnings: Vec<String>,
    text: impl FnOnce() -> String,
) {
    if json_wanted {
        json(&Answer { data: raw(document), warnings, ..Answer::plain(effect) });
    } else {
        let text = text();
        if !text.is_empty() {
            data(&text);
        }
    }
}

/// There was nothing to do, and why.
pub(crate) fn nothing_to_do(
    json_wanted: bool,
    effect: &'static str,
    document: Option<&impl Serialize>,
    reason: &str,
    warnings: Vec<String>,
) {
    if json_wanted {
        let data = document.and_then(raw);
        json(&Answer { data, reason: Some(reason.to_owned()), warnings, ..Answer::plain(effect) });
    } else {
        data(&format!("{effect}: {reason}"));
        warnings.iter().for_each(|warning| talk(&format!("once: warning: {warning}")));
    }
}

/// What was found is not as it should be: the findings as data, and an error that agrees with the exit code.
pub(crate) fn unsound(
    json_wanted: bool,
    problem: String,
    document: &impl Serialize,
    text: impl FnOnce() -> String,
) {
    incomplete(json_wanted, "noop", problem, document, text);
}

/// A command that did some of its work and not all: what it did as data and effect, and what is missing as an error.
pub(crate) fn incomplete(
    json_wanted: bool,
    effect: &'static str,
    problem: String,
    document: &impl Serialize,
    text: impl FnOnce() -> String,
) {
    if json_wanted {
        json(&Answer { effect, data: raw(document), ..outside(Code::Failed, problem) });
    } else {
        data(&text());
    }
}

fn raw(document: &impl Serialize) -> Option<Arc<RawValue>> {
    serde_json::value::to_raw_value(document).ok().map(Arc::from)
}

/// An error of a command that is not about one call: it claims nothing about an effect.
pub(crate) fn error(error: &CommandError, json_wanted: bool, surface: &Surface) {
    let answer = match error {
        CommandError::Ledger(error) => Answer::not_done(error, surface),
        CommandError::Outside(message) => outside(Code::Failed, message.clone()),
    };
    if json_wanted {
        json(&answer);
    } else if let Some(view) = &answer.error {
        talk(&error_text(view, answer.ran));
    }
}

/// The command line was not understood.
pub(crate) fn usage(error: &clap::Error, json_wanted: bool) {
    if json_wanted {
        let message = error.render().to_string();
        let message = message.trim().trim_start_matches("error: ").to_owned();
        json(&outside(Code::InvalidInput, message));
    } else {
        drop(write!(anstream::stderr(), "{}", error.render().ansi()));
    }
}

fn outside(code: Code, message: String) -> Answer {
    Answer { ok: false, error: Some(ErrorView::new(code.as_str(), message)), ..Answer::plain("noop") }
}

/// An error in words: what, whether it happened, and what to do. Several problems have a line each.
pub(crate) fn error_text(view: &ErrorView, ran: Option<bool>) -> String {
    let mut view = view.clone();
    if !view.problems.is_empty() {
        let problems = view.problems.iter().map(|problem| format!("\n  {problem}")).collect::<String>();
        view.message = format!("{} problems:{problems}", view.problems.len());
    }
    let lines = view.lines(ran).into_iter().enumerate().map(|(index, line)| match index {
        0 => line.replacen(&*view.code, &styled(RED.bold(), &view.code), 1),
        _ => line,
    });
    lines.map(|line| format!("once: {line}")).collect::<Vec<_>>().join("\n")
}

/// Whether a person watches stderr.
pub(crate) fn person_watches() -> bool {
    std::io::stderr().is_terminal()
}

/// Prints a line that the next one replaces, for work that takes its time.
pub(crate) fn progress(text: &str) {
    if person_watches() {
        eprint!("\r\x1b[K{text}");
        drop(std::io::stderr().flush());
    }
}

/// Takes the progress line away.
pub(crate) fn progress_over() {
    if person_watches() {
        eprint!("\r\x1b[K");
    }
}

/// A table of whole cells, as wide as it needs to be.
pub(crate) fn table(heading: &[&'static str], rows: &[Vec<(String, Style)>]) -> String {
    let columns: Vec<Column> = heading.iter().map(|title| Column { title, fit: Fit::Whole }).collect();
    let cells =
        |row: &Vec<(String, Style)>| row.iter().map(|(text, style)| Cell::new(text, *style)).collect();
    table::render(&columns, &rows.iter().map(cells).collect::<Vec<_>>(), None)
}
