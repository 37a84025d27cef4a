//! A command for many items: one line and one operation for each, a summary, and a second run that goes on.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use onceward::answer::OperationView;
use onceward::{Blocking, Error, Happened, Intent, KeyPolicy, Operation};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::call::{class_of, execute, preview, supervise_read};
use crate::command::{Batch, Mutating, Ordinary, World};
use crate::envelope::{Envelope, ErrorBody};
use crate::flags::MutatingFlags;
use crate::referee::{Stop, lock};
use crate::session::{Rules, Session, quoted};
use crate::text::{effect_style, styled};
use crate::voice::Voice;

/// How many items one run takes.
pub(crate) const MAX_ITEMS: usize = 100_000;

type WorldOf<C> = <<C as Batch>::Item as Mutating>::World;

/// Runs a batch, prints its lines, and gives its exit code.
pub(crate) fn run<C: Batch>(session: &Session<WorldOf<C>>, command: C, flags: &MutatingFlags) -> u8 {
    let progress = Arc::new(Mutex::new(Progress::default()));
    let (voice, said) = (session.voice.clone(), Arc::clone(&progress));
    session.referee.last_words(move |stop| {
        let progress = lock(&said);
        let envelope = progress.stopped(stop);
        say(&voice, envelope.clone(), &progress);
        std::process::exit(i32::from(envelope.exit));
    });
    let ended = try_run(session, Arc::new(command), flags, &progress);
    let stopped = session.referee.stopped();
    let progress = lock(&progress);
    let envelope = match (ended, stopped) {
        (Err(envelope), _) => *envelope,
        (Ok(()), Some(stop)) => progress.stopped(stop),
        (Ok(()), None) if progress.is_whole() => progress.whole(),
        (Ok(()), None) => progress.partial(session.tool),
    };
    let envelope = session.finish(envelope);
    let exit = envelope.exit;
    say(&session.voice, envelope, &progress);
    exit
}

/// Ends the stream: with its summary where all is well, else with the error; or with one answer that holds all lines.
fn say(voice: &Voice, mut envelope: Envelope, progress: &Progress) {
    if let Some(items) = voice.held_lines() {
        #[derive(Serialize)]
        struct Whole<'a> {
            partial: bool,
            summary: Counts,
            effects: &'a BTreeMap<&'static str, usize>,
            items: Vec<Box<RawValue>>,
        }
        let (partial, effects) = (!envelope.ok, &progress.effects);
        let whole = Whole { partial, summary: progress.counts(), effects, items };
        envelope.data = serde_json::value::to_raw_value(&whole).ok();
    } else if envelope.ok {
        progress.summary(voice);
        return;
    }
    voice.end(&envelope, Some(progress.lines));
}

fn try_run<C: Batch>(
    session: &Session<WorldOf<C>>,
    command: Arc<C>,
    flags: &MutatingFlags,
    progress: &Arc<Mutex<Progress>>,
) -> Result<(), Box<Envelope>> {
    let refuse = |error: Error| Box::new(session.failed(error));
    let class = class_of::<C::Item, Ordinary>();
    let mut rules =
        session.rules(C::NAME, class, <C::Item as Mutating>::TIMEOUT_MS, flags).map_err(refuse)?;
    let whole = session.operation(C::NAME, &*command, flags, &rules.settings).map_err(refuse)?;
    let batch_key = whole.intent().map_err(refuse)?.key.text;
    // The batch has its key; those of its items follow from it.
    rules.settings.terms.keys = KeyPolicy::Strict;
    rules.settings.key_fields.clear();
    let items = items_of(session, &command, rules.timeout_ms)?;
    lock(progress).total = items.len();
    let operations = operations::<C>(session, &items, &batch_key, flags, &rules).map_err(refuse)?;
    let mut ledger = None;
    for (item, operation) in items.into_iter().zip(operations) {
        if session.referee.stopped().is_some() {
            return Ok(());
        }
        session.referee.idle();
        let line = if flags.dry_run {
            let intent = operation.intent().map_err(refuse)?;
            preview::<C::Item, Ordinary>(session, &Arc::new(item), &intent, &rules).map_err(refuse)?
        } else {
            let ledger = match &ledger {
                Some(ledger) => ledger,
                None => ledger.insert(session.ledger(onceward::Missing::Make).map_err(refuse)?),
            };
            one::<C>(session, ledger, item, operation, &rules, progress).map_err(refuse)?
        };
        // An item that a signal stopped before its dispatch has not happened: the next run begins with it.
        if line.exit > 128 {
            return Ok(());
        }
        progress_line(session, progress, line);
    }
    Ok(())
}

