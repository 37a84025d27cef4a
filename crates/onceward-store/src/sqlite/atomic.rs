//! Record and effect in one transaction of the caller's own: for effects in his own SQLite database, exactly once.
//!
//! One table, `onceward`, is in that database beside the caller's own. A second caller of the same operation waits
//! for the first one's transaction, as SQLite's writers do.

use std::sync::Arc;

use onceward::atomic::{self, Step};
use onceward::transition::{Ageing, age};
use onceward::{Dispatched, Done, Error, Failure, Operation, OperationId, Receipt, Record, StoreError};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use crate::clock::wall_ms;

/// The one table: a record is JSON, and the body of its result stands beside it.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS onceward (
    id     TEXT    PRIMARY KEY,
    due_ms INTEGER,
    record TEXT    NOT NULL,
    body   BLOB
) STRICT;
CREATE INDEX IF NOT EXISTS onceward_due ON onceward (due_ms) WHERE due_ms IS NOT NULL";

/// How many records one sweep looks at.
const SWEEP: i64 = 500;

/// A ledger whose records are written in the caller's transactions.
#[derive(Debug, Clone, Copy)]
pub struct AtomicLedger(());

/// An attempt whose intent is written in the transaction, and nowhere else yet.
#[derive(Debug, Clone)]
pub struct AtomicClaim {
    record: Record,
}

/// What beginning an operation came to.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is looked at once and never kept")]
pub enum AtomicBegun {
    /// Have the effect in this transaction, then finish the claim in it.
    Execute(AtomicClaim),
    /// It was done before: nothing is to be run.
    Replay(Receipt),
}

impl AtomicLedger {
    /// The ledger in that database; its table is made where there is none.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn open(connection: &Connection) -> Result<Self, StoreError> {
        connection.execute_batch(TABLE).map_err(explain)?;
        Ok(Self(()))
    }

    /// Lets the operation happen exactly once: executes `act` in a transaction that also holds its record, and commits
    /// both; or gives the stored result.
    ///
    /// # Errors
    /// Every refusal of the contract. Where `act` or the commit fails, nothing happened and nothing is on record.
    pub fn run<F>(self, connection: &mut Connection, operation: &Operation, act: F) -> Result<Receipt, Error>
    where
        F: FnOnce(&Transaction<'_>, &AtomicClaim) -> Result<Done, Failure>,
    {
        // Taken at once: whoever reads first and writes later may find that he must not.
        let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let transaction = begun.map_err(explain)?;
        let claim = match self.begin(&transaction, operation)? {
            AtomicBegun::Execute(claim) => claim,
            AtomicBegun::Replay(receipt) => return Ok(receipt),
        };
        // Dropped without a commit, the transaction is rolled back, and with it the record.
        let done = match act(&transaction, &claim) {
            Ok(done) => done,
            Err(failure) => return Err(atomic::failed(claim.record, failure)),
        };
        let receipt = self.finish(&transaction, claim, done)?;
        transaction.commit().map_err(explain)?;
        Ok(receipt)
    }

    /// Writes the intent in the transaction, unless it was done or must not be done. The transaction should have been
    /// begun as `IMMEDIATE`.
    ///
    /// # Errors
    /// Every refusal of the contract. Nothing was run.
    pub fn begin(self, transaction: &Transaction<'_>, operation: &Operation) -> Result<AtomicBegun, Error> {
        let intent = operation.clone().intent()?;
        let found = load(transaction, &intent.id)?.map(Arc::new);
        match atomic::begin(found, &intent, wall_ms())? {
            Step::Replay(receipt) => Ok(AtomicBegun::Replay(receipt)),
            Step::Execute { record, .. } => {
                store(transaction, &record)?;
                Ok(AtomicBegun::Execute(AtomicClaim { record }))
            }
        }
    }

    /// Writes the ending in the transaction. It counts when that is committed.
    ///
    /// # Errors
    /// When it cannot be written; then the transaction must be rolled back.
    pub fn finish(
        self,
        transaction: &Transaction<'_>,
        claim: AtomicClaim,
        done: Done,
    ) -> Result<Receipt, Error> {
        let begun = load(transaction, &claim.record.id)?;
        if begun.is_none_or(|begun| begun.version != claim.record.version) {
            let what = "this is not the transaction that the operation was begun in";
            return Err(StoreError::unavailable(what).into());
        }
        let record = atomic::done(&claim.record, done, wall_ms());
        store(transaction, &record)?;
        Ok(atomic::receipt(record))
    }

    /// Does what time asks for, in one small step: results become tombstones, tombstones go. Gives how many records it
    /// changed; call again while it is not zero.
    ///
    /// # Errors
    /// When the database cannot be read or written.
    pub fn sweep(self, transaction: &Transaction<'_>) -> Result<usize, StoreError> {
        let now_ms = wall_ms();
        let due: Vec<Record> = {
            let question = "SELECT record, body FROM onceward WHERE due_ms <= ?1 ORDER BY due_ms LIMIT ?2";
            let mut statement = transaction.prepare_cached(question).map_err(explain)?;
            let texts =
                statement.query_map([now_ms, SWEEP], |row| row.get::<_, String>(0)).map_err(explain)?;
            texts.map(|text| from_json(&text.map_err(explain)?)).collect::<Result<_, _>>()?
        };
        let mut changed = 0;
        for record in due {
            match age(&record, now_ms) {
                Ageing::Tombstone(tombstone) => store(transaction, &tombstone)?,
                Ageing::Delete => {
                    let delete = "DELETE FROM onceward WHERE id = ?1";
                    transaction.execute(delete, [record.id.as_str()]).map_err(explain)?;
                }
                Ageing::Keep => continue,
            }
            changed += 1;
        }
        Ok(changed)
    }
}

