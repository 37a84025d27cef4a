//! Being told of changes: one subscription a server, those who wait, and whether memory may be trusted.
//!
//! A record that is done changes rarely, and each such change is published. So a finished record in memory is as good
//! as the stored one while the subscription lives, but for the time that a message takes; a subscription that died
//! without a word is found out by its silence within [`TRUSTED_MS`].

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use onceward::OperationId;
use onceward::watchers::Watchers;
use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep, timeout};

use super::entry::Keys;
use super::link::{self, Address, Closed};
use super::options::RedisOptions;
use super::settings::{self, Role};

/// How long a subscription is trusted after its last sign of life.
pub(super) const TRUSTED_MS: i64 = 3_000;
/// How often it is asked for one.
const ASK_EVERY: Duration = Duration::from_millis(1_000);
/// How long a lost one waits before it is tried again, at first and at most.
const REST: std::ops::RangeInclusive<Duration> = Duration::from_millis(20)..=Duration::from_secs(1);
/// Changes are told apart by so many groups of ids: a change makes memory forget its group and no other.
const GROUPS: usize = 4_096;

/// What the subscriptions of a ledger bring.
pub(super) struct News {
    /// Those who wait for one operation.
    pub(super) watchers: Watchers,
    /// Those who wait for anything, woken when changes may have been missed.
    pub(super) missed: Notify,
    epochs: Box<[AtomicU64]>,
    // Goes on with each loss, so that nothing that was in memory before counts.
    losses: AtomicU64,
    since: Instant,
}

impl Default for News {
    fn default() -> Self {
        Self {
            watchers: Watchers::default(),
            missed: Notify::new(),
            epochs: (0..GROUPS).map(|_| AtomicU64::new(0)).collect(),
            losses: AtomicU64::new(0),
            since: Instant::now(),
        }
    }
}

impl News {
    /// The epoch that a record in memory must be of. Both parts only grow.
    pub(super) fn epoch(&self, id: &OperationId) -> u64 {
        self.losses.load(Ordering::SeqCst) + self.group(id).load(Ordering::SeqCst)
    }

    /// The record of that id is no longer what it was.
    pub(super) fn changed(&self, id: &OperationId) {
        self.group(id).fetch_add(1, Ordering::SeqCst);
        self.watchers.notify(id);
    }

    /// Changes may have been missed: nothing in memory counts, and whoever waits looks again.
    pub(super) fn lost(&self) {
        self.losses.fetch_add(1, Ordering::SeqCst);
        self.missed.notify_waiters();
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
    news: Arc<News>,
    trusted_until_ms: AtomicI64,
}

impl Subscription {
    /// Subscribes at the primary among `hosts`, for as long as what this gives is held. Must be called on the store's
    /// own thread.
    pub(super) fn start(
        options: &Arc<RedisOptions>,
        keys: &Keys,
        hosts: Vec<Address>,
        news: &Arc<News>,
    ) -> Arc<Self> {
        let subscription = Arc::new(Self { news: Arc::clone(news), trusted_until_ms: AtomicI64::new(-1) });
        let listener = Listener {
            options: Arc::clone(options),
            channel: keys.channel().to_owned(),
            hosts,
            subscription: Arc::downgrade(&subscription),
        };
        tokio::spawn(listener.listen());
        subscription
    }

    /// Whether changes at that server are told here.
    pub(super) fn is_alive(&self) -> bool {
        self.news.now_ms() < self.trusted_until_ms.load(Ordering::SeqCst)
    }

    fn heard(&self, asked_ms: i64) {
        self.trusted_until_ms.store(asked_ms + TRUSTED_MS, Ordering::SeqCst);
    }

    fn lost(&self) {
        self.trusted_until_ms.store(-1, Ordering::SeqCst);
        self.news.lost();
    }
}

/// What listens for a subscription.
struct Listener {
    options: Arc<RedisOptions>,
    channel: String,
    hosts: Vec<Address>,
    // The listening ends when nobody wants the subscription any more.
    subscription: Weak<Subscription>,
}

impl Listener {
    async fn listen(self) {
        let mut rest = *REST.start();
        while self.subscription.strong_count() > 0 {
            for address in &self.hosts {
                if let Ok((connection, pushed)) = self.subscribe(address).await {
                    rest = *REST.start();
                    self.follow(connection, pushed).await;
                    if let Some(subscription) = self.subscription.upgrade() {
                        subscription.lost();
                    }
                }
            }
            sleep(rest).await;
            rest = (rest * 2).min(*REST.end());
        }
    }

    async fn subscribe(
        &self,
        address: &Address,
    ) -> Result<(MultiplexedConnection, mpsc::UnboundedReceiver<PushInfo>), Closed> {
        let (sender, pushed) = mpsc::unbounded_channel();
        let work = async {
            let mut connection = link::connect(&self.options, address, Some(sender)).await?;
            if settings::ask(&mut connection).await?.role != Role::Primary {
                return Err(Closed::Now("a replica".to_owned()));
            }
            connection.subscribe(&self.channel).await?;
            Ok(connection)
        };
        match timeout(self.options.timeout, work).await {
            Ok(connection) => Ok((connection?, pushed)),
            Err(_) => Err(Closed::Now("no answer came in time".to_owned())),
        }
    }

    /// Passes on what comes, until nothing comes any more.
    async fn follow(
        &self,
        mut connection: MultiplexedConnection,
        mut pushed: mpsc::UnboundedReceiver<PushInfo>,
    ) {
        // What changed before it stood was not told.
        match self.subscription.upgrade() {
            Some(subscription) => subscription.lost(),
            None => return,
        }
        loop {
            let Some(subscription) = self.subscription.upgrade() else { return };
            let asked_ms = subscription.news.now_ms();
            if !is_primary(&mut connection).await {
                return;
            }
            subscription.heard(asked_ms);
            let pause = sleep(ASK_EVERY);
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    push = pushed.recv() => match push {
                        Some(PushInfo { kind: PushKind::Message, data }) => pass_on(&subscription.news, &data),
                        Some(PushInfo { kind: PushKind::Disconnection, .. }) | None => return,
                        Some(_) => {}
                    },
                }
            }
        }
    }
}

/// Whether the server answers, and still is the one that takes writes.
async fn is_primary(connection: &mut MultiplexedConnection) -> bool {
    let asked = redis::cmd("ROLE");
    match timeout(ASK_EVERY, connection.send_packed_command(&asked)).await {
        Ok(Ok(Value::Array(role))) => role.first().and_then(settings::text).as_deref() == Some("master"),
        // Where `ROLE` is forbidden, an answer is a sign of life all the same.
        Ok(Ok(Value::ServerError(_))) => true,
        Ok(_) | Err(_) => false,
    }
}

fn pass_on(news: &News, message: &[Value]) {
    let id = message.get(1).and_then(settings::text);
    if let Some(id) = id.and_then(|id| OperationId::parse(&id).ok()) {
        news.changed(&id);
    }
}
