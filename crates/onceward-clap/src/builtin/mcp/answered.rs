//! Which answers the client has received, which distinguishes a retry from an intended repeat.

use std::collections::VecDeque;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use onceward::{Blocking, Error, OperationId, transition};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::supervisor::lock;

/// How many answers are remembered. A dropped one counts as not delivered, so its repeat is treated as a retry.
const MEMORY: usize = 256;
/// After this long a client may have given up before the answer arrived, as its time limit is often 30 s or 60 s.
const PATIENCE: Duration = Duration::from_secs(25);
/// For this long after a late answer the same call is its retry.
const RETRY_WINDOW_MS: u64 = 600_000;

type Opener<'a> = Box<dyn Fn() -> Result<Option<Blocking>, Error> + Send + Sync + 'a>;

/// The answers that were sent.
pub(super) struct Answered<'a> {
    open: Opener<'a>,
    ledger: OnceLock<Blocking>,
    sent: Mutex<VecDeque<Sent>>,
}

struct Sent {
    request: String,
    operation: OperationId,
    took: Duration,
    state: Delivery,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Delivery {
    Sent,
    Noted,
}

impl<'a> Answered<'a> {
    pub(super) fn new(open: impl Fn() -> Result<Option<Blocking>, Error> + Send + Sync + 'a) -> Self {
        Self { open: Box::new(open), ledger: OnceLock::new(), sent: Mutex::default() }
    }

    /// Remembers an answer that is about to be sent.
    pub(super) fn answer(&self, request: &Value, envelope: &RawValue, begun: Instant) {
        #[derive(Deserialize)]
        struct Answer {
            ran: Option<bool>,
            operation: Option<Operation>,
        }
        #[derive(Deserialize)]
        struct Operation {
            id: String,
        }
        let Ok(Answer { ran: Some(_), operation: Some(operation) }) = serde_json::from_str(envelope.get())
        else {
            return;
        };
        let Ok(operation) = OperationId::parse(&operation.id) else { return };
        let mut sent = lock(&self.sent);
        if sent.len() == MEMORY {
            sent.pop_front();
        }
        let (request, took) = (request.to_string(), begun.elapsed());
        sent.push_back(Sent { request, operation, took, state: Delivery::Sent });
    }

    /// The client has sent its next request, so it has the answers before. If that cannot be recorded, a repeat is
    /// treated as a retry, and nothing runs twice.
    pub(super) fn client_went_on(&self) {
        for sent in lock(&self.sent).iter_mut().filter(|sent| sent.state == Delivery::Sent) {
            sent.state = Delivery::Noted;
            if let Some(ledger) = self.ledger() {
                let later_ms = if sent.took < PATIENCE { 0 } else { RETRY_WINDOW_MS };
                let at_ms = transition::later(ledger.clock_ms(), later_ms);
                drop(ledger.wait_for(async {
                    let (record, _) = ledger.ledger().find(&sent.operation).await?;
                    ledger.ledger().note_delivery(&record, at_ms).await
                }));
            }
        }
    }

    /// The client did not wait for the answer to this request, even if it was sent.
    pub(super) fn cancelled(&self, request: &Value) {
        let request = request.to_string();
        let mut sent = lock(&self.sent);
        if let (Some(answer), Some(ledger)) =
            (sent.iter().find(|sent| sent.request == request && sent.state == Delivery::Noted), self.ledger())
        {
            drop(ledger.take_delivery_back(&answer.operation));
        }
        sent.retain(|sent| sent.request != request);
    }

    fn ledger(&self) -> Option<&Blocking> {
        if self.ledger.get().is_none()
            && let Ok(Some(ledger)) = (self.open)()
        {
            // Another thread's is as good.
            drop(self.ledger.set(ledger));
        }
        self.ledger.get()
    }
}
