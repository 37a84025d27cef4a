//! The two ends of one call: who waits for its answer, and the server that gives it. Whatever carries the messages is
//! behind this.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::call::ToolCall;
use crate::waiters::Waiter;

/// How one call reaches its server and its caller.
#[async_trait::async_trait]
pub(crate) trait Ends: Send + Sync {
    /// Who waits.
    fn waiter(&self) -> &Arc<Waiter>;

    /// Sends a request to the server and waits for what becomes of it, however long that takes.
    async fn ask(&self, request: Request) -> Result<Reply, Unsent>;

    /// Passes the call on as it is: it changes nothing.
    async fn pass(&self, call: ToolCall);

    /// Answers the caller, and tells whether the answer has left.
    async fn answer(&self, answer: Answer) -> Left;

    /// Asks the caller's client something of our own, and gives its answer: none where it cannot be asked this way,
    /// has gone, or has not answered in time.
    async fn ask_client(&self, _method: &str, _params: &str, _patience: Duration) -> Option<String> {
        None
    }

    /// Tells the client something that is not about a call, where it can be told.
    async fn announce(&self, _line: &'static [u8]) {}

    /// Tells the caller something while it waits.
    fn tell(&self, line: &[u8]);
}

/// A request to the server.
pub(crate) struct Request {
    /// Its text.
    pub(crate) line: Arc<String>,
    /// Where its id stands.
    pub(crate) id_place: Range<usize>,
    /// Who asks.
    pub(crate) whose: Whose,
}

/// Who asks the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The caller: what the server says meanwhile is for him.
    Callers,
    /// We do, and only the answer is of interest.
    Ours,
}

/// What became of a request.
pub(crate) enum Reply {
    /// The server's answer, as it came.
    Answer(Vec<u8>),
    /// No answer, but something that says that nothing was begun. It is kept by the end that it came from.
    Rejected(String),
    /// No answer, but something that tells nothing. It is kept by the end that it came from.
    Unclear(String),
    /// Nothing: the server is gone.
    Over(String),
}

/// What was not sent.
#[derive(Debug)]
pub(crate) enum Unsent {
    /// Not a byte of it has left.
    Nothing(String),
    /// Some of it has left, or all of it.
    Perhaps(String),
}

/// What a waiter gets.
pub(crate) enum Answer {
    /// What the server said, under the client's own id.
    Servers(Vec<u8>),
    /// What came instead of the server's answer, as it is kept.
    Kept,
    /// What we say.
    Ours(String),
    /// Nothing: it has given up before anything was begun.
    Nothing,
}

/// Whether an answer has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// All of it.
    Yes,
    /// Not all of it, or nobody was there.
    No,
}
