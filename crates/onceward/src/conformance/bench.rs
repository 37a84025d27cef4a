//! Shared helpers: a blocking view of the store, sample records, and failure messages.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::error::Error;
use crate::key::OperationId;
use crate::operation::{Intent, Operation};
use crate::record::{Outcome, Record, State};
use crate::store::{Applied, Change, Filter, Listed, Store, StoreError, Swap, WriteMode};
use crate::{Blocking, Ledger, transition};

/// The result of a case.
pub(super) type Verdict = Result<(), Problem>;

/// Why a case failed.
#[derive(Debug)]
pub(super) struct Problem(String);

impl Problem {
    pub(super) fn new(problem: impl Into<String>) -> Self {
        Self(problem.into())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Self(format!("the store said: {error}"))
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self(format!("the ledger said {}: {error}", error.code()))
    }
}

impl From<serde_json::Error> for Problem {
    fn from(error: serde_json::Error) -> Self {
        Self(format!("JSON: {error}"))
    }
}

/// Ends the case with a failure unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($why:tt)+) => {
        if !$holds { return Err($crate::conformance::bench::Problem::new(format!($($why)+))); }
    };
}

/// Ends the case with a failure unless both values are equal.
macro_rules! equal {
    ($seen:expr, $expected:expr, $what:expr) => {
        match (&$seen, &$expected) {
            (seen, expected) => {
                ensure!(*seen == *expected, "{}: saw {:?}, expected {:?}", $what, seen, expected)
            }
        }
    };
}
pub(super) use {ensure, equal};

/// A store under test.
pub(super) struct Bench {
    store: Arc<dyn Store>,
}

impl Deref for Bench {
    type Target = dyn Store;
    fn deref(&self) -> &Self::Target {
        &*self.store
    }
}

impl Bench {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self { store }
    }

    pub(super) fn ledger(&self) -> Blocking {
        Ledger::new(Arc::clone(&self.store)).blocking()
    }

    pub(super) fn now_ms(&self) -> i64 {
        self.clock().now_ms()
    }

    pub(super) fn pause(&self, ms: u64) {
        wait(self.clock().sleep(ms));
    }

    /// Waits until the store's clock has passed this time.
    pub(super) fn wait_past(&self, ms: i64) {
        while self.now_ms() <= ms {
            self.pause(1);
        }
    }

    pub(super) fn find(&self, id: &OperationId) -> Result<Option<Arc<Record>>, Problem> {
        Ok(wait(self.load(id))?)
    }

    pub(super) fn found(&self, id: &OperationId) -> Result<Arc<Record>, Problem> {
        self.find(id)?.ok_or_else(|| Problem::new(format!("{id} is not found")))
    }

    pub(super) fn try_swap(&self, expected: Option<u64>, record: &Record) -> Result<Swap, Problem> {
        Ok(wait(self.swap(expected, record.clone(), WriteMode::Blocking))?)
    }

    /// Writes a new record.
    pub(super) fn put(&self, record: &Record) -> Result<Arc<Record>, Problem> {
        written(self.try_swap(None, record)?)
    }

    /// Writes the next version of a record.
    pub(super) fn replace(&self, before: &Record, after: &Record) -> Result<Arc<Record>, Problem> {
        written(self.try_swap(Some(before.version), after)?)
    }

    pub(super) fn remove(&self, record: &Record) -> Result<bool, Problem> {
        Ok(wait(self.delete(&record.id, record.version, WriteMode::Blocking))?)
    }

    pub(super) fn listed(&self, filter: &Filter) -> Result<Vec<Listed>, Problem> {
        Ok(wait(self.list(filter))?)
    }

    /// The keys of a listing, in order.
    pub(super) fn keys(&self, filter: &Filter) -> Result<Vec<String>, Problem> {
        Ok(self.listed(filter)?.into_iter().map(|listed| listed.record.key.text).collect())
    }

    /// The keys of the records that are due, in order.
    pub(super) fn due_keys(&self, now_ms: i64, limit: usize) -> Result<Vec<String>, Problem> {
        Ok(wait(self.due(now_ms, limit))?.into_iter().map(|record| record.key.text).collect())
    }

    pub(super) fn count(&self, state: State) -> Result<u64, Problem> {
        self.count_of(&Filter::default(), state)
    }

    /// The number of records in this state that match the filter.
    pub(super) fn count_of(&self, filter: &Filter, state: State) -> Result<u64, Problem> {
        Ok(wait(self.counts(filter))?.get(&state).copied().unwrap_or(0))
    }

    pub(super) fn batch(&self, changes: Vec<Change>) -> Result<Vec<Applied>, Problem> {
        Ok(wait(self.apply(changes, WriteMode::Blocking))?)
    }
}

/// Drives a future of the store on this thread.
pub(super) fn wait<T>(future: impl Future<Output = T>) -> T {
    pollster::block_on(future)
}

/// All records, up to a limit that no case reaches.
pub(super) fn everything() -> Filter {
    Filter { limit: 1_000, ..Filter::default() }
}

pub(super) fn intent(operation: &Operation) -> Result<Intent, Problem> {
    Ok(operation.clone().intent()?)
}

/// A minimal staged record with this key.
pub(super) fn staged(key: &str) -> Result<Record, Problem> {
    staged_as("default", "conformance", key)
}

/// The same in this scope and with this name.
pub(super) fn staged_as(scope: &str, name: &str, key: &str) -> Result<Record, Problem> {
    let intent = intent(&Operation::new(name).scope(scope).key(key))?;
    Ok(transition::stage(&intent, 1_000))
}

/// A record in this state, due at this time.
pub(super) fn in_state(key: &str, state: State, due_ms: Option<i64>) -> Result<Record, Problem> {
    Ok(Record { state, due_ms, ..staged(key)? })
}

/// A finished record with this outcome.
pub(super) fn done(key: &str, outcome: Outcome) -> Result<Record, Problem> {
    Ok(Record { outcome: Some(outcome), ..in_state(key, State::Done, Some(i64::MAX))? })
}

/// The next version of a record, otherwise unchanged.
pub(super) fn next(record: &Record) -> Record {
    Record { version: record.version + 1, updated_ms: record.updated_ms + 1, ..record.clone() }
}

pub(super) fn written(swap: Swap) -> Result<Arc<Record>, Problem> {
    match swap {
        Swap::Written(record) => Ok(record),
        Swap::Conflict(found) => {
            let version = found.map(|found| found.version);
            Err(Problem::new(format!("a conflict with version {version:?}, where it should be written")))
        }
    }
}

/// The record that caused the conflict.
pub(super) fn conflict(swap: Swap) -> Result<Option<Arc<Record>>, Problem> {
    match swap {
        Swap::Conflict(found) => Ok(found),
        Swap::Written(_) => Err(Problem::new("it was written, where it should be a conflict")),
    }
}

/// Checks that two records are equal except for the replay count. Bodies and the text of results are compared byte
/// for byte.
pub(super) fn same(seen: &Record, expected: &Record) -> Verdict {
    let text = |record: &Record| serde_json::to_string(&Record { replays: 0, ..record.clone() });
    equal!(text(seen)?, text(expected)?, "the record");
    let body = |record: &Record| record.outcome.as_ref().map(|outcome| outcome.body.clone());
    ensure!(body(seen) == body(expected), "the body is not the one that was written");
    Ok(())
}
