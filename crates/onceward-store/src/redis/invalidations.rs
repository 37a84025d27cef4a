//! Notifications of changes: one subscription per server, the waiting callers, and the validity of cached records.
//!
//! A finished record changes rarely, and each such change is published. So a cached record is as current as the
//! stored one while the subscription is alive, apart from the latency of a message. A subscription that died silently
//! is detected within [`TRUSTED_MS`].

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use onceward::{OperationId, Watchers};
use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep, timeout};

use super::entry::Keys;
use super::fault::ConnectError;
use super::link::{self, Address};
use super::options::RedisOptions;
use super::settings::{self, Role};
use crate::remote::recent::RecentWrites;

/// How long a subscription is trusted after its last sign of life.
pub(super) const TRUSTED_MS: i64 = 3_000;
/// How often the subscription is checked.
const ASK_EVERY: Duration = Duration::from_millis(1_000);
/// Back-off before a lost subscription is retried: initial and maximum.
const BACKOFF: std::ops::RangeInclusive<Duration> = Duration::from_millis(20)..=Duration::from_secs(1);
/// The number of id groups. A change invalidates the cached records of its group only.
const GROUPS: usize = 4_096;

/// The change notifications of a ledger.
pub(super) struct Invalidations {
    /// Callers that wait for one operation.
    pub(super) watchers: Watchers,
    /// Callers that wait for any operation. They are woken when changes may have been missed.
    pub(super) missed: Notify,
    epochs: Box<[AtomicU64]>,
    // Incremented with each loss, which invalidates everything cached before.
    losses: AtomicU64,
    since: Instant,
    recent: Arc<RecentWrites>,
}

impl Invalidations {
    /// Announced changes are also reported to `recent`.
    pub(super) fn new(recent: Arc<RecentWrites>) -> Self {
        Self {
            recent,
            watchers: Watchers::default(),
            missed: Notify::new(),
            epochs: (0..GROUPS).map(|_| AtomicU64::new(0)).collect(),
            losses: AtomicU64::new(0),
            since: Instant::now(),
        }
    }

    /// The epoch that a cached record must have. Both summands only grow.
    pub(super) fn epoch(&self, id: &OperationId) -> u64 {
        self.losses.load(Ordering::SeqCst) + self.group(id).load(Ordering::SeqCst)
    }

    /// Invalidates the record with that id.
    pub(super) fn invalidate(&self, id: &OperationId) {
        self.group(id).fetch_add(1, Ordering::SeqCst);
        self.recent.announced(id);
        self.watchers.notify(id);
    }

    /// Changes may have been missed: invalidates everything and wakes all waiting callers.
    pub(super) fn invalidate_all(&self) {
        self.losses.fetch_add(1, Ordering::SeqCst);
        self.missed.notify_waiters();
    }

    /// How often changes may have been missed.
    pub(super) fn losses(&self) -> u64 {
        self.losses.load(Ordering::SeqCst)
    }

    fn group(&self, id: &OperationId) -> &AtomicU64 {
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        let group = usize::try_from(hasher.finish() % (GROUPS as u64)).unwrap_or_default();
        &self.epochs[group]
    }

    fn now_ms(&self) -> i64 {
        i64::try_from(self.since.elapsed().as_millis()).unwrap_or(i64::MAX)
    }
}

/// The subscription at one server.
pub(super) struct Subscription {
    invalidations: Arc<Invalidations>,
    trusted_until_ms: AtomicI64,
}

impl Subscription {
    /// Subscribes at the primary among `hosts`, for as long as the returned value is held. Must be called on the
    /// store's own thread.
    pub(super) fn start(
        options: &Arc<RedisOptions>,
        keys: &Keys,
        hosts: Vec<Address>,
        invalidations: &Arc<Invalidations>,
    ) -> Arc<Self> {
        let subscription =
            Arc::new(Self { invalidations: Arc::clone(invalidations), trusted_until_ms: AtomicI64::new(-1) });
        let listener = Listener {
            options: Arc::clone(options),
            channel: keys.channel().to_owned(),
            hosts,
            subscription: Arc::downgrade(&subscription),
        };
        tokio::spawn(listener.listen());
        subscription
    }

