//! The server: what is sent to it, and who waits for which answer.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::ends::{Reply, Unsent};
use crate::errand::{May, apart};
use crate::message::Id;

/// Our own ids begin here where the client counts: no client has come so far, and every reader can hold them.
const FIRST_NUMBER: u64 = 1_000_000_000;

/// Locks, whatever became of the last one who did.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream that whole messages are written to, by many.
pub(crate) struct Outlet {
    out: Mutex<Option<Box<dyn Write + Send>>>,
}

impl Outlet {
    pub(crate) fn new(out: Box<dyn Write + Send>) -> Self {
        Self { out: Mutex::new(Some(out)) }
    }

    /// Writes one message, whose parts follow each other, and the end of its line.
    pub(crate) fn send(&self, parts: &[&[u8]]) -> Result<(), Unsent> {
        let mut out = lock(&self.out);
        let Some(stream) = out.as_mut() else {
            return Err(Unsent::Nothing("the stream is closed".to_owned()));
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
            if begun { Unsent::Perhaps(error.to_string()) } else { Unsent::Nothing(error.to_string()) }
        })
    }

    /// Writes to another stream from now on.
    fn open(&self, out: Box<dyn Write + Send>) {
        *lock(&self.out) = Some(out);
    }

    /// Closes the stream: its reader sees its end.
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

/// Who waits for an answer under one of our ids.
pub(crate) enum Waiting {
    /// A request of ours.
    Ours(oneshot::Sender<Reply>),
    /// The client, whose own id happened to be one of ours.
    Relayed(String),
}

/// The server.
pub(crate) struct Upstream {
    outlet: Outlet,
    table: Mutex<Table>,
    /// Makes our textual ids nobody else's.
    name: String,
}

#[derive(Default)]
struct Table {
    next: u64,
    waiting: HashMap<Id, Waiting>,
    over: Option<String>,
}

impl Upstream {
    pub(crate) fn new(out: Box<dyn Write + Send>, name: String) -> Self {
        Self { outlet: Outlet::new(out), table: Mutex::default(), name }
    }

    /// Passes a message on as it is. A server that does not read any more is seen when its output ends.
    pub(crate) fn pass(&self, line: &[u8]) {
        drop(self.outlet.send(&[line]));
    }

    /// The server gets no more messages.
    pub(crate) fn close(&self) {
        self.outlet.close();
    }

    /// The server was started again, and reads from this stream.
    pub(crate) fn reopen(&self, out: Box<dyn Write + Send>) {
        self.outlet.open(out);
        lock(&self.table).over = None;
    }

    /// A new id, of the kind that `like` is, under which somebody waits.
    pub(crate) fn register(&self, like: &str, waiting: Waiting) -> Result<String, Unsent> {
        let mut table = lock(&self.table);
        if let Some(reason) = &table.over {
            return Err(Unsent::Nothing(reason.clone()));
        }
        table.next += 1;
        let number = table.next;
        let counts = like.bytes().all(|byte| byte.is_ascii_digit());
        let id =
            if counts { (FIRST_NUMBER + number).to_string() } else { format!("\"{}-{number}\"", self.name) };
        table.waiting.insert(Id::of(&id), waiting);
        Ok(id)
    }

    /// Whether the id is one that we have given, or may give: then it must be nobody else's.
    pub(crate) fn is_ours(&self, id: &Id) -> bool {
        match id.bare() {
            (text, true) => text.strip_prefix(&self.name).is_some_and(|rest| rest.starts_with('-')),
            (text, false) => text.parse().is_ok_and(|id: u64| id > FIRST_NUMBER && id <= 2 * FIRST_NUMBER),
        }
    }

    /// Whether the id is one that we have given.
    pub(crate) fn was_given(&self, id: &Id) -> bool {
        let last = FIRST_NUMBER + lock(&self.table).next;
        self.is_ours(id) && id.bare().0.parse().map_or(id.bare().1, |number: u64| number <= last)
    }

    /// Whoever waits under that id.
    pub(crate) fn take(&self, id: &Id) -> Option<Waiting> {
        lock(&self.table).waiting.remove(id)
    }

    /// An id of ours in bytes that are no message: an answer that cannot be read is an answer.
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

    /// Sends a request whose id stands at `place` in `line` under an id of ours.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        line: Arc<String>,
        place: std::ops::Range<usize>,
    ) -> Result<oneshot::Receiver<Reply>, Unsent> {
        let (sender, receiver) = oneshot::channel();
        let id = self.register(&line[place.clone()], Waiting::Ours(sender))?;
        let upstream = Arc::clone(self);
        let send = move || {
            let parts = [&line.as_bytes()[..place.start], id.as_bytes(), &line.as_bytes()[place.end..]];
            let sent = upstream.outlet.send(&parts);
            if sent.is_err() {
                drop(upstream.take(&Id::of(&id)));
            }
            sent
        };
        // A server that does not read holds the writer up, and must hold up nobody else.
        let sent = apart(May::WriteToServer, send).await;
        sent.unwrap_or_else(|error| Err(Unsent::Perhaps(error.to_string())))?;
        Ok(receiver)
    }

    /// The server is gone: everybody who waits is told so, and so is everybody who comes.
    pub(crate) fn over(&self, reason: &str) {
        let waiting = {
            let mut table = lock(&self.table);
            table.over.get_or_insert_with(|| reason.to_owned());
            std::mem::take(&mut table.waiting)
        };
        for (_, waiting) in waiting {
            match waiting {
                // Whoever does not wait any more needs no answer.
                Waiting::Ours(sender) => drop(sender.send(Reply::Over(reason.to_owned()))),
                Waiting::Relayed(_) => {}
            }
        }
    }
}
