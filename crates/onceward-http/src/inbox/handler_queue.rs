//! The queue of one handler: what is ready, what waits for its next attempt, and what waits for its turn.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onceward::event::{Deliveries, Fate, Round};
use onceward::{Clock, Ledger, OperationId, Record};
use tokio::sync::Notify;

use super::record::EventData;
use crate::locks::lock;
use crate::time;

/// After this many failures in a row the handler gets a rest.
const FAILURES: u32 = 5;
/// The first and the longest rest.
const REST: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// An event that is being delivered.
#[derive(Debug)]
pub(crate) struct Item {
    /// The id of its record.
    pub(crate) id: OperationId,
    pub(crate) key: String,
    pub(crate) created_ms: i64,
    /// The version of its record.
    pub(crate) version: u64,
    pub(crate) data: EventData,
    /// Which time of delivering it this is.
    pub(crate) round: Round,
    /// The handlers that want it, each with how its delivery has ended, as far as it has.
    deliveries: Mutex<Deliveries>,
}

/// What the end of a delivery means for its event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closed {
    /// Other deliveries have not ended.
    One,
    /// It was the last one.
    Last,
    /// It had ended before.
    Already,
}

impl Item {
    pub(crate) fn new(record: &Record, data: EventData) -> Arc<Self> {
        let deliveries = record.deliveries().cloned().unwrap_or_else(|| Deliveries::to([]));
        let (id, key, round) = (record.id.clone(), record.key.text.clone(), deliveries.round);
        let (created_ms, version) = (record.created_ms, record.version);
        Arc::new(Self { id, key, created_ms, version, data, round, deliveries: Mutex::new(deliveries) })
    }

    /// Whether this is the same event after it was released again.
    pub(crate) fn is_release_of(&self, other: &Self) -> bool {
        self.round > other.round
    }

    /// Whether the delivery to this handler has not ended.
    pub(crate) fn is_open(&self, handler: &str) -> bool {
        lock(&self.deliveries).handlers.get(handler).is_some_and(Option::is_none)
    }

    /// The handlers whose deliveries have not ended.
    pub(crate) fn open(&self) -> Vec<String> {
        let deliveries = lock(&self.deliveries);
        let open = deliveries.handlers.iter().filter(|(_, fate)| fate.is_none());
        open.map(|(handler, _)| handler.clone()).collect()
    }

    /// How its deliveries have ended, as far as they have.
    pub(crate) fn fates(&self) -> BTreeMap<String, Fate> {
        let deliveries = lock(&self.deliveries);
        deliveries.handlers.iter().filter_map(|(handler, fate)| Some((handler.clone(), (*fate)?))).collect()
    }

    /// Notes how the delivery to this handler has ended.
    pub(crate) fn close(&self, handler: &str, fate: Fate) -> Closed {
        let mut deliveries = lock(&self.deliveries);
        match deliveries.handlers.get_mut(handler) {
            Some(open @ None) => *open = Some(fate),
            Some(Some(_)) | None => return Closed::Already,
        }
        if deliveries.handlers.values().all(Option::is_some) { Closed::Last } else { Closed::One }
    }
}

/// Whether the ledger must be asked about earlier attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It was accepted by this process, or its pause is over: there is nothing to wait for.
    Ready,
    /// Another process may have tried it.
    Unknown,
}

/// An event in the queue of a handler.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) item: Arc<Item>,
    pub(crate) seen: Seen,
}

/// Orders what waits by its time.
struct Later(i64, Job);