    /// Whether changes at that server are received here.
    pub(super) fn is_alive(&self) -> bool {
        self.invalidations.now_ms() < self.trusted_until_ms.load(Ordering::SeqCst)
    }

    fn mark_alive(&self, asked_ms: i64) {
        self.trusted_until_ms.store(asked_ms + TRUSTED_MS, Ordering::SeqCst);
    }

    fn mark_lost(&self) {
        self.trusted_until_ms.store(-1, Ordering::SeqCst);
        self.invalidations.invalidate_all();
    }
}

/// The task that reads a subscription.
struct Listener {
    options: Arc<RedisOptions>,
    channel: String,
    hosts: Vec<Address>,
    // The task ends when the subscription is dropped.
    subscription: Weak<Subscription>,
}

impl Listener {
    async fn listen(self) {
        let mut backoff = *BACKOFF.start();
        while self.subscription.strong_count() > 0 {
            let until = Instant::now() + self.options.timeout;
            let servers = link::servers(&self.options, &self.hosts, until).await.unwrap_or_default();
            for address in &servers {
                if let Ok((connection, messages)) = self.subscribe(address).await {
                    backoff = *BACKOFF.start();
                    self.follow(connection, messages).await;
                    if let Some(subscription) = self.subscription.upgrade() {
                        subscription.mark_lost();
                    }
                }
            }
            sleep(backoff).await;
            backoff = (backoff * 2).min(*BACKOFF.end());
        }
    }

    async fn subscribe(
        &self,
        address: &Address,
    ) -> Result<(MultiplexedConnection, mpsc::UnboundedReceiver<PushInfo>), ConnectError> {
        let (sender, messages) = mpsc::unbounded_channel();
        let work = async {
            let mut connection = link::connect(&self.options, address, Some(sender)).await?;
            if settings::ask(&mut connection).await?.role != Role::Primary {
                return Err(ConnectError::Unavailable("a replica".to_owned()));
            }
            connection.subscribe(&self.channel).await?;
            Ok(connection)
        };
        match timeout(self.options.timeout, work).await {
            Ok(connection) => Ok((connection?, messages)),
            Err(_) => Err(ConnectError::Unavailable("no answer came in time".to_owned())),
        }
    }

    /// Processes messages until the connection ends.
    async fn follow(
        &self,
        mut connection: MultiplexedConnection,
        mut messages: mpsc::UnboundedReceiver<PushInfo>,
    ) {
        // Changes before the subscription began were not received.
        match self.subscription.upgrade() {
            Some(subscription) => subscription.mark_lost(),
            None => return,
        }
        loop {
            let Some(subscription) = self.subscription.upgrade() else { return };
            let asked_ms = subscription.invalidations.now_ms();
            if !is_primary(&mut connection).await {
                return;
            }
            subscription.mark_alive(asked_ms);
            let pause = sleep(ASK_EVERY);
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    push = messages.recv() => match push {
                        Some(PushInfo { kind: PushKind::Message, data }) => {
                            apply_message(&subscription.invalidations, &data);
                        }
                        Some(PushInfo { kind: PushKind::Disconnection, .. }) | None => return,
                        Some(_) => {}
                    },
                }
            }
        }
    }
}

/// Whether the server answers and is still the primary.
async fn is_primary(connection: &mut MultiplexedConnection) -> bool {
    let asked = redis::cmd("ROLE");
    match timeout(ASK_EVERY, connection.send_packed_command(&asked)).await {
        Ok(Ok(Value::Array(role))) => role.first().and_then(settings::text).as_deref() == Some("master"),
        // If `ROLE` is forbidden, any reply is still a sign of life.
        Ok(Ok(Value::ServerError(_))) => true,
        Ok(_) | Err(_) => false,
    }
}

fn apply_message(invalidations: &Invalidations, message: &[Value]) {
    let id = message.get(1).and_then(settings::text);
    if let Some(id) = id.and_then(|id| OperationId::parse(&id).ok()) {
        invalidations.invalidate(&id);
    }
}
