//! The question that settles a doubt: did it happen?

use std::sync::Arc;

use onceward::{Effect, Outcome, ProbeAnswer, Record};

use crate::data::AnswerData;
use crate::fault::Fault;
use crate::op::key_for;

/// A read-only question to the world: did this operation happen? An error means "cannot tell".
pub type Probe<C, W, T> = fn(&C, &W, &Doubt<'_>) -> Result<Probed<T>, Fault>;

/// The operation that is in doubt.
#[derive(Debug)]
pub struct Doubt<'a> {
    record: &'a Record,
}

impl<'a> Doubt<'a> {
    pub(crate) fn of(record: &'a Record) -> Self {
        Self { record }
    }

    /// The operation's key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.record.key.text
    }

    /// The attempt that gave no answer.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.record.attempt
    }

    /// The key that the attempt passed downstream: what the world can be asked for.
    #[must_use]
    pub fn downstream_key(&self) -> String {
        match &self.record.detail.downstream {
            Some(downstream) => downstream.key.clone(),
            None => self.record.id.to_string(),
        }
    }

    /// The same where the command has more than one downstream.
    #[must_use]
    pub fn downstream_key_for(&self, downstream: &str) -> String {
        key_for(&self.downstream_key(), downstream)
    }
}

/// What a probe says.
#[derive(Debug)]
pub enum Probed<T> {
    /// It happened: something new exists.
    Created(T),
    /// It happened: something that existed is different.
    Updated(T),
    /// It happened: something is gone.
    Deleted(T),
    /// It did not happen.
    No,
    /// Cannot tell, and why.
    CannotTell(String),
}

impl<T: AnswerData> Probed<T> {
    pub(crate) fn answer(self) -> ProbeAnswer {
        let yes = |effect, data: &T| {
            let data = data.as_json().0.map(Arc::from);
            ProbeAnswer::Yes(Outcome { unavailable: data.is_none(), data, ..Outcome::with_effect(effect) })
        };
        match self {
            Self::Created(data) => yes(Effect::Created, &data),
            Self::Updated(data) => yes(Effect::Updated, &data),
            Self::Deleted(data) => yes(Effect::Deleted, &data),
            Self::No => ProbeAnswer::No,
            Self::CannotTell(why) => ProbeAnswer::CannotTell(why),
        }
    }
}
