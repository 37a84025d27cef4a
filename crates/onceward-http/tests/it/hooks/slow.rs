//! A ledger that is slow: nothing is acknowledged before it is durable, and the sender gets an answer in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use onceward::{
    Barrier, Begin, Clock, Counts, Filter, Identity, Inherit, Listed, Liveness, LivenessSource, OperationId,
    Owner, OwnerLock, Record, Store, StoreError, Swap, WriteMode,
};
use onceward_testkit::Stepped;
use serde_json::json;

use super::rig::{Handler, Rig, Vendor};
use crate::common::until;

/// A store whose writes wait, while it is slow, until its gate is free.
struct Slow {
    inner: Arc<dyn Store>,
    is_slow: AtomicBool,
    gate: tokio::sync::RwLock<()>,
    /// How many writes have come to the gate.
    came: AtomicUsize,
}

impl Slow {
    async fn wait(&self) {
        if self.is_slow.load(Ordering::Acquire) {
            self.came.fetch_add(1, Ordering::AcqRel);
            drop(self.gate.read().await);
        }
    }
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
        self.wait().await;
        self.inner.swap(expected, record, mode).await
    }

    async fn begin(
        &self,
        expected: Option<u64>,
        record: Record,
        mode: WriteMode,
    ) -> Result<Begin, StoreError> {
        self.wait().await;
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

    async fn occurrences(&self, action: &OperationId, now_ms: i64) -> Result<Vec<Record>, StoreError> {
        self.inner.occurrences(action, now_ms).await
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
    let clock = Stepped::new();
    let inner = clock.on(onceward_store::open(&file).unwrap());
    let slow = Arc::new(Slow {
        inner,
        is_slow: AtomicBool::new(true),
        gate: tokio::sync::RwLock::default(),
        came: AtomicUsize::new(0),
    });
    let policy = format!(
        "[hook.standard]\npreset = \"standard-webhooks\"\nsecrets = [\"$SECRET\"]\n[hook.standard.handler.app]\nurl = \
         \"{url}\"\n"
    );
    let rig = Rig::on(clock, Arc::clone(&slow) as Arc<dyn Store>, &policy).await;
    let event = Vendor::new("standard").event("msg_1", &json!({"n": 1}));
    let held = slow.gate.write().await;
    let (answer, ()) = tokio::join!(rig.deliver("standard", &event), async {
        let waits = async || rig.clock.sleepers(2_500) == 1 && slow.came.load(Ordering::Acquire) == 1;
        until("it waits for the ledger", waits).await;
        rig.clock.step(2_500);
    });
    assert_eq!(answer.status, 503, "{}", answer.text);
    assert!(rig.records().await.is_empty(), "it is not durable yet");
    slow.is_slow.store(false, Ordering::Release);
    let again = rig.deliver("standard", &event).await;
    assert_eq!((again.status, again.result()), (200, "accepted"), "{}", again.text);
    drop(held);
    rig.event_when("standard", "msg_1", "done").await;
    assert_eq!(handler.got().len(), 1);
}
