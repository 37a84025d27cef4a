//! Sends answers and records when they count as delivered.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use onceward::{OperationId, Record};

use crate::call::orphans::Known;
use crate::call::waiters::{AnswerSource, Answered, Waiter};
use crate::proxy_state::ProxyState;
use crate::transport::call_transport::{CallAnswer, CallTransport, Delivered};
use crate::wire::raw::Object;

/// How long after a slow answer the same call counts as a retry, for clients that are known to give up silently.
const SILENT_RETRY_MS: u64 = 5_000;

/// An answer, and the operation whose delivery it records.
pub(crate) struct Response {
    pub(crate) answer: CallAnswer,
    pub(crate) delivers: Option<Arc<Record>>,
    /// Where the answer comes from.
    pub(crate) source: AnswerSource,
    /// Whether equal calls get this answer for a while: the operation is known to be done, but its result is not known,
    /// or it was refused.
    pub(crate) closes: bool,
    /// How long that is, and for how long an equal call is a retry if this answer may have come too late.
    pub(crate) window_ms: u64,
    /// The call's id across sessions, if its scope is only a session.
    pub(crate) anywhere: Option<OperationId>,
    pub(crate) known: Known,
}

/// When an answer counts as delivered, and whether its client may have given up before.
struct Delivery {
    at_ms: i64,
    slow: bool,
}

impl Response {
    pub(crate) fn from_proxy(text: String) -> Self {
        Self::known(CallAnswer::FromProxy(text), None)
    }

    pub(crate) fn known(answer: CallAnswer, delivers: Option<Arc<Record>>) -> Self {
        Self {
            answer,
            delivers,
            source: AnswerSource::Own,
            closes: false,
            window_ms: 0,
            anywhere: None,
            known: Known::Yes,
        }
    }
}

impl ProxyState {
    /// Answers a request and records the delivery.
    pub(crate) async fn send_answer(
        self: &Arc<Self>,
        transport: &Arc<dyn CallTransport>,
        response: Response,
    ) {
        let waiter = transport.waiter();
        let delivery = self.delivery_of(waiter, &response);
        let Response { answer, delivers, source, anywhere, known, .. } = response;
        let now_ms = self.ledger.clock_ms();
        let end = || anywhere.iter().for_each(|call| self.orphans.end(call, waiter, known, now_ms));
        // A client that learns of a doubt may repeat the call at once, in another session.
        if known == Known::No {
            end();
        }
        let delivers = delivers.filter(|_| !self.client_left.load(Ordering::SeqCst));
        let is_wanted = self.waiters.end_wait(waiter, || {
            let Some(record) = &delivers else { return };
            // A client that has the answer may call again at once, so this is noted before it is sent.
            self.memory.delivering(&record.id, delivery.at_ms);
            self.waiters.remember_answer(Answered {
                waiter: Arc::clone(waiter),
                operation: record.id.clone(),
                at_ms: self.ledger.clock_ms(),
                source,
                slow: delivery.slow,
            });
        });
        let delivered = transport.answer(answer).await;
        if let Some(record) = delivers.filter(|_| is_wanted) {
            match delivered {
                // If the write fails, a repeat counts as a retry, which runs nothing twice.
                Delivered::Yes => {
                    drop(self.ledger.attempts().delivered(&record, delivery.at_ms).await);
                    // A cancellation that arrived meanwhile takes precedence.
                    if waiter.is_gone() {
                        self.take_delivery_back(&record.id).await;
                    }
                }
                Delivered::No => self.memory.not_delivered(&record.id),
            }
            self.memory.delivery_written(&record.id, delivery.at_ms);
        }
        if known == Known::Yes {
            end();
        }
    }

    /// When an answer that is sent now counts as delivered: at once, unless the operation stays closed or the client
    /// may have given up silently.
    fn delivery_of(&self, waiter: &Waiter, response: &Response) -> Delivery {
        let now_ms = self.ledger.clock_ms();
        let later = |ms| onceward::transition::later(now_ms, ms);
        if response.closes {
            return Delivery { at_ms: later(response.window_ms), slow: false };
        }
        let waited_ms = u64::try_from(now_ms - waiter.since_ms).unwrap_or(0);
        let is_slow = response.source == AnswerSource::Own && waited_ms >= self.options.slow.ms;
        let doubtful_ms = if !is_slow {
            None
        } else if self.options.slow.every_client {
            Some(response.window_ms)
        } else if self.silent_client.load(Ordering::SeqCst) && !response.is_structured() {
            Some(SILENT_RETRY_MS.min(response.window_ms))
        } else {
            None
        };
        Delivery { at_ms: later(doubtful_ms.unwrap_or(0)), slow: doubtful_ms.is_some() }
    }

    /// Records that an answer was not received, unless a replay was delivered meanwhile.
    pub(crate) async fn take_delivery_back(&self, id: &OperationId) {
        if !self.memory.is_refused(id) {
            return;
        }
        self.memory.taking_back(id);
        if let Ok(record) = self.ledger.attempts().not_delivered(id).await
            && !self.memory.is_refused(id)
        {
            drop(self.ledger.attempts().delivered(&record, self.ledger.clock_ms()).await);
        }
        self.memory.taken_back(id);
    }
}

impl Response {
    /// Whether clients may drop the text of a replay, because the result is structured.
    fn is_structured(&self) -> bool {
        let data = self.delivers.as_ref().and_then(|record| record.outcome.as_ref()?.data.as_ref());
        let result = data.and_then(|data| Object::parse(data.get()));
        result.is_some_and(|result| result.get("structuredContent").is_some())
    }
}
