//! Decides whether a call is a retry or an intended repeat. Both are the same bytes on the wire; the difference is
//! whether the first answer was delivered.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

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
    /// For each action, the first occurrence that may not be over.
    over_before: Cache<OperationId, u64>,
    /// Deliveries that are being recorded.
    delivered: Mutex<HashMap<OperationId, i64>>,
    /// Answers that the client read, however slow they were, because it continued after them.
    read: Cache<OperationId, ()>,
    /// Answers that were not received because a cancellation crossed them.
    refused: Cache<OperationId, ()>,
    /// Operations whose delivery is being revoked in the ledger, and how many tasks are doing so.
    taken_back: Mutex<HashMap<OperationId, usize>>,
    /// The call for each id that a host gave.
    call_ids: Cache<String, OperationId>,
    /// Calls in flight in this process.
    in_flight: Mutex<HashMap<OperationId, Vec<InFlight>>>,
    /// Held while the occurrence of a call is chosen: equal calls are judged one after the other. Actions share locks.
    choosing: [tokio::sync::Mutex<()>; CHOOSING],
}

/// An occurrence of an action.
struct Judged {
    number: u64,
    record: Arc<Record>,
    state: State,
    /// Whether the same call now means a new occurrence.
    is_over: bool,
}

/// Whether a caller has received the answer that an operation is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Yes,
    No,
}

/// A call in flight.
struct InFlight {
    number: u64,
    waiter: Arc<Waiter>,
    call_id: Option<String>,
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
            over_before: Cache::new(MEMORY),
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
        // Its action is not known here.
        self.over_before.clear();
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

