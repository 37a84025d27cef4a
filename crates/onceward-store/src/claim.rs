//! The attempt of an atomic operation. It is the same for all databases.

use onceward::{Dispatched, Receipt, Record, Redaction};

/// An attempt whose intent is written in the caller's transaction, and not committed yet.
#[derive(Debug, Clone)]
pub struct AtomicClaim {
    pub(crate) record: Record,
    /// The rules for what is left out of the result before it is stored.
    pub(crate) redact: Redaction,
}

/// The result of beginning an atomic operation.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is matched once and never stored")]
pub enum AtomicBegun {
    /// Perform the effect in this transaction, then finish the claim in it.
    Execute(AtomicClaim),
    /// The operation is already done. Do not perform it again.
    Replay(Receipt),
}

impl AtomicClaim {
    /// The record as written in the transaction.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The token that reports an effect. Nothing is recorded here, because effect and record share one transaction.
    #[must_use]
    pub fn dispatch(&self) -> Dispatched {
        onceward::atomic::dispatch()
    }
}
