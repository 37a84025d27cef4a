//! Record and effect in one transaction of the caller, for exactly-once effects in the caller's own SQLite database.
//!
//! The database contains two additional tables, `onceward` and `onceward_stopped`. A second caller of the same
//! operation waits for the transaction of the first, as usual for writers in SQLite.

use std::sync::Arc;

use onceward::atomic::{self, Step};
use onceward::transition::{Ageing, age};
use onceward::{
    Barrier, Done, Error, Failure, Operation, OperationId, Receipt, Record, StoreError, Word, stopping_scopes,
};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use crate::clock::wall_ms;
use crate::seal::{self, Keys};

pub use crate::claim::{AtomicBegun, AtomicClaim};

/// The table. A record is JSON, and the body of its result is a separate column.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS onceward (
    id     TEXT    PRIMARY KEY,
    due_ms INTEGER,
    record TEXT    NOT NULL,
    body   BLOB
) STRICT;
CREATE INDEX IF NOT EXISTS onceward_due ON onceward (due_ms) WHERE due_ms IS NOT NULL;
CREATE TABLE IF NOT EXISTS onceward_stopped (
    scope TEXT PRIMARY KEY,
    word  TEXT NOT NULL
) STRICT, WITHOUT ROWID";

/// How many records one sweep reads.
const SWEEP: i64 = 500;

/// A ledger whose records are written in the caller's transactions.
///
/// ```
/// use onceward::{Operation, atomic};
/// use onceward_store::sqlite::atomic::AtomicLedger;
/// use rusqlite::Connection;
///
/// let mut database = Connection::open_in_memory()?;
/// database.execute_batch("CREATE TABLE transfer (account TEXT, amount INTEGER)")?;
/// let ledger = AtomicLedger::open(&database)?;
/// let transfer = Operation::new("transfer").key("order-17");
/// for _ in 0..2 {
///     let receipt = ledger.run(&mut database, &transfer, |transaction, claim| {
///         let insert = "INSERT INTO transfer VALUES ('a1', 100)";
///         transaction.execute(insert, []).map_err(atomic::rolled_back)?;
///         Ok(claim.dispatch().created(&"a1"))
///     })?;
///     assert_eq!(receipt.data(), Some(r#""a1""#));
/// }
/// let transfers: i64 = database.query_row("SELECT count(*) FROM transfer", [], |row| row.get(0))?;
/// assert_eq!(transfers, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct AtomicLedger {
    /// The keys, if encryption is configured.
    keys: Option<Keys>,
}

impl AtomicLedger {
    /// Opens the ledger in that database, and creates its table if it does not exist. Its records are sealed with the
    /// keys that the environment configures.
    ///
    /// # Errors
    /// If the table cannot be created, or the keys cannot be used.
    pub fn open(connection: &Connection) -> Result<Self, StoreError> {
        connection.execute_batch(TABLE).map_err(explain)?;
        Ok(Self { keys: seal::from_environment()? })
    }

    /// The same ledger with the given keys, or without encryption.
    #[must_use]
    pub fn with_keys(self, keys: Option<Keys>) -> Self {
        Self { keys }
    }

