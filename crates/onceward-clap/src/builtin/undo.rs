//! `TOOL undo`: takes back what commands of this tool did.

use std::sync::{Arc, Mutex};

use clap::Args;
use onceward::{
    Answer, Blocking, CompensationKind, EffectNow, Error, ErrorView, Inherit, OperationId, ProgramUndo,
    Reversal, ToUndo, UndoLine, UndoOutcome, UndoReport, UndoResult, UndoStart, Undoing,
};

use crate::call::{Driven, drive, in_world};
use crate::command::World;
use crate::envelope::{Envelope, raw};
use crate::facts::Undoable;
use crate::op::Applied;
use crate::session::Session;
use crate::supervisor::{Stop, lock};
use crate::undo::stored;

/// What is typed after `undo`.
#[derive(Debug, Args)]
pub(crate) struct UndoArgs {
    /// The operation (op_…)
    #[arg(value_name = "OPERATION", required_unless_present = "scope", conflicts_with = "scope")]
    operation: Option<String>,
    /// Take back everything that this tool did in a scope, the last one first
    #[arg(long, value_name = "SCOPE")]
    scope: Option<String>,
    /// Show what would be taken back and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// What would be done about an operation.
enum Action<W> {
    /// Run this compensation.
    Run(Undoable<W>),
    /// Its compensation is done already: only record it.
    Finish,
    /// Nothing, for this reason.
    Leave(String),
}

struct Planned<W> {
    found: ToUndo,
    action: Action<W>,
}

pub(super) fn undo<W: World>(session: &Session<W>, args: &UndoArgs, undoables: &[Undoable<W>]) -> Envelope {
    try_undo(session, args, undoables).unwrap_or_else(|error| Envelope::not_done(&error, &session.surface))
}

fn try_undo<W: World>(
    session: &Session<W>,
    args: &UndoArgs,
    undoables: &[Undoable<W>],
) -> Result<Envelope, Error> {
    let one = args.operation.as_deref().map(OperationId::parse).transpose()?;
    let (ledger, found) = match (session.existing_ledger()?, &one) {
        (Some(ledger), Some(id)) => {
            let found = ledger.undo().of(id)?;
            (ledger, vec![found])
        }
        (Some(ledger), None) => {
            let found = ledger.undo().of_scope(args.scope.as_deref().unwrap_or_default(), None)?;
            (ledger, found)
        }
        (None, Some(id)) => return Err(Error::NotFound { id: id.to_string() }),
        (None, None) => return Ok(answer(&UndoReport::new(args.scope.clone(), Vec::new()), "noop")),
    };
    let own = stored(session.tool, &session.place);
    let plan: Vec<Planned<W>> = found
        .into_iter()
        .map(|found| Planned { action: action(session, &found, &own, undoables), found })
        .collect();
    if args.dry_run {
        let report = UndoReport::new(args.scope.clone(), plan.iter().map(Planned::preview).collect());
        let effect = report.would_effect();
        return Ok(shown(Envelope::success(effect), &report));
    }
    let undoer = Undoer { session, ledger: &ledger, scope: args.scope.clone(), plan: &plan };
    undoer.run()
}

/// Decides what this tool does about an operation. Pure.
fn action<W: World>(
    session: &Session<W>,
    found: &ToUndo,
    own: &ProgramUndo,
    undoables: &[Undoable<W>],
) -> Action<W> {
    let record = &found.record;
    match (found.reversal, found.reversal.why_left()) {
        (Reversal::InDoubt, _) => {
            let why = "it may have happened: settle it first, or make the same call again if the command has a probe";
            return Action::Leave(why.to_owned());
        }
        (Reversal::Held, _) => return Action::Leave(session.surface.held_in_undo(&record.id)),
        (_, Some(why)) => return Action::Leave(why.to_owned()),
        (_, None) if found.compensated => return Action::Finish,
        (_, None) => {}
    }
    let Some(undo) = &record.detail.undo else {
        return Action::Leave("an undo with another program has begun; finish it there".to_owned());
    };
    if let Some(error) = Error::of_result(record) {
        return Action::Leave(error.to_string());
    }
    let registered = ProgramUndo::parse(&undo.text).filter(|_| undo.runs == CompensationKind::Program);
    match registered {
        Some(registered) if registered.program == own.program && registered.world == own.world => {
            let found = undoables.iter().find(|undoable| undoable.operation == record.name);
            found.map_or_else(
                || Action::Leave(format!("this version of {} cannot take it back", own.program)),
                |undoable| Action::Run(undoable.clone()),
            )
        }
        Some(registered) if registered.program == own.program => {
            let why = "it changed another world: give the options with which the command was called";
            Action::Leave(why.to_owned())
        }
        Some(_) | None => Action::Leave(undo.taken_back_by(&record.id)),
    }
}

impl<W> Planned<W> {
    fn left(&self, why: &str) -> UndoLine {
        UndoLine::untouched(&self.found.record, self.found.reversal, why)
    }

