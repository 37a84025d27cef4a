//! The two facts that [`repeat::choose`] needs about earlier equal calls: whether their callers are there, and whether
//! they have their answers. A retry and an intended repeat are the same bytes on the wire.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onceward::repeat::{self, Choice, Delivery, Earlier, EarlierCaller, Identified};
use onceward::{Class, Error, Intent, Ledger, Occurrences, OnFailure, OperationId, Record, State};
use onceward_http::time;
use quick_cache::sync::Cache;

use crate::call::waiters::{ONE_STREAM, Waiter};
use crate::sync::lock;

/// The most calls that are remembered in memory. For a forgotten call the ledger is asked again.
const MEMORY: usize = 10_000;
/// Equal calls that arrive within this time were sent in parallel: the model wanted each of them.
const TOGETHER_MS: i64 = 500;
/// The same for calls to which the host gives different ids. No host gives up a call and repeats it under another id
/// sooner.
const NAMED_TOGETHER_MS: i64 = 2_500;
/// How many locks the actions share.
const CHOOSING: usize = 64;

/// How long it may take to notice that a connection was closed.
const HANG_UP: Duration = Duration::from_millis(100);

/// What is remembered about calls apart from the ledger.
pub(crate) struct CallMemory {
    /// Deliveries that are being recorded.
    delivered: Mutex<HashMap<OperationId, i64>>,
    /// Answers that the client read, however slow they were, because it continued after them.
    read: Cache<OperationId, ()>,
    /// Answers that were not received because a cancellation crossed them.
    refused: Cache<OperationId, ()>,
    /// Operations whose delivery is being revoked in the ledger, and how many tasks are doing so.
    taken_back: Mutex<HashMap<OperationId, usize>>,
    /// The action and the operation of the call with each id that a host gave.
    call_ids: Cache<String, (OperationId, OperationId)>,
    /// Calls in flight in this process.
    in_flight: Mutex<HashMap<OperationId, Vec<InFlight>>>,
    /// Held while the occurrence of a call is chosen: equal calls are judged one after the other. Actions share locks.
    choosing: [tokio::sync::Mutex<()>; CHOOSING],
}

/// A call in flight.
struct InFlight {
    operation: OperationId,
    /// The number of its occurrence, if the ledger counts it.
    number: Option<u64>,
    waiter: Arc<Waiter>,
    call_id: Option<String>,
}

/// What the ledger and this process know about the earlier occurrences of an action. The places are the same in both.
struct Known {
    found: Occurrences,
    earlier: Vec<Earlier>,
    /// The number of the next occurrence.
    next: u64,
}

/// The operation that was chosen for a call.
struct Chosen {
    intent: Intent,
    /// Its record, if it has begun.
    begun: Option<(Arc<Record>, State)>,
}

/// The occurrence that a call belongs to.
pub(crate) struct Occurrence {
    /// The operation.
    pub(crate) intent: Intent,
    /// Whether the same operation is in flight for another request.
    pub(crate) joined: bool,
    /// The action of this occurrence, if the call is counted in `in_flight`.
    pub(crate) action: Option<OperationId>,
    /// How many other parallel calls of the action are open. The same call gets their answers next.
    pub(crate) others_open: usize,
}

/// What is known about a call.
pub(crate) struct CallFacts<'a> {
    pub(crate) waiter: &'a Arc<Waiter>,
    pub(crate) class: Class,
    /// Whether the tool is guessed to be read-only.
    pub(crate) guessed: bool,
    pub(crate) says_retry: bool,
    pub(crate) call_id: Option<&'a str>,
}

impl Default for CallMemory {
    fn default() -> Self {
        Self {
            delivered: Mutex::default(),
            read: Cache::new(MEMORY),
            refused: Cache::new(MEMORY),
            taken_back: Mutex::default(),
            call_ids: Cache::new(MEMORY),
            in_flight: Mutex::default(),
            choosing: std::array::from_fn(|_| tokio::sync::Mutex::default()),
        }
    }
}

impl CallMemory {
    /// Notes a delivery before it is recorded.
    pub(crate) fn delivering(&self, id: &OperationId, at_ms: i64) {
        self.refused.remove(id);
        let mut delivered = lock(&self.delivered);
        let known = delivered.get(id).copied();
        delivered.insert(id.clone(), known.map_or(at_ms, |known| known.min(at_ms)));
    }

