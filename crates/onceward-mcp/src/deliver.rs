//! How an answer leaves, and from when on it counts as delivered.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use onceward::{OperationId, Record};

use crate::desk::Desk;
use crate::ends::{Answer, Ends, Left};
use crate::orphans::Known;
use crate::raw::Object;
use crate::waiters::{Answered, Said, Waiter};

/// How long after a slow answer the same call counts as a retry, for clients that are known to give up in silence.
const SILENT_RETRY_MS: u64 = 5_000;

/// An answer, and the operation whose delivery is to be remembered with it.
pub(crate) struct Told {
    pub(crate) answer: Answer,
    pub(crate) delivers: Option<Arc<Record>>,
    /// Whose words it is.
    pub(crate) said: Said,
    /// Whether the operation stays closed for a while: it is known to be done, and its result is not.
    pub(crate) closes: bool,
    /// What the call is in any session, where its scope is only one.
    pub(crate) anywhere: Option<OperationId>,
    pub(crate) known: Known,
}

/// When an answer counts as delivered, and whether its client may have given up before.
struct Delivery {
    at_ms: i64,
    slow: bool,
}

impl Told {
    pub(crate) fn ours(text: String) -> Self {
        Self::known(Answer::Ours(text), None)
    }

    pub(crate) fn known(answer: Answer, delivers: Option<Arc<Record>>) -> Self {
        Self { answer, delivers, said: Said::Own, closes: false, anywhere: None, known: Known::Yes }
    }
}

impl Desk {
    /// Answers a request, and writes down that it was answered.
    pub(crate) async fn deliver(self: &Arc<Self>, ends: &Arc<dyn Ends>, mut told: Told) {
        let (waiter, anywhere, known) = (ends.waiter(), told.anywhere.take(), told.known);
        let end = |known| anywhere.iter().for_each(|call| self.orphans.end(call, waiter, known));
        match known {
            // A client that hears of a doubt may ask again at once, in another session.
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

    async fn hand_over(self: &Arc<Self>, ends: &Arc<dyn Ends>, told: Told) {
        let waiter = ends.waiter();
        let delivery = self.delivery(waiter, &told);
        let Told { answer, delivers, said, .. } = told;
        let delivers = delivers.filter(|_| !self.client_left.load(Ordering::SeqCst));
        let is_wanted = self.waiters.end_wait(waiter, || {
            let Some(record) = &delivers else { return };
            // A client that has the answer may call again at once, so this is known before it leaves.
            self.memory.delivering(&record.id, delivery.at_ms);
            self.waiters.remember_answer(Answered {
                waiter: Arc::clone(waiter),
                operation: record.id.clone(),
                at_ms: self.ledger.clock_ms(),
                said,
                slow: delivery.slow,
            });
        });
        let delivers = delivers.filter(|_| is_wanted);
        let left = ends.answer(answer).await;
        let Some(record) = delivers else { return };
        match left {
            Left::Yes => self.note_delivery(waiter, &record, delivery.at_ms).await,
            Left::No => self.memory.not_delivered(&record.id),
        }
        self.memory.delivery_written(&record.id, delivery.at_ms);
    }

    /// From when on an answer that leaves now counts as delivered. It counts at once, unless the operation stays
    /// closed, or the client is one that may have given up without a word.
    fn delivery(&self, waiter: &Waiter, told: &Told) -> Delivery {
        let now_ms = self.ledger.clock_ms();
        let later = |ms| onceward::transition::later(now_ms, ms);
        if told.closes {
            return Delivery { at_ms: later(self.options.window_ms), slow: false };
        }
        let waited_ms = u64::try_from(now_ms - waiter.since_ms).unwrap_or(0);
        let is_slow = told.said == Said::Own && waited_ms >= self.options.slow.ms;
        let doubtful_ms = if !is_slow {
            None
        } else if self.options.slow.every_client {
            Some(self.options.window_ms)
        } else if self.silent_client.load(Ordering::SeqCst) && !told.is_structured() {
            Some(SILENT_RETRY_MS.min(self.options.window_ms))
        } else {
            None
        };
        Delivery { at_ms: later(doubtful_ms.unwrap_or(0)), slow: doubtful_ms.is_some() }
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

impl Told {
    /// Whether clients may drop the words of a replay, because the result is structured.
    fn is_structured(&self) -> bool {
        let data = self.delivers.as_ref().and_then(|record| record.outcome.as_ref()?.data.as_ref());
        let result = data.and_then(|data| Object::parse(data.get()));
        result.is_some_and(|result| result.get("structuredContent").is_some())
    }
}
