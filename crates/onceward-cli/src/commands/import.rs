//! `once import`: takes in what `once export` wrote.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::ExitCode;

use futures_util::stream::{FuturesUnordered, StreamExt};
use onceward::{Adopted, Error, Ledger, OperationId, Record};
use serde::{Deserialize, Serialize};

use super::export::End;
use crate::answer;
use crate::cli::ImportArgs;
use crate::context::{Context, Missing};
use crate::exit::{CommandError, Ended};

/// How many records are on their way at once: they share round trips and syncs.
const IN_FLIGHT: usize = 256;
/// How many operations that differ are named.
const NAMED: usize = 20;
/// After how many lines the progress is shown anew.
const SHOW_EVERY: u64 = 1_000;

#[derive(Default, Serialize)]
struct Imported {
    imported: u64,
    already_there: u64,
    differing: u64,
    /// The first of those that differ: they were left as they are here.
    differ: Vec<OperationId>,
}

#[derive(Deserialize)]
struct Body {
    body: Option<String>,
    #[serde(default)]
    without_body: bool,
}

/// A line of an export.
enum Line {
    Record(Box<Record>),
    End(End),
}

pub(super) fn run(context: &Context, args: &ImportArgs) -> Ended {
    let mut source = Source::open(args)?;
    if args.dry.dry_run {
        return rehearse(context, &mut source);
    }
    let ledger = Ledger::new(context.store(Missing::Make)?);
    let mut imported = Imported::default();
    let result = ledger.blocking().wait_for(take_in(&ledger, &mut source, &mut imported));
    answer::progress_over();
    if let Err(error) = result {
        return cut_off(context, &error, &imported);
    }
    let effect = if imported.imported == 0 { "noop" } else { "created" };
    let text = || {
        format!(
            "{} operations imported, {} were there already, {} differ{}",
            imported.imported,
            imported.already_there,
            imported.differing,
            if imported.differing == 0 { "" } else { " and were left as they are here" }
        )
    };
    if imported.differing == 0 {
        answer::success(context.global.json, effect, &imported, text);
        return Ok(ExitCode::SUCCESS);
    }
    let problem = format!("{} operations differ from those that are here", imported.differing);
    answer::incomplete(context.global.json, effect, problem, &imported, text);
    Ok(ExitCode::from(onceward::Code::KeyReused.exit()))
}

/// Says how far an import came that did not come to its end. What was taken in stays, and a second import goes on from
/// there.
fn cut_off(context: &Context, error: &CommandError, imported: &Imported) -> Ended {
    let Imported { imported: new, already_there, .. } = imported;
    let problem = format!(
        "{error}; {new} operations were imported before that and {already_there} were there already. Import the whole \
         export to go on"
    );
    if context.global.json {
        let effect = if *new == 0 { "noop" } else { "created" };
        answer::incomplete(true, effect, problem, imported, String::new);
    } else {
        answer::talk(&format!("once: {problem}"));
    }
    Ok(ExitCode::from(error.exit()))
}

/// Reads all of it and writes nothing.
fn rehearse(context: &Context, source: &mut Source) -> Ended {
    let mut would = Imported::default();
    while let Some(_record) = source.next_record()? {
        would.imported += 1;
    }
    answer::progress_over();
    let effect = if would.imported == 0 { "would_noop" } else { "would_create" };
    answer::success(context.global.json, effect, &would, || {
        format!("{effect}: {} operations would be imported where they are not there yet", would.imported)
    });
    Ok(ExitCode::SUCCESS)
}

async fn take_in(ledger: &Ledger, source: &mut Source, imported: &mut Imported) -> Result<(), CommandError> {
    let mut under_way = FuturesUnordered::new();
    // How the reading ended; what is on its way then still arrives.
    let mut ended = None;
    loop {
        while ended.is_none() && under_way.len() < IN_FLIGHT {
            match source.next_record() {
                Ok(Some(record)) => under_way.push(adopt(ledger, record)),
                Ok(None) => ended = Some(Ok(())),
                Err(error) => ended = Some(Err(error)),
            }
        }
        let Some(adopted) = under_way.next().await else { return ended.unwrap_or(Ok(())) };
        match adopted {
            // Those that are on their way still arrive, so that what is told is what was done.
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

impl Imported {
    fn note(&mut self, adopted: Adopted) {
        let imported = self;
        match adopted {
            Adopted::Taken => imported.imported += 1,
            Adopted::AlreadyThere => imported.already_there += 1,
            Adopted::Differs(found) => {
                imported.differing += 1;
                if imported.differ.len() < NAMED {
                    imported.differ.push(found.id.clone());
                }
            }
        }
    }
}

async fn adopt(ledger: &Ledger, record: Box<Record>) -> Result<Adopted, Error> {
    ledger.adopt(*record).await
}

/// The lines of an export, counted.
struct Source {
    lines: Box<dyn BufRead>,
    bytes: Option<u64>,
    read_bytes: u64,
    number: u64,
    ended: bool,
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
        Ok(Self { lines, bytes, read_bytes: 0, number: 0, ended: false })
    }

    /// The next record; `None` after the last one. An export that was cut off is an error.
    fn next_record(&mut self) -> Result<Option<Box<Record>>, CommandError> {
        let mut text = String::new();
        let read = self.lines.read_line(&mut text);
        let read = read.map_err(|error| {
            CommandError::Outside(format!("line {}: cannot be read: {error}", self.number + 1))
        })?;
        if read == 0 {
            if self.ended {
                return Ok(None);
            }
            return Err(CommandError::Outside(format!(
                "the export was cut off after line {}: its last line is missing",
                self.number
            )));
        }
        self.read_bytes += read as u64;
        let wrong = |number: u64, problem: String| CommandError::Outside(format!("line {number}: {problem}"));
        match parse(&text).map_err(|problem| wrong(self.number + 1, problem))? {
            Line::Record(_) if self.ended => Err(wrong(self.number + 1, "stands after the end".to_owned())),
            Line::Record(record) => {
                self.number += 1;
                self.show();
                Ok(Some(record))
            }
            Line::End(end) if end.exported != self.number => {
                let problem = format!("{} operations were exported, {} are here", end.exported, self.number);
                Err(wrong(self.number + 1, problem))
            }
            Line::End(_) => {
                self.ended = true;
                self.next_record()
            }
        }
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

fn parse(text: &str) -> Result<Line, String> {
    if let Ok(end) = serde_json::from_str::<End>(text) {
        return Ok(Line::End(end));
    }
    let not_ours =
        |error: serde_json::Error| format!("is not an operation that `once export` wrote: {error}");
    let mut record: Box<Record> = serde_json::from_str(text).map_err(not_ours)?;
    let Body { body, without_body } = serde_json::from_str(text).map_err(not_ours)?;
    if without_body {
        let problem = "was exported with --no-bodies, so its stored output is missing and could not be replayed; \
                       export without --no-bodies to import";
        return Err(problem.to_owned());
    }
    if let Some(encoded) = body {
        let body = data_encoding::BASE64.decode(encoded.as_bytes());
        let body = body.map_err(|error| format!("its body is not base64: {error}"))?;
        let Some(outcome) = &mut record.outcome else { return Err("has a body and no outcome".to_owned()) };
        outcome.body = Some(body.into());
    }
    Ok(Line::Record(record))
}
