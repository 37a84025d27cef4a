//! The one answer of every command: the contract's envelope, with the codes of a tool's own faults.

mod strict;

use onceward::answer::{Answer, ErrorView, OperationView};
use onceward::{Code, Error, Happened, Receipt, State};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::fault::{Certainty, Fault, FaultKind, Kept};
use crate::plan::Plan;
use crate::referee::Stop;

pub(crate) use strict::{Meta, Strict};

/// The contract's envelope. It is made of [`Answer`]; what it adds are changes of a dry run and a tool's own codes.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Envelope {
    pub(crate) ok: bool,
    pub(crate) effect: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) changes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) operation: Option<OperationView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<ErrorBody>,
    pub(crate) warnings: Vec<String>,
    /// What the process ends with.
    #[serde(skip)]
    pub(crate) exit: u8,
    /// Only reads, so it has no effect to tell.
    #[serde(skip)]
    pub(crate) reads: bool,
    /// How long it was given.
    #[serde(skip)]
    pub(crate) timeout_ms: u64,
}

/// What went wrong: as [`ErrorView`], with codes beyond the ledger's.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ErrorBody {
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) happened: Happened,
    pub(crate) retryable: bool,
    pub(crate) retry_after_ms: Option<u64>,
    pub(crate) fix_command: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) problems: Vec<String>,
}

impl Envelope {
    /// A command that only reads has answered.
    pub(crate) fn read(data: &impl Serialize) -> Self {
        let data = serde_json::value::to_raw_value(data).ok();
        Self { data, reads: true, ..Self::success("noop") }
    }

    /// Something was done that is no operation of the ledger.
    pub(crate) fn success(effect: &'static str) -> Self {
        Self {
            ok: true,
            effect,
            reason: None,
            changes: Vec::new(),
            operation: None,
            data: None,
            error: None,
            warnings: Vec::new(),
            exit: 0,
            reads: false,
            timeout_ms: 0,
        }
    }

    /// The answer to a call of the ledger.
    pub(crate) fn of(result: &Result<Receipt, Error>, now_ms: i64, tool: &str) -> Self {
        let answer = Answer::of(result, now_ms);
        let exit = match result {
            Ok(_) => 0,
            Err(error) => error.code().exit(),
        };
        let mut envelope = Self {
            ok: answer.ok,
            effect: answer.effect,
            reason: answer.reason,
            operation: answer.operation,
            data: answer.data,
            error: answer.error.map(|view| ErrorBody::of(view, tool)),
            warnings: answer.warnings,
            exit,
            ..Self::success("noop")
        };
        if !envelope.ok {
            envelope.name_the_fault(matches!(result, Err(Error::Failed { .. })));
        }
        envelope
    }

    /// What the ledger kept of the tool's own fault becomes code, exit and data again.
    fn name_the_fault(&mut self, certain: bool) {
        let Some(text) = self.data.take() else { return };
        let Ok(kept) = serde_json::from_str::<Kept>(text.get()) else { return };
        self.data = kept.detail;
        if let Some(error) = self.error.as_mut().filter(|_| certain) {
            kept.fault.as_str().clone_into(&mut error.code);
            error.retryable = error.retryable && kept.fault.worth_a_retry();
            error.retry_after_ms = kept.retry_after_ms.filter(|_| error.retryable);
            self.exit = kept.fault.exit();
        }
    }

    /// The ledger refused, or could not be used.
    pub(crate) fn failed(error: Error, tool: &str) -> Self {
        Self::of(&Err(error), 0, tool)
    }

    /// A command that only reads or plans has failed: whatever it was, nothing happened.
    pub(crate) fn fault(fault: &Fault) -> Self {
        let kept = fault.kept();
        let retryable = kept.fault.worth_a_retry() && fault.certainty() != Certainty::InDoubt;
        let error = ErrorBody {
            code: kept.fault.as_str().to_owned(),
            retryable,
            retry_after_ms: kept.retry_after_ms.filter(|_| retryable),
            ..ErrorBody::certain(fault.message())
        };
        Self { data: kept.detail, ..Self::error(error, kept.fault.exit()) }
    }

