//! What the ledger remembers of an operation.

mod whole;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::InvalidInput;
use crate::key::{Fingerprint, Key, OperationId};

/// How many ended attempts a record remembers.
pub const MAX_HISTORY: usize = 16;

/// A state of the contract. There is no `_` over states anywhere: a new one must be thought of everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Wanted, and held back until it is committed or aborted.
    Staged,
    /// An attempt is under way, or its owner died and nobody has looked yet.
    Running,
    /// It happened, and the result is kept.
    Done,
    /// It did not happen, for certain.
    Failed,
    /// Nobody can say yet.
    InDoubt,
    /// It will not happen, for certain.
    Cancelled,
    /// A tombstone: it ended long ago and its result is gone.
    Expired,
}

impl State {
    /// Every state, in the order of a life.
    pub const ALL: [Self; 7] = [
        Self::Staged,
        Self::Running,
        Self::Done,
        Self::Failed,
        Self::InDoubt,
        Self::Cancelled,
        Self::Expired,
    ];

    /// The word for it, the same on every surface.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Staged => "staged",
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::InDoubt => "in_doubt",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }

    /// Whether nothing but say-so, a late answer or time can move it on.
    #[must_use]
    pub const fn is_settled(self) -> bool {
        match self {
            Self::Done | Self::Failed | Self::Cancelled | Self::Expired => true,
            Self::Staged | Self::Running | Self::InDoubt => false,
        }
    }
}

/// What a tool is, and so what may be done when its operation is in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Changes nothing: passes through and is not recorded.
    Read,
    /// Repeating it converges.
    Idempotent,
    /// The downstream honours a key.
    Keyed,
    /// It can be asked whether it happened.
    Probed,
    /// None of these. The default for whatever is not known to be safer.
    #[default]
    Once,
}

impl Class {
    /// Every class, from the safest to the least known.
    pub const ALL: [Self; 5] = [Self::Read, Self::Idempotent, Self::Keyed, Self::Probed, Self::Once];

    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Idempotent => "idempotent",
            Self::Keyed => "keyed",
            Self::Probed => "probed",
            Self::Once => "once",
        }
    }

    /// The class of an operation that has a probe: `once` becomes `probed`, every other class stays.
    #[must_use]
    pub const fn with_probe(self) -> Self {
        match self {
            Self::Once | Self::Probed => Self::Probed,
            Self::Read | Self::Idempotent | Self::Keyed => self,
        }
    }
}

/// What an operation did to the world, or in a dry run would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Something new exists.
    Created,
    /// Something that existed is different.
    Updated,
    /// Something is gone.
    Deleted,
    /// Nothing changed.
    Noop,
    /// A dry run: something new would exist.
    WouldCreate,
    /// A dry run: something would be different.
    WouldUpdate,
    /// A dry run: something would be gone.
    WouldDelete,
    /// A dry run: nothing would change.
    WouldNoop,
}

impl Effect {
    /// The effects that an attempt can have.
    pub const REAL: [Self; 4] = [Self::Created, Self::Updated, Self::Deleted, Self::Noop];

    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Deleted => "deleted",
            Self::Noop => "noop",
            Self::WouldCreate => "would_create",
            Self::WouldUpdate => "would_update",
            Self::WouldDelete => "would_delete",
            Self::WouldNoop => "would_noop",
        }
    }

    /// What a dry run says of an operation with this effect.
    #[must_use]
    pub const fn would(self) -> Self {
        match self {
            Self::Created | Self::WouldCreate => Self::WouldCreate,
            Self::Updated | Self::WouldUpdate => Self::WouldUpdate,
            Self::Deleted | Self::WouldDelete => Self::WouldDelete,
            Self::Noop | Self::WouldNoop => Self::WouldNoop,
        }
    }
}

/// What a check after the fact said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verification {
    /// It is so.
    Confirmed,
    /// It is not so, although success was reported.
    Refuted,
    /// It is not so yet.
    Pending,
}

impl Verification {
    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::Refuted => "refuted",
            Self::Pending => "pending",
        }
    }
}

macro_rules! spoken {
    ($($word:ident from $all:expr),*) => {$(
        impl fmt::Display for $word {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $word {
            type Err = InvalidInput;
            fn from_str(text: &str) -> Result<Self, InvalidInput> {
                $all.into_iter().find(|word| word.as_str() == text).ok_or_else(|| {
                    let words: Vec<&str> = $all.iter().map(|word| word.as_str()).collect();
                    InvalidInput::new(format!("{text:?} is not one of {}", words.join(", ")))
                })
            }
        }
    )*};
}

spoken!(State from Self::ALL, Class from Self::ALL, Effect from Self::REAL,
        Verification from [Self::Confirmed, Self::Refuted, Self::Pending]);

/// An operation as the ledger remembers it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// Derived from scope, name and key.
    pub id: OperationId,
    /// Who shares the key.
    pub scope: String,
    /// What is done.
    pub name: String,
    /// Which one of them.
    pub key: Key,
    /// Counts every change of the record: what compare-and-swap compares.
    pub version: u64,
    /// Where it stands. A `Running` record whose owner is gone *is* in doubt: see [`crate::decide::standing`].
    pub state: State,
    /// The number of the newest attempt: the fencing token.
    pub attempt: u32,
    /// When it was first asked for.
    pub created_ms: i64,
    /// When it last changed.
    pub updated_ms: i64,
    /// When a settled record moves on: a result to a tombstone, a tombstone to nothing.
    pub due_ms: Option<i64>,
    /// What else was written with the intent.
    pub detail: Detail,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// How often the result was replayed. A tally: it may lag behind and is not part of any decision.
    #[serde(default)]
    pub replays: u64,
}

