//! How an operation can be taken back, and whether it was.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Class;
use crate::invalid::InvalidInput;
use crate::key::OperationId;
use crate::text::one_line;
use crate::word::Word;

/// What takes an operation back. It is stored with the intent, and its values come from the stored result.
///
/// What a ledger stores is data: a surface runs it only if the caller's own flags or trusted policy contain the same
/// text, or the caller says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compensation {
    /// What runs it.
    pub runs: CompensationKind,
    /// The command, the name of the code, or what runs it as JSON. `{path}` stands for a field of the result.
    pub text: String,
}

/// What runs a compensation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompensationKind {
    /// A shell.
    Command,
    /// The program that registered it; the text is a name in that program.
    Code,
    /// The command-line tool that ran the operation, with its own command `undo`; the text is a [`ProgramUndo`].
    Program,
    /// A tool of the same MCP server.
    Tool,
    /// A request to the same API, through the gateway.
    Request,
}

/// A command-line tool that takes its own operations back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramUndo {
    /// The name of the tool.
    pub program: String,
    /// A hash of the world in which the operation ran. It can be taken back only there.
    pub world: String,
}

impl ProgramUndo {
    /// The compensation of an operation of this tool.
    #[must_use]
    pub fn compensation(&self) -> Compensation {
        let text = serde_json::to_string(self).unwrap_or_default();
        Compensation { runs: CompensationKind::Program, text }
    }

    /// Reads the text of a compensation; `None` if it is something else, or sealed.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

impl CompensationKind {
    /// The name of the kind.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Code => "code",
            Self::Program => "program",
            Self::Tool => "tool",
            Self::Request => "request",
        }
    }
}

/// Refuses a compensation that would only read. Reads are not recorded, so it would run again with every undo, and its
/// success would not count.
///
/// # Errors
/// If the class is `read`.
pub fn check_compensation(name: &str, class: Class) -> Result<(), InvalidInput> {
    match class {
        Class::Read => Err(InvalidInput::new(format!(
            "{} is of class {class}, but a compensation changes something; use once, idempotent or keyed",
            one_line(name)
        ))),
        Class::Idempotent | Class::Keyed | Class::Probed | Class::Once => Ok(()),
    }
}

/// The mark of an operation whose effect was taken back, or is being taken back. It is written before the compensation
/// is dispatched, so no call replays a success that may be gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undone {
    /// The operation that takes it back.
    pub by: OperationId,
    /// When the mark last changed.
    pub at_ms: i64,
    /// What shows that the effect is gone.
    pub evidence: UndoEvidence,
    /// Who or what said that the compensation succeeded, if that is the evidence and it was not its own answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_by: Option<Word>,
    /// The attempt of the compensation that marked the operation last, before its dispatch; 0 if none has. An attempt
    /// that had no effect withdraws only its own mark and older ones.
    pub round: u32,
}

impl Undone {
    /// The evidence in words.
    #[must_use]
    pub fn evidence_in_words(&self) -> String {
        evidence_in_words(self.evidence, self.settled_by.as_ref())
    }
}

pub(crate) fn evidence_in_words(evidence: UndoEvidence, settled_by: Option<&impl fmt::Display>) -> String {
    match (evidence, settled_by) {
        (UndoEvidence::Probe, _) => "the probe confirms that the effect is gone".to_owned(),
        (UndoEvidence::Compensation, None) => "the compensation reported success".to_owned(),
        (UndoEvidence::Compensation, Some(who)) => {
            format!("the compensation was settled as done by {who}")
        }
        (UndoEvidence::Pending, _) => "it is not known whether the effect is gone".to_owned(),
    }
}

/// What shows that an effect is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum UndoEvidence {
    /// Nothing yet: the undo has begun, and the effect may or may not be gone.
    Pending,
    /// The compensation succeeded, by its own answer or by the word of [`Undone::settled_by`].
    Compensation,
    /// The operation's probe no longer finds the effect.
    Probe,
}

impl UndoEvidence {
    /// The name of the evidence.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Compensation => "compensation",
            Self::Probe => "probe",
        }
    }

    /// Whether the effect is known to be gone.
    #[must_use]
    pub const fn is_gone(self) -> bool {
        match self {
            Self::Pending => false,
            Self::Compensation | Self::Probe => true,
        }
    }
}
