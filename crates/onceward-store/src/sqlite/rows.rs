//! Records and rows.

use onceward::{Counts, Cursor, Detail, Filter, Key, KeyOrigin, Listed, OperationId, Outcome, Record, State};
use rusqlite::types::{Type, Value};
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};

const COLUMNS: &str = "o.row, o.id, o.scope, o.name, o.key, o.origin, o.state, o.version, o.attempt, o.created_ms, \
                       o.updated_ms, o.due_ms, o.replays, o.detail, r.outcome";

/// The record of that id, with the body of its result.
pub(super) fn load(connection: &Connection, id: &OperationId) -> rusqlite::Result<Option<Record>> {
    const LOAD: &str = "SELECT o.row, o.id, o.scope, o.name, o.key, o.origin, o.state, o.version, o.attempt, \
                        o.created_ms, o.updated_ms, o.due_ms, o.replays, o.detail, r.outcome, r.body \
                        FROM operation o LEFT JOIN result r ON r.row = o.row WHERE o.slot = ?1 AND o.id = ?2";
    connection
        .prepare_cached(LOAD)?
        .query_row(params![slot(id), id.as_str()], |row| {
            let mut record = record(row)?;
            if let Some(outcome) = &mut record.outcome {
                outcome.body = row.get::<_, Option<Vec<u8>>>(15)?.map(Vec::into_boxed_slice);
            }
            Ok(record)
        })
        .optional()
}

/// Inserts the record of an operation that has none; tells whether it had none.
pub(super) fn insert(connection: &Connection, record: &Record) -> rusqlite::Result<bool> {
    let inserted = connection
        .prepare_cached(
            "INSERT INTO operation (slot, id, scope, name, key, origin, state, version, attempt, created_ms, \
             updated_ms, due_ms, detail) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13 \
             WHERE NOT EXISTS (SELECT 1 FROM operation WHERE slot = ?1 AND id = ?2)",
        )?
        .execute(params![
            slot(&record.id),
            record.id.as_str(),
            record.scope,
            record.name,
            record.key.text,
            match record.key.origin {
                KeyOrigin::Given => "given",
                KeyOrigin::Derived => "derived",
            },
            record.state.as_str(),
            signed(record.version),
            record.attempt,
            record.created_ms,
            record.updated_ms,
            record.due_ms,
            json(&record.detail)?,
        ])?;
    if let Some(outcome) = record.outcome.as_ref().filter(|_| inserted == 1) {
        put_result(connection, &record.id, outcome)?;
    }
    Ok(inserted == 1)
}

/// Which records a change may touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Touch {
    /// Only one that nobody can hold in memory: the common case, in one statement.
    Unfinished,
    /// Any.
    Any,
}

/// Updates the record if its version is `expected`; tells whether it was.
pub(super) fn update(
    connection: &Connection,
    expected: u64,
    record: &Record,
    touch: Touch,
) -> rusqlite::Result<bool> {
    let updated = connection
        .prepare_cached(match touch {
            Touch::Unfinished => {
                "UPDATE operation SET state = ?4, version = ?5, attempt = ?6, created_ms = ?7, updated_ms = ?8, \
                 due_ms = ?9, detail = ?10 WHERE slot = ?1 AND id = ?2 AND version = ?3 AND state <> 'done'"
            }
            Touch::Any => {
                "UPDATE operation SET state = ?4, version = ?5, attempt = ?6, created_ms = ?7, updated_ms = ?8, \
                 due_ms = ?9, detail = ?10 WHERE slot = ?1 AND id = ?2 AND version = ?3"
            }
        })?
        .execute(params![
            slot(&record.id),
            record.id.as_str(),
            signed(expected),
            record.state.as_str(),
            signed(record.version),
            record.attempt,
            record.created_ms,
            record.updated_ms,
            record.due_ms,
            json(&record.detail)?,
        ])?;
    match &record.outcome {
        _ if updated == 0 => {}
        Some(outcome) => put_result(connection, &record.id, outcome)?,
        None => delete_result(connection, &record.id)?,
    }
    Ok(updated == 1)
}

/// Deletes the record if its version is `expected`; tells whether it was.
pub(super) fn delete(connection: &Connection, id: &OperationId, expected: u64) -> rusqlite::Result<bool> {
    let found = connection
        .prepare_cached("SELECT 1 FROM operation WHERE slot = ?1 AND id = ?2 AND version = ?3")?
        .exists(params![slot(id), id.as_str(), signed(expected)])?;
    if found {
        delete_result(connection, id)?;
        connection
            .prepare_cached("DELETE FROM operation WHERE slot = ?1 AND id = ?2")?
            .execute(params![slot(id), id.as_str()])?;
    }
    Ok(found)
}

/// Adds to the tally of replays.
pub(super) fn add_replays(connection: &Connection, id: &OperationId, replays: u64) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE operation SET replays = replays + ?3 WHERE slot = ?1 AND id = ?2")?
        .execute(params![slot(id), id.as_str(), signed(replays)])?;
    Ok(())
}

fn put_result(connection: &Connection, id: &OperationId, outcome: &Outcome) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO result (row, outcome, body) \
             SELECT row, ?3, ?4 FROM operation WHERE slot = ?1 AND id = ?2",
        )?
        .execute(params![slot(id), id.as_str(), json(outcome)?, outcome.body.as_deref()])?;
    Ok(())
}

