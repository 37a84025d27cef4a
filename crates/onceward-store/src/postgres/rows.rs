//! Records and rows.

use std::sync::Arc;

use onceward::operation::DEFAULT_SCOPE;
use onceward::{
    Counts, Cursor, Detail, Filter, Key, KeyOrigin, Listed, OperationId, Outcome, Record, State, StoreError,
};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

/// What every row of a record begins with, after which comes its body where it is asked for.
const COLUMNS: &str = "id, place, version, attempt, created_ms, updated_ms, due_ms, replays, state, origin, scope, \
                       name, key, detail, outcome";

/// A statement with its values' types: it can be sent whole, or be kept by the server.
#[derive(Debug, Clone)]
pub(super) struct Statement {
    pub(super) text: String,
    pub(super) types: Vec<Type>,
}

/// The statements that are sent over and over.
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
        let mut swap = vec![Type::INT4, Type::BOOL];
        swap.extend(std::iter::repeat_n(t.clone(), 6).chain(std::iter::repeat_n(n.clone(), 5)));
        swap.extend([t.clone(), t.clone(), Type::BYTEA_ARRAY]);
        swap.extend([t.clone(), n.clone(), t.clone()].into_iter().chain(std::iter::repeat_n(n.clone(), 5)));
        swap.extend([t.clone(), t.clone(), Type::BYTEA_ARRAY]);
        Self {
            swap: call("swap_1", swap),
            delete: call("drop_1", vec![Type::INT4, t.clone(), n.clone()]),
            load: Statement {
                text: format!("SELECT {COLUMNS}, body FROM \"{schema}\".load_1($1)"),
                types: vec![t.clone()],
            },
            watch: call("watch_1", vec![Type::INT4, t.clone(), n.clone()]),
            tally: call("tally_1", vec![Type::INT4, t, n]),
        }
    }
}

/// Many changes as columns of values: one statement, whatever their number.
#[derive(Default)]
pub(super) struct Changes<'a> {
    new: Columns<'a>,
    old: Columns<'a>,
}

#[derive(Default)]
struct Columns<'a> {
    id: Vec<&'a str>,
    expected: Vec<i64>,
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
    /// Adds a change. They come sorted by id, so that batches that meet take their locks in one order.
    pub(super) fn push(&mut self, expected: Option<u64>, record: &'a Record) -> Result<(), StoreError> {
        let columns = match expected {
            None => &mut self.new,
            Some(_) => &mut self.old,
        };
        let (detail, outcome) = texts(record)?;
        columns.id.push(record.id.as_str());
        match expected {
            Some(expected) => columns.expected.push(signed(expected)),
            None => {
                columns.scope.push(&record.scope);
                columns.name.push(&record.name);
                columns.key.push(&record.key.text);
                columns.origin.push(origin(record.key.origin));
            }
        }
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

    /// The values of the statement `swap`.
    pub(super) fn values<'b>(
        &'b self,
        patience_ms: &'b Option<i32>,
        again: &'b bool,
    ) -> Vec<&'b (dyn ToSql + Sync)> {
        let (new, old) = (&self.new, &self.old);
        vec![
            patience_ms,
            again,
            &new.id,
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
            &old.state,
            &old.version,
            &old.attempt,
            &old.created_ms,
            &old.updated_ms,
            &old.due_ms,
            &old.detail,
            &old.outcome,
            &old.body,
        ]
    }
}

/// What the statement `swap` answered.
pub(super) struct Answered {
    /// The server's clock.
    pub(super) now_ms: i64,
    /// The ids that were written.
    pub(super) written: Vec<String>,
    /// What stood in the way of the others.
    pub(super) standing: Vec<Arc<Record>>,
}

impl Answered {
    pub(super) fn from_rows(rows: &[Row]) -> Result<Self, StoreError> {
        let (first, others) = rows.split_first().ok_or_else(|| damaged("the server answered nothing"))?;
        let standing: Result<Vec<_>, _> =
            others.iter().map(|row| record(row, 2, Body::Along).map(Arc::new)).collect();
        Ok(Self { now_ms: cell(first, 0)?, written: cell(first, 1)?, standing: standing? })
    }
}

/// Whether a row has its record's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    /// It comes after all others.
    Along,
    /// It stays where it is.
    Left,
}

/// The record of a row whose columns begin at `at`.
pub(super) fn record(row: &Row, at: usize, body: Body) -> Result<Record, StoreError> {
    let text = |column: usize| cell::<&str>(row, at + column);
    let outcome = cell::<Option<&str>>(row, at + 14)?.map(serde_json::from_str::<Outcome>).transpose();
    let mut outcome = outcome.map_err(damaged)?;
    if let (Body::Along, Some(outcome)) = (body, &mut outcome) {
        outcome.body = cell::<Option<&[u8]>>(row, at + 15)?.map(Into::into);
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
        detail: serde_json::from_str::<Detail>(text(13)?).map_err(damaged)?,
        outcome,
    })
}

