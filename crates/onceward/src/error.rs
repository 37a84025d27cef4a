//! What can go wrong, and for each: did the effect happen?

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::record::{Class, Record, State};
use crate::store::StoreError;

/// Input that was refused before anything ran. All its problems are listed at once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct InvalidInput {
    problems: Vec<String>,
}

impl InvalidInput {
    /// One problem.
    pub fn new(problem: impl Into<String>) -> Self {
        Self { problems: vec![problem.into()] }
    }

    /// Every problem that was found, or `None` when there is none.
    #[must_use]
    pub fn all(problems: Vec<String>) -> Option<Self> {
        (!problems.is_empty()).then_some(Self { problems })
    }

    /// The problems, in the order in which they were found.
    #[must_use]
    pub fn problems(&self) -> &[String] {
        &self.problems
    }
}

impl fmt::Display for InvalidInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problems.join("; "))
    }
}

/// Whether the effect happened, as far as can be said for certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Happened {
    /// It did.
    Yes,
    /// It did not.
    No,
    /// It cannot be said.
    Unknown,
}

/// The contract's error codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Code {
    /// Nothing was run; all problems are listed.
    InvalidInput,
    /// A key is required and none was given.
    KeyMissing,
    /// No such operation.
    NotFound,
    /// The operation is not in a state in which that can be done to it.
    WrongState,
    /// Another caller is executing it and the wait is over.
    InProgress,
    /// The result was kept for its time, and that is over.
    KeyExpired,
    /// It was cancelled.
    Cancelled,
    /// Enough attempts were paid for.
    BudgetExhausted,
    /// The same key with other inputs.
    KeyReused,
    /// It failed, for certain without effect.
    Failed,
    /// It took longer than it was given.
    Timeout,
    /// The outcome is not known.
    InDoubt,
    /// Success was reported and the check refuted it.
    Unverified,
    /// The intent could not be written, so nothing ran.
    LedgerUnavailable,
}

impl Code {
    /// Every code, for documentation and for tests that must not forget one.
    pub const ALL: [Self; 14] = [
        Self::InvalidInput,
        Self::KeyMissing,
        Self::NotFound,
        Self::WrongState,
        Self::InProgress,
        Self::KeyExpired,
        Self::Cancelled,
        Self::BudgetExhausted,
        Self::KeyReused,
        Self::Failed,
        Self::Timeout,
        Self::InDoubt,
        Self::Unverified,
        Self::LedgerUnavailable,
    ];

