//! Encryption at rest: a wrapper around any store that seals records before they are written.
//!
//! The inputs and outputs of an operation are sealed: results, reasons, command lines, folders, probes,
//! checks, and the requests of held operations. The
//! fields that stores index and decisions need are not: scope, name, key, state, times, and the keyed hashes of inputs.
//! A value that cannot be opened stays sealed, is shown as sealed, and is written back unchanged.
//!
//! # Layout
//! - [`Keys`]: the key file, and sealing and opening one record.
//! - `environment`: the variables that configure encryption for all surfaces.

mod environment;
mod keys;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use onceward::{
    Applied, Barrier, Begin, Change, Clock, Counts, Filter, Identity, Inherit, Listed, Liveness,
    LivenessSource, OperationId, Owner, OwnerLock, Record, Store, StoreError, Swap, WriteMode,
};

pub use environment::{KEY_FILE_VARIABLE, KEY_VARIABLE, WITHHELD, from_environment};
pub use keys::{Keys, new_key};

use crate::{Backend, Compacted, Finding, Overwrite};

/// A store that seals what it writes and opens what it reads.
pub struct Sealed {
    inner: Arc<dyn Backend>,
    keys: Keys,
}

impl Sealed {
    /// Wraps a store with these keys.
    #[must_use]
    pub fn around(inner: Arc<dyn Backend>, keys: Keys) -> Self {
        Self { inner, keys }
    }

    fn open_shared(&self, record: Arc<Record>) -> Arc<Record> {
        if record.is_sealed() { Arc::new(self.open(Record::clone(&record))) } else { record }
    }

    /// The result of writing this record, as callers see it.
    fn opened(&self, swap: Swap, record: Record) -> Swap {
        match swap {
            Swap::Written(_) => Swap::Written(Arc::new(record)),
            Swap::Conflict(found) => Swap::Conflict(found.map(|record| self.open_shared(record))),
        }
    }

    fn open(&self, mut record: Record) -> Record {
        self.keys.open(&mut record);
        record
    }
}

#[async_trait]
impl Store for Sealed {
    fn clock(&self) -> &dyn Clock {
        self.inner.clock()
    }

    fn watch(&self) -> LivenessSource {
        self.inner.watch()
    }

    fn identity(&self) -> &Identity {
        self.inner.identity()
    }

    async fn set_identity(&self, next: &Identity) -> Result<(), StoreError> {
        self.inner.set_identity(next).await
    }

    async fn load_cached(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        Ok(self.inner.load_cached(id).await?.map(|record| self.open_shared(record)))
    }

    async fn load(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        Ok(self.inner.load(id).await?.map(|record| self.open_shared(record)))
    }

    async fn swap(&self, expected: Option<u64>, record: Record, mode: WriteMode) -> Result<Swap, StoreError> {
        let sealed = self.keys.sealed(&record)?;
        Ok(self.opened(self.inner.swap(expected, sealed, mode).await?, record))
    }

    async fn begin(
        &self,
        expected: Option<u64>,
        record: Record,
        mode: WriteMode,
    ) -> Result<Begin, StoreError> {
        let sealed = self.keys.sealed(&record)?;
        Ok(match self.inner.begin(expected, sealed, mode).await? {
            Begin::Swapped(swap) => Begin::Swapped(self.opened(swap, record)),
            Begin::Stopped(barrier) => Begin::Stopped(barrier),
        })
    }

    async fn stop(&self, barrier: &Barrier) -> Result<Barrier, StoreError> {
        self.inner.stop(barrier).await
    }

    async fn resume(&self, scope: &str) -> Result<Option<Barrier>, StoreError> {
        self.inner.resume(scope).await
    }

    async fn barriers(&self) -> Result<Vec<Barrier>, StoreError> {
        self.inner.barriers().await
    }

    async fn delete(&self, id: &OperationId, expected: u64, mode: WriteMode) -> Result<bool, StoreError> {
        self.inner.delete(id, expected, mode).await
    }

    async fn apply(&self, mut changes: Vec<Change>, mode: WriteMode) -> Result<Vec<Applied>, StoreError> {
        for change in &mut changes {
            match change {
                Change::Swap { record, .. } => self.keys.seal(record)?,
                Change::Delete { .. } => {}
            }
        }
        self.inner.apply(changes, mode).await
    }

    async fn occurrences(&self, action: &OperationId, now_ms: i64) -> Result<Vec<Record>, StoreError> {
        let found = self.inner.occurrences(action, now_ms).await?;
        Ok(found.into_iter().map(|record| self.open(record)).collect())
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        let listed = self.inner.list(filter).await?;
        Ok(listed.into_iter().map(|one| Listed { record: self.open(one.record), ..one }).collect())
    }

    async fn due(&self, now_ms: i64, limit: usize) -> Result<Vec<Record>, StoreError> {
        let due = self.inner.due(now_ms, limit).await?;
        Ok(due.into_iter().map(|record| self.open(record)).collect())
    }

    async fn counts(&self, filter: &Filter) -> Result<Counts, StoreError> {
        self.inner.counts(filter).await
    }

    async fn changed(&self, id: &OperationId, seen: u64, timeout_ms: u64) {
        self.inner.changed(id, seen, timeout_ms).await;
    }

    fn hold(&self, inherit: Inherit) -> Result<Box<dyn OwnerLock>, StoreError> {
        self.inner.hold(inherit)
    }

    async fn liveness(&self, owner: &Owner) -> Result<Liveness, StoreError> {
        self.inner.liveness(owner).await
    }

    fn tally_replay(&self, id: &OperationId) {
        self.inner.tally_replay(id);
    }
}

impl Backend for Sealed {
    fn health(&self) -> Result<Vec<Finding>, StoreError> {
        let mut findings = self.inner.health()?;
        let ids: Vec<&str> = self.keys.ids().collect();
        let (newest, older) = ids.split_first().ok_or_else(|| StoreError::unavailable("there is no key"))?;
        let older = if older.is_empty() {
            String::new()
        } else {
            format!("; {} can still open records", older.join(", "))
        };
        findings
            .push(Finding::good("encryption", format!("results are sealed with the key {newest}{older}")));
        Ok(findings)
    }

    fn check_backup(&self, file: &Path, overwrite: Overwrite) -> Result<(), StoreError> {
        self.inner.check_backup(file, overwrite)
    }

    fn backup(&self, file: &Path, overwrite: Overwrite) -> Result<u64, StoreError> {
        self.inner.backup(file, overwrite)
    }

    fn compact(&self) -> Result<Option<Compacted>, StoreError> {
        self.inner.compact()
    }
}