fn delete_result(connection: &Connection, id: &OperationId) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "DELETE FROM result WHERE row = (SELECT row FROM operation WHERE slot = ?1 AND id = ?2)",
        )?
        .execute(params![slot(id), id.as_str()])?;
    Ok(())
}

/// The records that the filter lets through, newest first, without the bodies of their results.
pub(super) fn list(connection: &Connection, filter: &Filter) -> rusqlite::Result<Vec<Listed>> {
    let mut conditions = vec!["1".to_owned()];
    let mut values: Vec<Value> = Vec::new();
    let mut condition = |text: &str, value: Value| {
        values.push(value);
        conditions.push(format!("{text} ?{}", values.len()));
    };
    if let Some(scope) = &filter.scope {
        condition("o.scope =", scope.clone().into());
    }
    if let Some(name) = &filter.name {
        condition("o.name =", name.clone().into());
    }
    if let Some(before) = filter.before {
        condition("o.row <", before.0.into());
    }
    if !filter.states.is_empty() {
        let words: Vec<String> = filter.states.iter().map(|state| format!("'{state}'")).collect();
        conditions.push(format!("o.state IN ({})", words.join(", ")));
        if !filter.states.contains(&State::Done) && !filter.states.contains(&State::Expired) {
            // In these words, so that the planner sees that the partial index has them all.
            conditions.push("o.state <> 'done' AND o.state <> 'expired'".to_owned());
        }
    }
    values.push(i64::try_from(filter.limit).unwrap_or(i64::MAX).into());
    let text = format!(
        "SELECT {COLUMNS} FROM operation o LEFT JOIN result r ON r.row = o.row WHERE {} ORDER BY o.row DESC LIMIT ?{}",
        conditions.join(" AND "),
        values.len()
    );
    let mut statement = connection.prepare(&text)?;
    let rows = statement.query_map(params_from_iter(values), |row| {
        Ok(Listed { cursor: Cursor(row.get(0)?), record: record(row)? })
    })?;
    rows.collect()
}

/// Up to `limit` records that are due, the longest overdue first, without the bodies of their results.
pub(super) fn due(connection: &Connection, now_ms: i64, limit: usize) -> rusqlite::Result<Vec<Record>> {
    let text = format!(
        "SELECT {COLUMNS} FROM operation o LEFT JOIN result r ON r.row = o.row \
         WHERE o.due_ms IS NOT NULL AND o.due_ms <= ?1 ORDER BY o.due_ms, o.row LIMIT ?2"
    );
    let mut statement = connection.prepare_cached(&text)?;
    let rows = statement.query_map(params![now_ms, i64::try_from(limit).unwrap_or(i64::MAX)], record)?;
    rows.collect()
}

/// How many there are of each state.
pub(super) fn counts(connection: &Connection) -> rusqlite::Result<Counts> {
    let mut statement = connection.prepare_cached("SELECT state, count(*) FROM operation GROUP BY state")?;
    let rows = statement.query_map([], |row| Ok((word(row, 0)?, unsigned(row, 1)?)))?;
    rows.collect()
}

fn record(row: &Row<'_>) -> rusqlite::Result<Record> {
    let outcome = match row.get_ref(14)?.as_str_or_null().map_err(|error| damaged(14, error))? {
        Some(text) => Some(from_json::<Outcome>(14, text)?),
        None => None,
    };
    Ok(Record {
        id: OperationId::parse(row.get_ref(1)?.as_str()?).map_err(|error| damaged(1, error))?,
        scope: row.get(2)?,
        name: row.get(3)?,
        key: Key {
            text: row.get(4)?,
            origin: if row.get_ref(5)?.as_str()? == "given" { KeyOrigin::Given } else { KeyOrigin::Derived },
        },
        state: word(row, 6)?,
        version: unsigned(row, 7)?,
        attempt: row.get(8)?,
        created_ms: row.get(9)?,
        updated_ms: row.get(10)?,
        due_ms: row.get(11)?,
        replays: unsigned(row, 12)?,
        detail: from_json::<Detail>(13, row.get_ref(13)?.as_str()?)?,
        outcome,
    })
}

/// What an id is looked up by. Ids are hashes, so any eight bytes of one are as good as random.
fn slot(id: &OperationId) -> i64 {
    let digits = &id.as_str().as_bytes()[3..];
    let bits = digits.iter().take(13).fold(0_u64, |bits, digit| {
        let value = match digit {
            b'a'..=b'z' => digit - b'a',
            _ => digit - b'2' + 26,
        };
        (bits << 5) | u64::from(value)
    });
    i64::from_ne_bytes(bits.to_ne_bytes())
}

fn word(row: &Row<'_>, column: usize) -> rusqlite::Result<State> {
    row.get_ref(column)?.as_str()?.parse().map_err(|error| damaged(column, error))
}

fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let number: i64 = row.get(column)?;
    u64::try_from(number).map_err(|error| damaged(column, error))
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn json(value: &impl serde::Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

fn from_json<T: serde::de::DeserializeOwned>(column: usize, text: &str) -> rusqlite::Result<T> {
    serde_json::from_str(text).map_err(|error| damaged(column, error))
}

/// A value that no version of this program wrote.
fn damaged(column: usize, error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error))
}
