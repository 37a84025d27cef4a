//! Errors, and whether the effect happened for each of them.

mod words;

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::advice::NextStep;
use crate::barrier::Barrier;
use crate::facts::{Happened, Ran, RefusalOf, Verdict};
use crate::invalid::InvalidInput;
use crate::record::{Record, State};
use crate::store::StoreError;
use words::{
    cancelled_in_words, ended_in_words, fields_that_differ, how_it_ended, in_doubt_too, settled_by,
    still_running, stopped_in_words, taken_back, what_ran,
};
pub(crate) use words::{clip, held_in_words};

/// The contract's error codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[non_exhaustive]
pub enum Code {
    /// The input is invalid; all problems are listed. Nothing was run.
    InvalidInput,
    /// A key is required and none was given.
    KeyMissing,
    /// No such operation.
    NotFound,
    /// The operation's state does not allow the request.
    WrongState,
    /// Another caller is still executing it, and the wait has timed out.
    InProgress,
    /// It is held back: nothing was run. An answer with this code is not an error, and not a success of the effect.
    Held,
    /// The stored result has expired.
    KeyExpired,
    /// It was cancelled.
    Cancelled,
    /// It was done, and was taken back.
    Undone,
    /// Its scope is stopped: nothing in it may begin.
    Stopped,
    /// The budget of attempts is spent.
    BudgetExhausted,
    /// The key was used with different inputs.
    KeyReused,
    /// It failed, certainly without effect.
    Failed,
    /// It timed out.
    Timeout,
    /// The outcome is unknown.
    InDoubt,
    /// Success was reported, and the check refuted it.
    Unverified,
    /// It was done, but its result is unavailable.
    ResultUnavailable,
    /// The intent could not be recorded, so nothing was run.
    LedgerUnavailable,
    /// The ledger was emptied, restored or replaced while in use, so nothing was run.
    LedgerReplaced,
}

impl Code {
    /// Every code, for documentation and for tests that must cover all of them.
    pub const ALL: [Self; 19] = [
        Self::InvalidInput,
        Self::KeyMissing,
        Self::NotFound,
        Self::WrongState,
        Self::InProgress,
        Self::Held,
        Self::KeyExpired,
        Self::Cancelled,
        Self::Undone,
        Self::Stopped,
        Self::BudgetExhausted,
        Self::KeyReused,
        Self::Failed,
        Self::Timeout,
        Self::InDoubt,
        Self::Unverified,
        Self::ResultUnavailable,
        Self::LedgerUnavailable,
        Self::LedgerReplaced,
    ];

