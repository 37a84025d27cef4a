//! A source with its handlers, while the server runs: which events are known here and where they wait.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use data_encoding::HEXLOWER;
use onceward::event::{Allowed, Deliveries, Fate};
use onceward::{
    Cursor, Error, Filter, Hold, InvalidInput, Kind, Ledger, OnExpired, Operation, OperationId, Policy,
    Record, State, Terms,
};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use super::config::{HandlerConfig, HookConfig};
use super::endpoint::Refusal;
use super::handler_queue::{Closed, HandlerQueue, Item, Job, Seen};
use super::host_environment::HostEnvironment;
use super::record::{self, EventData, Kept};
use super::target::Target;
use super::{Event, Source};
use crate::locks::lock;
use crate::tenant::Tenant;
use crate::time;

/// The most events that this process holds in memory. The others wait in the ledger.
const WINDOW: usize = 100_000;
/// How many records one step of a look at the ledger reads.
const PAGE: usize = 5_000;
/// How often the ledger is looked at for events that other processes accepted and did not deliver. After a long look
/// the pause is longer.
const LOOK: Duration = Duration::from_secs(2);
const LOOK_FACTOR: u32 = 20;
/// The shortest pause after a look, as a multiple of its time.
const REST_FACTOR: u32 = 4;
/// How old an event of another process is before this one tries to deliver it.
const PATIENCE_MS: i64 = 5_000;
/// Budgets and times of handlers, unless the configuration says otherwise.
const ATTEMPTS: u32 = 16;
const BACKOFF: Duration = Duration::from_secs(5);
const MAX_BACKOFF: Duration = Duration::from_secs(3600);
const CONCURRENCY: usize = 16;
/// A longer value by which events are ordered is hashed.
const MAX_ORDER_VALUE: usize = 128;

/// Where events are in the ledger, which is the order in which they were recorded.
type Places = HashMap<OperationId, Cursor>;

/// A handler, ready for use.
pub(crate) struct Handler {
    pub(crate) name: String,
    pub(crate) target: Target,
    pub(crate) config: HandlerConfig,
    pub(crate) terms: Terms,
    pub(crate) timeout: Duration,
    pub(crate) concurrency: usize,
    backoff: Duration,
    pub(crate) queue: HandlerQueue,
    /// For an ordered handler: whether this process delivers to it.
    leads: AtomicBool,
}

/// A source with its handlers.
pub(crate) struct Hook {
    pub(crate) source: Source,
    pub(crate) tenant: Tenant,
    pub(crate) handlers: BTreeMap<String, Arc<Handler>>,
    pub(crate) kept: Kept,
    pub(crate) terms: Terms,
    pub(crate) max_body: Option<usize>,
    known: Mutex<HashMap<OperationId, Arc<Item>>>,
    /// Asks for a look at the ledger now.
    look: Notify,
    /// Whether older events wait in the ledger, because there was no room here. Newer ones must not overtake them.
    is_full: AtomicBool,
}

impl Hook {
    pub(crate) fn new(
        name: &str,
        config: &HookConfig,
        tenant: Tenant,
        policy: &Policy,
        environment: &HostEnvironment,
    ) -> Result<Self, InvalidInput> {
        let source = Source::new(name, &config.source, &|variable| environment.variable(variable))?;
        let kept = config.keeping.kept();
        let terms = kept.terms(policy.settings(name)?.terms);
        let mut handlers = BTreeMap::new();
        for (handler, config) in &config.handlers {
            let ready = Handler::new(name, handler, config, kept, policy, environment, &tenant.ledger)
                .map_err(|invalid| InvalidInput::new(format!("[hook.{name}.handler.{handler}] {invalid}")))?;
            handlers.insert(handler.clone(), Arc::new(ready));
        }
        let (known, look, is_full) = (Mutex::default(), Notify::new(), AtomicBool::new(false));
        let max_body = config.keeping.max_body;
        Ok(Self { source, tenant, handlers, kept, terms, max_body, known, look, is_full })
    }

    pub(crate) fn name(&self) -> &str {
        self.source.name()
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.tenant.ledger
    }

