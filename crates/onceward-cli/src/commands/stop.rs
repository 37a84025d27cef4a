//! `once stop` and `once resume`: a barrier for a scope.

use std::process::ExitCode;

use onceward::{Barrier, Blocking, Filter, Operation, Settlement, State};
use serde::Serialize;

use super::person::person;
use super::settlement;
use crate::answer;
use crate::cli::{ResumeArgs, StopArgs};
use crate::context::{Context, IfMissing};
use crate::exit::{CommandError, Ended};
use crate::style::{BOLD, styled};

/// The answer of `once stop`: the same for every stop of a scope without a change in between.
#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    settlement: &'a Settlement,
    /// Operations that did not end in time.
    still_running: u64,
}

pub(super) fn stop(context: &Context, args: &StopArgs) -> Ended {
    let missing = if args.dry.dry_run { IfMissing::Fail } else { IfMissing::Create };
    let ledger = context.ledger(missing)?;
    let before = barrier_of(&ledger, &args.scope)?;
    if args.dry.dry_run {
        return preview(context, &ledger, args, before.as_ref());
    }
    ledger.scopes().stop(&args.scope, &person("once stop").note(args.note.clone()))?;
    let still_running = ledger.scopes().wait(&args.scope, args.wait)?.len() as u64;
    let settlement = ledger.scopes().settlement(&args.scope)?;
    let mut warnings: Vec<String> = unknown_scope(&ledger, &settlement)?.into_iter().collect();
    if still_running > 0 {
        warnings.push(format!(
            "{still_running} of the operations and compensations still run; operations were asked to stop, and \
             compensations finish. `{} report --scope {}` shows what became of them",
            context.program(),
            onceward::text::shell_word(&args.scope)
        ));
    }
    let effect = if before.is_some() { "noop" } else { "updated" };
    let answer = Answer { settlement: &settlement, still_running };
    answer::success_with(context.global.json, effect, &answer, warnings, || {
        format!("{}\n{}", stopped_in_words(context, &settlement), settlement::text(&settlement))
    });
    Ok(ExitCode::SUCCESS)
}

pub(super) fn resume(context: &Context, args: &ResumeArgs) -> Ended {
    let ledger = context.ledger(IfMissing::Fail)?;
    let scope = styled(BOLD, onceward::text::one_line(&args.scope));
    if args.dry.dry_run {
        Operation::new("stop").scope(&args.scope).key("stop").intent()?;
        let there = barrier_of(&ledger, &args.scope)?;
        let would = if there.is_some() { "would_update" } else { "would_noop" };
        answer::success(context.global.json, would, &there, || match there {
            Some(_) => format!("{would}: would let operations of the scope {scope} begin again"),
            None => format!("{would}: the scope {scope} is not stopped"),
        });
        return Ok(ExitCode::SUCCESS);
    }
    let resumed = ledger.scopes().resume(&args.scope, &person("once resume").note(args.note.clone()))?;
    let effect = if resumed.is_some() { "updated" } else { "noop" };
    answer::success(context.global.json, effect, &resumed, || match &resumed {
        Some(resumed) => format!(
            "operations of the scope {scope} may begin again; it was stopped {}",
            resumed.barrier.in_words()
        ),
        None => format!("the scope {scope} was not stopped"),
    });
    Ok(ExitCode::SUCCESS)
}

fn preview(context: &Context, ledger: &Blocking, args: &StopArgs, before: Option<&Barrier>) -> Ended {
    let settlement = ledger.scopes().settlement(&args.scope)?;
    let would = if before.is_some() { "would_noop" } else { "would_update" };
    answer::success(context.global.json, would, &settlement, || {
        format!(
            "{would}: would stop the scope {}, cancel {} held and ask {} running to end\n{}",
            styled(BOLD, onceward::text::one_line(&args.scope)),
            settlement.sums.held,
            settlement.sums.running,
            settlement::text(&settlement)
        )
    });
    Ok(ExitCode::SUCCESS)
}

/// A warning if no operation was ever in the scope: its name may be a mistake.
fn unknown_scope(ledger: &Blocking, settlement: &Settlement) -> Result<Option<String>, CommandError> {
    /// How many operations are looked at, and how many scopes are named.
    const LOOKED_AT: usize = 500;
    const NAMED: usize = 5;
    if settlement.sums.intended > 0 || settlement.events_waiting > 0 {
        return Ok(None);
    }
    let running = Filter { states: vec![State::Running], limit: LOOKED_AT, ..Filter::default() };
    let mut scopes: Vec<String> = Vec::new();
    for (listed, state) in ledger.list(&running)? {
        let scope = onceward::text::one_line(&listed.record.scope).into_owned();
        if state == State::Running && !scopes.contains(&scope) {
            scopes.push(scope);
        }
    }
    scopes.sort();
    scopes.truncate(NAMED);
    let elsewhere = match scopes.as_slice() {
        [] => "nothing runs in any scope".to_owned(),
        scopes => format!("operations run in {}", scopes.join(", ")),
    };
    let scope = onceward::text::one_line(&settlement.scope);
    Ok(Some(format!("no operation was ever in the scope {scope}; {elsewhere}")))
}

fn barrier_of(ledger: &Blocking, scope: &str) -> Result<Option<Barrier>, CommandError> {
    Ok(ledger.scopes().stopped()?.into_iter().find(|barrier| barrier.scope == scope))
}

/// Since when and why the scope is stopped, and how to let it continue.
pub(super) fn stopped_in_words(context: &Context, settlement: &Settlement) -> String {
    let scope = styled(BOLD, onceward::text::one_line(&settlement.scope));
    let Some(barrier) = &settlement.stopped else { return format!("the scope {scope} is not stopped") };
    format!(
        "the scope {scope} was stopped {}: nothing in it begins. To let it continue: {} resume {}",
        barrier.in_words(),
        context.program(),
        onceward::text::shell_word(&barrier.scope)
    )
}
