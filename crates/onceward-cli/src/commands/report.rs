//! `once report`: what a scope really did.

use std::collections::BTreeMap;
use std::process::ExitCode;

use onceward::{Filter, Listed, State};
use serde::Serialize;

use super::ls::{Line, row};
use crate::answer::{self, BOLD, styled};
use crate::cli::ReportArgs;
use crate::context::{Context, Missing};
use crate::exit::Ended;

/// How many operations a report names.
const LIMIT: usize = 10_000;

#[derive(Serialize)]
struct Report {
    scope: String,
    operations: usize,
    replays: u64,
    by_state: BTreeMap<State, Vec<Line>>,
}

pub(super) fn run(context: &Context, args: &ReportArgs) -> Ended {
    let ledger = context.ledger(Missing::Refuse)?;
    let filter = Filter { scope: Some(args.scope.clone()), limit: LIMIT, ..Filter::default() };
    let listed = ledger.wait_for(ledger.ledger().list(&filter))?;
    let mut by_state: BTreeMap<State, Vec<Line>> = BTreeMap::new();
    for (listed, state) in &listed {
        by_state.entry(*state).or_default().push(Line::of(&listed.record, *state));
    }
    let replays = listed.iter().map(|(listed, _)| listed.record.replays).sum();
    let report = Report { scope: args.scope.clone(), operations: listed.len(), replays, by_state };
    answer::success(context.global.json, "noop", &report, || {
        text(&report, &listed, ledger.ledger().clock_ms())
    });
    Ok(ExitCode::SUCCESS)
}

/// What happened comes first, and what somebody must look at last, where it is seen.
fn text(report: &Report, listed: &[(Listed, State)], now_ms: i64) -> String {
    const SECTIONS: [(State, &str); 7] = [
        (State::Done, "happened"),
        (State::Expired, "ended long ago"),
        (State::Cancelled, "was cancelled and did not happen"),
        (State::Failed, "failed and did not happen"),
        (State::Staged, "is held back"),
        (State::Running, "is running"),
        (State::InDoubt, "is in doubt: settle it"),
    ];
    let mut parts = vec![format!(
        "scope {}: {} operations, {} replays",
        styled(BOLD, &report.scope),
        report.operations,
        report.replays
    )];
    for (state, title) in SECTIONS {
        let rows: Vec<_> = listed
            .iter()
            .filter(|(_, standing)| *standing == state)
            .map(|(listed, standing)| row(&listed.record, *standing, now_ms))
            .collect();
        if !rows.is_empty() {
            let table =
                answer::table(&["STATE", "NAME", "SCOPE", "ATTEMPT", "REPLAYS", "AGO", "OPERATION"], &rows);
            parts.push(format!("\n{} ({})\n{table}", styled(BOLD, title), rows.len()));
        }
    }
    if listed.len() == LIMIT {
        parts.push(format!("\n(only the newest {LIMIT} are named)"));
    }
    parts.join("\n")
}
