//! `once import`: imports the output of `once export`.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use onceward::text::{self, one_line};
use onceward::{Error, Filter, Identity, Imported, InvalidInput, Ledger, OperationId, Record, Secret};
use onceward_store::seal::Keys;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::export::End;
use crate::answer;
use crate::cli::ImportArgs;
use crate::context::{Context, IfMissing};
use crate::exit::{CommandError, Ended};

/// How many records, and how many bytes, are written concurrently: they share round trips and syncs.
const IN_FLIGHT: usize = 256;
const BYTES_IN_FLIGHT: usize = MAX_LINE;
/// The longest line. A record with the largest result that is kept is shorter, also if all of it is escaped.
const MAX_LINE: usize = 80 * 1024 * 1024;
/// How many operations that differ, or lines that were refused, are named.
const NAMED: usize = 20;
/// How many characters of a refusal are shown: it may quote what the line says.
const SHOWN: usize = 300;
/// After how many lines the progress is shown again.
const SHOW_EVERY: u64 = 1_000;

#[derive(Default, Serialize)]
struct ImportReport {
    imported: u64,
    already_there: u64,
    differing: u64,
    /// The first operations that differ. They were left unchanged.
    differ: Vec<OperationId>,
    refused: u64,
    /// The first records that no ledger could have written, by line. They were not imported.
    refusals: Vec<String>,
}

#[derive(Deserialize)]
struct Beside {
    body: Option<String>,
    /// The text of the result in base64, if the line cannot hold it as it is.
    exact_data: Option<String>,
    keyed_by: Option<String>,
}

/// What `--no-bodies` leaves in a line.
#[derive(Deserialize)]
struct Bodiless {
    #[serde(default)]
    without_body: bool,
}

/// A line of an export.
enum Line {
    Record {
        record: Box<Record>,
        keyed_by: Option<String>,
    },
    /// It is JSON, and not a record.
    Refused(InvalidInput),
    End(End),
}

/// What comes next in an export.
enum Next {
    Record(Numbered),
    Refused(InvalidInput),
    End,
}

pub(super) fn run(context: &Context, args: &ImportArgs) -> Ended {
    let mut source = Source::open(args)?;
    if args.dry.dry_run {
        return rehearse(context, &mut source);
    }
    source.keys = context.keys()?;
    let mut imported = ImportReport::default();
    let first = match source.next_record(&mut imported) {
        Ok(first) => first,
        Err(error) => return cut_off(context, &error, &imported),
    };
    let keyed_by = match (&first, &args.secret_file) {
        (Some(line), _) => line.keyed_by.clone(),
        // An empty export can still contain a secret.
        (None, Some(file)) => Some(read_secret(file, None)?.id()),
        (None, None) => None,
    };
    let ledger = match (&first, &args.secret_file) {
        (None, None) => Ledger::new(context.store(IfMissing::Create)?),
        (_, _) => new_home(context, args, keyed_by.as_deref())?,
    };
    let mut lines = Lines { first, source: &mut source, keyed_by };
    let result = ledger.blocking().wait_for(take_in(&ledger, &mut lines, &mut imported));
    answer::progress_over();
    if let Err(error) = result {
        return cut_off(context, &error, &imported);
    }
    let effect = if imported.imported == 0 { "noop" } else { "created" };
    let text = || imported.in_words();
    let (code, problem) = match (imported.refused, imported.differing) {
        (0, 0) => {
            answer::success(context.global.json, effect, &imported, text);
            return Ok(ExitCode::SUCCESS);
        }
        (0, differing) => {
            (onceward::Code::KeyReused, format!("{differing} operations differ from the existing ones"))
        }
        (refused, _) => (
            onceward::Code::InvalidInput,
            format!("{refused} records were refused, so their operations may run again here"),
        ),
    };
    answer::incomplete(context.global.json, effect, problem, &imported, text);
    Ok(ExitCode::from(code.exit()))
}

/// Reports how far an incomplete import got. Imported records stay, and a second import resumes from there.
fn cut_off(context: &Context, error: &CommandError, imported: &ImportReport) -> Ended {
    let ImportReport { imported: new, already_there, .. } = imported;
    let problem = format!(
        "{error}; {new} operations were imported before that and {already_there} existed already. Import the whole \
         export to continue"
    );
    if context.global.json {
        let effect = if *new == 0 { "noop" } else { "created" };
        answer::incomplete(true, effect, problem, imported, String::new);
    } else {
        answer::talk(&format!("once: {problem}{}", imported.refused_in_words()));
    }
    Ok(ExitCode::from(error.exit()))
}

