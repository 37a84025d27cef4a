//! The interface between the ledger and a back end. A store holds records and supplies time; it contains no
//! policy.

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::barrier::Barrier;
use crate::facts::Liveness;
use crate::identity::Identity;
use crate::key::{Fingerprint, OperationId};
use crate::kind::Kind;
use crate::record::{Owner, Record, State};
use crate::text::masked_in;

/// Why a back end could not carry out a request. Its text repeats no password of a URL or path. It includes the
/// engine's own words, so it has no `source`: printing a chain of errors says each thing once.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store cannot be reached, opened or written now. Either nothing was written or the reply was lost:
    /// the ledger reads the record again to find out.
    #[error("{}", masked_in(.what))]
    Unavailable {
        /// What failed, and what to do about it.
        what: String,
    },
    /// There is no ledger, and the caller asked not to create one. Nothing was written.
    #[error("{}", masked_in(.what))]
    Missing {
        /// Which ledger is missing, and how to create it.
        what: String,
    },
    /// This is not the ledger that was opened: it was emptied, restored or replaced. Nothing was written, and
    /// every further write fails until an operator has decided what to do.
    #[error("{}", masked_in(.what))]
    Replaced {
        /// What was observed, and what to do about it.
        what: String,
    },
    /// The data is not a ledger, or not one that this version understands. Nothing was written.
    #[error("{}", masked_in(.what))]
    Unusable {
        /// What is wrong, and what to do about it.
        what: String,
    },
}

impl StoreError {
    /// The store cannot be used now.
    pub fn unavailable(what: impl Into<String>) -> Self {
        Self::Unavailable { what: what.into() }
    }

    /// The ledger is not the one that was opened; `seen` says how that was noticed.
    #[must_use]
    pub fn replaced(seen: &str) -> Self {
        Self::Replaced {
            what: format!(
                "this is not the ledger that was opened ({seen}); operations may be missing from it. Put the \
                 right one back; or, after a restore from a backup, run `once restored --at TIME` with the time of \
                 the backup and start this program again"
            ),
        }
    }

    /// The store cannot be used now, because of `source`.
    pub fn because(what: impl Into<String>, source: impl std::error::Error) -> Self {
        Self::Unavailable { what: format!("{}: {source}", what.into()) }
    }
}

/// What to do if there is no ledger yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IfMissing {
    /// Create it.
    #[default]
    Create,
    /// Fail: a command that only reads must not leave a new file behind.
    Fail,
}

/// The result of a compare-and-swap.
#[derive(Debug)]
pub enum Swap {
    /// The record was written and is durable.
    Written(Arc<Record>),
    /// The stored version was a different one. Holds the stored record, or `None` if there is none.
    Conflict(Option<Arc<Record>>),
}

/// The result of a write that begins something: an attempt, or an operation that is held back.
#[derive(Debug)]
pub enum Begin {
    /// The scope is not stopped, or the stored version was a different one.
    Swapped(Swap),
    /// The scope is stopped. Nothing was written.
    Stopped(Barrier),
}

/// One change in a batch: see [`Store::apply`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "a batch is short-lived, and most of its changes are swaps")]
pub enum Change {
    /// Write `record` if the stored version is `expected` (`None`: if there is no record).
    Swap {
        /// The version that must be stored.
        expected: Option<u64>,
        /// The new record.
        record: Record,
    },
    /// Delete the record if its version is `expected`.
    Delete {
        /// The record to delete.
        id: OperationId,
        /// The version that must be stored.
        expected: u64,
    },
}

/// The result of one change in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Applied {
    /// The change was written and is durable.
    Written,
    /// The stored version was a different one, so nothing was written for this change.
    Conflict,
}

/// Whether a write may block the calling thread, and whether it may be deferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteMode {
    /// The store may write on the calling thread, which saves two thread switches.
    Blocking,
    /// The calling thread must not block: other tasks run on it.
    Async,
    /// Must not block, and may wait for another write and share its sync. Other callers see it once it is written,
    /// but a power cut may lose it until a later write is durable.
    Deferred,
}

/// Whether processes that the owner starts keep its lock alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inherit {
    /// No: the attempt ends with this process.
    No,
    /// Yes: the attempt lives as long as this process or one that it started.
    Children,
}

/// Whether an attempt's request has been sent. The owner notes it where other processes can read it after the
/// owner's death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dispatch {
    /// Nothing has been sent: if the owner dies now, there was no effect.
    NotYet,
    /// The request is being sent. From now on only the owner can say whether it took effect.
    Begun,
}

/// A lock that its owner holds for as long as it lives. Dropping the lock ends the attempt.
pub trait OwnerLock: Send + Sync {
    /// The number by which the attempt's record refers to this lock.
    fn token(&self) -> u64;

    /// Notes whether the attempt has dispatched anything. The note may be lost with the machine: without one,
    /// an attempt whose owner is gone is in doubt.
    fn note_dispatch(&self, dispatch: Dispatch) -> Result<(), StoreError>;
}

