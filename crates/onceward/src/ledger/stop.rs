//! Stopping a scope: no attempt in it begins any more, what is held back is cancelled, and what runs is asked to end.

use serde::Serialize;

use super::Ledger;
use crate::barrier::{Barrier, is_in_scope};
use crate::decide;
use crate::error::Error;
use crate::key::OperationId;
use crate::kind::Kind;
use crate::operation::Operation;
use crate::record::{Record, State};
use crate::settlement::{Part, Settlement};
use crate::store::{Filter, Listed};
use crate::transition::{self, Cancelling};
use crate::word::Word;

/// What lifting a barrier did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Resumed {
    /// The barrier that is gone, with who set it.
    pub barrier: Barrier,
    /// Who lifted it, when, and why. The ledger does not keep this, because the barrier is deleted.
    pub word: Word,
}

/// How many records one page of a listing has.
const PAGE: usize = 500;

/// How long an operation whose compensation has ended is waited for: the process that runs the undo may be gone.
const MARK_MS: u64 = 10_000;

/// What stopping a scope did.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Stopped {
    /// The barrier. Nothing that it covers begins any more.
    pub barrier: Barrier,
    /// Operations that were held back and are cancelled now: they certainly do not happen.
    pub cancelled: Vec<OperationId>,
    /// Operations that were running and were asked to end. Their own endings say what happened.
    pub asked: Vec<OperationId>,
}

/// Stops, resumes and accounts for scopes. See [`Ledger::scopes`].
#[derive(Clone, Copy)]
pub struct Scopes<'a>(pub(super) &'a Ledger);

impl Ledger {
    /// Stops, resumes and accounts for scopes.
    #[must_use]
    pub fn scopes(&self) -> Scopes<'_> {
        Scopes(self)
    }
}

impl Scopes<'_> {
    /// Stops a scope. When this returns, no attempt in it begins any more, in any process; what was held back is
    /// cancelled, and the owners of running attempts are asked to end them. Safe to repeat: the first barrier stays,
    /// with its word.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use onceward::{Code, Ledger, ManualClock, MemoryStore, Operation, Word};
    ///
    /// let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0)))).blocking();
    /// let mail = || Operation::new("send_mail").scope("run-7").key("welcome");
    /// ledger.scopes().stop("run-7", &Word::person("ada").note("wrong customer list".to_owned()))?;
    /// let refused = ledger.run(mail(), |attempt| Ok(attempt.dispatch()?.created(&())));
    /// assert_eq!(refused.unwrap_err().code(), Code::Stopped);
    /// ledger.scopes().resume("run-7", &Word::person("ada"))?;
    /// assert!(!ledger.run(mail(), |attempt| Ok(attempt.dispatch()?.created(&())))?.replayed());
    /// # Ok::<(), onceward::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if no operation can have this scope. When the ledger cannot be read or written; the barrier
    /// may be in place then, and stopping again is safe.
    pub async fn stop(self, scope: &str, word: &Word) -> Result<Stopped, Error> {
        self.0.check_scope(scope)?;
        let barrier = Barrier::new(scope, word.clone().at(self.0.now_ms()));
        let barrier = self.0.store().stop(&barrier).await?;
        let mut stopped = Stopped { barrier, cancelled: Vec::new(), asked: Vec::new() };
        let word = stopped.barrier.word_of_cancel();
        for id in self.0.unfinished(scope).await? {
            match self.0.end_if_open(&id, &word).await {
                Ok(State::Cancelled) => stopped.cancelled.push(id),
                Ok(State::Running) => stopped.asked.push(id),
                // It has ended meanwhile: its record says what became of it.
                Ok(State::Staged | State::Done | State::Failed | State::InDoubt | State::Expired)
                | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(stopped)
    }

    /// Waits until nothing in the scope is running, or until `timeout_ms` have passed. Returns what still runs. A
    /// compensation is waited for as well, although a stop does not ask it to end.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn wait(self, scope: &str, timeout_ms: u64) -> Result<Vec<OperationId>, Error> {
        let until_ms = transition::later(self.0.now_ms(), timeout_ms);
        let mut running = Vec::new();
        let compensations = self.0.compensations(scope).await?;
        for id in self.0.unfinished(scope).await?.into_iter().chain(compensations) {
            let left_ms = u64::try_from(until_ms.saturating_sub(self.0.now_ms())).unwrap_or(0);
            match self.0.wait(&id, left_ms).await {
                Ok((_, State::Running)) => running.push(id),
                Ok((record, State::Done | State::Failed)) => self.0.wait_for_mark(&record, until_ms).await?,
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(running)
    }

    /// Lets operations of the scope begin again. Returns `None` if the scope was not stopped.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no operation can have this scope. When the ledger cannot be written.
    pub async fn resume(self, scope: &str, word: &Word) -> Result<Option<Resumed>, Error> {
        self.0.check_scope(scope)?;
        let word = word.clone().at(self.0.now_ms());
        Ok(self.0.store().resume(scope).await?.map(|barrier| Resumed { barrier, word }))
    }

    /// The stopped scopes, ordered by name.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn stopped(self) -> Result<Vec<Barrier>, Error> {
        Ok(self.0.store().barriers().await?)
    }

    /// Accounts for every operation of the scope, and of its callers (`SCOPE~…`).
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn settlement(self, scope: &str) -> Result<Settlement, Error> {
        self.settlement_between(scope, None, None).await
    }

    /// The same for the operations that were first requested at `since_ms` or later, and before `until_ms`.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub async fn settlement_between(
        self,
        scope: &str,
        since_ms: Option<i64>,
        until_ms: Option<i64>,
    ) -> Result<Settlement, Error> {
        let mut all = Vec::new();
        self.0
            .each_in_scope(scope, Vec::new(), |listed, state| {
                let at_ms = listed.record.created_ms;
                if since_ms.is_none_or(|since| since <= at_ms) && until_ms.is_none_or(|until| at_ms < until) {
                    all.push((listed.record, state));
                }
            })
            .await?;
        let mut settlement = Settlement::new(scope, self.0.barrier_of(scope).await?);
        settlement.part = Part::of(since_ms, until_ms);
        all.iter().rev().for_each(|(record, state)| settlement.add(record, *state));
        Ok(settlement)
    }
}

