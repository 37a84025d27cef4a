//! The answer of an undo: one line for each operation, and what they add up to. Every surface gives the same one.

use serde::Serialize;

use super::{Reversal, UndoOutcome};
use crate::error::Code;
use crate::key::OperationId;
use crate::record::{Record, UndoEvidence, evidence_in_words};
use crate::text::one_line;
use crate::word::WordView;

/// What became of one operation.
#[derive(Debug, Clone, Serialize)]
pub struct UndoLine {
    /// The operation.
    pub operation: String,
    /// Its name.
    pub name: String,
    /// Its key.
    pub key: String,
    /// What the plan decided: `compensate`, `irreversible`, `in_doubt`, …
    pub reversal: &'static str,
    /// What became of it.
    pub result: UndoResult,
    /// What takes it back, or the probe that is asked first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The operation that takes it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// What shows that the effect is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<UndoEvidence>,
    /// Who or what said that the compensation succeeded, if not its own answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled_by: Option<Box<WordView>>,
    /// Why it was left alone, or why it was not taken back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The result of an undo for one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UndoResult {
    /// Dry run: its compensation would run.
    WouldUndo,
    /// Dry run: its probe would be asked.
    WouldAsk,
    /// The effect is gone.
    Undone,
    /// There was nothing to take back.
    NothingToUndo,
    /// It is held back, so there is nothing to take back yet.
    Held,
    /// The effect stands.
    Stands,
    /// It is not known whether the effect is there.
    InDoubt,
}

/// The answer of an undo.
#[derive(Debug, Clone, Serialize)]
pub struct UndoReport {
    /// The scope, if a whole one was taken back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// How many operations this undo took back.
    pub undone: usize,
    /// How many may or may not have their effect.
    pub in_doubt: usize,
    /// How many have their effect.
    pub standing: usize,
    /// Each operation, in the order of the plan.
    pub steps: Vec<UndoLine>,
}

impl UndoResult {
    const ALL: [Self; 7] = [
        Self::WouldUndo,
        Self::WouldAsk,
        Self::Undone,
        Self::InDoubt,
        Self::Stands,
        Self::Held,
        Self::NothingToUndo,
    ];

    /// The result in words.
    #[must_use]
    pub const fn in_words(self) -> &'static str {
        match self {
            Self::WouldUndo => "would undo",
            Self::WouldAsk => "would ask",
            Self::Undone => "undone",
            Self::NothingToUndo => "nothing to undo",
            Self::Held => "held",
            Self::Stands => "stands",
            Self::InDoubt => "in doubt",
        }
    }

    /// What is true of an operation that is left alone.
    #[must_use]
    pub const fn of_untouched(reversal: Reversal) -> Self {
        match reversal {
            Reversal::Compensate | Reversal::Irreversible | Reversal::Doubled | Reversal::Expired => {
                Self::Stands
            }
            Reversal::InDoubt | Reversal::Unconfirmed | Reversal::Running => Self::InDoubt,
            Reversal::Held => Self::Held,
            Reversal::AlreadyUndone | Reversal::NothingHappened | Reversal::Compensation => {
                Self::NothingToUndo
            }
        }
    }
}

impl UndoLine {
    /// The line of an operation.
    #[must_use]
    pub fn new(record: &Record, reversal: Reversal, result: UndoResult, reason: Option<String>) -> Self {
        let mark = record.detail.undone.as_ref();
        // A mark without evidence: an earlier undo has begun and may have succeeded.
        let is_pending = mark.is_some() && !record.is_undone();
        let result = if is_pending && result == UndoResult::Stands { UndoResult::InDoubt } else { result };
        Self {
            operation: record.id.to_string(),
            name: record.name.clone(),
            key: record.key.text.clone(),
            reversal: reversal.as_str(),
            result,
            command: None,
            by: mark.map(|mark| mark.by.to_string()),
            evidence: mark.map(|mark| mark.evidence),
            settled_by: mark.and_then(|mark| mark.settled_by.as_ref()).map(|word| WordView::of(word).into()),
            reason,
        }
    }

