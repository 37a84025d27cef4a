//! Is it a retry or a wanted repeat? On the wire they are the same bytes; what differs is whether the first answer was
//! delivered.

use std::collections::HashMap;
use std::sync::Mutex;

use onceward::{Class, Error, Intent, Ledger, OnFailure, Operation, OperationId, Record, State};

use crate::upstream::lock;

/// How many calls are remembered beside the ledger. More only makes the ledger be asked again.
const MEMORY: usize = 10_000;

/// What is remembered of calls beside the ledger, to ask it less.
#[derive(Default)]
pub(crate) struct Memory {
    /// The newest occurrence of each call that was seen here.
    newest: Mutex<HashMap<OperationId, u64>>,
    /// Deliveries that are being written down.
    delivered: Mutex<HashMap<OperationId, i64>>,
    /// Operations that somebody asked for again while they ran.
    repeated: Mutex<HashMap<OperationId, ()>>,
    /// Which call a host's own id stands for.
    call_ids: Mutex<HashMap<String, OperationId>>,
}

/// Which occurrence a call is.
pub(crate) struct Chosen {
    /// The operation.
    pub(crate) operation: Operation,
    /// Whether the same operation is under way for somebody else.
    pub(crate) joined: bool,
}

impl Memory {
    fn put<K: std::hash::Hash + Eq, V>(map: &Mutex<HashMap<K, V>>, key: K, value: V) {
        let mut map = lock(map);
        if map.len() >= MEMORY {
            map.clear();
        }
        map.insert(key, value);
    }

    /// Notes a delivery before it is written down.
    pub(crate) fn delivering(&self, id: &OperationId, at_ms: i64) {
        let known = lock(&self.delivered).get(id).copied();
        Self::put(&self.delivered, id.clone(), known.map_or(at_ms, |known| known.min(at_ms)));
    }

    /// Forgets it once it is, unless another one is still being written.
    pub(crate) fn delivery_written(&self, id: &OperationId, at_ms: i64) {
        let mut delivered = lock(&self.delivered);
        if delivered.get(id) == Some(&at_ms) {
            delivered.remove(id);
        }
    }

    /// Notes that somebody asked for it again while it ran.
    pub(crate) fn note_repeated(&self, id: &OperationId) {
        Self::put(&self.repeated, id.clone(), ());
    }

    /// Whether somebody did.
    pub(crate) fn was_repeated(&self, id: &OperationId) -> bool {
        lock(&self.repeated).contains_key(id)
    }

    /// Forgets it because it was not taken.
    pub(crate) fn not_delivered(&self, id: &OperationId) {
        lock(&self.delivered).remove(id);
    }

    /// Whether the host has used this id for the same call before.
    fn seen_call(&self, call_id: Option<&str>, call: &OperationId) -> bool {
        let Some(call_id) = call_id else { return false };
        let before = lock(&self.call_ids).get(call_id).cloned();
        if before.is_none() {
            Self::put(&self.call_ids, call_id.to_owned(), call.clone());
        }
        before.as_ref() == Some(call)
    }

    fn is_delivered(&self, record: &Record, class: Class, now_ms: i64) -> bool {
        let written = record.detail.delivered_ms;
        let here = lock(&self.delivered).get(&record.id).copied();
        match written.into_iter().chain(here).min() {
            None => false,
            // Where repeating converges, an answer that may have come too late is as good as taken.
            Some(_) if class == Class::Idempotent => true,
            Some(at_ms) => at_ms <= now_ms,
        }
    }

    /// The occurrence that this call is, under the policy `auto`: the newest one while it is running, in doubt or not
    /// delivered, or where the caller says that it is a retry; else the next.
    pub(crate) async fn choose(
        &self,
        ledger: &Ledger,
        operation: &Operation,
        class: Class,
        says_retry: bool,
        call_id: Option<&str>,
    ) -> Result<Chosen, Error> {
        let Intent { id: first, mut terms, .. } = operation.clone().intent()?;
        let says_retry = self.seen_call(call_id, &first) || says_retry;
        let hint = lock(&self.newest).get(&first).copied();
        let (newest, found) = ledger.newest_occurrence(operation, hint).await?;
        let (number, joined, on_failure) = match found {
            None => (newest, false, None),
            Some((record, state)) => {
                let same = says_retry || !self.is_over(&record, state, class, ledger.clock_ms());
                let replay = state == State::Running || (state == State::Failed && has_answer(&record));
                match same {
                    true => (newest, state == State::Running, replay.then_some(OnFailure::Replay)),
                    false => (newest + 1, false, None),
                }
            }
        };
        Self::put(&self.newest, first, number);
        terms.on_failure = on_failure.unwrap_or(terms.on_failure);
        let operation = operation.clone().occurrence(number.to_string()).terms(terms);
        Ok(Chosen { operation, joined })
    }

    fn is_over(&self, record: &Record, state: State, class: Class, now_ms: i64) -> bool {
        match state {
            State::Staged | State::Running | State::InDoubt => false,
            State::Cancelled | State::Expired => true,
            State::Done | State::Failed => self.is_delivered(record, class, now_ms),
        }
    }
}

/// Whether the tool's own answer is kept. A failure that came of a crash or of a settled doubt has nothing to tell, and
/// its call is made again.
fn has_answer(record: &Record) -> bool {
    record.outcome.as_ref().is_some_and(|outcome| outcome.data.is_some() && outcome.settled_by.is_none())
}
