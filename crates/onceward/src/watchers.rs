//! Callers in this process that wait for a record to change. A building block for back ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use event_listener::Event;
use futures_util::future::{Either, select};

use crate::key::OperationId;
use crate::store::Clock;

/// Wakes the callers that wait for one operation, and no others.
#[derive(Debug, Default)]
pub struct Watchers {
    events: Mutex<HashMap<OperationId, Weak<Event>>>,
}

impl Watchers {
    /// Wakes all callers that wait for `id`.
    pub fn notify(&self, id: &OperationId) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.is_empty() {
            return;
        }
        if let Some(event) = events.remove(id).and_then(|event| event.upgrade()) {
            event.notify(usize::MAX);
        }
    }

    /// Waits until `id` is notified or the time is over. Calls `unchanged` once after it has started to listen, so
    /// that a change just before is not missed.
    pub async fn wait(
        &self,
        id: &OperationId,
        timeout_ms: u64,
        clock: &dyn Clock,
        unchanged: impl FnOnce() -> bool,
    ) {
        let event = self.event(id);
        let listener = event.listen();
        if !unchanged() {
            return;
        }
        match select(listener, clock.sleep(timeout_ms)).await {
            Either::Left(_) | Either::Right(_) => {}
        }
    }

    fn event(&self, id: &OperationId) -> Arc<Event> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(event) = events.get(id).and_then(Weak::upgrade) {
            return event;
        }
        events.retain(|_, event| event.strong_count() > 0);
        let event = Arc::new(Event::new());
        events.insert(id.clone(), Arc::downgrade(&event));
        event
    }
}
