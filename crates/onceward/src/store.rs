//! The seam: what a back end does for the ledger. It holds records and tells time; it knows no policy.

use std::sync::Arc;

use async_trait::async_trait;

use crate::decide::Liveness;
use crate::key::OperationId;
use crate::record::{Owner, Record, State};

/// Why a back end could not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be reached, opened or written now. Nothing was written, or the reply was lost: the ledger looks again.
    #[error("{what}")]
    Unavailable {
        /// What could not be done, and what to do about it.
        what: String,
        /// What the engine said.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// There is no ledger, and none was to be made. Nothing was written.
    #[error("{what}")]
    Missing {
        /// Where there is none, and how one is made.
        what: String,
    },
    /// What is there is not, or is no longer, a ledger that this version understands. Nothing was written.
    #[error("{what}")]
    Unusable {
        /// What is wrong, and what to do about it.
        what: String,
    },
}

impl StoreError {
    /// It cannot be used now.
    pub fn unavailable(what: impl Into<String>) -> Self {
        Self::Unavailable { what: what.into(), source: None }
    }

    /// It cannot be used now, because of `source`.
    pub fn because(what: impl Into<String>, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Unavailable { what: format!("{}: {source}", what.into()), source: Some(Box::new(source)) }
    }
}

/// What to do where there is no ledger yet: what an opener of ledgers is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Missing {
    /// It is made.
    #[default]
    Make,
    /// It is an error: whoever only looks must not leave anything behind.
    Refuse,
}

/// What a compare-and-swap came to.
#[derive(Debug)]
pub enum Swap {
    /// The record is written, and durable.
    Written(Arc<Record>),
    /// Another one was there. This is it, or nothing where there is none.
    Conflict(Option<Arc<Record>>),
}

/// One change of a batch: see [`Store::apply`].
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "a batch is short-lived, and most of its changes are swaps")]
pub enum Change {
    /// Write `record` if the stored version is `expected` (`None`: if there is none).
    Swap {
        /// The version that must be stored.
        expected: Option<u64>,
        /// What to write.
        record: Record,
    },
    /// Delete the record if its version is `expected`.
    Delete {
        /// Which record.
        id: OperationId,
        /// The version that must be stored.
        expected: u64,
    },
}

/// What became of one change of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It is written, and durable.
    Written,
    /// The stored version was another one: nothing was written for this change.
    Conflict,
}

/// How a write comes in: whether the caller's thread may be blocked for its time, and whether it has time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// It may: the store can write on this very thread and save two changes of thread.
    Blocking,
    /// It may not: other tasks live on this thread.
    Async,
    /// It may not, and there is no hurry: others go first, and the write may share their sync. Once it is written
    /// everybody sees it, but until the next write is durable it may be lost with the machine's power.
    Patient,
}

/// Whether processes that the owner starts keep its lock alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inherit {
    /// No: the attempt ends with this process.
    No,
    /// Yes: the attempt lives as long as this process or one that it started.
    Children,
}

/// Whether an attempt's request has left, as its owner notes it where others find it after the owner's death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dispatch {
    /// Nothing has left: an owner that dies now has had no effect.
    NotYet,
    /// It leaves now: from here on nobody but the owner can say.
    Begun,
}

/// A lock that its holder keeps for as long as it lives. Dropping it says: this attempt is over.
pub trait Hold: Send + Sync {
    /// Names the lock in the record of the attempt.
    fn token(&self) -> u64;

    /// Notes whether the attempt has dispatched anything. The note need not outlive the machine: without one, an
    /// attempt whose owner is gone is in doubt.
    fn note_dispatch(&self, dispatch: Dispatch) -> Result<(), StoreError>;
}

/// How the ledger learns whether an owner lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// By looking: the kernel knows.
    Kernel,
    /// By its silence: a live owner renews its lease.
    Lease,
}

/// A back end's clock, so that all who share a ledger share its time.
#[async_trait]
pub trait Clock: Send + Sync {
    /// Milliseconds since 1970.
    fn now_ms(&self) -> i64;

    /// Waits.
    async fn sleep(&self, ms: u64);
}

/// Which records to list, newest first, or to count. All conditions must hold.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only of this scope.
    pub scope: Option<String>,
    /// Only of this name.
    pub name: Option<String>,
    /// Only with this very key.
    pub key: Option<String>,
    /// Only those whose id begins so: `op_` and any number of its digits.
    pub id_prefix: Option<String>,
    /// Only those created at this time or later.
    pub since_ms: Option<i64>,
    /// Only those created before this time.
    pub until_ms: Option<i64>,
    /// Only in one of these states, as they are written; empty for all.
    pub states: Vec<State>,
    /// Only those that were created before this cursor, which a listing gives with its last record.
    pub before: Option<Cursor>,
    /// At most so many.
    pub limit: usize,
}

