//! The proxy on the streams of a process: the two pumps, and who sees which message.

use std::collections::HashMap;
use std::io::{BufReader, Read, Write};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use onceward::Ledger;
use tokio::runtime::Handle;

use crate::call::{ToolCall, is_call, unreadable, unreadable_call};
use crate::desk::{Desk, Options};
use crate::ends::{Answer, Ends, Left, Reply, Request, Unsent};
use crate::errand;
use crate::errand::{May, Others, Pump, apart};
use crate::frame::{MAX_LINE, next_line};
use crate::inquiry::Inquiries;
use crate::message::{Head, Id, Message};
use crate::raw;
use crate::scope::random_name;
use crate::supervisor::{Started, Supervisor};
use crate::upstream::{Outlet, Upstream, Waiting, lock};
use crate::waiters::{Caller, ONE_STREAM, Waiter};

/// How much is read at once.
const CHUNK: usize = 64 * 1024;
/// How many requests are watched for their answers.
const WATCHED: usize = 10_000;
/// How often it is looked whether whoever is asked for has given up.
const LOOK: Duration = Duration::from_millis(250);

/// The streams that are written to.
pub struct Streams {
    /// To the client.
    pub client: Box<dyn Write + Send>,
    /// To the server.
    pub server: Box<dyn Write + Send>,
}

/// What the answer to a client's request is looked at for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watched {
    Tools,
    Task,
}

/// The proxy between one client and one server.
pub struct Proxy {
    desk: Arc<Desk>,
    client: Outlet,
    upstream: Arc<Upstream>,
    inquiries: Inquiries,
    watched: Mutex<HashMap<Id, Watched>>,
    /// Requests that were passed on and are not answered yet, with their ids as text.
    pending: Mutex<HashMap<Id, String>>,
    supervisor: Supervisor,
}

/// What is to be done after the server has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The client wants something: the server is to be started again.
    Restart,
    /// The client has left.
    End,
}

impl Proxy {
    /// A proxy that writes to these streams and keeps its calls on that runtime.
    #[must_use]
    pub fn new(ledger: Ledger, options: Options, streams: Streams, runtime: Handle) -> Arc<Self> {
        let name = format!("once-{}", random_name());
        Arc::new(Self {
            // The threads that pump may wait for a write: a call that is alone is written down where it is read.
            desk: Desk::new(ledger.blocking().ledger().clone(), options, runtime),
            client: Outlet::new(streams.client),
            inquiries: Inquiries::new(format!("{name}-ask")),
            upstream: Arc::new(Upstream::new(streams.server, name)),
            watched: Mutex::default(),
            pending: Mutex::default(),
            supervisor: Supervisor::default(),
        })
    }

    /// Passes on what the client says, until it says no more; then lets the calls under way end, and closes the
    /// server's input. Blocks.
    pub fn pump_client(self: &Arc<Self>, client: impl Read) {
        let mut client = BufReader::with_capacity(CHUNK, client);
        let pump = Pump::new(&self.desk.runtime, May::WriteToServer);
        loop {
            match next_line(&mut client, MAX_LINE) {
                Ok(Some(line)) => {
                    self.want_server();
                    self.from_client(line);
                    pump.drive(waiting(&client));
                }
                Ok(None) => break,
                Err(error) => {
                    self.desk.notice(&format!("the client's messages cannot be read any more: {error}"));
                    break;
                }
            }
        }
        self.desk.client_left.store(true, Ordering::SeqCst);
        drop(pump);
        self.inquiries.over();
        // A server that is told to end would take its calls with it.
        self.desk.wait_idle(self.desk.options.drain_ms);
        self.upstream.close();
        self.supervisor.client_left();
    }

    /// Passes on what the server says, until it says no more. Blocks.
    pub fn pump_server(self: &Arc<Self>, server: impl Read) {
        let mut server = BufReader::with_capacity(CHUNK, server);
        let pump = Pump::new(&self.desk.runtime, May::WriteToClient);
        loop {
            match next_line(&mut server, MAX_LINE) {
                Ok(Some(line)) => {
                    self.supervisor.heard_server();
                    self.from_server(line);
                    pump.drive(waiting(&server));
                }
                Ok(None) => return,
                Err(error) => {
                    self.desk.notice(&format!("the server's messages cannot be read any more: {error}"));
                    return;
                }
            }
        }
    }

    /// The server is gone: every call that was sent and not answered is in doubt, and every other request is
    /// answered with an error. Waits until that is written down.
    pub fn server_gone(&self, reason: &str) {
        self.supervisor.server_gone();
        self.upstream.over(reason);
        lock(&self.watched).clear();
        let pending = std::mem::take(&mut *lock(&self.pending));
        let words = raw::quoted(&format!("once: {reason}; it is started again with the next request"));
        for id in pending.into_values() {
            let error = format!("{{\"code\":-32000,\"message\":{words}}}");
            self.to_client(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}").as_bytes());
        }
        self.desk.wait_idle(self.desk.options.drain_ms);
    }

