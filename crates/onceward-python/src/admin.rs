//! Administration of records: list, show, settle, cancel, forget, wait, sweep; and of scopes: stop, resume, settlement.

use std::sync::Arc;

use onceward::{
    Cancelled, Cursor, EffectNow, Error, Filter, Happened, InvalidInput, Operation, OperationId, Outcome,
    Policy, Redaction, State, UndoOutcome, Verdict, Word,
};
use pyo3::prelude::*;

use crate::error;
use crate::handle::{Handle, Opened};
use crate::record::Record;
use crate::wire;

/// An undo that has begun.
#[pyclass(frozen, module = "onceward._onceward")]
pub(crate) struct Undoing(onceward::Undoing);

#[pymethods]
impl Undoing {
    /// The compensation's name.
    #[getter]
    fn name(&self) -> &str {
        &self.0.intent.name
    }

    /// The compensation's key.
    #[getter]
    fn key(&self) -> &str {
        &self.0.intent.key.text
    }

    /// The scope of both operations.
    #[getter]
    fn scope(&self) -> &str {
        &self.0.intent.scope
    }

    /// When the operation that is taken back was first requested.
    #[getter]
    fn created_ms(&self) -> i64 {
        self.0.record.created_ms
    }
}

#[pymethods]
impl Handle {
    /// Records, newest first, and the cursor of each for the next page.
    #[pyo3(signature = (*, scope, name, states, before, limit))]
    fn list(
        &self,
        py: Python<'_>,
        scope: Option<String>,
        name: Option<String>,
        states: Vec<String>,
        before: Option<i64>,
        limit: usize,
    ) -> PyResult<Vec<(i64, Record)>> {
        let states = states.iter().map(|state| state.parse::<State>()).collect::<Result<_, InvalidInput>>();
        let states = states.map_err(|invalid| error::not_done(py, &invalid.into()))?;
        let filter = Filter { scope, name, states, before: before.map(Cursor), limit, ..Filter::default() };
        let seen = self.administer(py, |opened| async move { opened.ledger.list(&filter).await })?;
        let shown = |(listed, state): (onceward::Listed, State)| {
            (listed.cursor.0, Record::new(Arc::new(listed.record), state))
        };
        Ok(seen.into_iter().map(shown).collect())
    }

    /// The record with that id.
    fn show(&self, py: Python<'_>, id: &str) -> PyResult<Record> {
        let id = parsed(py, id)?;
        let (record, state) = self.administer(py, |opened| async move { opened.ledger.find(&id).await })?;
        Ok(Record::new(record, state))
    }

    /// Settles an operation in doubt, as `done` (with a result as JSON text) or `failed`.
    /// `policy` is TOML and says what is redacted.
    #[pyo3(signature = (id, verdict, *, json, reason, by, speaker, policy=None))]
    #[expect(clippy::too_many_arguments, reason = "it is called from one place")]
    fn settle(
        &self,
        py: Python<'_>,
        id: &str,
        verdict: &str,
        json: Option<String>,
        reason: Option<String>,
        by: String,
        speaker: &str,
        policy: Option<&str>,
    ) -> PyResult<Record> {
        let id = parsed(py, id)?;
        let verdict = match verdict {
            "done" => Verdict::Done,
            "failed" => Verdict::Failed,
            other => {
                return Err(error::not_done(
                    py,
                    &InvalidInput::new(format!("{other:?} is not one of done, failed")).into(),
                ));
            }
        };
        let data = json.map(wire::raw).transpose()?;
        let unavailable = data.is_none() && verdict == Verdict::Done;
        let outcome = Outcome { data, unavailable, ..Outcome::because(None) };
        let (word, policy) = (word(py, speaker, by, reason)?, parsed_policy(py, policy)?);
        let work = |opened: Arc<Opened>| async move {
            let redact = redaction(&opened, &id, policy).await?;
            opened.blocking.admin().settle(&id, verdict, redact.word(word), redact.outcome(outcome)).await
        };
        self.administer(py, work).map(settled)
    }

    /// Asks an operation to stop; returns whether it will definitely not happen. `policy` is as for `settle`.
    #[pyo3(signature = (id, *, reason, by, speaker, policy=None))]
    fn cancel(
        &self,
        py: Python<'_>,
        id: &str,
        reason: Option<String>,
        by: String,
        speaker: &str,
        policy: Option<&str>,
    ) -> PyResult<(bool, Record)> {
        let (id, word) = (parsed(py, id)?, word(py, speaker, by, reason)?);
        let policy = parsed_policy(py, policy)?;
        let work = |opened: Arc<Opened>| async move {
            let word = redaction(&opened, &id, policy).await?.word(word);
            opened.blocking.admin().cancel(&id, &word).await
        };
        let cancelled = self.administer(py, work)?;
        Ok(match cancelled {
            Cancelled::Certain(record) => (true, settled(record)),
            Cancelled::Requested(record) => (false, settled(record)),
        })
    }

    /// The held operations, oldest first.
    #[pyo3(signature = (*, scope))]
    fn held(&self, py: Python<'_>, scope: Option<String>) -> PyResult<Vec<Record>> {
        let work = |opened: Arc<Opened>| async move { opened.ledger.admin().held(scope.as_deref()).await };
        let held = self.administer(py, work)?;
        Ok(held.into_iter().map(|record| settled(Arc::new(record))).collect())
    }

    /// Releases a held operation before its time. Starts nothing. `policy` is as for `settle`.
    #[pyo3(signature = (id, *, reason, by, speaker, policy=None))]
    fn release(
        &self,
        py: Python<'_>,
        id: &str,
        reason: Option<String>,
        by: String,
        speaker: &str,
        policy: Option<&str>,
    ) -> PyResult<Record> {
        let (id, word) = (parsed(py, id)?, word(py, speaker, by, reason)?);
        let policy = parsed_policy(py, policy)?;
        let work = |opened: Arc<Opened>| async move {
            let word = redaction(&opened, &id, policy).await?.word(word);
            opened.blocking.admin().release(&id, &word).await
        };
        self.administer(py, work).map(settled)
    }

