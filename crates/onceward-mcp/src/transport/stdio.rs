//! The proxy on the streams of a process: two pump threads, and the routing of messages.

use std::collections::HashMap;
use std::io::{BufReader, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onceward::Ledger;
use onceward_http::socket::Peer;
use onceward_http::time;
use tokio::runtime::Handle;

use crate::answer::doubts;
use crate::call::held;
use crate::call::scope::random_name;
use crate::call::waiters::{Caller, ONE_STREAM, Waiter};
use crate::options::Options;
use crate::proxy_state::ProxyState;
use crate::sync::lock;
use crate::transport::call_transport::{
    CallAnswer, CallTransport, Delivered, Origin, Request, STOPPED, SendError, ServerReply,
};
use crate::transport::client_requests::ClientRequests;
use crate::transport::inline_executor;
use crate::transport::inline_executor::{Backlog, PumpGuard, StreamSide, run_blocking};
use crate::transport::supervisor::{Next, Started, Supervisor};
use crate::transport::upstream::{Outlet, PendingReply, Upstream, without_server};
use crate::wire::frame::{MAX_LINE, next_line};
use crate::wire::message::{Head, Id, Message, cancelled};
use crate::wire::raw;
use crate::wire::tool_call::{ToolCall, is_call, unreadable, unreadable_call};

/// The size of a read buffer.
const CHUNK: usize = 64 * 1024;
/// The most requests whose answers are inspected.
const WATCHED: usize = 10_000;
/// How often to check whether the caller has given up while the human is asked.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The streams that the proxy writes to.
pub struct Streams {
    /// To the client.
    pub client: Box<dyn Write + Send>,
    /// To the server.
    pub server: Box<dyn Write + Send>,
}

/// What the answer to a client's request is inspected for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watched {
    Initialize,
    Tools,
    Task,
}

/// The proxy between one client and one server on streams.
///
/// Two threads pump the messages: one calls [`Proxy::pump_client`], the other [`Proxy::pump_server`].
///
/// ```
/// use std::sync::Arc;
///
/// use onceward::{Ledger, ManualClock, MemoryStore};
/// use onceward_mcp::{HostScope, Options, Proxy, Streams};
///
/// let runtime = tokio::runtime::Builder::new_multi_thread().enable_time().build()?;
/// let ledger = Ledger::new(Arc::new(MemoryStore::new(ManualClock::at(0))));
/// let options = Options::new("shop", "npx shop-mcp", HostScope::connection());
/// // Usually the stdout of this process and the stdin of the server.
/// let streams = Streams { client: Box::new(std::io::sink()), server: Box::new(std::io::sink()) };
/// let proxy = Proxy::new(ledger, options, streams, runtime.handle().clone());
/// let server = {
///     let proxy = Arc::clone(&proxy);
///     // Usually the stdout of the server.
///     std::thread::spawn(move || proxy.pump_server(std::io::empty()))
/// };
/// proxy.pump_client(&b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n"[..]);
/// server.join().map_err(|_| std::io::Error::other("the pump panicked"))?;
/// assert!(proxy.client_has_left());
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Proxy {
    pub(crate) state: Arc<ProxyState>,
    client: Outlet,
    pub(crate) upstream: Arc<Upstream>,
    client_requests: ClientRequests,
    watched: Mutex<HashMap<Id, Watched>>,
    /// Forwarded requests without an answer, with their ids as text.
    pending: Mutex<HashMap<Id, String>>,
    supervisor: Supervisor,
    /// Whether the client has begun to use the server, so that held calls can be sent to it.
    ready: AtomicBool,
}

impl Proxy {
    /// Creates a proxy that writes to these streams. Its calls run on that runtime.
    #[must_use]
    pub fn new(ledger: Ledger, options: Options, streams: Streams, runtime: Handle) -> Arc<Self> {
        let name = format!("once-{}", random_name());
        Arc::new(Self {
            // Pump threads may block on a write, so a single call is recorded on the thread that read it.
            state: ProxyState::new(ledger.blocking().ledger().clone(), options, runtime),
            client: Outlet::new(streams.client),
            client_requests: ClientRequests::new(format!("{name}-ask")),
            upstream: Arc::new(Upstream::new(streams.server, name)),
            watched: Mutex::default(),
            pending: Mutex::default(),
            supervisor: Supervisor::default(),
            ready: AtomicBool::new(false),
        })
    }

