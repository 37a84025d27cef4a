//! What a record is. Names and scopes are data: a record's kind is a field of its own.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::invalid::InvalidInput;

/// What a record is. No `match` over kinds uses `_`, so a new kind must be handled everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// One logical side effect.
    #[default]
    Operation,
    /// One more key of an operation. A lookup by this key finds the operation.
    Alias,
    /// An event of a webhook inbox. Its deliveries are operations.
    Event,
    /// Binds the content of an event to one event, so that the same content under another id is noticed.
    Guard,
    /// What processes leave for each other: who leads, what a scope continues, parts of an answer.
    Marker,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 5] = [Self::Operation, Self::Alias, Self::Event, Self::Guard, Self::Marker];
    /// The kinds that lists show and counts count.
    pub const LISTED: [Self; 2] = [Self::Operation, Self::Event];

    /// The name of the kind.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Operation => "operation",
            Self::Alias => "alias",
            Self::Event => "event",
            Self::Guard => "guard",
            Self::Marker => "marker",
        }
    }

    /// Whether lists show such a record.
    #[must_use]
    pub const fn is_listed(self) -> bool {
        match self {
            Self::Operation | Self::Event => true,
            Self::Alias | Self::Guard | Self::Marker => false,
        }
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(crate) fn is_operation(&self) -> bool {
        *self == Self::Operation
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Kind {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        let known = Self::ALL.into_iter().find(|kind| kind.as_str() == text);
        known.ok_or_else(|| InvalidInput::new(format!("{text:?} is not a kind of record")))
    }
}