/// Whether the stored record is the very one that was to be written: its tally aside, all of it.
pub(super) fn is_the_same(stored: &Record, wanted: &Record) -> bool {
    let all = |record: &Record| serde_json::to_string(&Record { replays: 0, ..record.clone() }).ok();
    stored.version == wanted.version && all(stored) == all(wanted) && stored.outcome == wanted.outcome
}

/// A question with its values.
pub(super) struct Question {
    pub(super) statement: Statement,
    pub(super) values: Vec<Box<dyn ToSql + Sync + Send>>,
}

/// The question for the records that the filter lets through, newest first, without the bodies of their results.
pub(super) fn list(schema: &str, filter: &Filter) -> Question {
    let mut all = Conditions::of(filter);
    if let Some(before) = filter.before {
        all.add("place <", Box::new(before.0), Type::INT8);
    }
    all.values.push(Box::new(i64::try_from(filter.limit).unwrap_or(i64::MAX)));
    all.types.push(Type::INT8);
    let (conditions, limit) = (all.texts.join(" AND "), all.values.len());
    // An id or a key brings few rows, which are sorted; the planner must not walk all places to find them in order.
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
        // Each from its own index, and then the newest of both.
        both => {
            let each: Vec<String> = both.iter().map(|states| format!("({})", newest(states))).collect();
            format!("SELECT * FROM ({}) AS o ORDER BY place DESC LIMIT ${limit}", each.join(" UNION ALL "))
        }
    };
    Question { statement: Statement { text, types: all.types }, values: all.values }
}

/// A filter in SQL, without its states and its cursor.
struct Conditions {
    texts: Vec<String>,
    types: Vec<Type>,
    values: Vec<Box<dyn ToSql + Sync + Send>>,
}

impl Conditions {
    fn of(filter: &Filter) -> Self {
        let mut all = Self { texts: vec!["true".to_owned()], types: Vec::new(), values: Vec::new() };
        if let Some(scope) = &filter.scope {
            // In these words, so that the planner sees that the partial index has them all.
            let text = if scope == DEFAULT_SCOPE { "scope =" } else { "scope <> 'default' AND scope =" };
            all.add(text, Box::new(scope.clone()), Type::TEXT);
        }
        if let Some(name) = &filter.name {
            all.add("name =", Box::new(name.clone()), Type::TEXT);
        }
        if let Some(key) = &filter.key {
            all.add("key =", Box::new(key.clone()), Type::TEXT);
        }
        if let Some(prefix) = &filter.id_prefix {
            // Ids are ASCII and compared byte by byte, so those with the prefix are between it and what follows it.
            all.add("id >=", Box::new(prefix.clone()), Type::TEXT);
            all.add("id <", Box::new(format!("{prefix}\u{7f}")), Type::TEXT);
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

/// The conditions for these states, one for each index that has them all. As words and not as values, so that the
/// planner sees that it has. What is done is nearly everything, and needs no index of its own.
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

/// The question for what is due.
pub(super) fn due(schema: &str, now_ms: i64, limit: usize) -> Question {
    let text = format!(
        "SELECT {COLUMNS} FROM \"{schema}\".operation WHERE due_ms <= $1 ORDER BY due_ms, place LIMIT $2"
    );
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let statement = Statement { text, types: vec![Type::INT8, Type::INT8] };
    Question { statement, values: vec![Box::new(now_ms), Box::new(limit)] }
}

/// The question for how many the filter lets through of each state.
pub(super) fn counts(schema: &str, filter: &Filter) -> Question {
    let mut all = Conditions::of(filter);
    if !filter.states.is_empty() {
        let words: Vec<&str> = filter.states.iter().map(|state| state.as_str()).collect();
        all.texts.push(format!("state IN ('{}')", words.join("', '")));
    }
    let conditions = all.texts.join(" AND ");
    let text =
        format!("SELECT state, count(*) FROM \"{schema}\".operation WHERE {conditions} GROUP BY state");
    Question { statement: Statement { text, types: all.types }, values: all.values }
}

pub(super) fn listed(rows: &[Row]) -> Result<Vec<Listed>, StoreError> {
    let one = |row: &Row| Ok(Listed { cursor: Cursor(cell(row, 1)?), record: record(row, 0, Body::Left)? });
    rows.iter().map(one).collect()
}

pub(super) fn counted(rows: &[Row]) -> Result<Counts, StoreError> {
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

/// A value that no version of this program wrote.
fn damaged(error: impl std::fmt::Display) -> StoreError {
    StoreError::Unusable {
        what: format!("the ledger's tables hold what this version does not understand: {error}"),
    }
}
