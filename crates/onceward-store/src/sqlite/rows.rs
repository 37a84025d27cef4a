//! Conversion between records and rows.

use std::sync::Arc;

use onceward::{
    Barrier, Counts, Cursor, DEFAULT_SCOPE, Detail, Filter, Key, KeyOrigin, Listed, MOST_OPEN, OperationId,
    Outcome, Record, State, after_prefix, open_or_newest, stopping_scopes,
};
use rusqlite::types::{Type, Value};
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};

/// The columns of a record, as literal text: statements that are sent often are constants.
macro_rules! columns {
    () => {
        "row, id, scope, name, key, origin, state, version, attempt, created_ms, updated_ms, due_ms, replays, \
         has_body, detail, outcome, kind, action, number"
    };
}
const COLUMNS: &str = columns!();

/// The barrier of exactly one scope.
const BARRIER: &str = "SELECT scope, word FROM stopped WHERE scope = ?1";

/// Loads the record with that id, including the body of its result.
pub(super) fn load(connection: &Connection, id: &OperationId) -> rusqlite::Result<Option<Record>> {
    const LOAD: &str = concat!("SELECT ", columns!(), " FROM operations WHERE slot = ?1 AND id = ?2");
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
        outcome.set_body(body.map(Arc::from));
    }
    Ok(Some(record))
}

/// A record to be written, with its JSON already encoded. The caller does that, to save the writer's time.
pub(super) struct Entry {
    pub(super) record: Arc<Record>,
    pub(super) replaces: Replaces,
    detail: String,
    outcome: Option<String>,
}

/// What is known about the record that an entry replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replaces {
    Unknown,
    /// It is finished, and the body of its result stays as it is: a delivery is noted, for example.
    SameResult,
}

impl Entry {
    pub(super) fn new(record: Arc<Record>, replaces: Replaces) -> rusqlite::Result<Self> {
        let detail = json(&record.detail)?;
        let outcome = record.outcome.as_ref().map(json).transpose()?;
        Ok(Self { record, replaces, detail, outcome })
    }
}

impl Replaces {
    /// What is known if the record that is replaced is this one.
    pub(super) fn of(known: &Record, next: &Record) -> Self {
        let same = match (body_of(known), body_of(next)) {
            (Some(known), Some(next)) => Arc::ptr_eq(known, next),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if known.state == State::Done && same { Self::SameResult } else { Self::Unknown }
    }
}

/// Inserts the record if the operation has none. Returns whether it did.
pub(super) fn insert(connection: &Connection, entry: &Entry) -> rusqlite::Result<bool> {
    let Entry { record, detail, outcome, .. } = entry;
    let inserted = connection
        .prepare_cached(
            "INSERT INTO operations (slot, id, scope, name, key, origin, state, version, attempt, created_ms, \
             updated_ms, due_ms, has_body, detail, outcome, agenda, open_until, kind, action, number) \
             SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20 \
             WHERE NOT EXISTS (SELECT 1 FROM operations WHERE slot = ?1 AND id = ?2)",
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
            open_until(record),
            record.kind.as_str(),
            record.action.as_ref().map(OperationId::as_str),
            record.number.map(signed),
        ])?;
    if inserted == 1 {
        put_body(connection, record)?;
    }
    Ok(inserted == 1)
}

/// Which records an update may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Touch {
    /// Only one that cannot be cached. This is the common case, in one statement.
    Unfinished,
    /// Any record.
    Any,
}

