//! Is it a retry or a wanted repeat? On the wire they are the same bytes; what differs is whether the first answer was
//! delivered.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onceward::{Class, Error, Intent, Ledger, OnFailure, OperationId, Record, State};
use quick_cache::sync::Cache;

use crate::upstream::lock;
use crate::waiters::{ONE_STREAM, Waiter};

/// How many calls are remembered beside the ledger. A call that is forgotten only makes the ledger be asked again.
const MEMORY: usize = 10_000;
/// The same calls that come this close together were sent at once: a model asked for each of them.
const TOGETHER_MS: i64 = 500;
/// The same for calls that the host names apart: no host gives up a call sooner and makes it again under another name.
const NAMED_TOGETHER_MS: i64 = 2_500;

/// How long it may take until a connection that was closed is seen to be.
const HANG_UP: Duration = Duration::from_millis(100);

/// What is remembered of calls beside the ledger.
pub(crate) struct Memory {
    /// The newest occurrence of each call that was seen here.
    newest: Cache<OperationId, u64>,
    /// Deliveries that are being written down.
    delivered: Mutex<HashMap<OperationId, i64>>,
    /// Answers that the client went on from: they were read, however slow they were.
    read: Cache<OperationId, ()>,
    /// Answers that were not taken, because a cancellation crossed them.
    refused: Cache<OperationId, ()>,
    /// Which call a host's own id names.
    call_ids: Cache<String, OperationId>,
    /// Calls that are under way here.
    flights: Mutex<HashMap<OperationId, Vec<Flight>>>,
}

/// A call that is under way.
struct Flight {
    number: u64,
    waiter: Arc<Waiter>,
    call_id: Option<String>,
}

/// Which occurrence a call is.
pub(crate) struct Chosen {
    /// The operation.
    pub(crate) intent: Intent,
    /// Whether the same operation is under way for another request.
    pub(crate) joined: bool,
    /// The action of which this is an occurrence, where it counts among those under way here.
    pub(crate) action: Option<OperationId>,
}

/// What a call says about itself.
pub(crate) struct Asker<'a> {
    pub(crate) waiter: &'a Arc<Waiter>,
    pub(crate) class: Class,
    pub(crate) says_retry: bool,
    pub(crate) call_id: Option<&'a str>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            newest: Cache::new(MEMORY),
            delivered: Mutex::default(),
            read: Cache::new(MEMORY),
            refused: Cache::new(MEMORY),
            call_ids: Cache::new(MEMORY),
            flights: Mutex::default(),
        }
    }
}

impl Memory {
    /// Notes a delivery before it is written down.
    pub(crate) fn delivering(&self, id: &OperationId, at_ms: i64) {
        self.refused.remove(id);
        let mut delivered = lock(&self.delivered);
        let known = delivered.get(id).copied();
        delivered.insert(id.clone(), known.map_or(at_ms, |known| known.min(at_ms)));
    }

    /// Forgets it once it is, unless another one is still being written.
    pub(crate) fn delivery_written(&self, id: &OperationId, at_ms: i64) {
        let mut delivered = lock(&self.delivered);
        if delivered.get(id) == Some(&at_ms) {
            delivered.remove(id);
        }
    }

    /// The answer was not taken.
    pub(crate) fn not_delivered(&self, id: &OperationId) {
        lock(&self.delivered).remove(id);
        self.read.remove(id);
        self.refused.insert(id.clone(), ());
    }

    /// The client went on after the answer.
    pub(crate) fn note_read(&self, id: OperationId) {
        self.read.insert(id, ());
    }

    /// Whether the host has used this id for the same call before.
    fn seen_call(&self, call_id: Option<&str>, call: &OperationId) -> bool {
        let Some(call_id) = call_id else { return false };
        let before = self.call_ids.get(call_id);
        if before.is_none() {
            self.call_ids.insert(call_id.to_owned(), call.clone());
        }
        before.as_ref() == Some(call)
    }

    fn is_delivered(&self, record: &Record, class: Class, now_ms: i64) -> bool {
        if self.refused.get(&record.id).is_some() {
            return false;
        }
        let written = record.detail.delivered_ms;
        let here = lock(&self.delivered).get(&record.id).copied();
        match written.into_iter().chain(here).min() {
            None => false,
            // Where repeating converges, an answer that may have come too late is as good as taken.
            Some(_) if class == Class::Idempotent => true,
            Some(at_ms) => at_ms <= now_ms || (self.read.get(&record.id).is_some() && !is_closed(record)),
        }
    }

