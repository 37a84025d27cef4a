//! An exactly-once effect in your own PostgreSQL database: the record and the row are committed together or not at
//! all. Takes a URL (`postgres://user@host/database`), or starts its own server.

use onceward::{Operation, atomic};
use onceward_store::postgres::atomic::{AtomicBegun, AtomicLedger};
use tokio_postgres::{Client, NoTls};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let given = std::env::args().nth(1);
    let server = given.is_none().then(onceward_testkit::Postgres::start);
    let url = given.or_else(|| server.as_ref().map(onceward_testkit::Postgres::url)).unwrap_or_default();
    let mut database = connect(&url).await?;
    database.batch_execute("CREATE TABLE IF NOT EXISTS transfer (account text, amount bigint)").await?;
    let ledger = AtomicLedger::open(&mut database, "onceward").await?;
    let transfer = Operation::new("transfer").input(serde_json::json!({"account": "a1", "amount": 100}));
    let insert = "INSERT INTO transfer VALUES ('a1', 100)";

    // Interrupted after the effect: nothing of it remains, and nothing is in doubt.
    let mut unlucky = connect(&url).await?;
    let cut_off = unlucky.transaction().await?;
    if let AtomicBegun::Execute(_) = ledger.begin(&cut_off, &transfer).await? {
        cut_off.execute(insert, &[]).await?;
    }
    drop(cut_off);
    drop(unlucky);

    // Called three times, done once.
    for _ in ["first call", "retry", "retry of the retry"] {
        let receipt = ledger
            .run(&mut database, &transfer, async |transaction, claim| {
                transaction.execute(insert, &[]).await.map_err(atomic::rolled_back)?;
                Ok(claim.dispatch().created(&serde_json::json!({"transfer": 1})))
            })
            .await?;
        assert_eq!(receipt.data(), Some(r#"{"transfer":1}"#));
    }
    let transfers = database.query_one("SELECT count(*) FROM transfer", &[]).await?;
    assert_eq!(transfers.get::<_, i64>(0), 1);
    Ok(())
}

async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
