//! A command for many items: one line and one operation for each, a summary, and a second run that resumes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use onceward::{
    Answer, Blocking, Code, Effect, Error, ErrorView, Happened, Intent, KeyPolicy, OperationView, Ran,
    RepeatRule,
};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::call::{class_of, declared, execute, preview, supervise_read};
use crate::command::{Batch, Mutating, Ordinary, World};
use crate::envelope::{Envelope, raw};
use crate::flags::MutatingFlags;
use crate::output::{CalledBy, Output};
use crate::session::{Rules, Session, quoted};
use crate::supervisor::{Stop, lock};
use crate::text::{effect_style, styled};

/// How many items one run takes.
pub(crate) const MAX_ITEMS: usize = 100_000;

type WorldOf<C> = <<C as Batch>::Item as Mutating>::World;

/// Runs a batch, prints its lines, and returns its exit code.
pub(crate) fn run<C: Batch>(session: &Session<WorldOf<C>>, command: C, flags: &MutatingFlags) -> u8 {
    let progress = Arc::new(Mutex::new(Progress::default()));
    let (output, said) = (session.output.clone(), Arc::clone(&progress));
    session.supervisor.on_idle_signal(move |stop| {
        let progress = lock(&said);
        let envelope = progress.stopped(stop);
        say(&output, envelope.clone(), &progress);
        std::process::exit(i32::from(envelope.exit));
    });
    let ended = try_run(session, Arc::new(command), flags, &progress);
    let stopped = session.supervisor.stopped();
    let progress = lock(&progress);
    let envelope = match (ended, stopped) {
        (Err(envelope), _) => *envelope,
        (Ok(()), Some(stop)) => progress.stopped(stop),
        (Ok(()), None) if progress.is_whole() => progress.whole(),
        (Ok(()), None) => progress.partial(session),
    };
    let exit = envelope.exit;
    say(&session.output, envelope, &progress);
    exit
}

/// Ends the stream with its summary or the error, or prints one answer that contains all lines.
fn say(output: &Output, mut envelope: Envelope, progress: &Progress) {
    if let Some(items) = output.held_lines() {
        #[derive(Serialize)]
        struct Whole<'a> {
            partial: bool,
            summary: Counts,
            effects: &'a BTreeMap<&'static str, usize>,
            items: Vec<Box<RawValue>>,
        }
        let (partial, effects) = (!envelope.answer.ok, &progress.effects);
        let whole = Whole { partial, summary: progress.counts(), effects, items };
        envelope.answer.data = raw(&whole);
    } else if envelope.answer.ok {
        progress.summary(output);
        return;
    }
    output.end(&envelope, Some(progress.lines));
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
    // The batch has its key; the keys of its items are derived from it.
    rules.settings.terms.keys = KeyPolicy::Strict;
    rules.settings.key_fields.clear();
    let items = items_of(session, &command, rules.timeout_ms)?;
    lock(progress).total = items.len();
    let intents = intents::<C>(session, &items, &batch_key, flags, &rules).map_err(refuse)?;
    let ledger = match flags.dry_run {
        true => session.existing_ledger().map_err(refuse)?,
        false => Some(session.ledger(onceward::IfMissing::Create).map_err(refuse)?),
    };
    for (item, intent) in items.into_iter().zip(intents) {
        let intent = match &ledger {
            Some(ledger) => ledger.keyed(intent),
            None => intent,
        };
        if session.supervisor.stopped().is_some() {
            return Ok(());
        }
        session.supervisor.idle();
        let item = Arc::new(item);
        let line = match &ledger {
            Some(ledger) if !flags.dry_run => one::<C>(session, ledger, &item, intent, &rules, progress),
            ledger => preview::<C::Item, Ordinary>(session, ledger.as_ref(), &item, &intent, &rules),
        };
        let line = line.map_err(refuse)?;
        // An item that a signal stopped before its dispatch has not happened: the next run begins with it.
        if line.exit > 128 {
            return Ok(());
        }
        progress_line(session, progress, &line);
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

/// The operation of each item: its key is derived from the batch's key, the item, and the number of equal items
/// before it.
fn intents<C: Batch>(
    session: &Session<WorldOf<C>>,
    items: &[C::Item],
    batch_key: &str,
    flags: &MutatingFlags,
    rules: &Rules,
) -> Result<Vec<Intent>, Error> {
    #[derive(Serialize)]
    struct Input<'a, I> {
        place: &'a str,
        batch: &'a str,
        arguments: &'a I,
    }
    let mut seen: HashMap<String, u32> = HashMap::new();
    let mut intents = Vec::with_capacity(items.len());
    for item in items {
        let input = Input { place: &session.place, batch: batch_key, arguments: item };
        let input = serde_json::to_string(&input).map_err(|error| {
            onceward::InvalidInput::new(format!("an item cannot be written as JSON: {error}"))
        })?;
        let occurrence = seen.entry(input.clone()).and_modify(|count| *count += 1).or_insert(1);
        let operation = session.bare_operation(C::NAME, &input, flags, &rules.settings);
        let operation = declared::<C::Item, Ordinary>(session, operation, rules);
        let operation = operation.occurrence(occurrence.to_string()).distinct();
        intents.push(operation.intent()?);
    }
    Ok(intents)
}

