//! A cache of finished records, bounded by their size.
//!
//! A finished record changes only if it is settled, forgotten or verified, or when it expires. Each such change
//! advances an epoch that the store can read. So a cached record is as current as the stored one while the epoch is
//! the one under which it was read.

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
        Self { records: ByteCache::with_weighter(items, bytes, ByBytes) }
    }

    pub(crate) fn find(&self, id: &OperationId, epoch: u64) -> Option<Arc<Record>> {
        self.records.get(id).filter(|entry| entry.epoch == epoch).map(|entry| entry.record)
    }

    /// The record as it was last kept, which may have changed since.
    #[cfg(feature = "sqlite")]
    pub(crate) fn last_kept(&self, id: &OperationId) -> Option<Arc<Record>> {
        self.records.get(id).map(|entry| entry.record)
    }

    pub(crate) fn keep(&self, record: &Arc<Record>, epoch: u64) {
        if record.state == State::Done && weight(record) <= MAX_RECORD_BYTES {
            self.records.insert(record.id.clone(), Entry { epoch, record: Arc::clone(record) });
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
