//! `once export`: all operations as JSON lines, oldest first, and a last line that says how many they are.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use onceward::{Blocking, Cursor, Filter, Listed, Record, State};
use onceward_store::Backend;
use serde::{Deserialize, Serialize};

use crate::answer;
use crate::cli::ExportArgs;
use crate::context::{Context, Missing};
use crate::exit::{CommandError, Ended};

const PAGE: usize = 1_000;

/// The last line: an export without it was cut off.
#[derive(Serialize, Deserialize)]
pub(super) struct End {
    /// How many operations stand before it.
    pub(super) exported: u64,
}

#[derive(Serialize)]
struct Exported<'a> {
    #[serde(flatten)]
    record: &'a Record,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    /// Where bodies were left out: the record is not whole, and an import refuses it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    without_body: bool,
}

pub(super) fn run(context: &Context, args: &ExportArgs) -> Ended {
    let store = context.store(Missing::Refuse)?;
    let ledger = onceward::Ledger::new(store.clone()).blocking();
    let pages = Pages { store, ledger, scope: args.scope.clone() };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let gone =
        |error: std::io::Error| CommandError::Outside(format!("the export could not be written: {error}"));
    let (ends, total) = pages.ends()?;
    let mut written = 0;
    for before in ends.into_iter().rev() {
        let page = pages.page(before)?;
        for listed in page.iter().rev() {
            let body = if args.no_bodies { None } else { pages.body(&listed.record)? };
            let exported = Exported { record: &listed.record, body, without_body: args.no_bodies };
            let line =
                serde_json::to_string(&exported).map_err(|error| CommandError::Outside(error.to_string()))?;
            writeln!(out, "{line}").map_err(gone)?;
            written += 1;
        }
        answer::progress(&format!("{written} of {total} operations written"));
    }
    answer::progress_over();
    let end = serde_json::to_string(&End { exported: written })
        .map_err(|error| CommandError::Outside(error.to_string()))?;
    writeln!(out, "{end}").and_then(|()| out.flush()).map_err(gone)?;
    answer::talk(&format!("once: {written} operations written"));
    Ok(ExitCode::SUCCESS)
}

/// A ledger lists its newest operations first, and a new home must get the oldest first to list them alike (but for
/// those that are on their way together). So the pages are counted off from the newest, and written from the oldest.
struct Pages {
    store: Arc<dyn Backend>,
    ledger: Blocking,
    scope: Option<String>,
}

impl Pages {
    /// Where each page ends, the newest first, and how many operations there are.
    fn ends(&self) -> Result<(Vec<Option<Cursor>>, u64), CommandError> {
        let mut ends = vec![None];
        let mut total = 0;
        loop {
            let page = self.page(ends.last().copied().flatten())?;
            total += page.len() as u64;
            answer::progress(&format!("{total} operations found"));
            match page.last() {
                Some(last) if page.len() == PAGE => ends.push(Some(last.cursor)),
                Some(_) | None => return Ok((ends, total)),
            }
        }
    }

    fn page(&self, before: Option<Cursor>) -> Result<Vec<Listed>, CommandError> {
        let filter = Filter { scope: self.scope.clone(), before, limit: PAGE, ..Filter::default() };
        let mut page = self.ledger.wait_for(self.store.list(&filter))?;
        // The lock of a doubt's owner is on this machine, and means nothing in another ledger.
        for listed in page.iter_mut().filter(|listed| listed.record.state == State::InDoubt) {
            listed.record.detail.owner = None;
        }
        Ok(page)
    }

    fn body(&self, record: &Record) -> Result<Option<String>, CommandError> {
        let record = self.ledger.wait_for(self.store.load(&record.id))?;
        let body = record.as_ref().and_then(|record| record.outcome.as_ref()?.body.as_deref());
        Ok(body.map(|body| data_encoding::BASE64.encode(body)))
    }
}