    /// Waits until the client wants something of a server that is gone, or leaves. Blocks.
    pub fn wait_for_client(&self) -> Next {
        self.supervisor.wait_for_client()
    }

    /// Whether the server that runs now has said anything.
    #[must_use]
    pub fn server_has_spoken(&self) -> bool {
        self.supervisor.server_has_spoken()
    }

    /// The server was started again: it is greeted as the client had greeted it, and the client's request goes on.
    pub fn server_started(&self, server: Box<dyn Write + Send>) {
        self.upstream.reopen(server);
        lock(&self.desk.catalogue).note_changed();
        self.supervisor.server_started();
    }

    /// Whether the server was started again.
    #[must_use]
    pub fn was_restarted(&self) -> bool {
        self.supervisor.was_restarted()
    }

    /// The user ends the proxy: the server is not started again.
    pub fn stop(&self) {
        self.supervisor.client_left();
    }

    /// The server cannot be started again: what the client still asks is answered with an error.
    pub fn no_more_servers(&self) {
        self.supervisor.end();
    }

    /// Sees that there is a server before a message of the client is passed on. Blocks while one is started.
    fn want_server(&self) {
        if self.supervisor.want_server() == Started::Anew {
            self.greet_again();
        }
    }

    /// Tells a server that was started again what the client had told the first one. Blocks.
    fn greet_again(&self) {
        let Some(hello) = self.supervisor.hello() else { return };
        let Some(place) = Head::parse(&hello).and_then(|head| head.id_place()) else { return };
        let (sender, answer) = tokio::sync::oneshot::channel();
        let Ok(id) = self.upstream.register(&hello[place.clone()], Waiting::Ours(sender)) else { return };
        self.upstream.pass(raw::spliced(&hello, place, &id).as_bytes());
        // A server that ends before it answers is seen by its reader, and the sender is dropped.
        if let Ok(Reply::Answer(_)) = answer.blocking_recv() {
            self.upstream.pass(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        }
    }

    /// Waits until no call is under way, or for so long; tells whether none is. Blocks.
    pub fn wait_idle(&self, patience_ms: u64) -> bool {
        self.desk.wait_idle(patience_ms)
    }

    fn from_client(self: &Arc<Self>, line: Vec<u8>) {
        let line = match String::from_utf8(line) {
            Ok(line) => Arc::new(line),
            Err(error) => return self.opaque_from_client(error.as_bytes()),
        };
        match Message::of_text(&line) {
            Message::One(head) => self.one_from_client(&head, &line),
            Message::Batch(items) if items.iter().any(|item| is_call(item) || self.answers_us(item)) => {
                for item in items {
                    match Head::parse(item) {
                        Some(head) => self.one_from_client(&head, &line),
                        None => self.upstream.pass(item.as_bytes()),
                    }
                }
            }
            Message::Batch(_) => self.upstream.pass(line.as_bytes()),
            Message::Opaque => self.opaque_from_client(line.as_bytes()),
        }
    }

    /// Whether it is the client's answer to a request of ours.
    fn answers_us(&self, item: &str) -> bool {
        Head::parse(item)
            .is_some_and(|head| head.is_response() && head.id.is_some_and(|id| self.inquiries.is_ours(id)))
    }

    fn opaque_from_client(&self, line: &[u8]) {
        match unreadable_call(line) {
            // Some servers read what we cannot (a `NaN`, half a character), and would act on it unguarded.
            Some(id) => self.to_client(unreadable(&id).as_bytes()),
            None => self.upstream.pass(line),
        }
    }

    /// One message, which is all of `whole` or a part of it.
    fn one_from_client(self: &Arc<Self>, head: &Head<'_>, whole: &Arc<String>) {
        let line = head.text.as_bytes();
        match (head.method.as_deref(), head.id) {
            (Some("tools/call"), Some(_)) => self.tool_call(head, whole),
            (Some("tools/call"), None) if has_null_id(head.text) => self.to_client(NULL_ID),
            (Some("tools/call"), None) => {
                self.desk
                    .notice("a call of a tool came without an id, so it could not be answered; not sent");
            }
            (Some("tools/list"), Some(id)) => self.watch(id, Watched::Tools, head, line),
            (Some("tasks/get" | "tasks/result"), Some(id)) => self.watch(id, Watched::Task, head, line),
            (Some("initialize"), Some(id)) => {
                self.inquiries.hello(head.params);
                self.desk.greeted(head.params);
                self.supervisor.greeted(head.text);
                self.pass_request(id, head, line);
            }
            (None, Some(id)) if self.inquiries.is_ours(id) => self.inquiries.answered(id, head.text),
            (Some("notifications/cancelled"), None) => {
                if !self.desk.cancelled(&Caller::default(), head) {
                    self.upstream.pass(line);
                }
            }
            (Some(_), Some(id)) => self.pass_request(id, head, line),
            (Some(_), None) if has_null_id(head.text) => self.to_client(NULL_ID),
            (Some(_) | None, _) => self.upstream.pass(line),
        }
    }

    /// A request under an id that we may have used goes under one of ours.
    fn pass_request(&self, id: &str, head: &Head<'_>, line: &[u8]) {
        self.desk.heard(&Caller::default());
        lock(&self.pending).insert(Id::of(id), id.to_owned());
        let place = head.id_place().filter(|_| self.upstream.is_ours(&Id::of(id)));
        let Some(place) = place else {
            self.upstream.pass(line);
            return;
        };
        if let Ok(ours) = self.upstream.register(id, Waiting::Relayed(id.to_owned())) {
            self.upstream.pass(raw::spliced(head.text, place, &ours).as_bytes());
        }
    }

    fn watch(&self, id: &str, what: Watched, head: &Head<'_>, line: &[u8]) {
        {
            let mut watched = lock(&self.watched);
            if watched.len() < WATCHED {
                watched.insert(Id::of(id), what);
            }
        }
        self.pass_request(id, head, line);
    }

    fn tool_call(self: &Arc<Self>, head: &Head<'_>, whole: &Arc<String>) {
        let Some(call) = ToolCall::parse_in(head, whole) else {
            // Nothing that a server could execute: it is the server's to say so.
            self.upstream.pass(head.text.as_bytes());
            return;
        };
        if self.desk.passes(&call.tool) {
            self.pass_request(call.id(), head, head.text.as_bytes());
            return;
        }
        let waiter = self.desk.waiter(call.id(), Caller::default(), ONE_STREAM);
        self.desk.take(call, Arc::new(StdioEnds { proxy: Arc::clone(self), waiter }));
    }

    fn from_server(self: &Arc<Self>, line: Vec<u8>) {
        match Message::of(&line) {
            Message::One(head) if head.is_response() => {
                let id = Id::of(head.id.unwrap_or_default());
                self.answer_from_server(&id, line);
            }
            Message::One(head) if head.method.as_deref() == Some("notifications/progress") => {
                // Whoever joins when he has seen it was not there when it was said.
                self.desk.progress.tell(ONE_STREAM, &head);
                self.to_client(&line);
            }
            Message::One(head) if head.method.as_deref() == Some("notifications/tools/list_changed") => {
                lock(&self.desk.catalogue).note_changed();
                self.to_client(&line);
            }
            Message::Batch(items) if items.iter().any(|item| self.is_for_us(item)) => {
                for item in items {
                    self.from_server(item.as_bytes().to_vec());
                }
            }
            Message::One(_) | Message::Batch(_) => self.to_client(&line),
            Message::Opaque => match self.upstream.mentioned_in(&line).and_then(|id| self.upstream.take(&id))
            {
                Some(Waiting::Ours(sender)) => {
                    let reason = "the server's answer is not JSON".to_owned();
                    drop(sender.send(Reply::Over(reason)));
                }
                Some(Waiting::Relayed(_)) | None => self.to_client(&line),
            },
        }
    }

    fn is_for_us(&self, item: &str) -> bool {
        Head::parse(item).is_some_and(|head| {
            head.is_response() && head.id.is_some_and(|id| self.upstream.is_ours(&Id::of(id)))
        })
    }

    fn answer_from_server(self: &Arc<Self>, id: &Id, line: Vec<u8>) {
        let (waiting, id) = (self.upstream.take(id), id.clone());
        match waiting {
            // Whoever does not wait any more needs no answer.
            Some(Waiting::Ours(sender)) => drop(sender.send(Reply::Answer(line))),
            Some(Waiting::Relayed(theirs)) => {
                let line = respond_to(&line, &theirs);
                self.seen_by_client(&Id::of(&theirs), line);
            }
            None if self.upstream.was_given(&id) => {
                self.desk.notice("the server answered a call twice; the first answer counts");
            }
            None => self.seen_by_client(&id, line),
        }
    }

    fn seen_by_client(self: &Arc<Self>, id: &Id, line: Vec<u8>) {
        lock(&self.pending).remove(id);
        let watched = lock(&self.watched).remove(id);
        match watched {
            None => self.to_client(&line),
            Some(Watched::Tools) => {
                let line = self.desk.learn_tools(line);
                let (proxy, active) = (Arc::clone(self), self.desk.begin_activity());
                drop(errand::begin(&self.desk.runtime, async move {
                    let line = proxy.desk.with_own_tools(line, &Caller::default()).await;
                    drop(apart(May::WriteToClient, move || proxy.to_client(&line)).await);
                    drop(active);
                }));
            }
            Some(Watched::Task) => {
                self.desk.learn_task(&line);
                self.to_client(&line);
            }
        }
    }

    /// A client that does not read any more is seen when its own messages end.
    fn to_client(&self, line: &[u8]) {
        drop(self.client.send(&[line]));
    }
}

/// The two ends of a call on the streams of this process.
struct StdioEnds {
    proxy: Arc<Proxy>,
    waiter: Arc<Waiter>,
}

impl StdioEnds {
    /// Sends a message of ours to the client. One that does not read any more is seen when its own messages end.
    async fn send(&self, line: String) {
        let proxy = Arc::clone(&self.proxy);
        drop(apart(May::WriteToClient, move || proxy.to_client(line.as_bytes())).await);
    }
}

#[async_trait::async_trait]
impl Ends for StdioEnds {
    fn waiter(&self) -> &Arc<Waiter> {
        &self.waiter
    }

