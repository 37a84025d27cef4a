//! Checks before an attempt is started: a missing command, or a call from inside the same operation.

use std::ffi::OsString;
use std::sync::Arc;

use onceward::{
    Answer, Attempt, Blocking, Class, Code, Decision, Error, ErrorView, Happened, Intent, Ran, Record,
    Surface,
};

use super::lookup::{self, Unstartable};

/// The variable that lists the operations that a command is part of, the outermost first.
pub(super) const INSIDE: &str = "ONCE_INSIDE";

/// Why a call is refused.
pub(super) enum Obstacle {
    /// The command cannot be started. An attempt would only use up the budget.
    CannotStart(Unstartable, Option<Arc<Record>>),
    /// The call comes from the attempt that it would wait for.
    InsideItself(Arc<Record>),
}

/// The operations that a command is part of, with its own.
pub(super) fn inside(attempt: &Attempt) -> String {
    let outer = std::env::var(INSIDE).unwrap_or_default();
    format!("{outer} {}", attempt.operation()).trim_start().to_owned()
}

/// Whether this call is part of an operation of another `once run`.
pub(super) fn is_nested() -> bool {
    std::env::var_os(INSIDE).is_some_and(|outer| !outer.is_empty())
}

/// Looks for an obstacle. The ledger is read only if there may be one: a done operation is replayed even if the
/// command no longer exists.
pub(super) fn look(
    ledger: &Blocking,
    intent: &Intent,
    command: &[OsString],
) -> Result<Option<Obstacle>, Error> {
    let outer = std::env::var(INSIDE).unwrap_or_default();
    let within = outer.split(' ').any(|id| id == intent.id.as_str());
    let gap = command.first().and_then(|program| lookup::startable(program).err());
    if !within && gap.is_none() {
        return Ok(None);
    }
    let plan = ledger.plan(intent)?;
    // A command that cannot be started is not held either.
    let runs =
        intent.terms.class == Class::Read || matches!(plan.decision, Decision::Start { .. } | Decision::Hold);
    Ok(match (plan.decision, plan.record, gap) {
        (_, record, Some(gap)) if runs => Some(Obstacle::CannotStart(gap, record)),
        (Decision::Wait, Some(record), _) if within => Some(Obstacle::InsideItself(record)),
        _ => None,
    })
}

impl Obstacle {
    /// The answer to the call.
    pub(super) fn answer(&self, surface: &Surface) -> Answer {
        match self {
            Self::CannotStart(gap, record) => cannot_start(gap, record.as_deref()),
            Self::InsideItself(record) => {
                let error = Error::InProgress { record: Arc::clone(record), ran: Ran::No };
                let mut answer = Answer::failed(&error, surface);
                answer.error = answer.error.map(|view| ErrorView {
                    message: format!(
                        "this call was made from inside attempt {} of the same operation and would wait for itself; \
                         nothing was run",
                        record.attempt
                    ),
                    next: Some("give the inner call its own key".to_owned()),
                    fix_command: None,
                    ..view
                });
                answer
            }
        }
    }

    /// The exit code of the call.
    pub(super) fn exit(&self) -> i32 {
        match self {
            Self::CannotStart(gap, _) => gap.exit_code,
            Self::InsideItself(_) => Code::InProgress.exit().into(),
        }
    }
}

/// The answer to a call whose command cannot be started.
pub(super) fn cannot_start(gap: &Unstartable, record: Option<&Record>) -> Answer {
    let happened = Some(record.map_or(Happened::No, Record::happened));
    let error = ErrorView {
        happened,
        next: Some(CORRECT.to_owned()),
        ..ErrorView::new(Code::Failed.as_str(), format!("{}; nothing was run", gap.reason))
    };
    Answer { ok: false, happened, ran: Some(false), error: Some(error), ..Answer::plain("noop") }
}

/// What to do about a command that cannot be started.
pub(super) const CORRECT: &str = "correct the command, then make the same call again";
