//! The server on a stream: what is sent to it, and who waits for which answer.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tokio::sync::{Semaphore, oneshot};

use crate::sync::lock;
use crate::transport::call_transport::{SendError, ServerReply};
use crate::transport::inline_executor::{StreamSide, run_blocking};
use crate::wire::message::Id;
use crate::wire::raw;

/// Our ids start here if the client uses numbers. No client counts this far, and every JSON parser can represent
/// them.
const FIRST_NUMBER: u64 = 1_000_000_000;

/// How many writers of a stream may block a thread. One writes; the next ones are ready when it is done.
const WRITE_PERMITS: usize = 8;

/// A stream to which many callers write whole messages.
pub(crate) struct Outlet {
    out: Mutex<Option<Box<dyn Write + Send>>>,
    /// Permits for writers that must not block a thread while they wait.
    pub(crate) write_permits: Semaphore,
}

impl Outlet {
    pub(crate) fn new(out: Box<dyn Write + Send>) -> Self {
        Self { out: Mutex::new(Some(out)), write_permits: Semaphore::new(WRITE_PERMITS) }
    }

    /// Writes one message, given in parts, and the line terminator.
    pub(crate) fn send(&self, parts: &[&[u8]]) -> Result<(), SendError> {
        let mut out = lock(&self.out);
        let Some(stream) = out.as_mut() else {
            return Err(SendError::NotSent("the stream is closed".to_owned()));
        };
        let mut begun = false;
        let written = if parts.iter().map(|part| part.len()).sum::<usize>() < 64 * 1024 {
            let mut whole = parts.concat();
            whole.push(b'\n');
            write_all(stream, &whole, &mut begun)
        } else {
            let ended = parts.iter().copied().chain([&b"\n"[..]]);
            ended.into_iter().try_for_each(|part| write_all(stream, part, &mut begun))
        };
        written.and_then(|()| stream.flush()).map_err(|error| {
            if begun {
                SendError::MaybeSent(error.to_string())
            } else {
                SendError::NotSent(error.to_string())
            }
        })
    }

    /// Continues on another stream.
    fn open(&self, out: Box<dyn Write + Send>) {
        *lock(&self.out) = Some(out);
    }

    /// Closes the stream.
    pub(crate) fn close(&self) {
        drop(lock(&self.out).take());
    }
}

