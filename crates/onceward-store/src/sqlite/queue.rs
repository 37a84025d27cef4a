//! What waits for the writer: changes that somebody waits for, and such as have time.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use onceward::{OperationId, Record, StoreError};

use super::rows::Entry;

/// How many changes share a commit at the most.
const MAX_BATCH: usize = 1_024;
/// How many changes that have time a commit takes along: nobody is to wait for them.
const MAX_ALONG: usize = 64;
/// How long a change that has time waits for a commit that takes it along.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

pub(super) enum Change {
    Swap { expected: Option<u64>, entry: Entry },
    Delete { id: OperationId, expected: u64 },
}

impl Change {
    pub(super) fn id(&self) -> &OperationId {
        match self {
            Self::Swap { entry, .. } => &entry.record.id,
            Self::Delete { id, .. } => id,
        }
    }
}

pub(super) enum Written {
    /// With the epoch that held before the commit: whoever keeps the record in memory keeps it under that one.
    Yes {
        epoch: Option<u64>,
    },
    Conflict(Option<Arc<Record>>),
}

/// Whether somebody waits for a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Haste {
    /// It is written and synced as soon as can be.
    Now,
    /// It goes along with the next commit. Where none comes, it is written without a sync of its own.
    Later,
}

/// What the writer's thread does.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sleep {
    #[default]
    Awake,
    /// It waits to be woken, which costs a call to the kernel.
    UntilWoken,
    /// It waits for a commit that takes along what has time, and looks after a while itself.
    ForAWhile,
}

/// What waits.
#[derive(Default)]
pub(super) struct Queue {
    jobs: Vec<Job>,
    along: Vec<Job>,
    /// How often something was taken along: whoever looks after a while sees whether his time has come.
    rides: u64,
    pub(super) sleep: Sleep,
    pub(super) closing: bool,
}

/// What is written together.
pub(super) struct Batch {
    pub(super) jobs: Vec<Job>,
    /// Where nobody waits for any of it, it needs no sync of its own.
    pub(super) haste: Haste,
}

pub(super) struct Job {
    pub(super) change: Change,
    reply: Arc<Mutex<Reply>>,
}

#[derive(Default)]
struct Reply {
    result: Option<Result<Written, StoreError>>,
    waker: Option<Waker>,
}

impl Queue {
    pub(super) fn push(&mut self, change: Change, haste: Haste) -> Waiting {
        let reply = Arc::new(Mutex::new(Reply::default()));
        let job = Job { change, reply: Arc::clone(&reply) };
        match haste {
            Haste::Now => self.jobs.push(job),
            Haste::Later => self.along.push(job),
        }
        Waiting(reply)
    }

    /// The same for many at once, which somebody waits for.
    pub(super) fn push_all(&mut self, changes: Vec<Change>) -> Vec<Waiting> {
        changes.into_iter().map(|change| self.push(change, Haste::Now)).collect()
    }

    /// Whether somebody waits for something.
    pub(super) fn is_wanted(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Whether something waits to be taken along.
    pub(super) fn has_time(&self) -> bool {
        !self.along.is_empty()
    }

    pub(super) fn rides(&self) -> u64 {
        self.rides
    }

    /// All that somebody waits for, up to the limit, and some of what goes along with it, which came first.
    pub(super) fn take(&mut self) -> Option<Batch> {
        let some = self.jobs.len().min(MAX_BATCH);
        if some == 0 {
            return None;
        }
        let mut jobs = self.take_along();
        jobs.extend(self.jobs.drain(..some));
        Some(Batch { jobs, haste: Haste::Now })
    }

    /// What nobody has taken along.
    pub(super) fn take_left(&mut self) -> Batch {
        Batch { jobs: self.take_along(), haste: Haste::Later }
    }

    fn take_along(&mut self) -> Vec<Job> {
        let some = self.along.len().min(MAX_ALONG);
        self.rides += u64::from(some > 0);
        self.along.drain(..some).collect()
    }

    /// Whether the writer's thread is to be woken for a change in that haste; it is told once a sleep.
    pub(super) fn wakes(&mut self, haste: Haste) -> bool {
        let wakes = match (self.sleep, haste) {
            (Sleep::UntilWoken, _) | (Sleep::ForAWhile, Haste::Now) => true,
            (Sleep::ForAWhile, Haste::Later) | (Sleep::Awake, _) => false,
        };
        if wakes {
            self.sleep = Sleep::Awake;
        }
        wakes
    }
}

impl Job {
    pub(super) fn answer(&self, result: Result<Written, StoreError>) {
        let waker = {
            let mut reply = self.reply.lock().unwrap_or_else(PoisonError::into_inner);
            reply.result = Some(result);
            reply.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Waits for the writer's answer.
pub(super) struct Waiting(Arc<Mutex<Reply>>);

impl Future for Waiting {
    type Output = Result<Written, StoreError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut reply = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match reply.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                reply.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
