//! `once held`: the operations that are held back, oldest first.

use std::process::ExitCode;

use anstyle::Style;
use onceward::{Held, Record, State, rfc3339};
use serde::Serialize;

use super::listing::{self, Line};
use crate::answer;
use crate::cli::HeldArgs;
use crate::context::{Context, IfMissing};
use crate::exit::Ended;
use crate::style::DIM;
use crate::table::{self, Cell, Column, Fit};

/// A held operation in a listing.
#[derive(Serialize)]
struct HeldLine {
    #[serde(flatten)]
    line: Line,
    /// What would run, if it is stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    would_run: Option<String>,
}

pub(super) fn run(context: &Context, args: &HeldArgs) -> Ended {
    let ledger = context.ledger(IfMissing::Fail)?;
    let held = ledger.admin().held(args.scope.as_deref())?;
    let now_ms = ledger.clock_ms();
    let lines: Vec<HeldLine> = held
        .iter()
        .map(|record| HeldLine {
            line: Line::of(record, State::Staged),
            would_run: record.held().and_then(Held::shown).map(|shown| shown.to_string()),
        })
        .collect();
    answer::success(context.global.json, "noop", &lines, || {
        if held.is_empty() { "nothing is held".to_owned() } else { text(&held, now_ms) }
    });
    Ok(ExitCode::SUCCESS)
}

fn text(held: &[Record], now_ms: i64) -> String {
    let columns = [
        Column { title: "UNTIL", fit: Fit::Whole },
        Column { title: "KEY", fit: Fit::Cut(6) },
        Column { title: "SCOPE", fit: Fit::Optional },
        Column { title: "BY", fit: Fit::Optional },
        Column { title: "AGE", fit: Fit::Optional },
        Column { title: "WOULD RUN", fit: Fit::Cut(10) },
        Column { title: "ID", fit: Fit::Whole },
    ];
    let rows: Vec<Vec<Cell>> = held
        .iter()
        .filter_map(|record| {
            let held = record.held()?;
            let until = match (&held.released, held.until_ms) {
                (Some(_), _) => "released".to_owned(),
                (None, Some(until_ms)) if until_ms <= now_ms => "due".to_owned(),
                (None, Some(until_ms)) => rfc3339(until_ms),
                (None, None) => "approval".to_owned(),
            };
            let would_run = held
                .shown()
                .map_or_else(|| format!("{} (by its caller)", record.name), |shown| shown.to_string());
            Some(vec![
                Cell::new(until, Style::new()),
                Cell::new(listing::key(record), Style::new()),
                Cell::new(record.scope.clone(), Style::new()),
                Cell::new(held.by.as_str(), Style::new()),
                Cell::new(listing::age(now_ms - record.created_ms), DIM),
                Cell::new(would_run, Style::new()),
                Cell::new(listing::short_id(record), DIM),
            ])
        })
        .collect();
    table::render(&columns, &rows, table::width())
}
