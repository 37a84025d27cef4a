//! Operations on a whole batch of jobs.

use onceward::StoreError;
use tokio_postgres::Row;

use super::BatchResult;
use crate::postgres::queue::{Batching, PoolJob, QueuedJob, Sent};
use crate::postgres::rows::{self, signed};

pub(super) fn answer_watches(batch: Vec<QueuedJob>, rows: &[Row]) -> BatchResult {
    let unchanged = match ids_of(rows) {
        Ok(unchanged) => unchanged,
        Err(error) => return Err((batch, error)),
    };
    for waiting in batch {
        if let PoolJob::Watch { id, reply, .. } = waiting.job {
            drop(reply.send(Ok(unchanged.contains(id.as_str()))));
        }
    }
    Ok(())
}

pub(super) fn ids_of(rows: &[Row]) -> Result<std::collections::HashSet<&str>, StoreError> {
    rows.iter().map(|row| rows::cell(row, 0)).collect()
}

pub(super) fn version(job: &PoolJob) -> Option<i64> {
    match job {
        PoolJob::Delete { expected, .. } => Some(signed(*expected)),
        PoolJob::Watch { seen, .. } => Some(signed(*seen)),
        PoolJob::Swap { .. } | PoolJob::Load { .. } | PoolJob::Query { .. } => None,
    }
}

pub(super) fn mark_sent(batch: Vec<QueuedJob>) -> Vec<QueuedJob> {
    batch.into_iter().map(|waiting| QueuedJob { sent: Sent::Before, ..waiting }).collect()
}

pub(super) fn isolate(batch: Vec<QueuedJob>) -> Vec<QueuedJob> {
    batch.into_iter().map(|waiting| QueuedJob { batching: Batching::Alone, ..waiting }).collect()
}

/// Fails all jobs with the same error.
pub(super) fn fail_all(jobs: Vec<QueuedJob>, error: &StoreError) {
    for waiting in jobs {
        waiting.job.fail(error.clone());
    }
}
