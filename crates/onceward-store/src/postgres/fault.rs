//! What an error of the server or of the connection means.

use onceward::StoreError;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

/// How an error is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The connection is gone, or its server no longer accepts writes. The statement may have been executed.
    Lost,
    /// Another transaction holds a lock, or there was a deadlock. Nothing was written.
    Busy,
    /// The server rejected the statement. Nothing was written.
    Refused,
    /// The ledger is not the one that was opened. Nothing was written, and nothing will be.
    Replaced,
}

/// The error code of the ledger's own functions: the ledger was replaced.
const REPLACED: &str = "OW001";

/// The errors of a statement whose table or function no longer exists.
const GONE: [&SqlState; 3] =
    [&SqlState::UNDEFINED_TABLE, &SqlState::UNDEFINED_FUNCTION, &SqlState::INVALID_SCHEMA_NAME];

pub(super) fn of(error: &Error) -> Fault {
    let Some(code) = error.code() else { return Fault::Lost };
    let lost = [
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::IDLE_SESSION_TIMEOUT,
        SqlState::READ_ONLY_SQL_TRANSACTION,
        // A prepared statement is unknown: there is a pooler after all.
        SqlState::INVALID_SQL_STATEMENT_NAME,
    ];
    let busy = [
        SqlState::LOCK_NOT_AVAILABLE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::QUERY_CANCELED,
    ];
    if code.code() == REPLACED {
        return Fault::Replaced;
    }
    // Class 08 is connection errors. If the tables are gone, the next connection finds out why.
    if lost.contains(code) || GONE.contains(&code) || code.code().starts_with("08") {
        Fault::Lost
    } else if busy.contains(code) {
        Fault::Busy
    } else {
        Fault::Refused
    }
}

/// Explains an error to the operator of the ledger.
pub(super) fn explain(error: Error) -> StoreError {
    let unusable = |what: String| StoreError::Unusable { what };
    let said = words(&error);
    let because = |what: &str| StoreError::unavailable(format!("{what}: {said}"));
    match error.code() {
        Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => unusable(format!(
            "the role lacks a privilege that the ledger needs ({said}); let it own the ledger's schema, or grant it \
             USAGE on the schema, SELECT, INSERT, UPDATE, DELETE on its table operation, SELECT, UPDATE on its \
             table meta, and USAGE on its sequence operation_place"
        )),
        Some(code)
            if [SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION].contains(code) =>
        {
            unusable(format!("the server rejects this role: {said}"))
        }
        Some(code) if *code == SqlState::INVALID_CATALOG_NAME => {
            unusable(format!("{said}; create the database first"))
        }
        Some(code) if code.code() == REPLACED => StoreError::replaced(&said),
        Some(code) if GONE.contains(&code) => StoreError::replaced(&format!("its tables are gone: {said}")),
        Some(code) if *code == SqlState::DISK_FULL => because("the server's disk is full; make room"),
        Some(code) if *code == SqlState::TOO_MANY_CONNECTIONS => {
            because("the server has no connection left; raise max_connections, or use a pooler")
        }
        Some(code) if *code == SqlState::LOCK_NOT_AVAILABLE => {
            because("another transaction has locked this operation")
        }
        Some(_) => because("the server rejects the statement"),
        None => because("the ledger's server cannot be reached"),
    }
}

/// The server's message, or the chain of causes: the error itself only names the step that failed.
fn words(error: &Error) -> String {
    match error.as_db_error() {
        Some(said) => said.message().to_owned(),
        None => {
            let mut text = error.to_string();
            let mut source = std::error::Error::source(error);
            while let Some(deeper) = source {
                text = format!("{text}: {deeper}");
                source = deeper.source();
            }
            text
        }
    }
}

/// The error for a record that has the expected version and still was not written.
pub(super) fn not_written(schema: &str) -> StoreError {
    StoreError::Unusable {
        what: format!(
            "the server did not write a record that nothing else has changed; is there a trigger or a rule on the \
             table {schema}.operation that suppresses writes? Remove it"
        ),
    }
}