/// The target ledger. Derived keys and fingerprints are keyed with the secret of the ledger they come from: with
/// another secret a retry would not find its operation, and would run it again. An empty ledger takes the secret
/// over.
fn new_home(context: &Context, args: &ImportArgs, keyed_by: Option<&str>) -> Result<Ledger, CommandError> {
    let store = context.store(IfMissing::Create)?;
    let found = store.identity().clone();
    if found.secret.as_ref().map(Secret::id).as_deref() == keyed_by {
        return Ok(Ledger::new(store));
    }
    let secret = match (keyed_by, &args.secret_file) {
        (None, _) => None,
        (Some(_), None) => {
            return Err(CommandError::invalid(
                "the export comes from a ledger with another secret, so retries would not find their operations here \
                 and would run them again. Export with --secret-file FILE, and import into an empty ledger with \
                 --secret-file FILE",
            ));
        }
        (Some(id), Some(file)) => Some(read_secret(file, Some(id))?),
    };
    let blocking = Ledger::new(store.clone()).blocking();
    let counts = blocking.wait_for(store.counts(&Filter::default())).map_err(Error::from)?;
    if counts.values().sum::<u64>() > 0 {
        return Err(CommandError::invalid(
            "the export comes from a ledger with another secret, and this ledger already has operations; import into \
             an empty ledger",
        ));
    }
    let next = Identity { epoch: found.next_epoch(0)?, secret, ..found };
    blocking.wait_for(store.set_identity(&next)).map_err(Error::from)?;
    // This handle belongs to the previous epoch.
    drop((blocking, store));
    Ok(Ledger::new(context.store(IfMissing::Fail)?))
}

/// Reads the secret from a file, and checks its id if one is required.
fn read_secret(file: &Path, id: Option<&str>) -> Result<Secret, CommandError> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| CommandError::invalid(format!("cannot read {}: {error}", file.display())))?;
    let secret = Secret::try_from(text.trim().to_owned())?;
    if id.is_none_or(|id| secret.id() == id) {
        Ok(secret)
    } else {
        Err(CommandError::invalid(format!(
            "{} contains the secret of another ledger than the export's",
            file.display()
        )))
    }
}

/// Reads the whole export and writes nothing.
fn rehearse(context: &Context, source: &mut Source) -> Ended {
    let mut would = ImportReport::default();
    while let Some(line) = source.next_record(&mut would)? {
        match line.record.check() {
            Ok(()) => would.imported += 1,
            Err(invalid) => would.refuse(line.number, &invalid),
        }
    }
    answer::progress_over();
    if would.refused > 0 {
        let problem = format!("{} records would be refused", would.refused);
        answer::incomplete(context.global.json, "would_create", problem, &would, || would.in_words());
        return Ok(ExitCode::from(onceward::Code::InvalidInput.exit()));
    }
    let effect = if would.imported == 0 { "would_noop" } else { "would_create" };
    answer::success(context.global.json, effect, &would, || {
        format!("{effect}: {} operations would be imported if they do not exist yet", would.imported)
    });
    Ok(ExitCode::SUCCESS)
}

async fn take_in(
    ledger: &Ledger,
    source: &mut Lines<'_>,
    imported: &mut ImportReport,
) -> Result<(), CommandError> {
    let mut under_way = FuturesUnordered::new();
    let mut bytes_under_way = 0;
    // How reading ended. Writes that have started still complete.
    let mut ended = None;
    loop {
        while ended.is_none() && under_way.len() < IN_FLIGHT && bytes_under_way < BYTES_IN_FLIGHT {
            match source.next(imported) {
                Ok(Some(line)) => {
                    bytes_under_way += line.bytes;
                    under_way.push(import(ledger, line));
                }
                Ok(None) => ended = Some(Ok(())),
                Err(error) => ended = Some(Err(error)),
            }
        }
        let Some((number, bytes, adopted)) = under_way.next().await else { return ended.unwrap_or(Ok(())) };
        bytes_under_way -= bytes;
        match adopted {
            // The others are imported, because each missing record is an operation that may run again.
            Err(Error::Invalid(invalid)) => imported.refuse(number, &invalid),
            // Wait for the writes that have started, so that the report matches what was done.
            Err(error) => ended = Some(Err(first_error(ended, error.into()))),
            Ok(adopted) => imported.note(adopted),
        }
    }
}

