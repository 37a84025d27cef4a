//! Listings over all shards, merged.
//!
//! Each shard keeps its ids in order. A short run is fetched from each, and the next run when it is used up. So the
//! cost of a listing is proportional to its length, however many records there are.

use std::collections::VecDeque;
use std::sync::Arc;

use onceward::{
    Counts, Cursor, DEFAULT_SCOPE, Filter, Kind, Listed, MOST_OPEN, OperationId, Record, State, StoreError,
    open_or_newest,
};
use redis::Value;

use super::cluster::Topology;
use super::entry::{self, Keys, Listing};
use super::node::{Command, Confirm};
use super::options::Layout;
use super::scripts::Script;
use super::settings::text;

/// The minimum number of ids fetched from a shard at once.
const MIN_RUN: usize = 4;
/// The maximum number of records fetched at once.
const MAX_FETCH: usize = 512;

/// Shorter prefixes match too many ids: scanning the newest records is faster.
const SHORTEST_PREFIX: usize = "op_xxx".len();

/// The records that match the filter, newest first.
pub(super) async fn list(topology: &Arc<Topology>, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
    if let Some(part) = Part::of(filter) {
        let mut listed = look_up(topology, filter, &part).await?;
        listed.truncate(filter.limit);
        return Ok(listed);
    }
    let mut merge = Merge::new(topology, Order::Newest(filter), filter.limit);
    let mut listed: Vec<Listed> = Vec::new();
    while listed.len() < filter.limit {
        let some = merge.next((filter.limit - listed.len()).min(MAX_FETCH)).await?;
        if some.is_empty() {
            break;
        }
        for (place, record) in fetch(topology, some).await? {
            let cursor = Cursor(entry::cursor(place.score, place.shard));
            if filter.matches(&record) && listed.len() < filter.limit {
                listed.push(Listed { cursor, record });
            }
        }
    }
    Ok(listed)
}

/// The occurrences of an action that are open after this time, and the newest.
pub(super) async fn occurrences(
    topology: &Arc<Topology>,
    action: &OperationId,
    now_ms: i64,
) -> Result<Vec<Record>, StoreError> {
    let keys = &topology.keys;
    let roots: Vec<String> = (0..keys.shards()).map(|shard| keys.root(shard)).collect();
    let arguments = [action.to_string(), now_ms.to_string(), MOST_OPEN.to_string()].map(String::into_bytes);
    let ask = |shard: usize, roots: &[String]| {
        Command::script(u16::try_from(shard).unwrap_or_default(), Script::Occurrences)
            .keys(roots.iter().cloned())
            .arguments(arguments.clone())
            .confirm(Confirm::Required)
    };
    // Occurrences may be in any shard. In a cluster, one command has keys of one shard.
    let commands = match topology.options.layout {
        Layout::Standalone { .. } => vec![ask(0, &roots)],
        Layout::Cluster => {
            roots.iter().enumerate().map(|(shard, root)| ask(shard, std::slice::from_ref(root))).collect()
        }
    };
    let mut found = Vec::new();
    for answer in topology.read_all(commands).await? {
        let Value::Array(values) = answer else { continue };
        for value in values {
            if let Value::BulkString(value) = value {
                found.push(entry::decode_bare(&value)?);
            }
        }
    }
    Ok(open_or_newest(found, now_ms))
}

/// Up to `limit` records that are due, the longest overdue first.
pub(super) async fn due(
    topology: &Arc<Topology>,
    now_ms: i64,
    limit: usize,
) -> Result<Vec<Record>, StoreError> {
    let mut merge = Merge::new(topology, Order::LongestDue(now_ms), limit);
    let mut due = Vec::new();
    while due.len() < limit {
        let some = merge.next((limit - due.len()).min(MAX_FETCH)).await?;
        if some.is_empty() {
            break;
        }
        let fetched = fetch(topology, some).await?.into_iter().map(|(_, record)| record);
        // Records that have changed meanwhile are no longer due.
        due.extend(fetched.filter(|record| record.due_ms.is_some_and(|due_ms| due_ms <= now_ms)));
    }
    Ok(due)
}

