//! `once undo`: takes back what an operation or a whole scope did.

mod plan;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onceward::text::one_line;
use onceward::{
    Blocking, Code, EffectNow, Error, Operation, ProbeAnswer, Record, Reversal, UndoEvidence, UndoOutcome,
};
use serde::Serialize;

use self::plan::{Action, Planned, Planner};
use super::ask::{self, Question};
use super::run::compensate::{Compensate, Interrupted};
use super::settle;
use crate::answer;
use crate::cli::UndoArgs;
use crate::context::Context;
use crate::environment::PassLedger;
use crate::exit::{CommandError, Ended};
use crate::style::{BOLD, styled};

/// What became of one operation.
#[derive(Serialize)]
struct Step {
    operation: String,
    name: String,
    key: String,
    /// What the plan decided: `compensate`, `irreversible`, `in_doubt`, …
    reversal: &'static str,
    result: StepResult,
    /// The command that takes it back, or the probe that is asked first.
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
    /// The operation that takes it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    /// What shows that the effect is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    evidence: Option<UndoEvidence>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// The result of an undo for one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum StepResult {
    /// Dry run: its compensation would run.
    WouldUndo,
    /// Dry run: its probe would be asked.
    WouldAsk,
    /// The effect is gone.
    Undone,
    /// There was nothing to take back.
    NothingToUndo,
    /// The effect stands.
    Stands,
    /// It is not known whether the effect is there.
    InDoubt,
}

impl StepResult {
    const ALL: [Self; 6] =
        [Self::WouldUndo, Self::WouldAsk, Self::Undone, Self::InDoubt, Self::Stands, Self::NothingToUndo];

    fn in_words(self) -> &'static str {
        match self {
            Self::WouldUndo => "would undo",
            Self::WouldAsk => "would ask",
            Self::Undone => "undone",
            Self::NothingToUndo => "nothing to undo",
            Self::Stands => "stands",
            Self::InDoubt => "in doubt",
        }
    }
}

#[derive(Serialize)]
struct Undo<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<&'a str>,
    undone: usize,
    in_doubt: usize,
    standing: usize,
    steps: &'a [Step],
}

pub(super) fn run(context: &Context, args: &UndoArgs) -> Ended {
    let ledger = plan::ledger(context)?;
    let planner = Planner { context, ledger: &ledger, args };
    let plan = planner.plan()?;
    let json = context.global.json;
    if args.dry.dry_run {
        let steps: Vec<Step> = plan.iter().map(Step::planned).collect();
        let would =
            steps.iter().any(|step| matches!(step.result, StepResult::WouldUndo | StepResult::WouldAsk));
        let effect = if would { "would_update" } else { "would_noop" };
        answer::success(json, effect, &Undo::of(args, &steps), || {
            format!("{effect}: {}", text(args, &steps))
        });
        return Ok(ExitCode::SUCCESS);
    }
    let undo = Undoer { context, ledger: &ledger, planner };
    if !json {
        plan.iter().filter_map(announcement).for_each(|line| answer::talk(&line));
    }
    let mut steps = Vec::new();
    let mut interrupted = Interrupted::No;
    for planned in plan {
        if interrupted == Interrupted::Yes {
            steps.push(Step::of(
                &planned,
                StepResult::of(planned.reversal),
                Some("not begun: interrupted".to_owned()),
            ));
            continue;
        }
        let (step, stop) = undo.take_back(planned)?;
        interrupted = stop;
        steps.push(step);
    }
    Ok(finish(args, &steps, json))
}

/// Prints the result. Exit 0 only if nothing stands and nothing is in doubt.
fn finish(args: &UndoArgs, steps: &[Step], json: bool) -> ExitCode {
    let undo = Undo::of(args, steps);
    let effect = if undo.undone > 0 { "updated" } else { "noop" };
    let shown = || text(args, steps);
    let code = match (undo.in_doubt, undo.standing) {
        (0, 0) => {
            answer::success(json, effect, &undo, shown);
            return ExitCode::SUCCESS;
        }
        (0, _) => Code::Failed,
        (_, _) => Code::InDoubt,
    };
    let problem = format!("{} not taken back, {} in doubt", undo.standing, undo.in_doubt);
    answer::partial(json, effect, (code, problem), &undo, shown);
    ExitCode::from(code.exit())
}

impl<'a> Undo<'a> {
    fn of(args: &'a UndoArgs, steps: &'a [Step]) -> Self {
        let count = |result: StepResult| steps.iter().filter(|step| step.result == result).count();
        Self {
            scope: args.scope.as_deref().filter(|_| args.operation.is_none()),
            undone: count(StepResult::Undone),
            in_doubt: count(StepResult::InDoubt),
            standing: count(StepResult::Stands),
            steps,
        }
    }
}

