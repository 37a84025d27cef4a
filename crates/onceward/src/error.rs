//! What can go wrong, and for each: did the effect happen?

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::next_step::NextStep;
use crate::record::{Record, State};
use crate::store::StoreError;
use crate::transition::Verdict;

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

/// Whether the operation's effect happened. It speaks of the operation, whichever call ran it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Happened {
    /// It did.
    Yes,
    /// It did not.
    No,
    /// It is unknown.
    Unknown,
}

impl Happened {
    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Unknown => "unknown",
        }
    }
}

/// Whether this call ran the operation, or an earlier or another call did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ran {
    /// This call began an attempt.
    Yes,
    /// This call ran nothing.
    No,
}

impl Ran {
    /// As a flag, for answers.
    #[must_use]
    pub const fn as_bool(self) -> bool {
        matches!(self, Self::Yes)
    }
}

/// The contract's error codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
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

    /// The word for it, the same on every surface.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidInput => "INVALID_INPUT",
            Self::KeyMissing => "KEY_MISSING",
            Self::NotFound => "NOT_FOUND",
            Self::WrongState => "WRONG_STATE",
            Self::InProgress => "IN_PROGRESS",
            Self::KeyExpired => "KEY_EXPIRED",
            Self::Cancelled => "CANCELLED",
            Self::BudgetExhausted => "BUDGET_EXHAUSTED",
            Self::KeyReused => "KEY_REUSED",
            Self::Failed => "FAILED",
            Self::Timeout => "TIMEOUT",
            Self::InDoubt => "IN_DOUBT",
            Self::Unverified => "UNVERIFIED",
            Self::LedgerUnavailable => "LEDGER_UNAVAILABLE",
        }
    }

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
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Why an operation was not done, not replayed, or not found.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The input was refused.
    #[error("{0}")]
    Invalid(#[from] InvalidInput),
    /// A key is required and none was given.
    #[error("{name} requires an explicit key that identifies this action; nothing was run")]
    KeyMissing {
        /// What was to be done.
        name: String,
    },
    /// No operation of that id.
    #[error("there is no operation {id} in this ledger")]
    NotFound {
        /// What was asked for.
        id: String,
    },
    /// Not possible in the state it is in.
    #[error("{action} is not possible: the operation is {}{}",
            .record.state.as_str().replace('_', " "), settled_by(.record))]
    WrongState {
        /// What was asked for.
        action: &'static str,
        /// The operation as it is.
        record: Arc<Record>,
    },
    /// Another caller is executing it.
    #[error("{}", still_running(.record))]
    InProgress {
        /// The operation as it is.
        record: Arc<Record>,
        /// Whether this call had run an attempt that another one overtook.
        ran: Ran,
    },
    /// The stored result has expired.
    #[error("the stored result for this key has expired ({}); nothing was run", how_it_ended(.record))]
    KeyExpired {
        /// The operation as it is.
        record: Arc<Record>,
    },
    /// It was cancelled.
    #[error("this operation was cancelled before it had any effect; nothing was run")]
    Cancelled {
        /// The operation as it is.
        record: Arc<Record>,
    },
    /// The retry budget is spent.
    #[error("gave up after {} failed attempts (the limit is {limit}); nothing was run", .record.spent_attempts())]
    BudgetExhausted {
        /// The operation as it is.
        record: Arc<Record>,
        /// How many attempts this call would allow.
        limit: u32,
    },
    /// The same key with other inputs.
    #[error("this key was already used for a different action ({}){}; nothing was run",
            fields_that_differ(.fields), in_doubt_too(.record))]
    KeyReused {
        /// The operation as it is.
        record: Arc<Record>,
        /// The fields that differ. Their values are not kept, so they are not named.
        fields: Vec<String>,
    },
    /// It failed, and evidence says that it had no effect.
    #[error("{reason}")]
    Failed {
        /// The operation as it is.
        record: Arc<Record>,
        /// What the attempt said.
        reason: String,
        /// Whether this call ran the attempt that failed.
        ran: Ran,
    },
    /// The outcome is not known.
    #[error("{reason}")]
    InDoubt {
        /// The operation as it is.
        record: Arc<Record>,
        /// Why it is not known.
        reason: String,
        /// Whether this call ran the attempt that is in doubt.
        ran: Ran,
    },
    /// It took longer than its time limit, and its outcome is not known.
    #[error("{reason}")]
    Timeout {
        /// The operation as it is.
        record: Arc<Record>,
        /// How long it was given.
        reason: String,
    },
    /// Success was reported and the check refuted it.
    #[error("success was reported, but the check refuted it: {}", clipped(.reason))]
    Unverified {
        /// The operation as it is.
        record: Arc<Record>,
        /// What the check said.
        reason: String,
        /// Whether this call ran the attempt that was refuted.
        ran: Ran,
    },
    /// The ledger could not be read or written.
    #[error("the ledger cannot be used: {0}; nothing was run")]
    Unavailable(#[from] StoreError),
    /// The attempt ended, but its outcome could not be written.
    #[error("{}, but its outcome could not be written to the ledger: {source}", ended_in_words(.ended))]
    Unrecorded {
        /// How the attempt ended.
        ended: Happened,
        /// The operation as the ledger last knew it.
        record: Arc<Record>,
        /// Why it could not be written.
        source: StoreError,
    },
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

    /// Whether the operation's effect happened. `None` where the error is not about an operation.
    #[must_use]
    pub fn happened(&self) -> Option<Happened> {
        match self {
            Self::Invalid(_) | Self::KeyMissing { .. } | Self::NotFound { .. } => None,
            Self::WrongState { record, .. }
            | Self::KeyExpired { record }
            | Self::BudgetExhausted { record, .. }
            | Self::KeyReused { record, .. } => Some(record.happened()),
            Self::Cancelled { .. } | Self::Failed { .. } => Some(Happened::No),
            Self::InProgress { .. }
            | Self::InDoubt { .. }
            | Self::Timeout { .. }
            | Self::Unverified { .. }
            | Self::Unavailable(_) => Some(Happened::Unknown),
            Self::Unrecorded { ended, .. } => Some(*ended),
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
            | Self::KeyExpired { .. }
            | Self::Cancelled { .. }
            | Self::BudgetExhausted { .. }
            | Self::KeyReused { .. }
            | Self::Unavailable(_) => Ran::No,
            Self::Timeout { .. } | Self::Unrecorded { .. } => Ran::Yes,
            Self::InProgress { ran, .. }
            | Self::Failed { ran, .. }
            | Self::InDoubt { ran, .. }
            | Self::Unverified { ran, .. } => *ran,
        }
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
            | Self::BudgetExhausted { record, .. }
            | Self::KeyReused { record, .. }
            | Self::Failed { record, .. }
            | Self::InDoubt { record, .. }
            | Self::Timeout { record, .. }
            | Self::Unverified { record, .. }
            | Self::Unrecorded { record, .. } => Some(record),
        }
    }

    /// Whether the same call may simply be made again: only where it is certain that nothing happened, and another
    /// answer is possible.
    #[must_use]
    pub fn retryable(&self) -> bool {
        // A spent budget, or a failure that is replayed, gives every retry the same answer.
        matches!(self, Self::Failed { record, ran: Ran::Yes, .. }
            if record.spent_attempts() < record.detail.max_attempts
                && !matches!(record.state, State::Cancelled | State::Expired))
    }

    /// What takes the caller on from here.
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
            Self::KeyReused { record, .. } if record.state == State::InDoubt => {
                Some(NextStep::Show(record.id.clone()))
            }
            Self::KeyReused { .. } => Some(NextStep::OtherKey),
            Self::KeyExpired { .. } | Self::Cancelled { .. } => Some(NextStep::Repeat),
            Self::BudgetExhausted { limit, .. } => Some(NextStep::RaiseAttempts { limit: *limit }),
            Self::Failed { .. } if self.retryable() => Some(NextStep::CallAgain),
            Self::Failed { record, .. } | Self::WrongState { record, .. } => {
                Some(NextStep::Show(record.id.clone()))
            }
            Self::Unavailable(_) => Some(NextStep::CheckLedger),
        }
    }
}