/// The number of matching records in each state.
pub(super) async fn counts(topology: &Arc<Topology>, filter: &Filter) -> Result<Counts, StoreError> {
    // The cursor and the limit do not apply to counts.
    let whole = Filter { before: None, limit: MAX_FETCH, ..filter.clone() };
    let mut counts = Counts::new();
    if let Some(part) = Part::of(&whole) {
        for listed in look_up(topology, &whole, &part).await? {
            *counts.entry(listed.record.state).or_default() += 1;
        }
        return Ok(counts);
    }
    let Filter { scope, scope_prefix, name, key, fingerprint, id_prefix, .. } = &whole;
    let Filter { since_ms, until_ms, states, kinds, before: _, limit: _, .. } = &whole;
    let texts = [scope, scope_prefix, name, key, id_prefix].into_iter().all(Option::is_none);
    let by_index = kinds.is_empty() || kinds.as_slice() == Kind::LISTED;
    if by_index && texts && fingerprint.is_none() && since_ms.is_none() && until_ms.is_none() {
        counts = count_states(topology, &listings(kinds)).await?;
        counts.retain(|state, _| states.is_empty() || states.contains(state));
        return Ok(counts);
    }
    let mut merge = Merge::new(topology, Order::Newest(&whole), MAX_FETCH);
    loop {
        let some = merge.next(MAX_FETCH).await?;
        if some.is_empty() {
            return Ok(counts);
        }
        for (_, record) in fetch(topology, some).await? {
            if whole.matches(&record) {
                *counts.entry(record.state).or_default() += 1;
            }
        }
    }
}

/// The total number of records in each state.
async fn count_states(topology: &Arc<Topology>, listings: &[Listing]) -> Result<Counts, StoreError> {
    let keys = &topology.keys;
    let each = (0..keys.shards()).flat_map(|shard| listings.iter().map(move |listing| (shard, *listing)));
    let commands = each
        .map(|(shard, listing)| {
            let indexes = State::ALL.map(|state| keys.in_state(shard, listing, state));
            Command::script(shard, Script::Counts).keys(indexes).unconfirmed()
        })
        .collect();
    let mut counts = Counts::new();
    for answer in topology.read_all(commands).await? {
        let Value::Array(numbers) = answer else { continue };
        for (state, number) in State::ALL.into_iter().zip(numbers) {
            if let Value::Int(number) = number {
                *counts.entry(state).or_default() += u64::try_from(number).unwrap_or_default();
            }
        }
    }
    counts.retain(|_, count| *count > 0);
    Ok(counts)
}

/// A range of the look-up indexes, with bounds in the server's syntax.
struct Part {
    from: String,
    to: String,
}

impl Part {
    /// The range that contains all matches of the filter; `None` if scanning all records is better or necessary.
    fn of(filter: &Filter) -> Option<Self> {
        match (&filter.key, &filter.id_prefix) {
            // Keys and ids are visible ASCII. A space sorts before all of it, and an exclamation mark right after the
            // space.
            (Some(key), _) => Some(Self { from: format!("[={key} "), to: format!("(={key}!") }),
            (None, Some(prefix)) if prefix.len() >= SHORTEST_PREFIX => {
                Some(Self { from: format!("[{prefix}"), to: format!("({prefix}\u{7f}") })
            }
            (None, _) => None,
        }
    }
}

