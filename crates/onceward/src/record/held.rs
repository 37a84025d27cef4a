//! Operations that are held back: until when, by whom, and the request that starts them later.

use serde::{Deserialize, Serialize};

use super::{Record, State};
use crate::invalid::InvalidInput;
use crate::word::Word;

/// The largest request that is stored with a held operation, in bytes.
pub const MAX_REQUEST: usize = 4 * 1024 * 1024;

/// How an operation is held back, and what may start it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// From when it may start without a release. Without a time, a person must release it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<i64>,
    /// The surface that holds it, and that can execute its request: `run`, `mcp`, `gateway`, `python` and so on.
    pub surface: String,
    /// Who said that it is held: `caller` or `policy`.
    pub by: HeldBy,
    /// Who released it before its time, when, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<Word>,
    /// What another process needs to execute it, as JSON in the form of its surface. It is deleted by the write that
    /// records that it was done, or never will be: until then another attempt must be the same action. Without a
    /// request, only a call by its caller can execute it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// Whether only a call by its caller can start it, because its credentials are not stored. The request is there to
    /// be shown to the person who decides.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub caller_only: bool,
}

/// Who said that an operation is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldBy {
    /// The call itself.
    Caller,
    /// The policy.
    Policy,
}

impl HeldBy {
    /// The name of the value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Caller => "caller",
            Self::Policy => "policy",
        }
    }
}

impl Held {
    /// A hold that the policy asks for, without a request: only a call by its caller can execute it.
    pub(crate) fn by_policy() -> Self {
        let surface = "library".to_owned();
        let by = HeldBy::Policy;
        Self { until_ms: None, surface, by, released: None, request: None, caller_only: false }
    }

    /// Checks that the request is not too large to be stored.
    pub(crate) fn check(&self) -> Result<(), InvalidInput> {
        let size = self.request.as_ref().map_or(0, String::len);
        if size <= MAX_REQUEST {
            return Ok(());
        }
        Err(InvalidInput::new(format!(
            "the request has {size} bytes, and a held operation stores at most {MAX_REQUEST}; nothing was run"
        )))
    }

    /// Whether it may start: it was released, or its time has come.
    #[must_use]
    pub fn may_start(&self, now_ms: i64) -> bool {
        self.released.is_some() || self.until_ms.is_some_and(|until_ms| until_ms <= now_ms)
    }
}

impl Record {
    /// How it is held back, while it waits for its time or for a person.
    #[must_use]
    pub fn held(&self) -> Option<&Held> {
        self.detail.held.as_deref().filter(|_| self.state == State::Staged)
    }

    /// Whether it was held back, and neither its time nor a person lets it start. That can also be so in a later state:
    /// after a restore it is not known whether it was released.
    #[must_use]
    pub fn needs_release(&self, now_ms: i64) -> bool {
        self.detail.held.as_deref().is_some_and(|held| !held.may_start(now_ms))
    }

    /// The stored request of an operation that may still be executed: it is held, or it may start again because its
    /// last attempt had no effect, or may have had none.
    #[must_use]
    pub fn held_request(&self) -> Option<&str> {
        match self.state {
            State::Staged | State::Running | State::Failed | State::InDoubt => {
                self.detail.held.as_ref().filter(|held| !held.caller_only)?.request.as_deref()
            }
            State::Done | State::Cancelled | State::Expired => None,
        }
    }

    /// Deletes the stored request if the operation can no longer be executed from it.
    pub(crate) fn forget_request(&mut self) {
        if let Some(held) = &mut self.detail.held
            && match self.state {
                State::Staged => false,
                State::Running | State::Failed | State::InDoubt => held.caller_only,
                State::Done | State::Cancelled | State::Expired => true,
            }
        {
            held.request = None;
        }
    }
}