    /// Marks an operation before its compensation begins.
    fn begin_undo(&self, py: Python<'_>, id: &str) -> PyResult<Undoing> {
        let id = parsed(py, id)?;
        let work = |opened: Arc<Opened>| async move {
            let (record, _) = opened.ledger.find(&id).await?;
            opened.blocking.undo().begin(&id, Operation::undo_of(&record)).await
        };
        Ok(Undoing(self.administer(py, work)?))
    }

    /// Records what became of an undo: whether the compensation happened, and what is there now.
    fn end_undo(
        &self,
        py: Python<'_>,
        undoing: &Undoing,
        happened: Option<&str>,
        reason: String,
        now: Option<&str>,
    ) -> PyResult<Record> {
        let happened = match happened {
            Some("yes") => Some(Happened::Yes),
            Some("no") => Some(Happened::No),
            Some(_) => Some(Happened::Unknown),
            None => None,
        };
        let now = match now {
            None => EffectNow::NotAsked,
            Some("gone") => EffectNow::Gone,
            Some("there") => EffectNow::StillThere,
            Some(_) => EffectNow::CannotTell("gone() cannot tell".to_owned()),
        };
        let outcome = UndoOutcome::of_end(happened, reason, &now);
        let undoing = undoing.0.clone();
        let work = |opened: Arc<Opened>| async move { opened.blocking.undo().end(&undoing, &outcome).await };
        self.administer(py, work).map(settled)
    }

    /// Stops a scope, waits for what runs, and returns its settlement as JSON.
    #[pyo3(signature = (scope, *, reason, by, speaker, timeout_ms))]
    fn stop(
        &self,
        py: Python<'_>,
        scope: String,
        reason: Option<String>,
        by: String,
        speaker: &str,
        timeout_ms: u64,
    ) -> PyResult<String> {
        let word = word(py, speaker, by, reason)?;
        let work = |opened: Arc<Opened>| async move {
            opened.ledger.scopes().stop(&scope, &word).await?;
            opened.ledger.scopes().wait(&scope, timeout_ms).await?;
            opened.ledger.scopes().settlement(&scope).await
        };
        wire::json(&self.administer(py, work)?)
    }

    /// Lets operations of the scope begin again; returns whether it was stopped.
    #[pyo3(signature = (scope, *, reason, by, speaker))]
    fn resume(
        &self,
        py: Python<'_>,
        scope: String,
        reason: Option<String>,
        by: String,
        speaker: &str,
    ) -> PyResult<bool> {
        let word = word(py, speaker, by, reason)?;
        let work = |opened: Arc<Opened>| async move { opened.ledger.scopes().resume(&scope, &word).await };
        Ok(self.administer(py, work)?.is_some())
    }

    /// The settlement of a scope as JSON.
    fn settlement(&self, py: Python<'_>, scope: String) -> PyResult<String> {
        let work = |opened: Arc<Opened>| async move { opened.ledger.scopes().settlement(&scope).await };
        wire::json(&self.administer(py, work)?)
    }

    /// Deletes the record: the next call with its key runs.
    fn forget(&self, py: Python<'_>, id: &str) -> PyResult<Record> {
        let id = parsed(py, id)?;
        self.administer(py, |opened| async move { opened.blocking.admin().forget(&id).await }).map(settled)
    }

    /// Waits until the operation is neither staged nor running, or the timeout is over.
    fn wait_for(&self, py: Python<'_>, id: &str, timeout_ms: u64) -> PyResult<Record> {
        let id = parsed(py, id)?;
        let work = |opened: Arc<Opened>| async move { opened.ledger.wait(&id, timeout_ms).await };
        let (record, state) = self.administer(py, work)?;
        Ok(Record::new(record, state))
    }

    /// Expires what is due. Returns how many results expired, tombstones were deleted, and doubts were recorded.
    fn sweep(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        let swept =
            self.administer(py, |opened| async move { opened.blocking.admin().sweep(|_| {}).await })?;
        Ok((swept.expired, swept.deleted, swept.doubted))
    }
}

fn settled(record: Arc<onceward::Record>) -> Record {
    let state = record.state;
    Record::new(record, state)
}

/// Who says something about an operation, and why.
fn word(py: Python<'_>, speaker: &str, name: String, reason: Option<String>) -> PyResult<Word> {
    let word = match speaker {
        "person" => Word::person(name),
        "agent" => Word::agent(name),
        "program" => Word::program(name),
        other => {
            let why = format!("{other:?} is not one of person, agent, program");
            return Err(error::not_done(py, &InvalidInput::new(why).into()));
        }
    };
    Ok(word.note(reason))
}

fn parsed_policy(py: Python<'_>, policy: Option<&str>) -> PyResult<Option<Policy>> {
    policy.map(Policy::parse).transpose().map_err(|invalid| error::not_done(py, &invalid.into()))
}

/// What the policy redacts in the texts of this operation.
async fn redaction(opened: &Opened, id: &OperationId, policy: Option<Policy>) -> Result<Redaction, Error> {
    let (record, _) = opened.ledger.find(id).await?;
    let settings = policy.map(|policy| policy.settings(&record.name)).transpose()?;
    Ok(settings.unwrap_or_default().terms.redact)
}

pub(crate) fn parsed(py: Python<'_>, id: &str) -> PyResult<OperationId> {
    OperationId::parse(id).map_err(|invalid| error::not_done(py, &Error::Invalid(invalid)))
}
