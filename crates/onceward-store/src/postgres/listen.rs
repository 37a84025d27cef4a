//! Notifications of changes made elsewhere: they wake waiting callers and invalidate cached records.
//!
//! One connection listens. Every two seconds it queries the time, and the reply proves that all earlier notifications
//! have arrived. A cached record is served only if the last reply or notification is less than five seconds old. So a
//! finished record that another process has just settled, verified or forgotten is served for at most five seconds
//! more; normally it is the latency of one message.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use onceward::{OperationId, Record, StoreError};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_postgres::types::Type;

use super::Shared;
use super::link::Link;
use super::options::Notify;
use crate::cache::Cache;
use crate::clock::since_boot_ms;

/// How often the listening connection is checked.
const ASKED: Duration = Duration::from_secs(2);
/// The maximum age of the last sign of life.
const FRESH_MS: i64 = 5_000;
/// How many recent changes are remembered, so that a record read before a change is not cached after it.
const REMEMBERED: usize = 4_096;
/// How long the test notification may take to arrive.
const TRIAL: Duration = Duration::from_millis(700);
/// How long to wait before notifications are tested again: soon at first, because a busy server may only have been
/// late, and then ever longer.
const TRIED_AGAIN: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(60);
/// The payload of the test notification. No operation has this id.
const TRIAL_WORD: &str = "do you hear me";

/// The state of the listening connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListenState {
    /// No caller has needed notifications yet.
    NotStarted,
    /// Not connected at the moment.
    Disconnected,
    /// Notifications are not delivered because of a pooler, or are disabled.
    Unsupported,
    /// Notifications are delivered. The number counts the connections.
    Listening(u64),
}

/// The cache of finished records, and the changes that invalidate it.
pub(super) struct Memory {
    cache: Cache,
    gate: Mutex<CacheEpoch>,
}

#[derive(Default)]
struct CacheEpoch {
    /// The number of the current listening connection; `None` while there is none.
    epoch: Option<u64>,
    alive_ms: i64,
    changes: u64,
    recent: VecDeque<OperationId>,
}

/// The point in time before a record was requested.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    epoch: u64,
    changes: u64,
}

impl Memory {
    pub(super) fn new(bytes: u64) -> Self {
        Self { cache: Cache::new(bytes), gate: Mutex::default() }
    }

    fn gate(&self) -> MutexGuard<'_, CacheEpoch> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current moment, if the store listens.
    pub(super) fn moment(&self) -> Option<Moment> {
        let gate = self.gate();
        gate.epoch.map(|epoch| Moment { epoch, changes: gate.changes })
    }

    /// The cached record, if it is as current as the stored one.
    pub(super) fn find(&self, id: &OperationId) -> Option<Arc<Record>> {
        let epoch = {
            let gate = self.gate();
            gate.epoch.filter(|_| since_boot_ms() - gate.alive_ms < FRESH_MS)?
        };
        self.cache.find(id, epoch)
    }

    /// Caches a record that was requested after `moment`, unless it has changed since.
    pub(super) fn keep(&self, record: &Arc<Record>, moment: Moment) {
        let gate = self.gate();
        let since = gate.changes - moment.changes;
        let remembered = usize::try_from(since).is_ok_and(|since| since <= gate.recent.len());
        if gate.epoch == Some(moment.epoch) && remembered {
            let since = usize::try_from(since).unwrap_or(usize::MAX);
            if !gate.recent.iter().rev().take(since).any(|id| *id == record.id) {
                self.cache.keep(record, moment.epoch);
            }
        }
    }

    /// Removes a record that has changed.
    pub(super) fn invalidate(&self, id: &OperationId) {
        let mut gate = self.gate();
        gate.changes += 1;
        if gate.recent.len() == REMEMBERED {
            gate.recent.pop_front();
        }
        gate.recent.push_back(id.clone());
        self.cache.remove(id);
    }

    fn mark_alive(&self) {
        self.gate().alive_ms = since_boot_ms();
    }

    fn open(&self, epoch: u64) {
        let mut gate = self.gate();
        (gate.epoch, gate.alive_ms) = (Some(epoch), since_boot_ms());
    }

    fn close(&self) {
        self.gate().epoch = None;
    }
}

