//! `once ls`: operations, newest first.

use std::process::ExitCode;

use onceward::{Filter, Record, State};

use super::listing::{self, Heading, Line};
use crate::answer;
use crate::cli::ListArgs;
use crate::context::{Context, IfMissing};
use crate::exit::Ended;

pub(super) fn run(context: &Context, args: &ListArgs) -> Ended {
    let ledger = context.ledger(IfMissing::Fail)?;
    let now_ms = ledger.clock_ms();
    let limit = args.limit as usize;
    let filter = Filter {
        name: args.name.clone(),
        key: args.key.clone(),
        states: args.state.clone(),
        // Read one more than the limit, to see whether there are more.
        limit: limit + 1,
        ..args.when.filter(now_ms)
    };
    let mut listed = listing::in_scope(&ledger, filter, args.scope.as_deref())?;
    let more = listed.len() > limit;
    listed.truncate(limit);
    let lines = listed.iter().map(|(listed, state)| Line::of(&listed.record, *state));
    if args.jsonl {
        lines.for_each(|line| answer::json(&line));
        return Ok(ExitCode::SUCCESS);
    }
    let lines: Vec<Line> = lines.collect();
    let cut = more.then(|| format!("only the newest {limit} are listed; -n lists more"));
    answer::success_with(context.global.json, "noop", &lines, cut.iter().cloned().collect(), || {
        if listed.is_empty() {
            return "no operations".to_owned();
        }
        let rows: Vec<(&Record, State)> =
            listed.iter().map(|(listed, state)| (&listed.record, *state)).collect();
        let heading = if args.scope.is_some() { Heading::Scope } else { Heading::None };
        let table = listing::table(&rows, heading, now_ms);
        match &cut {
            Some(cut) => format!("{table}\n({cut})"),
            None => table,
        }
    });
    Ok(ExitCode::SUCCESS)
}
