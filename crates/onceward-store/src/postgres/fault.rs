//! What an error of the server or of the way to it means.

use onceward::StoreError;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

/// What can be done about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The connection is gone, or its server will not write any more. What was sent may have been written.
    Lost,
    /// Somebody else holds what one of the changes needs, or two waited for each other: nothing was written.
    Busy,
    /// The server has refused, for certain: nothing was written.
    Refused,
}

pub(super) fn of(error: &Error) -> Fault {
    let Some(code) = error.code() else { return Fault::Lost };
    let lost = [
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::IDLE_SESSION_TIMEOUT,
        SqlState::READ_ONLY_SQL_TRANSACTION,
        // Somebody else has had the connection: a pooler is in between after all.
        SqlState::INVALID_SQL_STATEMENT_NAME,
    ];
    let busy = [
        SqlState::LOCK_NOT_AVAILABLE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::QUERY_CANCELED,
    ];
    // Class 08: the connection itself.
    if lost.contains(code) || code.code().starts_with("08") {
        Fault::Lost
    } else if busy.contains(code) {
        Fault::Busy
    } else {
        Fault::Refused
    }
}

/// What an error means to the person who runs the ledger.
pub(super) fn explain(error: Error) -> StoreError {
    let unusable = |what: String| StoreError::Unusable { what };
    let said = words(&error);
    match error.code() {
        Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => unusable(format!(
            "the role may not do what the ledger needs ({said}); let it own the ledger's schema, or grant it \
             USAGE on the schema and SELECT, INSERT, UPDATE, DELETE on its tables"
        )),
        Some(code)
            if [SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION].contains(code) =>
        {
            unusable(format!("the server does not let this role in: {said}"))
        }
        Some(code) if *code == SqlState::INVALID_CATALOG_NAME => {
            unusable(format!("{said}; create the database first"))
        }
        Some(code)
            if [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_FUNCTION, SqlState::INVALID_SCHEMA_NAME]
                .contains(code) =>
        {
            unusable(format!("the ledger's tables are gone while it is in use: {said}"))
        }
        Some(code) if *code == SqlState::DISK_FULL => because("the server's disk is full; make room", error),
        Some(code) if *code == SqlState::TOO_MANY_CONNECTIONS => {
            because("the server has no connection left; raise max_connections, or use a pooler", error)
        }
        Some(code) if *code == SqlState::LOCK_NOT_AVAILABLE => {
            because("another transaction holds this operation", error)
        }
        Some(_) => because("the server refuses", error),
        None => because("the ledger's server cannot be reached", error),
    }
}

fn because(what: &str, error: Error) -> StoreError {
    let said = words(&error);
    StoreError::Unavailable { what: format!("{what}: {said}"), source: Some(Box::new(error)) }
}

/// What the server said, or what happened on the way; the error itself says only in which step.
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