/// Executes one item. Only a ledger that cannot be used stops the batch.
fn one<C: Batch>(
    session: &Session<WorldOf<C>>,
    ledger: &Blocking,
    item: &Arc<C::Item>,
    intent: Intent,
    rules: &Rules,
    progress: &Arc<Mutex<Progress>>,
) -> Result<Envelope, Error> {
    let unfinished = |intent: &Intent, attempt: u32, stop: Stop| {
        let mut progress = lock(progress);
        let doubt = Envelope::in_doubt(intent, attempt, stop, &session.surface);
        progress.note(&doubt);
        session.output.line(&Line::of(progress.lines, &doubt), || line_text(&doubt));
        let envelope = match stop {
            Stop::Signal(_) => progress.stopped(stop),
            Stop::Requested | Stop::Timeout { .. } => progress.partial(session),
        };
        let exit = envelope.exit;
        say(&session.output, envelope, &progress);
        exit
    };
    let action = intent.clone();
    let executed = execute::<C::Item, Ordinary>(session, ledger, item, intent, rules.timeout_ms, &unfinished);
    if let Err(error @ Error::Unavailable(_)) = executed.result {
        return Err(error);
    }
    Ok(executed.envelope(session, ledger, &action, RepeatRule::Given))
}

fn progress_line<W: World>(session: &Session<W>, progress: &Mutex<Progress>, envelope: &Envelope) {
    let mut progress = lock(progress);
    progress.note(envelope);
    session.output.line(&Line::of(progress.lines, envelope), || line_text(envelope));
}

fn line_text(envelope: &Envelope) -> String {
    let answer = &envelope.answer;
    let effect = styled(effect_style(answer.effect), answer.effect);
    let told = match &answer.error {
        Some(error) => format!("{} {}", error.code, error.message),
        None if !envelope.changes().is_empty() => envelope.changes().join(", "),
        None => answer.data.as_ref().map(|data| data.get().to_owned()).unwrap_or_default(),
    };
    format!("{effect} {told}")
}

/// One item's line. A failure is not called `error`, which would end the stream for its readers.
#[derive(Serialize)]
struct Line<'a> {
    _seq: u64,
    effect: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    happened: Option<Happened>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ran: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    changes: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<&'a OperationView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'a ErrorView>,
}