    /// The name of the code, the same on every surface.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidInput => "INVALID_INPUT",
            Self::KeyMissing => "KEY_MISSING",
            Self::NotFound => "NOT_FOUND",
            Self::WrongState => "WRONG_STATE",
            Self::InProgress => "IN_PROGRESS",
            Self::Held => "HELD",
            Self::KeyExpired => "KEY_EXPIRED",
            Self::Cancelled => "CANCELLED",
            Self::Undone => "UNDONE",
            Self::Stopped => "STOPPED",
            Self::BudgetExhausted => "BUDGET_EXHAUSTED",
            Self::KeyReused => "KEY_REUSED",
            Self::Failed => "FAILED",
            Self::Timeout => "TIMEOUT",
            Self::InDoubt => "IN_DOUBT",
            Self::Unverified => "UNVERIFIED",
            Self::ResultUnavailable => "RESULT_UNAVAILABLE",
            Self::LedgerUnavailable => "LEDGER_UNAVAILABLE",
            Self::LedgerReplaced => "LEDGER_REPLACED",
        }
    }

    /// The exit status of a command that ends with this code.
    #[must_use]
    pub const fn exit(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::InvalidInput | Self::KeyMissing => 2,
            Self::InProgress
            | Self::Held
            | Self::KeyExpired
            | Self::Cancelled
            | Self::Undone
            | Self::Stopped
            | Self::BudgetExhausted
            | Self::ResultUnavailable => 4,
            Self::NotFound => 5,
            Self::KeyReused | Self::WrongState => 6,
            Self::Timeout => 10,
            Self::LedgerUnavailable | Self::LedgerReplaced => 12,
            Self::InDoubt | Self::Unverified => 79,
        }
    }

    /// The HTTP status. If a blind retry would be unsafe, this is a status that no SDK retries on its own.
    #[must_use]
    pub const fn http(self) -> u16 {
        match self {
            Self::InvalidInput | Self::KeyMissing => 400,
            Self::Held => 202,
            Self::NotFound => 404,
            Self::InProgress => 409,
            Self::KeyExpired | Self::Cancelled | Self::Undone | Self::Stopped | Self::ResultUnavailable => {
                410
            }
            Self::KeyReused | Self::WrongState => 422,
            Self::BudgetExhausted | Self::Timeout | Self::InDoubt | Self::Unverified => 424,
            Self::Failed => 502,
            Self::LedgerUnavailable | Self::LedgerReplaced => 503,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Why an operation was not done, not replayed, or not found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input was refused.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// A key is required and none was given.
    #[error("{name} requires an explicit key that identifies this action; nothing was run")]
    KeyMissing {
        /// The operation's name.
        name: String,
    },
    /// There is no operation with this id.
    #[error("there is no operation {id} in this ledger")]
    NotFound {
        /// The requested id.
        id: String,
    },
    /// The operation's state does not allow the request.
    #[error("{action} is not possible: the operation is {}{}",
            .record.state.as_str().replace('_', " "), settled_by(.record))]
    WrongState {
        /// The request.
        action: &'static str,
        /// The operation's current record.
        record: Arc<Record>,
    },
    /// Another caller is executing it.
    #[error("{}", still_running(.record))]
    InProgress {
        /// The operation's current record.
        record: Arc<Record>,
        /// Whether this call ran an attempt that another one overtook.
        ran: Ran,
    },
    /// It is held back until its time, or until a person releases it.
    #[error("{}", held_in_words(.record))]
    Held {
        /// The operation's current record.
        record: Arc<Record>,
    },
    /// The stored result has expired.
    #[error("the stored result for this key has expired ({}); nothing was run", how_it_ended(.record))]
    KeyExpired {
        /// The operation's current record.
        record: Arc<Record>,
    },
    /// It was cancelled.
    #[error("this operation was {}; {}", cancelled_in_words(.record), what_ran(*.ran))]
    Cancelled {
        /// The operation's current record.
        record: Arc<Record>,
        /// Whether this call made an attempt, which had no effect.
        ran: Ran,
        /// Whose refusal it is.
        of: RefusalOf,
    },
    /// It was done, and was taken back or is being taken back.
    #[error("{}; nothing was run", taken_back(.record))]
    Undone {
        /// The operation's current record.
        record: Arc<Record>,
    },
    /// Its scope is stopped.
    #[error("the scope {:?} was stopped {}; {}", .barrier.scope, stopped_in_words(.barrier), what_ran(*.ran))]
    Stopped {
        /// The barrier.
        barrier: Barrier,
        /// The operation's current record, if it has one.
        record: Option<Arc<Record>>,
        /// Whether this call made an attempt, which had no effect.
        ran: Ran,
    },
    /// The budget of attempts is spent.
    #[error("gave up after {} failed attempts (the limit is {limit}); {}", .record.spent_attempts(), what_ran(*.ran))]
    BudgetExhausted {
        /// The operation's current record.
        record: Arc<Record>,
        /// How many attempts this call would allow.
        limit: u32,
        /// Whether this call made an attempt, which had no effect.
        ran: Ran,
    },
    /// The key was used with different inputs.
    #[error("this key was already used for a different action ({}){}; nothing was run",
            fields_that_differ(.fields), in_doubt_too(.record))]
    KeyReused {
        /// The operation's current record.
        record: Arc<Record>,
        /// The names of the fields that differ. Their values are not stored.
        fields: Vec<String>,
    },
    /// It failed, and there is evidence that it had no effect.
    #[error("{reason}")]
    Failed {
        /// The operation's current record.
        record: Arc<Record>,
        /// The attempt's reason.
        reason: String,
        /// Whether this call ran the attempt that failed.
        ran: Ran,
    },
    /// The outcome is unknown.
    #[error("{reason}")]
    InDoubt {
        /// The operation's current record.
        record: Arc<Record>,
        /// Why it is unknown.
        reason: String,
        /// Whether this call ran the attempt that is in doubt.
        ran: Ran,
    },
    /// It timed out, and its outcome is unknown.
    #[error("{reason}")]
    Timeout {
        /// The operation's current record.
        record: Arc<Record>,
        /// The time limit, in words.
        reason: String,
    },
    /// Success was reported, and the check refuted it.
    #[error("success was reported, but the check refuted it: {}", clip(.reason))]
    Unverified {
        /// The operation's current record.
        record: Arc<Record>,
        /// The check's reason.
        reason: String,
        /// Whether this call ran the attempt that was refuted.
        ran: Ran,
    },
    /// It was done, but its stored result cannot be decrypted.
    #[error(
        "the operation was done, but its result is sealed with the key {key}, and that key is not configured here or \
             the stored value was changed; nothing was run. Set ONCE_ENCRYPTION_KEY_FILE to a file that holds the key"
    )]
    ResultSealed {
        /// The operation's current record.
        record: Arc<Record>,
        /// The id of the key.
        key: String,
    },
    /// It was done, but its stored result has gone from the ledger.
    #[error(
        "the operation was done, but its stored result is missing from the ledger: another program deleted it, or \
         the ledger is damaged; nothing was run"
    )]
    ResultLost {
        /// The operation's current record.
        record: Arc<Record>,
    },
    /// The ledger could not be read or written.
    #[error("the ledger cannot be used: {0}; nothing was run")]
    Unavailable(StoreError),
    /// The attempt ended, but its outcome could not be written.
    #[error("{}, but its outcome could not be written to the ledger: {why}", ended_in_words(.ended))]
    Unrecorded {
        /// Whether the attempt took effect.
        ended: Happened,
        /// The operation's record as last known.
        record: Arc<Record>,
        /// Why the outcome could not be written.
        why: StoreError,
    },
}

