//! The stored form of an operation.

mod check;
mod deliveries;
mod delivery;
mod held;
mod outcome;
mod undo;
mod whole;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub(crate) use self::undo::evidence_in_words;
pub use self::undo::{Compensation, CompensationKind, ProgramUndo, UndoEvidence, Undone, check_compensation};
use crate::evidence::Evidence;
use crate::invalid::InvalidInput;
use crate::key::{Fingerprint, Key, OperationId};
use crate::kind::Kind;
use crate::word::Word;

pub use deliveries::{Again, Deliveries, Fate, Round};
pub use delivery::Delivered;
pub use held::{Held, HeldBy, MAX_REQUEST};
pub use outcome::Outcome;

/// The largest result that is stored, in bytes.
pub const MAX_RESULT: usize = 16 * 1024 * 1024;

/// How many finished attempts a record keeps.
pub const MAX_HISTORY: usize = 16;

/// A state of the contract. No `match` over states uses `_`, so a new state must be handled everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Recorded but held back until it is committed or aborted.
    Staged,
    /// An attempt is running, or its owner has died and this has not been recorded yet.
    Running,
    /// It happened, and the result is stored.
    Done,
    /// It did not happen; this is certain.
    Failed,
    /// It is unknown whether it happened.
    InDoubt,
    /// It will not happen; this is certain.
    Cancelled,
    /// A tombstone: it finished long ago and its result has been deleted.
    Expired,
}

impl State {
    /// Every state, in the order in which an operation can pass through them.
    pub const ALL: [Self; 7] = [
        Self::Staged,
        Self::Running,
        Self::Done,
        Self::Failed,
        Self::InDoubt,
        Self::Cancelled,
        Self::Expired,
    ];

    /// The name of the state, the same on every surface.
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

    /// Whether only a settlement, a late answer or time can still change it.
    #[must_use]
    pub const fn is_settled(self) -> bool {
        match self {
            Self::Done | Self::Failed | Self::Cancelled | Self::Expired => true,
            Self::Staged | Self::Running | Self::InDoubt => false,
        }
    }
}

/// How safe an operation is to repeat. Decides what the ledger may do when it is in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Changes nothing. It always runs and is not recorded.
    Read,
    /// Running it twice has the same effect as running it once.
    Idempotent,
    /// The downstream deduplicates by a key.
    Keyed,
    /// A probe can tell whether it happened.
    Probed,
    /// None of these. The default for everything that is not known to be safer.
    #[default]
    Once,
}

impl Class {
    /// Every class, from the safest to the least known.
    pub const ALL: [Self; 5] = [Self::Read, Self::Idempotent, Self::Keyed, Self::Probed, Self::Once];

    /// The name of the class.
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

/// What an operation changed, or would change in a dry run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// It created something.
    Created,
    /// It changed something that existed.
    Updated,
    /// It deleted something.
    Deleted,
    /// Nothing changed.
    Noop,
    /// Dry run: it would create something.
    WouldCreate,
    /// Dry run: it would change something that exists.
    WouldUpdate,
    /// Dry run: it would delete something.
    WouldDelete,
    /// Dry run: it would change nothing.
    WouldNoop,
    /// It is held back: nothing has changed yet.
    Held,
}

impl Effect {
    /// The effects that an attempt can have.
    pub const REAL: [Self; 4] = [Self::Created, Self::Updated, Self::Deleted, Self::Noop];

    /// The name of the effect.
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
            Self::Held => "held",
        }
    }

    /// The effect that a dry run reports for an operation with this effect.
    #[must_use]
    pub const fn would(self) -> Self {
        match self {
            Self::Created | Self::WouldCreate => Self::WouldCreate,
            Self::Updated | Self::WouldUpdate => Self::WouldUpdate,
            Self::Deleted | Self::WouldDelete => Self::WouldDelete,
            Self::Noop | Self::WouldNoop | Self::Held => Self::WouldNoop,
        }
    }
}

/// The result of checking a reported success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verification {
    /// The check found the effect.
    Confirmed,
    /// The check did not find the effect, although success was reported.
    Refuted,
    /// The check did not find the effect yet.
    Pending,
}

impl Verification {
    /// The name of the result.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::Refuted => "refuted",
            Self::Pending => "pending",
        }
    }
}

