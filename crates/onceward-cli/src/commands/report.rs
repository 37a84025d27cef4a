//! `once report`: what happened in a scope.

use std::collections::BTreeMap;
use std::process::ExitCode;

use onceward::{Blocking, DoubleEffect, Filter, Part, Record, Settlement, State};
use serde::Serialize;

use super::listing::{self, Heading, Line};
use super::stop::stopped_in_words;
use super::{settlement, signed};
use crate::answer;
use crate::cli::ReportArgs;
use crate::context::{Context, IfMissing};
use crate::exit::{CommandError, Ended};
use crate::style::{BOLD, RED, YELLOW, styled};

/// How many operations are read at a time.
const PAGE: usize = 1_000;

/// The states in order of urgency: what needs a decision is first.
const SECTIONS: [(State, &str, &str); 7] = [
    (State::InDoubt, "in doubt", "in doubt: check each, then settle it"),
    (State::Running, "running", "running"),
    (State::Staged, "staged", "staged"),
    (State::Failed, "failed", "failed: no effect"),
    (State::Cancelled, "cancelled", "cancelled: no effect"),
    (State::Done, "done", "done"),
    (State::Expired, "expired", "expired: the result is no longer stored"),
];

/// All operations of a scope, counted; the newest of each state, listed.
#[derive(Default)]
struct Tally {
    totals: BTreeMap<State, u64>,
    alarms: BTreeMap<&'static str, u64>,
    replays: u64,
    listed: BTreeMap<State, Vec<Record>>,
}

#[derive(Serialize)]
struct Report<'a> {
    scope: &'a str,
    operations: u64,
    replays: u64,
    totals: &'a BTreeMap<State, u64>,
    double_effects: &'a BTreeMap<&'static str, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by_state: Option<BTreeMap<State, Vec<Line>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    settlement: Option<&'a Settlement>,
}

pub(super) fn run(context: &Context, args: &ReportArgs) -> Ended {
    let ledger = context.ledger(IfMissing::Fail)?;
    let now_ms = ledger.clock_ms();
    let when = args.when.filter(now_ms);
    let settlement = || ledger.scopes().settlement_between(&args.scope, when.since_ms, when.until_ms);
    if let Some(key) = &args.sign {
        if when.since_ms.is_some() || when.until_ms.is_some() {
            return Err(CommandError::invalid(
                "a signed report accounts for the whole scope: leave out --since and --until; nothing was signed",
            ));
        }
        // The time is read first: the settlement contains everything that had happened by then.
        answer::json(&signed::sign(
            &ledger.scopes().settlement(&args.scope)?,
            &onceward::rfc3339(now_ms),
            key,
        )?);
        return Ok(ExitCode::SUCCESS);
    }
    if args.markdown || args.html {
        let settlement = settlement()?;
        let render = if args.html { settlement::html } else { settlement::markdown };
        answer::data(&render(&settlement));
        return Ok(ExitCode::SUCCESS);
    }
    let filter = Filter { scope_prefix: Some(args.scope.clone()), limit: PAGE, ..when.clone() };
    let limit = args.limit as usize;
    let tally = count(&ledger, filter, &args.scope, limit);
    answer::progress_over();
    let tally = tally?;
    let report = Report {
        scope: &args.scope,
        operations: tally.totals.values().sum(),
        replays: tally.replays,
        totals: &tally.totals,
        double_effects: &tally.alarms,
        by_state: None,
        settlement: None,
    };
    if args.jsonl {
        for (state, _, _) in SECTIONS {
            let records = tally.listed.get(&state).into_iter().flatten();
            records.for_each(|record| answer::json(&Line::of(record, state)));
        }
        answer::json(&report);
        return Ok(ExitCode::SUCCESS);
    }
    let lines = |(state, records): (&State, &Vec<Record>)| {
        (*state, records.iter().map(|record| Line::of(record, *state)).collect())
    };
    let by_state = Some(tally.listed.iter().map(lines).collect());
    let cut = tally.totals.values().any(|total| *total > limit as u64);
    let cut = cut.then(|| format!("only the newest {limit} of each state are listed; --limit lists more"));
    let warnings = cut.into_iter().collect();
    let settlement = settlement()?;
    let report = Report { by_state, settlement: Some(&settlement), ..report };
    answer::success_with(context.global.json, "noop", &report, warnings, || {
        let text = text(&args.scope, &tally, now_ms);
        let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
        let mut parts = vec![first.to_owned()];
        parts.extend(settlement.part.iter().map(Part::in_words));
        parts.push(settlement.sums.in_words());
        parts.extend(settlement.events_in_words());
        parts.extend(settlement.stopped.is_some().then(|| stopped_in_words(context, &settlement)));
        parts.extend((!rest.is_empty()).then(|| rest.to_owned()));
        parts.join("\n")
    });
    Ok(ExitCode::SUCCESS)
}

/// Reads every operation of a scope that the filter lets through, a page at a time.
fn count(ledger: &Blocking, mut filter: Filter, scope: &str, limit: usize) -> Result<Tally, CommandError> {
    let mut tally = Tally::default();
    loop {
        let page = ledger.list(&filter)?;
        let full = page.len() == PAGE;
        filter.before = page.last().map(|(listed, _)| listed.cursor);
        for (listed, state) in page {
            // The settlement says how many events wait.
            if !onceward::is_in_scope(&listed.record.scope, scope)
                || listed.record.kind == onceward::Kind::Event
            {
                continue;
            }
            *tally.totals.entry(state).or_default() += 1;
            tally.replays += listed.record.replays;
            if let Some(alarm) = listed.record.detail.double_effect {
                let word = match alarm {
                    DoubleEffect::Possible => "possible",
                    DoubleEffect::Certain => "certain",
                };
                *tally.alarms.entry(word).or_default() += 1;
            }
            let named = tally.listed.entry(state).or_default();
            if named.len() < limit {
                named.push(listed.record);
            }
        }
        if !full {
            return Ok(tally);
        }
        answer::progress(&format!("{} operations read", tally.totals.values().sum::<u64>()));
    }
}

fn text(scope: &str, tally: &Tally, now_ms: i64) -> String {
    let total: u64 = tally.totals.values().sum();
    let counted = SECTIONS.iter().filter_map(|(state, word, _)| {
        let count = tally.totals.get(state)?;
        Some(format!("{count} {word}"))
    });
    let counted = counted.collect::<Vec<_>>().join(", ");
    let colon = if counted.is_empty() { "" } else { ": " };
    let mut parts = vec![format!(
        "scope {}: {}{colon}{counted}; {}",
        styled(BOLD, scope),
        counted_as(total, "operation"),
        counted_as(tally.replays, "replay")
    )];
    for (word, count) in &tally.alarms {
        let alarm = format!("double effect {word}: {}", counted_as(*count, "operation"));
        parts.push(styled(RED.bold(), alarm));
    }
    for (state, _, title) in SECTIONS {
        let records = tally.listed.get(&state).map(Vec::as_slice).unwrap_or_default();
        if records.is_empty() {
            continue;
        }
        let rows: Vec<(&Record, State)> = records.iter().map(|record| (record, state)).collect();
        let count = tally.totals.get(&state).copied().unwrap_or_default();
        let style = if state == State::InDoubt { YELLOW.bold() } else { BOLD };
        parts.push(format!(
            "\n{} ({count})\n{}",
            styled(style, title),
            listing::table(&rows, Heading::ScopeAndState, now_ms)
        ));
        if count > rows.len() as u64 {
            parts.push(format!("(the newest {} of {count}; --limit lists more)", rows.len()));
        }
    }
    parts.join("\n")
}

fn counted_as(count: u64, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}
