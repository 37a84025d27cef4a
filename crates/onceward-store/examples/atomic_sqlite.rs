//! An exactly-once effect in your own SQLite database: the record and the row are committed together or not at all.

use onceward::{Operation, atomic};
use onceward_store::sqlite::atomic::{AtomicBegun, AtomicLedger};
use rusqlite::{Connection, TransactionBehavior};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let mut database = Connection::open(folder.path().join("bank.db"))?;
    database.execute_batch("CREATE TABLE transfer (account TEXT NOT NULL, amount INTEGER NOT NULL)")?;
    let ledger = AtomicLedger::open(&database)?;
    let transfer = Operation::new("transfer").input(serde_json::json!({"account": "a1", "amount": 100}));
    let transfers = |database: &Connection| {
        database.query_row("SELECT count(*) FROM transfer", [], |row| row.get::<_, i64>(0))
    };

    // Interrupted after the effect: nothing of it remains, and nothing is in doubt.
    let cut_off = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    assert!(matches!(ledger.begin(&cut_off, &transfer)?, AtomicBegun::Execute(_)));
    cut_off.execute("INSERT INTO transfer VALUES ('a1', 100)", [])?;
    drop(cut_off);
    assert_eq!(transfers(&database)?, 0);

    // Called three times, done once.
    for call in ["first call", "retry", "retry of the retry"] {
        let receipt = ledger.run(&mut database, &transfer, |transaction, claim| {
            transaction
                .execute("INSERT INTO transfer VALUES ('a1', 100)", [])
                .map_err(atomic::rolled_back)?;
            Ok(claim.dispatch().created(&serde_json::json!({"transfer": transaction.last_insert_rowid()})))
        })?;
        assert_eq!(receipt.replayed(), call != "first call");
        assert_eq!(receipt.data(), Some(r#"{"transfer":1}"#));
    }
    assert_eq!(transfers(&database)?, 1);
    Ok(())
}
