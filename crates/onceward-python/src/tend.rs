//! What people do to records: list, show, settle, cancel, forget, wait, clean up.

use std::sync::Arc;

use onceward::{Cancelled, Cursor, Error, Filter, InvalidInput, OperationId, Outcome, State, Verdict};
use pyo3::prelude::*;

use crate::error;
use crate::handle::Handle;
use crate::record::Record;
use crate::told;

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
        let seen = self.tend(py, |opened| async move { opened.ledger.list(&filter).await })?;
        let shown = |(listed, state): (onceward::Listed, State)| {
            (listed.cursor.0, Record::new(Arc::new(listed.record), state))
        };
        Ok(seen.into_iter().map(shown).collect())
    }

    /// The record of that id.
    fn show(&self, py: Python<'_>, id: &str) -> PyResult<Record> {
        let id = parsed(py, id)?;
        let (record, state) = self.tend(py, |opened| async move { opened.ledger.find(&id).await })?;
        Ok(Record::new(record, state))
    }

    /// Settles an operation in doubt, as `done` (with a result as JSON text) or `failed`.
    #[pyo3(signature = (id, verdict, *, json, reason, by))]
    fn settle(
        &self,
        py: Python<'_>,
        id: &str,
        verdict: &str,
        json: Option<String>,
        reason: Option<String>,
        by: String,
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
        let data = json.map(told::raw).transpose()?;
        let unavailable = data.is_none() && verdict == Verdict::Done;
        let outcome = Outcome { data, unavailable, settled_by: Some(by), ..Outcome::because(reason) };
        let work = |opened: Arc<crate::handle::Opened>| async move {
            opened.blocking.settle(&id, verdict, outcome).await
        };
        self.tend(py, work).map(settled)
    }

    /// Asks an operation to stop; tells whether it is certain that it will not happen.
    fn cancel(&self, py: Python<'_>, id: &str) -> PyResult<(bool, Record)> {
        let id = parsed(py, id)?;
        let cancelled = self.tend(py, |opened| async move { opened.blocking.cancel(&id).await })?;
        Ok(match cancelled {
            Cancelled::Certain(record) => (true, settled(record)),
            Cancelled::Requested(record) => (false, settled(record)),
        })
    }

    /// Deletes the record: the next call with its key runs.
    fn forget(&self, py: Python<'_>, id: &str) -> PyResult<Record> {
        let id = parsed(py, id)?;
        self.tend(py, |opened| async move { opened.blocking.forget(&id).await }).map(settled)
    }

    /// Waits until the operation is neither staged nor running, or the time is over.
    fn wait_for(&self, py: Python<'_>, id: &str, timeout_ms: u64) -> PyResult<Record> {
        let id = parsed(py, id)?;
        let work =
            |opened: Arc<crate::handle::Opened>| async move { opened.ledger.wait(&id, timeout_ms).await };
        let (record, state) = self.tend(py, work)?;
        Ok(Record::new(record, state))
    }

    /// Does what time asks for: how many results expired, tombstones went, and doubts were written down.
    fn sweep(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        let swept = self.tend(py, |opened| async move { opened.blocking.sweep(|_| {}).await })?;
        Ok((swept.expired, swept.deleted, swept.doubted))
    }
}

fn settled(record: Arc<onceward::Record>) -> Record {
    let state = record.state;
    Record::new(record, state)
}

fn parsed(py: Python<'_>, id: &str) -> PyResult<OperationId> {
    OperationId::parse(id).map_err(|invalid| error::not_done(py, &Error::Invalid(invalid)))
}
