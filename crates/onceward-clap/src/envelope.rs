//! The one answer of every command: the core's [`Answer`], with the codes of a tool's own faults and an exit code.

mod strict;

use std::sync::Arc;

use onceward::{
    Answer, Code, Effect, Error, ErrorView, Happened, Intent, Owner, Preview, Ran, Receipt, Record,
    RepeatRule, State, Surface, transition,
};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::fault::{Certainty, Fault, Kept};
use crate::plan::Plan;
use crate::supervisor::Stop;

pub(crate) use strict::{Meta, Strict};

/// An answer, and what is needed to give it.
#[derive(Debug, Clone)]
pub(crate) struct Envelope {
    /// What is printed.
    pub(crate) answer: Answer,
    /// What the process ends with.
    pub(crate) exit: u8,
    /// It only reads, so it has no effect to report.
    pub(crate) reads: bool,
    /// How long the work was given.
    pub(crate) timeout_ms: u64,
    /// The operation that this answers, so that its delivery can be noted.
    pub(crate) record: Option<Arc<Record>>,
    /// What a person reads instead of the data.
    pub(crate) lines: Option<Vec<String>>,
}

impl Envelope {
    /// An answer with its exit code.
    pub(crate) fn new(answer: Answer, exit: u8) -> Self {
        Self { answer, exit, reads: false, timeout_ms: 0, record: None, lines: None }
    }

    /// The answer of a command that only reads.
    pub(crate) fn read(data: &impl Serialize) -> Self {
        let read = Self::info(data);
        Self { answer: Answer { ran: Some(true), ..read.answer }, ..read }
    }

    /// What a command of the framework knows. It is not about a call.
    pub(crate) fn info(data: &impl Serialize) -> Self {
        let answer = Answer { data: raw(data), ..Answer::plain(Effect::Noop.as_str()) };
        Self { reads: true, ..Self::new(answer, 0) }
    }

    /// An administrative command succeeded.
    pub(crate) fn success(effect: &'static str) -> Self {
        Self::new(Answer::plain(effect), 0)
    }

    /// The answer to a call of the ledger.
    pub(crate) fn of(
        result: &Result<Receipt, Error>,
        rule: RepeatRule,
        free: Option<&str>,
        surface: &Surface,
        now_ms: i64,
    ) -> Self {
        let answer = Answer::of_wanted(result, rule, free, surface, now_ms);
        let (exit, record) = match result {
            Ok(receipt) => (0, Some(Arc::clone(receipt.record()))),
            Err(error) => (error.code().exit(), error.record().map(Arc::clone)),
        };
        let envelope = Self { record, ..Self::new(answer, exit) };
        match result {
            Ok(_) => envelope,
            Err(error) => envelope.named(error),
        }
    }

    /// The ledger refused the call, or could not be used.
    pub(crate) fn failed(error: Error, surface: &Surface) -> Self {
        Self::of(&Err(error), RepeatRule::Strict, None, surface, 0)
    }

    /// An administrative command did not succeed.
    pub(crate) fn not_done(error: &Error, surface: &Surface) -> Self {
        Self::new(Answer::not_done(error, surface), error.code().exit())
    }

    /// What a call would get, with the command's own plan for the case that it would run.
    pub(crate) fn preview(preview: &Preview, plan: Option<&Plan>, surface: &Surface) -> Self {
        let changes = plan.map(|plan| plan.changes().to_vec()).unwrap_or_default();
        let mut answer = Answer::preview(preview, changes, surface);
        if let Some(reason) = plan.filter(|_| preview.decision == "run").and_then(Plan::reason) {
            answer.reason = Some(reason.to_owned());
        }
        match &preview.refusal {
            None => Self::new(answer, 0),
            Some(error) => Self::new(answer, error.code().exit()).named(error),
        }
    }