    /// Forwards the client's messages until its stream ends. Then waits for the calls in flight and closes the
    /// server's input. Blocks.
    pub fn pump_client(self: &Arc<Self>, client: impl Read) {
        let mut client = BufReader::with_capacity(CHUNK, client);
        let pump = PumpGuard::new(&self.state.runtime, StreamSide::WriteToServer);
        self.release_while_connected();
        loop {
            match next_line(&mut client, MAX_LINE) {
                Ok(Some(line)) => {
                    // Blocks while a server is started.
                    if self.supervisor.want_server() == Started::Anew {
                        self.initialize_again();
                    }
                    self.from_client(line);
                    pump.run_queued(backlog(&client));
                }
                Ok(None) => break,
                Err(error) => {
                    self.state.notice(&format!("the client's messages can no longer be read: {error}"));
                    break;
                }
            }
        }
        self.state.client_left.store(true, Ordering::SeqCst);
        drop(pump);
        self.client_requests.close();
        // Closing the server's input now would end its calls.
        self.state.wait_idle(self.state.options.drain_ms);
        self.upstream.close();
        self.supervisor.client_left();
    }

    /// Sends held calls whose time has come, for as long as the client is there.
    fn release_while_connected(self: &Arc<Self>) {
        if !self.state.rule_set.policy.holds() {
            return;
        }
        let (proxy, ledger) = (Arc::downgrade(self), self.state.ledger.clone());
        drop(self.state.runtime.spawn(async move {
            loop {
                time::sleep(ledger.clock(), held::INTERVAL).await;
                let Some(proxy) = proxy.upgrade().filter(|proxy| !proxy.client_has_left()) else { return };
                if proxy.ready.load(Ordering::SeqCst) {
                    // Not a request of the client: it is no evidence that the client has read its answers.
                    let now_ms = proxy.state.ledger.clock_ms();
                    let waiter = Waiter::new(
                        held::RELEASED_ID,
                        Caller::default(),
                        ONE_STREAM,
                        now_ms,
                        Vec::new(),
                        Peer::default(),
                    );
                    let state = Arc::clone(&proxy.state);
                    let transport: Arc<dyn CallTransport> = Arc::new(StdioTransport::new(proxy, waiter));
                    state.release_due(&transport).await;
                }
            }
        }));
    }

    /// Forwards the server's messages until its stream ends. Blocks.
    pub fn pump_server(self: &Arc<Self>, server: impl Read) {
        let mut server = BufReader::with_capacity(CHUNK, server);
        let pump = PumpGuard::new(&self.state.runtime, StreamSide::WriteToClient);
        loop {
            match next_line(&mut server, MAX_LINE) {
                Ok(Some(line)) => {
                    self.supervisor.note_server_output();
                    self.from_server(line);
                    pump.run_queued(backlog(&server));
                }
                Ok(None) => return,
                Err(error) => {
                    self.state.notice(&format!("the server's messages can no longer be read: {error}"));
                    return;
                }
            }
        }
    }

    /// Call this when the server has ended: every unanswered call is in doubt, and every other request is answered
    /// with an error. Returns when this is recorded.
    pub fn server_gone(&self, reason: &str) {
        self.supervisor.server_gone();
        self.upstream.server_gone(reason);
        lock(&self.watched).clear();
        let pending = std::mem::take(&mut *lock(&self.pending));
        pending.into_values().for_each(|id| self.to_client(without_server(&id, reason).as_bytes()));
        self.state.wait_idle(self.state.options.drain_ms);
    }

    /// Answers a request that was forwarded when the server had ended already, so that no answer to it will come.
    fn answer_if_gone(&self, id: &str) {
        if let Some(reason) = self.upstream.gone()
            && lock(&self.pending).remove(&Id::of(id)).is_some()
        {
            self.to_client(without_server(id, &reason).as_bytes());
        }
    }

    /// Waits until the client sends a message for a server that has ended, or leaves. Blocks.
    pub fn wait_for_client(&self) -> Next {
        self.supervisor.wait_for_client()
    }

    /// Whether the current server has sent anything.
    #[must_use]
    pub fn server_has_spoken(&self) -> bool {
        self.supervisor.server_has_spoken()
    }

    /// Call this when the server was started again. The client's `initialize` is repeated, and its request continues.
    pub fn server_started(&self, server: Box<dyn Write + Send>) {
        self.upstream.reopen(server);
        lock(&self.state.catalogue).note_changed();
        self.supervisor.server_started();
    }

