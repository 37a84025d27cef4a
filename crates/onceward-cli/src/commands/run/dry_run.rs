//! `once run --dry-run`: what the real call would do. Writes nothing and creates no ledger.

use std::process::{Command, ExitCode, Stdio};

use onceward::{Answer, Decision, Liveness, Operation, Plan, Preview, Record, Settings, decide};
use serde::Serialize;

use super::RunArgs;
use super::lookup::{self, Unstartable, basename};
use super::preflight;
use super::respond::{Form, Show, Text, refusal_exit};
use crate::answer;
use crate::context::{Context, quoted};
use crate::exit::{CommandError, Ended};
use crate::style::{BOLD, styled};

#[derive(Serialize)]
struct OwnPlan {
    plan: Text,
}

pub(super) fn run(
    context: &Context,
    args: &RunArgs,
    operation: Operation,
    settings: &Settings,
    show: Show<'_>,
) -> Ended {
    let (intent, plan) = match context.existing_ledger()? {
        Some(ledger) => {
            let intent = ledger.repeats().wanted(operation)?.intent;
            let plan = ledger.plan(&intent)?;
            (intent, plan)
        }
        None => {
            let intent = operation.intent()?;
            (intent.clone(), Plan { decision: decide::begin(None, &intent, Liveness::Gone, 0), record: None })
        }
    };
    let preview = Preview::of(&plan, &intent, settings.effect);
    let line: Vec<String> = args.command.iter().map(|word| quoted(&word.to_string_lossy())).collect();
    let mut answer =
        Answer::preview(&preview, vec![format!("would run {}", line.join(" "))], &context.surface());
    let gap = lookup::startable(&args.command[0]).err();
    if let (Some(gap), Decision::Start { .. } | Decision::Hold) = (&gap, &plan.decision) {
        return Ok(would_not_start(gap, &answer, plan.record.as_deref(), show));
    }
    if !args.dry_run_args.is_empty() {
        let own = OwnPlan { plan: own_plan(context, args)? };
        answer.data = serde_json::value::to_raw_value(&own).ok().map(Into::into);
    }
    match show.form {
        Form::Json => answer::envelope(&answer),
        Form::Output => say(&answer, &preview),
    }
    Ok(preview.refusal.as_ref().map_or(ExitCode::SUCCESS, refusal_exit))
}

/// The real call would be refused, because its command cannot be started.
fn would_not_start(gap: &Unstartable, planned: &Answer, record: Option<&Record>, show: Show<'_>) -> ExitCode {
    let refusal = Answer {
        effect: "would_noop",
        decision: Some("refuse"),
        reason: Some(format!("would refuse: {}", gap.reason)),
        changes: Some(Vec::new()),
        operation: planned.operation.clone(),
        ..preflight::cannot_start(gap, record)
    };
    match (show.form, &refusal.error) {
        (Form::Output, Some(view)) => answer::talk(&answer::error_text(view, refusal.ran)),
        (Form::Json | Form::Output, _) => answer::envelope(&refusal),
    }
    ExitCode::from(u8::try_from(gap.exit_code).unwrap_or(1))
}

fn say(answer: &Answer, preview: &Preview) {
    let effect = styled(BOLD, answer.effect);
    answer::data(&format!("{effect}: {} [{}]", preview.sentence, preview.operation.id));
    for change in answer.changes.iter().flatten() {
        answer::data(&format!("  {change}"));
    }
    if let Some(data) = &answer.data {
        let plan: Option<serde_json::Value> = serde_json::from_str(data.get()).ok();
        if let Some(plan) = plan.as_ref().and_then(|data| data["plan"].as_str()) {
            answer::data(plan.trim_end());
        }
    }
    if let Some(view) = &answer.error {
        answer::talk(&answer::error_text(view, answer.ran));
    }
}

/// The command's own plan: the command with the arguments that make it a dry run.
fn own_plan(context: &Context, args: &RunArgs) -> Result<Text, CommandError> {
    let mut command = Command::new(&args.command[0]);
    args.environment(context).give_to(&mut command);
    command.args(&args.command[1..]).args(&args.dry_run_args).stdin(Stdio::null());
    crate::sealing::withhold_key(&mut command);
    let output = command.output().map_err(|error| {
        let program = basename(&args.command[0]);
        CommandError::Outside(format!("cannot start {program} for its own plan: {error}"))
    })?;
    Ok(output.stdout.into())
}
