//! Jobs that wait for the server. Jobs waiting when a connection becomes free are sent together, as one statement.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use onceward::{Begin, OperationId, Record, StoreError};
use tokio::sync::oneshot;
use tokio_postgres::Row;

use super::rows::Query;
use crate::writing::Writing;

/// The maximum number of changes in one statement.
const MAX_BATCH: usize = 512;
/// The maximum total size of a statement. A larger change is sent alone.
const MAX_BYTES: usize = 4 * 1024 * 1024;
/// The estimated size of a change without its result.
const CHANGE_BYTES: usize = 1024;

/// Where the reply is sent.
pub(super) type ReplySender<T> = oneshot::Sender<Result<T, StoreError>>;

/// A request to the server.
pub(super) enum PoolJob {
    Swap {
        expected: Option<u64>,
        record: Arc<Record>,
        writing: Writing,
        reply: ReplySender<Begin>,
    },
    Delete {
        id: OperationId,
        expected: u64,
        reply: ReplySender<bool>,
    },
    Load {
        id: OperationId,
        reply: ReplySender<Option<Arc<Record>>>,
    },
    /// Returns whether the record still has that version, and asks the server to announce its next change.
    Watch {
        id: OperationId,
        seen: u64,
        reply: ReplySender<bool>,
    },
    Query {
        query: Query,
        reply: ReplySender<Vec<Row>>,
    },
}

/// The kind of a job. Jobs of one kind can share a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobKind {
    Swap,
    Delete,
    Load,
    Watch,
    Query,
}

impl PoolJob {
    pub(super) fn kind(&self) -> JobKind {
        match self {
            Self::Swap { .. } => JobKind::Swap,
            Self::Delete { .. } => JobKind::Delete,
            Self::Load { .. } => JobKind::Load,
            Self::Watch { .. } => JobKind::Watch,
            Self::Query { .. } => JobKind::Query,
        }
    }

    pub(super) fn id(&self) -> Option<&OperationId> {
        match self {
            Self::Swap { record, .. } => Some(&record.id),
            Self::Delete { id, .. } | Self::Load { id, .. } | Self::Watch { id, .. } => Some(id),
            Self::Query { .. } => None,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Swap { record, .. } => {
                CHANGE_BYTES + record.outcome.as_ref().map_or(0, onceward::Outcome::size)
            }
            Self::Delete { .. } | Self::Load { .. } | Self::Watch { .. } | Self::Query { .. } => 0,
        }
    }

    /// Replies with an error. The caller may have stopped waiting.
    pub(super) fn fail(self, error: StoreError) {
        match self {
            Self::Swap { reply, .. } => drop(reply.send(Err(error))),
            Self::Delete { reply, .. } => drop(reply.send(Err(error))),
            Self::Load { reply, .. } => drop(reply.send(Err(error))),
            Self::Watch { reply, .. } => drop(reply.send(Err(error))),
            Self::Query { reply, .. } => drop(reply.send(Err(error))),
        }
    }
}

/// Whether a job was already sent and its reply was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    Never,
    Before,
}

/// Whether a job may share a statement with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Batching {
    Shared,
    Alone,
}

/// A job that waits in the queue or is in flight.
pub(super) struct QueuedJob {
    pub(super) job: PoolJob,
    pub(super) sent: Sent,
    pub(super) batching: Batching,
    pub(super) since: Instant,
    pub(super) until: Instant,
}

impl QueuedJob {
    pub(super) fn new(job: PoolJob, timeout: Duration) -> Self {
        let since = Instant::now();
        Self { job, sent: Sent::Never, batching: Batching::Shared, since, until: since + timeout }
    }

    pub(super) fn is_expired(&self) -> bool {
        self.until <= Instant::now()
    }
}

/// The waiting jobs, oldest first.
#[derive(Default)]
pub(super) struct Queue {
    waiting: VecDeque<QueuedJob>,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// How long the oldest job has waited.
    pub(super) fn waited(&self) -> Duration {
        self.waiting.front().map_or(Duration::ZERO, |waiting| waiting.since.elapsed())
    }

