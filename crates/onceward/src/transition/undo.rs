//! How taking an operation back changes its record.

use crate::decide::effective_state;
use crate::facts::Liveness;
use crate::key::OperationId;
use crate::record::{Record, State, UndoEvidence, Undone};
use crate::word::Word;

/// The record with the mark that `by` begins to take it back. `None` if it is not done, or if it is taken back already
/// or by another operation.
#[must_use]
pub fn begin_undo(record: &Record, by: &OperationId, now_ms: i64) -> Option<Record> {
    if effective_state(record, Liveness::Gone, now_ms) != State::Done {
        return None;
    }
    let round = match &record.detail.undone {
        None => 0,
        Some(mark) if mark.by == *by && !mark.evidence.is_gone() => mark.round,
        Some(_) => return None,
    };
    let evidence = UndoEvidence::Pending;
    let mark = Undone { by: by.clone(), at_ms: now_ms, evidence, settled_by: None, round };
    Some(record.marked(Some(mark)))
}

/// The record with the mark of an attempt of the compensation, which has begun and has not been dispatched. An earlier
/// attempt that had no effect may have withdrawn the mark since this undo began. `None` as for [`begin_undo`].
#[must_use]
pub fn begin_undo_attempt(record: &Record, by: &OperationId, attempt: u32, now_ms: i64) -> Option<Record> {
    let mut next = begin_undo(record, by, now_ms)?;
    if let Some(mark) = &mut next.detail.undone {
        mark.round = attempt;
    }
    Some(next)
}

/// The record with the evidence that its effect is gone. `settled_by` is who said that the compensation succeeded, if
/// not its own answer. Evidence is never lowered. `None` if `by` has not begun to take it back.
#[must_use]
pub fn undone(
    record: &Record,
    by: &OperationId,
    (evidence, settled_by): (UndoEvidence, Option<Word>),
    now_ms: i64,
) -> Option<Record> {
    let mark = record.detail.undone.as_ref().filter(|mark| mark.by == *by)?;
    if evidence <= mark.evidence {
        return Some(record.clone());
    }
    let settled_by = settled_by.filter(|_| evidence == UndoEvidence::Compensation).map(Word::without_texts);
    Some(record.marked(Some(Undone { evidence, settled_by, at_ms: now_ms, ..mark.clone() })))
}

/// The record without the mark, because the attempts of the compensation up to this one had no effect. Unchanged if a
/// later attempt has marked it.
#[must_use]
pub fn withdraw_undo(record: &Record, by: &OperationId, attempt: u32) -> Record {
    match &record.detail.undone {
        Some(mark) if mark.by == *by && mark.round <= attempt && !mark.evidence.is_gone() => {
            record.marked(None)
        }
        Some(_) | None => record.clone(),
    }
}

impl Record {
    /// The next version with this mark. Everything else stays, including the time of the operation's own end.
    fn marked(&self, undone: Option<Undone>) -> Self {
        let mut next = Self { due_ms: self.due_ms, ..self.next(self.state, self.updated_ms) };
        next.detail.undone = undone;
        next
    }
}
