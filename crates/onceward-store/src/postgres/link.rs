//! One connection: connecting, checking the server, and watching for its warnings.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use onceward::StoreError;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_postgres::error::Severity;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, Row};

use super::check::{IDENTIFY, QUERY, Server};
use super::fault::explain;
use super::options::PostgresOptions;
use super::rows::Statement;
use super::tls;

/// The minimum time that a host gets to answer, however many hosts there are.
const LEAST_SHARE: Duration = Duration::from_millis(300);

/// Whether a pooler may sit in between that lends server connections per transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pooler {
    /// Not known.
    Perhaps,
    /// No pooler: session state is kept and notifications are delivered.
    No,
}

/// One connection to the server.
pub(super) struct Link {
    pub(super) client: Client,
    /// The index of its host in the URL.
    pub(super) host: usize,
    /// The server's timeline when the connection was opened, if the server reports it.
    pub(super) timeline: Option<i64>,
    warned: Arc<AtomicBool>,
    kept: Mutex<HashMap<String, tokio_postgres::Statement>>,
    driver: AbortHandle,
}

/// Receives the payload of each notification.
pub(super) type NotificationSender = mpsc::UnboundedSender<String>;

impl Link {
    /// Connects without any checks: first to the host that answered last, then to the others in order.
    pub(super) async fn connect(
        options: &PostgresOptions,
        notify: Option<NotificationSender>,
    ) -> Result<Self, StoreError> {
        let count = options.hosts.len();
        let share = share_of(options);
        let first = options.answered.load(Ordering::Relaxed);
        let mut failed = StoreError::unavailable("the URL names no host");
        for number in (first..first + count).map(|number| number % count) {
            let Some(host) = options.hosts.get(number) else { continue };
            match timeout(share, Self::connect_to(host, number, options, notify.clone())).await {
                Ok(Ok(link)) => {
                    options.answered.store(number, Ordering::Relaxed);
                    return Ok(link);
                }
                Ok(Err(error)) => failed = error,
                Err(_) => failed = no_answer(options),
            }
        }
        Err(failed)
    }

    async fn connect_to(
        host: &Config,
        number: usize,
        options: &PostgresOptions,
        notify: Option<NotificationSender>,
    ) -> Result<Self, StoreError> {
        let connector = tls::connector(&options.trust)?;
        let (client, mut connection) = host.connect(connector).await.map_err(explain)?;
        let warned = Arc::new(AtomicBool::new(false));
        let warning = Arc::clone(&warned);
        let drive = async move {
            while let Some(Ok(message)) =
                std::future::poll_fn(|context| connection.poll_message(context)).await
            {
                if let AsyncMessage::Notification(message) = &message
                    && let Some(notify) = &notify
                {
                    // The receiver may be gone; then no one depends on the notification.
                    drop(notify.send(message.payload().to_owned()));
                }
                // Other notices are informational.
                if let AsyncMessage::Notice(notice) = message
                    && notice.parsed_severity() == Some(Severity::Warning)
                {
                    warning.store(true, Ordering::SeqCst);
                }
            }
        };
        let driver = tokio::spawn(drive).abort_handle();
        Ok(Self { client, host: number, timeline: None, warned, kept: Mutex::default(), driver })
    }

    /// Connects to the primary, and ensures that everything it shows is durable. After a restart a server shows
    /// commits that its standby never confirmed; one write that the standby confirms also confirms all commits before
    /// it.
    pub(super) async fn open(options: &PostgresOptions) -> Result<(Self, Server), StoreError> {
        let (link, server) = choose(Self::all(options).await?)?;
        options.answered.store(link.host, Ordering::Relaxed);
        server.refuse_read_only()?;
        let fence = "SELECT set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') \
                     IN ('on', 'remote_apply') THEN current_setting('synchronous_commit') ELSE 'on' END, true), \
                     pg_logical_emit_message(true, 'onceward', 'fence')::text";
        let fenced = timeout(options.timeout, link.client.query_typed(fence, &[])).await;
        fenced.map_err(|_| no_answer(options))?.map_err(explain)?;
        match link.take_warning() {
            false => Ok((link, server)),
            true => Err(StoreError::unavailable("the server could not confirm a write to its standby")),
        }
    }

