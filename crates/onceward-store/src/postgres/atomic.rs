//! Record and effect in one transaction of the caller's own: for effects in his own PostgreSQL database, exactly once.
//!
//! The ledger's schema is in that database, and is the same one that [`super::PostgresStore`] uses: what was done
//! here is listed, replayed and expired there. A second caller of the same operation waits for the first one's
//! transaction.

use std::sync::Arc;

use onceward::atomic::{self, Step};
use onceward::{
    Dispatched, Done, Error, Failure, InvalidInput, Operation, Receipt, Record, StoreError, Swap,
};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, GenericClient, Transaction};

use super::fault::explain;
use super::options::PostgresOptions;
use super::rows::{self, Answered, Body, Changes, Statements};
use super::schema;

/// How often a decision is made again because somebody else's transaction ended meanwhile.
const TRIES: usize = 16;

/// A ledger whose records are written in the caller's transactions.
#[derive(Debug, Clone)]
pub struct AtomicLedger {
    statements: Arc<Statements>,
    load: String,
}

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
    /// The ledger in that schema of the client's database; it is made where there is none.
    ///
    /// # Errors
    /// When the name is not one for a schema, or the ledger there cannot be used; says what to do.
    pub async fn open(client: &mut Client, schema: &str) -> Result<Self, StoreError> {
        let unusable = |problem: InvalidInput| StoreError::Unusable { what: problem.to_string() };
        // Only the schema's name counts: the way there is the client's.
        let options =
            PostgresOptions::parse(&format!("postgres://here/?schema={schema}")).map_err(unusable)?;
        schema::prepare(client, &options).await?;
        let statements = Arc::new(Statements::new(schema));
        let load = format!(
            "SELECT t.now_ms, l.* FROM ({}) AS t(now_ms) LEFT JOIN ({}) AS l ON true",
            super::TIME,
            statements.load.text
        );
        Ok(Self { statements, load })
    }

    /// Lets the operation happen exactly once: executes `act` in a transaction that also holds its record, and commits
    /// both; or gives the stored result.
    ///
    /// # Errors
    /// Every refusal of the contract. Where `act` fails, nothing happened and nothing is on record. `IN_DOUBT` only
    /// where the commit's reply was lost; the same call, made again, finds out.
    pub async fn run<F>(&self, client: &mut Client, operation: &Operation, act: F) -> Result<Receipt, Error>
    where
        F: AsyncFnOnce(&Transaction<'_>, &AtomicClaim) -> Result<Done, Failure>,
    {
        let transaction = client.transaction().await.map_err(explain)?;
        let claim = match self.begin(&transaction, operation).await? {
            AtomicBegun::Execute(claim) => claim,
            AtomicBegun::Replay(receipt) => return Ok(receipt),
        };
        // Dropped without a commit, the transaction is rolled back, and with it the record.
        let done = match act(&transaction, &claim).await {
            Ok(done) => done,
            Err(failure) => return Err(atomic::failed(claim.record, failure)),
        };
        let record = claim.record.clone();
        let receipt = self.finish(&transaction, claim, done).await?;
        match transaction.commit().await {
            Ok(()) => Ok(receipt),
            // The server's own word that it was not committed.
            Err(error) if error.code().is_some_and(refuses) => Err(explain(error).into()),
            Err(error) => Err(atomic::unanswered(record, error)),
        }
    }

    /// Writes the intent in the transaction, unless it was done or must not be done. Whoever is executing the same
    /// operation in another transaction is waited for.
    ///
    /// # Errors
    /// Every refusal of the contract. Nothing was run.
    pub async fn begin(
        &self,
        transaction: &Transaction<'_>,
        operation: &Operation,
    ) -> Result<AtomicBegun, Error> {
        let intent = operation.clone().intent()?;
        for _ in 0..TRIES {
            let (found, now_ms) = self.load(transaction, intent.id.as_str()).await?;
            match atomic::begin(found, &intent, now_ms)? {
                Step::Replay(receipt) => return Ok(AtomicBegun::Replay(receipt)),
                Step::Execute { expected, record } => {
                    if let Swap::Written(_) = self.swap(transaction, expected, &record).await? {
                        return Ok(AtomicBegun::Execute(AtomicClaim { record }));
                    }
                }
            }
        }
        Err(StoreError::unavailable("others change this operation without end").into())
    }

    /// Writes the ending in the transaction. It counts when that is committed.
    ///
    /// # Errors
    /// When it cannot be written; then the transaction must be rolled back.
    pub async fn finish(
        &self,
        transaction: &Transaction<'_>,
        claim: AtomicClaim,
        done: Done,
    ) -> Result<Receipt, Error> {
        let (_, now_ms) = self.load(transaction, claim.record.id.as_str()).await?;
        let record = atomic::done(&claim.record, done, now_ms);
        match self.swap(transaction, Some(claim.record.version), &record).await? {
            Swap::Written(_) => Ok(atomic::receipt(record)),
            Swap::Conflict(_) => {
                Err(StoreError::unavailable("this is not the transaction that the operation was begun in")
                    .into())
            }
        }
    }

    /// The record, and the server's time.
    async fn load(
        &self,
        client: &impl GenericClient,
        id: &str,
    ) -> Result<(Option<Arc<Record>>, i64), StoreError> {
        let ids = vec![id];
        let found = client.query_typed(&self.load, &[(&ids, Type::TEXT_ARRAY)]).await.map_err(explain)?;
        let row = found.first().ok_or_else(|| StoreError::unavailable("the server answered nothing"))?;
        let there = rows::cell::<Option<&str>>(row, 1)?.is_some();
        let record = there.then(|| rows::record(row, 1, Body::Along).map(Arc::new)).transpose()?;
        Ok((record, rows::cell(row, 0)?))
    }

    async fn swap(
        &self,
        client: &impl GenericClient,
        expected: Option<u64>,
        record: &Record,
    ) -> Result<Swap, StoreError> {
        let mut changes = Changes::default();
        changes.push(expected, record)?;
        let values = changes.values(&None, &false);
        let typed: Vec<_> = values.into_iter().zip(self.statements.swap.types.iter().cloned()).collect();
        let sent = client.query_typed(&self.statements.swap.text, &typed).await.map_err(explain)?;
        let mut answered = Answered::from_rows(&sent)?;
        Ok(match answered.written.is_empty() {
            false => Swap::Written(Arc::new(record.clone())),
            true => Swap::Conflict(answered.standing.pop()),
        })
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

/// Whether a commit that ends with this code was rolled back: the server speaks of the transaction, not of itself.
fn refuses(code: &SqlState) -> bool {
    ["23", "25", "40", "55"].iter().any(|class| code.code().starts_with(class))
        && *code != SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN
}