macro_rules! impl_words {
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

impl_words!(State from Self::ALL, Class from Self::ALL, Effect from Self::REAL,
        Verification from [Self::Confirmed, Self::Refuted, Self::Pending]);

/// An operation as the ledger stores it.
///
/// ```
/// use std::sync::Arc;
/// use onceward::{Ledger, ManualClock, MemoryStore, Operation, State};
///
/// let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0)))).blocking();
/// let receipt = ledger.run(Operation::new("ship"), |attempt| Ok(attempt.dispatch()?.created(&"parcel 7")))?;
/// let record = receipt.record();
/// assert_eq!((record.name.as_str(), record.state, record.attempt), ("ship", State::Done, 1));
/// # Ok::<(), onceward::Error>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// Derived from scope, name and key.
    pub id: OperationId,
    /// The action that this is an occurrence of, unless its id is the same: see [`Record::action`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<OperationId>,
    /// The number of the occurrence, if the ledger counts them: not with a given key or a label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// What the record is.
    #[serde(default, skip_serializing_if = "Kind::is_operation")]
    pub kind: Kind,
    /// The namespace of the key: calls in the same scope share keys.
    pub scope: String,
    /// The operation's name.
    pub name: String,
    /// The key that identifies this operation among those with the same scope and name.
    pub key: Key,
    /// Incremented by every change; compare-and-swap compares it.
    pub version: u64,
    /// The stored state. A `Running` record whose owner is gone *is* in doubt: see
    /// [`crate::decide::effective_state`].
    pub state: State,
    /// The number of the newest attempt, which is also the fencing token.
    pub attempt: u32,
    /// When the operation was first requested.
    pub created_ms: i64,
    /// When it last changed.
    pub updated_ms: i64,
    /// When a settled record ages: when a result becomes a tombstone, or a tombstone is deleted.
    pub due_ms: Option<i64>,
    /// Everything else that was written with the intent.
    pub detail: Detail,
    /// How the operation ended.
    pub outcome: Option<Outcome>,
    /// How often the result was replayed. May lag behind; no decision depends on it.
    #[serde(default)]
    pub replays: u64,
}

/// What is written with the intent, before anything runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Detail {
    /// The fingerprint of the inputs of the first request.
    pub fingerprint: Fingerprint,
    /// A digest of each field, to name the ones that differ. All versions of the record share one map,
    /// because it never changes.
    #[serde(default, skip_serializing_if = "no_fields")]
    pub fields: Arc<BTreeMap<String, String>>,
    /// How safe the operation is to repeat when it is in doubt.
    pub class: Class,
    /// The key that was sent downstream, and how long the downstream is sure to honour it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downstream: Option<Downstream>,
    /// The owner of the newest attempt. An operation in doubt keeps it, because a process that the owner
    /// started may still hold the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// How many attempts belong to an earlier occurrence of the same key.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts_before: u32,
    /// The maximum number of attempts.
    pub max_attempts: u32,
    /// How long the result is kept.
    pub retention_ms: u64,
    /// How long the tombstone is kept.
    pub tombstone_ms: u64,
    /// A command that tells whether the operation happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<String>,
    /// Exit codes of the probe that mean "no", in addition to 10.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probe_no: Vec<i32>,
    /// A command that checks a reported success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<String>,
    /// What takes the operation back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<Compensation>,
    /// Whether its effect was taken back, or is being taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone: Option<Undone>,
    /// The operation that this one takes back, if it is a compensation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<OperationId>,
    /// Finished attempts, oldest first; only the newest [`MAX_HISTORY`] of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Past>,
    /// When cancellation of the running attempt was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_requested_ms: Option<i64>,
    /// Who cancelled the operation while it ran: if the attempt had no effect, the operation is cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancelled_by: Option<Box<Word>>,
    /// How long the request of an attempt in doubt may still be in flight.
    #[serde(default, skip_serializing_if = "is_zero_ms")]
    pub quarantine_ms: u64,
    /// Before this time a probe's *no* does not count, because the request may still be in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine_until_ms: Option<i64>,
    /// Whether the operation is in doubt only because its owner did not renew its lease. An owner that is
    /// still alive takes the operation back.
    #[serde(default, skip_serializing_if = "is_false")]
    pub silent: bool,
    /// The folder in which the call, its probe and its check run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// The command line, if the policy stores it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The W3C `traceparent` of the call that began the newest attempt, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_parent: Option<String>,
    /// The state in which an expired operation had ended. Unknown for tombstones of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<State>,
    /// The success that an overtaken attempt reported while the next attempt was running.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "whole")]
    pub late: Option<Outcome>,
    /// The alarm: set when more than one attempt had, or may have had, an effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub double_effect: Option<DoubleEffect>,
    /// What is known about the delivery of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered: Option<Delivered>,
    /// How it is or was held back before its first attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Box<Held>>,
    /// Who gets the event, and what became of it there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Box<Deliveries>>,
}

