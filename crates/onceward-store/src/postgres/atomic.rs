//! Record and effect in one transaction of the caller, for exactly-once effects in the caller's own PostgreSQL
//! database.
//!
//! The ledger's schema is in the same database. It is the schema that [`super::PostgresStore`] uses, so operations
//! done here are listed, replayed and expired there. A second caller of the same operation waits for the transaction
//! of the first.

use std::sync::Arc;

use onceward::atomic::{self, Step};
use onceward::{
    Begin, Clock, Done, Error, Failure, InvalidInput, Operation, Receipt, Record, StoreError, Swap,
};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient, Transaction};

use super::fault::explain;
use super::identity::{Found, LedgerStatus};
use super::options::PostgresOptions;
use super::rows::{self, Answered, Body, Changes, Statements, Terms};
use crate::remote::{LedgerClock, Mark};
use crate::seal::{self, Keys};
use crate::writing::{Writing, only_swap};

pub use crate::claim::{AtomicBegun, AtomicClaim};

/// How often a decision is retried because another transaction has committed meanwhile.
const TRIES: usize = 16;

/// A ledger whose records are written in the caller's transactions.
///
/// ```no_run
/// use onceward::{Operation, atomic};
/// use onceward_store::postgres::atomic::AtomicLedger;
///
/// # async fn transfer(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let ledger = AtomicLedger::open(client, "onceward").await?;
/// let transfer = Operation::new("transfer").key("order-17");
/// let receipt = ledger
///     .run(client, &transfer, async |transaction, claim| {
///         let insert = "INSERT INTO transfer VALUES ('a1', 100)";
///         transaction.execute(insert, &[]).await.map_err(atomic::rolled_back)?;
///         Ok(claim.dispatch().created(&"a1"))
///     })
///     .await?;
/// assert_eq!(receipt.data(), Some(r#""a1""#));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct AtomicLedger {
    statements: Arc<Statements>,
    load: String,
    clock: Arc<LedgerClock>,
    status: Arc<LedgerStatus>,
    /// The keys, if encryption is configured.
    keys: Option<Keys>,
}

impl AtomicLedger {
    /// Opens the ledger in that schema of the client's database, and creates it if it does not exist. Its records are
    /// sealed with the keys that the environment configures.
    ///
    /// # Errors
    /// If the schema name is not valid, or the ledger cannot be used. The error says what to do.
    pub async fn open(client: &mut Client, schema: &str) -> Result<Self, StoreError> {
        let unusable = |problem: InvalidInput| StoreError::Unusable { what: problem.to_string() };
        // Only the schema name matters. The connection is the client's.
        let options =
            PostgresOptions::parse(&format!("postgres://here/?schema={schema}")).map_err(unusable)?;
        let found = Found::open(client, &options).await?;
        let rows = client.query_typed(super::TIME, &[]).await.map_err(explain)?;
        let row = rows.first().ok_or_else(|| StoreError::unavailable("the server answered nothing"))?;
        let clock = Arc::<LedgerClock>::default();
        clock.begin(rows::cell(row, 0)?, found.clock.as_ref());
        let status = Arc::new(LedgerStatus::new(&found, None, &clock));
        let statements = Arc::new(Statements::new(schema));
        let load = format!(
            "SELECT t.now_ms, c.value, l.* FROM ({}) AS t(now_ms) LEFT JOIN \"{schema}\".meta AS c \
             ON c.name = 'clock' LEFT JOIN ({}) AS l ON true",
            super::TIME,
            statements.load.text
        );
        Ok(Self { statements, load, clock, status, keys: seal::from_environment()? })
    }

    /// The same ledger with the given keys, or without encryption.
    #[must_use]
    pub fn with_keys(self, keys: Option<Keys>) -> Self {
        Self { keys, ..self }
    }

