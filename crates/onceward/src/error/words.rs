//! The words of errors.

use crate::barrier::Barrier;
use crate::facts::{Happened, Ran};
use crate::record::{Record, State, UndoEvidence};
use crate::text;
use crate::time::rfc3339;
use crate::word::Word;

/// The maximum length of a reason in the message of a doubt, in characters. The record keeps the full reason.
const LONGEST_REASON: usize = 110;

/// A reason on one line, shortened to leave room for the next step.
pub(crate) fn clip(reason: &str) -> String {
    let line = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = text::one_line(&line);
    let Some((end, _)) = line.char_indices().nth(LONGEST_REASON) else {
        return line.trim_end_matches('.').to_owned();
    };
    // Cut at a word boundary, unless the first word is too long.
    let kept = line[..end].rsplit_once(' ').map_or(&line[..end], |(words, _)| words);
    format!("{kept} …")
}

pub(super) fn stopped_in_words(barrier: &Barrier) -> String {
    let word = Word::clone(&barrier.word).note(barrier.word.note.as_deref().map(clip));
    Barrier::new("", word).in_words()
}

pub(super) fn what_ran(ran: Ran) -> &'static str {
    match ran {
        Ran::No => "nothing was run",
        Ran::Yes => "the attempt of this call had no effect",
    }
}

pub(super) fn still_running(record: &Record) -> String {
    let attempt = record.attempt;
    if record.state == State::InDoubt {
        format!(
            "attempt {attempt} of this operation ended in doubt, and a process that it started is still running"
        )
    } else {
        format!("attempt {attempt} of this operation is still running for another caller")
    }
}

pub(super) fn taken_back(record: &Record) -> String {
    let Some(mark) = &record.detail.undone else { return "this operation was not taken back".to_owned() };
    let by = &mark.by;
    match mark.evidence {
        UndoEvidence::Probe => {
            format!(
                "this operation was done and then taken back by {by}; its probe confirms that the effect is gone"
            )
        }
        UndoEvidence::Compensation if mark.settled_by.is_some() => {
            format!("this operation was done and then taken back by {by}; {}", mark.evidence_in_words())
        }
        UndoEvidence::Compensation => {
            format!("this operation was done and then taken back by {by}, which reported success")
        }
        UndoEvidence::Pending => {
            format!(
                "this operation was done, and {by} has begun to take it back; the effect may or may not be gone"
            )
        }
    }
}

/// Until when an operation is held, in words.
pub(crate) fn held_in_words(record: &Record) -> String {
    let until = match record.held().and_then(|held| held.until_ms) {
        // Rounded up: before that time it does not start.
        Some(until_ms) => {
            let second = until_ms.saturating_add(999).div_euclid(1_000).saturating_mul(1_000);
            format!("held until {}", rfc3339(second).replace(".000Z", "Z"))
        }
        None => "held until a person releases it".to_owned(),
    };
    format!("{until}; nothing was sent")
}

pub(super) fn how_it_ended(record: &Record) -> &'static str {
    match record.happened() {
        Happened::Yes if record.is_undone() => "the operation was done and then taken back",
        Happened::Yes => "the operation was done",
        Happened::No => "the operation had no effect",
        Happened::Unknown => "how the operation ended is no longer known",
    }
}

pub(super) fn ended_in_words(ended: &Happened) -> &'static str {
    match ended {
        Happened::Yes => "it was done",
        Happened::No => "it failed without effect",
        Happened::Unknown => "it may or may not have taken effect",
    }
}

/// Who or what settled it, if not its own attempt.
pub(super) fn settled_by(record: &Record) -> String {
    if let Some(mark) = &record.detail.undone {
        let how = if mark.evidence.is_gone() { "was taken back" } else { "is being taken back" };
        return format!(" and {how} by {}", mark.by);
    }
    let Some(outcome) = &record.outcome else { return String::new() };
    let Some(who) = &outcome.settled_by else { return String::new() };
    let why = outcome.reason().map(|why| format!(": {}", text::one_line(why))).unwrap_or_default();
    format!(", settled by {who}{why}")
}

/// Who cancelled it, and why.
pub(super) fn cancelled_in_words(record: &Record) -> String {
    let outcome = record.outcome.as_ref();
    match outcome.and_then(|outcome| outcome.settled_by.as_ref()) {
        None => "cancelled before it had any effect".to_owned(),
        Some(who) => {
            let why = who.note.as_deref().map(|why| format!(": {}", clip(why))).unwrap_or_default();
            format!("cancelled by {who}{why}")
        }
    }
}

pub(super) fn fields_that_differ(fields: &[String]) -> String {
    match fields {
        [] => "its inputs differ".to_owned(),
        [one] => format!("{} differs", text::one_line(one)),
        many => format!("{} differ", text::one_line(&many.join(", "))),
    }
}

pub(super) fn in_doubt_too(record: &Record) -> &'static str {
    if record.state == State::InDoubt { ", which is in doubt" } else { "" }
}
