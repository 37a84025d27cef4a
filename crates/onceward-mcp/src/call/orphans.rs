//! Calls of lost sessions. A client whose session breaks starts a new one and repeats its call. The session then
//! identifies another caller; only the call itself is the same. So the same call of the same principal belongs, for a
//! while, to the scope where it was left open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use onceward::OperationId;

use crate::call::waiters::Waiter;
use crate::sync::lock;

/// The most calls that are remembered. A forgotten call is treated as new.
const CALLS: usize = 10_000;

/// Calls of sessions whose answer may not have been delivered.
#[derive(Default)]
pub(crate) struct Orphans {
    table: Mutex<HashMap<OperationId, Open>>,
}

struct Open {
    waiter: Arc<Waiter>,
    scope: String,
    since_ms: i64,
    in_doubt: bool,
}

/// Whether the caller knows how its call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// The outcome is known.
    Yes,
    /// The outcome is in doubt.
    No,
}

impl Orphans {
    /// The scope in which a caller that is gone, or that was left in doubt, made the same call after `after_ms`.
    pub(crate) fn scope_of(&self, call: &OperationId, after_ms: i64) -> Option<String> {
        let table = lock(&self.table);
        let open = table.get(call).filter(|open| open.since_ms > after_ms)?;
        (open.in_doubt || open.waiter.is_gone()).then(|| open.scope.clone())
    }

    /// Notes that a call starts in that scope.
    pub(crate) fn begin(&self, call: OperationId, waiter: &Arc<Waiter>, scope: String, now_ms: i64) {
        let mut table = lock(&self.table);
        if table.len() >= CALLS && !table.contains_key(&call) {
            let oldest = table.iter().min_by_key(|(_, open)| open.since_ms).map(|(call, _)| call.clone());
            oldest.iter().for_each(|call| drop(table.remove(call)));
        }
        let open = Open { waiter: Arc::clone(waiter), scope, since_ms: now_ms, in_doubt: false };
        table.insert(call, open);
    }

    /// Notes that the call ended, whether or not its answer was delivered.
    pub(crate) fn end(&self, call: &OperationId, waiter: &Arc<Waiter>, known: Known, now_ms: i64) {
        let mut table = lock(&self.table);
        let Some(open) = table.get_mut(call).filter(|open| Arc::ptr_eq(&open.waiter, waiter)) else { return };
        match known {
            Known::Yes if !waiter.is_gone() => drop(table.remove(call)),
            Known::Yes | Known::No => {
                (open.in_doubt, open.since_ms) = (known == Known::No, now_ms);
            }
        }
    }
}
