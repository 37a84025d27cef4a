//! The stored output of an operation: byte for byte, or its beginning in an answer.

use std::sync::Arc;

use onceward::{Error, NextStep, Record, Surface};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::run::Text;
use super::run::recording::{Stream, Summary, collect, frames};
use crate::answer;

/// How much of each stream, or of a result, a JSON answer contains.
const CAP: usize = 4 * 1024;

/// How much of a result a compensation gets in a variable.
const MAX_VARIABLE: usize = 64 * 1024;

/// The beginning of the stored output, and how to read the rest.
#[derive(Serialize)]
pub(super) struct Output {
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    stdout: Text,
    stdout_bytes: u64,
    stderr: Text,
    stderr_bytes: u64,
    /// Whether this is less than what is stored.
    truncated: bool,
    /// Whether less is stored than the command wrote.
    cut: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    all: Option<String>,
}

/// The exit code of a command and the size of its output; `None` for operations that are not commands.
pub(super) fn summary(record: &Record) -> Option<Summary> {
    serde_json::from_str(record.outcome.as_ref()?.data.as_ref()?.get()).ok()
}

/// The beginning of the stored output of a command.
pub(super) fn beginning(record: &Record, surface: &Surface) -> Option<Output> {
    let summary = summary(record)?;
    let body = record.outcome.as_ref()?.body.as_deref().unwrap_or_default();
    let (out, err) = (collect(body, Stream::Out), collect(body, Stream::Err));
    let truncated = out.len() > CAP || err.len() > CAP;
    Some(Output {
        exit_code: summary.exit_code,
        stdout: capped(out).into(),
        stdout_bytes: summary.stdout_bytes,
        stderr: capped(err).into(),
        stderr_bytes: summary.stderr_bytes,
        truncated,
        cut: summary.cut,
        all: truncated.then(|| command(record, surface)),
    })
}

/// A result that is not the output of a command, if it is short enough for an answer.
pub(super) fn result(record: &Record) -> Option<Arc<RawValue>> {
    let data = record.outcome.as_ref()?.data.clone()?;
    (data.get().len() <= CAP).then_some(data)
}

/// The result of an operation: what a command printed, or the stored result itself. Empty if there is none.
pub(super) fn result_of(record: &Record) -> String {
    if summary(record).is_some() {
        return String::from_utf8(printed(record)).unwrap_or_default();
    }
    let data = record.outcome.as_ref().and_then(|outcome| outcome.data.as_ref());
    data.map(|data| data.get().to_owned()).unwrap_or_default()
}

/// The whole result as JSON for a variable, with the characters that it has; a text that is not JSON becomes a string.
/// Or why there is none: a command must not take something else for it.
pub(super) fn in_variable(record: &Record) -> Result<String, &'static str> {
    let (is_cut, text) = match summary(record) {
        Some(summary) => {
            let text = String::from_utf8(printed(record)).map_err(|_| "the result is not text")?;
            (summary.cut, text)
        }
        None => (false, result_of(record)),
    };
    if is_cut {
        return Err("less is stored than the command printed");
    }
    if text.contains(onceward::REDACTED) {
        return Err("a part of the result was redacted");
    }
    if text.contains('\0') {
        return Err("the result has a zero byte");
    }
    let is_json = serde_json::from_str::<&RawValue>(&text).is_ok();
    let json = if is_json { text.trim().to_owned() } else { Value::String(text).to_string() };
    if json.len() > MAX_VARIABLE { Err("the result is longer than 64 KiB") } else { Ok(json) }
}

/// All that a command printed on stdout. Empty if less is stored than it printed.
pub(super) fn printed(record: &Record) -> Vec<u8> {
    let whole = summary(record).is_some_and(|summary| !summary.cut);
    let body = record.outcome.as_ref().filter(|_| whole).and_then(|outcome| outcome.body.as_deref());
    collect(body.unwrap_or_default(), Stream::Out)
}

/// The command that prints everything.
pub(super) fn command(record: &Record, surface: &Surface) -> String {
    let show = surface.spell(&NextStep::Show(record.id.clone())).command.unwrap_or_default();
    format!("{show} --output")
}

/// Refuses to give an output that is sealed and could not be opened, or has gone.
pub(super) fn check_opened(record: &Arc<Record>) -> Result<(), Error> {
    Error::of_result(record).map_or(Ok(()), Err)
}

/// Writes the stored output, each stream to its own, in the original order. On a terminal it is escaped.
pub(super) fn print(record: &Record) {
    let Some(outcome) = &record.outcome else {
        return answer::talk(&format!("once: no output is stored for {}", record.id));
    };
    match (outcome.body.as_deref(), &outcome.data, summary(record)) {
        (Some(body), _, _) => {
            let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr().lock());
            for (stream, bytes) in frames(body) {
                // If the reader has closed the pipe, nothing depends on the rest.
                drop(match stream {
                    Stream::Out => answer::stored(&mut out, bytes),
                    Stream::Err => answer::stored(&mut err, bytes),
                });
            }
        }
        // A command that wrote nothing.
        (None, Some(_), Some(_)) => {}
        (None, Some(data), None) => answer::data(data.get()),
        (None, None, _) => answer::talk(&format!("once: no output is stored for {}", record.id)),
    }
    if summary(record).is_some_and(|summary| summary.cut) {
        answer::talk("once: the command wrote more than --max-output allows; this is the beginning");
    }
}

/// The beginning of some bytes, up to a limit, without half a character at its end.
fn capped(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.len() > CAP {
        let in_character = |byte: u8| byte & 0b1100_0000 == 0b1000_0000;
        let end = (CAP - 3..=CAP).rev().find(|at| !in_character(bytes[*at])).unwrap_or(CAP);
        bytes.truncate(end);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_is_cut_in_half() {
        let text = format!("a{}", "é".repeat(CAP));
        let beginning = capped(text.into_bytes());
        assert_eq!(String::from_utf8(beginning).unwrap().len(), CAP - 1);
        assert_eq!(capped(vec![0xff; CAP + 9]).len(), CAP);
        assert_eq!(capped(b"short".to_vec()), b"short");
    }
}