    /// Executes the operation exactly once: runs `act` in a transaction that also writes the record, and commits
    /// both. If it was done before, returns the stored result.
    ///
    /// # Errors
    /// Every refusal of the contract. If `act` or the commit fails, nothing happened and nothing is recorded.
    pub fn run<F>(&self, connection: &mut Connection, operation: &Operation, act: F) -> Result<Receipt, Error>
    where
        F: FnOnce(&Transaction<'_>, &AtomicClaim) -> Result<Done, Failure>,
    {
        // Takes the write lock at once: upgrading a read transaction later can fail.
        let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let transaction = begun.map_err(explain)?;
        let claim = match self.begin(&transaction, operation)? {
            AtomicBegun::Execute(claim) => claim,
            AtomicBegun::Replay(receipt) => return Ok(receipt),
        };
        // Dropping the transaction rolls it back, including the record.
        let done = match act(&transaction, &claim) {
            Ok(done) => done,
            Err(failure) => return Err(atomic::failed(claim.record, failure)),
        };
        let receipt = self.finish(&transaction, claim, done)?;
        transaction.commit().map_err(explain)?;
        Ok(receipt)
    }

    /// Writes the intent in the transaction, unless the operation is already done or must not run. The transaction
    /// should be `IMMEDIATE`.
    ///
    /// # Errors
    /// Every refusal of the contract. Nothing was run.
    pub fn begin(&self, transaction: &Transaction<'_>, operation: &Operation) -> Result<AtomicBegun, Error> {
        let intent = operation.clone().intent()?;
        let found = self.load(transaction, &intent.id)?.map(Arc::new);
        match atomic::begin(found.clone(), &intent, wall_ms())? {
            Step::Replay(receipt) => Ok(AtomicBegun::Replay(receipt)),
            Step::Execute { record, .. } => {
                if let Some(barrier) = barrier_of(transaction, &record.scope)? {
                    return Err(atomic::stopped(barrier, found));
                }
                self.store(transaction, &record)?;
                Ok(AtomicBegun::Execute(AtomicClaim { record, redact: intent.terms.redact.clone() }))
            }
        }
    }

    /// Writes the end of the operation in the transaction. It takes effect with the commit.
    ///
    /// # Errors
    /// If it cannot be written. Then the transaction must be rolled back.
    pub fn finish(
        &self,
        transaction: &Transaction<'_>,
        claim: AtomicClaim,
        done: Done,
    ) -> Result<Receipt, Error> {
        let begun = self.load(transaction, &claim.record.id)?;
        if begun.is_none_or(|begun| begun.version != claim.record.version) {
            let what = "the operation was begun in another transaction";
            return Err(StoreError::unavailable(what).into());
        }
        let record = atomic::done(&claim.record, done, &claim.redact, wall_ms());
        self.store(transaction, &record)?;
        Ok(atomic::receipt(record))
    }

    /// Stops a scope: once the transaction is committed, no operation in it begins. Returns its barrier, or the one
    /// that was there before. Transactions of other connections that began one have ended by then, because SQLite has
    /// one writer.
    ///
    /// # Errors
    /// If the database cannot be written.
    pub fn stop(
        &self,
        transaction: &Transaction<'_>,
        scope: &str,
        mut word: Word,
    ) -> Result<Barrier, StoreError> {
        word.at_ms = wall_ms();
        let word = serde_json::to_string(&word)
            .map_err(|error| StoreError::because("a barrier cannot be written as JSON", error))?;
        let insert = "INSERT INTO onceward_stopped VALUES (?1, ?2) ON CONFLICT (scope) DO NOTHING";
        transaction.execute(insert, params![scope, word]).map_err(explain)?;
        let found = find_barrier(transaction, scope)?;
        found.ok_or_else(|| StoreError::unavailable("the barrier was not written"))
    }

    /// Lets operations of the scope begin again, once the transaction is committed. Returns the barrier, or `None` if
    /// the scope was not stopped.
    ///
    /// # Errors
    /// If the database cannot be written.
    pub fn resume(&self, transaction: &Transaction<'_>, scope: &str) -> Result<Option<Barrier>, StoreError> {
        let found = find_barrier(transaction, scope)?;
        transaction.execute("DELETE FROM onceward_stopped WHERE scope = ?1", [scope]).map_err(explain)?;
        Ok(found)
    }

    /// Expires records in one small step: results become tombstones, and tombstones are deleted. Returns how many
    /// records it changed. Call it again while that is not zero.
    ///
    /// # Errors
    /// If the database cannot be read or written.
    pub fn sweep(&self, transaction: &Transaction<'_>) -> Result<usize, StoreError> {
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

impl AtomicLedger {
    fn load(&self, transaction: &Transaction<'_>, id: &OperationId) -> Result<Option<Record>, StoreError> {
        let mut found = load(transaction, id)?;
        if let (Some(keys), Some(record)) = (&self.keys, &mut found) {
            keys.open(record);
        }
        Ok(found)
    }

    fn store(&self, transaction: &Transaction<'_>, record: &Record) -> Result<(), StoreError> {
        match &self.keys {
            Some(keys) => store(transaction, &keys.sealed(record)?),
            None => store(transaction, record),
        }
    }
}

fn barrier_of(transaction: &Transaction<'_>, scope: &str) -> Result<Option<Barrier>, StoreError> {
    for name in stopping_scopes(scope) {
        let found = find_barrier(transaction, name)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

fn find_barrier(transaction: &Transaction<'_>, scope: &str) -> Result<Option<Barrier>, StoreError> {
    let question = "SELECT scope, word FROM onceward_stopped WHERE scope = ?1";
    super::rows::find_barrier(transaction, question, scope).map_err(explain)
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
        what: format!("the table onceward contains data that this version cannot read: {error}"),
    })
}

fn explain(error: rusqlite::Error) -> StoreError {
    StoreError::because("the database cannot be used", error)
}
