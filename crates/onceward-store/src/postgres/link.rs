//! One connection: made, looked over, and watched for what its server says by the way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use onceward::StoreError;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_postgres::error::Severity;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Row};

use super::check::{QUESTION, Server};
use super::fault::explain;
use super::options::PostgresOptions;
use super::rows::Statement;
use super::tls;

/// A connection.
pub(super) struct Link {
    pub(super) client: Client,
    warned: Arc<AtomicBool>,
    driver: AbortHandle,
}

/// Where notifications go: the payload of each.
pub(super) type Heard = mpsc::UnboundedSender<String>;

impl Link {
    /// Connects, and nothing else.
    pub(super) async fn connect(options: &PostgresOptions, heard: Option<Heard>) -> Result<Self, StoreError> {
        let connector = tls::connector(&options.trust)?;
        let connected = tokio::time::timeout(options.timeout, options.config.connect(connector)).await;
        let connected = connected.map_err(|_| no_answer(options))?;
        let (client, mut connection) = connected.map_err(explain)?;
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
        Ok(Self { client, warned, driver })
    }

    /// Connects to a server that keeps what it acknowledges, and makes sure that all it shows is kept: after a restart
    /// a server shows what its standby never confirmed, and one write that the standby confirms confirms all before it.
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
        let looked = tokio::time::timeout(options.timeout, look).await;
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
    pub(super) async fn ask(
        &self,
        statement: &Statement,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let typed: Vec<_> = values.iter().copied().zip(statement.types.iter().cloned()).collect();
        self.client.query_typed(&statement.text, &typed).await
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