    /// What is stored about a new event, and which handlers want it.
    pub(crate) fn data(&self, event: &Event) -> (EventData, Deliveries) {
        let mut data = EventData::of(event);
        let mut handlers = Vec::new();
        let mut content: Option<Option<Value>> = None;
        for (name, handler) in &self.handlers {
            if !handler.config.wants(event.kind.as_deref()) {
                continue;
            }
            handlers.push(name.clone());
            if let Some(pointer) = &handler.config.order {
                let content = content.get_or_insert_with(|| serde_json::from_slice(&event.body).ok());
                let value = content.as_ref().and_then(|content| content.pointer(pointer));
                // An event without the value has no others to wait for.
                if let Some(value) = value {
                    data.order.insert(name.clone(), order_value(value));
                }
            }
        }
        (data, Deliveries::to(handlers))
    }

    /// Delivers an event that was just recorded.
    pub(crate) fn accepted(&self, record: &Record, data: EventData) {
        if record.state == State::Staged && !self.is_full.load(Ordering::Acquire) {
            self.take_up(Item::new(record, data), Seen::Ready);
        }
    }

    /// Puts an event into the queues of its handlers, unless it is there or there is no room. An ordered handler gets
    /// it with the next look at the ledger, behind earlier events of other processes. A handler that was removed from
    /// the configuration does not have the event. Returns whether that was the last delivery.
    fn take_up(&self, item: Arc<Item>, seen: Seen) -> bool {
        let mut known = lock(&self.known);
        match known.get(&item.id) {
            Some(known) if !item.is_release_of(known) => return false,
            None if known.len() >= WINDOW => {
                self.is_full.store(true, Ordering::Release);
                return false;
            }
            Some(_) | None => {}
        }
        known.insert(item.id.clone(), Arc::clone(&item));
        drop(known);
        let mut has_ended = false;
        for name in item.open() {
            match self.handlers.get(&name) {
                Some(handler) if handler.queue.is_ordered() => {
                    if handler.leads() && seen == Seen::Ready {
                        self.look();
                    }
                }
                Some(handler) => handler.queue.push(Job { item: Arc::clone(&item), seen }),
                None => has_ended |= item.close(&name, Fate::Dead) == Closed::Last,
            }
        }
        has_ended
    }

    /// Notes how the delivery of an event to a handler has ended. Returns what it means for the event.
    pub(crate) async fn ended(&self, handler: &Handler, item: &Arc<Item>, fate: Fate) -> Closed {
        let closed = item.close(&handler.name, fate);
        handler.queue.ended(item);
        if closed == Closed::Already {
            return closed;
        }
        // If this cannot be written now, the next look at the ledger finds the event again.
        let released = self.record(item).await.ok().flatten();
        if closed == Closed::Last {
            self.forget(item);
        }
        if let Some(released) = released
            && self.take_up(Arc::clone(&released), Seen::Unknown)
        {
            drop(self.record(&released).await);
            self.forget(&released);
        }
        closed
    }

    /// Records how deliveries of an event have ended. If it was released again meanwhile, it is returned as it is now.
    async fn record(&self, item: &Item) -> Result<Option<Arc<Item>>, Error> {
        let found = self.ledger().events().ended(&item.id, item.round, &item.fates()).await?;
        let Some(found) = found.filter(|found| found.state == State::Staged) else { return Ok(None) };
        let released = EventData::read(&found).map(|data| Item::new(&found, data));
        Ok(released.filter(|released| released.is_release_of(item)))
    }

    /// Forgets an event, unless it was released again and is being delivered.
    fn forget(&self, item: &Arc<Item>) {
        let mut known = lock(&self.known);
        if known.get(&item.id).is_some_and(|known| Arc::ptr_eq(known, item)) {
            known.remove(&item.id);
        }
    }

    /// The event and the handler of a delivery, if this process knows them.
    pub(crate) fn of_delivery(&self, delivery: &Record) -> Option<(Arc<Handler>, Arc<Item>)> {
        let (_, name) = delivery.name.split_once('/')?;
        let handler = self.handlers.get(name)?;
        // A repeated occurrence has a number after the key of the event.
        let key = &delivery.key.text;
        let keys = [Some(key.as_str()), key.rsplit_once('#').map(|(key, _)| key)];
        let known = lock(&self.known);
        let item =
            keys.into_iter().flatten().find_map(|key| known.get(&record::event_id(self.name(), key)))?;
        Some((Arc::clone(handler), Arc::clone(item)))
    }

    /// Looks at the ledger now.
    pub(crate) fn look(&self) {
        self.look.notify_one();
    }

    /// How many events are being delivered here.
    pub(crate) fn backlog(&self) -> usize {
        lock(&self.known).len()
    }

