//! Whether the server lives, and whether it can be used.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onceward::{Filter, Ledger, State, Store};
use tokio::sync::Mutex;

use crate::time;

/// How long the ledger may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long an answer of the ledger counts, so that probes cannot overload it.
const FRESH: Duration = Duration::from_secs(1);

/// The state of the server, for load balancers.
pub struct Health {
    ledger: Ledger,
    draining: AtomicBool,
    last: Mutex<Option<Look>>,
}

/// A look at the ledger.
#[derive(Clone, Copy)]
struct Look {
    at_ms: i64,
    /// Operations in doubt and running; `None` if the ledger could not be read.
    found: Option<(u64, u64)>,
}

impl Health {
    /// The health of a server on this store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { ledger: Ledger::new(store), draining: AtomicBool::new(false), last: Mutex::new(None) }
    }

    /// From now on the server is not ready: it ends the requests in flight and takes no new ones.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Whether the ledger can be read, and the server is not shutting down.
    pub(super) async fn is_ready(&self) -> bool {
        !self.draining.load(Ordering::Acquire) && self.counted().await.is_some()
    }

    /// Operations in doubt and running; `None` if the ledger cannot be read in time. Read at most once a second.
    pub(super) async fn counted(&self) -> Option<(u64, u64)> {
        let mut last = self.last.lock().await;
        let clock = self.ledger.clock();
        if let Some(look) = *last
            && time::is_within(clock, FRESH, look.at_ms)
        {
            return look.found;
        }
        let filter = Filter { states: vec![State::Running, State::InDoubt], ..Filter::default() };
        let counted = time::within(clock, PATIENCE, self.ledger.admin().totals(&filter)).await;
        let found = counted.and_then(Result::ok).map(|counts| {
            let of = |state| counts.get(&state).copied().unwrap_or_default();
            (of(State::InDoubt), of(State::Running))
        });
        if found.is_none() {
            tracing::warn!("the ledger cannot be read");
        }
        *last = Some(Look { at_ms: clock.now_ms(), found });
        found
    }
}