    fn preview(&self) -> UndoLine {
        match &self.action {
            Action::Run(_) | Action::Finish => {
                UndoLine::new(&self.found.record, self.found.reversal, UndoResult::WouldUndo, None)
            }
            Action::Leave(why) => self.left(why),
        }
    }
}

struct Undoer<'a, W: World> {
    session: &'a Session<W>,
    ledger: &'a Blocking,
    scope: Option<String>,
    plan: &'a [Planned<W>],
}

impl<W: World> Undoer<'_, W> {
    fn run(&self) -> Result<Envelope, Error> {
        let lines = Mutex::new(Vec::new());
        for planned in self.plan {
            if self.session.supervisor.stopped().is_some() {
                break;
            }
            let line = self.take_back(planned, &lines)?;
            lock(&lines).push(line);
        }
        let report = self.report(&lines);
        let envelope = answer(&report, report.effect());
        let exit = self.session.supervisor.stopped().map_or(envelope.exit, Stop::exit);
        Ok(Envelope { exit, ..envelope })
    }

    /// What was done, and what was not begun.
    fn report(&self, lines: &Mutex<Vec<UndoLine>>) -> UndoReport {
        let mut lines = lock(lines).clone();
        let rest = self.plan.iter().skip(lines.len());
        lines.extend(rest.map(|planned| planned.left("not begun: interrupted")));
        UndoReport::new(self.scope.clone(), lines)
    }

    fn take_back(&self, planned: &Planned<W>, lines: &Mutex<Vec<UndoLine>>) -> Result<UndoLine, Error> {
        let undoable = match &planned.action {
            Action::Leave(why) => return Ok(planned.left(why)),
            Action::Run(undoable) => Some(undoable),
            Action::Finish => None,
        };
        let operation = onceward::Operation::undo_of(&planned.found.record);
        let rules = self.session.undo_rules(operation.name(), undoable)?;
        let terms = rules.settings.terms.clone();
        let undoing = match self.ledger.undo().start(&planned.found, operation.terms(terms))? {
            UndoStart::Begun(undoing) => undoing,
            UndoStart::Changed(line) => return Ok(line),
        };
        let result = self.compensate(planned, undoable, &undoing, rules.timeout_ms, lines);
        if let Err(error @ Error::Unavailable(_)) = result {
            return Err(error);
        }
        let outcome = UndoOutcome::of(result.as_ref().map(|_| ()), &EffectNow::NotAsked);
        self.ledger.undo().finish(&planned.found, &undoing, outcome)
    }

    fn compensate(
        &self,
        planned: &Planned<W>,
        undoable: Option<&Undoable<W>>,
        undoing: &Undoing,
        timeout_ms: u64,
        lines: &Mutex<Vec<UndoLine>>,
    ) -> Result<onceward::Receipt, Error> {
        let intent = &undoing.intent;
        let call = self.ledger.call(intent.clone()).inherit(Inherit::Children);
        // The process ends with the work, so this is the last chance to answer.
        let unfinished = |intent: &onceward::Intent, _: u32, stop: Stop| {
            let reason = format!("{stop} after the request was sent; it may or may not have been taken back");
            let line =
                UndoLine::new(&undoing.record, planned.found.reversal, UndoResult::InDoubt, Some(reason));
            lock(lines).push(UndoLine { by: Some(intent.id.to_string()), ..line });
            let report = self.report(lines);
            self.session.output.answer(&answer(&report, report.effect()));
            stop.exit()
        };
        let driven =
            Driven { session: self.session, ledger: self.ledger, timeout_ms, unfinished: &unfinished };
        let executed = drive(&driven, call, intent, |attempt, gate| {
            let record = Arc::clone(&undoing.record);
            let undo = undoable.map(|undoable| undoable.undo);
            in_world(self.session, attempt, gate, move |op| match undo {
                Some(undo) => undo.take_back(&record, op).map(Applied::done),
                None => Err(crate::Fault::no_effect("only an earlier run of this compensation counts")),
            })
        });
        executed.result
    }
}

fn answer(report: &UndoReport, effect: &'static str) -> Envelope {
    let envelope = match report.problem() {
        None => Envelope::success(effect),
        Some((code, problem)) => {
            let error = Some(ErrorView::new(code.as_str(), problem));
            Envelope::new(Answer { ok: false, error, ..Answer::plain(effect) }, code.exit())
        }
    };
    shown(envelope, report)
}

/// The answer with the report: as data for programs, in lines for people.
fn shown(envelope: Envelope, report: &UndoReport) -> Envelope {
    let lines = std::iter::once(report.counts()).chain(report.lines()).collect();
    let answer = Answer { data: raw(report), ..envelope.answer };
    Envelope { answer, lines: Some(lines), ..envelope }
}