    /// The exit status of a command that ends with this code.
    #[must_use]
    pub const fn exit(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::InvalidInput | Self::KeyMissing => 2,
            Self::InProgress | Self::KeyExpired | Self::Cancelled | Self::BudgetExhausted => 4,
            Self::NotFound => 5,
            Self::KeyReused | Self::WrongState => 6,
            Self::Timeout => 10,
            Self::LedgerUnavailable => 12,
            Self::InDoubt | Self::Unverified => 79,
        }
    }

    /// The HTTP status. Where a blind retry must not come it is one that no SDK retries by itself.
    #[must_use]
    pub const fn http(self) -> u16 {
        match self {
            Self::InvalidInput | Self::KeyMissing => 400,
            Self::NotFound => 404,
            Self::InProgress => 409,
            Self::KeyExpired | Self::Cancelled => 410,
            Self::KeyReused | Self::WrongState => 422,
            Self::BudgetExhausted | Self::Timeout | Self::InDoubt | Self::Unverified => 424,
            Self::Failed => 502,
            Self::LedgerUnavailable => 503,
        }
    }

    /// What this code alone says of the effect.
    #[must_use]
    pub const fn happened(self) -> Happened {
        match self {
            Self::InvalidInput
            | Self::KeyMissing
            | Self::NotFound
            | Self::WrongState
            | Self::KeyExpired
            | Self::Cancelled
            | Self::BudgetExhausted
            | Self::KeyReused
            | Self::Failed
            | Self::LedgerUnavailable => Happened::No,
            Self::InProgress | Self::Timeout | Self::InDoubt | Self::Unverified => Happened::Unknown,
        }
    }

    /// Whether the same call may simply be made again. Implies that nothing happened.
    #[must_use]
    pub const fn retryable(self) -> bool {
        match self {
            Self::Failed | Self::LedgerUnavailable => true,
            Self::InvalidInput
            | Self::KeyMissing
            | Self::NotFound
            | Self::WrongState
            | Self::InProgress
            | Self::KeyExpired
            | Self::Cancelled
            | Self::BudgetExhausted
            | Self::KeyReused
            | Self::Timeout
            | Self::InDoubt
            | Self::Unverified => false,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Why an operation was not done, not replayed, or not found.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The input was refused.
    #[error("{0}")]
    Invalid(#[from] InvalidInput),
    /// A key is required and none was given.
    #[error("the operation {name:?} needs a key and none was given; give one that names this very action")]
    KeyMissing {
        /// What was to be done.
        name: String,
    },
    /// No operation of that id.
    #[error("no operation {id} in this ledger")]
    NotFound {
        /// What was asked for.
        id: String,
    },
    /// Not possible in the state it is in.
    #[error("{action} is not possible: the operation is {}", .record.state)]
    WrongState {
        /// What was asked for.
        action: &'static str,
        /// The operation as it is.
        record: Arc<Record>,
    },
    /// Another caller is executing it.
    #[error("another caller is executing attempt {} of this operation", .record.attempt)]
    InProgress {
        /// The operation as it is.
        record: Arc<Record>,
        /// When to ask again.
        retry_after_ms: u64,
    },
    /// The retention is over.
    #[error("the result of this key was kept for its time and that is over; nothing was run")]
    KeyExpired {
        /// The tombstone.
        record: Arc<Record>,
    },
    /// It was cancelled.
    #[error("this operation was cancelled before it had any effect; nothing was run")]
    Cancelled {
        /// The operation as it is.
        record: Arc<Record>,
    },
    /// Enough attempts were paid for.
    #[error("{} attempts were made and the budget allows no more; nothing was run", .record.attempt)]
    BudgetExhausted {
        /// The operation as it is.
        record: Arc<Record>,
    },
    /// The same key with other inputs.
    #[error("this key was used with other inputs ({}); nothing was run", fields_that_differ(.fields))]
    KeyReused {
        /// The operation as it is.
        record: Arc<Record>,
        /// The fields that differ. Their values are not kept, so they are not named.
        fields: Vec<String>,
    },
    /// It failed for certain.
    #[error("{reason}")]
    Failed {
        /// The operation as it is.
        record: Arc<Record>,
        /// What the attempt said.
        reason: String,
        /// Whether this is the stored failure of an earlier attempt.
        replayed: Replayed,
    },
    /// The outcome is not known.
    #[error("{reason}")]
    InDoubt {
        /// The operation as it is.
        record: Arc<Record>,
        /// Why it is not known.
        reason: String,
    },
    /// It took longer than it was given, and what it did is not known.
    #[error("{reason}")]
    Timeout {
        /// The operation as it is.
        record: Arc<Record>,
        /// How long it was given.
        reason: String,
    },
    /// Success was reported and the check refuted it.
    #[error("success was reported, but the check refuted it: {reason}")]
    Unverified {
        /// The operation as it is.
        record: Arc<Record>,
        /// What the check said.
        reason: String,
    },
    /// The ledger could not be read or written.
    #[error("the ledger cannot be used: {0}; nothing was run")]
    Unavailable(#[from] StoreError),
    /// The attempt ended, but its outcome could not be written.
    #[error("{what}, but its outcome could not be written to the ledger: {source}")]
    Unrecorded {
        /// How the attempt ended, in words.
        what: String,
        /// The operation as the ledger last knew it.
        record: Arc<Record>,
        /// Why it could not be written.
        source: StoreError,
    },
}

/// Whether an answer is of this call or of an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replayed {
    /// This call did it.
    No,
    /// An earlier call did it, and nothing was run now.
    Yes,
}

impl Error {
    /// The contract's code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Invalid(_) => Code::InvalidInput,
            Self::KeyMissing { .. } => Code::KeyMissing,
            Self::NotFound { .. } => Code::NotFound,
            Self::WrongState { .. } => Code::WrongState,
            Self::InProgress { .. } => Code::InProgress,
            Self::KeyExpired { .. } => Code::KeyExpired,
            Self::Cancelled { .. } => Code::Cancelled,
            Self::BudgetExhausted { .. } => Code::BudgetExhausted,
            Self::KeyReused { .. } => Code::KeyReused,
            Self::Failed { .. } => Code::Failed,
            Self::InDoubt { .. } | Self::Unrecorded { .. } => Code::InDoubt,
            Self::Timeout { .. } => Code::Timeout,
            Self::Unverified { .. } => Code::Unverified,
            Self::Unavailable(_) => Code::LedgerUnavailable,
        }
    }

    /// Whether the effect happened, as far as this error can say for certain.
    #[must_use]
    pub fn happened(&self) -> Happened {
        if let Self::WrongState { record, .. } = self {
            return match record.state {
                State::Done => Happened::Yes,
                // A tombstone no longer knows how it ended.
                State::Staged | State::Running | State::InDoubt | State::Expired => Happened::Unknown,
                State::Failed | State::Cancelled => Happened::No,
            };
        }
        // The attempt said so itself; only the ledger does not know it yet.
        let by_its_word = matches!(self, Self::Unrecorded { what, .. } if what.starts_with("it was done"));
        if by_its_word { Happened::Yes } else { self.code().happened() }
    }

    /// The operation it is about, where there is one.
    #[must_use]
    pub fn record(&self) -> Option<&Arc<Record>> {
        match self {
            Self::Invalid(_) | Self::KeyMissing { .. } | Self::NotFound { .. } | Self::Unavailable(_) => None,
            Self::WrongState { record, .. }
            | Self::InProgress { record, .. }
            | Self::KeyExpired { record }
            | Self::Cancelled { record }
            | Self::BudgetExhausted { record }
            | Self::KeyReused { record, .. }
            | Self::Failed { record, .. }
            | Self::InDoubt { record, .. }
            | Self::Timeout { record, .. }
            | Self::Unverified { record, .. }
            | Self::Unrecorded { record, .. } => Some(record),
        }
    }

    /// When to ask again, where asking again is right.
    #[must_use]
    pub fn retry_after_ms(&self) -> Option<u64> {
        if let Self::InProgress { retry_after_ms, .. } = self { Some(*retry_after_ms) } else { None }
    }

    /// Whether the same call may be made again: only where it is certain that nothing happened, and worth it.
    #[must_use]
    pub fn retryable(&self) -> bool {
        // A file that is not a ledger, or a newer or damaged one, does not mend itself.
        if matches!(self, Self::Unavailable(StoreError::Unusable { .. })) {
            return false;
        }
        match self.record() {
            // A budget that is spent, or a failure that is replayed, answers every retry in the same way.
            Some(record) if record.state == State::Failed => {
                self.code().retryable()
                    && record.spent_attempts() < record.detail.max_attempts
                    && !matches!(self, Self::Failed { replayed: Replayed::Yes, .. })
            }
            Some(_) | None => self.code().retryable(),
        }
    }

    /// The command that takes the caller on from here.
    #[must_use]
    pub fn fix_command(&self) -> Option<String> {
        let id = &self.record()?.id;
        match self {
            Self::InDoubt { record, .. }
            | Self::Timeout { record, .. }
            | Self::Unverified { record, .. }
            | Self::Unrecorded { record, .. } => Some(match (record.detail.class, &record.detail.probe) {
                (Class::Probed, Some(_)) => format!("once settle {id} --probe"),
                (Class::Probed | Class::Once | Class::Read | Class::Idempotent | Class::Keyed, _) => {
                    format!("once settle {id} --as 'done|failed'")
                }
            }),
            Self::InProgress { .. } => Some(format!("once wait {id}")),
            Self::KeyExpired { .. }
            | Self::Cancelled { .. }
            | Self::BudgetExhausted { .. }
            | Self::KeyReused { .. }
            | Self::WrongState { .. }
            | Self::Failed { .. } => Some(format!("once show {id}")),
            Self::Invalid(_) | Self::KeyMissing { .. } | Self::NotFound { .. } | Self::Unavailable(_) => None,
        }
    }
}

fn fields_that_differ(fields: &[String]) -> String {
    match fields {
        [] => "the fields that differ are not known".to_owned(),
        [one] => format!("{one} differs"),
        many => format!("{} differ", many.join(", ")),
    }
}