/// What is written with the intent, before anything happens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Detail {
    /// Of the inputs it was first asked for with.
    pub fingerprint: Fingerprint,
    /// A digest of each field, to name what differs. One map for all versions of the record: none changes it.
    #[serde(default, skip_serializing_if = "no_fields")]
    pub fields: Arc<BTreeMap<String, String>>,
    /// What may be done when it is in doubt.
    pub class: Class,
    /// The key that the downstream was given, and until when it is sure to honour it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downstream: Option<Downstream>,
    /// The owner of the newest attempt. A doubt keeps it: a process that the owner started may still hold its lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// How many attempts belong to an earlier occurrence of the same key.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts_before: u32,
    /// How many attempts may be made in all.
    pub max_attempts: u32,
    /// How long a result is kept.
    pub retention_ms: u64,
    /// How long a tombstone is kept.
    pub tombstone_ms: u64,
    /// A command that tells whether it happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<String>,
    /// Exit codes of the probe that mean "no", besides 10.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probe_no: Vec<i32>,
    /// A command that checks a reported success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<String>,
    /// Attempts that ended, oldest first, the newest [`MAX_HISTORY`] of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Past>,
    /// When somebody asked the running attempt to stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_requested_ms: Option<i64>,
    /// How long a request of an attempt in doubt may still be under way.
    #[serde(default, skip_serializing_if = "is_zero_ms")]
    pub quarantine_ms: u64,
    /// A probe's *no* does not count before this time, because the request could still be under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine_until_ms: Option<i64>,
    /// The folder of the call, in which its probe and its check run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// The command line, where the policy stores it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// How an expired operation had ended. Unknown for tombstones of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<State>,
    /// The success of an overtaken attempt that came while the next one was under way.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "whole")]
    pub late: Option<Outcome>,
    /// The alarm: more than one attempt had an effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub double_effect: Option<DoubleEffect>,
    /// From when on the answer counts as delivered, where a surface watches over that. A time to come means that the
    /// caller may have given up before the answer was there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_ms: Option<i64>,
}

/// The key that goes downstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Downstream {
    /// Derived from ours, the same for every attempt.
    pub key: String,
    /// After this the downstream may have forgotten it, and the operation is as `once`.
    pub safe_until_ms: i64,
}

/// Who executes an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Names the lock that the owner holds for as long as it lives.
    pub token: u64,
    /// Until when it may be silent, where nobody can see whether it lives.
    pub lease_until_ms: i64,
}

/// An attempt that ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// Its number.
    pub attempt: u32,
    /// How it ended.
    pub ended: State,
    /// When.
    pub at_ms: i64,
    /// Why, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The alarm that the promise was broken, by someone's say-so or by a remote that could not be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DoubleEffect {
    /// Two attempts may have had an effect.
    Possible,
    /// Two attempts had an effect.
    Certain,
}

/// How an operation ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// What it did to the world.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
    /// Why, in words: of a failure, a doubt, or a `noop`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What the check said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified: Option<Verification>,
    /// Who settled it, where it was not its own attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_by: Option<String>,
    /// The result, as the JSON text it came as.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub data: Option<Arc<RawValue>>,
    /// What a surface needs to answer byte for byte (output, headers). Kept beside the JSON, not in it.
    #[serde(skip)]
    pub body: Option<Arc<[u8]>>,
    /// The result was too large to keep.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unavailable: bool,
}

impl PartialEq for Outcome {
    fn eq(&self, other: &Self) -> bool {
        fn text(outcome: &Outcome) -> Option<&str> {
            outcome.data.as_ref().map(|data| data.get())
        }
        (self.effect, &self.reason, self.verified, &self.settled_by, &self.body, self.unavailable)
            == (
                other.effect,
                &other.reason,
                other.verified,
                &other.settled_by,
                &other.body,
                other.unavailable,
            )
            && text(self) == text(other)
    }
}

impl Outcome {
    /// An outcome with this effect and nothing else to say.
    #[must_use]
    pub fn with_effect(effect: Effect) -> Self {
        Self { effect: Some(effect), ..Self::because(None) }
    }

    /// An outcome that has only a reason.
    #[must_use]
    pub fn because(reason: Option<String>) -> Self {
        Self {
            effect: None,
            reason,
            verified: None,
            settled_by: None,
            data: None,
            body: None,
            unavailable: false,
        }
    }

    /// How many bytes its result takes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.data.as_ref().map_or(0, |data| data.get().len())
            + self.body.as_ref().map_or(0, |body| body.len())
    }
}

/// A result of `null` is a result.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(|data| Some(data.into()))
}

fn no_fields(fields: &Arc<BTreeMap<String, String>>) -> bool {
    fields.is_empty()
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_zero_ms(number: &u64) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}