    /// Forgets a delivery that is recorded, unless another one is still being recorded.
    pub(crate) fn delivery_written(&self, id: &OperationId, at_ms: i64) {
        // An earlier delivery that is being revoked may overwrite it.
        if lock(&self.taken_back).contains_key(id) {
            return;
        }
        let mut delivered = lock(&self.delivered);
        if delivered.get(id) == Some(&at_ms) {
            delivered.remove(id);
        }
    }

    /// Notes that the answer was not received.
    pub(crate) fn not_delivered(&self, id: &OperationId) {
        lock(&self.delivered).remove(id);
        self.read.remove(id);
        self.refused.insert(id.clone(), ());
    }

    /// Notes that the delivery is being revoked in the ledger.
    pub(crate) fn taking_back(&self, id: &OperationId) {
        *lock(&self.taken_back).entry(id.clone()).or_default() += 1;
    }

    /// The delivery is revoked in the ledger. A replay that was delivered meanwhile stays in this memory.
    pub(crate) fn taken_back(&self, id: &OperationId) {
        let mut taken_back = lock(&self.taken_back);
        if let Some(tasks) = taken_back.get_mut(id) {
            *tasks -= 1;
            if *tasks == 0 {
                taken_back.remove(id);
            }
        }
    }

    /// Whether the answer was not received, and no replay of it was delivered since.
    pub(crate) fn is_refused(&self, id: &OperationId) -> bool {
        self.refused.get(id).is_some()
    }

    /// Notes that the client continued after the answer.
    pub(crate) fn note_read(&self, id: OperationId) {
        self.read.insert(id, ());
    }

    /// The delivery of an answer, by what is recorded and what is being recorded.
    fn delivery(&self, record: &Record, class: Class, now_ms: i64) -> Delivery {
        if self.refused.get(&record.id).is_some() {
            return Delivery::NotDelivered;
        }
        let here = lock(&self.delivered).get(&record.id).copied();
        let from_ms = record.delivered_ms().into_iter().chain(here).min();
        let is_read = self.read.get(&record.id).is_some() && !is_closed(record);
        // If repeating is harmless, an answer that may have come too late counts as received.
        if from_ms.is_some() && (is_read || class == Class::Idempotent) {
            return Delivery::Delivered;
        }
        Delivery::at(from_ms, now_ms)
    }

    /// Chooses the occurrence under the key policy `auto`, and adds the call to the calls in flight.
    pub(crate) async fn choose(
        &self,
        ledger: &Ledger,
        action: Intent,
        facts: &CallFacts<'_>,
    ) -> Result<Occurrence, Error> {
        if facts.waiter.channel != ONE_STREAM && self.is_in_flight(&action.id) {
            // A disconnect is noticed a little after the next request of the client.
            time::sleep(ledger.clock(), HANG_UP).await;
        }
        let _alone = self.choosing(&action.id).lock().await;
        let known = self.known(|| ledger.repeats().occurrences(&action), &action.id, facts, ledger).await?;
        let identified = if facts.says_retry { Identified::AsRetry } else { Identified::ByContent };
        let chosen = match self.same_call(&action.id, facts.call_id) {
            // The host has given this id before, so this is that call, however it ended.
            Some(operation) => self.at_call(ledger, &action, &known, &operation).await?,
            None => None,
        };
        let Chosen { mut intent, begun } = match chosen {
            Some(chosen) => chosen,
            None => match repeat::choose(&known.earlier, identified) {
                Choice::Same(place) | Choice::Undecided(place) | Choice::Spent(place) => {
                    self.at_place(&action, &known, place)?
                }
                Choice::New { .. } => {
                    Chosen { intent: action.clone().at_occurrence(known.next)?, begun: None }
                }
            },
        };
        // Any request other than the same call shows that earlier slow answers were read.
        let read = facts.waiter.unread.iter().filter(|id| **id != intent.id);
        read.for_each(|id| self.note_read(id.clone()));
        let joins = self.enter(&action.id, &intent, facts);
        let runs = begun.as_ref().is_some_and(|(_, state)| *state == State::Running);
        let has_failed =
            |(record, state): &(Arc<Record>, State)| *state == State::Failed && has_answer(record);
        if joins || runs || begun.as_ref().is_some_and(has_failed) {
            intent.terms.on_failure = OnFailure::Replay;
        }
        let others_open = known.open_beside(&intent.id, begun.is_some());
        Ok(Occurrence { intent, joined: joins || runs, action: Some(action.id), others_open })
    }