    /// Executes the operation exactly once: runs `act` in a transaction that also writes the record, and commits
    /// both. If it was done before, returns the stored result.
    ///
    /// # Errors
    /// Every refusal of the contract. If `act` fails, nothing happened and nothing is recorded. `IN_DOUBT` only if
    /// the reply to the commit was lost; repeating the call finds out.
    pub async fn run<F>(&self, client: &mut Client, operation: &Operation, act: F) -> Result<Receipt, Error>
    where
        F: AsyncFnOnce(&Transaction<'_>, &AtomicClaim) -> Result<Done, Failure>,
    {
        let transaction = client.transaction().await.map_err(explain)?;
        let claim = match self.begin(&transaction, operation).await? {
            AtomicBegun::Execute(claim) => claim,
            AtomicBegun::Replay(receipt) => return Ok(receipt),
        };
        // Dropping the transaction rolls it back, including the record.
        let done = match act(&transaction, &claim).await {
            Ok(done) => done,
            Err(failure) => return Err(atomic::failed(claim.record, failure)),
        };
        let record = claim.record.clone();
        let receipt = self.finish(&transaction, claim, done).await?;
        match transaction.commit().await {
            Ok(()) => Ok(receipt),
            // The server has confirmed that it was not committed.
            Err(error) if error.code().is_some_and(refuses) => Err(explain(error).into()),
            Err(error) => Err(atomic::unanswered(record, error)),
        }
    }

    /// Writes the intent in the transaction, unless the operation is already done or must not run. Waits for another
    /// transaction that executes the same operation.
    ///
    /// # Errors
    /// Every refusal of the contract. Nothing was run.
    pub async fn begin(
        &self,
        transaction: &Transaction<'_>,
        operation: &Operation,
    ) -> Result<AtomicBegun, Error> {
        let secret = self.status.identity.secret.as_ref();
        let intent = operation.clone().intent()?.keyed_with(secret);
        for _ in 0..TRIES {
            let (found, now_ms) = self.load(transaction, intent.id.as_str()).await?;
            match atomic::begin(found.clone(), &intent, now_ms)? {
                Step::Replay(receipt) => return Ok(AtomicBegun::Replay(receipt)),
                Step::Execute { expected, record } => {
                    match self.write(transaction, expected, &record, Writing::Begin).await? {
                        Begin::Swapped(Swap::Written(_)) => {
                            let redact = intent.terms.redact.clone();
                            return Ok(AtomicBegun::Execute(AtomicClaim { record, redact }));
                        }
                        Begin::Swapped(Swap::Conflict(_)) => {}
                        Begin::Stopped(barrier) => return Err(atomic::stopped(barrier, found)),
                    }
                }
            }
        }
        Err(StoreError::unavailable("other transactions keep changing this operation; try again").into())
    }

    /// Writes the end of the operation in the transaction. It takes effect with the commit.
    ///
    /// # Errors
    /// If it cannot be written. Then the transaction must be rolled back.
    pub async fn finish(
        &self,
        transaction: &Transaction<'_>,
        claim: AtomicClaim,
        done: Done,
    ) -> Result<Receipt, Error> {
        let (_, now_ms) = self.load(transaction, claim.record.id.as_str()).await?;
        let record = atomic::done(&claim.record, done, &claim.redact, now_ms);
        let written = self.write(transaction, Some(claim.record.version), &record, Writing::Change).await?;
        match only_swap(written)? {
            Swap::Written(_) => Ok(atomic::receipt(record)),
            Swap::Conflict(_) => {
                Err(StoreError::unavailable("the operation was begun in another transaction").into())
            }
        }
    }

    /// The record, and the ledger's time.
    async fn load(
        &self,
        client: &impl GenericClient,
        id: &str,
    ) -> Result<(Option<Arc<Record>>, i64), StoreError> {
        let ids = vec![id];
        let found = client.query_typed(&self.load, &[(&ids, Type::TEXT_ARRAY)]).await.map_err(explain)?;
        let row = found.first().ok_or_else(|| StoreError::unavailable("the server answered nothing"))?;
        let mark = rows::cell::<Option<&str>>(row, 1)?.and_then(Mark::parse);
        self.clock.read(rows::cell(row, 0)?, mark.as_ref());
        let there = rows::cell::<Option<&str>>(row, 2)?.is_some();
        let mut record = there.then(|| rows::record(row, 2, Body::Included)).transpose()?;
        if let (Some(keys), Some(record)) = (&self.keys, &mut record) {
            keys.open(record);
        }
        Ok((record.map(Arc::new), self.clock.now_ms()))
    }

    async fn write(
        &self,
        client: &impl GenericClient,
        expected: Option<u64>,
        record: &Record,
        writing: Writing,
    ) -> Result<Begin, StoreError> {
        let mut changes = Changes::default();
        let sealed = self.keys.as_ref().map(|keys| keys.sealed(record)).transpose()?;
        changes.push(expected, sealed.as_ref().unwrap_or(record), writing)?;
        if let Some(refusal) = self.status.replacement() {
            return Err(refusal);
        }
        let clock = self.status.clock_mark(&self.clock);
        let terms = Terms { patience_ms: None, again: false, ledger: &self.status.check, seen: None, clock };
        let values = changes.values(&terms);
        let typed: Vec<_> = values.into_iter().zip(self.statements.swap.types.iter().cloned()).collect();
        let sent = client.query_typed(&self.statements.swap.text, &typed).await.map_err(explain)?;
        if terms.clock.is_some() {
            self.status.schedule_clock_mark();
        }
        let mut answered = Answered::from_rows(&sent)?;
        if !answered.written.is_empty() {
            return Ok(Begin::Swapped(Swap::Written(Arc::new(record.clone()))));
        }
        let found = answered.current.pop();
        let unchanged = found.as_ref().map(|found| found.version) == expected;
        Ok(match answered.stopped.into_values().next().filter(|_| unchanged) {
            Some(barrier) => Begin::Stopped(barrier),
            None => Begin::Swapped(Swap::Conflict(found)),
        })
    }
}

/// Whether an error code of a commit means that the transaction was rolled back.
fn refuses(code: &SqlState) -> bool {
    ["23", "25", "40", "55"].iter().any(|class| code.code().starts_with(class))
        && *code != SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN
}
