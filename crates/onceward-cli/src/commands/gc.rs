//! `once gc`: expires old results and records abandoned attempts as in doubt.

use std::process::ExitCode;

use onceward::{Filter, State, SweepReport};
use serde::Serialize;

use crate::answer;
use crate::cli::GcArgs;
use crate::context::{Context, IfMissing};
use crate::exit::Ended;

#[derive(Serialize)]
struct Collected {
    expired: u64,
    deleted: u64,
    doubted: u64,
    /// How much smaller the file is, if space was returned.
    #[serde(skip_serializing_if = "Option::is_none")]
    freed_bytes: Option<u64>,
}

pub(super) fn run(context: &Context, args: &GcArgs) -> Ended {
    let store = context.store(IfMissing::Fail)?;
    let ledger = onceward::Ledger::new(store.clone()).blocking();
    if args.dry.dry_run {
        let due = ledger.wait_for(onceward::Store::due(&*store, ledger.clock_ms(), usize::MAX))?;
        let deleted = due.iter().filter(|record| record.state == State::Expired).count() as u64;
        let open = Filter { states: vec![State::InDoubt], limit: usize::MAX, ..Filter::default() };
        let open = ledger.list(&open)?;
        let doubted = open.iter().filter(|(listed, _)| listed.record.state == State::Running).count() as u64;
        let would = Collected { expired: due.len() as u64 - deleted, deleted, doubted, freed_bytes: None };
        let effect = if due.is_empty() && doubted == 0 { "would_noop" } else { "would_delete" };
        answer::success(context.global.json, effect, &would, || {
            format!(
                "{effect}: {} results would expire, {} tombstones would be deleted, \
                 {} attempts would be recorded as in doubt",
                would.expired, would.deleted, would.doubted
            )
        });
        return Ok(ExitCode::SUCCESS);
    }
    let swept = ledger.admin().sweep(|swept| {
        answer::progress(&format!("{} results expired, {} tombstones deleted", swept.expired, swept.deleted));
    });
    answer::progress_over();
    let swept = swept?;
    let freed_bytes = if args.vacuum {
        let compacted = store.compact()?;
        compacted.map(|compacted| compacted.before_bytes.saturating_sub(compacted.after_bytes))
    } else {
        None
    };
    let SweepReport { expired, deleted, doubted } = swept;
    let collected = Collected { expired, deleted, doubted, freed_bytes };
    let effect = if swept == SweepReport::default() { "noop" } else { "deleted" };
    answer::success(context.global.json, effect, &collected, || {
        let swept = format!(
            "{expired} results expired, {deleted} tombstones deleted, {doubted} attempts recorded as in doubt"
        );
        match (args.vacuum, freed_bytes) {
            (true, Some(bytes)) => format!("{swept}, {bytes} bytes returned to the file system"),
            (true, None) => format!("{swept}; the server manages its own space"),
            (false, _) => swept,
        }
    });
    Ok(ExitCode::SUCCESS)
}