impl<'a> Line<'a> {
    fn of(seq: u64, envelope: &'a Envelope) -> Self {
        let answer = &envelope.answer;
        Self {
            _seq: seq,
            effect: answer.effect,
            happened: answer.happened,
            ran: answer.ran,
            reason: answer.reason.as_deref(),
            changes: envelope.changes(),
            operation: answer.operation.as_ref(),
            data: answer.data.as_deref(),
            failure: answer.error.as_ref(),
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
    held: usize,
    effects: BTreeMap<&'static str, usize>,
    /// How many operations happened, and of how many it is unknown.
    happened: usize,
    unknown: usize,
    ran: bool,
    /// What to do about a stopped scope, if an item was refused because of one: the same call would be refused again.
    resume: Option<(Option<String>, Option<String>)>,
}

impl Progress {
    fn note(&mut self, envelope: &Envelope) {
        self.lines += 1;
        self.ran |= envelope.answer.ran == Some(true);
        self.happened += usize::from(envelope.answer.happened == Some(Happened::Yes));
        self.unknown += usize::from(envelope.answer.happened == Some(Happened::Unknown));
        *self.effects.entry(envelope.answer.effect).or_default() += 1;
        match &envelope.answer.error {
            None if envelope.answer.effect == Effect::Held.as_str() => self.held += 1,
            None => self.succeeded += 1,
            Some(error) if error.happened == Some(Happened::Unknown) => self.in_doubt += 1,
            Some(error) => {
                self.failed += 1;
                if error.code == Code::Stopped.as_str() {
                    self.resume.get_or_insert_with(|| (error.next.clone(), error.fix_command.clone()));
                }
            }
        }
    }

    fn is_whole(&self) -> bool {
        self.succeeded == self.total
    }

    /// The effect of the whole batch: it has one if any item has one.
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
            held: self.held,
            not_begun: self.total - self.succeeded - self.failed - self.in_doubt - self.held,
        }
    }

    fn whole(&self) -> Envelope {
        let (happened, ran) = (Some(self.happened()), Some(self.ran));
        Envelope::new(Answer { happened, ran, ..Answer::plain(self.effect()) }, 0)
    }

    fn summary(&self, output: &Output) {
        #[derive(Serialize)]
        struct Summary<'a> {
            _summary: bool,
            ok: bool,
            effect: &'static str,
            happened: Happened,
            ran: bool,
            data: Counts,
            effects: &'a BTreeMap<&'static str, usize>,
            warnings: [&'static str; 0],
        }
        let summary = Summary {
            _summary: true,
            ok: true,
            effect: self.effect(),
            happened: self.happened(),
            ran: self.ran,
            data: self.counts(),
            effects: &self.effects,
            warnings: [],
        };
        output.line(&summary, || format!("{} items, all well: {:?}", self.total, self.effects));
    }

    /// Some items did not succeed. The same command again does what is left, and nothing twice.
    fn partial<W: World>(&self, session: &Session<W>) -> Envelope {
        let counts = self.counts();
        let message = format!(
            "{} of {} items failed, {} are in doubt, {} are held back, {} were not begun",
            counts.failed, counts.total, counts.in_doubt, counts.held, counts.not_begun
        );
        let (next, fix_command) = self.resume.clone().unwrap_or_else(|| {
            let fix_command = match session.output.called_by {
                CalledBy::Shell => Some(again(session.tool)),
                CalledBy::Mcp => None,
            };
            (
                Some("make the same call again: it does what is left, and nothing twice".to_owned()),
                fix_command,
            )
        });
        let error = ErrorView {
            happened: Some(self.happened()),
            next,
            fix_command,
            ..ErrorView::new("PARTIAL_FAILURE", message)
        };
        self.ended(error, 3)
    }

    fn stopped(&self, stop: Stop) -> Envelope {
        let counts = self.counts();
        let message = format!(
            "{stop} after {} of {} items; run the same command again to continue",
            counts.succeeded, counts.total
        );
        let error = ErrorView { happened: Some(self.happened()), ..ErrorView::new("CANCELLED", message) };
        self.ended(error, stop.exit())
    }

    fn ended(&self, error: ErrorView, exit: u8) -> Envelope {
        let summary = serde_json::json!({"partial": true, "summary": self.counts(), "effects": self.effects});
        let effect = if self.effects.contains_key("unknown") { "unknown" } else { self.effect() };
        let ran = if self.ran { Ran::Yes } else { Ran::No };
        let ended = Envelope::error(error, ran, exit);
        Envelope { answer: Answer { effect, data: raw(&summary), ..ended.answer }, ..ended }
    }

    fn happened(&self) -> Happened {
        match (self.unknown, self.happened) {
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
    held: usize,
    not_begun: usize,
}

/// The command as it was typed. Running it again resumes the batch.
fn again(tool: &str) -> String {
    let typed = std::env::args().skip(1).map(|word| quoted(&word)).collect::<Vec<_>>().join(" ");
    format!("{tool} {typed}")
}