    async fn ask(&self, request: Request) -> Result<Reply, Unsent> {
        let receiver = self.proxy.upstream.ask(request.line, request.id_place).await?;
        Ok(receiver.await.unwrap_or_else(|_| Reply::Over("the server's answer was lost".to_owned())))
    }

    async fn pass(&self, call: ToolCall) {
        if self.waiter.is_gone() {
            return;
        }
        lock(&self.proxy.pending).insert(Id::of(call.id()), call.id().to_owned());
        let upstream = Arc::clone(&self.proxy.upstream);
        drop(apart(May::WriteToServer, move || upstream.pass(call.line.as_bytes())).await);
    }

    async fn answer(&self, answer: Answer) -> Left {
        if self.waiter.is_gone() {
            return Left::No;
        }
        let (proxy, id) = (Arc::clone(&self.proxy), self.waiter.id_text.clone());
        let send = move || match answer {
            Answer::Ours(text) => proxy.client.send(&[text.as_bytes()]),
            Answer::Servers(line) => {
                let place = std::str::from_utf8(&line).ok().and_then(|text| Head::parse(text)?.id_place());
                match place {
                    Some(place) => {
                        proxy.client.send(&[&line[..place.start], id.as_bytes(), &line[place.end..]])
                    }
                    None => proxy.client.send(&[&line]),
                }
            }
            Answer::Kept | Answer::Nothing => Err(Unsent::Nothing("there is nothing to say".to_owned())),
        };
        // A client that does not read holds its own answer up, and nobody's call.
        match apart(May::WriteToClient, send).await {
            Ok(Ok(())) => Left::Yes,
            Ok(Err(_)) | Err(_) => Left::No,
        }
    }

