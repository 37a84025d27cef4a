//! Held operations: list, release and edit them, and execute them from their stored request.

use std::sync::Arc;

use super::{Ledger, stopped_error};
use crate::barrier::is_in_scope;
use crate::error::Error;
use crate::invalid::InvalidInput;
use crate::key::OperationId;
use crate::operation::{Intent, Operation};
use crate::policy::{Hold, Terms};
use crate::record::{Class, Outcome, Record, State};
use crate::store::{Begin, Filter, Swap};
use crate::transition;
use crate::word::Word;

/// How many held operations are read at once.
const PAGE: usize = 500;

/// The two records of an edit.
#[derive(Debug, Clone)]
pub struct Edited {
    /// The operation that was held before. It is cancelled.
    pub replaced: Arc<Record>,
    /// The operation that is held in its place.
    pub held: Arc<Record>,
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

    /// The operations that are held back, oldest first, in one scope or in all.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn held(&self, scope: Option<&str>) -> Result<Vec<Record>, Error> {
        let mut filter = Filter {
            scope_prefix: scope.map(str::to_owned),
            states: vec![State::Staged],
            limit: PAGE,
            ..Filter::default()
        };
        let mut held = Vec::new();
        loop {
            let page = self.store().list(&filter).await?;
            let full = page.len() == PAGE;
            filter.before = page.last().map(|listed| listed.cursor);
            // Gateways and proxies separate the callers of a scope.
            let is_there = |record: &Record| scope.is_none_or(|scope| is_in_scope(&record.scope, scope));
            // After a restore, what was held may have been released since the backup.
            let records = page.into_iter().map(|listed| self.through_fence(listed.record));
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
    pub async fn release(&self, id: &OperationId, word: &Word) -> Result<Arc<Record>, Error> {
        self.change(id, "releasing", |record, _, now_ms| transition::release(record, word, now_ms)).await
    }

    /// The intent of a held operation, for a process that executes it from its stored request.
    #[must_use]
    pub fn held_intent(&self, record: &Record, terms: Terms) -> Intent {
        Intent::of_held(record, terms, self.identity().secret.as_ref())
    }

    /// Replaces a held operation by another one, which is held instead. The old one is cancelled first, so that never
    /// both can run; a crash in between leaves it cancelled. `hold` sets a new time; without it, the new operation is
    /// held until the same time as the old one.
    ///
    /// Only the scope and the time come from the old operation. Its probe, its check and its compensation ask about or
    /// take back what the old request would have done: give the replacement its own, or start with
    /// [`Operation::instead_of`] if only the arguments differ.
    ///
    /// # Errors
    /// [`Error::WrongState`] if it is not held any more, and [`Error::Invalid`] if the request is too large or the
    /// replacement only reads.
    pub async fn edit(
        &self,
        id: &OperationId,
        replacement: Operation,
        hold: Option<Hold>,
    ) -> Result<Edited, Error> {
        let (record, _) = self.find(id).await?;
        let Some(before) = record.held().cloned() else {
            return Err(Error::WrongState { action: "editing", record });
        };
        // The key names the operation that is replaced.
        let replacement = replacement.scope(&record.scope).key(format!("edit:{}", record.id));
        let mut intent = self.intent(replacement)?;
        intent.terms.hold = match hold {
            None => Hold::Approve,
            Some(Hold::No) => {
                return Err(InvalidInput::new("an edited operation is held; release it afterwards").into());
            }
            Some(hold @ (Hold::For(_) | Hold::Approve)) => hold,
        };
        if intent.terms.class == Class::Read {
            let message = format!("{} only reads, and a read is never held; run it instead", intent.name);
            return Err(InvalidInput::new(message).into());
        }
        if let Some(known) = self.store().load(&intent.id).await? {
            return Err(Error::WrongState {
                action: "editing an operation that was edited already",
                record: known,
            });
        }
        let mut new = transition::hold(None, &intent, self.now_ms());
        if hold.is_none() {
            new.detail.held.iter_mut().for_each(|held| held.until_ms = before.until_ms);
        }
        let outcome = Outcome {
            replaced_by: Some(new.id.clone()),
            ..Outcome::because(Some(format!("replaced by {}", new.id)))
        };
        let replaced = self
            .change(id, "editing", |record, _, now_ms| {
                record.held()?;
                Some(transition::cancelled(record, outcome.clone(), now_ms))
            })
            .await?;
        match self.store().begin(None, new, self.mode).await? {
            Begin::Stopped(barrier) => Err(stopped_error(barrier, Some(replaced))),
            Begin::Swapped(Swap::Written(held)) => Ok(Edited { replaced, held }),
            Begin::Swapped(Swap::Conflict(found)) => {
                let record = found.unwrap_or_else(|| Arc::clone(&replaced));
                Err(Error::WrongState { action: "editing an operation that was edited already", record })
            }
        }
    }
}

impl Operation {
    /// The operation that replaces a held one if only its arguments differ: the same tool or function, with the same
    /// terms, probe, check and compensation. Add the input and the request, then use [`Ledger::edit`].
    #[must_use]
    pub fn instead_of(record: &Record) -> Self {
        let detail = &record.detail;
        let terms = Terms {
            class: detail.class,
            max_attempts: detail.max_attempts,
            retention_ms: detail.retention_ms,
            tombstone_ms: detail.tombstone_ms,
            quarantine_ms: detail.quarantine_ms,
            ..Terms::default()
        };
        Self::new(&record.name)
            .terms(terms)
            .probe_command(detail.probe.clone())
            .probe_no(detail.probe_no.clone())
            .verify_command(detail.verify.clone())
            .folder(detail.folder.clone())
            .undo(detail.undo.clone())
    }
}
