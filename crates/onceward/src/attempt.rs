//! What the code that does the work sees: its attempt, and the ways to say how it went.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use serde::Serialize;
use serde_json::value::RawValue;

use crate::key::OperationId;
use crate::record::{Effect, Outcome, Record};
use crate::store::{Dispatch, Hold, StoreError};
use crate::transition::Ending;

/// One try to execute an operation. Its intent is on disk.
#[derive(Debug, Clone)]
pub struct Attempt {
    record: Arc<Record>,
    dispatch: Arc<AtomicU8>,
    /// Not kept alive by the work: an attempt that is over is over for everyone.
    hold: Weak<dyn Hold>,
}

const UNMARKED: u8 = 0;
const NOT_YET: u8 = 1;
const DISPATCHED: u8 = 2;

impl Attempt {
    pub(crate) fn new(record: Arc<Record>, hold: Weak<dyn Hold>, noted: Option<Dispatch>) -> Self {
        let dispatch = match noted {
            None => UNMARKED,
            Some(Dispatch::NotYet) => NOT_YET,
            Some(Dispatch::Begun) => DISPATCHED,
        };
        Self { record, dispatch: Arc::new(AtomicU8::new(dispatch)), hold }
    }

    /// The operation's id.
    #[must_use]
    pub fn operation(&self) -> &OperationId {
        &self.record.id
    }

    /// The attempt's number: the fencing token, for a downstream that can check one.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.record.attempt
    }

    /// The operation's key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.record.key.text
    }

    /// The operation's scope.
    #[must_use]
    pub fn scope(&self) -> &str {
        &self.record.scope
    }

    /// The key to pass to a downstream that honours one: the same for every attempt, and unique over scopes.
    #[must_use]
    pub fn downstream_key(&self) -> &str {
        match &self.record.detail.downstream {
            Some(downstream) => &downstream.key,
            None => self.record.id.as_str(),
        }
    }

    /// Says that nothing has left yet: until [`Attempt::dispatched`] is called, an error is certain to have no effect,
    /// and so is a crash where the store can tell.
    pub fn not_dispatched_yet(&self) {
        let noted = self.hold.upgrade().map(|hold| hold.note_dispatch(Dispatch::NotYet));
        // Without the note a crash leaves the operation in doubt, which is true as well, only less helpful.
        drop(noted);
        self.dispatch.store(NOT_YET, Ordering::SeqCst);
    }

    /// Says that the request leaves now: from here on, an error without a class leaves the operation in doubt.
    ///
    /// # Errors
    /// When that cannot be noted. Then nothing must be dispatched: others would take a crash for one without effect.
    pub fn dispatched(&self) -> Result<(), StoreError> {
        if self.dispatch.load(Ordering::SeqCst) == NOT_YET
            && let Some(hold) = self.hold.upgrade()
        {
            hold.note_dispatch(Dispatch::Begun)?;
        }
        self.dispatch.store(DISPATCHED, Ordering::SeqCst);
        Ok(())
    }

    pub(crate) fn ending(&self, result: Result<Done, Failure>) -> (Ending, Kind) {
        match result {
            Ok(done) => (Ending::Done(done.outcome), Kind::Plain),
            Err(failure) => {
                let certain = match failure.certainty {
                    Certainty::NoEffect => true,
                    Certainty::InDoubt | Certainty::TimedOut => false,
                    Certainty::Unsaid => self.dispatch.load(Ordering::SeqCst) == NOT_YET,
                };
                let kind = match (failure.certainty, failure.tries) {
                    (Certainty::TimedOut, _) => Kind::TimedOut,
                    (Certainty::NoEffect | Certainty::InDoubt | Certainty::Unsaid, Tries::Over) => {
                        Kind::Stopped
                    }
                    (Certainty::NoEffect | Certainty::InDoubt | Certainty::Unsaid, Tries::More) => {
                        Kind::Plain
                    }
                };
                let outcome = Outcome {
                    data: failure.data,
                    body: failure.body,
                    ..Outcome::because(Some(failure.reason))
                };
                (if certain { Ending::Failed(outcome) } else { Ending::InDoubt(outcome) }, kind)
            }
        }
    }
}

/// Tells a time that ran out from every other doubt, and a call that was broken off from one that may try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    TimedOut,
    Stopped,
}

/// The work is done.
#[derive(Debug, Clone, PartialEq)]
pub struct Done {
    pub(crate) outcome: Outcome,
}

impl Done {
    /// Done, with this effect and a result that is kept as JSON. One that cannot be written as JSON is not a failure:
    /// it is done, with its result unavailable.
    pub fn new(effect: Effect, data: &impl Serialize) -> Self {
        let data = serde_json::value::to_raw_value(data).ok();
        Self { outcome: Outcome { unavailable: data.is_none(), data, ..Outcome::with_effect(effect) } }
    }

    /// Something new exists.
    pub fn created(data: &impl Serialize) -> Self {
        Self::new(Effect::Created, data)
    }

    /// Something that existed is different.
    pub fn updated(data: &impl Serialize) -> Self {
        Self::new(Effect::Updated, data)
    }

    /// Something is gone.
    pub fn deleted(data: &impl Serialize) -> Self {
        Self::new(Effect::Deleted, data)
    }

    /// It was so already, and why.
    pub fn noop(reason: impl Into<String>, data: &impl Serialize) -> Self {
        let mut done = Self::new(Effect::Noop, data);
        done.outcome.reason = Some(reason.into());
        done
    }

    /// The result as JSON text that the caller has already.
    #[must_use]
    pub fn with_json(effect: Effect, data: Box<RawValue>) -> Self {
        Self { outcome: Outcome { data: Some(data), ..Outcome::with_effect(effect) } }
    }

    /// What is needed to answer byte for byte, kept beside the result.
    #[must_use]
    pub fn body(mut self, body: impl Into<Box<[u8]>>) -> Self {
        self.outcome.body = Some(body.into());
        self
    }
}

/// The work is not done, or nobody can say.
#[derive(Debug, Clone)]
pub struct Failure {
    certainty: Certainty,
    pub(crate) reason: String,
    data: Option<Box<RawValue>>,
    body: Option<Box<[u8]>>,
    tries: Tries,
}

/// Whether this call may try again after a certain failure, within its retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tries {
    More,
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Certainty {
    NoEffect,
    InDoubt,
    TimedOut,
    Unsaid,
}

impl Failure {
    /// It is certain that nothing happened: the next call may try again.
    pub fn no_effect(reason: impl ToString) -> Self {
        let reason = reason.to_string();
        Self { certainty: Certainty::NoEffect, reason, data: None, body: None, tries: Tries::More }
    }

    /// It cannot be said whether it happened: nobody runs it again by himself.
    pub fn in_doubt(reason: impl ToString) -> Self {
        Self { certainty: Certainty::InDoubt, ..Self::no_effect(reason) }
    }

    /// It took too long, and cannot be said whether it happened.
    pub fn timed_out(reason: impl ToString) -> Self {
        Self { certainty: Certainty::TimedOut, ..Self::no_effect(reason) }
    }

    /// The call was broken off: it does not try again by itself, however many retries it has left.
    #[must_use]
    pub fn stopped(mut self) -> Self {
        self.tries = Tries::Over;
        self
    }

    /// What the failure had to say, kept with it.
    #[must_use]
    pub fn with(mut self, data: Option<Box<RawValue>>, body: Option<Box<[u8]>>) -> Self {
        (self.data, self.body) = (data, body);
        self
    }
}

/// An error without a class is certain only if the attempt had said that nothing was dispatched yet.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { certainty: Certainty::Unsaid, ..Self::no_effect(error) }
    }
}
