//! Listings over all shards, merged.
//!
//! Each shard has its ids in order. Of each a short run is fetched, and the next one when it is used up, so a listing
//! costs about what it shows, however many records there are.

use std::collections::VecDeque;

use onceward::operation::DEFAULT_SCOPE;
use onceward::{Counts, Cursor, Filter, Listed, OperationId, Record, State, StoreError};
use redis::Value;

use super::entry::{self, Keys};
use super::fleet::Fleet;
use super::node::Command;
use super::scripts::Script;
use super::settings::text;

/// How many ids of a shard are fetched at once, at least.
const MIN_RUN: usize = 4;
/// How many records are fetched at once, at the most.
const MAX_FETCH: usize = 512;

/// Ids with fewer digits than this are so many that walking along the newest finds some sooner.
const SHORTEST_PREFIX: usize = "op_xxx".len();

/// The records that the filter lets through, newest first.
pub(super) async fn list(fleet: &Fleet, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
    if let Some(part) = Part::of(fleet, filter) {
        let mut listed = look_up(fleet, filter, &part).await?;
        listed.truncate(filter.limit);
        return Ok(listed);
    }
    let mut merge = Merge::new(fleet, Order::Newest(filter), filter.limit);
    let mut listed: Vec<Listed> = Vec::new();
    while listed.len() < filter.limit {
        let some = merge.next((filter.limit - listed.len()).min(MAX_FETCH)).await?;
        if some.is_empty() {
            break;
        }
        for (place, record) in fetch(fleet, some).await? {
            let cursor = Cursor(entry::cursor(place.score, place.shard));
            if filter.matches(&record) && listed.len() < filter.limit {
                listed.push(Listed { cursor, record });
            }
        }
    }
    Ok(listed)
}

/// Up to `limit` records that are due, the longest overdue first.
pub(super) async fn due(fleet: &Fleet, now_ms: i64, limit: usize) -> Result<Vec<Record>, StoreError> {
    let mut merge = Merge::new(fleet, Order::LongestDue(now_ms), limit);
    let mut due = Vec::new();
    while due.len() < limit {
        let some = merge.next((limit - due.len()).min(MAX_FETCH)).await?;
        if some.is_empty() {
            break;
        }
        let fetched = fetch(fleet, some).await?.into_iter().map(|(_, record)| record);
        // What has moved on meanwhile is no longer due.
        due.extend(fetched.filter(|record| record.due_ms.is_some_and(|due_ms| due_ms <= now_ms)));
    }
    Ok(due)
}

/// How many of the records that the filter lets through there are in each state.
pub(super) async fn counts(fleet: &Fleet, filter: &Filter) -> Result<Counts, StoreError> {
    // Neither a cursor nor a limit counts.
    let whole = Filter { before: None, limit: MAX_FETCH, ..filter.clone() };
    let mut counts = Counts::new();
    if let Some(part) = Part::of(fleet, &whole) {
        for listed in look_up(fleet, &whole, &part).await? {
            *counts.entry(listed.record.state).or_default() += 1;
        }
        return Ok(counts);
    }
    let Filter { scope, name, key, id_prefix, since_ms, until_ms, states, before: _, limit: _ } = &whole;
    let texts = [scope, name, key, id_prefix].into_iter().all(Option::is_none);
    if texts && since_ms.is_none() && until_ms.is_none() {
        counts = count_states(fleet).await?;
        counts.retain(|state, _| states.is_empty() || states.contains(state));
        return Ok(counts);
    }
    let mut merge = Merge::new(fleet, Order::Newest(&whole), MAX_FETCH);
    loop {
        let some = merge.next(MAX_FETCH).await?;
        if some.is_empty() {
            return Ok(counts);
        }
        for (_, record) in fetch(fleet, some).await? {
            if whole.matches(&record) {
                *counts.entry(record.state).or_default() += 1;
            }
        }
    }
}

