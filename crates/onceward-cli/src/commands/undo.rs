//! `once undo`: takes back what an operation or a whole scope did.

mod plan;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use onceward::text::one_line;
use onceward::{
    Blocking, Decision, EffectNow, Error, Happened, Operation, ProbeAnswer, Ran, Receipt, Record, ToUndo,
    UndoLine, UndoOutcome, UndoReport, UndoResult, UndoStart,
};
use onceward_mcp::UndoCall;

use self::plan::{Action, Planned, Planner};
use super::ask::{self, Question};
use super::mcp::ToolServer;
use super::run::compensate::{Compensate, Interrupted};
use super::settle;
use crate::answer;
use crate::cli::UndoArgs;
use crate::context::Context;
use crate::environment::PassLedger;
use crate::exit::{CommandError, Ended};
use crate::style::{BOLD, styled};

pub(super) fn run(context: &Context, args: &UndoArgs) -> Ended {
    let ledger = plan::ledger(context)?;
    let server = ToolServer::of(context, &ledger, args)?;
    let planner = Planner { context, ledger: &ledger, args, server: server.as_ref() };
    let plan = planner.plan()?;
    let json = context.global.json;
    let scope = args.scope.clone().filter(|_| args.operation.is_none());
    if args.dry.dry_run {
        let report = UndoReport::new(scope, plan.iter().map(Planned::preview).collect());
        let effect = report.would_effect();
        answer::success(json, effect, &report, || format!("{effect}: {}", text(&report)));
        return Ok(ExitCode::SUCCESS);
    }
    let undo = Undoer { context, ledger: &ledger, planner };
    let mut lines = Vec::new();
    let mut interrupted = Interrupted::No;
    for planned in plan {
        if interrupted == Interrupted::Yes {
            lines.push(planned.left("not begun: interrupted"));
            continue;
        }
        let (line, stop) = undo.take_back(planned)?;
        interrupted = stop;
        lines.push(line);
    }
    Ok(finish(&UndoReport::new(scope, lines), json))
}

/// Prints the result. Exit 0 only if nothing stands and nothing is in doubt.
fn finish(report: &UndoReport, json: bool) -> ExitCode {
    let shown = || text(report);
    let Some((code, problem)) = report.problem() else {
        answer::success(json, report.effect(), report, shown);
        return ExitCode::SUCCESS;
    };
    answer::partial(json, report.effect(), (code, problem), report, shown);
    ExitCode::from(code.exit())
}

/// The report as lines.
fn text(report: &UndoReport) -> String {
    let of = match &report.scope {
        Some(scope) => format!("scope {}: ", styled(BOLD, one_line(scope))),
        None => String::new(),
    };
    let lines = report.lines();
    std::iter::once(format!("{of}{}", report.counts())).chain(lines).collect::<Vec<_>>().join("\n")
}

/// Says what begins now to take an operation back, unless the answer is for a program.
fn announce(json: bool, does: &str, what: &str, record: &Record) {
    if !json {
        let (what, name) = (one_line(what), one_line(&record.name));
        answer::talk(&format!("once: {does} `{what}` to take back {name} {}", record.id));
    }
}

/// The command of the compensation that decided: the own one, or that of another undo, if it is stored.
fn what_ran(result: &Result<Receipt, Error>, own: Option<String>) -> Option<String> {
    let (ran, happened, record) = match result {
        Ok(receipt) => (receipt.ran(), Some(Happened::Yes), Some(receipt.record())),
        Err(error) => (error.ran(), error.happened(), error.record()),
    };
    match (ran, happened, record) {
        (Ran::Yes, _, _) | (Ran::No, Some(Happened::No) | None, _) | (Ran::No, _, None) => own,
        (Ran::No, Some(Happened::Yes | Happened::Unknown), Some(record)) => record.detail.command.clone(),
    }
}

/// Takes operations back.
struct Undoer<'a> {
    context: &'a Context,
    ledger: &'a Blocking,
    planner: Planner<'a>,
}