    /// The command line, or what it names, was refused.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        let error =
            ErrorBody { code: FaultKind::InvalidInput.as_str().to_owned(), ..ErrorBody::certain(message) };
        Self::error(error, Code::InvalidInput.exit())
    }

    /// Stopped with nothing under way, or before anything was dispatched.
    pub(crate) fn stopped(stop: Stop) -> Self {
        let code = match stop {
            Stop::Signal(_) => "CANCELLED",
            Stop::Timeout { .. } => "TIMEOUT",
        };
        let message = format!("{stop} before anything was dispatched; nothing has happened");
        let error = ErrorBody { code: code.to_owned(), retryable: true, ..ErrorBody::certain(message) };
        let partial = serde_json::value::to_raw_value(&serde_json::json!({"partial": true})).ok();
        Self { data: partial, ..Self::error(error, stop.exit()) }
    }

    /// An error with its exit code.
    pub(crate) fn error(error: ErrorBody, exit: u8) -> Self {
        let effect = if error.happened == Happened::No { "noop" } else { "unknown" };
        Self { ok: false, error: Some(error), exit, ..Self::success(effect) }
    }

    /// What would change.
    pub(crate) fn preview(plan: &Plan) -> Self {
        Self {
            reason: plan.reason().map(str::to_owned),
            changes: plan.changes().to_vec(),
            ..Self::success(plan.effect().as_str())
        }
    }

    /// Whether it is a retry that was answered with what an earlier call did.
    pub(crate) fn is_replay(&self) -> bool {
        self.ok && self.operation.as_ref().is_some_and(|operation| operation.replayed)
    }
}

impl ErrorBody {
    fn of(view: ErrorView, tool: &str) -> Self {
        Self {
            code: view.code.to_string(),
            message: view.message,
            happened: view.happened,
            retryable: view.retryable,
            retry_after_ms: view.retry_after_ms,
            fix_command: view.fix_command.map(|command| of_this_tool(&command, tool)),
            problems: view.problems,
        }
    }

    /// An error without effect that a retry does not mend.
    pub(crate) fn certain(message: impl Into<String>) -> Self {
        Self {
            code: FaultKind::Failed.as_str().to_owned(),
            message: message.into(),
            happened: Happened::No,
            retryable: false,
            retry_after_ms: None,
            fix_command: None,
            problems: Vec::new(),
        }
    }
}

/// The user may not have `once`: the tool itself shows and settles.
fn of_this_tool(command: &str, tool: &str) -> String {
    match command.strip_prefix("once wait ").or_else(|| command.strip_prefix("once show ")) {
        Some(id) => format!("{tool} show {id}"),
        None => command.replacen("once ", &format!("{tool} "), 1),
    }
}

/// An operation that was stopped after its dispatch.
pub(crate) fn in_doubt(operation: OperationView, stop: Stop, tool: &str) -> Envelope {
    let code = match stop {
        Stop::Signal(_) => Code::InDoubt,
        Stop::Timeout { .. } => Code::Timeout,
    };
    let fix = format!("{tool} settle {} --as 'done|failed'", operation.id);
    let error = ErrorBody {
        code: code.to_string(),
        happened: Happened::Unknown,
        fix_command: Some(fix),
        ..ErrorBody::certain(format!(
            "{stop} after it had been dispatched: nobody can say whether it happened"
        ))
    };
    let operation = OperationView { state: State::InDoubt, ..operation };
    Envelope { operation: Some(operation), ..Envelope::error(error, stop.exit()) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use onceward::{Ledger, ManualClock, MemoryStore, Operation};

    use super::*;

    /// What a caller is told of a fault, by way of the ledger.
    fn told(fault: fn() -> Fault, dispatched: bool) -> Envelope {
        let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0)))).blocking();
        let result = ledger.run(Operation::new("shop sell"), |_| Err(fault().into_failure(dispatched)));
        Envelope::of(&result, 0, "shop")
    }

    #[test]
    fn a_fault_comes_back_with_its_code_its_exit_and_its_data() {
        let told =
            told(|| Fault::already_exists("it is there").with_data(&serde_json::json!({"id": 7})), true);
        let error = told.error.unwrap();
        assert_eq!((error.code.as_str(), told.exit, error.happened), ("ALREADY_EXISTS", 6, Happened::No));
        assert_eq!((told.data.unwrap().get(), error.retryable), ("{\"id\":7}", false));
    }

    #[test]
    fn another_crates_error_is_certain_before_the_dispatch_and_in_doubt_after_it() {
        let error = || Fault::from(std::io::Error::other("connection reset"));
        let (before, after) = (told(error, false), told(error, true));
        let code = |envelope: &Envelope| envelope.error.as_ref().map(|error| error.code.clone()).unwrap();
        assert_eq!((code(&before).as_str(), before.exit, before.effect), ("FAILED", 1, "noop"));
        assert_eq!((code(&after).as_str(), after.exit, after.effect), ("IN_DOUBT", 79, "unknown"));
        assert!(after.data.is_none(), "what the ledger keeps of the fault is not the caller's data");
        let fix = after.error.unwrap().fix_command.unwrap();
        assert!(fix.starts_with("shop settle op_"), "{fix}");
    }

    #[test]
    fn a_fault_that_can_pass_says_when_to_come_back() {
        let told = told(|| Fault::rate_limited("slowly").retry_after_ms(500), true);
        let error = told.error.unwrap();
        assert_eq!((error.code.as_str(), told.exit), ("RATE_LIMITED", 11));
        assert_eq!((error.retryable, error.retry_after_ms), (true, Some(500)));
    }
}
