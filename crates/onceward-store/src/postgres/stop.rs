//! Stopped scopes. A barrier is committed first, so that every later begin sees it. Then the stop waits for the
//! transactions that began before and may not have seen it.

use std::sync::Arc;

use onceward::{Barrier, StoreError};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{GenericClient, Transaction};

use super::fault::explain;
use super::identity::Found;
use super::link::Link;
use super::{Shared, rows, schema};

/// Sets the barrier, unless the scope has one, and waits for the begins that have not seen it.
pub(super) async fn set(
    mut link: Link,
    shared: Arc<Shared>,
    barrier: Barrier,
) -> Result<Barrier, StoreError> {
    let name = &shared.options.schema;
    let insert = format!(
        "INSERT INTO \"{name}\".stopped (scope, word) VALUES ($1, $2) ON CONFLICT (scope) DO NOTHING"
    );
    let word = serde_json::to_string(&barrier.word)
        .map_err(|error| StoreError::because("a barrier cannot be written as JSON", error))?;
    let values: [(&(dyn ToSql + Sync), Type); 2] = [(&barrier.scope, Type::TEXT), (&word, Type::TEXT)];
    let transaction = begin(&mut link, &shared).await?;
    transaction.query_typed(&insert, &values).await.map_err(explain)?;
    let found = find(&transaction, name, &barrier.scope).await?;
    transaction.commit().await.map_err(explain)?;
    confirmed(&link)?;
    drain(&mut link, &shared, &barrier.scope).await.map_err(|error| {
        StoreError::because(
            "nothing new begins in this scope, but a transaction that began an operation before is still open; stop \
             it again to wait for it",
            error,
        )
    })?;
    found.ok_or_else(|| StoreError::unavailable("the scope was resumed by another caller meanwhile"))
}

/// Waits for the transactions that hold the lock of the scope: they may not have seen the barrier.
async fn drain(link: &mut Link, shared: &Shared, scope: &str) -> Result<(), tokio_postgres::Error> {
    let name = &shared.options.schema;
    let transaction = link.client.transaction().await?;
    let patience = format!("SET LOCAL lock_timeout = '{}ms'", shared.options.timeout.as_millis());
    transaction.batch_execute(&patience).await?;
    let lock = format!("SELECT pg_advisory_xact_lock({}, \"{name}\".stop_slot($1))", schema::STOP_LOCK);
    transaction.query_typed(&lock, &[(&scope, Type::TEXT)]).await?;
    transaction.commit().await
}

/// Removes the barrier of exactly this scope, and returns it.
pub(super) async fn lift(
    mut link: Link,
    shared: Arc<Shared>,
    scope: String,
) -> Result<Option<Barrier>, StoreError> {
    let name = &shared.options.schema;
    let transaction = begin(&mut link, &shared).await?;
    let found = find(&transaction, name, &scope).await?;
    let delete = format!("DELETE FROM \"{name}\".stopped WHERE scope = $1");
    transaction.query_typed(&delete, &[(&scope, Type::TEXT)]).await.map_err(explain)?;
    transaction.commit().await.map_err(explain)?;
    confirmed(&link)?;
    Ok(found)
}

/// Begins a transaction on the ledger that was opened. Changes of barriers follow one another.
async fn begin<'a>(link: &'a mut Link, shared: &Shared) -> Result<Transaction<'a>, StoreError> {
    let name = &shared.options.schema;
    let transaction = link.client.transaction().await.map_err(explain)?;
    let settings = format!(
        "SET LOCAL lock_timeout = '{}ms'; SET LOCAL synchronous_commit = on; \
         UPDATE \"{name}\".meta SET value = (value::bigint + 1)::text WHERE name = 'stops'",
        shared.options.timeout.as_millis()
    );
    transaction.batch_execute(&settings).await.map_err(explain)?;
    let found = Found::read(&transaction, name).await?;
    let opened = shared.status.identity.mark();
    if found.identity.mark() != opened {
        return Err(StoreError::replaced(&format!("it is now {}", found.identity.mark())));
    }
    Ok(transaction)
}

/// Fails if the standby did not confirm the write.
fn confirmed(link: &Link) -> Result<(), StoreError> {
    if link.take_warning() {
        return Err(StoreError::unavailable("the standby did not confirm the write; try again"));
    }
    Ok(())
}

async fn find(client: &impl GenericClient, schema: &str, scope: &str) -> Result<Option<Barrier>, StoreError> {
    let question = format!("SELECT scope, word FROM \"{schema}\".stopped WHERE scope = $1");
    let found = client.query_typed(&question, &[(&scope, Type::TEXT)]).await.map_err(explain)?;
    Ok(rows::decode_barriers(&found)?.pop())
}