/// Lists the items, in a world that is open for reading only.
fn items_of<C: Batch>(
    session: &Session<WorldOf<C>>,
    command: &Arc<C>,
    timeout_ms: u64,
) -> Result<Vec<C::Item>, Box<Envelope>> {
    let (command, options) = (Arc::clone(command), session.options.clone());
    let items = supervise_read(session, timeout_ms, move || {
        let world = WorldOf::<C>::open_read_only(&options)?;
        command.items(&world)
    })?;
    if items.len() > MAX_ITEMS {
        let problem =
            format!("{} items are more than the {MAX_ITEMS} that one run takes; split them", items.len());
        return Err(Box::new(Envelope::invalid(problem)));
    }
    Ok(items)
}

/// The operation of each item: its key is made of the batch's key and the item, and of how many equal ones came before.
fn operations<C: Batch>(
    session: &Session<WorldOf<C>>,
    items: &[C::Item],
    batch_key: &str,
    flags: &MutatingFlags,
    rules: &Rules,
) -> Result<Vec<Operation>, Error> {
    #[derive(Serialize)]
    struct Input<'a, I> {
        place: &'a str,
        batch: &'a str,
        arguments: &'a I,
    }
    let mut seen: HashMap<String, u32> = HashMap::new();
    let mut operations = Vec::with_capacity(items.len());
    for item in items {
        let input = Input { place: &session.place, batch: batch_key, arguments: item };
        let input = serde_json::to_string(&input).map_err(|error| {
            onceward::InvalidInput::new(format!("an item cannot be written as JSON: {error}"))
        })?;
        let occurrence = seen.entry(input.clone()).and_modify(|count| *count += 1).or_insert(1);
        let operation = session.bare_operation(C::NAME, &input, flags, &rules.settings);
        let operation = operation.occurrence(occurrence.to_string());
        let _checked: Intent = operation.intent()?;
        operations.push(operation);
    }
    Ok(operations)
}

/// Executes one item. Only a ledger that cannot be used stops the batch.
fn one<C: Batch>(
    session: &Session<WorldOf<C>>,
    ledger: &Blocking,
    item: C::Item,
    operation: Operation,
    rules: &Rules,
    progress: &Arc<Mutex<Progress>>,
) -> Result<Envelope, Error> {
    let unfinished = |view: OperationView, stop: Stop| {
        let mut progress = lock(progress);
        let doubt = crate::envelope::in_doubt(view, stop, session.tool);
        progress.note(&doubt);
        session.voice.line(&Line::of(progress.lines, &doubt), || line_text(&doubt));
        let envelope = session.finish(match stop {
            Stop::Signal(_) => progress.stopped(stop),
            Stop::Timeout { .. } => progress.partial(session.tool),
        });
        let exit = envelope.exit;
        say(&session.voice, envelope, &progress);
        exit
    };
    let item = Arc::new(item);
    let executed =
        execute::<C::Item, Ordinary>(session, ledger, &item, operation, rules.timeout_ms, &unfinished);
    if let Err(error @ Error::Unavailable(_)) = executed.result {
        return Err(error);
    }
    let envelope = Envelope::of(&executed.result, ledger.ledger().clock_ms(), session.tool);
    Ok(match executed.stopped {
        Some(stop) => Envelope { operation: envelope.operation, ..Envelope::stopped(stop) },
        None => envelope,
    })
}

fn progress_line<W: World>(session: &Session<W>, progress: &Mutex<Progress>, envelope: Envelope) {
    let envelope = session.finish(envelope);
    let mut progress = lock(progress);
    progress.note(&envelope);
    session.voice.line(&Line::of(progress.lines, &envelope), || line_text(&envelope));
}

fn line_text(envelope: &Envelope) -> String {
    let effect = styled(effect_style(envelope.effect), envelope.effect);
    let told = match &envelope.error {
        Some(error) => format!("{} {}", error.code, error.message),
        None if !envelope.changes.is_empty() => envelope.changes.join(", "),
        None => envelope.data.as_ref().map(|data| data.get().to_owned()).unwrap_or_default(),
    };
    format!("{effect} {told}")
}

/// One item's line. A failure is not called `error`, which would end the stream for its readers.
#[derive(Serialize)]
struct Line<'a> {
    _seq: u64,
    effect: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    changes: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<&'a OperationView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'a ErrorBody>,
}