impl Undoer<'_> {
    fn take_back(&self, planned: Planned) -> Result<(UndoLine, Interrupted), CommandError> {
        let command = match &planned.action {
            Action::Leave(why) => return Ok((planned.left(why), Interrupted::No)),
            Action::Ask(question) => {
                let question = question.clone();
                return self.ask_first(planned, &question);
            }
            Action::Call(call) => return Ok((self.call(&planned, call)?, Interrupted::No)),
            Action::Run(command) => Some(command.clone()),
            Action::Finish => None,
        };
        self.compensate(&planned.found, command.as_deref())
    }

    /// Settles a doubt with its probe, then takes the operation back if it has happened.
    fn ask_first(
        &self,
        planned: Planned,
        question: &Question,
    ) -> Result<(UndoLine, Interrupted), CommandError> {
        let ToUndo { record, state, .. } = &planned.found;
        let settled = settle::by_question(self.context, self.ledger, record, *state, question);
        let record = match settled {
            Ok(record) => record,
            Err(CommandError::Ledger(error @ (Error::InDoubt { .. } | Error::WrongState { .. }))) => {
                return Ok((planned.line(UndoResult::InDoubt, Some(error.to_string())), Interrupted::No));
            }
            Err(error) => return Err(error),
        };
        let next = self.planner.planned(self.ledger.undo().of(&record.id)?)?;
        match next.action {
            // It was settled, so it is not asked again.
            Action::Ask(_) => Ok((next.line(UndoResult::InDoubt, None), Interrupted::No)),
            Action::Run(_) | Action::Call(_) | Action::Finish | Action::Leave(_) => self.take_back(next),
        }
    }

    /// Takes an operation back with a tool of its MCP server.
    fn call(&self, planned: &Planned, call: &UndoCall) -> Result<UndoLine, CommandError> {
        let found = &planned.found;
        let Some(server) = self.planner.server else { return Ok(planned.left("no server was given")) };
        let rules = match server.rules(&call.tool) {
            Ok(rules) => rules,
            Err(CommandError::Ledger(Error::Invalid(invalid))) => {
                return Ok(planned.left(&invalid.to_string()));
            }
            Err(error) => return Err(error),
        };
        let operation = Operation::undo_of(&found.record).terms(rules.settings.terms.clone());
        let undoing = match self.ledger.undo().start(found, operation)? {
            UndoStart::Begun(undoing) => undoing,
            UndoStart::Changed(line) => return Ok(line),
        };
        if matches!(self.ledger.plan(&undoing.intent)?.decision, Decision::Start { .. }) {
            announce(self.context.global.json, "calling", &plan::in_words(call), &found.record);
        }
        let result = match server.compensate(undoing.intent.clone(), call, &rules) {
            Ok(receipt) => Ok(receipt),
            Err(CommandError::Ledger(error)) if !matches!(error, Error::Unavailable(_)) => Err(error),
            Err(error) => return Err(error),
        };
        let outcome = UndoOutcome::of(result.as_ref().map(|_| ()), &EffectNow::NotAsked);
        let line = self.ledger.undo().finish(found, &undoing, outcome)?;
        Ok(line.with_command(what_ran(&result, Some(plan::in_words(call)))))
    }

    fn compensate(
        &self,
        found: &ToUndo,
        command: Option<&str>,
    ) -> Result<(UndoLine, Interrupted), CommandError> {
        let record = &found.record;
        let operation = Operation::undo_of(record);
        let settings = self.context.policy.settings(operation.name())?;
        let operation = operation
            .terms(settings.terms.clone())
            .probe_command(settings.probe.clone())
            .probe_no(settings.probe_no.clone())
            .folder(record.detail.folder.clone())
            .command_line(command.filter(|_| settings.store_command).map(str::to_owned));
        let undoing = match self.ledger.undo().start(found, operation)? {
            UndoStart::Begun(undoing) => undoing,
            UndoStart::Changed(line) => return Ok((line, Interrupted::No)),
        };
        let probe = self.planner.probe(record);
        let question = probe.as_ref().ok().and_then(Option::as_ref);
        let json = self.context.global.json;
        let compensate = Compensate {
            context: self.context,
            ledger: self.ledger,
            settings: &settings,
            command,
            probe: question,
            begins: &|| announce(json, "running", command.unwrap_or_default(), record),
        };
        let (result, interrupted) = compensate.run(&undoing);
        if let Err(error @ Error::Unavailable(_)) = result {
            return Err(error.into());
        }
        let had_no_effect = result.as_ref().is_err_and(|error| error.happened() == Some(Happened::No));
        let now = match (&probe, interrupted) {
            (_, _) if had_no_effect => EffectNow::NotAsked,
            (Err(why), _) => EffectNow::CannotTell(why.clone()),
            (Ok(None), _) => EffectNow::NotAsked,
            (Ok(Some(_)), Interrupted::Yes) => EffectNow::CannotTell("the undo was interrupted".to_owned()),
            (Ok(Some(question)), Interrupted::No) => self.effect_now(question, record)?,
        };
        let outcome = UndoOutcome::of(result.as_ref().map(|_| ()), &now);
        let line = self.ledger.undo().finish(found, &undoing, outcome)?;
        Ok((line.with_command(what_ran(&result, command.map(str::to_owned))), interrupted))
    }

    /// Asks the operation's probe whether the effect is gone. It may take a moment to be gone, so the question is
    /// repeated like a check.
    fn effect_now(&self, question: &Question, record: &Record) -> Result<EffectNow, CommandError> {
        let terms = self.context.policy.settings(&record.name)?.terms;
        let deadline = Instant::now() + Duration::from_millis(terms.verify_deadline_ms);
        let environment = self.context.environment(PassLedger::No);
        loop {
            let now = match ask::probe(question, record, &environment) {
                ProbeAnswer::No => return Ok(EffectNow::Gone),
                ProbeAnswer::Yes(_) => EffectNow::StillThere,
                ProbeAnswer::CannotTell(why) => EffectNow::CannotTell(why),
            };
            if Instant::now() >= deadline {
                return Ok(now);
            }
            std::thread::sleep(Duration::from_millis(terms.verify_interval_ms));
        }
    }
}
