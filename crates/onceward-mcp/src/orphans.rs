//! Calls of sessions that were lost. A client whose session breaks begins a new one and asks again: by its session it
//! is somebody else, and only what it asks for tells that it is not. So the same call of the same principal belongs,
//! for a while, to the scope where it was left open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use onceward::OperationId;

use crate::upstream::lock;
use crate::waiters::Waiter;

/// How many calls are remembered. Those that are left out are taken for new ones, as without this.
const CALLS: usize = 10_000;

/// Calls of sessions that nobody has got the answer of.
#[derive(Default)]
pub(crate) struct Orphans {
    table: Mutex<HashMap<OperationId, Open>>,
}

struct Open {
    waiter: Arc<Waiter>,
    scope: String,
    since: Instant,
    in_doubt: bool,
}

/// How a call ended for its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// It is known what became of it.
    Yes,
    /// It is not.
    No,
}

impl Orphans {
    /// The scope in which somebody who is gone, or who was told nothing certain, made the same call a while ago.
    pub(crate) fn scope_of(&self, call: &OperationId, window: Duration) -> Option<String> {
        let table = lock(&self.table);
        let open = table.get(call).filter(|open| open.since.elapsed() < window)?;
        (open.in_doubt || open.waiter.is_gone()).then(|| open.scope.clone())
    }

    /// A call begins in that scope.
    pub(crate) fn begin(&self, call: OperationId, waiter: &Arc<Waiter>, scope: String) {
        let mut table = lock(&self.table);
        if table.len() >= CALLS && !table.contains_key(&call) {
            let oldest = table.iter().min_by_key(|(_, open)| open.since).map(|(call, _)| call.clone());
            oldest.iter().for_each(|call| drop(table.remove(call)));
        }
        let open = Open { waiter: Arc::clone(waiter), scope, since: Instant::now(), in_doubt: false };
        table.insert(call, open);
    }

    /// The call has ended, and its answer has left or not.
    pub(crate) fn end(&self, call: &OperationId, waiter: &Arc<Waiter>, known: Known) {
        let mut table = lock(&self.table);
        let Some(open) = table.get_mut(call).filter(|open| Arc::ptr_eq(&open.waiter, waiter)) else { return };
        match known {
            Known::Yes if !waiter.is_gone() => drop(table.remove(call)),
            Known::Yes | Known::No => {
                (open.in_doubt, open.since) = (known == Known::No, Instant::now());
            }
        }
    }
}