impl Filter {
    /// Whether all conditions but the cursor hold for this record, as it is written.
    #[must_use]
    pub fn matches(&self, record: &Record) -> bool {
        self.scope.as_ref().is_none_or(|scope| *scope == record.scope)
            && self.name.as_ref().is_none_or(|name| *name == record.name)
            && self.key.as_ref().is_none_or(|key| *key == record.key.text)
            && self.id_prefix.as_ref().is_none_or(|prefix| record.id.as_str().starts_with(prefix))
            && self.since_ms.is_none_or(|since| record.created_ms >= since)
            && self.until_ms.is_none_or(|until| record.created_ms < until)
            && (self.states.is_empty() || self.states.contains(&record.state))
    }
}

/// A place in a listing, opaque to callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor(pub i64);

/// A listed record and the place it stands at.
#[derive(Debug, Clone)]
pub struct Listed {
    /// For the next page.
    pub cursor: Cursor,
    /// The record, without the body of its result.
    pub record: Record,
}

/// How many records there are in each state, as they are written.
pub type Counts = std::collections::BTreeMap<State, u64>;

/// A back end. One record is read and one is written, by compare-and-swap on its version.
#[async_trait]
pub trait Store: Send + Sync {
    /// The clock that its users share.
    fn clock(&self) -> &dyn Clock;

    /// How its users learn whether an owner lives.
    fn watch(&self) -> Watch;

    /// What is known of that id without a way to go. `None` may also mean that nothing is known here: the ledger then
    /// writes its intent at once, and the swap brings what stands in its way. A store that is near simply looks.
    async fn recall(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        self.load(id).await
    }

    /// The record of that id.
    async fn load(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError>;

    /// Writes `record` if the stored version is `expected` (`None`: if there is none), durably before it returns
    /// unless it came in by [`Door::Patient`].
    async fn swap(&self, expected: Option<u64>, record: Record, door: Door) -> Result<Swap, StoreError>;

    /// Deletes the record if its version is `expected`; tells whether it did.
    async fn delete(&self, id: &OperationId, expected: u64, door: Door) -> Result<bool, StoreError>;

    /// Applies many changes, of which no two are of one operation. Each succeeds or fails by itself, as by
    /// [`Store::swap`] and [`Store::delete`], and the answers come in the order of the changes. When this returns, what
    /// was written is durable. After an error some of the changes may have been written.
    ///
    /// A store overrides this to share one sync, or one round trip, among many changes.
    async fn apply(&self, changes: Vec<Change>, door: Door) -> Result<Vec<Applied>, StoreError> {
        let mut applied = Vec::with_capacity(changes.len());
        for change in changes {
            let written = match change {
                Change::Swap { expected, record } => {
                    matches!(self.swap(expected, record, door).await?, Swap::Written(_))
                }
                Change::Delete { id, expected } => self.delete(&id, expected, door).await?,
            };
            applied.push(if written { Applied::Written } else { Applied::Conflict });
        }
        Ok(applied)
    }

    /// The records that the filter lets through, newest first.
    async fn list(&self, filter: &Filter) -> Result<Vec<Listed>, StoreError>;

    /// Up to `limit` records whose `due_ms` is not after `now_ms`, the longest overdue first.
    async fn due(&self, now_ms: i64, limit: usize) -> Result<Vec<Record>, StoreError>;

    /// How many of the records that the filter lets through there are in each state. Its limit and its cursor do not
    /// count.
    async fn counts(&self, filter: &Filter) -> Result<Counts, StoreError>;

    /// Returns when the record may no longer have version `seen`, or after `timeout_ms`. May return early.
    async fn changed(&self, id: &OperationId, seen: u64, timeout_ms: u64);

    /// Takes a new lock that this process holds until it is dropped or dies.
    fn hold(&self, inherit: Inherit) -> Result<Box<dyn Hold>, StoreError>;

    /// Whether the owner's lock is held.
    async fn liveness(&self, owner: &Owner) -> Result<Liveness, StoreError>;

    /// Notes that a result was replayed. A tally: it costs no write of its own and may be lost.
    fn tally_replay(&self, id: &OperationId);
}