impl Ledger {
    /// Waits until the operation that a compensation takes back says what became of it. The process that runs the undo
    /// writes that after the compensation has ended.
    async fn wait_for_mark(&self, compensation: &Record, until_ms: i64) -> Result<(), Error> {
        let Some(id) = &compensation.detail.undoes else { return Ok(()) };
        let until_ms = until_ms.min(transition::later(self.now_ms(), MARK_MS));
        loop {
            let found = self.store().load(id).await?;
            let pending = found.filter(|record| {
                let mark = record.detail.undone.as_ref();
                mark.is_some_and(|mark| mark.by == compensation.id && !mark.evidence.is_gone())
            });
            let left_ms = u64::try_from(until_ms.saturating_sub(self.now_ms())).unwrap_or(0);
            match pending {
                Some(record) if left_ms > 0 => {
                    let slice_ms = left_ms.min(*super::POLL_MS.end());
                    self.store().changed(id, record.version, slice_ms).await;
                }
                Some(_) | None => return Ok(()),
            }
        }
    }

    /// Refuses a scope that no operation can have: it is a mistake.
    fn check_scope(&self, scope: &str) -> Result<(), Error> {
        self.intent(Operation::new("stop").scope(scope).key("stop")).map(drop)
    }

    /// The barrier that covers the scope, if it is stopped.
    pub(super) async fn barrier_of(&self, scope: &str) -> Result<Option<Barrier>, Error> {
        Ok(self.store().barriers().await?.into_iter().find(|barrier| barrier.covers(scope)))
    }

    /// Cancels an operation that is held back, asks the owner of a running one to end it, and records the doubt about
    /// one whose owner is gone. Leaves every other record unchanged. Returns the state that this led to.
    async fn end_if_open(&self, id: &OperationId, word: &Word) -> Result<State, Error> {
        let mut led_to = State::Staged;
        self.change(id, "stopping", |record, liveness, now_ms| {
            let state = decide::effective_state(record, liveness, now_ms);
            led_to = state;
            Some(match state {
                State::Staged => match transition::cancel(record, liveness, word, now_ms) {
                    Cancelling::Cancelled(next) => {
                        led_to = State::Cancelled;
                        next
                    }
                    Cancelling::Requested(_) | Cancelling::Already | Cancelling::TooLate => record.clone(),
                },
                // The stop is about the scope: the operation can begin again once that is resumed.
                State::Running if record.detail.cancel_requested_ms.is_none() => {
                    transition::ask_to_end(record, now_ms)
                }
                State::Running => record.clone(),
                State::InDoubt | State::Failed if record.state == State::Running => {
                    transition::doubt(record, liveness, now_ms)
                }
                State::Done | State::Failed | State::InDoubt | State::Cancelled | State::Expired => {
                    record.clone()
                }
            })
        })
        .await?;
        Ok(led_to)
    }

    /// The operations of the scope that are held back or running, oldest first.
    async fn unfinished(&self, scope: &str) -> Result<Vec<OperationId>, Error> {
        let mut found = Vec::new();
        let states = vec![State::Staged, State::Running];
        self.each_in_scope(scope, states, |listed, _| {
            // A compensation takes back what the run did; stopping it would leave it in doubt. An event is not an
            // operation: it waits until the scope is resumed.
            if listed.record.detail.undoes.is_none() && listed.record.kind == Kind::Operation {
                found.push(listed.record.id);
            }
        })
        .await?;
        found.reverse();
        Ok(found)
    }

    /// The compensations of the scope that are running, oldest first.
    async fn compensations(&self, scope: &str) -> Result<Vec<OperationId>, Error> {
        let mut found = Vec::new();
        self.each_in_scope(scope, vec![State::Running], |listed, _| {
            if listed.record.detail.undoes.is_some() {
                found.push(listed.record.id);
            }
        })
        .await?;
        found.reverse();
        Ok(found)
    }

    /// Reads the operations of the scope in these states, newest first.
    pub(super) async fn each_in_scope(
        &self,
        scope: &str,
        states: Vec<State>,
        mut take: impl FnMut(Listed, State),
    ) -> Result<(), Error> {
        let scope_prefix = Some(scope.to_owned());
        let mut filter = Filter { scope_prefix, states, limit: PAGE, ..Filter::default() };
        loop {
            let page = self.list(&filter).await?;
            let full = page.len() == PAGE;
            for (listed, state) in page {
                filter.before = Some(listed.cursor);
                if is_in_scope(&listed.record.scope, scope) {
                    take(listed, state);
                }
            }
            if !full {
                return Ok(());
            }
        }
    }
}
