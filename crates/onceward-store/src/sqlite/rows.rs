//! Records and rows.

use std::sync::Arc;

use onceward::operation::DEFAULT_SCOPE;
use onceward::{Counts, Cursor, Detail, Filter, Key, KeyOrigin, Listed, OperationId, Outcome, Record, State};
use rusqlite::types::{Type, Value};
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};

const COLUMNS: &str = "row, id, scope, name, key, origin, state, version, attempt, created_ms, updated_ms, due_ms, \
                       replays, has_body, detail, outcome";

/// The record of that id, with the body of its result.
pub(super) fn load(connection: &Connection, id: &OperationId) -> rusqlite::Result<Option<Record>> {
    const LOAD: &str = "SELECT row, id, scope, name, key, origin, state, version, attempt, created_ms, updated_ms, \
                        due_ms, replays, has_body, detail, outcome FROM operation WHERE slot = ?1 AND id = ?2";
    let found = connection
        .prepare_cached(LOAD)?
        .query_row(params![slot(id), id.as_str()], |row| {
            let body_at = row.get::<_, bool>(13)?.then(|| row.get::<_, i64>(0)).transpose()?;
            Ok((record(row)?, body_at))
        })
        .optional()?;
    let Some((mut record, body_at)) = found else { return Ok(None) };
    if let (Some(row), Some(outcome)) = (body_at, &mut record.outcome) {
        let body: Option<Vec<u8>> = connection
            .prepare_cached("SELECT bytes FROM body WHERE row = ?1")?
            .query_row([row], |row| row.get(0))
            .optional()?;
        outcome.body = body.map(Arc::from);
    }
    Ok(Some(record))
}

/// A record on its way into the file, with its texts made: by its caller, who has more time than the writer.
pub(super) struct Entry {
    pub(super) record: Arc<Record>,
    detail: String,
    outcome: Option<String>,
}

impl Entry {
    pub(super) fn new(record: Arc<Record>) -> rusqlite::Result<Self> {
        let detail = json(&record.detail)?;
        let outcome = record.outcome.as_ref().map(json).transpose()?;
        Ok(Self { record, detail, outcome })
    }
}

/// Inserts the record of an operation that has none; tells whether it had none.
pub(super) fn insert(connection: &Connection, entry: &Entry) -> rusqlite::Result<bool> {
    let Entry { record, detail, outcome } = entry;
    let inserted = connection
        .prepare_cached(
            "INSERT INTO operation (slot, id, scope, name, key, origin, state, version, attempt, created_ms, \
             updated_ms, due_ms, has_body, detail, outcome, agenda) \
             SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16 \
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
            body(record).is_some(),
            detail,
            outcome,
            agenda(record),
        ])?;
    if inserted == 1 {
        put_body(connection, record)?;
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
    entry: &Entry,
    touch: Touch,
) -> rusqlite::Result<bool> {
    let Entry { record, detail, outcome } = entry;
    let updated = connection
        .prepare_cached(match touch {
            Touch::Unfinished => {
                "UPDATE operation SET state = ?4, version = ?5, attempt = ?6, created_ms = ?7, updated_ms = ?8, \
                 due_ms = ?9, has_body = ?10, detail = ?11, outcome = ?12, agenda = ?13 \
                 WHERE slot = ?1 AND id = ?2 AND version = ?3 AND state <> 'done'"
            }
            Touch::Any => {
                "UPDATE operation SET state = ?4, version = ?5, attempt = ?6, created_ms = ?7, updated_ms = ?8, \
                 due_ms = ?9, has_body = ?10, detail = ?11, outcome = ?12, agenda = ?13 \
                 WHERE slot = ?1 AND id = ?2 AND version = ?3"
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
            body(record).is_some(),
            detail,
            outcome,
            agenda(record),
        ])?;
    if updated == 1 {
        match body(record) {
            Some(_) => put_body(connection, record)?,
            // The common case, spared a statement: a first attempt is done. Where it was in doubt before, with a body,
            // and was settled without one, `has_body` hides the old one until the tombstone takes it.
            None if record.attempt == 1 && record.state == State::Done => {}
            None => delete_body(connection, &record.id)?,
        }
    }
    Ok(updated == 1)
}

/// Deletes the record if its version is `expected`; tells whether it was.
pub(super) fn delete(connection: &Connection, id: &OperationId, expected: u64) -> rusqlite::Result<bool> {
    let found = connection
        .prepare_cached("SELECT 1 FROM operation WHERE slot = ?1 AND id = ?2 AND version = ?3")?
        .exists(params![slot(id), id.as_str(), signed(expected)])?;
    if found {
        delete_body(connection, id)?;
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

fn body(record: &Record) -> Option<&[u8]> {
    record.outcome.as_ref()?.body.as_deref()
}

fn put_body(connection: &Connection, record: &Record) -> rusqlite::Result<()> {
    let Some(bytes) = body(record) else { return Ok(()) };
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO body (row, bytes) SELECT row, ?3 FROM operation WHERE slot = ?1 AND id = ?2",
        )?
        .execute(params![slot(&record.id), record.id.as_str(), bytes])?;
    Ok(())
}

fn delete_body(connection: &Connection, id: &OperationId) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "DELETE FROM body WHERE row = (SELECT row FROM operation WHERE slot = ?1 AND id = ?2)",
        )?
        .execute(params![slot(id), id.as_str()])?;
    Ok(())
}

