//! Conversion between records and rows.

use std::collections::HashMap;
use std::sync::Arc;

use onceward::{
    Barrier, Counts, Cursor, DEFAULT_SCOPE, Detail, Filter, Key, KeyOrigin, Listed, MOST_OPEN, OperationId,
    Outcome, Record, State, StoreError, after_prefix, stopping_scopes,
};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::writing::Writing;

/// The columns of a record's row. Its body follows them where it is requested.
const COLUMNS: &str = "id, place, version, attempt, created_ms, updated_ms, due_ms, replays, state, origin, scope, \
                       name, key, detail, outcome, kind, action, number";

/// The position of `detail` among them.
const DETAIL: usize = 13;

/// A statement with the types of its values. It can be sent as text or be prepared.
#[derive(Debug, Clone)]
pub(super) struct Statement {
    pub(super) text: String,
    pub(super) types: Vec<Type>,
}

/// The statements that are sent often.
#[derive(Debug, Clone)]
pub(super) struct Statements {
    pub(super) swap: Statement,
    pub(super) delete: Statement,
    pub(super) load: Statement,
    pub(super) watch: Statement,
    pub(super) tally: Statement,
}

impl Statements {
    pub(super) fn new(schema: &str) -> Self {
        let (t, n) = (Type::TEXT_ARRAY, Type::INT8_ARRAY);
        let call = |name: &str, types: Vec<Type>| {
            let values: Vec<String> = (1..=types.len()).map(|number| format!("${number}")).collect();
            Statement { text: format!("SELECT * FROM \"{schema}\".{name}({})", values.join(", ")), types }
        };
        let mut swap = vec![Type::INT4, Type::BOOL, Type::TEXT, Type::INT8, Type::TEXT];
        swap.extend([t.clone(), t.clone(), t.clone(), n.clone(), n.clone()]);
        swap.extend(std::iter::repeat_n(t.clone(), 5).chain(std::iter::repeat_n(n.clone(), 5)));
        swap.extend([t.clone(), t.clone(), Type::BYTEA_ARRAY]);
        swap.extend([t.clone(), n.clone(), n.clone(), t.clone()]);
        swap.extend(std::iter::repeat_n(n.clone(), 5));
        swap.extend([t.clone(), t.clone(), Type::BYTEA_ARRAY, t.clone(), t.clone()]);
        Self {
            swap: call("swap", swap),
            delete: call("remove", vec![Type::INT4, Type::TEXT, t.clone(), n.clone()]),
            load: Statement {
                text: format!("SELECT {COLUMNS}, body FROM \"{schema}\".load($1)"),
                types: vec![t.clone()],
            },
            watch: call("watch", vec![Type::INT4, t.clone(), n.clone()]),
            tally: call("tally", vec![Type::INT4, t, n]),
        }
    }
}

/// The arguments of the function `swap` besides the changes.
pub(super) struct Terms<'a> {
    /// How long it waits for a lock; `None` to use the setting of the caller's transaction.
    pub(super) patience_ms: Option<i32>,
    /// Whether the changes were sent before and the reply was lost.
    pub(super) again: bool,
    /// Which ledger the store has opened.
    pub(super) ledger: &'a str,
    /// The highest position that the store has seen, if known.
    pub(super) seen: Option<i64>,
    /// The ledger's time, if it must be advanced.
    pub(super) clock: Option<String>,
}

/// Many changes as arrays of column values, so that one statement serves any number of them.
#[derive(Default)]
pub(super) struct Changes<'a> {
    new: Columns<'a>,
    old: Columns<'a>,
    /// The records that begin something, each with every scope whose barrier refuses it.
    begin_id: Vec<&'a str>,
    begin_scope: Vec<&'a str>,
}

