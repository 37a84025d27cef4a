//! Held operations: list and release them, and execute them from their stored request.

use std::sync::Arc;

use super::{Admin, Ledger, stopped_error};
use crate::barrier::is_in_scope;
use crate::error::Error;
use crate::key::OperationId;
use crate::operation::Intent;
use crate::policy::Terms;
use crate::record::{Record, State};
use crate::store::{Begin, Filter, Swap};
use crate::transition;
use crate::word::Word;

/// How many held operations are read at once.
const PAGE: usize = 500;

impl Admin<'_> {
    /// The operations that are held back, oldest first, in one scope or in all.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn held(self, scope: Option<&str>) -> Result<Vec<Record>, Error> {
        let mut filter = Filter {
            scope_prefix: scope.map(str::to_owned),
            states: vec![State::Staged],
            limit: PAGE,
            ..Filter::default()
        };
        let mut held = Vec::new();
        loop {
            let page = self.0.store().list(&filter).await?;
            let full = page.len() == PAGE;
            filter.before = page.last().map(|listed| listed.cursor);
            // Gateways and proxies separate the callers of a scope.
            let is_there = |record: &Record| scope.is_none_or(|scope| is_in_scope(&record.scope, scope));
            // After a restore, what was held may have been released since the backup.
            let records = page.into_iter().map(|listed| self.0.through_fence(listed.record));
            let records = records.filter(|record| record.state == State::Staged && record.held().is_some());
            held.extend(records.filter(is_there));
            if !full {
                held.reverse();
                return Ok(held);
            }
        }
    }

    /// Releases a held operation before its time: from now on a call, or a process that has its request, may start it.
    /// Starts nothing itself. Releasing it again changes nothing. An operation whose last attempt failed without effect
    /// and whose request is still stored can be released too.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::WrongState`] if it is not held any more.
    pub async fn release(self, id: &OperationId, word: &Word) -> Result<Arc<Record>, Error> {
        self.0.change(id, "releasing", |record, _, now_ms| transition::release(record, word, now_ms)).await
    }

    /// The intent of a held operation, for a process that executes it from its stored request.
    #[must_use]
    pub fn held_intent(self, record: &Record, terms: Terms) -> Intent {
        Intent::of_held(record, terms, self.0.identity().secret.as_ref())
    }
}

impl Ledger {
    /// Records that the operation is held back, which ends the call: see [`Error::Held`]. Returns the record of another
    /// caller that was faster, if it is still there.
    pub(super) async fn hold(
        &self,
        found: Option<&Record>,
        intent: &Intent,
        now_ms: i64,
    ) -> Result<Option<Arc<Record>>, Error> {
        let record = transition::hold(found, intent, now_ms);
        match self.store().begin(found.map(|found| found.version), record, self.mode).await? {
            Begin::Swapped(Swap::Written(record)) => Err(Error::Held { record }),
            Begin::Swapped(Swap::Conflict(found)) => Ok(found),
            // What is held would start when the barrier is lifted.
            Begin::Stopped(barrier) => Err(stopped_error(barrier, None)),
        }
    }
}
