//! A tenant's view of a ledger: a store that shows, finds and changes only the records of that tenant.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::FutureExt;
use onceward::mask_prefix;
use onceward::{
    Applied, Barrier, Begin, Change, Clock, Counts, Filter, Identity, Inherit, Kind, Listed, Liveness,
    LivenessSource, OperationId, Owner, OwnerLock, Record, Store, StoreError, Swap, WriteMode,
};

/// A tenant's view of a store.
///
/// The stored scope begins with the tenant's name, and the stored id is combined with a mask that only the ledger's
/// secret gives. So two tenants with the same scope, name and key have two operations, and the id of one tenant's
/// operation finds nothing for another tenant.
///
/// ```
/// use std::sync::Arc;
/// use onceward::{Ledger, ManualClock, MemoryStore, Operation, Store};
/// use onceward_http::tenants::TenantStore;
///
/// let store: Arc<dyn Store> = Arc::new(MemoryStore::new(ManualClock::at(0)));
/// let of = |tenant| Ledger::new(Arc::new(TenantStore::new(Arc::clone(&store), tenant))).blocking();
/// let charge = || Operation::new("charge").key("order-7");
/// of("acme").run(charge(), |attempt| Ok(attempt.dispatch()?.created(&1)))?;
/// let other = of("globex").run(charge(), |attempt| Ok(attempt.dispatch()?.created(&2)))?;
/// assert!(!other.replayed());
/// # Ok::<(), onceward::Error>(())
/// ```
pub struct TenantStore {
    inner: Arc<dyn Store>,
    identity: Identity,
    /// What the stored scopes begin with.
    prefix: String,
    mask: [u8; OperationId::BYTES],
}

impl TenantStore {
    /// The view of the tenant with this name.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>, tenant: &str) -> Self {
        let root = inner.identity();
        let (identity, mask) = (root.for_tenant(tenant), root.tenant_mask(tenant));
        Self { identity, mask, prefix: format!("{tenant}/"), inner }
    }

    fn stored_id(&self, id: &OperationId) -> OperationId {
        id.masked(&self.mask)
    }

    fn stored_scope(&self, scope: &str) -> String {
        format!("{}{scope}", self.prefix)
    }

    /// The record as it is stored. Its id must be that of its scope, name and key: an id that a caller chose could be
    /// made to hit the record of another tenant.
    fn stored(&self, record: Record) -> Result<Record, StoreError> {
        let Record { scope, name, key, id, kind, .. } = &record;
        let is_unnamed = *kind == Kind::Operation && *id == OperationId::unnamed(scope, &key.text);
        if *id != OperationId::of_kind(*kind, scope, name, &key.text) && !is_unnamed {
            let what = format!("{id} is not the id of the record's scope, name and key; nothing was written");
            return Err(StoreError::Unusable { what });
        }
        let (id, scope) = (self.stored_id(id), self.stored_scope(scope));
        let action = record.action.as_ref().map(|action| self.stored_id(action));
        Ok(Record { id, action, scope, ..record })
    }

    /// The record as the tenant sees it; `None` if it belongs to another one.
    fn seen(&self, record: Record) -> Option<Record> {
        let scope = record.scope.strip_prefix(&self.prefix)?.to_owned();
        let action = record.action.map(|action| action.masked(&self.mask));
        Some(Record { id: record.id.masked(&self.mask), action, scope, ..record })
    }

    fn seen_shared(&self, record: Arc<Record>) -> Option<Arc<Record>> {
        self.seen(Arc::unwrap_or_clone(record)).map(Arc::new)
    }

    fn seen_swap(&self, swap: Swap) -> Result<Swap, StoreError> {
        let seen = |record| self.seen_shared(record).ok_or_else(Self::of_another_tenant);
        Ok(match swap {
            Swap::Written(record) => Swap::Written(seen(record)?),
            Swap::Conflict(found) => Swap::Conflict(found.map(seen).transpose()?),
        })
    }

    /// The barrier as the tenant sees it; `None` if it is one of another tenant.
    fn seen_barrier(&self, mut barrier: Barrier) -> Option<Barrier> {
        barrier.scope = barrier.scope.strip_prefix(&self.prefix)?.to_owned();
        Some(barrier)
    }

    fn stored_filter(&self, filter: &Filter) -> Filter {
        Filter {
            scope: filter.scope.as_deref().map(|scope| self.stored_scope(scope)),
            scope_prefix: Some(self.stored_scope(filter.scope_prefix.as_deref().unwrap_or_default())),
            id_prefix: filter.id_prefix.as_deref().map(|prefix| mask_prefix(prefix, &self.mask)),
            ..filter.clone()
        }
    }

    /// The id as it is stored, if there is a record of this tenant with it.
    async fn own(&self, id: &OperationId) -> Result<Option<OperationId>, StoreError> {
        let stored = self.stored_id(id);
        let found = self.inner.load(&stored).await?;
        Ok(found.filter(|record| record.scope.starts_with(&self.prefix)).map(|_| stored))
    }

    fn of_another_tenant() -> StoreError {
        StoreError::Unusable { what: "this id belongs to another tenant; nothing was written".to_owned() }
    }
}

#[async_trait]
impl Store for TenantStore {
    fn clock(&self) -> &dyn Clock {
        self.inner.clock()
    }

    fn watch(&self) -> LivenessSource {
        self.inner.watch()
    }

    fn identity(&self) -> &Identity {
        &self.identity
    }