    /// The occurrence that this call is, under the policy `auto`: the newest one while it is running, in doubt or not
    /// delivered, or where the caller says that it is a retry; else the next.
    pub(crate) async fn choose(
        &self,
        ledger: &Ledger,
        action: Intent,
        asker: &Asker<'_>,
    ) -> Result<Chosen, Error> {
        let says_retry = self.seen_call(asker.call_id, &action.id) || asker.says_retry;
        let (newest, found) = ledger.newest_of(&action, self.newest.get(&action.id)).await?;
        // Any other request than the same call again shows that slow answers before it were read.
        for id in
            asker.waiter.unread.iter().filter(|id| found.as_ref().is_none_or(|(record, _)| record.id != **id))
        {
            self.note_read(id.clone());
        }
        let mut may_part = true;
        let (number, runs, on_failure) = match found {
            None => (newest, false, None),
            Some((record, state)) => {
                let same = says_retry || !self.is_over(&record, state, asker.class, ledger.clock_ms());
                let replay = state == State::Running || (state == State::Failed && has_answer(&record));
                // A call beside one that is in doubt, or whose answer was lost, is its retry.
                may_part = !same || state == State::Running;
                match same {
                    true => (newest, state == State::Running, replay.then_some(OnFailure::Replay)),
                    false => (newest + 1, false, None),
                }
            }
        };
        if asker.waiter.channel != ONE_STREAM && self.is_contested(&action.id, number) {
            // A client that hung up is seen a little later than its next request comes.
            tokio::time::sleep(HANG_UP).await;
        }
        let (number, joins) = self.reserve(&action.id, number, may_part && !says_retry, asker);
        self.newest.insert(action.id.clone(), number);
        let id = action.id.clone();
        let mut intent = action.at_occurrence(number)?;
        let on_failure =
            if joins { Some(OnFailure::Replay) } else { on_failure.filter(|_| number == newest) };
        intent.terms.on_failure = on_failure.unwrap_or(intent.terms.on_failure);
        Ok(Chosen { intent, joined: joins || (runs && number == newest), action: Some(id) })
    }

    fn is_contested(&self, action: &OperationId, number: u64) -> bool {
        lock(&self.flights).get(action).is_some_and(|all| all.iter().any(|flight| flight.number == number))
    }

    /// Takes a place among the calls under way: that of the same call where this one is its retry, or one of its own.
    /// Tells which, and whether it is another's.
    fn reserve(&self, action: &OperationId, number: u64, may_part: bool, asker: &Asker<'_>) -> (u64, bool) {
        let mut flights = lock(&self.flights);
        let all = flights.entry(action.clone()).or_default();
        let mut number = number;
        loop {
            let mut same = all.iter().filter(|flight| flight.number == number).peekable();
            let joins = same.peek().is_some();
            if !joins || !may_part || !same.all(|flight| flight.is_beside(asker)) {
                let call_id = asker.call_id.map(str::to_owned);
                all.push(Flight { number, waiter: Arc::clone(asker.waiter), call_id });
                return (number, joins);
            }
            number = all.iter().map(|flight| flight.number).max().unwrap_or(number).max(number) + 1;
        }
    }

    /// The call is under way no more.
    pub(crate) fn landed(&self, action: &OperationId, waiter: &Arc<Waiter>) {
        let mut flights = lock(&self.flights);
        if let Some(all) = flights.get_mut(action) {
            all.retain(|flight| !Arc::ptr_eq(&flight.waiter, waiter));
            if all.is_empty() {
                flights.remove(action);
            }
        }
    }

    fn is_over(&self, record: &Record, state: State, class: Class, now_ms: i64) -> bool {
        match state {
            State::Staged | State::Running => false,
            // What may run again is not refused for ever because its attempts are spent.
            State::InDoubt => {
                class == Class::Idempotent && record.spent_attempts() >= record.detail.max_attempts
            }
            State::Cancelled | State::Expired => true,
            State::Done | State::Failed => self.is_delivered(record, class, now_ms),
        }
    }
}

impl Flight {
    /// Whether a call is wanted besides this one: both were sent at once by one client that waits for both. Calls
    /// under one request id are one call, however often it is sent.
    fn is_beside(&self, asker: &Asker<'_>) -> bool {
        let named_apart = match (&self.call_id, asker.call_id) {
            (Some(one), Some(other)) if one == other => return false,
            (Some(_), Some(_)) => true,
            (_, _) => false,
        };
        let most_ms = if named_apart { NAMED_TOGETHER_MS } else { TOGETHER_MS };
        !self.waiter.is_gone()
            && self.waiter.caller == asker.waiter.caller
            && self.waiter.id != asker.waiter.id
            && asker.waiter.since_ms - self.waiter.since_ms <= most_ms
    }
}

/// Whether the tool's own answer is kept. A failure that came of a crash or of a settled doubt has nothing to tell,
/// and its call is made again.
fn has_answer(record: &Record) -> bool {
    record.outcome.as_ref().is_some_and(|outcome| outcome.data.is_some() && outcome.settled_by.is_none())
}

/// Whether an operation is known to be done by something else than its own answer. The same call is then not taken
/// for a wanted repeat until a while after it was told.
pub(crate) fn is_closed(record: &Record) -> bool {
    record.state == State::Done
        && record
            .outcome
            .as_ref()
            .is_some_and(|outcome| outcome.settled_by.is_some() || outcome.data.is_none())
}