    /// Finds events that are to be delivered: all of them at first, later those that other processes left behind.
    pub(crate) async fn watch(self: Arc<Self>) {
        let mut is_first = true;
        loop {
            let begun = Instant::now();
            let found = self.find_undelivered(is_first).await;
            is_first = is_first && found.is_err();
            let took = begun.elapsed();
            // Looks that are asked for do not keep the ledger busy.
            let clock = self.ledger().clock();
            time::sleep(clock, (took * REST_FACTOR).min(LOOK)).await;
            time::within(clock, LOOK.max(took * LOOK_FACTOR), self.look.notified()).await;
        }
    }

    async fn find_undelivered(&self, all: bool) -> Result<(), Error> {
        let room = WINDOW.saturating_sub(self.backlog());
        let since = self.ledger().clock_ms();
        let leading: Vec<&Arc<Handler>> = self.handlers.values().filter(|handler| handler.leads()).collect();
        let until_ms = (!all && leading.is_empty()).then(|| since - PATIENCE_MS);
        let (staged, mut found) = self.list_staged(until_ms, room).await?;
        found.sort_by_key(|(cursor, _)| *cursor);
        self.is_full.store(found.len() > room, Ordering::Release);
        // Events that wait in the ledger are not overtaken.
        let left_out = found.get(room).map(|(cursor, _)| *cursor);
        for (_, item) in found.into_iter().take(room) {
            if self.take_up(Arc::clone(&item), Seen::Unknown) {
                drop(self.record(&item).await?);
                self.forget(&item);
            }
        }
        // What is no longer staged was delivered by another process.
        let before_ms = since - PATIENCE_MS;
        lock(&self.known).retain(|id, item| item.created_ms >= before_ms || staged.contains_key(id));
        self.queue_in_order(&leading, &staged, left_out);
        Ok(())
    }

    /// The places of the events that are to be delivered, and those among them that are not known here, or were
    /// released again.
    async fn list_staged(
        &self,
        until_ms: Option<i64>,
        room: usize,
    ) -> Result<(Places, Vec<(Cursor, Arc<Item>)>), Error> {
        let mut filter = Filter {
            scope: Some(record::scope(self.name())),
            name: Some(self.name().to_owned()),
            states: vec![State::Staged],
            kinds: vec![Kind::Event],
            limit: PAGE,
            until_ms,
            ..Filter::default()
        };
        let mut staged = Places::new();
        let mut found: Vec<(Cursor, Arc<Item>)> = Vec::new();
        loop {
            let page = self.tenant.store.list(&filter).await?;
            let is_last = page.len() < PAGE;
            filter.before = page.last().map(|listed| listed.cursor);
            for listed in page {
                let record = &listed.record;
                staged.insert(record.id.clone(), listed.cursor);
                let known = lock(&self.known).get(&record.id).cloned();
                if known.as_ref().is_some_and(|known| known.version >= record.version) {
                    continue;
                }
                let Some(data) = EventData::read(record) else { continue };
                let item = Item::new(record, data);
                if known.is_none_or(|known| item.is_release_of(&known)) {
                    found.push((listed.cursor, item));
                }
            }
            // They are listed newest first, and the oldest are delivered first. One more than there is room for says
            // that some are left out.
            if found.len() > room.saturating_mul(2).max(PAGE) {
                found.drain(..found.len() - (room + 1));
            }
            if is_last {
                return Ok((staged, found));
            }
        }
    }

    /// Puts the events that a look has found into the queues of ordered handlers, oldest first. Only a look does so: an
    /// event that this process has just accepted may be younger than one that another process acknowledged. The ledger
    /// knows their order; the clocks of two processes differ.
    fn queue_in_order(&self, leading: &[&Arc<Handler>], staged: &Places, before: Option<Cursor>) {
        if leading.is_empty() {
            return;
        }
        let place = |item: &Arc<Item>| {
            let place = staged.get(&item.id).copied();
            place.filter(|place| before.is_none_or(|before| *place < before))
        };
        let mut items: Vec<(Cursor, Arc<Item>)> =
            lock(&self.known).values().filter_map(|item| Some((place(item)?, Arc::clone(item)))).collect();
        items.sort_by_key(|(place, _)| *place);
        for (_, item) in items {
            for handler in leading.iter().filter(|handler| handler.leads() && item.is_open(&handler.name)) {
                handler.queue.push(Job { item: Arc::clone(&item), seen: Seen::Unknown });
            }
        }
    }

    /// Begins to deliver to an ordered handler. The next look at the ledger fills its queue.
    pub(crate) fn lead(&self, handler: &Handler) {
        handler.queue.clear();
        handler.leads.store(true, Ordering::Release);
        self.look();
    }