/// The error that ended the import: the first one counts.
fn first_error(ended: Option<Result<(), CommandError>>, error: CommandError) -> CommandError {
    match ended {
        Some(Err(first)) => first,
        Some(Ok(())) | None => error,
    }
}

impl ImportReport {
    fn refuse(&mut self, line: u64, invalid: &InvalidInput) {
        self.refused += 1;
        if self.refusals.len() < NAMED {
            let problem: String = one_line(&invalid.to_string()).chars().take(SHOWN).collect();
            self.refusals.push(format!("line {line}: {problem}"));
        }
    }

    fn in_words(&self) -> String {
        let left = if self.differing == 0 { "" } else { " and were left unchanged" };
        format!(
            "{} operations imported, {} existed already, {} differ{left}{}",
            self.imported,
            self.already_there,
            self.differing,
            self.refused_in_words()
        )
    }

    fn refused_in_words(&self) -> String {
        if self.refused == 0 {
            return String::new();
        }
        let head = format!(
            "\n{} records were refused and not imported, so their operations may run again:",
            self.refused
        );
        self.refusals.iter().fold(head, |words, refusal| format!("{words}\n  {refusal}"))
    }

    fn note(&mut self, adopted: Imported) {
        let imported = self;
        match adopted {
            Imported::Taken => imported.imported += 1,
            Imported::AlreadyThere => imported.already_there += 1,
            Imported::Differs(found) => {
                imported.differing += 1;
                if imported.differ.len() < NAMED {
                    imported.differ.push(found.id.clone());
                }
            }
        }
    }
}

async fn import(ledger: &Ledger, line: Numbered) -> (u64, usize, Result<Imported, Error>) {
    (line.number, line.bytes, ledger.admin().import(*line.record).await)
}

/// The records of one export, which all belong to one ledger.
struct Lines<'a> {
    first: Option<Numbered>,
    source: &'a mut Source,
    keyed_by: Option<String>,
}

impl Lines<'_> {
    fn next(&mut self, report: &mut ImportReport) -> Result<Option<Numbered>, CommandError> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        match self.source.next_record(report)? {
            Some(line) if line.keyed_by != self.keyed_by => Err(CommandError::Outside(format!(
                "line {}: belongs to another ledger than the lines before it",
                line.number
            ))),
            line => Ok(line),
        }
    }
}

/// A record and its line number.
struct Numbered {
    record: Box<Record>,
    keyed_by: Option<String>,
    number: u64,
    bytes: usize,
}

/// The lines of an export, counted.
struct Source {
    lines: Box<dyn BufRead>,
    bytes: Option<u64>,
    read_bytes: u64,
    number: u64,
    ended: bool,
    /// The keys for an export made with `--sealed`. The ledger seals its records again.
    keys: Option<Keys>,
}

impl Source {
    fn open(args: &ImportArgs) -> Result<Self, CommandError> {
        let (lines, bytes): (Box<dyn BufRead>, _) = match &args.file {
            None => (Box::new(std::io::stdin().lock()), None),
            Some(path) => {
                let cannot =
                    |error| CommandError::invalid(format!("cannot read {}: {error}", path.display()));
                let file = File::open(path).map_err(cannot)?;
                let bytes = file.metadata().map_err(cannot)?.len();
                (Box::new(BufReader::new(file)), Some(bytes))
            }
        };
        Ok(Self { lines, bytes, read_bytes: 0, number: 0, ended: false, keys: None })
    }

    /// The next record; `None` after the last one. A record that cannot be read is refused and skipped. An export that
    /// was cut off is an error.
    fn next_record(&mut self, report: &mut ImportReport) -> Result<Option<Numbered>, CommandError> {
        loop {
            match self.next_or_refused()? {
                Next::Record(line) => return Ok(Some(line)),
                Next::Refused(invalid) => report.refuse(self.number, &invalid),
                Next::End => return Ok(None),
            }
        }
    }

