//! How an answer leaves, and from when on it counts as delivered.

use std::sync::Arc;

use onceward::{OperationId, Record};

use crate::desk::Desk;
use crate::ends::{Answer, Ends, Left};
use crate::orphans::Known;
use crate::waiters::Waiter;

/// An answer, and the operation whose delivery is to be remembered with it.
pub(crate) struct Told {
    pub(crate) answer: Answer,
    pub(crate) delivers: Option<Arc<Record>>,
    /// What the call is in any session, where its scope is only one.
    pub(crate) anywhere: Option<OperationId>,
    pub(crate) known: Known,
}

impl Told {
    pub(crate) fn ours(text: String) -> Self {
        Self::known(Answer::Ours(text), None)
    }

    pub(crate) fn known(answer: Answer, delivers: Option<Arc<Record>>) -> Self {
        Self { answer, delivers, anywhere: None, known: Known::Yes }
    }
}

impl Desk {
    /// Answers whoever waits, and writes down that it was answered.
    pub(crate) async fn deliver(self: &Arc<Self>, ends: &Arc<dyn Ends>, mut told: Told) {
        let (waiter, anywhere, known) = (ends.waiter(), told.anywhere.take(), told.known);
        let end = |known| anywhere.iter().for_each(|call| self.orphans.end(call, waiter, known));
        match known {
            // Whoever hears of a doubt may ask again at once, in another session.
            Known::No => {
                end(known);
                self.hand_over(ends, told).await;
            }
            Known::Yes => {
                self.hand_over(ends, told).await;
                end(known);
            }
        }
    }

    async fn hand_over(&self, ends: &Arc<dyn Ends>, told: Told) {
        let waiter = ends.waiter();
        let delivers = told.delivers.filter(|_| !waiter.is_gone());
        if let Some(record) = &delivers {
            self.waiters.remember_answer(waiter, &record.id);
        }
        self.waiters.forget(waiter);
        let Some(record) = delivers else {
            // Whoever has given up gets what his end of the line still takes.
            match ends.answer(told.answer).await {
                Left::Yes | Left::No => return,
            }
        };
        // Whoever has the answer may call again at once, so this is known before it leaves.
        let at_ms = self.delivered_at(waiter, self.memory.was_repeated(&record.id));
        self.memory.delivering(&record.id, at_ms);
        match ends.answer(told.answer).await {
            Left::Yes => self.note_delivery(waiter, &record, at_ms).await,
            Left::No => {}
        }
        self.memory.delivery_written(&record.id, at_ms);
    }

    /// From when on an answer that leaves now counts as delivered.
    fn delivered_at(&self, waiter: &Waiter, repeated: bool) -> i64 {
        let waited_ms = u64::try_from(waiter.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        // A client that repeats itself while the call runs gives up sooner than we would think.
        let patience_ms = if repeated { self.options.slow_ms / 8 } else { self.options.slow_ms };
        let later_ms = if waited_ms < patience_ms { 0 } else { self.options.window_ms };
        onceward::transition::later(self.ledger.clock_ms(), later_ms)
    }

    /// Writes the delivery down, in its own time. Where it cannot be written, a repeat is taken for a retry: nothing
    /// runs twice for that.
    async fn note_delivery(&self, waiter: &Waiter, record: &Arc<Record>, at_ms: i64) {
        drop(self.ledger.note_delivery(record, at_ms).await);
        // A cancellation that came meanwhile has the last word.
        if waiter.is_gone() {
            drop(self.ledger.take_delivery_back(&record.id).await);
        }
    }
}
