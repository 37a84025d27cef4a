//! Hearing of changes elsewhere: those who wait are woken, and finished records in memory are let go.
//!
//! One connection listens. Every two seconds it asks for the time, and an answer proves that all that was told
//! before has arrived. A record in memory is served only while the last such answer, or the last news, is less than
//! five seconds old: so long, at the most, is a finished record served that somebody else has just settled, verified
//! or forgotten. As a rule it is the time of one message.

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

/// How often the listening connection is asked whether it lives.
const ASKED: Duration = Duration::from_secs(2);
/// How old the last word of it may be.
const FRESH_MS: i64 = 5_000;
/// How many changes are remembered, so that a record that was read before one of them is not kept after it.
const REMEMBERED: usize = 4_096;
/// How long a first notification may take to arrive.
const TRIAL: Duration = Duration::from_millis(700);
/// After what time it is tried again whether they arrive.
const TRIED_AGAIN: Duration = Duration::from_secs(60);
/// What is said to try notifications out; no operation has this id.
const TRIAL_WORD: &str = "do you hear me";

/// Whether changes elsewhere are heard of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hearing {
    /// Nobody has wanted to know yet.
    Unasked,
    /// Not now.
    Deaf,
    /// Not through this way: a pooler is in between, or it was not wanted.
    Never,
    /// Yes, for the so-manieth time.
    Since(u64),
}

/// Finished records in memory, and what makes them stale.
pub(super) struct Memory {
    cache: Cache,
    gate: Mutex<Gate>,
}

#[derive(Default)]
struct Gate {
    /// Which time of listening it is; `None` while nobody listens.
    epoch: Option<u64>,
    heard_ms: i64,
    changes: u64,
    recent: VecDeque<OperationId>,
}

/// The moment before a record was asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    epoch: u64,
    changes: u64,
}

impl Memory {
    pub(super) fn new(bytes: u64) -> Self {
        Self { cache: Cache::new(bytes), gate: Mutex::default() }
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This moment, where anybody listens.
    pub(super) fn moment(&self) -> Option<Moment> {
        let gate = self.gate();
        gate.epoch.map(|epoch| Moment { epoch, changes: gate.changes })
    }

    /// The finished record of that id, if memory holds it and it is as good as the stored one.
    pub(super) fn find(&self, id: &OperationId) -> Option<Arc<Record>> {
        let epoch = {
            let gate = self.gate();
            gate.epoch.filter(|_| since_boot_ms() - gate.heard_ms < FRESH_MS)?
        };
        self.cache.find(id, epoch)
    }

    /// Keeps a record that was asked for after `moment`, unless a change of it was heard of since.
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

    /// Lets go of a record that has changed.
    pub(super) fn changed(&self, id: &OperationId) {
        let mut gate = self.gate();
        gate.changes += 1;
        if gate.recent.len() == REMEMBERED {
            gate.recent.pop_front();
        }
        gate.recent.push_back(id.clone());
        self.cache.remove(id);
    }

    fn heard(&self) {
        self.gate().heard_ms = since_boot_ms();
    }

    fn open(&self, epoch: u64) {
        let mut gate = self.gate();
        (gate.epoch, gate.heard_ms) = (Some(epoch), since_boot_ms());
    }

    fn close(&self) {
        self.gate().epoch = None;
    }
}

/// Listens for as long as the store lives; after a loss, again.
pub(super) async fn listen(shared: Arc<Shared>, hearing: watch::Sender<Hearing>, patience: Duration) {
    // Who is gone in a moment need not have listened.
    sleep(patience).await;
    if shared.options.notify == Notify::Never {
        hearing.send_replace(Hearing::Never);
        return;
    }
    let mut pause = Duration::from_millis(50);
    for epoch in 1.. {
        match once(&shared, &hearing, epoch).await {
            Ended::Unheard => {
                shared.own.store(false, Ordering::Relaxed);
                hearing.send_replace(Hearing::Never);
                sleep(TRIED_AGAIN).await;
                continue;
            }
            Ended::Lost => pause = Duration::from_millis(50),
            Ended::Unreached => pause = (pause * 2).min(Duration::from_secs(2)),
        }
        shared.memory.close();
        hearing.send_replace(Hearing::Deaf);
        sleep(pause).await;
    }
}

/// How one time of listening ended.
enum Ended {
    /// The server could not be reached.
    Unreached,
    /// The connection was lost.
    Lost,
    /// What was said did not arrive.
    Unheard,
}

async fn once(shared: &Shared, hearing: &watch::Sender<Hearing>, epoch: u64) -> Ended {
    let (heard, mut news) = mpsc::unbounded_channel();
    let Ok(link) = Link::connect(&shared.options, Some(heard)).await else { return Ended::Unreached };
    let channel = shared.options.channel();
    if link.client.batch_execute(&format!("LISTEN \"{channel}\"")).await.is_err() {
        return Ended::Unreached;
    }
    match try_out(shared, &mut news).await {
        Ok(Trial::Arrived) => {}
        Ok(Trial::Silence) => return Ended::Unheard,
        Err(_) => return Ended::Unreached,
    }
    shared.memory.open(epoch);
    shared.own.store(true, Ordering::Relaxed);
    hearing.send_replace(Hearing::Since(epoch));
    // Another host writes now: what changes there is not heard of here.
    while shared.options.answered.load(Ordering::Relaxed) == link.host {
        match timeout(ASKED, news.recv()).await {
            Ok(Some(payload)) => {
                shared.memory.heard();
                if let Ok(id) = OperationId::parse(&payload) {
                    shared.memory.changed(&id);
                    shared.watchers.notify(&id);
                }
            }
            Ok(None) => return Ended::Lost,
            Err(_) => match timeout(ASKED, ask_time(&link, shared)).await {
                Ok(Ok(())) => shared.memory.heard(),
                Ok(Err(_)) | Err(_) => return Ended::Lost,
            },
        }
    }
    Ended::Lost
}

/// What came of trying notifications out.
enum Trial {
    Arrived,
    Silence,
}

/// Says something on another connection and waits until it is heard here. Through a pooler that lends connections
/// for one transaction it never is.
async fn try_out(shared: &Shared, news: &mut mpsc::UnboundedReceiver<String>) -> Result<Trial, StoreError> {
    let speaker = Link::connect(&shared.options, None).await?;
    let values: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
        [(&shared.options.channel(), Type::TEXT), (&TRIAL_WORD, Type::TEXT)];
    let said = speaker.client.query_typed("SELECT pg_notify($1, $2)::text", &values).await;
    said.map_err(super::fault::explain)?;
    let arrived = async {
        while let Some(payload) = news.recv().await {
            if payload == TRIAL_WORD {
                return Ok(Trial::Arrived);
            }
        }
        Err(StoreError::unavailable("the listening connection was lost"))
    };
    timeout(TRIAL, arrived).await.unwrap_or(Ok(Trial::Silence))
}

async fn ask_time(link: &Link, shared: &Shared) -> Result<(), StoreError> {
    let rows = link.client.query_typed(super::TIME, &[]).await.map_err(super::fault::explain)?;
    if let Some(row) = rows.first() {
        shared.clock.read(super::rows::cell(row, 0)?);
    }
    Ok(())
}
