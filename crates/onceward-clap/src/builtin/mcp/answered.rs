//! Which answers the client has received, which distinguishes a retry from an intended repeat.

use std::collections::VecDeque;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use onceward::{Blocking, Code, Effect, Error, OperationId, Policy, Record, State, delivers, transition};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::supervisor::lock;

/// How many answers are remembered. A dropped one counts as not delivered, so its repeat is treated as a retry.
const MEMORY: usize = 256;
/// After this long a client may have given up before the answer arrived, as its time limit is often 30 s or 60 s.
/// Within the policy's window the same call is its retry then.
const PATIENCE: Duration = Duration::from_secs(25);

type Opener<'a> = Box<dyn Fn() -> Result<Option<Blocking>, Error> + Send + Sync + 'a>;

/// The answers that were sent.
pub(super) struct Answered<'a> {
    open: Opener<'a>,
    policy: &'a Policy,
    ledger: OnceLock<Blocking>,
    sent: Mutex<VecDeque<Sent>>,
}

struct Sent {
    request: String,
    told: Told,
    took: Duration,
    state: Delivery,
}

/// What an answer says about its operation.
#[derive(Deserialize)]
struct Told {
    id: String,
    state: State,
    attempt: u32,
}

impl Told {
    /// What an envelope delivers. `None` if it is an error of ours, which delivers nothing, or not about a call.
    fn by(envelope: &RawValue) -> Option<Self> {
        #[derive(Deserialize)]
        struct Envelope {
            ran: Option<bool>,
            effect: String,
            operation: Option<Told>,
            error: Option<Problem>,
        }
        #[derive(Deserialize)]
        struct Problem {
            code: String,
        }
        let Envelope { ran: Some(_), effect, operation, error } =
            serde_json::from_str(envelope.get()).ok()?
        else {
            return None;
        };
        let is_delivery = match error {
            Some(problem) => {
                Code::ALL.into_iter().any(|code| delivers(code) && problem.code == code.as_str())
            }
            None => effect != Effect::Held.as_str(),
        };
        operation.filter(|_| is_delivery)
    }

    /// Whether the record still says the same.
    fn is_said_by(&self, record: &Record) -> bool {
        (self.state, self.attempt) == (record.state, record.attempt)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Delivery {
    Sent,
    Noted,
}

impl<'a> Answered<'a> {
    pub(super) fn new(
        policy: &'a Policy,
        open: impl Fn() -> Result<Option<Blocking>, Error> + Send + Sync + 'a,
    ) -> Self {
        Self { open: Box::new(open), policy, ledger: OnceLock::new(), sent: Mutex::default() }
    }

    /// Remembers an answer that is about to be sent.
    pub(super) fn answer(&self, request: &Value, envelope: &RawValue, begun: Instant) {
        let Some(told) = Told::by(envelope) else { return };
        let mut sent = lock(&self.sent);
        if sent.len() == MEMORY {
            sent.pop_front();
        }
        let (request, took) = (request.to_string(), begun.elapsed());
        sent.push_back(Sent { request, told, took, state: Delivery::Sent });
    }

    /// The client has sent its next request, so it has the answers before. If that cannot be recorded, a repeat is
    /// treated as a retry, and nothing runs twice.
    pub(super) fn client_went_on(&self) {
        for sent in lock(&self.sent).iter_mut().filter(|sent| sent.state == Delivery::Sent) {
            sent.state = Delivery::Noted;
            if let Some(ledger) = self.ledger() {
                drop(self.note(ledger, &sent.told, sent.took));
            }
        }
    }

    /// Records the delivery of an answer, unless the operation has changed since.
    fn note(&self, ledger: &Blocking, told: &Told, took: Duration) -> Result<(), Error> {
        let (record, _) = ledger.find(&OperationId::parse(&told.id)?)?;
        if told.is_said_by(&record) {
            let (now_ms, window_ms) =
                (ledger.clock_ms(), self.policy.settings(&record.name)?.terms.repeat_window_ms);
            let late_ms = if took < PATIENCE { now_ms } else { transition::later(now_ms, window_ms) };
            let from_ms = record.answer_counts_from_ms(now_ms, window_ms).max(late_ms);
            drop(ledger.attempts().delivered(&record, from_ms)?);
        }
        Ok(())
    }

    /// The client did not wait for the answer to this request, even if it was sent.
    pub(super) fn cancelled(&self, request: &Value) {
        let request = request.to_string();
        let mut sent = lock(&self.sent);
        if let (Some(answer), Some(ledger)) =
            (sent.iter().find(|sent| sent.request == request && sent.state == Delivery::Noted), self.ledger())
        {
            drop(OperationId::parse(&answer.told.id).map(|id| ledger.attempts().not_delivered(&id)));
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