    /// Whether the server was ever started again.
    #[must_use]
    pub fn was_restarted(&self) -> bool {
        self.supervisor.was_restarted()
    }

    /// Call this when the user ends the proxy: the server is not started again.
    pub fn stop(&self) {
        self.supervisor.client_left();
    }

    /// Call this when the server cannot be started again: further requests are answered with an error.
    pub fn no_more_servers(&self) {
        self.supervisor.end();
    }

    /// Repeats the client's `initialize` for a server that was started again. Blocks.
    fn initialize_again(&self) {
        let Some(initialize) = self.supervisor.initialize_request() else { return };
        let Some(place) = Head::parse(&initialize).and_then(|head| head.id_place()) else { return };
        let (sender, answer) = tokio::sync::oneshot::channel();
        let Ok(id) = self.upstream.register(&initialize[place.clone()], PendingReply::Ours(sender)) else {
            return;
        };
        self.upstream.pass(raw::spliced(&initialize, place, &id).as_bytes());
        // If the server ends before it answers, its reader notices and the sender is dropped.
        if let Ok(ServerReply::Answer(_)) = answer.blocking_recv() {
            self.upstream.pass(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        }
    }

    /// Whether the client has closed its stream.
    #[must_use]
    pub fn client_has_left(&self) -> bool {
        self.state.client_left.load(Ordering::SeqCst)
    }

    /// Waits until no call is in flight, or until the time is over. Returns whether none is. Blocks.
    pub fn wait_idle(&self, patience_ms: u64) -> bool {
        self.state.wait_idle(patience_ms)
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

    /// Whether it is the client's answer to one of our requests.
    fn answers_us(&self, item: &str) -> bool {
        Head::parse(item).is_some_and(|head| {
            head.is_response() && head.id.is_some_and(|id| self.client_requests.is_ours(id))
        })
    }

    fn opaque_from_client(&self, line: &[u8]) {
        match unreadable_call(line) {
            // Some servers accept what we cannot parse (a `NaN`, half a character) and would execute it unguarded.
            Some(id) => self.to_client(unreadable(&id).as_bytes()),
            None => self.upstream.pass(line),
        }
    }

    /// Handles one message, which is all of `whole` or a part of it.
    fn one_from_client(self: &Arc<Self>, head: &Head<'_>, whole: &Arc<String>) {
        let line = head.text.as_bytes();
        if matches!(head.method.as_deref(), Some("notifications/initialized" | "tools/list" | "tools/call")) {
            self.ready.store(true, Ordering::SeqCst);
        }
        match (head.method.as_deref(), head.id) {
            (Some("tools/call"), Some(_)) => self.tool_call(head, whole),
            (Some("tools/call"), None) if has_null_id(head.text) => self.to_client(NULL_ID),
            (Some("tools/call"), None) => {
                self.state.notice("a tool call without an id cannot be answered; not sent");
            }
            (Some("tools/list"), Some(id)) => self.watch(id, Watched::Tools, head, line),
            (Some("tasks/get" | "tasks/result"), Some(id)) => self.watch(id, Watched::Task, head, line),
            (Some("initialize"), Some(id)) => {
                self.client_requests.note_capabilities(head.params);
                self.state.note_client(head.params);
                self.supervisor.remember_initialize(head.text);
                self.watch(id, Watched::Initialize, head, line);
            }
            (None, Some(id)) if self.client_requests.is_ours(id) => {
                self.client_requests.complete(id, head.text)
            }
            (Some("notifications/cancelled"), None) => {
                if !self.state.cancel(&Caller::default(), head) {
                    self.upstream.pass(line);
                }
            }
            (Some(_), Some(id)) => self.pass_request(id, head, line),
            (Some(_), None) if has_null_id(head.text) => self.to_client(NULL_ID),
            (Some(_) | None, _) => self.upstream.pass(line),
        }
    }

    /// Forwards a request. An id that we may have used is replaced by one of ours.
    fn pass_request(&self, id: &str, head: &Head<'_>, line: &[u8]) {
        self.state.note_request_from(&Caller::default());
        lock(&self.pending).insert(Id::of(id), id.to_owned());
        let place = head.id_place().filter(|_| self.upstream.is_ours(&Id::of(id)));
        match place {
            None => self.upstream.pass(line),
            Some(place) => {
                if let Ok(ours) = self.upstream.register(id, PendingReply::Relayed(id.to_owned())) {
                    self.upstream.pass(raw::spliced(head.text, place, &ours).as_bytes());
                }
            }
        }
        self.answer_if_gone(id);
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
            // No server could execute it; the server answers with an error.
            self.upstream.pass(head.text.as_bytes());
            return;
        };
        if self.state.is_known_read(&call.tool) {
            self.pass_request(call.id(), head, head.text.as_bytes());
            return;
        }
        let waiter = self.state.waiter(call.id(), Caller::default(), ONE_STREAM, Peer::default());
        self.state.take(call, Arc::new(StdioTransport::new(Arc::clone(self), waiter)));
    }

    fn from_server(self: &Arc<Self>, line: Vec<u8>) {
        match Message::of(&line) {
            Message::One(head) if head.is_response() => {
                let id = Id::of(head.id.unwrap_or_default());
                self.answer_from_server(&id, line);
            }
            Message::One(head) if head.method.as_deref() == Some("notifications/progress") => {
                // A caller that joins after this event must not be sent it.
                self.state.progress.tell(ONE_STREAM, &head);
                self.to_client(&line);
            }
            Message::One(head) if head.method.as_deref() == Some("notifications/tools/list_changed") => {
                lock(&self.state.catalogue).note_changed();
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
                Some(PendingReply::Ours(sender)) => {
                    let reason = "the server's answer is not JSON".to_owned();
                    drop(sender.send(ServerReply::Over(reason)));
                }
                Some(PendingReply::Relayed(_)) | None => self.to_client(&line),
            },
        }
    }

    fn is_for_us(&self, item: &str) -> bool {
        Head::parse(item).is_some_and(|head| {
            head.is_response() && head.id.is_some_and(|id| self.upstream.was_given(&Id::of(id)))
        })
    }

    fn answer_from_server(self: &Arc<Self>, id: &Id, line: Vec<u8>) {
        let (waiting, id) = (self.upstream.take(id), id.clone());
        match waiting {
            // The receiver may be gone; then the answer is not needed.
            Some(PendingReply::Ours(sender)) => drop(sender.send(ServerReply::Answer(line))),
            Some(PendingReply::Relayed(theirs)) => {
                let line = respond_to(&line, &theirs);
                self.pass_answer(&Id::of(&theirs), line);
            }
            None if self.upstream.was_given(&id) => {
                self.state.notice("the server answered a call twice; the first answer counts");
            }
            None => self.pass_answer(&id, line),
        }
    }

    fn pass_answer(self: &Arc<Self>, id: &Id, line: Vec<u8>) {
        lock(&self.pending).remove(id);
        let watched = lock(&self.watched).remove(id);
        match watched {
            None => self.to_client(&line),
            Some(Watched::Initialize) => self.to_client(&doubts::announcing(line)),
            Some(Watched::Tools) => {
                let line = self.state.learn_tools(line);
                let (proxy, active) = (Arc::clone(self), self.state.begin_activity());
                drop(inline_executor::spawn(&self.state.runtime, async move {
                    let line = proxy.state.with_own_tools(line, &Caller::default()).await;
                    let client = Arc::clone(&proxy);
                    let send = move || proxy.to_client(&line);
                    drop(run_blocking(StreamSide::WriteToClient, &client.client.write_permits, send).await);
                    drop(active);
                }));
            }
            Some(Watched::Task) => {
                self.state.learn_task(&line);
                self.to_client(&line);
            }
        }
    }

    /// Writes to the client. A client that no longer reads is noticed when its own stream ends.
    fn to_client(&self, line: &[u8]) {
        drop(self.client.send(&[line]));
    }
}

/// The transport of a call on the streams of this process.
pub(crate) struct StdioTransport {
    proxy: Arc<Proxy>,
    waiter: Arc<Waiter>,
    /// The id of the caller's request at the server.
    sent_as: Mutex<Option<String>>,
}

impl StdioTransport {
    pub(crate) fn new(proxy: Arc<Proxy>, waiter: Arc<Waiter>) -> Self {
        Self { proxy, waiter, sent_as: Mutex::default() }
    }