/// Updates the record if its version is `expected`. Returns whether it was.
pub(super) fn update(
    connection: &Connection,
    expected: u64,
    entry: &Entry,
    touch: Touch,
) -> rusqlite::Result<bool> {
    let Entry { record, replaces, detail, outcome } = entry;
    let updated = connection
        .prepare_cached(match touch {
            Touch::Unfinished => {
                "UPDATE operations SET state = ?4, version = ?5, attempt = ?6, created_ms = ?7, updated_ms = ?8, \
                 due_ms = ?9, has_body = ?10, detail = ?11, outcome = ?12, agenda = ?13, open_until = ?14 \
                 WHERE slot = ?1 AND id = ?2 AND version = ?3 AND state <> 'done'"
            }
            Touch::Any => {
                "UPDATE operations SET state = ?4, version = ?5, attempt = ?6, created_ms = ?7, updated_ms = ?8, \
                 due_ms = ?9, has_body = ?10, detail = ?11, outcome = ?12, agenda = ?13, open_until = ?14 \
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
            open_until(record),
        ])?;
    if updated == 1 && *replaces == Replaces::Unknown {
        match body(record) {
            Some(_) => put_body(connection, record)?,
            // Saves a statement in the common case that the first attempt is done. If the operation was in doubt with
            // a body and was settled without one, `has_body` hides the old body until the tombstone removes it.
            None if record.attempt == 1 && record.state == State::Done => {}
            None => delete_body(connection, &record.id)?,
        }
    }
    Ok(updated == 1)
}

/// Deletes the record if its version is `expected`. Returns whether it was.
pub(super) fn delete(connection: &Connection, id: &OperationId, expected: u64) -> rusqlite::Result<bool> {
    let found = connection
        .prepare_cached("SELECT 1 FROM operations WHERE slot = ?1 AND id = ?2 AND version = ?3")?
        .exists(params![slot(id), id.as_str(), signed(expected)])?;
    if found {
        delete_body(connection, id)?;
        connection
            .prepare_cached("DELETE FROM operations WHERE slot = ?1 AND id = ?2")?
            .execute(params![slot(id), id.as_str()])?;
    }
    Ok(found)
}

/// The barrier that covers this scope, if it is stopped.
pub(super) fn barrier_of(connection: &Connection, scope: &str) -> rusqlite::Result<Option<Barrier>> {
    for name in stopping_scopes(scope) {
        let found = find_barrier(connection, BARRIER, name)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// The barrier of exactly this scope, by a query for it.
pub(super) fn find_barrier(
    connection: &Connection,
    question: &str,
    scope: &str,
) -> rusqlite::Result<Option<Barrier>> {
    connection.prepare_cached(question)?.query_row([scope], barrier).optional()
}

fn barrier(row: &Row<'_>) -> rusqlite::Result<Barrier> {
    Ok(Barrier::new(row.get::<_, String>(0)?, from_json(1, row.get_ref(1)?.as_str()?)?))
}

/// All barriers, ordered by scope.
pub(super) fn barriers(connection: &Connection) -> rusqlite::Result<Vec<Barrier>> {
    let mut statement = connection.prepare_cached("SELECT scope, word FROM stopped ORDER BY scope")?;
    statement.query_map([], barrier)?.collect()
}

/// Writes the barrier, unless the scope has one, and returns the one that is there.
pub(super) fn stop(connection: &Connection, barrier: &Barrier) -> rusqlite::Result<Option<Barrier>> {
    let insert = "INSERT INTO stopped (scope, word) VALUES (?1, ?2) ON CONFLICT (scope) DO NOTHING";
    connection.execute(insert, params![barrier.scope, json(&barrier.word)?])?;
    find_barrier(connection, BARRIER, &barrier.scope)
}

/// Removes the barrier of exactly this scope, and returns it.
pub(super) fn resume(connection: &Connection, scope: &str) -> rusqlite::Result<Option<Barrier>> {
    let found = find_barrier(connection, BARRIER, scope)?;
    connection.execute("DELETE FROM stopped WHERE scope = ?1", [scope])?;
    Ok(found)
}

/// Adds to the replay tally.
pub(super) fn add_replays(connection: &Connection, id: &OperationId, replays: u64) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE operations SET replays = replays + ?3 WHERE slot = ?1 AND id = ?2")?
        .execute(params![slot(id), id.as_str(), signed(replays)])?;
    Ok(())
}

fn body(record: &Record) -> Option<&[u8]> {
    body_of(record).map(|body| &**body)
}

fn body_of(record: &Record) -> Option<&Arc<[u8]>> {
    record.outcome.as_ref()?.body.as_ref()
}

fn put_body(connection: &Connection, record: &Record) -> rusqlite::Result<()> {
    let Some(bytes) = body(record) else { return Ok(()) };
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO body (row, bytes) SELECT row, ?3 FROM operations WHERE slot = ?1 AND id = ?2",
        )?
        .execute(params![slot(&record.id), record.id.as_str(), bytes])?;
    Ok(())
}

fn delete_body(connection: &Connection, id: &OperationId) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "DELETE FROM body WHERE row = (SELECT row FROM operations WHERE slot = ?1 AND id = ?2)",
        )?
        .execute(params![slot(id), id.as_str()])?;
    Ok(())
}