    /// The operation of the call that the host gave this id, if it did so before for the same action.
    fn same_call(&self, action: &OperationId, call_id: Option<&str>) -> Option<OperationId> {
        let (of, operation) = self.call_ids.get(call_id?)?;
        (of == *action).then_some(operation)
    }

    /// The operation of a call whose id is known, with its record if it has begun.
    async fn at_call(
        &self,
        ledger: &Ledger,
        action: &Intent,
        known: &Known,
        operation: &OperationId,
    ) -> Result<Option<Chosen>, Error> {
        if let Some(place) = known.place_of(operation) {
            return self.at_place(action, known, place).map(Some);
        }
        let flying = lock(&self.in_flight).get(&action.id).and_then(|all| {
            all.iter().find(|call| call.operation == *operation).and_then(|call| call.number)
        });
        if let Some(number) = flying {
            return Ok(Some(Chosen { intent: action.clone().at_occurrence(number)?, begun: None }));
        }
        match ledger.find(operation).await {
            Ok((record, state)) => {
                let intent = action.clone().at_record(&record);
                Ok(Some(Chosen { intent, begun: Some((record, state)) }))
            }
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The operation at a place, with its record if it has begun.
    fn at_place(&self, action: &Intent, known: &Known, place: usize) -> Result<Chosen, Error> {
        match known.found.all.get(place) {
            Some((record, state)) => {
                let begun = Some((Arc::clone(record), *state));
                Ok(Chosen { intent: action.clone().at_record(record), begun })
            }
            None => {
                let number = known.earlier[place].number.unwrap_or(1);
                Ok(Chosen { intent: action.clone().at_occurrence(number)?, begun: None })
            }
        }
    }

    /// Reads the occurrences of an action, and adds what is known here. The memory forgets a delivery once it is
    /// recorded, so a record that was read before and checked after that seems undelivered. Therefore a record that
    /// seems undelivered is read again.
    async fn known<F>(
        &self,
        read: impl Fn() -> F + Send + Sync,
        action: &OperationId,
        facts: &CallFacts<'_>,
        clock: &Ledger,
    ) -> Result<Known, Error>
    where
        F: Future<Output = Result<Occurrences, Error>> + Send,
    {
        let known = self.with_facts(read().await?, action, facts, clock.clock_ms());
        let seems_undelivered = |one: &Earlier| {
            one.delivery == Delivery::NotDelivered && matches!(one.state, State::Done | State::Failed)
        };
        if known.earlier.iter().any(seems_undelivered) {
            return Ok(self.with_facts(read().await?, action, facts, clock.clock_ms()));
        }
        Ok(known)
    }

    fn with_facts(
        &self,
        mut found: Occurrences,
        action: &OperationId,
        facts: &CallFacts<'_>,
        now_ms: i64,
    ) -> Known {
        let in_flight = lock(&self.in_flight);
        let flying = in_flight.get(action).map(Vec::as_slice).unwrap_or_default();
        // An operation that may run again is not refused for ever because its attempts are spent.
        let is_given_up = |record: &Record, state| {
            state == State::InDoubt
                && facts.class == Class::Idempotent
                && record.detail.cancelled_by.is_none()
                && record.spent_attempts() >= record.detail.max_attempts
        };
        let after_found = found.next_number();
        found.all.retain(|(record, state)| !is_given_up(record, *state));
        let mut earlier: Vec<Earlier> = Vec::with_capacity(found.all.len());
        for (record, state) in &found.all {
            let of = Earlier::of(record, *state, now_ms);
            let delivery = match state {
                // What was read before may have changed since, so a read is never replayed.
                State::Done | State::Failed if facts.guessed => Delivery::Delivered,
                State::Staged
                | State::Running
                | State::Done
                | State::Failed
                | State::InDoubt
                | State::Cancelled
                | State::Expired => self.delivery(record, facts.class, now_ms),
            };
            earlier.push(Earlier { caller: caller_of(flying, &record.id, *state, facts), delivery, ..of });
        }
        Self::tell_together(&found, &mut earlier);
        // Calls that were chosen, and are not in the ledger yet.
        for call in flying {
            let is_known = |one: &Earlier| one.number == call.number;
            let has_begun = found.all.iter().any(|(record, _)| record.id == call.operation);
            if has_begun || earlier[found.all.len()..].iter().any(is_known) {
                continue;
            }
            earlier.push(Earlier {
                caller: caller_of(flying, &call.operation, State::Running, facts),
                ..Earlier::starting(call.number, call.waiter.since_ms)
            });
        }
        let after_starting = earlier.iter().filter_map(|one| one.number).max().map_or(1, |number| number + 1);
        Known { found, earlier, next: after_found.max(after_starting) }
    }

    /// One answer that says that a call is done, without its result, also answers the equal calls that were settled
    /// before it: all of them are done, and there is nothing else to tell.
    fn tell_together(found: &Occurrences, earlier: &mut [Earlier]) {
        let closed: Vec<usize> =
            (0..found.all.len()).filter(|place| is_closed(&found.all[*place].0)).collect();
        for place in &closed {
            let settled_ms = found.all[*place].0.updated_ms;
            let covers = |other: &&usize| {
                found.all[**other].0.detail.delivered.is_some_and(|delivered| delivered.at_ms > settled_ms)
            };
            if earlier[*place].delivery == Delivery::NotDelivered
                && let Some(other) = closed.iter().find(covers)
            {
                earlier[*place].delivery = earlier[*other].delivery;
            }
        }
    }

    fn choosing(&self, action: &OperationId) -> &tokio::sync::Mutex<()> {
        let mut hasher = DefaultHasher::new();
        action.hash(&mut hasher);
        &self.choosing[hasher.finish() as usize % CHOOSING]
    }

    fn is_in_flight(&self, action: &OperationId) -> bool {
        lock(&self.in_flight).contains_key(action)
    }

    /// Adds the call to the calls in flight. Returns whether it joins another call.
    fn enter(&self, action: &OperationId, intent: &Intent, facts: &CallFacts<'_>) -> bool {
        if let Some(call_id) = facts.call_id {
            self.call_ids.insert(call_id.to_owned(), (action.clone(), intent.id.clone()));
        }
        let mut in_flight = lock(&self.in_flight);
        let all = in_flight.entry(action.clone()).or_default();
        let joins = all.iter().any(|call| call.operation == intent.id);
        all.push(InFlight {
            operation: intent.id.clone(),
            number: intent.number,
            waiter: Arc::clone(facts.waiter),
            call_id: facts.call_id.map(str::to_owned),
        });
        joins
    }

    /// Removes a call from the calls in flight.
    pub(crate) fn end_call(&self, action: &OperationId, waiter: &Arc<Waiter>) {
        let mut in_flight = lock(&self.in_flight);
        if let Some(all) = in_flight.get_mut(action) {
            all.retain(|flight| !Arc::ptr_eq(&flight.waiter, waiter));
            if all.is_empty() {
                in_flight.remove(action);
            }
        }
    }
}

impl Known {
    fn place_of(&self, operation: &OperationId) -> Option<usize> {
        self.found.all.iter().position(|(record, _)| record.id == *operation)
    }

    /// How many occurrences besides this one the same call would get the answer of.
    fn open_beside(&self, chosen: &OperationId, is_earlier: bool) -> usize {
        let is_chosen =
            |place: usize| self.found.all.get(place).is_some_and(|(record, _)| record.id == *chosen);
        let open = |(place, one): &(usize, &Earlier)| !is_chosen(*place) && !one.is_over();
        if is_earlier { self.earlier.iter().enumerate().filter(open).count() } else { 0 }
    }
}

/// Whether the caller of an operation is there.
fn caller_of(
    flying: &[InFlight],
    operation: &OperationId,
    state: State,
    facts: &CallFacts<'_>,
) -> EarlierCaller {
    let mut waiting =
        flying.iter().filter(|call| call.operation == *operation && !call.waiter.is_gone()).peekable();
    if waiting.peek().is_none() {
        return EarlierCaller::Left;
    }
    // A call parallel to one that is in doubt, or whose answer was lost, is its retry.
    if state == State::Running && waiting.all(|call| call.is_beside(facts)) {
        EarlierCaller::Beside
    } else {
        EarlierCaller::Unknown
    }
}

impl InFlight {
    /// Whether another call is wanted in addition to this one: one client sent both in parallel and waits for both.
    /// Calls with the same request id are one call.
    fn is_beside(&self, facts: &CallFacts<'_>) -> bool {
        let named_apart = match (&self.call_id, facts.call_id) {
            (Some(one), Some(other)) if one == other => return false,
            (Some(_), Some(_)) => true,
            (_, _) => false,
        };
        let most_ms = if named_apart { NAMED_TOGETHER_MS } else { TOGETHER_MS };
        !self.waiter.is_gone()
            && self.waiter.caller == facts.waiter.caller
            && self.waiter.id != facts.waiter.id
            && facts.waiter.since_ms - self.waiter.since_ms <= most_ms
    }
}

/// Whether the tool's own answer is stored. A failure from a crash or a settled doubt has no answer, so its call runs
/// again.
fn has_answer(record: &Record) -> bool {
    record.outcome.as_ref().is_some_and(|outcome| outcome.data.is_some() && outcome.settled_by.is_none())
}

/// Whether an operation is known to be done from another source than its own answer. The same call then counts as a
/// retry for a while after the caller got that answer.
pub(crate) fn is_closed(record: &Record) -> bool {
    record.state == State::Done
        && record
            .outcome
            .as_ref()
            .is_some_and(|outcome| outcome.settled_by.is_some() || outcome.data.is_none())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use onceward::{Attempt, ManualClock, MemoryStore, Operation};
    use onceward_http::socket::Peer;

    use super::*;
    use crate::call::waiters::Caller;

    #[test]
    fn a_delivery_is_remembered_until_the_last_task_has_revoked_an_earlier_one() {
        let (memory, id) = (CallMemory::default(), OperationId::of("s", "n", "k"));
        memory.taking_back(&id);
        memory.taking_back(&id);
        memory.delivering(&id, 7);
        memory.taken_back(&id);
        memory.delivery_written(&id, 7);
        assert_eq!(lock(&memory.delivered).get(&id), Some(&7), "the other task may still overwrite it");
        memory.taken_back(&id);
        memory.delivery_written(&id, 7);
        assert!(lock(&memory.delivered).is_empty() && lock(&memory.taken_back).is_empty());
    }

    fn facts<'a>(waiter: &'a Arc<Waiter>, call_id: Option<&'a str>) -> CallFacts<'a> {
        CallFacts { waiter, class: Class::Once, guessed: false, says_retry: false, call_id }
    }

    #[test]
    fn a_call_repeated_under_its_id_joins_the_one_with_that_id() {
        let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0))));
        let action = ledger.intent(Operation::new("shop/count").host_scope("s")).unwrap();
        let memory = CallMemory::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let choose = |id: &str, call_id| {
            let waiter = Waiter::new(id, Caller::default(), ONE_STREAM, 0, Vec::new(), Peer::default());
            let facts = facts(&waiter, Some(call_id));
            let chosen = runtime.block_on(memory.choose(&ledger, action.clone(), &facts)).unwrap();
            (chosen.intent.number, chosen.joined)
        };
        assert_eq!(choose("1", "toolu_1"), (Some(1), false));
        assert_eq!(choose("2", "toolu_2"), (Some(2), false), "parallel to the first");
        assert_eq!(choose("3", "toolu_2"), (Some(2), true), "the second one, although neither is written");
    }

    #[test]
    fn a_delivery_recorded_between_reading_and_checking_counts() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0))));
            let action = ledger.intent(Operation::new("shop/count").host_scope("s")).unwrap();
            let count = async |attempt: Attempt| Ok(attempt.dispatch()?.created(&1));
            ledger.call(action.clone()).run(count).await.unwrap();
            let memory = CallMemory::default();
            let found = ledger.repeats().occurrences(&action).await.unwrap();
            let (record, _) = found.all.last().unwrap();
            let at_ms = ledger.clock_ms();
            memory.delivering(&record.id, at_ms);
            let is_first = AtomicBool::new(true);
            let read = || async {
                let read = ledger.repeats().occurrences(&action).await;
                if is_first.swap(false, Ordering::SeqCst) {
                    ledger.attempts().delivered(record, at_ms).await?;
                    memory.delivery_written(&record.id, at_ms);
                }
                read
            };
            let waiter = Waiter::new("1", Caller::default(), ONE_STREAM, at_ms, Vec::new(), Peer::default());
            let known = memory.known(read, &action.id, &facts(&waiter, None), &ledger).await.unwrap();
            assert!(known.earlier[0].is_over());
        });
    }
}