impl PartialEq for Later {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Later {}

impl PartialOrd for Later {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Later {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

/// What waits. An item is compared by its pointer: an event that was released again is another item than before, and
/// both may be here.
#[derive(Default)]
struct Waiting {
    ready: VecDeque<Job>,
    later: BinaryHeap<Reverse<Later>>,
    /// For ordered handlers: the items that were added and have not ended.
    held: HashSet<ByPointer>,
    /// For ordered handlers: the turns of each value. A value has an entry while an event with it is ready, being
    /// delivered or waiting for its next attempt.
    turns: HashMap<String, Turns>,
}

/// The events of an ordered handler with the same value.
struct Turns {
    /// The one whose turn it is.
    current: Arc<Item>,
    /// The others, in the order in which they were added.
    behind: VecDeque<Job>,
}

/// An item that equals only itself.
struct ByPointer(Arc<Item>);

impl PartialEq for ByPointer {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ByPointer {}

impl std::hash::Hash for ByPointer {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.id.as_str().hash(state);
    }
}

/// The queue of one handler.
pub(crate) struct HandlerQueue {
    /// The handler's name.
    name: String,
    is_ordered: bool,
    /// Its clock says what is due.
    ledger: Ledger,
    waiting: Mutex<Waiting>,
    wake: Notify,
    breaker: Mutex<Breaker>,
}

/// Gives a handler that fails again and again a rest, so that events do not spend their attempts on it.
#[derive(Default)]
struct Breaker {
    failures: u32,
    rests: u32,
    until_ms: Option<i64>,
}

impl HandlerQueue {
    pub(crate) fn new(name: &str, is_ordered: bool, ledger: &Ledger) -> Self {
        let (waiting, wake, breaker) = (Mutex::default(), Notify::new(), Mutex::default());
        Self { name: name.to_owned(), is_ordered, ledger: ledger.clone(), waiting, wake, breaker }
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        self.ledger.clock()
    }

    pub(crate) fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    /// Adds an event that this handler wants. In an ordered queue it waits behind those with the same value, and an
    /// item that is there is not added twice.
    pub(crate) fn push(&self, job: Job) {
        let mut waiting = lock(&self.waiting);
        if self.is_ordered && !waiting.held.insert(ByPointer(Arc::clone(&job.item))) {
            return;
        }
        match job.item.data.order.get(&self.name).filter(|_| self.is_ordered) {
            Some(value) => match waiting.turns.get_mut(value) {
                Some(turns) => turns.behind.push_back(job),
                None => {
                    let turns = Turns { current: Arc::clone(&job.item), behind: VecDeque::new() };
                    waiting.turns.insert(value.clone(), turns);
                    waiting.ready.push_back(job);
                }
            },
            None => waiting.ready.push_back(job),
        }
        drop(waiting);
        self.wake.notify_one();
    }

    /// Adds an event again that is to be looked at after a pause. It keeps its turn.
    pub(crate) fn again(&self, job: Job, pause: Duration) {
        lock(&self.waiting).later.push(Reverse(Later(time::after(self.clock(), pause), job)));
        self.wake.notify_one();
    }

    /// Notes that an event has ended here, so that the next one with the same value has its turn. Safe to repeat: only
    /// the event whose turn it is can pass it on.
    pub(crate) fn ended(&self, item: &Arc<Item>) {
        if !self.is_ordered {
            return;
        }
        let mut waiting = lock(&self.waiting);
        waiting.held.remove(&ByPointer(Arc::clone(item)));
        let Some(value) = item.data.order.get(&self.name) else { return };
        let turns = waiting.turns.get_mut(value).filter(|turns| Arc::ptr_eq(&turns.current, item));
        let Some(turns) = turns else { return };
        match turns.behind.pop_front() {
            Some(next) => {
                turns.current = Arc::clone(&next.item);
                waiting.ready.push_back(next);
            }
            None => drop(waiting.turns.remove(value)),
        }
        drop(waiting);
        self.wake.notify_one();
    }

    /// Takes an event out of those that wait for their time.
    pub(crate) fn take_out(&self, item: &Arc<Item>) {
        lock(&self.waiting).later.retain(|later| !Arc::ptr_eq(&later.0.1.item, item));
    }

    /// Forgets everything: another process delivers to this handler.
    pub(crate) fn clear(&self) {
        *lock(&self.waiting) = Waiting::default();
    }

    /// The next event that is ready.
    pub(crate) async fn next(&self) -> Job {
        loop {
            let woken = self.wake.notified();
            let pause = match self.take_ready() {
                Ok(job) => return job,
                Err(pause) => pause,
            };
            match pause {
                // A wake-up that comes after this is not lost: `notified` was created before the look.
                None => woken.await,
                Some(until_ms) => {
                    tokio::select! {
                        () = woken => {}
                        () = time::sleep_until(self.clock(), until_ms) => {}
                    }
                }
            }
        }
    }