impl<'a> Line<'a> {
    fn of(seq: u64, envelope: &'a Envelope) -> Self {
        Self {
            _seq: seq,
            effect: envelope.effect,
            reason: envelope.reason.as_deref(),
            changes: &envelope.changes,
            operation: envelope.operation.as_ref(),
            data: envelope.data.as_deref(),
            failure: envelope.error.as_ref(),
        }
    }
}

/// How far a batch has got.
#[derive(Default)]
struct Progress {
    total: usize,
    lines: u64,
    succeeded: usize,
    failed: usize,
    in_doubt: usize,
    effects: BTreeMap<&'static str, usize>,
}

impl Progress {
    fn note(&mut self, envelope: &Envelope) {
        self.lines += 1;
        *self.effects.entry(envelope.effect).or_default() += 1;
        match &envelope.error {
            None => self.succeeded += 1,
            Some(error) if error.happened == Happened::Unknown => self.in_doubt += 1,
            Some(_) => self.failed += 1,
        }
    }

    fn is_whole(&self) -> bool {
        self.succeeded == self.total
    }

    /// What the batch as a whole did: what most of it did not do is no matter, only what any of it did.
    fn effect(&self) -> &'static str {
        let mut real = self.effects.keys().filter(|effect| !effect.ends_with("noop"));
        match (real.next(), real.next()) {
            (None, _) => self.effects.keys().next().copied().unwrap_or("noop"),
            (Some(one), None) => one,
            (Some(one), Some(_)) if one.starts_with("would_") => "would_update",
            (Some(_), Some(_)) => "updated",
        }
    }

    fn counts(&self) -> Counts {
        Counts {
            total: self.total,
            succeeded: self.succeeded,
            failed: self.failed,
            in_doubt: self.in_doubt,
            not_begun: self.total - self.succeeded - self.failed - self.in_doubt,
        }
    }

    fn whole(&self) -> Envelope {
        Envelope::success(self.effect())
    }

    fn summary(&self, voice: &Voice) {
        #[derive(Serialize)]
        struct Summary<'a> {
            _summary: bool,
            ok: bool,
            effect: &'static str,
            data: Counts,
            effects: &'a BTreeMap<&'static str, usize>,
            warnings: [&'static str; 0],
        }
        let summary = Summary {
            _summary: true,
            ok: true,
            effect: self.effect(),
            data: self.counts(),
            effects: &self.effects,
            warnings: [],
        };
        voice.line(&summary, || format!("{} items, all well: {:?}", self.total, self.effects));
    }

    /// Some items did not succeed. The same command again does what is left, and nothing twice.
    fn partial(&self, tool: &str) -> Envelope {
        let counts = self.counts();
        let message = format!(
            "{} of {} items failed, {} are in doubt, {} were not begun; what succeeded is not done again",
            counts.failed, counts.total, counts.in_doubt, counts.not_begun
        );
        let error = ErrorBody {
            code: "PARTIAL_FAILURE".to_owned(),
            happened: self.happened(),
            fix_command: Some(again(tool)),
            ..ErrorBody::certain(message)
        };
        self.ended(error, 3)
    }

    fn stopped(&self, stop: Stop) -> Envelope {
        let counts = self.counts();
        let message = format!(
            "{stop} after {} of {} items; the same command again goes on from there",
            counts.succeeded, counts.total
        );
        let error = ErrorBody {
            code: "CANCELLED".to_owned(),
            happened: self.happened(),
            ..ErrorBody::certain(message)
        };
        self.ended(error, stop.exit())
    }

    fn ended(&self, error: ErrorBody, exit: u8) -> Envelope {
        let summary = serde_json::json!({"partial": true, "summary": self.counts(), "effects": self.effects});
        Envelope {
            effect: if self.in_doubt > 0 { "unknown" } else { self.effect() },
            data: serde_json::value::to_raw_value(&summary).ok(),
            ..Envelope::error(error, exit)
        }
    }

    fn happened(&self) -> Happened {
        match (self.in_doubt, self.succeeded) {
            (0, 0) => Happened::No,
            (0, _) => Happened::Yes,
            (_, _) => Happened::Unknown,
        }
    }
}

#[derive(Serialize)]
struct Counts {
    total: usize,
    succeeded: usize,
    failed: usize,
    in_doubt: usize,
    not_begun: usize,
}

/// The command as it was typed: for a batch it is what goes on.
fn again(tool: &str) -> String {
    let typed = std::env::args().skip(1).map(|word| quoted(&word)).collect::<Vec<_>>().join(" ");
    format!("{tool} {typed}")
}
