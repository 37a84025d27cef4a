//! A ledger that is slow: nothing is acknowledged before it is durable, and the sender gets an answer in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use onceward::{
    Barrier, Begin, Clock, Counts, Filter, Identity, Inherit, Listed, Liveness, LivenessSource, OperationId,
    Owner, OwnerLock, Record, Store, StoreError, Swap, WriteMode,
};
use serde_json::json;

use super::rig::{Handler, Rig, Vendor};

/// A store whose writes take some time.
struct Slow {
    inner: Arc<dyn Store>,
    write_ms: AtomicU64,
}

#[async_trait]
impl Store for Slow {
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

    async fn load(&self, id: &OperationId) -> Result<Option<Arc<Record>>, StoreError> {
        self.inner.load(id).await
    }

    async fn swap(&self, expected: Option<u64>, record: Record, mode: WriteMode) -> Result<Swap, StoreError> {
        tokio::time::sleep(Duration::from_millis(self.write_ms.load(Ordering::Acquire))).await;
        self.inner.swap(expected, record, mode).await
    }

    async fn begin(
        &self,
        expected: Option<u64>,
        record: Record,
        mode: WriteMode,
    ) -> Result<Begin, StoreError> {
        tokio::time::sleep(Duration::from_millis(self.write_ms.load(Ordering::Acquire))).await;
        self.inner.begin(expected, record, mode).await
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

    async fn list(&self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        self.inner.list(filter).await
    }

    async fn due(&self, now_ms: i64, limit: usize) -> Result<Vec<Record>, StoreError> {
        self.inner.due(now_ms, limit).await
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

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_ledger_gets_503_before_the_vendor_gives_up_and_its_event_is_not_lost() {
    let (handler, url) = Handler::start(&[]).await;
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", folder.path().join("once.db").display());
    let inner = onceward_store::open(&file).unwrap();
    let slow = Arc::new(Slow { inner, write_ms: AtomicU64::new(20_000) });
    let policy = format!(
        "[hook.standard]\npreset = \"standard-webhooks\"\nsecrets = [\"$SECRET\"]\n[hook.standard.handler.app]\nurl = \
         \"{url}\"\n"
    );
    let rig = Rig::on(Arc::clone(&slow) as Arc<dyn Store>, &policy).await;
    let event = Vendor::new("standard").event("msg_1", &json!({"n": 1}));
    let begun = Instant::now();
    let answer = rig.deliver("standard", &event).await;
    assert_eq!(answer.status, 503, "{}", answer.text);
    assert!(begun.elapsed() < Duration::from_secs(15), "it did not wait for the ledger");
    assert!(rig.records().await.is_empty(), "it is not durable yet");
    slow.write_ms.store(0, Ordering::Release);
    let again = rig.deliver("standard", &event).await;
    assert_eq!((again.status, again.result()), (200, "accepted"), "{}", again.text);
    rig.event_when("standard", "msg_1", "done").await;
    assert_eq!(handler.got().len(), 1);
}