    pub(crate) fn stop_leading(handler: &Handler) {
        handler.leads.store(false, Ordering::Release);
        handler.queue.clear();
    }
}

/// What the policy says about deliveries to a handler. They cannot be held back: a stop cancels what is held, and an
/// acknowledged event ends only as handled, refused by a person, or dead.
pub(crate) fn terms_of(policy: &Policy, source: &str, handler: &str) -> Result<Terms, InvalidInput> {
    let name = record::delivery_name(source, handler);
    let terms = policy.settings(&name)?.terms;
    if terms.hold == Hold::No {
        return Ok(terms);
    }
    Err(InvalidInput::new(format!(
        "the policy holds the deliveries to {handler} back, and an acknowledged event is delivered or waits as a dead \
         letter: set hold = \"no\" for [operation.\"{name}\"], and hold what the handler does"
    )))
}

impl Handler {
    fn new(
        source: &str,
        name: &str,
        config: &HandlerConfig,
        kept: Kept,
        policy: &Policy,
        environment: &HostEnvironment,
        ledger: &Ledger,
    ) -> Result<Self, InvalidInput> {
        let target = Target::new(config, environment)?;
        let mut terms = terms_of(policy, source, name)?;
        terms.class = config.class.unwrap_or_else(|| config.default_class());
        terms.max_attempts = config.attempts.unwrap_or(ATTEMPTS);
        (terms.wait_ms, terms.retries) = (0, 0);
        // What was acknowledged is tried as long as attempts are left, however long that takes.
        terms.on_expired = OnExpired::RetryFailed;
        terms.keep_results_for(kept.id_ms.max(1));
        if let Some(window) = config.window {
            terms.downstream_window_ms = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
        }
        Ok(Self {
            name: name.to_owned(),
            target,
            terms,
            timeout: config.timeout(),
            concurrency: config.concurrency.unwrap_or(CONCURRENCY),
            backoff: config.backoff.unwrap_or(BACKOFF),
            queue: HandlerQueue::new(name, config.order.is_some(), ledger),
            leads: AtomicBool::new(false),
            config: config.clone(),
        })
    }

    /// Whether it is ordered, and this process delivers to it.
    fn leads(&self) -> bool {
        self.leads.load(Ordering::Acquire)
    }

    /// The most attempts of a delivery. The budget grows with each retry that a person asked for.
    pub(crate) fn budget(&self, item: &Item) -> u32 {
        self.terms.max_attempts.saturating_mul(item.round.budgets)
    }

    /// The operation of a delivery.
    pub(crate) fn operation(&self, source: &str, item: &Item) -> Operation {
        let mut terms = self.terms.clone();
        terms.max_attempts = self.budget(item);
        record::delivery(source, &self.name, &item.key, &item.data, item.round.occurrence, terms)
    }

    /// What it allows after an attempt.
    pub(crate) fn allowed(&self, item: &Item, delivery: &Record) -> Allowed {
        Allowed {
            class: self.terms.class,
            attempts: self.budget(item),
            pause_ms: u64::try_from(self.pause(delivery).as_millis()).unwrap_or(u64::MAX),
            asked_for_ms: self.terms.downstream_window_ms,
        }
    }

    /// The pause after an attempt: it doubles, and differs from event to event, so that events that failed together do
    /// not come back together. It is at least as long as the handler asked for, up to an hour. It depends only on the
    /// record, so all processes agree about it.
    fn pause(&self, record: &Record) -> Duration {
        let asked = Refusal::of(record).and_then(|refusal| refusal.retry_after_ms).unwrap_or(0);
        self.doubled_pause(record).max(Duration::from_millis(asked).min(MAX_BACKOFF))
    }

    fn doubled_pause(&self, record: &Record) -> Duration {
        let doubled = self.backoff.saturating_mul(1 << record.spent_attempts().saturating_sub(1).min(20));
        let whole = doubled.min(MAX_BACKOFF).max(self.backoff);
        let sum = record.id.as_str().bytes().chain(record.attempt.to_be_bytes());
        let spread = sum.fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte))) % 1_000;
        whole.mul_f64(0.75 + f64::from(spread) / 4_000.0)
    }
}

/// The value by which events are ordered, as text.
fn order_value(value: &Value) -> String {
    let text = value.to_string();
    if text.len() <= MAX_ORDER_VALUE { text } else { HEXLOWER.encode(&Sha256::digest(text)) }
}
