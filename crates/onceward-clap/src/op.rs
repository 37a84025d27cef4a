//! What `apply` gets and returns: only the token of a dispatch can report an effect.

use std::fmt::Display;
use std::sync::Arc;

use onceward::{Attempt, Done, Effect};

use crate::data::AnswerData;
use crate::fault::Fault;
use crate::supervisor::DispatchGate;

/// One try to change the world. Its intent is on disk.
pub struct Op<'a, W> {
    world: &'a mut W,
    attempt: Attempt,
    gate: Arc<DispatchGate>,
}

impl<'a, W> Op<'a, W> {
    pub(crate) fn new(world: &'a mut W, attempt: Attempt, gate: Arc<DispatchGate>) -> Self {
        Self { world, attempt, gate }
    }

    /// The world, for reading: what is already done?
    #[must_use]
    pub fn world(&self) -> &W {
        self.world
    }

    /// The operation's key.
    #[must_use]
    pub fn key(&self) -> &str {
        self.attempt.key()
    }

    /// The operation's scope.
    #[must_use]
    pub fn scope(&self) -> &str {
        self.attempt.scope()
    }

    /// The attempt's number: a fencing token, for a downstream that can check one.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt.number()
    }

    /// The key to pass to a downstream that honours one: the same for every attempt, unique over scopes and tools.
    #[must_use]
    pub fn downstream_key(&self) -> String {
        self.attempt.downstream_key().to_owned()
    }

    /// The same where the command has more than one downstream.
    #[must_use]
    pub fn downstream_key_for(&self, downstream: &str) -> String {
        key_for(self.attempt.downstream_key(), downstream)
    }

    /// Dispatches: the request is about to be sent. Before this call an error or a crash definitely has no effect;
    /// after it, the operation is in doubt. Returns the mutable world, and the token that reports what was changed.
    ///
    /// # Errors
    /// If the time limit is reached, the caller has asked to stop, or the dispatch could not be recorded. Nothing
    /// has happened, and nothing must: return the fault.
    pub fn dispatch(self) -> Result<(&'a mut W, Dispatched), Fault> {
        let token = self.gate.pass(|| self.attempt.dispatch())?;
        Ok((self.world, Dispatched { token }))
    }
}

/// The key of one of several downstreams.
pub(crate) fn key_for(key: &str, downstream: &str) -> String {
    format!("{key}-{downstream}")
}

/// The proof that a command has dispatched. Only this token can report an effect.
#[must_use = "say what was changed: `dispatched.created(data)`"]
#[derive(Debug)]
pub struct Dispatched {
    token: onceward::Dispatched,
}

impl Dispatched {
    /// Something new exists.
    pub fn created<T>(self, data: T) -> Applied<T> {
        self.applied(Effect::Created, data)
    }

    /// Something that existed is different.
    pub fn updated<T>(self, data: T) -> Applied<T> {
        self.applied(Effect::Updated, data)
    }

    /// Something is gone.
    pub fn deleted<T>(self, data: T) -> Applied<T> {
        self.applied(Effect::Deleted, data)
    }

    fn applied<T>(self, effect: Effect, data: T) -> Applied<T> {
        Applied { change: Change::Made(effect, self.token), data }
    }
}

/// What was done to the world, with the answer that every retry gets.
#[derive(Debug)]
pub struct Applied<T> {
    change: Change,
    data: T,
}

#[derive(Debug)]
enum Change {
    Made(Effect, onceward::Dispatched),
    /// With the reason.
    NotNeeded(String),
}

impl<T> Applied<T> {
    /// Nothing had to be changed, and why. Needs no dispatch.
    pub fn noop(reason: impl Into<String>, data: T) -> Self {
        Self { change: Change::NotNeeded(reason.into()), data }
    }
}

impl<T: AnswerData> Applied<T> {
    pub(crate) fn done(self) -> Done {
        let data = self.data.as_json();
        match self.change {
            Change::NotNeeded(reason) => Done::noop(reason, &data),
            Change::Made(effect, token) => token.done(effect, &data),
        }
    }
}

/// Whether something has to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ensured {
    /// Nothing has to be done: the reason for a `noop`.
    Already(String),
    /// A change is needed.
    Needed,
}

/// Compares the actual state with the desired one.
///
/// ```
/// use onceward_clap::{Ensured, ensure};
/// assert_eq!(ensure("version", Some("1.2.3"), "1.2.3"), Ensured::Already("Already at version 1.2.3".to_owned()));
/// assert_eq!(ensure("version", Some("1.2.2"), "1.2.3"), Ensured::Needed);
/// ```
pub fn ensure<T: PartialEq + Display + ?Sized>(what: &str, state: Option<&T>, want: &T) -> Ensured {
    if state == Some(want) { Ensured::Already(format!("Already at {what} {want}")) } else { Ensured::Needed }
}