/// The line of the plan for an operation that will be changed.
fn announcement(planned: &Planned) -> Option<String> {
    let (id, name) = (&planned.record.id, one_line(&planned.record.name));
    let command = |command: &str| one_line(command).into_owned();
    match &planned.action {
        Action::Run(text) => Some(format!("once: will run `{}` to take back {name} {id}", command(text))),
        Action::Finish => Some(format!("once: will record that {name} was taken back {id}")),
        Action::Ask(question) => {
            Some(format!("once: will run `{}` to ask about {name} {id}", command(&question.command)))
        }
        Action::Leave(_) => None,
    }
}

/// The steps as lines, the ones that need attention last.
fn text(args: &UndoArgs, steps: &[Step]) -> String {
    let counts = StepResult::ALL.into_iter().filter_map(|result| {
        let count = steps.iter().filter(|step| step.result == result).count();
        (count > 0).then(|| format!("{count} {}", result.in_words()))
    });
    let counts = counts.collect::<Vec<_>>().join(", ");
    let of = match (&args.operation, &args.scope) {
        (None, Some(scope)) => format!("scope {}: ", styled(BOLD, one_line(scope))),
        (Some(_), _) | (None, None) => String::new(),
    };
    let mut lines = vec![format!("{of}{}", if counts.is_empty() { "nothing to undo" } else { &counts })];
    let one = args.operation.is_some();
    for step in steps.iter().filter(|step| one || step.result != StepResult::NothingToUndo) {
        let command =
            step.command.as_deref().map(|command| format!("  `{}`", one_line(command))).unwrap_or_default();
        let why = match (step.evidence, &step.reason) {
            (Some(UndoEvidence::Probe), _) => "  the probe confirms that the effect is gone".to_owned(),
            (Some(UndoEvidence::Compensation), _) => "  the compensation reported success".to_owned(),
            (Some(UndoEvidence::Pending) | None, Some(reason)) => format!("  {}", one_line(reason)),
            (Some(UndoEvidence::Pending) | None, None) => String::new(),
        };
        let (id, name) = (&step.operation, one_line(&step.name));
        lines.push(format!("  {:<15} {name}  {id}{command}{why}", step.result.in_words()));
    }
    lines.join("\n")
}

impl StepResult {
    /// What is true of an operation that is left alone.
    fn of(reversal: Reversal) -> Self {
        match reversal {
            Reversal::Compensate | Reversal::Irreversible | Reversal::Expired => Self::Stands,
            Reversal::InDoubt | Reversal::Running => Self::InDoubt,
            Reversal::AlreadyUndone | Reversal::NothingHappened | Reversal::Compensation => {
                Self::NothingToUndo
            }
        }
    }
}

impl Step {
    fn of(planned: &Planned, result: StepResult, reason: Option<String>) -> Self {
        let record = &planned.record;
        let mark = record.detail.undone.as_ref();
        // A mark without evidence: an earlier undo has begun and may have succeeded.
        let is_pending = mark.is_some() && !record.is_undone();
        let result = if is_pending && result == StepResult::Stands { StepResult::InDoubt } else { result };
        Self {
            operation: record.id.to_string(),
            name: record.name.clone(),
            key: record.key.text.clone(),
            reversal: planned.reversal.as_str(),
            result,
            command: match &planned.action {
                Action::Run(command) => Some(command.clone()),
                Action::Ask(question) => Some(question.command.clone()),
                Action::Finish | Action::Leave(_) => None,
            },
            by: mark.map(|mark| mark.by.to_string()),
            evidence: mark.map(|mark| mark.evidence),
            reason,
        }
    }

    /// The step of a dry run.
    fn planned(planned: &Planned) -> Self {
        match &planned.action {
            Action::Run(_) | Action::Finish => Self::of(planned, StepResult::WouldUndo, None),
            Action::Ask(_) => Self::of(planned, StepResult::WouldAsk, None),
            Action::Leave(why) => Self::of(planned, StepResult::of(planned.reversal), Some(why.clone())),
        }
    }
}

/// Takes operations back.
struct Undoer<'a> {
    context: &'a Context,
    ledger: &'a Blocking,
    planner: Planner<'a>,
}