    /// What the ledger kept of the tool's own fault becomes code, exit and data again.
    fn named(mut self, refusal: &Error) -> Self {
        let outcome = refusal.record().and_then(|record| record.outcome.as_ref());
        let Some(text) = outcome.and_then(|outcome| outcome.data.as_ref()) else { return self };
        let Ok(kept) = serde_json::from_str::<Kept>(text.get()) else { return self };
        self.answer.data = self.answer.data.and(kept.detail).map(Arc::from);
        if let (Error::Failed { .. }, Some(error)) = (refusal, self.answer.error.as_mut()) {
            error.code = kept.fault.as_str().into();
            // The ledger would allow a retry, but the same call alone would get the same answer.
            if error.retryable && !kept.fault.worth_a_retry() {
                (error.retryable, error.next) = (false, None);
            }
            error.retry_after_ms = kept.retry_after_ms.filter(|_| error.retryable);
            self.exit = kept.fault.exit();
        }
        self
    }

    /// A command that only reads or plans has failed.
    pub(crate) fn fault(fault: &Fault) -> Self {
        let kept = fault.kept();
        let retryable = kept.fault.worth_a_retry() && fault.certainty() != Certainty::InDoubt;
        let error = ErrorView {
            retryable,
            retry_after_ms: kept.retry_after_ms.filter(|_| retryable),
            ..ErrorView::new(kept.fault.as_str(), fault.message())
        };
        let failed = Self::error(error, Ran::No, kept.fault.exit());
        Self { answer: Answer { data: kept.detail.map(Arc::from), ..failed.answer }, ..failed }
    }

    /// The same of a command that only reads: it ran, and there is no effect that could have happened.
    pub(crate) fn of_read(self) -> Self {
        self.with(Happened::No, Ran::Yes)
    }

    /// The same of a dry run, about an operation of which the ledger may know something.
    pub(crate) fn about(self, found: &onceward::Plan) -> Self {
        let happened = found.record.as_ref().map_or(Happened::No, |record| record.happened());
        self.with(happened, Ran::No)
    }

    fn with(mut self, happened: Happened, ran: Ran) -> Self {
        (self.answer.happened, self.answer.ran) = (Some(happened), Some(ran.as_bool()));
        if let Some(error) = self.answer.error.as_mut() {
            error.happened = Some(happened);
            error.retryable = error.retryable && happened == Happened::No;
        }
        self
    }

    /// The command line, or what it names, was refused.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        let code = Code::InvalidInput;
        Self::error(ErrorView::new(code.as_str(), message), Ran::No, code.exit())
    }

    /// Something about the process itself went wrong, and nothing was run.
    pub(crate) fn broken(message: impl Into<String>) -> Self {
        Self::error(ErrorView::new(Code::Failed.as_str(), message), Ran::No, Code::Failed.exit())
    }

    /// Stopped with nothing under way, or before anything was dispatched.
    pub(crate) fn stopped(stop: Stop) -> Self {
        let code = match stop {
            Stop::Signal(_) | Stop::Requested => Code::Cancelled,
            Stop::Timeout { .. } => Code::Timeout,
        };
        let message = format!("{stop} before anything was sent; it had no effect");
        let error = ErrorView {
            happened: Some(Happened::No),
            retryable: true,
            ..ErrorView::new(code.as_str(), message)
        };
        let stopped = Self::error(error, Ran::No, stop.exit());
        let data = raw(&serde_json::json!({"partial": true}));
        Self { answer: Answer { data, ..stopped.answer }, ..stopped }
    }

    /// Stopped after the dispatch of this attempt: it may have taken effect.
    pub(crate) fn in_doubt(intent: &Intent, attempt: u32, stop: Stop, surface: &Surface) -> Self {
        let owner = Owner { token: 0, lease_until_ms: 0 };
        let started = transition::start(None, intent, owner, 0);
        let record = Arc::new(Record { state: State::InDoubt, attempt, ..started });
        let reason = format!("{stop} after the request was sent; it may or may not have taken effect");
        let error = match stop {
            Stop::Signal(_) | Stop::Requested => Error::InDoubt { record, reason, ran: Ran::Yes },
            Stop::Timeout { .. } => Error::Timeout { record, reason },
        };
        Self { exit: stop.exit(), record: None, ..Self::failed(error, surface) }
    }

    /// An error with its exit code.
    pub(crate) fn error(error: ErrorView, ran: Ran, exit: u8) -> Self {
        let effect = match error.happened {
            Some(Happened::Unknown) => "unknown",
            Some(Happened::Yes | Happened::No) | None => Effect::Noop.as_str(),
        };
        let answer = Answer {
            ok: false,
            happened: error.happened,
            ran: Some(ran.as_bool()),
            error: Some(error),
            ..Answer::plain(effect)
        };
        Self::new(answer, exit)
    }

    /// Whether it is a retry that was answered with the result of an earlier call.
    pub(crate) fn is_replay(&self) -> bool {
        self.answer.ok && self.answer.operation.as_ref().is_some_and(|operation| operation.replayed)
    }

    /// The changes of a dry run, or of something destructive that was not confirmed.
    pub(crate) fn changes(&self) -> &[String] {
        self.answer.changes.as_deref().unwrap_or_default()
    }
}