    fn next_or_refused(&mut self) -> Result<Next, CommandError> {
        let text = self.next_line()?;
        let read = text.len();
        if read == 0 {
            if self.ended {
                return Ok(Next::End);
            }
            return Err(CommandError::Outside(format!(
                "the export is truncated after line {}: its last line is missing",
                self.number
            )));
        }
        self.read_bytes += read as u64;
        let wrong = |number: u64, problem: String| CommandError::Outside(format!("line {number}: {problem}"));
        match parse(&text).map_err(|problem| wrong(self.number + 1, problem))? {
            Line::Record { .. } | Line::Refused(_) if self.ended => {
                Err(wrong(self.number + 1, "follows the last line of the export".to_owned()))
            }
            Line::Record { mut record, keyed_by } => {
                if let Some(keys) = &self.keys {
                    keys.open(&mut record);
                }
                self.number += 1;
                self.show();
                Ok(Next::Record(Numbered { record, keyed_by, number: self.number, bytes: read }))
            }
            Line::Refused(invalid) => {
                self.number += 1;
                Ok(Next::Refused(invalid))
            }
            Line::End(end) if end.exported != self.number => {
                let problem =
                    format!("{} operations were exported, but {} were read", end.exported, self.number);
                Err(wrong(self.number + 1, problem))
            }
            Line::End(_) => {
                self.ended = true;
                self.next_or_refused()
            }
        }
    }

    /// The next line with its line break, or an empty one at the end of the file. Lines are limited to bound
    /// memory.
    fn next_line(&mut self) -> Result<String, CommandError> {
        let number = self.number + 1;
        let wrong = |problem: String| CommandError::Outside(format!("line {number}: {problem}"));
        let mut bytes = Vec::new();
        let mut limited = (&mut self.lines).take(MAX_LINE as u64 + 1);
        limited.read_until(b'\n', &mut bytes).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        if bytes.len() > MAX_LINE {
            return Err(wrong(format!("is longer than {} MiB, the limit", MAX_LINE / (1024 * 1024))));
        }
        String::from_utf8(bytes).map_err(|_| wrong("is not UTF-8".to_owned()))
    }

    fn show(&self) {
        if self.number.is_multiple_of(SHOW_EVERY) {
            let share = self.bytes.filter(|bytes| *bytes > 0).map(|bytes| self.read_bytes * 100 / bytes);
            answer::progress(&match share {
                Some(percent) => {
                    let filled = usize::try_from(percent / 5).unwrap_or(20).min(20);
                    format!("[{:<20}] {percent:>3} %  {} operations", "#".repeat(filled), self.number)
                }
                None => format!("{} operations", self.number),
            });
        }
    }
}

/// Reads a line. A line that is not JSON is an error: what is read is not an export.
fn parse(text: &str) -> Result<Line, String> {
    if let Ok(end) = serde_json::from_str::<End>(text) {
        return Ok(Line::End(end));
    }
    serde_json::from_str::<IgnoredAny>(text).map_err(not_ours)?;
    if serde_json::from_str(text).is_ok_and(|Bodiless { without_body }| without_body) {
        let problem = "was exported with --no-bodies, so its stored output is missing and could not be replayed; \
                       export without --no-bodies to import";
        return Err(problem.to_owned());
    }
    Ok(match record(text) {
        Ok((record, keyed_by)) => Line::Record { record, keyed_by },
        Err(problem) => Line::Refused(InvalidInput::new(problem)),
    })
}

/// The record of a line, and the id of the secret that keys its hashes.
fn record(text: &str) -> Result<(Box<Record>, Option<String>), String> {
    let mut record: Box<Record> = serde_json::from_str(text).map_err(not_ours)?;
    let Beside { body, exact_data, keyed_by } = serde_json::from_str(text).map_err(not_ours)?;
    if let Some(encoded) = body {
        let body = data_encoding::BASE64.decode(encoded.as_bytes());
        let body = body.map_err(|error| format!("its body is not base64: {error}"))?;
        let Some(outcome) = &mut record.outcome else { return Err("has a body but no outcome".to_owned()) };
        outcome.body = Some(body.into());
    }
    if let Some(encoded) = exact_data {
        let exact = exact_data_of(&record, &encoded).ok_or("its exact_data is not the same as its data")?;
        record.outcome.iter_mut().for_each(|outcome| outcome.data = Some(Arc::clone(&exact)));
    }
    Ok((record, keyed_by))
}

fn not_ours(error: serde_json::Error) -> String {
    format!("is not an operation that `once export` wrote: {}", one_line(&error.to_string()))
}

/// A result as it was stored, of which the line holds the same data with hidden characters escaped.
fn exact_data_of(record: &Record, encoded: &str) -> Option<Arc<RawValue>> {
    let shown = record.outcome.as_ref()?.data.as_ref()?;
    let exact = String::from_utf8(data_encoding::BASE64.decode(encoded.as_bytes()).ok()?).ok()?;
    let exact = RawValue::from_string(exact).ok()?;
    (text::json(exact.get()) == shown.get()).then(|| Arc::from(exact))
}