    async fn set_identity(&self, _next: &Identity) -> Result<(), StoreError> {
        let what = "a tenant cannot change the ledger's identity; its operator can".to_owned();
        Err(StoreError::Unusable { what })
    }

    async fn load_cached(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        let found = self.inner.load_cached(&self.stored_id(id)).await?;
        Ok(found.and_then(|record| self.seen_shared(record)))
    }

    async fn load(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        let found = self.inner.load(&self.stored_id(id)).await?;
        Ok(found.and_then(|record| self.seen_shared(record)))
    }

    async fn swap(&self, expected: Option<u64>, record: Record, mode: WriteMode) -> Result<Swap, StoreError> {
        self.seen_swap(self.inner.swap(expected, self.stored(record)?, mode).await?)
    }

    async fn begin(
        &self,
        expected: Option<u64>,
        record: Record,
        mode: WriteMode,
    ) -> Result<Begin, StoreError> {
        Ok(match self.inner.begin(expected, self.stored(record)?, mode).await? {
            Begin::Swapped(swap) => Begin::Swapped(self.seen_swap(swap)?),
            Begin::Stopped(barrier) => {
                // The operator may have stopped the tenant as a whole.
                let own = self.seen_barrier(barrier.clone());
                let whole = || Barrier::new("", *barrier.word);
                Begin::Stopped(own.unwrap_or_else(whole))
            }
        })
    }

    async fn stop(&self, barrier: &Barrier) -> Result<Barrier, StoreError> {
        let mut stored = barrier.clone();
        stored.scope = self.stored_scope(&barrier.scope);
        let set = self.inner.stop(&stored).await?;
        self.seen_barrier(set).ok_or_else(Self::of_another_tenant)
    }

    async fn resume(&self, scope: &str) -> Result<Option<Barrier>, StoreError> {
        let lifted = self.inner.resume(&self.stored_scope(scope)).await?;
        Ok(lifted.and_then(|barrier| self.seen_barrier(barrier)))
    }

    async fn barriers(&self) -> Result<Vec<Barrier>, StoreError> {
        let all = self.inner.barriers().await?;
        Ok(all.into_iter().filter_map(|barrier| self.seen_barrier(barrier)).collect())
    }

    async fn delete(&self, id: &OperationId, expected: u64, mode: WriteMode) -> Result<bool, StoreError> {
        match self.own(id).await? {
            Some(stored) => self.inner.delete(&stored, expected, mode).await,
            None => Ok(false),
        }
    }

    async fn apply(&self, changes: Vec<Change>, mode: WriteMode) -> Result<Vec<Applied>, StoreError> {
        let mut applied = vec![Applied::Conflict; changes.len()];
        let (mut places, mut stored) = (Vec::new(), Vec::new());
        for (place, change) in changes.into_iter().enumerate() {
            let change = match change {
                Change::Swap { expected, record } => Change::Swap { expected, record: self.stored(record)? },
                Change::Delete { id, expected } => match self.own(&id).await? {
                    Some(id) => Change::Delete { id, expected },
                    None => continue,
                },
            };
            places.push(place);
            stored.push(change);
        }
        for (place, result) in places.into_iter().zip(self.inner.apply(stored, mode).await?) {
            applied[place] = result;
        }
        Ok(applied)
    }

    async fn occurrences(&self, action: &OperationId, now_ms: i64) -> Result<Vec<Record>, StoreError> {
        let found = self.inner.occurrences(&self.stored_id(action), now_ms).await?;
        Ok(found.into_iter().filter_map(|record| self.seen(record)).collect())
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        let listed = self.inner.list(&self.stored_filter(filter)).await?;
        let seen = |Listed { cursor, record }| Some(Listed { cursor, record: self.seen(record)? });
        Ok(listed.into_iter().filter_map(seen).collect())
    }

    async fn due(&self, now_ms: i64, limit: usize) -> Result<Vec<Record>, StoreError> {
        // The records of all tenants are in one order, so this may have to read those of others.
        let mut asked = limit;
        loop {
            let page = self.inner.due(now_ms, asked).await?;
            let all = page.len() < asked;
            let mut own: Vec<Record> = page.into_iter().filter_map(|record| self.seen(record)).collect();
            if all || own.len() >= limit {
                own.truncate(limit);
                return Ok(own);
            }
            asked = asked.saturating_mul(4);
        }
    }

    async fn counts(&self, filter: &Filter) -> Result<Counts, StoreError> {
        self.inner.counts(&self.stored_filter(filter)).await
    }

    async fn changed(&self, id: &OperationId, seen: u64, timeout_ms: u64) {
        // For the record of another tenant, the answer is the same as for one that does not exist.
        if let Ok(Some(stored)) = self.own(id).await {
            self.inner.changed(&stored, seen, timeout_ms).await;
        }
    }

    fn hold(&self, inherit: Inherit) -> Result<Box<dyn OwnerLock>, StoreError> {
        self.inner.hold(inherit)
    }

    async fn liveness(&self, owner: &Owner) -> Result<Liveness, StoreError> {
        self.inner.liveness(owner).await
    }

    fn tally_replay(&self, id: &OperationId) {
        // A count may be lost, so a record that is not at hand is not counted.
        let stored = self.stored_id(id);
        let found = self.inner.load_cached(&stored).now_or_never();
        if let Some(Ok(Some(record))) = found
            && record.scope.starts_with(&self.prefix)
        {
            self.inner.tally_replay(&stored);
        }
    }
}
