//! What waits for the server. Whatever waits when a connection is free goes together, as one statement.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use onceward::{OperationId, Record, StoreError, Swap};
use tokio::sync::oneshot;
use tokio_postgres::Row;

use super::rows::Question;

/// How many changes share a statement at the most.
const MAX_BATCH: usize = 512;
/// How many bytes they may have together; a larger one goes alone.
const MAX_BYTES: usize = 4 * 1024 * 1024;
/// What a change weighs beside its result.
const CHANGE_BYTES: usize = 1024;

/// Where an answer goes.
pub(super) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// Something to ask of the server.
pub(super) enum Job {
    Swap {
        expected: Option<u64>,
        record: Arc<Record>,
        reply: Reply<Swap>,
    },
    Delete {
        id: OperationId,
        expected: u64,
        reply: Reply<bool>,
    },
    Load {
        id: OperationId,
        reply: Reply<Option<Arc<Record>>>,
    },
    /// Answers whether the record still has that version; its next change will be told.
    Watch {
        id: OperationId,
        seen: u64,
        reply: Reply<bool>,
    },
    Ask {
        question: Question,
        reply: Reply<Vec<Row>>,
    },
}

/// What can go together in one statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Swap,
    Delete,
    Load,
    Watch,
    Ask,
}

impl Job {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Swap { .. } => Kind::Swap,
            Self::Delete { .. } => Kind::Delete,
            Self::Load { .. } => Kind::Load,
            Self::Watch { .. } => Kind::Watch,
            Self::Ask { .. } => Kind::Ask,
        }
    }

    pub(super) fn id(&self) -> Option<&OperationId> {
        match self {
            Self::Swap { record, .. } => Some(&record.id),
            Self::Delete { id, .. } | Self::Load { id, .. } | Self::Watch { id, .. } => Some(id),
            Self::Ask { .. } => None,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Swap { record, .. } => {
                CHANGE_BYTES + record.outcome.as_ref().map_or(0, onceward::Outcome::size)
            }
            Self::Delete { .. } | Self::Load { .. } | Self::Watch { .. } | Self::Ask { .. } => 0,
        }
    }

    /// Whoever no longer waits for an answer has none to get.
    pub(super) fn fail(self, error: StoreError) {
        match self {
            Self::Swap { reply, .. } => drop(reply.send(Err(error))),
            Self::Delete { reply, .. } => drop(reply.send(Err(error))),
            Self::Load { reply, .. } => drop(reply.send(Err(error))),
            Self::Watch { reply, .. } => drop(reply.send(Err(error))),
            Self::Ask { reply, .. } => drop(reply.send(Err(error))),
        }
    }
}

/// Whether a job was sent before and its reply was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    Never,
    Before,
}

/// Whether a job may share its statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Company {
    Any,
    Alone,
}

/// A job that waits, or is under way.
pub(super) struct Waiting {
    pub(super) job: Job,
    pub(super) sent: Sent,
    pub(super) company: Company,
    pub(super) since: Instant,
    pub(super) until: Instant,
}

impl Waiting {
    pub(super) fn new(job: Job, timeout: Duration) -> Self {
        let since = Instant::now();
        Self { job, sent: Sent::Never, company: Company::Any, since, until: since + timeout }
    }

    pub(super) fn is_over(&self) -> bool {
        self.until <= Instant::now()
    }
}

/// What waits, the oldest first.
#[derive(Default)]
pub(super) struct Queue {
    waiting: VecDeque<Waiting>,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// How long the oldest has waited.
    pub(super) fn waited(&self) -> Duration {
        self.waiting.front().map_or(Duration::ZERO, |waiting| waiting.since.elapsed())
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        self.waiting.push_back(waiting);
    }

    /// Puts jobs back that were taken, before all others.
    pub(super) fn put_back(&mut self, jobs: Vec<Waiting>) {
        for waiting in jobs.into_iter().rev() {
            self.waiting.push_front(waiting);
        }
    }

    /// Takes out all whose time is over.
    pub(super) fn take_over(&mut self) -> Vec<Waiting> {
        let (over, waiting) = self.waiting.drain(..).partition(Waiting::is_over);
        self.waiting = waiting;
        Vec::from_iter::<VecDeque<_>>(over)
    }

    /// Takes the oldest job and all that can go with it: of its kind, each of another operation, sorted by id so that
    /// statements that meet take their locks in one order.
    pub(super) fn take_batch(&mut self) -> Vec<Waiting> {
        let Some(first) = self.waiting.pop_front() else { return Vec::new() };
        let kind = first.job.kind();
        if kind == Kind::Ask || first.company == Company::Alone || self.waiting.is_empty() {
            return vec![first];
        }
        let mut bytes = first.job.bytes();
        let mut ids: HashSet<OperationId> = first.job.id().cloned().into_iter().collect();
        let mut batch = vec![first];
        let mut others = VecDeque::with_capacity(self.waiting.len());
        for waiting in self.waiting.drain(..) {
            let fits = waiting.job.kind() == kind
                && waiting.company == Company::Any
                && batch.len() < MAX_BATCH
                && bytes + waiting.job.bytes() <= MAX_BYTES;
            // Of one operation the older job goes first.
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

    fn load(key: &str) -> Waiting {
        let (reply, _) = oneshot::channel();
        let id = OperationId::of("default", "test", key);
        Waiting::new(Job::Load { id, reply }, Duration::from_secs(1))
    }

    fn delete(key: &str) -> Waiting {
        let (reply, _) = oneshot::channel();
        let id = OperationId::of("default", "test", key);
        Waiting::new(Job::Delete { id, expected: 1, reply }, Duration::from_secs(1))
    }

    #[test]
    fn one_operation_is_in_a_batch_once_and_kinds_are_apart() {
        let mut queue = Queue::default();
        for waiting in [load("a"), delete("b"), load("c"), load("a"), load("b")] {
            queue.push(waiting);
        }
        let batch = |queue: &mut Queue| -> Vec<Kind> {
            queue.take_batch().iter().map(|waiting| waiting.job.kind()).collect()
        };
        assert_eq!(batch(&mut queue), [Kind::Load, Kind::Load]);
        assert_eq!(batch(&mut queue), [Kind::Delete]);
        assert_eq!(batch(&mut queue), [Kind::Load, Kind::Load]);
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
    fn what_must_go_alone_goes_alone() {
        let mut queue = Queue::default();
        let alone = Waiting { company: Company::Alone, ..load("a") };
        queue.push(alone);
        queue.push(load("b"));
        assert_eq!((queue.take_batch().len(), queue.take_batch().len()), (1, 1));
    }
}
