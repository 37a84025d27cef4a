//! A cache of finished records, bounded by their size.
//!
//! A finished record changes only if it is settled, forgotten or verified, when its delivery is noted, or when it
//! expires. Each such change advances an epoch that the store can read. So a cached record is as current as the stored
//! one while the epoch is the one under which it was read. A store that knows which records it has changed itself says
//! so: then the others stay current while only this store advances the epoch.

#[cfg(feature = "sqlite")]
mod own;

use std::sync::Arc;

use onceward::{OperationId, Record, State};
use quick_cache::Weighter;
use quick_cache::sync::Cache as ByteCache;

/// Larger records are not cached.
const MAX_RECORD_BYTES: usize = 1024 * 1024;
/// The size of a record without its texts.
const RECORD_BYTES: usize = 900;

pub(crate) struct Cache {
    records: ByteCache<OperationId, Entry, ByBytes>,
    #[cfg(feature = "sqlite")]
    own: std::sync::Mutex<own::OwnChanges>,
}

#[derive(Clone)]
struct Entry {
    epoch: u64,
    record: Arc<Record>,
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<OperationId, Entry> for ByBytes {
    fn weight(&self, _id: &OperationId, entry: &Entry) -> u64 {
        weight(&entry.record) as u64
    }
}

impl Cache {
    pub(crate) fn new(bytes: u64) -> Self {
        let items = usize::try_from(bytes).unwrap_or(usize::MAX) / RECORD_BYTES;
        Self {
            records: ByteCache::with_weighter(items, bytes, ByBytes),
            #[cfg(feature = "sqlite")]
            own: std::sync::Mutex::default(),
        }
    }

    pub(crate) fn find(&self, id: &OperationId, epoch: u64) -> Option<Arc<Record>> {
        let entry = self.records.get(id)?;
        #[cfg(feature = "sqlite")]
        let is_current = entry.epoch == epoch || self.own().are_all_between(entry.epoch, epoch);
        #[cfg(not(feature = "sqlite"))]
        let is_current = entry.epoch == epoch;
        is_current.then_some(entry.record)
    }

    /// The record as it was last kept, which may have changed since.
    #[cfg(feature = "sqlite")]
    pub(crate) fn last_kept(&self, id: &OperationId) -> Option<Arc<Record>> {
        self.records.get(id).map(|entry| entry.record)
    }

    /// Keeps a record that was read, or written, under this epoch.
    pub(crate) fn keep(&self, record: &Arc<Record>, epoch: u64) {
        if record.state != State::Done || weight(record) > MAX_RECORD_BYTES {
            return;
        }
        // Held while the record is inserted: a change after this removes it.
        #[cfg(feature = "sqlite")]
        let own = self.own();
        #[cfg(feature = "sqlite")]
        if own.may_have_changed(&record.id, epoch) {
            return;
        }
        self.records.insert(record.id.clone(), Entry { epoch, record: Arc::clone(record) });
    }

    #[cfg(feature = "sqlite")]
    fn own(&self) -> std::sync::MutexGuard<'_, own::OwnChanges> {
        self.own.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// This store has changed these records, and the epoch from `before` to `after`. `before` is `None` if others may
    /// have changed records in between.
    #[cfg(feature = "sqlite")]
    pub(crate) fn changed_here<'a>(
        &self,
        ids: impl Iterator<Item = &'a OperationId>,
        before: Option<u64>,
        after: u64,
    ) {
        let mut own = self.own();
        own.advance(before, after);
        for id in ids {
            self.records.remove(id);
            own.add(id);
        }
    }

    /// Removes a record that has changed.
    #[cfg(feature = "remote")]
    pub(crate) fn remove(&self, id: &OperationId) {
        self.records.remove(id);
    }
}

fn weight(record: &Record) -> usize {
    let outcome = record.outcome.as_ref().map_or(0, onceward::Outcome::size);
    RECORD_BYTES + record.name.len() + record.scope.len() + record.detail.fields.len() * 96 + outcome
}