/// The records that match the filter, newest first, without the bodies of their results.
pub(super) fn list(connection: &Connection, filter: &Filter) -> rusqlite::Result<Vec<Listed>> {
    let Some(mut conditions) = Conditions::of(filter) else { return Ok(Vec::new()) };
    if let Some(before) = filter.before {
        conditions.add("row <", before.0.into());
    }
    let limit = i64::try_from(filter.limit).unwrap_or(i64::MAX);
    conditions.values.push(limit.into());
    let text = format!(
        "SELECT {COLUMNS} FROM operations WHERE {} ORDER BY {} DESC LIMIT ?{}",
        conditions.text(),
        conditions.order,
        conditions.values.len()
    );
    let mut statement = connection.prepare_cached(&text)?;
    let rows = statement.query_map(params_from_iter(conditions.values), |row| {
        Ok(Listed { cursor: Cursor(row.get(0)?), record: record(row)? })
    })?;
    rows.collect()
}

/// The occurrences of an action that may be open, and the newest, without the bodies of their results.
pub(super) fn occurrences(
    connection: &Connection,
    action: &OperationId,
    now_ms: i64,
) -> rusqlite::Result<Vec<Record>> {
    const FIND: &str = concat!(
        "SELECT ",
        columns!(),
        " FROM operations WHERE slot = ?1 AND id = ?2 UNION ALL SELECT * FROM (SELECT ",
        columns!(),
        " FROM operations WHERE action = ?2 AND open_until > ?3 LIMIT ?4) UNION ALL SELECT * FROM (SELECT ",
        columns!(),
        " FROM operations WHERE action = ?2 AND number > 1 ORDER BY number DESC LIMIT 1)"
    );
    let mut statement = connection.prepare_cached(FIND)?;
    let limit = i64::try_from(MOST_OPEN).unwrap_or(i64::MAX);
    let rows = statement.query_map(params![slot(action), action.as_str(), now_ms, limit], record)?;
    Ok(open_or_newest(rows.collect::<rusqlite::Result<_>>()?, now_ms))
}

/// Up to `limit` records that are due, the longest overdue first, without the bodies of their results.
pub(super) fn due(connection: &Connection, now_ms: i64, limit: usize) -> rusqlite::Result<Vec<Record>> {
    let text = format!("SELECT {COLUMNS} FROM operations WHERE agenda <= ?1 ORDER BY agenda, row LIMIT ?2");
    let mut statement = connection.prepare_cached(&text)?;
    let until = now_ms.min(NOT_SETTLED - 1);
    let rows = statement.query_map(params![until, i64::try_from(limit).unwrap_or(i64::MAX)], record)?;
    rows.collect()
}

/// The number of matching records in each state.
pub(super) fn counts(connection: &Connection, filter: &Filter) -> rusqlite::Result<Counts> {
    let Some(conditions) = Conditions::of(filter) else { return Ok(Counts::new()) };
    let text = format!("SELECT state, count(*) FROM operations WHERE {} GROUP BY state", conditions.text());
    let mut statement = connection.prepare(&text)?;
    let rows = statement
        .query_map(params_from_iter(conditions.values), |row| Ok((word(row, 0)?, unsigned(row, 1)?)))?;
    rows.collect()
}

/// A filter as SQL conditions.
struct Conditions {
    texts: Vec<String>,
    values: Vec<Value>,
    /// `row` scans the table from its end. `+row` makes SQLite use an index first and sort the few rows found.
    order: &'static str,
}

