//! Taking back what a command did.

use std::sync::Arc;

use onceward::{Class, ProgramUndo, Record};
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use crate::fault::Fault;
use crate::op::{Applied, Op, key_for};

/// Takes an operation back. It gets the operation with its stored answer, and the compensation's own dispatch.
pub type UndoFn<W> = fn(&Original<'_>, Op<'_, W>) -> Result<Applied<()>, Fault>;

/// How the operations of a command are taken back: [`Mutating::UNDO`](crate::Mutating::UNDO).
pub struct Undo<W> {
    act: UndoFn<W>,
    class: Class,
}

impl<W> Undo<W> {
    /// A command is taken back by this function. The compensation is an operation of its own, of class `Once`.
    #[must_use]
    pub const fn new(act: UndoFn<W>) -> Self {
        Self { act, class: Class::Once }
    }

    /// What may be done if the compensation is in doubt: `Idempotent` if it looks before it acts, `Keyed` if the
    /// downstream honours [`Op::downstream_key`].
    #[must_use]
    pub const fn class(self, class: Class) -> Self {
        Self { class, ..self }
    }

    pub(crate) const fn its_class(&self) -> Class {
        self.class
    }

    pub(crate) fn take_back(&self, record: &Arc<Record>, op: Op<'_, W>) -> Result<Applied<()>, Fault> {
        (self.act)(&Original { record }, op)
    }
}

impl<W> Clone for Undo<W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for Undo<W> {}

/// The operation that is taken back. Its arguments are not stored; its answer is.
#[derive(Debug)]
pub struct Original<'a> {
    record: &'a Record,
}

impl Original<'_> {
    /// What the command answered.
    ///
    /// # Errors
    /// If the stored answer has another shape. Nothing has happened.
    pub fn data<T: DeserializeOwned>(&self) -> Result<T, Fault> {
        let data = self.record.outcome.as_ref().and_then(|outcome| outcome.data.as_ref());
        let data = data.ok_or_else(|| Fault::no_effect("no answer is stored for this operation"))?;
        serde_json::from_str(data.get())
            .map_err(|error| Fault::no_effect(format!("the stored answer cannot be used: {error}")))
    }

    /// The operation's id.
    #[must_use]
    pub fn operation(&self) -> &str {
        self.record.id.as_str()
    }

    /// The operation's key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.record.key.text
    }

    /// The key that the operation passed downstream. The compensation has one of its own: [`Op::downstream_key`].
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

/// What is stored with an operation that a tool can take back. Of the world, only a hash is stored: its name may hold a
/// secret.
pub(crate) fn stored(tool: &str, place: &str) -> ProgramUndo {
    let hash = Sha256::digest(place.as_bytes());
    ProgramUndo { program: tool.to_owned(), world: data_encoding::HEXLOWER.encode(&hash[..16]) }
}