    pub(super) fn push(&mut self, waiting: QueuedJob) {
        self.waiting.push_back(waiting);
    }

    /// Puts jobs back at the front of the queue.
    pub(super) fn put_back(&mut self, jobs: Vec<QueuedJob>) {
        for waiting in jobs.into_iter().rev() {
            self.waiting.push_front(waiting);
        }
    }

    /// Removes all jobs that have timed out.
    pub(super) fn take_expired(&mut self) -> Vec<QueuedJob> {
        let (over, waiting) = self.waiting.drain(..).partition(QueuedJob::is_expired);
        self.waiting = waiting;
        Vec::from_iter::<VecDeque<_>>(over)
    }

    /// Takes the oldest job and all jobs that can share its statement: same kind, each of a different operation. They
    /// are sorted by id, so that concurrent statements take their locks in the same order.
    pub(super) fn take_batch(&mut self) -> Vec<QueuedJob> {
        let Some(first) = self.waiting.pop_front() else { return Vec::new() };
        let kind = first.job.kind();
        if kind == JobKind::Query || first.batching == Batching::Alone || self.waiting.is_empty() {
            return vec![first];
        }
        let mut bytes = first.job.bytes();
        let mut ids: HashSet<OperationId> = first.job.id().cloned().into_iter().collect();
        let mut batch = vec![first];
        let mut others = VecDeque::with_capacity(self.waiting.len());
        for waiting in self.waiting.drain(..) {
            let fits = waiting.job.kind() == kind
                && waiting.batching == Batching::Shared
                && batch.len() < MAX_BATCH
                && bytes + waiting.job.bytes() <= MAX_BYTES;
            // Of two jobs for one operation the older goes first.
            let alone = waiting.job.id().is_none_or(|id| ids.insert(id.clone()));
            if fits && alone {
                bytes += waiting.job.bytes();
                batch.push(waiting);
            } else {
                others.push_back(waiting);
            }
        }
        self.waiting = others;
        batch.sort_by(|one, other| one.job.id().cmp(&other.job.id()));
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(key: &str) -> QueuedJob {
        let (reply, _) = oneshot::channel();
        let id = OperationId::of("default", "test", key);
        QueuedJob::new(PoolJob::Load { id, reply }, Duration::from_secs(1))
    }

    fn delete(key: &str) -> QueuedJob {
        let (reply, _) = oneshot::channel();
        let id = OperationId::of("default", "test", key);
        QueuedJob::new(PoolJob::Delete { id, expected: 1, reply }, Duration::from_secs(1))
    }

    #[test]
    fn a_batch_has_one_kind_and_each_operation_once() {
        let mut queue = Queue::default();
        for waiting in [load("a"), delete("b"), load("c"), load("a"), load("b")] {
            queue.push(waiting);
        }
        let batch = |queue: &mut Queue| -> Vec<JobKind> {
            queue.take_batch().iter().map(|waiting| waiting.job.kind()).collect()
        };
        assert_eq!(batch(&mut queue), [JobKind::Load, JobKind::Load]);
        assert_eq!(batch(&mut queue), [JobKind::Delete]);
        assert_eq!(batch(&mut queue), [JobKind::Load, JobKind::Load]);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_batch_is_sorted() {
        let mut queue = Queue::default();
        ["d", "a", "c", "b", "e"].into_iter().for_each(|key| queue.push(load(key)));
        let ids: Vec<_> = queue.take_batch().iter().filter_map(|waiting| waiting.job.id().cloned()).collect();
        assert!(ids.len() == 5 && ids.is_sorted());
    }

    #[test]
    fn a_job_marked_alone_is_not_batched() {
        let mut queue = Queue::default();
        let alone = QueuedJob { batching: Batching::Alone, ..load("a") };
        queue.push(alone);
        queue.push(load("b"));
        assert_eq!((queue.take_batch().len(), queue.take_batch().len()), (1, 1));
    }
}