/// The records in a range of the look-up indexes that match the filter, newest first.
async fn look_up(topology: &Arc<Topology>, filter: &Filter, part: &Part) -> Result<Vec<Listed>, StoreError> {
    let keys = &topology.keys;
    let commands = (0..keys.shards())
        .map(|shard| {
            let indexes = in_states(keys, shard, &Listing::ALL, &[]);
            Command::script(shard, Script::Lookup)
                .keys([keys.lookup(shard)].into_iter().chain(indexes))
                .arguments([part.from.clone().into_bytes(), part.to.clone().into_bytes()])
                .unconfirmed()
        })
        .collect();
    let mut places = Vec::new();
    for (shard, answer) in (0..keys.shards()).zip(topology.read_all(commands).await?) {
        places.extend(parse_scored(&answer).into_iter().map(|(score, id)| Place { shard, score, id }));
    }
    let mut listed: Vec<Listed> = fetch(topology, places)
        .await?
        .into_iter()
        .map(|(place, record)| Listed { cursor: Cursor(entry::cursor(place.score, place.shard)), record })
        .filter(|listed| filter.before.is_none_or(|before| listed.cursor < before))
        .filter(|listed| filter.matches(&listed.record))
        .collect();
    listed.sort_by_key(|listed| std::cmp::Reverse(listed.cursor));
    Ok(listed)
}

/// The order of a listing.
#[derive(Clone, Copy)]
enum Order<'a> {
    Newest(&'a Filter),
    LongestDue(i64),
}

/// An id and its position in its shard.
struct Place {
    shard: u16,
    score: i64,
    id: OperationId,
}

/// The state of the scan of one shard.
#[derive(Default)]
struct Run {
    ahead: VecDeque<(i64, OperationId)>,
    /// The last score that was fetched, and the number of ids.
    last: Option<i64>,
    fetched: usize,
    ended: bool,
}

/// Merges the orders of all shards.
struct Merge<'a> {
    topology: &'a Arc<Topology>,
    order: Order<'a>,
    runs: Vec<Run>,
    length: usize,
}

impl<'a> Merge<'a> {
    fn new(topology: &'a Arc<Topology>, order: Order<'a>, limit: usize) -> Self {
        let shards = usize::from(topology.keys.shards());
        let length = (limit.min(MAX_FETCH) * 2 / shards).max(MIN_RUN);
        Self { topology, order, runs: (0..shards).map(|_| Run::default()).collect(), length }
    }

    /// The next ids in the order of the whole ledger, up to that many; none at the end.
    async fn next(&mut self, many: usize) -> Result<Vec<Place>, StoreError> {
        let mut places = Vec::with_capacity(many);
        while places.len() < many {
            if self.runs.iter().any(Run::is_used_up) {
                self.fetch_more().await?;
            }
            let heads = self.runs.iter().enumerate();
            let heads = heads.filter_map(|(shard, run)| Some((run.ahead.front()?.0, shard)));
            let first = match self.order {
                Order::Newest(_) => heads.max(),
                Order::LongestDue(_) => heads.min(),
            };
            let Some((_, shard)) = first else { break };
            if let Some((score, id)) = self.runs[shard].ahead.pop_front() {
                places.push(Place { shard: u16::try_from(shard).unwrap_or_default(), score, id });
            }
        }
        Ok(places)
    }

    /// Fetches the next run of each shard whose run is used up.
    async fn fetch_more(&mut self) -> Result<(), StoreError> {
        let wanting: Vec<usize> =
            (0..self.runs.len()).filter(|shard| self.runs[*shard].is_used_up()).collect();
        let commands = wanting
            .iter()
            .map(|shard| self.query(u16::try_from(*shard).unwrap_or_default(), &self.runs[*shard]))
            .collect();
        let answers = self.topology.read_all(commands).await?;
        for (shard, answer) in wanting.into_iter().zip(answers) {
            let some = parse_scored(&answer);
            let run = &mut self.runs[shard];
            run.ended = some.len() < self.length;
            run.fetched += some.len();
            run.last = some.last().map(|(score, _)| *score);
            run.ahead.extend(some);
        }
        Ok(())
    }

