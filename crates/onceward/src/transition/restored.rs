//! How a record counts after a restore: in doubt, if it may have changed in the lost time.

use super::{later, stage};
use crate::identity::Fence;
use crate::operation::Intent;
use crate::record::{Downstream, Outcome, Record, State};

/// Why an operation is in doubt after a restore.
fn restored(fence: &Fence) -> Outcome {
    Outcome::because(Some(format!(
        "the ledger was restored at {} from a backup of {}, and what happened in between is not known",
        crate::time::rfc3339(fence.restored_ms),
        crate::time::rfc3339(fence.lost_from_ms)
    )))
}

/// A record that a restore may have taken back to an earlier state, as it counts since then: in doubt. It has the
/// version of the stored one, because nothing is written.
#[must_use]
pub fn outdated(record: &Record, fence: &Fence) -> Record {
    let mut seen = Record { state: State::InDoubt, ..record.clone() };
    seen.replace_outcome(record.state, restored(fence));
    if record.state == State::Expired || record.due_ms.is_some_and(|due_ms| due_ms <= fence.restored_ms) {
        // Its retention was over, so the doubt is about its next occurrence.
        let detail = &mut seen.detail;
        detail.attempts_before = record.attempt;
        (detail.ended, detail.undone, detail.held) = (None, None, None);
        (detail.downstream, detail.late, detail.double_effect) = (None, None, None);
    }
    seen.due_ms = None;
    // An attempt of a held operation may be among what was lost.
    seen.attempt = seen.attempt.max(seen.detail.attempts_before + 1);
    seen.detail.quarantine_until_ms = Some(later(fence.restored_ms, seen.detail.quarantine_ms));
    seen
}

/// The record of an operation that may have happened during the time that a restore lost: it is in doubt.
#[must_use]
pub fn lost(found: Option<&Record>, intent: &Intent, fence: &Fence, now_ms: i64) -> Record {
    // A request sent before the restore may still be in flight.
    let quarantine_until_ms = Some(later(now_ms, intent.terms.quarantine_ms));
    if let Some(record) = found {
        let seen = outdated(record, fence);
        let mut next = Record { outcome: seen.outcome.clone(), ..seen.next(State::InDoubt, now_ms) };
        next.detail.quarantine_until_ms = quarantine_until_ms;
        return next;
    }
    let mut record = Record { attempt: 1, outcome: Some(restored(fence)), ..stage(intent, now_ms) };
    record.state = State::InDoubt;
    record.detail.quarantine_until_ms = quarantine_until_ms;
    if intent.terms.class == crate::Class::Keyed {
        // The key was not sent before the backup was made, so the downstream honours it at least for one window after
        // that.
        let safe_until_ms = later(fence.lost_from_ms, intent.terms.downstream_window_ms);
        record.detail.downstream = Some(Downstream { key: intent.downstream_key(), safe_until_ms });
    }
    record
}