/// The records that the filter lets through, newest first, without the bodies of their results.
pub(super) fn list(connection: &Connection, filter: &Filter) -> rusqlite::Result<Vec<Listed>> {
    let Some(mut conditions) = Conditions::of(filter) else { return Ok(Vec::new()) };
    if let Some(before) = filter.before {
        conditions.add("row <", before.0.into());
    }
    let limit = i64::try_from(filter.limit).unwrap_or(i64::MAX);
    conditions.values.push(limit.into());
    let text = format!(
        "SELECT {COLUMNS} FROM operation WHERE {} ORDER BY {} DESC LIMIT ?{}",
        conditions.text(),
        conditions.order,
        conditions.values.len()
    );
    let mut statement = connection.prepare(&text)?;
    let rows = statement.query_map(params_from_iter(conditions.values), |row| {
        Ok(Listed { cursor: Cursor(row.get(0)?), record: record(row)? })
    })?;
    rows.collect()
}

/// Up to `limit` records that are due, the longest overdue first, without the bodies of their results.
pub(super) fn due(connection: &Connection, now_ms: i64, limit: usize) -> rusqlite::Result<Vec<Record>> {
    let text = format!("SELECT {COLUMNS} FROM operation WHERE agenda <= ?1 ORDER BY agenda, row LIMIT ?2");
    let mut statement = connection.prepare_cached(&text)?;
    let until = now_ms.min(NOT_SETTLED - 1);
    let rows = statement.query_map(params![until, i64::try_from(limit).unwrap_or(i64::MAX)], record)?;
    rows.collect()
}

/// How many of those that the filter lets through there are of each state.
pub(super) fn counts(connection: &Connection, filter: &Filter) -> rusqlite::Result<Counts> {
    let Some(conditions) = Conditions::of(filter) else { return Ok(Counts::new()) };
    let text = format!("SELECT state, count(*) FROM operation WHERE {} GROUP BY state", conditions.text());
    let mut statement = connection.prepare(&text)?;
    let rows = statement
        .query_map(params_from_iter(conditions.values), |row| Ok((word(row, 0)?, unsigned(row, 1)?)))?;
    rows.collect()
}

/// A filter in SQL.
struct Conditions {
    texts: Vec<String>,
    values: Vec<Value>,
    /// `row` walks the table from its end; `+row` takes an index first and sorts the few rows that it brings.
    order: &'static str,
}

impl Conditions {
    /// All of the filter's but the cursor; `None` where no record can fit.
    fn of(filter: &Filter) -> Option<Self> {
        let mut all = Self { texts: vec!["1".to_owned()], values: Vec::new(), order: "row" };
        if let Some(prefix) = &filter.id_prefix {
            all.id_begins(prefix)?;
        }
        if let Some(key) = &filter.key {
            all.add("key =", key.clone().into());
            all.order = "+row";
        }
        if let Some(scope) = &filter.scope {
            // In these words, so that the planner sees that the partial index has them all.
            let text = if scope == DEFAULT_SCOPE { "scope =" } else { "scope <> 'default' AND scope =" };
            all.add(text, scope.clone().into());
        }
        if let Some(name) = &filter.name {
            all.add("name =", name.clone().into());
        }
        if let Some(since_ms) = filter.since_ms {
            all.add("created_ms >=", since_ms.into());
        }
        if let Some(until_ms) = filter.until_ms {
            all.add("created_ms <", until_ms.into());
        }
        all.in_states(&filter.states);
        Some(all)
    }