    fn query(&self, shard: u16, run: &Run) -> Command {
        let keys = &self.topology.keys;
        match self.order {
            Order::Newest(filter) => Command::script(shard, Script::Page)
                .keys(indexes(keys, shard, filter))
                .arguments([below(filter, shard, run).into_bytes(), self.length.to_string().into_bytes()])
                .unconfirmed(),
            // Many records may be due at the same time, so the position is an offset and not a score.
            Order::LongestDue(now_ms) => Command::plain(
                shard,
                [
                    "ZRANGEBYSCORE",
                    &keys.due(shard),
                    "-inf",
                    &if now_ms == i64::MAX { "+inf".to_owned() } else { now_ms.to_string() },
                    "WITHSCORES",
                    "LIMIT",
                    &run.fetched.to_string(),
                    &self.length.to_string(),
                ],
            ),
        }
    }
}

impl Run {
    fn is_used_up(&self) -> bool {
        self.ahead.is_empty() && !self.ended
    }
}

/// The smallest set of a shard's indexes that contains all matches of the filter.
fn indexes(keys: &Keys, shard: u16, filter: &Filter) -> Vec<String> {
    match &filter.scope {
        Some(scope) if scope != DEFAULT_SCOPE => vec![keys.of_scope(shard, scope)],
        Some(_) | None => in_states(keys, shard, &listings(&filter.kinds), &filter.states),
    }
}

/// The indexes of these states, or of all.
fn in_states(keys: &Keys, shard: u16, listings: &[Listing], states: &[State]) -> Vec<String> {
    let wanted = || State::ALL.into_iter().filter(|state| states.is_empty() || states.contains(state));
    let of =
        |listing: &Listing| wanted().map(|state| keys.in_state(shard, *listing, state)).collect::<Vec<_>>();
    listings.iter().flat_map(of).collect()
}

/// The indexes that have records of these kinds, or of any.
fn listings(kinds: &[Kind]) -> Vec<Listing> {
    let has = |listing: &Listing| kinds.is_empty() || kinds.iter().any(|kind| Listing::of(*kind) == *listing);
    Listing::ALL.into_iter().filter(has).collect()
}

/// The bound of the next run of a shard, in the server's syntax.
fn below(filter: &Filter, shard: u16, run: &Run) -> String {
    match (run.last, filter.before) {
        (Some(last), _) => format!("({last}"),
        (None, None) => "+inf".to_owned(),
        (None, Some(cursor)) => {
            let (place, of) = entry::place(cursor.0);
            // At equal positions, the shard with the higher number comes first.
            if shard < of { place.to_string() } else { format!("({place}") }
        }
    }
}

/// Parses ids with their scores.
fn parse_scored(answer: &Value) -> Vec<(i64, OperationId)> {
    let Value::Array(flat) = answer else { return Vec::new() };
    flat.chunks_exact(2)
        .filter_map(|pair| {
            let id = OperationId::parse(&text(&pair[0])?).ok()?;
            let score: f64 = text(&pair[1])?.parse().ok()?;
            // Scores beyond the range saturate.
            #[expect(clippy::cast_possible_truncation, reason = "scores are whole numbers")]
            Some((score as i64, id))
        })
        .collect()
}

/// The records at these positions, without their bodies. Records that were deleted meanwhile are omitted.
async fn fetch(topology: &Arc<Topology>, places: Vec<Place>) -> Result<Vec<(Place, Record)>, StoreError> {
    let keys = &topology.keys;
    let commands =
        places.iter().map(|place| Command::plain(place.shard, ["GET", &keys.record(&place.id)])).collect();
    let answers = topology.read_all(commands).await?;
    let mut records = Vec::with_capacity(places.len());
    for (place, answer) in places.into_iter().zip(answers) {
        // A record that cannot be decoded must not hide the others.
        if let Value::BulkString(value) = answer {
            match entry::decode_bare(&value) {
                Ok(record) => records.push((place, record)),
                Err(_) => topology.note_unreadable(&place.id),
            }
        }
    }
    Ok(records)
}