    /// An event that is ready now, or the time of the next one.
    pub(crate) fn take_ready(&self) -> Result<Job, Option<i64>> {
        let mut waiting = lock(&self.waiting);
        let now_ms = self.clock().now_ms();
        while let Some(Reverse(later)) = waiting.later.peek() {
            if later.0 > now_ms {
                break;
            }
            if let Some(Reverse(Later(_, job))) = waiting.later.pop() {
                waiting.ready.push_back(job);
            }
        }
        let until_ms = waiting.later.peek().map(|later| later.0.0);
        let job = waiting.ready.pop_front().ok_or(until_ms)?;
        if !waiting.ready.is_empty() {
            // Another consumer may wait.
            self.wake.notify_one();
        }
        Ok(job)
    }

    /// Waits until the handler's rest is over. After a rest one event tries it.
    pub(crate) async fn rested(&self) {
        loop {
            let until_ms = {
                let mut breaker = lock(&self.breaker);
                match breaker.until_ms {
                    Some(until_ms) if until_ms > self.clock().now_ms() => until_ms,
                    Some(_) => {
                        // The others wait for the result of this one.
                        breaker.until_ms = Some(time::after(self.clock(), REST.0));
                        return;
                    }
                    None => return,
                }
            };
            time::sleep_until(self.clock(), until_ms).await;
        }
    }

    /// Gives the handler a rest that is not its fault: nothing may be delivered for now.
    pub(crate) fn rest(&self, pause: Duration) {
        lock(&self.breaker).until_ms = Some(time::after(self.clock(), pause));
    }

    /// Whether the handler has a rest.
    pub(crate) fn is_resting(&self) -> bool {
        lock(&self.breaker).until_ms.is_some_and(|until_ms| until_ms > self.clock().now_ms())
    }

    /// Notes that the handler answered.
    pub(crate) fn answered(&self) {
        *lock(&self.breaker) = Breaker::default();
    }

    /// Notes that the handler could not be reached or gave no proper answer.
    pub(crate) fn failed(&self) {
        let mut breaker = lock(&self.breaker);
        breaker.failures += 1;
        if breaker.failures >= FAILURES {
            let rest = REST.0.saturating_mul(1 << breaker.rests.min(10)).min(REST.1);
            breaker.rests += 1;
            breaker.until_ms = Some(time::after(self.clock(), rest));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use onceward::{Effect, Kind, ManualClock, MemoryStore, Operation, Outcome};
    use onceward_testkit::Stepped;

    use super::*;

    /// A queue, and the clock that says what is due in it.
    fn queue(is_ordered: bool) -> (HandlerQueue, Arc<Stepped>) {
        let clock = Stepped::at(0);
        let ledger = Ledger::new(Arc::new(MemoryStore::new(Arc::clone(&clock))));
        (HandlerQueue::new("bill", is_ordered, &ledger), clock)
    }

    fn job(key: &str, value: &str, created_ms: i64) -> Job {
        let order = [("bill".to_owned(), value.to_owned())].into();
        let data = EventData { order, ..EventData::default() };
        let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(created_ms))));
        let intent = ledger.intent(Operation::of_kind(Kind::Event, "n").scope("s").key(key)).unwrap();
        let to = Deliveries::to(["bill".to_owned()]);
        let record = ledger.events().new_record(&intent, to, Outcome::with_effect(Effect::Created));
        Job { item: Item::new(&record, data), seen: Seen::Ready }
    }

    fn taken(queue: &HandlerQueue) -> Option<String> {
        queue.next().now_or_never().map(|job| job.item.key.clone())
    }