/// A value as JSON text; nothing where it cannot be written.
pub(crate) fn raw(value: &(impl Serialize + ?Sized)) -> Option<Arc<RawValue>> {
    to_raw_value(value).ok().map(Arc::from)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use onceward::{Ledger, ManualClock, MemoryStore, Operation, Terms};

    use super::*;

    /// A fault as the ledger stores it, for the caller.
    fn told(fault: fn() -> Fault, dispatched: bool) -> Envelope {
        let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0)))).blocking();
        let result = ledger.run(Operation::new("shop sell"), |_| Err(fault().into_failure(dispatched)));
        Envelope::of(&result, RepeatRule::Strict, None, &Surface::shell("shop"), 0)
    }

    #[test]
    fn a_fault_comes_back_with_its_code_its_exit_and_its_data() {
        let told =
            told(|| Fault::already_exists("it is there").with_data(&serde_json::json!({"id": 7})), true);
        let error = told.answer.error.unwrap();
        assert_eq!((&*error.code, told.exit, error.happened), ("ALREADY_EXISTS", 6, Some(Happened::No)));
        assert_eq!((told.answer.data.unwrap().get(), error.retryable), ("{\"id\":7}", false));
    }

    #[test]
    fn another_crates_error_is_certain_before_the_dispatch_and_in_doubt_after_it() {
        let error = || Fault::from(std::io::Error::other("connection reset"));
        let (before, after) = (told(error, false), told(error, true));
        let code =
            |envelope: &Envelope| envelope.answer.error.as_ref().map(|error| error.code.to_string()).unwrap();
        assert_eq!((code(&before).as_str(), before.exit, before.answer.effect), ("FAILED", 1, "noop"));
        assert_eq!((code(&after).as_str(), after.exit, after.answer.effect), ("IN_DOUBT", 79, "unknown"));
        assert!(after.answer.data.is_none(), "what the ledger keeps of the fault is not the caller's data");
        let next = after.answer.error.unwrap();
        assert!(next.options.is_empty(), "the answer may be lost: {:?}", next.options);
        assert!(next.fix_command.unwrap().starts_with("shop show op_"));
    }

    #[test]
    fn a_failure_that_is_not_tried_again_says_where_to_look() {
        let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0)))).blocking();
        let terms = Terms { max_attempts: 2, ..Terms::default() };
        let fail = || {
            let sell = Operation::new("shop sell").terms(terms.clone());
            let result = ledger.run(sell, |_| Err(Fault::no_effect("declined").into_failure(true)));
            Envelope::of(&result, RepeatRule::Strict, None, &Surface::shell("shop"), 0).answer.error.unwrap()
        };
        let (first, last) = (fail(), fail());
        let again = Some("make the same call again; it is safe");
        assert_eq!((first.retryable, first.next.as_deref()), (true, again));
        assert_eq!((last.retryable, last.next.as_deref()), (false, Some("see what is recorded")));
        assert!(last.fix_command.unwrap().starts_with("shop show op_"));
    }

    #[test]
    fn a_fault_that_can_pass_says_when_to_come_back() {
        let told = told(|| Fault::rate_limited("slowly").retry_after_ms(500), true);
        let error = told.answer.error.unwrap();
        assert_eq!((&*error.code, told.exit), ("RATE_LIMITED", 11));
        assert_eq!((error.retryable, error.retry_after_ms), (true, Some(500)));
    }
}
