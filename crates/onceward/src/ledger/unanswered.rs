//! Intents whose write was not acknowledged. Their callers received an error and dispatched nothing. If such an
//! intent is found in the ledger later, it is withdrawn, so that it does not stay in doubt for ever.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Ledger;
use crate::error::Error;
use crate::key::OperationId;
use crate::store::Swap;
use crate::transition;

/// How many of them are kept. Any others stay in doubt, which is safe.
const MAX_INTENTS: usize = 1_000;

/// The unacknowledged intents of one ledger handle: the operation and the lock token of each.
#[derive(Default)]
pub(super) struct Unanswered {
    some: AtomicBool,
    intents: Mutex<Vec<(OperationId, u64)>>,
}

impl Unanswered {
    pub(super) fn note(&self, id: OperationId, token: u64) {
        let mut intents = self.intents();
        if intents.len() < MAX_INTENTS {
            intents.push((id, token));
            self.some.store(true, Ordering::Release);
        }
    }

    fn take(&self) -> Vec<(OperationId, u64)> {
        if !self.some.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut *self.intents())
    }

    fn intents(&self) -> MutexGuard<'_, Vec<(OperationId, u64)>> {
        self.intents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger {
    /// Withdraws the unacknowledged intents that were written after all.
    pub(super) async fn withdraw_unanswered(&self) -> Result<(), Error> {
        let mut intents = self.unanswered.take().into_iter();
        while let Some((id, token)) = intents.next() {
            if let Err(error) = self.withdraw(&id, token).await {
                // The ledger is still unavailable: keep the rest for the next call.
                self.unanswered.note(id, token);
                intents.for_each(|(id, token)| self.unanswered.note(id, token));
                return Err(error);
            }
        }
        Ok(())
    }

    async fn withdraw(&self, id: &OperationId, token: u64) -> Result<(), Error> {
        loop {
            let Some(found) = self.store().load(id).await? else { return Ok(()) };
            let Some(next) = transition::withdraw(&found, token, self.now_ms()) else { return Ok(()) };
            if let Swap::Written(_) = self.store().swap(Some(found.version), next, self.mode).await? {
                return Ok(());
            }
        }
    }
}