#[derive(Default)]
struct Columns<'a> {
    id: Vec<&'a str>,
    expected: Vec<i64>,
    kind: Vec<&'static str>,
    action: Vec<Option<&'a str>>,
    number: Vec<Option<i64>>,
    open_until: Vec<Option<i64>>,
    scope: Vec<&'a str>,
    name: Vec<&'a str>,
    key: Vec<&'a str>,
    origin: Vec<&'static str>,
    state: Vec<&'static str>,
    version: Vec<i64>,
    attempt: Vec<i64>,
    created_ms: Vec<i64>,
    updated_ms: Vec<i64>,
    due_ms: Vec<Option<i64>>,
    detail: Vec<String>,
    outcome: Vec<Option<String>>,
    body: Vec<Option<&'a [u8]>>,
}

impl<'a> Changes<'a> {
    /// Adds a change. Changes must be sorted by id, so that concurrent batches take their locks in the same order.
    pub(super) fn push(
        &mut self,
        expected: Option<u64>,
        record: &'a Record,
        writing: Writing,
    ) -> Result<(), StoreError> {
        if writing == Writing::Begin {
            for scope in stopping_scopes(&record.scope) {
                self.begin_id.push(record.id.as_str());
                self.begin_scope.push(scope);
            }
        }
        let columns = match expected {
            None => &mut self.new,
            Some(_) => &mut self.old,
        };
        let (detail, outcome) = texts(record)?;
        columns.id.push(record.id.as_str());
        match expected {
            Some(expected) => columns.expected.push(signed(expected)),
            None => {
                columns.kind.push(record.kind.as_str());
                columns.action.push(record.action.as_ref().map(OperationId::as_str));
                columns.number.push(record.number.map(signed));
                columns.scope.push(&record.scope);
                columns.name.push(&record.name);
                columns.key.push(&record.key.text);
                columns.origin.push(origin(record.key.origin));
            }
        }
        // The first occurrence is found by its id, so it is in no index.
        columns.open_until.push(record.action.as_ref().and_then(|_| record.open_until_ms()));
        columns.state.push(record.state.as_str());
        columns.version.push(signed(record.version));
        columns.attempt.push(i64::from(record.attempt));
        columns.created_ms.push(record.created_ms);
        columns.updated_ms.push(record.updated_ms);
        columns.due_ms.push(record.due_ms);
        columns.detail.push(detail);
        columns.outcome.push(outcome);
        columns.body.push(record.outcome.as_ref().and_then(|outcome| outcome.body.as_deref()));
        Ok(())
    }

    /// The arguments of the function `swap`.
    pub(super) fn values<'b>(&'b self, terms: &'b Terms<'b>) -> Vec<&'b (dyn ToSql + Sync)> {
        let (new, old) = (&self.new, &self.old);
        vec![
            &terms.patience_ms,
            &terms.again,
            &terms.ledger,
            &terms.seen,
            &terms.clock,
            &new.id,
            &new.kind,
            &new.action,
            &new.number,
            &new.open_until,
            &new.scope,
            &new.name,
            &new.key,
            &new.origin,
            &new.state,
            &new.version,
            &new.attempt,
            &new.created_ms,
            &new.updated_ms,
            &new.due_ms,
            &new.detail,
            &new.outcome,
            &new.body,
            &old.id,
            &old.expected,
            &old.open_until,
            &old.state,
            &old.version,
            &old.attempt,
            &old.created_ms,
            &old.updated_ms,
            &old.due_ms,
            &old.detail,
            &old.outcome,
            &old.body,
            &self.begin_id,
            &self.begin_scope,
        ]
    }
}

/// The reply of the function `swap`.
pub(super) struct Answered {
    /// The server's clock.
    pub(super) now_ms: i64,
    /// The position of the newest record that was inserted.
    pub(super) newest: Option<i64>,
    /// The ids that were written.
    pub(super) written: Vec<String>,
    /// The stored records that conflicted with the other changes.
    pub(super) current: Vec<Arc<Record>>,
    /// The barriers that refused a change, by the id of its record.
    pub(super) stopped: HashMap<String, Barrier>,
}