impl AtomicClaim {
    /// The record, as it stands in the transaction.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The token that reports an effect. Effect and record share one transaction, so there is nothing to note.
    #[must_use]
    pub fn dispatch(&self) -> Dispatched {
        onceward::atomic::dispatch()
    }
}

fn load(transaction: &Transaction<'_>, id: &OperationId) -> Result<Option<Record>, StoreError> {
    let question = "SELECT record, body FROM onceward WHERE id = ?1";
    let found = transaction
        .prepare_cached(question)
        .and_then(|mut statement| {
            let row = statement.query_row([id.as_str()], |row| Ok((row.get(0)?, row.get(1)?)));
            row.optional()
        })
        .map_err(explain)?;
    let Some((text, body)) = found else { return Ok(None) };
    let (text, body): (String, Option<Vec<u8>>) = (text, body);
    let mut record = from_json(&text)?;
    if let Some(outcome) = &mut record.outcome {
        outcome.body = body.map(Arc::from);
    }
    Ok(Some(record))
}

fn store(transaction: &Transaction<'_>, record: &Record) -> Result<(), StoreError> {
    let text = serde_json::to_string(record)
        .map_err(|error| StoreError::because("a record cannot be written as JSON", error))?;
    let body = record.outcome.as_ref().and_then(|outcome| outcome.body.as_deref());
    let change = "INSERT INTO onceward (id, due_ms, record, body) VALUES (?1, ?2, ?3, ?4) \
                  ON CONFLICT (id) DO UPDATE SET due_ms = ?2, record = ?3, body = ?4";
    transaction
        .prepare_cached(change)
        .and_then(|mut statement| statement.execute(params![record.id.as_str(), record.due_ms, text, body]))
        .map_err(explain)?;
    Ok(())
}

fn from_json(text: &str) -> Result<Record, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Unusable {
        what: format!("the table onceward holds what this version does not understand: {error}"),
    })
}

fn explain(error: rusqlite::Error) -> StoreError {
    StoreError::because("the database cannot be used", error)
}