    /// Sends the client a message of the proxy. A client that no longer reads is noticed when its own stream ends.
    async fn send(&self, line: String) {
        let proxy = Arc::clone(&self.proxy);
        let send = move || proxy.to_client(line.as_bytes());
        drop(run_blocking(StreamSide::WriteToClient, &self.proxy.client.write_permits, send).await);
    }
}

#[async_trait::async_trait]
impl CallTransport for StdioTransport {
    fn waiter(&self) -> &Arc<Waiter> {
        &self.waiter
    }

    async fn ask(&self, request: Request) -> Result<ServerReply, SendError> {
        let (id, receiver) = self.proxy.upstream.ask(request.line, request.id_place).await?;
        match request.origin {
            Origin::Caller => *lock(&self.sent_as) = Some(id),
            Origin::Proxy => {}
        }
        Ok(receiver.await.unwrap_or_else(|_| ServerReply::Over("the server's answer was lost".to_owned())))
    }

    async fn cancel_request(&self) {
        let Some(id) = lock(&self.sent_as).clone() else { return };
        let upstream = Arc::clone(&self.proxy.upstream);
        let send = move || upstream.pass(cancelled(&id, Some(STOPPED)).as_bytes());
        drop(run_blocking(StreamSide::WriteToServer, &self.proxy.upstream.outlet.write_permits, send).await);
    }