    /// Whether the host used this id for the same call before.
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
        let written = record.delivered_ms();
        let here = lock(&self.delivered).get(&record.id).copied();
        match written.into_iter().chain(here).min() {
            None => false,
            // If repeating is harmless, an answer that may have come too late counts as received.
            Some(_) if class == Class::Idempotent => true,
            Some(at_ms) => at_ms <= now_ms || (self.read.get(&record.id).is_some() && !is_closed(record)),
        }
    }

    /// Chooses the occurrence under the key policy `auto`: the newest one while it is running, in doubt or not
    /// delivered, or if the caller says that this is a retry. Otherwise the next one. If an earlier one of several
    /// parallel calls is still open, that one comes first.
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
        let says_retry = self.seen_call(facts.call_id, &action.id) || facts.says_retry;
        let mut all = self.judged(|| ledger.occurrences(&action), facts, ledger).await?;
        let mut newest = all.pop();
        let latest = newest.as_ref().map_or(0, |newest| newest.number);
        let first = self.over_before.get(&action.id).unwrap_or(1);
        all.retain(|one| one.number >= first);
        let mut open = self.open_before(all, newest.as_mut());
        let over_before = match (open.first(), &newest) {
            (Some(oldest), _) => oldest.number,
            (None, Some(newest)) => newest.number + u64::from(newest.is_over),
            (None, None) => 1,
        };
        self.over_before.insert(action.id.clone(), over_before);
        let earlier = self.pick(&action.id, &open).map(|at| open.remove(at));
        let others_open = match &earlier {
            Some(_) => open.len() + usize::from(newest.as_ref().is_some_and(|newest| !newest.is_over)),
            None => 0,
        };
        let found = earlier.or(newest);
        // Any request other than the same call shows that earlier slow answers were read.
        for id in
            facts.waiter.unread.iter().filter(|id| found.as_ref().is_none_or(|found| found.record.id != **id))
        {
            self.note_read(id.clone());
        }
        let mut may_part = true;
        let base = found.as_ref().map_or(1, |found| found.number);
        let (number, runs, on_failure) = match found {
            None => (1, false, None),
            Some(Judged { record, state, is_over, .. }) => {
                let same = says_retry || !is_over;
                let replay = state == State::Running || (state == State::Failed && has_answer(&record));
                // A call parallel to one that is in doubt, or whose answer was lost, is its retry.
                may_part = !same || state == State::Running;
                match same {
                    true => (base, state == State::Running, replay.then_some(OnFailure::Replay)),
                    false => (latest + 1, false, None),
                }
            }
        };
        let (number, joins) = self.reserve(&action.id, (number, latest), may_part && !says_retry, facts);
        let id = action.id.clone();
        let mut intent = action.at_occurrence(number)?;
        let on_failure = if joins { Some(OnFailure::Replay) } else { on_failure.filter(|_| number == base) };
        intent.terms.on_failure = on_failure.unwrap_or(intent.terms.on_failure);
        let joined = joins || (runs && number == base);
        Ok(Occurrence { intent, joined, action: Some(id), others_open })
    }

    /// Reads the occurrences of an action, oldest first, and decides which of them are over. The memory forgets a
    /// delivery once it is recorded, so a record that was read before and checked after that seems undelivered.
    /// Therefore a record that seems undelivered is read again.
    async fn judged<F>(
        &self,
        read: impl Fn() -> F + Send + Sync,
        facts: &CallFacts<'_>,
        clock: &Ledger,
    ) -> Result<Vec<Judged>, Error>
    where
        F: Future<Output = Result<Occurrences, Error>> + Send,
    {
        let all = self.judge(&read().await?, facts, clock.clock_ms());
        let seems_undelivered =
            |one: &Judged| !one.is_over && matches!(one.state, State::Done | State::Failed);
        if all.iter().any(seems_undelivered) {
            return Ok(self.judge(&read().await?, facts, clock.clock_ms()));
        }
        Ok(all)
    }

    fn judge(&self, found: &Occurrences, facts: &CallFacts<'_>, now_ms: i64) -> Vec<Judged> {
        let one = |(number, (record, state)): (u64, &(Arc<Record>, State))| {
            let is_over = self.is_over(record, *state, facts, now_ms);
            Judged { number, record: Arc::clone(record), state: *state, is_over }
        };
        found.numbered().map(one).collect()
    }

    /// The occurrences before the newest that are not over, oldest first.
    fn open_before(&self, mut all: Vec<Judged>, newest: Option<&mut Judged>) -> Vec<Judged> {
        let was_told = all.iter().any(|judged| self.is_closed(judged) == Some(Told::Yes));
        all.retain(|judged| !judged.is_over);
        // One answer says that parallel calls are done. After it, the same call runs.
        if was_told {
            all.retain(|judged| self.is_closed(judged) != Some(Told::No));
            if let Some(newest) = newest {
                newest.is_over |= self.is_closed(newest) == Some(Told::No);
            }
        }
        all
    }

    /// Whether a caller knows of an occurrence that is done without a result of its own. `None` if it is not.
    fn is_closed(&self, judged: &Judged) -> Option<Told> {
        let record = Some(&judged.record).filter(|record| is_closed(record))?;
        let is_told = record.detail.delivered.is_some() || lock(&self.delivered).contains_key(&record.id);
        Some(if is_told { Told::Yes } else { Told::No })
    }

    /// Which of the open occurrences the call belongs to: one in doubt, then one that no client waits for, then one
    /// that has ended.
    fn pick(&self, action: &OperationId, open: &[Judged]) -> Option<usize> {
        let in_flight = lock(&self.in_flight);
        let all = in_flight.get(action).map(Vec::as_slice).unwrap_or_default();
        let waits = |one: &Judged| all.iter().any(|call| call.number == one.number && !call.waiter.is_gone());
        let in_doubt = |one: &Judged| one.state == State::InDoubt;
        let ended = |one: &Judged| one.state != State::Running;
        let mut places =
            [open.iter().position(in_doubt), open.iter().position(|one| !waits(one))].into_iter();
        places.find_map(|place| place).or_else(|| open.iter().position(ended))
    }

    fn choosing(&self, action: &OperationId) -> &tokio::sync::Mutex<()> {
        let mut hasher = DefaultHasher::new();
        action.hash(&mut hasher);
        &self.choosing[hasher.finish() as usize % CHOOSING]
    }

    fn is_in_flight(&self, action: &OperationId) -> bool {
        lock(&self.in_flight).contains_key(action)
    }

    /// Adds the call to the calls in flight: with the number of an equal call if this is its retry, otherwise with one
    /// after the latest. Returns the number and whether it joins another call.
    fn reserve(
        &self,
        action: &OperationId,
        (mut number, latest): (u64, u64),
        may_part: bool,
        facts: &CallFacts<'_>,
    ) -> (u64, bool) {
        let mut in_flight = lock(&self.in_flight);
        let all = in_flight.entry(action.clone()).or_default();
        if let Some(same) =
            all.iter().find(|flight| flight.call_id.is_some() && flight.call_id.as_deref() == facts.call_id)
        {
            number = same.number;
        }
        loop {
            let mut same = all.iter().filter(|flight| flight.number == number).peekable();
            let joins = same.peek().is_some();
            if !joins || !may_part || !same.all(|flight| flight.is_beside(facts)) {
                let call_id = facts.call_id.map(str::to_owned);
                all.push(InFlight { number, waiter: Arc::clone(facts.waiter), call_id });
                return (number, joins);
            }
            number = all.iter().map(|flight| flight.number).fold(number.max(latest), u64::max) + 1;
        }
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

    fn is_over(&self, record: &Record, state: State, facts: &CallFacts<'_>, now_ms: i64) -> bool {
        match state {
            State::Staged | State::Running => false,
            // An operation that may run again is not refused for ever because its attempts are spent.
            State::InDoubt => {
                facts.class == Class::Idempotent && record.spent_attempts() >= record.detail.max_attempts
            }
            State::Cancelled | State::Expired => true,
            // What was read before may have changed since, so a read is never replayed.
            State::Done | State::Failed => facts.guessed || self.is_delivered(record, facts.class, now_ms),
        }
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

    #[test]
    fn a_call_repeated_under_its_id_joins_the_one_with_that_id() {
        let (memory, action) = (CallMemory::default(), OperationId::of("s", "n", "k"));
        let reserve = |id: &str, call_id, may_part| {
            let waiter = Waiter::new(id, Caller::default(), ONE_STREAM, 0, Vec::new(), Peer::default());
            let facts = CallFacts {
                waiter: &waiter,
                class: Class::Once,
                guessed: false,
                says_retry: false,
                call_id: Some(call_id),
            };
            memory.reserve(&action, (1, 1), may_part, &facts)
        };
        assert_eq!(reserve("1", "toolu_1", true), (1, false));
        assert_eq!(reserve("2", "toolu_2", true), (2, false));
        assert_eq!(
            reserve("3", "toolu_2", false),
            (2, true),
            "not the first one, although only that is written"
        );
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
            let found = ledger.occurrences(&action).await.unwrap();
            let (record, _) = found.newest().unwrap();
            let at_ms = ledger.clock_ms();
            memory.delivering(&record.id, at_ms);
            let is_first = AtomicBool::new(true);
            let read = || async {
                let read = ledger.occurrences(&action).await;
                if is_first.swap(false, Ordering::SeqCst) {
                    ledger.note_delivery(record, at_ms).await?;
                    memory.delivery_written(&record.id, at_ms);
                }
                read
            };
            let waiter = Waiter::new("1", Caller::default(), ONE_STREAM, at_ms, Vec::new(), Peer::default());
            let facts = CallFacts {
                waiter: &waiter,
                class: Class::Once,
                guessed: false,
                says_retry: false,
                call_id: None,
            };
            assert!(memory.judged(read, &facts, &ledger).await.unwrap()[0].is_over);
        });
    }
}
