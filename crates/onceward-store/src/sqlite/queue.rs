//! The changes waiting for the writer: urgent ones, deferred ones, and bulk writes.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_channel::oneshot;
use onceward::{Barrier, OperationId, Record, StoreError};

use super::rows::Entry;
use crate::writing::Writing;

/// The maximum number of changes in a commit.
const MAX_BATCH: usize = 1_024;
/// The maximum number of deferred changes added to a commit, so that urgent ones are not delayed.
const MAX_PIGGYBACK: usize = 64;
/// The maximum number of bulk changes in a commit, so that other changes do not wait long behind them.
const MAX_SLICE: usize = 1_000;
/// How long a deferred change waits for a commit to join.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

pub(super) enum Change {
    Swap { expected: Option<u64>, entry: Entry, writing: Writing },
    Delete { id: OperationId, expected: u64 },
    Stop(Barrier),
    Resume { scope: String },
}

impl Change {
    /// The record that it changes. A barrier is none.
    pub(super) fn id(&self) -> Option<&OperationId> {
        match self {
            Self::Swap { entry, .. } => Some(&entry.record.id),
            Self::Delete { id, .. } => Some(id),
            Self::Stop(_) | Self::Resume { .. } => None,
        }
    }

    /// The scope in which it begins something. A barrier of that scope refuses it.
    pub(super) fn begun_in(&self) -> Option<&str> {
        match self {
            Self::Swap { entry, writing: Writing::Begin, .. } => Some(&entry.record.scope),
            Self::Swap { writing: Writing::Change, .. }
            | Self::Delete { .. }
            | Self::Stop(_)
            | Self::Resume { .. } => None,
        }
    }
}

pub(super) enum Written {
    /// With the epoch under which the record may be cached: the one before the commit, or after its own change.
    Yes {
        epoch: Option<u64>,
    },
    Conflict(Option<Arc<Record>>),
    /// Not written: the scope is stopped.
    Stopped(Barrier),
    /// The barrier that was set, found or lifted.
    Barrier(Option<Barrier>),
}

impl Written {
    /// The record may be cached under this epoch.
    pub(super) fn is_under(&mut self, now: u64) {
        match self {
            Self::Yes { epoch } => *epoch = Some(now),
            Self::Conflict(_) | Self::Stopped(_) | Self::Barrier(_) => {}
        }
    }
}

/// How urgent a change is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Priority {
    /// Written and synced as soon as possible.
    Now,
    /// Added to the next commit. If none comes soon, it is written without a sync of its own.
    Later,
}

/// The state of the writer's thread.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sleep {
    #[default]
    Awake,
    /// It waits to be woken, which costs a system call.
    UntilWoken,
    /// It waits with a timeout for a commit that the deferred changes can join.
    Timed,
}

/// The waiting changes.
#[derive(Default)]
pub(super) struct Queue {
    jobs: Vec<WriteJob>,
    piggyback: Vec<WriteJob>,
    bulk: VecDeque<Bulk>,
    /// Batches that carried deferred changes. Lets the timed wait detect progress.
    piggybacked: u64,
    pub(super) sleep: Sleep,
    pub(super) closing: bool,
}

/// Changes that are written in one transaction.
pub(super) struct Batch {
    pub(super) jobs: Vec<WriteJob>,
    /// `Later` if all changes are deferred, so that no sync is needed.
    pub(super) priority: Priority,
}

struct Bulk {
    job: WriteJob,
    /// The last change of its caller. All of them must be durable then.
    last: bool,
}

pub(super) struct WriteJob {
    pub(super) change: Change,
    reply: oneshot::Sender<Result<Written, StoreError>>,
}

impl Queue {
    pub(super) fn push(&mut self, change: Change, priority: Priority) -> PendingWrite {
        let (job, waiting) = WriteJob::new(change);
        match priority {
            Priority::Now => self.jobs.push(job),
            Priority::Later => self.piggyback.push(job),
        }
        waiting
    }

    /// Adds many changes. They are written in slices, and other changes are written in between.
    pub(super) fn push_all(&mut self, changes: Vec<Change>) -> Vec<PendingWrite> {
        let count = changes.len();
        let mut waiting = Vec::with_capacity(count);
        for (index, change) in changes.into_iter().enumerate() {
            let (job, one) = WriteJob::new(change);
            self.bulk.push_back(Bulk { job, last: index + 1 == count });
            waiting.push(one);
        }
        waiting
    }

    /// Whether bulk changes are waiting.
    pub(super) fn has_bulk(&self) -> bool {
        !self.bulk.is_empty()
    }

    /// Takes the next slice of bulk changes. Only the last slice of each caller is synced, which also syncs those
    /// before it.
    pub(super) fn take_slice(&mut self) -> Option<Batch> {
        let mut batch = Batch { jobs: Vec::new(), priority: Priority::Later };
        while batch.jobs.len() < MAX_SLICE && batch.priority == Priority::Later {
            let Some(bulk) = self.bulk.pop_front() else { break };
            if bulk.last {
                batch.priority = Priority::Now;
            }
            batch.jobs.push(bulk.job);
        }
        (!batch.jobs.is_empty()).then_some(batch)
    }

    /// Whether urgent changes are waiting.
    pub(super) fn has_urgent(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Whether deferred changes are waiting.
    pub(super) fn has_piggyback(&self) -> bool {
        !self.piggyback.is_empty()
    }

    pub(super) fn piggybacked(&self) -> u64 {
        self.piggybacked
    }

    /// Takes all urgent changes, up to the limit, preceded by some deferred ones.
    pub(super) fn take(&mut self) -> Option<Batch> {
        let some = self.jobs.len().min(MAX_BATCH);
        if some == 0 {
            return None;
        }
        let mut jobs = self.take_piggyback();
        jobs.extend(self.jobs.drain(..some));
        Some(Batch { jobs, priority: Priority::Now })
    }

    /// Takes the deferred changes that no commit has taken.
    pub(super) fn take_remaining(&mut self) -> Batch {
        Batch { jobs: self.take_piggyback(), priority: Priority::Later }
    }

    fn take_piggyback(&mut self) -> Vec<WriteJob> {
        let some = self.piggyback.len().min(MAX_PIGGYBACK);
        self.piggybacked += u64::from(some > 0);
        self.piggyback.drain(..some).collect()
    }

    /// Whether to wake the writer's thread for a change with that priority. True at most once per sleep.
    pub(super) fn should_wake(&mut self, priority: Priority) -> bool {
        let wakes = match (self.sleep, priority) {
            (Sleep::UntilWoken, _) | (Sleep::Timed, Priority::Now) => true,
            (Sleep::Timed, Priority::Later) | (Sleep::Awake, _) => false,
        };
        if wakes {
            self.sleep = Sleep::Awake;
        }
        wakes
    }
}

impl WriteJob {
    fn new(change: Change) -> (Self, PendingWrite) {
        let (reply, answer) = oneshot::channel();
        (Self { change, reply }, PendingWrite(answer))
    }

    /// Replies to the caller, and returns the change.
    pub(super) fn answer(self, result: Result<Written, StoreError>) -> Change {
        // The caller may have stopped waiting.
        drop(self.reply.send(result));
        self.change
    }
}

/// Waits for the writer's reply.
pub(super) struct PendingWrite(oneshot::Receiver<Result<Written, StoreError>>);

impl Future for PendingWrite {
    type Output = Result<Written, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|answer| {
            answer.unwrap_or_else(|_| Err(StoreError::unavailable("the ledger's writer has stopped")))
        })
    }
}