    fn add(&mut self, text: &str, value: Value) {
        self.values.push(value);
        self.texts.push(format!("{text} ?{}", self.values.len()));
    }

    fn text(&self) -> String {
        self.texts.join(" AND ")
    }

    /// Ids are looked up by their slots, which keep the order of their first digits.
    fn id_begins(&mut self, prefix: &str) -> Option<()> {
        if ID_MARK.starts_with(prefix) {
            return Some(());
        }
        let digits = prefix.strip_prefix(ID_MARK)?.as_bytes();
        let (first, last) = slots(digits)?;
        self.add("slot >=", first.into());
        self.add("slot <=", last.into());
        let length = i64::try_from(prefix.len()).unwrap_or(i64::MAX);
        self.add(&format!("substr(id, 1, {length}) ="), prefix.to_owned().into());
        self.order = "+row";
        Some(())
    }

    fn in_states(&mut self, states: &[State]) {
        if states.is_empty() {
            return;
        }
        let words: Vec<String> = states.iter().map(|state| format!("'{state}'")).collect();
        self.texts.push(format!("state IN ({})", words.join(", ")));
        // In these words, so that the planner sees which indexes have them all; and few enough to be sorted, rather
        // than looked for among all that are done.
        if states.iter().all(|state| !state.is_settled()) {
            self.texts.push(format!("agenda >= {NOT_SETTLED}"));
            self.order = "+row";
        } else if !states.iter().any(|state| matches!(state, State::Done | State::Expired)) {
            self.texts.push(format!("(agenda >= {NOT_SETTLED} OR state = 'failed' OR state = 'cancelled')"));
            self.order = "+row";
        }
    }
}

fn record(row: &Row<'_>) -> rusqlite::Result<Record> {
    let outcome = match row.get_ref(15)?.as_str_or_null().map_err(|error| damaged(15, error))? {
        Some(text) => Some(from_json::<Outcome>(15, text)?),
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
        detail: from_json::<Detail>(14, row.get_ref(14)?.as_str()?)?,
        outcome,
    })
}

/// Beyond all times that are.
const NOT_SETTLED: i64 = i64::MAX - 1;

/// Where an operation stands in the order of what there is to do about it.
fn agenda(record: &Record) -> i64 {
    record.due_ms.map_or(NOT_SETTLED, |due_ms| due_ms.min(NOT_SETTLED - 1))
}

/// What every id begins with.
const ID_MARK: &str = "op_";
/// How many digits of an id make its slot. They have 65 bits; the first one falls off.
const SLOT_DIGITS: usize = 13;

/// What an id is looked up by. Ids are hashes, so any eight bytes of one are as good as random.
fn slot(id: &OperationId) -> i64 {
    let digits = id.as_str().as_bytes()[ID_MARK.len()..].iter().take(SLOT_DIGITS);
    let bits = digits.fold(0_u64, |bits, digit| (bits << 5) | digit_value(*digit).unwrap_or_default());
    i64::from_ne_bytes(bits.to_ne_bytes())
}

/// The first and the last slot of the ids that begin with these digits, of which there is at least one; `None` where
/// no id does. The first digit decides the sign, so the slots between the two are all that there are.
fn slots(digits: &[u8]) -> Option<(i64, i64)> {
    let (mut first, mut last) = (0_u64, 0_u64);
    for index in 0..SLOT_DIGITS {
        let (low, high) = match digits.get(index) {
            Some(digit) => (digit_value(*digit)?, digit_value(*digit)?),
            None => (0, 31),
        };
        (first, last) = ((first << 5) | low, (last << 5) | high);
    }
    let signed = |bits: u64| i64::from_ne_bytes(bits.to_ne_bytes());
    Some((signed(first), signed(last)))
}

/// The value of a base32 digit.
fn digit_value(digit: u8) -> Option<u64> {
    match digit {
        b'a'..=b'z' => Some(u64::from(digit - b'a')),
        b'2'..=b'7' => Some(u64::from(digit - b'2') + 26),
        _ => None,
    }
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
