//! `once export`: all operations as JSON lines, oldest last.

use std::io::Write;
use std::process::ExitCode;

use onceward::{Filter, Store};
use serde::Serialize;

use crate::answer;
use crate::cli::ExportArgs;
use crate::context::{Context, Missing};
use crate::exit::{CommandError, Ended};

const PAGE: usize = 1_000;

#[derive(Serialize)]
struct Exported<'a> {
    #[serde(flatten)]
    record: &'a onceward::Record,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
}

pub(super) fn run(context: &Context, args: &ExportArgs) -> Ended {
    let store = context.store(Missing::Refuse)?;
    let ledger = onceward::Ledger::new(store.clone()).blocking();
    let mut filter = Filter { scope: args.scope.clone(), limit: PAGE, ..Filter::default() };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let gone =
        |error: std::io::Error| CommandError::Outside(format!("the export could not be written: {error}"));
    let mut written = 0_u64;
    loop {
        let page = ledger.wait_for(store.list(&filter))?;
        for listed in &page {
            filter.before = Some(listed.cursor);
            let body = match args.bodies {
                true => ledger.wait_for(store.load(&listed.record.id))?.and_then(|record| {
                    let body = record.outcome.as_ref()?.body.as_deref()?;
                    Some(data_encoding::BASE64.encode(body))
                }),
                false => None,
            };
            let line = serde_json::to_string(&Exported { record: &listed.record, body })
                .map_err(|error| CommandError::Outside(error.to_string()))?;
            writeln!(out, "{line}").map_err(gone)?;
            written += 1;
        }
        answer::progress(&format!("{written} operations written"));
        if page.len() < PAGE {
            break;
        }
    }
    answer::progress_over();
    out.flush().map_err(gone)?;
    Ok(ExitCode::SUCCESS)
}