impl Answered {
    pub(super) fn from_rows(rows: &[Row]) -> Result<Self, StoreError> {
        let (first, others) = rows.split_first().ok_or_else(|| damaged("the server answered nothing"))?;
        let current: Result<Vec<_>, _> =
            others.iter().map(|row| record(row, 3, Body::Included).map(Arc::new)).collect();
        Ok(Self {
            now_ms: cell(first, 0)?,
            newest: cell(first, 1)?,
            written: cell(first, 2)?,
            current: current?,
            stopped: match cell::<Option<&str>>(first, 3 + DETAIL)? {
                Some(text) => serde_json::from_str(text).map_err(damaged)?,
                None => HashMap::new(),
            },
        })
    }
}

/// Whether a row includes the record's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    /// The body is the last column.
    Included,
    /// The body is not included.
    Omitted,
}

/// Decodes the record of a row whose columns begin at `at`.
pub(super) fn record(row: &Row, at: usize, body: Body) -> Result<Record, StoreError> {
    let text = |column: usize| cell::<&str>(row, at + column);
    let outcome = cell::<Option<&str>>(row, at + 14)?.map(serde_json::from_str::<Outcome>).transpose();
    let mut outcome = outcome.map_err(damaged)?;
    if let (Body::Included, Some(outcome)) = (body, &mut outcome) {
        outcome.body = cell::<Option<&[u8]>>(row, at + 18)?.map(Into::into);
    }
    Ok(Record {
        id: OperationId::parse(text(0)?).map_err(damaged)?,
        version: unsigned(row, at + 2)?,
        attempt: u32::try_from(cell::<i64>(row, at + 3)?).map_err(damaged)?,
        created_ms: cell(row, at + 4)?,
        updated_ms: cell(row, at + 5)?,
        due_ms: cell(row, at + 6)?,
        replays: unsigned(row, at + 7)?,
        state: text(8)?.parse().map_err(damaged)?,
        scope: cell(row, at + 10)?,
        name: cell(row, at + 11)?,
        key: Key {
            text: cell(row, at + 12)?,
            origin: if text(9)? == "given" { KeyOrigin::Given } else { KeyOrigin::Derived },
        },
        detail: serde_json::from_str::<Detail>(text(DETAIL)?).map_err(damaged)?,
        outcome,
        kind: text(15)?.parse().map_err(damaged)?,
        action: cell::<Option<&str>>(row, at + 16)?.map(OperationId::parse).transpose().map_err(damaged)?,
        number: cell::<Option<i64>>(row, at + 17)?.map(i64::unsigned_abs),
    })
}

/// Whether the stored record equals the one to be written, ignoring the replay tally.
pub(super) fn is_same(stored: &Record, wanted: &Record) -> bool {
    let all = |record: &Record| serde_json::to_string(&Record { replays: 0, ..record.clone() }).ok();
    stored.version == wanted.version && all(stored) == all(wanted) && stored.outcome == wanted.outcome
}

/// A query with its values.
pub(super) struct Query {
    pub(super) statement: Statement,
    pub(super) values: Vec<Box<dyn ToSql + Sync + Send>>,
}

/// The query for the records that match the filter, newest first, without the bodies of their results.
pub(super) fn list(schema: &str, filter: &Filter) -> Query {
    let mut all = Conditions::of(filter);
    if let Some(before) = filter.before {
        all.add("place <", Box::new(before.0), Type::INT8);
    }
    all.values.push(Box::new(i64::try_from(filter.limit).unwrap_or(i64::MAX)));
    all.types.push(Type::INT8);
    let (conditions, limit) = (all.texts.join(" AND "), all.values.len());
    // An id or a key matches few rows, which are sorted. The planner must not scan all positions to find them in
    // order.
    let few = filter.id_prefix.is_some() || filter.key.is_some();
    let order = if few { "place + 0" } else { "place" };
    let newest = |states: &str| {
        format!(
            "SELECT {COLUMNS} FROM \"{schema}\".operation WHERE {conditions}{states} \
             ORDER BY {order} DESC LIMIT ${limit}"
        )
    };
    let text = match by_index(&filter.states).as_slice() {
        [states] => newest(states),
        // The newest of each index, then the newest of both.
        both => {
            let each: Vec<String> = both.iter().map(|states| format!("({})", newest(states))).collect();
            format!("SELECT * FROM ({}) AS o ORDER BY place DESC LIMIT ${limit}", each.join(" UNION ALL "))
        }
    };
    Query { statement: Statement { text, types: all.types }, values: all.values }
}

