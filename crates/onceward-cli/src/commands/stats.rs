//! `once stats`: how many operations are in each state.

use std::collections::BTreeMap;
use std::process::ExitCode;

use onceward::{Filter, State};
use serde::Serialize;

use crate::answer;
use crate::context::{Context, IfMissing};
use crate::exit::Ended;
use crate::style::state_style;

#[derive(Serialize)]
struct Stats {
    operations: u64,
    by_state: BTreeMap<State, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_bytes: Option<u64>,
}

pub(super) fn run(context: &Context) -> Ended {
    let store = context.store(IfMissing::Fail)?;
    let ledger = onceward::Ledger::new(store.clone()).blocking();
    let by_state = ledger.admin().totals(&Filter::default())?;
    let file_bytes = context.ledger_file()?.and_then(|file| Some(std::fs::metadata(file).ok()?.len()));
    let stats = Stats { operations: by_state.values().sum(), by_state, file_bytes };
    answer::success(context.global.json, "noop", &stats, || {
        let rows: Vec<_> = stats
            .by_state
            .iter()
            .map(|(state, count)| {
                vec![(state.to_string(), state_style(*state)), (count.to_string(), anstyle::Style::new())]
            })
            .collect();
        let table = answer::table(&["STATE", "OPERATIONS"], &rows);
        let size = stats.file_bytes.map_or(String::new(), |bytes| format!(" in {} KiB", bytes / 1024));
        format!("{table}\n{} operations{size}", stats.operations)
    });
    Ok(ExitCode::SUCCESS)
}
