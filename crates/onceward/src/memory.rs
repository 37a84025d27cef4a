//! A store in memory: the specification of the seam, and the ledger of those who need none that lasts.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::decide::Liveness;
use crate::key::OperationId;
use crate::record::{Owner, Record};
use crate::store::{
    Clock, Counts, Cursor, Dispatch, Door, Filter, Hold, Inherit, Listed, Store, StoreError, Swap, Watch,
};
use crate::watchers::Watchers;

/// A store in memory.
pub struct MemoryStore<C> {
    clock: C,
    watch: Watch,
    table: Arc<Mutex<Table>>,
    watchers: Watchers,
}

#[derive(Default)]
struct Table {
    records: HashMap<OperationId, (i64, Arc<Record>)>,
    order: BTreeMap<i64, OperationId>,
    replays: HashMap<OperationId, u64>,
    held: HashSet<u64>,
    undispatched: HashSet<u64>,
    last_row: i64,
    last_token: u64,
}

impl<C: Clock> MemoryStore<C> {
    /// An empty store that tells `clock`'s time and sees whether its owners live.
    pub fn new(clock: C) -> Self {
        Self { clock, watch: Watch::Kernel, table: Arc::default(), watchers: Watchers::default() }
    }

    /// The same, but it cannot see whether an owner lives, as if owners were on other machines.
    pub fn blind(clock: C) -> Self {
        Self { watch: Watch::Lease, ..Self::new(clock) }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl<C: Clock> Store for MemoryStore<C> {
    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn watch(&self) -> Watch {
        self.watch
    }

    async fn load(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        Ok(self.table().load(id))
    }

    async fn swap(&self, expected: Option<u64>, record: Record, _door: Door) -> Result<Swap, StoreError> {
        let record = Arc::new(record);
        {
            let mut table = self.table();
            let found = table.load(&record.id);
            if found.as_ref().map(|found| found.version) != expected {
                return Ok(Swap::Conflict(found));
            }
            let row = match table.records.get(&record.id) {
                Some((row, _)) => *row,
                None => {
                    table.last_row += 1;
                    table.last_row
                }
            };
            table.order.insert(row, record.id.clone());
            table.records.insert(record.id.clone(), (row, Arc::clone(&record)));
        }
        self.watchers.notify(&record.id);
        Ok(Swap::Written(record))
    }

    async fn delete(&self, id: &OperationId, expected: u64, _door: Door) -> Result<bool, StoreError> {
        let deleted = {
            let mut table = self.table();
            match table.records.get(id) {
                Some((row, record)) if record.version == expected => {
                    let row = *row;
                    table.order.remove(&row);
                    table.records.remove(id);
                    table.replays.remove(id);
                    true
                }
                Some(_) | None => false,
            }
        };
        self.watchers.notify(id);
        Ok(deleted)
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        let table = self.table();
        let below = filter.before.map_or(i64::MAX, |cursor| cursor.0);
        let listed = table.order.range(..below).rev().filter_map(|(row, id)| {
            let record = table.load(id)?;
            filter.matches(&record).then(|| Listed { cursor: Cursor(*row), record: without_body(&record) })
        });
        Ok(listed.take(filter.limit).collect())
    }

    async fn due(&self, now_ms: i64, limit: usize) -> Result<Vec<Record>, StoreError> {
        let table = self.table();
        let mut due: Vec<_> = table
            .records
            .values()
            .filter(|(_, record)| record.due_ms.is_some_and(|due| due <= now_ms))
            .collect();
        due.sort_by_key(|(row, record)| (record.due_ms, *row));
        Ok(due.into_iter().take(limit).map(|(_, record)| without_body(record)).collect())
    }

    async fn counts(&self, filter: &Filter) -> Result<Counts, StoreError> {
        let mut counts = Counts::new();
        for (_, record) in self.table().records.values().filter(|(_, record)| filter.matches(record)) {
            *counts.entry(record.state).or_default() += 1;
        }
        Ok(counts)
    }

    async fn changed(&self, id: &OperationId, seen: u64, timeout_ms: u64) {
        let unchanged = || self.table().load(id).is_some_and(|record| record.version == seen);
        self.watchers.wait(id, timeout_ms, &self.clock, unchanged).await;
    }

    fn hold(&self, _inherit: Inherit) -> Result<Box<dyn Hold>, StoreError> {
        let mut table = self.table();
        table.last_token += 1;
        let token = table.last_token;
        table.held.insert(token);
        Ok(Box::new(MemoryHold { token, table: Arc::clone(&self.table) }))
    }

    async fn liveness(&self, owner: &Owner) -> Result<Liveness, StoreError> {
        Ok(match self.watch {
            Watch::Lease => Liveness::Unknown,
            Watch::Kernel => {
                let table = self.table();
                match (table.held.contains(&owner.token), table.undispatched.contains(&owner.token)) {
                    (true, _) => Liveness::Alive,
                    (false, true) => Liveness::NeverDispatched,
                    (false, false) => Liveness::Gone,
                }
            }
        })
    }

    fn tally_replay(&self, id: &OperationId) {
        *self.table().replays.entry(id.clone()).or_default() += 1;
    }
}

impl Table {
    fn load(&self, id: &OperationId) -> Option<Arc<Record>> {
        let (_, record) = self.records.get(id)?;
        match self.replays.get(id) {
            None => Some(Arc::clone(record)),
            Some(&replays) => Some(Arc::new(Record { replays, ..Record::clone(record) })),
        }
    }
}

struct MemoryHold {
    token: u64,
    table: Arc<Mutex<Table>>,
}

impl Hold for MemoryHold {
    fn token(&self) -> u64 {
        self.token
    }

    fn note_dispatch(&self, dispatch: Dispatch) -> Result<(), StoreError> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        match dispatch {
            Dispatch::NotYet => table.undispatched.insert(self.token),
            Dispatch::Begun => table.undispatched.remove(&self.token),
        };
        Ok(())
    }
}

impl Drop for MemoryHold {
    fn drop(&mut self) {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).held.remove(&self.token);
    }
}

fn without_body(record: &Record) -> Record {
    let mut record = record.clone();
    if let Some(outcome) = &mut record.outcome {
        outcome.body = None;
    }
    record
}

/// A clock that moves only when it is told to, or when somebody sleeps on it.
#[derive(Debug, Default)]
pub struct ManualClock {
    now_ms: AtomicI64,
}

impl ManualClock {
    /// A clock that stands at `now_ms`.
    #[must_use]
    pub fn at(now_ms: i64) -> Self {
        Self { now_ms: AtomicI64::new(now_ms) }
    }

    /// Moves it, by a negative span too.
    pub fn advance(&self, ms: i64) {
        self.now_ms.fetch_add(ms, Ordering::SeqCst);
    }
}

#[async_trait]
impl Clock for ManualClock {
    fn now_ms(&self) -> i64 {
        self.now_ms.load(Ordering::SeqCst)
    }

    async fn sleep(&self, ms: u64) {
        // Others that are ready go first; then time has passed.
        let mut yielded = false;
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut yielded, true) {
                std::task::Poll::Ready(())
            } else {
                context.waker().wake_by_ref();
                std::task::Poll::Pending
            }
        })
        .await;
        self.advance(i64::try_from(ms).unwrap_or(i64::MAX));
    }
}

#[async_trait]
impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now_ms(&self) -> i64 {
        (**self).now_ms()
    }

    async fn sleep(&self, ms: u64) {
        (**self).sleep(ms).await;
    }
}