    #[tokio::test]
    async fn events_with_one_value_are_delivered_one_at_a_time_in_order() {
        let (queue, _) = queue(true);
        let jobs = [("a1", "a", 1), ("b1", "b", 2), ("a2", "a", 3), ("a3", "a", 5)];
        let [a1, b1, a2, a3] = jobs.map(|(key, value, at)| job(key, value, at));
        for job in [&a1, &b1, &a2, &a3] {
            queue.push(job.clone());
        }
        assert_eq!(taken(&queue).as_deref(), Some("a1"));
        assert_eq!(taken(&queue).as_deref(), Some("b1"));
        assert_eq!(taken(&queue), None, "the others wait for a1");
        queue.again(a1.clone(), Duration::from_secs(3_600));
        assert_eq!(taken(&queue), None, "a1 waits for its next attempt and keeps its turn");
        queue.take_out(&a1.item);
        queue.again(a1.clone(), Duration::ZERO);
        assert_eq!(taken(&queue).as_deref(), Some("a1"));
        queue.ended(&a1.item);
        assert_eq!(taken(&queue).as_deref(), Some("a2"));
        queue.ended(&a2.item);
        assert_eq!(taken(&queue).as_deref(), Some("a3"));
        queue.ended(&a3.item);
        queue.push(job("a4", "a", 6));
        assert_eq!(taken(&queue).as_deref(), Some("a4"));
    }

    #[tokio::test]
    async fn an_event_that_is_added_twice_does_not_block_the_next_one() {
        let (queue, _) = queue(true);
        let [a1, a2, a3] = ["a1", "a2", "a3"].map(|key| job(key, "a", 1));
        for job in [&a1, &a1, &a2, &a2, &a3] {
            queue.push(job.clone());
        }
        for job in [&a1, &a2, &a3] {
            assert_eq!(taken(&queue).as_deref(), Some(job.item.key.as_str()));
            queue.ended(&job.item);
            queue.ended(&job.item);
        }
        queue.push(a3.clone());
        queue.push(job("a4", "a", 2));
        assert_eq!(taken(&queue).as_deref(), Some("a3"), "it had ended before it was added again");
        queue.ended(&a3.item);
        assert_eq!(taken(&queue).as_deref(), Some("a4"));
    }

    /// An event that was released again while its earlier delivery is being looked at: both come to their end, and the
    /// end of the earlier one does not pass on the turn of the later one.
    #[tokio::test]
    async fn an_event_that_was_released_again_has_a_turn_of_its_own() {
        let (queue, _) = queue(true);
        let [before, released, next] = [job("a1", "a", 1), job("a1", "a", 1), job("a2", "a", 2)];
        for job in [&before, &released, &next] {
            queue.push(job.clone());
        }
        assert_eq!(taken(&queue).as_deref(), Some("a1"));
        queue.take_out(&released.item);
        queue.ended(&before.item);
        assert!(Arc::ptr_eq(&queue.next().now_or_never().unwrap().item, &released.item));
        queue.ended(&before.item);
        assert_eq!(taken(&queue), None, "the released one has the turn");
        queue.ended(&released.item);
        assert_eq!(taken(&queue).as_deref(), Some("a2"));
    }

    #[tokio::test]
    async fn an_event_without_the_value_is_not_added_twice() {
        let (queue, _) = queue(true);
        let mut item = Arc::into_inner(job("a1", "a", 1).item).unwrap();
        item.data.order.clear();
        let item = Arc::new(item);
        for _ in 0..2 {
            queue.push(Job { item: Arc::clone(&item), seen: Seen::Ready });
        }
        assert_eq!((taken(&queue).as_deref(), taken(&queue)), (Some("a1"), None));
    }

    #[tokio::test]
    async fn a_handler_that_fails_again_and_again_gets_a_rest() {
        let (queue, clock) = queue(false);
        for _ in 1..FAILURES {
            queue.failed();
            assert!(queue.rested().now_or_never().is_some());
        }
        queue.failed();
        assert!(queue.is_resting() && queue.rested().now_or_never().is_none());
        clock.step(2_000);
        assert!(queue.rested().now_or_never().is_some(), "one tries it");
        assert!(queue.rested().now_or_never().is_none(), "the others wait for its result");
        queue.answered();
        assert!(queue.rested().now_or_never().is_some() && !queue.is_resting());
    }
}
