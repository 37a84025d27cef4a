//! Output: data on stdout, messages on stderr.
#![expect(clippy::print_stderr, reason = "the one place that prints")]

use std::io::{IsTerminal, Write};
use std::sync::Arc;

use anstyle::Style;
use onceward::{Answer, Code, ErrorView, Record, Surface, text as plain};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::exit::CommandError;
use crate::style::{RED, styled};
use crate::table::{self, Cell, Column, Fit};

/// Prints data.
pub(crate) fn data(text: &str) {
    // Do not fail if the reader has closed the pipe: the ledger has been written.
    drop(writeln!(anstream::stdout(), "{}", plain::coloured(text)));
}

/// Prints data unchanged.
pub(crate) fn bytes(data: &[u8]) {
    let mut out = std::io::stdout();
    // As above: `once completions bash | head` is not an error.
    drop(out.write_all(data).and_then(|()| out.flush()));
}

/// Prints a JSON document as data.
pub(crate) fn json(document: &impl Serialize) {
    match serde_json::to_string(document) {
        Ok(text) => drop(writeln!(std::io::stdout(), "{}", plain::json(&text))),
        Err(error) => talk(&format!("once: cannot write the answer as JSON: {error}")),
    }
}

/// Prints an answer in the envelope, with its witness: an outer `once run` believes only the program that it started.
pub(crate) fn envelope(answer: &Answer) {
    json(&witnessed(answer));
}

fn witnessed(answer: &Answer) -> Answer {
    let variable = std::env::var(onceward::WITNESS).ok();
    let token = variable.zip(std::env::current_exe().ok()).and_then(|(variable, program)| {
        onceward::witness_token(&variable, nix::unistd::getppid().as_raw(), &program).map(str::to_owned)
    });
    Answer { witness: token, ..answer.clone() }
}

/// Prints a message for the person or agent that reads stderr.
pub(crate) fn talk(text: &str) {
    drop(writeln!(anstream::stderr(), "{}", plain::coloured(text)));
}

/// Prints what was asked for with `--help` or `--version`.
pub(crate) fn talk_to_stdout(text: &str) {
    drop(write!(anstream::stdout(), "{text}"));
}

/// Prints stored output: byte for byte, but escaped on a terminal so that it cannot control it.
pub(crate) fn stored(out: &mut (impl Write + IsTerminal), bytes: &[u8]) -> std::io::Result<()> {
    if out.is_terminal() {
        out.write_all(plain::lines(&String::from_utf8_lossy(bytes)).as_bytes())?;
    } else {
        out.write_all(bytes)?;
    }
    out.flush()
}

/// Prints an answer as JSON; calls `unread` if it cannot be written.
pub(crate) fn envelope_to(answer: &Answer, unread: impl FnOnce()) {
    let text = serde_json::to_string(&witnessed(answer)).unwrap_or_default();
    let mut out = std::io::stdout();
    if writeln!(out, "{}", plain::json(&text)).and_then(|()| out.flush()).is_err() {
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

/// The same, with warnings for programs. The text contains them in its own words.
pub(crate) fn success_with(
    json_wanted: bool,
    effect: &'static str,
    document: &impl Serialize,
    warnings: Vec<String>,
    text: impl FnOnce() -> String,
) {
    if json_wanted {
        envelope(&Answer { data: raw(document), warnings, ..Answer::plain(effect) });
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
        envelope(&Answer { data, reason: Some(reason.to_owned()), warnings, ..Answer::plain(effect) });
    } else {
        data(&format!("{effect}: {}", plain::one_line(reason)));
        warnings.iter().for_each(|warning| talk(&format!("once: warning: {warning}")));
    }
}

/// Reports problems: the findings as data, and an error that matches the exit code.
pub(crate) fn unsound(
    json_wanted: bool,
    problem: String,
    document: &impl Serialize,
    text: impl FnOnce() -> String,
) {
    incomplete(json_wanted, "noop", problem, document, text);
}

/// Reports partial work: what was done as data and effect, and what is missing as an error.
pub(crate) fn incomplete(
    json_wanted: bool,
    effect: &'static str,
    problem: String,
    document: &impl Serialize,
    text: impl FnOnce() -> String,
) {
    partial(json_wanted, effect, (Code::Failed, problem), document, text);
}

/// The same with another code than `FAILED`.
pub(crate) fn partial(
    json_wanted: bool,
    effect: &'static str,
    (code, problem): (Code, String),
    document: &impl Serialize,
    text: impl FnOnce() -> String,
) {
    if json_wanted {
        envelope(&Answer { effect, data: raw(document), ..outside(code, problem) });
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
        envelope(&answer);
    } else if let Some(view) = &answer.error {
        talk(&error_text(view, answer.ran));
    }
}

/// Reports that an operation is held back: as JSON, or in one sentence on stderr.
pub(crate) fn held(record: &Record, json_wanted: bool, surface: &Surface) {
    let answer = Answer::held(record, surface);
    if json_wanted {
        envelope(&answer);
    } else if let Some(reason) = &answer.reason {
        talk(&format!("once: {} [{}]", plain::one_line(reason), record.id));
    }
}

/// Reports a mistake in the command line.
pub(crate) fn usage(error: &clap::Error, json_wanted: bool) {
    if json_wanted {
        let message = plain::masked_in(&error.render().to_string()).into_owned();
        let message = message.trim().trim_start_matches("error: ").to_owned();
        envelope(&outside(Code::InvalidInput, message));
    } else {
        let text = error.render().ansi().to_string();
        drop(write!(anstream::stderr(), "{}", plain::coloured(&plain::masked_in(&text))));
    }
}

fn outside(code: Code, message: String) -> Answer {
    Answer { ok: false, error: Some(ErrorView::new(code.as_str(), message)), ..Answer::plain("noop") }
}

/// An error as text: what went wrong, whether the effect happened, and what to do. One line per problem.
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

/// Whether stderr is a terminal.
pub(crate) fn person_watches() -> bool {
    std::io::stderr().is_terminal()
}

/// Prints a progress line that the next one replaces.
pub(crate) fn progress(text: &str) {
    if person_watches() {
        eprint!("\r\x1b[K{text}");
        drop(std::io::stderr().flush());
    }
}

/// Clears the progress line.
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
