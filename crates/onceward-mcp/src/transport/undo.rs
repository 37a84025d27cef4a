//! A server that is only there to take calls back: the proxy itself is the client.

use std::sync::Arc;
use std::time::Duration;

use onceward::{Error, Intent, InvalidInput, Ledger, Receipt};
use onceward_http::socket::Peer;
use tokio::runtime::Handle;

use crate::call::undo::{UNDO_ID, UndoCall, UndoRules};
use crate::call::waiters::{Caller, ONE_STREAM, Waiter};
use crate::options::Options;
use crate::proxy_state::ProxyState;
use crate::tools::explain;
use crate::transport::call_transport::{CallTransport, SendError, ServerReply};
use crate::transport::http::{Remote, Visit, VisitTransport};
use crate::transport::stdio::{Proxy, StdioTransport};
use crate::transport::upstream::PendingReply;
use crate::wire::message::Head;

/// A server that has been introduced to us, and takes calls back.
pub struct UndoServer {
    state: Arc<ProxyState>,
    server: Server,
    /// The `_meta` of every request.
    era: String,
}

enum Server {
    Streams(Arc<Proxy>),
    Http(Arc<Visit>),
}

impl UndoServer {
    /// Makes the handshake with the server of a proxy that has no client. Another thread must run
    /// [`Proxy::pump_server`], and call [`Proxy::server_gone`] when that returns.
    ///
    /// # Errors
    /// If the server does not answer within `patience`.
    pub async fn connect(proxy: Arc<Proxy>, patience: Duration) -> Result<Self, InvalidInput> {
        let (sender, answer) = tokio::sync::oneshot::channel();
        let lost = |why: &str| InvalidInput::new(format!("the server did not answer initialize: {why}"));
        let id = proxy
            .upstream
            .register("1", PendingReply::Ours(sender))
            .map_err(|(SendError::NotSent(why) | SendError::MaybeSent(why))| lost(&why))?;
        let params = explain::hello();
        let hello =
            format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"initialize\",\"params\":{params}}}");
        proxy.upstream.pass(hello.as_bytes());
        let answer = tokio::time::timeout(patience, answer).await.map_err(|_| lost("it took too long"))?;
        let line = match answer {
            Ok(ServerReply::Answer(line)) => line,
            Ok(ServerReply::Rejected(why) | ServerReply::Unclear(why) | ServerReply::Over(why)) => {
                return Err(lost(&why));
            }
            Err(_) => return Err(lost("it ended")),
        };
        let text = String::from_utf8_lossy(&line);
        // A server without a handshake gets the protocol version with every request.
        let era = if Head::parse(&text).is_some_and(|head| head.result.is_some()) {
            proxy.upstream.pass(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
            "{}".to_owned()
        } else {
            explain::every_request().to_string()
        };
        Ok(Self { state: Arc::clone(&proxy.state), server: Server::Streams(proxy), era })
    }

    /// Makes the handshake with a server over HTTP. `headers` are sent with every request.
    ///
    /// # Errors
    /// If the server does not answer within `patience`, or a header is invalid.
    pub async fn visit(
        (ledger, options): (Ledger, Options),
        remote: Remote,
        headers: &[(String, String)],
        patience: Duration,
    ) -> Result<Self, InvalidInput> {
        let begun = tokio::time::timeout(patience, Visit::begin(remote, headers)).await;
        let slow = |_| InvalidInput::new("the server did not answer initialize: it took too long");
        let visit = begun.map_err(slow)??;
        let (state, era) = (ProxyState::new(ledger, options, Handle::current()), visit.meta().to_string());
        Ok(Self { state, server: Server::Http(Arc::new(visit)), era })
    }

    /// What holds for a compensation by this tool. Ask before the operation is marked.
    ///
    /// # Errors
    /// If the server does not list the tool, or the tool only reads.
    pub async fn rules(&self, tool: &str) -> Result<UndoRules, InvalidInput> {
        let rules = self.state.undo_rules(tool, &self.era, &self.transport()).await?;
        Ok(UndoRules { settings: rules.settings })
    }

    /// Makes the call of a compensation, whose operation is `intent`.
    ///
    /// # Errors
    /// Each says whether the compensation happened.
    pub async fn compensate(&self, intent: Intent, call: &UndoCall) -> Result<Receipt, Error> {
        self.state.compensate(intent, call, &self.era, &self.transport()).await
    }

    /// Waits for no answer over HTTP any longer. A call that was sent is in doubt then.
    pub fn give_up(&self) {
        match &self.server {
            Server::Streams(_) => {}
            Server::Http(visit) => visit.give_up(),
        }
    }

    /// Closes the server's input, so that it ends, or the session with it.
    pub async fn close(&self) {
        match &self.server {
            Server::Streams(proxy) => proxy.upstream.close(),
            Server::Http(visit) => visit.leave().await,
        }
    }

    fn transport(&self) -> Arc<dyn CallTransport> {
        let now_ms = self.state.ledger.clock_ms();
        let waiter = Waiter::new(UNDO_ID, Caller::default(), ONE_STREAM, now_ms, Vec::new(), Peer::default());
        match &self.server {
            Server::Streams(proxy) => Arc::new(StdioTransport::new(Arc::clone(proxy), waiter)),
            Server::Http(visit) => {
                Arc::new(VisitTransport::new(Arc::clone(visit), Arc::clone(&self.state), waiter))
            }
        }
    }
}