/// Listens for as long as the store lives, and reconnects after a loss.
pub(super) async fn listen(
    shared: Arc<Shared>,
    listen_state: watch::Sender<ListenState>,
    patience: Duration,
) {
    // A process that exits right away does not need to listen.
    sleep(patience).await;
    if shared.options.notify == Notify::Never {
        listen_state.send_replace(ListenState::Unsupported);
        return;
    }
    let (mut pause, mut silence) = (Duration::from_millis(50), *TRIED_AGAIN.start());
    for epoch in 1.. {
        match listen_once(&shared, &listen_state, epoch).await {
            SessionEnd::NotDelivered => {
                shared.own.store(false, Ordering::Relaxed);
                listen_state.send_replace(ListenState::Unsupported);
                sleep(silence).await;
                silence = (silence * 2).min(*TRIED_AGAIN.end());
                continue;
            }
            SessionEnd::Lost => pause = Duration::from_millis(50),
            SessionEnd::ConnectFailed => pause = (pause * 2).min(Duration::from_secs(2)),
        }
        shared.memory.close();
        listen_state.send_replace(ListenState::Disconnected);
        sleep(pause).await;
    }
}

/// Why a listening connection ended.
enum SessionEnd {
    /// The server could not be reached.
    ConnectFailed,
    /// The connection was lost.
    Lost,
    /// The test notification did not arrive.
    NotDelivered,
}

async fn listen_once(shared: &Shared, listen_state: &watch::Sender<ListenState>, epoch: u64) -> SessionEnd {
    let (sender, mut notifications) = mpsc::unbounded_channel();
    let Ok(link) = Link::connect(&shared.options, Some(sender)).await else {
        return SessionEnd::ConnectFailed;
    };
    let channel = shared.options.channel();
    if link.client.batch_execute(&format!("LISTEN \"{channel}\"")).await.is_err() {
        return SessionEnd::ConnectFailed;
    }
    match test_notifications(shared, &mut notifications).await {
        Ok(TestResult::Arrived) => {}
        Ok(TestResult::Silent) => return SessionEnd::NotDelivered,
        Err(_) => return SessionEnd::ConnectFailed,
    }
    shared.memory.open(epoch);
    shared.own.store(true, Ordering::Relaxed);
    listen_state.send_replace(ListenState::Listening(epoch));
    // If another host is the primary now, its changes are not announced here.
    while shared.options.answered.load(Ordering::Relaxed) == link.host {
        match timeout(ASKED, notifications.recv()).await {
            Ok(Some(payload)) => {
                shared.memory.mark_alive();
                if let Ok(id) = OperationId::parse(&payload) {
                    shared.memory.invalidate(&id);
                    shared.status.recent.announced(&id);
                    shared.watchers.notify(&id);
                }
            }
            Ok(None) => return SessionEnd::Lost,
            Err(_) => match timeout(ASKED, ask_time(&link, shared)).await {
                Ok(Ok(())) => shared.memory.mark_alive(),
                Ok(Err(_)) | Err(_) => return SessionEnd::Lost,
            },
        }
    }
    SessionEnd::Lost
}

/// The result of testing notifications.
enum TestResult {
    Arrived,
    Silent,
}

/// Sends a notification on another connection and waits for it here. Through a transaction pooler it never arrives.
async fn test_notifications(
    shared: &Shared,
    notifications: &mut mpsc::UnboundedReceiver<String>,
) -> Result<TestResult, StoreError> {
    let speaker = Link::connect(&shared.options, None).await?;
    let values: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
        [(&shared.options.channel(), Type::TEXT), (&TRIAL_WORD, Type::TEXT)];
    let said = speaker.client.query_typed("SELECT pg_notify($1, $2)::text", &values).await;
    said.map_err(super::fault::explain)?;
    let arrived = async {
        while let Some(payload) = notifications.recv().await {
            if payload == TRIAL_WORD {
                return Ok(TestResult::Arrived);
            }
        }
        Err(StoreError::unavailable("the listening connection was lost"))
    };
    timeout(TRIAL, arrived).await.unwrap_or(Ok(TestResult::Silent))
}

async fn ask_time(link: &Link, shared: &Shared) -> Result<(), StoreError> {
    let rows = link.client.query_typed(super::TIME, &[]).await.map_err(super::fault::explain)?;
    if let Some(row) = rows.first() {
        shared.clock.read(super::rows::cell(row, 0)?, None);
    }
    Ok(())
}