fn write_all(stream: &mut Box<dyn Write + Send>, mut bytes: &[u8], begun: &mut bool) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                *begun = true;
                bytes = &bytes[count..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The answer to a client's request for a server that is gone.
pub(crate) fn without_server(id: &str, reason: &str) -> String {
    let words = raw::quoted(&format!("once: {reason}; it is started again with the next request"));
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{{\"code\":-32000,\"message\":{words}}}}}")
}

/// Who waits for an answer under one of our ids.
pub(crate) enum PendingReply {
    /// The proxy.
    Ours(oneshot::Sender<ServerReply>),
    /// The client, whose own id looked like one of ours.
    Relayed(String),
}

/// The server on a stream.
pub(crate) struct Upstream {
    pub(crate) outlet: Outlet,
    table: Mutex<Table>,
    /// Makes our string ids unique.
    name: String,
}

#[derive(Default)]
struct Table {
    next: u64,
    waiting: HashMap<Id, PendingReply>,
    gone: Option<String>,
}

impl Upstream {
    pub(crate) fn new(out: Box<dyn Write + Send>, name: String) -> Self {
        Self { outlet: Outlet::new(out), table: Mutex::default(), name }
    }

    /// Forwards a message unchanged. A server that no longer reads is noticed when its output ends.
    pub(crate) fn pass(&self, line: &[u8]) {
        drop(self.outlet.send(&[line]));
    }

    /// Closes the server's input.
    pub(crate) fn close(&self) {
        self.outlet.close();
    }

    /// Continues with a server that was started again.
    pub(crate) fn reopen(&self, out: Box<dyn Write + Send>) {
        self.outlet.open(out);
        lock(&self.table).gone = None;
    }

    /// Why the server is gone, if it is.
    pub(crate) fn gone(&self) -> Option<String> {
        lock(&self.table).gone.clone()
    }

    /// Registers a waiter under a new id of the same JSON type as `like`.
    pub(crate) fn register(&self, like: &str, waiting: PendingReply) -> Result<String, SendError> {
        let mut table = lock(&self.table);
        if let Some(reason) = &table.gone {
            return Err(SendError::NotSent(reason.clone()));
        }
        table.next += 1;
        let number = table.next;
        let counts = like.bytes().all(|byte| byte.is_ascii_digit());
        let id =
            if counts { (FIRST_NUMBER + number).to_string() } else { format!("\"{}-{number}\"", self.name) };
        table.waiting.insert(Id::of(&id), waiting);
        Ok(id)
    }

    /// Whether the id is one that we have assigned or may assign, so no other request may use it.
    pub(crate) fn is_ours(&self, id: &Id) -> bool {
        match id.bare() {
            (text, true) => text.strip_prefix(&self.name).is_some_and(|rest| rest.starts_with('-')),
            (text, false) => text.parse().is_ok_and(|id: u64| id > FIRST_NUMBER && id <= 2 * FIRST_NUMBER),
        }
    }

    /// Whether we have assigned this id.
    pub(crate) fn was_given(&self, id: &Id) -> bool {
        let last = FIRST_NUMBER + lock(&self.table).next;
        self.is_ours(id) && id.bare().0.parse().map_or(id.bare().1, |number: u64| number <= last)
    }

    /// Removes and returns the waiter of that id.
    pub(crate) fn take(&self, id: &Id) -> Option<PendingReply> {
        lock(&self.table).waiting.remove(id)
    }

    /// One of our ids in bytes that cannot be parsed: an invalid answer is still an answer.
    pub(crate) fn mentioned_in(&self, line: &[u8]) -> Option<Id> {
        let text = String::from_utf8_lossy(line);
        let table = lock(&self.table);
        let names = |id: &Id| {
            let (name, quoted) = id.bare();
            let found = |needle: String| text.contains(&needle);
            if quoted {
                found(format!("\"{name}\""))
            } else {
                found(format!("\"id\":{name}")) || found(format!("\"id\": {name}"))
            }
        };
        table.waiting.keys().find(|id| names(id)).cloned()
    }

    /// Sends the request in `line` under an id of ours, and returns that id. Its own id is at `place`.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        line: Arc<String>,
        place: std::ops::Range<usize>,
    ) -> Result<(String, oneshot::Receiver<ServerReply>), SendError> {
        let (sender, receiver) = oneshot::channel();
        let id = self.register(&line[place.clone()], PendingReply::Ours(sender))?;
        let (upstream, ours) = (Arc::clone(self), id.clone());
        let send = move || {
            let parts = [&line.as_bytes()[..place.start], id.as_bytes(), &line.as_bytes()[place.end..]];
            let sent = upstream.outlet.send(&parts);
            if sent.is_err() {
                drop(upstream.take(&Id::of(&id)));
            }
            sent
        };
        // A server that does not read blocks its writer, and must not block anything else.
        let sent = run_blocking(StreamSide::WriteToServer, &self.outlet.write_permits, send).await;
        sent.unwrap_or_else(|error| Err(SendError::MaybeSent(error.to_string())))?;
        Ok((ours, receiver))
    }

    /// The server is gone: ends all waits, and refuses new ones, with this reason.
    pub(crate) fn server_gone(&self, reason: &str) {
        let waiting = {
            let mut table = lock(&self.table);
            table.gone.get_or_insert_with(|| reason.to_owned());
            std::mem::take(&mut table.waiting)
        };
        for (_, waiting) in waiting {
            match waiting {
                // The receiver may be gone; then the answer is not needed.
                PendingReply::Ours(sender) => drop(sender.send(ServerReply::Over(reason.to_owned()))),
                PendingReply::Relayed(_) => {}
            }
        }
    }
}
