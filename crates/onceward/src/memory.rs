//! A store in memory: the reference implementation of [`Store`], and a ledger for programs that need no persistence.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::barrier::{Barrier, stopping_scopes};
use crate::facts::Liveness;
use crate::identity::Identity;
use crate::key::OperationId;
use crate::record::{Owner, Record};
use crate::store::{
    Begin, Clock, Counts, Cursor, Dispatch, Filter, Inherit, Listed, LivenessSource, MOST_OPEN, OwnerLock,
    Store, StoreError, Swap, WriteMode, open_or_newest,
};
use crate::watchers::Watchers;

/// A store in memory.
pub struct MemoryStore<C> {
    clock: C,
    watch: LivenessSource,
    table: Arc<Mutex<Table>>,
    watchers: Arc<Watchers>,
    identity: Identity,
}

#[derive(Default)]
struct Table {
    identity: Option<Identity>,
    records: HashMap<OperationId, (i64, Arc<Record>)>,
    order: BTreeMap<i64, OperationId>,
    replays: HashMap<OperationId, u64>,
    barriers: BTreeMap<String, Barrier>,
    held: HashSet<u64>,
    undispatched: HashSet<u64>,
    last_row: i64,
    last_token: u64,
}

impl<C: Clock> MemoryStore<C> {
    /// An empty store with this clock, which can tell whether its owners are alive.
    pub fn new(clock: C) -> Self {
        let identity = Identity::unkeyed(b"memory");
        let table = Table { identity: Some(identity.clone()), ..Table::default() };
        Self {
            clock,
            watch: LivenessSource::Kernel,
            table: Arc::new(Mutex::new(table)),
            watchers: Arc::default(),
            identity,
        }
    }

    /// Another handle on the same ledger, with its current identity.
    pub fn open_again(&self, clock: C) -> Self {
        let identity = self.table().identity.clone().unwrap_or_else(|| self.identity.clone());
        Self {
            clock,
            watch: self.watch,
            table: Arc::clone(&self.table),
            watchers: Arc::clone(&self.watchers),
            identity,
        }
    }

    /// A store that cannot tell whether an owner is alive, as if owners were on other machines.
    pub fn blind(clock: C) -> Self {
        Self { watch: LivenessSource::Lease, ..Self::new(clock) }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The table, if it still belongs to the ledger that was opened.
    fn own_table(&self) -> Result<MutexGuard<'_, Table>, StoreError> {
        let table = self.table();
        let found = table.identity.as_ref().map(Identity::mark);
        if found.as_ref() == Some(&self.identity.mark()) {
            Ok(table)
        } else {
            Err(StoreError::replaced("it has another name or epoch"))
        }
    }
}

#[async_trait]
impl<C: Clock> Store for MemoryStore<C> {
    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn watch(&self) -> LivenessSource {
        self.watch
    }

    fn identity(&self) -> &Identity {
        &self.identity
    }

    async fn set_identity(&self, next: &Identity) -> Result<(), StoreError> {
        self.own_table()?.identity = Some(next.clone());
        Ok(())
    }

    async fn load(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        Ok(self.table().load(id))
    }

    async fn swap(
        &self,
        expected: Option<u64>,
        record: Record,
        _mode: WriteMode,
    ) -> Result<Swap, StoreError> {
        let swap = self.own_table()?.swap(expected, record);
        if let Swap::Written(record) = &swap {
            self.watchers.notify(&record.id);
        }
        Ok(swap)
    }

    async fn begin(
        &self,
        expected: Option<u64>,
        record: Record,
        _mode: WriteMode,
    ) -> Result<Begin, StoreError> {
        let swap = {
            let mut table = self.own_table()?;
            let barrier = stopping_scopes(&record.scope).find_map(|scope| table.barriers.get(scope));
            if let Some(barrier) = barrier
                && table.version(&record.id) == expected
            {
                return Ok(Begin::Stopped(barrier.clone()));
            }
            table.swap(expected, record)
        };
        if let Swap::Written(record) = &swap {
            self.watchers.notify(&record.id);
        }
        Ok(Begin::Swapped(swap))
    }

    async fn stop(&self, barrier: &Barrier) -> Result<Barrier, StoreError> {
        let mut table = self.own_table()?;
        Ok(table.barriers.entry(barrier.scope.clone()).or_insert_with(|| barrier.clone()).clone())
    }

    async fn resume(&self, scope: &str) -> Result<Option<Barrier>, StoreError> {
        Ok(self.own_table()?.barriers.remove(scope))
    }

    async fn barriers(&self) -> Result<Vec<Barrier>, StoreError> {
        Ok(self.table().barriers.values().cloned().collect())
    }

    async fn delete(&self, id: &OperationId, expected: u64, _mode: WriteMode) -> Result<bool, StoreError> {
        let deleted = {
            let mut table = self.own_table()?;
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

    async fn occurrences(&self, action: &OperationId, now_ms: i64) -> Result<Vec<Record>, StoreError> {
        let table = self.table();
        let all = || {
            table.order.values().filter_map(|id| table.load(id)).filter(|record| record.action() == action)
        };
        let is_open = |record: &Arc<Record>| record.open_until_ms().is_some_and(|until_ms| until_ms > now_ms);
        let newest = all().filter(|record| record.number.is_some()).max_by_key(|record| record.number);
        let found = all().filter(is_open).take(MOST_OPEN).chain(newest);
        Ok(open_or_newest(found.map(|record| without_body(&record)).collect(), now_ms))
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

    fn hold(&self, _inherit: Inherit) -> Result<Box<dyn OwnerLock>, StoreError> {
        let mut table = self.table();
        table.last_token += 1;
        let token = table.last_token;
        table.held.insert(token);
        Ok(Box::new(MemoryLock { token, table: Arc::clone(&self.table) }))
    }

    async fn liveness(&self, owner: &Owner) -> Result<Liveness, StoreError> {
        Ok(match self.watch {
            LivenessSource::Lease => Liveness::Unknown,
            LivenessSource::Kernel => {
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
    fn swap(&mut self, expected: Option<u64>, record: Record) -> Swap {
        if self.version(&record.id) != expected {
            return Swap::Conflict(self.load(&record.id));
        }
        let record = Arc::new(record);
        let row = match self.records.get(&record.id) {
            Some((row, _)) => *row,
            None => {
                self.last_row += 1;
                self.last_row
            }
        };
        self.order.insert(row, record.id.clone());
        self.records.insert(record.id.clone(), (row, Arc::clone(&record)));
        Swap::Written(record)
    }

    fn version(&self, id: &OperationId) -> Option<u64> {
        self.records.get(id).map(|(_, record)| record.version)
    }

    fn load(&self, id: &OperationId) -> Option<Arc<Record>> {
        let (_, record) = self.records.get(id)?;
        match self.replays.get(id) {
            None => Some(Arc::clone(record)),
            Some(&replays) => Some(Arc::new(Record { replays, ..Record::clone(record) })),
        }
    }
}

struct MemoryLock {
    token: u64,
    table: Arc<Mutex<Table>>,
}

impl OwnerLock for MemoryLock {
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

impl Drop for MemoryLock {
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

/// A clock that moves only when it is advanced or when a task sleeps on it.
#[derive(Debug, Default)]
pub struct ManualClock {
    now_ms: AtomicI64,
}

impl ManualClock {
    /// A clock that shows `now_ms`.
    #[must_use]
    pub fn at(now_ms: i64) -> Self {
        Self { now_ms: AtomicI64::new(now_ms) }
    }

    /// Moves the clock; backwards if `ms` is negative.
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
        // Let other ready tasks run first; then the time has passed.
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
