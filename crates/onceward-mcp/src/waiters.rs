//! Who waits for an answer, and who has given up.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use onceward::OperationId;

use crate::message::Id;
use crate::upstream::lock;

/// How many answers are remembered for a cancellation that comes after them.
const ANSWERED: usize = 4_096;

/// Whose requests share their ids.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Caller {
    /// The session that the transport names, where it has any.
    pub(crate) session: Option<String>,
    /// Who has authorised himself, as a hash.
    pub(crate) principal: Option<String>,
}

/// A client's request that waits for its answer.
pub(crate) struct Waiter {
    pub(crate) id: Id,
    pub(crate) id_text: String,
    pub(crate) since: Instant,
    pub(crate) caller: Caller,
    /// Where news of it come in: tokens of progress are unique in it.
    pub(crate) channel: u64,
    gone: AtomicBool,
}

impl Waiter {
    pub(crate) fn new(id_text: &str, caller: Caller, channel: u64) -> Arc<Self> {
        Arc::new(Self {
            id: Id::of(id_text),
            id_text: id_text.to_owned(),
            since: Instant::now(),
            caller,
            channel,
            gone: AtomicBool::new(false),
        })
    }

    /// Whether the client has cancelled it, or left.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// The client has cancelled it, or left.
    pub(crate) fn leave(&self) {
        self.gone.store(true, Ordering::SeqCst);
    }
}

/// What a cancellation was about.
pub(crate) enum Cancelled {
    /// A call that is under way.
    Waiting,
    /// One whose answer has left: it was not taken.
    Answered(OperationId),
    /// None that we know.
    Unknown,
}

/// A client's id may stand for several requests, where clients share a caller.
type Waiting = HashMap<(Caller, Id), Vec<Arc<Waiter>>>;

/// All who wait.
#[derive(Default)]
pub(crate) struct Waiters {
    waiting: Mutex<Waiting>,
    answered: Mutex<VecDeque<(Arc<Waiter>, OperationId)>>,
}

impl Waiters {
    pub(crate) fn add(&self, waiter: &Arc<Waiter>) {
        let key = (waiter.caller.clone(), waiter.id.clone());
        lock(&self.waiting).entry(key).or_default().push(Arc::clone(waiter));
    }

    /// Nobody waits for this one any more.
    pub(crate) fn forget(&self, waiter: &Arc<Waiter>) {
        let key = (waiter.caller.clone(), waiter.id.clone());
        let mut waiting = lock(&self.waiting);
        if let Some(same) = waiting.get_mut(&key) {
            same.retain(|other| !Arc::ptr_eq(other, waiter));
            if same.is_empty() {
                waiting.remove(&key);
            }
        }
    }

    /// Remembers which operation an answer was about, for a cancellation that comes late.
    pub(crate) fn remember_answer(&self, waiter: &Arc<Waiter>, operation: &OperationId) {
        let mut answered = lock(&self.answered);
        if answered.len() >= ANSWERED {
            answered.pop_front();
        }
        answered.push_back((Arc::clone(waiter), operation.clone()));
    }

    /// The caller has given up what it asked under this id.
    pub(crate) fn cancel(&self, caller: &Caller, id: Id) -> Cancelled {
        let key = (caller.clone(), id);
        if let Some(same) = lock(&self.waiting).remove(&key) {
            same.iter().for_each(|waiter| waiter.leave());
            return Cancelled::Waiting;
        }
        let answered = lock(&self.answered);
        let late = answered.iter().rev().find(|(waiter, _)| waiter.id == key.1 && waiter.caller == key.0);
        match late {
            Some((waiter, operation)) => {
                waiter.leave();
                Cancelled::Answered(operation.clone())
            }
            None => Cancelled::Unknown,
        }
    }
}