/// The query for the occurrences of an action that may be open, and the newest.
pub(super) fn occurrences(schema: &str, action: &OperationId, now_ms: i64) -> Query {
    let text = format!("SELECT {COLUMNS} FROM \"{schema}\".occurrences($1, $2, $3)");
    let most = i64::try_from(MOST_OPEN).unwrap_or(i64::MAX);
    let statement = Statement { text, types: vec![Type::TEXT, Type::INT8, Type::INT8] };
    Query { statement, values: vec![Box::new(action.as_str().to_owned()), Box::new(now_ms), Box::new(most)] }
}

/// A filter as SQL conditions, without its states and its cursor.
struct Conditions {
    texts: Vec<String>,
    types: Vec<Type>,
    values: Vec<Box<dyn ToSql + Sync + Send>>,
}

impl Conditions {
    fn of(filter: &Filter) -> Self {
        let mut all = Self { texts: vec!["true".to_owned()], types: Vec::new(), values: Vec::new() };
        if let Some(scope) = &filter.scope {
            // Literal text, so that the planner recognizes the condition of the partial index.
            let text = if scope == DEFAULT_SCOPE { "scope =" } else { "scope <> 'default' AND scope =" };
            all.add(text, Box::new(scope.clone()), Type::TEXT);
        }
        if let Some(prefix) = &filter.scope_prefix {
            if !DEFAULT_SCOPE.starts_with(prefix.as_str()) {
                all.texts.push("scope <> 'default'".to_owned());
            }
            all.add("scope >=", Box::new(prefix.clone()), Type::TEXT);
            if let Some(end) = after_prefix(prefix) {
                all.add("scope <", Box::new(end), Type::TEXT);
            }
        }
        if let Some(name) = &filter.name {
            all.add("name =", Box::new(name.clone()), Type::TEXT);
        }
        if let Some(key) = &filter.key {
            all.add("key =", Box::new(key.clone()), Type::TEXT);
        }
        if let Some(print) = &filter.fingerprint {
            // No other text of a record contains it, so most rows need not be sent.
            all.values.push(Box::new(print.as_str().to_owned()));
            all.types.push(Type::TEXT);
            all.texts.push(format!("strpos(detail, ${}) > 0", all.values.len()));
        }
        if let Some(prefix) = &filter.id_prefix {
            // Ids are ASCII and compared bytewise, so those with the prefix lie between it and its successor.
            all.add("id >=", Box::new(prefix.clone()), Type::TEXT);
            all.add("id <", Box::new(format!("{prefix}\u{7f}")), Type::TEXT);
        }
        if !filter.kinds.is_empty() {
            let words: Vec<String> = filter.kinds.iter().map(|kind| format!("'{kind}'")).collect();
            all.texts.push(format!("kind IN ({})", words.join(", ")));
        }
        if let Some(since_ms) = filter.since_ms {
            all.add("created_ms >=", Box::new(since_ms), Type::INT8);
        }
        if let Some(until_ms) = filter.until_ms {
            all.add("created_ms <", Box::new(until_ms), Type::INT8);
        }
        all
    }

    fn add(&mut self, text: &str, value: Box<dyn ToSql + Sync + Send>, kind: Type) {
        self.values.push(value);
        self.types.push(kind);
        self.texts.push(format!("{text} ${}", self.values.len()));
    }
}

