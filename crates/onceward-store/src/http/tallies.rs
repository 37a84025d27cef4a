//! Counts of replays, reported to the server now and then. They may be lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use onceward::OperationId;
use onceward::wire::{self, Empty};

use super::link::Link;
use crate::remote::RuntimeThread;

/// How often the counts are reported.
const INTERVAL: Duration = Duration::from_millis(500);
/// How long closing a store may take to report the last counts.
const CLOSING: Duration = Duration::from_millis(500);
/// How many operations are counted at a time; others are not.
const MAX_COUNTED: usize = 10_000;

/// The replays that the server has not been told of.
#[derive(Debug, Default)]
pub(super) struct Tallies(Mutex<BTreeMap<OperationId, u32>>);

impl Tallies {
    /// Starts to report the counts, for as long as the store is open.
    pub(super) fn start(runtime: &RuntimeThread, link: &Arc<Link>) -> Arc<Self> {
        let tallies = Arc::new(Self::default());
        runtime.spawn(report(Arc::downgrade(&tallies), Arc::downgrade(link)));
        tallies
    }

    pub(super) fn add(&self, id: &OperationId) {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(replays) = counted.get_mut(id) {
            *replays = replays.saturating_add(1);
        } else if counted.len() < MAX_COUNTED {
            counted.insert(id.clone(), 1);
        }
    }

    /// Reports what is left, and waits for that a short time.
    pub(super) fn close(&self, runtime: &RuntimeThread, link: &Arc<Link>) {
        let Some(body) = self.take() else { return };
        let link = Arc::clone(link);
        // The counts may be lost.
        drop(runtime.wait_for(async move {
            drop(link.write::<Empty>(wire::TALLY, &body, Instant::now() + CLOSING).await);
            Ok(())
        }));
    }

    fn take(&self) -> Option<Bytes> {
        let replays = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let some = !replays.is_empty();
        some.then(|| wire::encode(&wire::Tallies { replays }).ok().map(Bytes::from)).flatten()
    }
}

async fn report(tallies: Weak<Tallies>, link: Weak<Link>) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        let (Some(tallies), Some(link)) = (tallies.upgrade(), link.upgrade()) else { return };
        if let Some(body) = tallies.take() {
            drop(link.write::<Empty>(wire::TALLY, &body, link.until()).await);
        }
    }
}