/// The key that is sent downstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Downstream {
    /// Derived from the operation's own key; the same for every attempt.
    pub key: String,
    /// After this time the downstream may have forgotten the key, and the operation is treated as `once`.
    pub safe_until_ms: i64,
}

/// The process that executes an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The number of the lock that the owner holds for as long as it lives.
    pub token: u64,
    /// When its lease ends. Until then the owner is presumed alive if it cannot be observed.
    pub lease_until_ms: i64,
}

impl Record {
    /// All that someone said about it and its earlier attempts.
    pub(crate) fn words(&self) -> impl Iterator<Item = &Word> {
        let Detail { history, held, late, undone, cancelled_by, .. } = &self.detail;
        let outcomes = self.outcome.iter().chain(late).filter_map(|outcome| outcome.settled_by.as_deref());
        let past = history.iter().filter_map(|past| past.settled_by.as_deref());
        let released = held.iter().filter_map(|held| held.released.as_ref());
        let undone = undone.iter().filter_map(|mark| mark.settled_by.as_ref());
        outcomes.chain(past).chain(released).chain(undone).chain(cancelled_by.as_deref())
    }

    /// The operation or event that this record is another key of.
    #[must_use]
    pub fn alias_of(&self) -> Option<OperationId> {
        #[derive(Deserialize)]
        struct Alias {
            alias_of: OperationId,
        }
        let data = match self.kind {
            Kind::Alias | Kind::Guard | Kind::Marker => self.outcome.as_ref()?.data.as_ref()?,
            Kind::Operation | Kind::Event => return None,
        };
        serde_json::from_str::<Alias>(data.get()).ok().map(|alias| alias.alias_of)
    }
}

impl Owner {
    /// Set in the token of an owner that uses the ledger through a server. Kernel locks have smaller numbers.
    pub const LEASED: u64 = 1 << 63;

    /// Whether only the lease tells if the owner is alive, even if the store sees the locks of other owners: this
    /// owner uses the ledger through a server, and holds no lock on the server's machine.
    #[must_use]
    pub const fn is_leased(&self) -> bool {
        self.token & Self::LEASED != 0
    }
}

/// A finished attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// The attempt's number.
    pub attempt: u32,
    /// How the attempt ended.
    pub ended: State,
    /// When the attempt ended.
    pub at_ms: i64,
    /// Why, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why it is certain that the attempt had no effect, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    /// Who settled it, if not the attempt itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_by: Option<Box<Word>>,
    /// What the attempt used, if it called a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// The tokens that one attempt of a model call used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// The model.
    pub model: String,
    /// Tokens of the request, without those that the provider read from its cache.
    pub input: u64,
    /// Tokens of the request that the provider read from its cache.
    #[serde(skip_serializing_if = "is_zero_ms")]
    pub cached: u64,
    /// Tokens of the answer.
    pub output: u64,
    /// Whether the provider did not report the numbers, so that they were estimated from the size of the text.
    #[serde(skip_serializing_if = "is_false")]
    pub estimated: bool,
    /// Which layer asked for the attempt: `caller`, `sdk` (a retry that the SDK reports), `retry` (an equal request)
    /// or `gateway`.
    pub layer: String,
    /// The provider's id of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// The alarm that an operation took effect more than once, either because someone settled a doubt wrongly or
/// because the remote could not be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DoubleEffect {
    /// Two attempts may have had an effect.
    Possible,
    /// Two attempts had an effect.
    Certain,
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