    /// Connects to all hosts concurrently, because the primary can only be determined after asking all of them. A host
    /// that is silent gets its whole share of the time: it may have been promoted, and be slow. Then another one that
    /// still accepts writes is the former primary.
    async fn all(options: &PostgresOptions) -> Result<Vec<(Self, Server)>, StoreError> {
        let share = share_of(options);
        let mut asked = JoinSet::new();
        for (number, host) in options.hosts.iter().cloned().enumerate() {
            let options = options.clone();
            asked.spawn(async move {
                let introduced = async {
                    let mut link = Self::connect_to(&host, number, &options, None).await?;
                    let server = link.look().await?;
                    link.timeline = server.timeline;
                    Ok((link, server))
                };
                timeout(share, introduced).await.unwrap_or_else(|_| Err(no_answer(&options)))
            });
        }
        let mut found = Vec::new();
        let mut failed = StoreError::unavailable("the URL names no host");
        while let Some(next) = asked.join_next().await {
            match next {
                Ok(Ok(pair)) => found.push(pair),
                Ok(Err(error)) => failed = error,
                Err(_) => {}
            }
        }
        if found.is_empty() { Err(failed) } else { Ok(found) }
    }

    /// Queries the server's version, settings and clock.
    pub(super) async fn look(&self) -> Result<Server, StoreError> {
        let rows = self.client.query_typed(QUERY, &[]).await.map_err(explain)?;
        let row = rows.first().ok_or_else(|| StoreError::unavailable("the server answered nothing"))?;
        let mut server = Server::from_row(row).map_err(explain)?;
        // Sequential, because a transaction pooler may mix up the replies to pipelined queries.
        for question in IDENTIFY {
            if let Ok(rows) = self.client.query_typed(question, &[]).await {
                let reported = |column| rows.first().and_then(|row| row.try_get(column).ok()).flatten();
                (server.system, server.timeline) = (reported(0), reported(1));
                break;
            }
        }
        Ok(server)
    }

    /// Sends a statement and its values in one round trip, without state that a pooler could lose. Without a pooler,
    /// the statement is also prepared along the way, for the next calls.
    pub(super) async fn ask(
        &self,
        statement: &Statement,
        values: &[&(dyn ToSql + Sync)],
        pooler: Pooler,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).get(&statement.text).cloned();
        if let Some(kept) = kept {
            return self.client.query(&kept, values).await;
        }
        let typed: Vec<_> = values.iter().copied().zip(statement.types.iter().cloned()).collect();
        let sent = self.client.query_typed(&statement.text, &typed);
        match pooler {
            Pooler::Perhaps => sent.await,
            Pooler::No => {
                let (rows, kept) =
                    tokio::join!(sent, self.client.prepare_typed(&statement.text, &statement.types));
                if let Ok(kept) = kept {
                    let mut all = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
                    all.insert(statement.text.clone(), kept);
                }
                rows
            }
        }
    }

    /// Whether the server has sent a warning since the last call. If someone cancels the wait for a standby, the
    /// commit is reported as successful with a warning.
    pub(super) fn take_warning(&self) -> bool {
        self.warned.swap(false, Ordering::SeqCst)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Otherwise the driver task would wait forever on a connection that does not answer.
        self.driver.abort();
    }
}

/// Chooses the primary: of the servers that accept writes, the one on the latest timeline. A former primary that came
/// back after a promotion is on an earlier one.
fn choose(mut found: Vec<(Link, Server)>) -> Result<(Link, Server), StoreError> {
    found.sort_by_key(|(link, server)| {
        (server.read_only(), std::cmp::Reverse(server.timeline.unwrap_or(0)), link.host)
    });
    let systems: std::collections::HashSet<i64> = found
        .iter()
        .filter(|(_, server)| !server.read_only())
        .filter_map(|(_, server)| server.system)
        .collect();
    if systems.len() > 1 {
        return Err(StoreError::Unusable {
            what: "the hosts in the URL are unrelated servers that all accept writes; name the hosts of one of them"
                .to_owned(),
        });
    }
    found.into_iter().next().ok_or_else(|| StoreError::unavailable("the URL names no host"))
}

/// The time that one host may take.
fn share_of(options: &PostgresOptions) -> Duration {
    (options.timeout / u32::try_from(options.hosts.len()).unwrap_or(u32::MAX)).max(LEAST_SHARE)
}

/// The error for a timeout.
pub(super) fn no_answer(options: &PostgresOptions) -> StoreError {
    StoreError::unavailable(format!(
        "the ledger's server did not answer within {} ms; if it waits for a synchronous standby, check that standby",
        options.timeout.as_millis()
    ))
}