    async fn ask_client(&self, method: &str, params: &str, patience: Duration) -> Option<String> {
        let mut inquiry = self.proxy.inquiries.begin()?;
        let (method, id) = (raw::quoted(method), inquiry.id.clone());
        self.send(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":{method},\"params\":{params}}}"))
            .await;
        let until = Instant::now() + patience;
        while Instant::now() < until && !self.waiter.is_gone() {
            if let Ok(answer) = tokio::time::timeout(LOOK, &mut inquiry.answer).await {
                return answer.ok();
            }
        }
        self.proxy.inquiries.forget(&id);
        let gone = "\"method\":\"notifications/cancelled\"";
        self.send(format!("{{\"jsonrpc\":\"2.0\",{gone},\"params\":{{\"requestId\":{id}}}}}")).await;
        None
    }

    async fn announce(&self, line: &'static [u8]) {
        let proxy = Arc::clone(&self.proxy);
        drop(apart(May::WriteToClient, move || proxy.to_client(line)).await);
    }

    fn tell(&self, line: &[u8]) {
        self.proxy.to_client(line);
    }
}

/// What is answered to a request whose id is `null`: nothing else could be told from its answer.
const NULL_ID: &[u8] = concat!(
    r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"#,
    r#""message":"once: the id of a request must not be null; not sent"}}"#
)
.as_bytes();

/// Whether a message has an id that is `null`.
fn has_null_id(text: &str) -> bool {
    raw::Object::parse(text).is_some_and(|message| message.get("id") == Some("null"))
}

/// Whether more is waiting to be read.
fn waiting(stream: &BufReader<impl Read>) -> Others {
    if stream.buffer().is_empty() { Others::None } else { Others::Wait }
}

/// An answer under another id.
fn respond_to(line: &[u8], id: &str) -> Vec<u8> {
    let text = std::str::from_utf8(line).ok();
    match text.and_then(|text| Some((text, Head::parse(text)?.id_place()?))) {
        Some((text, place)) => raw::spliced(text, place, id).into_bytes(),
        None => line.to_vec(),
    }
}