// Not `#[from]`, which would also make it the `source`: the text says it already.
impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::Unavailable(error)
    }
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
            Self::Held { .. } => Code::Held,
            Self::KeyExpired { .. } => Code::KeyExpired,
            Self::Cancelled { .. } => Code::Cancelled,
            Self::Undone { .. } => Code::Undone,
            Self::Stopped { .. } => Code::Stopped,
            Self::BudgetExhausted { .. } => Code::BudgetExhausted,
            Self::KeyReused { .. } => Code::KeyReused,
            Self::Failed { .. } => Code::Failed,
            Self::InDoubt { .. } | Self::Unrecorded { .. } => Code::InDoubt,
            Self::Timeout { .. } => Code::Timeout,
            Self::Unverified { .. } => Code::Unverified,
            Self::ResultSealed { .. } | Self::ResultLost { .. } => Code::ResultUnavailable,
            Self::Unavailable(StoreError::Replaced { .. }) => Code::LedgerReplaced,
            Self::Unavailable(_) => Code::LedgerUnavailable,
        }
    }

    /// Why the stored result of an operation is unavailable, if it is. The operation still does not run again.
    #[must_use]
    pub fn of_result(record: &Arc<Record>) -> Option<Self> {
        let outcome = record.outcome.as_ref()?;
        let record = Arc::clone(record);
        match outcome.sealed_with().map(str::to_owned) {
            Some(key) => Some(Self::ResultSealed { record, key }),
            None if outcome.lost => Some(Self::ResultLost { record }),
            None => None,
        }
    }

    /// Whether the operation's effect happened. `None` if the error is not about an operation.
    #[must_use]
    pub fn happened(&self) -> Option<Happened> {
        match self {
            Self::Invalid(_) | Self::KeyMissing { .. } | Self::NotFound { .. } => None,
            Self::WrongState { record, .. }
            | Self::KeyExpired { record }
            | Self::BudgetExhausted { record, .. }
            | Self::KeyReused { record, .. }
            | Self::Undone { record }
            | Self::ResultSealed { record, .. }
            | Self::ResultLost { record } => Some(record.happened()),
            Self::Held { .. } | Self::Cancelled { .. } | Self::Failed { .. } => Some(Happened::No),
            Self::InProgress { .. }
            | Self::InDoubt { .. }
            | Self::Timeout { .. }
            | Self::Unverified { .. }
            | Self::Unavailable(_) => Some(Happened::Unknown),
            Self::Unrecorded { ended, .. } => Some(*ended),
            // Without a record it never began.
            Self::Stopped { record, .. } => {
                Some(record.as_ref().map_or(Happened::No, |record| record.happened()))
            }
        }
    }

    /// Whether this call ran the operation.
    #[must_use]
    pub fn ran(&self) -> Ran {
        match self {
            Self::Invalid(_)
            | Self::KeyMissing { .. }
            | Self::NotFound { .. }
            | Self::WrongState { .. }
            | Self::Held { .. }
            | Self::KeyExpired { .. }
            | Self::Undone { .. }
            | Self::KeyReused { .. }
            | Self::ResultSealed { .. }
            | Self::ResultLost { .. }
            | Self::Unavailable(_) => Ran::No,
            Self::Timeout { .. } | Self::Unrecorded { .. } => Ran::Yes,
            Self::InProgress { ran, .. }
            | Self::Cancelled { ran, .. }
            | Self::BudgetExhausted { ran, .. }
            | Self::Stopped { ran, .. }
            | Self::Failed { ran, .. }
            | Self::InDoubt { ran, .. }
            | Self::Unverified { ran, .. } => *ran,
        }
    }

    /// The operation that the error is about, if any.
    #[must_use]
    pub fn record(&self) -> Option<&Arc<Record>> {
        match self {
            Self::Invalid(_) | Self::KeyMissing { .. } | Self::NotFound { .. } | Self::Unavailable(_) => None,
            Self::WrongState { record, .. }
            | Self::InProgress { record, .. }
            | Self::Held { record }
            | Self::KeyExpired { record }
            | Self::Cancelled { record, .. }
            | Self::Undone { record }
            | Self::BudgetExhausted { record, .. }
            | Self::KeyReused { record, .. }
            | Self::ResultSealed { record, .. }
            | Self::ResultLost { record }
            | Self::Failed { record, .. }
            | Self::InDoubt { record, .. }
            | Self::Timeout { record, .. }
            | Self::Unverified { record, .. }
            | Self::Unrecorded { record, .. } => Some(record),
            Self::Stopped { record, .. } => record.as_ref(),
        }
    }

    /// Whether the same call may simply be repeated: only if nothing happened, which must be certain, and a different
    /// answer is possible.
    #[must_use]
    pub fn retryable(&self) -> bool {
        // A spent budget or a replayed failure gives every retry the same answer.
        matches!(self, Self::Failed { record, ran: Ran::Yes, .. }
            if record.spent_attempts() < record.detail.max_attempts
                && !matches!(record.state, State::Cancelled | State::Expired))
    }

    /// What the caller should do next.
    #[must_use]
    pub fn next_step(&self) -> Option<NextStep> {
        match self {
            Self::Invalid(_) | Self::KeyMissing { .. } | Self::NotFound { .. } => None,
            Self::Unrecorded { ended: Happened::Yes, record, .. } => {
                Some(NextStep::Record(record.id.clone(), Verdict::Done))
            }
            Self::Unrecorded { ended: Happened::No, record, .. } => {
                Some(NextStep::Record(record.id.clone(), Verdict::Failed))
            }
            Self::InDoubt { record, .. }
            | Self::Timeout { record, .. }
            | Self::Unverified { record, .. }
            | Self::Unrecorded { ended: Happened::Unknown, record, .. } => {
                Some(NextStep::out_of_doubt(record, self.ran()))
            }
            Self::InProgress { record, .. } => Some(NextStep::Wait(record.id.clone())),
            Self::Held { record } => Some(NextStep::Release(record.id.clone())),
            Self::KeyReused { record, .. } if record.state == State::InDoubt => {
                Some(NextStep::Show(record.id.clone()))
            }
            Self::KeyReused { record, .. } => Some(NextStep::OtherKey(record.id.clone(), record.state)),
            Self::Undone { record } if !record.is_undone() => Some(NextStep::Undo(record.id.clone())),
            Self::KeyExpired { .. } | Self::Undone { .. } => Some(NextStep::Repeat),
            Self::Cancelled { .. } => Some(NextStep::Cancelled),
            Self::Stopped { barrier, .. } => Some(NextStep::Resume { scope: barrier.scope.clone() }),
            Self::BudgetExhausted { limit, .. } => Some(NextStep::RaiseAttempts { limit: *limit }),
            Self::Failed { .. } if self.retryable() => Some(NextStep::CallAgain),
            Self::Failed { record, .. }
            | Self::WrongState { record, .. }
            | Self::ResultSealed { record, .. }
            | Self::ResultLost { record } => Some(NextStep::Show(record.id.clone())),
            Self::Unavailable(_) => Some(NextStep::CheckLedger),
        }
    }
}

impl Record {
    /// Whether its effect happened and is known to be gone again.
    #[must_use]
    pub fn is_undone(&self) -> bool {
        self.detail.undone.as_ref().is_some_and(|mark| mark.evidence.is_gone())
    }

    /// Whether its effect happened, according to the record.
    #[must_use]
    pub fn happened(&self) -> Happened {
        match self.state {
            State::Done => Happened::Yes,
            State::Staged | State::Failed | State::Cancelled => Happened::No,
            State::Running | State::InDoubt => Happened::Unknown,
            State::Expired => match self.detail.ended {
                Some(State::Done) => Happened::Yes,
                Some(State::Failed | State::Cancelled) => Happened::No,
                // Older tombstones do not record how the operation ended.
                Some(State::Staged | State::Running | State::InDoubt | State::Expired) | None => {
                    Happened::Unknown
                }
            },
        }
    }
}