/// The conditions for these states, one for each index that covers them. Literals and not parameters, so that the
/// planner recognizes the partial indexes. Nearly all records are `done`, which needs no index of its own.
fn by_index(states: &[State]) -> Vec<String> {
    let condition = |states: &[State]| {
        let words: Vec<String> = states.iter().map(|state| format!("'{state}'")).collect();
        format!(" AND state IN ({})", words.join(", "))
    };
    let (settled, open): (Vec<State>, Vec<State>) = states.iter().partition(|state| state.is_settled());
    match (settled.as_slice(), open.as_slice()) {
        ([], []) => vec![String::new()],
        ([], some) | (some, []) => vec![condition(some)],
        (settled, _) if settled.iter().any(|state| matches!(state, State::Done | State::Expired)) => {
            vec![condition(states)]
        }
        (undone, open) => vec![condition(undone), condition(open)],
    }
}

/// The query for records that are due.
pub(super) fn due(schema: &str, now_ms: i64, limit: usize) -> Query {
    let text = format!(
        "SELECT {COLUMNS} FROM \"{schema}\".operation WHERE due_ms <= $1 ORDER BY due_ms, place LIMIT $2"
    );
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let statement = Statement { text, types: vec![Type::INT8, Type::INT8] };
    Query { statement, values: vec![Box::new(now_ms), Box::new(limit)] }
}

/// The query for the number of matching records in each state.
pub(super) fn counts(schema: &str, filter: &Filter) -> Query {
    let mut all = Conditions::of(filter);
    if !filter.states.is_empty() {
        let words: Vec<&str> = filter.states.iter().map(|state| state.as_str()).collect();
        all.texts.push(format!("state IN ('{}')", words.join("', '")));
    }
    let conditions = all.texts.join(" AND ");
    let text =
        format!("SELECT state, count(*) FROM \"{schema}\".operation WHERE {conditions} GROUP BY state");
    Query { statement: Statement { text, types: all.types }, values: all.values }
}

pub(super) fn decode_list(rows: &[Row]) -> Result<Vec<Listed>, StoreError> {
    let one =
        |row: &Row| Ok(Listed { cursor: Cursor(cell(row, 1)?), record: record(row, 0, Body::Omitted)? });
    rows.iter().map(one).collect()
}

/// The query for all stopped scopes.
pub(super) fn barriers(schema: &str) -> Query {
    let text = format!("SELECT scope, word FROM \"{schema}\".stopped ORDER BY scope");
    Query { statement: Statement { text, types: Vec::new() }, values: Vec::new() }
}

pub(super) fn decode_barriers(rows: &[Row]) -> Result<Vec<Barrier>, StoreError> {
    let one = |row: &Row| {
        let word = serde_json::from_str(cell(row, 1)?).map_err(damaged)?;
        Ok(Barrier::new(cell::<String>(row, 0)?, word))
    };
    rows.iter().map(one).collect()
}

pub(super) fn decode_counts(rows: &[Row]) -> Result<Counts, StoreError> {
    let one = |row: &Row| {
        let state: State = cell::<&str>(row, 0)?.parse().map_err(damaged)?;
        Ok((state, unsigned(row, 1)?))
    };
    rows.iter().map(one).collect()
}

pub(super) fn origin(origin: KeyOrigin) -> &'static str {
    match origin {
        KeyOrigin::Given => "given",
        KeyOrigin::Derived => "derived",
    }
}

/// A record's detail and outcome as JSON.
pub(super) fn texts(record: &Record) -> Result<(String, Option<String>), StoreError> {
    let cannot = |error| StoreError::because("a record cannot be written as JSON", error);
    let detail = serde_json::to_string(&record.detail).map_err(cannot)?;
    let outcome = record.outcome.as_ref().map(serde_json::to_string).transpose().map_err(cannot)?;
    Ok((detail, outcome))
}

pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(row: &Row, column: usize) -> Result<u64, StoreError> {
    u64::try_from(cell::<i64>(row, column)?).map_err(damaged)
}

pub(super) fn cell<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a Row,
    column: usize,
) -> Result<T, StoreError> {
    row.try_get(column).map_err(damaged)
}

/// The error for a value that this version cannot have written.
fn damaged(error: impl std::fmt::Display) -> StoreError {
    StoreError::Unusable {
        what: format!("the ledger's tables contain data that this version cannot read: {error}"),
    }
}