/// How the ledger finds out whether an owner is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LivenessSource {
    /// From the kernel, which releases an owner's lock when the owner dies.
    Kernel,
    /// From its lease, which a live owner renews.
    Lease,
}

/// A back end's clock. All users of a ledger share it, so their own clocks need not agree.
#[async_trait]
pub trait Clock: Send + Sync {
    /// Milliseconds since 1970, UTC.
    fn now_ms(&self) -> i64;

    /// Sleeps for `ms` milliseconds.
    async fn sleep(&self, ms: u64);
}

/// Whether a write begins something, so that a barrier can refuse it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Writing {
    /// It begins an attempt, or holds an operation back.
    Begin,
    /// It changes what has begun: no barrier refuses it.
    Change,
}

/// Which records to list (newest first) or to count. All conditions must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Filter {
    /// Only records in this scope.
    pub scope: Option<String>,
    /// Only records whose scope starts with this.
    pub scope_prefix: Option<String>,
    /// Only records with this name.
    pub name: Option<String>,
    /// Only records with exactly this key.
    pub key: Option<String>,
    /// Only records with this fingerprint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Fingerprint>,
    /// Only records whose id starts with this: `op_` and any number of digits.
    pub id_prefix: Option<String>,
    /// Only records created at this time or later.
    pub since_ms: Option<i64>,
    /// Only records created before this time.
    pub until_ms: Option<i64>,
    /// Only records of one of these kinds; empty for all.
    pub kinds: Vec<Kind>,
    /// Only records with one of these stored states; empty for all.
    pub states: Vec<State>,
    /// Only records created before this cursor. A listing returns one with each record.
    pub before: Option<Cursor>,
    /// The maximum number of records.
    pub limit: usize,
}

impl Filter {
    /// Whether the stored record meets all conditions except the cursor.
    #[must_use]
    pub fn matches(&self, record: &Record) -> bool {
        self.scope.as_ref().is_none_or(|scope| *scope == record.scope)
            && self.scope_prefix.as_ref().is_none_or(|prefix| record.scope.starts_with(prefix))
            && self.name.as_ref().is_none_or(|name| *name == record.name)
            && self.key.as_ref().is_none_or(|key| *key == record.key.text)
            && self.fingerprint.as_ref().is_none_or(|print| *print == record.detail.fingerprint)
            && self.id_prefix.as_ref().is_none_or(|prefix| record.id.as_str().starts_with(prefix))
            && self.since_ms.is_none_or(|since| record.created_ms >= since)
            && self.until_ms.is_none_or(|until| record.created_ms < until)
            && (self.kinds.is_empty() || self.kinds.contains(&record.kind))
            && (self.states.is_empty() || self.states.contains(&record.state))
    }
}

/// The first text after all that start with the prefix, where texts are compared by their bytes. `None` if there is
/// none. For stores that look up a range of an index.
#[must_use]
pub fn after_prefix(prefix: &str) -> Option<String> {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        // The range skips the surrogates, which are not characters.
        if let Some(next) = (last..=char::MAX).nth(1) {
            end.push(next);
            return Some(end);
        }
    }
    None
}

/// Of some occurrences of one action, each of them once: those that are open after this time, and the newest. For
/// stores whose indexes find more.
#[must_use]
pub fn open_or_newest(mut found: Vec<Record>, now_ms: i64) -> Vec<Record> {
    found.sort_by(|one, other| (one.number, &one.id).cmp(&(other.number, &other.id)));
    found.dedup_by(|one, other| one.id == other.id);
    let newest = found.iter().filter_map(|record| record.number).max();
    let mut open = 0;
    found.retain(|record| {
        let is_open = record.open_until_ms().is_some_and(|until_ms| until_ms > now_ms);
        open += usize::from(is_open);
        (is_open && open <= MOST_OPEN) || (record.number.is_some() && record.number == newest)
    });
    found
}

/// The most open occurrences of one action that a store returns. Only parallel calls leave more than one open.
pub const MOST_OPEN: usize = 64;

/// A position in a listing, opaque to callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cursor(pub i64);

/// A listed record and its position in the listing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Listed {
    /// Where the next page starts.
    pub cursor: Cursor,
    /// The record, without the body of its result.
    pub record: Record,
}

/// The number of records in each stored state.
pub type Counts = std::collections::BTreeMap<State, u64>;

/// A back end. It reads and writes single records, and writes by compare-and-swap on the record's version.
///
/// Run the `conformance` suite against every implementation. [`MemoryStore`](crate::MemoryStore) is the
/// reference.
#[async_trait]
pub trait Store: Send + Sync {
    /// The clock that all users of this store share.
    fn clock(&self) -> &dyn Clock;

    /// How the ledger finds out whether an owner is alive.
    fn watch(&self) -> LivenessSource;

