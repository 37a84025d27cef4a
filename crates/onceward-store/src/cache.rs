//! Finished records in memory, bounded by what they weigh.
//!
//! A record that is done changes only when somebody settles, forgets or verifies it, or when its time is over. Each
//! such change moves an epoch that the store can see, so a record in memory is as good as the stored one while the
//! epoch is the one that it was read under.

use std::sync::Arc;

use onceward::{OperationId, Record, State};
use quick_cache::Weighter;
use quick_cache::sync::Cache as Kept;

/// A larger record is read from the file each time.
const MAX_RECORD_BYTES: usize = 1024 * 1024;
/// What a record weighs beside its texts: the structures around them.
const RECORD_BYTES: usize = 900;

pub(crate) struct Cache {
    records: Kept<OperationId, Entry, ByBytes>,
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
        Self { records: Kept::with_weighter(items, bytes, ByBytes) }
    }

    pub(crate) fn find(&self, id: &OperationId, epoch: u64) -> Option<Arc<Record>> {
        self.records.get(id).filter(|entry| entry.epoch == epoch).map(|entry| entry.record)
    }

    pub(crate) fn keep(&self, record: &Arc<Record>, epoch: u64) {
        if record.state == State::Done && weight(record) <= MAX_RECORD_BYTES {
            self.records.insert(record.id.clone(), Entry { epoch, record: Arc::clone(record) });
        }
    }

    /// Lets go of a record that has changed.
    #[cfg(feature = "remote")]
    pub(crate) fn remove(&self, id: &OperationId) {
        self.records.remove(id);
    }
}

fn weight(record: &Record) -> usize {
    let outcome = record.outcome.as_ref().map_or(0, onceward::Outcome::size);
    RECORD_BYTES + record.name.len() + record.scope.len() + record.detail.fields.len() * 96 + outcome
}