impl Undoer<'_> {
    fn take_back(&self, planned: Planned) -> Result<(Step, Interrupted), CommandError> {
        let command = match &planned.action {
            Action::Leave(why) => {
                let step = Step::of(&planned, StepResult::of(planned.reversal), Some(why.clone()));
                return Ok((step, Interrupted::No));
            }
            Action::Ask(question) => {
                let question = question.clone();
                return self.ask_first(planned, &question);
            }
            Action::Run(command) => Some(command.clone()),
            Action::Finish => None,
        };
        self.compensate(planned, command.as_deref())
    }

    /// Settles a doubt with its probe, then takes the operation back if it has happened.
    fn ask_first(&self, planned: Planned, question: &Question) -> Result<(Step, Interrupted), CommandError> {
        let settled =
            settle::by_question(self.context, self.ledger, &planned.record, planned.state, question);
        let record = match settled {
            Ok(record) => record,
            Err(CommandError::Ledger(error @ (Error::InDoubt { .. } | Error::WrongState { .. }))) => {
                return Ok((
                    Step::of(&planned, StepResult::InDoubt, Some(error.to_string())),
                    Interrupted::No,
                ));
            }
            Err(error) => return Err(error),
        };
        let state = record.state;
        let reversal = Reversal::of(&record, state);
        let next = self.planner.planned(record, state, reversal)?;
        match next.action {
            // It was settled, so it is not asked again.
            Action::Ask(_) => Ok((Step::of(&next, StepResult::InDoubt, None), Interrupted::No)),
            Action::Run(_) | Action::Finish | Action::Leave(_) => self.take_back(next),
        }
    }

    fn compensate(
        &self,
        planned: Planned,
        command: Option<&str>,
    ) -> Result<(Step, Interrupted), CommandError> {
        let record = &planned.record;
        let operation = Operation::undo_of(record);
        let settings = self.context.policy.settings(operation.name())?;
        let operation = operation
            .terms(settings.terms.clone())
            .probe_command(settings.probe.clone())
            .probe_no(settings.probe_no.clone())
            .folder(record.detail.folder.clone())
            .command_line(command.filter(|_| settings.store_command).map(str::to_owned));
        let undoing = match self.ledger.begin_undo(&record.id, operation) {
            Ok(undoing) => undoing,
            // Another undo was faster, or the operation changed meanwhile.
            Err(Error::WrongState { record, .. }) => {
                return Ok((self.as_it_is(planned, &record)?, Interrupted::No));
            }
            Err(error) => return Err(error.into()),
        };
        let probe = self.planner.probe(record);
        let question = probe.as_ref().ok().and_then(Option::as_ref);
        let compensate = Compensate {
            context: self.context,
            ledger: self.ledger,
            settings: &settings,
            command,
            probe: question,
        };
        let (result, interrupted) = compensate.run(&undoing);
        if let Err(error @ Error::Unavailable(_)) = result {
            return Err(error.into());
        }
        let had_no_effect =
            result.as_ref().is_err_and(|error| error.happened() == Some(onceward::Happened::No));
        let now = match (&probe, interrupted) {
            (_, _) if had_no_effect => EffectNow::NotAsked,
            (Err(why), _) => EffectNow::CannotTell(why.clone()),
            (Ok(None), _) => EffectNow::NotAsked,
            (Ok(Some(_)), Interrupted::Yes) => EffectNow::CannotTell("the undo was interrupted".to_owned()),
            (Ok(Some(question)), Interrupted::No) => self.effect_now(question, record)?,
        };
        let outcome = UndoOutcome::of(result.as_ref().map(|_| ()), &now);
        let record = self.ledger.end_undo(&undoing, &outcome)?;
        let (result, reason) = match outcome {
            UndoOutcome::Undone(_) => (StepResult::Undone, None),
            UndoOutcome::NotUndone(why) => (StepResult::Stands, Some(why)),
            UndoOutcome::Unconfirmed(why) | UndoOutcome::InDoubt(why) => (StepResult::InDoubt, Some(why)),
        };
        let by = Some(undoing.intent.id.to_string());
        Ok((Step { by, ..Step::of(&Planned { record, ..planned }, result, reason) }, interrupted))
    }

    /// The step for an operation that another caller has changed.
    fn as_it_is(&self, planned: Planned, record: &Arc<Record>) -> Result<Step, CommandError> {
        let (record, state) = self.ledger.find(&record.id)?;
        let reversal = Reversal::of(&record, state);
        let reason =
            Some(format!("it is {} now", if record.is_undone() { "undone" } else { state.as_str() }));
        Ok(Step::of(&Planned { record, state, reversal, ..planned }, StepResult::of(reversal), reason))
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