impl Conditions {
    /// All conditions of the filter except the cursor; `None` if no record can match.
    fn of(filter: &Filter) -> Option<Self> {
        let mut all = Self { texts: vec!["1".to_owned()], values: Vec::new(), order: "row" };
        if let Some(prefix) = &filter.id_prefix {
            all.id_begins(prefix)?;
        }
        if let Some(key) = &filter.key {
            // A key that does not look derived was given by a caller, and given keys are indexed.
            let derived = DERIVED_MARKS.iter().any(|mark| key.starts_with(mark));
            let text = if derived { "key =" } else { "origin = 'given' AND key =" };
            all.add(text, key.clone().into());
            all.order = "+row";
        }
        if let Some(scope) = &filter.scope {
            // Literal text, so that the planner recognizes the condition of the partial index.
            let text = if scope == DEFAULT_SCOPE { "scope =" } else { "scope <> 'default' AND scope =" };
            all.add(text, scope.clone().into());
        }
        if let Some(prefix) = &filter.scope_prefix {
            // Literal text as well: the index has no records of the default scope.
            if !DEFAULT_SCOPE.starts_with(prefix.as_str()) {
                all.texts.push("scope <> 'default'".to_owned());
            }
            all.add("scope >=", prefix.clone().into());
            if let Some(end) = after_prefix(prefix) {
                all.add("scope <", end.into());
            }
        }
        if let Some(name) = &filter.name {
            all.add("name =", name.clone().into());
        }
        if let Some(print) = &filter.fingerprint {
            // It is the first member of the JSON, so a row is decided by a comparison with its beginning.
            let member = format!("{{\"fingerprint\":\"{}", print.as_str());
            all.add("detail >=", format!("{member}\"").into());
            all.add("detail <", format!("{member}#").into());
        }
        if let Some(since_ms) = filter.since_ms {
            all.add("created_ms >=", since_ms.into());
        }
        if let Some(until_ms) = filter.until_ms {
            all.add("created_ms <", until_ms.into());
        }
        if !filter.kinds.is_empty() {
            let words: Vec<String> = filter.kinds.iter().map(|kind| format!("'{kind}'")).collect();
            all.texts.push(format!("kind IN ({})", words.join(", ")));
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

    /// Ids are looked up by their slots, which preserve the order of their first digits.
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
        // Literal text, so that the planner recognizes the partial indexes. The matching rows are few, so sorting
        // them is faster than scanning all finished records.
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
        kind: row.get_ref(16)?.as_str()?.parse().map_err(|error| damaged(16, error))?,
        action: match row.get_ref(17)?.as_str_or_null().map_err(|error| damaged(17, error))? {
            Some(id) => Some(OperationId::parse(id).map_err(|error| damaged(17, error))?),
            None => None,
        },
        number: row.get::<_, Option<i64>>(18)?.map(i64::unsigned_abs),
    })
}

/// Greater than any due time.
const NOT_SETTLED: i64 = i64::MAX - 1;

/// The position of an operation in the index of what is due.
fn agenda(record: &Record) -> i64 {
    record.due_ms.map_or(NOT_SETTLED, |due_ms| due_ms.min(NOT_SETTLED - 1))
}

/// Until when an occurrence is open. The first one is found by its id, so it is in no index.
fn open_until(record: &Record) -> Option<i64> {
    record.action.as_ref().and_then(|_| record.open_until_ms())
}

/// The prefixes of derived keys.
const DERIVED_MARKS: [&str; 2] = ["k1_", "k2_"];
/// The prefix of every id.
const ID_MARK: &str = "op_";
/// How many digits of an id make its slot. They have 65 bits; the first bit is dropped.
const SLOT_DIGITS: usize = 13;

/// The value by which an id is looked up. Ids are hashes, so any eight bytes of one are effectively random.
fn slot(id: &OperationId) -> i64 {
    let digits = id.as_str().as_bytes()[ID_MARK.len()..].iter().take(SLOT_DIGITS);
    let bits = digits.fold(0_u64, |bits, digit| (bits << 5) | digit_value(*digit).unwrap_or_default());
    i64::from_ne_bytes(bits.to_ne_bytes())
}

/// The first and the last slot of the ids that begin with these digits, of which there is at least one; `None` if no
/// id can begin with them. The first digit decides the sign, so the range has no gap.
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

/// The error for a value that this version cannot have written.
fn damaged(column: usize, error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error))
}
