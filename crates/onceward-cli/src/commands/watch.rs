//! `once watch`: follows the operations of one scope, one line for each change.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use onceward::rfc3339;
use onceward::{Filter, Ledger, OperationId, Record, State, Store};
use onceward_store::Backend;
use serde::Serialize;

use super::listing::{self, Line};

use crate::cli::span;
use crate::context::{Context, IfMissing};
use crate::exit::{CommandError, Ended};
use crate::style::{DIM, state_style, styled};
use crate::table::one_line;

/// How many of the scope's newest operations are followed.
const MOST: usize = 1_000;
/// The shortest and the longest pause between two reads of the ledger, in milliseconds. The pause grows while nothing
/// changes, and a change of a running operation ends it.
const PAUSES_MS: std::ops::RangeInclusive<u64> = 50..=1_000;

/// Follow the operations of a scope, one line for each change
#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// The scope: a session, a run or a tenant
    #[arg(value_name = "SCOPE", env = "ONCE_SCOPE")]
    scope: String,
    /// End when nothing is running and nothing has changed for this time
    #[arg(long, value_name = "TIME", value_parser = span)]
    until_idle: Option<u64>,
    /// Show only changes from now on
    #[arg(long)]
    new: bool,
    /// Print one JSON object on each line
    #[arg(long)]
    jsonl: bool,
}

/// What happened to an operation since the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Event {
    /// It is in this state now.
    State,
    /// Its stored result was replayed.
    Replayed,
}

#[derive(Serialize)]
struct Change {
    event: Event,
    at: String,
    #[serde(flatten)]
    line: Line,
}

/// What was seen of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    state: State,
    attempt: u32,
    version: u64,
    replays: u64,
}

pub(super) fn run(context: &Context, args: &WatchArgs) -> Ended {
    let store = context.store(IfMissing::Fail)?;
    let ledger = Ledger::new(store.clone()).blocking();
    let json = args.jsonl || context.global.json;
    let mut followed = Followed::default();
    let mut pause_ms = *PAUSES_MS.start();
    let mut changed_ms = ledger.ledger().clock_ms();
    let mut first = true;
    loop {
        let changes = ledger.wait_for(followed.look(ledger.ledger(), &args.scope))?;
        let now_ms = ledger.ledger().clock_ms();
        pause_ms = if changes.is_empty() { (pause_ms * 2).min(*PAUSES_MS.end()) } else { *PAUSES_MS.start() };
        if !changes.is_empty() {
            changed_ms = now_ms;
        }
        for (record, state, event) in changes.iter().filter(|_| !(first && args.new)) {
            if print(record, *state, *event, now_ms, json).is_err() {
                // The reader has closed the pipe.
                return Ok(ExitCode::SUCCESS);
            }
        }
        first = false;
        let idle_ms = u64::try_from(now_ms - changed_ms).unwrap_or(0);
        let idle = followed.running().is_none();
        if args.until_idle.is_some_and(|limit| idle && idle_ms >= limit) {
            return Ok(ExitCode::SUCCESS);
        }
        ledger.wait_for(pause(&store, followed.running(), pause_ms));
    }
}

/// Waits for the next look: until a running operation changes, but not longer than the pause.
async fn pause(store: &Arc<dyn Backend>, running: Option<(&OperationId, u64)>, ms: u64) {
    match running {
        Some((id, version)) => Store::changed(&**store, id, version, ms).await,
        None => Store::clock(&**store).sleep(ms).await,
    }
}

fn print(record: &Record, state: State, event: Event, now_ms: i64, json: bool) -> std::io::Result<()> {
    let at_ms = if event == Event::State { record.updated_ms } else { now_ms };
    if json {
        let change = Change { event, at: rfc3339(at_ms), line: Line::of(record, state) };
        let text = serde_json::to_string(&change).map_err(std::io::Error::other)?;
        let mut out = std::io::stdout().lock();
        return writeln!(out, "{}", onceward::text::json(&text)).and_then(|()| out.flush());
    }
    let word = match event {
        Event::State => styled(state_style(state), format!("{:<9}", state.as_str())),
        Event::Replayed => styled(DIM, format!("{:<9}", format!("replay {}", record.replays))),
    };
    let attempt = if record.attempt > 1 { format!(", attempt {}", record.attempt) } else { String::new() };
    let reason = listing::reason(record, state);
    let reason = if reason.is_empty() { reason } else { format!("  {}", one_line(&reason)) };
    let time = rfc3339(at_ms);
    let time = time.get(11..19).unwrap_or(&time);
    let text = format!(
        "{}  {word}  {}  {}{attempt}{reason}  {}",
        styled(DIM, time),
        one_line(&listing::key(record)),
        one_line(&listing::what(record)),
        styled(DIM, listing::short_id(record)),
    );
    let mut out = anstream::stdout().lock();
    writeln!(out, "{}", onceward::text::coloured(&text)).and_then(|()| out.flush())
}

/// What is known of the scope.
#[derive(Default)]
struct Followed {
    seen: BTreeMap<OperationId, Seen>,
}

impl Followed {
    /// The changes since the last look, oldest first.
    async fn look(
        &mut self,
        ledger: &Ledger,
        scope: &str,
    ) -> Result<Vec<(Record, State, Event)>, CommandError> {
        let filter = Filter { scope: Some(scope.to_owned()), limit: MOST, ..Filter::default() };
        let listed = ledger.list(&filter).await?;
        let mut found: Vec<(Record, State)> =
            listed.into_iter().map(|(listed, state)| (listed.record, state)).collect();
        // An operation that is not among the newest any more is followed until it is settled.
        let older: Vec<OperationId> = self
            .seen
            .iter()
            .filter(|(id, seen)| !seen.state.is_settled() && !found.iter().any(|(r, _)| r.id == **id))
            .map(|(id, _)| id.clone())
            .collect();
        for id in older {
            match ledger.find(&id).await {
                Ok((record, state)) => found.push((Record::clone(&record), state)),
                // Deleted since.
                Err(onceward::Error::NotFound { .. }) => drop(self.seen.remove(&id)),
                Err(error) => return Err(error.into()),
            }
        }
        let mut changes: Vec<(Record, State, Event)> = found
            .iter()
            .filter_map(|(record, state)| Some((record.clone(), *state, self.change(record, *state)?)))
            .collect();
        changes.sort_by_key(|(record, _, _)| record.updated_ms);
        self.forget(&found);
        Ok(changes)
    }

    /// What changed about an operation.
    fn change(&mut self, record: &Record, state: State) -> Option<Event> {
        let now = Seen { state, attempt: record.attempt, version: record.version, replays: record.replays };
        let before = self.seen.insert(record.id.clone(), now.clone());
        match before {
            Some(before) if (before.state, before.attempt) == (now.state, now.attempt) => {
                (before.replays < now.replays).then_some(Event::Replayed)
            }
            Some(_) | None => Some(Event::State),
        }
    }

    /// Drops what can no longer change from memory, so that a long run does not fill it.
    fn forget(&mut self, found: &[(Record, State)]) {
        if self.seen.len() > 2 * MOST {
            self.seen.retain(|id, seen| !seen.state.is_settled() || found.iter().any(|(r, _)| r.id == *id));
        }
    }

    /// An operation that has not ended.
    fn running(&self) -> Option<(&OperationId, u64)> {
        let running = self.seen.iter().find(|(_, seen)| seen.state == State::Running);
        running.map(|(id, seen)| (id, seen.version))
    }
}
