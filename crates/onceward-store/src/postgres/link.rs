//! One connection: made, looked over, and watched for what its server says by the way.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use onceward::StoreError;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::error::Severity;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, Row};

use super::check::{QUESTION, Server};
use super::fault::explain;
use super::options::PostgresOptions;
use super::rows::Statement;
use super::tls;

/// How long a host may take to answer at the least, however many there are.
const LEAST_SHARE: Duration = Duration::from_millis(300);

/// Whether a pooler may be in between, which lends the server's connections for one transaction each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pooler {
    /// Nobody knows.
    Perhaps,
    /// What a connection was told is remembered: notifications arrive.
    No,
}

/// A connection.
pub(super) struct Link {
    pub(super) client: Client,
    /// Which of the URL's hosts it goes to.
    pub(super) host: usize,
    warned: Arc<AtomicBool>,
    kept: Mutex<HashMap<String, tokio_postgres::Statement>>,
    driver: AbortHandle,
}

/// Where notifications go: the payload of each.
pub(super) type Heard = mpsc::UnboundedSender<String>;

impl Link {
    /// Connects, and nothing else: to the host that answered last, or else to the next one that takes writes.
    pub(super) async fn connect(options: &PostgresOptions, heard: Option<Heard>) -> Result<Self, StoreError> {
        let count = options.hosts.len();
        let share = (options.timeout / u32::try_from(count).unwrap_or(u32::MAX)).max(LEAST_SHARE);
        let first = options.answered.load(Ordering::Relaxed);
        let mut failed = StoreError::unavailable("the URL names no host");
        for number in (first..first + count).map(|number| number % count) {
            let Some(host) = options.hosts.get(number) else { continue };
            match timeout(share, Self::connect_to(host, number, options, heard.clone())).await {
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
        heard: Option<Heard>,
    ) -> Result<Self, StoreError> {
        let connector = tls::connector(&options.trust)?;
        let (client, mut connection) = host.connect(connector).await.map_err(explain)?;
        let warned = Arc::new(AtomicBool::new(false));
        let warning = Arc::clone(&warned);
        let drive = async move {
            while let Some(Ok(message)) =
                std::future::poll_fn(|context| connection.poll_message(context)).await
            {
                if let AsyncMessage::Notification(said) = &message
                    && let Some(heard) = &heard
                {
                    // Nobody to tell it to is nobody to mislead.
                    drop(heard.send(said.payload().to_owned()));
                }
                // Other notices are talk.
                if let AsyncMessage::Notice(notice) = message
                    && notice.parsed_severity() == Some(Severity::Warning)
                {
                    warning.store(true, Ordering::SeqCst);
                }
            }
        };
        let driver = tokio::spawn(drive).abort_handle();
        Ok(Self { client, host: number, warned, kept: Mutex::default(), driver })
    }

    /// Connects to a server that keeps what it acknowledges, and makes sure that all it shows is kept: after a
    /// restart a server shows what its standby never confirmed, and one write that the standby confirms confirms all
    /// before it.
    pub(super) async fn open(options: &PostgresOptions) -> Result<(Self, Server), StoreError> {
        let link = Self::connect(options, None).await?;
        let look = async {
            let server = link.look().await?;
            server.refuse(options)?;
            let fence = "SELECT set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') \
                         IN ('on', 'remote_apply') THEN current_setting('synchronous_commit') ELSE 'on' END, true), \
                         pg_logical_emit_message(true, 'onceward', 'fence')::text";
            link.client.query_typed(fence, &[]).await.map_err(explain)?;
            Ok(server)
        };
        let looked = timeout(options.timeout, look).await;
        let server = looked.map_err(|_| no_answer(options))??;
        match link.warned() {
            false => Ok((link, server)),
            true => Err(StoreError::unavailable("the server could not confirm a write to its standby")),
        }
    }

    /// Asks the server about itself.
    pub(super) async fn look(&self) -> Result<Server, StoreError> {
        let rows = self.client.query_typed(QUESTION, &[]).await.map_err(explain)?;
        let row = rows.first().ok_or_else(|| StoreError::unavailable("the server answered nothing"))?;
        Server::from_row(row).map_err(explain)
    }

    /// Sends a statement and its values together: one way there and back, and nothing that a pooler could mislay.
    /// Where there is none, the server is asked, along the way, to keep the statement for the next times.
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

    /// Whether the server has warned since this was last asked. A commit that its standby did not confirm, because
    /// somebody ended the wait for it, is reported as a success with a warning.
    pub(super) fn warned(&self) -> bool {
        self.warned.swap(false, Ordering::SeqCst)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Otherwise a connection without an answer would be waited on for ever.
        self.driver.abort();
    }
}

/// What is said when a time is over.
pub(super) fn no_answer(options: &PostgresOptions) -> StoreError {
    StoreError::unavailable(format!(
        "the ledger's server has not answered within {} ms; where it waits for a synchronous standby, see that one",
        options.timeout.as_millis()
    ))
}
