//! Moving house: taking in the records of another ledger.

use std::sync::Arc;

use super::Ledger;
use crate::decide::Liveness;
use crate::error::{Error, InvalidInput};
use crate::key::OperationId;
use crate::record::{Detail, Record, State};
use crate::store::Swap;
use crate::transition;

/// What taking in a record came to.
#[derive(Debug, Clone)]
pub enum Adopted {
    /// It is written.
    Taken,
    /// The same operation is there, as it was or further on: nothing was written.
    AlreadyThere,
    /// Another operation, or an earlier state of it, stands under that key: nothing was written.
    Differs(Arc<Record>),
}

impl Ledger {
    /// Takes in a record of another ledger, once: doing it again changes nothing.
    ///
    /// A record that was running is in doubt here. Its owner, if it lives, answers to the other ledger.
    ///
    /// # Errors
    /// When the record is not what its id says, and the ledger's own.
    pub async fn adopt(&self, record: Record) -> Result<Adopted, Error> {
        let named = OperationId::of(&record.scope, &record.name, &record.key.text);
        if record.id != named && record.id != OperationId::unnamed(&record.scope, &record.key.text) {
            return Err(InvalidInput::new(format!(
                "{} is not the id of its scope, name and key: the record has been changed",
                record.id
            ))
            .into());
        }
        let exported = record.clone();
        let record = match record.state {
            State::Running => transition::doubt(&record, Liveness::Unknown, self.now_ms()),
            State::Staged
            | State::Done
            | State::Failed
            | State::InDoubt
            | State::Cancelled
            | State::Expired => record,
        };
        // Its owner held a lock of the other ledger. A lock of the same name here belongs to another attempt.
        let record = Record { detail: Detail { owner: None, ..record.detail }, ..record };
        loop {
            match self.store().swap(None, record.clone(), self.door).await? {
                Swap::Written(_) => return Ok(Adopted::Taken),
                Swap::Conflict(Some(found)) => {
                    let there = is_there(&found, &exported);
                    return Ok(if there { Adopted::AlreadyThere } else { Adopted::Differs(found) });
                }
                // It was there a moment ago, and has been deleted since.
                Swap::Conflict(None) => {}
            }
        }
    }
}

/// Whether the record that is here is the exported one, as it was or further on. Of one version there is one outcome: a
/// record whose result was lost on the way is not the same.
fn is_there(found: &Record, exported: &Record) -> bool {
    let same = found.created_ms == exported.created_ms
        && found.detail.fingerprint == exported.detail.fingerprint
        && found.version >= exported.version;
    same && (found.version > exported.version || found.outcome == exported.outcome)
}