/// How many records there are in each state, all in all.
async fn count_states(fleet: &Fleet) -> Result<Counts, StoreError> {
    let keys = &fleet.crew().keys;
    let commands = (0..keys.shards())
        .map(|shard| {
            let indexes = State::ALL.map(|state| keys.in_state(shard, state));
            Command::script(shard, Script::Counts).keys(indexes).unproven()
        })
        .collect();
    let mut counts = Counts::new();
    for answer in fleet.read_all(commands).await? {
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

/// A part of the look-up indexes, between two bounds as the server writes them.
struct Part {
    from: String,
    to: String,
}

impl Part {
    /// The part with all that the filter lets through; `None` where walking along all records is better or needed.
    fn of(fleet: &Fleet, filter: &Filter) -> Option<Self> {
        if fleet.crew().terms.lookup.get() != Some(&true) {
            return None;
        }
        match (&filter.key, &filter.id_prefix) {
            // Keys and ids are visible ASCII: a space comes before all of it, and an exclamation mark after the space.
            (Some(key), _) => Some(Self { from: format!("[={key} "), to: format!("(={key}!") }),
            (None, Some(prefix)) if prefix.len() >= SHORTEST_PREFIX => {
                Some(Self { from: format!("[{prefix}"), to: format!("({prefix}\u{7f}") })
            }
            (None, _) => None,
        }
    }
}

/// The records in a part of the look-up indexes that the filter lets through, newest first.
async fn look_up(fleet: &Fleet, filter: &Filter, part: &Part) -> Result<Vec<Listed>, StoreError> {
    let keys = &fleet.crew().keys;
    let commands = (0..keys.shards())
        .map(|shard| {
            let indexes = State::ALL.map(|state| keys.in_state(shard, state));
            Command::script(shard, Script::Lookup)
                .keys([keys.lookup(shard)].into_iter().chain(indexes))
                .arguments([part.from.clone().into_bytes(), part.to.clone().into_bytes()])
                .unproven()
        })
        .collect();
    let mut places = Vec::new();
    for (shard, answer) in (0..keys.shards()).zip(fleet.read_all(commands).await?) {
        places.extend(scored(&answer).into_iter().map(|(score, id)| Place { shard, score, id }));
    }
    let mut listed: Vec<Listed> = fetch(fleet, places)
        .await?
        .into_iter()
        .map(|(place, record)| Listed { cursor: Cursor(entry::cursor(place.score, place.shard)), record })
        .filter(|listed| filter.before.is_none_or(|before| listed.cursor < before))
        .filter(|listed| filter.matches(&listed.record))
        .collect();
    listed.sort_by_key(|listed| std::cmp::Reverse(listed.cursor));
    Ok(listed)
}

/// What is walked along.
#[derive(Clone, Copy)]
enum Order<'a> {
    Newest(&'a Filter),
    LongestDue(i64),
}

/// An id and where it stands in its shard.
struct Place {
    shard: u16,
    score: i64,
    id: OperationId,
}

/// What is known of a shard's order.
#[derive(Default)]
struct Run {
    ahead: VecDeque<(i64, OperationId)>,
    /// The last that was fetched, and how many were.
    last: Option<i64>,
    fetched: usize,
    ended: bool,
}

/// Walks along the orders of all shards at once.
struct Merge<'a> {
    fleet: &'a Fleet,
    order: Order<'a>,
    runs: Vec<Run>,
    length: usize,
}

impl<'a> Merge<'a> {
    fn new(fleet: &'a Fleet, order: Order<'a>, limit: usize) -> Self {
        let shards = usize::from(fleet.crew().keys.shards());
        let length = (limit.min(MAX_FETCH) * 2 / shards).max(MIN_RUN);
        Self { fleet, order, runs: (0..shards).map(|_| Run::default()).collect(), length }
    }

    /// The next ids in the order of the whole ledger, up to that many; none at its end.
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

    /// Fetches the next run of each shard whose last one is used up.
    async fn fetch_more(&mut self) -> Result<(), StoreError> {
        let wanting: Vec<usize> =
            (0..self.runs.len()).filter(|shard| self.runs[*shard].is_used_up()).collect();
        let commands = wanting
            .iter()
            .map(|shard| self.question(u16::try_from(*shard).unwrap_or_default(), &self.runs[*shard]))
            .collect();
        let answers = self.fleet.read_all(commands).await?;
        for (shard, answer) in wanting.into_iter().zip(answers) {
            let some = scored(&answer);
            let run = &mut self.runs[shard];
            run.ended = some.len() < self.length;
            run.fetched += some.len();
            run.last = some.last().map(|(score, _)| *score);
            run.ahead.extend(some);
        }
        Ok(())
    }

    fn question(&self, shard: u16, run: &Run) -> Command {
        let keys = &self.fleet.crew().keys;
        match self.order {
            Order::Newest(filter) => Command::script(shard, Script::Page)
                .keys(indexes(keys, shard, filter))
                .arguments([below(filter, shard, run).into_bytes(), self.length.to_string().into_bytes()])
                .unproven(),
            // Many may be due at the same time, so they are counted rather than compared.
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

/// The indexes of a shard in which all are that the filter lets through, and as few others as possible.
fn indexes(keys: &Keys, shard: u16, filter: &Filter) -> Vec<String> {
    match &filter.scope {
        Some(scope) if scope != DEFAULT_SCOPE => vec![keys.of_scope(shard, scope)],
        Some(_) | None => {
            let states = State::ALL.into_iter();
            let wanted = states.filter(|state| filter.states.is_empty() || filter.states.contains(state));
            wanted.map(|state| keys.in_state(shard, state)).collect()
        }
    }
}

/// Where the next run of a shard begins, as the server writes a bound.
fn below(filter: &Filter, shard: u16, run: &Run) -> String {
    match (run.last, filter.before) {
        (Some(last), _) => format!("({last}"),
        (None, None) => "+inf".to_owned(),
        (None, Some(cursor)) => {
            let (place, of) = entry::place(cursor.0);
            // At one place, the shard with the higher number comes first.
            if shard < of { place.to_string() } else { format!("({place}") }
        }
    }
}

/// The ids in an answer, each with its score.
fn scored(answer: &Value) -> Vec<(i64, OperationId)> {
    let Value::Array(flat) = answer else { return Vec::new() };
    flat.chunks_exact(2)
        .filter_map(|pair| {
            let id = OperationId::parse(&text(&pair[0])?).ok()?;
            let score: f64 = text(&pair[1])?.parse().ok()?;
            // Beyond the largest number it is the largest number.
            #[expect(clippy::cast_possible_truncation, reason = "scores are whole numbers")]
            Some((score as i64, id))
        })
        .collect()
}

/// The records at these places, without their bodies. What has gone meanwhile is left out.
async fn fetch(fleet: &Fleet, places: Vec<Place>) -> Result<Vec<(Place, Record)>, StoreError> {
    let keys = &fleet.crew().keys;
    let commands =
        places.iter().map(|place| Command::plain(place.shard, ["GET", &keys.record(&place.id)])).collect();
    let answers = fleet.read_all(commands).await?;
    let mut records = Vec::with_capacity(places.len());
    for (place, answer) in places.into_iter().zip(answers) {
        if let Value::BulkString(value) = answer {
            records.push((place, entry::decode(&value, None)?));
        }
    }
    Ok(records)
}
