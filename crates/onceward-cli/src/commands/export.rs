//! `once export`: writes all operations as JSON lines, oldest first, and a last line with their number.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use futures_util::future::try_join_all;
use onceward::{Blocking, Cursor, Filter, Listed, Record, Secret, State, text};
use onceward_store::Backend;
use onceward_store::seal::Keys;
use serde::{Deserialize, Serialize};

use crate::answer;
use crate::cli::ExportArgs;
use crate::context::{Context, IfMissing};
use crate::exit::{CommandError, Ended};

const PAGE: usize = 1_000;
/// How many records are loaded at once. Each can have a large output.
const LOADED_AT_ONCE: usize = 16;

/// The last line. An export without it is truncated.
#[derive(Serialize, Deserialize)]
pub(super) struct End {
    /// The number of operations before it.
    pub(super) exported: u64,
}

#[derive(Serialize)]
struct Exported<'a> {
    #[serde(flatten)]
    record: &'a Record,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    /// The text of the result in base64, where the line cannot hold it as it is: a replay gives it byte for byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    exact_data: Option<String>,
    /// Where bodies were left out: the record is not whole, and an import refuses it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    without_body: bool,
    /// The id of the ledger's secret, not the secret itself. An import needs the same secret, or retries would not
    /// find their operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    keyed_by: Option<&'a str>,
}

pub(super) fn run(context: &Context, args: &ExportArgs) -> Ended {
    let keys = if args.sealed { Some(sealing_keys(context)?) } else { None };
    let store = context.store(IfMissing::Fail)?;
    let ledger = onceward::Ledger::new(store.clone()).blocking();
    let secret = store.identity().secret.clone();
    if let Some(file) = &args.secret_file {
        write_secret(file, secret.as_ref())?;
    }
    let keyed_by = secret.map(|secret| secret.id());
    let pages = Pages { store, ledger, scope: args.scope.clone() };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let gone =
        |error: std::io::Error| CommandError::Outside(format!("the export could not be written: {error}"));
    let (ends, total) = pages.ends()?;
    let mut written = 0;
    for before in ends.into_iter().rev() {
        let mut page = pages.page(before)?;
        while !page.is_empty() {
            let mut some = page.split_off(page.len().saturating_sub(LOADED_AT_ONCE));
            if !args.no_bodies {
                pages.add_bodies(&mut some)?;
            }
            for Listed { mut record, .. } in some.into_iter().rev() {
                if let Some(keys) = &keys {
                    keys.seal(&mut record)?;
                }
                let line = line(&record, args.no_bodies, keyed_by.as_deref())?;
                // The same data, and nothing in it commands the terminal that the file is shown on.
                writeln!(out, "{}", text::json(&line)).map_err(gone)?;
                written += 1;
            }
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

/// A record with what belongs to it, as JSON.
fn line(record: &Record, without_body: bool, keyed_by: Option<&str>) -> Result<String, CommandError> {
    let outcome = record.outcome.as_ref();
    let body = outcome.and_then(|outcome| outcome.body.as_deref());
    let data = outcome.and_then(|outcome| outcome.data.as_ref()).map(|data| data.get());
    let exact = data.filter(|data| text::json(data) != *data);
    let exported = Exported {
        record,
        body: body.map(|body| data_encoding::BASE64.encode(body)),
        exact_data: exact.map(|data| data_encoding::BASE64.encode(data.as_bytes())),
        without_body,
        keyed_by,
    };
    serde_json::to_string(&exported).map_err(|error| CommandError::Outside(error.to_string()))
}

/// Writes the secret that keys the ledger's hashes to a new file that only the user can read.
fn write_secret(file: &Path, secret: Option<&Secret>) -> Result<(), CommandError> {
    let Some(secret) = secret else {
        return Err(CommandError::invalid(
            "this ledger was created by an older version and has no secret; omit --secret-file",
        ));
    };
    let cannot = |error| CommandError::invalid(format!("cannot write {}: {error}", file.display()));
    let line = format!("{}\n", String::from(secret.clone()));
    let mut made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file).map_err(cannot)?;
    made.write_all(line.as_bytes()).and_then(|()| made.sync_all()).map_err(cannot)
}

fn sealing_keys(context: &Context) -> Result<Keys, CommandError> {
    context.keys()?.ok_or_else(|| {
        CommandError::invalid(
            "--sealed needs a key; set ONCE_ENCRYPTION_KEY_FILE, or write one with `once config new-key`",
        )
    })
}

/// A ledger lists its newest operations first, but another ledger must import the oldest first to list them in the
/// same order (except for those imported concurrently). So the pages are found from the newest, and written from
/// the oldest.
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
        // The owner lock of a doubt belongs to this machine, and means nothing in another ledger.
        for listed in page.iter_mut().filter(|listed| listed.record.state == State::InDoubt) {
            listed.record.detail.owner = None;
        }
        Ok(page)
    }

    /// Adds the stored output, which listings leave out. A server is asked for several records in one round trip.
    fn add_bodies(&self, page: &mut [Listed]) -> Result<(), CommandError> {
        let loads = page.iter().map(|listed| self.store.load(&listed.record.id));
        let whole = self.ledger.wait_for(try_join_all(loads))?;
        for (listed, whole) in page.iter_mut().zip(whole) {
            if let Some(outcome) = &mut listed.record.outcome {
                outcome.body = whole.and_then(|whole| whole.outcome.as_ref()?.body.clone());
            }
        }
        Ok(())
    }
}
