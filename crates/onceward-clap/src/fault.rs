//! Failures of a command, and whether they had an effect.

use std::sync::Arc;

use onceward::{Evidence, Failure};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// What kind of failure it is. Each has a code that programs read and an exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum FaultKind {
    /// It failed.
    Failed,
    /// The input is wrong.
    InvalidInput,
    /// Something else must be done first.
    Precondition,
    /// The thing it is about does not exist.
    NotFound,
    /// It conflicts with what exists.
    Conflict,
    /// It exists already; the data holds it.
    AlreadyExists,
    /// The caller lacks permission.
    PermissionDenied,
    /// Authentication is required.
    AuthRequired,
    /// Too many calls; it can be tried again later.
    RateLimited,
    /// A service that it needs cannot be reached; it can be tried again.
    Unavailable,
}

impl FaultKind {
    /// Every kind, for documentation and for tests that must not forget one.
    pub const ALL: [Self; 10] = [
        Self::Failed,
        Self::InvalidInput,
        Self::Precondition,
        Self::NotFound,
        Self::Conflict,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::AuthRequired,
        Self::RateLimited,
        Self::Unavailable,
    ];

    /// The exit code.
    #[must_use]
    pub const fn exit(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::InvalidInput => 2,
            Self::Precondition => 4,
            Self::NotFound => 5,
            Self::Conflict | Self::AlreadyExists => 6,
            Self::PermissionDenied => 7,
            Self::AuthRequired => 8,
            Self::RateLimited => 11,
            Self::Unavailable => 12,
        }
    }

    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "FAILED",
            Self::InvalidInput => "INVALID_INPUT",
            Self::Precondition => "PRECONDITION",
            Self::NotFound => "NOT_FOUND",
            Self::Conflict => "CONFLICT",
            Self::AlreadyExists => "ALREADY_EXISTS",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::AuthRequired => "AUTH_REQUIRED",
            Self::RateLimited => "RATE_LIMITED",
            Self::Unavailable => "UNAVAILABLE",
        }
    }

    /// Whether the same call may get another answer later.
    #[must_use]
    pub const fn worth_a_retry(self) -> bool {
        match self {
            Self::Failed | Self::RateLimited | Self::Unavailable => true,
            Self::InvalidInput
            | Self::Precondition
            | Self::NotFound
            | Self::Conflict
            | Self::AlreadyExists
            | Self::PermissionDenied
            | Self::AuthRequired => false,
        }
    }
}

/// Why a command did not do what it was asked to.
///
/// A fault that names its kind says that nothing happened. One made from another error (`?`) says so before the
/// dispatch; after it, the operation is in doubt.
#[derive(Debug)]
pub struct Fault {
    kind: FaultKind,
    certainty: Certainty,
    message: String,
    retry_after_ms: Option<u64>,
    data: Option<Box<RawValue>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Certainty {
    /// Nothing happened.
    NoEffect,
    /// It may or may not have taken effect.
    InDoubt,
    /// No effect before the dispatch, in doubt after it.
    ByDispatch,
}

macro_rules! certain {
    ($($(#[$doc:meta])* $name:ident => $kind:ident;)*) => {
        $($(#[$doc])*
        pub fn $name(message: impl ToString) -> Self {
            Self::of(FaultKind::$kind, Certainty::NoEffect, message)
        })*
    };
}

impl Fault {
    certain! {
        /// It failed without effect.
        no_effect => Failed;
        /// The input is wrong.
        invalid => InvalidInput;
        /// Something else must be done first.
        precondition => Precondition;
        /// The thing it is about does not exist.
        not_found => NotFound;
        /// It conflicts with what exists.
        conflict => Conflict;
        /// It exists already. Attach it with [`Fault::with_data`].
        already_exists => AlreadyExists;
        /// The caller lacks permission.
        permission_denied => PermissionDenied;
        /// Authentication is required.
        auth_required => AuthRequired;
        /// Too many calls.
        rate_limited => RateLimited;
        /// A service that it needs cannot be reached, and nothing happened.
        unavailable => Unavailable;
    }

    /// It may or may not have taken effect: a reply that was lost, an error after the request was sent.
    pub fn in_doubt(message: impl ToString) -> Self {
        Self::of(FaultKind::Failed, Certainty::InDoubt, message)
    }

    /// When to try again.
    #[must_use]
    pub fn retry_after_ms(mut self, ms: u64) -> Self {
        self.retry_after_ms = Some(ms);
        self
    }

    /// Data for the caller, besides the message.
    #[must_use]
    pub fn with_data(mut self, data: &impl Serialize) -> Self {
        self.data = serde_json::value::to_raw_value(data).ok();
        self
    }

    /// What kind it is.
    #[must_use]
    pub fn kind(&self) -> FaultKind {
        self.kind
    }

    /// What went wrong, in words.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn certainty(&self) -> Certainty {
        self.certainty
    }

    pub(crate) fn kept(&self) -> Kept {
        Kept { fault: self.kind, retry_after_ms: self.retry_after_ms, detail: self.data.clone() }
    }

    fn of(kind: FaultKind, certainty: Certainty, message: impl ToString) -> Self {
        Self { kind, certainty, message: message.to_string(), retry_after_ms: None, data: None }
    }
}

impl<E: std::error::Error> From<E> for Fault {
    fn from(error: E) -> Self {
        Self::of(FaultKind::Failed, Certainty::ByDispatch, error)
    }
}

/// What the ledger keeps of a fault beside its message.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) fault: FaultKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<Box<RawValue>>,
}

impl Fault {
    /// The failure for the ledger, given whether the work was dispatched.
    pub(crate) fn into_failure(self, dispatched: bool) -> Failure {
        let kept = serde_json::value::to_raw_value(&self.kept()).ok().map(Arc::from);
        let evidence = match self.certainty {
            Certainty::NoEffect | Certainty::ByDispatch if !dispatched => Some(Evidence::NotStarted),
            Certainty::NoEffect => Some(Evidence::declared("the author of the command")),
            Certainty::InDoubt | Certainty::ByDispatch => None,
        };
        let failure = match evidence {
            Some(evidence) => Failure::no_effect(evidence, self.message),
            None => Failure::in_doubt(self.message),
        };
        failure.with(kept, None)
    }
}
