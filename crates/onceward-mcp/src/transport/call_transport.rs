//! The transport of one call: the caller that waits for the answer, and the server that gives it. Callers of this
//! trait do not know whether it is stdio or HTTP.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use onceward_http::client::SendError;

use crate::call::waiters::Waiter;
use crate::wire::tool_call::ToolCall;

/// The reason that a server gets for the cancellation of a call.
pub(crate) const STOPPED: &str = "the run was stopped";

/// How one call reaches its server and its caller.
#[async_trait::async_trait]
pub(crate) trait CallTransport: Send + Sync {
    /// The request that waits for the answer.
    fn waiter(&self) -> &Arc<Waiter>;

    /// Sends a request to the server and waits for the reply without a time limit.
    async fn ask(&self, request: Request) -> Result<ServerReply, SendError>;

    /// Tells the server that the caller's request is cancelled, if it was sent. The server may still answer it.
    async fn cancel_request(&self);

    /// Forwards the call unchanged, because it is read-only.
    async fn pass(&self, call: ToolCall);

    /// Answers the caller. Returns whether the answer was delivered.
    async fn answer(&self, answer: CallAnswer) -> Delivered;

    /// Sends the caller's client a request from the proxy and returns its answer. `None` if this transport cannot do
    /// that, if the client is gone, or if it did not answer in time.
    async fn ask_client(&self, _method: &str, _params: &str, _patience: Duration) -> Option<String> {
        None
    }

    /// Sends the client a notification that does not concern a call, if the transport can.
    async fn announce(&self, method: &'static str);

    /// Sends the caller a message while it waits.
    fn tell(&self, line: &[u8]);
}

/// A request to the server.
pub(crate) struct Request {
    /// Its text.
    pub(crate) line: Arc<String>,
    /// The range of its id.
    pub(crate) id_place: Range<usize>,
    /// Who sends it.
    pub(crate) origin: Origin,
}

/// Who sends a request to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The caller. Messages that the server sends before its answer are forwarded to it.
    Caller,
    /// The proxy. Only the answer matters.
    Proxy,
}

/// The reply to a request.
pub(crate) enum ServerReply {
    /// The server's answer, byte for byte.
    Answer(Vec<u8>),
    /// A response without a result that proves that nothing was started. The transport holds it.
    Rejected(String),
    /// A response without a result that proves nothing. The transport holds it.
    Unclear(String),
    /// No response: the server is gone.
    Over(String),
}

/// The answer for a waiting caller.
pub(crate) enum CallAnswer {
    /// The server's answer, under the client's own id.
    FromServer(Vec<u8>),
    /// The response that the transport holds in place of an answer.
    Held,
    /// A text from the proxy.
    FromProxy(String),
    /// No answer: the caller gave up before anything was started.
    Nothing,
}

/// Whether an answer was delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivered {
    /// Completely.
    Yes,
    /// Not completely, or the client was gone.
    No,
}
