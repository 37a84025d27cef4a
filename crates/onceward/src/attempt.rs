//! What the code that does the work sees: its attempt, and the ways to say how it went.

use std::sync::{Arc, Weak};

use serde::Serialize;
use serde_json::value::RawValue;

use crate::key::OperationId;
use crate::record::{Effect, Outcome, Record};
use crate::store::{Dispatch, Hold};
use crate::transition::Ending;

/// One try to execute an operation. Its intent is on disk, and nothing has left yet.
///
/// Work that changes something calls [`Attempt::dispatch`] first: only the token that it returns can report an effect.
#[derive(Debug, Clone)]
pub struct Attempt {
    record: Arc<Record>,
    /// Not kept alive by the work: an attempt that is over is over for everyone. A read has none.
    hold: Option<Weak<dyn Hold>>,
}

/// The proof that the ledger knows of the dispatch: a crash from here on leaves the operation in doubt. It alone can
/// report an effect.
#[derive(Debug)]
pub struct Dispatched(());

impl Attempt {
    pub(crate) fn new(record: Arc<Record>, hold: Option<Weak<dyn Hold>>) -> Self {
        Self { record, hold }
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

    /// Notes that the request leaves now. Until then, a crash is certain to have had no effect.
    ///
    /// # Errors
    /// The note could not be written, or the attempt is over. Then nothing must be sent: others may already have taken
    /// this attempt for one without effect.
    pub fn dispatch(&self) -> Result<Dispatched, Failure> {
        if let Some(hold) = &self.hold {
            let Some(hold) = hold.upgrade() else {
                return Err(Failure::no_effect("the attempt is over, so nothing was sent"));
            };
            hold.note_dispatch(Dispatch::Begun).map_err(|error| {
                Failure::no_effect(format!("the dispatch could not be noted, so nothing was sent: {error}"))
            })?;
        }
        Ok(Dispatched(()))
    }
}

/// How an attempt ended, from what its work returned.
pub(crate) fn ending(result: Result<Done, Failure>) -> (Ending, Kind) {
    match result {
        Ok(done) => (Ending::Done(done.outcome), Kind::Plain),
        Err(Failure { certainty, reason, data, body, tries }) => {
            let outcome = Outcome { data, body, ..Outcome::because(Some(reason)) };
            let kind = match (certainty, tries) {
                (Certainty::TimedOut, _) => Kind::TimedOut,
                (Certainty::NoEffect | Certainty::InDoubt, Tries::Over) => Kind::Stopped,
                (Certainty::NoEffect | Certainty::InDoubt, Tries::More) => Kind::Plain,
            };
            match certainty {
                Certainty::NoEffect => (Ending::Failed(outcome), kind),
                Certainty::InDoubt | Certainty::TimedOut => (Ending::InDoubt(outcome), kind),
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

/// The work is done. [`Dispatched`] makes it; only a `noop` needs no dispatch.
#[derive(Debug, Clone, PartialEq)]
pub struct Done {
    pub(crate) outcome: Outcome,
}

impl Dispatched {
    pub(crate) fn in_transaction() -> Self {
        Self(())
    }

    /// Done, with this effect and a result that is kept as JSON. One that cannot be written as JSON is not a failure:
    /// it is done, with its result unavailable.
    pub fn done(self, effect: Effect, data: &impl Serialize) -> Done {
        Done::new(effect, data)
    }

    /// Something new exists.
    pub fn created(self, data: &impl Serialize) -> Done {
        Done::new(Effect::Created, data)
    }

    /// Something that existed is different.
    pub fn updated(self, data: &impl Serialize) -> Done {
        Done::new(Effect::Updated, data)
    }

    /// Something is gone.
    pub fn deleted(self, data: &impl Serialize) -> Done {
        Done::new(Effect::Deleted, data)
    }

    /// Done, with a result that is JSON text already.
    #[must_use]
    pub fn done_with_json(self, effect: Effect, data: impl Into<Arc<RawValue>>) -> Done {
        Done { outcome: Outcome { data: Some(data.into()), ..Outcome::with_effect(effect) } }
    }

    /// Done, and the result could not be kept.
    #[must_use]
    pub fn done_without_result(self, effect: Effect) -> Done {
        Done { outcome: Outcome { unavailable: true, ..Outcome::with_effect(effect) } }
    }
}

impl Done {
    fn new(effect: Effect, data: &impl Serialize) -> Self {
        let data = serde_json::value::to_raw_value(data).ok().map(Arc::from);
        Self { outcome: Outcome { unavailable: data.is_none(), data, ..Outcome::with_effect(effect) } }
    }

    /// It was so already, and why.
    pub fn noop(reason: impl Into<String>, data: &impl Serialize) -> Self {
        let mut done = Self::new(Effect::Noop, data);
        done.outcome.reason = Some(reason.into());
        done
    }

    /// What is needed to answer byte for byte, kept beside the result.
    #[must_use]
    pub fn body(mut self, body: impl Into<Arc<[u8]>>) -> Self {
        self.outcome.body = Some(body.into());
        self
    }
}

/// The work is not done, or it is unknown whether it is.
#[derive(Debug, Clone)]
pub struct Failure {
    certainty: Certainty,
    pub(crate) reason: String,
    data: Option<Arc<RawValue>>,
    body: Option<Arc<[u8]>>,
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
}

impl Failure {
    /// It is certain that nothing happened: the next call may try again.
    pub fn no_effect(reason: impl ToString) -> Self {
        let reason = reason.to_string();
        Self { certainty: Certainty::NoEffect, reason, data: None, body: None, tries: Tries::More }
    }

    /// It is unknown whether it happened: the ledger does not run it again by itself.
    pub fn in_doubt(reason: impl ToString) -> Self {
        Self { certainty: Certainty::InDoubt, ..Self::no_effect(reason) }
    }

    /// It took too long, and it is unknown whether it happened.
    pub fn timed_out(reason: impl ToString) -> Self {
        Self { certainty: Certainty::TimedOut, ..Self::no_effect(reason) }
    }

    /// The call was broken off: it does not try again by itself, however many retries it has left.
    #[must_use]
    pub fn stopped(mut self) -> Self {
        self.tries = Tries::Over;
        self
    }

    /// What went wrong, in words.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// What the failure had to say, kept with it.
    #[must_use]
    pub fn with(mut self, data: Option<Arc<RawValue>>, body: Option<Arc<[u8]>>) -> Self {
        (self.data, self.body) = (data, body);
        self
    }
}

/// An error that says nothing about the effect leaves it in doubt: [`Failure::no_effect`] must be said.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::in_doubt(error)
    }
}