    /// The ledger's identity as of the time the store was opened. Every write checks that the ledger still
    /// has this name and epoch, and fails with [`StoreError::Replaced`] if it does not.
    fn identity(&self) -> &Identity;

    /// Replaces the ledger's identity: after a restore, to lift the fence of a restore, or to adopt another
    /// ledger's secret. Fails with [`StoreError::Replaced`] if the ledger no longer has the identity of this
    /// store. If the epoch changes, this store and every other open one are stale and must be reopened.
    async fn set_identity(&self, next: &Identity) -> Result<(), StoreError>;

    /// The record, if it can be read without a round trip. `None` may also mean that this store does not
    /// know: the ledger then writes its intent at once, and the swap returns the record that conflicts. A
    /// local store simply reads the record.
    async fn load_cached(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        self.load(id).await
    }

    /// The record with this id.
    async fn load(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError>;

    /// Writes `record` if the stored version is `expected` (`None`: if there is no record). The write is
    /// durable when this returns, except with [`WriteMode::Deferred`].
    async fn swap(&self, expected: Option<u64>, record: Record, mode: WriteMode) -> Result<Swap, StoreError>;

    /// The same for a record that begins an attempt, or that is held back to begin later: refused with
    /// [`Begin::Stopped`] if a barrier covers its scope ([`Barrier::covers`]). The barrier is checked atomically with
    /// the write. A conflict takes precedence, so that a stored result is replayed also in a stopped scope.
    ///
    /// [`Store::swap`] is for every other change: no barrier delays an ending, a renewal or a settlement.
    async fn begin(
        &self,
        expected: Option<u64>,
        record: Record,
        mode: WriteMode,
    ) -> Result<Begin, StoreError>;

    /// Stops a scope, and returns its barrier: this one, or the one that was there before. When this returns, the
    /// barrier is durable, and no record that it covers is begun any more, by any process: a begin that was not
    /// refused is already visible.
    async fn stop(&self, barrier: &Barrier) -> Result<Barrier, StoreError>;

    /// Lifts the barrier of exactly this scope, and returns it.
    async fn resume(&self, scope: &str) -> Result<Option<Barrier>, StoreError>;

    /// All barriers, ordered by scope.
    async fn barriers(&self) -> Result<Vec<Barrier>, StoreError>;

    /// Deletes the record if its version is `expected`, and returns whether it did.
    async fn delete(&self, id: &OperationId, expected: u64, mode: WriteMode) -> Result<bool, StoreError>;

    /// Applies a batch of changes. No two of them may be about the same operation. Each succeeds or fails
    /// independently, as with [`Store::swap`] and [`Store::delete`], and the results are in the order of the
    /// changes. When this returns, everything written is durable. After an error, some of the changes may
    /// have been written.
    ///
    /// Override this to share one sync, or one round trip, between the changes.
    async fn apply(&self, changes: Vec<Change>, mode: WriteMode) -> Result<Vec<Applied>, StoreError> {
        let mut applied = Vec::with_capacity(changes.len());
        for change in changes {
            let written = match change {
                Change::Swap { expected, record } => {
                    matches!(self.swap(expected, record, mode).await?, Swap::Written(_))
                }
                Change::Delete { id, expected } => self.delete(&id, expected, mode).await?,
            };
            applied.push(if written { Applied::Written } else { Applied::Conflict });
        }
        Ok(applied)
    }

    /// The occurrences of an action that an equal call may refer to, in any order and without the bodies of their
    /// results: those that are open after `now_ms` ([`Record::open_until_ms`]), up to [`MOST_OPEN`] of them, and the
    /// one with the highest number. The cost must not depend on the number of records, or of occurrences that are over.
    async fn occurrences(&self, action: &OperationId, now_ms: i64) -> Result<Vec<Record>, StoreError>;

    /// The records that match the filter, newest first.
    async fn list(&self, filter: &Filter) -> Result<Vec<Listed>, StoreError>;

    /// Up to `limit` records whose `due_ms` is not after `now_ms`, most overdue first.
    async fn due(&self, now_ms: i64, limit: usize) -> Result<Vec<Record>, StoreError>;

    /// The number of records that match the filter, by state. The filter's limit and cursor are ignored.
    async fn counts(&self, filter: &Filter) -> Result<Counts, StoreError>;

    /// Returns when the record may no longer have version `seen`, or after `timeout_ms`. May return early.
    async fn changed(&self, id: &OperationId, seen: u64, timeout_ms: u64);

    /// Takes a new lock. This process holds it until the lock is dropped or the process dies.
    fn hold(&self, inherit: Inherit) -> Result<Box<dyn OwnerLock>, StoreError>;

    /// Whether the owner's lock is held.
    async fn liveness(&self, owner: &Owner) -> Result<Liveness, StoreError>;

    /// Counts a replayed result. The count costs no write of its own and may be lost.
    fn tally_replay(&self, id: &OperationId);
}
