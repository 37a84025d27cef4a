//! Connections that wait for requests. One task closes those for which none comes.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hyper::client::conn::http1::SendRequest;

use super::super::{Body, Caller};
use crate::locks::lock;

/// The waiting connections of one server.
pub(super) struct Pool {
    /// How long a connection waits, and how many do.
    life: Duration,
    most: usize,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    all: Vec<Kept>,
    /// Whether a task closes those that are not used.
    has_closer: bool,
}

struct Kept {
    sender: SendRequest<Body>,
    since: Instant,
    /// The only caller that may use it.
    caller: Caller,
}

/// When a connection can be taken.
#[derive(Debug, Clone, Copy)]
pub(super) enum Take<'a> {
    /// Always: nothing was sent on it.
    Any,
    /// When the last answer on it was read to its end, by the caller that used it.
    Ready(&'a Caller),
}

impl Pool {
    pub(super) fn new(life: Duration, most: usize) -> Arc<Self> {
        Arc::new(Self { life, most, waiting: Mutex::default() })
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.waiting)
    }

    fn is_usable(&self, kept: &Kept) -> bool {
        !kept.sender.is_closed() && kept.since.elapsed() < self.life
    }

    /// The newest connection that can be taken.
    pub(super) fn take(&self, take: Take<'_>) -> Option<SendRequest<Body>> {
        let mut waiting = self.waiting();
        waiting.all.retain(|kept| self.is_usable(kept));
        let can_be = |kept: &Kept| match take {
            Take::Any => true,
            Take::Ready(caller) => kept.caller == *caller && kept.sender.is_ready(),
        };
        let newest = waiting.all.iter().rposition(can_be)?;
        Some(waiting.all.remove(newest).sender)
    }

    /// Adds a connection, unless there are enough.
    pub(super) fn put(self: &Arc<Self>, sender: SendRequest<Body>, caller: Caller) {
        let mut waiting = self.waiting();
        if waiting.all.len() >= self.most {
            return;
        }
        waiting.all.push(Kept { sender, since: Instant::now(), caller });
        if !std::mem::replace(&mut waiting.has_closer, true) {
            let all = Arc::clone(self);
            tokio::spawn(async move {
                while all.close_old() {
                    tokio::time::sleep(all.life / 2).await;
                }
            });
        }
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waiting().all.len()
    }

    /// Closes those that waited long enough. Whether others are left.
    fn close_old(&self) -> bool {
        let mut waiting = self.waiting();
        waiting.all.retain(|kept| self.is_usable(kept));
        waiting.has_closer = !waiting.all.is_empty();
        waiting.has_closer
    }

    /// Whether all of them can be used.
    #[cfg(test)]
    pub(super) fn is_ready(&self) -> bool {
        self.waiting().all.iter().all(|kept| kept.sender.is_ready())
    }

    /// Whether the server has closed one of them.
    #[cfg(test)]
    pub(super) fn has_closed(&self) -> bool {
        self.waiting().all.iter().any(|kept| kept.sender.is_closed())
    }
}
