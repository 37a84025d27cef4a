//! The proof that an operation is done.

use std::sync::Arc;

use crate::facts::Ran;
use crate::record::{DoubleEffect, Effect, Record};

/// The proof that an operation is done.
///
/// ```
/// use std::sync::Arc;
/// use onceward::{Effect, Ledger, ManualClock, MemoryStore, Operation};
///
/// let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0)))).blocking();
/// let mail = Operation::new("send_mail").key("welcome-c1");
/// ledger.run(mail.clone(), |attempt| Ok(attempt.dispatch()?.created(&1)))?;
/// let retry = ledger.run(mail, |_| unreachable!("a retry does not run"))?;
/// assert!(retry.replayed());
/// assert_eq!((retry.effect(), retry.original_effect()), (Effect::Noop, Effect::Created));
/// # Ok::<(), onceward::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Receipt {
    record: Arc<Record>,
    ran: Ran,
}

impl Receipt {
    pub(crate) fn new(record: Arc<Record>, ran: Ran) -> Self {
        Self { record, ran }
    }

    /// The record that the receipt is about.
    #[must_use]
    pub fn record(&self) -> &Arc<Record> {
        &self.record
    }

    /// Whether this call ran the operation.
    #[must_use]
    pub fn ran(&self) -> Ran {
        self.ran
    }

    /// Whether this is the stored result of an earlier call, so that this call ran nothing.
    #[must_use]
    pub fn replayed(&self) -> bool {
        self.ran == Ran::No
    }

    /// What this call changed: nothing if it is a replay.
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self.ran {
            Ran::No => Effect::Noop,
            Ran::Yes => self.original_effect(),
        }
    }

    /// What the operation changed when it ran.
    #[must_use]
    pub fn original_effect(&self) -> Effect {
        self.record.outcome.as_ref().and_then(|outcome| outcome.effect).unwrap_or(Effect::Updated)
    }

    /// The stored result as JSON text, byte for byte; `None` if there is none or it could not be stored.
    #[must_use]
    pub fn data(&self) -> Option<&str> {
        self.record.outcome.as_ref()?.data.as_ref().map(|data| data.get())
    }

    /// The bytes that a surface stored beside the result.
    #[must_use]
    pub fn body(&self) -> Option<&[u8]> {
        self.record.outcome.as_ref()?.body.as_deref()
    }

    /// The alarm, if more than one attempt had or may have had an effect.
    #[must_use]
    pub fn double_effect(&self) -> Option<DoubleEffect> {
        self.record.detail.double_effect
    }
}