    /// The line of an operation that is left alone.
    #[must_use]
    pub fn untouched(record: &Record, reversal: Reversal, reason: impl Into<String>) -> Self {
        Self::new(record, reversal, UndoResult::of_untouched(reversal), Some(reason.into()))
    }

    /// The line of an operation whose undo has ended. `record` is the operation after that.
    #[must_use]
    pub fn ended(record: &Record, reversal: Reversal, by: &OperationId, outcome: UndoOutcome) -> Self {
        let (result, reason) = match outcome {
            UndoOutcome::Undone(_) => (UndoResult::Undone, None),
            UndoOutcome::NotUndone(why) => (UndoResult::Stands, Some(why)),
            UndoOutcome::Unconfirmed(why) | UndoOutcome::InDoubt(why) => (UndoResult::InDoubt, Some(why)),
        };
        Self { by: Some(by.to_string()), ..Self::new(record, reversal, result, reason) }
    }

    /// The same with what takes it back.
    #[must_use]
    pub fn with_command(self, command: Option<String>) -> Self {
        Self { command, ..self }
    }

    fn text(&self) -> String {
        let command =
            self.command.as_deref().map(|command| format!("  `{}`", one_line(command))).unwrap_or_default();
        let why = match (self.evidence, &self.reason) {
            (Some(evidence @ (UndoEvidence::Probe | UndoEvidence::Compensation)), _) => {
                format!("  {}", evidence_in_words(evidence, self.settled_by.as_ref()))
            }
            (Some(UndoEvidence::Pending) | None, Some(reason)) => format!("  {}", one_line(reason)),
            (Some(UndoEvidence::Pending) | None, None) => String::new(),
        };
        // A doubt about the compensation is settled with its own id.
        let by = match (self.result, &self.by) {
            (UndoResult::InDoubt, Some(by)) => format!("  (taken back by {by})"),
            _ => String::new(),
        };
        format!(
            "  {:<15} {}  {}{command}{why}{by}",
            self.result.in_words(),
            one_line(&self.name),
            self.operation
        )
    }
}

impl UndoReport {
    /// What the lines add up to. `scope` is the one that was taken back as a whole.
    #[must_use]
    pub fn new(scope: Option<String>, steps: Vec<UndoLine>) -> Self {
        let count = |result: UndoResult| steps.iter().filter(|step| step.result == result).count();
        Self {
            undone: count(UndoResult::Undone),
            in_doubt: count(UndoResult::InDoubt),
            standing: count(UndoResult::Stands),
            scope,
            steps,
        }
    }

    /// The effect of the undo.
    #[must_use]
    pub const fn effect(&self) -> &'static str {
        if self.undone > 0 { "updated" } else { "noop" }
    }

    /// The effect of a dry run.
    #[must_use]
    pub fn would_effect(&self) -> &'static str {
        let would = |step: &UndoLine| matches!(step.result, UndoResult::WouldUndo | UndoResult::WouldAsk);
        if self.steps.iter().any(would) { "would_update" } else { "would_noop" }
    }

    /// Why the undo is not a success: something stands, or is in doubt.
    #[must_use]
    pub fn problem(&self) -> Option<(Code, String)> {
        let code = match (self.in_doubt, self.standing) {
            (0, 0) => return None,
            (0, _) => Code::Failed,
            (_, _) => Code::InDoubt,
        };
        Some((code, format!("{} not taken back, {} in doubt", self.standing, self.in_doubt)))
    }

    /// The counts in words: `2 undone, 1 stands`.
    #[must_use]
    pub fn counts(&self) -> String {
        let counts = UndoResult::ALL.into_iter().filter_map(|result| {
            let count = self.steps.iter().filter(|step| step.result == result).count();
            (count > 0).then(|| format!("{count} {}", result.in_words()))
        });
        let counts = counts.collect::<Vec<_>>().join(", ");
        if counts.is_empty() { "nothing to undo".to_owned() } else { counts }
    }

    /// A line for each operation. In a whole scope, those with nothing to undo are left out.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let is_shown = |step: &&UndoLine| self.scope.is_none() || step.result != UndoResult::NothingToUndo;
        self.steps.iter().filter(is_shown).map(UndoLine::text).collect()
    }
}
