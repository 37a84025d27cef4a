//! A scope that continues another one from one of its operations on. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::invalid::InvalidInput;
use crate::key::OperationId;
use crate::record::{Record, State};

/// Where a branch begins: after this operation of another scope.
///
/// ```
/// use onceward::BranchPoint;
///
/// let point = BranchPoint::parse("run-7@op_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")?;
/// assert_eq!(point.scope, "run-7");
/// # Ok::<(), onceward::InvalidInput>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BranchPoint {
    /// The scope that is continued.
    pub scope: String,
    /// The last operation that belongs to both branches.
    #[serde(rename = "alias_of")]
    pub operation: OperationId,
}

impl BranchPoint {
    /// The point after this operation of the scope.
    pub fn new(scope: impl Into<String>, operation: OperationId) -> Self {
        Self { scope: scope.into(), operation }
    }

    /// Reads `SCOPE@OPERATION`.
    ///
    /// # Errors
    /// If the text has another form.
    pub fn parse(text: &str) -> Result<Self, InvalidInput> {
        let Some((scope, operation)) = text.rsplit_once('@').filter(|(scope, _)| !scope.is_empty()) else {
            return Err(InvalidInput::new(format!(
                "{text:?} does not say where a branch begins; write SCOPE@OPERATION, for example run-7@op_…"
            )));
        };
        Ok(Self::new(scope, OperationId::parse(operation)?))
    }
}

impl fmt::Display for BranchPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.scope, self.operation)
    }
}

/// What a scope continues, as its ledger records it: in a marker, which lists and counts leave out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Branch {
    #[serde(flatten)]
    pub(crate) point: BranchPoint,
    /// When the operation at the branch point was first asked for.
    pub(crate) at_ms: i64,
    /// When the branch was recorded. What was taken back later had been inherited.
    #[serde(skip)]
    pub(crate) made_ms: i64,
}

impl Branch {
    /// Whether an operation of the continued scope lies before the branch point. One that was asked for in the same
    /// millisecond does: its result is replayed rather than its effect repeated.
    pub(crate) fn includes(&self, record: &Record) -> bool {
        record.created_ms <= self.at_ms
    }

    /// Whether a call on the new branch refers to an operation of the old one. It does if that operation lies before
    /// the branch point and had an effect, or may have one. One that had been taken back when the branch was made is
    /// done again; one that was taken back later is not: its caller on the branch may have its result.
    pub(crate) fn inherits(&self, record: &Record, state: State) -> bool {
        let taken_back = record.detail.undone.as_ref().filter(|mark| mark.evidence.is_gone());
        let stood = taken_back.is_none_or(|mark| mark.at_ms > self.made_ms);
        let had_effect = match state {
            State::Done | State::Running | State::InDoubt => true,
            State::Expired => match record.detail.ended {
                Some(State::Failed | State::Cancelled) => false,
                Some(State::Staged | State::Running | State::Done | State::InDoubt | State::Expired)
                | None => true,
            },
            State::Staged | State::Failed | State::Cancelled => false,
        };
        self.includes(record) && had_effect && stood
    }
}