impl Record {
    /// Whether its effect happened, as the record says.
    #[must_use]
    pub fn happened(&self) -> Happened {
        match self.state {
            State::Done => Happened::Yes,
            State::Staged | State::Failed | State::Cancelled => Happened::No,
            State::Running | State::InDoubt => Happened::Unknown,
            State::Expired => match self.detail.ended {
                Some(State::Done) => Happened::Yes,
                Some(State::Failed | State::Cancelled) => Happened::No,
                // Older tombstones do not say how they ended.
                Some(State::Staged | State::Running | State::InDoubt | State::Expired) | None => {
                    Happened::Unknown
                }
            },
        }
    }
}

/// The longest reason that the message of a doubt repeats, in characters. The record keeps all of it.
const LONGEST_REASON: usize = 110;

/// A reason on one line, short enough to leave room for what to do next.
pub(crate) fn clipped(reason: &str) -> String {
    let line = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    let Some((end, _)) = line.char_indices().nth(LONGEST_REASON) else {
        return line.trim_end_matches('.').to_owned();
    };
    // Whole words, unless the first one is longer than that.
    let kept = line[..end].rsplit_once(' ').map_or(&line[..end], |(words, _)| words);
    format!("{kept} …")
}

fn still_running(record: &Record) -> String {
    let attempt = record.attempt;
    if record.state == State::InDoubt {
        format!(
            "attempt {attempt} of this operation ended in doubt, and a process that it started is still running"
        )
    } else {
        format!("attempt {attempt} of this operation is still running for another caller")
    }
}

fn how_it_ended(record: &Record) -> &'static str {
    match record.happened() {
        Happened::Yes => "the operation was done",
        Happened::No => "the operation had no effect",
        Happened::Unknown => "how the operation ended is no longer known",
    }
}

fn ended_in_words(ended: &Happened) -> &'static str {
    match ended {
        Happened::Yes => "it was done",
        Happened::No => "it failed without effect",
        Happened::Unknown => "it may or may not have taken effect",
    }
}

/// Who or what decided how it ended, where that was not its own answer.
fn settled_by(record: &Record) -> String {
    let Some(outcome) = &record.outcome else { return String::new() };
    let Some(who) = &outcome.settled_by else { return String::new() };
    let why = outcome.reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    format!(", settled by {who}{why}")
}

fn fields_that_differ(fields: &[String]) -> String {
    match fields {
        [] => "its inputs differ".to_owned(),
        [one] => format!("{one} differs"),
        many => format!("{} differ", many.join(", ")),
    }
}

fn in_doubt_too(record: &Record) -> &'static str {
    if record.state == State::InDoubt { ", which is in doubt" } else { "" }
}