    async fn pass(&self, call: ToolCall) {
        if self.waiter.is_gone() {
            return;
        }
        lock(&self.proxy.pending).insert(Id::of(call.id()), call.id().to_owned());
        let (upstream, id) = (Arc::clone(&self.proxy.upstream), call.id().to_owned());
        let send = move || upstream.pass(call.line.as_bytes());
        drop(run_blocking(StreamSide::WriteToServer, &self.proxy.upstream.outlet.write_permits, send).await);
        self.proxy.answer_if_gone(&id);
    }

    async fn answer(&self, answer: CallAnswer) -> Delivered {
        if self.waiter.is_gone() {
            return Delivered::No;
        }
        let (proxy, id) = (Arc::clone(&self.proxy), self.waiter.id_text.clone());
        let send = move || match answer {
            CallAnswer::FromProxy(text) => proxy.client.send(&[text.as_bytes()]),
            CallAnswer::FromServer(line) => {
                let place = std::str::from_utf8(&line).ok().and_then(|text| Head::parse(text)?.id_place());
                match place {
                    Some(place) => {
                        proxy.client.send(&[&line[..place.start], id.as_bytes(), &line[place.end..]])
                    }
                    None => proxy.client.send(&[&line]),
                }
            }
            CallAnswer::Held | CallAnswer::Nothing => {
                Err(SendError::NotSent("there is nothing to say".to_owned()))
            }
        };
        // A client that does not read delays only its own answer.
        match run_blocking(StreamSide::WriteToClient, &self.proxy.client.write_permits, send).await {
            Ok(Ok(())) => Delivered::Yes,
            Ok(Err(_)) | Err(_) => Delivered::No,
        }
    }

    async fn ask_client(&self, method: &str, params: &str, patience: Duration) -> Option<String> {
        let mut request = self.proxy.client_requests.begin()?;
        let (method, id) = (raw::quoted(method), request.id.clone());
        self.send(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":{method},\"params\":{params}}}"))
            .await;
        let clock = self.proxy.state.ledger.clock();
        let until_ms = time::after(clock, patience);
        while clock.now_ms() < until_ms && !self.waiter.is_gone() {
            if let Some(answer) = time::within(clock, POLL_INTERVAL, &mut request.answer).await {
                return answer.ok();
            }
        }
        self.proxy.client_requests.forget(&id);
        self.send(cancelled(&id, None)).await;
        None
    }

    async fn announce(&self, method: &'static str) {
        self.send(format!("{{\"jsonrpc\":\"2.0\",\"method\":{}}}", raw::quoted(method))).await;
    }

    fn tell(&self, line: &[u8]) {
        self.proxy.to_client(line);
    }
}

/// The answer to a request with the id `null`, which could not be matched to its answer.
const NULL_ID: &[u8] = concat!(
    r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"#,
    r#""message":"once: the id of a request must not be null; not sent"}}"#
)
.as_bytes();

/// Whether a message has the id `null`.
fn has_null_id(text: &str) -> bool {
    raw::Object::parse(text).is_some_and(|message| message.get("id") == Some("null"))
}

/// Whether more input is buffered.
fn backlog(stream: &BufReader<impl Read>) -> Backlog {
    if stream.buffer().is_empty() { Backlog::Empty } else { Backlog::Waiting }
}

/// The answer with another id.
fn respond_to(line: &[u8], id: &str) -> Vec<u8> {
    let text = std::str::from_utf8(line).ok();
    match text.and_then(|text| Some((text, Head::parse(text)?.id_place()?))) {
        Some((text, place)) => raw::spliced(text, place, id).into_bytes(),
        None => line.to_vec(),
    }
}
